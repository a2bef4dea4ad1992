"""The register tile of a sum over windows, and what of it threads share: by estimates in cycles."""

from __future__ import annotations

import operator
from functools import lru_cache
from math import inf, prod, sqrt
from typing import NamedTuple

from baregrad.ir.core import index
from baregrad.kernel.facts.analysis import Access, Reduction, iterations
from baregrad.kernel.planning.cpu.gemm_fallback import MOST_STEPS, SPARE_REGISTERS, Machine
from baregrad.kernel.planning.cpu.images import Image
from baregrad.kernel.planning.tiling import Plan, PlannedAxis
from baregrad.target.cpu import CpuTarget

# Cycles for each element of the output: neighbours in a register, and one by one.
STORE_CYCLES = 0.3
SCATTER_CYCLES = 2.5
# Of an image that the second cache does not hold.
IMAGE_NBYTES_PER_CYCLE = 8.0
# Cycles to copy an element of the filter.
PACK_CYCLES = 2.5
# What a tile takes more where each of its steps reads a line of the image that the next does not.
FAR_COST = 1.05
NEAR_STEPS = 8
NEAR_RUN = 4
# Vectors of a tile: of the usual best first, so that others are soon known to be worse.
VECTORS = (2, 3, 4, 1)
MOST_PAIRED = 24
# What it takes more to keep sums in memory between panels.
CARRY_COST = 1.05
TAIL_PENALTY = 0.02
# A tile that costs less by this part is a better one.
BETTER = 0.999
LEAST_LANES = 4
# From how many panels on a sum is kept in memory between them, to have them in the first cache.
LEAST_PANELS = 4
ALONE_CYCLES = 60_000.0


class Windows(NamedTuple):
    """A sum of products of an image and a filter, and the axes of its output by what they move.

    lane: the longest of those that move the filter alone, along which vectors lie. slides: whether
    windows overlap. copied: what is copied of the image, a band at a time; None where it is read
    where it lies.
    """

    image: Access
    filter: Access
    moves_image: list[PlannedAxis]
    moves_filter: list[PlannedAxis]
    moves_both: list[PlannedAxis]
    own: list[PlannedAxis]
    lane: PlannedAxis
    slides: bool = False
    copied: Image | None = None


class Tile(NamedTuple):
    """Vectors of the lane axis times steps of another, and all of a third one perhaps.

    cost: cycles for an element of the output.
    """

    second: PlannedAxis
    third: PlannedAxis | None
    vectors: int
    steps: int
    cost: float


class Share(NamedTuple):
    """The loop that threads share, None for one chunk; how long that takes, for comparison."""

    axis: PlannedAxis | None
    grain: int
    time: float


def best_tile(
    plan: Plan, main: Reduction, found: Windows, machine: Machine, target: CpuTarget
) -> tuple[Tile, Share]:
    """The tile that takes least where threads share it best; of equals that of fewest vectors."""
    work = _Work.of(main, found)
    search = _Search.of(plan, found, work, machine, target)
    best: tuple[float, int, Tile, Share] | None = None
    most = inf
    for vectors in VECTORS:
        tile = search.tile(vectors, most) if vectors <= search.whole else None
        if tile is None:
            continue
        share = _share(found, tile, work, machine, target)
        if best is None or (share.time, vectors) < best[:2]:
            best = (share.time, vectors, tile, share)
            most = work.most(share.time, target)
    assert best is not None
    return best[2:]


class _Search(NamedTuple):
    """What the cost of a tile depends on beside its sizes.

    whole: vectors along the lane axis. steps: of the reduction; run: neighbouring ones that read
    one line of the image.
    """

    found: Windows
    machine: Machine
    target: CpuTarget
    whole: int
    steps: int
    run: int
    pairs: list[_Pair]

    @staticmethod
    def of(
        plan: Plan, found: Windows, work: _Work, machine: Machine, target: CpuTarget
    ) -> _Search:
        """The search for the tiles of a sum over windows."""
        write = next(access for access in plan.facts.accesses if access.write)
        near = [
            axis.size for axis in found.own
            if 0 < abs(axis.stride(found.image) or 0) <= NEAR_STEPS
        ]
        axes = found.moves_image if found.copied is None else found.copied.spread()
        pairs = [_paired(found, write, second, third) for second, third in _pairs(axes)]
        whole = -(-found.lane.size // machine.lanes)
        return _Search(found, machine, target, whole, work.steps, max(near, default=1), pairs)

    def tile(self, vectors: int, most: float) -> Tile | None:
        """The tile of so many vectors whose element of the output costs least; `most` at most."""
        machine, whole, products = self.machine, self.whole, self.steps
        scaled = products * whole / self.found.lane.size
        if products > panel_rows(self.found, vectors, machine, self.target):
            scaled *= CARRY_COST
        parts = _parts(whole, vectors)
        panel = products * vectors * machine.lanes * 4
        # Steps of a tile of so many vectors that registers hold.
        held = (machine.registers - SPARE_REGISTERS) // vectors - 1
        known: dict[tuple[int, int], float] = {}
        best: Tile | None = None
        for second, third, limit, times, near, beside in self.pairs:
            # Lines of the image are used whole where the first cache holds them till then.
            lines = panel + products * limit * 4
            near = near or (self.run >= NEAR_RUN and lines <= self.target.l1_bytes)
            scale = scaled if near else scaled * FAR_COST
            for steps in range(min(limit, held // times), 0 if third is None else limit - 1, -1):
                rows = steps * times
                cycles = known.get((vectors, rows))
                if cycles is None:
                    cycles = machine.cycles(vectors * rows, vectors + rows, vectors)
                    known[vectors, rows] = cycles
                least = cycles / (vectors * rows) * scale
                least += STORE_CYCLES if beside else SCATTER_CYCLES
                if least >= most:
                    # Smaller tiles take longer for each product.
                    break
                cycles = 0.0
                rest = _parts(second.size, steps)
                for v, count in parts:
                    for s, repeats in rest:
                        each = known.get((v, s * times))
                        if each is None:
                            each = machine.cycles(v * s * times, v + s * times, v)
                            known[v, s * times] = each
                        cycles += count * repeats * each
                cost = cycles / second.size / times / whole * scale
                cost *= 1.0 + TAIL_PENALTY * (len(parts) * len(rest) - 1)
                cost += STORE_CYCLES if beside and steps >= LEAST_LANES else SCATTER_CYCLES
                if cost < most:
                    best, most = Tile(second, third, vectors, steps, cost), cost * BETTER
        return best


def _pairs(axes: list[PlannedAxis]) -> list[tuple[PlannedAxis, PlannedAxis | None]]:
    """The axes that the steps of a tile may lie along: one, or two short ones."""
    pairs: list[tuple[PlannedAxis, PlannedAxis | None]] = []
    for axis in axes:
        pairs.append((axis, None))
        for other in axes:
            if other is not axis and axis.size * other.size <= MOST_PAIRED:
                pairs.append((axis, other))
    return pairs


class _Pair(NamedTuple):
    """Axes that steps may lie along: steps of the first at most, those of the third, and how.

    near: whether steps are near in the image. beside: whether they are neighbours in the output.
    """

    second: PlannedAxis
    third: PlannedAxis | None
    most: int
    times: int
    near: bool
    beside: bool


def _paired(
    found: Windows, write: Access, second: PlannedAxis, third: PlannedAxis | None
) -> _Pair:
    far = abs(second.stride(found.image) or 0)
    times = 1
    if third is not None:
        far, times = min(far, abs(third.stride(found.image) or 0)), third.size
    most = min(second.size, MOST_STEPS + 2)
    return _Pair(second, third, most, times, far <= NEAR_STEPS, second.stride(write) == 1)


@lru_cache(1 << 10)
def _parts(size: int, tile: int) -> tuple[tuple[int, int], ...]:
    """(tile, how many) of an axis: whole tiles, and the rest."""
    whole, rest = divmod(size, tile)
    found = ((tile, whole),) if whole else ()
    return (*found, (rest, 1)) if rest else found


class _Work(NamedTuple):
    """What does not depend on the tile: elements of the output, cycles to copy filters, and more.

    steps: of the reduction. nbytes: of the image. slides: whether its windows overlap.
    """

    results: int
    packed: float
    steps: int
    nbytes: int
    slides: bool

    @staticmethod
    def of(main: Reduction, found: Windows) -> _Work:
        """The work of a sum over windows."""
        steps = max(iterations(main.own), 1)
        filters = prod([axis.size for axis in (*found.moves_both, *found.moves_filter)])
        results = filters * prod([axis.size for axis in found.moves_image])
        nbytes = index.upper(index.product(found.image.array.shape)) * 4
        return _Work(results, PACK_CYCLES * steps * filters, steps, nbytes, found.slides)

    def most(self, time: float, target: CpuTarget) -> float:
        """The cost of a tile from which on it takes longer than a `Share.time`, however shared."""
        # No sharing is better than all of it spread over all cores.
        return (sqrt(time * 2 * max(target.cores, 2)) - self.packed) / self.results


def _share(
    found: Windows, tile: Tile, work: _Work, machine: Machine, target: CpuTarget
) -> Share:
    """The loop whose iterations threads share, so that what is done anew takes least.

    Sharing a loop inside the one over panels, each chunk copies all panels anew.
    """
    total = work.results * tile.cost
    image, packed = work.nbytes, work.packed
    width = tile.vectors * machine.lanes
    passes = -(-found.lane.size // width)
    # Windows that overlap use a line several times while the next ones come.
    both = max if work.slides else operator.add
    read = image * (passes if image > target.l2_bytes else 1) / IMAGE_NBYTES_PER_CYCLE
    alone = packed + both(total, read)
    best = Share(None, 1, alone * alone)
    if total < ALONE_CYCLES:
        return best
    carried = carries(work.steps, found, tile.vectors, machine, target)
    trips = _trips(found, tile, width)
    # Good on two cores and on as many as the machine's family has.
    machines = (2, max(target.cores, 2))
    for axis, count, repeats in trips:
        for wanted in (2, 4, 8, 16, 32):
            if wanted >= 2 * count:
                # Another time the same: each iteration alone.
                break
            grain = -(-count // min(count, wanted))
            chunks = -(-count // grain)
            # While it computes it reads the image: once, if the second cache holds a chunk's part.
            part = image * grain // count if repeats else image
            read = image * (passes if part > target.l2_bytes else 1) / IMAGE_NBYTES_PER_CYCLE
            cycles = both(total, read) * grain
            time = 1.0 + 0.1 / chunks
            for cores in machines:
                rounds = -(-chunks // cores)
                again = rounds / chunks
                if repeats:
                    again = rounds * grain if carried else rounds
                time *= cycles * rounds / count + packed * again
            if time < best.time * 0.999:
                best = Share(axis, grain, time)
    return best


def _trips(found: Windows, tile: Tile, width: int) -> list[tuple[PlannedAxis, int, bool]]:
    """The loops of several trips that threads could share, and whether filters are copied anew."""
    trips: list[tuple[PlannedAxis, int, bool]] = []
    for axes, repeats in (
        (found.moves_both, False), (found.moves_filter, False), (found.moves_image, True)
    ):
        for axis in axes:
            count = axis.size
            if axis is found.lane:
                count //= min(width, count)
            elif axis is tile.second or axis is tile.third:
                continue
            elif found.copied is not None:
                count = found.copied.trips(axis)
            if count > 1:
                trips.append((axis, count, repeats))
    return trips


def panel_rows(found: Windows, vectors: int, machine: Machine, target: CpuTarget) -> int:
    """How many steps of the reduction a panel of the filter may have."""
    return target.l2_bytes * 3 // 4 // (min(found.lane.size, vectors * machine.lanes) * 4)


def carries(
    steps: int, found: Windows, vectors: int, machine: Machine, target: CpuTarget
) -> bool:
    """Whether the reduction is long enough for several panels of the first cache."""
    small = panel_rows(found, vectors, machine, target) * target.l1_bytes // target.l2_bytes
    return steps >= LEAST_PANELS * small

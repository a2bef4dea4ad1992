"""The register tile of a sum over windows, and what of it threads share: by estimates in cycles."""

from __future__ import annotations

import operator
from functools import cache
from math import inf, sqrt
from typing import NamedTuple

from baregrad.ir.core import index
from baregrad.kernel.facts.analysis import ArrayAccess, iterations
from baregrad.kernel.planning.common.tiling import PlannedAxis, parts_of, points
from baregrad.kernel.planning.cpu.gemm_fallback import MOST_STEPS
from baregrad.kernel.planning.cpu.images import Image
from baregrad.kernel.planning.cpu.sum_plan import SPARE_REGISTERS, SumPlan, cycles_of_tiles
from baregrad.target.cpu import CpuTarget

# Cycles for each element of the output: neighbours in a register, and one by one.
STORE_CYCLES = 0.3
SCATTER_CYCLES = 2.5
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

    plan: SumPlan
    image: ArrayAccess
    filter: ArrayAccess
    moves_image: list[PlannedAxis]
    moves_filter: list[PlannedAxis]
    moves_both: list[PlannedAxis]
    own: list[PlannedAxis]
    lane: PlannedAxis
    slides: bool = False
    copied: Image | None = None


class WindowTile(NamedTuple):
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


def best_tile(found: Windows) -> tuple[WindowTile, Share]:
    """The tile that takes least where threads share it best; of equals that of fewest vectors."""
    plan = found.plan
    work = _Work.of(found)
    pairs = _pairs(found)
    best: tuple[float, int, WindowTile, Share] | None = None
    most = inf
    for vectors in VECTORS:
        whole = -(-found.lane.size // plan.lanes)
        tile = _tile_of(found, work, pairs, vectors, most) if vectors <= whole else None
        if tile is None:
            continue
        share = _share(found, tile, work)
        if best is None or (share.time, vectors) < best[:2]:
            best = (share.time, vectors, tile, share)
            most = work.most(share.time, plan.target)
    assert best is not None
    return best[2:]


def _tile_of(
    found: Windows, work: _Work, pairs: list[_Pair], vectors: int, most: float
) -> WindowTile | None:
    """The tile of this many vectors whose element of the output costs least; `most` at most."""
    plan, products = found.plan, work.steps
    whole = -(-found.lane.size // plan.lanes)
    scaled = products * whole / found.lane.size
    if products > panel_rows(found, vectors):
        scaled *= CARRY_COST
    parts = parts_of(whole, vectors)
    panel = products * vectors * plan.lanes * 4
    # Steps of a tile of this many vectors that registers hold.
    held = (plan.registers - SPARE_REGISTERS) // vectors - 1

    @cache
    def cycles(v: int, rows: int) -> float:
        return plan.cycles(v * rows, v + rows, v)

    best: WindowTile | None = None
    for second, third, limit, times, near, beside in pairs:
        # Lines of the image are used whole where the first cache holds them till then.
        lines = panel + products * limit * 4
        near = near or (work.run >= NEAR_RUN and lines <= plan.target.l1_bytes)
        scale = scaled if near else scaled * FAR_COST
        for steps in range(min(limit, held // times), 0 if third is None else limit - 1, -1):
            rows = steps * times
            least = cycles(vectors, rows) / (vectors * rows) * scale
            least += STORE_CYCLES if beside else SCATTER_CYCLES
            if least >= most:
                # Smaller tiles take longer for each product.
                break
            rest = parts_of(second.size, steps)
            total = cycles_of_tiles(parts, rest, cycles, times)
            cost = total / second.size / times / whole * scale
            cost *= 1.0 + TAIL_PENALTY * (len(parts) * len(rest) - 1)
            cost += STORE_CYCLES if beside and steps >= LEAST_LANES else SCATTER_CYCLES
            if cost < most:
                best, most = WindowTile(second, third, vectors, steps, cost), cost * BETTER
    return best


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


def _pairs(found: Windows) -> list[_Pair]:
    """The axes that the steps of a tile may lie along: one, or two short ones."""
    axes = found.moves_image if found.copied is None else found.copied.spread()
    write = next(access for access in found.plan.facts.accesses if access.write)
    pairs: list[_Pair] = []
    for axis in axes:
        for third in (None, *axes):
            if third is axis or (third is not None and axis.size * third.size > MOST_PAIRED):
                continue
            far = min([abs(each.stride(found.image) or 0) for each in (axis, third) if each])
            most, times = min(axis.size, MOST_STEPS + 2), third.size if third else 1
            beside = axis.stride(write) == 1
            pairs.append(_Pair(axis, third, most, times, far <= NEAR_STEPS, beside))
    return pairs


class _Work(NamedTuple):
    """What does not depend on the tile: elements of the output, cycles to copy filters, and more.

    steps: of the reduction; run: neighbouring ones that read one line of the image. nbytes: of the
    image. slides: whether its windows overlap.
    """

    results: int
    packed: float
    steps: int
    run: int
    nbytes: int
    slides: bool

    @staticmethod
    def of(found: Windows) -> _Work:
        """The work of a sum over windows."""
        steps = max(iterations(found.plan.main.own), 1)
        filters = points((*found.moves_both, *found.moves_filter))
        strides = [(axis.size, abs(axis.stride(found.image) or 0)) for axis in found.own]
        near = [size for size, stride in strides if 0 < stride <= NEAR_STEPS]
        nbytes = index.upper(index.product(found.image.array.shape)) * 4
        results, packed = filters * points(found.moves_image), PACK_CYCLES * steps * filters
        return _Work(results, packed, steps, max(near, default=1), nbytes, found.slides)

    def most(self, time: float, target: CpuTarget) -> float:
        """The cost of a tile from which on it takes longer than a `Share.time`, however shared."""
        # No sharing is better than all of it spread over all cores.
        return (sqrt(time * 2 * max(target.cores, 2)) - self.packed) / self.results


def _share(found: Windows, tile: WindowTile, work: _Work) -> Share:
    """The loop whose iterations threads share, so that what is done anew takes least.

    Sharing a loop inside the one over panels, each chunk copies all panels anew.
    """
    plan = found.plan
    total = work.results * tile.cost
    image, packed = work.nbytes, work.packed
    width = tile.vectors * plan.lanes
    passes = -(-found.lane.size // width)
    # Windows that overlap use a line several times while the next ones come.
    both = max if work.slides else operator.add

    def reading(part: int) -> float:
        times = passes if part > plan.target.l2_bytes else 1
        return image * times / plan.target.image_bytes_per_cycle

    alone = packed + both(total, reading(image))
    best = Share(None, 1, alone * alone)
    if total < ALONE_CYCLES:
        return best
    carried = carries(work.steps, found, tile.vectors)
    trips = _trips(found, tile, width, carried)
    # Good on two cores and on as many as the machine's family has.
    machines = (2, max(plan.target.cores, 2))
    for axis, count, repeats in trips:
        for wanted in (2, 4, 8, 16, 32):
            if wanted >= 2 * count:
                # Another time the same: each iteration alone.
                break
            grain = -(-count // min(count, wanted))
            chunks = -(-count // grain)
            # While it computes it reads the image: once, if the second cache holds a chunk's part.
            part = image * grain // count if repeats else image
            cycles = both(total, reading(part)) * grain
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


def _trips(
    found: Windows, tile: WindowTile, width: int, carried: bool
) -> list[tuple[PlannedAxis, int, bool]]:
    """The loops of several trips that threads could share, and whether filters are copied anew."""
    trips: list[tuple[PlannedAxis, int, bool]] = []
    filters = (*found.moves_both, *found.moves_filter)
    # Sums that wait between panels do so for all steps along the second axis.
    fixed = carried or found.copied is not None
    for axis in (*filters, *found.moves_image):
        count = axis.size
        if axis is found.lane:
            count //= min(width, count)
        elif axis is tile.third or (fixed and axis is tile.second):
            continue
        elif axis is tile.second:
            count //= tile.steps
        elif found.copied is not None:
            count = found.copied.trips(axis)
        if count > 1:
            trips.append((axis, count, axis not in filters))
    return trips


def panel_rows(found: Windows, vectors: int) -> int:
    """How many steps of the reduction a panel of the filter may have."""
    plan = found.plan
    return plan.target.l2_bytes * 3 // 4 // (min(found.lane.size, vectors * plan.lanes) * 4)


def carries(steps: int, found: Windows, vectors: int) -> bool:
    """Whether the reduction is long enough for several panels of the first cache."""
    plan = found.plan
    small = panel_rows(found, vectors) * plan.target.l1_bytes // plan.target.l2_bytes
    return steps >= LEAST_PANELS * small

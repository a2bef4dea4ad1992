"""Schedules for sliding windows: convolutions, also of one tap, and their weights' gradients.

One operand, the image, is read through windows: an axis of the output and a reduced axis move it by
steps that overlap. The other, the filter, does not move along some of those axes of the output.
Lanes lie along an axis that moves the filter alone; a step of the register tile is a neighbour
along an axis that moves the image alone, so an element of the image goes to all lanes, from
wherever its window is, whatever its stride. The filter is copied, in the order in which the
innermost loop reads it, once for many tiles; the image is read where it lies, or copied by bands.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from functools import lru_cache
from math import prod
from typing import NamedTuple

from baregrad.ir import index
from baregrad.ir.op import Ops
from baregrad.kernel.analysis import Access, Reduction, iterations
from baregrad.kernel.heuristic_contract import (
    MOST_STEPS,
    SPARE_REGISTERS,
    Machine,
    carry_panels,
    rows_that_fit,
    stage_panels,
)
from baregrad.kernel.heuristic_images import (
    Image,
    cut_band,
    image_of,
    is_worth_copying,
    stage_image,
)
from baregrad.kernel.schedule_value import Bind, Split, StageInput
from baregrad.kernel.tiling import Plan, PlannedAxis
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
MOST_VECTORS = 4
MOST_PAIRED = 24
# What it takes more to keep sums in memory between panels.
CARRY_COST = 1.05
TAIL_PENALTY = 0.02
LEAST_LANES = 4
# Neighbours that are copied at once from lanes that lie far apart.
RUNS = (16, 8, 14, 12, 10, 7, 9, 11, 13, 15, 6, 5, 4)
# From how many panels on a sum is kept in memory between them, to have them in the first cache.
LEAST_PANELS = 4
ALONE_CYCLES = 60_000.0


def _runs(found: Windows) -> bool:
    """Whether several axes are reduced, along the last of which both operands lie close."""
    last = found.own[-1]
    step = abs(last.stride(found.image) or 0)
    return len(found.own) > 1 and 0 < step <= NEAR_STEPS and last.stride(found.filter) == 1


def _skips(found: Windows, write: Access) -> bool:
    """Whether neighbours in the output are steps of more than one element in the image."""
    return any(
        axis.stride(write) == 1 and 1 < abs(axis.stride(found.image) or 0) <= NEAR_STEPS
        for axis in found.moves_image
    )


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


def windows_of(plan: Plan, main: Reduction, reads: list[Access]) -> Windows | None:
    """The kernel as a sum of products over windows; None where it is none."""
    if len(reads) != 2 or main.node.arg.monoid.primitive is not Ops.ADD:
        return None
    sorts = _sorted(plan, main, *reads)
    if sorts is None:
        return None
    first, second, both, own = sorts
    # Either operand may be the image.
    left, right = reads
    sides = ((left, right, first, second), (right, left, second, first))
    for image, other, moves, others in sides:
        if _slides(image, moves, own):
            return Windows(image, other, moves, others, both, own, max(others, key=_size), True)
    found = [
        Windows(image, other, moves, others, both, own, max(others, key=_size))
        for image, other, moves, others in sides
    ]
    for windows in found:
        if _runs(windows):
            return windows
    write = next(access for access in plan.facts.accesses if access.write)
    return next((windows for windows in found if _skips(windows, write)), None)


def _size(axis: PlannedAxis) -> int:
    return axis.size


def _sorted(
    plan: Plan, main: Reduction, left: Access, right: Access
) -> tuple[list[PlannedAxis], list[PlannedAxis], list[PlannedAxis], list[PlannedAxis]] | None:
    """The axes that move the left operand alone, the right one alone, both, and reduced ones."""
    only_left: list[PlannedAxis] = []
    only_right: list[PlannedAxis] = []
    both: list[PlannedAxis] = []
    own: list[PlannedAxis] = []
    for axis in plan.axes:
        strides = (axis.stride(left), axis.stride(right))
        if None in strides or not isinstance(axis.extent, int):
            return None
        if axis.reduced:
            if not axis.inside(main.own):
                return None
            if axis.size > 1:
                own.append(axis)
        elif axis.size > 1:
            if not axis.inside(main.free):
                return None
            if strides[0] and strides[1]:
                both.append(axis)
            elif strides[0]:
                only_left.append(axis)
            elif strides[1]:
                only_right.append(axis)
            else:
                return None
    if not only_left or not only_right or not own:
        return None
    return only_left, only_right, both, own


def _slides(image: Access, moves_image: list[PlannedAxis], own: list[PlannedAxis]) -> bool:
    """Whether an axis of the output and a reduced one move the image by overlapping steps."""
    steps = [(abs(inner.stride(image) or 0), inner.size) for inner in own]
    for axis in moves_image:
        far = abs(axis.stride(image) or 0)
        for step, size in steps:
            if step and far < step * size and step < far * axis.size:
                return True
    return False


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


def plan_windows(
    plan: Plan, main: Reduction, found: Windows, machine: Machine, target: CpuTarget
) -> tuple[list[PlannedAxis], Bind | None] | None:
    """Bind the register tile and the filter's panels: the data axes in the order of their loops.

    Also which of them the threads share. None where no axis moves the filter alone by enough lanes.
    """
    lane = found.lane
    if lane.size < LEAST_LANES or not found.filter.copyable:
        return None
    image = _image(main, found, machine, target)
    if image is None and found.image.guarded:
        # The innermost loop would have conditions.
        return None
    found = found._replace(copied=image)
    tiles = _tiles(plan, main, found, machine, target)
    tile, share = _best_shared(main, found, tiles, machine, target)
    second = tile.second
    plan.because(
        "windows over array {}, array {} the filter: {} vectors along {} by {} steps of {}, "
        "the cheapest tile", found.image.array.arg.slot, found.filter.array.arg.slot,
        tile.vectors, lane.name, tile.steps, second.name,
    )
    plan.vectorise(lane, machine.lanes, tile.vectors, carried=True, wide=True)
    plan.unroll(second, tile.steps)
    if tile.third is not None:
        plan.unroll(tile.third, tile.third.size)
    taken = [second, lane] if tile.third is None else [tile.third, second, lane]
    plan.tile_order = [name for axis in taken for part in axis.tiles for name in part]
    if image is not None:
        return _plan_image(plan, found, image, tile, share, machine, target)
    outside, inside = _loops_around(plan, found, taken)
    # What threads share is the outermost loop: sums wait for one of its iterations at a time.
    waiting = [axis for axis in inside if axis is not share.axis]
    _stage_filter(plan, main, found, tile, waiting, machine, target)
    order = [*outside, lane, *inside, second]
    return _shared_out(plan, share, order, inside, "waiting and copied filters cost least")


def _loops_around(
    plan: Plan, found: Windows, taken: Collection[PlannedAxis | None]
) -> tuple[list[PlannedAxis], list[PlannedAxis]]:
    """The axes beside those of a tile as loops: what moves the filter, and the image's own."""
    outside = [a for a in (*found.moves_both, *found.moves_filter) if a not in taken]
    inside = [axis for axis in found.moves_image if axis not in taken]
    for axis in (*outside, *inside):
        plan.keep(axis)
    return outside, inside


def _shared_out(
    plan: Plan, share: Share, order: list[PlannedAxis], inside: list[PlannedAxis], why: str
) -> tuple[list[PlannedAxis], Bind | None]:
    """The loops with what threads share outermost, if it is one of `inside`; and its binding."""
    shared = share.axis
    if shared is None or not shared.loops:
        plan.because("one thread: sharing would cost more than it saves")
        return order, None
    plan.because("threads share {}: {}", shared.loops[0][0], why)
    if shared in inside:
        order = [shared, *[other for other in order if other is not shared]]
    return order, Bind(shared.loops[0][0], "pool", share.grain)


def _image(
    main: Reduction, found: Windows, machine: Machine, target: CpuTarget
) -> Image | None:
    """What to copy of the image; None where it is better read where it lies, or has to be."""
    image = image_of(found.image, found.moves_image, found.own, machine.lanes, target)
    if image is None or iterations(main.own) > _rows(found, 2, machine, target):
        return None
    if found.image.guarded:
        return image
    # Sums that wait between panels would have each band copied for each panel.
    several = _carries(iterations(main.own), found, 2, machine, target)
    return image if is_worth_copying(image) and not several else None


def _plan_image(
    plan: Plan,
    found: Windows,
    image: Image,
    tile: Tile,
    share: Share,
    machine: Machine,
    target: CpuTarget,
) -> tuple[list[PlannedAxis], Bind | None]:
    """The loops around a tile whose image is copied band by band, and what threads share of them.

    A filter of which the second cache holds all is copied once; of others a panel is, and the bands
    are copied for each panel: the copies take little beside what is computed of them.
    """
    second, lane, shared = tile.second, found.lane, share.axis
    taken = (second, lane, tile.third)
    rest = cut_band(plan, image)
    outside, inside = _loops_around(plan, found, taken)
    bands = [axis for axis in inside if not image.holds(axis)]
    rows = [*rest, *[axis for axis in inside if image.holds(axis)], second]
    own = image.order()
    reduced = iter(own)
    plan.axes = [next(reduced) if axis in own else axis for axis in plan.axes]
    for axis in own:
        plan.keep(axis)
    nbytes = lane.size * iterations(tuple([node for axis in own for node in axis.nodes])) * 4
    whole = nbytes <= target.l2_bytes // 4 and not outside and shared is not lane
    if whole:
        plan.because("the second cache holds all of the filter: it is copied once")
    for place, part in enumerate(lane.tiles):
        first = [name for name, _ in lane.loops] if whole and place == 0 else []
        axes = (*first, *[name for axis in own for name, _ in axis.loops], *part)
        plan.stages.append(StageInput(found.filter.array.arg.slot, axes))
    stage_image(plan, image, second, machine.lanes)
    order = [*bands, lane, *rows] if whole else [*outside, lane, *bands, *rows]
    return _shared_out(plan, share, order, bands, "copies cost least")


def _stage_filter(
    plan: Plan,
    main: Reduction,
    found: Windows,
    tile: Tile,
    inside: list[PlannedAxis],
    machine: Machine,
    target: CpuTarget,
) -> None:
    """Copy the filter in panels of the first cache where sums of several are kept cheaply.

    Else all of the reduction is one panel, of the second cache.
    """
    lane = found.lane
    own, cut, parts = _cut_run(plan, found)
    room = _rows(found, tile.vectors, machine, target)
    small = room * target.l1_bytes // target.l2_bytes
    several = _carries(iterations(main.own), found, tile.vectors, machine, target)
    for most in (small, room) if several else (room,):
        pieces = rows_that_fit(own, most)
        if pieces is None:
            continue
        if not pieces.several:
            stage_panels(plan, found.filter, own, lane, None)
            break
        width = min(lane.size, tile.vectors * machine.lanes)
        if carry_panels(plan, main, pieces, lane, width, tile.second, inside, target, tile.third):
            stage_panels(plan, found.filter, pieces.inner, lane, None)
            break
    if cut is not None:
        cut.loops = [loop for part in parts for loop in part.loops]


def _cut_run(
    plan: Plan, found: Windows
) -> tuple[list[PlannedAxis], PlannedAxis | None, list[PlannedAxis]]:
    """The reduced axes, a long one whose steps are neighbours in the filter cut into short runs.

    Lanes that lie far apart are then copied run by run. Also the axis that was cut, and its parts.
    """
    own = list(found.own)
    for place, axis in enumerate(own):
        if axis.stride(found.filter) != 1 or not isinstance(axis.extent, int):
            continue
        run = next((r for r in RUNS if axis.extent > r and axis.extent % r == 0), 0)
        if not run or axis.extent <= RUNS[0]:
            break
        names = (f"{axis.name}a", f"{axis.name}b")
        plan.steps.append(Split(axis.name, ((names[0], 0), (names[1], run))))
        axis.planned = True
        sizes = (axis.extent // run, run)
        parts = [
            PlannedAxis(name, size, axis.nodes, True, size, [(name, size)])
            for name, size in zip(names, sizes, strict=True)
        ]
        own[place : place + 1] = parts
        return own, axis, parts
    return own, None, []


def _rows(found: Windows, vectors: int, machine: Machine, target: CpuTarget) -> int:
    """How many steps of the reduction a panel of the filter may have."""
    return target.l2_bytes * 3 // 4 // (min(found.lane.size, vectors * machine.lanes) * 4)


def _carries(
    steps: int, found: Windows, vectors: int, machine: Machine, target: CpuTarget
) -> bool:
    """Whether the reduction is long enough for several panels of the first cache."""
    small = _rows(found, vectors, machine, target) * target.l1_bytes // target.l2_bytes
    return steps >= LEAST_PANELS * small


def _tiles(
    plan: Plan, main: Reduction, found: Windows, machine: Machine, target: CpuTarget
) -> list[Tile]:
    """For each number of vectors the register tile whose element of the output costs least."""
    write = next(access for access in plan.facts.accesses if access.write)
    products = max(iterations(main.own), 1)
    lane = found.lane
    whole = -(-lane.size // machine.lanes)
    used = lane.size / (whole * machine.lanes)
    # Neighbouring steps of the reduction that read one line of the image.
    run = max(
        [axis.size for axis in found.own if 0 < abs(axis.stride(found.image) or 0) <= NEAR_STEPS],
        default=1,
    )
    tiles = []
    axes = found.moves_image if found.copied is None else found.copied.spread()
    pairs = [_paired(found, write, second, third) for second, third in _pairs(axes)]
    scaled = products / machine.lanes / used
    for vectors in range(1, min(whole, MOST_VECTORS) + 1):
        parts = _parts(whole, vectors)
        carry = CARRY_COST if products > _rows(found, vectors, machine, target) else 1.0
        best: tuple[PlannedAxis, PlannedAxis | None, int, float] | None = None
        known: dict[tuple[int, int], float] = {}
        panel = products * vectors * machine.lanes * 4
        # Steps of a tile of so many vectors that registers hold.
        held = (machine.registers - SPARE_REGISTERS) // vectors - 1
        for second, third, most, times, near, beside in pairs:
            # Lines of the image are used whole where the first cache holds them till then.
            near = near or (run >= NEAR_RUN and panel + products * most * 4 <= target.l1_bytes)
            scale = scaled * (carry if near else carry * FAR_COST)
            for steps in range(min(most, held // times), 0 if third is None else most - 1, -1):
                rows = steps * times
                if best is not None:
                    whole_tile = known.get((vectors, rows))
                    if whole_tile is None:
                        whole_tile = machine.cycles(vectors * rows, vectors + rows, vectors)
                        known[vectors, rows] = whole_tile
                    least = whole_tile / (vectors * rows) * scale
                    least += STORE_CYCLES if beside else SCATTER_CYCLES
                    if least >= best[-1] * 0.999:
                        # Smaller tiles take longer for each product.
                        break
                cycles = 0.0
                rest = _parts(second.size, steps)
                for v, count in parts:
                    for s, repeats in rest:
                        tile = known.get((v, s * times))
                        if tile is None:
                            tile = machine.cycles(v * s * times, v + s * times, v)
                            known[v, s * times] = tile
                        cycles += count * repeats * tile
                cost = cycles / second.size / times / whole * scale
                cost *= 1.0 + TAIL_PENALTY * (len(parts) * len(rest) - 1)
                cost += STORE_CYCLES if beside and steps >= LEAST_LANES else SCATTER_CYCLES
                if best is None or cost < best[-1] * 0.999:
                    best = (second, third, steps, cost)
        if best is not None:
            axis, other, steps, cost = best
            tiles.append(Tile(axis, other, vectors, steps, cost))
    return tiles


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


def _best_shared(
    main: Reduction, found: Windows, tiles: list[Tile], machine: Machine, target: CpuTarget
) -> tuple[Tile, Share]:
    """The tile that takes least where threads share it best; the first one of equals."""
    work = _Work.of(main, found)
    best: tuple[float, int, Share] | None = None
    for place in sorted(range(len(tiles)), key=lambda place: tiles[place].cost):
        tile = tiles[place]
        # No sharing is better than all of it spread over all cores.
        if best is not None and work.least(tile, target) > best[0]:
            break
        share = _share(found, tile, work, machine, target)
        if best is None or (share.time, place) < best[:2]:
            best = (share.time, place, share)
    assert best is not None
    return tiles[best[1]], best[2]


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

    def least(self, tile: Tile, target: CpuTarget) -> float:
        """A `Share.time` that none is below; it rises with the tile's cost."""
        least = self.results * tile.cost + self.packed
        return least * least / (2 * max(target.cores, 2))


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
    carried = _carries(work.steps, found, tile.vectors, machine, target)
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

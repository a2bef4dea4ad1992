"""Schedules for sliding windows: convolutions, also of one tap, and their weights' gradients.

One operand, the image, is read through windows: an axis of the output and a reduced axis move it by
steps that overlap. The other, the filter, does not move along some of those axes of the output.
Lanes lie along an axis that moves the filter alone; a step of the register tile is a neighbour
along an axis that moves the image alone, so an element of the image goes to all lanes, from
wherever its window is, whatever its stride. The filter is copied, in the order in which the
innermost loop reads it, once for many tiles; the image is read where it lies, or copied by bands.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection
from operator import attrgetter

from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import ArrayAccess, iterations
from baregrad.kernel.language.schedule import Bind, StageInput
from baregrad.kernel.planning.common.tiling import PlannedAxis, loop_names, points
from baregrad.kernel.planning.cpu.convolution_tiles import (
    LEAST_LANES,
    NEAR_STEPS,
    Share,
    Windows,
    WindowTile,
    best_tile,
    carries,
    panel_rows,
)
from baregrad.kernel.planning.cpu.gemm_fallback import carry_panels, rows_that_fit, stage_panels
from baregrad.kernel.planning.cpu.images import (
    LEAST_CHANNELS,
    Image,
    cut_band,
    image_of,
    overlap,
    stage_image,
)
from baregrad.kernel.planning.cpu.sum_plan import SumPlan

# Neighbours that are copied at once where lanes have a large stride.
RUNS = (16, 8, 14, 12, 10, 7, 9, 11, 13, 15, 6, 5, 4)


def _runs(found: Windows) -> bool:
    """Whether several axes are reduced, along the last of which both operands lie close."""
    last = found.own[-1]
    step = abs(last.stride(found.image) or 0)
    return len(found.own) > 1 and 0 < step <= NEAR_STEPS and last.stride(found.filter) == 1


def _skips(found: Windows, write: ArrayAccess) -> bool:
    """Whether neighbours in the output are steps of more than one element in the image."""
    return any(
        axis.stride(write) == 1 and 1 < abs(axis.stride(found.image) or 0) <= NEAR_STEPS
        for axis in found.moves_image
    )


def windows_of(plan: SumPlan) -> Windows | None:
    """The kernel as a sum of products over windows; None where it is none."""
    if len(plan.reads) != 2 or plan.main.node.arg.monoid.primitive is not Ops.ADD:
        return None
    sides = _sides(plan)
    for windows in sides:
        axes = itertools.product(windows.moves_image, windows.own)
        if any(overlap(windows.image, axis, taps) for axis, taps in axes):
            return windows._replace(slides=True)
    for windows in sides:
        if _runs(windows):
            return windows
    write = next(access for access in plan.facts.accesses if access.write)
    return next((windows for windows in sides if _skips(windows, write)), None)


def _sides(plan: SumPlan) -> list[Windows]:
    """A sum of products by what its axes move, either operand as the image; [] for others."""
    left, right = plan.reads
    moves: defaultdict[tuple[bool, bool], list[PlannedAxis]] = defaultdict(list)
    for axis in plan.axes:
        strides = (axis.stride(left), axis.stride(right))
        if None in strides or not isinstance(axis.extent, int):
            return []
        if not axis.inside(plan.main.own if axis.reduced else plan.main.free):
            if axis.reduced or axis.size > 1:
                return []
        elif not axis.reduced and axis.size > 1:
            moves[bool(strides[0]), bool(strides[1])].append(axis)
    first, second, both = moves[True, False], moves[False, True], moves[True, True]
    own = [axis for axis in plan.axes if axis.reduced and axis.size > 1]
    if not first or not second or not own or moves[False, False]:
        return []
    return [
        Windows(plan, image, other, mine, theirs, both, own, max(theirs, key=attrgetter("size")))
        for image, other, mine, theirs in (
            (left, right, first, second), (right, left, second, first)
        )
    ]


def plan_windows(plan: SumPlan, found: Windows) -> tuple[list[PlannedAxis], Bind | None] | None:
    """Bind the register tile and the filter's panels: the data axes in the order of their loops.

    Also which of them the threads share. None where no axis moves the filter alone by enough lanes.
    """
    lane = found.lane
    if lane.size < LEAST_LANES or not found.filter.copyable:
        return None
    image = _image(found)
    if image is None and found.image.guarded:
        # The innermost loop would have conditions.
        return None
    found = found._replace(copied=image)
    tile, share = best_tile(found)
    second = tile.second
    plan.because(
        "windows over array {}, array {} the filter: {} vectors along {} by {} steps of {}, "
        "the cheapest tile", found.image.array.arg.slot, found.filter.array.arg.slot,
        tile.vectors, lane.name, tile.steps, second.name,
    )
    plan.vectorise(lane, plan.lanes, tile.vectors, carried=True, wide=True)
    plan.unroll(second, tile.steps)
    if tile.third is not None:
        plan.unroll(tile.third, tile.third.size)
    taken = [second, lane] if tile.third is None else [tile.third, second, lane]
    plan.tile_order = [name for axis in taken for part in axis.tiles for name in part]
    if image is not None:
        return _plan_image(plan, found, image, tile, share)
    outside, inside = _loops_around(plan, found, taken)
    # What threads share is the outermost loop: sums wait for one of its iterations at a time.
    waiting = [axis for axis in inside if axis is not share.axis]
    _stage_filter(plan, found, tile, waiting)
    order = [*outside, lane, *inside, second]
    return _shared_out(
        plan, share, order, [*inside, second], "waiting and copied filters cost least"
    )


def _loops_around(
    plan: SumPlan, found: Windows, taken: Collection[PlannedAxis | None]
) -> tuple[list[PlannedAxis], list[PlannedAxis]]:
    """The axes beside those of a tile as loops: what moves the filter, and the image's own."""
    outside = [a for a in (*found.moves_both, *found.moves_filter) if a not in taken]
    inside = [axis for axis in found.moves_image if axis not in taken]
    for axis in (*outside, *inside):
        plan.keep(axis)
    return outside, inside


def _shared_out(
    plan: SumPlan, share: Share, order: list[PlannedAxis], inside: list[PlannedAxis], why: str
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


def _image(found: Windows) -> Image | None:
    """What to copy of the image; None where it is better read where it lies, or has to be."""
    plan = found.plan
    steps, guarded = iterations(plan.main.own), found.image.guarded
    # Sums that wait between panels would have each band copied for each panel.
    if steps > panel_rows(found, 2) or (not guarded and carries(steps, found, 2)):
        return None
    image = image_of(found.image, found.moves_image, found.own, plan.lanes, plan.target)
    worth = guarded or (image is not None and points(image.channels) >= LEAST_CHANNELS)
    return image if worth else None


def _plan_image(
    plan: SumPlan, found: Windows, image: Image, tile: WindowTile, share: Share
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
    whole = nbytes <= plan.target.l2_bytes // 4 and not outside and shared is not lane
    if whole:
        plan.because("the second cache holds all of the filter: it is copied once")
    for place, part in enumerate(lane.tiles):
        first = [name for name, _ in lane.loops] if whole and place == 0 else []
        axes = (*first, *loop_names(own), *part)
        plan.stages.append(StageInput(found.filter.array.arg.slot, axes))
    stage_image(plan, image, second)
    order = [*bands, lane, *rows] if whole else [*outside, lane, *bands, *rows]
    return _shared_out(plan, share, order, bands, "copies cost least")


def _stage_filter(
    plan: SumPlan, found: Windows, tile: WindowTile, inside: list[PlannedAxis]
) -> None:
    """Copy the filter in panels of the first cache where sums of several are kept cheaply.

    Else all of the reduction is one panel, of the second cache.
    """
    lane = found.lane
    own, cut, parts = _cut_run(plan, found)
    room = panel_rows(found, tile.vectors)
    small = room * plan.target.l1_bytes // plan.target.l2_bytes
    several = carries(iterations(plan.main.own), found, tile.vectors)
    for most in (small, room) if several else (room,):
        pieces = rows_that_fit(own, most)
        if pieces is None:
            continue
        if not pieces.outer:
            stage_panels(plan, found.filter, own, lane)
            break
        width = min(lane.size, tile.vectors * plan.lanes)
        if carry_panels(plan, pieces, lane, width, tile.second, inside, tile.third):
            stage_panels(plan, found.filter, pieces.inner, lane)
            break
    if cut is not None:
        cut.loops = [loop for part in parts for loop in part.loops]


def _cut_run(
    plan: SumPlan, found: Windows
) -> tuple[list[PlannedAxis], PlannedAxis | None, list[PlannedAxis]]:
    """The reduced axes, a long one whose steps are neighbours in the filter cut into short runs.

    Lanes of a large stride are then copied run by run. Also the axis that was cut, and its parts.
    """
    own = list(found.own)
    for place, axis in enumerate(own):
        if axis.stride(found.filter) != 1 or not isinstance(axis.extent, int):
            continue
        run = next((r for r in RUNS if axis.extent > r and axis.extent % r == 0), 0)
        if not run or axis.extent <= RUNS[0]:
            break
        plan.cut(axis, {f"{axis.name}a": 0, f"{axis.name}b": run}, {})
        parts = [
            PlannedAxis(name, size, axis.nodes, True, size, [(name, size)])
            for name, size in axis.loops
        ]
        own[place : place + 1] = parts
        return own, axis, parts
    return own, None, []

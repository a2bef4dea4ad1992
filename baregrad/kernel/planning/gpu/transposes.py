"""Inputs that lie across the output on a GPU: tiles of them go through shared memory.

Threads that are neighbours along the output would read elements that are far apart. A block
therefore copies a tile, neighbours along the input, and reads it across from there. Rows of the
tile are one bank apart from each other, so that neither way meets in a bank.
"""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize, iterations, reads_in
from baregrad.kernel.language.schedule import Bind, Split, StageInput
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan

# A tile is so many elements of 4 bytes a side; a side that is much shorter is no tile.
SIDE = 32
LEAST_SIDE = 16
BANK = 4
# Elements of the tile for each thread, each way, and how many a search tries.
STEPS, MOST_STEPS = 4, 16
# Bytes that memory moves at once, at least, and elements of them that are worth a tile.
SECTOR = 32
LEAST_EACH = 4
BLOCK = 256


def plan_transpose(plan: GpuPlan, axes: Sequence[Node]) -> bool:
    """Copy tiles of inputs that lie across the output; whether there are any."""
    inner = plan.by_stride(axes, plan.write)[-1]
    others = [axis for axis in axes if axis is not inner]
    crossed = [a for a in reads_in(plan.facts.order) if _across(a, inner, others)]
    along = {next(axis for axis in others if a.stride(axis) == 1) for a in crossed}
    if len(along) != 1 or not plan.uncertain.isdisjoint(axes):
        return False
    (outer,) = along
    sides = [extent_of(inner), extent_of(outer)]
    if not all(isinstance(side, int) and side >= LEAST_SIDE for side in sides):
        return False
    if any(write.stride(inner) != 1 for write in plan.facts.accesses if write.write):
        return False
    if not plan.pick("transpose", (True, False), lambda tiled: "tiles" if tiled else "none"):
        return False
    size = min([itemsize(access.array.dtype) for access in crossed])
    lanes = max(BANK // size, 1)
    rows = SIDE * min(lanes, 2)
    plan.because(
        "an input lies across the output: tiles of {} by {} in shared memory", rows, SIDE * lanes
    )
    plan.grid([axis for axis in axes if axis is not inner and axis is not outer])
    a, b = plan.name(outer), plan.name(inner)
    # What has conditions is copied an element at a time: more threads have as much under way.
    steps = STEPS // lanes if lanes == 2 and any(each.guarded for each in crossed) else STEPS
    least = SIDE * rows // plan.target.threads_per_block
    steps = plan.pick("steps", powers_from(steps, least, MOST_STEPS))
    down = ((f"{a}_u", steps), (f"{a}_y", rows // steps))
    right = ((f"{b}_x", SIDE), *([(f"{b}_v", lanes)] if lanes > 1 else []))
    plan.steps.append(Split(a, ((f"{a}_o", 0), *down), masked=True))
    plan.steps.append(Split(b, ((f"{b}_o", 0), *right), masked=True))
    for name, unit in (
        (f"{a}_o", "grid"), (f"{b}_o", "grid"), (f"{a}_u", "unroll"), (f"{a}_y", "thread_y"),
        (f"{b}_x", "thread"), *([(f"{b}_v", "vector")] if lanes > 1 else []),
    ):
        plan.steps.append(Bind(name, unit))
    names = [name for name, _ in (*right, *down)]
    room = plan.target.shared_bytes_per_block
    for slot in dict.fromkeys(access.array.arg.slot for access in crossed):
        own = [itemsize(access.array.dtype) for access in crossed if access.array.arg.slot == slot]
        room -= sum(own) * SIDE * lanes * (rows + lanes)
        if room < 0:
            plan.because("shared memory has no room for tiles of all inputs that lie across")
            break
        plan.steps.append(StageInput(slot, tuple(names), pad=lanes))
    return True


def plan_two_ways(plan: GpuPlan, axes: Sequence[Node]) -> bool:
    """Threads along one way, with whole sectors of the other way for each; whether there are two.

    That serves where inputs cannot be copied, as their condition is another's, or where outputs lie
    both ways. What lies along the threads is moved by all of them for each element of a sector.
    """
    nbytes: dict[Node, int] = {}
    sizes: dict[Node, int] = {}
    for access in plan.facts.accesses:
        near = [axis for axis in axes if access.stride(axis) == 1]
        points = iterations(access.axes)
        if len(near) == 1 and 2 * points >= iterations(axes):
            (axis,) = near
            size = itemsize(access.array.dtype)
            nbytes[axis] = nbytes.get(axis, 0) + size * points
            sizes[axis] = min(sizes.get(axis, size), size)
    if len(nbytes) != 2 or not all(isinstance(extent_of(axis), int) for axis in nbytes):
        return False
    if not plan.uncertain.isdisjoint(axes):
        return False
    most, least = sorted(nbytes, key=lambda axis: (-nbytes[axis], axis.arg.id))
    for along, across in ((most, least), (least, most)):
        each = SECTOR // sizes[across]
        while int(across.src[0].arg) % each:
            each //= 2
        if each >= LEAST_EACH and 2 * nbytes[along] >= nbytes[across]:
            if not plan.pick("two ways", (True, False), lambda both: "both" if both else "one"):
                return False
            _lay_two_ways(plan, axes, along, across, each, sizes[across])
            return True
    return False


def _lay_two_ways(
    plan: GpuPlan, axes: Sequence[Node], along: Node, across: Node, each: int, size: int
) -> None:
    """Threads along one axis, `each` elements of `size` bytes of another one for each of them."""
    lanes = min(each, plan.target.load_bytes // size)
    plan.because("arrays lie two ways: threads along one, {} elements the other way each", each)
    others = [axis for axis in axes if axis is not along and axis is not across]
    threads = min(BLOCK, next_power_of_two(int(along.src[0].arg)))
    inner = [axis for axis in others if isinstance(extent_of(axis), int)][-1:]
    down = inner[0] if inner and 2 * threads <= BLOCK else None
    plan.grid([axis for axis in others if axis is not down])
    if down is not None:
        plan.parts([down], [("thread_y", BLOCK // threads)], "grid")
    plan.parts([along], [("thread", threads)], "grid")
    units = [("unroll", each // lanes)] if each > lanes else []
    plan.parts([across], [*units, ("vector", lanes)], "grid")


def _across(access: ArrayAccess, inner: Node, others: Sequence[Node]) -> bool:
    """Whether neighbours along the output are far apart in an input, and others are not."""
    stride = access.stride(inner)
    if not stride or abs(stride) == 1 or not access.copyable or access.offset.rest:
        return False
    return any(access.stride(axis) == 1 for axis in others)

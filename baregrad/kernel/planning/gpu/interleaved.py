"""Arrays of short rows on a GPU that others hold as planes: colours, pairs, coordinates.

Along the short axis one array has neighbours, and another one along a long axis. A thread has whole
short rows, as many as fill accesses both ways: it moves a stretch of either array at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import itemsize, iterations, op_flops
from baregrad.kernel.language.schedule import Bind
from baregrad.kernel.planning.gpu.gpu_plan import MOST_LANES, GpuPlan

# Elements of the short axis, and of a thread.
MOST_SHORT, MOST_ELEMENTS = 8, 32
# Operations on the elements of a thread, at most: each is code.
MOST_OPS = 1 << 11
BLOCK = 128


def plan_interleaved(plan: GpuPlan, axes: Sequence[Node]) -> bool:
    """Give a thread some short rows that lie across another array; whether there are such."""
    if not plan.uncertain.isdisjoint(axes):
        return False
    moved = [a for a in plan.facts.accesses if not a.axes.isdisjoint(axes)]
    near = list(dict.fromkeys([a for one in moved for a in axes if one.stride(a) == 1]))
    if len(near) != 2 or not all(isinstance(extent_of(axis), int) for axis in near):
        return False
    short, inner = sorted(near, key=lambda axis: int(axis.src[0].arg))
    size = int(short.src[0].arg)
    if size > MOST_SHORT or int(inner.src[0].arg) <= MOST_SHORT:
        return False
    others = [axis for axis in plan.by_stride(axes, plan.write) if axis is not short]
    if others[-1] is not inner:
        return False
    strides = [(access.stride(short), access.stride(inner)) for access in moved]
    if (1, size) not in strides or None in [along for along, _ in strides]:
        return False
    if any(each != (1, size) and each[1] not in (0, 1) for each in strides):
        return False
    row = plan.together(others)
    work = max(sum([op_flops(node) for node in plan.facts.order]), 1)
    most = min(
        MOST_LANES, plan.target.load_bytes // min([itemsize(a.array.dtype) for a in moved]),
        MOST_ELEMENTS // size, MOST_OPS // (work * size),
        iterations(axes) // (size * plan.target.busy_threads),
    )
    lanes = next_power_of_two(max(most, 1) + 1) // 2
    while lanes > 1 and iterations(row) % lanes:
        lanes //= 2
    plan.because("rows of {} that lie across another array: {} for each thread", size, lanes)
    plan.steps.append(Bind(plan.name(short), "unroll"))
    plan.grid([axis for axis in others if axis not in row])
    units = [("thread", BLOCK), *([("unroll", lanes)] if lanes > 1 else [])]
    plan.parts(row, units, "grid")
    return True

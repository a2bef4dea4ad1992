"""Arrays of short rows on a GPU that others hold as planes: colours, pairs, coordinates.

Along the short axis one array has neighbours, and another one along a long axis. A thread has whole
short rows, as many as fill accesses both ways: it moves a stretch of either array at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize, iterations, op_flops
from baregrad.kernel.language.schedule import Bind
from baregrad.kernel.planning.gpu.gpu_plan import MOST_LANES, GpuPlan, Way
from baregrad.kernel.planning.gpu.windows import block_of

# Elements of the short axis, and of a thread.
MOST_SHORT, MOST_ELEMENTS = 8, 32
# Operations on the elements of a thread, at most: each is code.
MOST_OPS = 1 << 11


def short_rows(plan: GpuPlan, axes: Sequence[Node]) -> Way | None:
    """Some short rows that lie across another array for each thread, if there are such."""
    if not plan.uncertain.isdisjoint(axes):
        return None
    moved = [a for a in plan.facts.accesses if not a.axes.isdisjoint(axes)]
    near = list(dict.fromkeys([a for one in moved for a in axes if one.stride(a) == 1]))
    if len(near) != 2 or not all(isinstance(extent_of(axis), int) for axis in near):
        return None
    first, inner = sorted(near, key=lambda axis: int(axis.src[0].arg))
    short = _short_axes(moved, axes, first, inner)
    size = iterations(short)
    if not short or int(inner.src[0].arg) <= MOST_SHORT:
        return None
    others = [axis for axis in plan.by_stride(axes, plan.write) if axis not in short]
    if others[-1] is not inner:
        return None
    row = plan.together(others)
    lanes = _lanes(plan, axes, moved, size, row)
    return partial(_lay_short_rows, short=short, others=others, row=row, lanes=lanes)


def _lanes(
    plan: GpuPlan, axes: Sequence[Node], moved: Sequence[ArrayAccess], size: int,
    row: Sequence[Node],
) -> int:
    """Short rows of `size` elements for each thread."""
    work = max(sum([op_flops(node) for node in plan.facts.order]), 1)
    most = min(
        MOST_LANES, plan.target.load_bytes // min([itemsize(a.array.dtype) for a in moved]),
        MOST_ELEMENTS // size, MOST_OPS // (work * size),
        iterations(axes) // (size * plan.target.busy_threads),
    )
    lanes = next_power_of_two(max(most, 1) + 1) // 2
    while lanes > 1 and iterations(row) % lanes:
        lanes //= 2
    return lanes


def _lay_short_rows(
    plan: GpuPlan, short: Sequence[Node], others: Sequence[Node], row: Sequence[Node], lanes: int
) -> None:
    """Rows of `short` axes in registers, so many along `row` for each thread."""
    size = iterations(short)
    plan.because("rows of {} that lie across another array: {} for each thread", size, lanes)
    plan.steps.extend([Bind(plan.name(axis), "unroll") for axis in short])
    rest = [axis for axis in others if axis not in row]
    fixed = [axis for axis in rest if isinstance(extent_of(axis), int)][-2:]
    counts = [1] * (2 - len(fixed)) + [int(axis.src[0].arg) for axis in fixed]
    *threads, across = block_of([*counts, -(-iterations(row) // lanes)])
    plan.grid([axis for axis in rest if axis not in fixed])
    units = ("thread_z", "thread_y")[2 - len(fixed) :]
    for axis, unit, size in zip(fixed, units, threads[2 - len(fixed) :], strict=True):
        plan.parts([axis], [(unit, size)], "grid")
    plan.parts(row, [("thread", across), *([("unroll", lanes)] if lanes > 1 else [])], "grid")


def _short_axes(
    moved: Sequence[ArrayAccess], axes: Sequence[Node], first: Node, inner: Node
) -> list[Node]:
    """The short axes of which some arrays have whole rows beside each other along `inner`.

    Others are moved by single elements along that, or not at all. Nothing where it is otherwise.
    """
    short: list[Node] = []
    for access in moved:
        if access.stride(first) != 1:
            continue
        found, size = [first], int(first.src[0].arg)
        while access.stride(inner) != size <= MOST_SHORT:
            beside = [axis for axis in axes if axis not in found and access.stride(axis) == size]
            if len(beside) != 1 or not isinstance(extent_of(beside[0]), int):
                break
            found += beside
            size *= int(beside[0].src[0].arg)
        if access.stride(inner) == size <= MOST_SHORT:
            short = short or found
    rows = [one for one in moved if short and one.stride(inner) == iterations(short)]
    planes = [one for one in moved if one not in rows]
    if any(one.stride(first) != 1 for one in rows):
        return []
    if any(one.stride(inner) not in (0, 1) for one in planes):
        return []
    known = all(one.stride(axis) is not None for one in planes for axis in short)
    return short if known else []

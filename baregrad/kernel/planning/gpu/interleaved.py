"""Arrays on a GPU whose neighbours lie apart in others: short rows and planes, packed words.

Along a short axis, as of colours, pairs and coordinates, one array has neighbours, and another one
along a long axis. A thread has whole short rows, as many as fill accesses both ways: it moves a
stretch of either array at once.

A word that is unpacked may have elements of several stretches of the output, as bytes whose halves
are two. Threads that shared out the output would read each word several times, and what scales its
elements as often: a thread has all that is in a few words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize, iterations, op_flops
from baregrad.kernel.language.schedule import Bind, Reorder, Split
from baregrad.kernel.planning.gpu.gpu_plan import MOST_LANES, GpuPlan, Way
from baregrad.kernel.planning.gpu.windows import block_of

# Elements of the short axis, and of a thread.
MOST_SHORT, MOST_ELEMENTS = 8, 32
# Operations on the elements of a thread, at most: each is code.
MOST_OPS = 1 << 11
# Bytes of a word; threads of a block that unpacks; operations on a thread's elements, at most.
WORD_BYTES, BLOCK, MOST_WORD_OPS = 4, 256, 1 << 10


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


def whole_words(plan: GpuPlan, axes: Sequence[Node]) -> Way | None:
    """All that is in some neighbouring words for each thread, where an output is made of words."""
    known = all(isinstance(extent_of(axis), int) for axis in axes)
    if not known or len(plan.facts.outs) != 1 or plan.facts.outs[0].arg.atomic:
        return None
    ordered = plan.by_stride(axes, plan.write)
    words = _words(plan, ordered)
    if words is None:
        return None
    shared = [axis for axis in ordered if axis not in words.axes]
    word = next((axis for axis in reversed(ordered) if axis in words.axes), None)
    inner = ordered[-1]
    if word is None or inner not in shared or plan.write.stride(inner) != 1:
        return None
    size, many = iterations([inner]), iterations([word])
    beside = plan.target.load_bytes // (size * itemsize(plan.write.array.dtype))
    if plan.write.stride(word) != size or words.stride(word) != 1 or beside < 1 or many % beside:
        return None
    elements = iterations(shared) * beside
    work = sum(op_flops(node) for node in plan.facts.order)
    rest = [axis for axis in ordered if axis not in shared and axis is not word]
    threads = many // beside
    if elements > MOST_ELEMENTS or elements * work > MOST_WORD_OPS or not rest or BLOCK % threads:
        return None
    others = [axis for axis in shared if axis is not inner]
    return partial(_lay_words, rest=rest, others=others, row=(word, inner), beside=beside)


def _words(plan: GpuPlan, axes: Sequence[Node]) -> ArrayAccess | None:
    """The read of words of which several elements along some axes are made; None for none."""
    found = [
        access for access in plan.facts.accesses
        if not access.write and access.array.dtype.kind == "uint"
        and itemsize(access.array.dtype) == WORD_BYTES
    ]  # fmt: skip
    if not found:
        return None
    most = max(found, key=lambda access: iterations([a for a in axes if a in access.axes]))
    is_shared = any(axis not in most.axes for axis in axes)
    return most if is_shared and most.axes <= frozenset(axes) else None


def _lay_words(
    plan: GpuPlan, rest: Sequence[Node], others: Sequence[Node], row: Sequence[Node], beside: int
) -> None:
    """Threads along words, `beside` of them each; `row`: the axes of words, and of what is in one.

    others: axes of what else is in a word.
    """
    word, inner = row
    lanes = beside * iterations([inner])
    threads = iterations([word]) // beside
    each = plan.joined(row)
    outer = plan.joined(rest)
    plan.because("{} words, and all that is in them, for each thread", beside)
    plan.steps.append(Split(each, ((f"{each}_t", 0), (f"{each}_v", lanes))))
    parts = (f"{outer}_o", 0), (f"{outer}_t", BLOCK // threads)
    plan.steps.append(Split(outer, parts, masked=True))
    names = [plan.name(axis) for axis in others]
    order = f"{outer}_o", f"{outer}_t", f"{each}_t", *names, f"{each}_v"
    plan.steps.append(Reorder(order))
    units = {f"{outer}_o": "grid", f"{outer}_t": "thread_y", f"{each}_t": "thread",
             **dict.fromkeys(names, "unroll"), f"{each}_v": "vector"}  # fmt: skip
    plan.steps.extend(Bind(axis, unit) for axis, unit in units.items())

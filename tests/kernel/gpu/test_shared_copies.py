"""Copies that a block's threads share out: each element once, several at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo
from baregrad.ir.core.node import Node, const, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel import lower, parse_schedule
from baregrad.kernel.applying.apply import apply_chunked
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.gpu.shared_copies import (
    APART,
    check_shared,
    copied_by_threads,
    row_of,
    thread_axes,
)
from baregrad.kernel.loops.sharing import prepare
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER


def test_panels_that_do_not_fit_are_refused() -> None:
    steps = parse_schedule("Schedule(bind('i0', 'grid'), stage_input(1, 'r1'))")
    kernel = k.row_reduce(3, 60_000)
    with pytest.raises(ScheduleError, match="shared memory"):
        lower(kernel, HOPPER, steps)


TILES = (
    "split('i0', outer='a', y=4, masked=True), split('i1', outer='b', x=8, masked=True),"
    "split('r2', outer='ko', ki={steps}, masked=True), bind('a', 'grid'), bind('b', 'grid'),"
    "bind('y', 'thread_y'), bind('x', 'thread'), stage_input({copy})"
)


def stage_of(copy: str, steps: int = 16, transposed: bool = False) -> tuple[Node, Node]:
    """The STAGE of a copy in a product's schedule, its input read by a LOAD; and the kernel."""
    kernel = k.matmul(8, 16, 32, b_t=transposed)
    text = f"Schedule({TILES.format(steps=steps, copy=copy)})"
    applied = apply_chunked(prepare(kernel, HOPPER), parse_schedule(text), HOPPER)
    (stage,) = [node for node in toposort(applied) if node.op is Ops.STAGE]
    return stage, applied


def moved(stage: Node, applied: Node) -> Counter[tuple[tuple[int, ...], int]]:
    """(place in the copy, element of the input) that all threads together move, by enumeration."""
    threads = thread_axes([node for out in applied.src for node in out.src])
    _, copy = copied_by_threads(stage, threads, 1)
    value = copy.value
    while value.op is Ops.GUARD:
        value = value.src[1]
    roots = (*copy.places, value.src[1], *(() if copy.condition is None else (copy.condition,)))
    free = by_id(frozenset[Node]().union(*[root.ranges for root in copy.places]))
    rest = {axis: const(0, dtypes.index)
            for axis in frozenset[Node]().union(*[root.ranges for root in roots]) - set(free)}
    found: Counter[tuple[tuple[int, ...], int]] = Counter()
    for point in product(*[range(index.upper(axis.src[0])) for axis in free]):
        at = {**rest, **{a: const(p, dtypes.index) for a, p in zip(free, point, strict=True)}}
        if copy.condition is not None and not substitute(copy.condition, at).arg:
            continue
        places = tuple([int(index.as_dim(substitute(p, at))) for p in copy.places])
        found[places, int(index.as_dim(substitute(value.src[1], at)))] += 1
    return found


@pytest.mark.parametrize("copy", ["1, 'ki', 'y'", "1, 'y', 'ki'", "2, 'ki', 'x'", "2, 'x', 'ki'"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("steps", [16, 7])
def test_all_threads_together_copy_each_element_once(
    steps: int, transposed: bool, copy: str
) -> None:
    stage, applied = stage_of(copy, steps, transposed)
    wanted: Counter[tuple[tuple[int, ...], int]] = Counter()
    read = stage.src[0]
    while read.op is Ops.GUARD:
        read = read.src[1]
    axes = stage.src[1:]
    rest = {axis: const(0, dtypes.index) for axis in read.src[1].ranges - set(axes)}
    for place in product(*[range(index.upper(axis.src[0])) for axis in axes]):
        at = {**rest, **{a: const(p, dtypes.index) for a, p in zip(axes, place, strict=True)}}
        wanted[place, int(index.as_dim(substitute(read.src[1], at)))] += 1  # type: ignore[arg-type]
    assert moved(stage, applied) == wanted


def test_rows_that_are_written_across_are_padded() -> None:
    """Else all threads of a warp would write to one bank."""
    along, _ = stage_of("2, 'ki', 'x'")
    across, applied = stage_of("2, 'x', 'ki'")
    threads = thread_axes([node for out in applied.src for node in out.src])
    shapes = [copied_by_threads(stage, threads, 1)[0].arg.shape for stage in (along, across)]
    assert shapes == [(16, 8), (8, 16 + APART // 4)]
    assert row_of(along) == (8,)


def test_neighbours_in_memory_are_neighbouring_threads() -> None:
    """Several elements of a thread lie together; the next thread's come after them."""
    stage, applied = stage_of("2, 'ki', 'x'")
    threads = thread_axes([node for out in applied.src for node in out.src])
    _, copy = copied_by_threads(stage, threads, 1)
    read = next(node for node in toposort(copy.value) if node.op is Ops.LOAD)
    lanes = [axis for axis in read.src[1].ranges if axis.arg.bind == "vector"]
    assert [index.upper(axis.src[0]) for axis in lanes] == [4]
    terms, _ = index.linear(read.src[1])
    assert terms[lanes[0]] == 1


def test_what_a_block_holds_is_counted_to_the_byte() -> None:
    array = Node(Ops.ALLOC, dtypes.float32, (), Alloc(1, "shared", (25, 10), depth=2))
    value = Node(Ops.LOAD, dtypes.float32, (array, *[const(0, dtypes.index)] * 2))
    store = Node(Ops.STORE, dtypes.token, (k.param(0, 1), value, const(0, dtypes.index)))
    kernel = Node(Ops.KERNEL, dtypes.token, (store,), KernelInfo())
    check_shared(kernel, replace(HOPPER, shared_bytes_per_block=25 * 10 * 4 * 2))
    with pytest.raises(ScheduleError, match="found 2000 bytes, wanted at most 1999"):
        check_shared(kernel, replace(HOPPER, shared_bytes_per_block=1999))

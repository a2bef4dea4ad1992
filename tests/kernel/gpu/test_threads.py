"""A block's statements as one thread's: its own part, and the first one's."""

from __future__ import annotations

from itertools import product

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo, Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, const, extent_of, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel import Schedule, lower, parse_schedule
from baregrad.kernel.gpu.threads import block_shape, grid_axes, grid_size, to_threads
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu


def test_threads_that_do_not_come_to_a_fold_are_a_bug() -> None:
    thread = range_node(32, 0, "t", "thread")
    own = Node(Ops.ALLOC, dtypes.float32, (), Alloc(1, "register", (32,)))
    total = Node(Ops.ALLOC, dtypes.float32, (), Alloc(2, "register", ()))
    load = Node(Ops.LOAD, dtypes.float32, (own, thread))
    fold = Node(Ops.REDUCE, dtypes.float32, (load, thread), Reduce(primitive(Ops.ADD, load.dtype)))
    store = Node(Ops.STORE, dtypes.token, (total, fold))
    few = alu(Ops.CMPLT, thread, const(5, dtypes.index))
    body = Node(Ops.IF, dtypes.token, (few, store))
    kernel = Node(Ops.KERNEL, dtypes.token, (body,), KernelInfo())
    with pytest.raises(CompilerBug, match="do not come"):
        to_threads(kernel)


def test_no_schedule_is_one_thread() -> None:
    program = check_gpu(k.softmax(2, 5), Schedule())
    assert program.arg.block == (1, 1, 1)


def thread_level(kernel: Node, schedule: str) -> tuple[Node, Node]:
    """The loop level of a block, and what `to_threads` makes of it."""
    loop = lower(kernel, HOPPER, parse_schedule(f"Schedule({schedule})"))
    return loop, to_threads(loop)


def test_a_block_has_a_dimension_for_each_kind_of_thread() -> None:
    loop, program = thread_level(k.row_reduce(6, 64), (
        "split('i0', outer='b', y=2, masked=True), bind('b', 'grid'), bind('y', 'thread_y'),"
        "split('r1', outer='o', x=8, masked=True), bind('x', 'thread')"
    ))
    shape = block_shape(loop)
    assert {bind: extent_of(axis) for bind, axis in shape.items()} == {"thread": 8, "thread_y": 2}
    assert program.arg.block == (8, 2, 1)
    assert [axis.arg.axis for axis in grid_axes(loop)] == ["b"]
    assert grid_size(loop) == 3


def test_axes_of_threads_and_grid_are_digits_of_two_numbers() -> None:
    """Of the number of the block and of the thread: each element is written by one of them."""
    text = (
        "bind('i0', 'grid'), split('i1', outer='o', y=2, x=4), bind('y', 'thread_y'),"
        "bind('x', 'thread'), bind('o', 'grid')"
    )
    _, program = thread_level(k.elementwise(3, 16), text)
    (write,) = [node for node in toposort(program) if node.op is Ops.STORE]
    hidden = {node.arg.name: node for node in toposort(program) if node.op is Ops.VAR}
    sizes = {name: node.arg.hi + 1 for name, node in hidden.items()}
    assert sizes == {".block": 6, ".thread": 8}
    found = []
    for block, thread in product(range(6), range(8)):
        at = {hidden[".block"]: const(block, dtypes.index),
              hidden[".thread"]: const(thread, dtypes.index)}
        found.append(index.as_dim(substitute(write.src[2], at)))
    assert sorted(found) == list(range(48))


def test_what_runs_once_is_the_first_threads() -> None:
    """An output that does not run along the threads is written by one of them."""
    i, j = range_node(8, 0, "i"), range_node(4, 1, "j")
    x = k.at(k.param(2, 8), i)
    kernel = k.kernel(k.out(k.param(0, 8), x, i), k.out(k.param(1, 4), k.const(2.0, k.F32), j))
    _, program = thread_level(kernel, "bind('i', 'thread')")
    guarded = [node for node in toposort(program) if node.op is Ops.IF]
    (once,) = guarded
    assert {read.arg.slot for read in toposort(once) if read.op is Ops.PARAM} == {1}
    condition = once.src[0]
    (thread,) = [node for node in toposort(condition) if node.op is Ops.VAR]
    places = [index.as_dim(substitute(condition.src[0], {thread: const(n, dtypes.index)}))
              for n in range(8)]
    assert condition.op is Ops.CMPEQ and condition.src[1].arg == 0
    assert [n for n, place in enumerate(places) if place == 0] == [0]


def test_what_lies_across_threads_is_each_threads_own() -> None:
    text = "split('i0', outer='o', u=2, x=4), bind('u', 'unroll'), bind('x', 'thread')"
    loop, program = thread_level(k.row_reduce(8, 5), text)

    def shapes(root: Node) -> set[tuple[int, ...]]:
        return {node.arg.shape for node in toposort(root) if node.op is Ops.ALLOC}

    assert shapes(loop) == {(2, 4)}
    assert shapes(program) == {(2,)}


def test_blocks_that_no_grid_has_are_a_bug() -> None:
    loop = lower(k.elementwise(1 << 20, 1 << 12), HOPPER, parse_schedule(
        "Schedule(bind('i0', 'grid'), bind('i1', 'grid'))"
    ))
    with pytest.raises(CompilerBug, match="more blocks than a grid has"):
        to_threads(loop)


def test_a_launch_of_no_element_has_a_block_that_does_nothing() -> None:
    n = index.variable("n", 0, 9)
    _, program = thread_level(k.elementwise(n), "bind('i0', 'grid')")
    (body,) = program.src
    assert body.op is Ops.IF
    for count in (0, 3):
        values = {node: const(count, dtypes.index) for node in toposort(body.src[0])
                  if node.op is Ops.VAR and node.arg.name == "n"}
        assert substitute(body.src[0], values).arg == (count > 0)

"""Asynchronous copies as instructions: of all elements, in groups, waited for as the loop says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Alloc, KernelInfo
from baregrad.ir.core.node import Node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.linearise import linearise
from tests.kernel import kernels as k
from tests.kernel.linearise.programs import machines, thread_level
from tests.render.harness import load, loop, param, unroll, vector

SCHEDULE = (
    "Schedule(split('i0', outer='a', y=4, mr=2, masked=True),"
    "split('i1', outer='b', x=8, nv=4, masked=True), split('r2', outer='ko', ki=4, masked=True),"
    "bind('a', 'grid'), bind('b', 'grid'), bind('y', 'thread_y'), bind('x', 'thread'),"
    "bind('mr', 'unroll'), bind('nv', 'vector'), stage_input(1, 'ki', 'y', 'mr'),"
    "stage_input(2, 'ki', 'x', 'nv'), pipeline('ko', {depth}, 'async'))"
)


def statements(node: Node) -> Iterator[Node]:
    """The statements of a kernel in order, one that stands in several places each time."""
    for child in node.src:
        if child.op in (Ops.SEQ, Ops.LOOP, Ops.IF):
            yield from statements(child)
        else:
            yield child


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("shape", [(8, 32, 16), (13, 17, 9)])
def test_groups_are_closed_and_waited_for_as_the_loop_level_says(
    shape: tuple[int, int, int], depth: int
) -> None:
    node = thread_level(k.matmul(*shape), SCHEDULE.format(depth=depth))
    program = linearise(node)
    wanted = [("commit",) if one.op is Ops.COMMIT else ("wait", one.arg.keep)
              for one in statements(node) if one.op in (Ops.COMMIT, Ops.DONE)]
    found = [(one.arg.name.rpartition(".")[2], *one.arg.immediates) for one in program.src
             if one.op is Ops.MACHINE and one.arg.name in ("cp.async.commit", "cp.async.wait")]
    assert found == wanted
    assert len(found) > depth


def copying(value: Node, at: int | Node, engine: object) -> Node:
    """A kernel of one thread of 32 that copies `value` to shared memory."""
    shared = Node(Ops.ALLOC, dtypes.float32, (), Alloc(1, "shared", (64,)))
    place = at if isinstance(at, Node) else Node(Ops.CONST, dtypes.index, (), at)
    copy = Node(Ops.COPYTO, dtypes.token, (shared, value, place), engine)
    info = KernelInfo("k")._replace(device="GPU", block=(32, 1, 1))
    return Node(Ops.KERNEL, dtypes.token, (copy,), info)


def engine_of() -> object:
    node = thread_level(k.matmul(8, 32, 16), SCHEDULE.format(depth=2))
    return next(one.arg for one in toposort(node) if one.op is Ops.COPYTO)


def test_adjacent_elements_are_one_copy_and_points_one_each() -> None:
    u, v = unroll(3, 1), vector(4, 2)
    x = param(0, 64)
    place = k.index.as_node(k.index.add(k.index.mul(u, 4), v))
    program = linearise(copying(load(x, place), place, engine_of()))
    copies = machines(program, "cp.async")
    assert [one.arg.immediates for one in copies] == [(16, at, at) for at in (0, 4, 8)]


@pytest.mark.parametrize(("scale", "start"), [(2, 0), (1, 1)])
def test_elements_that_are_apart_or_not_at_whole_words_are_a_bug(scale: int, start: int) -> None:
    v = vector(4, 2)
    place = k.index.as_node(k.index.add(k.index.mul(v, scale), start))
    with pytest.raises(CompilerBug, match="not adjacent"):
        linearise(copying(load(param(0, 64), place), v, engine_of()))


def test_other_machines_have_no_such_statements() -> None:
    value = load(param(0, 64), 3)
    node = copying(value, 3, engine_of())
    with pytest.raises(CompilerBug, match="ordinary kernel"):
        linearise(node.replace(arg=KernelInfo("k")))
    axis = range_node(4, 0)
    closed = Node(Ops.COMMIT, dtypes.token, (axis,))
    with pytest.raises(CompilerBug, match="ordinary kernel"):
        linearise(Node(Ops.KERNEL, dtypes.token, (loop(axis, closed),), KernelInfo("k")))

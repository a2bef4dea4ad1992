"""Loops of which only the last step is masked."""

from __future__ import annotations

import pytest

from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import arg_extreme
from baregrad.ir.core.node import Node, const, extent_of, make_node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel import choose_schedule, lower
from baregrad.kernel.loops.last_steps import part_last_steps
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k

AVX512 = cpu_row_named("x86-64-avx512")


def row_sums(rows: int, extent: int) -> Node:
    i, j = range_node(rows, 0), range_node(extent, 1)
    total = k.reduce(Ops.ADD, k.at(k.param(1, rows, extent), i, j), j)
    return k.kernel(k.out(k.param(0, rows), total, i))


def conditions(node: Node) -> list[Node]:
    return [one.src[0] for one in toposort(node) if one.op is Ops.IF]


@pytest.mark.parametrize(("extent", "steps", "left"), [(300, 4, 44), (129, 8, 1)])
def test_a_row_is_masked_at_its_end_alone(extent: int, steps: int, left: int) -> None:
    kernel = row_sums(8, extent)
    loop = lower(kernel, AVX512, choose_schedule(kernel, AVX512))
    inner = [one for one in toposort(loop) if one.op is Ops.LOOP and one.src[0].arg.axis == "r1o"]
    assert [extent_of(one.src[0]) for one in inner] == [steps]
    masks = [one for one in conditions(loop) if one.op is not Ops.CONST]
    assert len(masks) == 1
    assert masks[0].src[1].arg == left
    assert not any(one.op is not Ops.CONST for one in conditions(inner[0]))


def test_whole_tiles_stay_as_they_are() -> None:
    kernel = row_sums(8, 640)
    loop = lower(kernel, AVX512, choose_schedule(kernel, AVX512))
    assert not conditions(loop)
    assert part_last_steps(loop) is loop


def test_another_loop_of_an_axis_keeps_its_steps() -> None:
    """Pairs alone have no step that is parted; pairs beside a largest element have."""
    i, j = range_node(8, 0), range_node(300, 1)
    values = k.at(k.param(1, 8, 300), i, j)
    largest = k.reduce(Ops.MAX, values, j)
    below = make_node(Ops.SUB, k.F32, (values, largest))
    kernel = k.kernel(
        k.out(k.param(0, 8), largest, i), _place(k.param(2, 8, dtype=k.I64), values, i, j),
        _place(k.param(3, 8, dtype=k.I64), below, i, j),
    )
    loop = lower(kernel, AVX512, choose_schedule(kernel, AVX512))
    verify(loop, "loop")
    inner = [one.src[0] for one in toposort(loop) if one.op is Ops.LOOP]
    assert [extent_of(axis) for axis in inner if axis.arg.axis == "r1o"] == [9, 10]


def _place(array: Node, values: Node, i: Node, j: Node) -> Node:
    """The OUT of where the largest of `values` along `j` is."""
    both = make_node(
        Ops.REDUCE, k.F32, (values, make_node(Ops.CAST, k.I64, (j,)), j),
        Reduce(arg_extreme(Ops.MAX, k.F32)),
    )
    return k.out(array, make_node(Ops.PROJ, k.I64, (both,), 1), i)


def test_the_last_step_keeps_what_it_sums_in_registers_of_its_own() -> None:
    """A short sum whose terms end where its place does, and differ at the last place alone."""
    i, j, r = range_node(5, 0), range_node(2, 1), range_node(3, 2)
    terms = k.guard(index.less(index.sub(j, r), 1), const(0.125, k.F32))
    kernel = k.kernel(k.out(k.param(0, 5, 2), k.reduce(Ops.ADD, terms, r), i, j))
    loop = lower(kernel, AVX512, choose_schedule(kernel, AVX512))
    verify(loop, "loop")
    results = [one for one in toposort(loop) if one.op is Ops.STORE and one.src[0].op is Ops.PARAM]
    assert len(results) == 2
    assert results[0].src[1] is not results[1].src[1]

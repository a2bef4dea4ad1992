"""The kernel level's evaluator: kernels written by hand, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Param, Reduce, Scan, StageInfo
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel, evaluate_value
from baregrad.ir.verify.verify import verify

F32, I32, I64 = dtypes.float32, dtypes.int32, dtypes.int64
TOKEN, INDEX = dtypes.token, dtypes.index
ADD, MAX = primitive(Ops.ADD, F32), primitive(Ops.MAX, F32)
RNG = np.random.default_rng(0)


def param(slot: int, *shape: index.Dim, dtype=F32) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, shape))


def at(array: Node, *indices: index.Dim) -> Node:
    return Node(Ops.INDEX, array.dtype, (array, *map(index.as_node, indices)))


def out(array: Node, value: Node, *indices: index.Dim, monoid=None) -> Node:
    return Node(Ops.OUT, TOKEN, (array, value, *map(index.as_node, indices)), Out(monoid))


def kernel(*outs: Node) -> Node:
    node = Node(Ops.KERNEL, TOKEN, outs, KernelInfo())
    verify(node, "kernel")
    return node


def fold(monoid, value: Node, *axes: Node) -> Node:
    return Node(Ops.REDUCE, value.dtype, (value, *axes), Reduce(monoid))


def test_matmul_with_an_epilogue() -> None:
    i, j, k = range_node(4, 0), range_node(6, 1), range_node(5, 2)
    product = alu(Ops.MUL, at(param(1, 4, 5), i, k), at(param(2, 5, 6), k, j))
    total = alu(Ops.ADD, fold(ADD, product, k), at(param(3, 6), j))
    node = kernel(out(param(0, 4, 6), alu(Ops.MAX, total, const(0.0, F32)), i, j))
    a, b, c = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 5), (5, 6), 6))
    result = np.full((4, 6), np.nan, np.float32)
    evaluate_kernel(node, [result, a, b, c])
    assert np.allclose(result, np.maximum(a @ b + c, 0), atol=1e-5)


def test_one_kernel_softmax_with_staged_powers() -> None:
    i, j, k = range_node(3, 0), range_node(7, 1), range_node(7, 2)
    x = param(1, 3, 7)
    most = fold(MAX, at(x, i, k), k)
    power = alu(Ops.EXP, alu(Ops.SUB, at(x, i, k), most))
    stage = Node(Ops.STAGE, F32, (power, k), StageInfo("scratch"))
    total = fold(ADD, at(stage, k), k)
    node = kernel(out(param(0, 3, 7), alu(Ops.DIV, at(stage, j), total), i, j))
    a = RNG.standard_normal((3, 7)).astype(np.float32)
    result = np.zeros((3, 7), np.float32)
    evaluate_kernel(node, {0: result, 1: a})
    wanted = np.exp(a - a.max(1, keepdims=True))
    assert np.allclose(result, wanted / wanted.sum(1, keepdims=True), atol=1e-6)


def test_a_stage_read_backwards_and_across_its_axes() -> None:
    i, j = range_node(3, 0), range_node(4, 1)
    stage = Node(Ops.STAGE, F32, (at(param(1, 3, 4), i, j), j, i), StageInfo("scratch"))
    assert stage.shape == (4, 3)
    k, m = range_node(4, 2), range_node(3, 3)
    value = at(stage, index.sub(3, k), m)
    node = kernel(out(param(0, 4, 3), value, k, m))
    a = RNG.standard_normal((3, 4)).astype(np.float32)
    result = np.zeros((4, 3), np.float32)
    evaluate_kernel(node, [result, a])
    assert (result == a.T[::-1]).all()


def test_guards_hide_reads_that_leave_the_array() -> None:
    i = range_node(7, 0)
    x = param(1, 5)
    place = index.sub(i, 1)
    padded = Node(Ops.GUARD, F32, (index.inside(place, 5), at(x, place)))
    a = np.arange(1, 6, dtype=np.float32)
    result = np.full(7, 9, np.float32)
    evaluate_kernel(kernel(out(param(0, 7), padded, i)), [result, a])
    assert result.tolist() == [0, 1, 2, 3, 4, 5, 0]
    bare = kernel(out(param(0, 7), at(x, place), i))
    with pytest.raises(IndexOutOfRange, match="no GUARD"):
        evaluate_kernel(bare, [result, a])
    # A choice between values is no guard: both are read.
    chosen = alu(Ops.WHERE, index.inside(place, 5), at(x, place), const(0.0, F32))
    with pytest.raises(IndexOutOfRange, match="no GUARD"):
        evaluate_kernel(kernel(out(param(0, 7), chosen, i)), [result, a])
    # A guard around a reduction, around part of the range, and around another guard.
    j = range_node(3, 1)
    shifted = index.add(place, j)
    inner = Node(Ops.GUARD, F32, (index.inside(shifted, 5), at(x, shifted)))
    summed = Node(Ops.GUARD, F32, (index.less(i, 6), fold(ADD, inner, j)))
    evaluate_kernel(kernel(out(param(0, 7), summed, i)), [result, a])
    assert result.tolist() == [3, 6, 9, 12, 9, 5, 0]


def test_reductions_over_several_ranges_and_of_pairs() -> None:
    i, j, k = range_node(2, 0), range_node(3, 1), range_node(4, 2)
    x = param(2, 2, 3, 4)
    a = RNG.integers(-3, 3, (2, 3, 4)).astype(np.float32)
    total = evaluate_value(fold(ADD, at(x, i, j, k), j, k), {2: a})
    assert np.allclose(total, a.sum((1, 2)))
    best = arg_extreme(Ops.MIN, F32)
    pair = Node(Ops.REDUCE, F32, (at(x, i, j, k), cast(k, I64), k), Reduce(best))
    place = Node(Ops.PROJ, I64, (pair,), 1)
    assert (evaluate_value(place, {2: a}) == a.argmin(2)).all()
    counted = fold(primitive(Ops.ADD, I32), const(1, I32), j, k)
    assert evaluate_value(counted).item() == 12


def test_scans_run_along_their_range() -> None:
    i, j = range_node(3, 5), range_node(4, 2)
    node = Node(Ops.SCAN, F32, (at(param(0, 3, 4), i, j), j), Scan(ADD))
    a = RNG.standard_normal((3, 4)).astype(np.float32)
    # Axes stand in order of range id, so j comes first.
    assert np.allclose(evaluate_value(node, [a]), a.cumsum(1).T, atol=1e-6)


def test_scattered_writes() -> None:
    i = range_node(6, 0)
    place = Node(Ops.CAST, INDEX, (at(param(2, 6, dtype=I64), i),))
    values, places = np.arange(1, 7, dtype=np.float32), np.int64([0, 3, 0, 1, 3, 3])
    result = np.full(4, 10, np.float32)
    evaluate_kernel(kernel(out(param(0, 4), at(param(1, 6), i), place)), [result, values, places])
    assert result.tolist() == [3, 4, 10, 6]
    added = kernel(out(param(0, 4), at(param(1, 6), i), place, monoid=ADD))
    evaluate_kernel(added, [result, values, places])
    assert result.tolist() == [7, 8, 10, 19]
    with pytest.raises(IndexOutOfRange, match="scattered write"):
        evaluate_kernel(added, [result, values, places + 1])


def test_several_outputs_see_the_inputs_as_they_were() -> None:
    i = range_node(3, 0)
    a, b = param(0, 3), param(1, 3)
    node = kernel(out(a, at(b, i), i), out(b, at(a, i), i))
    x, y = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    evaluate_kernel(node, [x, y])
    assert x.tolist() == [4, 5, 6] and y.tolist() == [1, 2, 3]


def test_symbolic_extents() -> None:
    n = index.variable("n", 1, 8)
    i = range_node(n, 0)
    value = alu(Ops.MUL, at(param(1, n), i), cast(n, F32))
    node = kernel(out(param(0, n), value, i))
    result = np.zeros(3, np.float32)
    evaluate_kernel(node, [result, np.float32([1, 2, 3])], {"n": 3})
    assert result.tolist() == [3, 6, 9]
    with pytest.raises(ShapeError, match="wrong size"):
        evaluate_kernel(node, [result, np.float32([1, 2, 3])], {"n": 4})
    with pytest.raises(CompilerBug, match="no value"):
        evaluate_kernel(node, [result, np.float32([1, 2, 3])])


def test_bfloat16_and_bool_arguments() -> None:
    i = range_node(4, 0)
    x, p = param(2, 4, dtype=dtypes.bfloat16), param(1, 4, dtype=dtypes.bool)
    chosen = alu(Ops.WHERE, at(p, i), at(x, i), const(1 / 3, dtypes.bfloat16))
    node = kernel(out(param(0, 4, dtype=dtypes.bfloat16), chosen, i))
    codes = np.uint16([0x3F80, 0x4000, 0x7FC0, 0x8000])
    result = np.zeros(4, np.uint16)
    evaluate_kernel(node, [result, np.array([True, False, True, True]), codes])
    assert result.tolist() == [0x3F80, 0x3EAB, 0x7FC0, 0x8000]


def test_empty_axes_write_nothing_and_fold_to_the_identity() -> None:
    i, j = range_node(0, 0), range_node(0, 1)
    result = np.zeros((0,), np.float32)
    evaluate_kernel(kernel(out(param(0, 0), at(param(1, 5), i), i)), [result, np.zeros(5, "f4")])
    k = range_node(2, 2)
    total = fold(ADD, at(param(1, 2, 0), k, j), j)
    result = np.ones(2, np.float32)
    evaluate_kernel(kernel(out(param(0, 2), total, k)), [result, np.zeros((2, 0), "f4")])
    assert result.tolist() == [0, 0]

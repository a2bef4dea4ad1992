"""The tensor level's evaluator against NumPy and PyTorch, op by op."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad.base.errors import CompilerBug, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import BufferRef, Pad, Param, Reduce, Scan, Scatter, Slice, Window
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate, evaluate_all

F32, I64 = dtypes.float32, dtypes.int64
ADD = primitive(Ops.ADD, F32)
RNG = np.random.default_rng(0)


def param(*shape: index.Dim, slot: int = 0, dtype=F32) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, shape))


def run(op, node_or_shape, arg, *, array=None) -> np.ndarray:
    x = param(*node_or_shape)
    return evaluate(Node(op, F32, (x,), arg), {0: array})


def test_movement() -> None:
    a = RNG.standard_normal((3, 4, 5)).astype(np.float32)

    def check(op, arg, wanted) -> None:
        found = run(op, (3, 4, 5), arg, array=a)
        assert found.shape == wanted.shape and (found == wanted).all()

    check(Ops.RESHAPE, (12, 5), a.reshape(12, 5))
    check(Ops.PERMUTE, (2, 0, 1), a.transpose(2, 0, 1))
    check(Ops.FLIP, (0, 2), a[::-1, :, ::-1])
    check(Ops.SHRINK, (Slice(1, 3), Slice(0, 4, 3), Slice(2, 2)), a[1:3, 0:4:3, 2:2])
    check(Ops.PAD, (Pad(1, 2), Pad(), Pad(0, 3)), np.pad(a, ((1, 2), (0, 0), (0, 3))))
    one = RNG.standard_normal((3, 1)).astype(np.float32)
    wide = run(Ops.EXPAND, (3, 1), (3, 6), array=one)
    assert (wide == np.repeat(one, 6, 1)).all()


def test_interior_padding_spreads_elements() -> None:
    a = np.float32([1, 2, 3])
    assert run(Ops.PAD, (3,), (Pad(1, 2, 2),), array=a).tolist() == [0, 1, 0, 0, 2, 0, 0, 3, 0, 0]
    assert run(Ops.PAD, (0,), (Pad(1, 1, 3),), array=a[:0]).tolist() == [0, 0]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_windows_and_their_adjoint(stride: int, dilation: int) -> None:
    a = RNG.standard_normal((2, 11, 3)).astype(np.float32)
    window = Window(1, 3, stride, dilation)
    found = run(Ops.WINDOW, (2, 11, 3), window, array=a)
    positions = (11 - dilation * 2 - 1) // stride + 1
    assert found.shape == (2, positions, 3, 3)
    for position in range(positions):
        for tap in range(3):
            assert (found[:, position, :, tap] == a[:, position * stride + tap * dilation]).all()
    # <WINDOW a, t> == <a, FOLD t> for every t: what an adjoint is.
    taps = RNG.standard_normal(found.shape).astype(np.float32)
    rebuilt = Window(1, 3, stride, dilation, 11)
    fold = Node(Ops.FOLD, F32, (param(*taps.shape),), rebuilt)
    back = evaluate(fold, {0: taps})
    assert back.shape == a.shape
    assert np.isclose((found * taps).sum(), (a * back).sum(), rtol=1e-4)


def test_convolution_as_windows_is_pytorch_s() -> None:
    a = RNG.standard_normal((2, 3, 9, 8)).astype(np.float32)
    w = RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)
    x = Node(Ops.WINDOW, F32, (param(2, 3, 9, 8),), Window(2, 3, 2))
    x = Node(Ops.WINDOW, F32, (x,), Window(3, 2))
    shape = (2, 4, 3, 4, 7, 3, 2)
    x = Node(Ops.RESHAPE, F32, (x,), (2, 1, 3, 4, 7, 3, 2))
    x = Node(Ops.EXPAND, F32, (x,), shape)
    k = Node(Ops.RESHAPE, F32, (param(4, 3, 3, 2, slot=1),), (1, 4, 3, 1, 1, 3, 2))
    k = Node(Ops.EXPAND, F32, (k,), shape)
    node = Node(Ops.REDUCE, F32, (alu(Ops.MUL, x, k),), Reduce(ADD, (2, 5, 6)))
    wanted = torch.conv2d(torch.from_numpy(a), torch.from_numpy(w), stride=(2, 1))
    assert np.allclose(evaluate(node, {0: a, 1: w}), wanted.numpy(), atol=1e-5)


def test_scalars_go_with_any_shape() -> None:
    a = np.float32([1, 2, 3])
    node = alu(Ops.WHERE, alu(Ops.CMPLT, param(3), const(2.0, F32)), const(7.0, F32), param(3))
    assert evaluate(node, {0: a}).tolist() == [7, 2, 3]
    total = Node(Ops.REDUCE, F32, (param(3),), Reduce(ADD, (0,)))
    assert evaluate(alu(Ops.DIV, param(3), total), {0: a}).shape == (3,)
    assert evaluate(const(2.5, F32)).shape == ()


def test_reductions_and_parts() -> None:
    a = RNG.standard_normal((3, 4, 5)).astype(np.float32)
    node = Node(Ops.REDUCE, F32, (param(3, 4, 5),), Reduce(ADD, (0, 2)))
    assert np.allclose(evaluate(node, {0: a}), a.sum((0, 2)), atol=1e-6)
    iota = Node(Ops.RESHAPE, I64, (Node(Ops.IOTA, I64, (), 4),), (1, 4, 1))
    places = Node(Ops.EXPAND, I64, (iota,), (3, 4, 5))
    best = arg_extreme(Ops.MAX, F32)
    both = Node(Ops.REDUCE, F32, (param(3, 4, 5), places), Reduce(best, (1,)))
    value, place = (Node(Ops.PROJ, best.states[i], (both,), i) for i in range(2))
    found = evaluate_all([value, place], {0: a})
    assert (found[0] == a.max(1)).all() and (found[1] == a.argmax(1)).all()
    with pytest.raises(CompilerBug, match="tuple"):
        evaluate(both, {0: a})
    running = Node(Ops.SCAN, F32, (param(3, 4, 5),), Scan(ADD, 1))
    assert np.allclose(evaluate(running, {0: a}), a.cumsum(1), atol=1e-6)


def test_gather_and_scatter() -> None:
    a = RNG.standard_normal((4, 5)).astype(np.float32)
    rows = param(3, slot=1, dtype=dtypes.int32)
    columns = param(3, slot=2, dtype=I64)
    picked = Node(Ops.GATHER, F32, (param(4, 5), rows, columns))
    places = {1: np.int32([3, 0, 3]), 2: np.int64([4, 1, 4])}
    assert (evaluate(picked, {0: a, **places}) == a[[3, 0, 3], [4, 1, 4]]).all()
    values = param(3, slot=3)
    given = {0: a, 3: np.float32([1, 2, 3]), **places}
    put = Node(Ops.SCATTER, F32, (param(4, 5), values, rows, columns), Scatter())
    wanted = a.copy()
    wanted[3, 4], wanted[0, 1] = 3, 2
    assert (evaluate(put, given) == wanted).all()
    added = Node(Ops.SCATTER, F32, (param(4, 5), values, rows, columns), Scatter(ADD))
    wanted = a.copy()
    wanted[3, 4] += 4
    wanted[0, 1] += 2
    assert np.allclose(evaluate(added, given), wanted)
    with pytest.raises(IndexOutOfRange, match="axis 0"):
        evaluate(picked, {0: a, 1: np.int32([4, 0, 0]), 2: np.int64([0, 0, 0])})
    with pytest.raises(IndexOutOfRange, match="axis 1"):
        evaluate(put, {**given, 2: np.int64([-1, 0, 0])})


def test_bfloat16_is_stored_as_codes_and_rounded_at_each_op() -> None:
    kind = dtypes.bfloat16
    codes = (torch.randn(64) * 10).to(torch.bfloat16)
    stored = codes.view(torch.uint16).numpy()
    x = param(64, dtype=kind)
    node = alu(Ops.MUL, alu(Ops.ADD, x, const(1.0, kind)), x)
    wanted = ((codes + 1) * codes).float().numpy()
    assert (evaluate(node, {0: stored}) == wanted).all()
    total = Node(Ops.REDUCE, kind, (x,), Reduce(primitive(Ops.ADD, kind), (0,)))
    wanted = codes.double().sum().to(torch.float32).to(torch.bfloat16).float().item()
    assert evaluate(total, {0: stored}).item() == wanted


def test_buffers_and_symbolic_shapes() -> None:
    n = index.variable("n", 1, 8)
    x = Node(Ops.BUFFER, F32, (), BufferRef("handle", (n, 2), "CPU"))
    flat = Node(Ops.RESHAPE, F32, (x,), (index.mul(n, 2),))
    count = Node(Ops.IOTA, F32, (index.as_node(index.mul(n, 2)),))
    node = alu(Ops.ADD, flat, count)
    seen = []

    def read(ref: BufferRef) -> np.ndarray:
        seen.append(ref.handle)
        return np.float32([1, 1, 1, 1, 1, 1])

    assert evaluate(node, {}, {"n": 3}, read).tolist() == [1, 2, 3, 4, 5, 6]
    assert seen == ["handle"]
    with pytest.raises(ShapeError, match="wrong size"):
        evaluate(node, {}, {"n": 4}, read)
    with pytest.raises(IndexOutOfRange, match="leaves its bounds"):
        evaluate(node, {}, {"n": 9}, read)
    with pytest.raises(CompilerBug, match="no value"):
        evaluate(node, {}, {}, read)


def test_missing_arguments_are_said() -> None:
    with pytest.raises(CompilerBug, match="argument 0 is missing"):
        evaluate(param(3))
    with pytest.raises(ShapeError, match="argument 0 has the wrong size"):
        evaluate(param(3), {0: np.zeros(4, np.float32)})


def test_a_long_chain_is_evaluated_without_recursion_and_holds_little() -> None:
    x = param(1000)
    node = x
    for _ in range(30_000):
        node = alu(Ops.ADD, node, const(1.0, F32))
    # Were every intermediate kept, this would take 120 MB; the last one alone is wanted.
    assert (evaluate(node, {0: np.zeros(1000, np.float32)}) == 30_000).all()


def test_casts_between_stored_types() -> None:
    a = np.float32([1.5, -2.5, 300.0, np.nan])
    assert evaluate(cast(param(4), dtypes.int8), {0: a}).tolist() == [1, -2, 127, 0]
    assert evaluate(cast(param(4), dtypes.bool), {0: a}).tolist() == [True] * 4
    bits = Node(Ops.BITCAST, dtypes.uint32, (param(4),))
    assert (evaluate(bits, {0: a}) == a.view(np.uint32)).all()

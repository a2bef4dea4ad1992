"""Attention of 16-bit floats: values and gradients against NumPy's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.tensor import Tensor

NARROW = pytest.mark.parametrize("dtype", (dtypes.bfloat16, dtypes.float16), ids=str)
# A unit in the last place of 1, and what sums of some such numbers lose.
UNIT = {dtypes.bfloat16: 2.0**-8, dtypes.float16: 2.0**-11}


def drawn(rng: np.random.Generator, dtype: DType, *shape: int) -> tuple[Tensor, Any]:
    """A leaf of 16-bit numbers, and the same numbers in float64."""
    leaf = Tensor(rng.standard_normal(shape).astype(np.float32)).cast(dtype).detach()
    return leaf.requires_grad_(), leaf.double().numpy()


def reference(q: Any, k: Any, v: Any, g: Any, hidden: Any, added: Any = 0.0) -> tuple[Any, ...]:
    """Attention's output, the gradients of q, k and v, and of what is added to the scores."""
    scale = 1 / np.sqrt(q.shape[-1])
    scores = np.where(hidden, -np.inf, q @ np.swapaxes(k, -1, -2) * scale + added)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    weights = power / power.sum(-1, keepdims=True)
    out = weights @ v
    toward = g @ np.swapaxes(v, -1, -2)
    slope = weights * (toward - (g * out).sum(-1, keepdims=True))
    turned = np.swapaxes(slope, -1, -2)
    return out, slope @ k * scale, turned @ q * scale, np.swapaxes(weights, -1, -2) @ g, slope


def near(found: Tensor, true: Any, unit: float) -> None:
    error = np.abs(found.double().numpy() - true).max()
    assert error <= 4 * unit * max(np.abs(true).max(), 1.0), error


@NARROW
@pytest.mark.parametrize("causal", (False, True))
def test_attention_and_its_gradients(dtype: DType, causal: bool) -> None:
    rng = np.random.default_rng(0)
    (q, q64), (k, k64), (v, v64) = (drawn(rng, dtype, 2, 3, 33, 24) for _ in range(3))
    g, g64 = drawn(rng, dtype, 2, 3, 33, 24)
    out = q.scaled_dot_product_attention(k, v, is_causal=causal)
    out.backward(g.detach())
    hidden = np.arange(33)[None, :] > np.arange(33)[:, None] if causal else np.zeros((33, 33), bool)
    true = reference(q64, k64, v64, g64, hidden)
    for found, expected in zip((out, q.grad, k.grad, v.grad), true, strict=False):
        assert found is not None and found.dtype is dtype
        near(found, expected, UNIT[dtype])


@NARROW
@pytest.mark.parametrize("height", (0.0, 1.0, 12.0))
def test_results_are_as_near_as_their_own_values_are(dtype: DType, height: float) -> None:
    """Whether keys share the weight or one has it all: powers are rounded, then divided by theirs.

    Weights are off by u of themselves and are 1 together, so that what they weigh is off by u of
    its distances from the result.
    """
    rng = np.random.default_rng(7)
    (q, _), (k, k64), (v, v64) = (drawn(rng, dtype, 2, 2, 24, 32) for _ in range(3))
    q = (q.detach() * height).requires_grad_()
    g, g64 = drawn(rng, dtype, 2, 2, 24, 32)
    out = q.scaled_dot_product_attention(k, v)
    out.backward(g.detach())
    hidden = np.zeros((24, 24), bool)
    true = reference(q.double().numpy(), k64, v64, g64, hidden)
    weights = reference(q.double().numpy(), k64, np.eye(24), np.zeros((24, 24)), hidden)[0]
    apart = np.abs(v64[..., None, :, :] - true[0][..., :, None, :])
    bound = UNIT[dtype] * ((weights[..., None] * apart).sum(-2) + np.abs(true[0]))
    assert (np.abs(out.double().numpy() - true[0]) <= 1.01 * bound + 1e-5).all()
    for found, expected in zip((q.grad, k.grad, v.grad), true[1:4], strict=True):
        assert found is not None
        error = np.abs(found.double().numpy() - expected).max()
        assert error <= 4 * UNIT[dtype] * np.abs(expected).max() + 1e-6, error


@NARROW
def test_one_key_has_its_own_value_and_no_slope(dtype: DType) -> None:
    """The result is the value, to the bit; what a softmax of one key is does not change at all."""
    rng = np.random.default_rng(8)
    (q, _), (k, _), (v, _) = (drawn(rng, dtype, 64, 1, 64) for _ in range(3))
    g, _ = drawn(rng, dtype, 64, 1, 64)
    out = q.scaled_dot_product_attention(k, v, is_causal=True)
    out.backward(g.detach())
    np.testing.assert_array_equal(out.float().numpy(), v.float().numpy())
    for x in (q, k):
        # Two sums of 64 products, in float32 and in any order.
        assert x.grad is not None and np.abs(x.grad.float().numpy()).max() < 2.0**-14


@NARROW
def test_what_dropout_leaves_of_one_key_is_rounded_once(dtype: DType) -> None:
    Tensor.manual_seed(11)
    rng = np.random.default_rng(9)
    (q, _), (k, _), (v, v64) = (drawn(rng, dtype, 64, 1, 64) for _ in range(3))
    found = q.scaled_dot_product_attention(k, v, dropout_p=0.3).double().numpy()
    left = np.abs(found).max(-1, keepdims=True) > 0
    assert 0.4 < left.mean() < 0.95
    true = v64 * left / 0.7
    assert (np.abs(found - true) <= UNIT[dtype] * np.abs(true) * 1.001).all()
    gone = q.scaled_dot_product_attention(k, v, dropout_p=1.0)
    assert not gone.float().numpy().any()
    with pytest.raises(ArgumentError):
        q.scaled_dot_product_attention(k, v, dropout_p=1.5)


def test_heads_in_groups_and_an_added_mask() -> None:
    rng = np.random.default_rng(1)
    dtype = dtypes.bfloat16
    (q, q64), (g, g64) = (drawn(rng, dtype, 2, 4, 9, 16) for _ in range(2))
    (k, k64), (v, v64) = (drawn(rng, dtype, 2, 2, 12, 16) for _ in range(2))
    added = Tensor(rng.standard_normal((9, 12)).astype(np.float32)).requires_grad_()
    out = q.scaled_dot_product_attention(k, v, added, enable_gqa=True)
    out.backward(g.detach())
    wide = [np.repeat(x, 2, 1) for x in (k64, v64)]
    hidden = np.zeros((9, 12), bool)
    true = reference(q64, *wide, g64, hidden, added.detach().numpy().astype(np.float64))
    of_groups = [x.reshape(2, 2, 2, 12, 16).sum(2) for x in true[2:4]]
    expected = (true[0], true[1], *of_groups, true[4].sum((0, 1)))
    for found, each in zip((out, q.grad, k.grad, v.grad, added.grad), expected, strict=True):
        assert found is not None
        near(found, each, UNIT[dtype])


@pytest.mark.parametrize("dtype", (dtypes.bfloat16, dtypes.float64), ids=str)
def test_a_mask_has_a_gradient_of_its_own_dtype(dtype: DType) -> None:
    rng = np.random.default_rng(6)
    (q, q64), (k, k64), (v, v64), (g, g64) = (
        drawn(rng, dtypes.bfloat16, 2, 5, 8) for _ in range(4)
    )
    added, added64 = drawn(rng, dtype, 5, 5)
    q.scaled_dot_product_attention(k, v, added).backward(g.detach())
    assert added.grad is not None and added.grad.dtype is dtype
    expected = reference(q64, k64, v64, g64, np.zeros((5, 5), bool), added64)[4].sum(0)
    near(added.grad, expected, UNIT[dtypes.bfloat16])


@pytest.mark.parametrize("dtype", (dtypes.bfloat16, dtypes.float32), ids=str)
def test_no_keys_give_zeros(dtype: DType) -> None:
    q = Tensor.ones(2, 3, 4, dtype=dtype).detach().requires_grad_()
    k, v = Tensor.ones(2, 0, 4, dtype=dtype), Tensor.ones(2, 0, 6, dtype=dtype)
    out = q.scaled_dot_product_attention(k, v)
    out.backward(Tensor.ones(2, 3, 6, dtype=dtype))
    assert out.float().tolist() == [[[0.0] * 6] * 3] * 2
    assert q.grad is not None and q.grad.float().tolist() == [[[0.0] * 4] * 3] * 2


@pytest.mark.parametrize("dtype", (dtypes.bfloat16, dtypes.float32), ids=str)
@pytest.mark.parametrize(
    "shapes", (((3, 4), (5, 1), (5, 4)), ((3, 4), (5, 4), (1, 4)), ((4,), (5, 4), (5, 4))), ids=str
)
def test_what_does_not_fit_is_refused(shapes: tuple[tuple[int, ...], ...], dtype: DType) -> None:
    q, k, v = (Tensor.ones(*shape, dtype=dtype) for shape in shapes)
    with pytest.raises(ShapeError):
        q.scaled_dot_product_attention(k, v)


def test_dropout_keeps_what_it_leaves_in_the_gradient() -> None:
    rng = np.random.default_rng(2)
    Tensor.manual_seed(3)
    (q, _), (k, _) = (drawn(rng, dtypes.bfloat16, 1, 1, 16, 16) for _ in range(2))
    eye = Tensor(np.eye(16, dtype=np.float32)).cast(dtypes.bfloat16)[None, None]
    v = eye.detach().requires_grad_()
    out = q.scaled_dot_product_attention(k, v, dropout_p=0.5)
    out.backward(eye)
    # The value is the unit matrix, so the output is the weights and the gradient theirs.
    assert v.grad is not None
    weights = out.double().numpy()[0, 0]
    np.testing.assert_allclose(v.grad.double().numpy()[0, 0], weights.T, rtol=2**-7)
    assert 0.2 < (weights == 0).mean() < 0.8


def test_a_row_that_sees_nothing_gives_zeros_and_no_gradient() -> None:
    q = Tensor.ones(1, 2, 16, dtype=dtypes.bfloat16).detach().requires_grad_()
    mask = Tensor([[True, False], [False, False]])
    out = q.scaled_dot_product_attention(q.detach(), q.detach(), mask)
    out.backward(Tensor.ones(1, 2, 16, dtype=dtypes.bfloat16))
    assert out.float().tolist() == [[[1.0] * 16, [0.0] * 16]]
    assert q.grad is not None and q.grad.float().tolist() == [[[0.0] * 16] * 2]


def test_gradients_are_differentiated_again() -> None:
    rng = np.random.default_rng(4)
    (q, _), (k, _), (v, _) = (drawn(rng, dtypes.bfloat16, 1, 5, 8) for _ in range(3))
    wide = [x.float().detach().requires_grad_() for x in (q, k, v)]
    seconds = []
    for a, b, c in ((q, k, v), wide):
        out = a.scaled_dot_product_attention(b, c)
        out.float().square().sum().backward(create_graph=True)
        first = a.grad
        assert first is not None
        a.grad = None
        first.float().square().sum().backward()
        assert a.grad is not None
        seconds.append(a.grad.float().numpy())
    np.testing.assert_allclose(*seconds, atol=0.05 * np.abs(seconds[1]).max())


def test_both_products_are_of_16_bit_numbers() -> None:
    """What is summed is a product of two numbers that were 16 bits wide, forward and backward."""
    rng = np.random.default_rng(5)
    leaves = [drawn(rng, dtypes.bfloat16, 1, 2, 32, 16)[0] for _ in range(3)]
    out = leaves[0].scaled_dot_product_attention(*leaves[1:], is_causal=True)
    out.backward(Tensor.ones(*out.shape, dtype=dtypes.bfloat16))
    roots = [out.node, *[leaf.grad.node for leaf in leaves if leaf.grad is not None]]
    products = [
        node.src[0] for node in toposort(*roots)
        if node.op is Ops.REDUCE and node.src[0].op is Ops.MUL and len(node.src[0].shape) == 5
    ]
    assert len(products) >= 6
    for product in products:
        for factor in product.src:
            while factor.op in (Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE):
                factor = factor.src[0]
            assert factor.op is Ops.CAST and factor.src[0].dtype is dtypes.bfloat16

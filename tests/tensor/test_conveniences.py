"""What PyTorch's users write without thinking: made like another tensor, compared, distinct, ..."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from tests.tensor.oracle import both, compare, same

DATA = np.random.default_rng(4).standard_normal((3, 4, 6))


@pytest.mark.parametrize(
    "function",
    [
        lambda f, x: x.select(1, -2),
        lambda f, x: x.select(0, 1) * 2,
        lambda f, x: x.diff(),
        lambda f, x: x.diff(2, 1),
        lambda f, x: x.diff(n=5, dim=0),
        lambda f, x: f.glu(x),
        lambda f, x: f.glu(x, 1),
        lambda f, x: f.pixel_shuffle(x.reshape(2, 9, 2, 2), 3),
        lambda f, x: x.where(x < 1, x * math.nan).nanmean(1),
    ],
)
def test_values_and_gradients(function: Any) -> None:
    compare(function, [DATA], dtypes.float32)


@pytest.mark.parametrize("function", [
    lambda f, x: (x / 9).arccos(),
    lambda f, x: (x.abs() + 1.5).arccosh(),
    lambda f, x: f.swapdims(x, 0, 2),
    lambda f, x: x.moveaxis(0, -1),
    lambda f, x: f.concat([x, x * 2], dim=1),
    lambda f, x: f.true_divide(x, 3),
    lambda f, x: f.subtract(x, 3),
    lambda f, x: x[:, :1].expand_as(x),
    lambda f, x: x.reshape_as(x.permute(2, 0, 1)),
    lambda f, x: x.view_as(x.permute(2, 0, 1)),
])  # fmt: skip
def test_other_spellings_are_pytorchs(function: Any) -> None:
    compare(function, [DATA], dtypes.float64)


@pytest.mark.parametrize("function", [
    lambda f, x, y: x.fix(),
    lambda f, x, y: x.floor_divide(y),
    lambda f, x, y: x.greater(y),
    lambda f, x, y: x.greater_equal(y),
    lambda f, x, y: x.less_equal(y),
    lambda f, x, y: x.not_equal(y),
    lambda f, x, y: (x * 3).int().bitwise_not(),
    lambda f, x, y: (x * 3).int().bitwise_left_shift(2),
    lambda f, x, y: (x * 30).int().bitwise_right_shift(2),
    lambda f, x, y: f.heaviside(x.round(), y),
    lambda f, x, y: f.std_mean(x, 1)[0],
    lambda f, x, y: f.std_mean(x, 1)[1],
])  # fmt: skip
def test_other_spellings_without_gradients_are_pytorchs(function: Any) -> None:
    (x, t), (y, u) = both(DATA, dtypes.float64), both(DATA[::-1].copy(), dtypes.float64)
    same(function(Tensor, x, y), function(torch, t, u))
    assert x.new_empty(2, 3).shape == (2, 3)


def test_a_learned_slope() -> None:
    compare(lambda f, x, w: f.prelu(x, w), [DATA, np.array([0.3])], dtypes.float64)
    compare(lambda f, x, w: f.prelu(x, w), [DATA, np.arange(4.0)], dtypes.float64)


def test_differences_of_integers_and_bools() -> None:
    for array in (np.array([3, 250, 7], np.uint8), np.array([True, True, False])):
        same(Tensor(array).diff(), torch.tensor(array).diff())


@pytest.mark.parametrize("like", ("float64", "int32", "bool"))
def test_made_like_another(like: str) -> None:
    x, t = both(np.ones((2, 3)), getattr(dtypes, like))
    same(x.new_zeros(4), t.new_zeros(4))
    same(x.new_zeros((2, 5), dtype=dtypes.int8), t.new_zeros((2, 5), dtype=torch.int8))
    same(x.new_ones(2, 3), t.new_ones(2, 3))
    same(x.new_full((2,), 7), t.new_full((2,), 7))
    same(x.new_tensor([[1, 0]]), t.new_tensor([[1, 0]]))
    same(Tensor([1.5, 0.0]).type_as(x), torch.tensor([1.5, 0.0]).type_as(t))
    assert x.is_floating_point() == t.is_floating_point()
    assert (x.dim(), x.nelement()) == (t.dim(), t.nelement())


def test_a_device_is_kept() -> None:
    x = Tensor([1.0, 2.0], device="REF")
    assert x.new_zeros(2).device == x.new_tensor([3]).device == x.new_full((), 1).device == "REF"
    assert x.cpu().device == "CPU"
    assert x.cpu().tolist() == [1.0, 2.0]
    assert Tensor([1.0]).type_as(x).device == "REF"


def test_whole_tensors_are_compared() -> None:
    x = Tensor([1.0, math.nan, math.inf])
    assert not x.equal(x)
    assert not x.allclose(x)
    assert x.allclose(x + 1e-7, equal_nan=True)
    assert x[::2].equal(x[::2].clone())
    assert not x[:1].equal(x[:1].expand(2))
    assert x[:1].allclose(Tensor([1.0, 1.0]))
    assert not x[:1].allclose(Tensor([1.1]))
    assert Tensor([]).equal(Tensor([]))


@pytest.mark.parametrize(
    "array",
    [
        np.array([3, 1, 1, 2, 3, 3]),
        np.array([[0.5, -1.0], [-1.0, 0.5]]),
        np.array([1.0, math.nan, 1.0, math.nan]),
        np.array([True, True]),
        np.array(4, np.int32),
        np.zeros((0,), np.float32),
    ],
)
def test_distinct_elements(array: np.ndarray[Any, Any]) -> None:
    x, t = Tensor(array), torch.tensor(array)
    same(x.unique(), t.unique())
    if not np.isnan(array.astype(np.float64)).any():
        same(
            x.unique(return_inverse=True, return_counts=True),
            t.unique(return_inverse=True, return_counts=True),
        )


def test_data_is_the_tensor_without_gradients() -> None:
    p = Tensor([1.0, 2.0], requires_grad=True)
    p.data.mul_(3)
    assert p.tolist() == [3.0, 6.0]
    p.data = Tensor([5.0, 7.0])
    assert p.is_leaf
    assert p.requires_grad
    assert not p.data.requires_grad
    (p * p).sum().backward()
    assert p.grad is not None
    assert p.grad.tolist() == [10.0, 14.0]
    with pytest.raises(ShapeError, match=r"found \[3\], wanted \[2\]"):
        p.data = Tensor([1.0, 2.0, 3.0])


def test_errors() -> None:
    x = Tensor(DATA)
    with pytest.raises(ShapeError, match="glu halves an axis"):
        x.glu(0)
    with pytest.raises(ShapeError, match=r"found \[3\], wanted \[1\] or \[4\]"):
        x.prelu(Tensor.ones(3))
    with pytest.raises(ShapeError, match=r"wanted \(\.\.\., C\*2\*2, H, W\)"):
        x.pixel_shuffle(2)
    with pytest.raises(DTypeError, match="nanmean"):
        Tensor([1]).nanmean()
    with pytest.raises(ShapeError, match="n = -1"):
        x.diff(-1)
    with pytest.raises(ShapeError, match="without axes"):
        Tensor(1.0).select(0, 0)
    with pytest.raises(ShapeError, match="found 6 and 4 for 'k', wanted equal extents, or 1"):
        Tensor.einsum("ijk,ik->i", x, x[..., 0])
    with pytest.raises(ShapeError, match=r"found \[3\] for \[3, 4, 6\], wanted \[4\]"):
        x.batch_norm(Tensor.zeros(3), Tensor.ones(3), training=True)

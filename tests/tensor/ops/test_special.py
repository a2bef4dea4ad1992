"""Functions of probability and geometry against PyTorch and mpmath, with their gradients."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from tests.tensor.oracle import FLOATS, compare, same

SINGLE, DOUBLE = dtypes.float32, dtypes.float64


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# --- elements -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "last", "limit"), [
    (SINGLE, 10.0, 5e-7), (DOUBLE, 26.5, 4e-15),
])  # fmt: skip
def test_erfc_keeps_its_relative_precision(dtype: Any, last: float, limit: float) -> None:
    points = np.concatenate([np.linspace(-6, last, 2001), [1e-30, -1e-30, 0.0]])
    points = points.astype(dtype.name)
    found = Tensor(points).erfc().numpy()
    assert found.dtype == points.dtype
    least = float(np.finfo(points.dtype).tiny)
    for point, value in zip(points.tolist(), found.tolist(), strict=True):
        wanted = mpmath.erfc(point)
        if wanted > least:
            assert abs(value / wanted - 1) < limit, point


def test_erfc_of_what_is_no_number_or_infinite() -> None:
    found = Tensor([math.inf, -math.inf, math.nan, 200.0, -200.0, -0.0]).erfc().tolist()
    assert found[:2] == [0.0, 2.0]
    assert math.isnan(found[2])
    assert found[3:] == [0.0, 2.0, 1.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements(dtype: Any) -> None:
    x, y = normal(5, 7), np.abs(normal(5, 7, seed=1)) + 0.1
    slack = 2e-5 if dtype is SINGLE else 1e-11 if dtype is DOUBLE else None
    compare(lambda f, x: f.erfc(x), [x], dtype, grad_tolerance=slack)
    compare(lambda f, x, y: f.xlogy(x, y), [x, y], dtype, grad_tolerance=slack)
    compare(lambda f, x, y: f.hypot(x, y), [x, y], dtype, grad_tolerance=slack)
    compare(lambda f, x: f.softshrink(x), [x], dtype)
    compare(lambda f, x: f.hardshrink(x, 0.8), [x], dtype)


def test_pairs_broadcast() -> None:
    compare(lambda f, x, y: f.xlogy(x, y), [normal(3, 1), np.abs(normal(4)) + 0.5], DOUBLE)
    compare(lambda f, x, y: f.hypot(x, y), [normal(3, 1), normal(4)], DOUBLE)
    compare(lambda f, x: f.xlogy(x, 2.0), [normal(3)], DOUBLE)
    found = Tensor([2, 0]).xlogy(Tensor([3, 0]))
    same(found, torch.xlogy(torch.tensor([2, 0]), torch.tensor([3, 0])))


def test_values_at_the_edges() -> None:
    grid = np.array([0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 3e38, math.inf, -math.inf, math.nan],
                    np.float32)
    x, y = (part.ravel() for part in np.meshgrid(grid, grid))
    for name in ("xlogy", "hypot"):
        found = getattr(Tensor(x), name)(Tensor(y))
        wanted = getattr(torch, name)(torch.from_numpy(x), torch.from_numpy(y))
        same(found, wanted, 1e-6, name)
    for name in ("softshrink", "hardshrink"):
        found = getattr(Tensor(grid), name)()
        same(found, getattr(torch.nn.functional, name)(torch.from_numpy(grid)), 0, name)


# --- distances and losses -------------------------------------------------------------------------

A, B, C = normal(6, 4), normal(6, 4, seed=1), normal(6, 4, seed=2)
SIGNS = np.array([1.0, -1, 1, -1, -1, 1])
PAIRS: tuple[tuple[str, list[np.ndarray], Any], ...] = (
    ("pairwise", [A, B], lambda f, a, b: f.pairwise_distance(a, b)),
    ("pairwise 3", [A, B], lambda f, a, b: f.pairwise_distance(a, b, 3.0, keepdim=True)),
    ("cdist", [A, B[:3]], lambda f, a, b: f.cdist(a, b)),
    ("cdist 1", [A, B[:3]], lambda f, a, b: f.cdist(a, b, p=1.0)),
    ("cdist 3", [A, B[:3]], lambda f, a, b: f.cdist(a, b, p=3.0)),
    ("cdist inf", [A, B[:3]], lambda f, a, b: f.cdist(a, b, p=math.inf)),
    ("cdist batch", [normal(2, 1, 3, 4), normal(5, 2, 4)], lambda f, a, b: f.cdist(a, b)),
    ("cosine embedding", [A, B], lambda f, a, b: f.cosine_embedding_loss(a, b, sign(f), 0.1)),
    ("cosine embedding sum", [A, B],
     lambda f, a, b: f.cosine_embedding_loss(a, b, sign(f), reduction="sum")),
    ("triplet", [A, B, C], lambda f, a, b, c: f.triplet_margin_loss(a, b, c)),
    ("triplet swap", [A, B, C],
     lambda f, a, b, c: f.triplet_margin_loss(a, b, c, 0.5, 3.0, swap=True, reduction="none")),
    ("ranking", [A[0], B[0]], lambda f, a, b: f.margin_ranking_loss(a, b, sign(f)[:4], 0.2)),
    ("hinge", [A[:, 0]], lambda f, a: f.hinge_embedding_loss(a, sign(f), 0.7)),
    ("soft margin", [A[:, 0]], lambda f, a: f.soft_margin_loss(a, sign(f))),
    ("gaussian", [A, B, C**2 + 0.1], lambda f, a, b, v: f.gaussian_nll_loss(a, b, v)),
    ("gaussian full", [A, B, C[:, :1] ** 2 + 0.1],
     lambda f, a, b, v: f.gaussian_nll_loss(a, b, v, full=True, reduction="none")),
    ("poisson", [A, np.abs(B) * 4], lambda f, a, b: f.poisson_nll_loss(a, b)),
    ("poisson plain", [np.abs(A), np.abs(B) * 4],
     lambda f, a, b: f.poisson_nll_loss(a, b, log_input=False, full=True, reduction="sum")),
)  # fmt: skip


def sign(f: Any) -> Any:
    return f.cat([Tensor(SIGNS)]) if f.__class__.__name__.startswith("Our") else torch.tensor(SIGNS)


@pytest.mark.parametrize(("arrays", "function"), [row[1:] for row in PAIRS],
                         ids=[row[0] for row in PAIRS])  # fmt: skip
def test_distances_and_losses(arrays: list[np.ndarray], function: Any) -> None:
    # PyTorch has no second gradient of cdist but for p = 2, which loses digits.
    compare(function, arrays, DOUBLE, tolerance=1e-6, second=False, grad_tolerance=1e-5)


def test_a_variance_below_the_least_one() -> None:
    small = np.array([1e-9, 0.0, 2.0])
    compare(lambda f, x, t, v: f.gaussian_nll_loss(x, t, v), [A[:3, 0], B[:3, 0], small], DOUBLE,
            second=False, tolerance=1e-9, grad_tolerance=1e-9)


def test_the_gradient_at_a_distance_of_zero_is_zero() -> None:
    x = Tensor(A, requires_grad=True)
    (gradient,) = x.cdist(Tensor(A)).diagonal().sum().gradient(x)
    assert gradient.abs().max().item() == 0


def test_what_has_no_distance() -> None:
    with pytest.raises(ShapeError, match="rows of one length"):
        Tensor(A).cdist(Tensor(A[:, :3]))
    with pytest.raises(ArgumentError, match="p=-1"):
        Tensor(A).cdist(Tensor(A), -1)
    with pytest.raises(ShapeError, match="a target for each pair"):
        Tensor(A).cosine_embedding_loss(Tensor(B), Tensor(SIGNS[:3]))


# --- windows and places ---------------------------------------------------------------------------

WINDOWS = (
    {"kernel_size": 3}, {"kernel_size": (2, 3), "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)},
    {"kernel_size": 2, "stride": 3},
)  # fmt: skip


@pytest.mark.parametrize("words", WINDOWS, ids=str)
def test_windows_as_columns_and_back(words: dict[str, Any]) -> None:
    def columns(f: Any, x: Any) -> Any:
        return x.im2col(**words) if isinstance(x, Tensor) else f.unfold(x, **words)

    def image(f: Any, x: Any) -> Any:
        return (x.col2im((6, 7), **words) if isinstance(x, Tensor) else f.fold(x, (6, 7), **words))

    compare(columns, [normal(2, 3, 6, 7)], DOUBLE)
    compare(columns, [normal(3, 6, 7)], DOUBLE)
    made = torch.nn.functional.unfold(torch.zeros(2, 3, 6, 7), **words)
    compare(image, [normal(*made.shape)], DOUBLE)
    compare(image, [normal(*made.shape[1:])], dtypes.float16, grad=False)


def test_columns_that_are_no_windows() -> None:
    with pytest.raises(ShapeError, match=r"wanted \(N, a multiple of 9, 20\)"):
        Tensor(normal(2, 27, 19)).col2im((6, 7), 3)
    with pytest.raises(ShapeError, match="windows are of images"):
        Tensor(normal(4, 4)).im2col(3)
    with pytest.raises(ShapeError, match="larger than the padded input"):
        Tensor(normal(1, 1, 2, 2)).im2col(3)


@pytest.mark.parametrize("accumulate", [False, True])
def test_writing_at_named_places(accumulate: bool) -> None:
    rows, columns = [0, 2, 2, 3], [1, 0, 0, 4]
    values = normal(4, seed=3)
    if not accumulate:
        values[2] = values[1]  # which of two values stays is not promised

    def put(f: Any, x: Any, v: Any) -> Any:
        make = Tensor if isinstance(x, Tensor) else torch.tensor
        return f.index_put(x, (make(rows), make(columns)), v, accumulate=accumulate)

    compare(put, [normal(4, 5), values[3:]], DOUBLE, grad=accumulate)
    compare(put, [normal(4, 5), values], DOUBLE, grad=accumulate)
    compare(put, [normal(4, 5), values], dtypes.float16, grad=False)
    mask = normal(4, 5) > 0
    x, y = Tensor(np.zeros((4, 5))), torch.zeros(4, 5, dtype=torch.float64)
    found = x.index_put_((Tensor(mask),), Tensor(2.0), accumulate=accumulate)
    assert found is x
    y.index_put_((torch.tensor(mask),), torch.tensor(2.0).double(), accumulate=accumulate)
    same(x, y)
    ids, ones = np.array([1, 1, 0]), np.ones((3, 5))
    x.index_put_((Tensor(ids),), Tensor(ones), accumulate)
    y.index_put_((torch.tensor(ids),), torch.tensor(ones), accumulate)
    same(x, y)


def test_a_whole_array_is_put_in_place_of_another() -> None:
    x = Tensor([np.nan, np.inf, 1.0], requires_grad=True)
    given = Tensor([2.0, 3.0, 4.0], requires_grad=True)
    found = x.index_put((None,), given)
    assert found.tolist() == [2.0, 3.0, 4.0]
    found.sum().backward()
    assert x.grad.tolist() == [0.0] * 3
    assert given.grad.tolist() == [1.0] * 3
    assert Tensor([1, 2]).index_put((None,), 5, accumulate=True).tolist() == [6, 7]


def test_places_that_are_none() -> None:
    x = Tensor.zeros(3, 3)
    with pytest.raises(DTypeError, match="places are named by tensors: found int 1"):
        x.index_put_((1,), 2.0)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="holds integers or bools"):
        x.index_put_((Tensor([0.5]),), 2.0)
    with pytest.raises(DTypeError, match="higher category"):
        x.int().index_put_((Tensor([0]),), 2.5)

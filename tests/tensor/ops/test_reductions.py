"""Reductions, scans and sorting against PyTorch: axes, dtypes, ties, NaN, empty axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import func
from baregrad.base.errors import BaregradError, DTypeError, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from tests.tensor.oracle import FLOATS, INTS, both, compare, same, values

AXES: tuple[Any, ...] = (None, 0, -1, (0, 2), (1,))

OVER_AXES: tuple[tuple[str, Any], ...] = (
    ("sum", lambda f, x, **k: x.sum(**k)),
    ("mean", lambda f, x, **k: x.mean(**k)),
    ("amax", lambda f, x, **k: x.amax(**k)),
    ("amin", lambda f, x, **k: x.amin(**k)),
    ("var", lambda f, x, **k: x.var(**k)),
    ("var 0", lambda f, x, **k: x.var(correction=0, **k)),
    ("std", lambda f, x, **k: x.std(**k)),
    ("nansum", lambda f, x, **k: x.nansum(**k)),
    ("norm", lambda f, x, **k: x.norm(**k)),
    ("norm 1", lambda f, x, **k: x.norm(1, **k)),
    ("norm 3", lambda f, x, **k: x.norm(3, **k)),
    ("norm inf", lambda f, x, **k: x.norm(math.inf, **k)),
    ("norm -inf", lambda f, x, **k: x.norm(-math.inf, **k)),
    ("norm 0", lambda f, x, **k: x.norm(0, **k)),
    ("any", lambda f, x, **k: (x > 0).any(**k)),
    ("all", lambda f, x, **k: (x > -1.5).all(**k)),
)


@pytest.mark.parametrize("row", OVER_AXES, ids=lambda r: r[0])
@pytest.mark.parametrize("dim", AXES, ids=str)
@pytest.mark.parametrize("keepdim", (False, True))
def test_over_axes(row: Any, dim: Any, keepdim: bool) -> None:
    name, function = row
    options = (
        {"dim": dim}
        if name.startswith("norm") and dim is None
        else {"dim": dim, "keepdim": keepdim}
    )
    if name in ("any", "all") and dim is None:
        options = {}
    array = np.random.default_rng(1).uniform(-2, 2, (3, 4, 2))
    compare(
        lambda f, x: function(f, x, **options),
        [array],
        dtypes.float64,
        grad_tolerance=1e-9,
        grad=name != "norm 0",
    )
    compare(
        lambda f, x: function(f, x, **options), [array], dtypes.float32, tolerance=4e-6, grad=False
    )


ALONG: tuple[tuple[str, Any], ...] = (
    ("prod", lambda f, x, d: x.prod(d)),
    ("prod keepdim", lambda f, x, d: x.prod(d, keepdim=True)),
    ("max", lambda f, x, d: tuple(x.max(d))),
    ("max keepdim", lambda f, x, d: tuple(x.max(d, keepdim=True))),
    ("min", lambda f, x, d: tuple(x.min(d))),
    ("argmax", lambda f, x, d: x.argmax(d)),
    ("argmax keepdim", lambda f, x, d: x.argmax(d, keepdim=True)),
    ("argmin", lambda f, x, d: x.argmin(d)),
    ("logsumexp", lambda f, x, d: x.logsumexp(d)),
    ("logsumexp keepdim", lambda f, x, d: x.logsumexp(d, keepdim=True)),
    ("softmax", lambda f, x, d: x.softmax(d)),
    ("softmin", lambda f, x, d: f.softmin(x, d)),
    ("log_softmax", lambda f, x, d: x.log_softmax(d)),
    ("cumsum", lambda f, x, d: x.cumsum(d)),
    ("cumprod", lambda f, x, d: x.cumprod(d)),
    ("cummax", lambda f, x, d: tuple(x.cummax(d))),
    ("cummin", lambda f, x, d: tuple(x.cummin(d))),
    ("logcumsumexp", lambda f, x, d: x.logcumsumexp(d)),
    ("sort", lambda f, x, d: tuple(x.sort(dim=d, stable=True))),
    ("sort descending", lambda f, x, d: tuple(x.sort(dim=d, descending=True, stable=True))),
    ("argsort", lambda f, x, d: x.argsort(dim=d, stable=True)),
    ("topk", lambda f, x, d: tuple(x.topk(2, d))),
    ("topk smallest", lambda f, x, d: tuple(x.topk(2, d, largest=False))),
    ("kthvalue", lambda f, x, d: tuple(x.kthvalue(2, d))),
    ("median", lambda f, x, d: tuple(x.median(d))),
    ("quantile", lambda f, x, d: x.quantile(0.3, d)),
    (
        "aminmax",
        # Older releases of PyTorch have no gradient of `aminmax`.
        lambda f, x, d: (
            (x.amin(d), x.amax(d)) if isinstance(x, torch.Tensor) else tuple(x.aminmax(dim=d))
        ),
    ),
    (
        "var_mean",
        lambda f, x, d: tuple(
            torch.var_mean(x, d) if isinstance(x, torch.Tensor) else x.var_mean(d)
        ),
    ),
)


@pytest.mark.parametrize("row", ALONG, ids=lambda r: r[0])
@pytest.mark.parametrize("dim", (0, 1, -1))
def test_along_an_axis(row: Any, dim: int) -> None:
    array = np.random.default_rng(2).uniform(-2, 2, (3, 4, 2))
    compare(lambda f, x: row[1](f, x, dim), [array], dtypes.float64, grad_tolerance=1e-8)


WHOLE: tuple[tuple[str, Any], ...] = (
    ("prod", lambda f, x: x.prod()),
    ("max", lambda f, x: x.max()),
    ("min", lambda f, x: x.min()),
    ("argmax", lambda f, x: x.argmax()),
    ("argmin", lambda f, x: x.argmin()),
    ("median", lambda f, x: x.median()),
    ("quantile", lambda f, x: x.quantile(0.3)),
    ("count_nonzero", lambda f, x: x.count_nonzero()),
)


@pytest.mark.parametrize("row", WHOLE, ids=lambda r: r[0])
def test_of_everything(row: Any) -> None:
    for shape in ((), (1,), (5,), (2, 3)):
        array = np.random.default_rng(3).uniform(-2, 2, shape)
        compare(row[1], [array], dtypes.float64, grad_tolerance=1e-9)


@pytest.mark.parametrize(
    "name",
    (
        "sum",
        "mean",
        "prod",
        "max",
        "logsumexp",
        "softmax",
        "log_softmax",
        "cumsum",
        "cumprod",
        "argmax",
        "cummax",
        "sort",
        "std",
        "norm",
        "topk",
        "median",
        "any",
    ),
)
def test_scalars(name: str) -> None:
    def function(f: Any, x: Any) -> Any:
        if name == "topk":
            return tuple(x.topk(1, 0))
        if name in ("logsumexp", "softmax", "log_softmax", "cumsum", "cumprod", "argmax"):
            return getattr(x, name)(0)
        if name in ("cummax", "sort"):
            return tuple(getattr(x, name)(0))
        return getattr(x, name)()

    compare(function, [np.array(1.5)], dtypes.float32, grad=name not in ("std", "median"))


@pytest.mark.parametrize("dtype", (*INTS, dtypes.bool), ids=str)
def test_integers_and_bools(dtype: Any) -> None:
    array = values(np.random.default_rng(4), (3, 4), dtype, -5, 5)
    for function in (
        lambda f, x: x.sum(),
        lambda f, x: x.sum(1),
        lambda f, x: x.prod(0),
        lambda f, x: x.cumsum(1),
        lambda f, x: (x > 0).any(),
        lambda f, x: (x > 0).all(1),
        lambda f, x: x.amax(1),
        lambda f, x: x.amin(0),
        lambda f, x: x.sum(dtype=f.zeros(1).dtype),
        lambda f, x: tuple(x.sort(dim=1, stable=True)),
        lambda f, x: tuple(x.sort(dim=1, descending=True, stable=True)),
    ):
        compare(function, [array], dtype)
    if dtype.kind != "bool":
        compare(lambda f, x: tuple(x.max(1)), [array], dtype)
        compare(lambda f, x: x.argmin(0), [array], dtype)
        compare(lambda f, x: tuple(x.cummax(1)), [array], dtype)


def test_integer_sums_wrap() -> None:
    array = np.full(3, np.iinfo(np.int64).max)
    compare(lambda f, x: x.sum(), [array], dtypes.int64)
    compare(lambda f, x: x.prod(), [array], dtypes.int64)


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_narrow_floats_accumulate_in_float32(dtype: Any) -> None:
    ones = np.ones(5000)
    x, t = both(ones, dtype)
    same(x.sum(), t.sum())
    same(x.mean(), t.mean())
    same(x.cumsum(0)[-1], torch.tensor(ones).sum().to(t.dtype))
    array = np.random.default_rng(5).uniform(-1, 1, (30, 40))
    for function in (
        lambda f, x: x.softmax(1),
        lambda f, x: x.log_softmax(1),
        lambda f, x: x.var(1),
        lambda f, x: x.std(1),
        lambda f, x: x.logsumexp(1),
        lambda f, x: x.norm(dim=1),
        lambda f, x: x.amax(0),
        lambda f, x: tuple(x.sort(dim=1, stable=True)),
    ):
        compare(function, [array], dtype)


TIES = np.array([[1.0, 3.0, 3.0, 2.0], [2.0, 2.0, 2.0, 2.0], [-1.0, -1.0, 0.0, -0.0]])


def test_gradients_of_ties() -> None:
    for function in (
        lambda f, x: x.amax(1),
        lambda f, x: x.amin(1),
        lambda f, x: x.max(),
        lambda f, x: x.max(1)[0],
        lambda f, x: x.min(1)[0],
        lambda f, x: x.cummax(1)[0],
        lambda f, x: x.cummin(1)[0],
        lambda f, x: x.sort(dim=1, stable=True)[0],
        lambda f, x: x.median(1)[0],
        lambda f, x: x.norm(math.inf, 1),
    ):
        compare(function, [TIES], dtypes.float64, grad_tolerance=1e-9)


def test_gradient_of_products_with_zeros() -> None:
    for array in (
        np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 4.0], [1.0, 5.0, 2.0]]),
        np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    ):
        for dim in (0, 1):
            compare(lambda f, x, d=dim: x.prod(d), [array], dtypes.float64)
            compare(lambda f, x, d=dim: x.cumprod(d), [array], dtypes.float64)
        compare(lambda f, x: x.prod(), [array], dtypes.float64)


def test_norm_has_gradient_zero_at_zero() -> None:
    compare(lambda f, x: x.norm(), [np.zeros(3)], dtypes.float32, second=False)
    compare(lambda f, x: x.norm(dim=1), [np.zeros((2, 3))], dtypes.float32, second=False)


SPECIAL = np.array(
    [[1.0, math.nan, 2.0, -0.0], [math.inf, 0.0, -math.inf, 1.0], [-math.inf] * 4, [math.inf] * 4]
)


@pytest.mark.parametrize(
    "row",
    [
        r
        for r in ALONG
        if r[0]
        not in (
            "softmin",
            "cumprod",
            "kthvalue",
            "quantile",
            "topk",
            "topk smallest",
            "var_mean",
        )
    ],
    ids=lambda r: r[0],
)
def test_special_values(row: Any) -> None:
    compare(lambda f, x: row[1](f, x, 1), [SPECIAL], dtypes.float32, grad=False)


def test_special_values_of_whole_reductions() -> None:
    for row in SPECIAL:
        for function in (
            lambda f, x: x.sum(),
            lambda f, x: x.amax(0),
            lambda f, x: x.amin(0),
            lambda f, x: x.nansum(),
            lambda f, x: x.median(),
            lambda f, x: x.prod(),
        ):
            compare(function, [row], dtypes.float32, grad=False)


EMPTY: tuple[Any, ...] = (
    lambda f, x: x.sum(0),
    lambda f, x: x.sum(1),
    lambda f, x: x.prod(0),
    lambda f, x: x.mean(0),
    lambda f, x: x.any(0),
    lambda f, x: x.all(0),
    lambda f, x: x.cumsum(0),
    lambda f, x: x.cumprod(1),
    lambda f, x: x.softmax(0),
    lambda f, x: x.log_softmax(1),
    lambda f, x: x.amax(1),
    lambda f, x: x.argsort(0),
    lambda f, x: x.norm(dim=0),
    lambda f, x: x.var(0),
)


@pytest.mark.parametrize("function", EMPTY)
def test_empty_axes(function: Any) -> None:
    compare(function, [np.zeros((0, 3))], dtypes.float32, grad=False)


@pytest.mark.parametrize("size", (2, 1023, 1025, 1500))
def test_long_sorts(size: int) -> None:
    rng = np.random.default_rng(size)
    array = rng.integers(0, size // 2 + 1, (2, size)).astype(np.float64)
    array[1, :2] = (math.nan, -0.0)
    compare(lambda f, x: tuple(x.sort(dim=1, stable=True)), [array], dtypes.float32, grad=False)
    x, t = both(array, dtypes.float32)
    places = x.argsort(1, descending=True).numpy()
    same(x.argsort(1, descending=True), t.argsort(dim=1, descending=True, stable=True))
    assert (np.sort(places, axis=1) == np.arange(array.shape[1])).all()


@pytest.mark.parametrize("size", (1, 2, 3, 16, 17, 70))
@pytest.mark.parametrize("dtype", ("int64", "uint64", "float64", "int32", "uint32", "int8", "bool"))
def test_orders_of_every_width(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    rows = rng.integers(0, max(size // 3, 2), (3, size)).astype(dtype)
    if dtype not in ("bool", "float64"):
        rows[0, 0], rows[1, -1] = np.iinfo(rows.dtype).max, np.iinfo(rows.dtype).min
    for descending in (False, True):
        places = [
            sorted(range(size), key=lambda i: -row[i] if descending else row[i])
            for row in rows.tolist()
        ]
        assert Tensor(rows).argsort(1, descending=descending).tolist() == places
        for k in {1, size // 2, size}:
            found = Tensor(rows).topk(k, 1, largest=descending).indices
            assert found.tolist() == [row[:k] for row in places]


def test_topk_of_a_long_axis() -> None:
    array = np.random.default_rng(9).permutation(3000).astype(np.float64)
    for k in (1, 5, 40):
        compare(lambda f, x, k=k: tuple(x.topk(k)), [array], dtypes.float32, second=False)


@pytest.mark.parametrize("dtype", (np.int8, np.int16, np.int32, np.int64))
@pytest.mark.parametrize("size", (5, 17, 300))
def test_extremes_of_negated_integers(size: int, dtype: type[np.signedinteger[Any]]) -> None:
    array = np.random.default_rng(size).integers(-100, 100, (3, size)).astype(dtype)
    x = Tensor(array)
    for dim in (0, 1):
        assert (-x).amax(dim).tolist() == (-array).max(dim).tolist()
        assert (x * -1).amin(dim).tolist() == (-array).min(dim).tolist()
    assert (0 - x).amax().tolist() == (-array).max()


def test_softmax_keeps_its_precision_and_gradient() -> None:
    array = np.random.default_rng(11).uniform(-50, 50, (4, 7))
    compare(lambda f, x: x.softmax(-1), [array], dtypes.float64, grad_tolerance=1e-10)
    compare(lambda f, x: x.log_softmax(0), [array], dtypes.float64, grad_tolerance=1e-10)


def test_errors_say_what_was_wanted() -> None:
    x = Tensor.ones(2, 3)
    with pytest.raises(IndexOutOfRange, match="no axis 2: found 2 axes, wanted -2 to 1"):
        x.sum(2)
    with pytest.raises(ShapeError, match="named twice"):
        x.sum((0, -2))
    with pytest.raises(DTypeError, match="the mean.*int64.*float"):
        Tensor([1, 2]).mean()
    with pytest.raises(ShapeError, match="at least one element"):
        Tensor.zeros(0).amax()
    with pytest.raises(ShapeError, match="k = 4, wanted 0 to 3"):
        x.topk(4)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_logarithms_of_sums_of_nothing(shape: tuple[int, ...]) -> None:
    empty = np.zeros(shape)
    for dim in range(len(shape)):
        compare(lambda f, x, dim=dim: x.logsumexp(dim), [empty])
        compare(lambda f, x, dim=dim: x.logsumexp(dim, keepdim=True), [empty])
        compare(lambda f, x, dim=dim: x.logcumsumexp(dim), [empty])


@pytest.mark.parametrize("row", OVER_AXES, ids=lambda r: r[0])
@pytest.mark.parametrize("none", [(), []], ids=str)
@pytest.mark.parametrize("shape", [(2, 3), ()], ids=str)
def test_an_empty_tuple_of_axes(row: Any, none: Any, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(15).uniform(-2, 2, shape)
    for keepdim in (False, True):
        compare(lambda f, x, k=keepdim: row[1](f, x, dim=none, keepdim=k), [array], grad=False,
                tolerance=4e-6)


def test_more_differences_than_there_are_neighbours() -> None:
    for n in (3, 9):
        compare(lambda f, x, n=n: f.diff(x, n), [np.array([1.0, 4, 9])])
    assert Tensor([1, 2]).diff(1 << 64).shape == (0,)


def test_the_quantile_of_one_element() -> None:
    compare(lambda f, x: x.quantile(0.3, -1), [np.array(2.5)])
    compare(lambda f, x: x.quantile(0.3), [np.array(2.5)])


def test_one_axis_is_not_several() -> None:
    x = Tensor.ones(2, 3)
    for call in (x.softmax, x.log_softmax, x.softmin, x.aminmax, x.argmax, x.max, x.cumsum):
        for axes in ((), (0, 1)):
            with pytest.raises(BaregradError, match="integer"):
                call(dim=axes)  # type: ignore[operator]


def logarithms_of_running_sums(f: Any, x: Any, axis: int) -> Any:
    """The running one for us; for PyTorch, whose own loses digits, one `logsumexp` a prefix."""
    if isinstance(x, Tensor):
        return x.logcumsumexp(axis)
    prefixes = [x.narrow(axis, 0, i + 1) for i in range(x.shape[axis])]
    return torch.stack([prefix.logsumexp(axis) for prefix in prefixes], axis)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", (1, 100, 1e4))
def test_logarithms_of_running_sums_of_any_spread(dtype: Any, width: float) -> None:
    array = np.random.default_rng(12).uniform(-width, width, (3, 9, 2))
    for axis in (0, 1, -1):
        compare(
            lambda f, x, axis=axis: logarithms_of_running_sums(f, x, axis), [array], dtype,
            grad_tolerance=1e-9 if dtype is dtypes.float64 else None,
        )


@pytest.mark.parametrize("row", ([0, 100], [0, 1000], [0, 1000, 3], [-1e30, 1e30, -1e30]), ids=str)
def test_a_running_sum_is_shifted_by_what_it_holds_alone(row: list[float]) -> None:
    compare(
        lambda f, x: logarithms_of_running_sums(f, x, 0), [np.array(row)], dtypes.float64,
        grad_tolerance=1e-12,
    )


def test_second_derivatives_of_logarithms_of_running_sums() -> None:
    row = np.random.default_rng(14).uniform(-5, 5, 7)
    weights = np.random.default_rng(15).uniform(-1, 1, 7)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = logarithms_of_running_sums(None, x, 0)
        return (sums * torch.tensor(weights)).sum()

    wanted = torch.autograd.functional.hessian(theirs, torch.tensor(row)).numpy()
    ours = lambda x: (x.logcumsumexp(0) * Tensor(weights)).sum()  # noqa: E731
    for matrix in (func.jacfwd, func.jacrev):
        found = matrix(func.grad(ours))(Tensor(row))
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-14)
    slopes = torch.autograd.functional.jacobian(
        lambda x: logarithms_of_running_sums(None, x, 0), torch.tensor(row)
    )
    same(func.jacfwd(lambda x: x.logcumsumexp(0))(Tensor(row)), slopes)


@pytest.mark.parametrize("rows", [3, 70])
def test_long_logarithms_of_running_sums(rows: int) -> None:
    array = np.random.default_rng(13).uniform(-400, 400, (rows, 5000 // rows)).astype(np.float32)
    found = Tensor(array).logcumsumexp(1)
    wanted = np.logaddexp.accumulate(array.astype(np.float64), 1)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


INFINITE: tuple[list[float], ...] = (
    [-math.inf, 0, 1], [-math.inf, -math.inf, 2], [0, math.inf, 1], [0, -math.inf, 1],
    [math.inf, -math.inf, 1], [math.nan, 1, 2], [1, math.nan, 2], [-math.inf] * 2,
    [math.inf, math.inf, 0], [-math.inf, math.inf, 0], [math.inf, math.nan, -math.inf],
)  # fmt: skip


@pytest.mark.parametrize("row", INFINITE, ids=str)
def test_logarithms_of_sums_with_infinities(row: list[float]) -> None:
    for function in (
        lambda f, x: x.logcumsumexp(0),
        lambda f, x: x.logsumexp(0),
        lambda f, x: x.softmax(0),
        lambda f, x: x.log_softmax(0),
    ):
        compare(function, [np.array(row)], dtypes.float64, second=False, tolerance=1e-12)


def test_running_products_with_zeros_have_gradients() -> None:
    for row in ([2, 0, 3, 0, 4], [0, 5], [3, 0], [0, 0, 0], [-0.0, 1, 2]):
        compare(lambda f, x: x.cumprod(0), [np.array(row)], dtypes.float64)
        compare(lambda f, x: x.prod(0), [np.array(row)], dtypes.float64)


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_variances_far_from_zero(dtype: Any) -> None:
    array = np.random.default_rng(14).normal(size=(4, 500)) + 1e4
    compare(lambda f, x: x.var(1), [array], dtype, tolerance=1e-5, grad=False)
    compare(lambda f, x: x.std(1), [array], dtype, tolerance=1e-5, grad=False)


def test_the_median_of_no_floats_is_nan() -> None:
    compare(lambda f, x: x.median(), [np.zeros((0, 3))], grad=False)
    with pytest.raises(ShapeError, match="no elements"):
        Tensor.zeros(0, dtype=dtypes.int64).median()


@pytest.mark.parametrize("scale", [1e20, 3e37, 1e-25])
def test_deviations_and_cosines_of_numbers_whose_squares_no_float32_has(scale: float) -> None:
    x = (np.random.default_rng(0).standard_normal((3, 7)) * scale).astype(np.float32)
    wanted = x.astype(np.float64).std(axis=1, ddof=1)
    np.testing.assert_allclose(Tensor(x).std(dim=1).numpy(), wanted, rtol=1e-6)
    mine, other = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    mine.std(dim=1).sum().backward()
    other.std(dim=1).sum().backward()
    np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-6)
    cosine = torch.nn.functional.cosine_similarity(torch.tensor(x[:2]), torch.tensor(x[1:]))
    found = Tensor(x[:2]).cosine_similarity(Tensor(x[1:]))
    np.testing.assert_allclose(found.numpy(), cosine.numpy(), rtol=1e-5, atol=1e-30)

"""The namespace against NumPy's, which follows the same standard."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import baregrad.array_api as xp
from baregrad import Tensor
from baregrad.base.errors import ArgumentError, BaregradError, DTypeError, ShapeError

ROW = np.array([3.0, -1.5, 0.0, 2.5, -0.0, 7.0, 2.5])
WHOLE = np.array([[3, -2, 0], [5, 3, -2]], dtype=np.int32)
SMALL = np.array([0.1, -0.7, 0.9, 0.0])


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
        return
    assert found.dtype.name == np.asarray(wanted).dtype.name.removesuffix("_")
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", [
    "abs", "ceil", "cos", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "negative",
    "positive", "round", "sign", "signbit", "sin", "square", "tanh", "trunc", "sinh", "atan",
])  # fmt: skip
def test_functions_of_one(name: str) -> None:
    same(getattr(xp, name)(Tensor(ROW)), getattr(np, name)(ROW))


@pytest.mark.parametrize("name", ["acos", "asin", "atanh", "log1p", "asinh", "tan"])
def test_functions_near_zero(name: str) -> None:
    same(getattr(xp, name)(Tensor(SMALL)), getattr(np, name)(SMALL))


@pytest.mark.parametrize("name", ["ceil", "floor", "round", "trunc"])
def test_integers_are_round(name: str) -> None:
    same(getattr(xp, name)(Tensor(WHOLE)), WHOLE)


@pytest.mark.parametrize("name", [
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "equal", "atan2",
    "hypot", "logaddexp", "copysign", "nextafter", "greater_equal", "not_equal",
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_two(name: str) -> None:
    other = np.flip(ROW).copy()
    same(getattr(xp, name)(Tensor(ROW), Tensor(other)), getattr(np, name)(ROW, other))
    same(getattr(xp, name)(Tensor(ROW), 1.5), getattr(np, name)(ROW, 1.5))
    same(getattr(xp, name)(2.0, Tensor(ROW)), getattr(np, name)(2.0, ROW))


def test_complex_numbers() -> None:
    z = np.array([1 + 2j, -0.0 + 1j, 0.0 + 1j, 1 + 2j, 1 - 1j])
    found = xp.unique_all(Tensor(z))
    assert sorted(map(repr, found.values.tolist())) == sorted(map(repr, [1 + 2j, 1j, 1 - 1j]))
    assert np.array_equal(found.values.numpy()[found.inverse_indices.numpy()], z)
    assert found.counts.numpy().sum() == 5
    assert xp.isdtype(xp.complex64, "complex floating") and xp.asarray(1j).dtype is xp.complex64
    assert xp.finfo(xp.complex128).dtype is xp.float64
    same(xp.linspace(0, 1j, 5, dtype=xp.complex128), np.linspace(0, 1j, 5))
    same(xp.fft.fftn(Tensor(z.reshape(1, 5))), np.fft.fftn(z.reshape(1, 5)))
    same(xp.vecdot(Tensor(z), Tensor(z)), np.vdot(z, z))
    same(xp.real(Tensor(z)), z.real)
    with pytest.raises(ShapeError, match="at least one"):
        xp.concat([])


def test_arrays_without_axes_count_as_others_do() -> None:
    one = xp.add(Tensor(np.float64(1.0)), xp.ones(2))
    assert one.dtype is xp.float64
    assert xp.result_type(xp.int8, xp.uint8) is xp.int16
    assert xp.result_type(xp.float32, 1.5, 2) is xp.float32
    assert xp.can_cast(xp.int8, xp.int16) and not xp.can_cast(xp.float64, xp.float32)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), ()])
def test_sums(axis: Any) -> None:
    for name in ("sum", "prod"):
        same(getattr(xp, name)(Tensor(WHOLE), axis=axis),
             getattr(np, name)(WHOLE, axis=axis, dtype=np.int64))  # fmt: skip
    halves = WHOLE / 4
    for name in ("mean", "var", "std", "max", "min", "sum", "prod"):
        for keepdims in (False, True):
            same(getattr(xp, name)(Tensor(halves), axis=axis, keepdims=keepdims),
                 getattr(np, name)(halves, axis=axis, keepdims=keepdims))  # fmt: skip
    for name in ("all", "any", "count_nonzero"):
        same(getattr(xp, name)(Tensor(WHOLE), axis=axis), getattr(np, name)(WHOLE, axis=axis))


def test_running_sums() -> None:
    same(xp.cumulative_sum(Tensor(WHOLE), axis=1, include_initial=True),
         np.array([[0, 3, 1, 1], [0, 5, 8, 6]]))  # fmt: skip
    same(xp.cumulative_prod(Tensor(ROW)), np.cumprod(ROW))
    same(xp.diff(Tensor(WHOLE), axis=0, prepend=Tensor(WHOLE[:1])),
         np.diff(WHOLE, axis=0, prepend=WHOLE[:1]))  # fmt: skip


def test_sets() -> None:
    x = Tensor(ROW)
    found = xp.unique_all(x)
    values, inverse, counts = np.unique(ROW, return_inverse=True, return_counts=True)
    same(found.values, values)
    same(found.inverse_indices, inverse)
    same(found.counts, counts)
    np.testing.assert_array_equal(ROW[found.indices.numpy()], values)
    assert xp.unique_values(Tensor([math.nan, math.nan])).shape == (2,)
    assert xp.unique_counts(Tensor(np.zeros((0, 2)))).values.shape == (0,)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searches(side: Any) -> None:
    held, wanted = np.sort(ROW), np.array([[-9.0, 0.0, 2.5], [2.6, 9.0, 3.0]])
    same(xp.searchsorted(Tensor(held), Tensor(wanted), side=side),
         np.searchsorted(held, wanted, side=side))  # fmt: skip
    odd = np.array([math.nan, 1.0])
    ends = np.array([0.0, 1.0, 2.0, math.nan, math.nan])
    same(xp.searchsorted(Tensor(ends), Tensor(odd), side=side), np.searchsorted(ends, odd, side))
    order = np.argsort(ROW)
    same(xp.searchsorted(Tensor(ROW), Tensor(wanted), side=side, sorter=Tensor(order)),
         np.searchsorted(held, wanted, side=side))  # fmt: skip
    assert xp.searchsorted(Tensor(held[:0]), Tensor(wanted)).numpy().sum() == 0


def test_places_and_order() -> None:
    x = Tensor(WHOLE)
    same(xp.argmax(x, axis=1), np.argmax(WHOLE, axis=1))
    same(xp.argmin(x, keepdims=True), np.argmin(WHOLE, keepdims=True))
    same(xp.nonzero(x), np.nonzero(WHOLE))
    same(xp.sort(x, axis=1, descending=True), -np.sort(-WHOLE, axis=1))
    same(xp.take(x, Tensor([2, 0]), axis=1), np.take(WHOLE, [2, 0], axis=1))
    index = np.array([[0, 2], [1, 1]])
    same(xp.take_along_axis(x, Tensor(index), axis=1), np.take_along_axis(WHOLE, index, axis=1))
    same(xp.where(x > 0, x, -1), np.where(WHOLE > 0, WHOLE, np.int32(-1)))
    same(xp.repeat(x, Tensor([2, 0, 1]), axis=1), np.repeat(WHOLE, [2, 0, 1], axis=1))
    same(xp.repeat(x, 2), np.repeat(WHOLE, 2))


def test_shapes() -> None:
    x = Tensor(WHOLE)
    same(xp.concat([x, Tensor(WHOLE.astype(np.int64))], axis=None),
         np.concatenate([WHOLE, WHOLE.astype(np.int64)], axis=None))  # fmt: skip
    same(xp.flip(x), np.flip(WHOLE))
    same(xp.roll(x, 1, axis=(0, 1)), np.roll(WHOLE, 1, axis=(0, 1)))
    same(xp.tile(x, (2, 1, 2)), np.tile(WHOLE, (2, 1, 2)))
    same(xp.unstack(x, axis=1), tuple(WHOLE.T))
    same(xp.broadcast_arrays(x, Tensor(np.int32(1))), np.broadcast_arrays(WHOLE, np.int32(1)))
    same(xp.meshgrid(Tensor([1, 2]), Tensor([3, 4, 5])), np.meshgrid([1, 2], [3, 4, 5]))
    with pytest.raises(ShapeError, match="one element"):
        xp.squeeze(x, 0)


def test_creation() -> None:
    same(xp.eye(2, 3, k=1), np.eye(2, 3, k=1, dtype=np.float32))
    same(xp.linspace(0, 1, 4, endpoint=False, dtype=xp.float64), np.linspace(0, 1, 4, False))
    same(xp.arange(5, 1, -2), np.arange(5, 1, -2))
    assert xp.arange(1, 0).shape == (0,)
    x = xp.asarray([[1, 2], [3, 4]])
    assert xp.asarray(x) is x and xp.asarray(x, copy=True) is not x
    with pytest.raises(ArgumentError, match="copy"):
        xp.asarray(x, dtype=xp.float32, copy=False)
    same(xp.from_dlpack(ROW), ROW)
    same(xp.clip(Tensor(ROW), -1, 2.5), np.clip(ROW, -1, 2.5))


def test_products() -> None:
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(12.0).reshape(4, 3)
    same(xp.tensordot(Tensor(a), Tensor(b), axes=1), np.tensordot(a, b, axes=1))
    same(xp.tensordot(Tensor(a), Tensor(b), axes=((1, 2), (1, 0))),
         np.tensordot(a, b, axes=((1, 2), (1, 0))))  # fmt: skip
    same(xp.vecdot(Tensor(b), Tensor(b[0])), b @ b[0])
    same(xp.linalg.trace(Tensor(WHOLE)), np.trace(WHOLE, dtype=np.int64))
    same(xp.linalg.outer(Tensor(ROW), Tensor(SMALL)), np.outer(ROW, SMALL))
    square = b[:3] + 9 * np.eye(3)
    same(xp.linalg.solve(Tensor(square), Tensor(b.T)), np.linalg.solve(square, b.T))


def test_numbers_that_a_dtype_does_not_hold() -> None:
    small = np.array([1, 250], np.uint8)
    x = Tensor(small)
    for name in ("add", "less", "maximum"):
        for number in (-1, 256):
            with pytest.raises(ArgumentError, match="0 to 255"):
                getattr(xp, name)(x, number)
    same(xp.clip(x, -1, 300), small)
    same(xp.clip(x, Tensor(np.int64(-1)), Tensor(np.int64(200))), np.clip(small, 0, 200))
    with pytest.raises(DTypeError, match="bounds of integers"):
        xp.clip(x, 0.5)
    for number in (np.int64(3), np.float64(3.0), np.bool_(True)):
        assert xp.full(2, number).dtype is xp.full(2, number.item()).dtype
    assert xp.full(2, Tensor(np.float64(3.0))).dtype is xp.float64


def test_what_has_no_one_meaning_is_refused() -> None:
    x = Tensor(np.arange(6.0).reshape(2, 3))
    row = Tensor([1, 2, 3])
    for call in (xp.cumulative_sum, xp.cumulative_prod, lambda a: xp.take(a, row)):
        with pytest.raises(ArgumentError, match="needs `axis`"):
            call(x)
    for times in ([2, 1], [[1, 2, 3]]):
        with pytest.raises(ShapeError, match="repeats"):
            xp.repeat(row, Tensor(times))
    with pytest.raises(ArgumentError, match="negative"):
        xp.repeat(row, Tensor([2, -1, 1]))
    with pytest.raises(DTypeError, match="whole number"):
        xp.repeat(row, Tensor([1.0, 1.0, 1.0]))
    for axes in (3, -1, ((2,), (0,)), ((0, 0), (0, 1)), ((0,), (1,))):
        with pytest.raises(BaregradError):
            xp.tensordot(x, x, axes=axes)
    with pytest.raises(ShapeError, match="one extent"):
        xp.vecdot(Tensor([1.0]), Tensor([1.0, 2.0]))
    with pytest.raises(ShapeError, match="named twice"):
        xp.prod(x, axis=(0, 0))
    with pytest.raises(ShapeError, match="one row"):
        xp.searchsorted(x, row)
    with pytest.raises(ArgumentError, match="copy"):
        xp.asarray(np.ones(3), copy=False)


def test_an_array_knows_its_namespace() -> None:
    x = Tensor([1.0])
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ArgumentError, match="version"):
        x.__array_namespace__(api_version="1999.12")
    assert x.to_device("CPU").device == "CPU"
    info = xp.__array_namespace_info__()
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert xp.isdtype(xp.uint8, ("unsigned integer", xp.bool))
    assert xp.finfo(xp.float32).bits == 32 and xp.iinfo(xp.int8).min == -128
    with pytest.raises(DTypeError, match="complex"):
        xp.imag(x)


@pytest.mark.parametrize("k", [1 << 64, -(1 << 64), (1 << 63) + 1])
def test_diagonals_outside_of_any_matrix(k: int) -> None:
    near = max(-9, min(k, 9))
    same(xp.eye(2, 3, k=k), np.eye(2, 3, near, np.float32))
    same(xp.tril(Tensor(WHOLE), k=k), np.tril(WHOLE, near))
    same(xp.triu(Tensor(WHOLE), k=k), np.triu(WHOLE, near))


@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1])
def test_integers_that_no_dtype_has_are_refused(number: int) -> None:
    for made in (lambda x: x == number, lambda x: x + number, lambda x: number < x):
        with pytest.raises(ArgumentError, match="an operand that int64 has not"):
            made(Tensor([0, 1]))

"""Arithmetic and functions of single elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from baregrad.dtypes import dtypes, promote_with_scalar, scalar_dtype
from baregrad.testing.twin.array import TwinArray, Uncovered
from baregrad.testing.twin.casts import Array


def _operator(function: Any, swap: bool = False, of_factors: bool = False) -> Any:
    """Return the method of a function of two arrays in one dtype, with `swap` of (other, self).

    of_factors: of a product or quotient, whose second operand may be left unrounded.
    """

    def method(self: TwinArray, other: Any) -> TwinArray:
        a, b, dtype = self._meet_as_factor(other) if of_factors else self._meet(other)
        with np.errstate(all="ignore"):
            return self._like(function(b, a) if swap else function(a, b), dtype)

    return method


def _comparison(function: Any) -> Any:
    """Return the method of a comparison of two arrays in one dtype."""

    def method(self: TwinArray, other: Any) -> TwinArray:
        a, b, _ = self._meet(other)
        return self._like(function(a, b), dtypes.bool)

    return method


def _function(function: Callable[[Array], Array]) -> Any:
    """Return the method of a function of floats."""
    return lambda self: self._float(function)


def _step(function: Any) -> Any:
    """Return the method of a step function, which leaves integers as they are."""

    def method(self: TwinArray) -> TwinArray:
        return self._moved(function(self.array)) if self.dtype.kind == "float" else self

    return method


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(-x * math.sqrt(0.5)))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class ElementTwin(TwinArray):
    """What is done to single elements, operators included."""

    __add__ = __radd__ = _operator(np.add)
    __sub__, __rsub__ = _operator(np.subtract), _operator(np.subtract, swap=True)
    __mul__ = __rmul__ = _operator(np.multiply, of_factors=True)
    __floordiv__ = _operator(np.floor_divide, of_factors=True)
    __mod__ = _operator(np.mod)
    __and__, __or__ = _operator(np.bitwise_and), _operator(np.bitwise_or)
    __xor__ = _operator(np.bitwise_xor)
    __lshift__, __rshift__ = _operator(np.left_shift), _operator(np.right_shift)
    __lt__, __le__ = _comparison(np.less), _comparison(np.less_equal)
    __gt__, __ge__ = _comparison(np.greater), _comparison(np.greater_equal)
    __eq__, __ne__ = _comparison(np.equal), _comparison(np.not_equal)
    # The larger and the smaller, or NaN.
    maximum, minimum = _operator(np.maximum), _operator(np.minimum)
    exp, log, sqrt = _function(np.exp), _function(np.log), _function(np.sqrt)
    sin, cos, tanh = _function(np.sin), _function(np.cos), _function(np.tanh)
    rsqrt = _function(lambda x: 1 / np.sqrt(x))
    erf, gelu, sigmoid = _function(_erf), _function(_gelu), _function(_sigmoid)
    silu = _function(lambda x: x * _sigmoid(x))
    # Halves are rounded to even.
    floor, round, trunc = _step(np.floor), _step(np.round), _step(np.trunc)

    def __truediv__(self, other: Any) -> Self:
        a, b, dtype = self._meet_as_factor(other)
        dtype = dtype if dtype.kind == "float" else dtypes.float32
        with np.errstate(all="ignore"):
            return self._like(a.astype(np.float64) / b.astype(np.float64), dtype)

    def __rtruediv__(self, other: Any) -> Self:
        return self._float(lambda x: np.asarray(np.divide(other, x)))

    def __invert__(self) -> Self:
        return self._like(np.invert(self.array), self.dtype)

    def __neg__(self) -> Self:
        with np.errstate(all="ignore"):
            return self._like(np.negative(self.array), self.dtype)

    def __matmul__(self, other: TwinArray) -> Self:
        if self.dtype is not other.dtype or self.dtype.kind == "bool":
            raise Uncovered("matmul")
        with np.errstate(all="ignore"):
            return self._like(np.matmul(self.array, other.array), self.dtype)

    def clamp(self, low: Any, high: Any) -> Self:
        """Between two numbers."""
        dtype = promote_with_scalar(promote_with_scalar(self.dtype, low), high)
        found: Self = self.cast(dtype).maximum(low).minimum(high)
        return found

    def abs(self) -> Self:
        """The magnitude."""
        return self._like(np.abs(self.array), self.dtype)

    def relu(self) -> Self:
        """At least 0."""
        return self.maximum(0) if self.dtype.kind == "float" else self._like(
            np.maximum(self.array, 0), self.dtype
        )

    def square(self) -> Self:
        """The product with itself."""
        found: Self = self * self
        return found

    def sign(self) -> Self:
        """-1, 0 or 1."""
        return self._like(np.sign(self.array), self.dtype) if self.dtype.kind != "bool" else self

    def isnan(self) -> Self:
        """Whether it is no number."""
        return self._like(np.isnan(self.array.astype(np.float64)), dtypes.bool)

    def where(self, a: Any, b: Any) -> Self:
        """`a` where it is true, else `b`."""
        first = a if isinstance(a, TwinArray) else self._like(a, scalar_dtype(a))
        x, y, dtype = first._meet(b)
        return self._like(np.where(self.array, x, y), dtype)

    def masked_fill(self, mask: TwinArray, value: Any) -> Self:
        """`value` where the mask is true."""
        array = np.where(mask.array, np.asarray(value).astype(self.array.dtype), self.array)
        return self._like(array, self.dtype)

"""A tensor made of NumPy alone, in float64, for what an independent answer is wanted to.

It has the methods of `Tensor` that random programs use most, with the meaning that PyTorch's
documentation gives them, and nothing of the stack but dtypes. A method that it lacks raises
Uncovered. Integers wrap as their dtype does; floats are rounded to theirs only where a whole
statement is compared. Everything is a copy: who writes in place changes one twin alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.dtypes import DType, as_dtype, dtypes, promote_with_scalar, result_type, scalar_dtype
from baregrad.testing.numpy_casts import Array, converted, rounded, stored

Axes = int | Sequence[int] | None


class Uncovered(Exception):
    """What the twin has no answer to."""


class NumPyTwin:
    """An array with a dtype."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any, dtype: DType) -> None:
        self.array = stored(array, dtype)
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        found = _UNARY.get(name)
        if found is not None:
            function: Any = found
            return lambda: self._float(function)
        raise Uncovered(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.array.shape)

    # --- casts and arithmetic --------------------------------------------------------------------

    def cast(self, dtype: object) -> NumPyTwin:
        """The elements in another dtype."""
        wanted = as_dtype(dtype)
        array = converted(self.array, self.dtype, wanted)
        if wanted.kind == "float":
            array = rounded(array, wanted)
        return NumPyTwin(array, wanted)

    def long(self) -> NumPyTwin:
        """In int64."""
        return self.cast(dtypes.int64)

    def int(self) -> NumPyTwin:
        """In int32."""
        return self.cast(dtypes.int32)

    def _float(self, function: Callable[[Array], Array]) -> NumPyTwin:
        dtype = self.dtype if self.dtype.kind == "float" else dtypes.float32
        with np.errstate(all="ignore"):
            return NumPyTwin(function(self.array.astype(np.float64)), dtype)

    def _meet(self, other: Any) -> tuple[Array, Array, DType]:
        if isinstance(other, NumPyTwin):
            dtype = _met(self, other)
            return (
                converted(self.array, self.dtype, dtype),
                converted(other.array, other.dtype, dtype),
                dtype,
            )
        dtype = promote_with_scalar(self.dtype, other)
        mine = converted(self.array, self.dtype, dtype)
        own = scalar_dtype(other)
        return mine, converted(np.asarray(other), own, dtype), dtype

    def _apply(self, other: Any, function: Any, swap: bool = False) -> NumPyTwin:
        a, b, dtype = self._meet(other)
        with np.errstate(all="ignore"):
            return NumPyTwin(function(b, a) if swap else function(a, b), dtype)

    def _compare(self, other: Any, function: Any) -> NumPyTwin:
        a, b, _ = self._meet(other)
        return NumPyTwin(function(a, b), dtypes.bool)

    def __add__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.add)

    def __radd__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.add)

    def __sub__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.subtract)

    def __rsub__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.subtract, swap=True)

    def __mul__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.multiply)

    def __rmul__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.multiply)

    def __truediv__(self, other: Any) -> NumPyTwin:
        a, b, dtype = self._meet(other)
        dtype = dtype if dtype.kind == "float" else dtypes.float32
        with np.errstate(all="ignore"):
            return NumPyTwin(a.astype(np.float64) / b.astype(np.float64), dtype)

    def __rtruediv__(self, other: Any) -> NumPyTwin:
        return self._float(lambda x: np.asarray(np.divide(other, x)))

    def __floordiv__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.floor_divide)

    def __mod__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.mod)

    def __and__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.bitwise_and)

    def __or__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.bitwise_or)

    def __xor__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.bitwise_xor)

    def __lshift__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.left_shift)

    def __rshift__(self, other: Any) -> NumPyTwin:
        return self._apply(other, np.right_shift)

    def __lt__(self, other: Any) -> NumPyTwin:
        return self._compare(other, np.less)

    def __le__(self, other: Any) -> NumPyTwin:
        return self._compare(other, np.less_equal)

    def __gt__(self, other: Any) -> NumPyTwin:
        return self._compare(other, np.greater)

    def __ge__(self, other: Any) -> NumPyTwin:
        return self._compare(other, np.greater_equal)

    def __eq__(self, other: object) -> NumPyTwin:  # type: ignore[override]
        return self._compare(other, np.equal)

    def __ne__(self, other: object) -> NumPyTwin:  # type: ignore[override]
        return self._compare(other, np.not_equal)

    def __invert__(self) -> NumPyTwin:
        return NumPyTwin(np.invert(self.array), self.dtype)

    def __neg__(self) -> NumPyTwin:
        with np.errstate(all="ignore"):
            return NumPyTwin(np.negative(self.array), self.dtype)

    def maximum(self, other: Any) -> NumPyTwin:
        """The larger, or NaN."""
        return self._apply(other, np.maximum)

    def minimum(self, other: Any) -> NumPyTwin:
        """The smaller, or NaN."""
        return self._apply(other, np.minimum)

    def clamp(self, low: Any, high: Any) -> NumPyTwin:
        """Between two numbers."""
        dtype = promote_with_scalar(promote_with_scalar(self.dtype, low), high)
        return self.cast(dtype).maximum(low).minimum(high)

    def abs(self) -> NumPyTwin:
        """The magnitude."""
        return NumPyTwin(np.abs(self.array), self.dtype)

    def relu(self) -> NumPyTwin:
        """At least 0."""
        return self.maximum(0) if self.dtype.kind == "float" else NumPyTwin(
            np.maximum(self.array, 0), self.dtype
        )

    def square(self) -> NumPyTwin:
        """The product with itself."""
        return self * self

    def sign(self) -> NumPyTwin:
        """-1, 0 or 1."""
        return NumPyTwin(np.sign(self.array), self.dtype) if self.dtype.kind != "bool" else self

    def isnan(self) -> NumPyTwin:
        """Whether it is no number."""
        return NumPyTwin(np.isnan(self.array.astype(np.float64)), dtypes.bool)

    def _stepped(self, function: Any) -> NumPyTwin:
        return NumPyTwin(function(self.array), self.dtype) if self.dtype.kind == "float" else self

    def floor(self) -> NumPyTwin:
        """Rounded down."""
        return self._stepped(np.floor)

    def round(self) -> NumPyTwin:
        """Rounded to the nearest, halves to even."""
        return self._stepped(np.round)

    def trunc(self) -> NumPyTwin:
        """Rounded towards 0."""
        return self._stepped(np.trunc)

    def where(self, a: Any, b: Any) -> NumPyTwin:
        """`a` where it is true, else `b`."""
        first = a if isinstance(a, NumPyTwin) else NumPyTwin(a, scalar_dtype(a))
        x, y, dtype = first._meet(b)
        return NumPyTwin(np.where(self.array, x, y), dtype)

    def masked_fill(self, mask: NumPyTwin, value: Any) -> NumPyTwin:
        """`value` where the mask is true."""
        array = np.where(mask.array, np.asarray(value).astype(self.array.dtype), self.array)
        return NumPyTwin(array, self.dtype)


    # --- movement --------------------------------------------------------------------------------

    def _moved(self, array: Array) -> NumPyTwin:
        return NumPyTwin(array, self.dtype)

    def clone(self) -> NumPyTwin:
        """A copy."""
        return self._moved(self.array)

    detach = contiguous = requires_grad_ = clone

    def reshape(self, *shape: Any) -> NumPyTwin:
        """The elements in row-major order in another shape."""
        return self._moved(self.array.reshape(_flat(shape)))

    def permute(self, *axes: Any) -> NumPyTwin:
        """The axes in another order."""
        return self._moved(self.array.transpose(_flat(axes)))

    @property
    def mT(self) -> NumPyTwin:  # noqa: N802 - it is called so
        """The last two axes swapped."""
        return self._moved(np.swapaxes(self.array, -1, -2))

    def expand(self, *shape: Any) -> NumPyTwin:
        """Axes of extent 1 repeated; -1 leaves an extent as it is."""
        wanted = list(_flat(shape))
        for back in range(1, self.array.ndim + 1):
            if wanted[-back] == -1:
                wanted[-back] = self.shape[-back]
        return self._moved(np.broadcast_to(self.array, wanted))

    def unsqueeze(self, dim: Any) -> NumPyTwin:
        """A new axis of extent 1."""
        return self._moved(np.expand_dims(self.array, dim))

    def flip(self, *axes: Any) -> NumPyTwin:
        """Axes backwards."""
        return self._moved(np.flip(self.array, _flat(axes)))

    def roll(self, shift: Any, dim: Any) -> NumPyTwin:
        """Elements moved along an axis, around its end."""
        return self._moved(np.roll(self.array, shift, dim))

    def repeat(self, *counts: Any) -> NumPyTwin:
        """The whole repeated along each axis."""
        return self._moved(np.tile(self.array, _flat(counts)))

    def pad(self, pads: Sequence[Any], mode: str = "constant", value: Any = 0) -> NumPyTwin:
        """Elements added, or cut, at the ends of the last axes, last axis first."""
        array = self.array
        for at in range(0, len(pads), 2):
            axis = array.ndim - 1 - at // 2
            low, high = pads[at], pads[at + 1]
            cut: list[Any] = [slice(None)] * array.ndim
            cut[axis] = slice(max(0, -low), array.shape[axis] - max(0, -high))
            widths = [(0, 0)] * array.ndim
            widths[axis] = (max(0, low), max(0, high))
            if mode == "constant":
                array = np.pad(array[tuple(cut)], widths, constant_values=value)
            else:
                array = np.pad(array[tuple(cut)], widths, _PADDING[mode])
        return self._moved(array)

    def unfold(self, dim: Any, size: Any, step: Any) -> NumPyTwin:
        """Windows along an axis, in a last axis of their own."""
        dim %= self.array.ndim
        windows = np.lib.stride_tricks.sliding_window_view(self.array, size, dim)
        return self._moved(np.moveaxis(np.moveaxis(windows, dim, 0)[::step], 0, dim))

    def narrow(self, dim: Any, start: Any, count: Any) -> NumPyTwin:
        """`count` elements of an axis from one on."""
        start = start + self.shape[dim] if start < 0 else start
        return self._moved(np.take(self.array, range(start, start + count), dim))

    def split(self, size: Any, dim: Any) -> list[NumPyTwin]:
        """Parts of `size` elements of an axis, the last of what is left."""
        ends = range(size, max(self.shape[dim], 1), size)
        return [self._moved(part) for part in np.split(self.array, ends, dim)]

    def tril(self, diagonal: Any = 0) -> NumPyTwin:
        """Zeros above a diagonal."""
        return self._moved(np.tril(self.array, diagonal))

    def triu(self, diagonal: Any = 0) -> NumPyTwin:
        """Zeros below a diagonal."""
        return self._moved(np.triu(self.array, diagonal))

    def diagonal(self, offset: Any = 0) -> NumPyTwin:
        """The diagonal of the first two axes, last."""
        return self._moved(np.diagonal(self.array, offset))

    def __getitem__(self, key: Any) -> NumPyTwin:
        return self._moved(self.array[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        found = _key(key)
        if all(isinstance(entry, int) for entry in found):
            # Of one element an array, which takes another with axes of extent 1.
            found = (*found, ...)
        self.array[found] = self._own(value)

    def _own(self, value: Any) -> Array:
        """A value in this dtype."""
        made = value if isinstance(value, NumPyTwin) else NumPyTwin(value, scalar_dtype(value))
        return converted(made.array, made.dtype, self.dtype)

    def gather(self, dim: Any, index: NumPyTwin) -> NumPyTwin:
        """Elements by place along an axis."""
        return self._moved(np.take_along_axis(self.array, index.array.astype(np.int64), dim))

    def index_select(self, dim: Any, index: NumPyTwin) -> NumPyTwin:
        """Parts of an axis by place."""
        return self._moved(np.take(self.array, index.array.astype(np.int64), dim))

    def one_hot(self, classes: Any) -> NumPyTwin:
        """A 1 at the place that each element names."""
        return NumPyTwin(self.array[..., None] == np.arange(classes), dtypes.int64)

    # --- writes ----------------------------------------------------------------------------------

    def _put(self, other: NumPyTwin) -> NumPyTwin:
        self.array[...] = self._own(other)
        return self

    def fill_(self, value: Any) -> NumPyTwin:
        """One value everywhere."""
        self.array[...] = self._own(value)
        return self

    def add_(self, other: Any) -> NumPyTwin:
        """A sum in place."""
        return self._put(self + other)

    def sub_(self, other: Any) -> NumPyTwin:
        """A difference in place."""
        return self._put(self - other)

    def mul_(self, other: Any) -> NumPyTwin:
        """A product in place."""
        return self._put(self * other)

    def clamp_(self, low: Any, high: Any) -> NumPyTwin:
        """Clamped in place."""
        return self._put(self.clamp(low, high))

    # --- reductions and scans --------------------------------------------------------------------

    def _fold(self, function: Any, dim: Any, keepdim: bool, dtype: DType) -> NumPyTwin:
        axes = tuple(dim) if isinstance(dim, list | tuple) else dim
        if axes == ():
            axes = None
        with np.errstate(all="ignore"):
            return NumPyTwin(function(self.array, axis=axes, keepdims=keepdim), dtype)

    def _whole(self) -> DType:
        return self.dtype if self.dtype.kind == "float" else dtypes.int64

    def sum(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """Sums over axes, of integers in int64."""
        wide = NumPyTwin(converted(self.array, self.dtype, self._whole()), self._whole())
        return wide._fold(np.sum, dim, keepdim, wide.dtype)

    def mean(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """Means over axes."""
        return self._fold(np.mean, dim, keepdim, self.dtype)

    def var(self, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> NumPyTwin:
        """Variances over axes."""
        def function(x: Array, axis: Any, keepdims: bool) -> Any:
            return np.var(x, axis, ddof=correction, keepdims=keepdims)

        return self._fold(function, dim, keepdim, self.dtype)

    def amax(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """The largest over axes."""
        return self._fold(np.max, dim, keepdim, self.dtype)

    def amin(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """The smallest over axes."""
        return self._fold(np.min, dim, keepdim, self.dtype)

    def any(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """Whether any over axes is true."""
        return self._fold(np.any, dim, keepdim, dtypes.bool)

    def all(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """Whether all over axes are true."""
        return self._fold(np.all, dim, keepdim, dtypes.bool)

    def argmax(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """Where the first of the largest is."""
        return self._fold(np.argmax, dim, keepdim, dtypes.int64)

    def argmin(self, dim: Any = None, keepdim: bool = False) -> NumPyTwin:
        """Where the first of the smallest is."""
        return self._fold(np.argmin, dim, keepdim, dtypes.int64)

    def cumsum(self, dim: Any) -> NumPyTwin:
        """Running sums."""
        wide = converted(self.array, self.dtype, self._whole())
        with np.errstate(all="ignore"):
            return NumPyTwin(np.cumsum(wide, axis=dim), self._whole())

    def cumprod(self, dim: Any) -> NumPyTwin:
        """Running products."""
        wide = converted(self.array, self.dtype, self._whole())
        with np.errstate(all="ignore"):
            return NumPyTwin(np.cumprod(wide, axis=dim), self._whole())

    def cummax(self, dim: Any) -> tuple[NumPyTwin, NumPyTwin]:
        """The largest so far, and where the last such is."""
        return self._records(dim, np.maximum)

    def cummin(self, dim: Any) -> tuple[NumPyTwin, NumPyTwin]:
        """The smallest so far, and where the last such is."""
        return self._records(dim, np.minimum)

    def _records(self, dim: Any, choose: Any) -> tuple[NumPyTwin, NumPyTwin]:
        best = choose.accumulate(self.array, axis=dim)
        place = np.indices(self.shape)[dim]
        same = (self.array == best) | ((best != best) & (self.array != self.array))
        return self._moved(best), NumPyTwin(
            np.maximum.accumulate(np.where(same, place, 0), axis=dim), dtypes.int64
        )

    def logcumsumexp(self, dim: Any) -> NumPyTwin:
        """Running logarithms of sums of exponentials."""
        return self._float(lambda x: np.logaddexp.accumulate(x, axis=dim))

    def logsumexp(self, dim: Any, keepdim: bool = False) -> NumPyTwin:
        """Logarithms of sums of exponentials over axes."""
        def function(x: Array, axis: Any, keepdims: bool) -> Any:
            folded: Any = np.logaddexp.reduce
            return folded(x, axis=axis, keepdims=keepdims)

        return self._fold(function, dim, keepdim, self.dtype)

    def log_softmax(self, dim: Any) -> NumPyTwin:
        """Logarithms of shares; NaN where the largest is infinite, as by the formula."""

        def function(x: Array) -> Array:
            rest = x - np.max(x, axis=dim, keepdims=True, initial=-np.inf)
            return np.asarray(rest - np.log(np.sum(np.exp(rest), axis=dim, keepdims=True)))

        return self._float(function)

    def softmax(self, dim: Any) -> NumPyTwin:
        """Shares of exponentials."""
        return self.log_softmax(dim)._float(np.exp)

    def sort(self, dim: Any) -> tuple[NumPyTwin, None]:
        """The elements in order; NaN comes last."""
        return self._moved(np.sort(self.array, axis=dim, kind="stable")), None

    def __matmul__(self, other: NumPyTwin) -> NumPyTwin:
        if self.dtype is not other.dtype or self.dtype.kind == "bool":
            raise Uncovered("matmul")
        with np.errstate(all="ignore"):
            return NumPyTwin(np.matmul(self.array, other.array), self.dtype)


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(-x * math.sqrt(0.5)))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_PADDING: Any = MappingProxyType({"reflect": "reflect", "replicate": "edge", "circular": "wrap"})
_UNARY = MappingProxyType({
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x), "erf": _erf, "gelu": _gelu, "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
})  # fmt: skip


class TwinMaker:
    """What programs find under the name `Tensor`."""

    def __getattr__(self, name: str) -> Any:
        raise Uncovered(name)

    @staticmethod
    def cat(parts: Sequence[NumPyTwin], dim: int = 0) -> NumPyTwin:
        """Arrays one after the other."""
        return _joined(parts, lambda arrays: np.concatenate(arrays, dim))

    @staticmethod
    def stack(parts: Sequence[NumPyTwin], dim: int = 0) -> NumPyTwin:
        """Arrays along an axis of their own."""
        return _joined(parts, lambda arrays: np.stack(arrays, dim))

    @staticmethod
    def arange(*ends: int, dtype: object = dtypes.int64) -> NumPyTwin:
        """Numbers in a row."""
        return NumPyTwin(np.arange(*ends), as_dtype(dtype))

    @staticmethod
    def zeros(*shape: Any, dtype: object = dtypes.float32) -> NumPyTwin:
        """Zeros."""
        return NumPyTwin(np.zeros(_flat(shape)), as_dtype(dtype))

    @staticmethod
    def ones(*shape: Any, dtype: object = dtypes.float32) -> NumPyTwin:
        """Ones."""
        return NumPyTwin(np.ones(_flat(shape)), as_dtype(dtype))

    @staticmethod
    def eye(n: int) -> NumPyTwin:
        """Ones on the diagonal."""
        return NumPyTwin(np.eye(n), dtypes.float32)


def _met(*twins: NumPyTwin) -> DType:
    """The dtype in which arrays meet; those without axes count less."""
    axes = [twin.dtype for twin in twins if twin.array.ndim]
    return result_type(axes, [twin.dtype for twin in twins if not twin.array.ndim])


def _joined(parts: Sequence[NumPyTwin], join: Callable[[list[Array]], Array]) -> NumPyTwin:
    dtype = _met(*parts)
    return NumPyTwin(join([converted(part.array, part.dtype, dtype) for part in parts]), dtype)


def _flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else values


def _key(key: Any) -> Any:
    entries = key if isinstance(key, tuple) else (key,)
    arrays = [entry.array if isinstance(entry, NumPyTwin) else entry for entry in entries]
    return tuple(arrays)

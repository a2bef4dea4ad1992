"""Reductions and scans."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from baregrad.dtypes import DType, dtypes
from baregrad.testing.twin.array import TwinArray
from baregrad.testing.twin.casts import Array, converted


class ReductionTwin(TwinArray):
    """What is made of many elements along axes."""

    def _fold(self, function: Any, dim: Any, keepdim: bool, dtype: DType) -> Self:
        axes = tuple(dim) if isinstance(dim, list | tuple) else dim
        if axes == ():
            axes = None
        with np.errstate(all="ignore"):
            return self._like(function(self.array, axis=axes, keepdims=keepdim), dtype)

    def _whole(self) -> DType:
        return self.dtype if self.dtype.kind == "float" else dtypes.int64

    def sum(self, dim: Any = None, keepdim: bool = False) -> Self:
        """Sums over axes, of integers in int64."""
        wide = self._like(converted(self.array, self.dtype, self._whole()), self._whole())
        return wide._fold(np.sum, dim, keepdim, wide.dtype)

    def mean(self, dim: Any = None, keepdim: bool = False) -> Self:
        """Means over axes."""
        return self._fold(np.mean, dim, keepdim, self.dtype)

    def var(self, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Self:
        """Variances over axes."""
        def function(x: Array, axis: Any, keepdims: bool) -> Any:
            return np.var(x, axis, ddof=correction, keepdims=keepdims)

        return self._fold(function, dim, keepdim, self.dtype)

    def amax(self, dim: Any = None, keepdim: bool = False) -> Self:
        """The largest over axes."""
        return self._fold(np.max, dim, keepdim, self.dtype)

    def amin(self, dim: Any = None, keepdim: bool = False) -> Self:
        """The smallest over axes."""
        return self._fold(np.min, dim, keepdim, self.dtype)

    def any(self, dim: Any = None, keepdim: bool = False) -> Self:
        """Whether any over axes is true."""
        return self._fold(np.any, dim, keepdim, dtypes.bool)

    def all(self, dim: Any = None, keepdim: bool = False) -> Self:
        """Whether all over axes are true."""
        return self._fold(np.all, dim, keepdim, dtypes.bool)

    def argmax(self, dim: Any = None, keepdim: bool = False) -> Self:
        """Where the first of the largest is."""
        return self._fold(np.argmax, dim, keepdim, dtypes.int64)

    def argmin(self, dim: Any = None, keepdim: bool = False) -> Self:
        """Where the first of the smallest is."""
        return self._fold(np.argmin, dim, keepdim, dtypes.int64)

    def cumsum(self, dim: Any) -> Self:
        """Running sums."""
        wide = converted(self.array, self.dtype, self._whole())
        with np.errstate(all="ignore"):
            return self._like(np.cumsum(wide, axis=dim), self._whole())

    def cumprod(self, dim: Any) -> Self:
        """Running products."""
        wide = converted(self.array, self.dtype, self._whole())
        with np.errstate(all="ignore"):
            return self._like(np.cumprod(wide, axis=dim), self._whole())

    def cummax(self, dim: Any) -> tuple[Self, Self]:
        """The largest so far, and where the last such is."""
        return self._records(dim, np.maximum)

    def cummin(self, dim: Any) -> tuple[Self, Self]:
        """The smallest so far, and where the last such is."""
        return self._records(dim, np.minimum)

    def _records(self, dim: Any, choose: Any) -> tuple[Self, Self]:
        best = choose.accumulate(self.array, axis=dim)
        place = np.indices(self.shape)[dim]
        same = (self.array == best) | ((best != best) & (self.array != self.array))
        return self._moved(best), self._like(
            np.maximum.accumulate(np.where(same, place, 0), axis=dim), dtypes.int64
        )

    def logcumsumexp(self, dim: Any) -> Self:
        """Running logarithms of sums of exponentials."""
        return self._float(lambda x: np.logaddexp.accumulate(x, axis=dim))

    def logsumexp(self, dim: Any, keepdim: bool = False) -> Self:
        """Logarithms of sums of exponentials over axes."""
        def function(x: Array, axis: Any, keepdims: bool) -> Any:
            folded: Any = np.logaddexp.reduce
            return folded(x, axis=axis, keepdims=keepdims)

        return self._fold(function, dim, keepdim, self.dtype)

    def log_softmax(self, dim: Any) -> Self:
        """Logarithms of shares; NaN where the largest is infinite, as by the formula."""

        def function(x: Array) -> Array:
            rest = x - np.max(x, axis=dim, keepdims=True, initial=-np.inf)
            return np.asarray(rest - np.log(np.sum(np.exp(rest), axis=dim, keepdims=True)))

        return self._float(function)

    def softmax(self, dim: Any) -> Self:
        """Shares of exponentials."""
        return self.log_softmax(dim)._float(np.exp)

    def sort(self, dim: Any) -> tuple[Self, None]:
        """The elements in order; NaN comes last."""
        return self._moved(np.sort(self.array, axis=dim, kind="stable")), None

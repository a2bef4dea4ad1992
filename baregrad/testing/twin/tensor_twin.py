"""The twin of a tensor, and of the class `Tensor` that programs find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from baregrad.dtypes import as_dtype, dtypes
from baregrad.testing.twin.array import TwinArray, Uncovered, met
from baregrad.testing.twin.casts import Array, converted
from baregrad.testing.twin.elements import ElementTwin
from baregrad.testing.twin.movement import MovementTwin, flat
from baregrad.testing.twin.reductions import ReductionTwin


class NumPyTwin(ElementTwin, MovementTwin, ReductionTwin):
    """An array with a dtype and the methods of `Tensor`; here those that write in place."""

    def _put(self, other: TwinArray) -> Self:
        self.array[...] = self._own(other)
        return self

    def fill_(self, value: Any) -> Self:
        """One value everywhere."""
        self.array[...] = self._own(value)
        return self

    def add_(self, other: Any) -> Self:
        """A sum in place."""
        return self._put(self + other)

    def sub_(self, other: Any) -> Self:
        """A difference in place."""
        return self._put(self - other)

    def mul_(self, other: Any) -> Self:
        """A product in place."""
        return self._put(self * other)

    def clamp_(self, low: Any, high: Any) -> Self:
        """Clamped in place."""
        return self._put(self.clamp(low, high))


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
        return NumPyTwin(np.zeros(flat(shape)), as_dtype(dtype))

    @staticmethod
    def ones(*shape: Any, dtype: object = dtypes.float32) -> NumPyTwin:
        """Ones."""
        return NumPyTwin(np.ones(flat(shape)), as_dtype(dtype))

    @staticmethod
    def eye(n: int) -> NumPyTwin:
        """Ones on the diagonal."""
        return NumPyTwin(np.eye(n), dtypes.float32)


def _joined(parts: Sequence[NumPyTwin], join: Callable[[list[Array]], Array]) -> NumPyTwin:
    dtype = met(*parts)
    return NumPyTwin(join([converted(part.array, part.dtype, dtype) for part in parts]), dtype)

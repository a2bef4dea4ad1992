"""Tensors as a PyTorch checkpoint holds them: strided windows on shared storages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from baregrad.base.errors import FileFormatError
from baregrad.io.element_types import BY_NAME


@dataclass(slots=True)
class FileStorage:
    """One stretch of bytes that tensors look into; `data` is read-only.

    `key` names it in its file and `location` is the device it was saved from. `dtype` is our name
    of its element type, None where the storage is untyped.
    """

    key: str
    dtype: str | None
    nbytes: int
    location: str
    data: memoryview | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor in a checkpoint; `strides` and `offset` count elements, within `storage`.

    Tensors that shared memory when saved share their `storage`. The constructor's caller has
    checked that every element lies inside.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: FileStorage
    requires_grad: bool = False
    is_parameter: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes an element takes."""
        return BY_NAME[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor laid out densely; more than it takes on disk where it is expanded."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        expected = 1
        if 0 in self.shape:
            return True
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def raw(self) -> memoryview:
        """The bytes of a contiguous tensor, read-only and not copied.

        Raises FileFormatError for a tensor that is not contiguous: `bits` reads those.
        """
        if not self.is_contiguous:
            raise FileFormatError(
                "a tensor without contiguous bytes",
                found=f"shape {self.shape}, strides {self.strides}",
                wanted="row-major order",
                hint="read it with bits()",
            )
        begin = self.offset * self.itemsize
        return self._bytes()[begin : begin + self.nbytes]

    def bits(self) -> np.ndarray[tuple[int, ...], np.dtype]:
        """Return the elements as a read-only NumPy view of their bit patterns, not copied.

        The dtype is the unsigned integer of the element's width (raw bytes for 16-byte elements);
        `.view` of the result gives the values where NumPy has the type. Memory may be unaligned
        in checkpoints older than PyTorch 1.6.
        """
        itemsize = self.itemsize
        kind = np.dtype(f"<u{itemsize}") if itemsize <= 8 else np.dtype(f"V{itemsize}")
        if 0 in self.shape:
            empty = np.empty(self.shape, kind)
            empty.setflags(write=False)
            return empty
        begin = self.offset * itemsize
        # Up to the last element alone: as_strided then needs no more than was checked.
        extent = last_element(self.shape, self.strides) + 1
        flat = np.frombuffer(self._bytes()[begin : begin + extent * itemsize], kind)
        steps = tuple(stride * itemsize for stride in self.strides)
        return as_strided(flat, self.shape, steps, writeable=False)

    def _bytes(self) -> memoryview:
        if self.storage.data is None:
            raise FileFormatError(
                f"storage {self.storage.key!r} has no bytes",
                wanted="a file read to its end",
                hint="the file is cut short: fetch or save it again",
            )
        return self.storage.data


def last_element(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how far the last element of a tensor lies from its first, in elements.

    Sizes must be 1 or more and strides 0 or more.
    """
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))

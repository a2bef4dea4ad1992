"""GGUF files, written: whole or not at all, one tensor after the other."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.io.excerpt import excerpt
from baregrad.io.files import write_atomically
from baregrad.io.gguf.header import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    VERSIONS,
)
from baregrad.io.gguf.types import GgmlType
from baregrad.io.gguf.values import TypedValue, Value, encoded, encoded_text, typed


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor of a row-major `shape` for a file, and what gives its bytes when it is their turn.

    The bytes are an array of any dtype, row after row, or a function that returns one.
    """

    type: GgmlType
    shape: tuple[int, ...]
    data: npt.NDArray[np.generic] | Callable[[], npt.NDArray[np.generic]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in a file. Raises ShapeError where blocks do not divide its rows."""
        count = self.type.row_nbytes(self.shape[-1] if self.shape else 1)
        for extent in self.shape[:-1]:
            count *= extent
        return count


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Value | TypedValue],
    tensors: Mapping[str, TensorToWrite],
) -> None:
    """Write a file of version 3, which appears whole or not at all.

    A value of the metadata without a kind gets one by its Python type (see `typed`); the alignment
    is what `general.alignment` says, else 32. Raises ArgumentError for metadata that no kind holds,
    ShapeError for a tensor whose shape or bytes do not fit its type, OSError.
    """
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if isinstance(alignment, TypedValue):
        alignment = alignment.value
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ArgumentError(
            f"{ALIGNMENT_KEY} is wrong", found=excerpt(alignment), wanted="a power of two"
        )
    head = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata))]
    head += [encoded(key, typed(key, value)) for key, value in metadata.items()]
    place = 0
    for name, tensor in tensors.items():
        if not 1 <= len(tensor.shape) <= MAX_DIMS or min(tensor.shape) < 1:
            raise ShapeError(
                f"tensor {excerpt(name)} cannot be written", found=f"shape {list(tensor.shape)}",
                wanted=f"1 to {MAX_DIMS} extents of 1 or more",
            )  # fmt: skip
        head.append(encoded_text(name))
        head.append(struct.pack("<I", len(tensor.shape)))
        head += [struct.pack("<Q", extent) for extent in reversed(tensor.shape)]
        head.append(struct.pack("<IQ", tensor.type.id, place))
        place += tensor.nbytes + -tensor.nbytes % alignment
    write_atomically(path, _chunks(b"".join(head), tensors, alignment))


def _chunks(
    head: bytes, tensors: Mapping[str, TensorToWrite], alignment: int
) -> Iterator[memoryview]:
    yield memoryview(head + bytes(-len(head) % alignment))
    for name, tensor in tensors.items():
        data = tensor.data() if callable(tensor.data) else tensor.data
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if flat.nbytes != tensor.nbytes:
            raise ShapeError(
                f"tensor {excerpt(name)} has bytes that its shape contradicts",
                found=f"{flat.nbytes} bytes",
                wanted=f"{tensor.nbytes} for {list(tensor.shape)} of {tensor.type}",
            )
        yield flat.data
        yield memoryview(bytes(-flat.nbytes % alignment))

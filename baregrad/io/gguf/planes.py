"""Blocks whose fields lie apart, each in an array of its own.

A block of a file has a length that no wide access is a part of, as 210 bytes. Machines that load
words of neighbours at once read each field as a plane instead: the same field of all blocks, side
by side, as words of four bytes, signed bytes or float16 numbers. Together they take as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor

_DTYPES: Mapping[str, DType] = MappingProxyType({
    "words": dtypes.uint32, "bytes": dtypes.uint8, "signed": dtypes.int8, "half": dtypes.float16,
})  # fmt: skip
WORD_BYTES = 4


class BlockField(NamedTuple):
    """Bytes `start` to `stop` of each block, and how they are read: a key of `_DTYPES`."""

    start: int
    stop: int
    kind: str


class Planes:
    """Blocks of `shape` (..., blocks, nbytes), by their fields: arrays (..., blocks, elements).

    vector: what a row's elements (blocks * elements of each) are to be multiplied with.
    """

    def __init__(
        self,
        shape: tuple[int | object, ...],
        arrays: Mapping[BlockField, Tensor],
        vector: Tensor | None = None,
    ) -> None:
        self.shape = shape
        self.arrays = arrays
        self.vector = vector

    @property
    def device(self) -> str:
        """The name of the device that holds them."""
        return next(iter(self.arrays.values())).device

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return sum(array.numel() * array.dtype.itemsize for array in self.arrays.values())

    def read(self, field: BlockField) -> Tensor:
        """Return a field of each block, in the dtype of its kind."""
        return self.arrays[field]

    @property
    def has_words(self) -> bool:
        """Whether codes lie in words."""
        return any(field.kind == "words" for field in self.arrays)

    def times(self, vector: Tensor) -> Planes:
        """Return the blocks as what is to be multiplied with a vector."""
        return Planes(self.shape, self.arrays, vector)

    def at(self, index: Tensor | int | slice) -> Planes:
        """Return the blocks at an index of the first axis."""
        parts = {field: array[index] for field, array in self.arrays.items()}
        lead = next(iter(parts.values())).shape[:-1]
        return Planes((*lead, self.shape[-1]), parts)

    def as_rows(self) -> Planes:
        """Return the blocks with their leading axes as one."""
        count = self.shape[-2]
        parts = {
            field: array.reshape(-1, *array.shape[-2:]) for field, array in self.arrays.items()
        }
        rows = next(iter(parts.values())).shape[0]
        return Planes((rows, count, self.shape[-1]), parts)

    def joined(self) -> Tensor:
        """Return the bytes (..., blocks, nbytes) as a file has them."""
        parts = []
        for field, array in sorted(self.arrays.items()):
            if field.kind == "words":
                steps = Tensor.arange(WORD_BYTES, dtype=dtypes.uint32, device=array.device) * 8
                array = ((array.unsqueeze(-1) >> steps) & 255).flatten(-2)
            elif field.kind == "half":
                code = array.bitcast(dtypes.uint16).cast(dtypes.int32)
                array = Tensor.cat(code & 255, code >> 8, dim=-1)
            elif field.kind == "signed":
                array = array.bitcast(dtypes.uint8)
            parts.append(array.cast(dtypes.uint8))
        return Tensor.cat(*parts, dim=-1)


def planes_of(blocks: Tensor, read: Callable[[_Fields], object]) -> Planes | None:
    """Return blocks (..., nbytes) as planes of the fields that `read` asks a block for, in memory.

    None where these are not all of a block, or one is in another.
    """
    noted = _Fields(blocks.shape[-1])
    read(noted)
    fields = sorted(noted.found)
    ends = [field.stop for field in fields]
    if [0, *ends] != [*[field.start for field in fields], blocks.shape[-1]]:
        return None
    arrays = {field: _plane(blocks, field) for field in fields}
    first, *others = arrays.values()
    first.realize(*others)
    return Planes(blocks.shape, arrays)


class _Fields(Planes):
    """A block that notes what it is asked for."""

    def __init__(self, nbytes: int) -> None:
        super().__init__((1, nbytes), {})
        self.found: set[BlockField] = set()

    @property
    def device(self) -> str:
        return "NULL"

    def read(self, field: BlockField) -> Tensor:
        self.found.add(field)
        dtype = _DTYPES[field.kind]
        count = (field.stop - field.start) // dtype.itemsize
        return Tensor.zeros(1, count, dtype=dtype, device=self.device)


def _plane(blocks: Tensor, field: BlockField) -> Tensor:
    """A field of all blocks as an array of its own."""
    part = blocks[..., field.start : field.stop]
    if field.kind == "signed":
        return part.bitcast(dtypes.int8).contiguous()
    if field.kind == "bytes":
        return part.contiguous()
    dtype = _DTYPES[field.kind]
    size = dtype.itemsize
    number = dtypes.uint32 if size == WORD_BYTES else dtypes.uint16
    each = part.cast(number).unflatten(-1, (-1, size))
    value = each[..., 0]
    for place in range(1, size):
        value = value | (each[..., place] << 8 * place)
    return value.bitcast(dtype).contiguous() if dtype is not number else value.contiguous()

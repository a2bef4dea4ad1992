"""Blocks whose fields lie apart, each in an array of its own.

A block of a file has a length that no wide access is a part of, as 210 bytes. Machines that load
words of neighbours at once read each field as a plane instead: the same field of all blocks, side
by side, as words of four bytes, signed bytes or float16 numbers. Together they take as many bytes,
but for scales of 6 bits, which have bytes of their own: else taking them apart is most of the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor

_DTYPES: Mapping[str, DType] = MappingProxyType({
    "words": dtypes.uint32, "bytes": dtypes.uint8, "signed": dtypes.int8, "half": dtypes.float16,
    "six": dtypes.int8,
})  # fmt: skip
WORD_BYTES = 4
MOST_ELEMENTS = (1 << 31) - 1


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
    def tensors(self) -> tuple[Tensor, ...]:
        """What in memory the arrays are, or are parts of."""
        if isinstance(self.arrays, _Shares):
            return tuple(self.arrays.memory.values())
        return tuple(self.arrays.values())

    @property
    def device(self) -> str:
        """The name of the device that holds them."""
        return next(iter(self.arrays.values())).device

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return sum(array.numel() * array.dtype.itemsize for array in self.arrays.values())

    def read(self, field: BlockField) -> Tensor:
        """Return a field of each block, in the dtype of its kind: an array, or a part of one."""
        found = self.arrays.get(field)
        if found is not None:
            return found
        same = [one for one in self.arrays if one.kind == field.kind]
        whole = next(one for one in same if one.start <= field.start < one.stop)
        size = _DTYPES[field.kind].itemsize
        first, last = ((place - whole.start) // size for place in (field.start, field.stop))
        return self.arrays[whole][..., first:last]

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

    def above(self, *others: Planes) -> Planes:
        """Return the rows of these blocks, then those of others, in memory."""
        every = (self, *others)
        parts = {
            field: Tensor.cat(*[one.arrays[field] for one in every]).contiguous()
            for field in self.arrays
        }
        first, *rest = parts.values()
        first.realize(*rest)
        return Planes((first.shape[0], *self.shape[1:]), parts)

    def joined(self) -> Tensor:
        """Return the bytes (..., blocks, nbytes) as a file has them."""
        parts = []
        for field, array in sorted(self.arrays.items()):
            if field.kind == "words":
                steps = Tensor.arange(WORD_BYTES, dtype=dtypes.uint32, device=array.device) * 8
                array = ((array.unsqueeze(-1) >> steps) & 255).flatten(-2)
            elif field.kind == "half":
                code = array.bitcast(dtypes.uint16).cast(dtypes.int32)
                array = Tensor.stack([code & 255, code >> 8], dim=-1).flatten(-2)
            elif field.kind == "six":
                array = _pack_six(array.cast(dtypes.int32))
            elif field.kind == "signed":
                array = array.bitcast(dtypes.uint8)
            parts.append(array.cast(dtypes.uint8))
        return Tensor.cat(*parts, dim=-1)


def share_memory(weights: Sequence[Planes]) -> None:
    """Let the arrays of one dtype of all weights be parts of one: each call hands over as few.

    Nothing is done where one has more elements than an index of 32 bits tells apart.
    """
    parts: dict[str, list[Tensor]] = {}
    places: list[dict[BlockField, tuple[str, int, tuple[int, ...]]]] = []
    counts: Counter[str] = Counter()
    for planes in weights:
        places.append({})
        for field, array in planes.arrays.items():
            name = array.dtype.name
            places[-1][field] = name, counts[name], array.shape
            counts[name] += array.numel()
            parts.setdefault(name, []).append(array.flatten())
    if not weights or max(counts.values()) > MOST_ELEMENTS:
        return
    memory = {name: Tensor.cat(*each).contiguous() for name, each in parts.items()}
    first, *others = memory.values()
    first.realize(*others)
    for planes, each in zip(weights, places, strict=True):
        planes.arrays = _Shares(memory, each)


class _Shares(Mapping[BlockField, Tensor]):
    """Arrays that are parts of others: by field the dtype's name, where one begins, its shape."""

    def __init__(
        self,
        memory: Mapping[str, Tensor],
        places: Mapping[BlockField, tuple[str, int, tuple[int, ...]]],
    ) -> None:
        self.memory = memory
        self._places = places

    def __getitem__(self, field: BlockField) -> Tensor:
        name, begin, shape = self._places[field]
        return self.memory[name][begin : begin + prod(shape)].reshape(*shape)

    def __iter__(self) -> Iterator[BlockField]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


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
    arrays = {field: _plane(blocks, field) for field in _with_neighbours(fields)}
    first, *others = arrays.values()
    first.realize(*others)
    return Planes(blocks.shape, arrays)


def _with_neighbours(fields: Sequence[BlockField]) -> list[BlockField]:
    """Fields in order, float16 numbers that are neighbours as one: what reads both reads a word."""
    found = list[BlockField]()
    for field in fields:
        if found and field.kind == "half" and found[-1].kind == "half":
            field = field._replace(start=found.pop().start)
        found.append(field)
    return found


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
        count = 16 if field.kind == "six" else (field.stop - field.start) // dtype.itemsize
        return Tensor.zeros(1, count, dtype=dtype, device=self.device)


def _plane(blocks: Tensor, field: BlockField) -> Tensor:
    """A field of all blocks as an array of its own."""
    part = blocks[..., field.start : field.stop]
    if field.kind == "signed":
        return part.bitcast(dtypes.int8).contiguous()
    if field.kind == "bytes":
        return part.contiguous()
    if field.kind == "six":
        codes = part.cast(dtypes.int32).unflatten(-1, (3, 1, 4))
        pairs = [each.reshape(*part.shape[:-1], 4, 1, 2) for each in unpack_six(codes)]
        return Tensor.cat(*pairs, dim=-2).flatten(-3).cast(dtypes.int8).contiguous()
    dtype = _DTYPES[field.kind]
    size = dtype.itemsize
    number = dtypes.uint32 if size == WORD_BYTES else dtypes.uint16
    each = part.cast(number).unflatten(-1, (-1, size))
    value = each[..., 0]
    for place in range(1, size):
        value = value | (each[..., place] << 8 * place)
    return value.bitcast(dtype).contiguous() if dtype is not number else value.contiguous()


def unpack_six(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima (..., 8, 1) of the bytes (..., 3, 1, 4) that hold them, int32.

    The first four of each lie whole in a byte; the others are of a nibble and two spare bits.
    """
    first, second, third = codes[..., 0, :, :], codes[..., 1, :, :], codes[..., 2, :, :]
    half_index = Tensor.arange(2, dtype=dtypes.int32, device=codes.device).reshape(2, 1)
    is_first = half_index == 0
    shape = (*codes.shape[:-3], 8, 1)
    scales = is_first.where(first & 63, (third & 15) | ((first >> 6) << 4)).reshape(*shape)
    minima = is_first.where(second & 63, (third >> 4) | ((second >> 6) << 4)).reshape(*shape)
    return scales, minima


def _pack_six(codes: Tensor) -> Tensor:
    """The 12 bytes (..., 12) of eight scales and eight minima (..., 16), in pairs by turns."""
    pairs = codes.unflatten(-1, (2, 2, 2, 2))
    scales, scales_on, minima, minima_on = (
        pairs[..., half, :, kind, :].flatten(-2) for kind in range(2) for half in range(2)
    )
    first, second = scales | ((scales_on >> 4) << 6), minima | ((minima_on >> 4) << 6)
    return Tensor.cat(first, second, (scales_on & 15) | ((minima_on & 15) << 4), dim=-1)

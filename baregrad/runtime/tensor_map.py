"""Tensor maps: the 128-byte descriptors of bulk tensor copies on Hopper and later.

A map describes an array in global memory, up to five dimensions, the innermost first, and the box
of it that one copy moves to shared memory. The copy reads the map's first 64 bytes; the rest holds
what whoever launches the kernel may like to know.

Sources: the requirements of `cuTensorMapEncodeTiled` in the vendor's `cuda.h` (CUDA 13.0, lines
23236..23402); the layout was read off calls of the vendor's encoder, driver 580.159.04, whose bytes
and refusals the tests compare with. Where that header and that encoder differ (interleaving by 32
bytes, which the header wants swizzled by 32), the encoder has the last word.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from baregrad.base.errors import ArgumentError, FileFormatError, UnsupportedDType
from baregrad.program import MapSpec

NBYTES = 128
MAX_RANK = 5

_WORDS = struct.Struct("<32I")
_GRAIN = 16
# What the second cache reads of memory at once for a copy.
_LINE = 128
_MAX_EXTENT = 1 << 32
_MAX_STRIDE = 1 << 40
_MAX_ADDRESS = 1 << 57
_MAX_BOX = 256
_MAX_STEP = 8
# Places of a walk; bits that all of its low corners share, and all high ones; the flag of a walk.
_MAX_PLACES, _CORNERS_BITS, _WALKS = 1024, 16, 1
# The box lands in the shared memory of one block, which has so much on Hopper. The encoder was
# seen to take 225,792 bytes and to refuse 240,640.
_MAX_BOX_NBYTES = 227 * 1024
_INTERLEAVES = (0, 16, 32)
_SWIZZLES = (0, 32, 64, 128)
_PROMOTIONS = (0, 64, 128, 256)
# What the tile in shared memory must be aligned to, by swizzle.
_TILE_ALIGNMENTS = (16, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class TensorMapType:
    """An element: its code in the map, whether values are rounded to tf32, its size."""

    code: int
    rounds_to_tf32: bool
    nbytes: int
    is_float: bool


# `ftz` flushes subnormal numbers to zero.
ELEMENT_TYPES = MappingProxyType({
    "uint8": TensorMapType(0, False, 1, False),
    "uint16": TensorMapType(1, False, 2, False),
    "uint32": TensorMapType(2, False, 4, False),
    "int32": TensorMapType(3, False, 4, False),
    "uint64": TensorMapType(4, False, 8, False),
    "int64": TensorMapType(5, False, 8, False),
    "float16": TensorMapType(6, False, 2, True),
    "float32": TensorMapType(7, False, 4, True),
    "float32_ftz": TensorMapType(8, False, 4, True),
    "float64": TensorMapType(9, False, 8, True),
    "bfloat16": TensorMapType(10, False, 2, True),
    "tfloat32": TensorMapType(7, True, 4, True),
    "tfloat32_ftz": TensorMapType(8, True, 4, True),
})


@dataclass(frozen=True, slots=True)
class TensorMap:
    """An array in global memory and the box that one copy moves.

    All tuples have the innermost dimension first. `shape` counts elements; `strides` are the bytes
    from one index to the next of dimensions 1 and up (dimension 0 is dense), so there is one less
    of them. `box` is the extent of the box in the array and `steps` the distance between the
    elements taken from it (empty for all 1). `interleave`, `swizzle` and `promotion` are bytes, 0
    for none. `nan_outside` fills what lies outside the array with NaN instead of zeros.

    With `low` and `high`, one of each for all dimensions but the first and the last, a copy walks
    (the mode im2col): between these corners, the latter counted from the last element, from place
    to place by `steps`. `box` is elements of dimension 0 then, and places.

    Raises ArgumentError, or UnsupportedDType, for what the vendor's encoder refuses.
    """

    element: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    interleave: int = 0
    swizzle: int = 0
    promotion: int = 0
    nan_outside: bool = False
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.steps:
            object.__setattr__(self, "steps", (1,) * len(self.shape))
        _check_kinds(self)
        _check_lengths(self)
        _check_memory(self)
        _check_box(self)
        if self.low:
            _check_corners(self)

    @property
    def rank(self) -> int:
        """How many dimensions there are."""
        return len(self.shape)

    @property
    def box_nbytes(self) -> int:
        """Bytes that a copy of one whole box moves: what its barrier has to expect.

        Counts the steps that fit whole, as the vendor's encoder does; choose boxes that are
        multiples of their steps, since the copy takes a last partial step too.
        """
        if self.low:
            return ELEMENT_TYPES[self.element].nbytes * prod(self.box)
        taken = prod(extent // step for extent, step in zip(self.box, self.steps, strict=True))
        return ELEMENT_TYPES[self.element].nbytes * taken

    @property
    def tile_alignment(self) -> int:
        """What the tile's address in shared memory must be a multiple of."""
        return _TILE_ALIGNMENTS[_SWIZZLES.index(self.swizzle)]

    def encode(self) -> bytes:
        """Return the 128 bytes; they must lie at a multiple of 64."""
        kind = ELEMENT_TYPES[self.element]
        words = [0] * 32
        words[0] = self.address & 0xFFFFFFFF
        words[1] = self.address >> 32
        words[2] = (
            (self.rank - 1) << 4
            | kind.code << 7
            | _INTERLEAVES.index(self.interleave) << 11
            | _SWIZZLES.index(self.swizzle) << 13
            | self.nan_outside << 15
            | kind.rounds_to_tf32 << 16
            | _PROMOTIONS.index(self.promotion) << 17
        )
        for i, stride in enumerate(self.strides):
            words[3 + i] = stride // _GRAIN & 0xFFFFFFFF
            words[7] |= stride // _GRAIN >> 32 << 4 * i
        for i, (extent, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            words[8 + i] = extent - 1
            words[13] |= (step - 1) << 3 * i
        words[13] |= (self.box[0] - 1) << 24
        if self.low:
            words[2] |= _WALKS
            words[14] = _packed(self.low) | _packed(self.high) << _CORNERS_BITS
            words[15] = self.box[1] - 1
        else:
            for i, box in enumerate(self.box[1:]):
                words[14] |= (box - 1) << 8 * i
        words[16] = self.box_nbytes
        words[18] = self.tile_alignment
        return _WORDS.pack(*words)

    @classmethod
    def decode(cls, data: bytes) -> TensorMap:
        """Return the map of which at least the first 64 bytes are given.

        Raises FileFormatError where they say what no map says.
        """
        if len(data) < NBYTES // 2:
            raise FileFormatError("a tensor map is cut short", found=len(data), wanted=NBYTES)
        try:
            return _decode(struct.unpack_from("<16I", data))
        except ArgumentError as error:
            raise FileFormatError(f"no tensor map ({error})") from error


def _packed(corners: Sequence[int]) -> int:
    """Corners in two's complement, each in as many bits as there are for it."""
    bits = _CORNERS_BITS // len(corners)
    return sum((corner & (1 << bits) - 1) << bits * i for i, corner in enumerate(corners))


def _unpacked(word: int, count: int) -> tuple[int, ...]:
    bits = _CORNERS_BITS // count
    fields = [word >> bits * i & (1 << bits) - 1 for i in range(count)]
    return tuple([field - (field >> bits - 1 << bits) for field in fields])


def map_of(spec: MapSpec, address: int = 0) -> bytes:
    """Return the map that a program takes of a buffer at an address: its first 8 bytes.

    Elements are bits that nobody computes with, unless they are to be rounded. Raises ArgumentError
    for what no map has. Arrays lie where maps may have them (`commands.ARRAY_ALIGNMENT`).
    """
    low, high, steps = spec.walk or ((), (), ())
    return TensorMap(
        element="tfloat32" if spec.rounds else f"uint{8 * spec.itemsize}", address=address,
        shape=spec.shape,
        strides=spec.strides, box=spec.box, swizzle=spec.swizzle, promotion=_LINE,
        low=low, high=high, steps=(1, *steps, 1) if spec.walk else (),
    ).encode()  # fmt: skip


def _decode(words: Sequence[int]) -> TensorMap:
    flags = words[2]
    rank = (flags >> 4 & 7) + 1
    kind = (flags >> 7 & 15, bool(flags >> 16 & 1))
    names = [
        name for name, one in ELEMENT_TYPES.items() if (one.code, one.rounds_to_tf32) == kind
    ]
    walks = bool(flags & _WALKS)
    if not names or rank > MAX_RANK or flags >> 11 & 3 == 3 or (walks and rank < 3):
        raise FileFormatError("no tensor map", found=f"flags {flags:#x}")
    quotients = [words[3 + i] | (words[7] >> 4 * i & 15) << 32 for i in range(rank - 1)]
    boxes = (words[13] >> 24, *(words[14] >> 8 * i & 255 for i in range(4)))[:rank]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    if walks:
        low, high = (_unpacked(words[14] >> at, rank - 2) for at in (0, _CORNERS_BITS))
        boxes = (words[13] >> 24, words[15] & _MAX_PLACES - 1)
    return TensorMap(
        element=names[0],
        address=words[0] | words[1] << 32,
        shape=tuple(words[8 + i] + 1 for i in range(rank)),
        strides=tuple(quotient * _GRAIN for quotient in quotients),
        box=tuple(box + 1 for box in boxes),
        steps=tuple((words[13] >> 3 * i & 7) + 1 for i in range(rank)),
        interleave=_INTERLEAVES[flags >> 11 & 3],
        swizzle=_SWIZZLES[flags >> 13 & 3],
        promotion=_PROMOTIONS[flags >> 17 & 3],
        nan_outside=bool(flags >> 15 & 1),
        low=low,
        high=high,
    )


def _check_kinds(wanted: TensorMap) -> None:
    if wanted.element not in ELEMENT_TYPES:
        raise UnsupportedDType(
            "a tensor map has no such elements",
            found=wanted.element,
            wanted=", ".join(ELEMENT_TYPES),
        )
    for name, allowed in (
        ("interleave", _INTERLEAVES), ("swizzle", _SWIZZLES), ("promotion", _PROMOTIONS),
    ):  # fmt: skip
        value = getattr(wanted, name)
        if value not in allowed:
            raise ArgumentError(
                f"a tensor map has no {name} of this size in bytes",
                found=value,
                wanted=" | ".join(map(str, allowed)),
            )
    if wanted.nan_outside and not ELEMENT_TYPES[wanted.element].is_float:
        raise ArgumentError(
            "only floating-point elements can be filled with NaN", found=wanted.element
        )


def _check_lengths(wanted: TensorMap) -> None:
    rank = wanted.rank
    if not 1 <= rank <= MAX_RANK:
        raise ArgumentError("a tensor map has 1 to 5 dimensions", found=rank)
    if wanted.interleave and rank < 3:
        raise ArgumentError("an interleaved tensor map has 3 to 5 dimensions", found=rank)
    box = 2 if wanted.low else rank
    for name, length in (("strides", rank - 1), ("box", box), ("steps", rank)):
        if len(getattr(wanted, name)) != length:
            raise ArgumentError(
                f"the {name} of a tensor map do not fit its {rank} dimensions",
                found=getattr(wanted, name),
                wanted=f"{length} of them",
            )


def _check_memory(wanted: TensorMap) -> None:
    grain = 32 if wanted.interleave == 32 else _GRAIN
    if wanted.address % grain or not 0 <= wanted.address < _MAX_ADDRESS:
        raise ArgumentError(
            "the array of a tensor map cannot begin there",
            found=f"{wanted.address:#x}",
            wanted=f"a multiple of {grain} below 2**57",
        )
    for extent in wanted.shape:
        if not 1 <= extent <= _MAX_EXTENT:
            raise ArgumentError(
                "a dimension of a tensor map is out of range", found=extent, wanted="1..2**32"
            )
    for stride in wanted.strides:
        if stride % grain or not 0 <= stride < _MAX_STRIDE:
            raise ArgumentError(
                "a stride of a tensor map does not fit",
                found=f"{stride} bytes",
                wanted=f"a multiple of {grain} below 2**40",
                hint="pad the rows of the array",
            )


def _check_corners(wanted: TensorMap) -> None:
    count = wanted.rank - 2
    if count < 1 or len(wanted.low) != count or len(wanted.high) != count:
        raise ArgumentError(
            "a walk has corners for all dimensions but the first and the last",
            found=(wanted.low, wanted.high), wanted=f"{max(count, 1)} of each",
        )
    most = 1 << _CORNERS_BITS // count - 1
    ends = zip(wanted.shape[1:-1], wanted.low, wanted.high, strict=True)
    if any(size - 1 + high < low for size, low, high in ends):
        raise ArgumentError(
            "a walk of a tensor map has no place between its corners",
            found=(wanted.low, wanted.high),
        )
    for corner in (*wanted.low, *wanted.high):
        if not -most <= corner < most:
            raise ArgumentError(
                "a corner of a tensor map is out of range", found=corner,
                wanted=f"{-most}..{most - 1}",
            )


def _check_box(wanted: TensorMap) -> None:
    most = (_MAX_BOX, _MAX_PLACES) if wanted.low else (_MAX_BOX,) * wanted.rank
    for box, limit in zip(wanted.box, most, strict=True):
        if not 1 <= box <= limit:
            raise ArgumentError(
                "the box of a tensor map is out of range", found=box, wanted=f"1..{limit}"
            )
    for step in wanted.steps:
        if not 1 <= step <= _MAX_STEP:
            raise ArgumentError("a step of a tensor map is out of range", found=step, wanted="1..8")
    row_nbytes = wanted.box[0] * ELEMENT_TYPES[wanted.element].nbytes
    if not wanted.interleave and row_nbytes % _GRAIN:
        raise ArgumentError(
            "a row of the box is no multiple of 16 bytes", found=f"{row_nbytes} bytes"
        )
    if not wanted.interleave and wanted.swizzle and row_nbytes > wanted.swizzle:
        raise ArgumentError(
            "a row of the box is longer than the span of its swizzle",
            found=f"{row_nbytes} bytes",
            wanted=f"at most {wanted.swizzle}",
        )
    if wanted.box_nbytes > _MAX_BOX_NBYTES:
        raise ArgumentError(
            "the box of a tensor map does not fit shared memory",
            found=f"{wanted.box_nbytes} bytes",
            wanted=f"at most {_MAX_BOX_NBYTES}",
        )

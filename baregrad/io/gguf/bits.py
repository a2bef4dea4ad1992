"""Bits of packed blocks as arithmetic of tensors: fields, halves, small codes and small tables.

A block is the last axis of a tensor of bytes, or of planes. What these functions give is lazy: it
becomes part of whatever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from baregrad.dtypes import dtypes
from baregrad.io.gguf.planes import WORD_BYTES, BlockField, Planes, unpack_six
from baregrad.tensor import Tensor

Blocks = Tensor | Planes
# What float32 numbers of 23 bits are written after, and what that adds to them.
_FLOAT_LEAD, _FLOAT_STEP = 0x4B000000, 1 << 23
# The same of codes below 128, in the third byte: so little is added that it may be multiplied too.
_CODE_LEAD, _CODE_STEP, _CODE_PLACE = 0x43000000, 128, 16
# Words that are multiplied with a vector and summed before they are scaled.
SUMMED_WORDS = 2


def field(blocks: Blocks, start: int, stop: int, *shape: int) -> Tensor:
    """Bytes `start` to `stop` of each block as int32 from 0 to 255; the last axis gets `shape`."""
    if isinstance(blocks, Planes):
        part = blocks.read(BlockField(start, stop, "bytes")).cast(dtypes.int32)
    else:
        part = blocks[..., start:stop].cast(dtypes.int32)
    return part.reshape(*blocks.shape[:-1], *shape) if shape else part


def signed_field(blocks: Blocks, start: int, stop: int, *shape: int) -> Tensor:
    """As `field`, bytes with a sign: -128 to 127."""
    if not isinstance(blocks, Planes):
        return signed(field(blocks, start, stop, *shape))
    part = blocks.read(BlockField(start, stop, "signed")).cast(dtypes.int32)
    return part.reshape(*blocks.shape[:-1], *shape) if shape else part


def codes(blocks: Blocks, start: int, stop: int, *shape: int) -> Tensor:
    """As `field`, bytes that hold small codes: of planes, four of them in each uint32 word.

    `unpack`, `|` and `<<` work on both, as long as no code leaves its byte; `numbers` gives what
    they stand for. The last of `shape` counts bytes.
    """
    if not isinstance(blocks, Planes):
        return field(blocks, start, stop, *shape)
    part = blocks.read(BlockField(start, stop, "words"))
    *front, last = shape or (stop - start,)
    return part.reshape(*blocks.shape[:-1], *front, last // WORD_BYTES)


def per_code(blocks: Blocks, *shape: int) -> tuple[int | object, ...]:
    """The shape of `codes` whose last axis counts elements."""
    *front, last = shape
    lanes = WORD_BYTES if isinstance(blocks, Planes) else 1
    return (*blocks.shape[:-1], *front, last // lanes)


def numbers(found: Tensor, offset: int = 0) -> Tensor:
    """Codes less `offset`: int32 of bytes; of words float32, four elements for each."""
    if found.dtype is not dtypes.uint32:
        return found - offset if offset else found
    steps = Tensor.arange(WORD_BYTES, dtype=dtypes.uint32, device=found.device) * 8
    return _as_floats((found.unsqueeze(-1) >> steps) & 255, offset).flatten(-2)


def _as_floats(octets: Tensor, offset: int) -> Tensor:
    """Small uint32 less `offset`, as float32, without a conversion, which is slow.

    A small integer in the low bits of 2**23 is a float.
    """
    return (octets | _FLOAT_LEAD).bitcast(dtypes.float32) - float(_FLOAT_STEP + offset)


def signed(codes: Tensor) -> Tensor:
    """Int32 from 0 to 255 as the two's complement of 8 bits: -128 to 127."""
    return (codes ^ 128) - 128


def signed_codes(blocks: Blocks, start: int, stop: int) -> Tensor:
    """Bytes with a sign as codes from 0, which are 128 larger."""
    found = codes(blocks, start, stop)
    return found ^ (0x80808080 if found.dtype is dtypes.uint32 else 128)


def scaled(
    blocks: Blocks,
    scale: Tensor,
    found: Tensor,
    offset: int = 0,
    minimum: Tensor | None = None,
    addend: Tensor | None = None,
) -> Tensor:
    """`scale * (codes - offset)`, less a minimum or plus an addend: the elements of blocks.

    Codes are (..., inner) or (..., groups, inner), the others have 1 for `inner`. Of planes times a
    vector it is the sum of the products with that for each word (..., words), or each two: what is
    in them is summed before it is scaled.
    """
    if not isinstance(blocks, Planes) or blocks.vector is None:
        each = scale * numbers(found, offset)
        if minimum is not None:
            each = each - minimum
        if addend is not None:
            each = each + addend
        return each.flatten(-2) if found.ndim > len(blocks.shape) else each
    together = SUMMED_WORDS if found.shape[-1] % SUMMED_WORDS == 0 else 1
    shape = (*found.shape[len(blocks.shape) - 2 : -1], found.shape[-1] // together)
    x = blocks.vector.reshape(*shape, together * WORD_BYTES)
    parts = [x[..., place] for place in range(together * WORD_BYTES)]
    found = found.unflatten(-1, (-1, together))
    octets = [
        (found[..., word] >> 8 * place) & 255
        for word in range(together) for place in range(WORD_BYTES)
    ]  # fmt: skip
    is_plain = minimum is None and addend is None
    # Codes lie around their offset, if they have one: up to twice of it.
    if is_plain and not 0 < offset <= _CODE_STEP // 2:
        return scale * _dot(parts, [_as_floats(each, offset) for each in octets])
    factors = [(each << _CODE_PLACE | _CODE_LEAD).bitcast(dtypes.float32) for each in octets]
    if is_plain:
        # What is added to codes comes off with the sum of the vector, which rows share.
        less = reduce(Tensor.add, parts) * -float(_CODE_STEP + offset)
        return scale * (_dot(parts, factors) + less)
    # Here it comes off with the minimum, for each code.
    less = scale * float(_CODE_STEP + offset)
    less = less if minimum is None else less + minimum
    beside = -less if addend is None else addend - less
    return _dot(parts, [scale.fma(factor, beside) for factor in factors])


def _dot(parts: list[Tensor], factors: list[Tensor]) -> Tensor:
    """The sum of the products of two lists."""
    total = parts[0] * factors[0]
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        total = part.fma(factor, total)
    return total


def six_bits(blocks: Blocks, start: int) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima (..., 8, 1) of 6 bits, as int32, that 12 bytes hold."""
    if isinstance(blocks, Planes):
        both = blocks.read(BlockField(start, start + 12, "six")).cast(dtypes.int32)
        pairs = both.reshape(*blocks.shape[:-1], 4, 2, 2)
        scales, minima = (pairs[..., kind, :].flatten(-2).unsqueeze(-1) for kind in range(2))
        return scales, minima
    return unpack_six(field(blocks, start, start + 12, 3, 1, 4))


def words(blocks: Blocks, start: int, count: int) -> Tensor:
    """`count` little-endian 16-bit words of each block from byte `start`, as int32 from 0."""
    pairs = field(blocks, start, start + 2 * count, count, 2)
    return pairs[..., 0] | (pairs[..., 1] << 8)


def half(blocks: Blocks, start: int) -> Tensor:
    """The float16 at byte `start` of each block as float32; the last axis has length 1."""
    if isinstance(blocks, Planes):
        return blocks.read(BlockField(start, start + 2, "half")).cast(dtypes.float32)
    return half_of(words(blocks, start, 1))


def half_of(codes: Tensor) -> Tensor:
    """Int32 codes of 16 bits as the float16 numbers that they spell, in float32."""
    return codes.cast(dtypes.uint16).bitcast(dtypes.float16).cast(dtypes.float32)


def unpack(codes: Tensor, bits: int, count: int, axis: int = -2) -> Tensor:
    """The `count` fields of `bits` bits that lie in each code, lowest first, along a new axis.

    Of words, those of each of their bytes.

    `axis` is where the new axis stands in the result, counted from its end.
    """
    steps = Tensor.arange(count, dtype=codes.dtype, device=codes.device) * bits
    wide = codes.unsqueeze(axis) >> steps.reshape(count, *(1,) * (-axis - 1))
    mask = (1 << bits) - 1
    return wide & (mask * 0x01010101 if codes.dtype is dtypes.uint32 else mask)


def choose(codes: Tensor, table: Sequence[int]) -> Tensor:
    """`table[codes]` for a table of 16 small numbers, without memory: bytes of four words.

    Numbers are from -128 to 127, codes from 0 to 15; the result is int32.
    """
    packed = [
        int.from_bytes(bytes(value & 255 for value in table[at : at + 4]), "little", signed=True)
        for at in range(0, 16, 4)
    ]
    low = (codes < 4).where(packed[0], packed[1])
    high = (codes < 12).where(packed[2], packed[3])
    word = (codes < 8).where(low, high)
    return signed((word >> ((codes & 3) << 3)) & 255)


def odd_parity(codes: Tensor) -> Tensor:
    """1 where the low 8 bits of a code hold an odd number of ones, else 0."""
    folded = codes ^ (codes >> 4)
    folded = folded ^ (folded >> 2)
    return (folded ^ (folded >> 1)) & 1

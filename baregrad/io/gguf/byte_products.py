"""Products with packed weights on bytes: rows are quantised as well, and words are multiplied.

A row of numbers becomes bytes with a scale for each block, as long as the weights' own blocks, with
the roundings of llama.cpp; scales for which float16 has no normal number stay as they are. What a
weight packs stays in words of four bytes: unsigned codes with a scale and perhaps a minimum for
each group of words. A group's products are whole numbers, exactly.
Layouts are those of ggml/src/ggml-common.h of github.com/ggml-org/llama.cpp; how rows are quantised
is that of `quantize_row_q8_0`, `quantize_row_q8_1` and `quantize_row_q8_K` there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.io.gguf.bits import Blocks, field, half, signed_field, six_bits, unpack
from baregrad.io.gguf.planes import BlockField, Planes
from baregrad.tensor import Tensor

# Bytes of a word, and a word of equal bytes.
WORD, EACH = 4, 0x01010101
# Words that lie beside each other in a group, and those of a run of 16 bytes.
WORDS = 4
# Elements of a row that share a scale: those of small blocks, and of K-quants'.
SMALL_BLOCK, LARGE_BLOCK = 32, 256
_LARGEST = 127.0
# The normal numbers of float16, and what is 0 in a row: float32 has no such number's inverse.
_SMALLEST_HALF, _LARGEST_HALF = 2.0**-14, 65504.0
_NOTHING = 2.0**-119


@dataclass(frozen=True, slots=True)
class Codes:
    """What blocks hold: unsigned bytes in int32 words (..., groups, chain, 4), lazily.

    A group has one scale. Its words lie in the order of its elements, four of them side by side.
    scale: float32 (..., groups). minimum: what a group's elements have beside, likewise. offset:
    what each byte is too large by. within: the axis of (groups, chain), counted from their end,
    along which codes lie in the same words of a block. units: what a code counts for as it lies in
    its byte, float32 along that axis alone; nothing where each is a number.
    """

    words: Tensor
    scale: Tensor
    minimum: Tensor | None = None
    offset: int = 0
    within: int = -1
    units: Tensor | None = None


def words_at(blocks: Blocks, start: int, count: int) -> Tensor:
    """`count` little-endian words of each block from byte `start` on, as int32."""
    if isinstance(blocks, Planes):
        found = blocks.read(BlockField(start, start + WORD * count, "words"))
        return found.bitcast(dtypes.int32)
    part = blocks[..., start : start + WORD * count].cast(dtypes.int32)
    part = part.reshape(*blocks.shape[:-1], count, WORD)
    return part[..., 0] | (part[..., 1] << 8) | (part[..., 2] << 16) | (part[..., 3] << 24)


def _each(bits: int) -> int:
    """A word whose bytes have the lowest `bits` bits set."""
    return ((1 << bits) - 1) * EACH


def _steps(beside: Tensor, count: int, size: int, *shape: int) -> Tensor:
    """0, size, 2 * size, ... as int32, under a shape, on another's device."""
    steps = Tensor.arange(count, dtype=dtypes.int32, device=beside.device)
    return (steps * size).reshape(*shape)


def _nibbles(blocks: Blocks, start: int) -> Tensor:
    """32 codes of 4 bits in words (..., 2, 4): low halves of 16 bytes, then their high halves."""
    words = words_at(blocks, start, 4).unsqueeze(-2)
    return (words >> _steps(words, 2, 4, 2, 1)) & _each(4)


def _fifth_bits(blocks: Blocks, start: int) -> Tensor:
    """32 single bits, lowest first, each as 16 in its byte; words (..., 2, 4)."""
    bits = words_at(blocks, start, 1).unsqueeze(-1)
    four = (bits >> _steps(bits, 8, 4, 2, 4)) & 15
    # Copies that lie seven bits apart have one bit each at the beginning of a byte.
    return ((four * 0x00204081) & EACH) << 4


def _q4_0(blocks: Blocks) -> Codes:
    return Codes(_nibbles(blocks, 2), _one(blocks, 0), offset=8)


def _in_place(words: Tensor, behind: int) -> tuple[Tensor, Tensor]:
    """Low halves of bytes, and high ones where they lie, along an axis of 1; what each counts for.

    A shift for each word is saved, and sums of what is 16 times as large are as exact.
    """
    high = _steps(words, 2, 1, 2, *(1,) * behind)
    units = (high == 1).where(2.0**-4, 1.0).flatten()
    return words & (_each(4) << (high.unsqueeze(-1) * 4)), units


def _q4_1(blocks: Blocks) -> Codes:
    if isinstance(blocks, Planes):
        words, units = _in_place(words_at(blocks, 4, 4).unsqueeze(-2), 0)
        return Codes(words, _one(blocks, 0), _one(blocks, 2), units=units)
    return Codes(_nibbles(blocks, 4), _one(blocks, 0), _one(blocks, 2))


def _q5_0(blocks: Blocks) -> Codes:
    words = _nibbles(blocks, 6) | _fifth_bits(blocks, 2)
    return Codes(words, _one(blocks, 0), offset=16)


def _q5_1(blocks: Blocks) -> Codes:
    words = _nibbles(blocks, 8) | _fifth_bits(blocks, 4)
    return Codes(words, _one(blocks, 0), _one(blocks, 2))


def _q8_0(blocks: Blocks) -> Codes:
    words = words_at(blocks, 2, 8).reshape(*blocks.shape[:-1], 2, 4)
    return Codes(words ^ -0x7F7F7F80, _one(blocks, 0), offset=128)


def _one(blocks: Blocks, start: int) -> Tensor:
    """The float16 at a byte of each block: its only group's."""
    return half(blocks, start).squeeze(-1)


def _halves(blocks: Blocks, start: int) -> Tensor:
    """Codes of 4 bits of four runs of 32 bytes, each its low halves, then its high: (8, 2, 4)."""
    words = words_at(blocks, start, 32).reshape(*blocks.shape[:-1], 4, 1, 2, 4)
    return (words >> _steps(words, 2, 4, 2, 1, 1)) & _each(4)


def _q4_k(blocks: Blocks) -> Codes:
    if isinstance(blocks, Planes):
        held = words_at(blocks, 16, 32).reshape(*blocks.shape[:-1], 4, 1, 2, 4)
        words, units = _in_place(held, 1)
        return Codes(words, *_pairs(blocks), within=-2, units=units)
    return Codes(_halves(blocks, 16), *_pairs(blocks), within=-2)


def _q5_k(blocks: Blocks) -> Codes:
    high = words_at(blocks, 16, 8).reshape(*blocks.shape[:-1], 1, 1, 2, 4)
    bits = ((high >> _steps(high, 8, 1, 4, 2, 1, 1)) & EACH) << 4
    return Codes(_halves(blocks, 48) | bits, *_pairs(blocks), within=-2)


def _pairs(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The scales and minima of eight groups, in pairs: (4, 2); what they hold is added."""
    if isinstance(blocks, Planes):
        scales, minima = (each.reshape(*blocks.shape[:-1], 4, 2) for each in six_bits(blocks, 4))
        return half(blocks, 0).unsqueeze(-1) * scales, -(half(blocks, 2).unsqueeze(-1) * minima)
    scales, minima, more = (words_at(blocks, at, 1).unsqueeze(-1) for at in (4, 8, 12))
    pair = _steps(scales, 4, 1, 4, 1)
    # The first four of each lie whole in a byte; the others are of a nibble and two spare bits.
    found = []
    for low, high, start in ((scales, more, 0), (minima, more >> 4, 2)):
        spread = (high & _each(4)) | ((low >> 2) & 0x30303030)
        word = (pair < 2).where(low & _each(6), spread)
        number = (word >> ((pair & 1) * 16 + _steps(word, 2, 8, 1, 2))) & 63
        found.append(half(blocks, start).unsqueeze(-1) * number)
    return found[0], -found[1]


def _q6_k(blocks: Blocks) -> Codes:
    lead = blocks.shape[:-1]
    # Two halves, then: low or high bits of a byte, runs of 32 bytes, groups of 16, words.
    low = words_at(blocks, 0, 32).reshape(*lead, 2, 1, 2, 2, 1, 4)
    high = words_at(blocks, 128, 16).reshape(*lead, 2, 1, 1, 2, 1, 4)
    low = (low >> _steps(low, 2, 4, 2, 1, 1, 1, 1)) & _each(4)
    high = (high >> _steps(high, 4, 2, 2, 2, 1, 1, 1)) & _each(2)
    scale = half(blocks, 208) * signed_field(blocks, 192, 208)
    return Codes(low | (high << 4), scale.reshape(*lead, 2, 2, 2, 2), offset=32, within=-4)


def _quarters(blocks: Blocks, start: int) -> Tensor:
    """Codes of 2 bits of two runs of 32 bytes, each 16 a group: (2, 4, 2, 1, 4)."""
    words = words_at(blocks, start, 16).reshape(*blocks.shape[:-1], 2, 1, 2, 1, 4)
    return (words >> _steps(words, 4, 2, 4, 1, 1, 1)) & _each(2)


def _q2_k(blocks: Blocks) -> Codes:
    lead = blocks.shape[:-1]
    scales = field(blocks, 0, 16)
    scale = (half(blocks, 80) * (scales & 15)).reshape(*lead, 2, 4, 2)
    minimum = (half(blocks, 82) * (scales >> 4)).reshape(*lead, 2, 4, 2)
    return Codes(_quarters(blocks, 16), scale, -minimum, within=-3)


def _q3_k(blocks: Blocks) -> Codes:
    lead = blocks.shape[:-1]
    high = words_at(blocks, 0, 8).reshape(*lead, 1, 1, 2, 1, 4)
    bits = ((high >> _steps(high, 8, 1, 2, 4, 1, 1, 1)) & EACH) << 2
    low = unpack(field(blocks, 96, 104), 4, 2).reshape(*lead, 16)
    more = unpack(field(blocks, 104, 108), 2, 4).reshape(*lead, 16)
    scale = half(blocks, 108) * ((low | (more << 4)) - 32)
    return Codes(_quarters(blocks, 32) | bits, scale.reshape(*lead, 2, 4, 2), offset=4, within=-3)


CODES: Mapping[str, Callable[[Blocks], Codes]] = MappingProxyType({
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
})  # fmt: skip


def _rounded(values: Tensor) -> Tensor:
    """Numbers rounded to float16, or as they are where float16 has no normal number for them.

    Said so, they are stored in float32: each is read by many products.
    """
    size = values.abs()
    is_normal = (size >= _SMALLEST_HALF) & (size <= _LARGEST_HALF)
    return is_normal.where(values.cast(dtypes.float16).cast(dtypes.float32), values)


def quantised_rows(x: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bytes (..., blocks, block) of rows (..., width) of float32, and what one stands for.

    That is float32 (..., blocks), once as it is, and once as it is kept: small blocks keep float16.
    """
    parts = x.reshape(*x.shape[:-1], x.shape[-1] // block, block)
    largest = parts.abs().amax(-1)
    is_nothing = largest < _NOTHING
    inverse = is_nothing.where(0.0, _LARGEST / largest)
    codes = (parts * inverse.unsqueeze(-1)).round().cast(dtypes.int8)
    if block == SMALL_BLOCK:
        step = largest / _LARGEST
        return codes, step, _rounded(step).contiguous()
    step = is_nothing.where(0.0, 1.0 / inverse).contiguous()
    return codes, step, step


def byte_linear(x: Tensor, blocks: Tensor, name: str) -> Tensor:
    """Rows (..., width) of float32 times matrices of blocks (..., out, blocks, nbytes): (..., out).

    There is a matrix for each row, or one for all; axes may be 1 in either, as in any product.
    """
    *stack, _, count, _ = blocks.shape
    size = x.shape[-1] // count
    codes, step, kept = quantised_rows(x, size)
    held = CODES[name](blocks)
    lead, groups = x.shape[:-1], held.scale.shape[len(stack) + 2 :]
    packed, rows = held.words.flatten(-2), len(lead)
    codes = codes.reshape(*lead, count, *groups, packed.shape[-1] * WORD).contiguous()
    sums = codes.sum(-1, dtype=dtypes.int32)
    words = codes.view(dtypes.int32).unsqueeze(rows)
    before: Tensor | int = 0
    if held.offset:
        before = (sums * -held.offset).contiguous().unsqueeze(rows).unsqueeze(-1)
    # What a group comes to is a whole number: its words are one product after the other.
    dots = packed[..., :1].dot_bytes(words[..., :1], before)
    for link in range(1, packed.shape[-1]):
        dots = packed[..., link : link + 1].dot_bytes(words[..., link : link + 1], dots)
    own = groups if size == SMALL_BLOCK else (1,) * len(groups)
    scale = kept.reshape(*lead, 1, count, *own)
    found = dots.squeeze(-1).cast(dtypes.float32) * scale * held.scale
    if held.minimum is not None:
        values = sums.cast(dtypes.float32) * step.reshape(*lead, count, *own)
        if size == SMALL_BLOCK:
            values = _rounded(values)
        found = found + held.minimum * values.contiguous().unsqueeze(rows)
    return found.sum(tuple(range(-1 - len(groups), 0)))

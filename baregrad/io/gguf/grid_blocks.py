"""What blocks of 256 elements hold that name points of a grid (IQ1 to IQ3).

Each function takes blocks of bytes (..., nbytes) and the codes of its grid's points, and gives the
elements (..., 256) in float32, lazily, with the multiplications and their order of ggml's own
dequantisation. The layouts are those of the block structures in ggml/src/ggml-common.h of
github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.io.gguf.bits import field, half, half_of, odd_parity, unpack, words
from baregrad.tensor import Tensor


def iq2_xxs(blocks: Tensor, grid: Tensor) -> Tensor:
    """8 bits for each 8 elements, 7 bits of signs, a scale of 4 bits for each 32."""
    groups = field(blocks, 2, 66, 8, 8)
    signs, scale = _signs_and_scale(groups[..., 4:])
    scale = half(blocks, 0).unsqueeze(-1) * (0.5 + scale) * 0.25
    return _signed_points(scale, _three_steps(_points(grid, groups[..., :4], 2, 8)), signs)


def iq2_xs(blocks: Tensor, grid: Tensor) -> Tensor:
    """9 bits for each 8 elements, 7 bits of signs, a scale of 4 bits for each 16."""
    lead = blocks.shape[:-1]
    codes = words(blocks, 2, 32).reshape(*lead, 16, 2)
    points = _three_steps(_points(grid, codes & 511, 2, 8))
    return _signed_points(_quarter_scale(blocks, 66), points, _whole_signs(codes >> 9))


def iq2_s(blocks: Tensor, grid: Tensor) -> Tensor:
    """10 bits for each 8 elements, 8 bits of signs, a scale of 4 bits for each 16."""
    lead = blocks.shape[:-1]
    low = field(blocks, 2, 34, 16, 2)
    high = unpack(field(blocks, 66, 74), 2, 4, -1).reshape(*lead, 16, 2)
    points = _three_steps(_points(grid, low | (high << 8), 2, 8))
    return _signed_points(_quarter_scale(blocks, 74), points, field(blocks, 34, 66, 16, 2))


def iq3_xxs(blocks: Tensor, grid: Tensor) -> Tensor:
    """8 bits for each 4 elements, 7 bits of signs for 8, a scale of 4 bits for each 32."""
    lead = blocks.shape[:-1]
    signs, scale = _signs_and_scale(field(blocks, 66, 98, 8, 4))
    scale = half(blocks, 0).unsqueeze(-1) * (0.5 + scale) * 0.5
    steps = _points(grid, field(blocks, 2, 66), 3, 4).reshape(*lead, 8, 4, 8)
    # Steps of 8 from 4 on, but that the last is 62.
    points = (steps << 3) + 4 + ((steps == 7).cast(dtypes.int32) << 1)
    return _signed_points(scale, points, signs)


def iq3_s(blocks: Tensor, grid: Tensor) -> Tensor:
    """9 bits for each 4 elements, 8 bits of signs for 8, a scale of 4 bits for each 32."""
    lead = blocks.shape[:-1]
    high = unpack(field(blocks, 66, 74), 1, 8, -1).flatten(-2)
    codes = field(blocks, 2, 66) | (high << 8)
    points = (_points(grid, codes, 3, 4).reshape(*lead, 8, 4, 8) << 1) + 1
    scales = unpack(field(blocks, 106, 110), 4, 2, -1).reshape(*lead, 8, 1)
    scale = half(blocks, 0).unsqueeze(-1) * ((scales << 1) + 1)
    return _signed_points(scale, points, field(blocks, 74, 106, 8, 4))


def iq1_s(blocks: Tensor, grid: Tensor) -> Tensor:
    """11 bits for each 8 elements of -1, 0, 1; a shift's sign and a scale of 3 bits for 32."""
    lead = blocks.shape[:-1]
    heads = words(blocks, 34, 8)
    codes = field(blocks, 2, 34, 8, 4) | (unpack(heads, 3, 4, -1) << 8)
    scale = half(blocks, 0) * ((((heads >> 12) & 7) << 1) + 1)
    shift = _shift(heads >> 15).reshape(*lead, 8, 1, 1)
    points = _points(grid, codes, 2, 8) - 1
    return (scale.reshape(*lead, 8, 1, 1) * (points + shift)).flatten(-3)


def iq1_m(blocks: Tensor, grid: Tensor) -> Tensor:
    """11 bits for each 8 elements of -1, 0, 1 and a shift's sign; scales of 3 bits for 16.

    The scale of the block is a float16 whose four digits stand atop the words of scales.
    """
    lead = blocks.shape[:-1]
    heads = words(blocks, 48, 4)
    tops = heads >> 12
    whole = half_of(
        tops[..., :1] | (tops[..., 1:2] << 4) | (tops[..., 2:3] << 8) | (tops[..., 3:] << 12)
    )
    scales = unpack(heads, 3, 4, -1).flatten(-2)
    scale = (whole * ((scales << 1) + 1)).reshape(*lead, 16, 1, 1)
    more = unpack(field(blocks, 32, 48), 4, 2, -1)
    codes = field(blocks, 0, 32, 16, 2) | ((more & 7) << 8)
    points = _points(grid, codes, 2, 8) - 1
    return (scale * (points + _shift(more >> 3).unsqueeze(-1))).flatten(-3)


def _points(grid: Tensor, codes: Tensor, bits: int, count: int) -> Tensor:
    """The coordinates of points by number, `count` of `bits` bits each, along a new last axis."""
    return unpack(grid[codes].cast(dtypes.int32), bits, count, -1)


def _three_steps(steps: Tensor) -> Tensor:
    """0, 1, 2 as 8, 25, 43."""
    return 8 + steps * 17 + (steps >> 1)


def _shift(signs: Tensor) -> Tensor:
    """An eighth, negative where the sign is 1."""
    return 0.125 - signs.cast(dtypes.float32) * 0.25


def _whole_signs(codes: Tensor) -> Tensor:
    """7 signs with the eighth that makes their number even."""
    return codes | (odd_parity(codes) << 7)


def _signs_and_scale(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The signs (..., 4) and the scale (..., 1) that a 32-bit word (..., 4 bytes) holds.

    Four times 7 bits, then 4 bits.
    """
    low = groups[..., :1] | (groups[..., 1:2] << 8)
    word = low | (groups[..., 2:3] << 16) | (groups[..., 3:] << 24)
    return _whole_signs(unpack(word, 7, 4, -1).flatten(-2)), (word >> 28) & 15


def _quarter_scale(blocks: Tensor, start: int) -> Tensor:
    """The scales of 16 sub-blocks (..., 16, 1): d (1/2 + s) / 4 with s of 4 bits."""
    scales = unpack(field(blocks, start, start + 8), 4, 2, -1).flatten(-2).unsqueeze(-1)
    return half(blocks, 0).unsqueeze(-1) * (0.5 + scales) * 0.25


def _signed_points(scale: Tensor, points: Tensor, signs: Tensor) -> Tensor:
    """Points (..., groups, n, 8) times scales (..., groups, 1), negative where signs say so."""
    sign = 1 - (unpack(signs, 1, 8, -1) << 1)
    return (scale.unsqueeze(-1) * points * sign).flatten(-3)

"""What blocks of 256 elements with scales of 4 to 8 bits for each sub-block hold (K-quants).

Each function takes blocks of bytes (..., nbytes), or their planes, and gives the elements
(..., 256) in float32, lazily, with the multiplications and their order of ggml's own
dequantisation. The layouts are those of the block structures in ggml/src/ggml-common.h of
github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.io.gguf.bits import (
    Blocks,
    choose,
    codes,
    field,
    half,
    per_code,
    scaled,
    signed,
    signed_field,
    six_bits,
    unpack,
    words,
)
from baregrad.io.gguf.plain_blocks import UNEVEN
from baregrad.tensor import Tensor


def spread_pairs(blocks: Blocks, start: int) -> Tensor:
    """256 codes of 2 bits: those of a byte lie 32 elements apart; (..., 2, 4, 32)."""
    return unpack(codes(blocks, start, start + 64, 2, 32), 2, 4)


def q2_k(blocks: Blocks) -> Tensor:
    """2 bits, and a scale and a minimum of 4 bits for each 16."""
    pairs = spread_pairs(blocks, 16).reshape(*per_code(blocks, 16, 16))
    scales = field(blocks, 0, 16, 16, 1)
    scale = half(blocks, 80).unsqueeze(-1) * (scales & 15)
    minimum = half(blocks, 82).unsqueeze(-1) * (scales >> 4)
    return scaled(blocks, scale, pairs, minimum=minimum)


def q3_k(blocks: Blocks) -> Tensor:
    """2 bits and a third apart, around 4, and a scale of 6 bits around 32 for each 16."""
    lead = blocks.shape[:-1]
    low = spread_pairs(blocks, 32).reshape(*per_code(blocks, 16, 16))
    high = unpack(codes(blocks, 0, 32), 1, 8).reshape(*per_code(blocks, 16, 16))
    # Scale 8a + 4b + c: nibble a of byte 4b + c, and the bits 2(2a + b) on of byte 8 + c.
    scale_low = unpack(field(blocks, 96, 104), 4, 2).reshape(*lead, 16, 1)
    scale_high = unpack(field(blocks, 104, 108), 2, 4).reshape(*lead, 16, 1)
    scales = (scale_low | (scale_high << 4)) - 32
    scale = half(blocks, 108).unsqueeze(-1) * scales
    return scaled(blocks, scale, low | (high << 2), 4)


def q4_k(blocks: Blocks) -> Tensor:
    """4 bits, and a scale and a minimum of 6 bits for each 32."""
    return _scaled(blocks, unpack(codes(blocks, 16, 144, 4, 32), 4, 2))


def q5_k(blocks: Blocks) -> Tensor:
    """As Q4_K with a fifth bit apart."""
    low = unpack(codes(blocks, 48, 176, 4, 32), 4, 2).reshape(*per_code(blocks, 8, 32))
    high = unpack(codes(blocks, 16, 48), 1, 8)
    return _scaled(blocks, low | (high << 4))


def _scaled(blocks: Blocks, found: Tensor) -> Tensor:
    """Codes of (..., 8, 32) times the scales, less the minima, that bytes 0 to 16 hold."""
    scales, minima = six_bits(blocks, 4)
    scale = half(blocks, 0).unsqueeze(-1) * scales
    minimum = half(blocks, 2).unsqueeze(-1) * minima
    return scaled(blocks, scale, found.reshape(*per_code(blocks, 8, 32)), minimum=minimum)


def q6_k(blocks: Blocks) -> Tensor:
    """4 bits and 2 apart, around 32, and a scale of 8 bits for each 16."""
    shape = per_code(blocks, 16, 16)
    low = unpack(codes(blocks, 0, 128, 2, 64), 4, 2).reshape(*shape)
    high = unpack(codes(blocks, 128, 192, 2, 32), 2, 4).reshape(*shape)
    scale = half(blocks, 208).unsqueeze(-1) * signed_field(blocks, 192, 208, 16, 1)
    return scaled(blocks, scale, low | (high << 4), 32)


def q8_k(blocks: Blocks) -> Tensor:
    """Bytes with a sign and one scale in float32, beside sums of 16."""
    pair = words(blocks, 0, 2)
    scale = (pair[..., :1] | (pair[..., 1:] << 16)).bitcast(dtypes.float32)
    return scale * signed(field(blocks, 4, 260))


def iq4_xs(blocks: Blocks) -> Tensor:
    """Sixteen uneven steps, and a scale of 6 bits around 32 for each 32."""
    lead = blocks.shape[:-1]
    nibbles = unpack(field(blocks, 8, 136, 8, 16), 4, 2).reshape(*lead, 8, 32)
    low = unpack(field(blocks, 4, 8), 4, 2, -1).reshape(*lead, 8, 1)
    high = unpack(field(blocks, 2, 4), 2, 4, -1).reshape(*lead, 8, 1)
    scale = half(blocks, 0).unsqueeze(-1) * ((low | (high << 4)) - 32)
    return (scale * choose(nibbles, UNEVEN)).flatten(-2)

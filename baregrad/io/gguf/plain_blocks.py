"""What blocks of one scale, or of a scale a sub-block of any number format, hold.

Each function takes blocks of bytes (..., nbytes), or their planes, and gives the elements
(..., block) in float32, lazily, with the multiplications and their order of ggml's own
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
    scaled,
    signed_codes,
    unpack,
)
from baregrad.tensor import Tensor

# The sixteen steps of IQ4: denser around zero, as weights are.
UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def nibbles(blocks: Blocks, start: int) -> Tensor:
    """32 codes of 4 bits: low halves of 16 bytes, then their high halves."""
    return unpack(field(blocks, start, start + 16), 4, 2).flatten(-2)


def _halves(blocks: Blocks, start: int) -> Tensor:
    """As `nibbles`, four of them in a word where blocks are planes."""
    return unpack(codes(blocks, start, start + 16), 4, 2).flatten(-2)


def fifth_bits(blocks: Blocks, start: int) -> Tensor:
    """32 single bits, lowest first, each as 0 or 16."""
    return unpack(field(blocks, start, start + 4), 1, 8, -1).flatten(-2) << 4


def q4_0(blocks: Blocks) -> Tensor:
    """4 bits around 8, one scale."""
    return scaled(blocks, half(blocks, 0), _halves(blocks, 2), 8)


def q4_1(blocks: Blocks) -> Tensor:
    """4 bits from a minimum on."""
    return scaled(blocks, half(blocks, 0), _halves(blocks, 4), addend=half(blocks, 2))


def q5_0(blocks: Blocks) -> Tensor:
    """5 bits around 16, the highest bits apart."""
    return half(blocks, 0) * ((nibbles(blocks, 6) | fifth_bits(blocks, 2)) - 16)


def q5_1(blocks: Blocks) -> Tensor:
    """5 bits from a minimum on, the highest bits apart."""
    return half(blocks, 0) * (nibbles(blocks, 8) | fifth_bits(blocks, 4)) + half(blocks, 2)


def q8_0(blocks: Blocks) -> Tensor:
    """Bytes with a sign, one scale."""
    return scaled(blocks, half(blocks, 0), signed_codes(blocks, 2, 34), 128)


def q8_1(blocks: Blocks) -> Tensor:
    """As Q8_0, beside the sum of the block."""
    return scaled(blocks, half(blocks, 0), signed_codes(blocks, 4, 36), 128)


def iq4_nl(blocks: Blocks) -> Tensor:
    """Sixteen uneven steps, one scale."""
    return half(blocks, 0) * choose(nibbles(blocks, 2), UNEVEN)


def q1_0(blocks: Blocks) -> Tensor:
    """One bit: the scale or its negative."""
    return half(blocks, 0) * ((unpack(field(blocks, 2, 18), 1, 8, -1).flatten(-2) << 1) - 1)


def q2_0(blocks: Blocks) -> Tensor:
    """2 bits around 1."""
    return half(blocks, 0) * (unpack(field(blocks, 2, 18), 2, 4, -1).flatten(-2) - 1)


def tq2_0(blocks: Blocks) -> Tensor:
    """2 bits around 1, four a byte that lie 32 elements apart."""
    codes = unpack(field(blocks, 0, 64, 2, 32), 2, 4)
    return half(blocks, 64) * (codes.flatten(-3) - 1)


def tq1_0(blocks: Blocks) -> Tensor:
    """Five digits of base 3 a byte, as a fraction of 256 that is multiplied up; four in the last.

    The first 32 bytes hold digits that lie 32 elements apart, the next 16 those that lie 16 apart
    and the last 4 those that lie 4 apart.
    """
    parts = [
        _digits(field(blocks, start, start + count), digits)
        for start, count, digits in ((0, 32, 5), (32, 16, 5), (48, 4, 4))
    ]
    return half(blocks, 52) * (Tensor.cat(*parts, dim=-1) - 1)


def _digits(codes: Tensor, count: int) -> Tensor:
    """The first `count` digits of base 3 of each fraction, one digit of all after the other."""
    digit = Tensor.arange(count, dtype=dtypes.int32, device=codes.device).reshape(count, 1)
    # Powers of three in bytes of one word, but for the fifth.
    power = (digit < 4).where((0x1B090301 >> ((digit & 3) << 3)) & 255, 81)
    fraction = (codes.unsqueeze(-2) * power) & 255
    return ((fraction * 3) >> 8).flatten(-2)


def mxfp4(blocks: Blocks) -> Tensor:
    """Small floats of 4 bits, doubled, and a power of two halved."""
    return _halved_power(field(blocks, 0, 1)) * _small_floats(nibbles(blocks, 1))


def nvfp4(blocks: Blocks) -> Tensor:
    """Small floats of 4 bits, doubled, and a small float of 8 bits, halved, for each 16."""
    codes = unpack(field(blocks, 4, 36, 4, 8), 4, 2).flatten(-2)
    scale = field(blocks, 0, 4, 4, 1)
    return (_small_scale(scale) * _small_floats(codes)).flatten(-2)


def _small_floats(codes: Tensor) -> Tensor:
    """Twice the E2M1 numbers of 4-bit codes as int32: 0 1 2 3 4 6 8 12 and their negatives.

    Source: OCP Microscaling Formats (MX) Specification 1.0, 5.3.3.
    """
    return choose(codes, (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))


def _halved_power(codes: Tensor) -> Tensor:
    """2**(code - 128) in float32: half of what the E8M0 code means.

    The lowest two are below float32's normal numbers, so their bits are written as they are.
    """
    bits = (codes < 2).where(0x200000 << codes, (codes - 1) << 23)
    return bits.bitcast(dtypes.float32)


def _small_scale(codes: Tensor) -> Tensor:
    """Half of the unsigned E4M3 numbers in float32; the code 0x7F, which is no number, gives 0."""
    exponent, fraction = (codes >> 3) & 15, codes & 7
    # An exponent field of n stands for 2**(n - 7), which halved has n + 119 in float32.
    normal = (((exponent + 119) << 23) | (fraction << 20)).bitcast(dtypes.float32)
    small = fraction.cast(dtypes.float32) * 2.0**-10
    return (codes == 0x7F).where(0.0, (exponent == 0).where(small, normal))

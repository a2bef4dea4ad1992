"""Numbers of few bits with a scale for each block of a row: 8-bit and 4-bit floats, and integers.

A row's elements are divided by their block's scale, rounded to the format's elements, and kept as
codes, two of 4 bits in a byte, the first in its lower half. Products of two such arrays are summed
block by block: sums of a block's products are exact or rounded in float32, multiplied by both
scales, and added up in float32. Sources: OCP Microscaling Formats 1.0, 2023 (mx); DeepSeek-V3
Technical Report, 2024, section 3.3 (8-bit floats by blocks of 128).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, as_dtype, dtypes
from baregrad.tensor import Tensor

F32, U8 = dtypes.float32, dtypes.uint8


class BlockFormat(NamedTuple):
    """Elements, how many of a row have one scale, and whether scales are powers of two.

    Those are kept as their exponents plus 127, in a byte (e8m0), others in float32.
    """

    name: str
    element: DType
    length: int
    is_power: bool

    @property
    def packed(self) -> int:
        """Elements in a byte."""
        return 8 // self.element.bits


FORMATS: MappingProxyType[str, BlockFormat] = MappingProxyType({
    row.name: row
    for row in (
        BlockFormat("mxfp8", dtypes.float8_e4m3fn, 32, True),
        BlockFormat("mxfp8_e5m2", dtypes.float8_e5m2, 32, True),
        BlockFormat("mxfp4", dtypes.float4_e2m1fn, 32, True),
        BlockFormat("fp8", dtypes.float8_e4m3fn, 128, False),
        BlockFormat("fp8_e5m2", dtypes.float8_e5m2, 128, False),
        BlockFormat("fp8_e8m0", dtypes.float8_e4m3fn, 128, True),
        BlockFormat("int4", dtypes.int4, 128, False),
    )
})  # fmt: skip


class BlockScaled(NamedTuple):
    """An array (..., K) of a block format: codes (..., K / packed), scales (..., R, K / length).

    `rows` of the next to last axis share scales. codes: of the 8-bit float itself, or uint8.
    """

    format: BlockFormat
    codes: Tensor
    scales: Tensor
    rows: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        *front, last = self.codes.shape
        return (*front, int(last) * self.format.packed)

    def elements(self) -> Tensor:
        """The numbers before they are multiplied by scales, as float32."""
        if self.format.packed == 1:
            return self.codes.cast(F32)
        halves = Tensor.stack([self.codes & 15, self.codes >> 4], dim=-1).reshape(self.shape)
        if self.format.element.is_float:
            # As a float16 the code is too small by the difference of the biases, 15 and 1.
            word = halves.cast(dtypes.uint16)
            bits = ((word & 8) << 12) | ((word & 7) << 9)
            return bits.view(dtypes.float16).cast(F32) * 2.0**14
        return (halves ^ 8).cast(F32) - 8.0

    def factors(self) -> Tensor:
        """The scales as float32, (..., R, K / length): NaN where the format has such."""
        return _powers(self.scales) if self.format.is_power else self.scales

    def dequantize(self, dtype: DType | str = F32) -> Tensor:
        """The numbers in a dtype."""
        found = self.elements()
        blocks = found.unflatten(-1, (-1, self.format.length))
        scaled = blocks * _spread(self.factors(), self.rows).unsqueeze(-1)
        return scaled.flatten(-2).cast(dtype)


def quantize_blocks(x: Tensor, format: str | BlockFormat, rows: int = 1) -> BlockScaled:
    """The numbers of an array (..., K) in a block format, with scales along its last axis.

    rows: how many of the next to last axis share a scale, as 128 do of weights in blocks of 128 x
    128. Scales are of the largest magnitude in a block: the power of two at or below it, by that of
    the largest element (mx), else such that it becomes the largest element, and 1 for zeros. A
    block with an infinity or NaN is NaN, where its elements have such. Raises ArgumentError for
    other formats, ShapeError where blocks do not fill the array, DTypeError for what is no float.
    """
    row = _format_of(format)
    if not x.dtype.is_float:
        raise DTypeError("blocks are scaled of floats", found=x.dtype, wanted="floats")
    if not x.ndim or x.shape[-1] % row.length or (rows > 1 and (x.ndim < 2 or x.shape[-2] % rows)):
        raise ShapeError(
            f"{row.name} has blocks of {rows} x {row.length}", found=list(x.shape),
            wanted="whole blocks along the last axes", hint="pad it with zeros",
        )
    blocks = x.cast(F32).unflatten(-1, (-1, row.length))
    largest = blocks.abs().amax(-1)
    if rows > 1:
        largest = largest.unflatten(-2, (-1, rows)).amax(-2)
    scales, factors = _scales(largest, row)
    scaled = (blocks / _spread(factors, rows).unsqueeze(-1)).flatten(-2)
    top = float(row.element.max)
    # Beyond the largest some formats have NaN, or an infinity.
    limited = scaled.clamp(-top, top)
    if not row.element.is_float:
        codes = limited.round().cast(dtypes.int8).view(U8) & 15
    elif row.packed == 1:
        return BlockScaled(row, limited.cast(row.element).contiguous(), scales, rows)
    else:
        codes = _codes_of_e2m1(limited.cast(row.element).cast(F32))
    pairs = codes.unflatten(-1, (-1, 2))
    return BlockScaled(row, (pairs[..., 0] | (pairs[..., 1] << 4)).contiguous(), scales, rows)


def scaled_matmul(x: BlockScaled, other: BlockScaled, dtype: DType | str = F32) -> Tensor:
    """Return x @ other.mT: (..., M, K), (N, K) -> (..., M, N), summed block by block.

    Where scales are powers of two and elements floats, factors are bfloat16 exactly, and so is
    their product up to float32's sums. Raises ShapeError for shapes or blocks that do not fit.
    """
    for one in (x, other):
        if not isinstance(one, BlockScaled):
            raise ArgumentError(
                "a product of blocks takes numbers with scales", found=type(one).__name__,
                wanted="what quantize_blocks gives",
            )
    length = x.format.length
    if len(other.shape) != 2 or x.shape[-1] != other.shape[1] or length != other.format.length:
        raise ShapeError(
            "a product of blocks takes (..., M, K) and (N, K), of blocks of one length",
            found=f"{list(x.shape)} of {length} and {list(other.shape)} of {other.format.length}",
        )
    target = as_dtype(dtype)
    if x.format.is_power and other.format.is_power:
        left, right = x.dequantize(dtypes.bfloat16), other.dequantize(dtypes.bfloat16)
        return left.matmul(right.T, out_dtype=target)
    left, right = _in_blocks(x), _in_blocks(other)
    # (..., blocks, M, N), of which each block has its scales.
    sums = left.matmul(right.mT, out_dtype=F32)
    rows = _spread(x.factors(), x.rows).transpose(-1, -2).unsqueeze(-1)
    columns = _spread(other.factors(), other.rows).transpose(-1, -2).unsqueeze(-2)
    return (sums * rows * columns).sum(-3).cast(target)


def _in_blocks(x: BlockScaled) -> Tensor:
    """Elements (..., blocks, M, length): 8-bit floats as they are, others in bfloat16."""
    whole = x.codes if x.format.packed == 1 else x.elements().cast(dtypes.bfloat16)
    return whole.unflatten(-1, (-1, x.format.length)).transpose(-3, -2)


def _format_of(format: str | BlockFormat) -> BlockFormat:
    if isinstance(format, BlockFormat):
        return format
    found = FORMATS.get(format)
    if found is None:
        raise ArgumentError("no such block format", found=repr(format), wanted=", ".join(FORMATS))
    return found


def _spread(factors: Tensor, rows: int) -> Tensor:
    """Factors (..., R, blocks) for each of the rows that share them."""
    return factors if rows == 1 else factors.repeat_interleave(rows, -2)


def _scales(largest: Tensor, row: BlockFormat) -> tuple[Tensor, Tensor]:
    """What is kept of scales for the largest magnitudes, and their values."""
    if not row.is_power:
        found = (largest == 0).where(1.0, largest / float(row.element.max)).contiguous()
        return found, found
    exponent = (largest.view(dtypes.int32) >> 23) & 255
    form = row.element.format
    assert form is not None
    top = (form.largest_code >> form.mantissa_bits) - form.bias
    code = (exponent == 255).where(255, (exponent - top).clamp(0, 254)).cast(U8).contiguous()
    return code, _powers(code)


def _powers(codes: Tensor) -> Tensor:
    """2 ** (code - 127) as float32; NaN for 255. The least one is no normal number."""
    bits = codes.cast(dtypes.int32)
    least, none = 1 << 22, 0x7FC00000
    found = (bits == 0).where(least, (bits == 255).where(none, bits << 23))
    return found.cast(dtypes.int32).view(F32)


def _codes_of_e2m1(values: Tensor) -> Tensor:
    """The codes of numbers that are e2m1: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and their negatives."""
    size = values.abs()
    places = (size < 2).where(size * 2, (size < 4).where(size + 2, size * 0.5 + 4))
    return places.cast(U8) | (values.signbit().cast(U8) << 3)

"""Numbers of few bits with a scale for each block of a row: 8-bit and 4-bit floats, and integers.

A row's elements are divided by their block's scale, rounded to the format's elements, and kept as
codes, two of 4 bits in a byte, the first in its lower half. Scales that are narrow themselves may
have one for the whole array above them. Products of two such arrays are summed block by block: sums
of a block's products are exact or rounded in float32, multiplied by the product of both scales, and
added up in float32. Sources: OCP Microscaling Formats 1.0, 2023 (mx); DeepSeek-V3 Technical Report,
2024, section 3.3 (8-bit floats by blocks of 128); "Introducing NVFP4", NVIDIA, 2025 (nvfp4).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, as_dtype, dtypes
from baregrad.tensor import Tensor

F32, U8, E8M0 = dtypes.float32, dtypes.uint8, dtypes.float8_e8m0fnu
E4M3, E5M2, E2M1 = dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float4_e2m1fn
# Digits of a bfloat16, the leading one among them.
_DIGITS = 8


class BlockFormat(NamedTuple):
    """Elements, how many of a row have one scale, and in what dtype scales are.

    whole: the array has a scale in float32 besides, above those of blocks.
    """

    name: str
    element: DType
    length: int
    scale: DType
    whole: bool = False

    @property
    def packed(self) -> int:
        """Elements in a byte."""
        return 8 // self.element.bits

    @property
    def is_short(self) -> bool:
        """Whether an element times its block's scale is a bfloat16."""
        element, scale = self.element.format, self.scale.format
        if element is None or scale is None:
            return False
        return element.mantissa_bits + scale.mantissa_bits + 2 <= _DIGITS


FORMATS: MappingProxyType[str, BlockFormat] = MappingProxyType({
    row.name: row
    for row in (
        BlockFormat("mxfp8", E4M3, 32, E8M0), BlockFormat("mxfp8_e5m2", E5M2, 32, E8M0),
        BlockFormat("mxfp4", E2M1, 32, E8M0), BlockFormat("nvfp4", E2M1, 16, E4M3, whole=True),
        BlockFormat("fp8", E4M3, 128, F32), BlockFormat("fp8_e5m2", E5M2, 128, F32),
        BlockFormat("fp8_e8m0", E4M3, 128, E8M0), BlockFormat("int4", dtypes.int4, 128, F32),
    )
})  # fmt: skip


class BlockScaled(NamedTuple):
    """An array (..., K) of a block format: codes (..., K / packed), scales (..., R, K / length).

    `rows` of the next to last axis share scales. codes: of the 8-bit float itself, or uint8. whole:
    a scale of all numbers, for formats that have one.
    """

    format: BlockFormat
    codes: Tensor
    scales: Tensor
    rows: int = 1
    whole: Tensor | None = None

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
        """The scales of blocks as float32, (..., R, K / length): NaN where the format has such."""
        return self.scales.cast(F32)

    def dequantize(self, dtype: DType | str = F32) -> Tensor:
        """The numbers in a dtype."""
        found = self.scaled()
        return (found if self.whole is None else found * self.whole).cast(dtype)

    def scaled(self) -> Tensor:
        """The elements times their blocks' scales, as float32."""
        found = self.elements()
        blocks = found.unflatten(-1, (-1, self.format.length))
        return (blocks * _spread(self.factors(), self.rows).unsqueeze(-1)).flatten(-2)


def quantize_blocks(x: Tensor, format: str | BlockFormat, rows: int = 1) -> BlockScaled:
    """The numbers of an array (..., K) in a block format, with scales along its last axis.

    rows: how many of the next to last axis share a scale, as 128 do of weights in blocks of 128 x
    128. Scales are of the largest magnitude in a block: the power of two at or below it, by that of
    the largest element (mx), else such that it becomes the largest element, and 1 for zeros. That
    of the whole array makes the largest scale the largest of its dtype. A block with an infinity or
    NaN is NaN, where its elements have such; with a scale for all, the whole array. Raises
    ArgumentError for other formats and for no rows, ShapeError where blocks do not fill the array,
    DTypeError for what is no float.
    """
    row = _format_of(format)
    if rows < 1:
        raise ArgumentError("so many rows share a scale", found=rows, wanted="1 or more")
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
    scales, whole = _scales(largest, row)
    factors = scales.cast(F32) if whole is None else scales.cast(F32) * whole
    # Of a scale that is too small to be one nothing is left.
    factors = (factors == 0).where(float("inf"), factors)
    scaled = (blocks / _spread(factors, rows).unsqueeze(-1)).flatten(-2)
    top = float(row.element.max)
    # Beyond the largest some formats have NaN, or an infinity.
    limited = scaled.clamp(-top, top)
    if not row.element.is_float:
        codes = limited.round().cast(dtypes.int8).view(U8) & 15
    elif row.packed == 1:
        return BlockScaled(row, limited.cast(row.element).contiguous(), scales, rows, whole)
    else:
        codes = _codes_of_e2m1(limited.cast(row.element).cast(F32))
    pairs = codes.unflatten(-1, (-1, 2))
    joined = (pairs[..., 0] | (pairs[..., 1] << 4)).contiguous()
    return BlockScaled(row, joined, scales, rows, whole)


def scaled_matmul(x: BlockScaled, other: BlockScaled, dtype: DType | str = F32) -> Tensor:
    """Return x @ other.mT: (..., M, K), (N, K) -> (..., M, N), summed block by block.

    Where elements times scales have few digits, as of mx and nvfp4, factors are bfloat16 exactly,
    and so is their product up to float32's sums. Raises ShapeError for shapes or blocks that do not
    fit.
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
    wholes = [one.whole for one in (x, other) if one.whole is not None]
    if x.format.is_short and other.format.is_short:
        left, right = (one.scaled().cast(dtypes.bfloat16) for one in (x, other))
        product = left.matmul(right.T, out_dtype=F32 if wholes else target)
        for whole in wholes:
            product = product * whole
        return product.cast(target)
    left, right = _in_blocks(x), _in_blocks(other)
    # (..., blocks, M, N), of which each block has its scales.
    sums = left.matmul(right.mT, out_dtype=F32)
    rows = _spread(x.factors(), x.rows).transpose(-1, -2).unsqueeze(-1)
    columns = _spread(other.factors(), other.rows).transpose(-1, -2).unsqueeze(-2)
    total = (sums * (rows * columns)).sum(-3)
    for whole in wholes:
        total = total * whole
    return total.cast(target)


def _in_blocks(x: BlockScaled) -> Tensor:
    """Elements (..., blocks, M, length): 8-bit floats as they are, others in bfloat16."""
    whole = x.codes if x.format.packed == 1 else x.elements().cast(dtypes.bfloat16)
    return whole.unflatten(-1, (-1, x.format.length)).transpose(-3, -2)


def _format_of(format: str | BlockFormat) -> BlockFormat:
    if isinstance(format, BlockFormat):
        return format
    found = FORMATS.get(format) if isinstance(format, str) else None
    if found is None:
        raise ArgumentError("no such block format", found=repr(format), wanted=", ".join(FORMATS))
    return found


def _spread(factors: Tensor, rows: int) -> Tensor:
    """Factors (..., R, blocks) for each of the rows that share them."""
    return factors if rows == 1 else factors.repeat_interleave(rows, -2)


def _scales(largest: Tensor, row: BlockFormat) -> tuple[Tensor, Tensor | None]:
    """The scales of blocks for their largest magnitudes, and that of the whole array."""
    top = float(row.element.max)
    if row.whole:
        most = top * float(row.scale.max)
        # Of no numbers the largest is that of zeros.
        found = (largest.amax() if largest.numel() else Tensor.zeros(device=largest.device)) / most
        whole = found.eq(0.0).where(1.0, found).contiguous()
        # One of few digits, as of numbers that are hardly any, may be too small for the largest.
        found = (largest / (whole * top)).minimum(float(row.scale.max))
        return found.cast(row.scale).contiguous(), whole
    if row.scale is F32:
        return (largest == 0).where(1.0, largest / top).contiguous(), None
    exponent = (largest.view(dtypes.int32) >> 23) & 255
    form = row.element.format
    assert form is not None
    power = (form.largest_code >> form.mantissa_bits) - form.bias
    code = (exponent == 255).where(255, (exponent - power).clamp(0, 254)).cast(U8)
    return code.view(E8M0).contiguous(), None


def _codes_of_e2m1(values: Tensor) -> Tensor:
    """The codes of numbers that are e2m1: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and their negatives."""
    size = values.abs()
    places = (size < 2).where(size * 2, (size < 4).where(size + 2, size * 0.5 + 4))
    return places.cast(U8) | (values.signbit().cast(U8) << 3)

"""Floating-point formats of any width: rounding, encoding and decoding, by exact arithmetic.

Rounding is to nearest, ties to even; of powers of two, which have no digits, ties go to the larger.
The formats and their special codes follow IEEE 754, the OCP 8-bit floating point specification 1.0
and the OCP microscaling specification 1.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


# Low digits of a float32 that a tfloat32 has not.
TF32_CUT: Final = 13


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format: one sign bit, then exponent, then mantissa.

    `bias` is the exponent bias. `special` says what the top codes mean: `ieee` has infinities and
    NaNs at the top exponent, `nan` has only the all-ones code as NaN (OCP e4m3), `none` is finite
    throughout (OCP e2m1). `powers`: it has neither sign nor zero, only powers of two (OCP e8m0).
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: Literal["ieee", "nan", "none"] = "ieee"
    powers: bool = False

    @property
    def bits(self) -> int:
        """All bits, the sign included."""
        return (not self.powers) + self.exponent_bits + self.mantissa_bits

    @property
    def largest_code(self) -> int:
        """The code of the largest finite value."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        if self.special == "ieee":
            return ((1 << self.exponent_bits) - 1 << self.mantissa_bits) - 1
        return top - 1 if self.special == "nan" else top

    @property
    def least_exponent(self) -> int:
        """The exponent of the smallest normal value."""
        return (not self.powers) - self.bias

    @property
    def largest(self) -> float:
        """The largest finite value."""
        field = self.largest_code >> self.mantissa_bits
        mantissa = self.largest_code & ((1 << self.mantissa_bits) - 1)
        significand = (1 << self.mantissa_bits) + mantissa
        return math.ldexp(significand, field - self.bias - self.mantissa_bits)


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Limits of a floating-point dtype: the finite range, and the distance from 1 to the next."""

    bits: int
    min: float
    max: float
    eps: float
    smallest_normal: float
    smallest_subnormal: float

    @property
    def tiny(self) -> float:
        """The least normal number, by its older name."""
        return self.smallest_normal

    @property
    def resolution(self) -> float:
        """The power of ten of the last decimal digit that every number near 1 keeps."""
        return float(f"1e-{math.floor(-math.log10(self.eps))}")


def info_of(form: FloatFormat, bits: int) -> FloatInfo:
    """Return the limits of a dtype of so many bits in memory."""
    normal = math.ldexp(1.0, form.least_exponent)
    return FloatInfo(
        bits=bits,
        min=normal if form.powers else -form.largest,
        max=form.largest,
        eps=math.ldexp(1.0, -form.mantissa_bits),
        smallest_normal=normal,
        smallest_subnormal=math.ldexp(normal, -form.mantissa_bits),
    )


def round_float(value: float, form: FloatFormat) -> float:
    """Return a Python float as `form` holds it; beyond the largest, as `encode_float` does."""
    if form.powers:
        code = encode_float(np.asarray(value, np.float64), form, False)
        return float(code_values(form)[int(code)])
    if form.mantissa_bits == 52 or value == 0.0 or (
        math.isinf(value) and form.special == "ieee"
    ):
        return value
    if math.isnan(value):
        return math.copysign(0.0, -math.copysign(1.0, value)) if form.special == "none" else value
    exponent = max(math.frexp(value)[1] - 1, form.least_exponent) if math.isfinite(value) else 0
    quantum = math.ldexp(1.0, exponent - form.mantissa_bits)
    rounded = value if math.isinf(value) else round(value / quantum) * quantum
    if abs(rounded) > form.largest:
        limit = {"ieee": math.inf, "nan": math.nan, "none": form.largest}[form.special]
        return math.copysign(limit, value)
    return math.copysign(rounded, value)


def encode_float(
    values: npt.NDArray[np.float64], form: FloatFormat, saturate: bool
) -> npt.NDArray[np.uint64]:
    """Return the codes of float64 values in any format.

    Beyond the largest finite value they become infinity, NaN (`nan` formats) or the largest value
    (`none` formats); with `saturate` always the largest. NaN is the quiet NaN of its sign, and
    the zero of the other sign where there is no NaN. Of powers, zero and what is negative are NaN.

    A magnitude is an integer count of its binade's quantum. Counting from the binade's start, the
    code is (binade << mantissa bits) + count, which also carries right when rounding reaches the
    next binade, and holds for subnormals, the binade 0 without a hidden bit.
    """
    if form.powers:
        return _encode_power(values, form, saturate)
    size = np.abs(values)
    finite = np.where(np.isfinite(values), size, 0.0)
    # The exponent of zero is reported as 0; zero belongs to the lowest binade.
    exponent = np.where(finite > 0, np.frexp(finite)[1] - 1, form.least_exponent)
    binade = np.maximum(exponent - form.least_exponent, 0).astype(np.int64)
    shift = form.mantissa_bits - form.least_exponent - binade
    count = np.rint(np.ldexp(finite, shift.astype(np.int32)))
    codes = (binade << form.mantissa_bits) + count.astype(np.int64)
    top = form.largest_code
    # One above the largest is infinity in IEEE formats and the NaN of e4m3.
    beyond = top if saturate or form.special == "none" else top + 1
    codes = np.where(np.isinf(size) | (codes > top), beyond, codes)
    ones = (1 << (form.bits - 1)) - 1
    quiet = {"ieee": top + 1 + (1 << form.mantissa_bits >> 1), "nan": ones, "none": 0}[form.special]
    sign = np.signbit(values)
    if form.special == "none":
        # ml_dtypes' convention where the specification has none: NaN is the zero of other sign.
        sign = sign ^ np.isnan(values)
    codes = np.where(np.isnan(values), quiet, codes)
    signs = sign.astype(np.int64) << (form.bits - 1)
    return np.asarray(codes | signs, np.uint64)


def _encode_power(
    values: npt.NDArray[np.float64], form: FloatFormat, saturate: bool
) -> npt.NDArray[np.uint64]:
    """Return the codes of float64 values in a format of powers of two: the nearest, or NaN."""
    holds = (values > 0) & (np.isfinite(values) | saturate)
    part, exponent = np.frexp(np.where(holds, values, 1.0))
    # A part is at least a half: from three quarters on the next power is as near.
    codes = exponent.astype(np.int64) - 1 + (part >= 0.75) + form.bias
    codes = np.where(np.isinf(part), form.largest_code, codes)
    beyond = form.largest_code + (not saturate)
    codes = np.clip(codes, 0, beyond)
    return np.asarray(np.where(holds, codes, form.largest_code + 1), np.uint64)


def bfloat16_codes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return bfloat16 codes of float32 values; NaN becomes the quiet NaN of its sign.

    Adds half of the dropped part, less one where the kept part is even: faster than `encode_float`.
    """
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    high = bits >> np.uint32(16)
    rounded = (bits + (np.uint32(0x7FFF) + (high & np.uint32(1)))) >> np.uint32(16)
    quiet = (high & np.uint32(0x8000)) | np.uint32(0x7FC0)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def code_values(form: FloatFormat) -> npt.NDArray[np.float32]:
    """Return the value of every code of a format of at most 8 bits, in order of code."""
    codes = np.arange(1 << form.bits)
    if form.powers:
        powers = np.ldexp(1.0, (codes - form.bias).astype(np.int32))
        return np.where(codes > form.largest_code, np.nan, powers).astype(np.float32)
    size = codes & ((1 << (form.bits - 1)) - 1)
    field = size >> form.mantissa_bits
    mantissa = size & ((1 << form.mantissa_bits) - 1)
    hidden = np.where(field > 0, 1 << form.mantissa_bits, 0)
    power = np.maximum(field, 1) - form.bias - form.mantissa_bits
    values = np.ldexp((hidden + mantissa).astype(np.float64), power.astype(np.int32))
    infinite = (mantissa == 0) & (form.special == "ieee")
    beyond = np.where(infinite, np.inf, np.nan)
    values = np.where(size > form.largest_code, beyond, values)
    return np.copysign(values, np.where(codes >> (form.bits - 1), -1.0, 1.0)).astype(np.float32)

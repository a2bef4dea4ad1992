"""Exact rounding: float64 pairs to the codes of any PTX float type, in any rounding mode.

An exact result is carried as `high + low`, float64 each, where `low` need only have the right sign
and be smaller than half a last place of `high`. Rounding that pair to odd first makes the rounding
that follows exact (S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved
algorithms using rounding to odd", IEEE Transactions on Computers 57, 2008).
"""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.base.floats import FloatFormat, code_values, encode_float
from baregrad.dtypes import dtypes
from baregrad.testing.virtual_gpu.ptx.types import UNSIGNED, Array

# rn: to nearest, ties to even; rna: ties away from zero; rz, rm, rp: toward zero, down and up.
ROUNDINGS: Final = ("rn", "rna", "rz", "rm", "rp")
_BITS: Final = MappingProxyType(
    {"e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "f64": 64}
)
_CANONICAL_NAN: Final = MappingProxyType({
    "e4m3": 0x7F, "e5m2": 0x7F, "f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF,
    "tf32": 0x7FFFFFFF, "f64": 0x7FF8000000000000,
})
_TF32: Final = FloatFormat(8, 10, 127)
_E4M3: Final = FloatFormat(4, 3, 7, "nan")
_E5M2: Final = FloatFormat(5, 2, 15)
_SMALL: Final = MappingProxyType({"e4m3": code_values(_E4M3), "e5m2": code_values(_E5M2)})


def decode(codes: Array, name: str) -> Array:
    """Return the float64 values of codes, or of NumPy floats, of a float type."""
    if name == "f16":
        return codes.view(np.float16).astype(np.float64)
    if name == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if name == "tf32":
        kept = codes.view(np.uint32) & np.uint32(0xFFFFE000)
        return kept.view(np.float32).astype(np.float64)
    if name in _SMALL:
        return _SMALL[name][codes].astype(np.float64)
    return codes.astype(np.float64)


def encode(values: Array, name: str) -> Array:
    """Return the codes of float64 values, to nearest even, NaN as PTX's canonical one."""
    codes: Array
    if name == "f16":
        codes = values.astype(np.float16).view(np.uint16)
    elif name == "f32":
        codes = values.astype(np.float32).view(np.uint32)
    elif name == "f64":
        codes = np.ascontiguousarray(values, np.float64).view(np.uint64).copy()
    elif name == "tf32":
        codes = (encode_float(values, _TF32, False) << np.uint64(13)).astype(np.uint32)
    else:
        row = {"bf16": dtypes.bfloat16.format, "e4m3": _E4M3, "e5m2": _E5M2}[name]
        assert row is not None
        codes = encode_float(values, row, False).astype(UNSIGNED[row.bits])
    bad = np.isnan(values)
    if bad.any():
        codes = np.where(bad, codes.dtype.type(_CANONICAL_NAN[name]), codes)
    return codes


def values_of(codes: Array, name: str) -> Array:
    """Return codes as the arrays that instructions work with: f32 and f64 as NumPy floats."""
    if name == "f32":
        return codes.view(np.float32)
    return codes.view(np.float64) if name == "f64" else codes


def fma_single(left: Array, right: Array, addend: Array) -> Array | None:
    """Return float32 `left * right + addend` rounded once, to nearest even.

    None where float64, which holds the product, would have to be rounded to odd first: where some
    sum is subnormal, or lies halfway between two float32.
    """
    total = left.astype(np.float64) * right + addend
    bits = total.view(np.int64)
    if ((bits & _BELOW_SINGLE) == _HALFWAY).any():
        return None
    if (np.abs(total) < _LEAST_NORMAL).any() and (total[np.abs(total) < _LEAST_NORMAL] != 0).any():
        return None
    return total.astype(np.float32)


# The bits that float64 has and float32 does not, and of these, what is halfway.
_BELOW_SINGLE: Final = (1 << 29) - 1
_HALFWAY: Final = 1 << 28
_LEAST_NORMAL: Final = 2.0**-126


def two_sum(left: Array, right: Array) -> tuple[Array, Array]:
    """Return the rounded float64 sum and what the rounding lost, exactly."""
    high = left + right
    back = high - left
    low = (left - (high - back)) + (right - back)
    return high, np.where(np.isfinite(high), low, 0.0)


def to_odd(high: Array, low: Array) -> Array:
    """Return `high + low` in float64 with an odd last bit wherever it is not exact."""
    bits = np.ascontiguousarray(high, np.float64).view(np.int64)
    move = (low != 0) & ((bits & 1) == 0) & np.isfinite(high)
    step = np.where((low > 0) == (high > 0), 1, -1)
    return np.where(move, bits + step, bits).view(np.float64)


def round_pair(high: Array, low: Array | float, name: str, mode: str = "rn") -> Array:
    """Return the codes of `high + low` rounded to a float type."""
    high = np.ascontiguousarray(high, np.float64)
    low = np.broadcast_to(np.asarray(low, np.float64), high.shape)
    odd = high if name == "f64" else to_odd(high, low)
    codes = encode(odd, name)
    if mode == "rn":
        return codes
    dtype = codes.dtype.type
    quantum = 1 << 13 if name == "tf32" else 1
    sign_bit = dtype(1 << (_BITS[name] - 1))
    rounded = decode(values_of(codes, name), name)
    error = np.where(np.isinf(rounded), np.copysign(np.inf, rounded), rounded - high)
    over = np.where(error != 0, error, -low)
    over = np.where(np.isfinite(high), over, 0.0)
    negative = np.signbit(np.where(rounded == 0, high, rounded))
    magnitude = codes & ~sign_bit
    sign = codes & sign_bit
    if mode == "rna":
        return _ties_away(high, codes, rounded, quantum)
    if mode == "rz":
        shrink, grow = (over > 0) & ~negative | (over < 0) & negative, np.zeros_like(negative)
    elif mode == "rm":
        shrink, grow = (over > 0) & ~negative, (over > 0) & negative
    else:
        shrink, grow = (over < 0) & negative, (over < 0) & ~negative
    magnitude = magnitude - shrink.astype(codes.dtype) * dtype(quantum)
    return np.asarray(magnitude + grow.astype(codes.dtype) * dtype(quantum) | sign)


def _ties_away(high: Array, codes: Array, rounded: Array, quantum: int) -> Array:
    """Move codes that a tie sent toward zero to the code above."""
    dtype = codes.dtype.type
    above = codes + dtype(quantum)
    next_up = decode(values_of(above, "tf32" if quantum > 1 else "f32"), "tf32")
    tie = np.isfinite(high) & (np.abs(high) > np.abs(rounded))
    tie &= np.abs(high - rounded) == np.abs(next_up - high)
    return np.where(tie, above, codes)


def flush(values: Array, name: str) -> Array:
    """Return values, or codes, with subnormals as zeros of their sign (`.ftz`)."""
    if name == "f32":
        small = np.abs(values) < np.float32(2.0**-126)
        return np.where(small, np.copysign(np.float32(0), values), values)
    if name == "f16":
        return np.where(codes_are_small(values, 10, 5), values & np.uint16(0x8000), values)
    return values


def codes_are_small(codes: Array, mantissa_bits: int, exponent_bits: int) -> Array:
    """Whether codes of 16 bits are zeros or subnormals."""
    field = codes >> np.uint16(mantissa_bits) & np.uint16((1 << exponent_bits) - 1)
    return np.asarray(field == 0)


def saturate(values: Array) -> Array:
    """Return floats clamped to [0, 1], NaN as 0 (`.sat`)."""
    return np.where(np.isnan(values), values.dtype.type(0), np.clip(values, 0, 1))


def exact_low(high: Array, numbers: tuple[Array, ...], operation: str) -> Array:
    """Return the sign of what a float64 result lost against the exact one, element by element.

    `operation` is `div` (a / b), `sqrt` (of a) or `fma` (a * b + c), whose operands are `numbers`.
    """
    low = np.zeros(high.shape)
    for place, parts in enumerate(zip(high, *numbers, strict=True)):
        result, *rest = (float(part) for part in parts)
        if not all(map(np.isfinite, (result, *rest))) or (operation == "div" and not rest[1]):
            continue
        exact = [Fraction(part) for part in rest]
        if operation == "div":
            lost = (exact[0] - Fraction(result) * exact[1]) * (1 if exact[1] > 0 else -1)
        elif operation == "sqrt":
            lost = exact[0] - Fraction(result) ** 2
        else:
            lost = exact[0] * exact[1] + exact[2] - Fraction(result)
        low[place] = (lost > 0) - (lost < 0)
    # Only its sign is asked for; it must not reach half a last place.
    return low * 5e-324


def fma_double(left: Array, right: Array, addend: Array) -> Array:
    """Return float64 `left * right + addend` rounded once, to nearest even."""
    out = np.asarray(left * right + addend)
    sizes = np.abs((left, right, addend))
    if sizes.min() > _MODERATE[0] and sizes.max() < _MODERATE[1]:
        return _fma_moderate(left, right, addend)
    # A zero leaves one rounding to do, and what is not finite none: that is right already.
    open_ = (sizes > 0).all(axis=0) & np.isfinite(sizes).all(axis=0)
    moderate = open_ & (sizes > _MODERATE[0]).all(axis=0) & (sizes < _MODERATE[1]).all(axis=0)
    if moderate.any():
        out[moderate] = _fma_moderate(left[moderate], right[moderate], addend[moderate])
    for place in np.flatnonzero(open_ & ~moderate):
        a, b, c = (Fraction(float(one[place])) for one in (left, right, addend))
        if total := a * b + c:
            try:
                out[place] = float(total)
            except OverflowError:
                out[place] = np.inf if total > 0 else -np.inf
    return out


# Factors and addends whose products, and what products lose, are normal numbers.
_MODERATE: Final = (2.0**-400, 2.0**400)
_SPLITTER: Final = 2.0**27 + 1


def _fma_moderate(left: Array, right: Array, addend: Array) -> Array:
    """Return the same for numbers of moderate size, by arithmetic of float64.

    Source: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved
    algorithms using rounding to odd", IEEE Transactions on Computers 57 (2008).
    """
    product = left * right
    upper, lower = _halves(left), _halves(right)
    lost = upper[0] * lower[0] - product + upper[0] * lower[1] + upper[1] * lower[0]
    lost += upper[1] * lower[1]
    small, smaller = _sum_and_rest(addend, lost)
    high, low = _sum_and_rest(product, small)
    tail, rest = _sum_and_rest(smaller, low)
    # Rounded to odd, the tail keeps for the last rounding on which side of a tie it is.
    even = (rest != 0) & (tail.view(np.int64) & 1 == 0)
    tail = np.where(even, np.nextafter(tail, np.where(rest > 0, np.inf, -np.inf)), tail)
    return np.asarray(high + tail)


def _halves(values: Array) -> tuple[Array, Array]:
    """Split float64 into two parts of at most 26 bits."""
    scaled = _SPLITTER * values
    upper = scaled - (scaled - values)
    return upper, values - upper


def _sum_and_rest(left: Array, right: Array) -> tuple[Array, Array]:
    """Return a sum and what it lost, exactly."""
    total = left + right
    other = total - left
    return total, (left - (total - other)) + (right - other)

"""Numbers made into packed blocks, in NumPy: rows of float32 in, rows of bytes out.

Types of one scale a block are rounded as ggml's reference does, bit for bit. K-quants search: of
several roundings of a sub-block each gets the scale (and minimum) that fits it best by least
squares, and the one of the smallest squared error is kept. Layouts: see `plain_blocks` and
`k_blocks`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.base.floats import bfloat16_codes
from baregrad.io.gguf.types import GgmlType

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[Any]

# Elements that are worked on at once, so that what is made of them stays in the caches.
CHUNK = 1 << 16
# How far the steps of a search may lie from those that the extremes of a sub-block ask for, in
# steps of a code, and how many are tried on either side.
SEARCH_REACH, SEARCH_STEPS = 1.0, 10
_MOST_HALF = np.float32(65504.0)
# No block holds more: the largest scale times the largest code.
LARGEST = _MOST_HALF * 128


def can_quantise(row: GgmlType) -> bool:
    """Whether `quantise` makes blocks of this type."""
    return row.name in _BLOCKS or row.name in ("F32", "F16", "BF16")


def quantise(values: npt.NDArray[Any], row: GgmlType) -> Bytes:
    """Return rows of numbers (rows, width) as bytes (rows, bytes of a row) of a type.

    Scales that float16 does not hold are made as large as it allows. Raises UnsupportedError for a
    type that is only read, ShapeError for rows of no whole blocks, ArgumentError for numbers that
    are not finite.
    """
    if not can_quantise(row):
        raise UnsupportedError(
            "blocks of this type are read and not made",
            found=row.name, wanted=f"one of F32, F16, BF16, {', '.join(_BLOCKS)}",
        )  # fmt: skip
    if values.ndim != 2:
        raise ShapeError("rows are quantised", found=f"shape {values.shape}", wanted="two axes")
    rows, width = values.shape
    out: Bytes = np.empty((rows, row.row_nbytes(width)), np.uint8)
    blocks = out.reshape(-1, row.nbytes)
    numbers = np.ascontiguousarray(values, np.float32).reshape(-1, row.block)
    make = _BLOCKS.get(row.name)
    step = CHUNK // row.block

    def fill(start: int) -> None:
        part = numbers[start : start + step]
        if make is None:
            blocks[start : start + step] = _plain(part, row.name)
            return
        if not np.isfinite(part).all():
            raise ArgumentError(
                f"blocks of {row.name} hold finite numbers",
                found="NaN or infinity", hint="the model is damaged: fetch it again",
            )  # fmt: skip
        blocks[start : start + step] = make(np.clip(part, -LARGEST, LARGEST))

    starts = range(0, len(blocks), step)
    if len(starts) < 2:
        for start in starts:
            fill(start)
        return out
    # NumPy computes without the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, starts))
    return out


def _plain(values: Floats, name: str) -> Bytes:
    if name == "F32":
        return values.view(np.uint8)
    if name == "F16":
        return values.astype("<f2").view(np.uint8)
    return bfloat16_codes(values).astype("<u2").view(np.uint8)


def _halves(values: Floats) -> Bytes:
    """Each number as the two bytes of a float16, along the last axis."""
    return np.clip(values, -_MOST_HALF, _MOST_HALF).astype("<f2").view(np.uint8)


def _as_half(values: Floats) -> Floats:
    return np.clip(values, -_MOST_HALF, _MOST_HALF).astype(np.float16).astype(np.float32)


def _inverse(values: Floats) -> Floats:
    """1 / value, and 0 for 0."""
    found: Floats = np.zeros_like(values)
    np.divide(np.float32(1), values, out=found, where=values != 0)
    return found


def _nibbles(codes: Codes) -> Bytes:
    """Codes of 4 bits (..., 2n), the second half above the first."""
    low, high = np.split(codes.astype(np.uint8), 2, axis=-1)
    found: Bytes = np.bitwise_or(low, np.left_shift(high, 4), dtype=np.uint8)
    return found


def _fifth_bits(codes: Codes) -> Bytes:
    return np.packbits(codes.astype(np.uint8) >> 4, axis=-1, bitorder="little")


def _extreme(values: Floats) -> Floats:
    """The element of largest magnitude of each row, with its sign, as a column."""
    place = np.abs(values).argmax(axis=1, keepdims=True)
    return np.take_along_axis(values, place, axis=1)


def _codes(values: Floats, centre: float, most: int) -> Codes:
    """Numbers in steps of a code as codes from 0 to `most`, halves away from `-centre`."""
    found: Codes = np.clip(np.trunc(values + np.float32(centre)), 0, most).astype(np.uint8)
    return found


def _centred(values: Floats, bits: int) -> tuple[Floats, Codes]:
    """Scale and codes of rows around the middle code, the largest magnitude at code 0."""
    middle = 1 << bits - 1
    scale = _extreme(values) / np.float32(-middle)
    return scale, _codes(values * _inverse(scale), middle + 0.5, 2 * middle - 1)


def _from_minimum(values: Floats, bits: int) -> tuple[Floats, Floats, Codes]:
    """Scale, minimum and codes of rows from their minimum on."""
    least = values.min(axis=1, keepdims=True)
    most = (1 << bits) - 1
    scale = (values.max(axis=1, keepdims=True) - least) / np.float32(most)
    return scale, least, _codes((values - least) * _inverse(scale), 0.5, most)


def _q8_0(values: Floats) -> Bytes:
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    steps = values * _inverse(scale)
    # Halves away from 0.
    whole = np.trunc(steps)
    codes = whole + np.trunc(2 * (steps - whole))
    return np.concatenate([_halves(scale), codes.astype(np.int8).view(np.uint8)], axis=1)


def _q4_0(values: Floats) -> Bytes:
    scale, codes = _centred(values, 4)
    return np.concatenate([_halves(scale), _nibbles(codes)], axis=1)


def _q5_0(values: Floats) -> Bytes:
    scale, codes = _centred(values, 5)
    return np.concatenate([_halves(scale), _fifth_bits(codes), _nibbles(codes & 15)], axis=1)


def _q4_1(values: Floats) -> Bytes:
    scale, least, codes = _from_minimum(values, 4)
    return np.concatenate([_halves(scale), _halves(least), _nibbles(codes)], axis=1)


def _q5_1(values: Floats) -> Bytes:
    scale, least, codes = _from_minimum(values, 5)
    parts = [_halves(scale), _halves(least), _fifth_bits(codes), _nibbles(codes & 15)]
    return np.concatenate(parts, axis=1)


# --- K-quants -------------------------------------------------------------------------------------


def _search_offsets() -> Floats:
    return np.linspace(-SEARCH_REACH, SEARCH_REACH, 2 * SEARCH_STEPS + 1, dtype=np.float32)


def _fitted_scale(values: Floats, middle: int) -> Floats:
    """The scales (n, 1) of rows of codes around 0 that have the least squared error of many."""
    inverse = _inverse(_extreme(values))
    best: Floats = np.zeros((len(values), 1), np.float32)
    gain = np.full((len(values), 1), -1.0, np.float32)
    for offset in _search_offsets():
        codes = np.clip(np.rint(values * (inverse * (offset - middle))), -middle, middle - 1)
        weight = (codes * codes).sum(axis=1, keepdims=True)
        found = (values * codes).sum(axis=1, keepdims=True)
        scale = found * _inverse(weight)
        # The error is the sum of squares, the same for all, less this.
        better = scale * found > gain
        best, gain = np.where(better, scale, best), np.where(better, scale * found, gain)
    return best


def _fitted_range(values: Floats, most: int) -> tuple[Floats, Floats]:
    """Scales and minima, each (n, 1) and at least 0, of rows of codes 0 to `most`.

    A number is scale times code less the minimum; of what was tried it has the least squared error.
    """
    count = np.float32(values.shape[1])
    least = np.minimum(values.min(axis=1, keepdims=True), 0)
    spread = _inverse(np.maximum(values.max(axis=1, keepdims=True), 0) - least)
    total = values.sum(axis=1, keepdims=True)
    best_scale: Floats = np.zeros((len(values), 1), np.float32)
    best_least: Floats = np.zeros((len(values), 1), np.float32)
    smallest = np.full((len(values), 1), np.inf, np.float32)
    for offset in _search_offsets():
        codes = np.clip(np.rint((values - least) * (spread * (most + offset))), 0, most)
        sums = codes.sum(axis=1, keepdims=True)
        squares = (codes * codes).sum(axis=1, keepdims=True)
        products = (codes * values).sum(axis=1, keepdims=True)
        scale = (count * products - sums * total) * _inverse(count * squares - sums * sums)
        lowest = (total - scale * sums) / count
        # A minimum above 0 cannot be written.
        above = lowest > 0
        lowest = np.where(above, 0, lowest)
        scale = np.maximum(np.where(above, products * _inverse(squares), scale), 0)
        error = np.square(scale * codes + lowest - values).sum(axis=1, keepdims=True)
        better = error < smallest
        smallest = np.where(better, error, smallest)
        best_scale = np.where(better, scale, best_scale)
        best_least = np.where(better, lowest, best_least)
    return best_scale, -best_least


def _shared_scale(scales: Floats, most: int) -> tuple[Floats, Codes]:
    """The float16 that scales (n, sub-blocks) are multiples of, and which, 0 to `most`."""
    whole = _as_half(scales.max(axis=1, keepdims=True) / np.float32(most))
    return whole, np.clip(np.rint(scales * _inverse(whole)), 0, most).astype(np.uint8)


def _ranged(values: Floats, bits: int) -> tuple[Floats, Floats, Bytes, Codes]:
    """Both scales of blocks, the 12 bytes of their sub-blocks', and codes (n, 8, 32)."""
    most = (1 << bits) - 1
    subs = values.reshape(-1, 32)
    scales, minima = _fitted_range(subs, most)
    whole, scale_codes = _shared_scale(scales.reshape(-1, 8), 63)
    lowest, minimum_codes = _shared_scale(minima.reshape(-1, 8), 63)
    codes = _range_codes(subs, whole * scale_codes, lowest * minimum_codes, most)
    whole, lowest = _refitted(values, scale_codes, minimum_codes, codes, whole, lowest)
    codes = _range_codes(subs, whole * scale_codes, lowest * minimum_codes, most)
    low, high = scale_codes[:, :4], scale_codes[:, 4:]
    low_least, high_least = minimum_codes[:, :4], minimum_codes[:, 4:]
    packed = np.concatenate(
        [
            low | (high >> 4 << 6),
            low_least | (high_least >> 4 << 6),
            (high & 15) | (high_least & 15) << 4,
        ],
        axis=1,
    )
    return whole, lowest, packed, codes


def _range_codes(subs: Floats, scales: Floats, minima: Floats, most: int) -> Codes:
    """The codes (n, 8, 32) of sub-blocks whose scales and minima (n, 8) are known."""
    steps = (subs + minima.reshape(-1, 1)) * _inverse(scales.reshape(-1, 1))
    found: Codes = np.clip(np.rint(steps), 0, most).astype(np.uint8).reshape(-1, 8, 32)
    return found


def _refitted(
    values: Floats, scale_codes: Codes, minimum_codes: Codes, codes: Codes, whole: Floats,
    lowest: Floats,
) -> tuple[Floats, Floats]:
    """Both scales of blocks that fit the codes best by least squares, where that is one pair."""
    up = (scale_codes[:, :, None] * codes.astype(np.float64)).reshape(len(codes), -1)
    down = np.repeat(minimum_codes.astype(np.float64), 32, axis=1)
    pairs = ((up, up), (down, down), (up, down))
    ups, downs, both = [(a * b).sum(1, keepdims=True) for a, b in pairs]
    right, left = (up * values).sum(1, keepdims=True), (down * values).sum(1, keepdims=True)
    determinant = ups * downs - both * both
    known = determinant > 1e-6 * ups * downs
    divisor = np.where(known, determinant, 1)
    scale = np.where(known, (right * downs - left * both) / divisor, whole)
    least = np.where(known, (right * both - left * ups) / divisor, lowest)
    proper = (scale >= 0) & (least >= 0)
    return (
        _as_half(np.where(proper, scale, whole).astype(np.float32)),
        _as_half(np.where(proper, least, lowest).astype(np.float32)),
    )


def _nibble_pairs(codes: Codes) -> Bytes:
    """Codes (n, 8, 32) of 4 bits: each second sub-block above the one before."""
    found: Bytes = codes[:, ::2] | (codes[:, 1::2] << 4)
    return found.reshape(len(codes), 128)


def _q4_k(values: Floats) -> Bytes:
    whole, lowest, packed, codes = _ranged(values, 4)
    return np.concatenate([_halves(whole), _halves(lowest), packed, _nibble_pairs(codes)], axis=1)


def _q5_k(values: Floats) -> Bytes:
    whole, lowest, packed, codes = _ranged(values, 5)
    # Bit k of byte l is the fifth of element l of sub-block k.
    high = np.packbits(codes >> 4, axis=1, bitorder="little").reshape(-1, 32)
    parts = [_halves(whole), _halves(lowest), packed, high, _nibble_pairs(codes & 15)]
    return np.concatenate(parts, axis=1)


# Where four codes of 2 bits lie in a byte.
_PAIR_PLACES = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)


def _q6_k(values: Floats) -> Bytes:
    subs = values.reshape(-1, 16)
    scales = _fitted_scale(subs, 32).reshape(-1, 16)
    # The sub-block scale of largest magnitude gets -128, which has no opposite.
    whole = _as_half(_extreme(scales) / np.float32(-128))
    scale_codes = np.clip(np.rint(scales * _inverse(whole)), -128, 127).astype(np.int8)
    step = (whole * scale_codes).reshape(-1, 1)
    codes = np.clip(np.rint(subs * _inverse(step)), -32, 31) + 32
    codes = codes.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (codes & 15).reshape(-1, 2, 2, 64)
    high = codes >> 4
    parts = [
        (low[:, :, 0] | (low[:, :, 1] << 4)).reshape(-1, 128),
        np.bitwise_or.reduce(high << _PAIR_PLACES, axis=2).reshape(-1, 64),
        scale_codes.view(np.uint8),
        _halves(whole),
    ]
    return np.concatenate(parts, axis=1)


_BLOCKS: Mapping[str, Callable[[Floats], Bytes]] = MappingProxyType({
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
})  # fmt: skip

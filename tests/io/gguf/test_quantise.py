"""Rounding to blocks: ggml's bits where it is simple, and less error where it is a search."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.io.gguf import TYPES, by_name, can_quantise, quantise
from baregrad.io.gguf.quantise import CHUNK
from tests.io.gguf.packed import reference


def numbers(rows: int, width: int, shift: float = 0.0) -> np.ndarray:
    values = np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)
    values = values * np.float32(0.02) + np.float32(shift)
    # Zeros, tiny and huge numbers, a block of one value.
    values[0], values[1] = 0, values[1] * 1e-9
    values[2] *= 1e4
    values[3, :256] = 0.125
    return values


@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_simple_types_have_the_bits_of_the_reference(name: str) -> None:
    # More than one chunk, and a part of one.
    values = numbers(CHUNK // 512 + 9, 512)
    wanted = quants.quantize(values, GGMLQuantizationType[name])
    assert quantise(values, by_name(name)).tobytes() == wanted.tobytes()


def simplest(values: np.ndarray, name: str) -> np.ndarray:
    """Sub-blocks with exact scales from their extremes: no search, but no rounding of scales."""
    if name == "Q6_K":
        subs = values.reshape(-1, 16).astype(np.float64)
        step = np.abs(subs).max(1, keepdims=True) / 31
        return (np.rint(subs / np.where(step, step, 1)) * step).reshape(values.shape)
    most = {"Q4_K": 15, "Q5_K": 31}[name]
    subs = values.reshape(-1, 32).astype(np.float64)
    least = np.minimum(subs.min(1, keepdims=True), 0)
    step = (np.maximum(subs.max(1, keepdims=True), 0) - least) / most
    return (np.rint((subs - least) / np.where(step, step, 1)) * step + least).reshape(values.shape)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("shift", [0.0, 0.03, -0.1])
def test_searched_types_have_less_error_than_the_simplest_scheme(name: str, shift: float) -> None:
    row = by_name(name)
    values = numbers(64, 1024, shift)[4:]
    found = reference(row, quantise(values, row))
    error = np.square(found - values.astype(np.float64)).mean()
    other = np.square(simplest(values, name) - values).mean()
    assert error < other * (0.95 if not shift else 1.02)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_special_blocks_are_rounded_sanely(name: str) -> None:
    row = by_name(name)
    values = numbers(8, 512)
    found = reference(row, quantise(values, row))
    assert np.isfinite(found).all()
    assert not found[0].any()
    largest = np.abs(values).max(1, keepdims=True)
    # Half of a code's step, and what rounding of scales and tiny numbers adds.
    assert (np.abs(found - values) <= largest * 0.12 + 1e-7).all()
    assert np.abs(found[3, :256] - 0.125).max() < 0.125 * 0.02


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0"])
def test_what_blocks_hold_is_made_into_blocks_almost_as_it_is(name: str) -> None:
    row = by_name(name)
    values = numbers(16, 512)[4:]
    once = reference(row, quantise(values, row))
    twice = reference(row, quantise(once, row))
    assert np.abs(twice - once).max() <= np.abs(once).max() * 0.02


def test_numbers_beyond_float16_scales_stay_finite() -> None:
    values = np.full((1, 256), 3e38, np.float32)
    for row in TYPES:
        if row.is_packed and can_quantise(row):
            assert np.isfinite(reference(row, quantise(values, row))).all()


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="read and not made"):
        quantise(np.zeros((1, 256), np.float32), by_name("IQ2_XS"))
    with pytest.raises(ArgumentError, match="NaN or infinity"):
        quantise(np.full((1, 256), np.nan, np.float32), by_name("Q4_K"))
    with pytest.raises(ShapeError, match="multiple of 256"):
        quantise(np.zeros((1, 128), np.float32), by_name("Q4_K"))
    with pytest.raises(ShapeError, match="two axes"):
        quantise(np.zeros(32, np.float32), by_name("Q4_0"))

"""Rates, angles and the turning of heads, against complex numbers and exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.errors import FileFormatError
from baregrad.llm.models.rope import Rotation, rates_of
from baregrad.llm.models.traits import RopeTraits


def test_rates_fall_with_the_pair_and_are_divided_by_factors() -> None:
    rates = rates_of(RopeTraits("neox", 8, 10000.0))
    np.testing.assert_allclose(rates, [1, 0.1, 0.01, 0.001], rtol=1e-12)
    rates = rates_of(RopeTraits("neox", 8, factors="rope_freqs.weight"), np.array([1.0, 2, 4, 8]))
    np.testing.assert_allclose(rates, [1, 0.05, 0.0025, 0.000125], rtol=1e-12)
    rates = rates_of(RopeTraits("neox", 8, scaling="linear", factor=4.0))
    np.testing.assert_allclose(rates, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-12)
    with pytest.raises(FileFormatError, match="positive"):
        rates_of(RopeTraits("neox", 8, factors="f"), np.array([1.0, 0, 4, 8]))


def test_yarn_keeps_fast_pairs_and_slows_down_slow_ones() -> None:
    rope = RopeTraits("neox", 64, scaling="yarn", factor=8.0, original_context=4096)
    raw = rates_of(RopeTraits("neox", 64))
    share = rates_of(rope) / raw
    turns = 4096 * raw / (2 * math.pi)
    # A pair more than the bounds, which are rounded to whole pairs.
    assert (share[turns > 32 * 1.4] == 1).all() and (turns > 32 * 1.4).sum() > 4
    np.testing.assert_allclose(share[turns < 1 / 1.4], 1 / 8, rtol=1e-12)
    assert (np.diff(share) <= 0).all() and len(np.unique(share.round(9))) > 8


def test_angles_are_exact_however_far() -> None:
    rope = RopeTraits("neox", 64, 500000.0, magnitude=1.5)
    places = np.array([0, 1, 131071, 1048575], np.int32)
    cosines, sines = (each.numpy() for each in Rotation(rope).angles(Tensor(places)))
    assert cosines.shape == (4, 1, 32)
    pi = Fraction(884279719003555, 281474976710656)  # float64's, which the rates are rounded to
    for row, place in enumerate(places):
        for pair, rate in enumerate(rates_of(rope)):
            turn = Fraction(rate / (2 * math.pi)) * int(place) % 1
            angle = float(turn * 2 * pi)
            assert abs(cosines[row, 0, pair] - 1.5 * math.cos(angle)) < 1e-6
            assert abs(sines[row, 0, pair] - 1.5 * math.sin(angle)) < 1e-6


@pytest.mark.parametrize("kind", ["norm", "neox"])
@pytest.mark.parametrize("width", [8, 12])
def test_pairs_are_multiplied_by_powers_of_a_complex_number(kind: str, width: int) -> None:
    rope = RopeTraits(kind, 8)
    x = np.random.default_rng(0).normal(size=(5, 3, width)).astype(np.float32)
    places = np.array([3, 0, 7, 100, 2], np.int32)
    rotation = Rotation(rope)
    found = rotation.turn(Tensor(x), rotation.angles(Tensor(places))).numpy()
    steps = np.exp(1j * places[:, None] * 10000.0 ** (-np.arange(0, 8, 2) / 8))[:, None]
    first, second = (x[..., 0:8:2], x[..., 1:8:2]) if kind == "norm" else (x[..., :4], x[..., 4:8])
    turned = (first + 1j * second) * steps
    expected = x.copy()
    if kind == "norm":
        expected[..., 0:8:2], expected[..., 1:8:2] = turned.real, turned.imag
    else:
        expected[..., :4], expected[..., 4:8] = turned.real, turned.imag
    np.testing.assert_allclose(found, expected, atol=1e-5)

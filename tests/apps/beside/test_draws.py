"""Inputs are the same for whoever draws them."""

from __future__ import annotations

import numpy as np

from baregrad.apps.beside.draws import PERIOD, Draw


def test_draws_depend_on_the_seed_alone() -> None:
    draw = Draw((50, 7), scale=2.0, shift=1.0)
    first, again, other = (draw.array(np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert abs(first.mean() - 1) < 0.5
    assert 1.5 < first.std() < 2.5
    assert draw.nbytes == 700


def test_large_draws_repeat_out_of_step_with_powers_of_two() -> None:
    drawn = Draw((2, PERIOD - 1), "float32").array(np.random.default_rng(0))
    assert drawn.dtype == np.float32
    assert (drawn[0, :10] == drawn[1, 1:11]).all()
    assert len(np.unique(drawn[0, :1000])) > 990
    assert PERIOD % 2 == 1


def test_whole_numbers_are_below_what_is_given() -> None:
    draw = Draw((1000,), below=5)
    assert draw.dtype == "int64"
    assert set(draw.array(np.random.default_rng(0)).tolist()) == set(range(5))
    assert Draw((4,), "int32", below=5).dtype == "int32"

"""Only what is faster by more than the noise wins."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.engine.search.verdict import chance, is_faster, ratio


def noisy(rng: np.random.Generator, ns: float, count: int) -> list[int]:
    """Times with a spread of a tenth, and now and then an interruption."""
    spread = rng.normal(1.0, 0.1, count).clip(0.8) + (rng.random(count) < 0.1) * 3.0
    return [int(x) for x in ns * spread]


def test_noise_does_not_win() -> None:
    rng = np.random.default_rng(1)
    wins = 0
    for _ in range(400):
        races = [(noisy(rng, 1e5, 20), noisy(rng, 1e5, 20)) for _ in range(2)]
        wins += all(is_faster(a, b) for a, b in races)
    # Each race lets at most one in 200 pass, and there are two.
    assert wins == 0


def test_what_is_a_fifth_faster_wins() -> None:
    rng = np.random.default_rng(2)
    wins = sum(is_faster(noisy(rng, 1e5, 30), noisy(rng, 8e4, 30)) for _ in range(100))
    assert wins > 80


def test_the_sign_test_is_that_of_the_binomial() -> None:
    # 9 or 10 heads of 10: 11 of 1024.
    assert chance([2] * 10, [1] * 9 + [3]) == pytest.approx(11 / 1024)
    assert ratio([10, 20, 30], [5, 10, 10]) == 2.0
    assert not is_faster([100] * 7, [1] * 7)

"""What wins a search: only what is right, and faster by more than the noise."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.engine.search import tuner
from baregrad.engine.search.inputs import differs, make_problem, samples
from baregrad.engine.search.verdict import chance, is_faster, ratio
from baregrad.ir.core.node import Node
from tests.kernel import kernels as k


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


KERNELS = (
    k.matmul(20, 30, 40),
    k.conv(1, 3, 4, 8, 9, 3, 1, 1),
    k.softmax(9, 20),
    k.layer_norm(6, 32),
    k.row_reduce(7, 50),
    k.gather(5, 9, 4),
    k.scatter_add(5, 9, 4),
    k.cumsum(5, 9),
    k.arg_max(6, 20),
    k.elementwise(3, 5, dtype=dtypes.float16),
    k.elementwise(3, 5, dtype=dtypes.int32),
)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.arg.name)
def test_the_reference_tells_right_results_from_wrong_ones(kernel: Node) -> None:
    problem = make_problem(kernel)
    shapes = {slot: array.shape for slot, array in k.arguments(kernel).items()}
    arrays = {s: np.array(a).reshape(shapes[s]) for s, a in enumerate(problem.arrays)}
    results = k.run_kernel(kernel, arrays)
    some = samples(problem)
    assert some
    for each in some:
        dtype = problem.dtypes[each.slot]
        found = results[each.slot].reshape(-1)[each.places]
        assert not differs(found, each.values.astype(found.dtype), dtype, problem.exact, 64)
        # One element that is off by a little more than rounding is seen.
        spoiled = np.array(found)
        spoiled[-1] = spoiled[-1] + 1 if dtype.kind != "float" else spoiled[-1] * 1.1 + 0.1
        assert differs(spoiled, each.values.astype(found.dtype), dtype, problem.exact, 64)


def test_sums_of_whole_numbers_are_compared_to_the_bit() -> None:
    assert make_problem(k.matmul(8, 8, 512)).exact
    assert not make_problem(k.softmax(8, 8)).exact
    left = np.ones(1000, np.float32)
    right = np.array(left)
    right[999] += 2**-23
    assert differs(left, right, dtypes.float32, True, 1)
    assert not differs(left, right, dtypes.float32, False, 1)


def test_not_a_number_and_infinity_have_their_places() -> None:
    nan = np.array([1.0, np.nan, np.inf], np.float32)
    assert not differs(nan, nan.copy(), dtypes.float32, False, 1)
    assert differs(nan, np.array([1.0, 2.0, np.inf], np.float32), dtypes.float32, False, 1)
    assert differs(nan, np.array([1.0, np.nan, -np.inf], np.float32), dtypes.float32, False, 1)


def test_looked_up_places_are_inside_their_arrays() -> None:
    problem = make_problem(k.gather(5, 200, 4))
    assert problem.arrays[2].max() < 5
    assert problem.arrays[2].min() >= 0


@pytest.mark.parametrize("seconds", [540.0, 300.0, 60.0])
def test_time_is_left_for_the_kernels_that_come_last(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A hundred kernels that each take all the time they may, the longest ones first."""
    now = 0.0
    monkeypatch.setattr(tuner, "time", SimpleNamespace(monotonic=lambda: now))
    kernels = [3e7 / (1 + number) for number in range(100)]
    weights = [tuner.weight_of(ns) for ns in kernels]
    spent = []
    for number, ns in enumerate(kernels):
        clock = tuner.Clock(seconds, sum(weights[number + 1 :]), len(kernels) - number - 1)
        begin, now = now, clock.deadline(ns)
        spent.append(now - begin)
    assert now <= seconds
    searched = sum(one >= tuner.KEPT_S - 1e-6 for one in spent)
    # With little time some are searched well rather than all of them badly.
    assert searched == 100 if seconds > 2 * 100 * tuner.KEPT_S else searched >= seconds / 12
    assert spent[0] > spent[len(spent) // 2] and max(spent) <= tuner.MOST_S

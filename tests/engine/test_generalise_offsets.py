"""Loops over the places of an array: compiled a few times, with the results of each by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from baregrad import bind, jit, variable
from baregrad.engine import generalise_offsets as places
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor

X = np.random.default_rng(0).standard_normal((12, 37)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((37, 9)).astype(np.float32)
# What is compiled for each of a kind by itself, and then for all.
MOST_PLANS = places.ALONE + 1


@pytest.fixture
def session() -> Iterator[Session]:
    with use_session(Session()) as session:
        yield session
        session.close()


READS: dict[str, Callable[[Any, Any, int], Any]] = {
    "row": lambda x, w, i: x[i] * 2 + 1,
    "column": lambda x, w, i: x[:, i] * 2,
    "element": lambda x, w, i: x[i, i + 1] + 1,
    "two rows": lambda x, w, i: x[i] - x[11 - i],
    "neighbours": lambda x, w, i: x[i + 1] - x[i],
    "slice": lambda x, w, i: x[i : i + 3] * x[9:12],
    "sum": lambda x, w, i: x[i].sum(),
    "product": lambda x, w, i: x[i : i + 4] @ w,
    "softmax": lambda x, w, i: softmax(x[i : i + 2]),
    "from the end": lambda x, w, i: x[-1 - i] + 1,
}


def softmax(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.softmax(-1)
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def read_all(function: Callable[[Any, Any, int], Any]) -> list[Any]:
    x, w = Tensor(X).realize(), Tensor(W).realize()
    return [function(x, w, i).numpy() for i in range(8)]


@pytest.mark.parametrize("name", READS)
def test_reads_in_a_loop_are_compiled_a_few_times(name: str, session: Session) -> None:
    found = read_all(READS[name])
    for i, value in enumerate(found):
        np.testing.assert_allclose(value, READS[name](X, W, i), rtol=1e-5, atol=1e-5)
    assert len(session._plans) <= MOST_PLANS


@pytest.mark.parametrize("name", READS)
def test_each_has_the_bits_that_it_has_by_itself(
    name: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = read_all(READS[name])
    with use_session(Session()) as alone:
        monkeypatch.setattr(places, "ALONE", 1000)
        for value, wanted in zip(read_all(READS[name]), together, strict=True):
            assert value.tobytes() == wanted.tobytes()
        assert len(alone._plans) == 8
        alone.close()


WRITES: dict[str, Callable[[Any, Any, int], None]] = {
    "row": lambda x, y, i: x.__setitem__(i, y),
    "column": lambda x, y, i: x.__setitem__((slice(None), i), 2.0),
    "element": lambda x, y, i: x.__setitem__((i, 2 * i), 3.0),
    "rows": lambda x, y, i: x.__setitem__(slice(i, i + 3), y),
    "from the row before": lambda x, y, i: x.__setitem__(i + 1, x[i] * 0.5 + y),
    "added": lambda x, y, i: x.__setitem__(i, x[i] + y),
    "where it goes meets where it comes from": lambda x, y, i: x.__setitem__(i, x[4] + y),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_in_a_loop_are_compiled_a_few_times(name: str, session: Session) -> None:
    x, y = Tensor(X).realize(), Tensor(W[:, 0].copy()).realize()
    wanted = X.copy()
    # Where two places are one the program is of another kind.
    kinds = 2 if name.startswith("where") else 1
    for i in range(9):
        WRITES[name](x, y, i)
        WRITES[name](wanted, W[:, 0], i)
        x.realize()
        np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-6)
    assert len(session._plans) <= kinds * MOST_PLANS


def test_a_place_that_is_the_same_stays_a_constant(session: Session) -> None:
    x = Tensor(X).realize()
    for i in range(5):
        x[3] = x[i + 5]
        x.realize()
    last = next(reversed(session._plans.values()))
    names = {name for launch in last.launches for name in launch.kernel.program.variables}
    assert len(names) == 1


def test_a_variable_of_the_same_name_is_another(session: Session) -> None:
    x = Tensor(X).realize()
    mine = variable("place0", 0, 11)
    for i in range(6):
        found = (x[i] - x[bind(mine, 11 - i)]).numpy()
        np.testing.assert_array_equal(found, X[i] - X[11 - i])
    assert len(session._plans) <= MOST_PLANS


def test_observers_see_the_program_as_it_was_written(session: Session) -> None:
    runs: list[Any] = []
    session.watching.observers.append(runs.append)
    x = Tensor(X).realize()
    for i in range(4):
        (x[i] * 2).realize()
    assert not any(run.program.variables for run in runs)
    assert len(session._plans) == 4


def test_what_slides_over_an_array_is_compiled_for_its_place(session: Session) -> None:
    image = np.random.default_rng(2).standard_normal((6, 2, 8, 8)).astype(np.float32)
    x, w = Tensor(image).realize(), Tensor(W.reshape(-1)[:162].reshape(9, 2, 3, 3)).realize()
    for i in range(4):
        x[i : i + 2].conv2d(w, padding=1).realize()
    assert len(session._plans) == 4


def test_a_captured_call_replays_its_own_place(session: Session) -> None:
    x = Tensor(X).realize()
    for i in range(4):
        (x[i] * 2).realize()
    double = jit(lambda x: x[7] * 2)
    for _ in range(4):
        np.testing.assert_array_equal(double(x).numpy(), X[7] * 2)


NUMBERS: dict[str, list[Any]] = {
    "float32": [0.5, 0.1, -0.0, 0.0, math.nan, math.inf, -math.inf, 1e-45, 3.4e38, -7.0],
    "float64": [0.5, 0.1, -0.0, 0.0, math.nan, math.inf, -math.inf, 5e-324, 1e300, -7.0],
    "float16": [0.5, 0.1, -0.0, 0.0, math.nan, math.inf, -math.inf, 6e-8, 65504.0, 65520.0],
    "int64": [1, -1, 2**63 - 1, -(2**63), 0, 7, 2**53 + 1],
    "int8": [1, -1, 127, -128, 0, 7, 5],
    "uint8": [1, 255, 127, 128, 0, 7, 5],
    "uint32": [1, 2**32 - 1, 2**31, 0, 7, 5],
}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_that_are_written_share_a_plan_and_keep_their_bits(
    dtype: str, session: Session
) -> None:
    wanted = np.zeros((12, 3), dtype)
    x = Tensor(wanted).realize()
    for i, number in enumerate(NUMBERS[dtype]):
        x[i] = number
        with np.errstate(over="ignore"):
            wanted[i] = np.float64(number).astype(dtype) if wanted.dtype.kind == "f" else number
        x.realize()
    found = x.numpy()
    nan = np.isnan(wanted)
    assert np.isnan(found[nan]).all()
    assert found[~nan].tobytes() == wanted[~nan].tobytes()
    assert len(session._plans) <= MOST_PLANS


def test_numbers_of_bfloat16_are_rounded_once(session: Session) -> None:
    x = Tensor.zeros(4, dtype="bfloat16").realize()
    # Just above the middle of two numbers; by way of float32 it would be the middle itself.
    for number in (1.0, 2.0, 3.0, 1.0 + 2.0**-8 + 2.0**-40):
        x.fill_(number)
        x.realize()
    assert x.tolist() == [1.0 + 2.0**-7] * 4


ABOVE = X > 0.5
PASSED: dict[str, tuple[Callable[[Any, float], Any], Callable[[float], Any]]] = {
    "filled": (lambda x, c: x.full_like(c), lambda c: np.full_like(X, c)),
    "chosen": (lambda x, c: (x > 0.5).where(c, x), lambda c: np.where(ABOVE, c, X)),
    "two": (lambda x, c: (x > 0.5).where(c, c + 9), lambda c: np.where(ABOVE, c, c + 9)),
    "around": (
        lambda x, c: x.pad((1, 2), value=c),
        lambda c: np.pad(X, ((0, 0), (1, 2)), constant_values=c),
    ),
    "joined": (
        lambda x, c: x.full_like(c).cat(x), lambda c: np.concatenate([np.full_like(X, c), X]),
    ),
    "beside a sum": (
        lambda x, c: (x.sum(1, keepdim=True) > 0.5).where(c, x.square()),
        lambda c: np.where(X.sum(1, keepdims=True) > 0.5, c, X * X),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED)
def test_numbers_that_are_passed_on_share_a_plan(name: str, session: Session) -> None:
    ours, numpys = PASSED[name]
    x = Tensor(X).realize()
    for i in range(6):
        np.testing.assert_allclose(ours(x, i + 0.25).numpy(), numpys(i + 0.25), rtol=1e-6)
    assert len(session._plans) <= MOST_PLANS


def test_numbers_that_are_computed_with_stay_constants(session: Session) -> None:
    x = Tensor(X).realize()
    for i in range(4):
        np.testing.assert_array_equal((x * (i + 0.25)).numpy(), X * np.float32(i + 0.25))
    # The same number, written and computed with.
    for i in range(4):
        number = i + 0.5
        found = (x > number).where(number, x).numpy()
        np.testing.assert_array_equal(found, np.where(number < X, np.float32(number), X))
    assert len(session._plans) == 8


def test_a_captured_call_writes_its_own_number(session: Session) -> None:
    x = Tensor(X).realize()
    for i in range(4):
        x.masked_fill(x > 1, float(i)).realize()
    fill = jit(lambda x: x.masked_fill(x > 1, 7.0))
    for _ in range(4):
        np.testing.assert_array_equal(fill(x).numpy(), np.where(X > 1, np.float32(7), X))

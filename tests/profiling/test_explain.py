"""A tensor, a function or a block is explained by what it came to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import baregrad
from baregrad import Tensor
from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session

SIZE = 1 << 16


@pytest.fixture(autouse=True)
def session(tmp_path: Path) -> Iterator[Session]:
    with options.override(cache_dir=tmp_path), use_session(Session()) as own:
        yield own
        own.close()


def place_of(text: str) -> str:
    """Where a line of this file is that holds a text, the first such."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(at for at, line in enumerate(lines, 1) if text in line)}"


def test_a_tensor_is_computed_and_its_kernels_told() -> None:
    x = Tensor(np.ones(SIZE, np.float32))
    told = baregrad.explain((x * 2 + 1).sum())
    assert told.result.item() == 3 * SIZE
    kernels = told.kernels
    assert told.launched == told.compiled == len(kernels) >= 1
    read = sum(row.nbytes for row in kernels)
    assert 4 * SIZE <= read <= 4 * SIZE * 1.1 and all(row.least_ns > 0 for row in kernels)
    text = str(told)
    assert "GB/s" in text and "roofline" in text and "at most" in text
    assert "planning and compiling took" in text
    # Of what was made before lines were asked for that of the call is known.
    assert f"asked for at {place_of('told = baregrad.explain((x * 2 + 1)')}" in text


def test_what_is_in_the_cache_is_no_miss() -> None:
    x = Tensor(np.ones(SIZE, np.float32))
    first = baregrad.explain(lambda: (x * 3).sum())
    again = baregrad.explain(lambda: (x * 3 * 1).sum())
    assert first.compiled >= 1 and again.compiled == 0
    # What lies in memory already is not computed.
    assert again.launched in (0, first.launched)


def test_a_function_is_called_once_with_its_arguments() -> None:
    calls = []

    def step(x: Tensor, *, factor: int) -> Tensor:
        calls.append(factor)
        return (x * factor).exp()

    x = Tensor(np.zeros((4, 4), np.float32))
    told = baregrad.explain(step, x, factor=5)
    assert calls == [5] and told.launched == 1
    assert (told.result.numpy() == 1).all()
    (row,) = told.kernels
    assert row.where == place_of("return (x * factor).exp()")


def test_stored_values_are_told_with_their_reasons() -> None:
    def step(x: Tensor) -> Tensor:
        return (x @ x).softmax(-1).sum(0)

    told = baregrad.explain(step, Tensor(np.ones((64, 64), np.float32)))
    assert told.stored and told.stored[0].nbytes == 4 * 64 * 64
    assert all(one.reason and one.reason != "output" for one in told.stored)
    assert told.stored[0].where == place_of("return (x @ x).softmax(-1).sum(0)")
    assert told.stored[0].reason in str(told)


def test_small_launches_by_themselves_are_advised_against() -> None:
    x = Tensor(np.ones(8, np.float32))

    def steps() -> None:
        value = x
        for _ in range(10):
            value = (value + 1).realize()
            value = (value * 2).realize()

    steps()
    with options.override(lines=True):
        steps()
    told = baregrad.explain(steps)
    assert any("`jit` replays" in one or "larger batches" in one for one in told.advice())


def test_a_block_that_computes_nothing_is_explained_too() -> None:
    with baregrad.explain() as told:
        pass
    assert told.kernels == [] and told.launched == told.compiled == 0
    assert "nothing stands out" in str(told)


def test_other_things_are_refused() -> None:
    for thing in (3, "text", [1]):
        with pytest.raises(ArgumentError, match="cannot be explained"):
            baregrad.explain(thing)


def test_what_a_function_raises_is_raised() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        baregrad.explain(fails)
    assert baregrad.explain(lambda: Tensor([1.0]) + 1).launched == 1

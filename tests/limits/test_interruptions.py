"""Ctrl-C at any moment: the process goes on, and its numbers are those of one let alone."""

from __future__ import annotations

import ast
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baregrad
from baregrad import nn, optim
from baregrad.base.options import options
from baregrad.tensor import Tensor
from baregrad.tensor.array import grad_mode
from baregrad.tensor.array.grad_mode import autocast
from baregrad.tensor.jit.jit import jit


@contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """A KeyboardInterrupt inside the block, once that long has passed, as Ctrl-C raises it."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Training:
    """Steps of a small network: captured ones, and others of sizes that are new each time."""

    def __init__(self) -> None:
        Tensor.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.optimiser = optim.AdamW(self.model.parameters(), lr=0.05)
        self.captured = jit(self.step)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimiser.zero_grad()
        loss = self.model(x).cross_entropy(y)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def round(self, number: int) -> list[float]:
        """One round of the program: a captured step, an eager one, and sums of a new shape."""
        rng = np.random.default_rng(number)
        x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, 3, 8)
        found = [self.captured(Tensor(x), Tensor(y)).item()]
        if number % 4 == 0:
            found.append(self.step(Tensor(x), Tensor(y)).item())
        odd = Tensor(rng.standard_normal((3 + number % 11, 5)).astype(np.float32))
        found.append(float((odd.softmax(1) @ odd.T).sort(0)[0].sum().item()))
        with options.override(device="REF"):
            found.append(float(Tensor(x).exp().sum().item()))
        return found

    def held(self) -> Any:
        """What a program saves from time to time."""
        state = self.optimiser.state_dict()
        arrays = {
            number: {name: t.numpy() for name, t in one.items()}
            for number, one in state["state"].items()
        }
        model = {name: t.numpy() for name, t in self.model.state_dict().items()}
        return model, {**state, "state": arrays}

    def load(self, saved: Any) -> None:
        """Go back to what was saved."""
        model, optimiser = saved
        self.model.load_state_dict({name: Tensor(values) for name, values in model.items()})
        self.optimiser.load_state_dict(optimiser)


def run(count: int, seed: int, retried: Callable[[], None]) -> list[list[float]]:
    """Rounds until `count` of them were interrupted; each is begun again from what was saved."""
    draws = random.Random(seed)
    training = Training()
    told = [training.round(0)]
    number, met, longest_s = 1, 0, 0.2
    while met < count:
        saved = training.held()
        for _ in range(8):
            try:
                with interrupted(draws.expovariate(1.0) * longest_s * 0.3 + 1e-5):
                    made = training.round(number)
                break
            except KeyboardInterrupt:
                met += 1
                retried()
                training.load(saved)
        else:
            # So that the program gets on at all.
            made = training.round(number)
        told.append(made)
        number += 1
        longest_s = 0.03
    return told


def check(count: int, seed: int) -> None:
    with options.override(device="CPU"):
        hits: list[None] = []
        found = run(count, seed, lambda: hits.append(None))
        assert len(hits) >= count
        quiet = Training()
        wanted = [quiet.round(number) for number in range(len(found))]
    np.testing.assert_allclose(found[-1], wanted[-1], rtol=2e-4)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4)


def test_interruptions_lose_nothing() -> None:
    check(15, 0)


@pytest.mark.parametrize("context", [Tensor.no_grad, autocast])
def test_a_mode_that_is_interrupted_as_it_is_set_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, context: Callable[[], Any]
) -> None:
    kept = grad_mode._ENABLED

    class Interrupted:
        """The variable, of which the first change is followed by Ctrl-C."""

        get, reset, calls = kept.get, kept.reset, 0

        def set(self, value: Any) -> Any:
            mark = kept.set(value)
            self.calls += 1
            if self.calls == 1:
                raise KeyboardInterrupt
            return mark

    before = kept.get()
    for enter in (lambda: context().__enter__(), lambda: context()(lambda: None)()):
        monkeypatch.setattr(grad_mode, "_ENABLED", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            enter()
        assert kept.get() is before
    # One context may be entered again inside itself.
    twice = context()
    with twice, Tensor.enable_grad(), twice:
        pass
    assert kept.get() is before


def test_locks_are_taken_by_with() -> None:
    """Ctrl-C between `acquire` and `try` leaves a lock taken for ever."""
    found = []
    for file in Path(baregrad.__file__).parent.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if ".acquire()" in text else ():
            body = getattr(node, "body", None)
            for one, after in pairwise(body) if isinstance(body, list) else ():
                taken = isinstance(one, ast.Expr) and ast.unparse(one).endswith(".acquire()")
                if taken and isinstance(after, ast.Try):
                    found.append((file.name, one.lineno))
    assert not found


@pytest.mark.slow
def test_a_thousand_interruptions_lose_nothing() -> None:
    for seed in range(10):
        check(100, seed)

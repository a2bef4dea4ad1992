"""State of jitted functions keeps memory of its own, however it was set between the calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.errors import JitError
from baregrad.base.options import options
from baregrad.tensor import Tensor
from baregrad.tensor.jit import state as jit_state
from baregrad.tensor.jit.jit import jit

Reset = Callable[[Tensor], object]
RESETS: dict[str, Reset] = {
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(0),
    "part": lambda t: t.__setitem__(slice(None), 0),
    "assign": lambda t: t.assign(Tensor.zeros(*t.shape)),
    "detached": lambda t: t.detach().zero_(),
    "copy_": lambda t: t.copy_(Tensor.ones(*t.shape) * 0),
    "multiplied": lambda t: t.mul_(0),
    "masked": lambda t: t.masked_fill_(Tensor.ones(*t.shape) > 0, 0),
}


@pytest.mark.parametrize("name", RESETS)
@pytest.mark.parametrize("checked", [False, True])
def test_equal_values_share_no_memory(name: str, checked: bool) -> None:
    a, b = Tensor.zeros(2), Tensor.zeros(2)

    @jit
    def add(x: Tensor) -> None:
        a.add_(x)
        b.add_(10 * x)

    with options.override(jit_check=checked):
        for _ in range(6):
            add(Tensor([1.0, 1.0]))
            assert (a.tolist(), b.tolist()) == ([1, 1], [10, 10])
            RESETS[name](a)
            RESETS[name](b)


def test_many_states_of_equal_values() -> None:
    states = [Tensor.zeros(3) for _ in range(5)]

    @jit
    def count(x: Tensor) -> list[Tensor]:
        for position, state in enumerate(states):
            state.add_((position + 1) * x)
        return [state + 0 for state in states]

    for _ in range(5):
        found = count(Tensor([1.0, 2.0, 3.0]))
        for position, (result, state) in enumerate(zip(found, states, strict=True)):
            wanted = [position + 1.0, 2 * (position + 1.0), 3 * (position + 1.0)]
            assert result.tolist() == state.tolist() == wanted
            state.zero_()


def test_state_that_is_the_reshape_of_other_state() -> None:
    """A computed reshape lies where its source does, under a leaf of its own."""
    a, b = Tensor.zeros(2, 2).realize(), Tensor.zeros(4).realize()

    @jit
    def add(x: Tensor) -> None:
        a.add_(x)
        b.add_(10 * x.reshape(4))

    for _ in range(6):
        add(Tensor([[1.0, 2.0], [3.0, 4.0]]))
        assert (a.tolist(), b.tolist()) == ([[1, 2], [3, 4]], [10, 20, 30, 40])
        a.zero_().realize()
        b.assign(a.reshape(4))
        b.realize()


def test_a_computed_reshape_of_state_stays_what_it_was() -> None:
    a, kept = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize(), Tensor.zeros(4).realize()

    @jit
    def increase() -> None:
        a.add_(1)

    for call in range(6):
        increase()
        if call == 3:
            kept.assign(a.reshape(4))
            kept.realize()
    assert kept.tolist() == [5, 6, 7, 8]
    assert a.tolist() == [[7, 8], [9, 10]]


def test_state_that_equals_an_argument_or_a_result() -> None:
    state = Tensor.zeros(2)

    @jit
    def add(x: Tensor) -> Tensor:
        state.add_(1)
        return x + state

    for _ in range(5):
        given = Tensor.zeros(2)
        result = add(given)
        assert (given.tolist(), state.tolist(), result.tolist()) == ([0, 0], [1, 1], [1, 1])
        state.assign(result)
        state.sub_(result)


def test_two_functions_take_turns_at_one_state() -> None:
    total, steps = Tensor.zeros(2), Tensor.zeros(2)

    @jit
    def gather(x: Tensor) -> None:
        total.add_(x)

    @jit
    def step() -> None:
        steps.add_(total)
        total.zero_()

    for call in range(1, 7):
        gather(Tensor([1.0, 2.0]))
        gather(Tensor([1.0, 2.0]))
        step()
        assert steps.tolist() == [2.0 * call, 4.0 * call]
        assert total.tolist() == [0, 0]


def test_the_check_replays_what_would_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that replays write over in spite of its other readers is found by the check."""
    monkeypatch.setattr(jit_state, "copied", lambda handle: handle)
    a, b = Tensor.zeros(2), Tensor.zeros(2)

    @jit
    def add(x: Tensor) -> None:
        a.add_(x)
        b.add_(10 * x)

    with options.override(jit_check=True):
        add(Tensor([1.0, 1.0]))
        add(Tensor([1.0, 1.0]))
        a.zero_()
        b.zero_()
        with pytest.raises(JitError, match="state 0 of a replay differs"):
            add(Tensor([1.0, 1.0]))


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_gradient_accumulation_with_masters(shape: tuple[int, ...]) -> None:
    """Sums of gradients that are set to zero together, compared with NumPy."""
    first, second = Tensor.zeros(*shape), Tensor.zeros(*shape)
    rng = np.random.default_rng(0)

    @jit
    def accumulate(x: Tensor, y: Tensor) -> None:
        first.add_(x * 2)
        second.add_(y * 3)

    for _ in range(4):
        rows = [(rng.normal(size=shape), rng.normal(size=shape)) for _ in range(3)]
        for x, y in rows:
            accumulate(Tensor(x, dtype="float32"), Tensor(y, dtype="float32"))
        np.testing.assert_allclose(first.numpy(), sum(2 * x for x, _ in rows), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            second.numpy(), sum(3 * y for _, y in rows), rtol=1e-5, atol=1e-6
        )
        first.zero_()
        second.zero_()

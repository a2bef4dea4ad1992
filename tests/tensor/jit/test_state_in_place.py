"""Replays write new values of state where the state lies, and copy only where that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from baregrad import bind, optim, variable
from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.optim.optimizer import Optimizer
from baregrad.runtime.commands import CommandList, Kernel, Operand
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

Step = Callable[[], Any]
OPTIMISERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2),
    "Adam": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-2),
}


@pytest.fixture(autouse=True, params=["CPU", "REF"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with options.override(device=request.param):
        yield request.param


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the copies that are recorded in command lists."""
    found: list[int] = []
    real = CommandList.copy

    def copy(self: CommandList, target: Operand, source: Operand, nbytes: int, **more: Any) -> None:
        found.append(nbytes)
        real(self, target, source, nbytes, **more)

    monkeypatch.setattr(CommandList, "copy", copy)
    return found


def drawn(*shape: int, seed: int = 0, dtype: DType = dtypes.float32) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(values).cast(dtype).realize()


def training(name: str, dtype: DType, rounds: int = 1) -> tuple[list[Tensor], Step]:
    """A network's parameters and a step, at whose end its activations are still at hand."""
    parameters = [drawn(8, 8, seed=seed, dtype=dtype).requires_grad_() for seed in range(3)]
    optimiser = OPTIMISERS[name](parameters)
    inputs = [drawn(4, 8, seed=9 + number, dtype=dtype) for number in range(rounds)]

    def step() -> Tensor:
        optimiser.zero_grad()
        losses = []
        for x in inputs:
            y = x
            for p in parameters:
                y = (y @ p).tanh()
            loss = (y * y).float().sum()
            loss.backward()
            losses.append(loss)
        optimiser.step()
        return losses[-1]

    return parameters, step


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_training_step_copies_nothing(
    copies: list[int], name: str, dtype: DType, rounds: int
) -> None:
    """Nor with gradients of several rounds added up; eager steps have the same bits."""
    parameters, step = training(name, dtype, rounds)
    others, other_step = training(name, dtype, rounds)
    replayed = jit(step)
    for _ in range(5):
        assert replayed().tolist() == other_step().tolist()
    assert not copies
    for p, other in zip(parameters, others, strict=True):
        assert p.float().tolist() == other.float().tolist()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_an_optimiser_alone_copies_nothing(copies: list[int], dtype: DType) -> None:
    """Narrow parameters are not even read by it: their values are kept in float32 too."""
    parameters = [drawn(8, 8, seed=seed, dtype=dtype).requires_grad_() for seed in range(3)]
    for p in parameters:
        p.grad = drawn(8, 8, seed=5, dtype=dtype)
    step = jit(optim.AdamW(parameters, lr=1e-2).step)
    for _ in range(3):
        step()
    assert not copies


def test_a_running_average_beside_a_step_copies_nothing(copies: list[int]) -> None:
    parameters, step = training("SGD", dtypes.float32)
    averages = [p.detach().clone().realize() for p in parameters]
    wanted = [average.numpy() for average in averages]

    @jit
    def both() -> None:
        step()
        for average, p in zip(averages, parameters, strict=True):
            average.copy_(average * 0.9 + p.detach() * 0.1)

    for _ in range(4):
        both()
        wanted = [
            one * np.float32(0.9) + p.numpy() * np.float32(0.1)
            for one, p in zip(wanted, parameters, strict=True)
        ]
    assert not copies
    for average, value in zip(averages, wanted, strict=True):
        np.testing.assert_allclose(average.numpy(), value, 1e-5, 1e-6)


def test_swapped_state() -> None:
    a, b = drawn(6, seed=1), drawn(6, seed=2)
    wanted = [a.numpy(), b.numpy()]

    @jit
    def swap() -> None:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    for _ in range(5):
        swap()
        wanted.reverse()
        np.testing.assert_array_equal([a.numpy(), b.numpy()], wanted)


def test_state_that_is_made_of_each_other_is_copied(copies: list[int], device: str) -> None:
    """One of them is: the other's new value needs the old one."""
    a, b = drawn(6, seed=1), drawn(6, seed=2)
    one, other = a.numpy(), b.numpy()

    @jit
    def turn() -> None:
        sum_, difference = a + b, a - b
        a.copy_(sum_)
        b.copy_(difference)

    for _ in range(5):
        turn()
        one, other = one + other, one - other
        np.testing.assert_allclose([a.numpy(), b.numpy()], [one, other], 1e-6)
    assert copies == [24] * (device == "CPU")


def test_the_old_value_may_be_read_after_the_new_one_was_computed() -> None:
    state = drawn(4, 4)
    now = state.numpy()

    @jit
    def step() -> Tensor:
        old = state.clone()
        state.copy_(state * 2 + 1)
        state.realize()
        # Other elements than its own, of the old value.
        return old.flip(0) + state

    for _ in range(5):
        new = now * 2 + 1
        np.testing.assert_allclose(step().numpy(), now[::-1] + new, 1e-6)
        np.testing.assert_allclose(state.numpy(), new, 1e-6)
        now = new


def test_state_that_is_also_a_result() -> None:
    state = drawn(4)
    now = state.numpy()

    @jit
    def step() -> Tensor:
        state.add_(1)
        return state

    @jit
    def value() -> Tensor:
        state.mul_(2)
        return state * 1

    for _ in range(5):
        step()
        now = now + 1
        np.testing.assert_array_equal(state.numpy(), now)
        held = value()
        now = now * 2
        np.testing.assert_array_equal(held.numpy(), now)
        before = held.numpy()
        step()
        now = now + 1
        np.testing.assert_array_equal(held.numpy(), before)


def test_state_whose_old_value_becomes_other_state() -> None:
    """A history of length two: the copy is made of what was there before."""
    before, now = (Tensor(np.full((2, 3), start, np.float32)).realize() for start in (3, 5))

    @jit
    def step() -> None:
        before.copy_(now)
        now.add_(now * 2)

    value = 5.0
    for _ in range(5):
        step()
        np.testing.assert_array_equal(before.numpy(), np.full((2, 3), value))
        value *= 3
        np.testing.assert_array_equal(now.numpy(), np.full((2, 3), value))


def test_two_states_of_one_new_value() -> None:
    """One of them is written in place, and the other gets a copy at each call."""
    first, second = (Tensor(np.full((2, 3), start, np.float32)).realize() for start in (3, 5))
    x = Tensor(np.ones((2, 3), np.float32)).realize()

    @jit
    def step() -> None:
        first.assign(x * 2)
        second[...] = x * 2

    for changed in (None, None, None, first, second, first, second):
        if changed is not None:
            changed.assign(Tensor.zeros((2, 3)))
        step()
        np.testing.assert_array_equal(first.numpy(), np.full((2, 3), 2))
        np.testing.assert_array_equal(second.numpy(), np.full((2, 3), 2))


def test_views_show_what_replays_write() -> None:
    state = drawn(4, 4)
    row, turned = state[1], state.T
    now = state.numpy()

    @jit
    def step() -> None:
        held = (state @ state).realize()
        state.copy_(state + 1)
        state.realize()
        del held

    for _ in range(5):
        step()
        now = now + 1
        np.testing.assert_allclose(row.numpy(), now[1], 1e-6)
        np.testing.assert_allclose(turned.numpy(), now.T, 1e-6)


def test_a_value_kept_outside_stays_as_it_was() -> None:
    """What was read of the state before is no part of later steps."""
    parameters, step = training("SGD", dtypes.float32)
    replayed = jit(step)
    for _ in range(6):
        before = parameters[0].detach().clone()
        doubled = parameters[0].detach() * 2
        values = parameters[0].numpy()
        replayed()
        np.testing.assert_array_equal(before.numpy(), values)
        np.testing.assert_array_equal(doubled.numpy(), values * 2)


def test_a_part_that_is_changed_in_place_leaves_the_rest(copies: list[int]) -> None:
    cache = drawn(16, 4)
    now = cache.numpy()

    @jit
    def write(x: Tensor) -> None:
        cache[3] = x
        cache[5:7] = x * 2

    for call in range(5):
        x = drawn(4, seed=20 + call)
        write(x)
        now[3], now[5:7] = x.numpy(), x.numpy() * 2
        np.testing.assert_array_equal(cache.numpy(), now)
    assert not copies


def test_a_cache_that_is_written_at_a_place_and_read(copies: list[int]) -> None:
    """As in decoding: what is written now is read at once, and kept for later."""
    place = variable("place", 0, 15)
    cache = Tensor.zeros(2, 16, 4).realize()
    now = np.zeros((2, 16, 4), np.float32)

    @jit
    def step(x: Tensor, at: Any) -> Tensor:
        cache[:, at] = x
        return (cache[:, : at + 1] * 2).sum(1)

    for at in (0, 1, 2, 15, 7):
        x = drawn(2, 4, seed=at)
        now[:, at] = x.numpy()
        found = step(x, bind(place, at))
        np.testing.assert_allclose(found.numpy(), 2 * now[:, : at + 1].sum(1), 1e-5, 1e-5)
        np.testing.assert_array_equal(cache.numpy(), now)
    assert not copies


def test_a_slice_that_is_assigned_is_all_that_is_computed(device: str) -> None:
    """Where the array lies; one that others still read is made whole."""
    sizes: list[int] = []
    cache = drawn(64, 8)
    before = cache.numpy()

    @jit
    def write(x: Tensor) -> None:
        cache[3:5] = x

    with pytest.MonkeyPatch.context() as patch:
        real = CommandList.exec

        def noted(self: CommandList, kernel: Kernel, buffers: Any, *more: Any, **by: Any) -> None:
            sizes.append(len(buffers))
            real(self, kernel, buffers, *more, **by)

        patch.setattr(CommandList, "exec", noted)
        for call in range(4):
            write(drawn(2, 8, seed=call))
    before[3:5] = drawn(2, 8, seed=3).numpy()
    np.testing.assert_array_equal(cache.numpy(), before)
    # The last one recorded is the replay's: its kernel does not read the array.
    assert sizes[-1:] == [2] * (device == "CPU")


def test_a_part_made_of_what_lies_in_place_where_the_array_does_not() -> None:
    """The array's old value becomes that of other state, so its new one is made whole."""
    a, b, c = (drawn(8, 8, seed=seed) for seed in (1, 2, 3))
    first, second, third = a.numpy(), b.numpy(), c.numpy()

    @jit
    def step(w: Tensor) -> None:
        c.copy_(b)
        a.copy_(w @ w + a)
        b[2:5] = a[3:6] * 3

    for call in range(5):
        w = drawn(8, 8, seed=10 + call)
        step(w)
        third = second.copy()
        first = w.numpy() @ w.numpy() + first
        second[2:5] = first[3:6] * 3
        for state, wanted in ((a, first), (b, second), (c, third)):
            np.testing.assert_allclose(state.numpy(), wanted, 1e-4, 1e-4)

"""Calls that are like the one before are told at a glance; all others are looked at in full."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.jit.jit import jit
from tests.tensor.array.known_calls import Work, held
from tests.tensor.array.known_calls import drawn as numbers

pytestmark = pytest.mark.usefixtures("earlier_objects_rest")

SCALE = 2.0


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype("f4")).realize()


def warmed(function: Any, *args: Any) -> Any:
    """The jitted function, after calls enough for the next one to be known at a glance."""
    made = jit(function)
    for _ in range(5):
        made(*args)
    assert made._last is not None
    return made


def other_values(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return drawn(4, 6, seed=8), drawn(4, 6, seed=9)


def the_same_twice(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x, x


def other_order(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return y, x


def other_shape(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return drawn(2, 6), drawn(2, 6, seed=1)


def other_dtype(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x.double().realize(), y


def a_view(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return drawn(6, 4).T, y


def a_part(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return drawn(8, 6)[2:6], y


def not_computed(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x * 3, y


def a_number(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x, 3.0


def a_list(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return drawn(4, 6, seed=5), drawn(6, seed=6)


WAYS = (
    other_values, the_same_twice, other_order, other_shape, other_dtype, a_view, a_part,
    not_computed, a_number, a_list,
)


@pytest.mark.parametrize("change", WAYS, ids=lambda way: way.__name__)
def test_a_call_after_others_of_one_kind(change: Callable[..., tuple[Any, ...]]) -> None:
    x, y = drawn(4, 6), drawn(4, 6, seed=1)
    f = warmed(lambda a, b: (a - 2 * b, a * b), x, y)
    arguments = change(x, y)
    plain = [a.numpy() if isinstance(a, Tensor) else a for a in arguments]
    for _ in range(4):
        # To and fro: neither kind is taken for the other.
        first, second = f(*arguments)
        np.testing.assert_allclose(first.numpy(), plain[0] - 2 * plain[1], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(second.numpy(), plain[0] * plain[1], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(f(x, y)[1].numpy(), x.numpy() * y.numpy())


def test_arguments_by_name() -> None:
    x, y = drawn(3), drawn(3, seed=1)
    f = warmed(lambda a, b: a - b, x, y)
    np.testing.assert_array_equal(f(b=x, a=y).numpy(), y.numpy() - x.numpy())


def test_what_is_closed_over_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(3)
    f = warmed(lambda a: a * SCALE, x)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    for _ in range(4):
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * 5)


def test_a_tensor_that_is_closed_over_and_changed() -> None:
    x, state = drawn(3), drawn(3, seed=1)
    f = warmed(lambda a: a + state, x)
    for step in range(4):
        state.assign(Tensor(np.full(3, step, np.float32)))
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() + step)


@pytest.mark.parametrize("count", [1, 2])
def test_results_that_are_held_stay(count: int) -> None:
    inputs = [drawn(5, seed=seed) for seed in range(8)]
    f = warmed(lambda a: tuple(a * (k + 1) for k in range(count)), inputs[0])
    held = [f(x)[-1] for x in inputs]
    for x, made in zip(inputs, held, strict=True):
        np.testing.assert_array_equal(made.numpy(), x.numpy() * count)


def test_a_result_that_is_the_next_argument() -> None:
    x = drawn(5)
    f = warmed(lambda a: a * 2, x)
    wanted = x.numpy()
    for _ in range(9):
        x = f(x)
        wanted = wanted * 2
        np.testing.assert_array_equal(x.numpy(), wanted)


def test_gradients_are_told_apart() -> None:
    x = drawn(3)
    f = warmed(lambda a: a * 2, x)
    replays = f.replays
    with no_grad():
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * 2)
    assert f.replays == replays
    np.testing.assert_array_equal(f(x).numpy(), x.numpy() * 2)
    assert f.replays == replays + 1
    f(drawn(3).requires_grad_())
    assert f.replays == replays + 1


def test_a_gradient_that_an_argument_holds() -> None:
    """It is an argument as well."""
    x = drawn(3)
    f = warmed(lambda a: a * 2 if a.grad is None else a.grad * 3, x)
    y = drawn(3).requires_grad_()
    y.sum().backward()
    y.requires_grad_(False)
    assert y.grad is not None
    for _ in range(3):
        np.testing.assert_array_equal(f(y).numpy(), np.full(3, 3, np.float32))


def test_another_session_and_other_options() -> None:
    x = drawn(3)
    f = warmed(lambda a: a * 2, x)
    captures = f.captures
    with options.override(jit_check=True):
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * 2)
    with use_session(Session()):
        y = drawn(3, seed=1)
        for _ in range(3):
            np.testing.assert_array_equal(f(y).numpy(), y.numpy() * 2)
    assert f.captures == captures + 1
    f.reset()
    assert f(x).shape == (3,)
    assert f.captures == captures + 1


def test_an_argument_that_is_written_is_looked_at_in_full() -> None:
    x = drawn(3)

    @jit
    def step(a: Tensor) -> Tensor:
        a.add_(1)
        return a * 2

    before = x.numpy()
    for count in range(1, 8):
        np.testing.assert_allclose(step(x).numpy(), (before + count) * 2, rtol=1e-6)
    assert step._last is None


@pytest.mark.parametrize("count", [12, 1 << 19])
def test_a_replay_that_could_not_run_leaves_nothing(count: int) -> None:
    """Results are made before the kernels run: later calls fill what a failed one made anew."""
    with options.override(device="CPU"):
        x = drawn(count)
        f = warmed(lambda a: (a * 2, a + 1), x)
        device = x._ref().handle.device
        held = f(x)
        shown = [tensor.numpy() for tensor in held]
        in_use = []
        with pytest.MonkeyPatch.context() as patch:
            def refuse(*args: Any, **kwargs: Any) -> None:
                raise RuntimeError("no")

            patch.setattr(device, "submit", refuse)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="no"):
                    f(x)
                in_use.append(device.memory_stats().in_use_nbytes)
        if count > 12:
            assert len(set(in_use)) == 1
        y = drawn(count, seed=1)
        for result, exact in zip(f(y), (y.numpy() * 2, y.numpy() + 1), strict=True):
            np.testing.assert_array_equal(result.numpy(), exact)
        for tensor, array in zip(held, shown, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_a_closed_buffer_is_refused_as_before() -> None:
    from baregrad.base.errors import DeviceError

    x = drawn(3)
    f = warmed(lambda a: a * 2, x)
    y = drawn(3, seed=1)
    y._ref().handle.close()
    with pytest.raises(DeviceError, match="closed"):
        f(y)


def test_arguments_that_are_put_off_are_computed_by_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = jit(lambda x, y: x * 2 + y)
    with options.override(device="CPU"), use_session(Session()) as session:
        for turn in range(7):
            a, b = numbers(4, 6), numbers(4, 6)
            x, y = held(a), held(b)
            with Work(session, monkeypatch) as work:
                found = function(x.exp(), y.T.exp().T)
            wanted = np.exp(a) * 2 + np.exp(b)
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)
            with Work(session, monkeypatch) as views:
                found = function(x.T.exp().T[:, 1:], y[:, 1:])
            wanted = (np.exp(a) * 2 + b)[:, 1:]
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)
            if turn > 3:
                assert (work.graphs, views.graphs) == (0, 0)
        session.close()


def test_an_argument_that_is_put_off_twice_is_one() -> None:
    function = jit(lambda x, y: x * 2 - y)
    for _ in range(6):
        a = numbers(5)
        x = held(a).exp()
        np.testing.assert_allclose(function(x, x).numpy(), np.exp(a), rtol=1e-5)
        assert x.tolist() == pytest.approx(np.exp(a).tolist(), rel=1e-5)


def frames_of(function: Callable[[], Any]) -> int:
    """How many functions written in Python a call enters."""
    entered = [0]

    def note(frame: Any, event: str, argument: Any) -> None:
        entered[0] += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return entered[0]


def test_a_replay_enters_few_functions_for_each_state() -> None:
    """What is looked at for each parameter of an optimiser is looked at within one function."""
    with options.override(device="CPU"), use_session(Session()):
        found = []
        for count in (2, 12):
            states = [drawn(3, seed=seed) for seed in range(count)]

            def step(held: list[Tensor] = states) -> None:
                for one in held:
                    one.assign(one * 2)

            f = warmed_in_full(step)
            before = [one.numpy() for one in states]
            found.append(frames_of(f))
            for one, value in zip(states, before, strict=True):
                np.testing.assert_array_equal(one.numpy(), value * 2)
    assert found[1] - found[0] <= 10


def warmed_in_full(function: Callable[[], None]) -> Any:
    """The jitted function, after a few replays."""
    made = jit(function)
    for _ in range(5):
        made()
    assert made.replays >= 3
    return made


def test_a_replay_does_not_go_through_state_that_nobody_looked_at() -> None:
    with options.override(device="CPU"), use_session(Session()):
        found = []
        for count in (2, 40):
            states = [drawn(3, seed=seed) for seed in range(count)]

            def step(held: list[Tensor] = states) -> None:
                for one in held:
                    one.assign(one * 2)

            f = warmed_in_full(step)
            before = [one.numpy() for one in states]
            f()
            found.append(frames_of(f))
            for one, value in zip(states, before, strict=True):
                np.testing.assert_array_equal(one.numpy(), value * 4)
    assert found[1] == found[0]

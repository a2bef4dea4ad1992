"""Replays change and return what the plain function would: state, arguments, views, gradients.

Each case is a little program that gives arrays. It runs plainly and jitted, to the same bits; what
it should give is also written out in NumPy where the plain run is not enough of an oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad import optim
from baregrad.base.errors import JitError
from baregrad.base.options import options
from baregrad.tensor.jit.jit import jit
from baregrad.tensor.tensor import Tensor

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Arrays = list[np.ndarray[Any, Any]]
CALLS = 6
CASES: dict[str, Callable[[Wrap], Arrays]] = {}


def case(function: Callable[[Wrap], Arrays]) -> Callable[[Wrap], Arrays]:
    CASES[function.__name__] = function
    return function


def data(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(data(*shape, seed=seed))


# --- state ----------------------------------------------------------------------------------------


@case
def state_that_takes_up_gradients(wrap: Wrap) -> Arrays:
    state = tensor(3)

    def add(x: Tensor) -> None:
        state.add_(x.requires_grad_())

    called = wrap(add)
    found = []
    for call in range(CALLS):
        called(tensor(3, seed=call))
        found.append(state.numpy())
    wanted = data(3)
    for call, array in enumerate(found):
        wanted = wanted + data(3, seed=call)
        np.testing.assert_array_equal(array, wanted)
    return found


@case
def state_that_is_lazy_between_calls(wrap: Wrap) -> Arrays:
    state = tensor(3)

    def add(x: Tensor) -> None:
        state.add_(x)

    called = wrap(add)
    wanted = data(3)
    for call in range(CALLS):
        called(tensor(3, seed=call))
        state.mul_(2)
        wanted = (wanted + data(3, seed=call)) * 2
    found = state.numpy()
    np.testing.assert_array_equal(found, wanted)
    return [found]


@case
def state_that_shares_memory_between_calls(wrap: Wrap) -> Arrays:
    a, b = tensor(3), tensor(3, seed=1)

    def change(x: Tensor) -> Tensor:
        a.add_(x)
        b.mul_(2)
        return a - b

    called = wrap(change)
    found = []
    for call in range(CALLS):
        found.append(called(tensor(3, seed=call)).numpy())
        if call in (0, 1, 3):
            b[...] = a
        found += [a.numpy(), b.numpy()]
    return found


@case
def state_set_from_another_tensor(wrap: Wrap) -> Arrays:
    state, source = tensor(3), tensor(3, seed=9)

    def fill(x: Tensor) -> Tensor:
        state[...] = source
        return x + state

    called = wrap(fill)
    found = []
    for call in range(CALLS):
        found.append(called(tensor(3, seed=call)).numpy())
        source.add_(1.0)
        found.append(state.numpy())
    return found


@case
def results_that_keep_old_state(wrap: Wrap) -> Arrays:
    state = tensor(3)

    def change(x: Tensor) -> tuple[Tensor, Tensor]:
        before = Tensor.zeros(3).contiguous()
        before[...] = state
        state.add_(x)
        state.realize()
        after = Tensor.zeros(3).contiguous()
        after[...] = state
        return before, after

    called = wrap(change)
    results = [called(tensor(3, seed=call)) for call in range(CALLS)]
    return [t.numpy() for pair in results for t in pair]


@case
def an_argument_set_from_state(wrap: Wrap) -> Arrays:
    state = tensor(4)

    def take(x: Tensor) -> None:
        x[...] = state[...]
        state.add_(1)

    called = wrap(take)
    found = []
    for call in range(CALLS):
        x = tensor(4, seed=call)
        called(x)
        np.testing.assert_allclose(x.numpy(), data(4) + call, rtol=1e-6)
        found += [x.numpy(), state.numpy()]
    return found


# --- expressions and histories --------------------------------------------------------------------


@case
def an_expression_that_was_computed_outside(wrap: Wrap) -> Arrays:
    weight = tensor(3).requires_grad_()
    outside = (weight * 2).sum().realize()
    called = wrap(lambda x: x * (weight * 2).sum())
    found = []
    for call in range(CALLS):
        found.append(called(tensor(3, seed=call)).numpy())
        with Tensor.no_grad():
            weight.add_(1.0)
    return [*found, outside.numpy()]


@case
def a_closed_over_history_that_grows(wrap: Wrap) -> Arrays:
    weight, state = tensor(3).requires_grad_(), tensor(3)
    called = wrap(lambda x: x * state)
    found = []
    for call in range(CALLS):
        found.append(called(tensor(3, seed=call)).numpy())
        state.mul_(weight)
        state.realize()
    return found


def test_gradients_into_a_history_are_refused() -> None:
    weight = tensor(3).requires_grad_()
    hidden = weight * weight

    def loss(x: Tensor) -> Tensor:
        total = (hidden * x).sum()
        total.backward()
        return total

    called = jit(loss)
    called(tensor(3))
    with pytest.raises(JitError, match="computed outside of it"):
        called(tensor(3))


# --- arguments ------------------------------------------------------------------------------------


@case
def an_argument_that_is_state_too(wrap: Wrap) -> Arrays:
    state = tensor(3)

    def change(x: Tensor) -> Tensor:
        state.add_(1.0)
        return x * 2

    called = wrap(change)
    found = []
    for call in range(CALLS):
        found += [called(state).numpy(), called(tensor(3, seed=call)).numpy()]
    return found


@case
def a_changed_argument_that_is_closed_over(wrap: Wrap) -> Arrays:
    weight = tensor(3)

    def change(x: Tensor) -> Tensor:
        x.add_(1.0)
        return x * weight

    called = wrap(change)
    found = []
    for call in range(CALLS):
        found += [called(weight).numpy(), called(tensor(3, seed=call)).numpy()]
    return found


@case
def arguments_of_one_storage(wrap: Wrap) -> Arrays:
    def change(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1.0)
        return y * 2

    called = wrap(change)
    found = []
    for call in range(CALLS):
        x = tensor(3, seed=call)
        found += [called(x, x.detach()).numpy(), x.numpy()]
    return found


@case
def lazy_readers_of_a_changed_argument(wrap: Wrap) -> Arrays:
    def change(x: Tensor) -> None:
        x.add_(1.0)
        x.realize()

    called = wrap(change)
    found = []
    for call in range(CALLS):
        x = tensor(3, seed=call).realize()
        reader = x * 2
        called(x)
        np.testing.assert_array_equal(reader.numpy(), data(3, seed=call) * 2)
        found += [x.numpy(), reader.numpy()]
    return found


@case
def gradients_of_arguments(wrap: Wrap) -> Arrays:
    def square(x: Tensor) -> None:
        (x.requires_grad_() * x).sum().backward()

    called = wrap(square)
    found = []
    kept = tensor(3).requires_grad_()
    for call in range(CALLS):
        x = tensor(3, seed=call)
        called(x)
        called(kept)
        np.testing.assert_allclose(kept.grad.numpy(), 2 * (call + 1) * data(3), rtol=1e-6)
        found += [x.grad.numpy(), kept.grad.numpy()]
    return found


# --- views ----------------------------------------------------------------------------------------


@case
def views_that_share_a_result(wrap: Wrap) -> Arrays:
    def double(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y.T, y[0]

    called = wrap(double)
    found = []
    for call in range(CALLS):
        a, b, c = called(tensor(3, 4, seed=call))
        b.add_(1.0)
        c.mul_(3.0)
        wanted = data(3, 4, seed=call) * 2 + 1
        wanted[0] *= 3
        np.testing.assert_array_equal(a.numpy(), wanted)
        found += [a.numpy(), b.numpy(), c.numpy()]
    return found


@case
def views_of_arguments_and_state(wrap: Wrap) -> Arrays:
    state = tensor(3, 4)

    def change(x: Tensor) -> tuple[Tensor, ...]:
        state.add_(x)
        return x.T, state, state.T

    called = wrap(change)
    found = []
    for call in range(CALLS):
        x = tensor(3, 4, seed=call)
        a, b, c = called(x)
        a.add_(1.0)
        c.mul_(0.5)
        found += [x.numpy(), b.numpy(), state.numpy()]
    return found


# --- training -------------------------------------------------------------------------------------


@case
def only_the_optimiser(wrap: Wrap) -> Arrays:
    weight = tensor(4, 3).requires_grad_()
    adam = optim.Adam([weight], lr=0.1)
    called = wrap(lambda: [adam.step()])
    found = []
    for call in range(CALLS):
        adam.zero_grad()
        ((weight * tensor(4, 3, seed=call)) ** 2).sum().backward()
        called()
        found += [weight.numpy(), weight.grad.numpy()]
    return found


@case
def gradients_that_accumulate(wrap: Wrap) -> Arrays:
    weight = tensor(3).requires_grad_()
    called = wrap(lambda x: [(weight * x).sum().backward()])
    found = []
    for call in range(CALLS):
        called(tensor(3, seed=call))
        found.append(weight.grad.numpy())
    wanted = np.cumsum([data(3, seed=call) for call in range(CALLS)], 0)
    np.testing.assert_allclose(np.stack(found), wanted, rtol=1e-5)
    return found


@case
def work_that_was_pending(wrap: Wrap) -> Arrays:
    weight = tensor(3).requires_grad_()
    called = wrap(lambda x: (x * 2).realize() * 3)
    found = []
    for call in range(CALLS):
        weight.grad = None
        (weight * weight).sum().backward()
        found += [called(tensor(3, seed=call)).numpy(), weight.grad.numpy()]
        with Tensor.no_grad():
            weight.mul_(0.5)
    return found


# --- memory that is overwritten: what was computed from it before is not what is computed after ---


@case
def another_jit_that_read_the_state(wrap: Wrap) -> Arrays:
    weight = tensor(3)
    predict, train = wrap(lambda: (weight * 2).sum()), wrap(lambda: (weight.add_(1.0), None)[1])
    for _ in range(3):
        predict()
    found = []
    wanted = data(3)
    for _ in range(CALLS):
        train()
        wanted = wanted + np.float32(1)
        found += [(weight * 2).sum().numpy(), predict().numpy()]
        np.testing.assert_allclose(found[-2:], (wanted * 2).sum(), rtol=1e-6)
    return found


@case
def a_view_that_was_read_before(wrap: Wrap) -> Arrays:
    weight = tensor(1 << 16)  # so large that a part is read for itself
    part = weight[:10]
    found = [part.numpy()]
    train = wrap(lambda: (weight.add_(1.0), None)[1])
    wanted = data(1 << 16)
    for _ in range(CALLS):
        train()
        wanted = wanted + np.float32(1)
        found.append(part.numpy())
        np.testing.assert_array_equal(found[-1], wanted[:10])
    return found


@case
def state_that_is_read_before_and_after(wrap: Wrap) -> Arrays:
    weight = tensor(3)

    def step() -> tuple[Tensor, Tensor]:
        before = (weight * 2).realize()
        weight.add_(1.0)
        weight.realize()
        return before, weight * 2

    called = wrap(step)
    found = []
    wanted = data(3)
    for _ in range(CALLS):
        found += [result.numpy() for result in called()]
        np.testing.assert_array_equal(found[-2], wanted * 2)
        wanted = wanted + np.float32(1)
        np.testing.assert_array_equal(found[-1], wanted * 2)
    return found


@case
def what_was_computed_inside_from_what_others_hold(wrap: Wrap) -> Arrays:
    state, other = tensor(3), tensor(3, seed=1)
    other[...] = state
    called = wrap(lambda: (state * 2).realize() * 3)
    found = []
    for call in range(CALLS):
        found.append(called().numpy())
        np.testing.assert_array_equal(found[-1], data(3, seed=call and 10 + call) * 2 * 3)
        state[...] = tensor(3, seed=11 + call)
        found.append((other * 2).numpy())
        np.testing.assert_array_equal(found[-1], data(3) * 2)
    return found


@case
def state_that_was_lazy_when_it_was_changed(wrap: Wrap) -> Arrays:
    state, other = tensor(3), tensor(3, seed=1)
    called = wrap(lambda: (state.add_(1.0), None)[1])
    found = []
    wanted = data(3)
    for _ in range(CALLS):
        called()
        wanted = wanted + np.float32(1)
        other[...] = state
        other.realize()
        state.mul_(0.5)
        view = state.reshape(3, 1)
        assert view.shape == (3, 1)
        called()
        found += [state.numpy(), (other * 0.5).numpy(), view.numpy()]
        np.testing.assert_array_equal(found[-2], wanted * np.float32(0.5))
        wanted = wanted * np.float32(0.5) + np.float32(1)
        np.testing.assert_array_equal(found[-3], wanted)
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ("CPU", "REF"))
def test_a_replay_is_the_plain_call(name: str, device: str) -> None:
    with options.override(device=device):
        plain = CASES[name](lambda function: function)
        jitted = CASES[name](jit)
        with options.override(jit_check=True):
            checked = CASES[name](jit)
    for found in (jitted, checked):
        for a, b in zip(found, plain, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


# --- bits -----------------------------------------------------------------------------------------


def _view_of_a_product(a: Tensor, b: Tensor) -> list[Tensor]:
    product = a @ b.mT
    return [product.sum(), product[:, ::-1, 14:15]]


def _gradient_through_a_view(a: Tensor, b: Tensor) -> list[Tensor]:
    weights = a.requires_grad_().softmax(2)
    shown = weights.permute((2, 0, 1))
    total = (shown * shown * 0.125 + shown).sum()
    (found,) = total.gradient(a)
    return [shown, found]


def _row_of_a_product(a: Tensor, b: Tensor) -> list[Tensor]:
    return [(a @ b.mT)[-1, 1, :], b.sum((0,)).var(0, correction=0)]


@pytest.mark.parametrize(
    "function", (_view_of_a_product, _gradient_through_a_view, _row_of_a_product)
)
def test_results_have_the_bits_of_the_plain_function(
    function: Callable[..., list[Tensor]],
) -> None:
    def results(wrap: Wrap) -> Arrays:
        called = wrap(function)
        found = []
        for call in range(4):
            given = [tensor(2, 5, 9, seed=call), tensor(17, 9, seed=call + 9)]
            made = called(*given)
            given[0].realize(*reversed(made))
            found += [t.numpy() for t in made]
        return found

    with options.override(device="CPU"):
        for a, b in zip(results(jit), results(lambda f: f), strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


def test_a_constant_that_was_computed_stays_a_constant() -> None:
    """What somebody computed before does not change what a graph is compiled to."""
    from baregrad.engine.session import Session, current_session, use_session

    session = Session()
    with use_session(session), options.override(device="CPU"):
        x = tensor(3)
        (x * 0.5 + Tensor.zeros(3)).realize()
        plans = len(current_session()._plans)
        kept = [Tensor(0.5).requires_grad_() * 1, Tensor.zeros(3).requires_grad_() + 0]
        kept[0].realize(kept[1], Tensor.full((), 0.5))
        more = len(current_session()._plans)
        (x * 0.5 + Tensor.zeros(3)).realize()
        assert len(current_session()._plans) == more > plans
    session.close()


def test_state_that_calls_read_in_between_keeps_its_memory() -> None:
    total = Tensor(np.zeros(6, np.float32)).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        total.add_(x)
        return x * 2

    step(Tensor(np.ones(6, np.float32)))
    places = set()
    for turn in range(6):
        step(Tensor(np.ones(6, np.float32)))
        assert (total + 1).realize().tolist() == [turn + 3.0] * 6
        if turn > 2:
            places.add(total._ref().handle.address)
    assert len(places) == 1


def test_a_call_put_off_before_a_replay_reads_the_state_of_before() -> None:
    total = (Tensor(np.zeros(6, np.float32)) + 0).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        total.add_(x)
        return x * 2

    for turn in range(6):
        later = total + 10
        step(Tensor(np.ones(6, np.float32)))
        assert later.tolist() == [turn + 10.0] * 6
        assert total.tolist() == [turn + 1.0] * 6

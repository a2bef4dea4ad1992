"""jit: replays equal eager calls, and whatever changed is seen or refused."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import JitError
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.tensor.jit.jit import TinyJit, jit
from baregrad.tensor.tensor import Tensor

DEVICES = ("CPU", "REF")


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_replays_follow_their_arguments(device: str) -> None:
    weight = Tensor(numbers(4, 5), device=device)

    @jit
    def layer(x: Tensor) -> Tensor:
        return (x @ weight).relu() + 1

    for seed in range(5):
        x = numbers(3, 4, seed=seed)
        wanted = np.maximum(x @ weight.numpy(), 0) + 1
        np.testing.assert_allclose(layer(Tensor(x, device=device)).numpy(), wanted, rtol=1e-5)
    assert (layer.captures, layer.replays) == (1, 3)


def test_results_are_fresh() -> None:
    @jit
    def double(x: Tensor) -> Tensor:
        return x * 2

    results = [double(Tensor([float(i)])) for i in range(6)]
    assert [r.item() for r in results] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize("device", DEVICES)
def test_state_changes_at_every_call(device: str) -> None:
    count = Tensor([0.0], device=device)
    total = Tensor([1.0, 2.0], device=device)

    @jit
    def step(x: Tensor) -> Tensor:
        count.assign(count + 1)
        total.assign(total * 0.5 + x)
        return total + count

    reference = np.array([1.0, 2.0], np.float32)
    for call in range(1, 7):
        x = numbers(2, seed=call)
        reference = reference * np.float32(0.5) + x
        result = step(Tensor(x, device=device))
        np.testing.assert_array_equal(result.numpy(), reference + call)
        np.testing.assert_array_equal(total.numpy(), reference)
        assert count.item() == call


def test_swapped_state() -> None:
    a, b = Tensor([1.0]), Tensor([2.0])

    @jit
    def swap() -> None:
        old = a + 0
        a.assign(b + 0)
        b.assign(old)

    for call in range(6):
        wanted = (1.0, 2.0) if call % 2 else (2.0, 1.0)
        swap()
        assert (a.item(), b.item()) == wanted


def test_state_changed_outside_is_seen() -> None:
    weight = Tensor([1.0])

    @jit
    def scale(x: Tensor) -> Tensor:
        return x * weight

    for factor in range(1, 7):
        weight.assign(Tensor([float(factor)]))
        assert scale(Tensor([10.0])).item() == 10.0 * factor


def test_a_rebound_tensor_is_seen() -> None:
    box = {"w": Tensor([1.0])}

    @jit
    def scale(x: Tensor) -> Tensor:
        return x * box["w"]

    for factor in (1, 1, 1, 5, 5, 5, 7):
        box["w"] = box["w"] if box["w"].item() == factor else Tensor([float(factor)])
        assert scale(Tensor([10.0])).item() == 10.0 * factor


def test_a_changed_plain_value_is_seen() -> None:
    class Model:
        factor = 2.0

        def __init__(self) -> None:
            self.training = True

        @jit
        def __call__(self, x: Tensor) -> Tensor:
            return x * 3 if self.training else x

    model = Model()
    for training in (True, True, True, False, False, False, True):
        model.training = training
        assert model(Tensor([1.0])).item() == (3.0 if training else 1.0)


def test_shapes_and_dtypes_and_plain_arguments_are_kept_apart() -> None:
    @jit
    def power(x: Tensor, n: int = 2) -> Tensor:
        return x**n

    for _ in range(4):
        assert power(Tensor([3.0])).item() == 9.0
        assert power(Tensor([3.0]), n=3).item() == 27.0
        assert power(Tensor([3.0, 2.0])).tolist() == [9.0, 4.0]
        assert power(Tensor([3.0]).double()).dtype.name == "float64"
    assert power.captures == 4


@dataclasses.dataclass
class Batch:
    x: Tensor
    extra: dict[str, Tensor]
    name: str = "batch"


def test_trees_in_and_out() -> None:
    @TinyJit
    def combine(batch: Batch, rest: list[Tensor]) -> dict[str, Any]:
        total = batch.x + batch.extra["y"] + rest[0] * rest[1]
        return {"total": total, "pair": (batch.x * 2, batch.name), "none": None}

    for seed in range(4):
        x, y, a, b = (numbers(3, seed=10 * seed + i) for i in range(4))
        got = combine(Batch(Tensor(x), {"y": Tensor(y)}), [Tensor(a), Tensor(b)])
        np.testing.assert_allclose(got["total"].numpy(), x + y + a * b, rtol=1e-6)
        np.testing.assert_array_equal(got["pair"][0].numpy(), x * 2)
        assert got["pair"][1] == "batch"
        assert got["none"] is None


def test_views_as_arguments() -> None:
    @jit
    def double(x: Tensor) -> Tensor:
        return x * 2

    whole = numbers(6, 4)
    for row in range(5):
        np.testing.assert_array_equal(
            double(Tensor(whole)[row : row + 2].T).numpy(), whole[row : row + 2].T * 2
        )


def test_an_argument_changed_in_place() -> None:
    @jit
    def add(x: Tensor) -> None:
        x += 1

    kept = Tensor([0.0])
    for call in range(1, 6):
        add(kept)
        assert kept.item() == call


def test_arguments_that_come_from_another_device() -> None:
    """What is uploaded for an argument is no host data that the function makes."""

    @jit
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    for seed in range(5):
        data = numbers(4, seed=seed)
        got = doubled(Tensor(data).to("REF"))
        assert got.device == "REF"
        np.testing.assert_array_equal(got.numpy(), data * 2)
    assert doubled.replays >= 2


def test_random_numbers_differ_from_call_to_call() -> None:
    @jit
    def noise() -> Tensor:
        return Tensor.rand(8)

    Tensor.manual_seed(3)
    replayed = [noise().tolist() for _ in range(5)]
    Tensor.manual_seed(3)
    eager = [Tensor.rand(8).tolist() for _ in range(5)]
    assert replayed == eager
    assert len({tuple(row) for row in replayed}) == 5


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_of_random_numbers_has_the_bits_of_the_plain_function(device: str) -> None:
    """Its kernel has the shape of the generator's state, which a jitted function renews."""

    def spread(x: Tensor) -> Tensor:
        drawn = Tensor.cat([x, x, x], dim=0).uniform_()
        drawn[33] = 1
        return drawn.var((0,), correction=0)

    x = Tensor(np.zeros((33, 2), np.float32), device=device)
    jitted = jit(spread)
    for seed in range(8):
        Tensor.manual_seed(seed)
        wanted = spread(x).tolist()
        Tensor.manual_seed(seed)
        assert jitted(x).tolist() == wanted


def test_the_first_random_numbers_of_a_session_may_be_a_jitted_functions() -> None:
    def noise(x: Tensor) -> tuple[Tensor, Tensor]:
        return Tensor.rand(8) + x, x.dropout(0.5)

    def drawn(function: Any) -> list[list[Any]]:
        with use_session(Session()):
            x = Tensor(numbers(8))
            return [[part.tolist() for part in function(x)] for _ in range(5)]

    replayed = drawn(jit(noise))
    assert replayed == drawn(noise)
    assert len({str(parts) for parts in replayed}) == 5


def test_numbers_that_python_makes_anew_are_refused() -> None:
    numbers_made = iter(range(10))

    @jit
    def shifted(x: Tensor) -> Tensor:
        return x * 2 + float(next(numbers_made))

    assert shifted(Tensor([1.0])).item() == 2.0
    with pytest.raises(JitError, match="differs from call to call .*: 0.0, then 1.0; a replay"):
        shifted(Tensor([1.0]))


def test_a_plain_value_that_changed_after_the_first_call_is_no_number_made_anew() -> None:
    factor = 2.0

    def scaled(x: Tensor) -> Tensor:
        return x * factor

    jitted = jit(scaled)
    assert jitted(Tensor([1.0])).item() == 2.0
    for factor in (3.0, 3.0, 3.0, 4.0):  # the function closes over it
        assert jitted(Tensor([1.0])).item() == factor
    assert jitted.replays >= 1


def test_training_equals_eager_training() -> None:
    def make() -> tuple[Tensor, Tensor, Any]:
        w = Tensor(numbers(4, 3)).requires_grad_()
        m = Tensor.zeros(4, 3).contiguous()

        def step(x: Tensor, y: Tensor) -> Tensor:
            w.grad = None
            loss = ((x @ w - y) ** 2).mean()
            loss.backward()
            with Tensor.no_grad():
                m.assign(m * 0.9 + w.grad)
                w.assign(w - m * 0.1)
            w.realize(m)
            return loss

        return w, m, step

    w, _, step = make()
    v, _, plain = make()
    jitted = jit(step)
    for seed in range(6):
        x, y = Tensor(numbers(5, 4, seed=seed)), Tensor(numbers(5, 3, seed=100 + seed))
        assert jitted(x, y).item() == plain(x, y).item()
        np.testing.assert_array_equal(w.numpy(), v.numpy())
        np.testing.assert_array_equal(w.grad.numpy(), v.grad.numpy())
    assert jitted.replays == 4


def test_reading_a_value_inside_is_refused() -> None:
    @jit
    def peek(x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 0 else x

    peek(Tensor([1.0]))
    with pytest.raises(JitError, match="read a tensor's values"):
        peek(Tensor([1.0]))


def test_changing_host_data_is_refused() -> None:
    state = np.random.default_rng(0)

    @jit
    def noisy(x: Tensor) -> Tensor:
        return x + Tensor(state.standard_normal(3).astype(np.float32))

    noisy(Tensor([1.0]))
    with pytest.raises(JitError, match="differs from call to call"):
        noisy(Tensor([1.0]))


def test_python_state_that_changes_is_refused() -> None:
    calls = [0]

    @jit
    def counted(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * 2

    counted(Tensor([1.0]))
    with pytest.raises(JitError, match="changes calls"):
        counted(Tensor([1.0]))


def test_check_mode_accepts_what_is_right() -> None:
    count = Tensor([0.0])

    @jit
    def step(x: Tensor) -> Tensor:
        count.assign(count + x)
        return count * 2

    with options.override(jit_check=True):
        for call in range(1, 6):
            assert step(Tensor([1.0])).item() == 2.0 * call
            assert count.item() == call


def test_check_mode_compares_on_the_arrays_that_a_replay_is_handed() -> None:
    """Sums of views may have another order, and a view that is returned is itself."""
    data = numbers(100, 120)
    view = Tensor(data, device="CPU")[:, 20:].T
    with options.override(jit_check=True, device="CPU"):
        for axis in (0, 1):
            sums = jit(lambda x, axis: x.sum(axis))
            for _ in range(3):
                found = sums(view, axis).numpy()
                np.testing.assert_allclose(found, data.T[20:].sum(axis), rtol=1e-4, atol=1e-4)
            assert sums.replays == 1
        same = jit(lambda x: [x, x + 1])
        for _ in range(3):
            assert same(view)[0] is view


def test_check_mode_finds_what_capture_cannot_see() -> None:
    import builtins

    @jit
    def hidden(x: Tensor) -> Tensor:
        return x * getattr(builtins, "_baregrad_test_factor", 1.0)

    with options.override(jit_check=True):
        try:
            for _ in range(3):
                hidden(Tensor([1.0]))
            builtins._baregrad_test_factor = 2.0  # type: ignore[attr-defined]
            with pytest.raises(JitError, match="differs from the eager function's"):
                hidden(Tensor([1.0]))
        finally:
            del builtins._baregrad_test_factor  # type: ignore[attr-defined]


def test_same_tensor_twice() -> None:
    @jit
    def both(a: Tensor, b: Tensor) -> Tensor:
        return a * 10 + b

    for i in range(4):
        x = Tensor([float(i)])
        assert both(x, x).item() == 11.0 * i
        assert both(x, Tensor([5.0])).item() == 10.0 * i + 5


def test_an_argument_that_is_also_closed_over() -> None:
    weight = Tensor([2.0])

    @jit
    def f(x: Tensor) -> Tensor:
        return x * 10 + weight

    for _ in range(3):
        assert f(weight).item() == 22.0
    assert f(Tensor([3.0])).item() == 32.0


@pytest.mark.parametrize("lazy", [False, True])
def test_copies_of_state_stay_as_they_were(lazy: bool) -> None:
    state = Tensor([0.0])
    early = state.clone()

    @jit
    def step(x: Tensor) -> Tensor:
        state.add_(x)
        return state * 2

    copies = []
    for call in range(1, 7):
        step(Tensor([1.0]))
        copies.append(state.clone() if lazy else state.clone().realize())
        assert state.item() == call
    assert [copy.item() for copy in copies] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert early.item() == 0.0


def test_state_that_nobody_else_reads_keeps_its_memory() -> None:
    state = Tensor(numbers(64))

    @jit
    def step() -> None:
        state.mul_(0.5)

    places = set()
    for call in range(8):
        step()
        if call > 1:
            places.add(state._storage.node.arg.handle.address)
    assert len(places) == 1


class Holder:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def test_what_an_object_holds_is_seen_however_it_changes() -> None:
    model = Holder(weight=Tensor([1.0]), scale=2.0, parts=[Tensor([1.0]), Tensor([2.0])], rest=(3,))

    @jit
    def apply(x: Tensor) -> Tensor:
        return x * model.weight * model.scale + model.parts[0] - model.parts[1] + model.rest[0]

    def wanted(x: float) -> float:
        parts = [part.item() for part in model.parts]
        return float(x * model.weight.item() * model.scale + parts[0] - parts[1] + model.rest[0])

    def check(captures: int) -> None:
        for x in (1.0, 2.0, 3.0):
            assert apply(Tensor([x])).item() == pytest.approx(wanted(x))
        assert apply.captures == captures

    check(1)
    model.scale = float("2.0")  # an equal value is no change
    model.extra = "added"
    check(1)
    model.scale = 3.0
    check(2)
    model.weight = Tensor([5.0])
    check(3)
    model.parts[1] = Tensor([7.0])
    check(4)
    model.parts = [*model.parts]
    check(5)
    model.rest = (4,)
    check(6)
    del model.scale
    model.scale = 3.0  # in another order now
    check(6)


def test_a_change_at_every_call_is_named() -> None:
    model = Holder(count=0, weight=Tensor([1.0]))

    @jit
    def counted(x: Tensor) -> Tensor:
        model.count += 1
        return x * model.weight

    counted(Tensor([1.0]))
    with pytest.raises(JitError, match="changes model: count"):
        counted(Tensor([1.0]))


def test_numbers_that_change_at_every_call_are_warned_of() -> None:
    """Past the last kind of arguments that is kept, the function runs as it is."""
    state = Tensor.zeros(2)

    @jit
    def step(x: Tensor, weight: float) -> Tensor:
        state.add_(x * weight)
        return x * weight + 1

    wanted = np.zeros(2, np.float32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for call in range(100):
            weight = call / 128
            result = step(Tensor([1.0, 2.0]), weight)
            wanted += np.array([1, 2], np.float32) * np.float32(weight)
            assert result.tolist() == [weight + 1, 2 * weight + 1]
            assert not result.requires_grad
    np.testing.assert_array_equal(state.numpy(), wanted)
    (one,) = told
    assert one.category is RuntimeWarning and one.filename == __file__
    assert "64 different kinds" in str(one.message) and "as a tensor" in str(one.message)
    # One that was met in time is captured still, and replayed after that.
    for _ in range(3):
        assert step(Tensor([1.0, 2.0]), 0.25).tolist() == [1.25, 1.5]
    assert (step.captures, step.replays) == (1, 2)


def test_shapes_that_change_at_every_call_are_warned_of() -> None:
    total = jit(lambda x: (x * 2).sum())
    with pytest.warns(RuntimeWarning, match="symbolic sizes"):
        for count in range(1, 70):
            assert total(Tensor.ones(count)).item() == 2 * count

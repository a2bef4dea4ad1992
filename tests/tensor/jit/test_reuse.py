"""What a replay returned is its caller's as long as anything can see it, and then used again."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from baregrad.base import locks
from baregrad.base.options import options
from baregrad.engine.session import current_session
from baregrad.tensor.jit import results as jit_results
from baregrad.tensor.jit.jit import Jit, jit
from baregrad.tensor.tensor import Tensor

SHAPE = (3, 4)
ELEMENTS = 12


@pytest.fixture(autouse=True, params=("CPU", "REF"))
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    with options.override(device=request.param):
        yield


def numbers(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def doubled() -> Jit[[Tensor], Tensor]:
    """A captured function, which has replayed."""
    function = jit(lambda x: x * 2)
    for seed in range(3):
        function(Tensor(numbers(seed)))
    return function


def address(x: Tensor) -> int:
    return int(x._ref().handle.address)


def memory_of(x: Tensor) -> Any:
    return np.frombuffer(x._ref().handle.as_memoryview(), np.float32)


# Ways to keep hold of a result other than by itself, each with what shows it later.
HOLDS: dict[str, Callable[[Tensor], Callable[[], np.ndarray[Any, Any]]]] = {
    "a view": lambda r: r.T.T.numpy,
    "a detached view": lambda r: r.detach().numpy,
    "a lazy expression": lambda r: (r + 0.0 * r).numpy,
    "an expression that was shown": lambda r: (lambda t: (t.shape, t.numpy)[1])(r + 0.0 * r),
    "its memory": lambda r: (lambda m: lambda: m.reshape(SHAPE))(memory_of(r)),
    "its buffer": lambda r: (lambda h: lambda: h.contents().view(np.float32).reshape(SHAPE))(
        r._ref().handle
    ),
    "a view of its buffer": lambda r: (
        lambda h: lambda: h.contents().view(np.float32).reshape(SHAPE)
    )(r._ref().handle.view(0, 4 * ELEMENTS)),
    "its array": lambda r: (lambda a: lambda: a)(r.numpy()),
    "DLPack": lambda r: (lambda a: lambda: a)(np.from_dlpack(r)),
    "a gradient": lambda r: (lambda t: (setattr(t, "grad", r), lambda: t.grad.numpy())[1])(
        Tensor.zeros(*SHAPE)
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_is_held_stays_as_it_was(name: str) -> None:
    function = doubled()
    held = []
    for seed in range(6):
        held.append(HOLDS[name](function(Tensor(numbers(seed)))))
        function(Tensor(numbers(100 + seed)))
    for seed, show in enumerate(held):
        np.testing.assert_array_equal(show(), numbers(seed) * 2, err_msg=name)


def test_results_in_hand_are_told_apart() -> None:
    function = doubled()
    results = [function(Tensor(numbers(seed))) for seed in range(5)]
    assert len({address(r) for r in results}) == 5
    for seed, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), numbers(seed) * 2)


def test_a_result_that_nobody_has_is_used_again() -> None:
    function = doubled()
    x = Tensor(numbers(0))
    places = set()
    result = None
    for _ in range(8):
        result = function(x)
        places.add(address(result))
    assert result is not None
    if x.device == "CPU":
        assert len(places) == 2


# --- large results: those of all functions together may have so much memory -----------------------

LARGE = (512, 1024)
LARGE_NBYTES = 2 << 20


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> jit_results._LargeResults:
    """Room for four results of LARGE."""
    made = jit_results._LargeResults(4 * LARGE_NBYTES)
    monkeypatch.setattr(jit_results, "_LARGE", made)
    return made


def large(place: int) -> Jit[[Tensor], Tensor]:
    """A captured function of its own, which has replayed."""
    function = jit(lambda x: x + place)
    for _ in range(3):
        function(Tensor.zeros(*LARGE))
    return function


def in_use() -> int:
    gc.collect()
    found = current_session().backend("CPU").device.memory_stats().in_use_nbytes
    return int(found)


def test_a_large_result_that_nobody_has_is_used_again(room: object) -> None:
    function, x = large(1), Tensor.zeros(*LARGE)
    held = [function(x) for _ in range(3)]
    assert len({address(each) for each in held}) == 3
    places = set()
    for _ in range(6):
        result = function(x)
        places.add(address(result))
        assert result.numpy().max() == result.numpy().min() == 1.0
        del result
    for each in held:
        assert each.numpy().max() == 1.0
    if x.device == "CPU":
        assert len(places) == 1


def test_the_oldest_large_results_make_room(room: object) -> None:
    functions = [large(place) for place in range(8)]
    x = Tensor.zeros(*LARGE).realize()
    if x.device != "CPU":
        return
    without = in_use()
    for _ in range(2):
        for place, function in enumerate(functions):
            assert function(x).numpy().max() == place
    # No more than four are kept, as they may have been before.
    assert in_use() <= without + 4 * LARGE_NBYTES
    held = in_use()
    results = [function(x) for function in functions]
    assert in_use() >= held + 4 * LARGE_NBYTES
    del results
    # What earlier tests left may have been freed meanwhile.
    assert in_use() <= held
    functions.clear()
    assert in_use() <= held - 4 * LARGE_NBYTES


def test_a_result_changed_in_place_changes_no_later_one() -> None:
    function = doubled()
    for seed in range(6):
        result = function(Tensor(numbers(seed)))
        np.testing.assert_array_equal(result.numpy(), numbers(seed) * 2)
        result.add_(1.0)
        result.requires_grad_()
        assert result.sum().item() == pytest.approx((numbers(seed) * 2 + 1).sum(), rel=1e-4)
        del result
        assert not function(Tensor(numbers(seed))).requires_grad


def test_two_results_of_one_array_are_two_tensors() -> None:
    function = jit(lambda x: (x * 2, x * 2))
    for seed in range(6):
        a, b = function(Tensor(numbers(seed)))
        a.add_(1.0)
        np.testing.assert_array_equal(b.numpy(), numbers(seed) * 2)
        np.testing.assert_array_equal(a.numpy(), numbers(seed) * 2 + 1)
        del a, b


def test_an_argument_that_was_a_result() -> None:
    function = doubled()
    x = Tensor(np.ones(SHAPE, np.float32))
    for _ in range(10):
        x = function(x)
    assert x.numpy().max() == 1024.0


def test_trees_of_results_keep_their_form() -> None:
    function = jit(lambda x: (x * 2, "name", (x + 1, [x - 1])))
    for seed in range(4):
        x = numbers(seed)
        a, name, (b, (c,)) = function(Tensor(x))
        assert name == "name"
        for found, wanted in ((a, x * 2), (b, x + 1), (c, x - 1)):
            np.testing.assert_array_equal(found.numpy(), wanted)


def test_threads_do_not_get_each_other_s_results() -> None:
    function = doubled()
    wrong: list[int] = []
    device = options.device

    def go(number: int) -> None:
        with options.override(device=device):
            x = numbers(number)
            given = Tensor(x).realize()
            for _ in range(200):
                result = function(given)
                if not np.array_equal(result.numpy(), x * 2):
                    wrong.append(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_a_child_that_was_forked_amid_a_replay_keeps_results(
    room: jit_results._LargeResults,
) -> None:
    """Another thread, which the child does not have, held the lock."""
    other = threading.Thread(target=room.lock.acquire)
    other.start()
    other.join()
    locks._owners.after_fork()
    function, x = large(1), Tensor.zeros(*LARGE)
    assert function(x).numpy().max() == 1.0


def test_what_would_take_more_than_half_of_the_room_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jit_results, "_LARGE", jit_results._LargeResults(LARGE_NBYTES))
    function = jit(lambda x: x + 1)
    x = Tensor.zeros(1 << 19).contiguous().realize()
    for _ in range(4):
        function(x)
    gc.collect()
    device = current_session().backend(x.device).device
    before = device.memory_stats().in_use_nbytes
    result = function(x)
    assert device.memory_stats().in_use_nbytes - before >= 4 << 19
    del result
    assert device.memory_stats().in_use_nbytes == before

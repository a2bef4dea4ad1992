"""What another thread does between two steps of this one, at the worst of moments.

Most of it is done by one thread here: a function that is called in between does what another
thread could do then.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, jit
from baregrad.base.options import options
from baregrad.engine.capture import Replay
from baregrad.engine.session import Session, current_session, use_session
from baregrad.ir.core.node import Node
from baregrad.tensor.array import core, deferred
from baregrad.tensor.array.deferred import CallTemplate, DeferredValue
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.jit import state
from baregrad.tensor.jit.parts import Call
from baregrad.tensor.jit.state import State, read_by_others

WAIT_S = 60


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with options.override(device="CPU"), use_session(Session()) as found:
        yield found


def held(*values: float) -> Tensor:
    return Tensor(list(values)).realize()


def pending(x: Tensor) -> Tensor:
    """A value that is put off: a call of a description that is known."""
    for _ in range(2):
        found = x * 3 + 1
    assert found._storage.deferred is not None
    assert found._storage.deferred.call is not None
    return found


def before(
    patch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[..., None], after: bool = False
) -> None:
    """Have something done once before a function is called, or after it."""
    real = getattr(owner, name)
    left = [None]

    def found(*args: Any, **kwargs: Any) -> Any:
        if left and not after:
            left.pop()
            act(*args)
        result = real(*args, **kwargs)
        if left:
            left.pop()
            act(*args)
        return result

    patch.setattr(owner, name, found)


# --- values that are put off ----------------------------------------------------------------------


@pytest.mark.parametrize("is_put_off", [False, True])
def test_a_value_that_is_put_while_the_one_before_is_written_out_stays(
    monkeypatch: pytest.MonkeyPatch, is_put_off: bool
) -> None:
    x, other = held(1.0, 2.0), held(7.0, 8.0)
    late = pending(other)
    storage = pending(x)._storage

    def put(*_: Any) -> None:
        value = late._storage.deferred if is_put_off else other._storage.node
        assert value is not None
        storage.put(value)

    before(monkeypatch, deferred, "_write_out", put, after=True)
    assert storage.node.op.name != "BUFFER"  # that of before, as it was asked for then
    wanted = [22.0, 25.0] if is_put_off else [7.0, 8.0]
    assert Tensor._holding(storage.node, "CPU", False, ()).tolist() == wanted
    assert Tensor._on(storage).tolist() == wanted


def test_of_two_threads_that_write_a_call_out_both_have_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaf = held(1.0, 2.0).requires_grad_()
    value = [leaf * 3 for _ in range(2)][-1]._storage.deferred
    assert value is not None
    gate, first_is_done = threading.Barrier(2), threading.Event()
    real = CallTemplate.run
    mine = threading.local()

    def run(self: CallTemplate, values: Any) -> Any:
        gate.wait(WAIT_S)
        made = real(self, values)
        assert mine.number == 0 or first_is_done.wait(WAIT_S)
        return made

    monkeypatch.setattr(CallTemplate, "run", run)
    owner = current_session()

    def ask(number: int) -> Node:
        mine.number = number
        with options.override(device="CPU"), use_session(owner):
            found = value.node
        first_is_done.set()
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert first is second is value.node


def test_a_value_is_no_array_once_its_node_was_asked_for() -> None:
    value = pending(held(1.0, 2.0))._storage.deferred
    assert value is not None
    node = value.node
    assert not value.lie_at(None)
    assert value.node is node


def test_reading_what_another_thread_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = held(1.0, 2.0)
    before(monkeypatch, core, "realize_storages", lambda *_: x.add_(1), after=True)
    assert x.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("name", ["realize", "realize_by_key"])
def test_what_another_thread_writes_while_a_value_is_computed_stays(
    monkeypatch: pytest.MonkeyPatch, session: Session, name: str
) -> None:
    x, other = held(1.0, 2.0), held(7.0, 8.0)
    found = pending(x)
    if name == "realize":
        found = Tensor._holding(found.node, "CPU", False, ())
    before(monkeypatch, session, name, lambda *_: found.assign(other), after=True)
    found.realize()
    assert found.tolist() == [7.0, 8.0]


def test_an_operand_that_is_changed_while_it_is_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, other = held(1.0, 2.0), held(7.0, 8.0)
    real = DeferredValue.of_leaf

    def of_leaf(node: Node, form: Any) -> DeferredValue:
        made = real(node, form)
        if node is first:
            x._storage.put(other._storage.node)
        return made

    first = x._storage.node
    monkeypatch.setattr(DeferredValue, "of_leaf", of_leaf)
    x * 2
    assert x.tolist() == [7.0, 8.0]
    assert (x * 2).tolist() == [14.0, 16.0]


# --- looks at everything --------------------------------------------------------------------------


def test_a_look_at_all_storages_leaves_them_as_they_are() -> None:
    x, counter = held(1.0, 2.0), held(0.0, 0.0)
    found = pending(x)

    @jit
    def step() -> None:
        counter.assign(counter + 1)

    for _ in range(4):
        step()
    gc.collect()
    read = read_by_others({})
    value = found._storage.deferred
    assert value is not None
    assert value.call is not None
    assert value.call.nodes is None
    assert counter._storage.is_left
    assert id(x._ref().handle) in read
    assert id(counter._ref().handle) in read


# --- state that replays write over ----------------------------------------------------------------


def counting(state: Tensor, calls: int) -> Callable[[], None]:
    @jit
    def step() -> None:
        state.assign(state + 1)

    for _ in range(calls):
        step()
    return step


@pytest.mark.parametrize("calls", [2, 4])
def test_a_leaf_that_is_taken_before_it_is_gone_keeps_its_numbers(
    monkeypatch: pytest.MonkeyPatch, session: Session, calls: int
) -> None:
    counter = held(0.0, 0.0)
    step = counting(counter, calls)
    if calls == 4:
        counter.assign(held(4.0, 4.0))  # it is settled anew
    taken: list[Node] = []
    before(
        monkeypatch, Storage, "leave_to",
        lambda self, *_: taken.append(self.node) if self is counter._storage else None,
    )
    step()
    (leaf,) = taken
    assert Tensor._holding(leaf, "CPU", False, ()).tolist() == [calls] * 2
    assert counter.tolist() == [calls + 1] * 2
    step()
    assert counter.tolist() == [calls + 2] * 2
    assert Tensor._holding(leaf, "CPU", False, ()).tolist() == [calls] * 2


def test_state_that_is_written_while_it_is_settled_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, x = held(1.0, 2.0), held(10.0, 10.0)

    @jit
    def scaled(x: Tensor) -> Tensor:
        return x * weight

    for _ in range(4):
        scaled(x)
    weight.assign(held(3.0, 4.0))
    new = held(5.0, 6.0)
    before(monkeypatch, state, "Left", lambda *_: weight.assign(new))
    assert scaled(x).tolist() in ([30.0, 40.0], [50.0, 60.0])
    assert scaled(x).tolist() == [50.0, 60.0]


def test_no_replay_writes_over_what_is_being_read(
    monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    counter = held(0.0, 0.0)
    step = counting(counter, 4)
    before(monkeypatch, session, "download", lambda *_: step())
    assert counter.tolist() == [4.0, 4.0]
    assert counter.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("calls", range(5))
@pytest.mark.parametrize("begin", [0, 1])
def test_a_reading_is_of_one_moment_while_a_function_is_learnt(
    monkeypatch: pytest.MonkeyPatch, session: Session, calls: int, begin: int
) -> None:
    counter = held(0.0, 0.0, 0.0, 0.0)
    step = counting(counter, calls)
    real, left = session.download, [None]

    def download(*args: Any) -> np.ndarray[Any, Any]:
        found = real(*args)
        if left:
            left.pop()
            step()
            found[2:] = real(*args)[2:]
        return found

    monkeypatch.setattr(session, "download", download)
    assert {*counter[begin:].tolist()} in ({calls}, {calls + 1})
    assert counter.tolist() == [calls + 1] * 4


@pytest.mark.parametrize(
    "read", [Tensor.numpy, lambda x: x[1:].numpy(), lambda x: (x * 1).numpy()],
)
def test_a_reading_waits_for_the_replay_that_writes(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Tensor], np.ndarray[Any, Any]]
) -> None:
    counter = held(0.0, 0.0)
    step = counting(counter, 4)
    owner = current_session()
    found: list[float] = []

    def elsewhere() -> None:
        with options.override(device="CPU"), use_session(owner):
            found.extend(read(counter))

    readers = [threading.Thread(target=elsewhere) for _ in range(2)]

    def begin(*_: Any) -> None:
        for reader in readers:
            reader.start()
            reader.join(0.1)
        assert not found

    before(monkeypatch, Replay, "submit", begin)
    step()
    for reader in readers:
        reader.join(WAIT_S)
    assert {*found} == {5.0}


def test_what_was_computed_is_read_while_another_thread_compiles() -> None:
    x, owner = held(1.0, 2.0), current_session()
    result, part = (x * 2).realize(), x[1:]
    found: list[Any] = []

    def read() -> None:
        with options.override(device="CPU"), use_session(owner):
            found.extend([result.tolist(), part.tolist(), x.numpy().tolist()])

    reading = threading.Thread(target=read, daemon=True)
    with owner.lock:  # as who compiles has it
        reading.start()
        reading.join(5)
        assert found == [[2.0, 4.0], [2.0], [1.0, 2.0]]


def test_state_is_looked_at_again_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, x = held(1.0), held(2.0), held(0.0)

    @jit
    def total(x: Tensor) -> Tensor:
        return x + first * second

    for _ in range(6):
        assert total(x).tolist() == [2.0]
    first.assign(held(10.0))
    second.assign(held(20.0))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before(monkeypatch, State, "settle", interrupt)
    with pytest.raises(KeyboardInterrupt):
        total(x)
    assert total(x).tolist() == [200.0]


def test_no_step_is_lost_after_an_interruption_while_state_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = held(0.0, 0.0)
    step = counting(counter, 4)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    reader = counter._storage.node
    with monkeypatch.context() as patch:
        before(patch, state, "Left", interrupt)
        with pytest.raises(KeyboardInterrupt):
            step()
    del reader
    for number in range(5, 8):
        step()
        assert counter.tolist() == [number] * 2


def test_an_argument_that_another_thread_trains_during_a_capture() -> None:
    weights = held(0.0, 0.0)
    step = counting(weights, 4)
    owner = current_session()

    def elsewhere() -> None:
        with options.override(device="CPU"), use_session(owner):
            step()

    @jit
    def double(x: Tensor) -> Tensor:
        first = x * 1
        if double.captures:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(elsewhere).result(WAIT_S)
        return first + x

    assert double(weights).tolist() == [8.0, 8.0]
    assert double(weights).tolist() == [8.0, 8.0]
    assert double(weights).tolist() == [10.0, 10.0]


@pytest.mark.parametrize("name", ["references", "stand_ins"])
def test_a_history_is_there_again_after_an_interrupted_capture(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    leaf, x = held(1.0, 2.0).requires_grad_(), held(3.0, 4.0)
    weight = (leaf * 2).realize()

    @jit
    def scaled(x: Tensor) -> Tensor:
        return x * weight.detach()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    scaled(x)
    before(monkeypatch, Call, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        scaled(x)
    weight.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 2.0]


def test_two_threads_read_and_train_the_same_weights() -> None:
    """Each reading is of one moment: all elements have seen as many steps."""
    weights = Tensor.zeros(1 << 15).contiguous().realize()
    step = counting(weights, 3)
    owner, done = current_session(), threading.Event()

    def read() -> list[np.ndarray[Any, Any]]:
        with options.override(device="CPU"), use_session(owner):
            found = []
            while not done.is_set() and len(found) < 200:
                found.append(weights.numpy())
            return found

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for _ in range(200):
            step()
        done.set()
        found = reading.result(WAIT_S)
    assert all(one.min() == one.max() for one in found)
    assert weights.numpy().max() == 203

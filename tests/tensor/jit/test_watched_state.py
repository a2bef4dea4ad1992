"""State that replays leave unread: whoever comes to it finds what a plain function would leave."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad import Tensor, jit
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.node import Node
from baregrad.tensor.array.storage import Storage


@pytest.fixture(autouse=True)
def _session() -> Iterator[None]:
    with options.override(device="CPU"), use_session(Session()):
        yield


def counter() -> Tensor:
    return Tensor.zeros(4).contiguous().realize()


def test_a_copy_and_an_expression_keep_their_values_over_replays() -> None:
    state = counter()

    @jit
    def step() -> None:
        state.assign(state + 1)

    for _ in range(4):
        step()
    lazy, copy = state * 10, state.clone()
    view = state[1:3]
    for _ in range(3):
        step()
    assert lazy.tolist() == [40.0] * 4
    assert copy.tolist() == [4.0] * 4
    assert view.tolist() == [7.0] * 2  # a view shows what is there
    step()
    assert state.tolist() == [8.0] * 4


def test_two_functions_share_state_by_turns() -> None:
    state, scale = counter(), Tensor([2.0] * 4)

    @jit
    def add() -> None:
        state.assign(state + scale)

    @jit
    def double() -> Tensor:
        state.assign(state * 2)
        return state + 0

    wanted = np.zeros(4)
    for number in range(12):
        if number % 3 == 2:
            wanted *= 2
            assert double().tolist() == wanted.tolist()
        else:
            add()
            wanted += 2
    assert state.tolist() == wanted.tolist()


def test_one_function_reads_what_another_changes() -> None:
    weight = counter()

    @jit
    def train() -> None:
        weight.assign(weight + 1)

    @jit
    def evaluate() -> Tensor:
        return weight * 10

    for number in range(1, 9):
        train()
        if number % 2:
            assert evaluate().tolist() == [10.0 * number] * 4
    for value in (5.0, 7.0, 9.0):
        weight.assign(Tensor([value] * 4))
        assert evaluate().tolist() == [10 * value] * 4
        train()
        assert evaluate().tolist() == [10 * value + 10] * 4
        assert evaluate().tolist() == [10 * value + 10] * 4


def test_what_is_read_and_then_changed_is_read_anew() -> None:
    weight = counter()

    @jit
    def total(x: Tensor) -> Tensor:
        return (x * weight).sum()

    x = Tensor([1.0, 2.0, 3.0, 4.0])
    for _ in range(4):
        assert total(x).item() == 0
    weight.assign(Tensor([1.0, 0.0, 0.0, 1.0]))
    assert total(x).item() == 5
    weight += 1
    assert total(x).item() == 15


def test_another_gradient_in_the_place_of_one_that_was_read() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    weight.grad = Tensor([1.0, 1.0])

    @jit
    def step() -> None:
        assert weight.grad is not None
        with_grad = weight.detach() - weight.grad
        weight.detach().assign(with_grad)

    for _ in range(4):
        step()
    first = weight.grad
    weight.grad = Tensor([10.0, 20.0])
    step()
    step()
    assert weight.tolist() == [1.0 - 4 - 20, 2.0 - 4 - 40]
    assert first.tolist() == [1.0, 1.0]
    weight.grad = first
    step()
    assert weight.tolist() == [-24.0, -43.0]


def test_a_function_that_is_gone_leaves_its_other_state_to_be_freed() -> None:
    weight, moment = counter(), counter()

    def made(held: Tensor) -> None:
        @jit
        def step() -> None:
            held.assign(held + 1)
            weight.assign(weight + held)

        for _ in range(4):
            step()

    made(moment)
    alive = weakref.ref(moment._storage)
    memory = weakref.ref(moment._ref().handle)
    del moment
    gc.collect()
    assert alive() is None
    assert memory() is None
    assert weight.tolist() == [10.0] * 4


class Slow:
    """A watcher that lets another thread come to the storage while it is told of this one."""

    def __init__(self, storage: Storage, node: Node) -> None:
        self.storage, self.node, self.ref = storage, node, node.arg
        self.found: list[object] = []
        self.other = threading.Thread(target=self.come)

    def come(self) -> None:
        try:
            self.found.append(self.storage.node)
        except AttributeError as error:
            self.found.append(error)

    def looked_at(self) -> Node:
        if not self.other.ident:
            self.other.start()
            self.other.join(0.1)
        return self.node


def test_of_two_threads_that_come_to_left_state_both_find_it() -> None:
    storage = counter()._storage
    node = storage.node
    watcher = Slow(storage, node)
    assert storage.leave_to(watcher, node)
    assert storage.node is node
    watcher.other.join()
    assert watcher.found == [node]

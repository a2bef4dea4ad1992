"""Threads share a session: what each computes and captures is its own."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from baregrad import nn, optim
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

THREADS = 8
STEPS = 12


def together(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Run tasks in threads of their own that begin at once; what each returned."""
    ready = threading.Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> Any:
        ready.wait()
        return task()

    # Options are those of the thread that asks.
    contexts = [contextvars.copy_context() for _ in tasks]
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(lambda context, task: context.run(run, task), contexts, tasks))


def begin(task: Callable[[], Any]) -> threading.Thread:
    """A thread that runs a task, with the options of the one that asks."""
    thread = threading.Thread(target=contextvars.copy_context().run, args=(task,))
    thread.start()
    return thread


class Meeting:
    """Where two threads wait for each other; what a class holds is no state of a function."""

    inside = threading.Event()
    done = threading.Event()

    @classmethod
    def begin(cls) -> None:
        cls.inside.clear()
        cls.done.clear()

    @classmethod
    def wait(cls) -> None:
        """Let the other thread work, until it has."""
        cls.inside.set()
        assert cls.done.wait(60)


def training(seed: int, jitted: bool) -> Callable[[], list[float]]:
    """Training of a small network by itself: the losses of its steps."""

    def train() -> list[float]:
        rng = np.random.default_rng(seed)
        width = 4 + seed % 3
        sizes = [(width, 5), (width,), (2, width), (2,)]
        first, shift, second, offset = (
            Tensor(rng.normal(size=size).astype(np.float32), requires_grad=True) for size in sizes
        )
        optimiser = optim.Adam([first, shift, second, offset], lr=0.05)

        def step(x: Tensor, y: Tensor) -> Tensor:
            hidden = (x @ first.T + shift).tanh()
            loss = ((hidden @ second.T + offset - y) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss

        run = jit(step) if jitted else step
        losses = []
        for _ in range(STEPS):
            x = Tensor(rng.normal(size=(6, 5)).astype(np.float32))
            y = Tensor(rng.normal(size=(6, 2)).astype(np.float32))
            losses.append(run(x, y).item())
        return losses

    return train


def counting(times: int) -> Callable[[], float]:
    """Eager writes into state that nobody else has."""

    def count() -> float:
        counter = Tensor.zeros(3)
        for _ in range(times):
            counter.add_(1)
            counter.realize()
        return float(counter.sum().item())

    return count


def test_threads_that_train_and_threads_that_work_eagerly() -> None:
    tasks = [training(seed, jitted=True) for seed in range(THREADS)]
    tasks += [training(seed, jitted=False) for seed in range(THREADS)]
    alone = [task() for task in tasks]
    for _ in range(3):
        assert together(tasks) == alone


def test_eager_writes_of_another_thread_are_not_captured() -> None:
    state = Tensor.zeros(2)
    Meeting.begin()
    count = Tensor.zeros(2)

    def elsewhere() -> None:
        Meeting.inside.wait(60)
        for _ in range(5):
            count.add_(1)
            count.realize()
        assert count.tolist() == [5, 5]
        Meeting.done.set()

    @jit
    def add(x: Tensor) -> None:
        state.add_(x)
        if add.captures:
            Meeting.wait()

    other = begin(elsewhere)
    for _ in range(5):
        add(Tensor([1.0, 2.0]))
    other.join()
    assert count.tolist() == [5, 5]
    assert state.tolist() == [5, 10]


def test_reading_in_one_thread_while_another_captures() -> None:
    Meeting.begin()
    found: list[Any] = []

    def elsewhere() -> None:
        Meeting.inside.wait(60)
        found.append((Tensor([1.0, 2.0]) * 3).tolist())
        Meeting.done.set()

    @jit
    def double(x: Tensor) -> Tensor:
        Meeting.wait()
        return x * 2

    other = begin(elsewhere)
    results = [double(Tensor([float(call)])).item() for call in range(4)]
    other.join()
    assert found == [[3, 6]]
    assert results == [0, 2, 4, 6]


def test_one_jitted_function_in_many_threads() -> None:
    weights = Tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))

    @jit
    def apply(x: Tensor) -> Tensor:
        return (x @ weights).relu()

    def task(seed: int) -> Callable[[], bool]:
        def run() -> bool:
            rng = np.random.default_rng(seed)
            for _ in range(20):
                rows = 1 + seed % 4
                x = rng.integers(-3, 4, size=(rows, 3)).astype(np.float32)
                wanted = np.maximum(x @ np.arange(12.0).reshape(3, 4), 0)
                if not np.array_equal(apply(Tensor(x)).numpy(), wanted):
                    return False
            return True

        return run

    assert all(together([task(seed) for seed in range(THREADS)]))


def test_one_jitted_function_with_state_in_many_threads() -> None:
    total = Tensor.zeros(1, dtype="int64")

    @jit
    def add(x: Tensor) -> None:
        total.add_(x)

    def task() -> None:
        for _ in range(25):
            add(Tensor([1]))

    together([task] * THREADS)
    assert total.item() == 25 * THREADS


def test_threads_draw_different_numbers() -> None:
    Tensor.manual_seed(0)

    def draw() -> list[float]:
        return [float(v) for _ in range(10) for v in Tensor.rand(7).tolist()]

    drawn = [value for values in together([draw] * THREADS) for value in values]
    Tensor.manual_seed(0)
    alone = [float(v) for _ in range(10 * THREADS) for v in Tensor.rand(7).tolist()]
    assert sorted(drawn) == sorted(alone)


def test_layers_in_threads() -> None:
    """Modules, dropout's state and normalisation's averages, each thread with its own."""

    def task(seed: int) -> Callable[[], list[float]]:
        def run() -> list[float]:
            rng = np.random.default_rng(seed)
            norm = nn.BatchNorm1d(3)

            @jit
            def step(x: Tensor) -> Tensor:
                return norm(x)

            for _ in range(6):
                step(Tensor(rng.normal(size=(5, 3)).astype(np.float32))).realize()
            found: list[float] = norm.running_mean.tolist()
            return found

        return run

    tasks = [task(seed) for seed in range(THREADS)]
    alone = [one() for one in tasks]
    assert together(tasks) == alone

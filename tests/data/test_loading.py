"""Batches by every kind of worker: order, contents, draws, errors and ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.errors import ArgumentError, WorkerDied
from baregrad.data import DataLoader

KINDS = ["none", "thread", "fork", "spawn"]


@pytest.fixture(scope="module", autouse=True)
def _no_tracker_is_left() -> Iterator[None]:
    """End the process that Python starts beside spawned ones, for as long as it runs itself."""
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


class Squares:
    """Pairs of a number's row and its square."""

    def __init__(self, count: int, bad: int = -1, end: int = -1) -> None:
        self.count, self.bad, self.end = count, bad, end

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        if place == self.bad:
            raise KeyError(f"no sample {place}")
        if place == self.end:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(3, place, np.float32), place * place


class Draws(Squares):
    def __getitem__(self, place: int) -> Any:
        return np.random.random()


def workers(kind: str, count: int = 2) -> dict[str, Any]:
    if kind == "none":
        return {}
    return {"num_workers": count, "multiprocessing_context": kind}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_whole_and_in_order(kind: str) -> None:
    loader = DataLoader(Squares(10), 4, **workers(kind))
    assert len(loader) == 3
    seen = list(loader)
    assert [x.shape for x, _ in seen] == [(4, 3), (4, 3), (2, 3)]
    assert [y.tolist() for _, y in seen] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    assert all(isinstance(part, Tensor) for pair in seen for part in pair)


@pytest.mark.parametrize("kind", ["thread", "fork"])
def test_an_order_is_that_of_its_seed_and_epoch(kind: str) -> None:
    def epochs(**options: Any) -> list[list[int]]:
        loader = DataLoader(Squares(20), 3, shuffle=True, seed=5, **options)
        return [[y for _, part in loader for y in part.tolist()] for _ in range(2)]

    alone = epochs()
    assert epochs(**workers(kind)) == epochs(**workers(kind, 3)) == alone
    assert alone[0] != alone[1] and sorted(alone[0]) == [n * n for n in range(20)]
    later = DataLoader(Squares(20), 3, shuffle=True, seed=5)
    later.set_epoch(1)
    assert [y for _, part in later for y in part.tolist()] == alone[1]


def test_draws_do_not_depend_on_the_number_of_workers() -> None:
    def draws(count: int) -> list[Any]:
        return [x.tolist() for x in DataLoader(Draws(8), 2, seed=3, **workers("fork", count))]

    one = draws(1)
    assert draws(3) == one
    assert len({tuple(batch) for batch in one}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_worker_is_raised_where_the_batch_is_asked_for(kind: str) -> None:
    seen = []
    with pytest.raises(KeyError, match="no sample 5") as caught:
        for _, y in DataLoader(Squares(10, bad=5), 2, **workers(kind)):
            seen.append(y.tolist())
    assert seen == [[0, 1], [4, 9]]
    told = str(caught.value.__cause__) if kind in ("fork", "spawn") else str(caught.traceback[-1])
    assert "__getitem__" in told


def test_a_process_that_ends_is_told() -> None:
    loader = DataLoader(Squares(10, end=3), 2, **workers("fork"))
    with pytest.raises(WorkerDied, match="ended by itself"):
        list(loader)


@pytest.mark.parametrize("kind", ["thread", "fork"])
def test_a_loop_may_be_left_and_workers_kept(kind: str) -> None:
    loader = DataLoader(Squares(40), 2, persistent_workers=True, **workers(kind))
    for _, y in loader:
        assert y.tolist() == [0, 1]
        break
    assert len(list(loader)) == 20
    loader.close()
    assert len(list(loader)) == 20
    loader.close()


class Stuck(Squares):
    """A data set of which one sample never comes."""

    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        if place == self.bad:
            threading.Event().wait()
        return super().__getitem__(place)


@pytest.mark.parametrize("is_kept", (False, True))
def test_ctrl_c_ends_workers_that_never_would(is_kept: bool) -> None:
    loader = DataLoader(Stuck(9, 8), 4, num_workers=2, persistent_workers=is_kept)
    batches = iter(loader)
    next(batches), next(batches)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    timer.join()
    loader.dataset = Squares(9)
    assert len(list(loader)) == 3
    loader.close()


def test_a_loop_that_is_left_waits_for_no_worker() -> None:
    batches = iter(DataLoader(Stuck(9, 8), 4, num_workers=2))
    next(batches)
    batches.close()  # type: ignore[attr-defined]


class Named(NamedTuple):
    x: Any
    label: Any


def test_trees_of_samples() -> None:
    samples = [{"p": Named(np.zeros(2), 1.5), "t": ("a", Tensor([1, 2]), True)} for _ in range(3)]
    (batch,) = DataLoader(samples, 3)
    assert batch["p"].x.shape == (3, 2) and batch["p"].label.dtype.name == "float32"
    assert batch["t"][0] == ["a"] * 3
    assert batch["t"][1].tolist() == [[1, 2]] * 3 and batch["t"][2].dtype.name == "bool"
    (batch,) = DataLoader(samples, 3, collate_fn=len)
    assert batch == 3


def test_orders_that_are_given() -> None:
    numbers = list(range(10))
    assert [b.tolist() for b in DataLoader(numbers, 2, sampler=[3, 1, 2], drop_last=True)] == [
        [3, 1]
    ]
    assert [b.tolist() for b in DataLoader(numbers, batch_sampler=[[1], [2, 3]])] == [[1], [2, 3]]


def test_data_sets_without_places() -> None:
    class Stream:
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    assert [b.tolist() for b in DataLoader(Stream(), 2)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(ArgumentError, match="as it comes"):
        DataLoader(Stream(), 2, num_workers=1)


def test_bad_arguments_are_refused() -> None:
    for options in ({"batch_size": 0}, {"batch_size": True}, {"num_workers": -1},
                    {"prefetch_factor": 0}, {"multiprocessing_context": "mpi"},
                    {"shuffle": True, "sampler": [0]}):  # fmt: skip
        with pytest.raises(ArgumentError):
            DataLoader([1, 2], **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="one shape"):
        list(DataLoader([np.zeros(1), np.zeros(2)], 2))
    for samples in ([(1, 2), (1,)], [{"a": 1}, {"b": 1}], [1.5, None], [np.zeros(1), "x"]):
        with pytest.raises(ArgumentError, match="one kind"):
            list(DataLoader(samples, 2))
    with pytest.raises(ArgumentError, match="has samples"):
        list(DataLoader([1, 2], batch_sampler=[[]]))
    for dataset in (3, iter([1])):
        with pytest.raises(ArgumentError, match="without __"):
            DataLoader(dataset, 2, sampler=[0] if dataset != 3 else None)

"""Batches of a data set, fetched ahead by threads or processes, in an order that a seed decides."""

from __future__ import annotations

import math
import random
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baregrad.base.errors import ArgumentError, WorkerDied
from baregrad.data.shuffle import permutation, splitmix64
from baregrad.tensor import Tensor

if TYPE_CHECKING:
    from concurrent.futures import Executor

_STACKED = (Tensor, np.ndarray, np.generic, int, float)
CONTEXTS = ("fork", "spawn", "forkserver", "thread")


class _Reader(NamedTuple):
    """What a worker needs to make a batch: the data set, and what makes one value of several."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    seed: int

    def read(self, places: Sequence[int]) -> Any:
        """The batch of the elements at some places."""
        fetch = getattr(self.dataset, "__getitems__", None)
        samples = list(fetch(places)) if fetch else [self.dataset[each] for each in places]
        return self.collate(samples)


class WorkerInfo(NamedTuple):
    """A process that reads for a loader: its number, of how many, its seed and the data set."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


# In a process that reads for another: what it reads of, and which it is.
_reader: ContextVar[_Reader] = ContextVar("_reader")
_worker: ContextVar[WorkerInfo | None] = ContextVar("_worker", default=None)


def worker_info() -> WorkerInfo | None:
    """Return what is known of the process, if it is one that reads for a loader."""
    return _worker.get()


def _begin(
    reader: _Reader, begun: Any, count: int, worker_init: Callable[[int], object] | None
) -> None:
    """Make a process one that reads."""
    # Ctrl-C reaches all processes of a terminal, and the one that waits for this one answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _reader.set(reader)
    with begun.get_lock():
        number = begun.value
        begun.value += 1
    _worker.set(WorkerInfo(number, count, reader.seed + number, reader.dataset))
    if worker_init is not None:
        worker_init(number)


def _end_at_once(pool: Executor) -> None:
    """End processes that read, whatever they are at: it may take long, or forever."""
    processes = getattr(pool, "_processes", None) or {}
    for process in list(processes.values()):
        process.terminate()


def _read(places: Sequence[int], batch: int) -> Any:
    """A batch, in a process that reads; draws are the same whichever process it is."""
    reader = _reader.get()
    key = int(splitmix64(np.array([batch], np.uint64), reader.seed)[0])
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    return reader.read(places)


def collate(samples: list[Any]) -> Any:
    """Samples as one value: numbers and arrays stacked as an array, the parts of trees apart.

    Trees are tuples, lists and dicts; what is neither a number, an array nor a tree stays a list.
    Raises ArgumentError for no samples, trees of several kinds and arrays of several shapes.
    """
    if not samples:
        raise ArgumentError("a batch has samples", found="none")
    first = samples[0]
    if isinstance(first, Mapping):
        _check_alike(samples, Mapping, set)
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        _check_alike(samples, tuple | list, len)
        parts = [collate(list(part)) for part in zip(*samples, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, str | bytes) or not isinstance(first, _STACKED):
        return samples
    _check_alike(samples, _STACKED, lambda sample: isinstance(sample, str | bytes))
    arrays = [sample.numpy() if isinstance(sample, Tensor) else sample for sample in samples]
    try:
        found = np.stack([np.asarray(array) for array in arrays])
    except ValueError as error:
        raise ArgumentError(
            "samples of a batch have one shape",
            found=str(sorted({np.shape(array) for array in arrays})),
            hint="pad them in the data set, or give a collate_fn",
        ) from error
    return found.astype(np.float32) if isinstance(first, float) else found


def _check_alike(samples: list[Any], kind: Any, form: Callable[[Any], Any]) -> None:
    """Raise ArgumentError where samples are not all of a kind, and of one form."""
    first = samples[0]
    for sample in samples:
        if not isinstance(sample, kind) or form(sample) != form(first):
            raise ArgumentError(
                "samples of a batch are of one kind",
                found=f"{type(first).__name__} {first!r:.40} and "
                f"{type(sample).__name__} {sample!r:.40}",
                hint="give a collate_fn for others",
            )


def with_tensors(value: Any, device: str | None) -> Any:
    """A tree of arrays as one of tensors."""
    if isinstance(value, np.ndarray):
        return Tensor(value, device=device)
    if isinstance(value, dict):
        return {key: with_tensors(part, device) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [with_tensors(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


class DataLoader:
    """Batches of a data set: `for x, y in DataLoader(dataset, 64, shuffle=True): ...`.

    A data set has `__len__` and `__getitem__`; one that has `__iter__` alone is read as it comes,
    without workers. Numbers and arrays of samples become tensors on `device`; with `collate_fn`,
    which is given a list of samples, batches are what it returns.

    Each pass over it is an epoch, whose order `seed` and the epoch's number decide, as they decide
    what `random` and `np.random` draw in a worker's process, whatever the number of workers.
    Workers are processes ("fork", "spawn", "forkserver") or threads ("thread"); each has
    `prefetch_factor` batches under way. What a worker raises is raised where the batch is asked
    for, with the worker's own traceback as its cause. Raises WorkerDied for a process that ended.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        worker_init_fn: Callable[[int], object] | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        multiprocessing_context: str = "fork",
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self._check(batch_size, num_workers, prefetch_factor, multiprocessing_context)
        if (sampler is not None) + (batch_sampler is not None) + bool(shuffle) > 1:
            raise ArgumentError(
                "an order is given once", found="more than one of shuffle, sampler, batch_sampler"
            )
        self.is_indexed = hasattr(dataset, "__getitem__")
        is_ordered = sampler is not None or batch_sampler is not None
        wanted = "__getitem__" if is_ordered else "__len__" if self.is_indexed else "__iter__"
        if not hasattr(dataset, wanted):
            raise ArgumentError(
                "a data set has __len__ and __getitem__, or __iter__ alone",
                found=f"{type(dataset).__name__} without {wanted}",
            )
        if not self.is_indexed and (num_workers or shuffle):
            raise ArgumentError(
                "a data set without places is read as it comes",
                found=f"{type(dataset).__name__} without __getitem__",
                hint="give it __len__ and __getitem__, or leave order and workers out",
            )
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.num_workers, self.collate_fn, self.drop_last = num_workers, collate_fn, drop_last
        self.worker_init_fn, self.prefetch_factor = worker_init_fn, prefetch_factor
        self.persistent_workers = persistent_workers
        self.multiprocessing_context, self.device = multiprocessing_context, device
        self.seed, self.epoch = seed, 0
        self._pool: Executor | None = None

    @staticmethod
    def _check(batch_size: int, num_workers: int, prefetch_factor: int, context: str) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1), ("num_workers", num_workers, 0),
            ("prefetch_factor", prefetch_factor, 1),
        ):  # fmt: skip
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not whole or value < least:
                raise ArgumentError(
                    f"{name} is an integer", found=repr(value), wanted=f"{least} or more"
                )
        if context not in CONTEXTS:
            raise ArgumentError(
                "workers are started otherwise", found=repr(context), wanted=", ".join(CONTEXTS)
            )

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        order: Any = self.dataset if self.sampler is None else self.sampler
        count = len(order)
        return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of an epoch, as where training goes on after a checkpoint."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        if not self.is_indexed:
            return self._streamed()
        if not self.num_workers:
            reader = self._reader()
            return (self._given(reader.read(places)) for places in self._batches(epoch))
        return self._ahead(epoch)

    def close(self) -> None:
        """End workers that were kept between epochs."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    # --- order ------------------------------------------------------------------------------------

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        """The places of each batch."""
        if self.batch_sampler is not None:
            yield from (list(places) for places in self.batch_sampler)
            return
        order: Iterable[Any] = range(len(self.dataset)) if self.sampler is None else self.sampler
        if self.shuffle:
            order = permutation(len(self.dataset), seed=self.seed, epoch=epoch)
        yield from ([int(each) for each in part] for part in self._parts(iter(order)))

    def _parts(self, samples: Iterator[Any]) -> Iterator[list[Any]]:
        while part := list(islice(samples, self.batch_size)):
            if len(part) == self.batch_size or not self.drop_last:
                yield part

    # --- batches ----------------------------------------------------------------------------------

    def _streamed(self) -> Iterator[Any]:
        make = self.collate_fn or collate
        for part in self._parts(iter(self.dataset)):
            yield self._given(make(part))

    def _given(self, batch: Any) -> Any:
        return batch if self.collate_fn is not None else with_tensors(batch, self.device)

    def _reader(self) -> _Reader:
        return _Reader(self.dataset, self.collate_fn or collate, self.seed)

    def _started(self) -> Executor:
        """The workers, those of the epoch before where they are kept."""
        if self._pool is not None:
            return self._pool
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        from multiprocessing import get_context

        pool: Executor
        if self.multiprocessing_context == "thread":
            pool = ThreadPoolExecutor(self.num_workers, "baregrad-data")
        else:
            context = get_context(self.multiprocessing_context)
            begun = context.Value("q", 0)
            given = (self._reader(), begun, self.num_workers, self.worker_init_fn)
            pool = ProcessPoolExecutor(self.num_workers, context, _begin, given)
        if self.persistent_workers:
            self._pool = pool
        return pool

    def _ahead(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch in order, some of which are made ahead."""
        from concurrent.futures.process import BrokenProcessPool

        pool, waiting = self._started(), deque[Any]()
        is_thread = self.multiprocessing_context == "thread"
        reader = self._reader()
        batches = enumerate(self._batches(epoch))
        most = self.num_workers * self.prefetch_factor
        is_done = False
        try:
            while True:
                for number, places in islice(batches, most - len(waiting)):
                    draw = (epoch << 32) + number
                    waiting.append(
                        pool.submit(reader.read, places) if is_thread
                        else pool.submit(_read, places, draw)
                    )  # fmt: skip
                if not waiting:
                    is_done = True
                    return
                yield self._given(waiting.popleft().result())
        except BrokenProcessPool as error:
            self._pool = None
            raise WorkerDied(
                "a process that reads data ended by itself",
                hint="it may have run out of memory, or worker_init_fn may have raised what is "
                "printed above; a data set that cannot be pickled needs "
                'multiprocessing_context="fork" or "thread"',
            ) from error
        except KeyboardInterrupt:
            self._pool = None
            raise
        finally:
            for future in waiting:
                future.cancel()
            if pool is not self._pool:
                if not is_done:
                    _end_at_once(pool)
                pool.shutdown(wait=True, cancel_futures=True)

"""Work on seeds spread over processes. Where one crashes, the seed that did it is known."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Seeds that one process checks in order. `end`: when to stop, by the system's clock.

    kind: of programs; machine: which of the machines with large schedules; device: the one tried.
    """

    first: int
    count: int
    kind: str | None
    end: float | None
    device: str
    machine: int


# Checks the seeds of a chunk, and gives what it found for each.
Check = Callable[[Chunk], Iterator[tuple[int, F | None]]]


@dataclass(slots=True)
class _Worker(Generic[F]):
    process: BaseProcess
    pipe: Connection
    chunk: Chunk
    seed: int


def spread(
    check: Check[F],
    crashed: Callable[[int, Chunk, str], F],
    chunks: Sequence[Chunk],
    processes: int,
) -> Iterator[tuple[int, F | None]]:
    """Run a check over chunks in several processes; each seed with what was found, as they come.

    crashed: what to make of a seed at which its process died; the rest of the chunk goes on in
    another process. `check` is found by name in the processes, so it is a function of a module.
    """
    waiting = list(reversed(chunks))
    running: list[_Worker[F]] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                running.append(_started(check, waiting.pop()))
            ready = wait([worker.pipe for worker in running])
            for worker in [w for w in running if w.pipe in ready]:
                message = _received(worker)
                if message is None:
                    running.remove(worker)
                    rest = yield from _ended(worker, crashed)
                    waiting.extend(rest)
                elif message[0] == "checked":
                    yield message[1], message[2]
                else:
                    worker.seed = message[1]
    finally:
        for worker in running:
            worker.process.kill()
            worker.process.join()


def _ended(
    worker: _Worker[F], crashed: Callable[[int, Chunk, str], F]
) -> Generator[tuple[int, F | None], None, list[Chunk]]:
    """What a process that is gone leaves: a finding and the rest of its chunk, if it crashed."""
    worker.process.join()
    code = worker.process.exitcode or 0
    if code == 0:
        return []
    name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    yield worker.seed, crashed(worker.seed, worker.chunk, name)
    left = worker.chunk.first + worker.chunk.count - worker.seed - 1
    return [replace(worker.chunk, first=worker.seed + 1, count=left)] if left > 0 else []


def _received(worker: _Worker[F]) -> tuple[Any, ...] | None:
    try:
        message: tuple[Any, ...] = worker.pipe.recv()
    except EOFError:
        return None
    return message


def _started(check: Check[F], chunk: Chunk) -> _Worker[F]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(check, chunk, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, chunk, chunk.first)


def _work(check: Check[F], chunk: Chunk, pipe: Connection) -> None:
    pipe.send(("at", chunk.first))
    for seed, finding in check(chunk):
        pipe.send(("checked", seed, finding))
        pipe.send(("at", seed + 1))

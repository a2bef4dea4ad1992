"""Processes that make kernels' texts beside each other, started while the kernels are planned.

That is work of the interpreter, which runs one thread at a time: a training step is a hundred
kernels. Machine code is made here, by programs that run beside each other anyway. What a worker
does not give, for whatever reason, this process makes.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from baregrad.base.errors import BaregradError
from baregrad.base.options import options
from baregrad.base.tracing import span
from baregrad.engine.workers.child import Child, ChildLost, program_of
from baregrad.engine.workers.wire import Message
from baregrad.ir.core.node import Node
from baregrad.ir.text.dump import dump
from baregrad.program import Program

# A process takes 0.26 s of a core to begin, and 44 MB (Python 3.11): with fewer cores than these it
# gains no time, and more of them than these wait for the assembler.
LEAST_CORES, MOST_WORKERS = 8, 6
# Nodes of a program that is planned, and kernels that are missing, worth the beginning of workers.
LEAST_NODES, LEAST_KERNELS = 1000, 16
# Seconds that one kernel may take, its process's beginning with it.
_KERNEL_S = 120.0
# Options of the parent alone: what it shows, and where.
_ASIDE = frozenset(("debug", "lines", "profile", "progress", "viz"))


def workers_wanted(nodes: int) -> int:
    """How many processes are worth beginning for a program of so many nodes, 0 for none."""
    if nodes < LEAST_NODES or options.debug >= 2:
        return 0
    if options.compile_workers >= 0:
        return options.compile_workers
    # What runs in place of an interpreter would be run again.
    if getattr(sys, "frozen", False) or not sys.executable:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    return 0 if cores < LEAST_CORES else min(cores * 3 // 4, MOST_WORKERS)


class CompileCrew:
    """Processes that make texts for a GPU of an architecture; `close` ends them."""

    def __init__(self, device: str, architecture: str, count: int) -> None:
        changes = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in options.values().items()
            if name not in _ASIDE and not (isinstance(value, Path) and value == Path())
        }
        setting = {"device": device, "architecture": architecture, "options": changes}
        program = program_of("baregrad.engine.workers.compile_worker")
        self.children = [Child(setting, program) for _ in range(count)]
        for child in self.children:
            child.start()

    def close(self) -> None:
        """End every process, all at once: each takes some milliseconds to give its memory back."""
        for child in self.children:
            child.end()
        for child in self.children:
            child.kill()

    def programs(self, jobs: Sequence[tuple[Node, Any]]) -> Iterator[tuple[int, Program]]:
        """The programs of kernels, each with a schedule or None, as they come: with its place.

        They have no machine code. Those that no process could make are left out, and so are all
        where there are few. A process that is lost is asked no more.
        """
        waiting = enumerate(jobs if len(jobs) >= LEAST_KERNELS else ())
        idle, busy = self.children[::-1], dict[int, tuple[Child, int, float]]()
        while True:
            while idle and (job := next(waiting, None)) is not None:
                place, (kernel, schedule) = job
                child = idle.pop()
                header = {} if schedule is None else {"schedule": str(schedule)}
                with suppress(ChildLost, OSError):
                    child.send(header, [dump(kernel).encode()])
                    busy[child.fileno()] = child, place, time.monotonic() + _KERNEL_S
            if not busy:
                return
            for child, place, message in _answers(busy):
                if message is not None:
                    idle.append(child)
                    with suppress(BaregradError):
                        if message[1]:
                            yield place, Program.from_bytes(message[1][0])


def _answers(
    busy: dict[int, tuple[Child, int, float]]
) -> Iterator[tuple[Child, int, Message | None]]:
    """Wait for one process at least, and take what has come; None from those that are lost."""
    soonest = min((until for *_, until in busy.values()), default=math.inf) - time.monotonic()
    with span("wait for workers"):
        ready, _, _ = select.select(list(busy), [], [], max(soonest, 0.0))
    for number, (child, place, until) in list(busy.items()):
        if number not in ready and time.monotonic() < until:
            continue
        del busy[number]
        message = None
        with suppress(ChildLost):
            message = child.answer(until)
        yield child, place, message

"""One side as a process: it reads questions, one a line as JSON, and writes answers likewise.

    python -m baregrad.apps.beside.worker ours NV 0
    python -m baregrad.apps.beside.worker torch cuda 0

Questions: `prepare` names a module with `case_of(question)`, whose case becomes work; what it
gives is kept under `folder`, and so are its results with more roundings, `count` times, which
`rounded` asks for. `time` times that work, `copy` a copy of `count` numbers, and `product` one of
matrices of `size`. Only the answers go to the process's own output; all else goes to its errors.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.beside.ours import Ours, opened
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.work import SideWork, kept, time_work, warm_up
from baregrad.base.errors import ArgumentError
from baregrad.base.options import options

Question = dict[str, Any]


class Case(Protocol):
    """What a row of a suite is made of: work for either side."""

    def on_ours(self, side: Ours) -> SideWork:
        """Return the work on our side."""

    def on_peer(self, side: Peer) -> SideWork:
        """Return the work on PyTorch's side."""


class SideWorker:
    """A side that holds the work it was last asked to prepare."""

    def __init__(self, side: Ours | Peer) -> None:
        self.side = side
        self.work: SideWork | None = None
        self.once = 0.0

    def answer(self, question: Question) -> dict[str, Any]:
        """Do what is asked; raises whatever the work raises."""
        asked: dict[str, Callable[[Question], dict[str, Any]]] = {
            "prepare": self._prepare, "rounded": self._rounded, "time": self._time,
            "copy": self._copy, "product": self._product,
        }
        return asked[question["what"]](question)

    def _prepare(self, question: Question) -> dict[str, Any]:
        self._drop()
        begin = time.perf_counter()
        case: Case = importlib.import_module(question["module"]).case_of(question)
        if isinstance(self.side, Ours):
            work = case.on_ours(self.side)
        else:
            work = case.on_peer(self.side)
        made = time.perf_counter()
        self.once = warm_up(work, self.side.wait)
        warm = time.perf_counter()
        results = {"outputs": work.outputs}
        if work.exact is not None:
            results["exact"] = work.exact
        for name, outputs in results.items():
            _keep(question, name, outputs())
        # What the exact results took is not the other side's.
        self.side.forget()
        self.work = work
        if isinstance(self.side, Peer) and self.side.uncaptured:
            work.facts["uncaptured"] = self.side.uncaptured
        return {
            "inputs_s": made - begin, "compile_s": warm - made, "once_s": self.once,
            "calls": work.calls, "facts": work.facts, "is_rounded": work.rounded is not None,
        }

    def _rounded(self, question: Question) -> dict[str, Any]:
        if self.work is None or self.work.rounded is None:
            raise ArgumentError("no roundings are known", wanted="a question `prepare` before")
        for number in range(question["count"]):
            _keep(question, f"rounded{number}-", self.work.rounded(number))
        self.side.forget()
        return {}

    def _time(self, question: Question) -> dict[str, Any]:
        if self.work is None:
            raise ArgumentError("there is nothing to time", wanted="a question `prepare` before")
        return {"times_s": time_work(
            self.work, self.side.wait, self.once, bool(question.get("brief")),
            question.get("pause_s", 0.0),
        )}

    def _copy(self, question: Question) -> dict[str, Any]:
        assert isinstance(self.side, Peer)
        return {"bytes_per_s": self.side.copy_rate(question["count"])}

    def _product(self, question: Question) -> dict[str, Any]:
        assert isinstance(self.side, Peer)
        rate = self.side.product_rate(question["size"], question["dtype"])
        return {"flops_per_s": rate}

    def _drop(self) -> None:
        self.work = None
        gc.collect()
        self.side.forget()


def _keep(question: Question, name: str, arrays: list[Array]) -> None:
    for number, array in enumerate(kept(arrays)):
        np.save(Path(question["folder"]) / f"{name}{number}.npy", array)


@contextmanager
def _side(name: str, device: str, threads: int) -> Iterator[Ours | Peer]:
    if name == "torch":
        yield Peer(device, threads)
        return
    settings = {"threads": threads} if threads else {}
    with options.override(progress="off", **settings), opened(device) as side:
        yield side


def main(name: str, device: str, threads: str) -> int:
    """Answer questions until there are no more; 0 threads are as many as there are cores."""
    answers = os.fdopen(os.dup(1), "w")
    # Whatever prints must not be taken for an answer.
    os.dup2(2, 1)
    try:
        with _side(name, device, int(threads)) as side:
            _say(answers, {"ready": side.facts})
            _serve(SideWorker(side), answers)
    except Exception as error:  # noqa: BLE001  told to whoever started this
        _say(answers, {"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _serve(worker: SideWorker, answers: TextIO) -> None:
    for line in sys.stdin:
        try:
            found = worker.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001  a row that fails ends no other
            found = {"error": f"{type(error).__name__}: {error}"[:2000]}
        _say(answers, found)


def _say(answers: TextIO, found: dict[str, Any]) -> None:
    answers.write(json.dumps(found) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

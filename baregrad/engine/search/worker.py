"""What a worker process does: compile candidates, check them, time them against each other.

It answers questions on its standard input until that ends. Whatever it cannot do is an answer too
(`error`); crashes and endless loops are for its parent to notice.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from baregrad.base.errors import BaregradError, DriverError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend, gpu_compiler, open_backend
from baregrad.engine.compiler import Compiler
from baregrad.engine.search.bench import Bench
from baregrad.engine.search.wire import receive, send, target_of
from baregrad.kernel import parse_schedule

_DEATH_SIGNAL = 1


def main(setting: dict[str, Any]) -> None:
    """Answer questions until there are none.

    setting: `device`, `options` (values to override) and `target` as `target_fields` gives it.
    """
    # Only the program that we work for handles an interrupt; it ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # What libraries print must not come between answers.
    os.dup2(2, 1)
    changes = {**setting["options"], "cache_dir": Path(setting["options"]["cache_dir"])}
    with options.override(**changes):
        worker = Worker(setting["device"], setting["target"])
        while (message := receive(questions)) is not None:
            header, blobs = message
            try:
                answer, out = worker.answer(header, blobs)
            except DriverError as error:
                # What else the device holds may be lost or changed: the next process begins anew.
                answer, out = {"error": f"{type(error).__name__}: {error}", "faulted": True}, []
            except BaregradError as error:
                answer, out = {"error": f"{type(error).__name__}: {error}"}, []
            except Exception as error:  # noqa: BLE001 - the answer says what it was
                answer, out = {"error": f"{type(error).__name__}: {error}"}, []
            send(answers, answer, out)


class Worker:
    """A device and its compiler, and the kernel under test.

    A GPU is opened when something is to run on it: most workers compile alone.
    """

    def __init__(self, device: str, target: dict[str, Any]) -> None:
        self.name = device
        self.target = target_of(target)
        is_gpu = self.target.kind == "gpu"
        self.compiler: Compiler = (
            gpu_compiler(device, self.target.name) if is_gpu else self.backend.compiler
        )
        self.compiler.target = self.target
        self.compiler.cache = None
        self.bench: Bench | None = None
        self._kernels: dict[str, Any] = {}

    @cached_property
    def backend(self) -> CompiledBackend:
        """The opened device and what compiles for it."""
        backend = open_backend(self.name)
        if not isinstance(backend, CompiledBackend):
            raise BaregradError("a search needs a device that compiles", found=self.name)
        return backend

    def answer(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a question."""
        asked: dict[str, Callable[..., tuple[dict[str, Any], list[bytes]]]] = {
            "compile": self.compile,
            "open": self.open,
            "check": self.check,
            "confirm": self.confirm,
            "race": self.race,
        }
        return asked[header["ask"]](header, blobs)

    def compile(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The program of a kernel under a schedule."""
        schedule = parse_schedule(header["schedule"])
        program = self.compiler.compile(self._kernel(blobs[0]), schedule)
        return {}, [program.to_bytes()]

    def open(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Prepare to run programs of a kernel; the first of them is what others are checked by."""
        self.bench = None
        self.bench = Bench(self._kernel(blobs[0]), self.backend.device, header["cold_nbytes"])
        return self.bench.first(blobs[1]), []

    def check(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Run a program, compare what it computed, and say how long it took."""
        assert self.bench is not None
        return self.bench.check(header["name"], blobs[0]), []

    def confirm(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Compare all that a program computed, where a check compared some of it."""
        assert self.bench is not None
        return self.bench.confirm(header["name"]), []

    def race(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Times of several programs, run in turn."""
        assert self.bench is not None
        near = bool(header.get("near"))
        return {"times": self.bench.race(header["names"], header["rounds"], near)}, []

    def _kernel(self, text: bytes) -> Any:
        from baregrad.ir.text.dump import parse

        key = text.decode()
        if key not in self._kernels:
            self._kernels = {key: parse(key)}
        return self._kernels[key]


def _die_with_parent() -> None:
    """A worker in an endless loop must not outlive the program that it works for."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)

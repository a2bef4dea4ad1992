"""What a worker process does: compile candidates, check them, time them against each other.

How it is asked, and what becomes of errors, says `engine.workers.serving`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from baregrad.base.errors import BaregradError
from baregrad.engine.backends import CompiledBackend, gpu_compiler, open_backend
from baregrad.engine.compiler import Compiler
from baregrad.engine.search.bench import Bench
from baregrad.engine.workers.serving import serve
from baregrad.engine.workers.wire import target_of
from baregrad.kernel import parse_schedule


def main(setting: dict[str, Any]) -> None:
    """Answer questions until there are none.

    setting: `device`, `options` (values to override) and `target` as `target_fields` gives it.
    """
    serve(setting["options"], lambda: Worker(setting["device"], setting["target"]).answer)


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

"""A process that works for this one, and may crash or never end.

The process is started by itself (not forked, and without running the user's program again), is
asked one thing at a time, and has a deadline for each answer. One that dies or is late is killed,
and started anew when it is next needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import BaregradError
from baregrad.engine.workers.wire import Message, packed, unpacked

START_S = 60.0


def program_of(module: str) -> str:
    """What a process runs that does the work of a module's `main`, as Python's text.

    NumPy's products are none of that work. Threads for them, one for each core, wait for some in
    loops as they begin: 0.06 s of a core by one of them, while all workers begin at once.
    """
    return (
        "import json, os, sys; os.environ.setdefault('OPENBLAS_NUM_THREADS', '1'); "
        "sys.path[:] = json.loads(sys.argv[1]); "
        f"from {module} import main; main(json.loads(sys.argv[2]))"
    )


class ChildLost(BaregradError):
    """A worker died, or was killed because it was late; `late` says which."""

    def __init__(self, message: str, late: bool) -> None:
        super().__init__(message)
        self.late = late


class Child:
    """One worker. `program` is what it runs, and `setting` what its `main` is given."""

    def __init__(self, setting: dict[str, Any], program: str) -> None:
        self.setting = setting
        self.program = program
        self.started = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker

    @property
    def alive(self) -> bool:
        """Whether the process runs and still holds what it was sent."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.alive:
            return
        self.kill()
        command = [sys.executable, "-c", self.program, json.dumps(sys.path)]
        self._process = subprocess.Popen(
            [*command, json.dumps(self.setting)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._pending = b""
        self.started += 1

    def end(self) -> None:
        """Have the process end at once, without waiting for that as `kill` does."""
        if self._process is not None:
            self._process.kill()

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.kill()
        process.wait()

    def ask(
        self, header: dict[str, Any], blobs: Sequence[bytes] = (), seconds: float = START_S
    ) -> Message:
        """Send a question and wait for its answer, `seconds` at most.

        Raises ChildLost, after which the process is gone.
        """
        self.send(header, blobs)
        return self.answer(time.monotonic() + seconds)

    def send(self, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Send a question without waiting for the answer."""
        self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(packed(header, blobs))
            self._process.stdin.flush()
        except OSError:
            self._lost()

    def fileno(self) -> int:
        """The descriptor to wait for an answer on."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def answer(self, deadline: float) -> Message:
        """The answer to what was sent, by `deadline` (of the monotonic clock)."""

        def read(count: int) -> bytes:
            while len(self._pending) < count:
                self._wait(deadline)
                data = os.read(self.fileno(), 1 << 20)
                if not data:
                    self._lost()
                self._pending += data
            found, self._pending = self._pending[:count], self._pending[count:]
            return found

        try:
            return unpacked(read)
        except ChildLost:
            raise
        except (OSError, BaregradError) as error:
            self.kill()
            raise ChildLost(f"a worker's answer is none ({error})", late=False) from error

    def _wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([self.fileno()], [], [], max(left, 0.0))
        if not ready:
            self.kill()
            raise ChildLost("a worker was too late, and was killed", late=True)

    def _lost(self) -> None:
        process = self._process
        code = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(5)
        said = self._last_words()
        self.kill()
        raise ChildLost(f"a worker ended with status {code}{said}", late=False)

    def _last_words(self) -> str:
        """The last line that the worker wrote to its standard error."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - 2000, 0))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = [line for line in lines if line.strip()][-1:]
        return f" ({last[0].strip()})" if last else ""

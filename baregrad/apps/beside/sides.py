"""Both sides of a comparison as seen from outside: processes that answer, fail or take too long.

The device NV must share no process with CUDA's libraries, and a row that hangs or faults must end
that row alone. So each side is a process, which is ended and begun anew where it fails.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

START_S = 60.0
END_S = 10.0


class SideFailed(Exception):
    """A side did not do what it was asked; the text says why."""


class Side:
    """The process of one side, begun at its first question."""

    def __init__(self, name: str, device: str, threads: int = 0) -> None:
        self.name = name
        self.device = device
        self.facts: dict[str, Any] = {}
        self.starts = 0
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def start(self) -> None:
        """Begin the process, if there is none; `facts` are there when it has answered."""
        if self._process is not None:
            return
        words = [sys.executable, "-m", "baregrad.apps.beside.worker", self.name, self.device]
        self._rest = b""
        self._process = subprocess.Popen(
            [*words, str(self._threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.starts += 1
        self.facts = {}

    def ask(self, limit_s: float, **question: Any) -> dict[str, Any]:
        """Return the answer to a question; raises SideFailed, also after the limit in seconds."""
        self.tell(**question)
        return self.answer(limit_s)

    def tell(self, **question: Any) -> None:
        """Ask without waiting for the answer; raises SideFailed where the process is gone."""
        self.start()
        if not self.facts:
            self.facts = self.answer(START_S).get("ready", {})
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            self.end()
            raise SideFailed(f"the process ended: {error}") from error

    def answer(self, limit_s: float) -> dict[str, Any]:
        """Return the next answer; raises SideFailed where it tells of an error or is late."""
        found: dict[str, Any] = json.loads(self._line(limit_s))
        if "error" in found:
            # What a failed row leaves behind must not spoil the next.
            self.end()
            raise SideFailed(found["error"])
        return found

    def _line(self, limit_s: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise SideFailed("the process ended before")
        last = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = last - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.end()
                    raise SideFailed(f"took more than {limit_s:.0f} s")
                more = os.read(process.stdout.fileno(), 1 << 16)
                if not more:
                    status = process.wait()
                    self.end()
                    raise SideFailed(f"the process ended with status {status}")
                self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def end(self) -> None:
        """End the process at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._close(process)

    def close(self) -> None:
        """Let the process end by itself, or end it after some seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self._close(process)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        # One that waits for its device ends when the device lets go of it.
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

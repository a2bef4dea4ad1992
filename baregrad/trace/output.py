"""Where a trace's text goes: a program is followed to its end whatever becomes of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from baregrad.base.errors import ArgumentError


class TraceOutput:
    """Passes text on until that fails; `lost` is why it did, and nothing is written after that.

    A program that we started ends with us, so that its tracer may not end for a full disk, or for a
    reader that has seen enough.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write some text, or pass over it."""
        if self.lost is None:
            try:
                return self._file.write(text)
            except OSError as error:
                self.lost = error
        return len(text)

    def flush(self) -> None:
        """Have the file written as far as it is."""
        if self.lost is None:
            try:
                self._file.flush()
            except OSError as error:
                self.lost = error

    def end(self) -> None:
        """Raise why text was lost, unless whoever read it has hung up."""
        if self.lost is not None and not isinstance(self.lost, BrokenPipeError):
            raise self.lost


@contextlib.contextmanager
def open_output(path: str) -> Iterator[TraceOutput]:
    """Open the file of a name; without one it is standard error, which stays open.

    Raises ArgumentError where it cannot be written, at the end if it is full by then.
    """
    try:
        # Closed below, where that may fail.
        file = Path(path).open("w", encoding="utf-8") if path else sys.stderr  # noqa: SIM115
    except OSError as error:
        raise _refused(path, error) from error
    output = TraceOutput(file)
    try:
        yield output
    finally:
        output.flush()
        if path:
            # What is left of its buffer cannot be written either, where that failed before.
            with contextlib.suppress(OSError):
                file.close()
    try:
        output.end()
    except OSError as error:
        raise _refused(path or "standard error", error) from error


def _refused(path: str, error: OSError) -> ArgumentError:
    return ArgumentError("the output cannot be written", found=f"{path}: {error}")

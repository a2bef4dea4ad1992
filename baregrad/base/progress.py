"""A progress bar on stderr, for work that takes longer than a moment.

    for batch in progress(batches, "training"):
        ...

The bar is drawn on a terminal only (or as `BAREGRAD_PROGRESS` says), appears after half a second,
and is wiped when the work ends, so it never reaches a file, a pipe or the next line of output.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import TextIO, TypeVar

from baregrad.base.bits import human_seconds
from baregrad.base.options import options

T = TypeVar("T")

# Work shorter than this needs no bar, and drawing oftener than this costs more than it shows.
FIRST_DRAW_S = 0.5
REDRAW_S = 0.1

# The bar that is to be seen, and how many blocks want none.
_visible: ProgressBar | None = None
_unwanted = 0


class ProgressBar:
    """A bar that its owner moves with `advance`; a context manager that wipes it at the end.

    `total` is the number of steps, None where it is not known.
    """

    def __init__(self, total: int | None, label: str = "", stream: TextIO | None = None) -> None:
        self.total = total
        self.label = label
        self.done = 0
        self.note = ""
        self._stream = sys.stderr if stream is None else stream
        self._shown = _is_wanted(self._stream)
        self._start = time.perf_counter()
        self._next_draw = self._start + FIRST_DRAW_S
        self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Move on by `steps`, and change the text after the bar if `note` is given."""
        self.done += steps
        if note is not None:
            self.note = note
        if self._shown and not _unwanted and time.perf_counter() >= self._next_draw:
            self._draw()

    def close(self) -> None:
        """Wipe the bar."""
        global _visible
        if self._drawn:
            _visible = None
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._drawn = False

    def render(self, width: int) -> str:
        """Return the line that is drawn, at most `width` columns."""
        elapsed = time.perf_counter() - self._start
        head = f"{self.label} " if self.label else ""
        if self.total:
            share = min(self.done / self.total, 1.0)
            left = elapsed / share - elapsed if share > 0 else 0.0
            tail = f" {self.done}/{self.total} {human_seconds(elapsed)} < {human_seconds(left)}"
        else:
            share = 0.0
            tail = f" {self.done} {human_seconds(elapsed)}"
        if self.note:
            tail += f" {self.note}"
        room = min(40, width - len(head) - len(tail) - 2)
        if self.total is None or room < 4:
            return (head + tail.lstrip())[:width]
        filled = round(share * room)
        return f"{head}[{'#' * filled}{'.' * (room - filled)}]{tail}"[:width]

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[2K" + self.render(width))
        self._stream.flush()
        global _visible
        _visible, self._drawn = self, True
        self._next_draw = time.perf_counter() + REDRAW_S


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """Let no bar be drawn in a block, whoever's and in whatever thread.

    A line that is written piece by piece would be wiped with it.
    """
    global _unwanted
    _unwanted += 1
    try:
        if _visible is not None:
            _visible.close()
        yield
    finally:
        _unwanted -= 1


def progress(items: Iterable[T], label: str = "", total: int | None = None) -> Iterator[T]:
    """Yield `items` while a bar shows how far along they are; `total` defaults to their length."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with ProgressBar(total, label) as bar:
        for item in items:
            yield item
            bar.advance()


def _is_wanted(stream: TextIO) -> bool:
    if options.progress == "auto":
        return stream.isatty()
    return options.progress == "on"

"""Searching for faster schedules: in processes of its own, with deadlines, kept in a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from baregrad.base.options import options


@contextmanager
def search(
    beam: int = 4, *, seconds: int | None = None, file: str | Path | None = None
) -> Iterator[None]:
    """Search for the schedules of what is compiled inside the block, in this thread.

    beam: how many schedules are kept at each step. seconds: for all of the process's searches
    (None: as the option `beam_seconds` says, 0: no limit). file: where results are read and kept.
    Raises OptionError for values that an option does not take.
    """
    changes: dict[str, Any] = {"beam": beam}
    if seconds is not None:
        changes["beam_seconds"] = seconds
    if file is not None:
        changes["beam_file"] = Path(file).expanduser()
    with options.override(**changes):
        yield


__all__ = ["search"]

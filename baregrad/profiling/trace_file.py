"""The file of a profile, which the processes of one run share.

The process that begins it writes it anew. Its children join, and so does whoever was there already
when it was begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.base.tracing import PROCESS_BEGAN_NS
from baregrad.profiling import chrome_form, perfetto_form
from baregrad.profiling.events import Events


def form_of(path: Path) -> ModuleType:
    """Return what writes the form of a file: Chrome's for `.json`, Perfetto's for others."""
    return chrome_form if path.suffix == ".json" else perfetto_form


def begin_file(path: Path) -> None:
    """Write a file without events, unless one of this run has been begun.

    Raises ArgumentError where it cannot be written.
    """
    if path.suffix == ".py":
        raise ArgumentError(
            "a profile would take the place of a program", found=str(path),
            wanted="another ending than .py",
        )
    form = form_of(path)
    with _locked(path) as fd:
        with contextlib.suppress(FileFormatError):
            by_parent = form.begun_by(_read(fd)) in ancestors()
            if by_parent or os.fstat(fd).st_mtime_ns >= PROCESS_BEGAN_NS:
                return
        _write(fd, form.begin(os.getpid()))


def join_file(path: Path, events: Events) -> None:
    """Add what a process did to a file. Raises ArgumentError where it cannot be written."""
    form = form_of(path)
    with _locked(path) as fd:
        try:
            data = form.joined(_read(fd), events)
        except FileFormatError:
            # Somebody else's file by now.
            data = form.joined(form.begin(events.pid), events)
        _write(fd, data)


def read_file(path: Path) -> list[Events]:
    """Return what each process did by a file, of whichever form.

    Raises FileFormatError for another file, OSError where it cannot be read.
    """
    data = path.read_bytes()
    if data.lstrip()[:1] in (b"{", b"["):
        return chrome_form.read(data)
    return perfetto_form.read(data)


def ancestors() -> list[int]:
    """Return this process and its parents, nearest first, as far as the system tells."""
    found = [os.getpid()]
    parent = os.getppid()
    while parent > 1 and parent not in found:
        found.append(parent)
        try:
            # The name, which may hold anything, is in the last parentheses of the line.
            text = Path(f"/proc/{parent}/stat").read_text(errors="replace")
            parent = int(text.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        raise ArgumentError(
            f"the profile cannot be written to {path}", found=error.strerror,
            hint="name a file in a folder that this user may write to",
        ) from error


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _write(fd: int, data: bytes) -> None:
    os.ftruncate(fd, 0)
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], done)

"""The file of a profile, which the processes of one run share.

The process that begins it writes it anew. Its children join, and so does whoever was there already
when it was begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
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

    def begun(data: bytes, changed_ns: int) -> bytes | None:
        with contextlib.suppress(FileFormatError):
            by_parent = form.begun_by(data) in ancestors()
            if by_parent or changed_ns >= PROCESS_BEGAN_NS:
                return None
        return bytes(form.begin(os.getpid()))

    _rewrite(path, begun)


def join_file(path: Path, events: Events) -> None:
    """Add what a process did to a file. Raises ArgumentError where it cannot be written."""
    form = form_of(path)

    def joined(data: bytes, _changed_ns: int) -> bytes:
        try:
            return bytes(form.joined(data, events))
        except FileFormatError:
            # Somebody else's file by now.
            return bytes(form.joined(form.begin(events.pid), events))

    _rewrite(path, joined)


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


def _rewrite(path: Path, change: Callable[[bytes, int], bytes | None]) -> None:
    """Put in a file's place what `change` makes of its content and time, None for no change.

    It is there whole or as it was, whatever ends us. Other processes wait meanwhile.
    """
    # A link keeps pointing at the file that it names.
    target = path.resolve()
    try:
        with _locked(target) as fd:
            state = os.fstat(fd)
            data = change(os.pread(fd, state.st_size, 0), state.st_mtime_ns)
            if data is not None and stat.S_ISREG(state.st_mode):
                _replace(target, data, state.st_mode)
            elif data is not None:
                os.write(fd, data)
    except OSError as error:
        raise ArgumentError(
            f"the profile cannot be written to {path}", found=error.strerror,
            hint="name a file in a folder that this user may write to",
        ) from error


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[int]:
    """Open and lock a file: the one that has the name once the lock is ours."""
    while True:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), target.stat()):
                    yield fd
                    return
        finally:
            os.close(fd)


def _replace(target: Path, data: bytes, mode: int) -> None:
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise

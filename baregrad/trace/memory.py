"""Another process, read from outside: its memory, descriptors, mappings and threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

Read = Callable[[int, int], bytes]
_LONGEST_TEXT = 4096
# Where an ELF file says of how many bits its program is, and how.
_CLASS_AT, _BITS = 4, MappingProxyType({b"\x01": 32, b"\x02": 64})
# Of /proc/PID/pagemap: bytes of an entry, and how many are read at once. Bit 63 of one says that a
# page is there, bit 62 that it is swapped out; a stretch goes on over a few that are neither.
_ENTRY_NBYTES, _PAGES_AT_ONCE = 8, 1 << 18
_THERE = bytes(byte >> 6 != 0 for byte in range(256))
_STRETCH = re.compile(rb"\x01(?:\x00{0,4}\x01+)*")


# Bytes are looked for in pieces that fit into a processor's cache.
_PIECE_NBYTES, _PAGE_NBYTES = 1 << 18, 1 << 12


class _Part(ctypes.Structure):
    """A `struct iovec`."""

    _fields_ = [("begin", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the C library, whose functions let other threads of ours run."""
    library = ctypes.CDLL(None, use_errno=True)
    part = ctypes.POINTER(_Part)
    library.process_vm_readv.argtypes = (
        ctypes.c_int, part, ctypes.c_ulong, part, ctypes.c_ulong, ctypes.c_ulong,
    )  # fmt: skip
    library.process_vm_readv.restype = ctypes.c_ssize_t
    library.memmem.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t,
    )  # fmt: skip
    library.memmem.restype = ctypes.c_void_p
    return library


class ProcessMemory:
    """The memory of a process that we trace, device memory that it has mapped included.

    Reads go through /proc, which asks the driver for pages that are no ordinary memory.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._fd = pid, -1
        # A process may be killed at any time, also before we look at it.
        with contextlib.suppress(OSError):
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, nbytes: int) -> bytes:
        """Return the bytes at an address: fewer where the memory ends, none where there is none."""
        if nbytes <= 0 or not 0 < address < 1 << 63:
            return b""
        try:
            return os.pread(self._fd, nbytes, address)
        except (OSError, OverflowError):
            return b""

    def find(self, begin: int, end: int, what: bytes) -> list[int]:
        """Return where some bytes begin in a stretch of ordinary memory; threads may call it.

        Pages that cannot be read are passed over.
        """
        library, found = _library(), []
        buffer = (ctypes.c_char * (_PIECE_NBYTES + len(what)))()
        base = ctypes.addressof(buffer)
        here, there = _Part(base, 0), _Part(0, 0)
        at = begin
        while at < end:
            size = min(_PIECE_NBYTES, end - at)
            here.nbytes = there.nbytes = size + len(what) - 1
            there.begin = at
            nbytes = library.process_vm_readv(self._pid, here, 1, there, 1, 0)
            if nbytes < 0:
                piece = self.read(at, here.nbytes)
                ctypes.memmove(base, piece, len(piece))
                nbytes = len(piece)
            place = library.memmem(base, nbytes, what, len(what))
            while place:
                if place - base < size:
                    found.append(at + place - base)
                place = library.memmem(place + 1, base + nbytes - place - 1, what, len(what))
            next_page = (at + nbytes) // _PAGE_NBYTES * _PAGE_NBYTES + _PAGE_NBYTES
            at += size if nbytes >= size else next_page - at
        return found

    def text(self, address: int) -> str:
        """Return the C string at an address."""
        found = b""
        while len(found) < _LONGEST_TEXT:
            # Up to the next page, since the one after it may not be there.
            piece = self.read(address + len(found), 256 - (address + len(found)) % 256)
            found += piece
            if not piece or 0 in piece:
                break
        return found.partition(b"\0")[0].decode(errors="replace")

    def close(self) -> None:
        """Let go of the process's memory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class MappedFile:
    """One mapped file of a process."""

    begin: int
    end: int
    path: str
    code: bool


def _maps(pid: int) -> tuple[int, str]:
    """Return the text of a process's mappings, and the thread that has it.

    The first thread has none any more where it ended before the others. Raises OSError where there
    is no such process.
    """
    text = ""
    for tid in (pid, *threads_of(pid)):
        text = Path(f"/proc/{tid}/maps").read_text(errors="replace")
        if text:
            return tid, text
    return pid, text


def mappings(pid: int) -> list[MappedFile]:
    """Return what files a process has mapped, in order of their addresses."""
    found = []
    try:
        _, text = _maps(pid)
    except OSError:
        return []
    for line in text.splitlines():
        words = line.split(None, 5)
        if len(words) == 6:
            begin, _, end = words[0].partition("-")
            found.append(MappedFile(int(begin, 16), int(end, 16), words[5], "x" in words[1]))
    return found


def written_stretches(pid: int) -> list[tuple[int, int]]:
    """Return where a process has memory of its own that it may write, as far as it is there."""
    found: list[tuple[int, int]] = []
    try:
        tid, text = _maps(pid)
        with Path(f"/proc/{tid}/pagemap").open("rb", buffering=0) as pages:
            for line in text.splitlines():
                words = line.split(None, 5)
                named = len(words) == 6 and not words[5].startswith("[")
                if words[1].startswith("rw") and not named:
                    begin, _, end = words[0].partition("-")
                    found += _present(pages, int(begin, 16), int(end, 16))
    except OSError:
        pass
    return found


def _present(pages: BinaryIO | RawIOBase, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of a mapping that are in memory or swapped out, a few pages apart."""
    size = os.sysconf("SC_PAGE_SIZE")
    found: list[tuple[int, int]] = []
    for first in range(begin, end, _PAGES_AT_ONCE * size):
        pages.seek(first // size * _ENTRY_NBYTES)
        count = min(_PAGES_AT_ONCE, (end - first) // size)
        data = pages.read(count * _ENTRY_NBYTES) or b""
        for run in _STRETCH.finditer(data[_ENTRY_NBYTES - 1 :: _ENTRY_NBYTES].translate(_THERE)):
            found.append((first + run.start() * size, first + run.end() * size))
    return found


def node_of(tid: int, fd: int) -> str:
    """Return the path of what a thread's descriptor names, or an empty text."""
    try:
        return str(Path(f"/proc/{tid}/fd/{fd}").readlink())
    except OSError:
        return ""


def threads_of(pid: int) -> list[int]:
    """Return the threads of a process; none where there is no such process."""
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def process_of(tid: int) -> int:
    """Return the process that a thread belongs to, or the thread itself if it is gone."""
    return _status_number(tid, "Tgid:", tid)


def parent_of(pid: int) -> int:
    """Return the process that began another, 0 where that is gone."""
    return _status_number(pid, "PPid:", 0)


def tracer_of(pid: int) -> int:
    """Return the process that traces another, 0 for none."""
    return _status_number(pid, "TracerPid:", 0)


def filters_of(tid: int) -> int:
    """Return how many seccomp filters a thread has; 0 where the system does not say (Linux 5.9)."""
    return _status_number(tid, "Seccomp_filters:", 0)


def program_of(pid: int) -> tuple[str, int]:
    """Return the file of a process's program and its bits, 32 or 64; ("", 0) if it is gone."""
    try:
        with Path(f"/proc/{pid}/exe").open("rb") as file:
            head = file.read(_CLASS_AT + 1)
        return str(Path(f"/proc/{pid}/exe").readlink()), _BITS.get(head[_CLASS_AT:], 0)
    except OSError:
        return "", 0


def _status_number(tid: int, label: str, otherwise: int) -> int:
    try:
        text = Path(f"/proc/{tid}/status").read_text()
    except OSError:
        return otherwise
    rows = (row.split() for row in text.splitlines() if row.startswith(label))
    return next((int(row[1]) for row in rows), otherwise)

"""Files of modules in another process's memory, looked for by threads where that is much.

What takes long here, reading, looking for the files' first bytes and digests, is done by functions
that let Python's other threads run: the tracer answers its program meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from baregrad.runtime.nvidia.code.cubin_elf import EM_CUDA
from baregrad.trace.memory import Read

_MAGIC = b"\x7fELF\x02\x01\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_NBYTES, _PROGRAM_NBYTES = 64, 56
_SECTION = struct.Struct("<IIQ8xQQ4xI16x")
_PROGBITS, _EXECUTABLE, _WITHOUT_BYTES = 1, 4, (0, 8)
# Relocations with an addend and without, of which the place alone is asked for.
_PLACES = MappingProxyType({4: struct.Struct("<Q16x"), 9: struct.Struct("<Q8x")})
_MOST_MODULE = 1 << 28
# A piece is read in 0.2 ms, for which a stop of the program may have to wait.
_PIECE, _PAGE = 1 << 18, 1 << 12
# Of more than so much memory each thread takes so much at a time;
# there is one for so many processors.
_MUCH, _SHARE, _PROCESSORS, _MOST_THREADS = 1 << 25, 1 << 23, 2, 4
Stretch = tuple[int, int]
Finds = Callable[[int, int, bytes], list[int]]


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """Where a module's file lies in the program's memory; `data` is b"" where it is not kept."""

    address: int
    nbytes: int
    digest: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class ModuleSection:
    """A section of a module's file; `info` is the section that one of relocations is for."""

    name: str
    kind: int
    flags: int
    offset: int
    nbytes: int
    info: int

    @property
    def is_code(self) -> bool:
        """Whether it holds instructions."""
        return self.kind == _PROGBITS and bool(self.flags & _EXECUTABLE)

    def patched(self, data: bytes) -> Iterator[tuple[int]]:
        """Yield the places that it has addresses put into, if it is one of relocations."""
        form = _PLACES.get(self.kind)
        if form is None:
            return iter(())
        nbytes = self.nbytes // form.size * form.size
        return form.iter_unpack(data[self.offset : self.offset + nbytes])


def sections_of(data: bytes) -> list[ModuleSection]:
    """Return the sections of a module's file by number: none of a damaged one.

    Sections share no bytes, so that a file cannot ask for more of them than it has.
    """
    header = _HEADER.unpack_from(data)
    begin, count, names = header[6], header[12], header[13]
    table = data[begin : begin + count * _SECTION_NBYTES]
    if len(table) < count * _SECTION_NBYTES or not 0 < names < count:
        return []
    rows = list(_SECTION.iter_unpack(table))
    there = [row[3:5] for row in rows if row[1] not in _WITHOUT_BYTES]
    if (sum(nbytes for _, nbytes in there) > len(data)
            or any(offset + nbytes > len(data) for offset, nbytes in there)):  # fmt: skip
        return []
    _, _, _, first, length, _ = rows[names]
    strings = data[first : first + length]
    return [
        ModuleSection(_string(strings, name), kind, flags, offset, nbytes, info)
        for name, kind, flags, offset, nbytes, info in rows
    ]


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.find(b"\0", at)].decode(errors="replace")


def digest_of(data: bytes) -> bytes:
    """Return what files are told apart by."""
    return hashlib.blake2b(data, digest_size=16).digest()


def module_at(read: Read, address: int) -> ModuleFile | None:
    """Return the module whose file begins at an address, None where there is none."""
    header = _HEADER.unpack(read(address, _HEADER.size).ljust(_HEADER.size, b"\0"))
    if header[2] != EM_CUDA:
        return None
    programs, sections, program_count, section_count = (header[at] for at in (5, 6, 10, 12))
    nbytes = max(sections + section_count * _SECTION_NBYTES,
                 programs + program_count * _PROGRAM_NBYTES)  # fmt: skip
    if not _HEADER.size < nbytes <= _MOST_MODULE:
        return None
    data = read(address, nbytes)
    return ModuleFile(address, nbytes, digest_of(data), data) if len(data) == nbytes else None


@dataclass(eq=False)
class ModuleSearch:
    """A search through stretches of memory; `finds` says where some bytes are in one, faster.

    Iterating gives each module, and None in between: after a piece where it is done here, and where
    threads do it each time that nothing came from them.
    """

    read: Read
    stretches: Sequence[Stretch]
    finds: Finds | None = None
    _shares: deque[Stretch] = field(default_factory=deque)
    _found: deque[ModuleFile] = field(default_factory=deque)
    _some: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _given_up: bool = False

    @property
    def has_threads(self) -> bool:
        """Whether threads look through the memory."""
        return bool(self._threads)

    def stop(self) -> None:
        """Have threads read nothing any more, since the memory is about to go."""
        self._given_up = True
        for one in self._threads:
            one.join()

    def wait(self, seconds: float) -> None:
        """Wait until a thread found something or is done, for so long at most."""
        if self._threads:
            self._some.wait(seconds)

    def __iter__(self) -> Iterator[ModuleFile | None]:
        if self.finds is None or sum(end - begin for begin, end in self.stretches) < _MUCH:
            for begin, end in self.stretches:
                yield from self._here(begin, end)
            return
        self._shares.extend(
            (at, min(at + _SHARE, end)) for begin, end in self.stretches
            for at in range(begin, end, _SHARE)
        )  # fmt: skip
        count = max(1, min(len(os.sched_getaffinity(0)) // _PROCESSORS, _MOST_THREADS))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for one in self._threads:
            one.start()
        try:
            yield from self._come()
        finally:
            self.stop()

    def _come(self) -> Iterator[ModuleFile | None]:
        """Yield what threads find, until they are done."""
        while True:
            self._some.clear()
            alive = any(one.is_alive() for one in self._threads)
            while self._found:
                yield self._found.popleft()
            if not alive:
                return
            yield None

    def _work(self) -> None:
        """Look through one share after the other: what each thread does."""
        assert self.finds is not None
        while not self._given_up:
            try:
                begin, end = self._shares.popleft()
            except IndexError:
                break
            for address in self.finds(begin, end, _MAGIC):
                # Of a file that says it is large each takes long.
                module = None if self._given_up else module_at(self.read, address)
                if module is not None:
                    self._found.append(module)
                    self._some.set()
        self._some.set()

    def _here(self, begin: int, end: int) -> Iterator[ModuleFile | None]:
        at = begin
        while at < end:
            piece = self.read(at, min(_PIECE, end - at))
            found = piece.find(_MAGIC)
            while found >= 0:
                yield module_at(self.read, at + found)
                found = piece.find(_MAGIC, found + 1)
            # A magic number may lie across the end of a piece; where there is none, none does.
            ends = at + len(piece) >= end or not piece
            at += _PIECE if ends else max(len(piece) - len(_MAGIC), _PAGE)
            yield None

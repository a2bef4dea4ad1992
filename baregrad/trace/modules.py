"""Kernels by name: modules found in a program's memory, matched with the code that it launches.

A launch says where its program lies. What lies there is read where the program has mapped it, or is
known from the copy that brought it; the names come from the module's file, which the program or its
libraries hold in memory. A name is given where all of the code is the same, but for the
instructions that addresses are put into when a module is loaded.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from baregrad.runtime.nvidia.queue.push_decoder import PushDecoder, PushedWork
from baregrad.trace.memory import Read
from baregrad.trace.module_search import Finds, ModuleFile, ModuleSearch, digest_of, sections_of

# Code is looked up by the first of so many blocks into which no address is put, and a module by
# the first blocks of its code.
_BLOCK, _BLOCKS, _FIRST_BLOCKS = 64, 16, 8
# Of modules that share blocks with a program so many are read whole, those with the most first.
_LIKELY = 3
_INSTRUCTION = 16
# What the names of sections with code and with a kernel's parameters begin with.
_TEXT, _PARAMETERS = ".text.", ".nv.constant0."
# Of copies so many bytes are kept, the newest, and so many of them; as many bytes of modules.
_MOST_COPY, _MOST_KEPT, _MOST_COPIES = 1 << 25, 1 << 26, 1 << 12
# What may be spent on reading what is copied: so many seconds, and such a part of the time.
_FREE_S, _SHARE = 0.5, 0.05
# How long threads are waited for at most, until it is looked whether it is time to end.
_WAIT_S = 0.01
# After a search none is begun for so many times as long.
_PAUSES = 1


@dataclass(frozen=True, slots=True)
class _Code:
    """A kernel's code, and the instructions of it that hold addresses."""

    name: str
    data: bytes
    holes: tuple[int, ...]

    def is_in(self, there: bytes) -> bool:
        """Whether this is what lies there."""
        if len(there) < len(self.data):
            return False
        begin = 0
        for hole in (*self.holes, len(self.data)):
            if self.data[begin:hole] != there[begin:hole]:
                return False
            begin = hole + _INSTRUCTION
        return True

    def block(self) -> int:
        """Return the first block without addresses, -1 where there is none."""
        used = {hole // _BLOCK for hole in self.holes}
        count = min(len(self.data) // _BLOCK, _BLOCKS)
        return next((at for at in range(count) if at not in used), -1)


def kernels_of(data: bytes) -> Iterator[_Code]:
    """Yield the kernels of a cubin, none of what is none.

    Code of a name is a kernel's where there is a bank of constants for its parameters. Of hundreds
    of sections few are asked for, so that nothing but these tables is read here.
    """
    sections = sections_of(data)
    kernels = {one.name.removeprefix(_PARAMETERS) for one in sections
               if one.name.startswith(_PARAMETERS)}  # fmt: skip
    holes: dict[int, set[int]] = {}
    for one in sections:
        for (offset,) in one.patched(data):
            holes.setdefault(one.info, set()).add(offset // _INSTRUCTION * _INSTRUCTION)
    for index, one in enumerate(sections):
        name = one.name.removeprefix(_TEXT)
        if one.is_code and name != one.name and name in kernels:
            code = data[one.offset : one.offset + one.nbytes]
            yield _Code(name, code, tuple(sorted(holes.get(index, ()))))


@dataclass(eq=False)
class KernelNames:
    """The kernels of one process.

    `read` reads its memory, `gpu` the GPU's addresses as far as the process has mapped them;
    `stretches` gives the parts of its memory that it may have put modules into, and `finds` says
    where bytes are in one, faster. Memory is looked through by `step`, a piece at a time, or by
    threads where it is much, so that the program need not wait for it.
    """

    read: Read
    gpu: Read
    stretches: Callable[[], Iterable[tuple[int, int]]]
    clock: Callable[[], float] = time.monotonic
    names: dict[int, str] = field(default_factory=dict)
    # Programs that were launched before their module was found: how often.
    unnamed: Counter[int] = field(default_factory=Counter)
    unreadable: set[int] = field(default_factory=set)
    # Whether modules are looked for at all.
    seeks: bool = True
    finds: Finds | None = None
    _files: dict[bytes, ModuleFile] = field(default_factory=dict)
    _files_kept: int = 0
    # The files, by digest, that have code with such a block among its first ones.
    _holders: dict[bytes, list[bytes]] = field(default_factory=dict)
    _code: dict[int, bytes] = field(default_factory=dict)
    _index: dict[tuple[int, bytes], list[_Code]] = field(default_factory=dict)
    _blocks: set[int] = field(default_factory=set)
    # What the last search looked through.
    _looked: list[tuple[int, int]] = field(default_factory=list)
    # Files whose kernels are in the index.
    _opened: set[bytes] = field(default_factory=set)
    # Programs for which modules were looked for already, and those for which they are to be.
    _sought: set[int] = field(default_factory=set)
    _wanted: set[int] = field(default_factory=set)
    # Whether to look before anything is launched.
    _early: bool = False
    _search: Iterator[bool] | None = None
    _searched: ModuleSearch | None = None
    # Whether the search waits for its threads.
    _waits: bool = False
    _found_module: bool = False
    _search_s: float = 0.0
    _next_search: float = 0.0
    _copies: deque[tuple[int, bytes]] = field(default_factory=deque)
    _written: deque[tuple[int, int, PushDecoder]] = field(
        default_factory=lambda: deque(maxlen=_MOST_COPIES)
    )
    _kept: int = 0
    _spent: float = 0.0

    def __post_init__(self) -> None:
        self._began = self.clock()

    def told(self, work: PushedWork, decoder: PushDecoder) -> PushedWork:
        """Take note of a copy, and look up a launch: return it with its kernel's name if known."""
        if work.kind == "copy":
            self._copied(work, decoder)
        elif work.kind == "launch" and "program" in (values := dict(work.values)):
            program = int(str(values["program"]))
            if not self._name(program):
                self.unnamed[program] += 1
                wanted = self.seeks and program not in self._sought
                if wanted and program not in self.unreadable:
                    self._wanted.add(program)
            return self.named(work)
        return work

    def named(self, work: PushedWork) -> PushedWork:
        """Return a launch with its kernel's name, if that is known."""
        name = self.names.get(_program(work), "")
        if not name:
            return work
        text = work.text.replace("launch of ", f"launch of {name} at ", 1)
        return replace(work, text=text, values=(*work.values, ("kernel", name)))

    @property
    def modules(self) -> int:
        """How many different modules were found."""
        return len(self._files)

    def prepare(self) -> None:
        """Look through what memory there is soon, so that launches find what came since alone."""
        self._early = self.seeks

    @property
    def is_searching(self) -> bool:
        """Whether modules are being looked for here, and not by threads."""
        return (self._search is not None and not self._waits) or self._early

    def awaits(self, work: PushedWork) -> bool:
        """Whether a launch may have a name in a moment, when modules were looked for."""
        program = _program(work)
        soon = self._search is not None or self.clock() >= self._next_search
        return program in self._wanted and program not in self.names and soon

    def step(self) -> bool:
        """Look through some memory if a name is missing; return whether there was some to do.

        Where threads look through it, take what they found.
        """
        began = self.clock()
        if self._search is None:
            if not (self._wanted or self._early) or began < self._next_search:
                return False
            self._early = False
            self._search, self._search_s = self._look(set(self._wanted)), 0.0
        did = next(self._search, None)
        now = self.clock()
        self._search_s += now - began
        self._waits = did is False
        if did is None:
            self._search, self._next_search = None, now + _PAUSES * self._search_s
        return not self._waits

    def stop(self) -> None:
        """Look through memory no more, since it is about to go."""
        if self._searched is not None:
            self._searched.stop()

    def finish(self, seconds: float = math.inf) -> None:
        """Find what names are missing before the process's memory goes, for so long at most."""
        if not self.seeks:
            return
        missing = self.unnamed.keys() - self.names.keys() - self.unreadable
        self._wanted |= missing
        self._next_search, deadline = 0.0, self.clock() + seconds
        while not missing <= self.names.keys():
            if not self.step():
                if self._searched is None or not self._waits:
                    break
                self._searched.wait(_WAIT_S)
            if self.clock() >= deadline:
                break
            self._next_search = 0.0
            if self._found_module:
                self._found_module = False
                for program in missing - self.names.keys():
                    self._match(program)

    def late(self) -> dict[int, tuple[str, int]]:
        """Return programs that were named after launches of theirs were told, and how many."""
        return {program: (self.names[program], count)
                for program, count in self.unnamed.items() if program in self.names}  # fmt: skip

    def told_late(self, work: PushedWork) -> PushedWork:
        """Return a launch that was kept back, and count it as one that was named in time."""
        found = self.named(work)
        if found is not work:
            self.unnamed[_program(work)] -= 1
            self.unnamed += Counter()
        return found

    def inherit(self, other: KernelNames) -> None:
        """Take over what another process knew, which had the same rings."""
        self.names = {**other.names, **self.names}
        self.unnamed += other.unnamed
        self.unreadable |= other.unreadable
        self._code = {**other._code, **self._code}
        for key, rows in other._index.items():
            self._index.setdefault(key, rows)
        self._blocks |= other._blocks
        self._opened |= other._opened
        self._files = {**other._files, **self._files}
        for block, files in other._holders.items():
            self._holders.setdefault(block, files)
        self._copies.extendleft(reversed(other._copies))
        self._written.extendleft(reversed(other._written))

    # What lies where.

    def _name(self, program: int) -> str:
        """Return the name of what lies at an address, "" where it is not known (yet)."""
        found = self.names.get(program, "")
        if found or program in self.unreadable:
            return found
        if program not in self._code:
            code = self._there(program, _BLOCK * _BLOCKS)
            # Addresses that are set aside, and where nothing is, may read as zeros.
            if not any(code):
                self.unreadable.add(program)
                return ""
            self._code[program] = code
        return self._match(program)

    def _copied(self, work: PushedWork, decoder: PushDecoder) -> None:
        values = {name: int(str(value)) for name, value in work.values}
        target, nbytes = values["target"], values["nbytes"]
        self._forget(target, nbytes * values["lines"])
        if values["lines"] != 1 or not _BLOCK <= nbytes <= _MOST_COPY:
            return
        if not values["source"]:
            self._written.append((target, nbytes, decoder))
            return
        began = self.clock()
        if work.text.startswith("fill") or self._spent > _FREE_S + _SHARE * (began - self._began):
            return
        # Most come from memory that the program has mapped. What is only set aside reads as zeros.
        data = self.gpu(values["source"], nbytes)
        if len(data) < nbytes or data.count(0) == nbytes:
            data = self._there(values["source"], nbytes)
        self._spent += self.clock() - began
        if len(data) == nbytes:
            self._copies.append((target, data))
            self._kept += nbytes
            while self._kept > _MOST_KEPT or len(self._copies) > _MOST_COPIES:
                self._kept -= len(self._copies.popleft()[1])

    def _forget(self, begin: int, nbytes: int) -> None:
        """Forget what is known of memory that is written anew."""
        for known in (self.names, self._code):
            for program in [one for one in known if begin <= one < begin + nbytes]:
                del known[program]
        self.unreadable = {one for one in self.unreadable if not begin <= one < begin + nbytes}

    def _there(self, address: int, nbytes: int) -> bytes:
        """Return what lies at an address of the GPU: fewer bytes where the rest is not known."""
        found = b""
        while len(found) < nbytes:
            piece = self._piece(address + len(found), nbytes - len(found))
            if not piece:
                break
            found += piece
        return found

    def _piece(self, address: int, nbytes: int) -> bytes:
        for target, data in reversed(self._copies):
            if target <= address < target + len(data):
                return data[address - target : address - target + nbytes]
        for target, length, decoder in reversed(self._written):
            if target <= address < target + length:
                kept = decoder.kept(address, min(nbytes, target + length - address))
                if kept:
                    return kept
        return self.gpu(address, nbytes)

    # Which code is whose.

    def _match(self, program: int) -> str:
        """Name a program if its code is known; one of several kernels of the same code is said."""
        head = self._code.get(program, b"")
        self._open_likely(head)
        found: set[str] = set()
        for at in self._blocks:
            key = (at, head[at * _BLOCK : (at + 1) * _BLOCK])
            rows = self._index.get(key, ())
            there = self._there(program, max(len(row.data) for row in rows)) if rows else b""
            found.update(row.name for row in rows if row.is_in(there))
        if found:
            first, *others = sorted(found)
            more = f" (or {len(others)} of the same code)" if others else ""
            self.names[program] = first + more
        return self.names.get(program, "")

    def _look(self, wanted: set[int]) -> Iterator[bool]:
        """Look through memory for modules, a piece at a time, and for the names of programs.

        Yields whether there was something to do, or only threads to wait for. What came since the
        last search is looked through first, which ends it if it is enough.
        """
        there = list(self.stretches())
        new = list(_beyond(there, self._looked))
        for part in (new, list(_beyond(there, new))):
            self._searched = ModuleSearch(self.read, part, self.finds)
            for found in self._searched:
                if found is not None:
                    self._keep(found)
                yield found is not None or not self._searched.has_threads
            for program in self.unnamed:
                if program not in self.names:
                    self._match(program)
            if wanted <= self.names.keys():
                break
        self._looked = there
        self._sought |= wanted
        self._wanted -= wanted

    def _keep(self, found: ModuleFile) -> None:
        """Take a module that was found, if there is none like it."""
        if found.digest in self._files:
            return
        data = found.data
        self._files_kept += found.nbytes
        kept = data if self._files_kept <= _MOST_KEPT else b""
        self._files[found.digest] = replace(found, data=kept)
        self._found_module = True
        for one in sections_of(data):
            length = min(one.nbytes, _FIRST_BLOCKS * _BLOCK) if one.is_code else 0
            for at in range(one.offset, one.offset + length, _BLOCK):
                files = self._holders.setdefault(data[at : at + _BLOCK], [])
                if not files or files[-1] != found.digest:
                    files.append(found.digest)

    def _open_likely(self, head: bytes) -> None:
        """Take the kernels of the modules that have the most blocks of some code."""
        shared: Counter[bytes] = Counter()
        for at in range(0, _FIRST_BLOCKS * _BLOCK, _BLOCK):
            shared.update(self._holders.get(head[at : at + _BLOCK], ()))
        for digest, _ in shared.most_common(_LIKELY):
            if digest not in self._opened:
                self._open(self._files[digest])

    def _open(self, file: ModuleFile) -> None:
        """Put the kernels of a module into the index, if its file still lies where it was."""
        self._opened.add(file.digest)
        data = file.data or self.read(file.address, file.nbytes)
        if digest_of(data) != file.digest:
            return
        for one in kernels_of(data):
            block = one.block()
            if block >= 0:
                self._blocks.add(block)
                key = (block, one.data[block * _BLOCK : (block + 1) * _BLOCK])
                self._index.setdefault(key, []).append(one)


def _beyond(
    stretches: Iterable[tuple[int, int]], known: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of stretches that lie in no known one; both are in order of their begins."""
    at = 0
    for begin, end in stretches:
        while at < len(known) and known[at][1] <= begin:
            at += 1
        next_ = at
        while next_ < len(known) and known[next_][0] < end and begin < end:
            first, last = known[next_]
            if begin < first:
                yield begin, first
            begin = max(begin, last)
            next_ += 1
        if begin < end:
            yield begin, end


def _program(work: PushedWork) -> int:
    """Return where the program of a launch lies, -1 for what is none."""
    return int(str(dict(work.values).get("program", -1)))

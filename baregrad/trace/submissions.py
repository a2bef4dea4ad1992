"""Work that passes no system call: rings that a program has mapped, read as they fill.

Channels, memory and mappings are learnt from the calls that make them; then the pointer of each
ring is looked at between calls and every few milliseconds, and what was put into it since is
decoded. Nothing stops the program for it, so what a ring or a pushbuffer held and overwrote between
two looks is not seen.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.abi.vendor import VendorTables
from baregrad.runtime.nvidia.queue.push_decoder import PushDecoder, PushedWork
from baregrad.trace.calls import RawCall, integer
from baregrad.trace.decode import DriverCall
from baregrad.trace.memory import Read
from baregrad.trace.module_search import Finds
from baregrad.trace.modules import KernelNames

_MOST_WORDS = 1 << 21
_OS_DESCRIPTOR = 0x71
# So many bytes are copied before they are unmapped; of more, what waits is decoded.
_MOST_KEPT = 1 << 22
# So much may wait for names of kernels.
_MOST_HELD = 1 << 14
# For how long a process that is about to end is held for what it has in its rings, and for names.
_LAST_S = 0.5
_LAST_SEARCH_S = 1.0
# How often rings are looked at.
PERIOD_S = 0.002
Handle = tuple[int, int]


@dataclass(eq=False)
class _Piece:
    """Memory that a process has mapped: where it lies in its memory object, and here.

    `kept` is what it held when it was unmapped, for pieces of rings that are not decoded yet.
    """

    offset: int
    address: int
    nbytes: int
    kept: bytes | None = None


@dataclass(eq=False)
class _There:
    """A stretch of the GPU's addresses: the memory below it, and where in that it begins."""

    base: int
    nbytes: int
    memory: Handle
    offset: int


@dataclass
class _Ring:
    """A channel's ring: where its entries and its pointers lie, and how far it was read."""

    client: int
    handle: int
    address: int
    entries: int
    memory: Handle
    offset: int
    decoder: PushDecoder
    kernels: KernelNames
    get: int = 0
    began: bool = False
    ended: bool = False
    # Pieces that were read and are not decoded yet.
    waiting: int = 0


@dataclass
class _Space:
    """A process: what of the GPU's memory it has mapped, and the GPU's addresses."""

    read: Read
    kernels: KernelNames
    prepared: dict[int, tuple[Handle, int]] = field(default_factory=dict)
    here: dict[Handle, list[_Piece]] = field(default_factory=dict)
    there: list[_There] = field(default_factory=list)
    rings: dict[Handle, _Ring] = field(default_factory=dict)
    doorbells: set[Handle] = field(default_factory=set)
    # The process that it was forked from, whose rings it has as well.
    parent: int = 0

    def gpu(self, address: int, nbytes: int) -> bytes:
        """Read an address of the GPU: by its mapping, or where both sides have the same one."""
        for one in reversed(self.there):
            if one.base <= address < one.base + one.nbytes:
                found = self.memory(one.memory, address - one.base + one.offset, nbytes)
                if found:
                    return found
        return self.read(address, nbytes)

    def memory(self, memory: Handle, offset: int, nbytes: int) -> bytes:
        """Read a memory object where it is mapped; no bytes where it is not."""
        # What was mapped last is what is there, where both are.
        for piece in reversed(self.here.get(memory, ())):
            first = offset - piece.offset
            if 0 <= first < piece.nbytes:
                count = min(nbytes, piece.nbytes - first)
                if piece.kept is not None:
                    return piece.kept[first : first + count]
                return self.read(piece.address + first, count)
        return b""

    def forget(self, pieces: list[_Piece], there: list[_There]) -> None:
        """Know of these mappings no longer."""
        for handle, rows in list(self.here.items()):
            left = [one for one in rows if one not in pieces]
            if left:
                self.here[handle] = left
            else:
                del self.here[handle]
        self.there = [one for one in self.there if one not in there]


@dataclass(frozen=True)
class Submission:
    """Work found in a ring: when it was seen (not when it was put there), and whose."""

    time: float
    pid: int
    channel: int
    work: PushedWork


@dataclass
class SubmissionReader:
    """Follows the rings of all processes; `sink` takes what is found in them."""

    tables: VendorTables
    sink: Callable[[Submission], None]
    clock: Callable[[], float] = time.monotonic
    # Whether kernels' names are looked for, which takes a walk through a program's memory.
    seeks_names: bool = True
    spaces: dict[int, _Space] = field(default_factory=dict)
    unreadable: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    methods: int = 0
    # Of each process that had a ring.
    kernels: list[KernelNames] = field(default_factory=list)
    # Pieces of rings, and between them what is to be forgotten once those before are decoded.
    waiting: deque[tuple[float, int, _Ring, bytes] | Callable[[], None]] = field(
        default_factory=deque
    )
    # What was decoded and waits for names of kernels, in order.
    _held: deque[tuple[KernelNames, Submission]] = field(default_factory=deque)
    _last: float = 0.0

    def process(
        self, pid: int, read: Read, parent: int = 0,
        stretches: Callable[[], Iterable[tuple[int, int]]] = tuple, finds: Finds | None = None,
    ) -> None:
        """Take note of a process, how its memory is read, and whose mappings a fork gave it.

        stretches: what of its memory may hold modules of kernels.
        finds: says where some bytes are in a stretch, for threads to call.
        """
        kernels = KernelNames(
            read, lambda address, nbytes: b"", stretches, self.clock, seeks=self.seeks_names,
            finds=finds,
        )  # fmt: skip
        if pid in self.spaces:
            self.spaces[pid].kernels.stop()
        space = self.spaces[pid] = _Space(read, kernels, parent=parent)
        kernels.gpu = space.gpu

    def gone(self, pid: int) -> None:
        """Read what is left, and forget a process; its memory is no more, so decoding can wait.

        A fork of it that is still there has its rings from now on: until then both share them.
        """
        self.look(pid)
        space = self.spaces.pop(pid, None)
        if space is None:
            return
        space.kernels.stop()
        heir = next((one for one in self.spaces.values() if one.parent == pid), None)
        if heir is None:
            for ring in space.rings.values():
                self._ended(ring)
            return
        for one in self.spaces.values():
            one.parent = space.parent if one.parent == pid else one.parent
        for handle, rows in space.here.items():
            heir.here.setdefault(handle, []).extend(rows)
        heir.there = [*space.there, *heir.there]
        heir.doorbells |= space.doorbells
        for handle, ring in space.rings.items():
            heir.rings.setdefault(handle, ring)
            ring.decoder.read = heir.gpu
            ring.kernels = heir.kernels
        heir.kernels.inherit(space.kernels)
        if space.rings and heir.kernels not in self.kernels:
            self.kernels.append(heir.kernels)

    def is_doorbell(self, raw: RawCall) -> bool:
        """Whether a mapping that was not learnt of yet shows a doorbell."""
        space = self.spaces.get(raw.pid)
        prepared = space.prepared.get(raw.fd) if space is not None and raw.call == "mmap" else None
        return prepared is not None and space is not None and prepared[0] in space.doorbells

    def learn(self, call: DriverCall) -> None:
        """Take from a call what it says of channels and memory."""
        raw = call.raw
        space = self.spaces.get(raw.pid)
        if space is None or call.failed:
            return
        if raw.call == "mmap":
            memory = space.prepared.pop(raw.fd, None)
            if memory is not None:
                handle, offset = memory
                piece = _Piece(offset, raw.value, raw.arguments[1])
                space.here.setdefault(handle, []).append(piece)
        elif raw.call == "munmap":
            self._unmapped(space, raw)
        elif raw.call == "ioctl" and raw.blocks:
            self._ioctl(space, call)

    def _unmapped(self, space: _Space, raw: RawCall) -> None:
        begin, end = raw.arguments[0], raw.arguments[0] + raw.arguments[1]
        gone = [piece for rows in space.here.values() for piece in rows
                if begin <= piece.address < end]  # fmt: skip
        if gone:
            self._later(partial(space.forget, gone, []))

    def _later(self, forget: Callable[[], None]) -> None:
        """Forget something once what was read before is decoded."""
        if self.waiting:
            self.waiting.append(forget)
        else:
            forget()

    def _ioctl(self, space: _Space, call: DriverCall) -> None:
        blocks = [one for one in call.raw.blocks if one.struct != "nv_ioctl_xfer_t"]
        argument = blocks[0]
        after = argument.after or argument.before

        def of(name: str) -> int:
            return integer(self.tables, argument.struct, after, name) or 0

        client, _, handle = call.handles
        if call.verb == "NV_ESC_RM_MAP_MEMORY":
            space.prepared[of("fd")] = ((client, of("params.hMemory")), of("params.offset"))
        elif call.verb == "NV_ESC_RM_ALLOC_MEMORY" and of("params.hClass") == _OS_DESCRIPTOR:
            row = _Piece(0, of("params.pMemory"), of("params.limit") + 1)
            space.here.setdefault((client, handle), []).append(row)
        elif call.verb == "UVM_MAP_EXTERNAL_ALLOCATION":
            memory = (of("hClient"), of("hMemory"))
            space.there.append(_There(of("base"), of("length"), memory, of("offset")))
        elif call.verb == "NV_ESC_RM_MAP_MEMORY_DMA":
            memory = (client, of("hMemory"))
            space.there.append(_There(of("dmaOffset"), of("length"), memory, of("offset")))
        elif call.verb == "NV_ESC_RM_FREE":
            self._freed(space, (client, handle))
        elif call.verb == "NV_ESC_RM_ALLOC" and "_USERMODE_" in call.subject:
            space.doorbells.add((client, handle))
        elif call.verb == "NV_ESC_RM_ALLOC" and "CHANNEL_GPFIFO" in call.subject:
            self._channel(space, call, client, handle)

    def _freed(self, space: _Space, handle: Handle) -> None:
        pieces = list(space.here.get(handle, ()))
        there = [one for one in space.there if one.memory == handle]
        if pieces or there:
            self._later(partial(space.forget, pieces, there))
        ring = space.rings.pop(handle, None)
        if ring is not None:
            self._ended(ring)

    def _channel(self, space: _Space, call: DriverCall, client: int, handle: int) -> None:
        params = next((one for one in call.raw.blocks if one.role == "params"), None)
        if params is None:
            return
        data = params.after or params.before
        found = {name: integer(self.tables, params.struct, data, name) or 0
                 for name in ("gpFifoOffset", "gpFifoEntries", "hUserdMemory", "userdOffset")
                 }  # fmt: skip
        if not 0 < found["gpFifoEntries"] <= 1 << 20:
            return
        decoder = PushDecoder(self.tables, space.gpu)
        if space.kernels not in self.kernels:
            self.kernels.append(space.kernels)
            space.kernels.prepare()
        space.rings[client, handle] = _Ring(
            client, handle, found["gpFifoOffset"], found["gpFifoEntries"],
            (client, found["hUserdMemory"]), found["userdOffset"], decoder, space.kernels,
        )  # fmt: skip

    def _ended(self, ring: _Ring) -> None:
        """Add up what a ring's decoder counted, once all that was read of it is decoded."""
        ring.ended = True
        if ring.waiting:
            return
        self.unknown += ring.decoder.unknown
        self.methods += ring.decoder.methods

    def has_rings(self) -> bool:
        """Whether any process has a ring."""
        return any(space.rings for space in self.spaces.values())

    def look_often(self) -> None:
        """Read all rings unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._last > PERIOD_S / 2:
            self._last = now
            self.look()

    def look(self, pid: int | None = None) -> None:
        """Read the rings of a process, or of all."""
        chosen = [pid] if pid is not None else list(self.spaces)
        for one in chosen:
            space = self.spaces.get(one)
            for ring in list(space.rings.values()) if space is not None else ():
                assert space is not None
                self._advance(one, space, ring)

    def _advance(self, pid: int, space: _Space, ring: _Ring) -> None:
        data = space.memory(ring.memory, ring.offset + m.USERD_GP_PUT, 4)
        if len(data) < 4:
            if not ring.began:
                self.unreadable[f"ring pointers of channel {ring.handle:#x}"] += 1
            return
        put = int.from_bytes(data, "little")
        if put >= ring.entries or put == ring.get:
            return
        ring.began = True
        while ring.get != put:
            entry = space.gpu(ring.address + 8 * ring.get, 8)
            ring.get = (ring.get + 1) % ring.entries
            if len(entry) < 8:
                self.unreadable[f"ring of channel {ring.handle:#x}"] += 1
                continue
            self._segment(pid, space, ring, struct.unpack("<Q", entry)[0])

    def _segment(self, pid: int, space: _Space, ring: _Ring, entry: int) -> None:
        count = entry >> m.GP_ENTRY_LENGTH_SHIFT & 0x1FFFFF
        address = entry & ((1 << m.GP_ENTRY_ADDRESS_BITS) - 1) & ~3
        if not count:
            return
        words = space.gpu(address, 4 * min(count, _MOST_WORDS))
        if len(words) < 4 * count:
            self.unreadable[f"pushbuffer of channel {ring.handle:#x}"] += 1
        ring.waiting += 1
        self.waiting.append((self.clock(), pid, ring, words))

    def before_end(self, pid: int) -> None:
        """Read what is left of a process that is about to end, its kernels' names as well."""
        self.look(pid)
        space = self.spaces.get(pid)
        if space is None or not space.rings:
            return
        deadline = time.monotonic() + _LAST_S
        while time.monotonic() < deadline and self.decode_next():
            pass
        space.kernels.finish(_LAST_SEARCH_S)
        self.tell_held()

    def before_taking(self, pid: int, begin: int = 0, end: int = 0) -> None:
        """Read the rings before a call takes memory away: which it unmaps, or which it frees.

        Little memory is kept as it is, so that the program need not stand still until all is
        decoded; where it is much, all is decoded now.
        """
        self.look(pid)
        space = self.spaces.get(pid)
        if space is None or not self.waiting:
            return
        pieces = [piece for rows in space.here.values() for piece in rows
                  if begin <= piece.address < end]  # fmt: skip
        if sum(piece.nbytes for piece in pieces) > _MOST_KEPT:
            self.read_all(pid)
        for piece in pieces if self.waiting else ():
            piece.kept = space.read(piece.address, piece.nbytes)

    def read_all(self, pid: int | None = None) -> None:
        """Read the rings and decode all of it now, while the memory that it names is there."""
        self.look(pid)
        while self.decode_next():
            pass

    @property
    def left(self) -> int:
        """How much is not told yet."""
        return len(self.waiting) + len(self._held)

    @property
    def is_busy(self) -> bool:
        """Whether there is something to decode or to look for, other than by threads."""
        return bool(self.waiting or any(one.is_searching for one in self.kernels))

    def find_names(self) -> bool:
        """Look for kernels' names a moment, tell what waited for them; return if there was any."""
        found = any(one.step() for one in self.kernels)
        self.tell_held()
        return found

    def tell_held(self, *, all_: bool = False) -> None:
        """Tell what was kept back, up to the first launch that may have its name in a moment."""
        while self._held and (all_ or not self._held[0][0].awaits(self._held[0][1].work)):
            kernels, told = self._held.popleft()
            self.sink(replace(told, work=kernels.told_late(told.work)))

    def decode_next(self) -> bool:
        """Decode one segment that was read; return whether there was one."""
        if not self.waiting:
            return False
        first = self.waiting.popleft()
        if callable(first):
            first()
            return True
        seen, pid, ring, words = first
        for work in ring.decoder.feed(words):
            told = Submission(seen, pid, ring.handle, ring.kernels.told(work, ring.decoder))
            if self._held or ring.kernels.awaits(work):
                self._held.append((ring.kernels, told))
            else:
                self.sink(told)
        if len(self._held) > _MOST_HELD:
            self.tell_held(all_=True)
        ring.waiting -= 1
        if ring.ended and not ring.waiting:
            self._ended(ring)
        return True

"""The watcher of a traced program: which calls are the driver's, and what they handed over."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from baregrad.runtime.nvidia.abi.vendor import VendorTables
from baregrad.trace.calls import RawCall, capture, read_again, request_of
from baregrad.trace.engine import TracedProcess, TracedThread
from baregrad.trace.exact import DoorbellTrap
from baregrad.trace.memory import MappedFile, mappings, node_of, program_of, written_stretches
from baregrad.trace.ptrace import EXITS, OPENS, STATS, Syscall
from baregrad.trace.submissions import PERIOD_S, SubmissionReader

if TYPE_CHECKING:
    # It takes the runtime's ports, which one who records nothing needs not.
    from baregrad.trace.recording import TraceRecorder

_STACK_NBYTES = 1024
# How often a process's libraries are looked up anew at most.
_FILES_S = 0.05
# For how long calls and segments are decoded before the next stop is looked for.
_SLICE_S = 0.0005
# RM_FREE, RM_UNMAP_MEMORY, RM_UNMAP_MEMORY_DMA and UVM_FREE: what they take away is read before.
_TAKING_AWAY = frozenset({0x29, 0x4F, 0x58, 34})
# What lies between a library and the kernel, and is not the caller that is meant.
_BETWEEN = ("libc.so", "libc-2", "ld-", "libpthread", "[")


@dataclass
class _Seen:
    """What is known of a process: where nodes are mapped, and its libraries."""

    mapped: list[tuple[int, int]] = field(default_factory=list)
    files: list[MappedFile] = field(default_factory=list)
    files_read: float = 0.0


@dataclass
class DriverWatch:
    """Takes down the calls on the driver's nodes and hands each to `sink`.

    `nodes` maps paths to the nodes that they stand for, beside those of `/dev/nvidia*`.
    """

    tables: VendorTables
    sink: Callable[[RawCall], None]
    nodes: Mapping[str, str] = field(default_factory=dict)
    rings: SubmissionReader | None = None
    recorder: TraceRecorder | None = None
    trap: DoorbellTrap | None = None
    # 32-bit programs, whose calls are not seen.
    unseen: list[str] = field(default_factory=list)
    _processes: dict[int, _Seen] = field(default_factory=dict)
    _taken: deque[RawCall] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._began = time.monotonic()

    def node(self, path: str) -> str:
        """Return the node of a path, or an empty text."""
        if path in self.nodes:
            return self.nodes[path]
        return path if path.startswith("/dev/nvidia") else ""

    # What the engine calls.

    def born(self, process: TracedProcess, parent: TracedProcess | None) -> None:
        """Take over what a fork inherits."""
        known = self._processes.get(parent.pid) if parent is not None else None
        seen = _Seen()
        if known is not None:
            seen = _Seen(list(known.mapped), known.files)
            if self.trap is not None and parent is not None:
                self.trap.inherit(process.pid, parent.pid)
        self._processes[process.pid] = seen
        if parent is None:
            # One that ran before us has some already.
            seen.mapped = [(one.begin, one.end) for one in mappings(process.pid)
                           if self.node(one.path)]  # fmt: skip
            self._look_at_program(process)
        if self.rings is not None:
            self._learn()
            self._has_rings(process, parent.pid if parent else 0)

    def became(self, process: TracedProcess) -> None:
        """Forget what an exec undoes."""
        if self.trap is not None:
            self.trap.forget(process.pid)
        self._processes[process.pid] = _Seen()
        self._look_at_program(process)
        if self.rings is not None:
            self._has_rings(process, 0)

    def _look_at_program(self, process: TracedProcess) -> None:
        """Keep the name of a program whose calls have other numbers."""
        path, bits = program_of(process.pid)
        if bits == 32 and path not in self.unseen:
            self.unseen.append(path)

    def _has_rings(self, process: TracedProcess, parent: int) -> None:
        assert self.rings is not None
        pid = process.pid
        memory = process.memory
        stretches = partial(written_stretches, pid)
        self.rings.process(pid, memory.read, parent, stretches, memory.find)

    def gone(self, process: TracedProcess) -> None:
        """Forget a process."""
        self._learn()
        if self.rings is not None:
            self.rings.gone(process.pid)
        self._processes.pop(process.pid, None)

    def signalled(self, thread: TracedThread, number: int) -> int:
        """Keep back what a store to a closed doorbell caused."""
        if number == signal.SIGSEGV and self.trap is not None:
            self._learn()
        if number == signal.SIGSEGV and self.trap is not None and self.trap.caught(thread):
            return 0
        return number

    def idle(self) -> None:
        """Look at the rings, and decode for a moment what was taken down.

        The thread that stopped is running again by now: decoding costs the program nothing unless
        it stops again meanwhile.
        """
        if self.rings is not None:
            self.rings.look_often()
        self._hand_on(_SLICE_S)

    def _hand_on(self, seconds: float) -> None:
        """Hand on what there is for so long."""
        deadline = time.monotonic() + seconds
        while self._step() and time.monotonic() < deadline:
            pass

    def _step(self) -> bool:
        """Hand on one call, or decode one segment; return whether there was one."""
        if self._taken:
            self.sink(self._taken.popleft())
            return True
        rings = self.rings
        return rings is not None and (rings.decode_next() or rings.find_names())

    @property
    def left(self) -> int:
        """How many calls and pieces of rings are not handed on yet."""
        return len(self._taken) + (self.rings.left if self.rings is not None else 0)

    def finish_some(self, seconds: float) -> bool:
        """Hand on what is left for so long; return whether there is more."""
        self._hand_on(seconds)
        return self.left > 0

    def patience(self) -> float | None:
        """Return how long to wait for a stop, in seconds; None for as long as it takes."""
        if self._taken or (self.rings is not None and self.rings.is_busy):
            return 0.0
        looks = self.rings is not None and (self.rings.has_rings() or self.rings.left)
        return PERIOD_S if looks else None

    def enter(self, thread: TracedThread, name: str, call: Syscall) -> RawCall | None:
        """Return the call so far if it is the driver's."""
        seen = self._processes.setdefault(thread.process.pid, _Seen())
        pid, arguments = thread.process.pid, call.arguments
        fd, node = -1, ""
        if name == EXITS:
            self._learn()
            if self.rings is not None:
                self.rings.before_end(pid)
        elif name in OPENS:
            place = arguments[0 if name == "open" else 1]
            node, name = self.node(thread.process.memory.text(place)), "open"
        elif name in STATS:
            place = arguments[0 if name == "stat" else 1]
            node, name = self.node(thread.process.memory.text(place)), "exists"
        elif name == "munmap":
            begin, end = arguments[0], arguments[0] + arguments[1]
            if any(begin < stop and start < end for start, stop in seen.mapped):
                node = "memory"
        else:
            fd = arguments[4 if name == "mmap" else 0] & 0xFFFFFFFF
            if fd < 1 << 31:
                node = self.node(node_of(thread.tid, fd))
            elif name == "mmap" and self.recorder is not None:
                fd, node = -1, "memory"
        if not node:
            return None
        takes_away = name in ("munmap", "close") or (
            name == "ioctl" and arguments[1] & 0xFF in _TAKING_AWAY
        )  # fmt: skip
        if takes_away and self.rings is not None:
            self._learn()
            begin, nbytes = arguments[:2] if name == "munmap" else (0, 0)
            self.rings.before_taking(pid, begin, begin + nbytes)
        now = time.monotonic() - self._began
        raw = RawCall(now, 0.0, pid, thread.tid, name, node, fd, arguments)
        if name == "ioctl":
            found = request_of(self.tables, node, arguments[1] & 0xFFFFFFFF)
            raw.arguments = (arguments[0], arguments[1] & 0xFFFFFFFF, arguments[2])
            raw.blocks = capture(self.tables, thread.process.memory.read, found, arguments[2])
        raw.library = self._library(seen, thread, call)
        return raw

    def leave(self, thread: TracedThread, mark: object, value: int, seconds: float) -> None:
        """Complete a call with what came of it, and hand it on."""
        if not isinstance(mark, RawCall):
            return
        raw, seen = mark, self._processes.setdefault(thread.process.pid, _Seen())
        raw.value, raw.seconds = value, seconds
        raw.blocks = read_again(thread.process.memory.read, raw.blocks)
        if value >= 0:
            self._keep(seen, raw)
            if self.trap is not None:
                self._learn()
                self._guard(self.trap, thread, raw)
        if self.recorder is not None:
            self.recorder.take(raw)
        if raw.call != "exists" and (raw.call != "mmap" or raw.fd >= 0):
            self._taken.append(raw)

    def _learn(self) -> None:
        """Hand on the calls so far, from which it is learnt where rings are."""
        while self._taken:
            self.sink(self._taken.popleft())

    def _keep(self, seen: _Seen, raw: RawCall) -> None:
        if raw.call == "open":
            raw.fd = raw.value
        elif raw.call == "mmap":
            seen.mapped.append((raw.value, raw.value + raw.arguments[1]))
        elif raw.call == "munmap":
            begin, end = raw.arguments[0], raw.arguments[0] + raw.arguments[1]
            seen.mapped = [row for row in seen.mapped if not begin <= row[0] < row[1] <= end]

    def _guard(self, trap: DoorbellTrap, thread: TracedThread, raw: RawCall) -> None:
        """Close a doorbell that was just mapped, and forget one that was unmapped."""
        if raw.call == "munmap":
            trap.forget(raw.pid, raw.arguments[0], raw.arguments[0] + raw.arguments[1])
        elif self.rings is not None and self.rings.is_doorbell(raw):
            trap.arm(thread, raw.value, raw.arguments[1], thread.pointer)

    def _library(self, seen: _Seen, thread: TracedThread, call: Syscall) -> str:
        """Return the file that made a call: whose code the first address on the stack is in.

        A guess where a frame holds an old address of another file above the right one.
        """
        stack = thread.process.memory.read(call.stack, _STACK_NBYTES)
        for renewed in (False, True):
            if renewed or not seen.files:
                # Of a large program that is a millisecond.
                if time.monotonic() - seen.files_read < _FILES_S:
                    break
                seen.files, seen.files_read = mappings(thread.process.pid), time.monotonic()
            for at in range(0, len(stack) - 7, 8):
                name = _file_at(seen.files, int.from_bytes(stack[at : at + 8], "little"))
                leaf = name.rpartition("/")[2]
                if leaf and not leaf.startswith(_BETWEEN):
                    return leaf
        return ""


def _file_at(files: list[MappedFile], address: int) -> str:
    low, high = 0, len(files)
    while low < high:
        middle = (low + high) // 2
        if files[middle].end <= address:
            low = middle + 1
        else:
            high = middle
    if low < len(files) and files[low].begin <= address and files[low].code:
        return files[low].path
    return ""

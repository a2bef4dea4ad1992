"""Copies between arrays in host memory and a GPU's.

Memory of an ordinary array may be moved or swapped by the system, so the GPU cannot reach it. Its
bytes go through pieces of pinned memory: some threads fill pieces while the copy engine empties
others. They do so in machine code where there is some for the processor (shared_copies.py), else in
Python, for `memmove` lets other threads run. What is pinned already is copied as it is.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baregrad.base.bits import round_up
from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.copies.copy_code import copy_code
from baregrad.runtime.nvidia.copies.copy_threads import CopyThreads
from baregrad.runtime.nvidia.copies.shared_copies import SharedCopies
from baregrad.runtime.nvidia.copies.staging_options import (
    StagingOptions,
    Wait,
    Watch,
    default_options,
)
from baregrad.runtime.nvidia.driver.memory import PAGE_NBYTES, Allocation
from baregrad.runtime.nvidia.queue.pushbuffer import COPY_CHUNK_NBYTES, PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.objects import Gpu
    from baregrad.runtime.nvidia.queue.channel import Channel

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# What one thread uses for itself.
_OWN_NBYTES = 4 << 20
_OWN_PIECES = 2
_LEAST_OWN = 256 << 10
_LEAST_SHARED = 64 << 10
_NAP_S = 20e-6
_WORDS_ALIGNMENT = 64
_ADDRESSES = struct.Struct("<IIII")
_LENGTH = struct.Struct("<I")
_VALUE = struct.Struct("<Q")
_MASK = 0xFFFFFFFF


_MOST_WORKERS = 8
# What one thread in Python is worth waking for.
_WORKER_NBYTES = 4 << 20
# Direct copies are looked at without naps for as long as they take at this rate, and some more.
_SLOW_RATE, _LOOK_S = 20e9, 200e-6


class Sender:
    """A copy's words in the GPU's memory, for one copy at a time: what changes is written over."""

    def __init__(self, gpu: Gpu) -> None:
        self._piece = gpu.pieces.take(_WORDS_ALIGNMENT, _WORDS_ALIGNMENT)
        self._channel: Channel | None = None
        # The timeline's value when the last copy is done.
        self.value = 0

    def _write(self, channel: Channel) -> None:
        push = PushBuffer()
        push.copy(0, 0, 1)
        begin = 4 * len(push.words)
        push.release(channel.timeline.gpu_va, 0)
        # Behind their headers: two addresses, upper halves first; the length; the value.
        self._addresses_at, self._length_at, self._value_at = 4, 24, begin + 12
        self._piece.write(0, struct.pack(f"<{len(push.words)}I", *push.words))
        self._view = self._piece.view
        entry = self._piece.gpu_va | len(push.words) << m.GP_ENTRY_LENGTH_SHIFT
        self._entry = entry | m.GP_ENTRY_SUBROUTINE
        self._channel = channel

    def send(
        self, channel: Channel, lock: threading.Lock, target: int, source: int, nbytes: int
    ) -> int:
        """Start a copy of at most 2 GiB; the one before is done. Return its value."""
        if self._channel is not channel:
            self._write(channel)
        view = self._view
        _ADDRESSES.pack_into(
            view, self._addresses_at, source >> 32, source & _MASK, target >> 32, target & _MASK
        )
        _LENGTH.pack_into(view, self._length_at, nbytes)
        with lock:
            if channel.group.dead is not None:
                raise DriverError("the channel is dead", found=channel.group.dead)
            self.value = value = channel.last_value + 1
            _VALUE.pack_into(view, self._value_at, value)
            channel.enter(self._entry, ())
        return value

    def close(self) -> None:
        """Give the words back."""
        self._piece.close()


class _Piece:
    """Pinned memory at `address`, free again when its sender's copy is done."""

    def __init__(self, address: int, gpu_va: int, sender: Sender) -> None:
        self.address = address
        self.gpu_va = gpu_va
        self.sender = sender


class _Job(NamedTuple):
    """A copy: the array's address, the GPU's, bytes, bytes of a piece, which way."""

    host: int
    gpu_va: int
    nbytes: int
    step: int
    out: bool


class HostCopies:
    """Copies between host arrays and addresses of one GPU, through one copying channel.

    `wait` waits for a value of a channel's timeline, and raises what went wrong; `watch` makes what
    looks for that meanwhile. `channel` is asked for each time, since a fault has it replaced.
    """

    def __init__(
        self,
        gpu: Gpu,
        channel: Callable[[], Channel],
        wait: Wait,
        watch: Watch,
        options: StagingOptions | None = None,
    ) -> None:
        self._gpu = gpu
        self._channel = channel
        self._wait = wait
        self._watch = watch
        self.options = options = default_options() if options is None else options
        self._code = copy_code()
        self._native: SharedCopies | None = None
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        self.workers = options.workers or max(1, min(_MOST_WORKERS, processors // 2))
        self._lock = threading.Lock()
        self._crew: CopyThreads | None = None
        self._memory: list[Allocation] = []
        self._senders: list[Sender] = []
        self._direct: Sender | None = None
        self._own: list[_Piece] = []
        self._shared: list[list[_Piece]] = []
        self._pinned: list[tuple[int, int, int]] = []

    @property
    def nbytes(self) -> int:
        """Bytes of pinned memory that are held."""
        native = 0 if self._native is None else self._native.nbytes
        return native + sum(memory.nbytes for memory in self._memory)

    # Memory that is pinned already.

    def pin(self, allocation: Allocation) -> Bytes:
        """Return pinned memory as an array, which is then copied without a detour."""
        array = np.frombuffer(allocation.view[:], np.uint8)
        begin = int(array.ctypes.data)
        bisect.insort(self._pinned, (begin, begin + array.nbytes, allocation.gpu_va))
        return array

    def unpin(self, allocation: Allocation) -> None:
        """Forget pinned memory that is going to be freed."""
        self._pinned = [one for one in self._pinned if one[2] != allocation.gpu_va]

    def pinned_va(self, begin: int, nbytes: int) -> int | None:
        """Return where the GPU sees host bytes, None if it does not."""
        place = bisect.bisect(self._pinned, (begin, 1 << 64, 0)) - 1
        if place < 0:
            return None
        first, last, gpu_va = self._pinned[place]
        return gpu_va + begin - first if begin + nbytes <= last else None

    # Copies.

    def copy_in(self, target: int, source: Bytes, after: tuple[int, int] | None) -> int:
        """Copy host bytes to an address; return the timeline's value when they are there.

        The host bytes may change when this returns. `after` is a semaphore's address and the value
        to wait for on the GPU before the first byte is written.
        """
        self._copy(int(source.ctypes.data), target, source.nbytes, after, out=False)
        return self._channel().last_value

    def copy_out(self, target: Bytes, source: int, after: tuple[int, int] | None) -> None:
        """Copy bytes from an address to the host; they are there when this returns."""
        self._copy(int(target.ctypes.data), source, target.nbytes, after, out=True)

    def _copy(
        self, host: int, gpu_va: int, nbytes: int, after: tuple[int, int] | None, *, out: bool
    ) -> None:
        if after is not None:
            push = PushBuffer()
            push.acquire(*after)
            with self._lock:
                self._channel().submit(push)
        pinned = self.pinned_va(host, nbytes)
        if pinned is not None:
            ends = (pinned, gpu_va) if out else (gpu_va, pinned)
            self._copy_direct(*ends, nbytes)
        elif nbytes >= self.options.shared_from and self.workers > 1:
            native = self.options.native and self._code is not None
            (self._copy_natively if native else self._copy_together)(host, gpu_va, nbytes, out)
        else:
            # A little less than a quarter: what is waited for last is small.
            step = max(_LEAST_OWN, (nbytes // 4 - 1) // PAGE_NBYTES * PAGE_NBYTES)
            job = _Job(host, gpu_va, nbytes, min(_OWN_NBYTES, step), out)
            begins = iter(range(0, nbytes, job.step))
            self._run(job, begins, self._own_piece, _OWN_PIECES, self._until_by_wait)

    def _copy_direct(self, target: int, source: int, nbytes: int) -> None:
        if self._direct is None:
            self._direct = self._sender()
        for begin in range(0, nbytes, COPY_CHUNK_NBYTES):
            size = min(COPY_CHUNK_NBYTES, nbytes - begin)
            channel = self._channel()
            value = self._direct.send(channel, self._lock, target + begin, source + begin, size)
            self.look(channel, value, size)
            if channel.words[0] < value:
                self._wait(channel, value)

    def look(self, channel: Channel, value: int, nbytes: int) -> None:
        """Look for a value until a copy should be done: a nap would end after it."""
        seconds = nbytes / _SLOW_RATE + _LOOK_S
        if self._code is not None:
            self._code.until(channel.timeline.host_address, value, self._code.turns(seconds))
            return
        words, end = channel.words, time.perf_counter() + seconds
        while words[0] < value and time.perf_counter() < end:
            pass

    def look_for(self, value: int) -> None:
        """Look for the end of a copy to the GPU by threads, whose last pieces are under way."""
        native = self._native
        if native is not None and value == native.last_value:
            self.look(self._channel(), value, native.stage.nbytes)

    def _copy_natively(self, host: int, gpu_va: int, nbytes: int, out: bool) -> None:
        assert self._code is not None
        if self._native is None:
            self._native = SharedCopies(
                self._gpu, self._code, self.workers, self.options, self._wait, self._watch
            )
        self._native.copy(self._channel(), host, gpu_va, nbytes, out=out)

    def _copy_together(self, host: int, gpu_va: int, nbytes: int, out: bool) -> None:
        """Do all pieces with the help of the crew."""
        options = self.options
        if self._crew is None:
            self._make_shared()
            self._crew = CopyThreads(self.workers - 1, "copies")
        helpers = min(self.workers, max(2, nbytes // _WORKER_NBYTES))
        step = round_up(-(-nbytes // (helpers * options.rounds)), PAGE_NBYTES)
        step = min(options.piece_nbytes, max(_LEAST_SHARED, step))
        job = _Job(host, gpu_va, nbytes, step, out)
        begins = iter(range(0, nbytes, step))
        errors: list[BaseException] = []

        def work(number: int) -> None:
            mine = self._shared[number]
            try:
                self._run(
                    job, begins, lambda turn: mine[turn % len(mine)], options.depth,
                    self._until_by_naps, errors,
                )
            except BaseException as error:  # noqa: BLE001  raised below, in the caller
                errors.append(error)

        self._crew.share(work, helpers - 1)
        if errors:
            raise errors[0]

    def _run(
        self,
        job: _Job,
        begins: Any,
        piece_of: Callable[[int], _Piece],
        depth: int,
        until: Callable[[int], None],
        errors: list[BaseException] | None = None,
    ) -> None:
        """Do pieces until there are none left, or another thread has met an error.

        At most `depth` of them are on their way to the host at a time.
        """
        host, gpu_va, nbytes, step, out = job
        move, lock = ctypes.memmove, self._lock
        waiting: list[tuple[_Piece, int, int]] = []

        def drain() -> None:
            piece, place, size = waiting.pop(0)
            until(piece.sender.value)
            move(place, piece.address, size)

        for turn, begin in enumerate(begins):
            if errors:
                return
            size = min(step, nbytes - begin)
            if len(waiting) >= depth:
                drain()
            piece = piece_of(turn)
            until(piece.sender.value)
            if out:
                piece.sender.send(self._channel(), lock, piece.gpu_va, gpu_va + begin, size)
                waiting.append((piece, host + begin, size))
            else:
                move(piece.address, host + begin, size)
                piece.sender.send(self._channel(), lock, gpu_va + begin, piece.gpu_va, size)
        while waiting:
            drain()

    # Waiting.

    def _until_by_wait(self, value: int) -> None:
        channel = self._channel()
        if channel.words[0] < value:
            self._wait(channel, value)

    def _until_by_naps(self, value: int) -> None:
        """Wait with naps: spinning would keep the threads that copy from running."""
        channel = self._channel()
        words = channel.words
        if words[0] >= value:
            return
        limit = time.perf_counter() + 0.1
        while words[0] < value:
            time.sleep(_NAP_S)
            if time.perf_counter() > limit:
                self._wait(channel, value)

    # Pieces.

    def _sender(self) -> Sender:
        made = Sender(self._gpu)
        self._senders.append(made)
        return made

    def _own_piece(self, turn: int) -> _Piece:
        """Return one of the caller's own pieces."""
        place = turn % _OWN_PIECES
        if place >= len(self._own):
            memory = self._gpu.memory.pinned(_OWN_NBYTES)
            self._memory.append(memory)
            self._own.append(_Piece(memory.host_address, memory.gpu_va, self._sender()))
        return self._own[place]

    def _make_shared(self) -> None:
        """Make the pieces of all workers, in one allocation."""
        options = self.options
        size = round_up(options.piece_nbytes, PAGE_NBYTES)
        nbytes = self.workers * options.depth * size
        memory = self._gpu.memory.host(nbytes, large_pages=options.large_pages)
        self._memory.append(memory)
        for worker in range(self.workers):
            mine = []
            for turn in range(options.depth):
                at = (worker * options.depth + turn) * size
                mine.append(_Piece(memory.host_address + at, memory.gpu_va + at, self._sender()))
            self._shared.append(mine)

    def close(self) -> None:
        """Free the pieces and stop the threads; nothing is being copied."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None
        if self._native is not None:
            self._native.close()
            self._native = None
        for sender in self._senders:
            sender.close()
        for memory in self._memory:
            memory.close()
        self._memory, self._senders, self._own, self._shared = [], [], [], []
        self._direct = None
        self._pinned = []

    def after_fork(self) -> None:
        """Take a fresh lock, which another thread may have held, and forget its threads."""
        self._lock = threading.Lock()
        self._crew = self._native = None

"""Copies between the host's ordinary memory and the GPU, through pinned memory in pieces.

The GPU's copy engines read and write pinned memory alone. Host memory that is not pinned is copied
to or from pinned pieces by several threads, while the engine moves the pieces that are ready: one
core copies more slowly than the bus, and a few keep up with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol

from baregrad.base.bits import round_up
from baregrad.base.errors import BaregradError
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.driver import Driver
from baregrad.runtime.teardown import Teardown

MIB = 1 << 20
PIECE_NBYTES = 4 * MIB
# A piece for each thread to fill and one for the engine to read meanwhile.
PIECES_PER_THREAD = 2
MOST_THREADS = 8
# Below this, waking threads costs more than they save: one thread copies.
SHARED_NBYTES = 4 * MIB
# Several threads take pieces as small as this, so that each has some.
LEAST_PIECE_NBYTES = 512 << 10
# Copies up to this size share a piece, one after the other.
SMALL_NBYTES = 256 << 10


class Owner(Protocol):
    """What the copies need of their device."""

    driver: Driver
    stream: int

    def entered(self) -> None:
        """Make the device's context the current one of this thread."""
        ...

    def left(self) -> None:
        """Undo `entered`."""
        ...

    def release(self, name: str, *arguments: int) -> None:
        """Give something back."""
        ...

    def wait_for(self, ready: Callable[[], int], called: str, *, nap: bool = False) -> None:
        """Wait until a query of the driver says that something is done."""
        ...


class _Piece:
    """Pinned memory and the event that says that the engine is done with it."""

    __slots__ = ("address", "event", "used")

    def __init__(self, address: int, event: int) -> None:
        self.address = address
        self.event = event
        self.used = False


class Staging:
    """The pinned pieces of a device and the threads that fill and empty them.

    Pieces and threads are made when they are first needed. All methods but the two copies'
    workers are called under the device's lock, in its context.
    """

    def __init__(self, owner: Owner, teardown: Teardown, threads: int) -> None:
        self._owner = owner
        self._teardown = teardown
        self._threads = max(1, min(threads, MOST_THREADS))
        self._limit = self._threads * PIECES_PER_THREAD + 1
        self._made = 0
        self._lock = threading.Lock()
        self._free: queue.SimpleQueue[_Piece] = queue.SimpleQueue()
        self._small: _Piece | None = None
        self._small_used = 0
        self._pool: ThreadPoolExecutor | None = None

    # Host to GPU.

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """Copy host bytes; when it returns they may change, and the stream has the copies."""
        if nbytes <= SMALL_NBYTES:
            self._copy_small(target, source, nbytes)
        else:
            self._share(lambda at, size: self._put(target + at, source + at, size), nbytes)

    def _copy_small(self, target: int, source: int, nbytes: int) -> None:
        driver, stream = self._owner.driver, self._owner.stream
        if self._small is not None and self._small_used + nbytes > PIECE_NBYTES:
            piece, self._small = self._small, None
            self._give(piece)
        if self._small is None:
            self._small, self._small_used = self._take(), 0
        place = self._small.address + self._small_used
        # 64: copies that begin on a line of the cache.
        self._small_used += round_up(nbytes, 64)
        ctypes.memmove(place, source, nbytes)
        driver.call("cuMemcpyHtoDAsync_v2", target, place, nbytes, stream)

    def _put(self, target: int, source: int, nbytes: int) -> None:
        driver, stream = self._owner.driver, self._owner.stream
        piece = self._take()
        try:
            ctypes.memmove(piece.address, source, nbytes)
            driver.call("cuMemcpyHtoDAsync_v2", target, piece.address, nbytes, stream)
        except BaseException:
            self._give_quietly(piece)
            raise
        self._give(piece)

    # GPU to host.

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """Copy to host memory; all bytes are there when it returns."""
        self._share(lambda at, size: self._get(target + at, source + at, size), nbytes)

    def _get(self, target: int, source: int, nbytes: int) -> None:
        driver, stream = self._owner.driver, self._owner.stream
        piece = self._take()
        try:
            driver.call("cuMemcpyDtoHAsync_v2", piece.address, source, nbytes, stream)
            self._record(piece)
            self._wait(piece)
        except BaseException:
            self._give_quietly(piece)
            raise
        ctypes.memmove(target, piece.address, nbytes)
        self._free.put(piece)

    # Pieces.

    def _take(self) -> _Piece:
        """Return a piece that nobody uses: the oldest, or while there are few one that is ready."""
        try:
            piece: _Piece | None = self._free.get_nowait()
        except queue.Empty:
            piece = self._new_piece() or self._free.get()
        assert piece is not None
        try:
            if piece.used and self._made < self._limit and self._busy(piece):
                fresh = self._new_piece()
                if fresh is not None:
                    self._free.put(piece)
                    return fresh
            self._wait(piece)
        except BaseException:
            self._free.put(piece)
            raise
        return piece

    def _busy(self, piece: _Piece) -> bool:
        """Whether the engine still reads a piece; errors are left for whoever waits."""
        return self._owner.driver.functions["cuEventQuery"](piece.event) == abi.NOT_READY

    def _new_piece(self) -> _Piece | None:
        driver, release = self._owner.driver, self._owner.release
        with self._lock:
            if self._made >= self._limit:
                return None
            with Teardown() as made:
                flags = abi.HOST_ALLOC_PORTABLE
                address = driver.handle("cuMemHostAlloc", PIECE_NBYTES, flags)
                made.push("a pinned piece", lambda: release("cuMemFreeHost", address))
                event = driver.handle("cuEventCreate", abi.EVENT_DISABLE_TIMING)
                made.push("its event", lambda: release("cuEventDestroy_v2", event))
            self._teardown.push("a pinned piece", made.close)
            self._made += 1
        return _Piece(address, event)

    def _give(self, piece: _Piece) -> None:
        """Put a piece back, to be used again when the engine is done with it."""
        try:
            self._record(piece)
        finally:
            self._free.put(piece)

    def _give_quietly(self, piece: _Piece) -> None:
        """Put a piece back after an error, which is the one to tell; the engine may yet use it."""
        with contextlib.suppress(BaregradError):
            self._give(piece)

    def _record(self, piece: _Piece) -> None:
        self._owner.driver.call("cuEventRecord", piece.event, self._owner.stream)
        piece.used = True

    def _wait(self, piece: _Piece) -> None:
        if piece.used:
            query = self._owner.driver.functions["cuEventQuery"]
            # Threads that spin would keep the interpreter from those that copy.
            nap = self._pool is not None
            self._owner.wait_for(lambda: query(piece.event), "cuEventQuery", nap=nap)
            piece.used = False

    # Threads.

    def _share(self, move: Callable[[int, int], None], nbytes: int) -> None:
        """Call `move(offset, size)` for each piece of a copy, large ones on several threads."""
        shared = self._threads > 1 and nbytes >= SHARED_NBYTES
        size = PIECE_NBYTES
        if shared:
            share = round_up(nbytes // (PIECES_PER_THREAD * self._threads), LEAST_PIECE_NBYTES)
            size = min(size, max(share, LEAST_PIECE_NBYTES))
        parts = deque((at, min(size, nbytes - at)) for at in range(0, nbytes, size))
        if not shared:
            for part in parts:
                move(*part)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "baregrad-copy")

        def work() -> None:
            self._owner.entered()
            try:
                while True:
                    try:
                        part = parts.popleft()
                    except IndexError:
                        return
                    move(*part)
            finally:
                self._owner.left()

        running = [self._pool.submit(work) for _ in range(self._threads)]
        try:
            wait(running)
        except BaseException:
            # Not before all of them ended may the caller's memory go away.
            parts.clear()
            wait(running)
            raise
        for future in running:
            future.result()

    def close(self) -> None:
        """Stop the threads; the pieces go with the teardown."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

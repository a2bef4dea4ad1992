"""Bytes between the host and a GPU: through pinned memory, piece by piece.

Ordinary host memory may be moved or swapped by the system, so the GPU cannot reach it. Its bytes go
through pieces of pinned memory: some threads fill pieces while the copy engine empties others, for
NumPy's copies let other threads run. What is pinned already is copied as it is.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.runtime.nvidia.memory import Allocation
from baregrad.runtime.nvidia.pushbuffer import PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.channel import Channel
    from baregrad.runtime.nvidia.memory import MemoryManager

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Wait = Callable[["Channel", int], None]

PIECE_NBYTES = 4 << 20
_LEAST_PIECE = 256 << 10
# Above so many bytes, several threads fill or empty pieces.
_SHARED_NBYTES = 8 << 20
_MAX_WORKERS = 8
_PIECES_EACH = 2
_NAP_S = 20e-6


class _Piece:
    """Pinned memory, free again when the copying channel's timeline has `value`."""

    def __init__(self, memory: Allocation) -> None:
        self.memory = memory
        self.gpu_va = memory.gpu_va
        self.bytes: Bytes = np.frombuffer(memory.view[:], np.uint8)
        self.value = 0


class Staging:
    """Copies between host arrays and addresses of one GPU, through one copying channel.

    `wait` waits for a value of a channel's timeline, and raises what went wrong. `channel` is asked
    for each time, since a fault has it replaced.
    """

    def __init__(
        self,
        memory: MemoryManager,
        channel: Callable[[], Channel],
        wait: Wait,
        *,
        workers: int | None = None,
        piece_nbytes: int = PIECE_NBYTES,
        pipelined: bool = False,
    ) -> None:
        self._memory = memory
        self._channel = channel
        self._wait = wait
        self.workers = workers or max(1, min(_MAX_WORKERS, (os.cpu_count() or 1) // 2))
        self.piece_nbytes = piece_nbytes
        self.pipelined = pipelined
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pieces: list[list[_Piece]] = [[] for _ in range(self.workers)]
        self._pinned: list[tuple[int, int, int]] = []
        # Whether threads are at work, which must not be kept from it by a spinning one.
        self._helped = False

    @property
    def nbytes(self) -> int:
        """Bytes of pinned memory that are held."""
        return sum(piece.memory.nbytes for mine in self._pieces for piece in mine)

    def pin(self, allocation: Allocation) -> Bytes:
        """Return pinned memory as an array, which is then copied without a detour."""
        array = np.frombuffer(allocation.view[:], np.uint8)
        begin = int(array.ctypes.data)
        bisect.insort(self._pinned, (begin, begin + array.nbytes, allocation.gpu_va))
        return array

    def unpin(self, allocation: Allocation) -> None:
        """Forget pinned memory that is going to be freed."""
        self._pinned = [one for one in self._pinned if one[2] != allocation.gpu_va]

    def pinned_va(self, data: Bytes) -> int | None:
        """Return where the GPU sees host bytes, None if it does not."""
        begin = int(data.ctypes.data)
        place = bisect.bisect(self._pinned, (begin, 1 << 64, 0)) - 1
        if place < 0:
            return None
        first, last, gpu_va = self._pinned[place]
        return gpu_va + begin - first if begin + data.nbytes <= last else None

    def copy_in(self, target: int, source: Bytes, after: tuple[int, int] | None) -> int:
        """Copy host bytes to an address; return the timeline's value when they are there.

        The host bytes may change when this returns. `after` is a semaphore's address and the value
        to wait for on the GPU before the first byte is written.
        """
        pinned = self.pinned_va(source)
        if pinned is not None:
            value = self._submit(target, pinned, source.nbytes, after)
            self._wait(self._channel(), value)
            return value
        if after is not None:
            push = PushBuffer()
            push.acquire(*after)
            with self._lock:
                self._channel().submit(push)

        def work(mine: list[_Piece], begin: int, end: int, turn: int) -> None:
            piece = self._piece(mine, turn)
            piece.bytes[: end - begin] = source[begin:end]
            piece.value = self._submit(target + begin, piece.gpu_va, end - begin, None)

        self._share(source.nbytes, work)
        return self._channel().last_value

    def copy_out(self, target: Bytes, source: int, after: tuple[int, int] | None) -> None:
        """Copy bytes from an address to the host; they are there when this returns."""
        pinned = self.pinned_va(target)
        if pinned is not None:
            value = self._submit(pinned, source, target.nbytes, after)
            self._wait(self._channel(), value)
            return
        if after is not None:
            push = PushBuffer()
            push.acquire(*after)
            with self._lock:
                self._channel().submit(push)
        waiting: dict[int, list[tuple[_Piece, int, int]]] = {}

        def drain(one: tuple[_Piece, int, int]) -> None:
            piece, begin, end = one
            self._until(piece.value)
            target[begin:end] = piece.bytes[: end - begin]

        def work(mine: list[_Piece], begin: int, end: int, turn: int) -> None:
            queue = waiting.setdefault(id(mine), [])
            if len(queue) >= _PIECES_EACH:
                drain(queue.pop(0))
            piece = self._piece(mine, turn)
            piece.value = self._submit(piece.gpu_va, source + begin, end - begin, None)
            queue.append((piece, begin, end))

        def finish(mine: list[_Piece]) -> None:
            for one in waiting.pop(id(mine), ()):
                drain(one)

        self._share(target.nbytes, work, finish)

    def _submit(
        self, target: int, source: int, nbytes: int, after: tuple[int, int] | None
    ) -> int:
        push = PushBuffer()
        if after is not None:
            push.acquire(*after)
        push.copy(target, source, nbytes, pipelined=self.pipelined)
        with self._lock:
            return self._channel().submit(push)

    def _piece(self, mine: list[_Piece], turn: int) -> _Piece:
        """Return one of a worker's pieces, free."""
        place = turn % _PIECES_EACH
        if place >= len(mine):
            with self._lock:
                mine.append(_Piece(self._memory.pinned(self.piece_nbytes)))
        piece = mine[place]
        self._until(piece.value)
        return piece

    def _until(self, value: int) -> None:
        """Wait with naps: spinning would keep the threads that copy from running."""
        channel = self._channel()
        timeline = channel.timeline
        if timeline.value >= value:
            return
        if not self._helped:
            self._wait(channel, value)
            return
        limit = time.perf_counter() + 0.1
        while timeline.value < value:
            time.sleep(_NAP_S)
            if time.perf_counter() > limit:
                self._wait(channel, value)

    def _share(
        self,
        nbytes: int,
        work: Callable[[list[_Piece], int, int, int], None],
        finish: Callable[[list[_Piece]], None] | None = None,
    ) -> None:
        """Do all pieces, with the help of threads if there is much to do."""
        size = min(self.piece_nbytes, max(_LEAST_PIECE, -(-nbytes // 4 + 4095) // 4096 * 4096))
        begins = iter(range(0, nbytes, size))
        errors: list[BaseException] = []

        def loop(mine: list[_Piece]) -> None:
            try:
                for turn, begin in enumerate(begins):
                    if errors:
                        return
                    work(mine, begin, min(begin + size, nbytes), turn)
                if finish is not None:
                    finish(mine)
            except BaseException as error:  # noqa: BLE001  raised again below, in the caller
                errors.append(error)

        self._helped = nbytes >= _SHARED_NBYTES and self.workers > 1
        helpers = []
        if self._helped:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers - 1, "copies")
            helpers = [self._pool.submit(loop, mine) for mine in self._pieces[1:]]
        loop(self._pieces[0])
        for helper in helpers:
            helper.result()
        self._helped = False
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Free the pieces and stop the threads; nothing is being copied."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for mine in self._pieces:
            for piece in mine:
                piece.bytes = np.empty(0, np.uint8)
                piece.memory.close()
            mine.clear()
        self._pinned = []

    def after_fork(self) -> None:
        """Take a fresh lock, which another thread may have held, and forget its threads."""
        self._lock = threading.Lock()
        self._pool = None

"""Device memory taken from the driver in segments, and cut into blocks that are reused.

All work of a device runs in one order, so a block that a buffer let go of is handed out again at
once: whoever gets it comes after whoever had it. Only giving a segment back to the driver waits.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from baregrad.base.bits import round_up
from baregrad.base.errors import DeviceError, OutOfMemory
from baregrad.runtime.buffers import Memory, MemoryStats
from baregrad.runtime.teardown import Teardown

ALIGNMENT = 512
MIB = 1 << 20
SMALL_NBYTES = MIB
SMALL_SEGMENT_NBYTES = 2 * MIB
MIDDLE_NBYTES = 10 * MIB
MIDDLE_SEGMENT_NBYTES = 20 * MIB
LARGE_GRANULE_NBYTES = 2 * MIB


class _Block:
    """A piece of a segment: in use, or free and then without a free neighbour."""

    __slots__ = ("address", "after", "before", "free", "nbytes", "small")

    def __init__(self, address: int, nbytes: int, small: bool) -> None:
        self.address = address
        self.nbytes = nbytes
        self.small = small
        self.free = False
        self.before: _Block | None = None
        self.after: _Block | None = None

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


class CachingAllocator:
    """Hands out device memory and takes it back. Safe to use from several threads.

    `take` gets a segment of that number of bytes from the driver and returns its address (it raises
    OutOfMemory), `give` returns one and may wait for the device. Blocks of up to 1 MiB share
    segments of 2 MiB, those under 10 MiB segments of 20 MiB; the smallest free block that fits is
    used and its rest stays free.
    """

    def __init__(self, take: Callable[[int], int], give: Callable[[int], None]) -> None:
        self._take = take
        self._give = give
        self._lock = threading.Lock()
        self._returned: deque[_Block] = deque()
        # Free blocks of small and of other segments, by size and address.
        self._free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}
        self._segments: dict[int, int] = {}
        self._in_use_nbytes = 0
        self._peak_nbytes = 0

    def allocate(self, nbytes: int) -> Memory:
        """Return `nbytes` bytes with any content, aligned to 512; raise OutOfMemory."""
        if nbytes < 0:
            raise DeviceError("a buffer cannot have a negative size", found=nbytes)
        size = round_up(max(nbytes, 1), ALIGNMENT)
        with self._lock:
            self._take_back()
            block = self._find(size) or self._grow(size)
            self._split(block, size)
            self._in_use_nbytes += block.nbytes
            self._peak_nbytes = max(self._peak_nbytes, self._in_use_nbytes)
        # The release runs inside garbage collections: appending to a deque is all that it may do.
        return Memory(block.address, nbytes, release=self._returned.append, token=block)

    def stats(self) -> MemoryStats:
        """Return the bytes in use, at most, and held from the driver."""
        with self._lock:
            self._take_back()
            reserved = sum(self._segments.values())
            return MemoryStats(self._in_use_nbytes, self._peak_nbytes, reserved)

    def forget_peak(self) -> None:
        """Let the most bytes at once be those that are in use now."""
        with self._lock:
            self._take_back()
            self._peak_nbytes = self._in_use_nbytes

    def trim(self) -> int:
        """Give every segment that nobody uses back to the driver; return how many bytes."""
        with self._lock:
            self._take_back()
            return self._trim()

    def close(self) -> None:
        """Give every segment back, used or not."""
        with self._lock:
            self._returned.clear()
            self._free = {True: [], False: []}
            self._in_use_nbytes = 0
            rest = Teardown()
            for address in self._segments:
                rest.push("a segment", functools.partial(self._give, address))
            self._segments.clear()
            rest.close()

    def abandon(self) -> None:
        """Forget all memory without a call of the driver; another thread may hold the old lock."""
        self._lock = threading.Lock()
        self._segments.clear()
        self._free = {True: [], False: []}

    def _find(self, size: int) -> _Block | None:
        """Return the smallest free block of at least `size` bytes, no longer free."""
        rows = self._free[size <= SMALL_NBYTES]
        place = bisect.bisect_left(rows, (size, 0))
        if place == len(rows):
            return None
        block = rows.pop(place)[2]
        block.free = False
        return block

    def _grow(self, size: int) -> _Block:
        """Return a block that is a new segment, giving up unused ones if the driver has none."""
        small = size <= SMALL_NBYTES
        if small:
            nbytes = SMALL_SEGMENT_NBYTES
        elif size < MIDDLE_NBYTES:
            nbytes = MIDDLE_SEGMENT_NBYTES
        else:
            nbytes = round_up(size, LARGE_GRANULE_NBYTES)
        try:
            address = self._take(nbytes)
        except OutOfMemory:
            if not self._trim():
                raise
            address = self._take(nbytes)
        self._segments[address] = nbytes
        return _Block(address, nbytes, small)

    def _split(self, block: _Block, size: int) -> None:
        """Cut what is left of a block off, where that is worth a block."""
        rest = block.nbytes - size
        if rest < (ALIGNMENT if block.small else SMALL_NBYTES):
            return
        other = _Block(block.address + size, rest, block.small)
        other.before, other.after = block, block.after
        if block.after is not None:
            block.after.before = other
        block.after = other
        block.nbytes = size
        self._insert(other)

    def _take_back(self) -> None:
        """Make what buffers let go of free, joined with free neighbours."""
        while self._returned:
            block = self._returned.popleft()
            self._in_use_nbytes -= block.nbytes
            if block.after is not None and block.after.free:
                self._remove(block.after)
                self._absorb(block)
            if block.before is not None and block.before.free:
                block = block.before
                self._remove(block)
                self._absorb(block)
            self._insert(block)

    @staticmethod
    def _absorb(block: _Block) -> None:
        """Join a block with the one after it."""
        other = block.after
        assert other is not None
        block.nbytes += other.nbytes
        block.after = other.after
        if other.after is not None:
            other.after.before = block

    def _insert(self, block: _Block) -> None:
        block.free = True
        bisect.insort(self._free[block.small], (block.nbytes, block.address, block))

    def _remove(self, block: _Block) -> None:
        rows: list[Any] = self._free[block.small]
        rows.pop(bisect.bisect_left(rows, (block.nbytes, block.address)))
        block.free = False

    def _trim(self) -> int:
        given = 0
        for rows in self._free.values():
            for row in [row for row in rows if row[2].whole]:
                rows.remove(row)
                del self._segments[row[1]]
                given += row[0]
                self._give(row[1])
        return given

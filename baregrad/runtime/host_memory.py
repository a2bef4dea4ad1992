"""Host memory for buffers: 64-byte aligned, recycled by size so that fresh pages are rare.

Fresh pages cost more than most kernels that use them (the system clears each one), so memory that
buffers let go of is kept for the next one of about its size, up to a limit.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict, deque
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from baregrad.base.bits import round_up
from baregrad.base.errors import OutOfMemory
from baregrad.runtime.buffers import Memory, MemoryStats, host_array

ALIGNMENT = 64
_SLAB_NBYTES = 2 << 20
_SMALL_NBYTES = 256 << 10
_HUGE_NBYTES = 4 << 20
_ASK_SYSTEM_NBYTES = 256 << 20
_KEEP_NBYTES = 128 << 20


class _Block:
    """A piece of a mapping, which it keeps alive: all of it, or a part (`small`) of a slab."""

    __slots__ = ("address", "mapping", "nbytes", "small")

    def __init__(self, address: int, nbytes: int, mapping: mmap.mmap, small: bool) -> None:
        self.address = address
        self.nbytes = nbytes
        self.mapping = mapping
        self.small = small


class HostAllocator:
    """Hands out host memory and takes it back.

    Small pieces are cut from slabs and stay reserved for their size. Larger ones are mappings of
    their own: those not in use are kept, newest first, as long as they are together under
    `keep_nbytes` or half of what is in use. Safe to use from several threads.
    """

    def __init__(self, keep_nbytes: int = _KEEP_NBYTES) -> None:
        self.keep_nbytes = keep_nbytes
        self._lock = threading.Lock()
        self._returned: deque[_Block] = deque()
        self._small: dict[int, list[_Block]] = {}
        # Spare large pieces twice: by address, the oldest first, and by size.
        self._large: OrderedDict[int, _Block] = OrderedDict()
        self._large_sizes: dict[int, list[_Block]] = {}
        self._kept_nbytes = 0
        self._slab: mmap.mmap | None = None
        self._slab_next = 0
        self._slab_end = 0
        self._in_use_nbytes = 0
        self._peak_nbytes = 0
        self._reserved_nbytes = 0

    def allocate(self, nbytes: int) -> Memory:
        """Return `nbytes` bytes with any content; raise OutOfMemory."""
        size = size_class(nbytes)
        returned = self._returned
        if len(returned) == 1:
            # A loop asks for as much as it has just let go of, which still counts as in use.
            try:
                spare = returned.pop()
            except IndexError:
                spare = None  # another thread was faster
            if spare is not None:
                if spare.nbytes == size:
                    return Memory(spare.address, nbytes, returned.append, spare)
                returned.append(spare)
        with self._lock:
            if returned:
                self._take_back()
            free = self._small.get(size)
            if free:
                block = free.pop()
            else:
                block = self._cut_small(size) if size <= _SMALL_NBYTES else self._take_large(size)
            self._in_use_nbytes += block.nbytes
            if self._in_use_nbytes > self._peak_nbytes:
                self._peak_nbytes = self._in_use_nbytes
        # The release runs inside garbage collections: appending to a deque is all that it may do.
        return Memory(block.address, nbytes, returned.append, block)

    def allocate_zeroed(self, nbytes: int) -> Memory:
        """Return `nbytes` bytes of zeros; raise OutOfMemory.

        Large pieces are fresh pages, which the system clears when each is first touched.
        """
        size = size_class(nbytes)
        if size <= _SMALL_NBYTES:
            memory = self.allocate(nbytes)
            host_array(memory, memory.address, nbytes)[...] = 0
            return memory
        with self._lock:
            mapping = self._map(size)
            self._in_use_nbytes += size
            self._peak_nbytes = max(self._peak_nbytes, self._in_use_nbytes)
        block = _Block(address_of(mapping), size, mapping, False)
        return Memory(block.address, nbytes, self._returned.append, block)

    def stats(self) -> MemoryStats:
        """Return the bytes in use, at most, and reserved (size classes rounded up)."""
        with self._lock:
            self._take_back()
            return MemoryStats(self._in_use_nbytes, self._peak_nbytes, self._reserved_nbytes)

    def forget_peak(self) -> None:
        """Let the most bytes at once be those that are in use now."""
        with self._lock:
            self._take_back()
            self._peak_nbytes = self._in_use_nbytes

    def trim(self) -> None:
        """Give all large pieces that are not in use back to the system."""
        with self._lock:
            self._take_back()
            self._shrink(0)

    def after_fork(self) -> None:
        """Take a fresh lock: another thread may have held it when the process forked."""
        self._lock = threading.Lock()

    def _take_back(self) -> None:
        """Sort what buffers let go of into the free lists."""
        while self._returned:
            try:
                block = self._returned.popleft()
            except IndexError:
                break  # another thread took it, without the lock
            self._in_use_nbytes -= block.nbytes
            if block.small:
                self._small[block.nbytes].append(block)
            else:
                self._large[block.address] = block
                self._large_sizes.setdefault(block.nbytes, []).append(block)
                self._kept_nbytes += block.nbytes
        if self._kept_nbytes > self.keep_nbytes:
            self._shrink(max(self.keep_nbytes, self._in_use_nbytes // 2))

    def _shrink(self, limit: int) -> None:
        while self._kept_nbytes > limit and self._large:
            _, block = self._large.popitem(last=False)
            self._large_sizes[block.nbytes].remove(block)
            self._kept_nbytes -= block.nbytes
            self._reserved_nbytes -= block.nbytes

    def _cut_small(self, size: int) -> _Block:
        self._small.setdefault(size, [])
        if self._slab is None or self._slab_next + size > self._slab_end:
            self._slab = self._map(_SLAB_NBYTES)
            self._slab_next = address_of(self._slab)
            self._slab_end = self._slab_next + _SLAB_NBYTES
        block = _Block(self._slab_next, size, self._slab, True)
        self._slab_next += size
        return block

    def _take_large(self, size: int) -> _Block:
        # The next two sizes, up to a quarter more, still beat fresh pages.
        fit = size
        for _ in range(3):
            spare = self._large_sizes.get(fit)
            if spare:
                block = spare.pop()
                del self._large[block.address]
                self._kept_nbytes -= block.nbytes
                return block
            fit = size_class(fit + 1)
        mapping = self._map(size)
        return _Block(address_of(mapping), size, mapping, False)

    def _map(self, nbytes: int) -> mmap.mmap:
        """Return fresh pages, giving up our spare ones if the system has none left."""
        available: int | None = None
        for attempt in (1, 2):
            if nbytes >= _ASK_SYSTEM_NBYTES:
                available = available_nbytes()
            # Where too little is available, the system would still grant the mapping, and then
            # kill us when we fill it.
            if available is None or nbytes <= available:
                try:
                    mapping = _map_pages(nbytes)
                except (OSError, OverflowError):
                    mapping = None
                if mapping is not None:
                    self._reserved_nbytes += nbytes
                    return mapping
            if attempt == 1:
                self._shrink(0)
        raise self._exhausted(nbytes, available)

    def _exhausted(self, nbytes: int, available: int | None) -> OutOfMemory:
        free = "" if available is None else f"{available >> 20} MiB available, "
        return OutOfMemory(
            f"the host has no room for {nbytes} bytes ({nbytes >> 20} MiB)",
            found=f"{free}{self._in_use_nbytes >> 20} MiB in our buffers",
            hint="use smaller batches, or free tensors that are not needed",
        )


@lru_cache(1 << 10)
def size_class(nbytes: int) -> int:
    """Return the size that `nbytes` is rounded up to: eight sizes for each power of two.

    At most an eighth is wasted, above 512 bytes; pieces with mappings of their own are whole pages.
    """
    if nbytes <= 512:
        return max(ALIGNMENT, round_up(nbytes, ALIGNMENT))
    step = 1 << ((nbytes - 1).bit_length() - 4)
    return round_up(nbytes, step)


def available_nbytes() -> int | None:
    """Return how much memory the system could still give us, None where it does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    total = 0
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemAvailable", "SwapFree"):
            total += int(rest.split()[0]) * 1024
    return total


def _map_pages(nbytes: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _HUGE_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            # A kernel built without huge pages; small ones do.
            return mapping
    return mapping


def address_of(mapping: mmap.mmap) -> int:
    """Return where a mapping lies."""
    array: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(mapping, np.uint8)
    return int(array.ctypes.data)

"""Memory for a device's buffers: cut from larger pieces, recycled when the GPU is done with it.

Small buffers lie in memory of the GPU that the host sees, so that a few bytes need no copy engine;
middle ones share pieces of 32 MiB; large ones have pages of their own. What buffers let go of is
kept for the next ones of about its size, and given to the driver when it has nothing left.

Every block carries two numbers: the values that the device's two timelines have once all work that
uses it is done. Whoever uses it next goes on from these, so that nothing waits when memory changes
hands: work of one channel is in order, and the other channel waits for the numbers.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from baregrad.base.bits import human_bytes, round_up
from baregrad.base.errors import BaregradError, OutOfMemory
from baregrad.runtime.buffers import Memory, MemoryStats
from baregrad.runtime.host_memory import size_class
from baregrad.runtime.nvidia.driver.memory import HUGE_PAGE_NBYTES, Allocation

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.memory import MemoryManager

ALIGNMENT = 256
SMALL_NBYTES = 64 << 10
_MIDDLE_NBYTES = 2 << 20
_MIDDLE_SLAB_NBYTES = 32 << 20
_SHOWN = 5


class MemoryBlock:
    """A range of the GPU's addresses, all of an allocation or a part of one.

    `host` is the view of the bytes, None where the host does not see them. `compute_value` and
    `copy_value` are what the timelines reach when the work that uses it is done; `fixed` says that
    command lists refer to it by address, so that any work may use it. `buffer_nbytes` and
    `buffer_serial` are those of the last buffer that lay there.
    """

    __slots__ = (
        "address", "allocation", "buffer_nbytes", "buffer_serial", "compute_value", "copy_value",
        "fixed", "host", "live", "nbytes",
    )  # fmt: skip

    def __init__(
        self, address: int, nbytes: int, host: memoryview | None, allocation: Allocation
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.host = host
        self.allocation = allocation
        self.compute_value = 0
        self.copy_value = 0
        self.fixed = False
        self.live = False
        self.buffer_nbytes = self.buffer_serial = -1

    @property
    def whole(self) -> bool:
        """Whether the allocation is this block's alone."""
        return self.nbytes > _MIDDLE_NBYTES


class GpuMemory(Memory):
    """A piece of a GPU's memory, and the block that it lies in."""

    __slots__ = ("block",)

    def __init__(
        self, block: MemoryBlock, nbytes: int, release: Callable[[MemoryBlock], None]
    ) -> None:
        super().__init__(block.address, nbytes, release=release, token=block)
        self.block = block


class _Slab:
    """An allocation that blocks are cut from, one behind the other."""

    def __init__(self, memory: Allocation) -> None:
        self.memory = memory
        self.used = 0

    def cut(self, nbytes: int) -> MemoryBlock | None:
        """Return a block that nobody had before, None where no room is left."""
        begin = self.used
        if begin + nbytes > self.memory.nbytes:
            return None
        self.used += nbytes
        host = self.memory.host
        part = None if host is None else host[begin : begin + nbytes]
        return MemoryBlock(self.memory.gpu_va + begin, nbytes, part, self.memory)


class DeviceAllocator:
    """Hands out blocks of a GPU's memory and takes them back, from any thread.

    `wait_idle` waits until the GPU uses no block that is not live; `free_nbytes` says what the
    driver has left, None where that is unknown.
    """

    def __init__(
        self,
        memory: MemoryManager,
        name: str,
        wait_idle: Callable[[], None],
        others: Callable[[], dict[str, int]],
    ) -> None:
        self._memory = memory
        self._name = name
        self._wait_idle = wait_idle
        self._others = others
        self._lock = threading.Lock()
        self._returned: deque[MemoryBlock] = deque()
        self._spare: dict[int, list[MemoryBlock]] = {}
        self._slabs: dict[bool, _Slab] = {}
        self._blocks: dict[int, MemoryBlock] = {}
        self._see_small = True
        self._in_use_nbytes = 0
        self._peak_nbytes = 0
        self._reserved_nbytes = 0

    def allocate(self, nbytes: int) -> GpuMemory:
        """Return `nbytes` bytes with any content, aligned to 256; raise OutOfMemory."""
        size = max(ALIGNMENT, -(-size_class(nbytes) // ALIGNMENT) * ALIGNMENT)
        if size > _MIDDLE_NBYTES:
            size = round_up(size, HUGE_PAGE_NBYTES)
        with self._lock:
            self._take_back()
            block = self._find(size)
            block.live = True
            self._in_use_nbytes += block.nbytes
            self._peak_nbytes = max(self._peak_nbytes, self._in_use_nbytes)
        # The release runs inside garbage collections: appending to a deque is all that it may do.
        return GpuMemory(block, nbytes, self._returned.append)

    def stats(self) -> MemoryStats:
        """Return the bytes in use, at most, and taken from the driver."""
        with self._lock:
            self._take_back()
            return MemoryStats(self._in_use_nbytes, self._peak_nbytes, self._reserved_nbytes)

    def forget_peak(self) -> None:
        """Let the most bytes at once be those that are in use now."""
        with self._lock:
            self._take_back()
            self._peak_nbytes = self._in_use_nbytes

    def trim(self) -> None:
        """Give pages that no buffer uses back to the driver."""
        with self._lock:
            self._take_back()
            self._give_back()

    def live_blocks(self) -> list[MemoryBlock]:
        """Return the blocks of live buffers, by address."""
        with self._lock:
            self._take_back()
            live = [block for block in self._blocks.values() if block.live]
        return sorted(live, key=lambda block: block.address)

    def after_fork(self) -> None:
        """Take a fresh lock: another thread may have held it when the process forked."""
        self._lock = threading.Lock()

    def _take_back(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            block.live = False
            self._in_use_nbytes -= block.nbytes
            self._spare.setdefault(block.nbytes, []).append(block)

    def _find(self, size: int) -> MemoryBlock:
        spare = self._spare.get(size)
        if spare:
            return spare.pop()
        if size > _MIDDLE_NBYTES:
            # The next two sizes, up to a quarter more, still beat asking the driver.
            fit = size
            for _ in range(2):
                fit = -(-size_class(fit + 1) // HUGE_PAGE_NBYTES) * HUGE_PAGE_NBYTES
                spare = self._spare.get(fit)
                if spare:
                    return spare.pop()
            allocation = self._from_driver(size)
            return self._remember(MemoryBlock(allocation.gpu_va, size, None, allocation))
        small = size <= SMALL_NBYTES
        slab = self._slabs.get(small)
        block = None if slab is None else slab.cut(size)
        if block is None:
            slab = self._slabs[small] = _Slab(self._slab(small))
            block = slab.cut(size)
            assert block is not None
        return self._remember(block)

    def _remember(self, block: MemoryBlock) -> MemoryBlock:
        self._blocks[block.address] = block
        return block

    def _slab(self, small: bool) -> Allocation:
        if small and self._see_small:
            try:
                memory = self._memory.visible(HUGE_PAGE_NBYTES)
            except BaregradError:
                # The window through which the host sees the GPU's memory may be small, and full.
                self._see_small = False
            else:
                self._reserved_nbytes += memory.nbytes
                return memory
        return self._from_driver(HUGE_PAGE_NBYTES if small else _MIDDLE_SLAB_NBYTES)

    def _from_driver(self, nbytes: int) -> Allocation:
        try:
            memory = self._memory.device(nbytes)
        except OutOfMemory:
            if not self._give_back():
                raise self._exhausted(nbytes) from None
            try:
                memory = self._memory.device(nbytes)
            except OutOfMemory:
                raise self._exhausted(nbytes) from None
        self._reserved_nbytes += memory.nbytes
        return memory

    def _give_back(self) -> bool:
        """Free all spare blocks with pages of their own; return whether there were any."""
        self._wait_idle()
        self._take_back()
        found = [block for spare in self._spare.values() for block in spare if block.whole]
        if not found:
            return False
        for block in found:
            self._spare[block.nbytes].remove(block)
            del self._blocks[block.address]
            self._reserved_nbytes -= block.allocation.nbytes
            block.allocation.close()
        return True

    def _exhausted(self, nbytes: int) -> OutOfMemory:
        live = Counter(block.nbytes for block in self._blocks.values() if block.live)
        largest = sorted(live.items(), key=lambda item: -item[0] * item[1])[:_SHOWN]
        held = ", ".join(f"{count} of {human_bytes(size)}" for size, count in largest)
        spare = self._reserved_nbytes - self._in_use_nbytes
        parts = [
            f"{human_bytes(self._in_use_nbytes)} in {live.total()} live buffers"
            + (f" (most of it in {held})" if held else ""),
            f"{human_bytes(spare)} spare in pieces that are too small",
        ]
        parts += [f"{human_bytes(size)} of {what}" for what, size in self._others().items() if size]
        return OutOfMemory(
            f"{self._name} has no room for {nbytes} bytes ({human_bytes(nbytes)})",
            found=", ".join(parts),
            hint="use smaller batches, free tensors that are not needed, or look for other "
            "processes on the GPU",
        )

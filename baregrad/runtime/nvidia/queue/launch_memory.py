"""What a channel holds for its launches: places for descriptors and banks, and stacks."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field

from baregrad.base.bits import round_up
from baregrad.runtime.nvidia.code.launch_descriptor import ALIGNMENT
from baregrad.runtime.nvidia.code.local_memory import LocalPool, local_pool
from baregrad.runtime.nvidia.driver.memory import HUGE_PAGE_NBYTES, Allocation
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.runtime.nvidia.queue.ring import SubmissionRing
from baregrad.runtime.teardown import Teardown

# With this many blocks in use, the host waits for the oldest instead of making another.
_BLOCKS = 4


@dataclass(eq=False)
class LaunchBlock:
    """Memory that launches are written to one behind the other.

    It may be written anew when nobody in `holders` is going to submit what lies in there, and the
    channel's timeline has reached `value`. `recycled` is set until the GPU's caches forget it.
    """

    memory: Allocation
    used: int = 0
    value: int = 0
    recycled: bool = False
    holders: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """Bytes of a block, for one launch."""

    block: LaunchBlock
    offset: int

    @property
    def gpu_va(self) -> int:
        """Where the GPU sees them."""
        return self.block.memory.gpu_va + self.offset

    def write(self, data: bytes | bytearray, offset: int = 0) -> None:
        """Put bytes there."""
        begin = self.offset + offset
        self.block.memory.view[begin : begin + len(data)] = data


class LaunchMemory:
    """Belongs to a channel, after which it is freed; takes nothing before the first launch."""

    def __init__(self, ring: SubmissionRing) -> None:
        self._ring = ring
        self._memory = ring.gpu.memory
        self.teardown = Teardown()
        self._blocks: deque[LaunchBlock] = deque()
        self.pool: LocalPool | None = None
        self._stacks: Allocation | None = None

    def take(self, nbytes: int, holder: object) -> LaunchPlace:
        """Return a place for a descriptor and its bank, which `holder` is going to submit."""
        nbytes = round_up(nbytes, ALIGNMENT)
        block = self._blocks[-1] if self._blocks else None
        if block is None or block.used + nbytes > block.memory.nbytes:
            block = self._next_block(nbytes)
        block.holders.add(holder)
        place = LaunchPlace(block, block.used)
        block.used += nbytes
        return place

    def _next_block(self, nbytes: int) -> LaunchBlock:
        free = (one for one in self._blocks if not one.holders and nbytes <= one.memory.nbytes)
        oldest = next(free, None)
        if oldest is not None:
            done = self._ring.timeline.value >= oldest.value
            if done or len(self._blocks) >= _BLOCKS:
                self._ring.wait(oldest.value)
                self._blocks.remove(oldest)
                oldest.used, oldest.recycled = 0, True
                self._blocks.append(oldest)
                return oldest
        nbytes = round_up(nbytes, HUGE_PAGE_NBYTES)
        block = LaunchBlock(self._memory.visible(nbytes, owner=self.teardown))
        self._blocks.append(block)
        return block

    @property
    def thread_nbytes(self) -> int:
        """What every thread has of local memory."""
        return 0 if self.pool is None else self.pool.thread_nbytes

    def grow(self, thread_nbytes: int) -> None:
        """Give every thread at least that much local memory; waits for the channel to be idle."""
        if thread_nbytes <= self.thread_nbytes:
            return
        ring = self._ring
        ring.wait()
        counts = ring.gpu.counts
        wanted = local_pool(
            thread_nbytes,
            warps_per_unit=counts.warps_per_unit,
            units_per_tpc=counts.units_per_tpc,
            tpcs_per_gpc=counts.tpcs_per_gpc,
            gpcs=counts.gpcs,
        )
        if self._stacks is not None:
            self.pool = None
            self._stacks.close()
        self._stacks = self._memory.device(wanted.nbytes, owner=self.teardown)
        push = PushBuffer()
        push.set_local_memory(self._stacks.gpu_va, wanted.tpc_nbytes)
        ring.submit(push)
        self.pool = wanted

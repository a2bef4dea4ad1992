"""Blocks that run beside each other: their turns, their common barrier, each other's memory.

Source: PTX ISA, "Cluster of Cooperative Thread Arrays", "barrier.cluster", "mapa".
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, Protocol

import numpy as np

from baregrad.testing.virtual_gpu.ptx.clocks import GROUP, Clocks
from baregrad.testing.virtual_gpu.ptx.errors import AbsentBlock, DivergentBarrier, KernelFault
from baregrad.testing.virtual_gpu.ptx.memory import Region
from baregrad.testing.virtual_gpu.ptx.races import SharedRaces
from baregrad.testing.virtual_gpu.ptx.states import AT_CLUSTER, DONE, RUNS
from baregrad.testing.virtual_gpu.ptx.types import Array

Shape = tuple[int, int, int]

# Blocks run this many turns before the next one does.
_TURNS: Final = 256
_KEEPS: Final = "barrier.cluster keeps a block until nobody needs its shared memory"
_BEGINS: Final = "barrier.cluster comes before the first use of another's shared memory"


class PeerBlock(Protocol):
    """What a cluster asks of its blocks."""

    count: int
    first_agent: int
    state: Array
    shared: Region
    races: SharedRaces | None
    family: dict[str, Any]

    @property
    def place(self) -> Shape:
        """Where the block is in the grid."""

    @property
    def ended(self) -> bool:
        """Whether every thread is done."""

    def advance(self, turns: int) -> bool:
        """Let threads run, `turns` times at most; return whether any did."""

    def stuck(self) -> NoReturn:
        """Raise what explains why nobody can go on."""

    def thread(self, number: int) -> Shape:
        """Return the (x, y, z) of a thread's number."""

    def fault(
        self,
        kind: type[KernelFault],
        message: str,
        thread: int | None = None,
        address: int | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raise a fault of the instruction being run."""


class BlockCluster:
    """The blocks that run beside each other and see each other's shared memory, by rank.

    `shape` counts blocks along x, y, z; a launch without clusters has clusters of one block.
    """

    def __init__(self, shape: Shape, threads: int, check_races: bool) -> None:
        self.shape = shape
        self.size = shape[0] * shape[1] * shape[2]
        self.blocks: list[PeerBlock] = []
        self.clocks = Clocks(self.size * threads) if check_races else None
        # The barrier of all threads: who has arrived, who may pass, and what these will know.
        self._arrived = np.zeros(self.size * threads, bool)
        self._may_pass = np.zeros(self.size * threads, bool)
        self._met = np.zeros(self.size * threads, bool)
        self._clock: Array | None = None
        self._done_clock: Array | None = None

    def run(self) -> None:
        """Run the blocks by turns until every thread is done."""
        turns = _TURNS if self.size > 1 else 1 << 62
        left = list(self.blocks)
        while left:
            moved = [block.advance(turns) for block in left]
            for block in left:
                if block.ended and block.races is not None:
                    self._check_visits(block, block.races)
            left = [block for block in left if not block.ended]
            if left and not any(moved):
                left[0].stuck()

    def peer(self, block: PeerBlock, rank: int, thread: int) -> PeerBlock:
        """Return the block of a rank, whose shared memory a thread of `block` is about to use."""
        if not rank < self.size:
            block.fault(AbsentBlock, f"a cluster of {self.size} blocks has none of {rank}", thread)
        found = self.blocks[rank]
        if found.ended:
            block.fault(
                AbsentBlock, f"block {found.place} of the cluster has ended", thread,
                hint=_KEEPS,
            )
        if found is not block and self.clocks is not None:
            agent = block.first_agent + thread
            own = slice(found.first_agent, found.first_agent + found.count)
            begun = self._met[agent] or self.clocks.known()[agent, own].max() > 0
            if not begun:
                block.fault(
                    AbsentBlock, f"block {found.place} of the cluster may not have begun", thread,
                    hint=_BEGINS,
                )
        return found

    def who(self, agent: int, block: PeerBlock) -> str:
        """Say whose accesses an agent's are, to a thread of `block`."""
        threads = self.size * block.count
        if agent >= 3 * threads:
            return f"a product of the warpgroup of {self.who((agent - 3 * threads) * GROUP, block)}"
        rank, thread = divmod(agent % threads, block.count)
        text = f"thread {block.thread(thread)}"
        if self.blocks[rank] is not block:
            text += f" of block {self.blocks[rank].place}"
        return f"an asynchronous copy of {text}" if agent >= threads else text

    def _check_visits(self, block: PeerBlock, races: SharedRaces) -> None:
        agent = races.uninvited()
        if agent is not None:
            block.fault(
                AbsentBlock, f"the block ends while {self.who(agent, block)} uses its shared memory"
                " with no barrier between",
                hint=_KEEPS,
            )

    # ---- the barrier of all threads -------------------------------------------------------------

    def arrive(self, block: PeerBlock, threads: Array, releases: bool) -> None:
        """Let threads of a block arrive; with `releases` they show others what they did."""
        agents = threads + block.first_agent
        twice = self._arrived[agents] | self._may_pass[agents]
        if twice.any():
            block.fault(
                DivergentBarrier, "a second arrival at the cluster's barrier with no wait between",
                int(threads[int(np.argmax(twice))]),
            )
        self._arrived[agents] = True
        if releases and self.clocks is not None:
            self._clock = self.clocks.release(agents, self._clock)
        self.settle()

    def settle(self) -> None:
        """Let everybody pass once all threads that have not ended have arrived."""
        ended = np.concatenate([block.state == DONE for block in self.blocks])
        if not self._arrived.any() or not (self._arrived | ended).all():
            return
        self._may_pass |= self._arrived
        self._arrived[:] = False
        self._done_clock, self._clock = self._clock, None
        for block in self.blocks:
            block.state[block.state == AT_CLUSTER] = RUNS
            if block.races is not None:
                block.races.meet_visitors()

    def passing(self, block: PeerBlock, threads: Array) -> Array:
        """Return which of a block's waiting threads may pass; they know what was shown."""
        agents = threads + block.first_agent
        may = self._may_pass[agents]
        lost = ~may & ~self._arrived[agents]
        if lost.any():
            block.fault(
                DivergentBarrier, "a wait at the cluster's barrier with no arrival before it",
                int(threads[int(np.argmax(lost))]),
            )
        self._may_pass[agents[may]] = False
        self._met[agents[may]] = True
        if may.any() and self.clocks is not None and self._done_clock is not None:
            self.clocks.acquire(agents[may], self._done_clock)
        return np.asarray(may)

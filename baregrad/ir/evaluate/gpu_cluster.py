"""A simulated cluster of blocks: who runs next, mbarriers, meetings, and what is in flight.

The executors of the loop level (`gpu_loop.py`) and of threads (`gpu_threads.py`) run on it. Agents
run in random order, and everything that hardware may delay is delayed: bytes land in random pieces,
matrix instructions read their operands when they retire, stores read shared memory when they
complete.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.alu import Array
from baregrad.ir.protocol.attributes import ProtocolError
from baregrad.target.gpu import GpuTarget

Block = TypeVar("Block", bound="ClusterBlock")


class MBarrier:
    """A phase ends when `count` arrivals came and the bytes announced have landed.

    Waits know parities only: the wait for parity P passes when the current phase's parity is not P.
    most_nbytes: how many bytes may be announced or early.
    """

    def __init__(self, name: str, count: int, most_nbytes: int) -> None:
        self.name = name
        self.count = count
        self.most_nbytes = most_nbytes
        self.pending = count
        self.nbytes = 0
        self.phase = 0

    def arrive(self, nbytes: int = 0) -> None:
        """Announce bytes and count an arrival; raises ProtocolError for more than a phase takes."""
        self._add(nbytes)
        if not self.pending:
            raise ProtocolError(f"{self.name}: an arrival too many", wanted=f"at most {self.count}")
        self.pending -= 1
        self._turn()

    def complete(self, nbytes: int) -> None:
        """Bytes have landed."""
        self._add(-nbytes)
        self._turn()

    def passes(self, parity: int) -> bool:
        """Whether a wait for this parity would pass now."""
        return self.phase & 1 != parity

    def _add(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if abs(self.nbytes) > self.most_nbytes:
            raise ProtocolError(f"{self.name}: too many bytes in one phase", found=self.nbytes)

    def _turn(self) -> None:
        if self.pending == 0 and self.nbytes == 0:
            self.phase += 1
            self.pending = self.count

    def __str__(self) -> str:
        return (
            f"{self.name} (phase {self.phase}, {self.pending} of {self.count} arrivals and "
            f"{self.nbytes} bytes to come)"
        )


class ClusterBlock:
    """One block of a cluster: its barriers, and how many of its agents have not ended."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank = rank
        self.number = number
        self.barriers: dict[Hashable, MBarrier] = {}
        self.running = 0

    def barrier(self, key: Hashable) -> MBarrier:
        """A barrier; raises ProtocolError unless the block is alive and has made it."""
        self.touch("a barrier")
        if key not in self.barriers:
            known = sorted(map(str, self.barriers))
            raise ProtocolError(f"{self} has no barrier {key}", wanted=known)
        return self.barriers[key]

    def touch(self, what: str) -> None:
        """Raise ProtocolError if this block has exited."""
        if not self.running:
            raise ProtocolError(f"{self} is touched after it exited", found=what)

    def __str__(self) -> str:
        return f"block {self.number}"


@dataclass(eq=False)
class Group:
    """Asynchronous work that completes together, in order of `work`.

    buffer, places: what it reads or writes meanwhile. registers: those that it adds to. waited: its
    issuer has waited for it.
    """

    work: list[Callable[[], None]] = field(default_factory=list)
    buffer: Node | None = None
    places: frozenset[int] = frozenset()
    done: bool = False
    waited: bool = False
    registers: set[Node] = field(default_factory=set)

    def finish(self) -> None:
        """Complete, unless that has happened."""
        if not self.done:
            self.done = True
            for one in self.work:
                one()


def wait_for(groups: Sequence[Group], keep: int) -> None:
    """Complete all but the last groups, for their issuer."""
    for group in groups[: max(len(groups) - keep, 0)]:
        group.finish()
        group.waited = True


@dataclass(frozen=True)
class Blocked:
    """What an agent waits for."""

    what: Callable[[], str]
    over: Callable[[], bool]


class Meeting:
    """A barrier of agents: who has come, and how often it opened."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.here = 0
        self.opened = 0

    def arrive(self) -> Blocked | None:
        """Come to the barrier; None when it opens at once."""
        self.here += 1
        turn = self.opened
        if self.here == self.size:
            self.here = 0
            self.opened += 1
            return None
        return Blocked(
            lambda: f"the barrier of the {self.name} ({self.here} of {self.size} are there)",
            lambda: self.opened > turn,
        )


class ClusterAgent(Protocol):
    """What runs by itself in a block: a thread of control, or threads in step."""

    blocked: Blocked | None

    @property
    def block(self) -> ClusterBlock:
        """Where it runs."""

    @property
    def pace(self) -> Hashable:
        """Agents of one pace are all fast or all slow."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""

    def step(self) -> None:
        """Run a little, or find that it has to wait."""

    def check_exit(self) -> None:
        """Raise ProtocolError if something of its own is still in flight."""


class Cluster:
    """Runs the agents of one cluster's blocks until all have ended."""

    def __init__(self, target: GpuTarget, number: int, rng: random.Random) -> None:
        self.target = target
        self.number = number
        self.rng = rng
        # What will happen by itself, at a time nobody knows.
        self.events: list[Callable[[], None]] = []
        self.meetings: dict[Hashable, Meeting] = {}
        # Some runs are slow in everything, some fast, some mixed.
        self.haste = rng.choice((0.02, 0.2, 0.6, 0.95))
        # In some, engines do nothing before they are waited for.
        self.lazy = rng.random() < 0.5

    def run(self, agents: Sequence[ClusterAgent]) -> None:
        """Until every agent has ended; raises ProtocolError for a deadlock."""
        for agent in agents:
            agent.block.running += 1
        # Some blocks hardly get to run, and some agents of others.
        keys = dict.fromkeys(key for one in agents for key in (one.block, one.pace))
        speed = {key: self.rng.choice((1.0, 1.0, 0.2, 0.003)) for key in keys}
        waiting = list(agents)
        while waiting:
            ready = [one for one in waiting if one.blocked is None or one.blocked.over()]
            if self.events and (not ready or self.rng.random() < self.haste):
                position = self.rng.randrange(len(self.events))
                self.events[position], self.events[-1] = self.events[-1], self.events[position]
                self.events.pop()()
                continue
            if not ready:
                lines = [f"{one} waits for {one.blocked.what()}" for one in waiting if one.blocked]
                raise ProtocolError("deadlock: " + "; ".join(lines))
            (agent,) = self.rng.choices(
                ready, [speed[one.block] * speed[one.pace] for one in ready]
            )
            agent.step()
            if agent.ended:
                waiting.remove(agent)
                agent.check_exit()
                agent.block.running -= 1
        for event in self.events:
            event()

    def meet(self, key: tuple[Hashable, ...], size: int) -> Blocked | None:
        """Come to the barrier of a name, at which `size` agents meet."""
        if key not in self.meetings:
            self.meetings[key] = Meeting(" ".join(map(str, key)), size)
        return self.meetings[key].arrive()

    def deliver(
        self, blocks: Iterable[Block], count: int, land: Callable[[Block, Array], None]
    ) -> None:
        """Let `count` elements land in each block, in random pieces at random times."""
        for block in blocks:
            for piece in np.array_split(np.arange(count), self.rng.randint(1, 4)):
                self.events.append(partial(land, block, piece))

    def mbarrier(self, name: str, count: int) -> MBarrier:
        """A new barrier that counts arrivals and bytes."""
        return MBarrier(name, count, self.target.barrier_transfer_bytes)

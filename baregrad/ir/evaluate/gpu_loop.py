"""Reference evaluator of the GPU's loop level, under hostile timing.

A block's roles run as threads of control, one per warpgroup (one for an elected thread), in random
order, statement by statement. Parities alias, bytes land in pieces, matrix instructions read their
operands at retirement, reused buffers hold what is really there. A kernel that depends on luck
gives a wrong result, a deadlock that says who waits for what, or a ProtocolError.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_state import Array, Block, Blocked, Event, MBarrier, Meeting
from baregrad.ir.evaluate.gpu_thread import Thread
from baregrad.ir.protocol.attributes import ProtocolError, Role

_LAUNCHED = ("grid", "cluster", "warpgroup")


def evaluate_gpu(
    kernel: Node,
    params: Sequence[Array] | Mapping[int, Array],
    variables: Mapping[str, int] | None = None,
    seed: int = 0,
) -> None:
    """Run a loop-level KERNEL of a GPU in place on its argument arrays, one schedule per seed.

    params, variables: as `evaluate_loop` takes them. Clusters run one after the other, the blocks
    of a cluster together. Raises ProtocolError for deadlocks and broken protocols.
    """
    if kernel.op is not Ops.KERNEL:
        raise CompilerBug("not a KERNEL", found=kernel)
    given = dict(params.items() if isinstance(params, Mapping) else enumerate(params))
    memory = {slot: array.reshape(-1) for slot, array in given.items()}
    rng = random.Random(seed)
    clusters = int(np.prod(kernel.arg.grid, dtype=np.int64)) if kernel.arg.grid else 1
    order = list(range(clusters))
    rng.shuffle(order)
    for cluster in order:
        Cluster(kernel, memory, dict(variables or {}), cluster, rng).run()


class Cluster:
    """The blocks of one cluster, their threads of control, and everything in flight."""

    def __init__(
        self,
        kernel: Node,
        memory: dict[int, Array],
        variables: dict[str, int],
        number: int,
        rng: random.Random,
    ) -> None:
        self.kernel = kernel
        self.rng = rng
        self.events: list[Event] = []
        self.pipes = [node for node in toposort(kernel) if node.op is Ops.PIPE]
        # Buffers whose first index is a slot, even of a ring of one.
        self.rings = frozenset(buffer for pipe in self.pipes for buffer in pipe.src)
        # Some runs are slow in everything, some fast, some mixed.
        self.haste = rng.choice((0.02, 0.2, 0.6, 0.95))
        self.lazy = rng.random() < 0.5
        size = kernel.arg.cluster
        self.blocks = [Block(rank, number * size + rank) for rank in range(size)]
        self.threads = [
            thread for block in self.blocks for thread in self._threads(block, memory, variables)
        ]
        # Some roles of some blocks hardly get to run.
        self.speed = {
            (block.rank, thread.role.name): rng.choice((1.0, 1.0, 0.2, 0.003))
            for block in self.blocks
            for thread in self.threads
        }
        self.meetings: dict[tuple[object, ...], Meeting] = {}

    def _threads(
        self, block: Block, memory: dict[int, Array], variables: dict[str, int]
    ) -> Iterator[Thread]:
        roles = [node.arg for node in toposort(self.kernel) if node.op is Ops.ROLE]
        if not roles:
            roles = [Role("all", self.kernel.arg.warps)]
        launched = [
            node
            for node in toposort(self.kernel)
            if node.op is Ops.RANGE and node.arg.bind in _LAUNCHED
        ]
        for role in roles:
            for group in range(role.agents):
                block.running += 1
                where = {
                    "grid": block.number // len(self.blocks),
                    "cluster": block.rank,
                    "warpgroup": group,
                }
                counters = {axis: where[axis.arg.bind] for axis in launched}
                yield Thread(self, block, role, group, memory, variables, counters)

    def run(self) -> None:
        """Until every thread has ended."""
        waiting = list(self.threads)
        while waiting:
            ready = [t for t in waiting if t.blocked is None or t.blocked.over()]
            if self.events and (not ready or self.rng.random() < self.haste):
                position = self.rng.randrange(len(self.events))
                self.events[position], self.events[-1] = self.events[-1], self.events[position]
                self.events.pop().fire()
                continue
            if not ready:
                self.deadlock(waiting)
            (thread,) = self.rng.choices(
                ready, [self.speed[t.block.rank, t.role.name] for t in ready]
            )
            thread.step()
            if thread.ended:
                waiting.remove(thread)
                self.leave(thread)
        for event in self.events:
            event.fire()

    def deadlock(self, waiting: Sequence[Thread]) -> None:
        """Raise ProtocolError: everybody waits and nothing is under way."""
        lines = [f"{t} waits for {t.blocked.what()}" for t in waiting if t.blocked is not None]
        raise ProtocolError("deadlock: " + "; ".join(lines))

    def leave(self, thread: Thread) -> None:
        """A thread ended; its block exits with the last one."""
        thread.check_exit()
        thread.block.running -= 1

    def set_up(self, block: Block) -> None:
        """The first thread that runs in a block makes its barriers."""
        if block.ready:
            return
        for pipe in self.pipes:
            facts = pipe.arg
            if not facts.full_arrivals or not facts.empty_arrivals:
                raise ProtocolError(f"the pipe {facts.name} has no arrival counts", found=facts)
            counts = (("full", facts.full_arrivals), ("empty", facts.empty_arrivals))
            for slot in range(facts.depth):
                for side, count in counts:
                    name = f"{side}[{slot}] of {facts.name} in {block}"
                    block.barriers[facts.name, side, slot] = MBarrier(name, count)
        block.ready = True

    def meet(self, thread: Thread, scope: str) -> Blocked | None:
        """A thread comes to a BARRIER."""
        key: tuple[object, ...] = (scope,)
        everyone: list[Thread] = [thread]
        if scope == "cluster":
            everyone = self.threads
        elif scope == "block":
            key = (scope, thread.block.rank)
            everyone = [t for t in self.threads if t.block is thread.block]
        elif scope == "warpgroup":
            return None
        if any(other.ended for other in everyone):
            raise ProtocolError(f"{thread} meets at the barrier of a {scope} that some have left")
        if key not in self.meetings:
            self.meetings[key] = Meeting(scope, len(everyone))
        return self.meetings[key].arrive()

    def later(self, what: str, fire: Any) -> None:
        """Let something happen at a random time."""
        self.events.append(Event(what, fire))

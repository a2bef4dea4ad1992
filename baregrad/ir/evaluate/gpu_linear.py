"""Reference evaluator of the GPU's linear level: warps of 32 lanes, in random order.

A value is uniform, of shape (), or has one element per lane. Memory is bytes at real addresses, so
swizzles, descriptors and fragments are put to the test. MACHINE instructions are in
`evaluate_gpu_machine.py`; their names follow PTX.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_machine import RULES, CtaState, Group
from baregrad.ir.evaluate.gpu_state import Array, Blocked, Event, Meeting
from baregrad.ir.evaluate.linear_level import LinearMachine
from baregrad.ir.protocol.attributes import HOPPER, LANES, WARPGROUP, ProtocolError


def evaluate_gpu_linear(
    program: Node,
    params: Sequence[Array] | Mapping[int, Array],
    variables: Mapping[str, int] | None = None,
    seed: int = 0,
) -> None:
    """Run a PROGRAM of a GPU in place on its argument arrays, one schedule of warps per seed.

    params, variables: as `evaluate_linear` takes them. Raises ProtocolError for deadlocks and
    broken protocols.
    """
    given = params.items() if isinstance(params, Mapping) else enumerate(params)
    memory = {slot: array.reshape(-1) for slot, array in given}
    rng = random.Random(seed)
    clusters = int(np.prod(program.arg.grid, dtype=np.int64)) if program.arg.grid else 1
    for cluster in range(clusters):
        WarpCluster(program, memory, dict(variables or {}), cluster, rng).run()


class WarpCluster:
    """The warps of a cluster's blocks and everything in flight."""

    def __init__(
        self,
        program: Node,
        memory: dict[int, Array],
        variables: dict[str, int],
        number: int,
        rng: random.Random,
    ) -> None:
        self.rng = rng
        self.info = program.arg
        self.number = number
        self.events: list[Event] = []
        self.meetings: dict[tuple[object, ...], Meeting] = {}
        self.haste = rng.choice((0.05, 0.5, 0.9))
        # Some blocks hardly get to run.
        self.speed = [rng.choice((1.0, 1.0, 0.003)) for _ in range(self.info.cluster)]
        size, warps = self.info.cluster, self.info.warps
        pool = HOPPER.registers_at_launch(warps * LANES)
        self.ctas = [CtaState(rank, self.info.shared_nbytes, warps, pool) for rank in range(size)]
        self.warps = [
            Warp(program, variables, memory, self, cta, warp)
            for cta in self.ctas
            for warp in range(warps)
        ]

    def run(self) -> None:
        """Until every warp has ended."""
        waiting = list(self.warps)
        while waiting:
            ready = [w for w in waiting if w.blocked is None or w.blocked.over()]
            if self.events and (not ready or self.rng.random() < self.haste):
                self.events.pop(self.rng.randrange(len(self.events))).fire()
                continue
            if not ready:
                lines = [f"{w} waits for {w.blocked.what()}" for w in waiting if w.blocked]
                raise ProtocolError("deadlock: " + "; ".join(lines))
            (warp,) = self.rng.choices(ready, [self.speed[w.cta.rank] for w in ready])
            warp.burst(self.rng.randint(1, 12))
            if warp.ended:
                waiting.remove(warp)
                warp.leave()
        for event in self.events:
            event.fire()

    def meeting(self, key: tuple[object, ...], size: int) -> Meeting:
        """The barrier of a name."""
        if key not in self.meetings:
            self.meetings[key] = Meeting(" ".join(map(str, key)), size)
        return self.meetings[key]


class Warp(LinearMachine):
    """32 lanes that run in step; `active` tells which of them do."""

    number: int

    def __init__(
        self,
        program: Node,
        variables: dict[str, int],
        memory: dict[int, Array],
        cluster: WarpCluster,
        cta: CtaState,
        number: int,
    ) -> None:
        super().__init__(program, variables, None)
        for slot, array in memory.items():
            self.memory[slot] = array
        self.cluster: WarpCluster = cluster
        self.cta: CtaState = cta
        self.number = number
        self.active = np.ones(LANES, np.bool_)
        self.masks: list[Array] = []
        self.blocked: Blocked | None = None
        self.open_group = Group()
        self.groups: list[Group] = []
        self.open_store = Group()
        self.stores: list[Group] = []
        # Accumulators that the matrix unit holds; their registers are poison meanwhile.
        self.hidden: dict[Node, Array] = {}

    def __str__(self) -> str:
        return f"warp {self.number} of block {self.cta.rank} at instruction {self.next}"

    @property
    def ended(self) -> bool:
        """Whether the last instruction has run."""
        return self.next >= len(self.code) and self.blocked is None

    @property
    def place(self) -> int:
        """This warp's place in its warpgroup."""
        return self.number % WARPGROUP

    @cached_property
    def warpgroup(self) -> tuple[Warp, ...]:
        """The four warps that issue matrix instructions together."""
        first = self.number - self.place
        mine = [one for one in self.cluster.warps if one.cta is self.cta]
        return tuple(mine[first : first + WARPGROUP])

    def burst(self, count: int) -> None:
        """Run some instructions, up to one that has to wait."""
        self.blocked = None
        while count and self.next < len(self.code) and self.blocked is None:
            self.execute(self.code[self.next])
            self.next += 1
            count -= 1

    def again(self, waits: Blocked) -> None:
        """Wait, then run the present instruction again."""
        self.blocked = waits
        self.next -= 1

    def execute(self, node: Node) -> None:
        """Run one instruction for the active lanes."""
        if node.op is Ops.MACHINE:
            rule = RULES.get(node.arg.name)
            if rule is None:
                raise CompilerBug("an instruction that nobody knows", found=node.arg.name)
            rule(self, node)
        elif node.op is Ops.TEST:
            holds = np.broadcast_to(self.use(node.src[0]), (LANES,)) & self.active
            if not holds.any():
                self.next = self.ends[self.next]
                return
            self.open.append((self.next, None))
            self.masks.append(self.active)
            self.active = holds
        elif node.op is Ops.END:
            begun, _ = self.open[-1]
            super().execute(node)
            if self.code[begun].op is Ops.TEST:
                self.active = self.masks.pop()
        else:
            super().execute(node)

    def leave(self) -> None:
        """The warp ends; nothing of its own may be in flight."""
        if any(not group.done for group in (*self.groups, *self.stores)):
            raise ProtocolError(f"{self} exits with work in flight")
        self.cta.running -= 1

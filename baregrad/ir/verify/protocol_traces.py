"""What each thread of control of a kernel does, in order, without data.

Loops run with their real trip counts and index arithmetic is evaluated, so the counters of pipes
and the slots of buffers in a trace are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.requirements import exact_value
from baregrad.ir.evaluate.loop_level import LoopMachine
from baregrad.ir.protocol.attributes import Role
from baregrad.target.gpu import GpuTarget

LONGEST = 200_000
Region = tuple[Node, tuple[int, ...]]
"""A buffer with the indices before its tile: one slot, one part."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One statement of a trace, its numbers evaluated.

    counter: of a pipe operation. reads and writes: regions of shared memory and registers. keep: of
    an MMA, whether it adds to what is there.
    """

    op: Op
    node: Node
    pipe: Node | None = None
    counter: int = 0
    reads: frozenset[Region] = frozenset()
    writes: frozenset[Region] = frozenset()
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Agent:
    """A thread of control and its trace."""

    role: Role
    group: int
    steps: tuple[TraceStep, ...]

    def __str__(self) -> str:
        return f"{self.role.name}[{self.group}]"


def roles_of(kernel: Node) -> tuple[Role, ...]:
    """The roles of a kernel, or the one that all its warps play."""
    found = tuple(node.arg for node in toposort(kernel) if node.op is Ops.ROLE)
    return found or (Role("all", kernel.arg.warps),)


def trace(kernel: Node, cluster: int, rank: int, target: GpuTarget) -> tuple[Agent, ...]:
    """The traces of one block's threads of control.

    Raises CompilerBug where a trace is longer than LONGEST steps.
    """
    agents = []
    for role in roles_of(kernel):
        for group in range(role.agents(target)):
            where = {"grid": cluster, "cluster": rank, "warpgroup": group}
            steps = tuple(_Tracer(kernel, role, where).steps())
            agents.append(Agent(role, group, steps))
    return tuple(agents)


def in_registers(region: Region) -> bool:
    """Whether a region is of a register buffer."""
    space: str = region[0].arg.space
    return space == "register"


class _Tracer(LoopMachine):
    """Walks the statements of one thread of control."""

    def __init__(self, kernel: Node, role: Role, where: dict[str, int]) -> None:
        super().__init__({}, None)
        self.kernel = kernel
        self.role = role
        for node in toposort(kernel):
            if node.op is Ops.RANGE and node.arg.bind in where:
                self.counters[node] = where[node.arg.bind]

    def steps(self) -> Iterator[TraceStep]:
        """Every statement in order."""
        stack: list[Any] = [self.kernel]
        count = 0
        while (item := self.statement(stack)) is not None:
            if item.op is Ops.ROLE:
                if item.arg.name == self.role.name:
                    stack.append(item.src[0])
            else:
                count += 1
                if count > LONGEST:
                    raise CompilerBug("a trace is too long to be checked", wanted=LONGEST)
                yield self.step(item)

    def step(self, node: Node) -> TraceStep:
        """One statement."""
        op = node.op
        if op in (Ops.ACQUIRE, Ops.COMMIT, Ops.WAIT, Ops.RELEASE, Ops.DRAIN):
            return TraceStep(op, node, node.src[0], int(self.scalar(node.src[1])))
        if op is Ops.COPYTO:
            piped = node.src[-2].op is Ops.PIPE
            indices = node.src[2:-2] if piped else node.src[2:]
            reads, writes = self.reads(node.src[1]), self.region(node.src[0], indices)
            pipe, counter = (node.src[-2], int(self.scalar(node.src[-1]))) if piped else (None, 0)
            return TraceStep(op, node, pipe, counter, reads, writes)
        if op is Ops.MMA:
            reads = self.reads(node.src[1]) | self.reads(node.src[2])
            keep = bool(self.scalar(node.src[3]))
            return TraceStep(op, node, None, 0, reads, frozenset(((node.src[0], ()),)), keep)
        if op is Ops.STORE:
            reads = self.reads(node.src[1])
            return TraceStep(op, node, None, 0, reads, self.region(node.src[0], node.src[2:]))
        return TraceStep(op, node)

    def scalar(self, node: Node) -> Any:
        """The value of index arithmetic, on plain integers."""
        counters = {axis: self.counters.get(axis, 0) for axis in node.ranges}
        return exact_value(node, counters)

    def reads(self, value: Node) -> frozenset[Region]:
        """The regions that an expression loads."""
        found: frozenset[Region] = frozenset()
        for node in toposort(value):
            if node.op is Ops.LOAD:
                found |= self.region(node.src[0], node.src[1:])
        return found

    def region(self, buffer: Node, indices: tuple[Node, ...]) -> frozenset[Region]:
        """The region of a buffer that indices reach; none for device memory."""
        if buffer.op is not Ops.ALLOC:
            return frozenset()
        if buffer.arg.space == "register":
            return frozenset(((buffer, ()),))
        leading: list[int] = []
        for index in indices:
            if any(axis.arg.is_tile for axis in index.ranges):
                break
            leading.append(int(self.scalar(index)))
        return frozenset(((buffer, tuple(leading)),))

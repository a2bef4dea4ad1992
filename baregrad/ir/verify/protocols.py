"""The verifier of protocols: proves, before a kernel exists, that its parts fit together.

Checked: arrival counts and bytes against roles and boxes; every counter visited once, in order, by
all; slots used only between WAIT and RELEASE, or ACQUIRE and COMMIT; releases after the last reader
is done; no register of the matrix unit touched in flight; fences between proxies; staging rewritten
only when read; barriers before the first remote access and drains before exit; liveness of the
marked graph; shared memory, registers, boxes and layouts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import ProtocolError
from baregrad.ir.protocol.derive import derived_pipe
from baregrad.ir.verify.deadlocks import deadlock
from baregrad.ir.verify.protocol_limits import limit_faults
from baregrad.ir.verify.protocol_traces import (
    Agent,
    Region,
    TraceStep,
    in_registers,
    roles_of,
    trace,
)
from baregrad.target.gpu import GpuTarget

Slots = frozenset[tuple[Node, int]]
_PIPED = frozenset((Ops.ACQUIRE, Ops.COMMIT, Ops.WAIT, Ops.RELEASE, Ops.DRAIN))


def protocol_check(kernel: Node, target: GpuTarget) -> None:
    """Raise ProtocolError, which says what and where, unless the protocol of `kernel` holds."""
    for fault in protocol_faults(kernel, target):
        raise ProtocolError(f"the protocol of {kernel.arg.name} is broken: {fault}")


def protocol_faults(kernel: Node, target: GpuTarget) -> Iterator[str]:
    """Everything that is wrong, the plainest first."""
    yield from limit_faults(kernel, target)
    yield from _derived_faults(kernel, target)
    grid = kernel.arg.grid[0] if kernel.arg.grid else 1
    pipes = tuple(node for node in toposort(kernel) if node.op is Ops.PIPE)
    for cluster, rank in sorted({(0, 0), (grid - 1, kernel.arg.cluster - 1)}):
        agents = trace(kernel, cluster, rank, target)
        for agent in agents:
            yield from _Checker(agent, every_pipe=pipes).faults()
        yield from _counter_faults(agents)
        stuck = deadlock(agents, kernel.arg.cluster)
        if stuck is not None:
            yield f"deadlock: {stuck}"


def _derived_faults(kernel: Node, target: GpuTarget) -> Iterator[str]:
    """A pipe's numbers are those that its roles and copies give."""
    roles = {role.name: role for role in roles_of(kernel)}
    for pipe in toposort(kernel):
        if pipe.op is Ops.PIPE:
            wanted = derived_pipe(kernel, pipe, roles, target)
            for name in ("full_arrivals", "full_nbytes", "empty_arrivals", "scope"):
                found, right = getattr(pipe.arg, name), getattr(wanted, name)
                if found != right:
                    yield f"the pipe {pipe.arg.name} has {name} {found}, its roles give {right}"
            slot = sum(math.prod(b.shape) * b.dtype.bits // 8 for b in pipe.src)
            if wanted.full_nbytes != slot:
                yield f"copies fill {wanted.full_nbytes} of {slot} bytes of a slot"


def _counter_faults(agents: tuple[Agent, ...]) -> Iterator[str]:
    """All sides of a pipe visit the same counters, each once and in order; none is lapped."""
    pipes = {step.pipe for agent in agents for step in agent.steps if step.pipe is not None}
    for pipe in sorted(pipes, key=lambda p: str(p.arg.name)):
        facts = pipe.arg
        total = None
        for agent in sorted(agents, key=lambda a: a.role.name != facts.producer):
            producing = agent.role.name == facts.producer
            if not producing and agent.role.name not in facts.consumers:
                if any(step.pipe is pipe for step in agent.steps):
                    yield f"{agent} uses the pipe {facts.name}, which does not name it"
                continue
            for op in (Ops.ACQUIRE, Ops.COMMIT) if producing else (Ops.WAIT, Ops.RELEASE):
                seen = [s.counter for s in agent.steps if s.op is op and s.pipe is pipe]
                total = len(seen) if total is None else total
                if seen != list(range(total)):
                    yield (
                        f"{agent} does {op.name} {facts.name} for {_shown(seen)}, wanted each of "
                        f"0 to {total - 1} once, in order"
                    )


def _shown(counters: list[int]) -> str:
    missing = sorted(set(range(max(counters, default=0) + 1)) - set(counters))
    twice = [counter for counter, times in Counter(counters).items() if times > 1]
    return f"{len(counters)} counters, without {missing[:4]}, more than once {twice[:4]}"


@dataclass
class _Checker:
    """Follows one trace; every rule looks at one step and the state that led to it."""

    agent: Agent
    held: dict[Node, list[int]] = field(default_factory=dict)
    groups: list[tuple[Region, frozenset[Region], Slots]] = field(default_factory=list)
    dirty: set[Region] = field(default_factory=set)
    unfenced: set[Region] = field(default_factory=set)
    fenced: set[Region] = field(default_factory=set)
    stores: list[tuple[frozenset[Region], bool]] = field(default_factory=list)
    drained: set[Node] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    every_pipe: tuple[Node, ...] = ()

    def faults(self) -> Iterator[str]:
        """What is wrong in the order of the trace, with the number of the step."""
        for number, step in enumerate(self.agent.steps):
            for fault in self.step(step):
                yield f"{self.agent}, step {number}: {fault}"
        for fault in self.at_exit():
            yield f"{self.agent}, at exit: {fault}"

    def step(self, step: TraceStep) -> Iterator[str]:
        """The rules for one step."""
        if step.pipe is not None:
            yield from self.remote(step, step.pipe)
        if step.op in _PIPED:
            yield from self.piped(step)
        elif step.op is Ops.COPYTO:
            yield from self.copied(step)
        elif step.op is Ops.MMA:
            yield from self.issued(step)
        elif step.op is Ops.STORE:
            yield from self.stored(step)
        elif step.op is Ops.DONE:
            self.done(step)
        elif step.op is Ops.FENCE:
            if step.node.arg.source == "registers":
                self.dirty.clear()
            else:
                self.fenced |= self.unfenced
                self.unfenced.clear()
        elif step.op is Ops.BARRIER:
            self.met.add(step.node.arg.scope)
            self.fenced.clear()
            self.stores = [store for store in self.stores if not store[1]]

    def remote(self, step: TraceStep, pipe: Node) -> Iterator[str]:
        """A pipe is used only after its barriers are known to be made everywhere it reaches."""
        scope = pipe.arg.scope
        if scope not in self.met and "cluster" not in self.met:
            yield f"{step.op.name} before a barrier of the {scope} after the pipe was made"
            self.met.add(scope)

    def piped(self, step: TraceStep) -> Iterator[str]:
        """ACQUIRE to COMMIT, WAIT to RELEASE."""
        pipe, counter = step.pipe, step.counter
        assert pipe is not None
        held = self.held.setdefault(pipe, [])
        if step.op in (Ops.ACQUIRE, Ops.WAIT):
            held.append(counter)
            self.drained.discard(pipe)
        elif step.op is Ops.DRAIN:
            self.drained.add(pipe)
        else:
            if step.op is Ops.RELEASE and any((pipe, counter) in g[2] for g in self.groups):
                yield f"RELEASE of counter {counter} while matrix instructions read it"
            if counter not in held:
                yield f"{step.op.name} of counter {counter}, which is not held"
            else:
                held.remove(counter)

    def holds(self, step: TraceStep, regions: frozenset[Region]) -> Iterator[str]:
        """Slots of a pipe are touched only while they are held."""
        for pipe in self.every_pipe:
            for buffer, where in regions:
                if buffer in pipe.src:
                    slots = [c % pipe.arg.depth for c in self.held.get(pipe, ())]
                    if where[:1] == () or where[0] not in slots:
                        yield f"{step.op.name} touches {buffer.arg.name}{list(where)}, not held"

    def copied(self, step: TraceStep) -> Iterator[str]:
        """Bulk copies: into a held slot, or out of what was fenced and met over."""
        if step.pipe is not None:
            yield from self.holds(step, step.writes)
            if step.counter not in self.held.get(step.pipe, ()):
                yield f"a copy completes on counter {step.counter}, which is not acquired"
            return
        for region in step.reads:
            if region in self.unfenced:
                yield f"a bulk store of {_name(region)} without a fence from generic to async"
            elif region in self.fenced:
                yield f"a bulk store of {_name(region)} without a barrier after the fence"
        self.stores.append((step.reads, False))

    def issued(self, step: TraceStep) -> Iterator[str]:
        """Matrix instructions: operands held and fenced, registers fenced."""
        shared = frozenset(region for region in step.reads if not in_registers(region))
        registers = frozenset(region for region in step.reads if in_registers(region))
        yield from self.holds(step, shared)
        for region in (registers | step.writes) & self.dirty:
            yield f"MMA uses {_name(region)} without a fence from registers to wgmma"
        for region in shared & (self.unfenced | self.fenced):
            yield f"MMA reads {_name(region)} without fence and barrier"
        (total,) = step.writes
        slots = set()
        for pipe, held in self.held.items():
            for buffer, where in shared:
                if buffer in pipe.src:
                    # Of several counters that are held of one slot, the latest is what lies there.
                    now = [c for c in held if c % pipe.arg.depth == where[0]]
                    slots |= {(pipe, max(now))} if now else set()
        self.groups.append((total, step.reads, frozenset(slots)))

    def stored(self, step: TraceStep) -> Iterator[str]:
        """Lanes: no register in flight, no staging that may still be read."""
        for total, reads, _ in self.groups:
            if total in step.reads | step.writes:
                yield f"{_name(total)} is touched while matrix instructions are in flight"
            for region in step.writes & reads:
                yield f"{_name(region)} is written while matrix instructions read it"
        for region in step.writes:
            if in_registers(region):
                continue
            if any(region in reads for reads, _ in self.stores):
                yield f"{_name(region)} is rewritten while a bulk store may read it"
            self.unfenced.add(region)
        self.dirty |= {r for r in step.reads | step.writes if in_registers(r)}
        yield from self.holds(step, step.reads | step.writes)

    def done(self, step: TraceStep) -> None:
        """Older groups are complete."""
        keep = step.node.arg.keep
        if step.node.arg.engine == "mma":
            self.groups = self.groups[max(len(self.groups) - keep, 0) :]
        else:
            old = max(len(self.stores) - keep, 0)
            self.stores = [(reads, done or i < old) for i, (reads, done) in enumerate(self.stores)]

    def at_exit(self) -> Iterator[str]:
        """Nothing is in flight, and no peer will come."""
        if self.groups:
            yield "matrix instructions are in flight"
        if any(not done for _, done in self.stores):
            yield "a bulk store may still read shared memory"
        for pipe, held in self.held.items():
            if held:
                yield f"{pipe.arg.name} is still held for counters {held[:4]}"
            producing = pipe.arg.producer == self.agent.role.name
            if producing and pipe.arg.scope == "cluster" and pipe not in self.drained:
                yield f"{pipe.arg.name} is not drained: a peer may still arrive"


def _name(region: Region) -> str:
    buffer, where = region
    return f"{buffer.arg.name}{list(where) if where else ''}"

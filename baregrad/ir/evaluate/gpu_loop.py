"""Executor of the GPU's loop level, under hostile timing.

A block's roles run as threads of control, one per warpgroup (one for an elected thread), in random
order, statement by statement. Parities alias, bytes land in pieces, matrix instructions read their
operands at retirement, reused buffers hold what is really there. A kernel that depends on luck
gives a wrong result, a deadlock that says who waits for what, or a ProtocolError.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.alu import Array, to_raw
from baregrad.ir.evaluate.gpu_cluster import Blocked, Cluster, ClusterBlock, Group, wait_for
from baregrad.ir.evaluate.loop_level import Expression, LoopMachine, flat_arguments, poisoned
from baregrad.ir.protocol.attributes import ProtocolError, Role
from baregrad.ir.protocol.derive import box_axes, box_nbytes
from baregrad.target.gpu import GpuTarget

_LAUNCHED = ("grid", "cluster", "warpgroup")


def evaluate_gpu(
    kernel: Node,
    params: Sequence[Array] | Mapping[int, Array],
    target: GpuTarget,
    variables: Mapping[str, int] | None = None,
    seed: int = 0,
) -> None:
    """Run a loop-level KERNEL of a GPU in place on its argument arrays, one schedule per seed.

    params, variables: as `evaluate_loop` takes them. Clusters run one after the other, the blocks
    of a cluster together. Raises ProtocolError for deadlocks and broken protocols.
    """
    if kernel.op is not Ops.KERNEL:
        raise CompilerBug("not a KERNEL", found=kernel)
    memory = flat_arguments(params)
    rng = random.Random(seed)
    clusters = list(range(int(np.prod(kernel.arg.grid, dtype=np.int64))))
    rng.shuffle(clusters)
    for number in clusters:
        launch = Launched(kernel, Cluster(target, number, rng))
        launch.cluster.run(list(launch.threads(memory, variables or {})))


class Launched:
    """The blocks of one cluster of a kernel."""

    def __init__(self, kernel: Node, cluster: Cluster) -> None:
        self.kernel = kernel
        self.cluster = cluster
        size = kernel.arg.cluster
        self.blocks = [LoopBlock(rank, cluster.number * size + rank) for rank in range(size)]
        self.pipes = [node for node in toposort(kernel) if node.op is Ops.PIPE]
        # Buffers whose first index is a slot, even of a ring of one.
        self.rings = frozenset(buffer for pipe in self.pipes for buffer in pipe.src)
        self.roles: list[Role] = [n.arg for n in toposort(kernel) if n.op is Ops.ROLE]

    def threads(
        self, memory: Mapping[int, Array], variables: Mapping[str, int]
    ) -> Iterator[ControlThread]:
        """A thread of control for each warpgroup of each role of each block."""
        kernel, cluster = self.kernel, self.cluster
        ranges = [node for node in toposort(kernel) if node.op is Ops.RANGE]
        axes = [axis for axis in ranges if axis.arg.bind in _LAUNCHED]
        for block in self.blocks:
            for role in self.roles or [Role("all", kernel.arg.warps)]:
                for group in range(role.agents(cluster.target)):
                    place = (cluster.number, block.rank, group)
                    where = dict(zip(_LAUNCHED, place, strict=True))
                    thread = ControlThread(self, block, role, group, memory, dict(variables))
                    thread.counters.update({axis: where[axis.arg.bind] for axis in axes})
                    yield thread

    def set_up(self, block: LoopBlock) -> None:
        """The first thread that runs in a block makes its barriers."""
        if block.barriers:
            return
        for pipe in self.pipes:
            facts = pipe.arg
            if not facts.full_arrivals or not facts.empty_arrivals:
                raise ProtocolError(f"the pipe {facts.name} has no arrival counts", found=facts)
            counts = (("full", facts.full_arrivals), ("empty", facts.empty_arrivals))
            for slot in range(facts.depth):
                for side, count in counts:
                    name = f"{side}[{slot}] of {facts.name} in {block}"
                    key = (facts.name, side, slot)
                    block.barriers[key] = self.cluster.mbarrier(name, count)

    def meet(self, thread: ControlThread, scope: str) -> Blocked | None:
        """A thread comes to a BARRIER."""
        if scope == "warpgroup":
            return None
        blocks = self.blocks if scope == "cluster" else [thread.block]
        if any(block.running < block.size for block in blocks):
            raise ProtocolError(f"{thread} meets at the barrier of a {scope} that some have left")
        key = (scope,) if scope == "cluster" else (scope, thread.block.rank)
        return self.cluster.meet(key, sum(block.size for block in blocks))


class LoopBlock(ClusterBlock):
    """A block whose shared memory is seen by lanes and by engines, each in its own view."""

    def __init__(self, rank: int, number: int) -> None:
        super().__init__(rank, number)
        self.views: dict[tuple[Node, str], Array] = {}
        self.size = 0

    def memory(self, buffer: Node, view: str = "lanes") -> Array:
        """The flat memory of a shared buffer in one of the views; poison until written."""
        if (buffer, view) not in self.views:
            count = int(np.prod(buffer.shape, dtype=np.int64)) * buffer.arg.depth
            self.views[buffer, view] = poisoned(count, buffer.dtype)
        return self.views[buffer, view]


class ControlThread(LoopMachine):
    """The state of one thread of control; `step` runs one statement."""

    def __init__(
        self,
        launch: Launched,
        block: LoopBlock,
        role: Role,
        group: int,
        memory: Mapping[int, Array],
        variables: dict[str, int],
    ) -> None:
        super().__init__(variables, None, memory)
        self.launch = launch
        self.cluster = launch.cluster
        self.block = block
        self.role = role
        self.group = group
        self.pace = (block.rank, role.name)
        self.view = "lanes"
        self.stack: list[Any] = [launch.kernel]
        self.blocked: Blocked | None = None
        self.groups: list[Group] = []
        self.stores: list[Group] = []
        # Accumulators that the matrix unit holds; their registers are poison meanwhile.
        self.hidden: dict[Node, Array] = {}
        self.unfenced_registers: set[Node] = set()
        # Ordinary writes to shared memory that engines do not see yet: before, and after a fence.
        self.unfenced: list[tuple[Node, Array]] = []
        self.fenced: list[tuple[Node, Array]] = []
        block.size += 1

    def __str__(self) -> str:
        return f"{self.role.name}[{self.group}] of {self.block}"

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return not self.stack and self.blocked is None

    def step(self) -> None:
        """Run one statement, or find that it has to wait."""
        self.launch.set_up(self.block)
        self.blocked = None
        while (item := self.statement(self.stack)) is not None:
            if item.op is Ops.ROLE:
                if item.arg.name == self.role.name:
                    self.stack.append(item.src[0])
                continue
            rule = _RULES.get(item.op)
            if rule is None:
                raise CompilerBug("not a statement of the GPU's loop level", found=item)
            rule(self, item)
            return

    def wait(self, node: Node, what: Callable[[], str], over: Callable[[], bool]) -> bool:
        """Whether a condition holds; if not, the statement is tried again when it does."""
        if over():
            return True
        self.stack.append(node)
        self.blocked = Blocked(what, over)
        return False

    def check_exit(self) -> None:
        """Raise ProtocolError if something of this thread's is still in flight."""
        if self.groups:
            raise ProtocolError(f"{self} exits with matrix instructions in flight")
        if any(not store.waited for store in self.stores):
            raise ProtocolError(f"{self} exits while a bulk store reads its shared memory")

    # --- memory ---------------------------------------------------------------------------------

    def buffer(self, node: Node) -> Array:
        """The flat memory of a PARAM or ALLOC, in the present view."""
        if _space(node) == "shared":
            self.block.touch(node.arg.name)
            return self.block.memory(node, self.view)
        return super().buffer(node)

    def shape(self, node: Node) -> tuple[int, ...]:
        """The extents of a buffer; slots come first, be it the only one of a ring."""
        extents = super().shape(node)
        return (1, *extents) if node in self.launch.rings and node.arg.depth == 1 else extents

    def frozen(self, view: str) -> ControlThread:
        """This thread as it is now, seeing shared memory in a view: what an engine was given."""
        copy = object.__new__(ControlThread)
        copy.__dict__.update(self.__dict__)
        copy.counters = dict(self.counters)
        copy.view = view
        return copy

    def store(self, node: Node) -> None:
        """STORE by the lanes."""
        target = node.src[0]
        if _space(target) == "register":
            self.unfenced_registers.add(target)
        elif _space(target) == "shared":
            places = self.places(node, target, node.src[2:])
            for flying in self.stores:
                if flying.buffer is target and not flying.places.isdisjoint(places.tolist()):
                    raise ProtocolError(
                        f"{self} rewrites {target.arg.name} while a bulk store may read it"
                    )
            self.unfenced.append((target, places))
        self._store(node)

    def places(self, node: Node, target: Node, indices: tuple[Node, ...]) -> Array:
        """Flat positions that a statement's indices touch, in row-major order of its box."""
        scope = Expression(self)
        return scope.matrix(scope.offset(target, indices), box_axes(node))

    def box(self, node: Node) -> Array:
        """The tile that a COPYTO moves, as raw codes in row-major order of its box."""
        scope = Expression(self)
        return to_raw(scope.matrix(scope.value(node.src[1]), box_axes(node)), node.src[0].dtype)


def _space(buffer: Node) -> str:
    """Where a buffer is; device memory for arguments."""
    return str(buffer.arg.space) if buffer.op is Ops.ALLOC else "device"


# --- pipes ---------------------------------------------------------------------------------------


def _turn(thread: ControlThread, node: Node) -> tuple[Any, int, int]:
    """The pipe's facts, the slot of a counter, and how often the slot was used before."""
    facts = node.src[0].arg
    counter = int(thread.scalar(node.src[1]))
    return facts, counter % facts.depth, counter // facts.depth


def _acquire(thread: ControlThread, node: Node) -> None:
    facts, slot, lap = _turn(thread, node)
    empty = thread.block.barrier((facts.name, "empty", slot))
    parity = (lap & 1) ^ 1
    if thread.wait(node, lambda: f"{empty}, parity {parity}", lambda: empty.passes(parity)):
        full = thread.block.barrier((facts.name, "full", slot))
        full.arrive(facts.full_nbytes)


def _wait(thread: ControlThread, node: Node) -> None:
    facts, slot, lap = _turn(thread, node)
    full = thread.block.barrier((facts.name, "full", slot))
    thread.wait(node, lambda: f"{full}, parity {lap & 1}", lambda: full.passes(lap & 1))


def _release(thread: ControlThread, node: Node) -> None:
    facts, slot, _ = _turn(thread, node)
    blocks = thread.launch.blocks if facts.scope == "cluster" else [thread.block]
    for block in blocks:
        block.barrier((facts.name, "empty", slot)).arrive()


def _drain(thread: ControlThread, node: Node) -> None:
    facts = node.src[0].arg
    count = int(thread.scalar(node.src[1]))
    uses = [(use % facts.depth, use // facts.depth & 1) for use in range(count)][-facts.depth :]
    barriers = [(thread.block.barrier((facts.name, "empty", slot)), p) for slot, p in uses]
    thread.wait(
        node,
        lambda: "a drain of " + ", ".join(str(b) for b, p in barriers if not b.passes(p)),
        lambda: all(barrier.passes(parity) for barrier, parity in barriers),
    )


# --- copies --------------------------------------------------------------------------------------


def _copy(thread: ControlThread, node: Node) -> None:
    engine = {"tma": _bulk_load, "tma_store": _bulk_store}.get(node.arg.engine)
    if engine is None:
        raise CompilerBug("an engine that nobody knows", found=node.arg)
    engine(thread, node)


def _bulk_load(thread: ControlThread, node: Node) -> None:
    """Pieces of the tile land at random times; each completes its bytes on the slot's barrier."""
    target, pipe = node.src[0], node.src[-2]
    counter = int(thread.scalar(node.src[-1]))
    indices = node.src[2:-2]
    data = thread.box(node)
    places = thread.places(node, target, indices)
    nbytes = box_nbytes(node) // places.size

    def land(block: LoopBlock, piece: Array) -> None:
        barrier = block.barrier((pipe.arg.name, "full", counter % pipe.arg.depth))
        for view in ("lanes", "async"):
            block.memory(target, view)[places[piece]] = data[piece]
        barrier.complete(piece.size * nbytes)

    blocks = thread.launch.blocks if node.arg.multicast else [thread.block]
    thread.cluster.deliver(blocks, places.size, land)


def _bulk_store(thread: ControlThread, node: Node) -> None:
    """The copy reads shared memory, as engines see it, when it completes."""
    read = node.src[1]
    source = read.src[0]
    target, indices = node.src[0], node.src[2:]
    engine = thread.frozen("async")
    reading = frozenset(thread.places(node, source, read.src[1:]).tolist())

    def complete() -> None:
        data = engine.box(node)
        engine.memory[target.arg.slot][engine.places(node, target, indices)] = data

    group = Group([complete], source, reading)
    thread.stores.append(group)
    if not thread.cluster.lazy:
        thread.cluster.events.append(group.finish)


# --- the matrix unit -----------------------------------------------------------------------------


def _mma(thread: ControlThread, node: Node) -> None:
    total, a, b, keep, *axes = node.src
    loaded = {load.src[0] for load in toposort(a) if load.op is Ops.LOAD}
    registers = {array for array in loaded if _space(array) == "register"}
    kept = bool(thread.scalar(keep))
    dirty = thread.unfenced_registers.intersection(registers | ({total} if kept else set()))
    engine = thread.frozen("async")
    if total not in thread.hidden:
        thread.hidden[total] = np.array(thread.buffer(total))
    thread.buffer(total)[:] = poisoned(thread.buffer(total).size, total.dtype)
    if not kept:
        thread.hidden[total] = np.zeros_like(thread.hidden[total])

    def retire() -> None:
        scope = Expression(engine)
        left = scope.matrix(scope.value(a), axes[:1], axes[2:])
        right = scope.matrix(scope.value(b), axes[1:2], axes[2:])
        product = left.astype(np.float64) @ right.astype(np.float64).T
        if dirty:
            product[:] = np.nan
        old = thread.hidden[total] if kept else np.zeros(product.size, np.float32)
        thread.hidden[total] = (old + product.reshape(-1)).astype(np.float32)

    def by_itself() -> None:
        """Those before it retire first."""
        while not group.done:
            thread.groups.pop(0).finish()

    group = Group([retire], total)
    thread.groups.append(group)
    if not thread.cluster.lazy:
        thread.cluster.events.append(by_itself)


def _done(thread: ControlThread, node: Node) -> None:
    keep = node.arg.keep
    if node.arg.engine == "mma":
        while len(thread.groups) > keep:
            thread.groups.pop(0).finish()
        flying = {group.buffer for group in thread.groups}
        for total in [held for held in thread.hidden if held not in flying]:
            thread.buffer(total)[:] = thread.hidden.pop(total)
        return
    wait_for(thread.stores, keep)


# --- order ---------------------------------------------------------------------------------------


def _barrier(thread: ControlThread, node: Node) -> None:
    for buffer, places in thread.fenced:
        thread.block.memory(buffer, "async")[places] = thread.block.memory(buffer)[places]
    thread.fenced = []
    # A store that was read by luck, without DONE, stays a danger; so does one whose reading only
    # the issuing thread has waited for, until the others hear of it here.
    thread.stores = [group for group in thread.stores if not group.waited]
    thread.blocked = thread.launch.meet(thread, node.arg.scope)


def _fence(thread: ControlThread, node: Node) -> None:
    if node.arg.source == "registers":
        thread.unfenced_registers.clear()
    else:
        thread.fenced += thread.unfenced
        thread.unfenced = []


def _nothing(thread: ControlThread, node: Node) -> None:
    """COMMIT of a pipe that engines fill: the arriving bytes complete the phase."""


_RULES: MappingProxyType[Op, Callable[[ControlThread, Node], None]] = MappingProxyType({
    Ops.STORE: ControlThread.store,
    Ops.ACQUIRE: _acquire,
    Ops.COMMIT: _nothing,
    Ops.WAIT: _wait,
    Ops.RELEASE: _release,
    Ops.DRAIN: _drain,
    Ops.COPYTO: _copy,
    Ops.MMA: _mma,
    Ops.DONE: _done,
    Ops.BARRIER: _barrier,
    Ops.FENCE: _fence,
})  # fmt: skip

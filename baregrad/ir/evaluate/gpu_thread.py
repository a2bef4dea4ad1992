"""One thread of control of the GPU's loop level: a warpgroup, or an elected thread."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.alu import to_raw
from baregrad.ir.evaluate.gpu_state import Array, Block, Blocked, MmaGroup, StoreGroup
from baregrad.ir.evaluate.loop_level import (
    STRUCTURE,
    Expression,
    LoopMachine,
    Tile,
    poisoned,
    tile_of,
)
from baregrad.ir.protocol.attributes import ProtocolError, Role
from baregrad.ir.protocol.derive import box_nbytes

if TYPE_CHECKING:
    from baregrad.ir.evaluate.gpu_loop import Cluster


class Thread(LoopMachine):
    """The state of one thread of control; `step` runs one statement."""

    def __init__(
        self,
        cluster: Cluster,
        block: Block,
        role: Role,
        group: int,
        memory: dict[int, Array],
        variables: dict[str, int],
        counters: dict[Node, int],
    ) -> None:
        super().__init__(variables, None)
        self.cluster = cluster
        self.block = block
        self.role = role
        self.group = group
        for slot, array in memory.items():
            self.memory[slot] = array
        self.counters.update(counters)
        self.view = "lanes"
        self.stack: list[Any] = [cluster.kernel]
        self.blocked: Blocked | None = None
        self.groups: list[MmaGroup] = []
        self.stores: list[StoreGroup] = []
        # Accumulators that the matrix unit holds; their registers are poison meanwhile.
        self.hidden: dict[Node, Array] = {}
        self.unfenced_registers: set[Node] = set()
        # Ordinary writes to shared memory that engines do not see yet: before, and after a fence.
        self.unfenced: list[tuple[Node, Array]] = []
        self.fenced: list[tuple[Node, Array]] = []

    def __str__(self) -> str:
        return f"{self.role.name}[{self.group}] of {self.block}"

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return not self.stack and self.blocked is None

    def step(self) -> None:
        """Run one statement, or find that it has to wait."""
        self.cluster.set_up(self.block)
        self.blocked = None
        while self.stack:
            item = self.stack.pop()
            if not isinstance(item, Node):
                item(self.stack)
                continue
            if item.op is Ops.ROLE:
                if item.arg.name == self.role.name:
                    self.stack.append(item.src[0])
                continue
            if item.op in STRUCTURE:
                self.structure(item, self.stack)
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
        if any(not store.awaited for store in self.stores):
            raise ProtocolError(f"{self} exits while a bulk store reads its shared memory")

    # --- memory ---------------------------------------------------------------------------------

    def buffer(self, node: Node) -> Array:
        """The flat memory of a PARAM or ALLOC, in the present view."""
        if node.op is Ops.ALLOC and node.arg.space == "shared":
            self.block.touch(node.arg.name)
            return self.block.memory(node, self.view)
        return super().buffer(node)

    def shape(self, node: Node) -> tuple[int, ...]:
        """The extents of a buffer; slots come first, be it the only one of a ring."""
        extents = super().shape(node)
        return (1, *extents) if node in self.cluster.rings and node.arg.depth == 1 else extents

    def frozen(self, view: str) -> Thread:
        """This thread as it is now, seeing shared memory in a view: what an engine was given."""
        copy = object.__new__(Thread)
        copy.__dict__.update(self.__dict__)
        copy.counters = dict(self.counters)
        copy.view = view
        return copy

    def store(self, node: Node) -> None:
        """STORE by the lanes."""
        target = node.src[0]
        if target.op is Ops.ALLOC and target.arg.space == "register":
            self._store(node)
            self.unfenced_registers.add(target)
            return
        if target.op is Ops.ALLOC and target.arg.space == "shared":
            places = self.places(node, target, node.src[2:])
            for flying in self.stores:
                if flying.buffer is target and not flying.places.isdisjoint(places.tolist()):
                    raise ProtocolError(
                        f"{self} rewrites {target.arg.name} while a bulk store may read it"
                    )
            self.unfenced.append((target, places))
        self._store(node)

    def places(self, node: Node, target: Node, indices: tuple[Node, ...]) -> Array:
        """Flat positions that a statement's indices touch."""
        expression = Expression(self, tile_of(node, ()))
        flat = expression.offset(target, indices, expression.masks[0])
        return np.asarray(np.broadcast_to(flat, expression.tile.extents).reshape(-1))


# --- pipes ---------------------------------------------------------------------------------------


def _turn(thread: Thread, node: Node) -> tuple[Any, int, int]:
    """The pipe's facts, the slot of a counter, and how often the slot was used before."""
    facts = node.src[0].arg
    counter = int(thread.scalar(node.src[1]))
    return facts, counter % facts.depth, counter // facts.depth


def _acquire(thread: Thread, node: Node) -> None:
    facts, slot, lap = _turn(thread, node)
    empty = thread.block.barrier(facts.name, "empty", slot)
    parity = (lap & 1) ^ 1
    if thread.wait(node, lambda: f"{empty}, parity {parity}", lambda: empty.passes(parity)):
        full = thread.block.barrier(facts.name, "full", slot)
        full.expect(facts.full_nbytes)
        full.arrive()


def _wait(thread: Thread, node: Node) -> None:
    facts, slot, lap = _turn(thread, node)
    full = thread.block.barrier(facts.name, "full", slot)
    thread.wait(node, lambda: f"{full}, parity {lap & 1}", lambda: full.passes(lap & 1))


def _release(thread: Thread, node: Node) -> None:
    facts, slot, _ = _turn(thread, node)
    blocks = thread.cluster.blocks if facts.scope == "cluster" else [thread.block]
    for block in blocks:
        block.barrier(facts.name, "empty", slot).arrive()


def _drain(thread: Thread, node: Node) -> None:
    facts = node.src[0].arg
    count = int(thread.scalar(node.src[1]))
    uses = [(use % facts.depth, use // facts.depth & 1) for use in range(count)][-facts.depth :]
    barriers = [(thread.block.barrier(facts.name, "empty", slot), p) for slot, p in uses]
    thread.wait(
        node,
        lambda: "a drain of " + ", ".join(str(b) for b, p in barriers if not b.passes(p)),
        lambda: all(barrier.passes(parity) for barrier, parity in barriers),
    )


# --- copies --------------------------------------------------------------------------------------


def _copy(thread: Thread, node: Node) -> None:
    if node.arg.engine == "tma":
        _bulk_load(thread, node)
    elif node.arg.engine == "tma_store":
        _bulk_store(thread, node)
    else:
        raise CompilerBug("an engine that nobody knows", found=node.arg)


def _tile_value(thread: Thread, node: Node) -> tuple[Array, Expression]:
    """The tile that a COPYTO moves, as raw codes in row-major order of its box."""
    expression = Expression(thread, tile_of(node, ()))
    value = np.broadcast_to(expression.value(node.src[1]), expression.tile.extents)
    return to_raw(value.reshape(-1), node.src[0].dtype), expression


def _bulk_load(thread: Thread, node: Node) -> None:
    """Pieces of the tile land at random times; each completes its bytes on the slot's barrier."""
    target, pipe = node.src[0], node.src[-2]
    counter = int(thread.scalar(node.src[-1]))
    indices = node.src[2:-2]
    data, _ = _tile_value(thread, node)
    places = thread.places(node, target, indices)
    pieces = np.array_split(np.arange(places.size), thread.cluster.rng.randint(1, 4))
    blocks = thread.cluster.blocks if node.arg.multicast else [thread.block]
    nbytes = box_nbytes(node) // places.size
    for block in blocks:
        for piece in pieces:

            def land(block: Block = block, piece: Array = piece) -> None:
                barrier = block.barrier(pipe.arg.name, "full", counter % pipe.arg.depth)
                for view in ("lanes", "async"):
                    block.memory(target, view)[places[piece]] = data[piece]
                barrier.complete(int(piece.size) * nbytes)

            thread.cluster.later(f"a copy to {target.arg.name} of {block}", land)


def _bulk_store(thread: Thread, node: Node) -> None:
    """The copy reads shared memory, as engines see it, when it completes."""
    read = node.src[1]
    source = read.src[0]
    target, indices = node.src[0], node.src[2:]
    engine = thread.frozen("async")
    reading = frozenset(thread.places(node, source, read.src[1:]).tolist())

    def complete() -> None:
        if not group.read:
            group.read = True
            data, _ = _tile_value(engine, node)
            engine.memory[target.arg.slot][engine.places(node, target, indices)] = data

    group = StoreGroup(source, reading, complete)
    thread.stores.append(group)
    if not thread.cluster.lazy:
        thread.cluster.later(f"a store of {source.arg.name}", complete)


# --- the matrix unit -----------------------------------------------------------------------------


def _mma(thread: Thread, node: Node) -> None:
    total, a, b, keep, *axes = node.src
    registers = {n.src[0] for n in toposort(a) if n.op is Ops.LOAD and _in_registers(n.src[0])}
    kept = bool(thread.scalar(keep))
    dirty = thread.unfenced_registers.intersection(registers | ({total} if kept else set()))
    engine = thread.frozen("async")
    if total not in thread.hidden:
        thread.hidden[total] = np.array(thread.buffer(total))
    thread.buffer(total)[:] = poisoned(thread.buffer(total).size, total.dtype)
    if not kept:
        thread.hidden[total] = np.zeros_like(thread.hidden[total])

    def retire() -> None:
        if group.retired:
            return
        if thread.groups and thread.groups[0] is not group:
            thread.groups[0].retire()
            retire()
            return
        group.retired = True
        thread.groups.remove(group)
        left = _operand(engine, a, (axes[0], axes[2]))
        right = _operand(engine, b, (axes[1], axes[2]))
        product = left.astype(np.float64) @ right.astype(np.float64).T
        if dirty:
            product[:] = np.nan
        old = thread.hidden[total] if kept else np.zeros(product.size, np.float32)
        thread.hidden[total] = (old + product.reshape(-1)).astype(np.float32)

    group = MmaGroup(total, retire)
    thread.groups.append(group)
    if not thread.cluster.lazy:
        thread.cluster.later(f"matrix instructions of {thread}", retire)


def _in_registers(node: Node) -> bool:
    return node.op is Ops.ALLOC and node.arg.space == "register"


def _operand(engine: Thread, value: Node, axes: tuple[Node, Node]) -> Array:
    """The matrix of an operand over its two tile ranges."""
    tile = Tile()
    for axis in axes:
        tile.axes[axis] = len(tile.extents)
        tile.extents.append(int(axis.src[0].arg))
    found = Expression(engine, tile).value(value)
    return np.asarray(np.broadcast_to(found, tile.extents))


def _done(thread: Thread, node: Node) -> None:
    keep = node.arg.keep
    if node.arg.engine == "mma":
        while len(thread.groups) > keep:
            thread.groups[0].retire()
        flying = {group.total for group in thread.groups}
        for total in [held for held in thread.hidden if held not in flying]:
            thread.buffer(total)[:] = thread.hidden.pop(total)
        return
    for group in thread.stores[: max(len(thread.stores) - keep, 0)]:
        group.complete()
        group.awaited = True


# --- order ---------------------------------------------------------------------------------------


def _barrier(thread: Thread, node: Node) -> None:
    for buffer, places in thread.fenced:
        thread.block.memory(buffer, "async")[places] = thread.block.memory(buffer)[places]
    thread.fenced = []
    # A store that was read by luck, without DONE, stays a danger; so does one whose reading only
    # the issuing thread has waited for, until the others hear of it here.
    thread.stores = [group for group in thread.stores if not group.awaited]
    thread.blocked = thread.cluster.meet(thread, node.arg.scope)


def _fence(thread: Thread, node: Node) -> None:
    if node.arg.source == "registers":
        thread.unfenced_registers.clear()
    else:
        thread.fenced += thread.unfenced
        thread.unfenced = []


def _nothing(thread: Thread, node: Node) -> None:
    """COMMIT of a pipe that engines fill: the arriving bytes complete the phase."""


_RULES: MappingProxyType[Op, Callable[[Thread, Node], None]] = MappingProxyType(
    {
        Ops.STORE: Thread.store,
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
    }
)

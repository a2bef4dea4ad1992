"""Branches, ends, and barriers. Source: PTX ISA, "Control Flow", "bar", "barrier".

These move the threads' program counters themselves, since some threads may have to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import WARP, Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.errors import DivergentBarrier, KernelFault
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, Reader
from baregrad.testing.virtual_gpu.ptx.states import AT_BARRIER, AT_CLUSTER, AT_WARP, DONE, RUNS
from baregrad.testing.virtual_gpu.ptx.syntax import Identifier, PtxInstruction
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array

# What a control does with the threads that it is for.
Body = Callable[[Block, Index], None]


def proceed(block: Block, index: Index) -> None:
    """Send threads on to the instruction that follows."""
    block.counter[index] = block.step + 1


def choose(guard: Reader | None, block: Block, index: Index) -> Index:
    """Send on the threads whose guard is false; return the others."""
    if guard is None:
        return index
    chosen = guard(block, index)
    if chosen.all():
        return index
    ids = block.ids(index)
    chosen = block.full(index, chosen)
    proceed(block, ids[~chosen])
    return ids[chosen]


def empty(block: Block, index: Index) -> bool:
    """Whether an index names no thread."""
    return not isinstance(index, slice) and not len(index)


def guarded(decoder: Decoder, instruction: PtxInstruction, body: Body) -> Execute:
    """Return the control that runs `body` for the threads whose guard holds, if there are any.

    `body` sends them on, or leaves them waiting.
    """
    guard = decoder.guard(instruction)

    def run(block: Block, index: Index) -> None:
        index = choose(guard, block, index)
        if not empty(block, index):
            body(block, index)

    return run


# ---- branches and ends --------------------------------------------------------------------------


def branch(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`bra`."""
    target = decoder.label(instruction, instruction.operands[0])
    guard = decoder.guard(instruction)
    uniform = instruction.has("uni")

    def run(block: Block, index: Index) -> None:
        if guard is None:
            block.counter[index] = target
            return
        taken = guard(block, index)
        if uniform and taken.any() and not taken.all():
            ids = block.ids(index)
            of = ids // block.each
            parted = ~taken & np.isin(of, of[taken])
            if parted.any():
                thread = int(ids[int(np.argmax(parted))])
                block.fault(DivergentBarrier, "threads part at a branch marked uniform", thread)
        block.counter[index] = np.where(taken, target, block.step + 1)

    return run


def branch_by_index(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`brx.idx`: a branch to one of a list of labels."""
    read = decoder.read(instruction, instruction.operands[0], TYPES["u32"])
    table = instruction.operands[1]
    names: tuple[str, ...] = ()
    if isinstance(table, Identifier):
        for scope in decoder.kernel.chain(instruction.scope):
            names = names or decoder.kernel.branch_tables.get((scope, table.text), ())
    if not names:
        decoder.refuse(instruction, "no list of branch targets")
    targets = np.array([decoder.label(instruction, Identifier(one)) for one in names])

    def body(block: Block, index: Index) -> None:
        choice = read(block, index)
        if (choice >= len(targets)).any():
            block.fault(KernelFault, "an index beyond the list of branch targets")
        block.counter[index] = targets[choice]

    return guarded(decoder, instruction, body)


def finish(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`ret` and `exit`."""
    guard = decoder.guard(instruction)

    def run(block: Block, index: Index) -> None:
        block.state[choose(guard, block, index)] = DONE
        block.cluster.settle()

    return run


def trap(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`trap`."""

    def body(block: Block, index: Index) -> None:
        block.fault(KernelFault, "the kernel trapped", int(block.ids(index)[0]))

    return guarded(decoder, instruction, body)


# ---- whole warps --------------------------------------------------------------------------------


def gather_warps(
    block: Block, index: Index, masks: Array | None, what: str = "its warp's instruction"
) -> Array:
    """Return the threads whose mask's lanes are all here; the others wait.

    `masks` is (n,) uint32, the lanes that each thread names; None names all lanes of the warp.
    """
    ids = block.ids(index)
    if masks is None:
        if isinstance(index, slice):
            return ids
        masks = np.full(len(ids), 0xFFFFFFFF, np.uint32)
    here = np.zeros(block.warps * WARP, bool)
    here[ids] = True
    ends = np.ones(block.warps * WARP, bool)
    ends[: block.count] = block.state == DONE
    weights = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
    present = (here.reshape(-1, WARP) * weights).sum(axis=1)
    exists = np.zeros(block.warps * WARP, bool)
    exists[: block.count] = True
    existing = (exists.reshape(-1, WARP) * weights).sum(axis=1)
    gone = (ends.reshape(-1, WARP) * weights).sum(axis=1) & existing
    warps = ids // WARP
    asked = block.full(index, masks).astype(np.uint64) & existing[warps]
    dead = asked & gone[warps]
    if dead.any():
        at = int(np.argmax(dead != 0))
        lane = int(dead[at]).bit_length() - 1
        thread = block.thread(int(warps[at]) * WARP + lane)
        block.fault(
            DivergentBarrier, f"thread {thread}, which {what} names, has ended", int(ids[at])
        )
    own = np.uint64(1) << (ids % WARP).astype(np.uint64)
    if ((asked & own) == 0).any():
        at = int(np.argmax((asked & own) == 0))
        block.fault(DivergentBarrier, "a thread's mask does not name itself", int(ids[at]))
    ready = (asked & ~present[warps]) == 0
    waiting = ids[~ready]
    block.state[waiting] = AT_WARP
    block.counter[waiting] = block.step
    return np.asarray(ids[ready])


# ---- barriers of the block ----------------------------------------------------------------------


# As many as a block has.
_BARRIERS: Final = 16


class BlockBarrier:
    """One of a block's sixteen barriers: who has arrived, who waits, how many are needed."""

    def __init__(self, count: int) -> None:
        self.arrived = np.zeros(count, bool)
        self.waiting = np.zeros(count, bool)
        self.needed = 0
        self.values = np.zeros(count, bool)
        self.clock: Array | None = None


def barriers(block: Block) -> dict[int, BlockBarrier]:
    """Return the barriers at which somebody is, by number; of each block they have their own."""
    found: dict[int, BlockBarrier] = block.family.setdefault("barriers", {})
    return found


def barrier(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`bar` and `barrier`: `.sync`, `.arrive`, `.red`, and `.warp.sync`."""
    if instruction.has("warp"):
        return _warp_barrier(decoder, instruction)
    if instruction.has("cluster"):
        return _cluster_barrier(decoder, instruction)
    operands = list(instruction.operands)
    reduces = instruction.one_of(("popc", "and", "or")) if instruction.has("red") else ""
    target = operands.pop(0) if reduces else None
    source = operands.pop() if reduces else None
    u32, pred = TYPES["u32"], TYPES["pred"]
    number = decoder.read(instruction, operands[0], u32)
    count = decoder.read(instruction, operands[1], u32) if len(operands) > 1 else None
    value = None if source is None else decoder.read(instruction, source, pred)
    result = u32 if reduces == "popc" else pred
    write = None if target is None else decoder.write(instruction, target, result)
    arrives = instruction.has("arrive")
    plain = count is None and not arrives and not reduces
    guard = decoder.guard(instruction)

    def run(block: Block, index: Index) -> None:
        index = choose(guard, block, index)
        ids = gather_warps(block, index, None, "a barrier")
        if not len(ids):
            return
        numbers = number(block, ids)
        if plain and len(numbers) == 1 and isinstance(index, slice) and not barriers(block):
            # Everybody is here, and nobody was before.
            if block.clocks is not None:
                block.clocks.meet(block.agents(index))
            proceed(block, index)
            return
        numbers = block.full(ids, numbers) + ids // block.each * _BARRIERS
        for each in np.unique(numbers):
            here = ids[numbers == each]
            one = barriers(block).setdefault(int(each), BlockBarrier(block.count))
            needed = block.each if count is None else int(count(block, here)[0])
            _arrive(block, one, here, needed, arrives)
            if value is not None:
                one.values[here] = value(block, here)
            if _release(block, one, reduces, write):
                del barriers(block)[int(each)]

    return run


def _arrive(block: Block, one: BlockBarrier, here: Array, needed: int, arrives: bool) -> None:
    if needed % WARP and needed != block.each:
        block.fault(DivergentBarrier, f"a barrier of {needed} threads, no multiple of {WARP}")
    if one.arrived.any() and one.needed != needed:
        block.fault(
            DivergentBarrier,
            f"a barrier that some join for {one.needed} threads and others for {needed}",
            int(here[0]),
        )
    one.needed = needed
    one.arrived[here] = True
    block.counter[here] = block.step
    if arrives:
        if block.clocks is not None:
            one.clock = block.clocks.release(block.agents(here), one.clock)
        proceed(block, here)
    else:
        one.waiting[here] = True
        block.state[here] = AT_BARRIER


def _release(block: Block, one: BlockBarrier, reduces: str, write: Any) -> bool:
    """Send everybody on once all have arrived; return whether they have."""
    arrived = int(one.arrived.sum())
    if arrived < one.needed:
        return False
    waiting = np.flatnonzero(one.waiting)
    if block.clocks is not None and len(waiting):
        agents = block.agents(waiting)
        if one.clock is not None:
            block.clocks.acquire(agents, one.clock)
        block.clocks.meet(agents)
    if write is not None:
        values = one.values[one.arrived]
        found = {"popc": values.sum(), "and": values.all(), "or": values.any()}[reduces]
        write(block, waiting, np.array([found], np.uint32 if reduces == "popc" else bool))
    block.state[waiting] = RUNS
    block.counter[waiting] += 1
    return True


def _warp_barrier(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`bar.warp.sync`: orders the memory accesses of the lanes that it names."""
    mask = decoder.read(instruction, instruction.operands[0], TYPES["u32"])

    def body(block: Block, index: Index) -> None:
        ids = gather_warps(block, index, block.full(index, mask(block, index)))
        if block.clocks is not None and len(ids):
            groups = ids // WARP * (1 << 32) + block.full(ids, mask(block, ids)).astype(np.int64)
            for each in np.unique(groups):
                block.clocks.meet(block.agents(ids[groups == each]))
        proceed(block, ids)

    return guarded(decoder, instruction, body)


def _cluster_barrier(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`barrier.cluster.arrive` and `.wait`; `.aligned` ones are of whole warps."""
    guard = decoder.guard(instruction)
    waits, releases = instruction.has("wait"), not instruction.has("relaxed")
    aligned = instruction.has("aligned")

    def run(block: Block, index: Index) -> None:
        index = choose(guard, block, index)
        ids = gather_warps(block, index, None, "a barrier") if aligned else block.ids(index)
        if waits:
            may_pass = block.cluster.passing(block, ids)
            block.state[ids[~may_pass]] = AT_CLUSTER
            block.counter[ids[~may_pass]] = block.step
            ids = ids[may_pass]
        elif len(ids):
            block.cluster.arrive(block, ids, releases)
        proceed(block, ids)

    return run


FLOW: Final = MappingProxyType({
    "bra": branch, "brx": branch_by_index, "ret": finish, "exit": finish, "trap": trap,
    "bar": barrier, "barrier": barrier,
})

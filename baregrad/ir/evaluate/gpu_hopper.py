"""The instructions of Hopper's engines, which the code of warps names.

Fragments, descriptors and swizzles follow the PTX ISA (`wgmma`, `stmatrix`,
`cp.async.bulk.tensor`), as measured on an H200. A MACHINE's sources and immediates, by name:

    warp, cluster.rank, cluster.id                                a uniform int64
    mbarrier.init (count) address                                 mbarrier.fence_init
    mbarrier.arrive.expect_tx (bytes) address                     mbarrier.wait address, parity
    mbarrier.arrive.remote address, rank (one per lane)           barrier.cluster
    fence.proxy.async
    setmaxnreg (registers)                                        stmatrix address, 8 values
    tma.load (rows, columns, swizzle, multicast) array, shared, column, row, mbarrier
    tma.store (rows, columns, swizzle) array, shared, column, row
    bulk.commit   bulk.wait (keep, reads only)   wgmma.fence   wgmma.commit   wgmma.wait (keep)
    wgmma.mma (n, swizzle) a, b, scale_d, accumulators
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.alu import Array, to_array, to_raw
from baregrad.ir.evaluate.gpu_cluster import wait_for
from baregrad.ir.evaluate.gpu_thread_machine import ThreadBlock, Threads
from baregrad.ir.protocol.attributes import ProtocolError

WARP = 32


def swizzled(address: Array, bits: int) -> Array:
    """The byte addresses after the XOR of a swizzle of 16 << bits bytes."""
    mixed: Array = address ^ (((address >> 7) & ((1 << bits) - 1)) << 4)
    return mixed


def _single(warp: Threads, node: Node) -> None:
    if warp.active.sum() != 1:
        lanes = int(warp.active.sum())
        raise ProtocolError(f"{warp} runs {node.arg.name} in {lanes} lanes", wanted="one lane")


# --- barriers ------------------------------------------------------------------------------------


def _init(warp: Threads, node: Node) -> None:
    address, _ = warp.barrier_key(node.src)
    if isinstance(address, int) and address % 8:
        raise ProtocolError("a barrier's address is no multiple of 8", found=address)
    name = f"the barrier at {address} of block {warp.block.rank}"
    warp.block.barriers[address] = warp.cluster.mbarrier(name, node.arg.immediates[0])


def _expect(warp: Threads, node: Node) -> None:
    barrier = warp.barrier(node.src)
    for _ in range(int(warp.active.sum())):
        barrier.arrive(node.arg.immediates[0])


def _arrive_remote(warp: Threads, node: Node) -> None:
    addresses, ranks = (np.broadcast_to(warp.use(child), (WARP,)) for child in node.src)
    for lane in np.flatnonzero(warp.active):
        warp.blocks[int(ranks[lane])].barrier(int(addresses[lane])).arrive()


def _wait(warp: Threads, node: Node) -> None:
    key, (turn,) = warp.barrier_key(node.src)
    barrier, parity = warp.block.barrier(key), warp.uniform(turn)
    warp.again(lambda: f"{barrier}, parity {parity}", lambda: barrier.passes(parity))


def _cluster_sync(warp: Threads, node: Node) -> None:
    warp.writers.clear()
    warp.readers.clear()
    warp.blocked = warp.cluster.meet(("cluster",), sum(len(block.warps) for block in warp.blocks))


def _fence_proxy(warp: Threads, node: Node) -> None:
    writer = warp.block.writer
    writer[writer == warp.number + 1] = 0


def _setmaxnreg(warp: Threads, node: Node) -> None:
    block, wanted = warp.block, node.arg.immediates[0]
    more = wanted - block.held[warp.number]
    if not warp.again(
        lambda: f"{more} registers a thread, {block.free} are free", lambda: more <= block.free
    ):
        block.free -= more
        block.held[warp.number] = wanted


# --- copies --------------------------------------------------------------------------------------


def _box(warp: Threads, node: Node) -> tuple[Array, Array, Array]:
    """Of each element of a box: byte address in shared memory, offset in the array, inside."""
    rows, columns, bits = node.arg.immediates[:3]
    base, column, row = (warp.uniform(child) for child in node.src[1:4])
    array = node.src[0]
    size = array.dtype.bits // 8
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    if column * size % 16 or base % 128:
        raise ProtocolError("a misaligned bulk copy", found=(column, base), wanted="16 B, 128 B")
    address = swizzled(base + r * (16 << bits) + c * size, bits)
    height, width = array.shape
    y, x = row + r, column + c
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return address.reshape(-1), (y * width + x).reshape(-1), inside.reshape(-1)


def _tma_load(warp: Threads, node: Node) -> None:
    _single(warp, node)
    address, offset, inside = _box(warp, node)
    barrier = warp.uniform(node.src[4])
    array = node.src[0]
    size = array.dtype.bits // 8
    memory = warp.memory[array.arg.slot]
    data = np.where(inside, memory[np.where(inside, offset, 0)], 0).astype(memory.dtype)

    def land(block: ThreadBlock, piece: Array) -> None:
        block.touch("a copy lands")
        raw = data[piece].view(np.uint8).reshape(-1, size)
        block.shared[address[piece][:, None] + np.arange(size)] = raw
        block.barrier(barrier).complete(piece.size * size)

    blocks = warp.blocks if node.arg.immediates[3] else [warp.block]
    warp.cluster.deliver(blocks, address.size, land)


def _tma_store(warp: Threads, node: Node) -> None:
    _single(warp, node)
    address, offset, inside = _box(warp, node)
    array = node.src[0]
    memory = warp.memory[array.arg.slot]
    block = warp.block

    def complete() -> None:
        raw = block.seen(address[:, None] + np.arange(array.dtype.bits // 8))
        memory[offset[inside]] = raw.reshape(-1).view(memory.dtype)[inside]

    warp.loose["store"].work.append(complete)


# --- the matrix unit -----------------------------------------------------------------------------


def accumulator_places(n: int) -> tuple[Array, Array]:
    """Row in the warp's 16 and column of register i (first axis) of lane l, PTX ISA `wgmma`."""
    i, lane = np.meshgrid(np.arange(n // 2), np.arange(WARP), indexing="ij")
    rows = lane // 4 + 8 * ((i >> 1) & 1)
    columns = 8 * (i >> 2) + 2 * (lane % 4) + (i & 1)
    return rows, columns


def _place(warp: Threads) -> int:
    """A warp's place in its warpgroup."""
    return warp.number % warp.cluster.target.warpgroup_warps


def _k_major(block: ThreadBlock, start: int, rows: Array, bits: int) -> Array:
    """Rows of 16 bf16 of a K-major operand: 8 rows of 16 << bits bytes, then the next 8."""
    span = 16 << bits
    where = start + rows[:, None] * span + np.arange(32)[None, :]
    raw = block.seen(swizzled(where, bits))
    return to_array(np.ascontiguousarray(raw).view(np.uint16), dtypes.bfloat16)


def _mma(warp: Threads, node: Node) -> None:
    n, bits = node.arg.immediates
    a, b = warp.uniform(node.src[0]), warp.uniform(node.src[1])
    scale = bool(warp.uniform(node.src[2]))
    registers = node.src[3:]
    for register in registers:
        if register not in warp.hidden:
            warp.hidden[register] = np.array(warp.use(register), np.float32)
        warp.values[register] = np.full(WARP, np.nan, np.float32)
    rows, columns = accumulator_places(n)

    def retire() -> None:
        left = _k_major(warp.block, a, 16 * _place(warp) + np.arange(16), bits)
        right = _k_major(warp.block, b, np.arange(n), bits)
        product = left.astype(np.float64) @ right.astype(np.float64).T
        for i, register in enumerate(registers):
            old = warp.hidden[register] if scale else np.float32(0)
            warp.hidden[register] = (old + product[rows[i], columns[i]]).astype(np.float32)

    warp.loose["mma"].work.append(retire)
    warp.loose["mma"].registers.update(registers)


def _mma_commit(warp: Threads, node: Node) -> None:
    warp.commit("mma")


def _mma_wait(warp: Threads, node: Node) -> None:
    """Groups retire in order, here at the latest possible time, for all four warps together.

    The instruction belongs to the warpgroup, so it is not done before all its warps have issued it;
    that is why one warp may release a slot for the four.
    """
    keep = node.arg.immediates[0]
    wanted = len(warp.groups["mma"]) - keep
    first = warp.number - _place(warp)
    four = warp.block.warps[first : first + warp.cluster.target.warpgroup_warps]
    if not warp.lanes_are_threads:
        # All of their groups are in step.
        four = (warp,)
    if warp.again(
        lambda: "the other warps of its warpgroup to issue",
        lambda: all(len(one.groups["mma"]) >= wanted for one in four),
    ):
        return
    for one in four:
        wait_for(one.groups["mma"], len(one.groups["mma"]) - max(wanted, 0))
    groups = (*warp.groups["mma"], warp.loose["mma"])
    busy = {one for group in groups if not group.done for one in group.registers}
    for register in [one for one in warp.hidden if one not in busy]:
        warp.values[register] = warp.hidden.pop(register)


def _stmatrix(warp: Threads, node: Node) -> None:
    """Register pair i of lane l: [l/4][2(l%4)] and the next, of the matrix of lanes 8i..8i+7."""
    addresses = np.broadcast_to(warp.use(node.src[0]), (WARP,))
    lane = np.arange(WARP)
    for position, value in enumerate(node.src[1:]):
        matrix, half = divmod(position, 2)
        where = addresses[8 * matrix + lane // 4] + 4 * (lane % 4) + 2 * half
        raw = to_raw(np.broadcast_to(warp.use(value), (WARP,)), dtypes.bfloat16)
        both = where[:, None] + np.arange(2)
        warp.block.shared[both] = raw.view(np.uint8).reshape(WARP, 2)
        warp.block.writer[both] = warp.number + 1


HOPPER_INSTRUCTIONS: MappingProxyType[str, Callable[[Threads, Node], None]] = MappingProxyType({
    "warp": lambda warp, node: warp.give(node, warp.number),
    "cluster.rank": lambda warp, node: warp.give(node, warp.block.rank),
    "cluster.id": lambda warp, node: warp.give(node, warp.cluster.number),
    "mbarrier.init": _init,
    # Order that this evaluator keeps anyway.
    **dict.fromkeys(("mbarrier.fence_init", "wgmma.fence"), lambda warp, node: None),
    "mbarrier.arrive.expect_tx": _expect,
    "mbarrier.arrive.remote": _arrive_remote,
    "mbarrier.wait": _wait,
    "barrier.cluster": _cluster_sync,
    "fence.proxy.async": _fence_proxy,
    "setmaxnreg": _setmaxnreg,
    "tma.load": _tma_load,
    "tma.store": _tma_store,
    "bulk.commit": lambda warp, node: warp.cluster.events.append(warp.commit("store").finish),
    "bulk.wait": lambda warp, node: wait_for(warp.groups["store"], node.arg.immediates[0]),
    "wgmma.mma": _mma,
    "wgmma.commit": _mma_commit,
    "wgmma.wait": _mma_wait,
    "stmatrix": _stmatrix,
})  # fmt: skip

"""The machine instructions of the GPU's linear level, as the reference evaluator runs them.

Fragments, descriptors and swizzles follow the PTX ISA (`wgmma`, `stmatrix`,
`cp.async.bulk.tensor`), as measured on an H200. A MACHINE's sources and immediates, by name:

    warp, cluster.rank, cluster.id                                a uniform int64
    mbarrier.init (count) address                                 mbarrier.fence_init
    mbarrier.arrive.expect_tx (bytes) address                     mbarrier.wait address, parity
    mbarrier.arrive.remote address, rank (one per lane)           barrier.cluster
    bar.sync (warps) number                                       fence.proxy.async
    setmaxnreg (registers)                                        stmatrix address, 8 values
    tma.load (rows, columns, swizzle, multicast) array, shared, column, row, mbarrier
    tma.store (rows, columns, swizzle) array, shared, column, row
    bulk.commit   bulk.wait (keep)   wgmma.fence   wgmma.commit   wgmma.wait (keep)
    wgmma.mma (n, swizzle) a, b, scale_d, accumulators
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.alu import to_array, to_raw
from baregrad.ir.evaluate.gpu_state import Array, Blocked, Event, MBarrier
from baregrad.ir.protocol.attributes import LANES, ProtocolError

if TYPE_CHECKING:
    from baregrad.ir.evaluate.gpu_linear import Warp

_POISON = 0xFF


class CtaState:
    """One block: bytes of shared memory, barriers by address, the pool of registers."""

    def __init__(self, rank: int, nbytes: int, warps: int, registers: int) -> None:
        self.rank = rank
        self.shared = np.full(nbytes, _POISON, np.uint8)
        # The warp (plus one) that wrote a byte which engines do not see yet.
        self.writer = np.zeros(nbytes, np.uint8)
        self.barriers: dict[int, MBarrier] = {}
        self.running = warps
        self.held = [registers] * warps
        self.free = 0

    def barrier(self, address: int) -> MBarrier:
        """The barrier at an address; the block must be alive and have made it."""
        self.touch("a barrier")
        if address not in self.barriers:
            raise ProtocolError(
                f"block {self.rank} has no barrier", found=address, wanted=sorted(self.barriers)
            )
        return self.barriers[address]

    def touch(self, what: str) -> None:
        """Raise ProtocolError if this block has exited."""
        if not self.running:
            raise ProtocolError(f"block {self.rank} is touched after it exited", found=what)

    def seen(self, places: Array) -> Array:
        """Bytes as engines see them: poison where no fence has followed the write."""
        return np.where(self.writer[places] == 0, self.shared[places], np.uint8(_POISON))


@dataclass(eq=False)
class Group:
    """Asynchronous work that completes together, in order of `work`."""

    work: list[Callable[[], None]] = field(default_factory=list)
    done: bool = False

    def finish(self) -> None:
        """Complete, unless that has happened."""
        if not self.done:
            self.done = True
            for one in self.work:
                one()


def swizzled(address: Array, bits: int) -> Array:
    """The byte addresses after the XOR of a swizzle of 16 << bits bytes."""
    mixed: Array = address ^ (((address >> 7) & ((1 << bits) - 1)) << 4)
    return mixed


def _int(warp: Warp, node: Node) -> int:
    """The value of an operand, which must be the same in all active lanes."""
    values = np.broadcast_to(warp.use(node), (LANES,))[warp.active]
    if (values != values[0]).any():
        raise ProtocolError(f"{warp} gives a uniform operand several values", found=values.tolist())
    return int(values[0])


def _single(warp: Warp, node: Node) -> None:
    if warp.active.sum() != 1:
        lanes = int(warp.active.sum())
        raise ProtocolError(f"{warp} runs {node.arg.name} in {lanes} lanes", wanted="one lane")


def _warp(warp: Warp, node: Node) -> None:
    warp.values[node] = np.asarray(warp.number, np.int64)


def _rank(warp: Warp, node: Node) -> None:
    warp.values[node] = np.asarray(warp.cta.rank, np.int64)


def _cluster(warp: Warp, node: Node) -> None:
    warp.values[node] = np.asarray(warp.cluster.number, np.int64)


def _nothing(warp: Warp, node: Node) -> None:
    """Order that this evaluator keeps anyway."""


# --- barriers ------------------------------------------------------------------------------------


def _init(warp: Warp, node: Node) -> None:
    address = _int(warp, node.src[0])
    if address % 8:
        raise ProtocolError("a barrier's address is no multiple of 8", found=address)
    name = f"the barrier at {address} of block {warp.cta.rank}"
    warp.cta.barriers[address] = MBarrier(name, node.arg.immediates[0])


def _expect(warp: Warp, node: Node) -> None:
    barrier = warp.cta.barrier(_int(warp, node.src[0]))
    for _ in range(int(warp.active.sum())):
        barrier.expect(node.arg.immediates[0])
        barrier.arrive()


def _arrive_remote(warp: Warp, node: Node) -> None:
    addresses, ranks = (np.broadcast_to(warp.use(child), (LANES,)) for child in node.src)
    for lane in np.flatnonzero(warp.active):
        warp.cluster.ctas[int(ranks[lane])].barrier(int(addresses[lane])).arrive()


def _wait(warp: Warp, node: Node) -> None:
    barrier, parity = warp.cta.barrier(_int(warp, node.src[0])), _int(warp, node.src[1])
    if not barrier.passes(parity):
        warp.again(Blocked(lambda: f"{barrier}, parity {parity}", lambda: barrier.passes(parity)))


def _bar_sync(warp: Warp, node: Node) -> None:
    name = ("bar", _int(warp, node.src[0]), "of block", warp.cta.rank)
    warp.blocked = warp.cluster.meeting(name, node.arg.immediates[0]).arrive()


def _cluster_sync(warp: Warp, node: Node) -> None:
    warp.blocked = warp.cluster.meeting(("cluster",), len(warp.cluster.warps)).arrive()


def _fence_proxy(warp: Warp, node: Node) -> None:
    writer = warp.cta.writer
    writer[writer == warp.number + 1] = 0


def _setmaxnreg(warp: Warp, node: Node) -> None:
    cta, wanted = warp.cta, node.arg.immediates[0]
    more = wanted - cta.held[warp.number]
    if more > cta.free:
        warp.again(
            Blocked(
                lambda: f"{more} registers a thread, {cta.free} are free", lambda: more <= cta.free
            )
        )
        return
    cta.free -= more
    cta.held[warp.number] = wanted


# --- copies --------------------------------------------------------------------------------------


def _box(warp: Warp, node: Node) -> tuple[Array, Array, Array]:
    """Of each element of a box: byte address in shared memory, offset in the array, inside."""
    rows, columns, bits = node.arg.immediates[:3]
    base, column, row = (_int(warp, child) for child in node.src[1:4])
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


def _tma_load(warp: Warp, node: Node) -> None:
    _single(warp, node)
    address, offset, inside = _box(warp, node)
    barrier = _int(warp, node.src[4])
    array = node.src[0]
    size = array.dtype.bits // 8
    memory = warp.memory[array.arg.slot]
    data = np.where(inside, memory[np.where(inside, offset, 0)], 0).astype(memory.dtype)
    ctas = warp.cluster.ctas if node.arg.immediates[3] else [warp.cta]
    for cta in ctas:
        for piece in np.array_split(np.arange(address.size), warp.cluster.rng.randint(1, 3)):

            def land(cta: CtaState = cta, piece: Array = piece) -> None:
                cta.touch("a copy lands")
                raw = data[piece].view(np.uint8).reshape(-1, size)
                for byte in range(size):
                    cta.shared[address[piece] + byte] = raw[:, byte]
                cta.barrier(barrier).complete(int(piece.size) * size)

            warp.cluster.events.append(Event("a bulk copy", land))


def _tma_store(warp: Warp, node: Node) -> None:
    _single(warp, node)
    address, offset, inside = _box(warp, node)
    array = node.src[0]
    size = array.dtype.bits // 8
    memory = warp.memory[array.arg.slot]
    cta = warp.cta

    def complete() -> None:
        raw = np.stack([cta.seen(address + byte) for byte in range(size)], axis=1)
        memory[offset[inside]] = raw.reshape(-1).view(memory.dtype)[inside]

    warp.open_store.work.append(complete)


def _bulk_commit(warp: Warp, node: Node) -> None:
    group, warp.open_store = warp.open_store, Group()
    warp.stores.append(group)
    warp.cluster.events.append(Event("a bulk store", group.finish))


def _bulk_wait(warp: Warp, node: Node) -> None:
    keep = node.arg.immediates[0]
    for group in warp.stores[: max(len(warp.stores) - keep, 0)]:
        group.finish()


# --- the matrix unit -----------------------------------------------------------------------------


def accumulator_places(n: int) -> tuple[Array, Array]:
    """Row in the warp's 16 and column of register i (first axis) of lane l, PTX ISA `wgmma`."""
    i, lane = np.meshgrid(np.arange(n // 2), np.arange(LANES), indexing="ij")
    rows = lane // 4 + 8 * ((i >> 1) & 1)
    columns = 8 * (i >> 2) + 2 * (lane % 4) + (i & 1)
    return rows, columns


def _k_major(cta: CtaState, start: int, rows: Array, bits: int) -> Array:
    """Rows of 16 bf16 of a K-major operand: 8 rows of 16 << bits bytes, then the next 8."""
    span = 16 << bits
    where = start + rows[:, None] * span + np.arange(32)[None, :]
    raw = cta.seen(swizzled(where, bits))
    return to_array(np.ascontiguousarray(raw).view(np.uint16), dtypes.bfloat16)


def _mma(warp: Warp, node: Node) -> None:
    n, bits = node.arg.immediates
    a, b = _int(warp, node.src[0]), _int(warp, node.src[1])
    scale = bool(_int(warp, node.src[2]))
    registers = node.src[3:]
    cta = warp.cta
    for register in registers:
        if register not in warp.hidden:
            warp.hidden[register] = np.array(warp.use(register), np.float32)
        warp.values[register] = np.full(LANES, np.nan, np.float32)
    rows, columns = accumulator_places(n)

    def retire() -> None:
        left = _k_major(cta, a, 16 * warp.place + np.arange(16), bits)
        right = _k_major(cta, b, np.arange(n), bits)
        product = left.astype(np.float64) @ right.astype(np.float64).T
        for i, register in enumerate(registers):
            old = warp.hidden[register] if scale else np.float32(0)
            warp.hidden[register] = (old + product[rows[i], columns[i]]).astype(np.float32)

    warp.open_group.work.append(retire)


def _mma_commit(warp: Warp, node: Node) -> None:
    group, warp.open_group = warp.open_group, Group()
    warp.groups.append(group)


def _mma_wait(warp: Warp, node: Node) -> None:
    """Groups retire in order, here at the latest possible time, for all four warps together.

    The instruction belongs to the warpgroup, so it is not done before all its warps have issued it;
    that is why one warp may release a slot for the four.
    """
    wanted = len(warp.groups) - node.arg.immediates[0]
    four = warp.warpgroup

    def issued() -> bool:
        return all(len(one.groups) >= wanted for one in four)

    if not issued():
        warp.again(Blocked(lambda: "the other warps of its warpgroup to issue", issued))
        return
    for one in four:
        for group in one.groups[: max(wanted, 0)]:
            group.finish()
    if node.arg.immediates[0] == 0:
        warp.values.update(warp.hidden)
        warp.hidden.clear()


def _stmatrix(warp: Warp, node: Node) -> None:
    """Register pair i of lane l: [l/4][2(l%4)] and the next, of the matrix of lanes 8i..8i+7."""
    addresses = np.broadcast_to(warp.use(node.src[0]), (LANES,))
    lane = np.arange(LANES)
    for position, value in enumerate(node.src[1:]):
        matrix, half = divmod(position, 2)
        where = addresses[8 * matrix + lane // 4] + 4 * (lane % 4) + 2 * half
        raw = to_raw(np.broadcast_to(warp.use(value), (LANES,)), dtypes.bfloat16)
        both = raw.view(np.uint8).reshape(LANES, 2)
        for byte in range(2):
            warp.cta.shared[where + byte] = both[:, byte]
            warp.cta.writer[where + byte] = warp.number + 1


RULES: MappingProxyType[str, Callable[[Warp, Node], None]] = MappingProxyType(
    {
        "warp": _warp,
        "cluster.rank": _rank,
        "cluster.id": _cluster,
        "mbarrier.init": _init,
        "mbarrier.fence_init": _nothing,
        "mbarrier.arrive.expect_tx": _expect,
        "mbarrier.arrive.remote": _arrive_remote,
        "mbarrier.wait": _wait,
        "barrier.cluster": _cluster_sync,
        "bar.sync": _bar_sync,
        "fence.proxy.async": _fence_proxy,
        "setmaxnreg": _setmaxnreg,
        "tma.load": _tma_load,
        "tma.store": _tma_store,
        "bulk.commit": _bulk_commit,
        "bulk.wait": _bulk_wait,
        "wgmma.fence": _nothing,
        "wgmma.mma": _mma,
        "wgmma.commit": _mma_commit,
        "wgmma.wait": _mma_wait,
        "stmatrix": _stmatrix,
    }
)

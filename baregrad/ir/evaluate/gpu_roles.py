"""Roles of warps in the code of one thread, and boxes that an engine copies for one of them.

A block's threads are sets, each in step: teams that compute, and behind them those that copy. A
barrier of phases is an element of an array. The MACHINE instructions, immediates in brackets:

    warps (first, count)                 whether a thread is one of so many warps
    role.registers (each)                registers change hands: nothing that this evaluator has
    mbarrier.* array, place              as in the code of warps (`gpu_hopper.py`); arrive: of all
                                         active threads, one each
    tma.box (rank, shape.., strides.., box..) shared, place, phases, place, array, corner
    flag.wait array, place               an element that a warp of an earlier block has made 1
    flag.raise, flag.lower array, place  makes it 1, or 0
    mbarrier.arrive.cluster array, place as mbarrier.arrive, in every block of the cluster
    tma.multicast                        as tma.box, to the same place in every block of the cluster
    tma.walk (rank, shape.., strides.., channels, places, low.., high.., steps..) likewise, and
                                         offsets behind the corner
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

import numpy as np

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import Array, round_to, to_raw
from baregrad.ir.evaluate.box_places import box_elements
from baregrad.ir.evaluate.gpu_hopper import WARP
from baregrad.ir.evaluate.gpu_thread_machine import ThreadBlock, Threads
from baregrad.ir.evaluate.loop_level import poisoned
from baregrad.ir.protocol.attributes import ProtocolError, TensorBox, Walk

# Bytes of a row of a box, and of a chunk; rows after which chunks are exchanged anew.
_ROW, _CHUNK, _ROWS = 128, 16, 8


def role_threads(program: Node) -> list[Array]:
    """The numbers of a block's threads, by those that are in step."""
    info = program.arg
    count = prod(info.block or (1,))
    found = np.split(np.arange(count), info.teams)
    if info.copiers:
        found.append(np.arange(count, count + WARP * info.copiers))
    return found


def _warps(machine: Threads, node: Node) -> None:
    first, count = node.arg.immediates
    warp = machine.threads // WARP
    machine.values[node] = (warp >= first) & (warp < first + count)


def _arrive(machine: Threads, node: Node) -> None:
    for _ in range(int(machine.active.sum())):
        machine.barrier(node.src).arrive()


def _arrive_in_cluster(machine: Threads, node: Node) -> None:
    key, _ = machine.barrier_key(node.src)
    for block in machine.blocks:
        for _ in range(int(machine.active.sum())):
            block.barrier(key).arrive()


def device_memory(program: Node) -> dict[int | Node, Array]:
    """The arrays that all blocks share: flags that are down, and sums that nobody knows yet."""
    found = {one for node in program.src for one in node.src if one.op is Ops.ALLOC}
    return {
        one: poisoned(prod(one.shape), one.dtype) if one.dtype.is_float
        else np.zeros(prod(one.shape), one.dtype.numpy)
        for one in found if one.arg.space == "device"
    }


def check_flags(memory: Mapping[int | Node, Array]) -> None:
    """Raise ProtocolError where a flag is up that nobody has waited for: the next launch would."""
    for array, values in memory.items():
        if isinstance(array, Node) and array.arg.name == "flags" and values.any():
            raise ProtocolError("flags are still up", found=np.flatnonzero(values).tolist())


def _flag(machine: Threads, node: Node) -> tuple[Array, Array]:
    array = machine.buffer(node.src[0])
    place = np.broadcast_to(machine.use(node.src[1]), machine.threads.shape)[machine.active]
    return array, place


def _wait_for_flag(machine: Threads, node: Node) -> None:
    """What an earlier block has raised: blocks come one after the other here, and none may wait."""
    array, places = _flag(machine, node)
    if not array[places].all():
        raise ProtocolError(f"{machine} waits for a block that comes later", found=node)


def _set_flag(machine: Threads, node: Node) -> None:
    array, places = _flag(machine, node)
    up = int(node.arg.name == "flag.raise")
    if (array[places] == up).any():
        raise ProtocolError(f"{machine} sets a flag twice", found=node)
    array[places] = up


def _copy(machine: Threads, node: Node) -> None:
    """A box that lands in pieces, which says so at its barrier; zeros where it is past an edge."""
    target, at, phases, slot, array, *corner = node.src
    if machine.active.sum() != 1:
        raise ProtocolError(f"{machine} copies a box more than once", found=node)
    begins = [machine.uniform(one) for one in corner]
    size = target.dtype.itemsize
    if begins[0] * size % _CHUNK:
        raise ProtocolError("a box begins inside a chunk", found=begins)
    offset, inside = box_elements(_box(node), begins)
    machine.check(node, array, offset, inside)
    memory = machine.buffer(target)
    line, chunk = _ROW // size, _CHUNK // size
    where = machine.uniform(at) + np.arange(offset.size)
    where ^= where // line % _ROWS * chunk
    found = machine.buffer(array)[offset]
    if array.dtype is not target.dtype:
        # The engine rounds.
        found = to_raw(round_to(found, target.dtype), target.dtype)
    data = np.where(inside, found, np.zeros((), memory.dtype))
    blocks = machine.blocks if node.arg.name == "tma.multicast" else [machine.block]
    key, _ = machine.barrier_key((phases, slot))
    for block in blocks:
        block.array(target)[where] = poisoned(where.size, target.dtype)

    def land(block: ThreadBlock, piece: Array) -> None:
        block.array(target)[where[piece]] = data[piece]
        block.barrier(key).complete(piece.size * size)

    machine.cluster.deliver(blocks, where.size, land)


def _box(node: Node) -> TensorBox:
    """What a copy moves, from its immediates."""
    rank, *sizes = node.arg.immediates
    walks = node.arg.name == "tma.walk"
    found, begin = [], 0
    for count in (rank, rank, 2, *[rank - 2] * 3) if walks else (rank, rank, rank):
        found.append(tuple(sizes[begin : begin + count]))
        begin += count
    shape, strides, box, *walk = found
    return TensorBox(shape, strides, box, Walk(*walk) if walks else None)


ROLE_INSTRUCTIONS: MappingProxyType[str, Callable[[Threads, Node], None]] = MappingProxyType({
    "warps": _warps,
    "role.registers": lambda machine, node: None,
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive.cluster": _arrive_in_cluster,
    "flag.wait": _wait_for_flag,
    "flag.raise": _set_flag,
    "flag.lower": _set_flag,
    "tma.box": _copy,
    "tma.multicast": _copy,
    "tma.walk": _copy,
})  # fmt: skip

"""Asynchronous copies: `cp.async`, bulk copies and bulk tensor copies.

Source: PTX ISA, "Asynchronous copy" and "cp.async.bulk". Bytes move at once, but are ordered only
for those who wait as they must: the check of races knows a thread's copies as an agent of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.errors import (
    IllegalInstruction,
    MisalignedAccess,
    UninitialisedRead,
)
from baregrad.testing.virtual_gpu.ptx.memory import RANK_SHIFT, Region
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, Reader
from baregrad.testing.virtual_gpu.ptx.ops.access import Change, change_of, parts_of
from baregrad.testing.virtual_gpu.ptx.ops.flow import guarded, proceed
from baregrad.testing.virtual_gpu.ptx.ops.mbarrier import arrive, barrier_at, complete_copy
from baregrad.testing.virtual_gpu.ptx.rounding import encode
from baregrad.testing.virtual_gpu.ptx.syntax import (
    AddressOperand,
    Immediate,
    PtxInstruction,
    Vector,
)
from baregrad.testing.virtual_gpu.ptx.tensor_map import DecodedTensorMap
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array, raw_type

# Types of a tensor map's elements, by their codes.
_ELEMENTS: Final = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32", "f64", "bf16",
)  # fmt: skip

Copy = tuple[int, int]
PerThread = Callable[[Block, int], None]


# ---- groups -------------------------------------------------------------------------------------


class Groups:
    """A thread's copies: those not yet committed, and the committed groups, the oldest first."""

    def __init__(self) -> None:
        self.loose: list[Copy] = []
        self.committed: list[list[Copy]] = []


_GROUPS_OF: Final = MappingProxyType(
    {kind: f"groups of {kind}" for kind in ("async", "bulk")}
)


def groups(block: Block, thread: int, kind: str) -> Groups:
    """Return a thread's groups of `cp.async` or of bulk copies."""
    table: dict[int, Groups] = block.family.setdefault(_GROUPS_OF[kind], {})
    found = table.get(thread)
    if found is None:
        found = table[thread] = Groups()
    return found


def start(block: Block, thread: int, kind: str = "async") -> Copy | None:
    """Return the agent and clock of a new copy, None where races are not checked.

    kind: `async` or `bulk`, or `product` for what a product of the thread's warpgroup reads.
    """
    if block.clocks is None:
        return None
    return block.clocks.start_copy(thread + block.first_agent, kind)


def finish(block: Block, thread: int, copy: Copy) -> None:
    """Let a thread know that its copy is done."""
    if block.clocks is not None:
        block.clocks.finish_copy(thread + block.first_agent, *copy)


def note(
    block: Block, thread: int, region: Region, offsets: Array, nbytes: int, copy: Copy | None,
    writes: bool, bulk: bool = True,
) -> None:
    """Tell the check of races of a copy's accesses of a block's shared memory."""
    races = region.races
    if races is None or copy is None:
        return
    agents = np.full(len(offsets), thread + block.first_agent)
    if writes:
        race = races.write(agents, offsets, nbytes, copy=copy, bulk=bulk)
    else:
        race = races.read(agents, offsets, nbytes, copy=copy)
    if race is not None:
        block.report(race, int(offsets[race.place]))
    if bulk and not writes:
        unfenced = races.unfenced(offsets, nbytes)
        if unfenced is not None:
            block.fault(
                IllegalInstruction,
                f"a bulk copy reads what {block.cluster.who(unfenced, block)} stored"
                " with no fence.proxy.async after it",
                thread,
            )


def commit(kind: str) -> PerThread:
    """Return what makes a group of a thread's copies."""

    def body(block: Block, thread: int) -> None:
        one = groups(block, thread, kind)
        one.committed.append(one.loose)
        one.loose = []

    return body


def wait(kind: str, left: int) -> PerThread:
    """Return what waits until at most `left` of a thread's groups are not done."""

    def body(block: Block, thread: int) -> None:
        one = groups(block, thread, kind)
        if left < 0:
            commit(kind)(block, thread)
        keep = max(left, 0)
        done = one.committed[: len(one.committed) - keep]
        one.committed = one.committed[len(done) :]
        for group in done:
            for copy in group:
                finish(block, thread, copy)

    return body


# ---- builders -----------------------------------------------------------------------------------


def each_thread(decoder: Decoder, instruction: PtxInstruction, body: PerThread) -> Execute:
    """Return the control that runs `body` thread by thread."""

    def each(block: Block, index: Index) -> None:
        ids = block.ids(index)
        for thread in ids:
            body(block, int(thread))
        proceed(block, ids)

    return guarded(decoder, instruction, each)


def copy_instruction(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """All `cp` instructions."""
    has = instruction.has
    if has("prefetch"):
        return each_thread(decoder, instruction, lambda block, thread: None)
    kind = "bulk" if has("bulk") else "async"
    if has("commit_group"):
        return each_thread(decoder, instruction, commit(kind))
    if has("wait_group", "wait_all"):
        left = instruction.operands[0] if instruction.operands else Immediate(-1)
        if not isinstance(left, Immediate):
            decoder.refuse(instruction)
        return each_thread(decoder, instruction, wait(kind, int(left.value)))
    if has("mbarrier") and has("arrive"):
        return _arrive_after_copies(decoder, instruction)
    if has("tensor"):
        return _tensor_copy(decoder, instruction)
    if has("bulk"):
        return _bulk_copy(decoder, instruction)
    return _small_copy(decoder, instruction)


def _small_copy(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cp.async.ca.shared.global`: 4, 8 or 16 bytes a thread, the rest of them zeros."""
    target, source, size, *rest = instruction.operands
    to, _ = decoder.address(instruction, target)
    origin, _ = decoder.address(instruction, source)
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        decoder.refuse(instruction)
    nbytes = int(size.value)
    # A policy for the cache may stand last; what counts is a number of bytes before it.
    hinted = any("cache_hint" in one for one in instruction.modifiers)
    rest = rest[:-1] if hinted else rest
    taken = decoder.read(instruction, rest[0], TYPES["u32"]) if rest else None

    def body(block: Block, index: Index) -> None:
        ids = block.ids(index)
        origins = block.full(index, origin(block, index))
        limits = np.full(len(ids), nbytes)
        if taken is not None:
            limits = block.full(index, taken(block, index)).astype(np.int64)
        words = np.zeros((len(ids), nbytes // 4), np.uint32)
        whole = limits >= nbytes
        if whole.any():
            parts = block.load("global", origins[whole], ids[whole], 4, nbytes // 4)
            words[whole] = np.stack(parts, axis=1)
        for place in np.flatnonzero(~whole & (limits > 0)):
            count = int(limits[place])
            octets = origins[place] + np.arange(count)
            found = block.load("global", octets, np.repeat(ids[place], count), 1, 1)[0]
            words[place].view(np.uint8)[:count] = found
        _land(block, ids, block.full(index, to(block, index)), words)
        proceed(block, ids)

    return guarded(decoder, instruction, body)


def _land(block: Block, ids: Array, places: Array, words: Array) -> None:
    """Write the words of `cp.async` to shared memory, each thread's a copy of its own."""
    nbytes = 4 * words.shape[1]
    for region, offsets, _ in block.locate("shared", places, ids, nbytes):
        _note_copies(block, ids, region, offsets, nbytes)
        for part in range(words.shape[1]):
            region.store(offsets + 4 * part, words[:, part], 4)


def _note_copies(block: Block, ids: Array, region: Region, offsets: Array, nbytes: int) -> None:
    """Start a copy of each thread's, and tell the check of races of what they write."""
    if block.clocks is None:
        return
    copies = []
    for thread in ids.tolist():
        copy = block.clocks.start_copy(thread + block.first_agent)
        groups(block, thread, "async").loose.append(copy)
        copies.append(copy)
    races = region.races
    if races is None:
        return
    if races.are_apart(offsets, nbytes):
        agents, clocks = np.array(copies).T
        race = races.write(ids + block.first_agent, offsets, nbytes, copy=(agents, clocks))
        if race is not None:
            block.report(race, int(offsets[race.place]))
        return
    for position, (thread, copy) in enumerate(zip(ids.tolist(), copies, strict=True)):
        here = offsets[position : position + 1]
        note(block, thread, region, here, nbytes, copy, True, False)


def _arrive_after_copies(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cp.async.mbarrier.arrive`: an arrival once the thread's copies are done."""
    address, _ = decoder.address(instruction, instruction.operands[0])
    keeps_count = instruction.has("noinc")

    def body(block: Block, thread: int) -> None:
        place = int(address(block, np.array([thread]))[0])
        one = barrier_at(block, place, thread)
        waiting = groups(block, thread, "async")
        for group in (*waiting.committed, waiting.loose):
            for copy in group:
                finish(block, thread, copy)
        if not keeps_count:
            one.pending += 1
        arrive(block, one, thread, 1, 0)

    return each_thread(decoder, instruction, body)


# ---- bulk copies --------------------------------------------------------------------------------


def _one(read: Reader, block: Block, thread: int) -> int:
    return int(read(block, np.array([thread]))[0])


def _bulk_copy(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cp.async.bulk` and `cp.reduce.async.bulk` of a run of bytes."""
    loads = instruction.begins("mbarrier")
    # To another block's shared memory from this block's own.
    within = loads and instruction.has("shared::cta") and not instruction.has("global")
    target, source, size = instruction.operands[:3]
    to, _ = decoder.address(instruction, target)
    origin, _ = decoder.address(instruction, source)
    length = decoder.read(instruction, size, TYPES["u32"])
    bar = decoder.address(instruction, instruction.operands[3])[0] if loads else None
    mask = _multicast(decoder, instruction, 4)
    change, width = None, 4
    if instruction.has("reduce"):
        row = decoder.type_of(instruction)
        change, width = change_of(decoder, instruction, row), row.nbytes
    dtype = decoder.type_of(instruction).numpy if change else np.dtype(np.uint32)

    def body(block: Block, thread: int) -> None:
        start_at, end_at = _one(origin, block, thread), _one(to, block, thread)
        nbytes = _one(length, block, thread)
        for one in (start_at, end_at, nbytes):
            if one % 16:
                block.fault(
                    MisalignedAccess, f"a bulk copy of {nbytes} bytes, 16 its unit", thread, one
                )
        steps = np.arange(0, nbytes, width)
        ids = np.full(len(steps), thread)
        copy = start(block, thread, "bulk")
        if bar is not None:
            if within:
                values = from_shared(block, thread, start_at + steps, width, copy)
            else:
                values = block.load("global", start_at + steps, ids, width, 1)[0]
            _deliver(block, thread, end_at + steps, values, _one(bar, block, thread), copy, mask)
            return
        values = from_shared(block, thread, start_at + steps, width, copy)
        if change is not None:
            old = block.load("global", end_at + steps, ids, width, 1)[0].view(dtype)
            values = change([old, values.view(dtype)]).astype(dtype).view(values.dtype)
        block.store("global", end_at + steps, ids, [values])
        if copy is not None:
            groups(block, thread, "bulk").loose.append(copy)

    return each_thread(decoder, instruction, body)


def _multicast(decoder: Decoder, instruction: PtxInstruction, place: int) -> Reader | None:
    """Return the reader of the mask of blocks that a copy goes to, None for one block."""
    if not instruction.begins("multicast"):
        return None
    return decoder.read(instruction, instruction.operands[place], TYPES["b16"])


def _deliver(
    block: Block, thread: int, places: Array, values: Array, bar: int, copy: Copy | None,
    mask: Reader | None,
) -> None:
    """Write a copy's values to shared memory, and take its bytes off those of the barrier there.

    With a mask: in each block that it names, at the same places and the same barrier.
    """
    ranks = [places[0] >> RANK_SHIFT]
    if mask is not None:
        chosen = _one(mask, block, thread)
        if not 0 < chosen < 1 << block.cluster.size:
            block.fault(
                IllegalInstruction,
                f"a copy to the blocks {chosen:#b} of a cluster of {block.cluster.size}", thread,
            )
        ranks = [rank + 1 for rank in range(block.cluster.size) if chosen >> rank & 1]
    elif bar >> RANK_SHIFT != ranks[0]:
        block.fault(IllegalInstruction, "a copy to one block and a barrier of another", thread)
    within = (1 << RANK_SHIFT) - 1
    ids = np.full(len(places), thread)
    for rank in ranks:
        base = int(rank) << RANK_SHIFT
        there = base + (places & within)
        for region, offsets, which in block.locate("cluster", there, ids, values.dtype.itemsize):
            note(block, thread, region, offsets, values.dtype.itemsize, copy, True)
            region.store(offsets, values[which], values.dtype.itemsize)
        barrier = barrier_at(block, base + (bar & within), thread, copy)
        complete_copy(block, barrier, values.nbytes, copy)


def _async_store(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`st.async`: a thread's elements, whose bytes come off those of the barrier beside them."""
    row = decoder.type_of(instruction)
    place, source, bar = instruction.operands
    parts = parts_of(decoder, instruction, source)
    readers = [decoder.read(instruction, one, row) for one in parts]
    to, _ = decoder.address(instruction, place)
    phase, _ = decoder.address(instruction, bar)
    dtype = raw_type(row.bits).numpy

    def body(block: Block, thread: int) -> None:
        alone = np.array([thread])
        values = np.array([read(block, alone)[0] for read in readers], row.numpy).view(dtype)
        places = _one(to, block, thread) + row.nbytes * np.arange(len(values))
        copy = start(block, thread, "bulk")
        _deliver(block, thread, places, values, _one(phase, block, thread), copy, None)

    return each_thread(decoder, instruction, body)


def from_shared(
    block: Block, thread: int, places: Array, width: int, copy: Copy | None
) -> Array:
    """Return unsigned integers of `width` bytes that a thread's copy reads from shared memory."""
    ids = np.full(len(places), thread)
    [(region, offsets, _)] = block.locate("shared", places, ids, width)
    if region.unwritten(offsets, width) is not None:
        block.fault(UninitialisedRead, "a copy of shared memory that nobody wrote", thread)
    note(block, thread, region, offsets, width, copy, False)
    return region.load(offsets, width)


# ---- tensors ------------------------------------------------------------------------------------


def _tensor_copy(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`, tiled, and loads of im2col."""
    loads = instruction.begins("mbarrier")
    walks = instruction.begins("im2col")
    operands = instruction.operands
    if walks and not (instruction.has("im2col") and loads and len(operands) == 4):
        decoder.refuse(instruction, "such im2col copies")
    place, tensor = (operands[0], operands[1]) if loads else (operands[1], operands[0])
    if not isinstance(tensor, AddressOperand):
        decoder.refuse(instruction)
    shared, _ = decoder.address(instruction, place)
    where, named = decoder.address(instruction, AddressOperand(tensor.base, tensor.offset))
    coordinates = [decoder.read(instruction, one, TYPES["s32"]) for one in tensor.coordinates]
    bar = decoder.address(instruction, operands[2])[0] if loads else None
    mask = _multicast(decoder, instruction, 3)
    moves = _offsets(decoder, instruction, operands[3]) if walks else []

    def body(block: Block, thread: int) -> None:
        space = named if named == "param" else "generic"
        words = block.load(
            space, _one(where, block, thread) + 8 * np.arange(16), np.full(16, thread), 8, 1
        )[0]
        tensor_map = DecodedTensorMap.decode(words.tobytes())
        point = tuple(_one(one, block, thread) for one in coordinates)
        at = _one(shared, block, thread)
        _check_tensor(block, thread, tensor_map, point, at, loads)
        offsets = tuple(_one(one, block, thread) for one in moves)
        _check_walk(block, thread, tensor_map, point, offsets)
        copy = start(block, thread, "bulk")
        if bar is not None:
            places, values = _load_box(block, thread, tensor_map, point, at, offsets)
            _deliver(block, thread, places, values, _one(bar, block, thread), copy, mask)
            return
        change = None
        if instruction.has("reduce"):
            row = TYPES[_ELEMENTS[tensor_map.element_code]]
            change = change_of(decoder, instruction, row)
        _store_box(block, thread, tensor_map, point, at, copy, change)
        if copy is not None:
            groups(block, thread, "bulk").loose.append(copy)

    return each_thread(decoder, instruction, body)


def _check_tensor(
    block: Block, thread: int, tensor: DecodedTensorMap, point: tuple[int, ...], at: int,
    loads: bool,
) -> None:
    nbytes = tensor.element_nbytes
    if len(point) != len(tensor.sizes):
        block.fault(
            IllegalInstruction,
            f"{len(point)} coordinates for a tensor of {len(tensor.sizes)} axes", thread,
        )
    if tensor.interleave or not nbytes:
        block.fault(IllegalInstruction, "a tensor map that is interleaved, or none at all", thread)
    if point[0] * nbytes % 16:
        block.fault(
            IllegalInstruction,
            f"the innermost coordinate {point[0]} is no multiple of 16 bytes", thread,
        )
    if not loads and min(point) < 0:
        block.fault(IllegalInstruction, f"a tensor store at {point}", thread)
    if at % 128:
        block.fault(MisalignedAccess, "a box in shared memory is aligned to 128 bytes", thread, at)


def _offsets(decoder: Decoder, instruction: PtxInstruction, given: object) -> list[Reader]:
    """The readers of the offsets of an im2col copy."""
    if not isinstance(given, Vector):
        decoder.refuse(instruction)
    return [decoder.read(instruction, one, TYPES["u16"]) for one in given.items]


def _check_walk(
    block: Block, thread: int, tensor: DecodedTensorMap, point: tuple[int, ...],
    offsets: tuple[int, ...],
) -> None:
    """An im2col copy begins at a pixel between the corners of a map that has such."""
    if len(offsets) != len(tensor.low):
        block.fault(
            IllegalInstruction, f"{len(offsets)} offsets for a map of {len(tensor.low)}", thread
        )
    most = (1 << 16 // max(len(offsets), 1)) - 1
    ends = zip(point[1:], tensor.sizes[1:], tensor.low, tensor.high, offsets, strict=False)
    for at, size, low, high, offset in ends:
        if not low <= at <= size - 1 + high or not 0 <= offset <= most:
            block.fault(
                IllegalInstruction,
                f"a walk from {point}, offsets {offsets}, between {tensor.low} and {tensor.high}",
                thread,
            )


def _load_box(
    block: Block, thread: int, tensor: DecodedTensorMap, point: tuple[int, ...], at: int,
    offsets: tuple[int, ...],
) -> tuple[Array, Array]:
    """Return the addresses of a box's elements in shared memory, and their values."""
    address, places, inside = tensor.places(point, at, offsets)
    width = tensor.element_nbytes
    values = np.zeros(len(address), f"uint{8 * width}")
    if tensor.fills_nan and not inside.all():
        block.fault(IllegalInstruction, "a fill with NaN, which is not known here", thread)
    if inside.any():
        ids = np.full(int(inside.sum()), thread)
        values[inside] = block.load("global", address[inside], ids, width, 1)[0]
    if tensor.rounds:
        values = encode(values.view(np.float32).astype(np.float64), "tf32")
    return places, values


def _store_box(
    block: Block, thread: int, tensor: DecodedTensorMap, point: tuple[int, ...], at: int,
    copy: Copy | None, change: Change | None,
) -> None:
    address, places, inside = tensor.places(point, at)
    width = tensor.element_nbytes
    values = from_shared(block, thread, places, width, copy)[inside]
    if not inside.any():
        return
    ids = np.full(len(values), thread)
    if change is not None:
        dtype = TYPES[_ELEMENTS[tensor.element_code]].numpy
        old = block.load("global", address[inside], ids, width, 1)[0]
        made = change([old.view(dtype), values.view(dtype)])
        values = made.astype(dtype, copy=False).view(values.dtype)
    block.store("global", address[inside], ids, [values])


def proxy_fence(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`fence`: of its kinds, `fence.proxy.async` lets bulk copies see what a thread stored."""
    crosses = instruction.has("proxy") and instruction.begins("async")

    def body(block: Block, index: Index) -> None:
        for each in block.cluster.blocks if crosses else ():
            if each.races is not None:
                each.races.fence(block.agents(index))
        proceed(block, index)

    return guarded(decoder, instruction, body)


COPY_CONTROL: Final = MappingProxyType(
    {"cp": copy_instruction, "fence": proxy_fence, "st.async": _async_store}
)

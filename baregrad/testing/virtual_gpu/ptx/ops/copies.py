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
from baregrad.testing.virtual_gpu.ptx.errors import IllegalInstruction, MisalignedAccess
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, Reader
from baregrad.testing.virtual_gpu.ptx.ops.access import change_of
from baregrad.testing.virtual_gpu.ptx.ops.floats import rounded
from baregrad.testing.virtual_gpu.ptx.ops.flow import guarded, proceed
from baregrad.testing.virtual_gpu.ptx.ops.mbarrier import arrive, barrier_at, complete_copy
from baregrad.testing.virtual_gpu.ptx.syntax import AddressOperand, Immediate, PtxInstruction
from baregrad.testing.virtual_gpu.ptx.tensor_map import DecodedTensorMap
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array

Copy = tuple[int, int]
PerThread = Callable[[Block, int], None]


# ---- groups -------------------------------------------------------------------------------------


class Groups:
    """A thread's copies: those not yet committed, and the committed groups, the oldest first."""

    def __init__(self) -> None:
        self.loose: list[Copy] = []
        self.committed: list[list[Copy]] = []


def groups(block: Block, thread: int, kind: str) -> Groups:
    """Return a thread's groups of `cp.async` or of bulk copies."""
    table: dict[int, Groups] = block.family.setdefault(f"groups of {kind}", {})
    return table.setdefault(thread, Groups())


def start(block: Block, thread: int) -> Copy | None:
    """Return the agent and clock of a new copy, None where races are not checked."""
    return None if block.races is None else block.races.start_copy(thread)


def note(
    block: Block, thread: int, offsets: Array, nbytes: int, copy: Copy | None, writes: bool,
    bulk: bool = True,
) -> None:
    """Tell the check of races of a copy's accesses of shared memory."""
    races = block.races
    if races is None or copy is None:
        return
    threads = np.full(len(offsets), thread)
    if writes:
        race = races.write(threads, offsets, nbytes, copy=copy)
    else:
        race = races.read(threads, offsets, nbytes, copy=copy)
    if race is not None:
        block.report(race, int(offsets[race.place]))
    if bulk and not writes:
        unfenced = races.unfenced(offsets, nbytes)
        if unfenced is not None:
            block.fault(
                IllegalInstruction,
                f"a bulk copy reads what thread {block.thread(unfenced)} stored"
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
                if block.races is not None:
                    block.races.finish_copy(thread, *copy)

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
        for position, thread in enumerate(ids):
            copy = start(block, int(thread))
            note(block, int(thread), offsets[position : position + 1], nbytes, copy, True, False)
            if copy is not None:
                groups(block, int(thread), "async").loose.append(copy)
        for part in range(words.shape[1]):
            region.store(offsets + 4 * part, words[:, part], 4)


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
                complete_copy_clock(block, thread, copy)
        if not keeps_count:
            one.pending += 1
        arrive(block, one, thread, 1, 0)

    return each_thread(decoder, instruction, body)


def complete_copy_clock(block: Block, thread: int, copy: Copy) -> None:
    """Let a thread know of its own copy, so that its arrival passes it on."""
    if block.races is not None:
        block.races.finish_copy(thread, *copy)


# ---- bulk copies --------------------------------------------------------------------------------


def _one(read: Reader, block: Block, thread: int) -> int:
    return int(read(block, np.array([thread]))[0])


def _bulk_copy(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cp.async.bulk` and `cp.reduce.async.bulk` of a run of bytes."""
    loads = instruction.begins("mbarrier")
    if instruction.begins("multicast"):
        decoder.refuse(instruction, "a cluster of more than one block")
    target, source, size = instruction.operands[:3]
    to, _ = decoder.address(instruction, target)
    origin, _ = decoder.address(instruction, source)
    length = decoder.read(instruction, size, TYPES["u32"])
    bar = decoder.address(instruction, instruction.operands[3])[0] if loads else None
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
        copy = start(block, thread)
        if loads:
            values = block.load("global", start_at + steps, ids, width, 1)[0]
            _into_shared(block, thread, end_at + steps, values, copy)
            assert bar is not None
            barrier = barrier_at(block, _one(bar, block, thread), thread)
            complete_copy(block, barrier, nbytes, copy)
            return
        values = _from_shared(block, thread, start_at + steps, width, copy)
        if change is not None:
            old = block.load("global", end_at + steps, ids, width, 1)[0].view(dtype)
            values = change([old, values.view(dtype)]).astype(dtype).view(values.dtype)
        block.store("global", end_at + steps, ids, [values])
        if copy is not None:
            groups(block, thread, "bulk").loose.append(copy)

    return each_thread(decoder, instruction, body)


def _into_shared(
    block: Block, thread: int, places: Array, values: Array, copy: Copy | None
) -> None:
    width = values.dtype.itemsize
    ids = np.full(len(places), thread)
    for region, offsets, which in block.locate("shared", places, ids, width):
        note(block, thread, offsets, width, copy, True)
        region.store(offsets, values[which], width)


def _from_shared(
    block: Block, thread: int, places: Array, width: int, copy: Copy | None
) -> Array:
    ids = np.full(len(places), thread)
    races, block.races = block.races, None
    try:
        values = block.load("shared", places, ids, width, 1)[0]
    finally:
        block.races = races
    note(block, thread, places, width, copy, False)
    return values


# ---- tensors ------------------------------------------------------------------------------------


def _tensor_copy(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`, tiled."""
    loads = instruction.begins("mbarrier")
    if instruction.begins("multicast") or instruction.begins("im2col"):
        decoder.refuse(instruction, "multicast and im2col copies")
    operands = instruction.operands
    place, tensor = (operands[0], operands[1]) if loads else (operands[1], operands[0])
    if not isinstance(tensor, AddressOperand):
        decoder.refuse(instruction)
    shared, _ = decoder.address(instruction, place)
    where, named = decoder.address(instruction, AddressOperand(tensor.base, tensor.offset))
    coordinates = [decoder.read(instruction, one, TYPES["s32"]) for one in tensor.coordinates]
    bar = decoder.address(instruction, operands[2])[0] if loads else None
    operation = instruction.one_of(("add", "min", "max", "inc", "dec", "and", "or", "xor"))

    def body(block: Block, thread: int) -> None:
        space = named if named == "param" else "generic"
        words = block.load(
            space, _one(where, block, thread) + 8 * np.arange(16), np.full(16, thread), 8, 1
        )[0]
        tensor_map = DecodedTensorMap.decode(words.tobytes())
        point = tuple(_one(one, block, thread) for one in coordinates)
        at = _one(shared, block, thread)
        _check_tensor(block, thread, tensor_map, point, at, loads)
        copy = start(block, thread)
        if loads:
            _load_box(block, thread, tensor_map, point, at, copy)
            assert bar is not None
            barrier = barrier_at(block, _one(bar, block, thread), thread)
            complete_copy(block, barrier, tensor_map.nbytes, copy)
            return
        _store_box(block, thread, tensor_map, point, at, copy, operation)
        if copy is not None:
            groups(block, thread, "bulk").loose.append(copy)

    if operation and operation != "add":
        decoder.refuse(instruction, "a tensor reduction other than add")
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


def _load_box(
    block: Block, thread: int, tensor: DecodedTensorMap, point: tuple[int, ...], at: int,
    copy: Copy | None,
) -> None:
    address, places, inside = tensor.places(point, at)
    width = tensor.element_nbytes
    values = np.zeros(len(address), f"uint{8 * width}")
    if tensor.fills_nan and not inside.all():
        block.fault(IllegalInstruction, "a fill with NaN, which is not known here", thread)
    if inside.any():
        ids = np.full(int(inside.sum()), thread)
        values[inside] = block.load("global", address[inside], ids, width, 1)[0]
    _into_shared(block, thread, places, values, copy)


def _store_box(
    block: Block, thread: int, tensor: DecodedTensorMap, point: tuple[int, ...], at: int,
    copy: Copy | None, operation: str,
) -> None:
    address, places, inside = tensor.places(point, at)
    width = tensor.element_nbytes
    values = _from_shared(block, thread, places, width, copy)[inside]
    if not inside.any():
        return
    ids = np.full(len(values), thread)
    if operation:
        old = block.load("global", address[inside], ids, width, 1)[0]
        values = _added(tensor, old, values)
    block.store("global", address[inside], ids, [values])


def _added(tensor: DecodedTensorMap, old: Array, values: Array) -> Array:
    """Return the sums of elements of a tensor's type, as raw integers."""
    name = {6: "f16", 7: "f32", 8: "f32", 9: "f64", 10: "bf16"}.get(tensor.element_code)
    if name is None:
        return np.asarray(old + values)
    row = TYPES[name].numpy
    total: Array = rounded("add", name, "rn")(old.view(row), values.view(row))
    return total.astype(row, copy=False).view(values.dtype)


def proxy_fence(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`fence`: of its kinds, `fence.proxy.async` lets bulk copies see what a thread stored."""
    crosses = instruction.has("proxy") and instruction.begins("async")

    def body(block: Block, index: Index) -> None:
        if crosses and block.races is not None:
            block.races.fence(block.ids(index))
        proceed(block, index)

    return guarded(decoder, instruction, body)


COPY_CONTROL: Final = MappingProxyType({"cp": copy_instruction, "fence": proxy_fence})

"""Barriers in shared memory that count arrivals and bytes. Source: PTX ISA, "mbarrier".

A phase ends when no arrival and no byte is pending. A wait for a phase that has not ended sleeps
until some barrier's phase ends, so a kernel whose phase never comes is reported to hang.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.cluster import PeerBlock
from baregrad.testing.virtual_gpu.ptx.errors import IllegalInstruction, UninitialisedRead
from baregrad.testing.virtual_gpu.ptx.operands import Decoder
from baregrad.testing.virtual_gpu.ptx.ops.flow import guarded, proceed
from baregrad.testing.virtual_gpu.ptx.states import AT_PHASE, RUNS
from baregrad.testing.virtual_gpu.ptx.syntax import Identifier, PtxInstruction
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array

_MOST: Final = (1 << 20) - 1


class PhaseBarrier:
    """The state of one barrier object of a block; `clock` is what its waiters will know."""

    def __init__(self, owner: PeerBlock, count: int) -> None:
        self.owner = owner
        self.count = count
        self.pending = count
        self.bytes = 0
        self.phase = 0
        self.clock: Array | None = None
        self.done_clock: Array | None = None


def phase_barriers(block: PeerBlock) -> dict[int, PhaseBarrier]:
    """Return the block's barrier objects, by offset in shared memory."""
    found: dict[int, PhaseBarrier] = block.family.setdefault("mbarriers", {})
    return found


def barriers_at(
    block: Block, index: Index, places: Array, space: str, copy: tuple[int, int] | None = None
) -> list[PhaseBarrier]:
    """Return the barriers at addresses, one a thread, perhaps of other blocks of the cluster.

    It is threads that come there, or a copy of theirs. Raises where nobody initialised one, or
    where that races.
    """
    ids, agents = block.ids(index), block.agents(index)
    out: list[PhaseBarrier | None] = [None] * len(places)
    for region, offsets, which in block.locate(space, places, index, 8):
        owner = next((one for one in block.cluster.blocks if one.shared is region), None)
        if owner is None:
            block.fault(IllegalInstruction, "an mbarrier outside shared memory")
        if region.races is not None:
            race = region.races.read(agents[which], offsets, 8, copy=copy)
            if race is not None:
                block.report(race, int(offsets[race.place]))
        for place, offset in zip(np.flatnonzero(which), offsets, strict=True):
            found = phase_barriers(owner).get(int(offset))
            if found is None:
                block.fault(
                    UninitialisedRead, "no mbarrier was initialised here", int(ids[place]),
                    int(offset),
                )
            out[int(place)] = found
    return [one for one in out if one is not None]


def barrier_at(
    block: Block, address: int, thread: int, copy: tuple[int, int] | None = None
) -> PhaseBarrier:
    """Return the barrier that a thread or its copy names by an address of shared memory."""
    return barriers_at(block, np.array([thread]), np.array([address]), "cluster", copy)[0]


def settle(one: PhaseBarrier) -> None:
    """End the phase if nothing is pending, and wake those who wait."""
    if one.pending > 0 or one.bytes != 0:
        return
    one.phase += 1
    one.pending = one.count
    one.done_clock = one.clock
    sleeping = one.owner.state == AT_PHASE
    one.owner.state[sleeping] = RUNS


def arrive(block: Block, one: PhaseBarrier, thread: int, count: int, nbytes: int) -> int:
    """Add `nbytes` to the bytes pending, then arrive `count` times; return the phase before."""
    before = one.phase
    one.bytes += nbytes
    if abs(one.bytes) > _MOST:
        block.fault(IllegalInstruction, f"an mbarrier with {one.bytes} bytes pending", thread)
    if count > one.pending:
        block.fault(
            IllegalInstruction,
            f"{count} arrivals at an mbarrier that waits for {one.pending} of {one.count}",
            thread,
        )
    if block.clocks is not None:
        one.clock = block.clocks.release(block.agents(np.array([thread])), one.clock)
    one.pending -= count
    settle(one)
    return before


def complete_copy(
    block: Block, one: PhaseBarrier, nbytes: int, copy: tuple[int, int] | None
) -> None:
    """Take the bytes of a copy that has arrived off those pending."""
    if copy is not None and block.clocks is not None:
        # A new array: the old one may be what the waiters of the last phase are to know.
        one.clock = block.clocks.nothing() if one.clock is None else one.clock.copy()
        one.clock[copy[0]] = max(int(one.clock[copy[0]]), copy[1])
    one.bytes -= nbytes
    settle(one)


def mbarrier(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """All `mbarrier` instructions."""
    builders = {
        "init": _init, "inval": _init, "try_wait": _wait, "test_wait": _wait, "arrive": _arrive,
        "arrive_drop": _arrive, "expect_tx": _expect, "complete_tx": _expect,
    }
    kind = instruction.one_of(tuple(builders))
    if not kind:
        decoder.refuse(instruction)
    return builders[kind](decoder, instruction)


def _space(instruction: PtxInstruction, named: str) -> str:
    if instruction.has("shared::cluster"):
        return "cluster"
    if instruction.has("shared", "shared::cta"):
        return "shared"
    return named or "generic"


def _init(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    address, named = decoder.address(instruction, instruction.operands[0])
    space = _space(instruction, named)
    begins = instruction.has("init")
    count = decoder.read(instruction, instruction.operands[1], TYPES["u32"]) if begins else None

    def body(block: Block, index: Index) -> None:
        places = block.full(index, address(block, index))
        ids = block.ids(index)
        block.store(space, places, index, [np.zeros(len(ids), np.uint64)])
        offsets = places if space == "shared" else places - block.shared.base
        for position, offset in enumerate(offsets):
            if count is None:
                phase_barriers(block).pop(int(offset), None)
                continue
            number = int(block.full(index, count(block, index))[position])
            if not 0 < number <= _MOST:
                block.fault(IllegalInstruction, f"an mbarrier for {number} arrivals")
            phase_barriers(block)[int(offset)] = PhaseBarrier(block, number)
        proceed(block, ids)

    return guarded(decoder, instruction, body)


def _arrive(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`arrive`, `arrive.expect_tx` and `arrive_drop`, each with or without the state."""
    operands = list(instruction.operands)
    target, place, *rest = operands
    write = decoder.write(instruction, target, TYPES["b64"])
    returns = not (isinstance(target, Identifier) and target.text == "_")
    address, named = decoder.address(instruction, place)
    space = _space(instruction, named)
    amount = decoder.read(instruction, rest[0], TYPES["u32"]) if rest else None
    expects = instruction.has("expect_tx")
    drops = instruction.has("arrive_drop")

    def body(block: Block, index: Index) -> None:
        ids = block.ids(index)
        places = block.full(index, address(block, index))
        amounts = np.ones(len(ids), np.int64)
        if amount is not None:
            amounts = block.full(index, amount(block, index)).astype(np.int64)
        states = np.zeros(len(ids), np.uint64)
        for position, one in enumerate(barriers_at(block, index, places, space)):
            thread = int(ids[position])
            if one.owner is not block and returns:
                block.fault(IllegalInstruction, "no state comes from another block", thread)
            number = int(amounts[position])
            if drops:
                one.count -= 1 if expects else number
            count, nbytes = (1, number) if expects else (number, 0)
            states[position] = arrive(block, one, thread, count, nbytes)
        write(block, ids, states)
        proceed(block, ids)

    return guarded(decoder, instruction, body)


def _expect(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`expect_tx` and `complete_tx`: bytes pending without an arrival."""
    address, named = decoder.address(instruction, instruction.operands[0])
    space = _space(instruction, named)
    amount = decoder.read(instruction, instruction.operands[1], TYPES["u32"])
    completes = instruction.has("complete_tx")

    def body(block: Block, index: Index) -> None:
        ids = block.ids(index)
        places = block.full(index, address(block, index))
        amounts = block.full(index, amount(block, index)).astype(np.int64)
        for position, one in enumerate(barriers_at(block, index, places, space)):
            if completes:
                complete_copy(block, one, int(amounts[position]), None)
            else:
                one.bytes += int(amounts[position])
        proceed(block, ids)

    return guarded(decoder, instruction, body)


def _wait(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`try_wait` and `test_wait`, by parity or by the state that an arrival gave."""
    target, place, wanted = instruction.operands[:3]
    write = decoder.write(instruction, target, TYPES["pred"])
    address, named = decoder.address(instruction, place)
    space = _space(instruction, named)
    parity = instruction.has("parity")
    read = decoder.read(instruction, wanted, TYPES["u32" if parity else "b64"])
    sleeps = instruction.has("try_wait")

    def body(block: Block, index: Index) -> None:
        ids = block.ids(index)
        places = block.full(index, address(block, index))
        values = block.full(index, read(block, index)).astype(np.int64)
        done = np.zeros(len(ids), bool)
        for position, one in enumerate(barriers_at(block, index, places, space)):
            if one.owner is not block:
                block.fault(IllegalInstruction, "a wait at another block's mbarrier")
            phase = int(values[position])
            # With parity P: the phase of that parity has ended, so the one that runs has another.
            done[position] = one.phase % 2 != phase if parity else one.phase != phase
            if done[position] and one.done_clock is not None and block.clocks is not None:
                agents = block.agents(ids[position : position + 1])
                block.clocks.acquire(agents, one.done_clock)
        if sleeps:
            # A phase that ends later wakes them, and they look again.
            block.state[ids[~done]] = AT_PHASE
            ids, done = ids[done], done[done]
        write(block, ids, done)
        proceed(block, ids)

    return guarded(decoder, instruction, body)


MBARRIER_CONTROL: Final = MappingProxyType({"mbarrier": mbarrier})

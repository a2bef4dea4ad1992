"""What the lanes of a warp do together: shuffles, votes, matches, reductions.

Source: PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "activemask", "elect.sync".
A thread waits at such an instruction until every lane that its mask names is there.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import WARP, Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, Reader
from baregrad.testing.virtual_gpu.ptx.ops.flow import gather_warps, guarded, proceed
from baregrad.testing.virtual_gpu.ptx.syntax import Operand, OperandPair, PtxInstruction
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array

# Given the block, the threads and their masks.
Together = Callable[[Block, Array, Array], None]


def meeting(
    decoder: Decoder, instruction: PtxInstruction, mask: Operand | None, body: Together
) -> Execute:
    """Return the control that runs `body` for the threads whose named lanes have all come."""
    read: Reader | None = None
    if mask is not None:
        read = decoder.read(instruction, mask, TYPES["u32"])
    full = np.array([0xFFFFFFFF], np.uint32)

    def together(block: Block, index: Index) -> None:
        masks = full if read is None else read(block, index)
        whole = isinstance(index, slice) and (masks == full[0]).all()
        ids = gather_warps(block, index, None if whole else block.full(index, masks))
        if len(ids):
            named = full if read is None else read(block, ids)
            body(block, ids, block.full(ids, named))
            proceed(block, ids)

    return guarded(decoder, instruction, together)


def _two(operand: Operand) -> tuple[Operand, Operand | None]:
    return (operand.first, operand.second) if isinstance(operand, OperandPair) else (operand, None)


def shuffle(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`shfl.sync`: each lane takes another's value."""
    first, second = _two(instruction.operands[0])
    u32 = TYPES["b32"]
    write = decoder.write(instruction, first, u32)
    write_inside = None if second is None else decoder.write(instruction, second, TYPES["pred"])
    value, distance, clamp = (
        decoder.read(instruction, one, u32) for one in instruction.operands[1:4]
    )
    mode = instruction.one_of(("up", "down", "bfly", "idx"))
    if not mode:
        decoder.refuse(instruction)

    def body(block: Block, ids: Array, masks: Array) -> None:
        values = np.zeros(block.warps * WARP, np.uint32)
        values[ids] = value(block, ids)
        by = block.full(ids, distance(block, ids)).astype(np.int64) & 31
        limits = block.full(ids, clamp(block, ids)).astype(np.int64)
        bound, segment = limits & 31, limits >> 8 & 31
        lane = ids % WARP
        low = lane & segment
        high = low | bound & ~segment
        source = {
            "up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": low | by & ~segment
        }[mode]
        inside = source >= high if mode == "up" else source <= high
        source = np.where(inside, source, lane)
        named = masks.astype(np.int64) >> np.clip(source, 0, 31) & 1
        # A lane that the mask leaves out gives nothing that may be used.
        chosen = np.where(named == 1, values[ids - lane + source], np.uint32(0xA5A5A5A5))
        write(block, ids, chosen)
        if write_inside is not None:
            write_inside(block, ids, inside)

    return meeting(decoder, instruction, instruction.operands[4], body)


def _ballots(block: Block, ids: Array, values: Array) -> Array:
    """Return, for each thread, the bits of its warp's lanes whose value is true."""
    flags = np.zeros(block.warps * WARP, np.uint64)
    flags[ids] = values
    weights = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
    totals = (flags.reshape(-1, WARP) * weights).sum(axis=1)
    return np.asarray(totals[ids // WARP].astype(np.uint32))


def vote(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`vote.sync`."""
    pred = TYPES["pred"]
    mode = instruction.one_of(("all", "any", "uni", "ballot"))
    if not mode:
        decoder.refuse(instruction)
    value = decoder.read(instruction, instruction.operands[1], pred)
    result = TYPES["b32"] if mode == "ballot" else pred
    write = decoder.write(instruction, instruction.operands[0], result)

    def body(block: Block, ids: Array, masks: Array) -> None:
        bits = _ballots(block, ids, value(block, ids)) & masks
        everyone = _ballots(block, ids, np.ones(len(ids))) & masks
        found = {
            "ballot": bits, "any": bits != 0, "all": bits == everyone,
            "uni": (bits == 0) | (bits == everyone),
        }[mode]
        write(block, ids, found)

    return meeting(decoder, instruction, instruction.operands[2], body)


def match(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`match.sync`: the lanes that hold the same value."""
    first, second = _two(instruction.operands[0])
    row = decoder.type_of(instruction)
    write = decoder.write(instruction, first, TYPES["b32"])
    write_same = None if second is None else decoder.write(instruction, second, TYPES["pred"])
    value = decoder.read(instruction, instruction.operands[1], row)
    every = instruction.has("all")

    def body(block: Block, ids: Array, masks: Array) -> None:
        values = block.full(ids, value(block, ids))
        out = np.zeros(len(ids), np.uint32)
        for number in np.unique(ids // WARP):
            mine = np.flatnonzero(ids // WARP == number)
            bits = np.uint64(1) << (ids[mine] % WARP).astype(np.uint64)
            same = values[mine][:, None] == values[mine][None, :]
            out[mine] = ((same * bits).sum(axis=1)).astype(np.uint32) & masks[mine]
        everyone = _ballots(block, ids, np.ones(len(ids))) & masks
        agreed = out == everyone
        write(block, ids, np.where(agreed, out, 0).astype(np.uint32) if every else out)
        if write_same is not None:
            write_same(block, ids, agreed)

    return meeting(decoder, instruction, instruction.operands[2], body)


def reduce_warp(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`redux.sync`: an integer's fold over the lanes of a mask."""
    row = decoder.type_of(instruction)
    folds = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
        "or": np.bitwise_or, "xor": np.bitwise_xor,
    }
    name = instruction.one_of(tuple(folds))
    if not name or row.is_float:
        decoder.refuse(instruction)
    value = decoder.read(instruction, instruction.operands[1], row)
    write = decoder.write(instruction, instruction.operands[0], row)

    def body(block: Block, ids: Array, masks: Array) -> None:
        values = block.full(ids, value(block, ids))
        out = np.empty(len(ids), row.numpy)
        groups = ids // WARP * (1 << 32) + masks.astype(np.int64)
        for each in np.unique(groups):
            mine = groups == each
            out[mine] = folds[name].reduce(values[mine])
        write(block, ids, out)

    return meeting(decoder, instruction, instruction.operands[2], body)


def elect(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`elect.sync`: one lane, the lowest of the mask."""
    first, second = _two(instruction.operands[0])
    write = decoder.write(instruction, first, TYPES["b32"])
    write_chosen = None if second is None else decoder.write(instruction, second, TYPES["pred"])

    def body(block: Block, ids: Array, masks: Array) -> None:
        everyone = (_ballots(block, ids, np.ones(len(ids))) & masks).astype(np.int64)
        lowest = np.frexp((everyone & -everyone).astype(np.float64))[1] - 1
        write(block, ids, lowest.astype(np.uint32))
        if write_chosen is not None:
            write_chosen(block, ids, ids % WARP == lowest)

    return meeting(decoder, instruction, instruction.operands[1], body)


def active_mask(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`activemask`: the lanes that run together just now."""
    write = decoder.write(instruction, instruction.operands[0], TYPES["b32"])

    def run(block: Block, index: Index) -> None:
        ids = block.ids(index)
        write(block, index, _ballots(block, ids, np.ones(len(ids))))

    return run


WARP_CONTROL: Final = MappingProxyType({
    "shfl": shuffle, "vote": vote, "match": match, "redux": reduce_warp, "elect": elect,
})

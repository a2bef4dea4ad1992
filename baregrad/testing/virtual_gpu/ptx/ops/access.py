"""Loads, stores, atomics and addresses. Source: PTX ISA, "ld", "st", "atom", "red", "cvta"."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.errors import AbsentBlock
from baregrad.testing.virtual_gpu.ptx.memory import (
    CONST_WINDOW,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_NBYTES,
)
from baregrad.testing.virtual_gpu.ptx.operands import Decoder
from baregrad.testing.virtual_gpu.ptx.ops.floats import by_lanes, rounded
from baregrad.testing.virtual_gpu.ptx.rounding import decode, encode, values_of
from baregrad.testing.virtual_gpu.ptx.syntax import AddressOperand, Operand, PtxInstruction, Vector
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array, OperandType, raw_type

Change = Callable[[list[Array]], Array]

_SPACES: Final = MappingProxyType({
    "global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "cluster",
    "local": "local", "param": "param", "param::entry": "param", "const": "const",
})
_WINDOWS: Final = MappingProxyType({
    "shared": SHARED_WINDOW, "cluster": SHARED_WINDOW, "local": LOCAL_WINDOW,
    "param": PARAM_WINDOW, "const": CONST_WINDOW,
})
_STRONG: Final = ("volatile", "relaxed", "acquire", "release")


def space_of(instruction: PtxInstruction, named: str = "") -> str:
    """Return the state space that an access names, `generic` where it names none."""
    found = instruction.one_of(tuple(_SPACES))
    if found:
        return _SPACES[found]
    # Without a space the address is generic, but for a variable's own name.
    return named or "generic"


def _lanes(instruction: PtxInstruction) -> int:
    return {"v2": 2, "v4": 4, "v8": 8}.get(instruction.one_of(("v2", "v4", "v8")), 1)


def parts_of(
    decoder: Decoder, instruction: PtxInstruction, operand: Operand
) -> tuple[Operand, ...]:
    """The elements of an operand of an access, as many as the instruction says."""
    lanes = _lanes(instruction)
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != lanes:
        decoder.refuse(instruction, f"{len(items)} registers where {lanes} belong")
    return items


def load(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`ld`, `ldu` and vector forms; narrow values are extended to their registers."""
    row = decoder.type_of(instruction)
    target, place = instruction.operands[:2]
    address, named = decoder.address(instruction, place)
    space = space_of(instruction, named)
    items = parts_of(decoder, instruction, target)
    writers = [decoder.write(instruction, one, row) for one in items]
    width, lanes = row.nbytes, len(items)
    strong = instruction.has(*_STRONG)
    constant = instruction.has("nc")

    def run(block: Block, index: Index) -> None:
        if constant:
            block.check_constant(index)
        values = block.load(space, address(block, index), index, width, lanes, strong)
        for write, one in zip(writers, values, strict=True):
            write(block, index, one.view(row.numpy))

    return run


def store(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`st` and vector forms; wide registers give their low bits."""
    row = decoder.type_of(instruction)
    place, source = instruction.operands[:2]
    address, named = decoder.address(instruction, place)
    space = space_of(instruction, named)
    raw = raw_type(row.bits)
    readers = [
        decoder.read(instruction, one, row) for one in parts_of(decoder, instruction, source)
    ]
    strong = instruction.has(*_STRONG)

    def run(block: Block, index: Index) -> None:
        values = [np.ascontiguousarray(read(block, index)).view(raw.numpy) for read in readers]
        block.store(space, address(block, index), index, values, strong)

    return run


# ---- atomics ------------------------------------------------------------------------------------

_OPERATIONS: Final = (
    "add", "min", "max", "inc", "dec", "cas", "exch", "and", "or", "xor",
)


def change_of(decoder: Decoder, instruction: PtxInstruction, row: OperandType) -> Change:
    """Return what an atomic makes of [old, operand, second operand]."""
    name = instruction.one_of(_OPERATIONS)
    lane = row.lane or row.name
    if name == "add" and row.is_float:
        add = by_lanes(row, rounded("add", lane, "rn"))
        return lambda parts: add(parts[0], parts[1])
    if name in ("min", "max") and row.is_float:
        pick = np.fmin if name == "min" else np.fmax

        def extreme(a: Array, b: Array) -> Array:
            return values_of(encode(pick(decode(a, lane), decode(b, lane)), lane), lane)

        packed = by_lanes(row, extreme)
        return lambda parts: packed(parts[0], parts[1])
    changes: dict[str, Change] = {
        "add": lambda parts: parts[0] + parts[1],
        "min": lambda parts: np.minimum(parts[0], parts[1]),
        "max": lambda parts: np.maximum(parts[0], parts[1]),
        "and": lambda parts: parts[0] & parts[1],
        "or": lambda parts: parts[0] | parts[1],
        "xor": lambda parts: parts[0] ^ parts[1],
        "exch": lambda parts: parts[1],
        "inc": lambda parts: np.where(parts[0] >= parts[1], 0, parts[0] + row.numpy.type(1)),
        "dec": lambda parts: np.where(
            (parts[0] == 0) | (parts[0] > parts[1]), parts[1], parts[0] - row.numpy.type(1)
        ),
        "cas": lambda parts: np.where(parts[0] == parts[1], parts[2], parts[0]),
    }
    if name not in changes:
        decoder.refuse(instruction)
    return changes[name]


def atomic(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`atom` and `red`: threads at one address take their turns in the order of their numbers."""
    row = decoder.type_of(instruction)
    operands = list(instruction.operands)
    target = operands.pop(0) if instruction.opcode == "atom" else None
    place, *rest = operands
    address, named = decoder.address(instruction, place)
    space = space_of(instruction, named)
    sources = [parts_of(decoder, instruction, one) for one in rest[: 2 if len(rest) > 1 else 1]]
    if not instruction.has("cas"):
        sources = sources[:1]
    lanes = len(sources[0])
    readers = [[decoder.read(instruction, one, row) for one in each] for each in sources]
    writers = None
    if target is not None:
        items = parts_of(decoder, instruction, target)
        writers = [decoder.write(instruction, one, row) for one in items]
    change = change_of(decoder, instruction, row)
    width = row.nbytes

    def run(block: Block, index: Index) -> None:
        places = np.array(block.full(index, address(block, index)))
        values = [
            [np.array(block.full(index, one(block, index))) for one in each] for each in readers
        ]
        old = [np.empty(len(places), row.numpy) for _ in range(lanes)]
        ids = block.ids(index)
        for turn in _turns(places):
            threads = ids[turn]
            found = block.load(space, places[turn], threads, width, lanes, True)
            made = []
            for lane in range(lanes):
                before = found[lane].view(row.numpy)
                old[lane][turn] = before
                after = change([before, *[each[lane][turn] for each in values]])
                made.append(after.astype(row.numpy, copy=False).view(raw_type(row.bits).numpy))
            block.store(space, places[turn], threads, made, True)
        for lane, write in enumerate(writers or ()):
            write(block, index, old[lane])

    return run


def _turns(places: Array) -> list[Array]:
    """Split accesses into turns in which no address comes twice, the first comers first."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    counts = np.diff(np.append(first, len(places)))
    if counts.max() == 1:
        return [np.arange(len(places))]
    rank = np.empty(len(places), np.int64)
    rank[order] = np.arange(len(places)) - np.repeat(first, counts)
    return [np.flatnonzero(rank == turn) for turn in range(int(counts.max()))]


# ---- addresses ----------------------------------------------------------------------------------


def convert_address(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cvta` and `cvta.to`: between a space's own addresses and generic ones."""
    row = TYPES["u64" if instruction.has("u64") else "u32"]
    space = space_of(instruction)
    window = _WINDOWS.get(space, 0)
    if window and row.bits == 32:
        decoder.refuse(instruction, "generic addresses have 64 bits")
    if instruction.has("to"):
        window = -window
    delta = np.array([window], np.int64).view(np.uint64).astype(row.numpy)
    source = instruction.operands[1]
    if isinstance(source, AddressOperand):
        decoder.refuse(instruction)
    read = decoder.read(instruction, source, row)
    write = decoder.write(instruction, instruction.operands[0], row)
    return lambda block, index: write(block, index, read(block, index) + delta)


def is_space(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`isspacep`: whether a generic address lies in a space."""
    space = space_of(instruction)
    read = decoder.read(instruction, instruction.operands[1], TYPES["u64"])
    write = decoder.write(instruction, instruction.operands[0], TYPES["pred"])

    def run(block: Block, index: Index) -> None:
        places = read(block, index).view(np.int64)
        base = _WINDOWS.get(space)
        if base is None:
            windows = np.array(sorted(_WINDOWS.values()))
            found = ~((places >= windows[0]) & (places < windows[-1] + WINDOW_NBYTES))
        else:
            nbytes = 1 << RANK_SHIFT if space == "shared" else WINDOW_NBYTES
            found = (places >= base) & (places < base + nbytes)
        write(block, index, found)

    return run


def map_address(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`mapa`: the same place in the shared memory of another block of the cluster."""
    row = TYPES["u64" if instruction.has("u64") else "u32"]
    target, source, rank = instruction.operands
    read = decoder.read(instruction, source, row)
    ranks = decoder.read(instruction, rank, TYPES["u32"])
    write = decoder.write(instruction, target, row)
    generic = row.bits == 64 and not instruction.has("shared::cluster")

    def run(block: Block, index: Index) -> None:
        places = block.full(index, read(block, index)).astype(np.int64)
        wanted = block.full(index, ranks(block, index)).astype(np.int64)
        if (wanted >= block.cluster.size).any():
            block.fault(
                AbsentBlock, f"a cluster of {block.cluster.size} blocks has none of {wanted.max()}",
                int(block.ids(index)[int(np.argmax(wanted))]),
            )
        within = places & ((1 << RANK_SHIFT) - 1)
        found = within + (wanted + 1 << RANK_SHIFT) + (SHARED_WINDOW if generic else 0)
        write(block, index, found.astype(row.numpy))

    return run


def block_rank(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`getctarank`: the rank of the block whose shared memory an address is in."""
    row = TYPES["u64" if instruction.has("u64") else "u32"]
    read = decoder.read(instruction, instruction.operands[1], row)
    write = decoder.write(instruction, instruction.operands[0], TYPES["u32"])

    def run(block: Block, index: Index) -> None:
        ranks = (block.full(index, read(block, index)).astype(np.int64) & 0xFFFFFFFF) >> RANK_SHIFT
        own = block.first_agent // block.count
        write(block, index, np.where(ranks > 0, ranks - 1, own).astype(np.uint32))

    return run


def nothing(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """Hints and fences, which order nothing that this model would leave unordered."""
    return lambda block, index: None


def dependent_launch(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`griddepcontrol`: `.wait` lets threads of a kernel that began early touch memory."""
    if instruction.has("wait"):
        return lambda block, index: block.wait_for_launch(index)
    return nothing(decoder, instruction)


def cache_policy(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`createpolicy`: a number that caches read, and nobody else."""
    write = decoder.write(instruction, instruction.operands[0], TYPES["b64"])
    return lambda block, index: write(block, index, np.zeros(1, np.uint64))


ACCESSES: Final = MappingProxyType({
    "ld": load, "ldu": load, "st": store, "atom": atomic, "red": atomic,
    "cvta": convert_address, "mapa": map_address, "getctarank": block_rank,
     "isspacep": is_space, "prefetch": nothing, "prefetchu": nothing,
    "discard": nothing, "applypriority": nothing, "membar": nothing,
    "nanosleep": nothing, "griddepcontrol": dependent_launch,
    "createpolicy": cache_policy,
})

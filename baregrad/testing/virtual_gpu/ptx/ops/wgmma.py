"""Matrix instructions of a warpgroup, which run asynchronously. Source: PTX ISA, "wgmma".

Results are held back until `wgmma.wait_group` retires their group; before that the registers of D
hold NaN, so a kernel that reads them too early is found out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.base.bits import round_up
from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import octet_sums
from baregrad.testing.virtual_gpu.ptx.block import Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.clocks import GROUP
from baregrad.testing.virtual_gpu.ptx.errors import DivergentBarrier, IllegalInstruction
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, Reader, Writer
from baregrad.testing.virtual_gpu.ptx.ops.copies import finish, from_shared, start
from baregrad.testing.virtual_gpu.ptx.ops.flow import proceed
from baregrad.testing.virtual_gpu.ptx.ops.matrix import (
    accumulator,
    accumulator_registers,
    clamp,
    elements,
    read_warps,
    rows_of_a,
    vector,
)
from baregrad.testing.virtual_gpu.ptx.states import AT_REGISTERS, AT_WARP, RUNS
from baregrad.testing.virtual_gpu.ptx.syntax import (
    Identifier,
    Immediate,
    KernelText,
    Operand,
    PtxInstruction,
    Vector,
)
from baregrad.testing.virtual_gpu.ptx.tensor_map import swizzle
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array

_SHAPE: Final = re.compile(r"m64n(\d+)k(\d+)")
_TYPES: Final = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f32", "s32")
_OCTETS: Final = MappingProxyType({"e4m3": dtypes.float8_e4m3fn, "e5m2": dtypes.float8_e5m2})
_SPANS: Final = (0, 128, 64, 32)
_POISON: Final = np.uint32(0x7FC0DEAD)
# The rows of an operand in registers, or of a descriptor's matrix.
Matrix = Array


@dataclass(slots=True)
class PendingResult:
    """A result under way: the values that its registers will have."""

    writers: list[Writer]
    registers: list[Array]
    key: tuple[str, ...]
    copy: tuple[int, int] | None = None


@dataclass(slots=True)
class WarpgroupState:
    """Results of a warpgroup: those not yet committed, and the committed groups, oldest first."""

    loose: list[PendingResult] = field(default_factory=list)
    committed: list[list[PendingResult]] = field(default_factory=list)

    def latest(self, key: tuple[str, ...]) -> PendingResult | None:
        """Return the last result under way for a set of registers."""
        for group in (self.loose, *reversed(self.committed)):
            for one in reversed(group):
                if one.key == key:
                    return one
        return None


def state_of(block: Block, group: int) -> WarpgroupState:
    """Return the state of a warpgroup, by its number."""
    table: dict[int, WarpgroupState] = block.family.setdefault("warpgroups", {})
    return table.setdefault(group, WarpgroupState())


def warpgroup(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """All `wgmma` instructions; the four warps of a group must come together."""
    if instruction.guard is not None:
        decoder.refuse(instruction, "a wgmma under a predicate")
    if instruction.has("fence"):
        return whole_warpgroups(lambda block, ids: None)
    if instruction.has("commit_group"):
        return whole_warpgroups(_commit)
    if instruction.has("wait_group"):
        left = instruction.operands[0]
        if not isinstance(left, Immediate):
            decoder.refuse(instruction)
        keep = int(left.value)
        return whole_warpgroups(lambda block, ids: _wait(block, ids, keep))
    if not instruction.has("mma_async"):
        decoder.refuse(instruction)
    return _multiply(decoder, instruction)


def whole_warpgroups(body: Callable[[Block, Array], None], proceeds: bool = True) -> Execute:
    """Return what runs `body` for each warpgroup whose four warps are all here, and sends it on.

    Without `proceeds` the body does that.
    """

    def run(block: Block, index: Index) -> None:
        ids = block.ids(index)
        for group in np.unique(ids // GROUP):
            if (group + 1) * GROUP > block.count:
                block.fault(DivergentBarrier, "a warpgroup's instruction in a warp of none")
            mine = ids[ids // GROUP == group]
            if len(mine) < GROUP:
                block.state[mine] = AT_WARP
                block.counter[mine] = block.step
                continue
            body(block, mine)
            if proceeds:
                proceed(block, mine)

    return run


def _commit(block: Block, ids: Array) -> None:
    one = state_of(block, int(ids[0]) // GROUP)
    one.committed.append(one.loose)
    one.loose = []


def _wait(block: Block, ids: Array, keep: int) -> None:
    one = state_of(block, int(ids[0]) // GROUP)
    done = one.committed[: max(len(one.committed) - keep, 0)]
    one.committed = one.committed[len(done) :]
    for group in done:
        for flight in group:
            # A later result for the same registers is still under way.
            if one.latest(flight.key) is None:
                for write, values in zip(flight.writers, flight.registers, strict=True):
                    write(block, ids, values.reshape(-1))
            if flight.copy is not None:
                for thread in ids:
                    finish(block, int(thread), flight.copy)


def _multiply(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    shape = next((_SHAPE.fullmatch(one) for one in instruction.modifiers if one[:3] == "m64"), None)
    names = [one for one in instruction.modifiers if one in _TYPES]
    if shape is None or len(names) != 3 or instruction.has("sp"):
        decoder.refuse(instruction, "a matrix shape or type that is not known")
    columns, depth = int(shape[1]), int(shape[2])
    result, left, right = names
    if depth * TYPES[left].nbytes != 32 or columns % 8 or not 8 <= columns <= 256:
        decoder.refuse(instruction, "a matrix shape or type that is not known")
    word = TYPES["b32"]
    items = vector(decoder, instruction, instruction.operands[0])
    if len(items) != columns // (4 if result == "f16" else 2):
        decoder.refuse(instruction, f"{len(items)} registers of D")
    writers = [decoder.write(instruction, one, word) for one in items]
    readers = [decoder.read(instruction, one, word) for one in items]
    key = tuple(one.text for one in items if isinstance(one, Identifier))
    immediates, scale = _trailing(decoder, instruction)
    from_registers = isinstance(instruction.operands[1], Vector)
    negate_a, negate_b, turn_a, turn_b = _settings(immediates, from_registers, result == "s32")
    read_a = _operand(decoder, instruction, instruction.operands[1], left, 64, bool(turn_a))
    read_b = _operand(decoder, instruction, instruction.operands[2], right, columns, bool(turn_b))

    def body(block: Block, ids: Array) -> None:
        state = state_of(block, int(ids[0]) // GROUP)
        copy = start(block, int(ids[0]), "product")
        factors = negate_a * negate_b * read_a(block, ids, copy), read_b(block, ids, copy)
        adds = scale(block, ids)
        if adds.any() != adds.all():
            block.fault(IllegalInstruction, "scale-d differs between the threads", int(ids[0]))
        sums = np.zeros((64, columns), np.int64 if result == "s32" else np.float64)
        if adds.all():
            before = state.latest(key)
            registers = read_warps(readers, block, ids) if before is None else before.registers
            sums = accumulator(registers, result, columns).reshape(64, columns)
        if left in _OCTETS:
            total = octet_sums(*factors, sums, (_OCTETS[left], _OCTETS[right]))
        else:
            total = factors[0] @ factors[1].T + sums
        if result == "s32":
            total = clamp(total, instruction.has("satfinite"))
        found = accumulator_registers(total.reshape(4, 16, columns), result)
        state.loose.append(PendingResult(writers, found, key, copy))
        for write in writers:
            write(block, ids, np.array([_POISON]))

    return whole_warpgroups(body)


def _trailing(
    decoder: Decoder, instruction: PtxInstruction
) -> tuple[list[int], Reader]:
    """Return the immediates at the end and the reader of scale-d."""
    scale, *rest = instruction.operands[3:]
    values = [int(one.value) for one in rest if isinstance(one, Immediate)]
    return values, decoder.read(instruction, scale, TYPES["pred"])


def _settings(values: list[int], from_registers: bool, integers: bool) -> tuple[int, int, int, int]:
    """Return (factor of A, factor of B, A transposed, B transposed)."""
    if integers or len(values) < 2:
        return 1, 1, 0, 0
    turns = values[2:]
    if from_registers:
        turns = [0, *turns]
    turns = [*turns, 0, 0]
    return values[0], values[1], turns[0], turns[1]


class _Operand:
    """A matrix of A or B: rows along M or N, columns along K, as values."""

    def __init__(self, name: str, rows: int, turned: bool) -> None:
        self.name = name
        self.rows = rows
        self.turned = turned
        self.registers: list[Reader] = []
        self.descriptor: Reader | None = None

    def __call__(self, block: Block, ids: Array, copy: tuple[int, int] | None) -> Matrix:
        if self.descriptor is None:
            found = rows_of_a(read_warps(self.registers, block, ids))
            return elements(found.reshape(64, 32), self.name)
        words = self.descriptor(block, ids)
        if (words != words[0]).any():
            block.fault(IllegalInstruction, "a descriptor differs between threads", int(ids[0]))
        return self._from_shared(block, int(ids[0]), int(words[0]), copy)

    def _from_shared(
        self, block: Block, thread: int, descriptor: int, copy: tuple[int, int] | None
    ) -> Matrix:
        nbytes = TYPES[self.name].nbytes
        depth = 32 // nbytes
        offsets = descriptor_offsets(descriptor, self.rows, depth, nbytes, self.turned)
        if descriptor >> 49 & 7:
            block.fault(IllegalInstruction, "a descriptor's base offset, not known here", thread)
        places = ((descriptor & 0x3FFF) << 4) + offsets.reshape(-1)
        places = swizzle(places, _SPANS[descriptor >> 62 & 3])
        codes = from_shared(block, thread, places, nbytes, copy)
        return elements(codes.view(np.uint8).reshape(self.rows, 32), self.name)


def descriptor_offsets(
    descriptor: int, rows: int, depth: int, nbytes: int, turned: bool
) -> Array:
    """Return the byte offsets of a matrix's elements before the swizzle: (rows, depth).

    `turned`: contiguous along the rows' axis (M or N) rather than along K.
    """
    leading = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    span = _SPANS[descriptor >> 62 & 3]
    along = np.arange(rows)[:, None]
    k = np.arange(depth)[None, :]
    if not turned:
        within = k * nbytes
        if span:
            return along // 8 * stride + along % 8 * span + within
        return along // 8 * stride + within // 16 * leading + along % 8 * 16 + within % 16
    within = along * nbytes
    if span:
        return within // span * leading + k // 8 * stride + k % 8 * span + within % span
    return within // 16 * stride + k // 8 * leading + k % 8 * 16 + within % 16


def _operand(
    decoder: Decoder, instruction: PtxInstruction, operand: Operand, name: str, rows: int,
    turned: bool,
) -> _Operand:
    found = _Operand(name, rows, turned)
    if isinstance(operand, Vector):
        found.registers = [
            decoder.read(instruction, one, TYPES["b32"]) for one in operand.items
        ]
    else:
        found.descriptor = decoder.read(instruction, operand, TYPES["b64"])
    return found


class RegisterPool:
    """The registers of a block's warps: how many each thread has, and how many nobody has."""

    def __init__(self, block: Block, each: int) -> None:
        self.owned = np.full(-(-block.warps // 4), each, np.int64)
        self.free = 0


def set_registers(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`setmaxnreg`: a warpgroup gives registers back, or waits until there are enough."""
    wanted = instruction.operands[0]
    each = _registers_at_entry(decoder.kernel)
    if not isinstance(wanted, Immediate) or instruction.guard is not None:
        decoder.refuse(instruction)
    count, rises = int(wanted.value), instruction.has("inc")

    def body(block: Block, ids: Array) -> None:
        thread = int(ids[0])
        if not 24 <= count <= 256 or count % 8:
            block.fault(IllegalInstruction, f"{count} registers: 24, 32 .. 256 can be had", thread)
        if not each:
            block.fault(
                IllegalInstruction, "a change of registers whose count at the entry is not stated",
                thread, hint=".maxnreg, or .reqntid with .minnctapersm, state it",
            )
        pool: RegisterPool = block.family.setdefault("registers", RegisterPool(block, each))
        group = thread // GROUP
        more = count - int(pool.owned[group])
        if (more > 0 and not rises) or (more < 0 and rises):
            block.fault(
                IllegalInstruction,
                f"{pool.owned[group]} registers are to become {count} by"
                f" setmaxnreg.{'inc' if rises else 'dec'}", thread,
            )
        if more > pool.free:
            block.state[ids] = AT_REGISTERS
            block.counter[ids] = block.step
            return
        pool.owned[group] = count
        pool.free -= more
        if more < 0:
            block.state[block.state == AT_REGISTERS] = RUNS
        proceed(block, ids)

    return whole_warpgroups(body, proceeds=False)


def _registers_at_entry(kernel: KernelText) -> int:
    """Return the registers that each thread has at the entry, 0 where the text does not say."""
    stated = kernel.directives.get("maxnreg")
    if stated:
        return round_up(stated[0], 8)
    threads = kernel.directives.get("reqntid") or kernel.directives.get("maxntid")
    blocks = kernel.directives.get("minnctapersm")
    if not threads or not blocks:
        return 0
    # A multiprocessor's quarters have 16,384 registers each, and warps are dealt out to them.
    warps = -(-int(np.prod(threads)) // 32) * blocks[0]
    return min(16_384 // (32 * -(-warps // 4)) // 8 * 8, 255)


WARPGROUP_CONTROL: Final = MappingProxyType({"wgmma": warpgroup, "setmaxnreg": set_registers})

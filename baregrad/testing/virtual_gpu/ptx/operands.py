"""Operands made ready to run: readers and writers of registers, literals, variables, addresses."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NoReturn

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import WARP, Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.errors import UninitialisedRead, UnsupportedInstruction
from baregrad.testing.virtual_gpu.ptx.rounding import encode
from baregrad.testing.virtual_gpu.ptx.syntax import (
    AddressOperand,
    Identifier,
    Immediate,
    KernelText,
    Operand,
    PtxInstruction,
    Variable,
    Vector,
)
from baregrad.testing.virtual_gpu.ptx.types import TYPES, UNSIGNED, Array, OperandType

Reader = Callable[[Block, Index], Array]
Writer = Callable[[Block, Index, Array], None]


def _thread_axis(axis: int) -> Callable[[Block], Array]:
    def make(block: Block) -> Array:
        x, y, z = block.shape
        inner = (1, x, x * y)[axis]
        return np.asarray(block.threads // inner % (x, y, z)[axis])

    return make


def _dimension(field: str, axis: int) -> Callable[[Block], Array]:
    return lambda block: np.full(block.count, getattr(block, field)[axis])


def _place(axis: int) -> Callable[[Block], Array]:
    return lambda block: np.repeat([place[axis] for place in block.places], block.each)


def _of_cluster(name: str, axis: int) -> Callable[[Block], Array]:
    def make(block: Block) -> Array:
        count, size = block.grid[axis], block.cluster.shape[axis]
        place = _place(axis)(block)
        values: dict[str, Array | int] = {
            "clusterid": place // size, "nclusterid": count // size,
            "cluster_ctaid": place % size, "cluster_nctaid": size,
        }
        return np.broadcast_to(np.asarray(values[name]), block.count)

    return make


def _lane_mask(which: str) -> Callable[[Block], Array]:
    def make(block: Block) -> Array:
        lane = (block.threads % WARP).astype(np.uint64)
        one = np.uint64(1) << lane
        below = one - np.uint64(1)
        masks = {"eq": one, "lt": below, "le": below | one, "gt": ~(below | one), "ge": ~below}
        return np.asarray(masks[which] & np.uint64(0xFFFFFFFF))

    return make


def _constant(value: int) -> Callable[[Block], Array]:
    return lambda block: np.full(block.count, value, np.int64)


def _shared_size(block: Block) -> Array:
    return np.full(block.count, block.shared_nbytes, np.int64)


def _dynamic_size(block: Block) -> Array:
    return np.full(block.count, block.shared_nbytes - block.program.shared_nbytes, np.int64)


def _specials() -> dict[str, Callable[[Block], Array]]:
    found: dict[str, Callable[[Block], Array]] = {
        "%laneid": lambda block: block.threads % WARP,
        "%warpid": lambda block: block.threads % block.each // WARP,
        "%nwarpid": lambda block: np.full(block.count, -(-block.each // WARP)),
        "%smid": _constant(0),
        "%nsmid": _constant(1),
        "%gridid": _constant(0),
        "%total_smem_size": _shared_size,
        "%dynamic_smem_size": _dynamic_size,
        "%cluster_ctarank": lambda block: np.full(block.count, block.first_agent // block.count),
        "%cluster_nctarank": lambda block: np.full(block.count, block.cluster.size),
        "%is_explicit_cluster": lambda block: np.full(block.count, int(block.cluster.size > 1)),
    }
    for axis, letter in enumerate("xyz"):
        found[f"%tid.{letter}"] = _thread_axis(axis)
        found[f"%ctaid.{letter}"] = _place(axis)
        for name, field in (("ntid", "shape"), ("nctaid", "grid")):
            found[f"%{name}.{letter}"] = _dimension(field, axis)
        for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"):
            found[f"%{name}.{letter}"] = _of_cluster(name, axis)
    for which in ("eq", "lt", "le", "gt", "ge"):
        found[f"%lanemask_{which}"] = _lane_mask(which)
    return found


_SPECIALS: Final = MappingProxyType(_specials())
# Clocks count the instructions that the block has run.
_CLOCKS: Final = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo")


def immediate_array(value: Immediate, row: OperandType) -> Array:
    """Return a literal as an array of one value of a type."""
    number, bits = value.value, value.bits
    if row.name == "pred":
        return np.array([bool(number)])
    if row.name in ("f32", "f64"):
        return np.array([number], np.float64).astype(row.numpy)
    if bits is not None:
        # `mov.b32 %r, 0f3F800000` moves the bits.
        return np.array([bits & ((1 << row.bits) - 1)], UNSIGNED[row.bits]).view(row.numpy)
    if row.kind == "f" and not row.lane and isinstance(number, float):
        return encode(np.array([number]), row.name).astype(row.numpy)
    return np.array([int(number) & ((1 << row.bits) - 1)], UNSIGNED[row.bits]).view(row.numpy)


class Decoder:
    """Turns the operands of one kernel's instructions into functions of (block, threads)."""

    def __init__(
        self,
        kernel: KernelText,
        slots: dict[tuple[int, str], tuple[int, str]],
        variables: dict[tuple[int, str], tuple[Variable, int]],
    ) -> None:
        self.kernel = kernel
        self.slots = slots
        self.variables = variables

    # ---- names ----------------------------------------------------------------------------------

    def refuse(self, instruction: PtxInstruction, why: str = "no such instruction") -> NoReturn:
        """Raise UnsupportedInstruction for an instruction."""
        raise UnsupportedInstruction(
            f"the PTX interpreter does not run this: {why}",
            line=instruction.line,
            text=instruction.text,
        )

    def type_of(self, instruction: PtxInstruction, place: int = -1) -> OperandType:
        """Return the type that a modifier names, by its place among those that are types."""
        names = [one for one in instruction.modifiers if one in TYPES]
        if not names or not -len(names) <= place < len(names):
            self.refuse(instruction, "its type is not known")
        return TYPES[names[place]]

    def register(self, name: Identifier, scope: int) -> tuple[int, str] | None:
        """Return the slot and the type of a declared register, None for another name."""
        for one in self.kernel.chain(scope):
            found = self.slots.get((one, name.text))
            if found is not None:
                return found
        return None

    def variable(self, name: Identifier, scope: int) -> tuple[Variable, int] | None:
        """Return a variable and its address in its own space, None for another name."""
        for one in (*self.kernel.chain(scope), -1):
            found = self.variables.get((one, name.text))
            if found is not None:
                return found
        return None

    def label(self, instruction: PtxInstruction, name: Operand) -> int:
        """Return the place of the instruction that a label stands before."""
        if not isinstance(name, Identifier):
            self.refuse(instruction, "a branch goes to a label")
        scopes = self.kernel.chain(instruction.scope)
        keys = [(one, name.text) for one in scopes if (one, name.text) in self.kernel.labels]
        if not keys:
            self.refuse(instruction, f"no label {name.text}")
        return self.kernel.labels[keys[0]]

    # ---- reading --------------------------------------------------------------------------------

    def read(self, instruction: PtxInstruction, operand: Operand, row: OperandType) -> Reader:
        """Return the reader of an operand as values of a type: (n,) or (1,) arrays."""
        if isinstance(operand, Immediate):
            literal = immediate_array(operand, row)
            return lambda block, index: literal
        if isinstance(operand, Vector):
            return self._read_packed(instruction, operand, row)
        if not isinstance(operand, Identifier):
            self.refuse(instruction, f"{operand} is no value")
        slot = self.register(operand, instruction.scope)
        if slot is not None:
            return self._read_register(instruction, operand, slot, row)
        found = self.variable(operand, instruction.scope)
        if found is not None:
            place = np.array([found[1]], np.int64).astype(UNSIGNED[max(row.bits, 8)])
            return lambda block, index: place
        return self._read_special(instruction, operand.text, row)

    def _read_register(
        self,
        instruction: PtxInstruction,
        operand: Identifier,
        slot: tuple[int, str],
        row: OperandType,
    ) -> Reader:
        number, held = slot
        name = operand.text
        bits = TYPES[held].bits
        dtype = row.numpy

        def unwritten(block: Block, index: Index) -> NoReturn:
            block.fault(
                UninitialisedRead,
                f"a read of the register {name}, which nobody wrote",
                int(block.ids(index)[0]),
            )

        if (held == "pred") != (row.name == "pred"):
            self.refuse(instruction, f"{name} is a {held} where a {row.name} belongs")
        if row.name == "pred":
            negated = operand.negated

            def read_predicate(block: Block, index: Index) -> Array:
                array = block.registers[number]
                if array is None:
                    unwritten(block, index)
                return np.asarray(~array[index] if negated else array[index])

            return read_predicate
        if bits < row.bits:
            self.refuse(instruction, f"{name} has {bits} bits where {row.bits} belong")
        if bits == row.bits:

            def read_whole(block: Block, index: Index) -> Array:
                array = block.registers[number]
                if array is None:
                    unwritten(block, index)
                whole = array.view(dtype)
                return whole if isinstance(index, slice) else np.asarray(whole[index])

            return read_whole
        narrow = UNSIGNED[row.bits]

        def read_low(block: Block, index: Index) -> Array:
            array = block.registers[number]
            if array is None:
                unwritten(block, index)
            return np.asarray(array[index].astype(narrow).view(dtype))

        return read_low

    def _read_packed(
        self, instruction: PtxInstruction, operand: Vector, row: OperandType
    ) -> Reader:
        """Read `{low, high}` as one value."""
        part = TYPES[f"b{row.bits // len(operand.items)}"]
        readers = [self.read(instruction, item, part) for item in operand.items]
        wide = UNSIGNED[row.bits]

        def read(block: Block, index: Index) -> Array:
            total = readers[0](block, index).astype(wide)
            for place, one in enumerate(readers[1:], 1):
                shift = wide.type(place * part.bits)
                total = total | one(block, index).astype(wide) << shift
            return total.view(row.numpy)

        return read

    def _read_special(self, instruction: PtxInstruction, name: str, row: OperandType) -> Reader:
        dtype = row.numpy
        if name in _CLOCKS:
            return lambda block, index: np.array([-block.steps_left & 0x7FFFFFFF]).astype(dtype)
        if name == "WARP_SZ":
            return lambda block, index: np.array([WARP]).astype(dtype)
        make = _SPECIALS.get(name)
        if make is None:
            self.refuse(instruction, f"{name} is no register, variable or special register")
        return lambda block, index: np.asarray(block.special(name, make)[index].astype(dtype))

    # ---- writing --------------------------------------------------------------------------------

    def write(self, instruction: PtxInstruction, operand: Operand, row: OperandType) -> Writer:
        """Return the writer of values of a type to a destination; `_` takes and forgets them."""
        if isinstance(operand, Vector):
            return self._write_parts(instruction, operand, row)
        if not isinstance(operand, Identifier):
            self.refuse(instruction, f"{operand} is no destination")
        if operand.text == "_":
            return lambda block, index, values: None
        slot = self.register(operand, instruction.scope)
        if slot is None:
            self.refuse(instruction, f"{operand.text} is no register")
        number, held = slot
        bits = TYPES[held].bits
        if (held == "pred") != (row.name == "pred") or bits < row.bits:
            self.refuse(instruction, f"{operand.text} is a {held} where a {row.name} belongs")
        storage = np.dtype(bool) if held == "pred" else UNSIGNED[bits]
        # Narrow values are extended to the register: by their sign, or by zeros.
        direct = row.name == "pred" or bits == row.bits
        view = storage if not direct else row.numpy
        if not direct and row.kind == "s":
            view = np.dtype(f"int{bits}")

        def write(block: Block, index: Index, values: Array) -> None:
            array = block.registers[number]
            if array is None:
                array = block.registers[number] = np.full(
                    block.count, True if storage.kind == "b" else 0xA5A5A5A5A5A5A5A5 & (
                        (1 << 8 * storage.itemsize) - 1), storage
                )
            if not direct or view is storage:
                array.view(view)[index] = values
            else:
                array.view(view)[index] = values if values.dtype == view else values.view(view)

        return write

    def _write_parts(
        self, instruction: PtxInstruction, operand: Vector, row: OperandType
    ) -> Writer:
        """Write one value to `{low, high}`."""
        part = TYPES[f"b{row.bits // len(operand.items)}"]
        writers = [self.write(instruction, item, part) for item in operand.items]
        wide, narrow = UNSIGNED[row.bits], UNSIGNED[part.bits]

        def write(block: Block, index: Index, values: Array) -> None:
            whole = values.view(wide)
            parts = [
                (whole >> wide.type(place * part.bits)).astype(narrow)
                for place in range(len(writers))
            ]
            for one, each in zip(writers, parts, strict=True):
                one(block, index, each)

        return write

    # ---- addresses ------------------------------------------------------------------------------

    def address(self, instruction: PtxInstruction, operand: Operand) -> tuple[Reader, str]:
        """Return the reader of an address, int64, and the space of the variable it names or ``."""
        if not isinstance(operand, AddressOperand):
            self.refuse(instruction, f"{operand} is no address")
        offset = operand.offset
        if operand.base is None:
            literal = np.array([offset], np.int64)
            return (lambda block, index: literal), ""
        slot = self.register(operand.base, instruction.scope)
        if slot is None:
            found = self.variable(operand.base, instruction.scope)
            if found is None:
                # Parameters that a body declares are those of the functions that it calls.
                scopes = self.kernel.chain(instruction.scope)
                calls = any((one, operand.base.text) in self.kernel.variables for one in scopes)
                self.refuse(
                    instruction,
                    "a call of a function" if calls else f"no variable {operand.base.text}",
                )
            place = np.array([found[1] + offset], np.int64)
            return (lambda block, index: place), found[0].space
        row = TYPES[f"u{TYPES[slot[1]].bits}"]
        base = self.read(instruction, operand.base, row)
        if row.bits < 64:
            # 32-bit addresses wrap around.
            mask = np.int64(0xFFFFFFFF)
            return (
                lambda block, index: (base(block, index).astype(np.int64) + offset) & mask
            ), ""
        return (lambda block, index: base(block, index).view(np.int64) + offset), ""

    def guard(self, instruction: PtxInstruction) -> Reader | None:
        """Return the reader of an instruction's guard, True where it runs; None without one."""
        if instruction.guard is None:
            return None
        return self.read(instruction, instruction.guard, TYPES["pred"])


def guarded(guard: Reader | None, run: Execute) -> Execute:
    """Return `run` for those threads only whose guard is true."""
    if guard is None:
        return run

    def execute(block: Block, index: Index) -> None:
        chosen = guard(block, index)
        if chosen.all():
            run(block, index)
        elif chosen.any():
            run(block, block.ids(index)[chosen])

    return execute

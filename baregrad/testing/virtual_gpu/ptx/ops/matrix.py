"""Matrix instructions of a warp: `mma.sync`, `ldmatrix`, `stmatrix`, and the same of a warpgroup.

Source: PTX ISA, "Warp Level Matrix Instructions" and "Asynchronous Warpgroup Level Matrix
Instructions". Every type has one layout in bytes: a row of A or a column of B is 32 bytes (16 in
the shapes of half depth), of which each lane of four holds 4 bytes in each half. Products are
summed in float64 and rounded once, which is within what the manual promises.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import WARP, Block, Execute
from baregrad.testing.virtual_gpu.ptx.errors import DivergentBarrier
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, Reader
from baregrad.testing.virtual_gpu.ptx.ops.warp import meeting
from baregrad.testing.virtual_gpu.ptx.rounding import decode, encode
from baregrad.testing.virtual_gpu.ptx.syntax import Operand, PtxInstruction, Vector
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array

_SHAPE: Final = re.compile(r"m16n8k(\d+)")
_ELEMENTS: Final = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")


def vector(decoder: Decoder, instruction: PtxInstruction, operand: Operand) -> tuple[Operand, ...]:
    """Return the items of a vector operand, or the one operand alone."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def elements(words: Array, name: str) -> Array:
    """Return the values of rows of bytes, (..., nbytes) uint8 -> (..., count)."""
    row = TYPES[name]
    codes = np.ascontiguousarray(words).view(row.numpy)
    return codes.astype(np.int64) if name in ("s8", "u8") else decode(codes, name)


def rows_of_a(registers: list[Array]) -> Array:
    """Return A's rows as bytes from its registers, each (warps, 32): (warps, 16, nbytes)."""
    warps = len(registers[0])
    words = np.empty((warps, 16, 2 * len(registers)), np.uint32)
    lane = np.arange(WARP)
    for number, values in enumerate(registers):
        words[:, lane // 4 + 8 * (number & 1), lane % 4 + 4 * (number >> 1)] = values
    return words.view(np.uint8)


def columns_of_b(registers: list[Array]) -> Array:
    """Return B's columns as bytes from its registers, each (warps, 32): (warps, 8, nbytes)."""
    warps = len(registers[0])
    words = np.empty((warps, 8, 4 * len(registers)), np.uint32)
    lane = np.arange(WARP)
    for number, values in enumerate(registers):
        words[:, lane // 4, lane % 4 + 4 * number] = values
    return words.view(np.uint8)


def accumulator(registers: list[Array], name: str, columns: int) -> Array:
    """Return C as values from its registers, each (warps, 32): (warps, 16, columns)."""
    warps = len(registers[0])
    dtype = np.int64 if name == "s32" else np.float64
    out = np.empty((warps, 16, columns), dtype)
    lane = np.arange(WARP)
    for number in range(columns // 2):
        if name == "f16":
            word = registers[number // 2]
            half = (word >> np.uint32(16 * (number & 1))).astype(np.uint16)
            values = decode(half, "f16")
        else:
            values = registers[number].view(np.int32 if name == "s32" else np.float32)
        place = lane // 4 + 8 * (number >> 1 & 1), 8 * (number >> 2) + 2 * (lane % 4) + (number & 1)
        out[:, place[0], place[1]] = values
    return out


def accumulator_registers(values: Array, name: str) -> list[Array]:
    """Return the registers, each (warps, 32) uint32, that hold (warps, 16, columns) results."""
    lane = np.arange(WARP)
    parts = []
    for number in range(values.shape[2] // 2):
        rows = lane // 4 + 8 * (number >> 1 & 1)
        columns = 8 * (number >> 2) + 2 * (lane % 4) + (number & 1)
        parts.append(values[:, rows, columns])
    if name == "s32":
        return [one.astype(np.int32).view(np.uint32) for one in parts]
    codes = [encode(one, name) for one in parts]
    if name == "f32":
        return codes
    pairs = zip(codes[0::2], codes[1::2], strict=True)
    return [low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16) for low, high in pairs]


def clamp(values: Array, satfinite: bool) -> Array:
    """Clamp or wrap integer results to 32 bits."""
    if satfinite:
        return np.clip(values, -(2**31), 2**31 - 1)
    return values.astype(np.uint64).astype(np.uint32).view(np.int32).astype(np.int64)


def whole_warps(block: Block, ids: Array) -> None:
    """Raise unless threads make up whole warps."""
    if len(ids) % WARP or (ids[::WARP] % WARP).any():
        block.fault(DivergentBarrier, "a matrix instruction needs whole warps", int(ids[0]))


def read_warps(readers: list[Reader], block: Block, ids: Array) -> list[Array]:
    """Return registers as (warps, 32) uint32."""
    return [block.full(ids, one(block, ids)).reshape(-1, WARP) for one in readers]


def multiply_accumulate(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`mma.sync.aligned.m16n8kK.row.col`."""
    shape = next((_SHAPE.fullmatch(one) for one in instruction.modifiers if one[:3] == "m16"), None)
    names = [one for one in instruction.modifiers if one in (*_ELEMENTS, "f32", "s32")]
    if shape is None or len(names) != 4 or instruction.has("sp"):
        decoder.refuse(instruction, "a matrix shape or type that is not known")
    result, left, right, start = names
    deep = int(shape[1]) * TYPES[left].nbytes
    if left not in _ELEMENTS or right not in _ELEMENTS or deep not in (16, 32):
        decoder.refuse(instruction, "a matrix shape or type that is not known")
    word = TYPES["b32"]
    operands = [vector(decoder, instruction, one) for one in instruction.operands]
    counts = (2 if result == "f16" else 4, deep // 8, deep // 16, 2 if start == "f16" else 4)
    if tuple(map(len, operands)) != counts:
        decoder.refuse(instruction, f"registers {tuple(map(len, operands))}, not {counts}")
    writers = [decoder.write(instruction, one, word) for one in operands[0]]
    a, b, c = (
        [decoder.read(instruction, one, word) for one in each] for each in operands[1:]
    )

    def body(block: Block, ids: Array, masks: Array) -> None:
        whole_warps(block, ids)
        rows = elements(rows_of_a(read_warps(a, block, ids)), left)
        columns = elements(columns_of_b(read_warps(b, block, ids)), right)
        total = rows @ columns.transpose(0, 2, 1)
        total = total + accumulator(read_warps(c, block, ids), start, 8)
        if result == "s32":
            total = clamp(total, instruction.has("satfinite"))
        for write, values in zip(writers, accumulator_registers(total, result), strict=True):
            write(block, ids, values.reshape(-1))

    return meeting(decoder, instruction, None, body)


def _matrix_count(instruction: PtxInstruction) -> int:
    return {"x1": 1, "x2": 2, "x4": 4}.get(instruction.one_of(("x1", "x2", "x4")), 0)


def _matrices(words: Array, transposed: bool) -> Array:
    """Return, for 8x8 matrices of 16 bits as rows of 4 words, each lane's word: (m, 8, 4)."""
    if not transposed:
        return words
    halves = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 8, 8)
    return np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.uint32)


def load_matrix(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`ldmatrix`: 8x8 matrices of 16-bit elements, a row at each of eight lanes' addresses."""
    count = _matrix_count(instruction)
    if not count or not instruction.has("m8n8") or not instruction.has("b16"):
        decoder.refuse(instruction)
    word = TYPES["b32"]
    items = vector(decoder, instruction, instruction.operands[0])
    writers = [decoder.write(instruction, one, word) for one in items]
    address, named = decoder.address(instruction, instruction.operands[1])
    space = "shared" if instruction.has("shared", "shared::cta") else named or "generic"
    transposed = instruction.has("trans")

    def body(block: Block, ids: Array, masks: Array) -> None:
        whole_warps(block, ids)
        places = block.full(ids, address(block, ids))
        rows = (ids % WARP) < 8 * count
        parts = block.load(space, places[rows], ids[rows], 4, 4)
        words = np.stack(parts, axis=1).reshape(-1, 8, 4)
        found = _matrices(words, transposed).reshape(-1, count, WARP)
        for number, write in enumerate(writers):
            write(block, ids, np.ascontiguousarray(found[:, number]).reshape(-1))

    return meeting(decoder, instruction, None, body)


def store_matrix(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`stmatrix`: what `ldmatrix` reads, written."""
    count = _matrix_count(instruction)
    if not count or not instruction.has("m8n8") or not instruction.has("b16"):
        decoder.refuse(instruction)
    word = TYPES["b32"]
    address, named = decoder.address(instruction, instruction.operands[0])
    items = vector(decoder, instruction, instruction.operands[1])
    readers = [decoder.read(instruction, one, word) for one in items]
    space = "shared" if instruction.has("shared", "shared::cta") else named or "generic"
    transposed = instruction.has("trans")

    def body(block: Block, ids: Array, masks: Array) -> None:
        whole_warps(block, ids)
        places = block.full(ids, address(block, ids))
        rows = (ids % WARP) < 8 * count
        registers = np.stack(read_warps(readers, block, ids), axis=1)
        words = _matrices(registers.reshape(-1, 8, 4), transposed).reshape(-1, 4)
        values = [np.ascontiguousarray(words[:, part]) for part in range(4)]
        block.store(space, places[rows], ids[rows], values)

    return meeting(decoder, instruction, None, body)


MATRIX_CONTROL: Final = MappingProxyType({
    "mma": multiply_accumulate, "ldmatrix": load_matrix, "stmatrix": store_matrix,
})

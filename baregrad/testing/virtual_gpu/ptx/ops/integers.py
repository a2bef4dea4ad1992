"""Integer arithmetic and bits. Source: PTX ISA, "Integer Arithmetic" to "Logic and Shift"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, Reader
from baregrad.testing.virtual_gpu.ptx.ops.floats import by_lanes
from baregrad.testing.virtual_gpu.ptx.syntax import Immediate, PtxInstruction
from baregrad.testing.virtual_gpu.ptx.types import TYPES, UNSIGNED, Array, OperandType

Function = Callable[..., Array]


def assemble(
    decoder: Decoder, instruction: PtxInstruction, function: Function,
    rows: tuple[OperandType, ...], result: OperandType,
) -> Execute:
    """Return the instruction that writes `function` of operands of the types `rows`."""
    sources = instruction.operands[1:]
    if len(sources) != len(rows):
        decoder.refuse(instruction, f"it takes {len(rows)} operands")
    readers = [
        decoder.read(instruction, one, row) for one, row in zip(sources, rows, strict=True)
    ]
    write = decoder.write(instruction, instruction.operands[0], result)
    if len(readers) == 2:
        first, second = readers
        return lambda block, index: write(
            block, index, function(first(block, index), second(block, index))
        )
    return lambda block, index: write(
        block, index, function(*[one(block, index) for one in readers])
    )


# ---- arithmetic ---------------------------------------------------------------------------------


def wide_type(row: OperandType) -> OperandType:
    """Return the type of twice the width."""
    return TYPES[f"{row.kind}{2 * row.bits}"]


def multiply_high(row: OperandType) -> Function:
    """Return the upper half of a product."""
    if row.bits < 64:
        wide = wide_type(row).numpy

        def narrow(a: Array, b: Array) -> Array:
            product = a.astype(wide) * b.astype(wide)
            return np.asarray((product >> wide.type(row.bits)).astype(row.numpy))

        return narrow

    def halves(a: Array, b: Array) -> Array:
        left, right = a.view(np.uint64), b.view(np.uint64)
        mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        low = (left & mask) * (right & mask)
        cross = (left >> half) * (right & mask) + (low >> half)
        other = (left & mask) * (right >> half) + (cross & mask)
        high = (left >> half) * (right >> half) + (cross >> half) + (other >> half)
        if row.kind == "s":
            high = high - np.where(a < 0, right, 0) - np.where(b < 0, left, 0)
        return np.asarray(high.view(row.numpy))

    return halves


def clamp_sum(a: Array, b: Array) -> Array:
    """Return the s32 sum, clamped to the range (`.sat`)."""
    total = a.astype(np.int64) + b.astype(np.int64)
    return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)


def add_or_subtract(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`add` and `sub`, and with `.cc` or as `addc` and `subc` with the carry."""
    row = decoder.type_of(instruction)
    minus = instruction.opcode.startswith("sub")
    if instruction.has("cc") or instruction.opcode.endswith("c"):
        return _with_carry(decoder, instruction, row, minus)
    plain: Function = np.subtract if minus else np.add
    function = by_lanes(row, plain)
    if instruction.has("sat"):
        def function(a: Array, b: Array) -> Array:
            return clamp_sum(a, -b.astype(np.int64) if minus else b)

    return assemble(decoder, instruction, function, (row, row), row)


def _with_carry(
    decoder: Decoder, instruction: PtxInstruction, row: OperandType, minus: bool
) -> Execute:
    unsigned = TYPES[f"u{row.bits}"]
    first = decoder.read(instruction, instruction.operands[1], unsigned)
    second = decoder.read(instruction, instruction.operands[2], unsigned)
    write = decoder.write(instruction, instruction.operands[0], unsigned)
    takes, gives = instruction.opcode.endswith("c"), instruction.has("cc")

    def run(block: Block, index: Index) -> None:
        a, b = first(block, index), second(block, index)
        b = ~b if minus else b
        # Subtraction adds the complement; its carry is the absence of a borrow.
        carry = block.carry[index] if takes else np.array([minus])
        extra = (~carry if minus and takes else carry).astype(unsigned.numpy)
        part = a + b
        total = part + extra
        if gives:
            out = (part < a) | (total < part)
            block.carry[index] = ~out if minus else out
        write(block, index, total)

    return run


def multiply(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`mul` and `mad`, `.lo`, `.hi` and `.wide`; `mul24` and `mad24`."""
    row = decoder.type_of(instruction)
    result = wide_type(row) if instruction.has("wide") else row
    part: Function
    if instruction.opcode.endswith("24"):
        part = _multiply_24(row, instruction.has("hi"))
    elif instruction.has("wide"):
        wide = result.numpy
        part = lambda a, b: a.astype(wide) * b.astype(wide)  # noqa: E731
    elif instruction.has("hi"):
        part = multiply_high(row)
    else:
        part = np.multiply
    if instruction.opcode.startswith("mul"):
        return assemble(decoder, instruction, part, (row, row), result)
    if instruction.has("cc") or instruction.opcode == "madc":
        decoder.refuse(instruction, "a product with carry")
    add: Function = clamp_sum if instruction.has("sat") else np.add
    return assemble(
        decoder, instruction, lambda a, b, c: add(part(a, b), c), (row, row, result), result
    )


def _multiply_24(row: OperandType, high: bool) -> Function:
    wide = wide_type(row).numpy

    def function(a: Array, b: Array) -> Array:
        eight = row.numpy.type(8)
        left = ((a << eight) >> eight).astype(wide)
        right = ((b << eight) >> eight).astype(wide)
        product = left * right
        return np.asarray((product >> wide.type(16 if high else 0)).astype(row.numpy))

    return function


def divide(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`div` and `rem`, toward zero; by zero they give ones and the dividend, as hardware does."""
    row = decoder.type_of(instruction)
    unsigned = UNSIGNED[row.bits]
    remainder = instruction.opcode == "rem"

    def function(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        negative = (a < 0) if remainder else (a < 0) ^ (b < 0)
        top = np.where(a < 0, -a, a).view(unsigned) if row.kind == "s" else a
        bottom = np.where(b < 0, -b, b).view(unsigned) if row.kind == "s" else b
        safe = np.where(bottom == 0, unsigned.type(1), bottom)
        found = top % safe if remainder else top // safe
        found = np.where(negative, -found, found)
        ones = ~unsigned.type(0)
        found = np.where(bottom == 0, a.view(unsigned) if remainder else ones, found)
        return found.astype(unsigned).view(row.numpy)

    return assemble(decoder, instruction, function, (row, row), row)


def simple(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`min`, `max`, `abs`, `neg`, `and`, `or`, `xor`, `not`, `cnot` and `sad`."""
    row = decoder.type_of(instruction)
    name = instruction.opcode
    one = row.numpy.type(1)
    functions: dict[str, tuple[Function, int]] = {
        "min": (np.minimum, 2),
        "max": (np.maximum, 2),
        "abs": (lambda a: np.where(a < 0, -a, a), 1),
        "neg": (lambda a: -a, 1),
        "and": (np.bitwise_and, 2),
        "or": (np.bitwise_or, 2),
        "xor": (np.bitwise_xor, 2),
        "not": (np.invert, 1),
        "cnot": (lambda a: np.where(a == 0, one, row.numpy.type(0)), 1),
        "sad": (lambda a, b, c: c + np.where(a < b, b - a, a - b), 3),
    }
    function, count = functions[name]
    if instruction.has("relu"):
        plain = function
        function = lambda a, b: np.maximum(plain(a, b), 0)  # noqa: E731
    return assemble(decoder, instruction, by_lanes(row, function), (row,) * count, row)


def dot_product(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`dp4a` and `dp2a`: products of bytes, or of halves and bytes, added to a third operand."""
    left, right = decoder.type_of(instruction, -2), decoder.type_of(instruction, -1)
    four = instruction.opcode == "dp4a"
    first = np.dtype(f"{'i' if left.kind == 's' else 'u'}{1 if four else 2}")
    second = np.dtype(f"{'i' if right.kind == 's' else 'u'}1")
    signed = "s" in (left.kind, right.kind)
    result = TYPES["s32" if signed else "u32"]
    start = 2 if instruction.has("hi") else 0

    def function(a: Array, b: Array, c: Array) -> Array:
        rows = a.view(first).reshape(len(a), -1).astype(np.int64)
        columns = b.view(second).reshape(len(b), -1).astype(np.int64)
        if not four:
            columns = columns[:, start:start + 2]
        total = (rows * columns).sum(axis=1) + c.astype(np.int64)
        return np.asarray(total.astype(np.uint32).view(result.numpy))

    return assemble(decoder, instruction, function, (left, right, result), result)


# ---- bits ---------------------------------------------------------------------------------------


def count_bits(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`popc`, `clz` and `bfind`."""
    row = decoder.type_of(instruction)

    def leading(a: Array) -> Array:
        # The exponent of an integer below 2^32 is exact in float64; take wide ones by halves.
        wide = a.astype(np.uint64)
        top = (wide >> np.uint64(32)).astype(np.float64)
        low = (wide & np.uint64(2**32 - 1)).astype(np.float64)
        length = np.where(top > 0, np.frexp(top)[1] + 32, np.frexp(low)[1])
        return np.asarray(length, np.int64)

    def function(a: Array) -> Array:
        if instruction.opcode == "popc":
            octets = np.ascontiguousarray(a).view(np.uint8).reshape(-1, row.nbytes)
            return np.asarray(np.unpackbits(octets, axis=1).sum(axis=1, dtype=np.uint32))
        if instruction.opcode == "clz":
            return (row.bits - leading(a.view(UNSIGNED[row.bits]))).astype(np.uint32)
        size = np.where(a < 0, ~a, a).view(UNSIGNED[row.bits])
        place = leading(size) - 1
        if instruction.has("shiftamt"):
            place = np.where(place < 0, place, row.bits - 1 - place)
        return place.astype(np.uint32)

    return assemble(decoder, instruction, function, (row,), TYPES["u32"])


def reverse_bits(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`brev`."""
    row = decoder.type_of(instruction)

    def function(a: Array) -> Array:
        dtype = row.numpy.type
        for shift, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333),
                            (4, 0x0F0F0F0F0F0F0F0F)):
            keep = dtype(mask & ((1 << row.bits) - 1))
            a = (a >> dtype(shift)) & keep | (a & keep) << dtype(shift)
        return np.asarray(a.byteswap())

    return assemble(decoder, instruction, function, (row,), row)


def shift(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`shl` and `shr`: distances beyond the width count as the width."""
    row = decoder.type_of(instruction)
    left = instruction.opcode == "shl"
    last = row.bits - 1

    far = instruction.operands[-1]
    if isinstance(far, Immediate) and 0 <= far.value <= last:
        by = row.numpy.type(far.value)
        move: Function = np.left_shift if left else np.right_shift
        return assemble(
            decoder, instruction, lambda a, _: move(a, by), (row, TYPES["u32"]), row
        )

    def function(a: Array, distance: Array) -> Array:
        beyond = distance > last
        by = np.minimum(distance, np.uint32(last)).astype(row.numpy)
        if left:
            return np.asarray(np.where(beyond, row.numpy.type(0), a << by))
        moved = a >> by
        return np.asarray(
            moved if row.kind == "s" else np.where(beyond, row.numpy.type(0), moved)
        )

    return assemble(decoder, instruction, function, (row, TYPES["u32"]), row)


def funnel_shift(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`shf`: 32 bits of the pair `second:first`, by a distance that wraps or is clamped."""
    row = TYPES["u32"]
    left, wrap = instruction.has("l"), instruction.has("wrap")

    def function(a: Array, b: Array, distance: Array) -> Array:
        by = (distance & np.uint32(31) if wrap else np.minimum(distance, np.uint32(32)))
        pair = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
        amount = by.astype(np.uint64)
        amount = np.uint64(32) - amount if left else amount
        return np.asarray((pair >> amount).astype(np.uint32))

    return assemble(decoder, instruction, function, (row, row, row), row)


def extract_field(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`bfe`: bits of a field, its sign extended if the type has one."""
    row = decoder.type_of(instruction)
    unsigned = UNSIGNED[row.bits]
    last = row.bits - 1

    def function(a: Array, position: Array, length: Array) -> Array:
        start, count = position & np.uint32(0xFF), length & np.uint32(0xFF)
        raw = a.view(unsigned)
        inside = np.minimum(start, np.uint32(last)).astype(unsigned)
        moved = np.where(start > last, unsigned.type(0), raw >> inside)
        mask = _low_bits(count, row.bits)
        found = moved & mask
        if row.kind == "s":
            end = np.minimum(start.astype(np.int64) + count - 1, last)
            sign = raw >> np.maximum(end, 0).astype(unsigned) & unsigned.type(1)
            wide = np.minimum(count, np.maximum(row.bits - start.astype(np.int64), 0))
            extension = ~_low_bits(wide.astype(np.uint32), row.bits)
            found = np.where((sign == 1) & (count > 0), found | extension, found)
        return np.asarray(found.view(row.numpy))

    return assemble(decoder, instruction, function, (row, TYPES["u32"], TYPES["u32"]), row)


def _low_bits(count: Array, bits: int) -> Array:
    """Return integers whose lowest `count` bits are ones."""
    dtype = UNSIGNED[bits].type
    within = np.minimum(count, np.uint32(bits - 1)).astype(dtype)
    return np.asarray(np.where(count >= bits, ~dtype(0), (dtype(1) << within) - dtype(1)))


def insert_field(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`bfi`: the lowest bits of the first, put into the second."""
    row = decoder.type_of(instruction)
    dtype = row.numpy.type

    def function(a: Array, b: Array, position: Array, length: Array) -> Array:
        start, count = position & np.uint32(0xFF), length & np.uint32(0xFF)
        by = np.minimum(start, np.uint32(row.bits - 1)).astype(dtype)
        mask = np.where(start >= row.bits, dtype(0), _low_bits(count, row.bits) << by)
        return np.asarray(b & ~mask | (a << by) & mask)

    u32 = TYPES["u32"]
    return assemble(decoder, instruction, function, (row, row, u32, u32), row)


_PERMUTE_MODES: Final[Mapping[str, Callable[[Array, int], Any]]] = MappingProxyType({
    "f4e": lambda n, i: (n & 3) + i,
    "b4e": lambda n, i: ((n & 3) - i) & 7,
    "rc8": lambda n, i: n & 3,
    "ecl": lambda n, i: np.maximum(n & 3, i),
    "ecr": lambda n, i: np.minimum(n & 3, i),
    "rc16": lambda n, i: 2 * (n & 1) + (i & 1),
})


def permute(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`prmt`: four bytes chosen among the eight of two words."""
    row = TYPES["u32"]
    mode = instruction.one_of(tuple(_PERMUTE_MODES))

    def function(a: Array, b: Array, selector: Array) -> Array:
        fixed = selector[0] if len(selector) == 1 and not mode else None
        a, b, selector = np.broadcast_arrays(a, b, selector)
        pair = np.ascontiguousarray(b.astype(np.uint64) << np.uint64(32) | a)
        octets = pair.view(np.uint8).reshape(-1, 8)
        if fixed is not None and not fixed & 0x8888:
            # The same bytes of all, and none its sign alone.
            chosen = octets[:, fixed >> np.array([0, 4, 8, 12]) & 7]
            return np.ascontiguousarray(chosen).view(np.uint32).reshape(-1)
        rows = np.arange(len(octets))
        out = np.empty((len(octets), 4), np.uint8)
        for place in range(4):
            if mode:
                choice = np.asarray(_PERMUTE_MODES[mode](selector.astype(np.int64), place))
                out[:, place] = octets[rows, choice]
                continue
            nibble = selector.astype(np.int64) >> (4 * place) & 15
            value = octets[rows, nibble & 7]
            sign = np.where(value & 0x80, np.uint8(0xFF), np.uint8(0))
            out[:, place] = np.where(nibble & 8, sign, value)
        return out.view(np.uint32).reshape(-1)

    return assemble(decoder, instruction, function, (row, row, row), row)


def logic_of_three(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`lop3`: any function of three bits, given by its table of eight."""
    table_operand = instruction.operands[-1]
    if not isinstance(table_operand, Immediate) or len(instruction.operands) != 5:
        decoder.refuse(instruction)
    table = int(table_operand.value)
    row = TYPES["b32"]
    readers: list[Reader] = [
        decoder.read(instruction, one, row) for one in instruction.operands[1:4]
    ]
    write = decoder.write(instruction, instruction.operands[0], row)

    def run(block: Block, index: Index) -> None:
        a, b, c = (one(block, index) for one in readers)
        total = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
        for place in range(8):
            if table >> place & 1:
                term = (a if place & 4 else ~a) & (b if place & 2 else ~b)
                total = total | term & (c if place & 1 else ~c)
        write(block, index, total)

    return run


INTEGER: Final = MappingProxyType({
    "add": add_or_subtract, "sub": add_or_subtract, "addc": add_or_subtract,
    "subc": add_or_subtract, "mul": multiply, "mad": multiply, "mul24": multiply,
    "mad24": multiply, "madc": multiply, "div": divide, "rem": divide,
    "min": simple, "max": simple, "abs": simple, "neg": simple, "sad": simple,
    "and": simple, "or": simple, "xor": simple, "not": simple, "cnot": simple,
    "dp4a": dot_product, "dp2a": dot_product, "popc": count_bits, "clz": count_bits,
    "bfind": count_bits, "brev": reverse_bits, "shl": shift, "shr": shift, "shf": funnel_shift,
    "bfe": extract_field, "bfi": insert_field, "prmt": permute, "lop3": logic_of_three,
})

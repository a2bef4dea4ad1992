"""Integer division and remainder: by constants through multiplication and shifts, and made safe.

All functions build with `apply(op, dtype, *operands) -> Node`, so one text serves the loop level
(plain nodes) and the linear level (instructions). Source of the multipliers: Granlund and
Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baregrad.base.bits import is_power_of_two
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.integers import EXACT
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Op, Ops

Apply = Callable[..., Node]


def magic(divisor: int, limit: int) -> tuple[int, int]:
    """The least (m, s) such that x // divisor == x*m >> s for all 0 <= x < limit."""
    shift = 0
    while True:
        multiplier = -(-(1 << shift) // divisor)
        # x*m / 2**s exceeds x / d by x*e / (d * 2**s); in the worst case, the largest x that is
        # d - 1 modulo d, it must not reach the next integer.
        excess = multiplier * divisor - (1 << shift)
        worst = limit - 1 - limit % divisor
        # If no x reaches d - 1 modulo d, all quotients are 0.
        if (worst * excess if worst >= 0 else (limit - 1) * multiplier) < (1 << shift):
            return multiplier, shift
        shift += 1


def divide_index(apply: Apply, node: Node, operands: Sequence[Node], width: DType) -> Node:
    """FLOORDIV or MOD of indices, whose bounds are known; `operands` are the sources' values.

    By 0, which an extent of no elements is, both are 0.
    """
    x, y = operands
    low, high = bounds(node.src[0])
    if y.op is not Ops.CONST and bounds(node.src[1])[0] <= 0:
        quotient, rest = _divide_by_any(apply, width, x, y)
        return quotient if node.op is Ops.FLOORDIV else rest
    if y.op is not Ops.CONST:
        quotient = _floor_by_variable(apply, width, x, y, low < 0)
    elif node.op is Ops.MOD and is_power_of_two(y.arg):
        return apply(Ops.AND, width, x, const(y.arg - 1, width))
    else:
        quotient = floor_by_constant(apply, width, x, int(y.arg), low, high)
    if node.op is Ops.FLOORDIV:
        return quotient
    return apply(Ops.SUB, width, x, apply(Ops.MUL, width, quotient, y))


def floor_by_constant(
    apply: Apply, dtype: DType, x: Node, divisor: int, low: int, high: int
) -> Node:
    """floor(x / divisor) for low <= x <= high and divisor > 0, all within a signed `dtype`."""
    if is_power_of_two(divisor):
        return apply(Ops.SHR, dtype, x, const(divisor.bit_length() - 1, dtype))
    bias = -(low // divisor) if low < 0 else 0
    top = high + bias * divisor
    multiplier, shift = magic(divisor, top + 1)
    for wide in (dtype, dtypes.int64):
        largest = (1 << (wide.bits - 1)) - 1
        if top * multiplier > largest:
            continue
        # What is added may leave no room for x: then the sum too needs the wider integers.
        narrow = dtype if top < 1 << (dtype.bits - 1) else wide
        shifted = x if narrow is dtype else apply(Ops.CAST, narrow, x)
        if bias:
            shifted = apply(Ops.ADD, narrow, shifted, const(bias * divisor, narrow))
        if wide is not narrow:
            shifted = apply(Ops.CAST, wide, shifted)
        product = apply(Ops.MUL, wide, shifted, const(multiplier, wide))
        quotient = apply(Ops.SHR, wide, product, const(shift, wide))
        if wide is not dtype:
            quotient = apply(Ops.CAST, dtype, quotient)
        if bias:
            quotient = apply(Ops.SUB, dtype, quotient, const(bias, dtype))
        return quotient
    return _floor_by_variable(apply, dtype, x, const(divisor, dtype), low < 0)


def _floor_by_variable(apply: Apply, dtype: DType, x: Node, y: Node, signed: bool) -> Node:
    """floor(x / y) for y > 0 by the machine's division."""
    quotient = apply(Ops.TRUNCDIV, dtype, x, y)
    if not signed:
        return quotient
    rest = apply(Ops.SUB, dtype, x, apply(Ops.MUL, dtype, quotient, y))
    below = apply(Ops.CMPLT, dtypes.bool, rest, const(0, dtype))
    less = apply(Ops.SUB, dtype, quotient, const(1, dtype))
    return apply(Ops.WHERE, dtype, below, less, quotient)


def _divide_by_any(apply: Apply, dtype: DType, x: Node, y: Node) -> tuple[Node, Node]:
    """(floor(x / y), remainder) by the machine's division, which never meets 0; both 0 for y == 0.

    x is no index so far below 0 that -x does not fit.
    """
    zero = const(0, dtype)
    by_zero = apply(Ops.CMPEQ, dtypes.bool, y, zero)
    safe = apply(Ops.WHERE, dtype, by_zero, const(1, dtype), y)
    quotient = apply(Ops.TRUNCDIV, dtype, x, safe)
    rest = apply(Ops.SUB, dtype, x, apply(Ops.MUL, dtype, quotient, safe))
    # The remainder has the divisor's sign.
    opposite = apply(Ops.CMPLT, dtypes.bool, apply(Ops.XOR, dtype, rest, safe), zero)
    wrong = apply(Ops.AND, dtypes.bool, opposite, apply(Ops.CMPNE, dtypes.bool, rest, zero))
    less = apply(Ops.SUB, dtype, quotient, const(1, dtype))
    floor = apply(Ops.WHERE, dtype, wrong, less, quotient)
    more = apply(Ops.ADD, dtype, rest, safe)
    remainder = apply(Ops.WHERE, dtype, wrong, more, rest)
    return apply(Ops.WHERE, dtype, by_zero, zero, floor), remainder


# --- integers of fixed width --------------------------------------------------------------------


def divide_unsigned(x: Node, divisor: int, limit: int) -> Node:
    """x // divisor for an unsigned x < limit and divisor > 0."""
    dtype = x.dtype
    if divisor >= limit:
        return const(0, dtype)
    if is_power_of_two(divisor):
        return alu(Ops.SHR, x, const(divisor.bit_length() - 1, dtype))
    multiplier, shift = magic(divisor, limit)
    for wide in (dtype, dtypes.uint32, dtypes.uint64):
        if wide.bits >= dtype.bits and (limit - 1) * multiplier < 1 << wide.bits:
            product = alu(Ops.MUL, cast(x, wide), const(multiplier, wide))
            return cast(alu(Ops.SHR, product, const(shift, wide)), dtype)
    bits = dtype.bits
    multiplier, shift = magic_of_width(divisor, bits)
    high = multiply_high(x, const(multiplier & ((1 << bits) - 1), dtype))
    if multiplier >> bits:
        # The multiplier's top bit adds x itself; halving first keeps the sum in width.
        half = alu(Ops.SHR, alu(Ops.SUB, x, high), const(1, dtype))
        high = alu(Ops.ADD, half, high)
        shift -= 1
    return alu(Ops.SHR, high, const(shift, dtype)) if shift else high


def magic_of_width(divisor: int, bits: int) -> tuple[int, int]:
    """(m, s) with x // divisor == (x*m >> bits) >> s for all x of `bits` bits; m has bits + 1."""
    multiplier, shift = magic(divisor, 1 << bits)
    while shift < bits:
        multiplier, shift = multiplier * 2, shift + 1
    return multiplier, shift - bits


def multiply_high(x: Node, y: Node) -> Node:
    """The high half of the product of two unsigned integers of 32 or 64 bits."""
    u64 = dtypes.uint64
    half, mask = const(32, u64), const(0xFFFFFFFF, u64)
    if x.dtype.bits == 32:
        return cast(alu(Ops.SHR, alu(Ops.MUL, _widened(x), _widened(y)), half), x.dtype)
    x_low, x_high = alu(Ops.AND, x, mask), alu(Ops.SHR, x, half)
    if y.op is Ops.CONST:
        y_low, y_high = const(y.arg & 0xFFFFFFFF, u64), const(y.arg >> 32, u64)
    else:
        y_low, y_high = alu(Ops.AND, y, mask), alu(Ops.SHR, y, half)
    low_low = alu(Ops.MUL, x_low, y_low)
    low_high = alu(Ops.MUL, x_low, y_high)
    high_low = alu(Ops.MUL, x_high, y_low)
    high_high = alu(Ops.MUL, x_high, y_high)
    middle = alu(Ops.ADD, alu(Ops.SHR, low_low, half), high_low)
    lower = alu(Ops.ADD, alu(Ops.AND, middle, mask), low_high)
    upper = alu(Ops.ADD, high_high, alu(Ops.SHR, middle, half))
    return alu(Ops.ADD, upper, alu(Ops.SHR, lower, half))


def _widened(x: Node) -> Node:
    """A 32-bit value as 64 bits; a constant stays one."""
    return const(x.arg, dtypes.uint64) if x.op is Ops.CONST else cast(x, dtypes.uint64)


def unsigned_of(dtype: DType) -> DType:
    """The unsigned integer dtype of the same size."""
    return {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}[dtype.bits]


def floor_divide_constant(x: Node, divisor: int) -> Node:
    """floor(x / divisor) of an integer of fixed width; 0 for divisor 0, wrapping for -1."""
    dtype = x.dtype
    if divisor == 0:
        return const(0, dtype)
    if divisor == 1:
        return x
    low, high = bounds(x)
    unsigned = unsigned_of(dtype)
    if low >= 0 and divisor > 0:
        quotient = divide_unsigned(cast(x, unsigned), divisor, high + 1)
        return cast(quotient, dtype)
    if divisor > 0:
        if is_power_of_two(divisor):
            return alu(Ops.SHR, x, const(divisor.bit_length() - 1, dtype))
        # floor(x / d) of a negative x is ~(~x // d), and ~x is not negative.
        sign = alu(Ops.SHR, x, const(dtype.bits - 1, dtype))
        size = cast(alu(Ops.XOR, x, sign), unsigned)
        quotient = divide_unsigned(size, divisor, 1 << (dtype.bits - 1))
        return alu(Ops.XOR, cast(quotient, dtype), sign)
    # floor(x / -d) is -x // d where x <= 0, else ~((x - 1) // d).
    positive = alu(Ops.CMPLT, const(0, dtype), x)
    below = alu(Ops.SUB, x, const(1, dtype))
    size = alu(Ops.WHERE, positive, below, alu(Ops.NEG, x))
    limit = (1 << (dtype.bits - 1)) + 1
    quotient = cast(divide_unsigned(cast(size, unsigned), -divisor, limit), dtype)
    return alu(Ops.WHERE, positive, alu(Ops.NOT, quotient), quotient)


def truncate_divide_constant(x: Node, divisor: int) -> Node:
    """trunc(x / divisor) of an integer of fixed width; 0 for divisor 0, wrapping for -1."""
    dtype = x.dtype
    low, _ = bounds(x)
    if divisor == 0 or divisor == 1 or dtype.kind == "uint" or (low >= 0 and divisor > 0):
        return floor_divide_constant(x, divisor)
    unsigned = unsigned_of(dtype)
    sign = alu(Ops.SHR, x, const(dtype.bits - 1, dtype))
    size = alu(Ops.SUB, alu(Ops.XOR, x, sign), sign)
    limit = (1 << (dtype.bits - 1)) + 1
    quotient = cast(divide_unsigned(cast(size, unsigned), abs(divisor), limit), dtype)
    if divisor < 0:
        sign = alu(Ops.NOT, sign)
    return alu(Ops.SUB, alu(Ops.XOR, quotient, sign), sign)


def truncate_divide(x: Node, y: Node) -> Node:
    """trunc(x / y) by the machine's division, which never meets 0 or an overflow; 0 for y == 0."""
    dtype = x.dtype
    zero, one = const(0, dtype), const(1, dtype)
    by_zero = alu(Ops.CMPEQ, y, zero)
    if dtype.kind == "uint":
        safe = alu(Ops.WHERE, by_zero, one, y)
        return alu(Ops.WHERE, by_zero, zero, alu(Ops.TRUNCDIV, x, safe))
    by_minus_one = alu(Ops.CMPEQ, y, const(-1, dtype))
    special = alu(Ops.OR, by_zero, by_minus_one)
    safe = alu(Ops.WHERE, special, one, y)
    quotient = alu(Ops.TRUNCDIV, x, safe)
    quotient = alu(Ops.WHERE, by_minus_one, alu(Ops.NEG, x), quotient)
    return alu(Ops.WHERE, by_zero, zero, quotient)


def floor_divide(x: Node, y: Node) -> tuple[Node, Node]:
    """(floor(x / y), remainder) of integers of fixed width; both 0 for y == 0."""
    dtype = x.dtype
    zero = const(0, dtype)
    by_zero = alu(Ops.CMPEQ, y, zero)
    quotient = truncate_divide(x, y)
    rest = alu(Ops.SUB, x, alu(Ops.MUL, quotient, y))
    if dtype.kind == "uint":
        return quotient, alu(Ops.WHERE, by_zero, zero, rest)
    # The remainder has the divisor's sign; one step of the divisor puts it right.
    opposite = alu(Ops.CMPLT, alu(Ops.XOR, rest, y), zero)
    wrong = alu(Ops.AND, opposite, alu(Ops.CMPNE, rest, zero))
    step = alu(Ops.WHERE, wrong, y, zero)
    one = alu(Ops.WHERE, wrong, const(-1, dtype), zero)
    floor = alu(Ops.WHERE, by_zero, zero, alu(Ops.ADD, quotient, one))
    remainder = alu(Ops.WHERE, by_zero, zero, alu(Ops.ADD, rest, step))
    return floor, remainder


def fold_integers(op: Op, dtype: DType, operands: Sequence[Node]) -> Node | None:
    """The constant that an op of integer constants is, or None."""
    rule = EXACT.get(op)
    if rule is None or op is Ops.NOT or dtype.kind == "float":
        return None
    if any(operand.dtype.kind == "float" for operand in operands):
        return None
    if dtype.kind == "bool" and op in (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG):
        return None
    return const(rule(*(operand.arg for operand in operands)), dtype)

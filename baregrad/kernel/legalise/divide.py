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
from baregrad.ir.core.node import Node, cast, const
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
        if worst < 0:
            # No x reaches d - 1 modulo d, so all quotients are 0.
            if (limit - 1) * multiplier < (1 << shift):
                return multiplier, shift
        elif worst * excess < (1 << shift):
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


def plain(op: Op, dtype: DType, *operands: Node) -> Node:
    """The `apply` of the loop level: a node."""
    return Node(op, dtype, operands)


def divide_unsigned(x: Node, divisor: int, limit: int) -> Node:
    """x // divisor for an unsigned x < limit and divisor > 0."""
    dtype = x.dtype
    if divisor >= limit:
        return const(0, dtype)
    if is_power_of_two(divisor):
        return plain(Ops.SHR, dtype, x, const(divisor.bit_length() - 1, dtype))
    multiplier, shift = magic(divisor, limit)
    for wide in (dtype, dtypes.uint32, dtypes.uint64):
        if wide.bits >= dtype.bits and (limit - 1) * multiplier < 1 << wide.bits:
            product = plain(Ops.MUL, wide, cast(x, wide), const(multiplier, wide))
            return cast(plain(Ops.SHR, wide, product, const(shift, wide)), dtype)
    bits = dtype.bits
    multiplier, shift = magic_of_width(divisor, bits)
    high = multiply_high(x, const(multiplier & ((1 << bits) - 1), dtype))
    if multiplier >> bits:
        # The multiplier's top bit adds x itself; halving first keeps the sum in width.
        half = plain(Ops.SHR, dtype, plain(Ops.SUB, dtype, x, high), const(1, dtype))
        high = plain(Ops.ADD, dtype, half, high)
        shift -= 1
    return plain(Ops.SHR, dtype, high, const(shift, dtype)) if shift else high


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
        product = plain(Ops.MUL, u64, _widened(x), _widened(y))
        return cast(plain(Ops.SHR, u64, product, half), x.dtype)
    x_low, x_high = plain(Ops.AND, u64, x, mask), plain(Ops.SHR, u64, x, half)
    if y.op is Ops.CONST:
        y_low, y_high = const(y.arg & 0xFFFFFFFF, u64), const(y.arg >> 32, u64)
    else:
        y_low, y_high = plain(Ops.AND, u64, y, mask), plain(Ops.SHR, u64, y, half)
    low_low = plain(Ops.MUL, u64, x_low, y_low)
    low_high = plain(Ops.MUL, u64, x_low, y_high)
    high_low = plain(Ops.MUL, u64, x_high, y_low)
    high_high = plain(Ops.MUL, u64, x_high, y_high)
    middle = plain(Ops.ADD, u64, plain(Ops.SHR, u64, low_low, half), high_low)
    lower = plain(Ops.ADD, u64, plain(Ops.AND, u64, middle, mask), low_high)
    upper = plain(Ops.ADD, u64, high_high, plain(Ops.SHR, u64, middle, half))
    return plain(Ops.ADD, u64, upper, plain(Ops.SHR, u64, lower, half))


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
            return plain(Ops.SHR, dtype, x, const(divisor.bit_length() - 1, dtype))
        # floor(x / d) of a negative x is ~(~x // d), and ~x is not negative.
        sign = plain(Ops.SHR, dtype, x, const(dtype.bits - 1, dtype))
        size = cast(plain(Ops.XOR, dtype, x, sign), unsigned)
        quotient = divide_unsigned(size, divisor, 1 << (dtype.bits - 1))
        return plain(Ops.XOR, dtype, cast(quotient, dtype), sign)
    # floor(x / -d) is -x // d where x <= 0, else ~((x - 1) // d).
    positive = plain(Ops.CMPLT, dtypes.bool, const(0, dtype), x)
    below = plain(Ops.SUB, dtype, x, const(1, dtype))
    size = plain(Ops.WHERE, dtype, positive, below, plain(Ops.NEG, dtype, x))
    limit = (1 << (dtype.bits - 1)) + 1
    quotient = cast(divide_unsigned(cast(size, unsigned), -divisor, limit), dtype)
    return plain(Ops.WHERE, dtype, positive, plain(Ops.NOT, dtype, quotient), quotient)


def truncate_divide_constant(x: Node, divisor: int) -> Node:
    """trunc(x / divisor) of an integer of fixed width; 0 for divisor 0, wrapping for -1."""
    dtype = x.dtype
    low, _ = bounds(x)
    if divisor == 0 or divisor == 1 or dtype.kind == "uint" or (low >= 0 and divisor > 0):
        return floor_divide_constant(x, divisor)
    unsigned = unsigned_of(dtype)
    sign = plain(Ops.SHR, dtype, x, const(dtype.bits - 1, dtype))
    size = plain(Ops.SUB, dtype, plain(Ops.XOR, dtype, x, sign), sign)
    limit = (1 << (dtype.bits - 1)) + 1
    quotient = cast(divide_unsigned(cast(size, unsigned), abs(divisor), limit), dtype)
    if divisor < 0:
        sign = plain(Ops.NOT, dtype, sign)
    return plain(Ops.SUB, dtype, plain(Ops.XOR, dtype, quotient, sign), sign)


def truncate_divide(x: Node, y: Node) -> Node:
    """trunc(x / y) by the machine's division, which never meets 0 or an overflow; 0 for y == 0."""
    dtype = x.dtype
    zero, one = const(0, dtype), const(1, dtype)
    by_zero = plain(Ops.CMPEQ, dtypes.bool, y, zero)
    if dtype.kind == "uint":
        safe = plain(Ops.WHERE, dtype, by_zero, one, y)
        return plain(Ops.WHERE, dtype, by_zero, zero, plain(Ops.TRUNCDIV, dtype, x, safe))
    by_minus_one = plain(Ops.CMPEQ, dtypes.bool, y, const(-1, dtype))
    special = plain(Ops.OR, dtypes.bool, by_zero, by_minus_one)
    safe = plain(Ops.WHERE, dtype, special, one, y)
    quotient = plain(Ops.TRUNCDIV, dtype, x, safe)
    negated = plain(Ops.NEG, dtype, x)
    quotient = plain(Ops.WHERE, dtype, by_minus_one, negated, quotient)
    return plain(Ops.WHERE, dtype, by_zero, zero, quotient)


def floor_divide(x: Node, y: Node) -> tuple[Node, Node]:
    """(floor(x / y), remainder) of integers of fixed width; both 0 for y == 0."""
    dtype = x.dtype
    zero = const(0, dtype)
    quotient = truncate_divide(x, y)
    rest = plain(Ops.SUB, dtype, x, plain(Ops.MUL, dtype, quotient, y))
    if dtype.kind == "uint":
        by_zero = plain(Ops.CMPEQ, dtypes.bool, y, zero)
        return quotient, plain(Ops.WHERE, dtype, by_zero, zero, rest)
    # The remainder has the divisor's sign; one step of the divisor puts it right.
    opposite = plain(Ops.CMPLT, dtypes.bool, plain(Ops.XOR, dtype, rest, y), zero)
    nonzero = plain(Ops.CMPNE, dtypes.bool, rest, zero)
    by_zero = plain(Ops.CMPEQ, dtypes.bool, y, zero)
    wrong = plain(Ops.AND, dtypes.bool, opposite, nonzero)
    step = plain(Ops.WHERE, dtype, wrong, y, zero)
    one = plain(Ops.WHERE, dtype, wrong, const(-1, dtype), zero)
    floor = plain(Ops.WHERE, dtype, by_zero, zero, plain(Ops.ADD, dtype, quotient, one))
    remainder = plain(Ops.WHERE, dtype, by_zero, zero, plain(Ops.ADD, dtype, rest, step))
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

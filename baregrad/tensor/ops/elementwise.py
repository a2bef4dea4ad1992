"""Elementwise arithmetic, comparisons and logic, with PyTorch's dtypes and special values."""

from __future__ import annotations

import math

from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.dtypes import DType, check_computed, dtypes, round_scalar
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.operands import (
    as_chosen,
    as_tensor,
    broadcast_operands,
    common_dtype,
    elementwise,
    float_dtype,
    lift,
    result,
    stepwise,
)
from baregrad.tensor.array.tensor_like import Operand, Scalar, Tensor, TensorLike


def unary(op: Op, x: Tensor) -> Tensor:
    """`op` of each element, in the dtype of `x`."""
    check_computed(x.dtype)
    return result(Node(op, x.dtype, (x.node,)), x)


def float_unary(op: Op, x: Tensor) -> Tensor:
    """`op` of each element; integers and bools become float32 first."""
    dtype = float_dtype(x.dtype)
    check_computed(dtype)
    return result(Node(op, dtype, (nodes.cast(x.node, dtype),)), x)


def _refuse(dtype: DType, kinds: tuple[str, ...], what: str, wanted: str, hint: str) -> None:
    if dtype.kind in kinds:
        raise DTypeError(f"{what} of {dtype}", wanted=wanted, hint=hint)


# --- arithmetic ---------------------------------------------------------------------------------


def add(x: Tensor, other: Operand, *, alpha: float | None = None) -> Tensor:
    """Return x + alpha*other; bools add as `or`, unless `alpha` is 0."""
    if alpha is None:
        return elementwise(Ops.ADD, x, other)
    lifted = lift(other, x)
    if x.dtype.kind == "bool" and common_dtype((x, lifted)).kind == "bool":
        return elementwise(Ops.ADD, x, lifted if alpha else False)
    return _with_times(Ops.ADD, x, lifted, alpha)


def sub(x: Tensor, other: Operand, *, alpha: float | None = None) -> Tensor:
    """Return x - alpha*other. Raises DTypeError for bools."""
    lifted = lift(other, x)
    dtype = common_dtype((x, lifted))
    _refuse(dtype, ("bool",), "subtraction", "numbers", "use ^ or logical_xor for bools")
    if alpha is None:
        return elementwise(Ops.SUB, x, lifted, dtype=dtype)
    return _with_times(Ops.SUB, x, lifted, alpha)


def _with_times(op: Op, x: Tensor, other: Tensor | Scalar | Node, alpha: float) -> Tensor:
    """`op` of `x` and alpha*other; of 16-bit floats rounded once, but `alpha` first, as PyTorch."""
    if not isinstance(other, TensorLike | Node):
        return elementwise(op, x, other * alpha)
    dtype = common_dtype((x, other))
    times = as_tensor(other, x, dtype)
    if not _is_of_16_bits(dtype):
        return elementwise(op, x, elementwise(Ops.MUL, times, alpha))
    scale = round_scalar(float(alpha), dtype)
    wide: Tensor = elementwise(Ops.MUL, times.cast(dtypes.float32), scale)
    return _from_float32(elementwise(op, x.cast(dtype).cast(dtypes.float32), wide), dtype)


def rsub(x: Tensor, other: Operand, *, alpha: float | None = None) -> Tensor:
    """Return other - alpha*x."""
    lifted = lift(other, x)
    dtype = common_dtype((x, lifted))
    _refuse(dtype, ("bool",), "subtraction", "numbers", "use ^ or logical_xor for bools")
    if alpha is not None:
        return _with_times(Ops.SUB, as_tensor(lifted, x, dtype), x, alpha)
    return elementwise(Ops.SUB, lifted, x, dtype=dtype)


def mul(x: Tensor, other: Operand) -> Tensor:
    """Return x * other; bools multiply as `and`.

    A scalar that `x.dtype`, of 16 bits, has not is not rounded, nor is an `other` without axes
    beside an `x` with axes.
    """
    if _is_rounded(other, x):
        return _from_float32(elementwise(Ops.MUL, x.cast(dtypes.float32), other), x.dtype)
    return elementwise(Ops.MUL, x, other)


def _is_of_16_bits(dtype: DType) -> bool:
    return dtype.bits == 16 and dtype.kind == "float"


def _is_rounded(value: Operand, x: Tensor) -> bool:
    """Whether an operand that leaves the 16-bit float dtype of `x` as it is would be rounded."""
    if not _is_of_16_bits(x.dtype):
        return False
    if isinstance(value, TensorLike):
        is_exact = value.dtype is x.dtype or value.dtype.kind in ("bool", "complex")
        return bool(x.ndim) and not value.ndim and not is_exact
    scalar = plain(value)
    if scalar.__class__ not in (int, float) or not -math.inf < scalar < math.inf:
        return False
    try:
        return round_scalar(float(scalar), x.dtype) != scalar
    except OverflowError:
        # Beyond what a float is: refused as an operand.
        return False


def _from_float32(wide: Tensor, dtype: DType) -> Tensor:
    made: Tensor = wide.cast(dtype)
    return made


def div(x: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """Return x / other in floating point, or rounded: rounding_mode "floor" or "trunc".

    Scalars are as in `mul`. Without a rounding mode integers become float32. Integer division by
    zero gives 0.
    """
    if _is_rounded(other, x):
        wide = x.cast(dtypes.float32)
        return _from_float32(_divide(wide, lift(other, x), wide, rounding_mode), x.dtype)
    return _divide(lift(x, x), lift(other, x), x, rounding_mode)


def rdiv(x: Tensor, other: Operand) -> Tensor:
    """Return other / x; a scalar that `x.dtype`, of 16 bits, has not is not rounded."""
    if _is_rounded(other, x) and not isinstance(other, TensorLike):
        return _from_float32(elementwise(Ops.DIV, other, x.cast(dtypes.float32)), x.dtype)
    return _divide(lift(other, x), x, x, None)


def _divide(a: Operand, b: Operand, beside: Tensor, rounding_mode: str | None) -> Tensor:
    dtype = common_dtype((lift(a, beside), lift(b, beside)))
    if rounding_mode is None:
        return elementwise(Ops.DIV, a, b, dtype=float_dtype(dtype))
    if rounding_mode not in ("floor", "trunc"):
        raise ArgumentError(f"rounding_mode is None, 'floor' or 'trunc', not {rounding_mode!r}")
    if dtype.kind == "float":
        x, y = broadcast_operands(beside, a, b, dtype=dtype)
        divide = _float_floor_divide if rounding_mode == "floor" else _float_trunc_divide
        return stepwise(divide(x.detach(), y.detach()), x, y)
    _refuse(dtype, ("bool",), "integer division", "numbers", "cast it first: int()")
    return elementwise(Ops.FLOORDIV if rounding_mode == "floor" else Ops.TRUNCDIV, a, b)


def _float_trunc_divide(x: Tensor, y: Tensor) -> Tensor:
    return (x / y).trunc()


def _float_floor_divide(x: Tensor, y: Tensor) -> Tensor:
    """floor(x / y) of the exact quotient, which a rounded x / y may be just above."""
    rest = fmod(x, y)
    whole = (x - rest) / y
    whole = ((rest != 0) & ((y < 0) != (rest < 0))).where(whole - 1, whole)
    quotient = x / y
    exact = (whole != 0).where(whole.round(), quotient * 0)
    return (y == 0).where(quotient, exact).floor()


def floor_divide(x: Tensor, other: Operand) -> Tensor:
    """Return floor(x / other); integers by zero give 0."""
    return div(x, other, rounding_mode="floor")


def rfloor_divide(x: Tensor, other: Operand) -> Tensor:
    """Return floor(other / x)."""
    return _divide(lift(other, x), x, x, "floor")


def remainder(x: Tensor, other: Operand) -> Tensor:
    """Return x - other*floor(x / other), of the sign of `other`; integers by zero give 0."""
    return _mod(x, lift(other, x), x)


def rremainder(x: Tensor, other: Operand) -> Tensor:
    """Return other - x*floor(other / x)."""
    return _mod(lift(other, x), x, x)


def _mod(a: Operand, b: Operand, beside: Tensor) -> Tensor:
    dtype = common_dtype((lift(a, beside), lift(b, beside)))
    _refuse(dtype, ("bool",), "remainder", "numbers", "cast it first, for example with int()")
    return elementwise(Ops.MOD, a, b)


def fmod(x: Tensor, other: Operand) -> Tensor:
    """Return x - other*trunc(x / other), of the sign of `x`; integers by zero give 0."""
    a, b = broadcast_operands(x, x, other)
    _refuse(a.dtype, ("bool",), "fmod", "numbers", "cast it first, for example with int()")
    if a.dtype.kind != "float":
        return a - b * a.div(b, rounding_mode="trunc")
    # Not abs(), whose derivative at 0 is 0.
    size, divisor = signbit(a).where(-a, a), signbit(b).where(-b, b)
    rest = size.remainder(divisor)
    # x - inf*0 is not x in floating point, so an infinite divisor is a case of its own.
    rest = (b.isinf() & a.isfinite()).where(size, rest)
    return signbit(a).where(-rest, rest)


def neg(x: Tensor) -> Tensor:
    """Return -x. Raises DTypeError for bools."""
    _refuse(x.dtype, ("bool",), "negation", "numbers", "use ~ or logical_not for bools")
    return unary(Ops.NEG, x)


def positive(x: Tensor) -> Tensor:
    """Return `x` itself."""
    return x


def abs(x: Tensor) -> Tensor:
    """Return the absolute value."""
    return x if x.dtype.kind in ("bool", "uint") else unary(Ops.ABS, x)


def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1; 0 for NaN, as PyTorch."""
    if x.dtype.kind in ("bool", "uint"):
        return x if x.dtype.kind == "bool" else (x != 0).cast(x.dtype)
    return stepwise((x > 0).cast(x.dtype) - (x < 0).cast(x.dtype), x)


def signbit(x: Tensor) -> Tensor:
    """Return whether the sign bit is set, which distinguishes -0.0 from 0.0."""
    if x.dtype.kind != "float":
        return x < 0 if x.dtype.kind == "int" else x.zeros_like(dtype=dtypes.bool)
    check_computed(x.dtype)
    same_size = next(row for row in _SIGNED if row.bits == x.dtype.bits)
    return x.detach().bitcast(same_size) < 0


_SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)


def copysign(x: Tensor, other: Operand) -> Tensor:
    """Return |x| with the sign of `other`; its derivative is 0 at 0, and 1 or -1 elsewhere."""
    dtype = float_dtype(common_dtype((x, lift(other, x))))
    a, b = broadcast_operands(x, x, other, dtype=dtype)
    signed = (a == 0).where(a.detach(), a)
    return stepwise((signbit(a) == signbit(b)).where(signed, -signed), b)


def square(x: Tensor) -> Tensor:
    """Return x * x; bools become int64."""
    return pow(x, 2)


def reciprocal(x: Tensor) -> Tensor:
    """Return 1 / x."""
    return float_unary(Ops.RECIPROCAL, x)


def maximum(x: Tensor, other: Operand) -> Tensor:
    """Return the larger of each pair; NaN if either is NaN."""
    return elementwise(Ops.MAX, x, other)


def minimum(x: Tensor, other: Operand) -> Tensor:
    """Return the smaller of each pair; NaN if either is NaN."""
    return elementwise(Ops.MIN, x, other)


def clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Return `x` held between `min` and `max`, either of which may be left out; NaN stays.

    Raises ArgumentError for an integer bound that the dtype of the result has not.
    """
    if min is None and max is None:
        raise ArgumentError("clamp needs min, max or both")
    bounds = [lift(bound, x) for bound in (min, max) if bound is not None]
    dtype = common_dtype((x, *bounds))
    # A negative one of an unsigned dtype wraps, as PyTorch's does.
    least = dtype.min or -dtype.max
    for bound in bounds:
        if isinstance(bound, int) and not least <= bound <= dtype.max:
            raise ArgumentError(
                f"a bound that is no {dtype}", found=bound, wanted=f"{dtype.min} to {dtype.max}",
                hint="leave it out where nothing is beyond it",
            )
    y = x.cast(dtype)
    if min is not None:
        y = _held(y, lt(y, min), ge(y, min), lift(min, x))
    if max is not None:
        y = _held(y, gt(y, max), le(y, max), lift(max, x))
    return y


def _held(y: Tensor, beyond: Tensor, within: Tensor, bound: Tensor | Scalar | Node) -> Tensor:
    """`y` within a bound, else the bound, and NaN without a gradient where one of them is NaN."""
    limit = as_tensor(bound, y, y.dtype)
    if y.dtype.kind != "float":
        return where(beyond, limit, y)
    return where(within, y, where(beyond, limit, math.nan))


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """Return `a` where the condition holds, else `b`; all three broadcast.

    Called on a tensor of numbers it is PyTorch's method instead: x.where(condition, other) is `x`
    where the condition holds. Raises DTypeError unless the condition is a bool tensor.
    """
    if not isinstance(condition, TensorLike):
        raise DTypeError(
            "where's condition",
            found=f"{type(condition).__name__} {condition!r:.40}",
            wanted="a bool tensor",
            hint="for a Python bool, use Python's own if",
        )
    if condition.dtype is not dtypes.bool and isinstance(a, TensorLike) and a.dtype is dtypes.bool:
        return where(a, condition, b)  # type: ignore[return-value]
    if condition.dtype is not dtypes.bool:
        raise DTypeError(
            "where's condition",
            found=f"dtype {condition.dtype}",
            wanted="bool",
            hint="compare it with something, for example x != 0",
        )
    a, b = lift(a, condition), lift(b, condition)
    dtype = common_dtype((a, b))
    device_of = [x for x in (condition, a, b) if isinstance(x, TensorLike)]
    chosen = (
        nodes.cast(x.node, dtype) if isinstance(x, TensorLike) else as_chosen(x, dtype)
        for x in (a, b)
    )
    return result(nodes.where(condition.node, *chosen), *device_of)


# --- powers -------------------------------------------------------------------------------------


def pow(x: Tensor, exponent: Operand) -> Tensor:
    """Return x ** exponent; integers to an integer tensor of exponents by repeated squaring.

    Raises ArgumentError for an integer to a negative integer scalar.
    """
    exponent = lift(exponent, x)
    if isinstance(exponent, bool | int | float):
        return _pow_scalar(x, exponent)
    dtype = common_dtype((x, exponent))
    if dtype.kind == "float":
        return elementwise(Ops.POW, x, exponent, dtype=dtype)
    return _integer_power(*broadcast_operands(x, x, exponent, dtype=dtype))


def rpow(x: Tensor, base: Operand) -> Tensor:
    """Return base ** x."""
    base = lift(base, x)
    dtype = common_dtype((x, base))
    if dtype.kind == "float":
        return elementwise(Ops.POW, base, x, dtype=dtype)
    return _integer_power(*broadcast_operands(x, base, x, dtype=dtype))


def _pow_scalar(x: Tensor, exponent: float) -> Tensor:
    dtype = common_dtype((x, exponent))
    y = x.cast(dtype)
    if dtype.kind != "float":
        if exponent < 0:
            raise ArgumentError("an integer to a negative power is no integer; cast to float first")
        return _repeated_squaring(y, int(exponent))
    if exponent in (2, 3, 4):
        return _repeated_squaring(y, int(exponent))
    if exponent == 0.5:
        # The power of -inf is inf, its square root is not a number.
        return y.sqrt()
    if exponent == -0.5:
        return y.sqrt().reciprocal()
    if exponent == 1:
        return y.clone()
    if exponent == -1:
        return y.reciprocal()
    return elementwise(Ops.POW, y, exponent, dtype=dtype)


def _repeated_squaring(x: Tensor, exponent: int) -> Tensor:
    if exponent == 0:
        return x.ones_like()
    power = x
    total: Tensor | None = None
    while True:
        if exponent & 1:
            total = power if total is None else total * power
        exponent >>= 1
        if not exponent:
            return x.clone() if total is x else total  # type: ignore[return-value]
        power = power * power


def _integer_power(base: Tensor, exponent: Tensor) -> Tensor:
    if base.dtype.kind == "bool":
        return base | ~exponent
    total = base.ones_like()
    power = base
    # A power of two's exponent beyond the width only ever wraps to 0 or 1, so the bits suffice.
    for bit in range(base.dtype.bits - (base.dtype.kind == "int")):
        odd = ((exponent >> bit) & 1) != 0
        total = odd.where(total * power, total)
        power = power * power
    if base.dtype.kind == "uint":
        return total
    small = (base == 1).where(1, (base == -1).where(1 - 2 * (exponent & 1), 0))
    return (exponent < 0).where(small.cast(base.dtype), total)


# --- comparisons and logic ----------------------------------------------------------------------


def eq(x: Tensor, other: Operand) -> Tensor:
    """Return whether x == other, element by element, as bools."""
    return elementwise(Ops.CMPEQ, x, other)


def ne(x: Tensor, other: Operand) -> Tensor:
    """Return whether x != other, element by element, as bools."""
    return elementwise(Ops.CMPNE, x, other)


def lt(x: Tensor, other: Operand) -> Tensor:
    """Return whether x < other, element by element, as bools."""
    return elementwise(Ops.CMPLT, x, other)


def le(x: Tensor, other: Operand) -> Tensor:
    """Return whether x <= other, element by element, as bools."""
    return elementwise(Ops.CMPLE, x, other)


def gt(x: Tensor, other: Operand) -> Tensor:
    """Return whether x > other, element by element, as bools."""
    return elementwise(Ops.CMPLT, lift(other, x), x)


def ge(x: Tensor, other: Operand) -> Tensor:
    """Return whether x >= other, element by element, as bools."""
    return elementwise(Ops.CMPLE, lift(other, x), x)


def isnan(x: Tensor) -> Tensor:
    """Return whether each element is NaN."""
    return elementwise(Ops.CMPNE, x, x)


def isinf(x: Tensor) -> Tensor:
    """Return whether each element is infinite, of either sign."""
    if x.dtype.kind != "float":
        return x.zeros_like(dtype=dtypes.bool)
    return x.abs() == float("inf")


def isfinite(x: Tensor) -> Tensor:
    """Return whether each element is neither infinite nor NaN."""
    if x.dtype.kind != "float":
        return x.ones_like(dtype=dtypes.bool)
    return x.abs() < float("inf")


def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Return `x` with NaN and infinities replaced; infinities by the dtype's limits by default."""
    if x.dtype.kind != "float":
        return x
    high = x.dtype.max if posinf is None else posinf
    low = x.dtype.min if neginf is None else neginf
    y = isnan(x).where(nan, x)
    y = (y == float("inf")).where(high, y)
    return (y == float("-inf")).where(low, y)


def isclose(
    x: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return whether |x - other| <= atol + rtol*|other|; infinities are close to themselves."""
    a, b = broadcast_operands(x, x, other)
    if a.dtype.kind != "float":
        a, b = a.double(), b.double()
    close = a == b
    if equal_nan:
        close = close | (isnan(a) & isnan(b))
    allowed = b.abs() * rtol + atol
    distance = (a - b).abs()
    return close | (isfinite(distance) & (distance <= allowed))


def allclose(
    x: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether all elements are close, as `isclose` says; computes them."""
    return bool(x.isclose(other, rtol, atol, equal_nan).all().item())


def equal(x: Tensor, other: Tensor) -> bool:
    """Return whether both have one shape and the same elements; computes them."""
    return x.shape == other.shape and bool((x == other).all().item())


def _as_bool(x: Operand, beside: Tensor) -> Tensor:
    lifted = lift(x, beside)
    if isinstance(lifted, TensorLike):
        return lifted if lifted.dtype is dtypes.bool else lifted != 0
    return beside.full_like(bool(lifted), dtype=dtypes.bool)


def logical_not(x: Tensor) -> Tensor:
    """Return whether each element is zero."""
    return unary(Ops.NOT, _as_bool(x, x))


def logical_and(x: Tensor, other: Operand) -> Tensor:
    """Return whether both elements of each pair are nonzero."""
    return elementwise(Ops.AND, _as_bool(x, x), _as_bool(other, x))


def logical_or(x: Tensor, other: Operand) -> Tensor:
    """Return whether an element of each pair is nonzero."""
    return elementwise(Ops.OR, _as_bool(x, x), _as_bool(other, x))


def logical_xor(x: Tensor, other: Operand) -> Tensor:
    """Return whether exactly one element of each pair is nonzero."""
    return elementwise(Ops.XOR, _as_bool(x, x), _as_bool(other, x))


def _bitwise(op: Op, x: Tensor, other: Operand, what: str) -> Tensor:
    other = lift(other, x)
    dtype = common_dtype((x, other))
    _refuse(dtype, ("float",), what, "integers or bools", "cast both operands first")
    return elementwise(op, x, other, dtype=dtype)


def bitwise_and(x: Tensor, other: Operand) -> Tensor:
    """Return x & other of integers or bools."""
    return _bitwise(Ops.AND, x, other, "bitwise and")


def bitwise_or(x: Tensor, other: Operand) -> Tensor:
    """Return x | other of integers or bools."""
    return _bitwise(Ops.OR, x, other, "bitwise or")


def bitwise_xor(x: Tensor, other: Operand) -> Tensor:
    """Return x ^ other of integers or bools."""
    return _bitwise(Ops.XOR, x, other, "bitwise exclusive or")


def bitwise_not(x: Tensor) -> Tensor:
    """Return ~x: logical not of bools, every bit flipped of integers."""
    _refuse(x.dtype, ("float",), "bitwise not", "integers or bools", "cast it first")
    return unary(Ops.NOT, x)


def _shift(op: Op, a: Operand, b: Operand, beside: Tensor) -> Tensor:
    dtype = common_dtype((lift(a, beside), lift(b, beside)))
    _refuse(dtype, ("float", "bool"), "a shift", "integers", "cast both operands first")
    return elementwise(op, a, b, dtype=dtype)


def bitwise_left_shift(x: Tensor, other: Operand) -> Tensor:
    """Return x << other of integers; a shift by the width or more gives 0."""
    return _shift(Ops.SHL, x, lift(other, x), x)


def bitwise_right_shift(x: Tensor, other: Operand) -> Tensor:
    """Return x >> other of integers; a shift by the width or more leaves the sign."""
    return _shift(Ops.SHR, x, lift(other, x), x)


def rlshift(x: Tensor, other: Operand) -> Tensor:
    """Return other << x."""
    return _shift(Ops.SHL, lift(other, x), x, x)


def rrshift(x: Tensor, other: Operand) -> Tensor:
    """Return other >> x."""
    return _shift(Ops.SHR, lift(other, x), x, x)

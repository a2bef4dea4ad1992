"""Arithmetic and comparisons of complex numbers, on their pairs."""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import DTypeError
from baregrad.dtypes import as_dtype, dtypes
from baregrad.tensor.array.nodes import broadcast_shapes
from baregrad.tensor.complex.complex_tensor import ComplexTensor
from baregrad.tensor.complex.pairs import (
    as_pairs,
    both,
    lifted,
    operands,
    paired,
    parts,
    together,
    turned,
)
from baregrad.tensor.ops.shapes import as_format, laid_out, preserve_format
from baregrad.tensor.tensor import Tensor


def _of(pairs: Tensor) -> ComplexTensor:
    return ComplexTensor.of_pairs(pairs)


# --- dtypes ---------------------------------------------------------------------------------------


def cast(x: Tensor, dtype: object) -> Tensor:
    """The values in another complex dtype; of a real tensor with an imaginary part of 0."""
    wanted = as_dtype(dtype)
    if wanted.is_complex:
        return x if wanted is x.dtype else _of(as_pairs(x, wanted, x.device))
    if wanted is dtypes.bool:
        return ne(x, 0)
    raise DTypeError(
        "complex numbers have an imaginary part, which this dtype cannot hold",
        found=f"{x.dtype} to {wanted}", hint="take one part: x.real, x.imag",
    )


def to_double(x: Tensor) -> Tensor:
    """Refuse what would drop the imaginary part."""
    return cast(x, dtypes.float64)


def to_bool(x: Tensor) -> Tensor:
    """Whether each number is not 0."""
    return ne(x, 0)


def clone(x: Tensor, memory_format: object = preserve_format) -> Tensor:
    """The same value with a storage of its own."""
    assert isinstance(x, ComplexTensor)
    return laid_out(_of(x.pairs().clone()), as_format(memory_format))


# --- arithmetic -----------------------------------------------------------------------------------


def add(x: Tensor, other: Any, *, alpha: Any = None) -> Tensor:
    """x + alpha*other."""
    if alpha is not None:
        other = mul(_complex(other, x), alpha)
    a, b = together(x, other)
    return _of(a + b)


def sub(x: Tensor, other: Any, *, alpha: Any = None) -> Tensor:
    """x - alpha*other."""
    if alpha is not None:
        other = mul(_complex(other, x), alpha)
    a, b = together(x, other)
    return _of(a - b)


def rsub(x: Tensor, other: Any) -> Tensor:
    """other - x."""
    a, b = together(x, other)
    return _of(b - a)


def _complex(value: Any, beside: Tensor) -> Tensor:
    """A value as a complex tensor, in the dtype that it meets another in."""
    return _of(operands(beside, value)[1][1])


def mul(x: Tensor, other: Any) -> Tensor:
    """x * other."""
    scalar = lifted(other, x.device)
    if x.is_paired and isinstance(scalar, bool | int | float):
        assert isinstance(x, ComplexTensor)
        return _of(x.pairs() * scalar)
    a, b = together(x, scalar)
    return _of(a[..., 0:1] * b + a[..., 1:2] * turned(b))


def square(x: Tensor) -> Tensor:
    """x * x."""
    return mul(x, x)


def _quotient(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """a / b by Smith's way, which neither overflows nor underflows before the quotient does."""
    larger = b[0].abs() >= b[1].abs()
    big, small = larger.where(*b), larger.where(b[1], b[0])
    nothing = (big == 0) & (small == 0)
    ratio = small / (big == 0).where(1.0, big)
    divisor = nothing.where(1.0, big + small * ratio)
    first, second = larger.where(*a), larger.where(a[1], a[0])
    imag = (second - first * ratio) / divisor
    real, imag = (first + second * ratio) / divisor, larger.where(imag, -imag)
    # By 0 each part is endless by itself, or NaN.
    zero = big.detach().abs()
    return paired(nothing.where(a[0] / zero, real), nothing.where(a[1] / zero, imag))


def div(x: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """x / other."""
    if rounding_mode is not None:
        raise DTypeError("a complex quotient is not rounded", found=f"{rounding_mode=}")
    scalar = lifted(other, x.device)
    if x.is_paired and isinstance(scalar, bool | int | float):
        assert isinstance(x, ComplexTensor)
        return _of(x.pairs() / scalar)
    a, b = both(x, scalar)
    return _quotient(a, b)


def rdiv(x: Tensor, other: Any) -> Tensor:
    """other / x."""
    a, b = both(x, other)
    return _quotient(b, a)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return rdiv(x, 1)


def neg(x: Tensor) -> Tensor:
    """-x."""
    assert isinstance(x, ComplexTensor)
    return _of(-x.pairs())


def positive(x: Tensor) -> Tensor:
    """The tensor itself."""
    return x


def absolute(x: Tensor) -> Tensor:
    """The size |x|, which does not overflow before it must."""
    real, imag = parts(x)
    # The derivative at 0, which has none, is 0.
    nothing = (real == 0) & (imag == 0)
    return nothing.where(0.0, nothing.where(1.0, real).hypot(imag))


def sign(x: Tensor) -> Tensor:
    """x / |x|, and 0 of 0."""
    assert isinstance(x, ComplexTensor)
    size = absolute(x).unsqueeze(-1)
    nothing = size == 0
    return _of(nothing.where(0.0, x.pairs() / nothing.where(1.0, size)))


def addcmul(x: Tensor, a: Any, b: Any, *, value: Any = 1) -> Tensor:
    """x + value*a*b."""
    return add(x, a * b * value)


def addcdiv(x: Tensor, a: Any, b: Any, *, value: Any = 1) -> Tensor:
    """x + value*a/b."""
    return add(x, a / b * value)


def lerp(x: Tensor, end: Any, weight: Any) -> Tensor:
    """x + weight*(end - x)."""
    return add(x, (end - x) * weight)


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    """`a` where the condition holds, else `b`; or PyTorch's method, x.where(condition, other)."""
    if condition.dtype is not dtypes.bool:
        condition, a = a, condition
    if not isinstance(condition, Tensor) or condition.dtype is not dtypes.bool:
        raise DTypeError("where's condition", found=repr(condition)[:60], wanted="a bool tensor")
    known = [lifted(one, condition.device) for one in (a, b)]
    if any(isinstance(one, Tensor) for one in known):
        first, second = together(*known)
    else:
        _, first, second = together(condition, *known)
    broadcast_shapes(condition.shape, first.shape[:-1], second.shape[:-1])
    return _of(condition.unsqueeze(-1).where(first, second))


# --- comparisons ----------------------------------------------------------------------------------


def eq(x: Tensor, other: Any) -> Tensor:
    """Whether both parts are equal."""
    a, b = together(x, other)
    return (a == b).all(-1)


def ne(x: Tensor, other: Any) -> Tensor:
    """Whether a part differs."""
    a, b = together(x, other)
    return (a != b).any(-1)


def isnan(x: Tensor) -> Tensor:
    """Whether a part is NaN."""
    assert isinstance(x, ComplexTensor)
    return x.pairs().isnan().any(-1)


def isinf(x: Tensor) -> Tensor:
    """Whether a part is infinite."""
    assert isinstance(x, ComplexTensor)
    return x.pairs().isinf().any(-1)


def isfinite(x: Tensor) -> Tensor:
    """Whether both parts are finite."""
    assert isinstance(x, ComplexTensor)
    return x.pairs().isfinite().all(-1)


def isclose(
    x: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x - other| <= atol + rtol*|other|; equal infinities are close."""
    a, b = (_of(pairs) for pairs in together(x, other))
    close = a == b
    if equal_nan:
        close = close | (a.isnan() & b.isnan())
    distance = (a - b).abs()
    return close | (distance.isfinite() & (distance <= b.abs() * rtol + atol))


def logical_not(x: Tensor) -> Tensor:
    """Whether a number is 0."""
    return eq(x, 0)


def logical_and(x: Tensor, other: Any) -> Tensor:
    """Whether both are not 0."""
    return ne(x, 0) & ne(_complex(other, x), 0)


def logical_or(x: Tensor, other: Any) -> Tensor:
    """Whether one is not 0."""
    return ne(x, 0) | ne(_complex(other, x), 0)


def logical_xor(x: Tensor, other: Any) -> Tensor:
    """Whether just one is not 0."""
    return ne(x, 0) ^ ne(_complex(other, x), 0)

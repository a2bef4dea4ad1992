"""Functions of each element, and of pairs of elements of arrays that broadcast."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from baregrad.array_api.values import INTEGERS, Value, both, extent, scalar
from baregrad.base.errors import DTypeError
from baregrad.tensor import Tensor


def _of_one(name: str, meaning: str, method: str | None = None) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, /) -> Tensor:
        found: Tensor = getattr(x, method or name)()
        return found

    _name(function, name, meaning)
    return function


def _of_two(
    name: str, meaning: str, method: str | None = None
) -> Callable[[Value, Value], Tensor]:
    def function(x1: Value, x2: Value, /) -> Tensor:
        one, other = both(x1, x2)
        found: Tensor = getattr(one, method or name)(other)
        return found

    _name(function, name, meaning)
    return function


def _whole(name: str, meaning: str) -> Callable[[Tensor], Tensor]:
    """A rounding, which leaves integers as they are."""

    def function(x: Tensor, /) -> Tensor:
        found: Tensor = x if x.dtype.kind in INTEGERS else getattr(x, name)()
        return found

    _name(function, name, meaning)
    return function


def _name(function: Any, name: str, meaning: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = meaning


abs = _of_one("abs", "Return absolute values.")
acos = _of_one("acos", "Return inverse cosines.")
acosh = _of_one("acosh", "Return inverse hyperbolic cosines.")
asin = _of_one("asin", "Return inverse sines.")
asinh = _of_one("asinh", "Return inverse hyperbolic sines.")
atan = _of_one("atan", "Return inverse tangents.")
atanh = _of_one("atanh", "Return inverse hyperbolic tangents.")
bitwise_invert = _of_one("bitwise_invert", "Return the other bits.", "bitwise_not")
ceil = _whole("ceil", "Return the next integers above.")
cos = _of_one("cos", "Return cosines.")
cosh = _of_one("cosh", "Return hyperbolic cosines.")
exp = _of_one("exp", "Return powers of e.")
expm1 = _of_one("expm1", "Return powers of e less 1, precise near 0.")
floor = _whole("floor", "Return the next integers below.")
isfinite = _of_one("isfinite", "Return whether elements are neither infinite nor NaN.")
isinf = _of_one("isinf", "Return whether elements are infinite.")
isnan = _of_one("isnan", "Return whether elements are NaN.")
log = _of_one("log", "Return logarithms to base e.")
log10 = _of_one("log10", "Return logarithms to base 10.")
log1p = _of_one("log1p", "Return logarithms of 1 + x, precise near 0.")
log2 = _of_one("log2", "Return logarithms to base 2.")
logical_not = _of_one("logical_not", "Return the other bools.")
negative = _of_one("negative", "Return elements with the other sign.", "neg")
positive = _of_one("positive", "Return elements as they are.", "clone")
reciprocal = _of_one("reciprocal", "Return 1 / x.")
round = _whole("round", "Return the nearest integers, ties to even.")
signbit = _of_one("signbit", "Return whether the sign's bit is set.")
sin = _of_one("sin", "Return sines.")
sinh = _of_one("sinh", "Return hyperbolic sines.")
sqrt = _of_one("sqrt", "Return square roots.")
square = _of_one("square", "Return squares.")
tan = _of_one("tan", "Return tangents.")
tanh = _of_one("tanh", "Return hyperbolic tangents.")
trunc = _whole("trunc", "Return the next integers towards 0.")

add = _of_two("add", "Return sums.")
atan2 = _of_two("atan2", "Return angles of points (x2, x1).")
bitwise_and = _of_two("bitwise_and", "Return bits that both have.")
bitwise_left_shift = _of_two("bitwise_left_shift", "Return bits moved up.")
bitwise_or = _of_two("bitwise_or", "Return bits that either has.")
bitwise_right_shift = _of_two("bitwise_right_shift", "Return bits moved down.")
bitwise_xor = _of_two("bitwise_xor", "Return bits that one of both has.")
copysign = _of_two("copysign", "Return the size of the first with the sign of the second.")
divide = _of_two("divide", "Return quotients.", "div")
equal = _of_two("equal", "Return whether elements are equal.", "eq")
greater = _of_two("greater", "Return whether the first is greater.", "gt")
greater_equal = _of_two("greater_equal", "Return whether the first is not less.", "ge")
hypot = _of_two("hypot", "Return the lengths of vectors of two.")
less = _of_two("less", "Return whether the first is less.", "lt")
less_equal = _of_two("less_equal", "Return whether the first is not greater.", "le")
logaddexp = _of_two("logaddexp", "Return log(exp(x1) + exp(x2)).")
logical_and = _of_two("logical_and", "Return whether both hold.")
logical_or = _of_two("logical_or", "Return whether either holds.")
logical_xor = _of_two("logical_xor", "Return whether one of both holds.")
maximum = _of_two("maximum", "Return the greater elements, NaN where one is.")
minimum = _of_two("minimum", "Return the lesser elements, NaN where one is.")
multiply = _of_two("multiply", "Return products.", "mul")
not_equal = _of_two("not_equal", "Return whether elements differ.", "ne")
pow = _of_two("pow", "Return powers.")
subtract = _of_two("subtract", "Return differences.", "sub")


def sign(x: Tensor, /) -> Tensor:
    """Return -1, 0 or 1, and NaN for NaN."""
    return x.isnan().where(x, x.sign()) if x.dtype.kind == "float" else x.sign()


def floor_divide(x1: Value, x2: Value, /) -> Tensor:
    """Return the floors of quotients, of infinities as well."""
    one, other = both(x1, x2)
    found = one.floor_divide(other)
    if found.dtype.kind != "float":
        return found
    return (one.isfinite() & other.isfinite()).where(found, (one / other).floor())


def remainder(x1: Value, x2: Value, /) -> Tensor:
    """Return remainders, with the sign of the second where they are 0 as well."""
    one, other = both(x1, x2)
    found = one.remainder(other)
    if found.dtype.kind != "float":
        return found
    return (found == 0).where(found.copysign(other), found)


def conj(x: Tensor, /) -> Tensor:
    """Return complex conjugates, which numbers that are not complex are themselves."""
    return x.conj()


def real(x: Tensor, /) -> Tensor:
    """Return real parts, which numbers that are not complex are themselves."""
    found: Tensor = x.real
    return found


def imag(x: Tensor, /) -> Tensor:
    """Return imaginary parts. Raises DTypeError for numbers that are not complex."""
    found: Tensor = x.imag
    return found


def clip(x: Tensor, /, min: Value | None = None, max: Value | None = None) -> Tensor:
    """Return elements moved between two bounds, each of which may be left out.

    Bounds of integers are integers. One beyond what the dtype of x holds counts as the nearest
    that it holds.
    """
    found = x
    if min is not None:
        low = _bound(x, min)
        found = (found < low).where(low, found)
    if max is not None:
        high = _bound(x, max)
        found = (found > high).where(high, found)
    for bound in (min, max):
        if isinstance(bound, Tensor) and bound.dtype.kind == "float":
            found = bound.isnan().where(bound.cast(x.dtype), found)
    return found.clone() if found is x else found


def _bound(x: Tensor, value: Value) -> Tensor:
    """A bound of x in its dtype, for integers the nearest number that it holds."""
    if x.dtype.kind not in INTEGERS:
        return both(x, value)[1].cast(x.dtype)
    low, high = extent(x.dtype)
    if isinstance(value, Tensor) and value.dtype.kind in INTEGERS:
        least, most = extent(value.dtype)
        return value.clamp(builtins.max(low, least), builtins.min(high, most)).cast(x.dtype)
    if isinstance(value, Tensor | float | complex):
        raise DTypeError("bounds of integers are integers", found=f"{value!r:.40} of {x.dtype}")
    return scalar(builtins.min(builtins.max(low, value), high), x)


def nextafter(x1: Value, x2: Value, /) -> Tensor:
    """Return the numbers next to the first in the direction of the second."""
    one, other = both(x1, x2)
    return one.nextafter(other)

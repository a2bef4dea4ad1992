"""The error function's inverse and scaled complement, and the normal distribution by them."""

from __future__ import annotations

import math

from baregrad.tensor.array.operands import broadcast_operands, through_float32
from baregrad.tensor.array.tensor_like import Operand, Tensor
from baregrad.tensor.ops.functions import erf, exp, log, log1p, sqrt
from baregrad.tensor.ops.special import erfc, scaled_erfc
from baregrad.tensor.special.gamma import in_float64

_STEPS = 3
_TAIL_TERMS = 8
# The scaled complement has its polynomial up to here.
_LAST = 24.0
_SLOPE = 2.0 / math.sqrt(math.pi)


@in_float64
def erfinv(x: Tensor) -> Tensor:
    """Return y with erf(y) = x: infinite at -1 and 1, NaN beyond."""
    return _inverse(x, 1.0 - x.abs())


def _inverse(x: Tensor, rest: Tensor) -> Tensor:
    """erfinv(x), where `rest` is 1 - |x| with all of its digits.

    A guess to three digits (S. Winitzki, 2008), and Halley's steps, each of which makes three times
    as many. They are differentiable, and so are their derivatives.
    """
    inside = rest > 0
    one = inside.where(rest, 0.5)
    size = inside.where(x.abs(), 0.5)
    whole = log(one * (1.0 + size))
    half = 2.0 / (math.pi * 0.147) + whole * 0.5
    guess = sqrt(sqrt(half * half - whole / 0.147) - half)
    y = (size == 0).where(size, (size == 0).where(1.0, guess))
    low = size < 0.5
    for _ in range(_STEPS):
        error = low.where(erf(y) - size, one - erfc(y))
        step = error / (exp(-(y * y)) * _SLOPE)
        y = y - step / (1.0 + y * step)
    found = (x < 0).where(-y, y)
    edge = (x < 0).where(-math.inf, math.inf)
    return inside.where(found, (rest == 0).where(edge, math.nan))


@in_float64
def erfcx(x: Tensor) -> Tensor:
    """Return exp(x*x) * erfc(x), which neither overflows nor vanishes for large x."""
    size = x.abs()
    far = size > _LAST
    near = scaled_erfc(far.where(_LAST, size))
    square = 1.0 / far.where(size * size, 1.0)
    # Of what an asymptotic series gives no more counts so far out.
    tail = square * 0.0 + 1.0
    for term in range(_TAIL_TERMS, 0, -1):
        tail = 1.0 - square * (term - 0.5) * tail
    positive = far.where(tail / (far.where(size, 1.0) * math.sqrt(math.pi)), near)
    negative = (x < 0).where(x, 0.0)
    return (x < 0).where(2.0 * exp(negative * negative) - positive, positive)


@in_float64
def ndtr(x: Tensor) -> Tensor:
    """Return the share of the normal distribution below x."""
    return erfc(x * -math.sqrt(0.5)) * 0.5


@in_float64
def log_ndtr(x: Tensor) -> Tensor:
    """Return the logarithm of `ndtr`, precise where that is next to 0 or to 1."""
    low = x < -1.0
    below, above = low.where(x, -1.0), low.where(0.0, x)
    first = log(erfcx(below * -math.sqrt(0.5)) * 0.5) - below * below * 0.5
    return low.where(first, log1p(-0.5 * erfc(above * math.sqrt(0.5))))


@in_float64
def ndtri(x: Tensor) -> Tensor:
    """Return y with ndtr(y) = x: infinite at 0 and 1, NaN beyond."""
    rest = (x < 0.5).where(2.0 * x, 2.0 * (1.0 - x))
    return _inverse(2.0 * x - 1.0, rest) * math.sqrt(2.0)


@through_float32
def entr(x: Tensor) -> Tensor:
    """Return -x * log(x), 0 at 0 and minus infinity below."""
    positive = x > 0
    found = -x * log(positive.where(x, 1.0))
    return (positive | x.isnan()).where(found, (x == 0).where(0.0, -math.inf))


def xlog1py(x: Tensor, other: Operand) -> Tensor:
    """Return x * log1p(other), 0 where x is 0 unless `other` is NaN."""
    return _xlog1py(*broadcast_operands(x, x, other))


@through_float32
def _xlog1py(x: Tensor, y: Tensor) -> Tensor:
    nothing = (x == 0) & ((y <= -1) | (y == math.inf))
    return x * log1p(nothing.where(0.0, y))

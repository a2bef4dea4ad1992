"""The logarithm of the gamma function and its derivatives, and Hurwitz's zeta function.

Computed in float64 whatever the dtype is: by Stirling's series after as many steps of the
recurrence as it needs, by reflection left of 0, and near the zeros of log gamma, 1 and 2, by the
power series of the zeta function. All is made of differentiable steps, so derivatives of any order
are those of the function. Source of the series: Abramowitz and Stegun, chapters 6 and 23.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from baregrad.base.errors import ArgumentError
from baregrad.dtypes import check_computed, dtypes
from baregrad.tensor.array.operands import broadcast_operands, derived, float_dtype
from baregrad.tensor.array.tensor_like import Operand, Tensor, TensorLike
from baregrad.tensor.ops.functions import log, log1p, sin, tan

F = TypeVar("F", bound=Callable[..., Any])

# zeta(k) - 1 for k from 2 on.
_ZETA_LESS_1 = (
    0.6449340668482264, 0.2020569031595943, 0.08232323371113819, 0.03692775514336993,
    0.01734306198444914, 0.008349277381922827, 0.00407735619794434, 0.0020083928260822143,
    0.0009945751278180853, 0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915,
    6.124813505870483e-05, 3.058823630702049e-05, 1.528225940865187e-05, 7.637197637899763e-06,
    3.81729326499984e-06, 1.908212716553939e-06, 9.539620338727962e-07, 4.769329867878064e-07,
    2.38450502727733e-07, 1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08,
    1.4901554828365043e-08, 7.45071178983543e-09,
)
# B(2k) / (2k*(2k - 1)), B(2k) / 2k and B(2k) / (2k)! with Bernoulli's numbers, for k from 1 on.
_STIRLING = (
    0.08333333333333333, -0.002777777777777778, 0.0007936507936507937, -0.0005952380952380953,
    0.0008417508417508417, -0.0019175269175269176, 0.00641025641025641, -0.029550653594771242,
    0.17964437236883057,
)
_DIGAMMA = (
    0.08333333333333333, -0.008333333333333333, 0.003968253968253968, -0.004166666666666667,
    0.007575757575757576, -0.021092796092796094, 0.08333333333333333, -0.4432598039215686,
    3.0539543302701198,
)
_EULER_MACLAURIN = (
    0.08333333333333333, -0.001388888888888889, 3.306878306878307e-05, -8.267195767195768e-07,
    2.08767569878681e-08, -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225827e-13,
    8.586062056277845e-15, -2.174868698558062e-16, 5.5090028283602295e-18, -1.3954464685812522e-19,
)
_EULER = 0.5772156649015329
# From here on Stirling's series is exact to float64; as many steps lead there from 0.
_STEPS = 8
_ZETA_STEPS = 10


def in_float64(function: F) -> F:
    """Wrap a function so that it is computed in float64, and rounded once at the end."""

    @wraps(function)
    def wrapped(x: TensorLike, *args: Any) -> Any:
        dtype = float_dtype(x.dtype)
        check_computed(dtype)
        return function(x.cast(dtypes.float64), *args).cast(dtype)

    return wrapped  # type: ignore[return-value]


@in_float64
def lgamma(x: Tensor) -> Tensor:
    """Return log(|gamma(x)|): infinity at 0 and the negative integers."""
    left = x < 0.5
    positive = left.where(1 - x, x)
    found = _log_gamma(positive)
    apart = x - x.detach().round()
    turned = left.where(sin(left.where(apart, 0.5) * math.pi).abs(), 1.0)
    # Few digits are left of a tiny sine's logarithm otherwise.
    mirrored = math.log(math.pi) - log(turned) - found
    value = x.isinf().where(math.inf, left.where(mirrored, found))
    return derived(value, x, lambda g, x, y: g * digamma(x))


def _log_gamma(x: Tensor) -> Tensor:
    """log(gamma(x)) for x of at least 0.5."""
    short = x < _STEPS
    near = x < 2.5
    product = held = short.where(x, 1.0)
    for step in range(1, _STEPS):
        product = product * (held + step)
    z = short.where(x + _STEPS, x)
    inverse = 1.0 / z
    square = inverse * inverse
    series = square * _STIRLING[-1]
    for term in reversed(_STIRLING[1:-1]):
        series = (series + term) * square
    series = (series + _STIRLING[0]) * inverse
    far = (z - 0.5) * log(z) - z + 0.5 * math.log(2 * math.pi) + series
    far = short.where(far - log(short.where(product, 1.0)), far)
    first = x < 1.5
    t = near.where(first.where(x - 1.0, x - 2.0), 0.0)
    close = _of_two(t) - first.where(log1p(t), 0.0)
    return near.where(close, far)


def _of_two(t: Tensor) -> Tensor:
    """log(gamma(2 + t)) for |t| of at most a half."""
    found = t * 0.0
    for place, value in reversed(list(enumerate(_ZETA_LESS_1, 2))):
        found = (found + (value / place if place % 2 == 0 else -value / place)) * t
    return (found + (1.0 - _EULER)) * t


@in_float64
def digamma(x: Tensor) -> Tensor:
    """Return the derivative of log(gamma(x)): NaN at the negative integers, infinite at 0."""
    left = x < 0.5
    found = _digamma(left.where(1.0 - x, x))
    apart = left.where(x - x.detach().round(), 0.25)
    mirrored = found - math.pi / tan(apart * math.pi)
    pole = left & (apart == 0)
    at_pole = (x == 0).where((-x.detach()).reciprocal(), math.nan)
    value = pole.where(at_pole, (x == math.inf).where(math.inf, left.where(mirrored, found)))
    return derived(value, x, lambda g, x, y: g * _trigamma(x))


def _digamma(x: Tensor) -> Tensor:
    short = x < _STEPS
    held = short.where(x, 1.0)
    steps = 1.0 / held
    for step in range(1, _STEPS):
        steps = steps + 1.0 / (held + step)
    z = short.where(x + _STEPS, x)
    inverse = 1.0 / z
    square = inverse * inverse
    series = square * _DIGAMMA[-1]
    for term in reversed(_DIGAMMA[1:-1]):
        series = (series + term) * square
    series = (series + _DIGAMMA[0]) * square
    far = log(z) - 0.5 * inverse - series
    return short.where(far - steps, far)


def _trigamma(x: Tensor) -> Tensor:
    """The derivative of digamma: infinite at 0 and the negative integers."""
    left = x < 0.5
    found = _right_trigamma(left.where(1.0 - x, x))
    apart = left.where(x - x.detach().round(), 0.25)
    return left.where((math.pi / sin(apart * math.pi)).square() - found, found)


def _right_trigamma(x: Tensor) -> Tensor:
    short = x < _STEPS
    held = short.where(x, 1.0)
    steps = (1.0 / held).square()
    for step in range(1, _STEPS):
        steps = steps + (1.0 / (held + step)).square()
    inverse = 1.0 / short.where(x + _STEPS, x)
    square = inverse * inverse
    series = square * 0.0
    for place, term in reversed(list(enumerate(_DIGAMMA, 1))):
        series = (series + 2 * place * term) * square
    far = inverse + 0.5 * square + series * inverse
    return short.where(far + steps, far)


def zeta(x: Tensor, other: Operand) -> Tensor:
    """Return Hurwitz's zeta function, the sum of (k + other)**-x over k from 0 on; x > 1.

    It is infinite for x of 1, and NaN below; `other` is positive, else the result is NaN, but for
    infinity at 0 and the negative integers.
    """
    s, q = broadcast_operands(x, x, other)
    dtype = float_dtype(s.dtype)
    check_computed(dtype)
    return _zeta(s.cast(dtypes.float64), q.cast(dtypes.float64)).cast(dtype)


def _zeta(s: Tensor, q: Tensor) -> Tensor:
    """By the sum of Euler and Maclaurin."""
    counted = (s > 1) & (q > 0)
    endless = counted & (s.isinf() | q.isinf())
    known = counted & ~endless
    s_, q_ = known.where(s, 2.0), known.where(q, 1.0)
    total = q_ ** -s_
    for step in range(1, _ZETA_STEPS):
        total = total + (q_ + step) ** -s_
    z = q_ + _ZETA_STEPS
    power = z**-s_
    total = total + z * power / (s_ - 1.0) + 0.5 * power
    factor = s_ * power / z
    for place, term in enumerate(_EULER_MACLAURIN):
        total = total + factor * term
        factor = factor * (s_ + (2 * place + 1)) * (s_ + (2 * place + 2)) / (z * z)
    pole = (s == 1) | ((s > 1) & (q <= 0) & (q == q.floor()))
    # Of what has no end the first term is all.
    rest = endless.where(endless.where(q, 1.0) ** endless.where(-s, 1.0),
                         pole.where(math.inf, math.nan))
    return known.where(total, rest)


def polygamma(n: int, x: Tensor) -> Tensor:
    """Return the n-th derivative of digamma, of positive numbers; NaN left of 0 unless n is 0."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ArgumentError("the order of a derivative", found=f"{n!r}", wanted="0 or more")
    if not n:
        return digamma(x)
    return _polygamma(x, n)


@in_float64
def _polygamma(x: Tensor, n: int) -> Tensor:
    order = x.zeros_like() + (n + 1.0)
    return _zeta(order, x) * ((-1.0) ** (n + 1) * math.factorial(n))


def nth_polygamma(x: Tensor, n: int) -> Tensor:
    """Return `polygamma` of a tensor, whose method it is: x.polygamma(n)."""
    return polygamma(n, x)


def multigammaln(x: Tensor, p: int) -> Tensor:
    """Return the logarithm of the gamma function of p dimensions, of numbers above (p - 1) / 2."""
    if isinstance(p, bool) or not isinstance(p, int) or p < 1:
        raise ArgumentError("a number of dimensions", found=f"{p!r}", wanted="1 or more")
    return _multigammaln(x, p)


@in_float64
def _multigammaln(x: Tensor, p: int) -> Tensor:
    total = lgamma(x) + p * (p - 1) / 4 * math.log(math.pi)
    for place in range(1, p):
        total = total + lgamma(x - place / 2)
    return total

"""Functions of complex numbers, by real functions of their parts.

The branch cuts and their sides are C99's, as NumPy's, and so are values at infinities, NaN and
signed zeros (annex G.6); the inverse functions follow Kahan, "Branch cuts for complex elementary
functions" (1987). What stands at infinities is constant there: it has no gradient.
"""

from __future__ import annotations

import math
from typing import Any

from baregrad.dtypes import finfo
from baregrad.tensor.complex import arithmetic
from baregrad.tensor.complex.pairs import Parts, both, lifted, paired, parts
from baregrad.tensor.tensor import Tensor


def exp(x: Tensor) -> Tensor:
    """e**x."""
    return _exp_of(parts(x))


def _exp_of(z: Parts) -> Tensor:
    size = z[0].exp()
    # exp(-inf) is 0 whatever the angle, and a real number's power stays real. Of others the product
    # is 0 by itself, and has a gradient.
    gone = z[0] == -math.inf
    cos, sin = z[1].cos(), z[1].sin()
    still = (z[1] == 0) & ~size.isfinite()
    wild = ~z[1].isfinite()
    real = _where(gone, _zero_of(wild.where(1.0, cos)), size * cos)
    real = _where(wild & (z[0] == math.inf), z[0], real)
    imag = _where(gone, _zero_of(wild.where(z[1], sin)), still.where(z[1], size * sin))
    return paired(real, imag)


def _where(chosen: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """A value where it is chosen, which has no gradient, and another elsewhere."""
    return chosen.where(value.detach(), other)


def _zero_of(x: Tensor) -> Tensor:
    """0 with the sign of x."""
    return x.zeros_like().copysign(x).detach()


def _endless(z: Parts) -> Tensor:
    """Where a part is infinite, whatever the other one is."""
    return z[0].isinf() | z[1].isinf()


def expm1(x: Tensor) -> Tensor:
    """e**x - 1, exact near 0."""
    real, imag = parts(x)
    half = (imag * 0.5).sin()
    return paired(real.expm1() * imag.cos() - half * half * 2.0, real.exp() * imag.sin())


def exp2(x: Tensor) -> Tensor:
    """2**x."""
    real, imag = parts(x)
    return _exp_of((real * math.log(2), imag * math.log(2)))


def log(x: Tensor) -> Tensor:
    """The logarithm whose imaginary part is within [-pi, pi]."""
    real, imag = parts(x)
    return paired(_log_of_size(real, imag), imag.atan2(real))


def _log_of_size(real: Tensor, imag: Tensor) -> Tensor:
    """log |real + i*imag|; near 1 by what the square of the size is beyond 1."""
    size = real.hypot(imag)
    larger = real.abs().maximum(imag.abs())
    smaller = real.abs().minimum(imag.abs())
    near = (size > 0.5) & (size < 2.0)
    beyond = (larger - 1.0) * (larger + 1.0) + smaller * smaller
    return near.where(near.where(beyond, 0.0).log1p() * 0.5, size.log())


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact near 0."""
    real, imag = parts(x)
    beyond = real * (real + 2.0) + imag * imag
    near = (real.abs() < 0.5) & (imag.abs() < 0.5)
    size = near.where(near.where(beyond, 0.0).log1p() * 0.5, _log_of_size(real + 1.0, imag))
    return paired(size, imag.atan2(real + 1.0))


def log2(x: Tensor) -> Tensor:
    """The logarithm to base 2."""
    return log(x) / math.log(2)


def log10(x: Tensor) -> Tensor:
    """The logarithm to base 10."""
    return log(x) / math.log(10)


def sqrt(x: Tensor) -> Tensor:
    """The square root whose real part is not negative."""
    return paired(*_root(parts(x)))


def _root(z: Parts) -> Parts:
    real, imag = z
    tiny = finfo(real.dtype).smallest_normal
    # A quarter is taken first of what is large, and small numbers are made larger: both exactly.
    largest = real.abs().maximum(imag.abs())
    large, small = largest > finfo(real.dtype).max / 4, largest < tiny * 16
    scale = large.where(0.0625, small.where(2.0**52, 1.0))
    back = large.where(4.0, small.where(2.0**-26, 1.0))
    a, b = real * scale, imag * scale
    nothing = (a == 0) & (b == 0)
    size = nothing.where(1.0, a).hypot(b)
    root = ((a.abs() + size) * 0.5).sqrt()
    other = nothing.where(b, b / (root * 2.0))
    root = nothing.where(0.0, root)
    negative = real < 0
    along = negative.where(other.abs(), root) * back
    across = negative.where(root.copysign(imag), other) * back
    endless = imag.isinf()
    along = endless.where(imag.abs(), along)
    across = (endless | (real == math.inf) & imag.isfinite()).where(
        endless.where(imag, imag.zeros_like().copysign(imag)), across)
    return along, across


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return sqrt(x).reciprocal()


def power(x: Tensor, exponent: Any) -> Tensor:
    """x**exponent: small whole exponents by products, others by exp(exponent * log(x))."""
    exponent = lifted(exponent, x.device)
    if x.is_paired and isinstance(exponent, int | float) and exponent == int(exponent):
        whole = int(exponent)
        if -64 <= whole <= 64:
            return _whole_power(x, whole)
    if isinstance(exponent, float) and exponent == 0.5 and x.is_paired:
        return sqrt(x)
    base, up = both(x, exponent)
    return _power_of(base, up)


def _whole_power(x: Tensor, exponent: int) -> Tensor:
    if exponent < 0:
        return _whole_power(x, -exponent).reciprocal()
    found: Tensor | None = None
    while exponent:
        if exponent & 1:
            found = x if found is None else arithmetic.mul(found, x)
        exponent >>= 1
        x = arithmetic.mul(x, x) if exponent else x
    return x.ones_like() if found is None else found.clone()


def rpower(x: Tensor, base: Any) -> Tensor:
    """base**x."""
    up, found = both(x, base)
    return _power_of(found, up)


def _power_of(base: Parts, up: Parts) -> Tensor:
    nothing = (base[0] == 0) & (base[1] == 0)
    z = paired(nothing.where(1.0, base[0]), base[1])
    made = _exp_of(_product(parts(log(z)), up))
    # 0 to 0 is 1, to what has a positive real part 0; else it has no value.
    at_zero = (up[0] > 0).where(0.0, ((up[0] == 0) & (up[1] == 0)).where(1.0, math.nan))
    still = ((up[0] > 0) | (up[0] == 0) & (up[1] == 0)).where(0.0, math.nan)
    return arithmetic.where(nothing, paired(at_zero, still), made)


def _product(z: Parts, w: Parts) -> Parts:
    """A product that is endless where a factor is, and the other one is no NaN or 0 (annex G.5)."""
    real, imag = z[0] * w[0] - z[1] * w[1], z[0] * w[1] + z[1] * w[0]
    lost = real.isnan() & imag.isnan() & (_endless(z) | _endless(w))
    a, b = _directions(z)
    c, d = _directions(w)
    return (_where(lost, (a * c - b * d) * math.inf, real),
            _where(lost, (a * d + b * c) * math.inf, imag))


def _directions(z: Parts) -> Parts:
    """Where an endless number lies: its infinite parts as 1; another one with 0 for NaN."""
    endless = _endless(z)
    first, second = [
        endless.where(x.isinf().where(1.0, 0.0), x.isnan().where(0.0, x)).copysign(x) for x in z
    ]
    return first, second


def sin(x: Tensor) -> Tensor:
    """The sine."""
    a, b = parts(x)
    imag = _times(a.cos(), b.sinh())
    return paired(_times(a.sin(), b.cosh()), _where(b.isinf() & ~a.isfinite(), b, imag))


def _times(a: Tensor, b: Tensor) -> Tensor:
    """a * b, where 0 times infinity or NaN is 0; other products of 0 have gradients."""
    of_a, of_b = (a == 0) & ~b.isfinite(), (b == 0) & ~a.isfinite()
    zero, other, still = of_a.where(a, b), of_a.where(b, a), of_a | of_b
    product = still.where(0.0, a) * still.where(0.0, b)
    return _where(still, (other < 0).where(-zero, zero), product)


def cos(x: Tensor) -> Tensor:
    """The cosine."""
    a, b = parts(x)
    real = _where(b.isinf() & ~a.isfinite(), b.abs(), a.cos() * b.cosh())
    return paired(real, -_times(a.sin(), b.sinh()))


def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    a, b = parts(x)
    real = _times(a.sinh(), b.cos())
    return paired(_where(a.isinf() & ~b.isfinite(), a, real), _times(a.cosh(), b.sin()))


def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    a, b = parts(x)
    real = _where(a.isinf() & ~b.isfinite(), a.abs(), a.cosh() * b.cos())
    return paired(real, _times(a.sinh(), b.sin()))


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return paired(*_tanh(parts(x)))


def _tanh(z: Parts) -> Parts:
    a, b = z
    least, most = -math.log(finfo(a.dtype).max) / 4, math.log(finfo(a.dtype).max) / 4
    held = a.clamp(least, most)
    t, s = b.tan(), held.sinh()
    # What is not chosen is of other numbers, whose quotients have derivatives.
    steep = t.isinf()
    flat = steep.where(0.0, t)
    beta = flat * flat + 1.0
    rho = (s * s + 1.0).sqrt()
    under = beta * s * s + 1.0
    real = steep.where(rho / steep.where(s, 1.0), beta * rho * s / under)
    imag = steep.where(1.0 / steep.where(t, 1.0), flat / under)
    far = (a > most) | (a < least)
    wild = ~b.isfinite()
    # An angle without a value counts unless the real part is endless.
    lost = wild & a.isfinite() & (a != 0)
    real = _where((a == 0) & wild, a, far.where(lost.where(math.nan, a.sign()), real))
    imag = _where(a.isnan() & (b == 0), b, imag)
    # Where the real part is large: 2 sin(2b) exp(-2|a|), the rest is below rounding.
    turn = wild.where(0.25, b.sin() * b.cos())
    shrunk = (a.abs().maximum(most) * -1.0).exp()
    return real, far.where(lost.where(math.nan, turn * 4.0 * shrunk * shrunk), imag)


def tan(x: Tensor) -> Tensor:
    """The tangent: -i tanh(ix)."""
    a, b = parts(x)
    real, imag = _tanh((-b, a))
    return paired(imag, -real)


def _roots_beside_one(z: Parts) -> tuple[Parts, Parts]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return _root((1.0 - z[0], -z[1])), _root((1.0 + z[0], z[1]))


def _asin(z: Parts) -> Parts:
    down, up = _roots_beside_one(z)
    real = z[0].atan2(down[0] * up[0] - down[1] * up[1])
    imag = (down[0] * up[1] - down[1] * up[0]).asinh()
    endless = _endless(z)
    real = _where(endless, z[0].atan2(z[1].abs()), real)
    real = _where((z[0] == 0) & z[1].isnan(), z[0], real)
    return real, _where(endless, _infinity_of(z[1]), imag)


def _infinity_of(x: Tensor) -> Tensor:
    """Infinity with the sign of x."""
    return (x.zeros_like() + math.inf).copysign(x)


def asin(x: Tensor) -> Tensor:
    """The inverse sine."""
    return paired(*_asin(parts(x)))


def acos(x: Tensor) -> Tensor:
    """The inverse cosine."""
    z = a, b = parts(x)
    down, up = _roots_beside_one(z)
    real, imag = down[0].atan2(up[0]) * 2.0, (up[0] * down[1] - up[1] * down[0]).asinh()
    endless = _endless(z)
    real = _where(endless, b.abs().atan2(a), real)
    real = _where((a == 0) & b.isnan(), a.zeros_like() + math.pi / 2, real)
    return paired(real, _where(endless, -_infinity_of(b), imag))


def asinh(x: Tensor) -> Tensor:
    """The inverse hyperbolic sine: -i asin(ix)."""
    a, b = parts(x)
    real, imag = _asin((-b, a))
    return paired(imag, -real)


def acosh(x: Tensor) -> Tensor:
    """The inverse hyperbolic cosine."""
    a, b = parts(x)
    down, up = _root((a - 1.0, b)), _root((a + 1.0, b))
    real, imag = (down[0] * up[0] + down[1] * up[1]).asinh(), down[1].atan2(up[0]) * 2.0
    endless = _endless((a, b))
    imag = _where(endless, b.atan2(a), imag)
    imag = _where((a == 0) & b.isnan(), a.zeros_like() + math.pi / 2, imag)
    return paired(endless.where(math.inf, real), imag)


def _atanh(z: Parts) -> Parts:
    a, b = z
    # Beyond this the squares overflow, and 1 does not count: it is 1/z, and a quarter of a turn.
    endless = _endless(z)
    size = endless.where(1.0, a.abs().maximum(b.abs()))
    far = (size > math.sqrt(finfo(a.dtype).max) / 4) | endless
    unit = far.where(size, 1.0)
    p, q = far.where(a / unit, 1.0), far.where(b / unit, 1.0)
    small = p / (p * p + q * q) / unit
    x, y = far.where(0.0, a), far.where(0.0, b)
    # Next to the imaginary axis by the first term of the series: |x| has no derivative at 0.
    beside = x == 0
    size = beside.where(0.5, x.abs())
    real = ((size * 4.0 / ((1.0 - size) * (1.0 - size) + y * y)).log1p() * 0.25).copysign(a)
    real = beside.where(x / (y * y + 1.0), real)
    imag = (y * 2.0).atan2((1.0 - x) * (1.0 + x) - y * y) * 0.5
    real = far.where(endless.where(_zero_of(a), small), real)
    real = _where((a == 0) & b.isnan(), a, real)
    right = b.isnan().where(math.nan, a.ones_like().copysign(b) * (math.pi / 2))
    return real, _where(far, right, imag)


def atanh(x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent."""
    return paired(*_atanh(parts(x)))


def atan(x: Tensor) -> Tensor:
    """The inverse tangent: i atanh(-ix)."""
    a, b = parts(x)
    # Not -i atanh(ix): a zero has the sign of a NaN b, and GPUs do not turn that sign round.
    real, imag = _atanh((b, -a))
    return paired(-imag, real)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return arithmetic.rdiv(arithmetic.neg(x).exp() + 1.0, 1)

"""Functions: exponentials, logarithms, trigonometry, rounding, activations, lerp and its kin.

What the op table lacks is composed from what it has, so that small arguments keep their relative
precision, infinities give what they should, and gradients have no NaN where the true one is finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, default_float
from baregrad.ir.core import index
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import own_axis
from baregrad.tensor.array.operands import (
    broadcast_operands,
    common_dtype,
    derived,
    elementwise,
    float_dtype,
    lift,
    through_float32,
)
from baregrad.tensor.array.tensor_like import Operand, Scalar, Tensor, TensorLike
from baregrad.tensor.ops.elementwise import div, float_unary, rsub, signbit, unary


def _named(op: Op, name: str, meaning: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return float_unary(op, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {meaning}, element by element; integers become float32."
    return function


exp = _named(Ops.EXP, "exp", "e to the power of each element")
exp2 = _named(Ops.EXP2, "exp2", "2 to the power of each element")
log = _named(Ops.LOG, "log", "the natural logarithm")
log2 = _named(Ops.LOG2, "log2", "the logarithm to base 2")
sqrt = _named(Ops.SQRT, "sqrt", "the square root")
sin = _named(Ops.SIN, "sin", "the sine")
cos = _named(Ops.COS, "cos", "the cosine")
tanh = _named(Ops.TANH, "tanh", "the hyperbolic tangent")
erf = _named(Ops.ERF, "erf", "the error function")
atan = _named(Ops.ATAN, "atan", "the inverse tangent")


def _rounding(op: Op, name: str, meaning: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return unary(op, x) if x.dtype.kind == "float" else x.clone()

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return each element rounded {meaning}; integers stay as they are."
    return function


floor = _rounding(Ops.FLOOR, "floor", "toward minus infinity")
ceil = _rounding(Ops.CEIL, "ceil", "toward plus infinity")
trunc = _rounding(Ops.TRUNC, "trunc", "toward zero")
_rint = _rounding(Ops.RINT, "rint", "to nearest, ties to even")


def round(x: Tensor, decimals: int = 0) -> Tensor:
    """Return each element rounded to a number of decimals, ties to even."""
    if not decimals or x.dtype.kind != "float":
        return _rint(x)
    scale = 10.0 ** builtin_abs(decimals)
    if decimals > 0:
        return _rint(x * scale) / scale
    return _rint(x / scale) * scale


builtin_abs = abs


def frac(x: Tensor) -> Tensor:
    """Return the part after the point, of the sign of `x`."""
    return x - trunc(x)


@through_float32
def rsqrt(x: Tensor) -> Tensor:
    """Return 1 / sqrt(x)."""
    return sqrt(x).reciprocal()


def _magnitude(x: Tensor) -> Tensor:
    """|x|, whose derivative at 0 is 1: for functions that are smooth there."""
    return (x < 0).where(-x, x)


# --- exponentials and logarithms ----------------------------------------------------------------


@through_float32
def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1, precise for small x."""
    e = exp(x)
    small = (x > -1) & (x < 1)
    # tanh(x/2) = (e^x - 1) / (e^x + 1)
    near = tanh(small.where(x, 0) * 0.5) * (small.where(e, 0) + 1)
    return derived(small.where(near, e - 1), x, lambda g, x, y, e: g * e, e)


@through_float32
def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), precise for small x."""
    u = x + 1
    lost = (x - (u - 1)).detach()
    correctable = (u > 0) & (u < math.inf)
    # log(u + lost) = log(u) + lost/u to within lost**2, which is far below rounding.
    safe = correctable.where(u, 1)
    # 0 less the logarithm, negated, is -0 where that is 0: the sum then has the sign of `lost`.
    return derived(
        -(0 - log(u)) + correctable.where(lost, 0) / safe, x, lambda g, x, y: g / (x + 1)
    )


@through_float32
def log10(x: Tensor) -> Tensor:
    """Return the logarithm to base 10."""
    return log2(x) * math.log10(2)


def logaddexp(x: Tensor, other: Operand) -> Tensor:
    """Return log(exp(x) + exp(other)) without overflow."""
    return _logaddexp(*broadcast_operands(x, x, other))


@through_float32
def _logaddexp(x: Tensor, other: Tensor) -> Tensor:
    first = x >= other
    high, below = first.where(x, other), first.where(other - x, x - other)
    # The difference of equal infinities is no number.
    return ((x == other) & x.isinf()).where(high, high + log1p(exp(below)))


@through_float32
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return log(x / (1 - x)); `eps` clamps x to [eps, 1 - eps]."""
    y = x if eps is None else x.clamp(eps, 1 - eps)
    # What is outside has a derivative by the formula, and is no number all the same.
    y = y * ((y < 0) | (y > 1)).where(math.nan, 1)
    return derived(log(y) - log1p(-y), y, lambda g, x, y: g / (x * (1 - x)))


# --- trigonometry -------------------------------------------------------------------------------


@through_float32
def tan(x: Tensor) -> Tensor:
    """Return the tangent."""
    return derived(sin(x) / cos(x), x, lambda g, x, y: g * (1 + y * y))


@through_float32
def asin(x: Tensor) -> Tensor:
    """Return the inverse sine; NaN outside [-1, 1]."""
    # Half the angle, whose tangent is finite at 1 too.
    root = sqrt(1 - x) * sqrt(1 + x)
    return derived(atan(x / (1 + root)) * 2, x, lambda g, x, y, root: g / root, root)


@through_float32
def acos(x: Tensor) -> Tensor:
    """Return the inverse cosine; NaN outside [-1, 1]."""
    # A quarter of the angle, whose tangent has no root below it that is 0 twice.
    angle = atan(sqrt(1 - x) / (math.sqrt(2) + sqrt(1 + x))) * 4
    return derived(angle, x, lambda g, x, y: -g / (sqrt(1 - x) * sqrt(1 + x)))


@through_float32
def cosh(x: Tensor) -> Tensor:
    """Return the hyperbolic cosine."""
    up, down = _half_powers(x)
    return derived(up + down, x, lambda g, x, y: g * sinh(x))


@through_float32
def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine."""
    up, down = _half_powers(x)
    small = (x > -1) & (x < 1)
    total = up + down
    near = tanh(small.where(x, 0)) * small.where(total, 1)
    return derived(small.where(near, up - down), x, lambda g, x, y, total: g * total, total)


def _half_powers(x: Tensor) -> tuple[Tensor, Tensor]:
    """exp(x)/2 and exp(-x)/2, where exp(x) alone may overflow."""
    up, down = exp(x * 0.5), exp(x * -0.5)
    return up * 0.5 * up, down * 0.5 * down


@through_float32
def asinh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine."""
    a = _magnitude(x)
    # For large a, a*a overflows before the logarithm does.
    large = a > 1e8
    b = large.where(1, a)
    root = sqrt(b * b + 1)
    small = log1p(b * (1 + b / (1 + root)))
    y = large.where(log(large.where(a, 1)) + math.log(2), small)
    slope = large.where(a, root)
    return derived((x < 0).where(-y, y), x, lambda g, x, y, slope: g / slope, slope)


@through_float32
def acosh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic cosine; NaN below 1, and so is the derivative."""
    large = x > 1e8
    t = large.where(1, x - 1)
    # Two roots: neither is a number below 1, and of their product 0 one factor is 0 alone.
    root = sqrt(t) * sqrt(t + 2)
    y = large.where(log(large.where(x, 1)) + math.log(2), log1p(t + root))
    slope = large.where(x, root)
    return derived(y, x, lambda g, x, y, slope: g / slope, slope)


@through_float32
def atanh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic tangent; NaN outside [-1, 1]."""
    y = (log1p(x) - log1p(-x)) * 0.5
    return derived(y, x, lambda g, x, y: g / ((1 - x) * (1 + x)))


def atan2(y: Tensor, x: Operand) -> Tensor:
    """Return the angle of the point (x, y), in (-pi, pi]; signed zeros choose the side.

    The derivatives at infinities are their limits, 0, and 0 at the origin, where there are none.
    """
    return _atan2(*broadcast_operands(y, y, x))


@through_float32
def _atan2(y: Tensor, x: Tensor) -> Tensor:
    ay, ax = (signbit(one).where(-one, one) for one in (y, x))
    steep = ay > ax
    small, large = steep.where(ax, ay), steep.where(ay, ax)
    diagonal = (small == math.inf) & (large == math.inf)
    flat = large == 0
    ratio = flat.where(0, diagonal.where(1, small)) / (diagonal | flat).where(1, large)
    angle = atan(ratio)
    angle = steep.where(math.pi / 2 - angle, angle)
    angle = signbit(x).where(math.pi - angle, angle)
    angle = signbit(y).where(-angle, angle)
    return angle * (x.isnan() | y.isnan()).where(math.nan, 1)


# --- activations --------------------------------------------------------------------------------


def relu(x: Tensor) -> Tensor:
    """Return `x` where positive, else 0; NaN stays."""
    return (x <= 0).where(0, x)


def relu6(x: Tensor) -> Tensor:
    """Return `x` held between 0 and 6; no gradient at them."""
    return hardtanh(x, 0, 6)


@through_float32
def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    # exp of a negative number alone does not overflow.
    e = exp((x < 0).where(x, -x))
    return _share(x, (x < 0).where(e, 1), e)


def _share(x: Tensor, part: Tensor, e: Tensor) -> Tensor:
    """sigmoid(x) as part / (1 + e)."""
    return derived(part / (1 + e), x, lambda g, x, y: g * (1 - y) * y)


@through_float32
def logsigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x))."""
    e = exp((x < 0).where(x, -x))
    value = (x < 0).where(x, 0) - log1p(e)
    return derived(value, x, lambda g, x, y, e: g * _share(-x, (x < 0).where(1, e), e), e)


@through_float32
def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    s = sigmoid(x)
    return derived(x * s, x, lambda g, x, y, s: g * s * (1 + x * (1 - s)), s)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x times the normal distribution's integral up to x.

    approximate: "none", by the error function, or "tanh", by a fit of it.
    """
    if approximate == "none":
        near = float_dtype(x.dtype).bits < 32
        return _single_gelu(x, Ops.GELU_NEAR if near else Ops.GELU)
    if approximate != "tanh":
        raise ArgumentError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    return _tanh_gelu(x)


@through_float32
def _single_gelu(x: Tensor, op: Op) -> Tensor:
    return float_unary(op, x)


@through_float32
def _tanh_gelu(x: Tensor) -> Tensor:
    # A product of x and a polynomial of its square: its gradient has fewer terms than a cube's.
    slope = math.sqrt(2 / math.pi)
    t = tanh(x * (slope + slope * 0.044715 * (x * x)))

    def rule(g: Tensor, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        inner = slope + 3 * slope * 0.044715 * (x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)

    return derived(x * 0.5 * (1 + t), x, rule, t)


@through_float32
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta*x)) / beta; `x` itself where beta*x exceeds the threshold."""
    return _softplus(x, beta, threshold)[0]


def _softplus(
    x: Tensor, beta: float, threshold: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """`softplus`, and the parts that its derivative is made of."""
    scaled = x * beta
    large = scaled > threshold
    t = large.where(0, scaled)
    e = exp((t > 0).where(-t, t))
    smooth = ((t > 0).where(t, 0) + log1p(e)) / beta
    parts = (large, t, e)
    value = large.where(x, smooth)
    return derived(value, x, lambda g, x, y, *parts: g * _softplus_slope(*parts), *parts), parts


def _softplus_slope(large: Tensor, t: Tensor, e: Tensor) -> Tensor:
    return large.where(1, _share(t, (t > 0).where(1, e), e))


@through_float32
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return `x` where positive, else alpha*(exp(x) - 1)."""
    return (x <= 0).where(expm1((x <= 0).where(x, 0)) * alpha, x)


@through_float32
def selu(x: Tensor) -> Tensor:
    """Return the self-normalising elu (Klambauer and others, 2017)."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


@through_float32
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return `x` where positive, else alpha*(exp(x/alpha) - 1)."""
    return (x <= 0).where(expm1((x <= 0).where(x, 0) / alpha) * alpha, x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return `x` where positive, else negative_slope*x."""
    return (x > 0).where(x, x * negative_slope)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x` where positive, else weight*x; one weight, or one for each channel of axis 1."""
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.shape not in ((), (1,), (channels,)):
        raise ShapeError(
            "prelu has one weight, or one for each channel",
            found=list(weight.shape), wanted=f"[1] or [{channels}]",
        )
    slope = weight.reshape((1, -1, *(1 for _ in x.shape[2:]))) if x.ndim > 1 else weight
    slope = slope if x.ndim else slope.reshape(())
    return (x > 0).where(x, x * slope)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Return the first half of an axis times the sigmoid of the second half."""
    extent = x.shape[own_axis(dim, x.ndim)]
    if extent % 2:
        raise ShapeError("glu halves an axis", found=list(x.shape), wanted="an even extent")
    return _gated(x, dim)


@through_float32
def _gated(x: Tensor, dim: int) -> Tensor:
    half = x.shape[own_axis(dim, x.ndim)] // 2
    return x.narrow(dim, 0, half) * sigmoid(x.narrow(dim, half, half))


def _whole(value: float, dtype: DType) -> float:
    """`value` as an integer where one of `dtype` is meant: what it is compared with stays one."""
    return int(value) if dtype.min <= value <= dtype.max and value == int(value) else value


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return `x` held between two values; no gradient at them."""
    if x.dtype.kind in ("int", "uint"):
        min_val, max_val = (_whole(value, x.dtype) for value in (min_val, max_val))
    y = (x <= min_val).where(min_val, x)
    return (x >= max_val).where(max_val, y)


@through_float32
def hardsigmoid(x: Tensor) -> Tensor:
    """Return (x + 3)/6 held between 0 and 1."""
    held = (x >= 3).where(1, (x <= -3).where(0, math.nan))
    return ((x > -3) & (x < 3)).where((x + 3) / 6, held)


@through_float32
def hardswish(x: Tensor) -> Tensor:
    """Return x * hardsigmoid(x)."""
    inside = (x > -3) & (x < 3)
    t = inside.where(x, 0)
    value = inside.where(t * (t + 3) / 6, (x <= -3).where(0, x))
    return derived(
        value, x,
        lambda g, x, y, inside, t: inside.where(g * (t / 3 + 0.5), (x <= -3).where(0, g)),
        inside, t,
    )  # fmt: skip


@through_float32
def mish(x: Tensor) -> Tensor:
    """Return x * tanh(softplus(x))."""
    value, parts = _softplus(x, 1.0, 20.0)
    t = tanh(value)

    def rule(g: Tensor, x: Tensor, y: Tensor, t: Tensor, *parts: Tensor) -> Tensor:
        return g * (t + x * _softplus_slope(*parts) * (1 - t * t))

    return derived(x * t, x, rule, t, *parts)


@through_float32
def softsign(x: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    return x / (1 + x.abs())


def tanhshrink(x: Tensor) -> Tensor:
    """Return x - tanh(x)."""
    return x - tanh(x)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """Return `x` where it exceeds the threshold, else `value`."""
    return (x <= threshold).where(value, x)


def heaviside(x: Tensor, values: Operand) -> Tensor:
    """Return 0 for negative elements, 1 for positive ones and `values` at 0."""
    return (x == 0).where(values, (x > 0).cast(x.dtype))


def deg2rad(x: Tensor) -> Tensor:
    """Return degrees as radians."""
    return (x if x.dtype.kind == "float" else x.cast(default_float())) * (math.pi / 180)


def rad2deg(x: Tensor) -> Tensor:
    """Return radians as degrees."""
    return (x if x.dtype.kind == "float" else x.cast(default_float())) * (180 / math.pi)


@through_float32
def sinc(x: Tensor) -> Tensor:
    """Return sin(pi*x) / (pi*x), 1 at 0."""
    scaled = x * math.pi
    near = scaled.abs() < 0.5
    # Near 0 by its series: the quotient's derivative is a difference of near numbers there.
    square = near.where(scaled, 0).square()
    away = near.where(1, scaled)
    value = near.where(_polynomial(square, _SINC), sin(away) / away)
    return derived(value, x, _by_sinc)


def _by_sinc(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of `sinc`'s argument; at 0, where it is 0, an infinite one makes no NaN."""
    scaled = x * math.pi
    near = scaled.abs() < 0.5
    held = near.where(scaled, 0)
    away = near.where(1, scaled)
    slope = near.where(
        _polynomial(held.square(), _SINC_SLOPE) * held, (cos(away) - sin(away) / away) / away
    )
    return ((x == 0) & ~g.isfinite()).where(0, g) * (slope * math.pi)


def _polynomial(x: Tensor, terms: Sequence[float]) -> Tensor:
    """terms[0] + terms[1]*x + ... by Horner's rule."""
    found = x * terms[-1] + terms[-2]
    for term in terms[-3::-1]:
        found = found * x + term
    return found


# (-1)**k / (2k + 1)!, up to what is below the rounding of float64 for squares of 1/4; and what its
# derivative has of them.
_SINC = tuple([(-1) ** k / math.factorial(2 * k + 1) for k in range(8)])
_SINC_SLOPE = tuple([2 * k * term for k, term in enumerate(_SINC)][1:])


# --- a tensor and what is added to it in one step -----------------------------------------------


def lerp(x: Tensor, end: Operand, weight: Operand) -> Tensor:
    """Return x + weight*(end - x), written so that weight 1 gives exactly `end`.

    16-bit floats are rounded once, at the end.
    """
    # First of all in the dtype of the result, where a difference of integers cannot wrap.
    end, weight = lift(end, x), lift(weight, x)
    dtype = common_dtype((x, end, weight))
    x, end = x.cast(dtype), end.cast(dtype) if isinstance(end, TensorLike) else end
    return _rounded_once(_lerp, x, end, weight)


def _lerp(x: Tensor, end: Tensor | Scalar | Node, weight: Tensor | Scalar | Node) -> Tensor:
    difference = rsub(x, end)
    if isinstance(weight, TensorLike):
        near = weight.abs() < 0.5
        found: Tensor = near.where(
            x + difference * weight, rsub(difference * (1 - weight), end)
        )
        return found
    if isinstance(weight, Node):
        return rsub(difference * index.sub(1, weight), end)
    if math.fabs(weight) < 0.5:
        return x + difference * weight
    return rsub(difference * (1 - weight), end)


def addcmul(x: Tensor, a: Operand, b: Operand, *, value: float = 1) -> Tensor:
    """Return x + value*a*b; 16-bit floats are rounded once, at the end.

    Raises DTypeError where neither factor is a tensor or an array.
    """

    def added(x: Tensor, a: Operand, b: Operand) -> Tensor:
        product: Tensor = elementwise(Ops.MUL, *broadcast_operands(x, a, b))
        return x + (product if value == 1 else product * value)

    return _rounded_once(added, x, *_factors("addcmul", x, a, b))


def addcdiv(x: Tensor, a: Operand, b: Operand, *, value: float = 1) -> Tensor:
    """Return x + value*a/b; 16-bit floats are rounded once, at the end.

    Raises DTypeError where neither factor is a tensor or an array.
    """

    def added(x: Tensor, a: Operand, b: Operand) -> Tensor:
        quotient = div(broadcast_operands(x, a, b)[0], b)
        return x + (quotient if value == 1 else quotient * value)

    return _rounded_once(added, x, *_factors("addcdiv", x, a, b))


def _rounded_once(
    function: Callable[..., Tensor], *operands: Tensor | Scalar | Node
) -> Tensor:
    """A function of several ops of operands of one dtype, which computes 16-bit floats wider."""
    dtype = common_dtype(operands)
    wide = nodes.accumulator(dtype)
    if wide == dtype:
        return function(*operands)
    widened = [one.cast(wide) if isinstance(one, TensorLike) else one for one in operands]
    rounded: Tensor = function(*widened).cast(dtype)
    return rounded


def _factors(
    name: str, x: Tensor, a: Operand, b: Operand
) -> tuple[Tensor | Scalar | Node, Tensor | Scalar | Node]:
    a, b = lift(a, x), lift(b, x)
    if not isinstance(a, TensorLike) and not isinstance(b, TensorLike):
        raise DTypeError(
            f"{name} is of tensors", found=f"{a!r:.40} and {b!r:.40}", wanted="at least one tensor"
        )
    return a, b

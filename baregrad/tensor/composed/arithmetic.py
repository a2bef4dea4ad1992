"""Short arithmetic: products and sums of products, areas, bounds, extremes without NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.dtypes import dtypes, promote
from baregrad.tensor.array.axes import one_axis
from baregrad.tensor.array.tensor_like import Operand, Tensor
from baregrad.tensor.ops import elementwise, functions


def clamp_min(x: Tensor, min: Operand) -> Tensor:
    """Return `x` held at `min` or above."""
    return elementwise.clamp(x, min=min)


def clamp_max(x: Tensor, max: Operand) -> Tensor:
    """Return `x` held at `max` or below."""
    return elementwise.clamp(x, max=max)


def fmax(x: Tensor, other: Tensor) -> Tensor:
    """Return the larger of two elements; a number where the other is NaN."""
    return _but_nan(elementwise.maximum(x, other), x, other)


def fmin(x: Tensor, other: Tensor) -> Tensor:
    """Return the smaller of two elements; a number where the other is NaN."""
    return _but_nan(elementwise.minimum(x, other), x, other)


def _but_nan(both: Tensor, x: Tensor, other: Tensor) -> Tensor:
    if not both.dtype.is_float:
        return both
    found = elementwise.where(elementwise.isnan(x), other, both)
    return elementwise.where(elementwise.isnan(other), x, found)


def isposinf(x: Tensor) -> Tensor:
    """Return whether elements are plus infinity."""
    return elementwise.eq(x, math.inf)


def isneginf(x: Tensor) -> Tensor:
    """Return whether elements are minus infinity."""
    return elementwise.eq(x, -math.inf)


def float_power(x: Tensor, exponent: Operand) -> Tensor:
    """Return x**exponent in float64, or in complex128."""
    power: Any = _double(exponent) if hasattr(exponent, "cast") else exponent
    return _double(x) ** power  # type: ignore[no-any-return]


def _double(x: Any) -> Any:
    return x.cast(dtypes.complex128 if x.dtype.is_complex else dtypes.float64)


def logaddexp2(x: Tensor, other: Tensor) -> Tensor:
    """Return log2(2**x + 2**other) without overflow."""
    top: Any = elementwise.maximum(x, other)
    low: Any = elementwise.minimum(x, other)
    apart = elementwise.where(elementwise.eq(top, low), 0.0, low - top)
    summed: Any = functions.exp2(apart)
    found: Any = top + functions.log1p(summed) / math.log(2.0)
    return found  # type: ignore[no-any-return]


def ldexp(x: Tensor, other: Tensor) -> Tensor:
    """Return x * 2**other."""
    a: Any = x
    power: Any = other
    two: Any = power
    if not power.dtype.is_float:
        # Powers of two have no digits to lose.
        two = power.cast(a.dtype) if a.dtype.is_float else power.float()
    return a * two.exp2()  # type: ignore[no-any-return]


def inner(x: Tensor, other: Tensor) -> Tensor:
    """Return the sums of products along the last axes of both: (..., K), (..., K)."""
    a: Any = x
    b: Any = other
    if not x.ndim or not other.ndim:
        return a * b  # type: ignore[no-any-return]
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError("the last axes agree", found=f"{list(x.shape)}, {list(other.shape)}")
    flat: Any = a.reshape(-1, a.shape[-1]) @ b.reshape(-1, b.shape[-1]).T
    found: Tensor = flat.reshape(*a.shape[:-1], *b.shape[:-1])
    return found


def cross(x: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Return the vector product along an axis of extent 3, the first such one unless told."""
    axis = next((i for i, n in enumerate(x.shape) if n == 3), -1) if dim is None else dim
    if not x.ndim or x.shape[axis] != 3:
        raise ShapeError("vectors of three", found=list(x.shape))
    a: Any = x
    b: Any = other
    found: Tensor = a.roll(-1, axis) * b.roll(-2, axis) - a.roll(-2, axis) * b.roll(-1, axis)
    return found


def vdot(x: Tensor, other: Tensor) -> Tensor:
    """Return the inner product of two vectors, the first one conjugated."""
    a: Any = x
    return a.conj().dot(other)  # type: ignore[no-any-return]


def ger(x: Tensor, other: Tensor) -> Tensor:
    """Return the outer product of two vectors."""
    a: Any = x
    return a.outer(other)  # type: ignore[no-any-return]


def addmv(x: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta*x + alpha*(mat @ vec)."""
    a: Any = mat
    return _plus(x, a.mv(vec), beta, alpha)  # type: ignore[no-any-return]


def addr(x: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta*x + alpha times the outer product of two vectors."""
    a: Any = vec1
    return _plus(x, a.outer(vec2), beta, alpha)  # type: ignore[no-any-return]


def addbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Return beta*x + alpha times the sum of a batch of products of matrices."""
    a: Any = batch1
    return _plus(x, a.bmm(batch2).sum(0, dtype=x.dtype), beta, alpha)  # type: ignore[no-any-return]


def _plus(x: Tensor, other: Tensor, beta: float, alpha: float) -> Tensor:
    a: Any = x
    y: Any = other
    y = y if alpha == 1 else y * alpha
    found: Tensor = y if beta == 0 else (a if beta == 1 else a * beta) + y
    return found


def dist(x: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norm of x - other."""
    apart: Any = x - other
    found: Tensor = apart.reshape(-1).norm(p)
    return found


def cov(
    x: Tensor, *, correction: int = 1, fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """Return the covariances of rows, whose columns are observations, perhaps weighted."""
    a: Any = x if x.dtype.is_float or x.dtype.is_complex else x.float()
    a = a.reshape(1, -1) if x.ndim < 2 else a
    weights: Any = None
    for one in (fweights, aweights):
        if one is not None:
            held: Any = one
            weights = held if weights is None else weights * held
    if weights is not None:
        a = a.cast(promote(a.dtype, weights.dtype))
        weights = weights if weights.dtype.is_float else weights.cast(a.dtype)
    total: Any = a.shape[1] if weights is None else weights.sum()
    if weights is None:
        about, count = a - a.mean(1, True), total - correction
        found = about @ about.conj().T / max(count, 0)
    else:
        about = a - (a * weights).sum(1, True) / total
        scale = total if aweights is None else (weights * aweights).sum() / total
        scale = total - correction * (1 if aweights is None else scale)
        found = (about * weights) @ about.conj().T / scale
    made: Tensor = found.squeeze() if a.shape[0] == 1 else found
    return made


def corrcoef(x: Tensor) -> Tensor:
    """Return the correlations of rows, whose columns are observations."""
    found: Any = cov(x)
    if found.ndim < 2:
        return found / found  # type: ignore[no-any-return]
    deviation = found.diagonal().real.sqrt()
    made: Any = found / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    held = [part.clamp(-1.0, 1.0)
            for part in ((made.real, made.imag) if made.is_complex() else (made,))]
    return held[0].complex(held[1]) if made.is_complex() else held[0]  # type: ignore[no-any-return]


def renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Return `x` with each part along an axis scaled down to a p-norm of at most `maxnorm`."""
    a: Any = x
    axes = tuple(i for i in range(x.ndim) if i != dim % x.ndim)
    norms = a.norm(p, axes, True)
    found: Tensor = a * (norms > maxnorm).where(maxnorm / (norms + 1e-7), 1.0)
    return found


def gcd(x: Tensor, other: Tensor) -> Tensor:
    """Return the greatest common divisor of integers, 0 of two zeros.

    By Euclid's steps, as many as the longest pair of the dtype takes: neighbours of Fibonacci's
    numbers.
    """
    a, b = _integers("gcd", x, other)
    a, b = a.abs(), b.abs()
    # Each step takes at least log2 of the golden ratio, 0.694 bits, off.
    for _ in range(math.ceil(a.dtype.bits / 0.694) + 1):
        done = b == 0
        rest = a % done.where(1, b)
        a, b = done.where(a, b), done.where(0, rest)
    return a  # type: ignore[no-any-return]


def lcm(x: Tensor, other: Tensor) -> Tensor:
    """Return the least common multiple of integers, 0 where one of them is 0."""
    a, b = _integers("lcm", x, other)
    common: Any = gcd(a, b)
    return (a // (common == 0).where(1, common) * b).abs()  # type: ignore[no-any-return]


def _integers(what: str, x: Any, other: Any) -> tuple[Any, Any]:
    both = promote(x.dtype, other.dtype)
    if both.kind not in ("int", "uint"):
        raise DTypeError(f"{what} is of integers", found=both)
    return x.cast(both), other.cast(both)


def nextafter(x: Tensor, other: Tensor) -> Tensor:
    """Return the numbers next to `x` in the direction of `other`, both float32 or both float64."""
    a: Any = x.detach()
    b: Any = other.detach()
    if x.dtype not in (dtypes.float32, dtypes.float64) or x.dtype is not other.dtype:
        raise DTypeError("nextafter is of float32 or float64", found=f"{x.dtype}, {other.dtype}")
    word = dtypes.int32 if x.dtype is dtypes.float32 else dtypes.int64
    away = (b > a) == (a > 0)
    bits = a.contiguous().bitcast(word) + away.where(1, -1).cast(word)
    tiny = a.new_full((), 1, dtype=word).bitcast(x.dtype)
    found = (a == 0).where(tiny.copysign(b), bits.bitcast(x.dtype))
    found = (a == b).where(b, found)
    return (a.isnan() | b.isnan()).where(math.nan, found)  # type: ignore[no-any-return]


def tensordot(
    x: Tensor, other: Tensor, dims: int | Sequence[Any] = 2
) -> Tensor:
    """Return sums of products over axes: the last of `x` with the first of `other`, or as named.

    dims: how many, or the axes of `x` and those of `other`. Raises ShapeError where these differ.
    """
    a: Any = x
    b: Any = other
    if isinstance(dims, int):
        if not 0 <= dims <= min(x.ndim, other.ndim):
            raise ShapeError(
                "both have the axes that are summed over",
                found=f"{dims} axes of {list(x.shape)} and {list(other.shape)}",
            )
        left, right = list(range(x.ndim - dims, x.ndim)), list(range(dims))
    else:
        first, second = [[one] if isinstance(one, int) else list(one) for one in dims]
        left = [one_axis(axis, x.ndim) for axis in first]
        right = [one_axis(axis, other.ndim) for axis in second]
    if [a.shape[i] for i in left] != [b.shape[i] for i in right] or len(set(left)) < len(left):
        raise ShapeError(
            "axes that are summed over have one extent",
            found=f"{list(x.shape)} and {list(other.shape)} over {dims}",
        )
    kept = [i for i in range(x.ndim) if i not in left]
    others = [i for i in range(other.ndim) if i not in right]
    rows, columns = [a.shape[i] for i in kept], [b.shape[i] for i in others]
    inner = math.prod(a.shape[i] for i in left)
    flat = a.permute(*kept, *left).reshape(math.prod(rows), inner) if x.ndim else a.reshape(1, 1)
    across = b.permute(*right, *others).reshape(inner, math.prod(columns)) if other.ndim else \
        b.reshape(1, 1)
    return (flat @ across).reshape(*rows, *columns)  # type: ignore[no-any-return]


def _areas(y: Any, x: Any, dx: float, dim: int) -> Any:
    """The areas between neighbours along an axis, which is brought behind the others."""
    if not y.ndim:
        raise ShapeError("areas are between points along an axis", found="no axes")
    axis = one_axis(dim, y.ndim)
    rows = y.movedim(axis, -1)
    sides = rows[..., 1:] + rows[..., :-1]
    if x is None:
        return sides * (dx / 2)
    # Of fewer axes than y, they are the last ones.
    widths = x if x.ndim == 1 else x.reshape([1] * (y.ndim - x.ndim) + list(x.shape))
    widths = widths if x.ndim == 1 else widths.movedim(axis, -1)
    if widths.shape[-1] != rows.shape[-1]:
        raise ShapeError(
            "there is a place for each point", found=widths.shape[-1], wanted=rows.shape[-1]
        )
    return sides * (widths[..., 1:] - widths[..., :-1]) / 2


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """Return the area below points y along an axis, at places x, or dx apart, by trapezoids."""
    return _areas(y, x, dx, dim).sum(-1)  # type: ignore[no-any-return]


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1
) -> Tensor:
    """Return the running area of `trapezoid`, from the second point on."""
    running: Tensor = _areas(y, x, dx, dim).cumsum(-1).movedim(-1, one_axis(dim, y.ndim))
    return running

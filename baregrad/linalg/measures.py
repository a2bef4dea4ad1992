"""Norms, powers and products of matrices and vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsIndex

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.linalg.blocks import is_captured
from baregrad.linalg.checking import check_matrices
from baregrad.linalg.decompositions import svdvals
from baregrad.linalg.solving import inv, inv_ex
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import own_axis
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.ops.shapes import stored

Order = int | float | str | None
Axes = int | Sequence[int] | None


def vector_norm(
    x: Tensor, ord: float = 2, dim: Axes = None, keepdim: bool = False
) -> Tensor:
    """Return (sum of |x|**ord) ** (1/ord) over axes, all by default.

    ord inf is the largest |x|, -inf the least, 0 how many are not 0.
    """
    axes = tuple(range(x.ndim)) if dim is None else dim
    size = x.abs()
    if ord == math.inf:
        return size.amax(dim=axes, keepdim=keepdim)
    if ord == -math.inf:
        return size.amin(dim=axes, keepdim=keepdim)
    if ord == 0:
        return (x != 0).cast(size.dtype).sum(dim=axes, keepdim=keepdim)
    return x.norm(ord, dim=axes, keepdim=keepdim)


def matrix_norm(
    A: Tensor,  # noqa: N803 - PyTorch's name
    ord: int | float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
) -> Tensor:
    """Return a norm of matrices along two axes: "fro", "nuc", inf, -inf, 1, -1, 2 or -2.

    1 is the largest sum of a column's |x|, inf that of a row's, 2 the largest singular value, and
    the negative ones are the least; "nuc" is the sum of singular values, "fro" the root of the sum
    of squares.
    """
    axes = [own_axis(each, A.ndim) for each in dim] if A.ndim > 1 else []
    if len(set(axes)) != 2 or len(axes) != 2:
        raise ShapeError(
            "a norm of matrices is along two axes",
            found=f"dim={tuple(dim)}, shape {list(A.shape)}",
        )
    x = A.movedim(tuple(axes), (-2, -1))
    if ord == "fro":
        found = x.norm(2, dim=(-2, -1))
    elif ord in ("nuc", 2, -2):
        values = svdvals(x)
        if ord == "nuc":
            found = values.sum(dim=-1)
        else:
            found = values[..., 0] if ord == 2 else values[..., -1]
    elif ord in (1, -1, math.inf, -math.inf):
        sums = x.abs().sum(dim=-2 if abs(ord) == 1 else -1)
        found = sums.amax(dim=-1) if ord > 0 else sums.amin(dim=-1)
    else:
        raise ArgumentError(
            "matrices have no such norm", found=repr(ord),
            wanted='"fro", "nuc", inf, -inf, 1, -1, 2 or -2',
        )  # fmt: skip
    if not keepdim:
        return found
    for axis in sorted(axes):
        found = found.unsqueeze(axis)
    return found


def norm(
    A: Tensor,  # noqa: N803
    ord: Order = None,
    dim: Axes = None,
    keepdim: bool = False,
) -> Tensor:
    """Return a norm of vectors along one axis, or of matrices along two.

    Without `ord` the root of the sum of squares over `dim`, all axes by default. With `ord` and
    without `dim` the tensor is a vector or a matrix.
    """
    if ord is None:
        return vector_norm(A, 2, dim, keepdim)
    if dim is None:
        if A.ndim not in (1, 2):
            raise ShapeError(
                "a norm with `ord` and without `dim` is of a vector or a matrix",
                found=f"shape {list(A.shape)}",
            )
        dim = tuple(range(A.ndim))
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    if len(axes) == 2:
        return matrix_norm(A, ord, axes, keepdim)
    if isinstance(ord, str):
        raise ArgumentError("vectors have no such norm", found=repr(ord), wanted="a number")
    return vector_norm(A, ord, axes, keepdim)


def cond(A: Tensor, p: Order = None) -> Tensor:  # noqa: N803
    """Return the condition number |A| * |A**-1| by the norm p, 2 by default.

    Infinity where an inverse does not exist.
    """
    check_matrices("cond", A, square=p not in (None, 2, -2), also_complex=True)
    if p in (None, 2, -2):
        values = svdvals(A)
        high, low = values[..., 0], values[..., -1]
        return low / high if p == -2 else high / low
    found = inv_ex(A)
    has_none = found.info != 0
    inverse = has_none.unsqueeze(-1).unsqueeze(-1).where(0.0, found.inverse)
    return has_none.where(math.inf, matrix_norm(A, p) * matrix_norm(inverse, p))


def matrix_power(A: Tensor, n: int) -> Tensor:  # noqa: N803
    """Return A @ A @ ..., n times; of its inverse for negative n, the identity for 0."""
    check_matrices("matrix_power", A, square=True, also_complex=True)
    if not isinstance(n, SupportsIndex):
        raise ArgumentError("powers of matrices are of integers", found=repr(n))
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        return Tensor.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand(*A.shape).clone()
    found = A
    # By the bits of n after the first.
    for bit in f"{n:b}"[1:]:
        found = found @ found
        if bit == "1":
            found = found @ A
    return found


def matrix_exp(A: Tensor) -> Tensor:  # noqa: N803
    """Return the exponential of square matrices, by a series of A / 2**s and s squares.

    A is divided until no row's sum of |x| is above 1/2. Elements of the series after the last one
    are below the rounding of float64. What is not finite gives NaN, and so does a matrix with a
    row's sum above 2**15 in a captured function, which cannot ask how many squares it needs.
    """
    check_matrices("matrix_exp", A, square=True, also_complex=True)
    if 0 in A.shape:
        return A.clone()
    one = Tensor.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand(*A.shape)
    with no_grad():
        size = A.detach().abs().sum(dim=-1).amax(dim=-1).reshape(*A.shape[:-2], 1, 1)
        times = size.clamp(min=0.5).log2().ceil() + 1
        if is_captured(times):
            most = _SQUARES_CAPTURED
        else:
            most = int(times.isfinite().where(times, 0.0).amax().item())
        times = (times <= most).where(times, math.nan)
    x = stored(A / times.exp2())
    found = one
    for term in range(_TERMS, 0, -1):
        found = one + (x / term) @ found
    # Each matrix keeps its own number of squares. All turns are alike, so that more of them for
    # other matrices, or in a captured function, leave the same bits.
    found = stored(found)
    for turn in range(most):
        found = stored((times > turn).where(found @ found, found))
    return found


_TERMS = 14
_SQUARES_CAPTURED = 16


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Return the product of two or more matrices in the order that takes the fewest products.

    The first and the last may be vectors.
    """
    if len(tensors) < 2:
        raise ArgumentError("multi_dot multiplies two matrices or more", found=str(len(tensors)))
    parts = list(tensors)
    is_row, is_column = parts[0].ndim == 1, parts[-1].ndim == 1
    if is_row:
        parts[0] = parts[0].unsqueeze(0)
    if is_column:
        parts[-1] = parts[-1].unsqueeze(1)
    for part in parts:
        if part.ndim != 2:
            raise ShapeError(
                "multi_dot multiplies matrices, of which the first and the last may be vectors",
                found=f"shape {list(part.shape)}",
            )  # fmt: skip
    sizes = [parts[0].shape[0], *(part.shape[1] for part in parts)]
    count = len(parts)
    costs = [[0] * count for _ in parts]
    cuts = [[0] * count for _ in parts]
    for span in range(1, count):
        for first in range(count - span):
            last = first + span
            costs[first][last], cuts[first][last] = min(
                (
                    costs[first][cut] + costs[cut + 1][last]
                    + sizes[first] * sizes[cut + 1] * sizes[last + 1],
                    cut,
                )
                for cut in range(first, last)
            )  # fmt: skip

    def product(first: int, last: int) -> Tensor:
        if first == last:
            return parts[first]
        cut = cuts[first][last]
        return product(first, cut) @ product(cut + 1, last)

    found = product(0, count - 1)
    if is_row:
        found = found.squeeze(0)
    return found.squeeze(-1) if is_column else found


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the sums of products along an axis of tensors that broadcast, x conjugated."""
    return (x.conj() * y).sum(dim=dim)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return the cross product along an axis of three elements, of tensors that broadcast."""
    extents = [x.shape[own_axis(dim, x.ndim)] for x in (input, other)]
    if extents != [3, 3]:
        raise ShapeError(
            "a cross product is of vectors of three",
            found=f"{list(input.shape)} and {list(other.shape)} along {dim}",
        )
    a, b = input.roll(-1, dim), other.roll(-1, dim)
    return (input * b - a * other).roll(-1, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:  # noqa: N803
    """Return the diagonals of matrices along two axes, as the last axis."""
    return A.diagonal(offset, dim1, dim2)


def vander(x: Tensor, N: int | None = None) -> Tensor:  # noqa: N803
    """Return powers 0 to N - 1 of each element along a last axis: (..., n) -> (..., N)."""
    if not x.ndim:
        raise ShapeError("powers of elements are of a vector or more", found="shape []")
    count = x.shape[-1] if N is None else N
    if count < 1:
        raise ArgumentError("there is one power or more", found=f"N={count}")
    powers = [x.ones_like(), *([x] * (count - 1))]
    return Tensor.stack(*powers[:count], dim=-1).cumprod(-1)

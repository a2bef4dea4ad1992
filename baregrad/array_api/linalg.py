"""The extension `linalg` of the array API."""

from __future__ import annotations

from typing import Any

from baregrad import linalg as own
from baregrad.array_api.values import both
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import DType
from baregrad.linalg.decompositions import QR, SVD, Eigh
from baregrad.linalg.solving import SLogDet
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import own_axis


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return products of matrices."""
    one, other = both(x1, x2)
    return one @ other


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return matrices whose last two axes are swapped."""
    found: Tensor = x.mT
    return found


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Return sums of products over axes: the last of x1 with the first of x2, or those named."""
    one, other = both(x1, x2)
    return one.tensordot(other, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return sums of products along an axis, the first factor conjugated."""
    one, other = both(x1, x2)
    if one.shape[own_axis(axis, one.ndim)] != other.shape[own_axis(axis, other.ndim)]:
        raise ShapeError(
            "axes that are summed over have one extent",
            found=f"{list(one.shape)} and {list(other.shape)} over {axis}",
        )
    return (one.conj() * other).sum(dim=axis, dtype=one.dtype)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Return the triangular factor of symmetric positive definite matrices."""
    return own.cholesky(x, upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return cross products along an axis of three elements."""
    one, other = both(x1, x2)
    return own.cross(one, other, dim=axis)


def det(x: Tensor, /) -> Tensor:
    """Return determinants."""
    return own.det(x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Return diagonals of matrices."""
    return own.diagonal(x, offset=offset)


def eigh(x: Tensor, /) -> Eigh:
    """Return eigenvalues and eigenvectors of symmetric matrices."""
    return own.eigh(x)


def eigvalsh(x: Tensor, /) -> Tensor:
    """Return eigenvalues of symmetric matrices."""
    return own.eigvalsh(x)


def inv(x: Tensor, /) -> Tensor:
    """Return inverses."""
    return own.inv(x)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Return norms of matrices."""
    return own.matrix_norm(x, "fro" if ord is None else ord, keepdim=keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Return powers of square matrices."""
    return own.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: float | None = None) -> Tensor:
    """Return how many singular values are above `rtol` times the largest."""
    return own.matrix_rank(x, rtol=rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return products of each element of one vector with each of another."""
    one, other = both(x1, x2)
    return one.unsqueeze(1) * other.unsqueeze(0)


def pinv(x: Tensor, /, *, rtol: float | None = None) -> Tensor:
    """Return pseudoinverses."""
    return own.pinv(x, rtol=rtol)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QR:
    """Return orthonormal columns and upper triangles."""
    if mode not in ("reduced", "complete"):
        raise ArgumentError("qr has no such mode", found=repr(mode), wanted="reduced or complete")
    return own.qr(x, mode)


def slogdet(x: Tensor, /) -> SLogDet:
    """Return signs and logarithms of the sizes of determinants."""
    return own.slogdet(x)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return solutions of x1 @ x = x2, of which x2 is one vector only if it has one axis."""
    one, other = both(x1, x2)
    if other.ndim == 1:
        return own.solve(one, other)
    if other.ndim == one.ndim - 1:
        other = other.expand(*one.shape[: one.ndim - other.ndim], *other.shape)
    return own.solve(one, other)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD:
    """Return singular values and vectors."""
    return own.svd(x, full_matrices)


def svdvals(x: Tensor, /) -> Tensor:
    """Return singular values."""
    return own.svdvals(x)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """Return sums of diagonals, of integers in 64 bits."""
    from baregrad.array_api.statistics import sum

    return sum(x.diagonal(offset, -2, -1), axis=-1, dtype=dtype)


def vector_norm(
    x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """Return norms of vectors along axes."""
    return own.vector_norm(x, ord, axis, keepdims)

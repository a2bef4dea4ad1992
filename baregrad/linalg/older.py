"""Functions of `torch` that `torch.linalg` has anew, with the older results and arguments."""

from __future__ import annotations

from typing import NamedTuple

from baregrad.linalg.checking import check_matrices
from baregrad.linalg.decompositions import QR
from baregrad.linalg.decompositions import cholesky as lower_cholesky
from baregrad.linalg.decompositions import qr as reduced_qr
from baregrad.linalg.decompositions import svd as whole_svd
from baregrad.linalg.elimination import lu_solve as solve_factored
from baregrad.linalg.measures import multi_dot
from baregrad.linalg.measures import vander as increasing_vander
from baregrad.linalg.solving import slogdet
from baregrad.linalg.triangular import solve_triangular
from baregrad.tensor import Tensor


class OldSVD(NamedTuple):
    """Orthonormal columns, singular values in descending order, orthonormal columns."""

    U: Tensor
    S: Tensor
    V: Tensor


class TriangularSolve(NamedTuple):
    """What was solved for, and the matrix."""

    solution: Tensor
    cloned_coefficient: Tensor


def chain_matmul(*matrices: Tensor) -> Tensor:
    """Return `linalg.multi_dot` of matrices that are arguments; of one alone itself."""
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803
    """Return `linalg.vander`, whose powers fall unless `increasing`."""
    found = increasing_vander(x, N)
    return found if increasing else found.flip(-1)


def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """Return `linalg.cholesky`, of which `upper` is the second argument."""
    return lower_cholesky(x, upper=upper)


def qr(x: Tensor, some: bool = True) -> QR:
    """Return `linalg.qr`, reduced with `some`, else complete."""
    return reduced_qr(x, "reduced" if some else "complete")


def svd(x: Tensor, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """Return U, S and V of x = U @ diag(S) @ V.mH; without `compute_uv` U and V are zeros."""
    found = whole_svd(x, full_matrices=not some and compute_uv)
    if compute_uv:
        return OldSVD(found.U, found.S, found.Vh.mH)
    u, v = [x.new_zeros(*x.shape[:-2], extent, extent) for extent in x.shape[-2:]]
    return OldSVD(u, found.S, v)


def logdet(x: Tensor) -> Tensor:
    """Return log(det(x)), (..., n, n) -> (...): -inf where that is 0, NaN where it is negative."""
    found = slogdet(x)
    if x.is_complex():
        return found.logabsdet + found.sign.log()
    return (found.sign < 0).where(float("nan"), found.logabsdet)


def cholesky_solve(x: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Return X of A @ X = x, where A = L @ L.mH of a factor L, or R.mH @ R with `upper`."""
    lower = factor.mH if upper else factor
    half = solve_triangular(lower, x, upper=False)
    return solve_triangular(lower.mH, half, upper=True)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """Return the inverse of A = L @ L.mH of a factor L, or of R.mH @ R with `upper`."""
    check_matrices("cholesky_inverse", factor, square=True, also_complex=True)
    one = Tensor.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return cholesky_solve(one.expand(factor.shape), factor, upper)


def lu_solve(x: Tensor, LU: Tensor, pivots: Tensor) -> Tensor:  # noqa: N803
    """Return `linalg.lu_solve`, of which what the product is to be comes first."""
    return solve_factored(LU, pivots, x)


def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False,  # noqa: N803
    unitriangular: bool = False,
) -> TriangularSolve:
    """Return X of A @ X = b, or of A.mT @ X = b with `transpose`, for a triangle A."""
    side = A.mT if transpose else A
    found = solve_triangular(side, b, upper=upper != transpose, unitriangular=unitriangular)
    return TriangularSolve(found, A)

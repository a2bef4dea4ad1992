"""Products of reflections as LAPACK keeps them, and QR factors kept so.

Names, arguments and results are those of `torch.linalg` and `torch`. A reflection is
I - tau * v @ v.mH, with v the unit of one column's place and what is below it; its factors are the
last axis of `tau`. Matrices are the last two axes of float32, float64 or complex tensors.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.base.errors import DTypeError, GradientError, ShapeError
from baregrad.linalg.checking import batch, check_matrices, check_tensors, linked
from baregrad.linalg.orthogonal import packed_qr
from baregrad.linalg.triangular import solve_triangular
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad


class PackedQR(NamedTuple):
    """R on and above the diagonal, reflections below it (..., m, n), their factors (..., k)."""

    a: Tensor
    tau: Tensor


def geqrf(A: Tensor) -> PackedQR:  # noqa: N803 - PyTorch's name
    """Return R and the reflections of QR in one real matrix (..., m, n), and their factors.

    It has no gradient, as PyTorch's has none; `qr` has one.
    """
    check_matrices("geqrf", A)
    with no_grad():
        both, tau = packed_qr(batch(A))

    def pull(_: Tensor, gradient: Tensor) -> tuple[Tensor]:
        raise GradientError("geqrf has no gradient", hint="linalg.qr has one")

    return PackedQR(
        linked(both.reshape(*A.shape), (A,), pull),
        linked(tau.reshape(*A.shape[:-2], tau.shape[1]), (A,), pull),
    )


def _reflections(what: str, A: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803
    """V (..., m, k) and T (..., k, k): the product of the reflections is I - V @ T @ V.mH."""
    check_tensors(what, A, tau)
    check_matrices(what, A, also_complex=True)
    count = tau.shape[-1] if tau.ndim else 0
    if tau.dtype is not A.dtype:
        raise DTypeError(f"{what} is of one dtype", found=f"{A.dtype} and {tau.dtype}")
    if tau.shape != (*A.shape[:-2], count) or count > min(A.shape[-2:]):
        raise ShapeError(
            f"{what} takes a factor for each reflection, of which there is one a column at most",
            found=f"factors {list(tau.shape)} for a matrix {list(A.shape)}",
        )
    one = Tensor.eye(A.shape[-2], count, dtype=A.dtype, device=A.device)
    vectors = A[..., :count].tril(-1) + one
    # T's inverse has 1 / tau on its diagonal, which may be 0, and these products above it.
    above = (vectors.mH @ vectors).triu(1)
    factors = tau.diag_embed()
    turns = solve_triangular(factors @ above, factors, upper=True, unitriangular=True)
    return vectors, turns


def householder_product(A: Tensor, tau: Tensor) -> Tensor:  # noqa: N803
    """Return the first n columns of the product of reflections: (..., m, n), (..., k), k <= n <= m.

    Reflections are below the diagonal of A, as `geqrf` gives them.
    """
    vectors, turns = _reflections("householder_product", A, tau)
    rows, columns = A.shape[-2:]
    if rows < columns:
        raise ShapeError(
            "householder_product has no more columns than rows", found=f"shape {list(A.shape)}"
        )
    one = Tensor.eye(rows, columns, dtype=A.dtype, device=A.device)
    found: Tensor = one - vectors @ (turns @ vectors[..., :columns, :].mH)
    return found


def orgqr(A: Tensor, tau: Tensor) -> Tensor:  # noqa: N803
    """Return `householder_product`, by its older name."""
    return householder_product(A, tau)


def ormqr(
    A: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False  # noqa: N803
) -> Tensor:
    """Return Q @ other, or other @ Q without `left`, of the whole product Q of reflections.

    transpose: of Q.mH in Q's place. A is (..., m, k), tau (..., k), Q (..., m, m).
    """
    if not left:
        turned: Tensor = ormqr(A, tau, other.mH, True, not transpose).mH
        return turned
    vectors, turns = _reflections("ormqr", A, tau)
    check_matrices("ormqr", A, other, also_complex=True)
    if other.shape[-2] != A.shape[-2]:
        raise ShapeError(
            "ormqr multiplies matrices of as many rows, or columns, as reflections have",
            found=f"{list(A.shape)} and {list(other.shape)}",
        )
    turns = turns.mH if transpose else turns
    found: Tensor = other - vectors @ (turns @ (vectors.mH @ other))
    return found

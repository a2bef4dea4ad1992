"""A few singular values or eigenvalues of large matrices, by products with a few columns.

Names, arguments and results are those of `torch.svd_lowrank`, `torch.pca_lowrank`, `torch.lobpcg`.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import finfo
from baregrad.linalg.blocks import is_captured, repeated
from baregrad.linalg.checking import batch, broadcast_batches, check_matrices, linked
from baregrad.linalg.decompositions import cholesky, eigh, qr, svd
from baregrad.linalg.measures import matrix_norm
from baregrad.linalg.older import OldSVD
from baregrad.linalg.solving import solve
from baregrad.linalg.triangular import solve_triangular
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.ops.shapes import stored

# The most steps of `lobpcg` unless told, and how many it takes where nobody can look at residuals.
_STEPS = 1000
_STEPS_UNSEEN = 40


class Eigenpairs(NamedTuple):
    """Some eigenvalues (..., k) and their vectors, the columns of (..., n, k)."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None  # noqa: N803
) -> OldSVD:
    """Return U (..., m, q), S (..., q), V (..., n, q): nearly A, or A - M, = U @ diag(S) @ V.mH.

    By products with `q` random columns and `niter` powers of it, which find the `q` largest
    singular values the better the faster those behind fall. Source: N. Halko, P.-G. Martinsson,
    J. A. Tropp, SIAM Review 53 (2011), algorithms 4.4 and 5.1.
    """
    check_matrices("svd_lowrank", *([A] if M is None else [A, M]), also_complex=True)
    x = A if M is None else A - M
    width = 6 if q is None else plain(q)
    if width.__class__ is not int or not 0 <= width <= min(x.shape[-2:]):
        raise ArgumentError(
            "svd_lowrank finds as many singular values as there are at most", found=repr(q),
            wanted=f"0 to {min(x.shape[-2:])}",
        )
    steps = 2 if niter is None else plain(niter)
    if steps.__class__ is not int or steps < 0:
        raise ArgumentError("niter is a count of steps", found=repr(niter))
    if x.shape[-2] < x.shape[-1]:
        found = svd_lowrank(x.mH, width, steps)
        return OldSVD(found.V, found.S, found.U)
    columns = Tensor.randn(x.shape[-1], width, dtype=x.dtype, device=x.device)
    basis = qr(x @ columns).Q
    for _ in range(steps):
        basis = qr(x @ qr(x.mH @ basis).Q).Q
    inner = svd(basis.mH @ x, full_matrices=False)
    return OldSVD(basis @ inner.U, inner.S, inner.Vh.mH)


def pca_lowrank(
    A: Tensor, q: int | None = None, center: bool = True, niter: int = 2  # noqa: N803
) -> OldSVD:
    """Return `svd_lowrank` of rows less their mean, with `center`: V's columns are the axes.

    q is 6, or as many as there are if those are fewer, unless told.
    """
    check_matrices("pca_lowrank", A, also_complex=True)
    width = min(6, *A.shape[-2:]) if q is None else q
    return svd_lowrank(A - A.mean(dim=-2, keepdim=True) if center else A, width, niter)


def lobpcg(
    A: Tensor,  # noqa: N803
    k: int | None = None,
    B: Tensor | None = None,  # noqa: N803
    X: Tensor | None = None,  # noqa: N803
    n: int | None = None,
    iK: Tensor | None = None,  # noqa: N803
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
) -> Eigenpairs:
    """Return `k` eigenvalues of symmetric A, or of A x = v B x, the largest first, and vectors.

    Without `largest` the least, the least first. X (..., n, k): where the vectors begin, random
    unless given, `n` columns if k is not; B: symmetric and positive; iK: about the inverse of A,
    which fewer steps are needed with. Steps end when no residual is above `tol`, the root of the
    dtype's unit, times the norms, or after `niter`, 1000 as of -1; in a captured function, where
    nobody looks, `niter` are taken, 40 unless told. Gradients are of A and B, for eigenvalues that
    differ.
    Source: A. V. Knyazev, SIAM J. Sci. Comput. 23 (2001).
    """
    check_matrices("lobpcg", *[x for x in (A, B, X, iK) if x is not None], square=True)
    if method not in (None, "basic", "ortho"):
        raise ArgumentError("lobpcg has no such method", found=repr(method), wanted="basic, ortho")
    niter = None if niter is None or niter == -1 else plain(niter)
    if niter is not None and (niter.__class__ is not int or niter < 0):
        raise ArgumentError("niter is a count of steps, or -1", found=repr(niter))
    size = A.shape[-1]
    width = k if k is not None else X.shape[-1] if X is not None else n if n is not None else 1
    if width.__class__ is not int or not 0 < 3 * width <= size:
        raise ShapeError(
            "lobpcg finds few eigenvalues of large matrices", found=f"{width} of {size}",
            wanted="a third of them at most", hint="use linalg.eigh",
        )  # fmt: skip
    if X is not None and X.shape[-2:] != (size, width):
        raise ShapeError("X has a column for each eigenvalue", found=list(X.shape),
                         wanted=f"[..., {size}, {width}]")  # fmt: skip
    begun = X if X is not None else Tensor.randn(size, width, dtype=A.dtype, device=A.device)
    if B is None:
        return _eigenpairs(A, begun, iK, niter, tol, largest is not False)
    # Of L^-1 A L^-T, whose vectors are L^T x, where B = L L^T.
    lower = cholesky(B)
    half = solve_triangular(lower, A, upper=False)
    inner = solve_triangular(lower, half.mT, upper=False)
    ahead = None if iK is None else lower.mT @ iK @ lower
    found = _eigenpairs((inner + inner.mT) / 2, lower.mT @ begun, ahead, niter, tol,
                        largest is not False)  # fmt: skip
    return found._replace(
        eigenvectors=solve_triangular(lower.mT, found.eigenvectors, upper=True)
    )


def _eigenpairs(
    matrix: Tensor, begun: Tensor, ahead: Tensor | None, niter: int | None, tol: float | None,
    largest: bool,
) -> Eigenpairs:
    matrix, begun = broadcast_batches(matrix, begun)
    with no_grad():
        # Squares of what is far from 1 are no numbers, or nothing.
        given, scale = _near_one(batch(matrix))
        conditioner = None
        if ahead is not None:
            conditioner, _ = _near_one(batch(ahead.expand(*matrix.shape)))
        columns = qr(batch(begun)).Q
        state: tuple[Tensor, ...] = (columns, columns.zeros_like())
        if is_captured(given, columns):
            count = _STEPS_UNSEEN if niter is None else niter
            state = repeated(_step, count, state, (given, conditioner, largest))
        else:
            within = finfo(matrix.dtype).eps ** 0.5 if tol is None else tol
            norm = matrix_norm(given)
            for _ in range(_STEPS if niter is None else niter):
                if _has_converged(given, state[0], within, norm):
                    break
                state = _step(state[0], state[1], given, conditioner, largest)
        value, vectors = _ritz(given, state[0], largest)
        value = (value * scale.squeeze(-1)).reshape(*begun.shape[:-2], begun.shape[-1])
        vectors = vectors.reshape(*begun.shape)
    made: list[Tensor] = []

    def pull_values(_: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (made[1] * gradient.unsqueeze(-2) @ made[1].mT,)

    def pull_vectors(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        """By the inverse of A - v where it has one, beside each vector."""
        one = Tensor.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        x = found.mT.unsqueeze(-1)
        g = gradient.mT.unsqueeze(-1)
        shifted = matrix.unsqueeze(-3) - one * made[0].unsqueeze(-1).unsqueeze(-1)
        scale = shifted.detach().abs().amax(dim=(-2, -1), keepdim=True)
        beside = solve(shifted + (scale == 0).where(1.0, scale) * (x @ x.mT), g - x * (x * g).sum(
            dim=-2, keepdim=True
        ))  # fmt: skip
        outer = (beside @ x.mT).sum(dim=-3)
        return (-(outer + outer.mT) / 2,)

    made += [linked(value, (matrix,), pull_values), linked(vectors, (matrix,), pull_vectors)]
    return Eigenpairs(*made)


def _near_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices (B, n, n) whose largest elements are 1, and what they are to be scaled by."""
    largest = x.abs().amax(dim=(-2, -1), keepdim=True)
    scale = ((largest > 0) & largest.isfinite()).where(largest, 1.0)
    return stored(x / scale), scale


def _ritz(matrix: Tensor, basis: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    """Values and vectors of a matrix within orthonormal columns, the wanted ones first."""
    inner = basis.mT @ stored(matrix @ basis)
    values, turns = eigh((inner + inner.mT) / 2)
    if largest:
        values, turns = values.flip(-1), turns.flip(-1)
    return values, basis @ turns


def _step(
    columns: Tensor, before: Tensor, matrix: Tensor, conditioner: Tensor | None, largest: bool
) -> tuple[Tensor, Tensor]:
    """The best columns among those of now, their residuals, and the last change of them."""
    width = columns.shape[-1]
    product = stored(matrix @ columns)
    residual = product - columns * (columns * product).sum(dim=-2, keepdim=True)
    if conditioner is not None:
        residual = conditioner @ residual
    # Lengths are not what tells: a residual that is short is as good a direction.
    beside = [x / (x.norm(2, -2, True) + finfo(x.dtype).tiny) for x in (residual, before)]
    basis = qr(Tensor.cat([columns, *beside], dim=-1)).Q
    _, vectors = _ritz(matrix, basis, largest)
    found = vectors[..., :width]
    change = found - basis[..., :width] @ (basis[..., :width].mT @ found)
    return stored(found), stored(change)


def _has_converged(matrix: Tensor, columns: Tensor, within: float, norm: Tensor) -> bool:
    product = stored(matrix @ columns)
    values = (columns * product).sum(dim=-2)
    residual = (product - columns * values.unsqueeze(-2)).norm(2, -2)
    return bool((residual <= within * (norm.unsqueeze(-1) + values.abs())).all().item())

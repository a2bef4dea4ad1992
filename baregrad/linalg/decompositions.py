"""Factors of matrices, with gradients: Cholesky, QR, eigenvalues, singular values.

Names, arguments and results are those of `torch.linalg`; matrices are the last two axes of float32,
float64 or complex tensors, the axes before them a batch. Where a matrix is complex its adjoint
stands in the place of its transpose, and gradients need a loss that phases of vectors do not
change. What a factor is computed of is computed at the call. A function that is captured, or under
`vmap`, looks at no numbers, so that what has no factor gives NaN there.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.base.errors import ArgumentError, GradientError
from baregrad.dtypes import dtypes
from baregrad.linalg.checking import batch, check_matrices, linked, refuse_if
from baregrad.linalg.embedding import embedded, extracted
from baregrad.linalg.factoring import cholesky_factor
from baregrad.linalg.orthogonal import qr_factor, signed
from baregrad.linalg.spectral.spectra import complex_singular_factor, eigen_factor, singular_factor
from baregrad.linalg.triangular import solve_triangular
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad


class CholeskyEx(NamedTuple):
    """L, and for each matrix 0, or 1 where it is not positive definite."""

    L: Tensor
    info: Tensor


class QR(NamedTuple):
    """Orthonormal columns and an upper triangle: A = Q @ R."""

    Q: Tensor
    R: Tensor


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and their eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVD(NamedTuple):
    """Orthonormal columns, singular values in descending order, orthonormal rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


# --- Cholesky -------------------------------------------------------------------------------------


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:  # noqa: N803 - PyTorch's name
    """Return lower triangular L of A = L @ L.mT, (..., n, n), or L.mT with `upper`.

    A is symmetric and positive definite, of which the lower triangle is read (the upper one with
    `upper`). Raises LinAlgError where it is not. Of complex A, L.mH stands in the place of L.mT.
    """
    found = cholesky_ex(A, upper=upper)
    refuse_if(
        lambda: found.info != 0, "a Cholesky factor of a matrix that is not positive definite",
        "add a small multiple of the identity, or see eigvalsh of it",
    )
    return found.L


def cholesky_ex(A: Tensor, *, upper: bool = False) -> CholeskyEx:  # noqa: N803
    """Return `cholesky(A)`, with NaN where A is not positive definite, and which that are."""
    if isinstance(A, Tensor) and A.is_complex():
        return _complex_cholesky(A, upper)
    check_matrices("cholesky", A, square=True)
    source = A.mT if upper else A
    with no_grad():
        value = cholesky_factor(batch(source)).reshape(*A.shape)
        # What is no number in a row is none on its diagonal, to which all of the row comes.
        info = value.diagonal(0, -2, -1).isnan().any(dim=-1).cast(dtypes.int32)

    def pull(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        half = _half_diagonal((found.mT @ gradient).tril())
        turned = solve_triangular(found.mT, half, upper=True)
        whole = solve_triangular(found, turned, upper=False, left=False)
        return ((whole + whole.mT) / 2,)

    lower = linked(value, (source,), pull)
    return CholeskyEx(lower.mT if upper else lower, info)


def _complex_cholesky(A: Tensor, upper: bool) -> CholeskyEx:  # noqa: N803
    """`cholesky_ex` of complex matrices: the factor of an embedding is the embedded factor."""
    check_matrices("cholesky", A.real, square=True)
    lower = _hermitian(A, upper)
    found = cholesky_ex(embedded(lower))
    factor = extracted(found.L)
    return CholeskyEx(factor.mH if upper else factor, found.info)


def _hermitian(A: Tensor, upper: bool) -> Tensor:  # noqa: N803
    """The matrix whose lower or upper triangle is that of complex A, with a real diagonal.

    Gradients are those of a matrix that was Hermitian, and Hermitian themselves.
    """
    with no_grad():
        half = A.triu(1) if upper else A.tril(-1)
        diagonal = A.real.diagonal(0, -2, -1).diag_embed()
        found: Tensor = half + half.mH + diagonal
    return linked(found, (A,), lambda _, gradient: ((gradient + gradient.mH) / 2,))


def _half_diagonal(x: Tensor) -> Tensor:
    return x - x.diagonal(0, -2, -1).diag_embed() / 2


# --- QR -------------------------------------------------------------------------------------------


def qr(A: Tensor, mode: str = "reduced") -> QR:  # noqa: N803
    """Return Q and R of A (..., m, n): Q (..., m, k) and R (..., k, n), k = min(m, n).

    Signs are those of LAPACK for real A; for complex A, R's diagonal is real and not negative.
    With mode "complete" Q is (..., m, m) and R (..., m, n); with "r" Q is empty. Gradients need
    columns, of those that are reflected, that do not depend on each other.
    """
    check_matrices("qr", A, also_complex=True)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError("qr has no such mode", found=repr(mode), wanted="reduced, complete, r")
    rows, columns = A.shape[-2:]
    width = rows if mode == "complete" else min(rows, columns)
    with no_grad():
        outer, upper = qr_factor(batch(A), width)
        if A.is_complex():
            outer, upper = _without_phases(outer, upper)
        outer = outer.reshape(*A.shape[:-1], width)
        upper = upper.reshape(*A.shape[:-2], width, columns)
    made: list[Tensor] = []

    def pull(to_outer: Tensor, to_upper: Tensor) -> tuple[Tensor]:
        if width > columns:
            raise GradientError(
                "complete QR of a tall matrix has no gradient", found=f"shape {list(A.shape)}",
                hint='use mode="reduced"',
            )  # fmt: skip
        return (_pull_qr(A, made[0], made[1], to_outer, to_upper),)

    made += [
        linked(outer, (A,), lambda _, gradient: pull(gradient, made[1].zeros_like())),
        linked(upper, (A,), lambda _, gradient: pull(made[0].zeros_like(), gradient)),
    ]
    return QR(Tensor.zeros(0, dtype=A.dtype, device=A.device) if mode == "r" else made[0], made[1])


def _pull_qr(
    a: Tensor, outer: Tensor, upper: Tensor, to_outer: Tensor, to_upper: Tensor
) -> Tensor:
    """The gradient of A = Q @ R by those of Q and R."""
    count = upper.shape[-2]
    rest = upper.shape[-1] - count
    if rest:
        to_outer = to_outer + a[..., count:] @ to_upper[..., count:].mH
    square = upper[..., :count]
    both = square @ to_upper[..., :count].mH - to_outer.mH @ outer
    low = both.tril(-1)
    diagonal = both.diagonal(0, -2, -1)
    diagonal = diagonal.real if a.is_complex() else diagonal
    symmetric = low + low.mH + diagonal.diag_embed()
    found = solve_triangular(
        square.mH, to_outer + outer @ symmetric, upper=False, left=False
    )
    return Tensor.cat(found, outer @ to_upper[..., count:], dim=-1) if rest else found


def _without_phases(outer: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Complex Q and R between which the phases of R's diagonal are taken: it is not negative."""
    diagonal = upper.diagonal(0, 1, 2)
    phases = signed(diagonal.abs().ones_like(), diagonal)
    # Columns that are there to make Q square stay as they are.
    columns = phases.pad((0, outer.shape[2] - phases.shape[1]), value=1.0)
    rows = columns if upper.shape[1] > phases.shape[1] else phases
    return outer * columns.unsqueeze(1), upper * rows.conj().unsqueeze(2)


# --- eigenvalues ----------------------------------------------------------------------------------


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:  # noqa: N803
    """Return eigenvalues (..., n), ascending, eigenvectors (..., n, n) of symmetric or Hermitian A.

    UPLO: which triangle of A is read, "L" or "U". Gradients of the vectors need eigenvalues that
    differ. Signs of vectors, or phases, are any. Raises LinAlgError where A is not finite or the
    search for the vectors does not end; a captured function searches a fixed number of steps, and
    gives NaN there.
    """
    check_matrices("eigh", A, square=True, also_complex=True)
    if UPLO not in ("L", "U"):
        raise ArgumentError("eigh reads the lower or the upper triangle", found=repr(UPLO))
    with no_grad():
        given = A.detach()
        if A.is_complex():
            whole = _hermitian(given, UPLO == "U")
        elif UPLO == "L":
            whole = given.tril() + given.tril(-1).mT
        else:
            whole = given.triu() + given.triu(1).mT
        values, vectors = eigen_factor(batch(whole))
        values = values.reshape(*A.shape[:-1])
        vectors = vectors.reshape(*A.shape)
    made: list[Tensor] = []

    def pull_values(_: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return ((made[1] * gradient.unsqueeze(-2)) @ made[1].mH,)

    def pull_vectors(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        values = made[0]
        gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
        return (found @ (over_gaps(found.mH @ gradient, gaps) @ found.mH),)

    made += [linked(values, (A,), pull_values), linked(vectors, (A,), pull_vectors)]
    return Eigh(made[0], made[1])


def over_gaps(x: Tensor, gaps: Tensor) -> Tensor:
    """x / gaps off the diagonal, 0 on it."""
    one = Tensor.eye(x.shape[-1], dtype=dtypes.bool, device=x.device)
    return one.where(0.0, x / one.where(1.0, gaps))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:  # noqa: N803
    """Return the eigenvalues of `eigh`: (..., n, n) -> (..., n)."""
    return eigh(A, UPLO).eigenvalues


# --- singular values ------------------------------------------------------------------------------


def svd(A: Tensor, full_matrices: bool = True) -> SVD:  # noqa: N803
    """Return U, S, Vh of A = U @ diag(S) @ Vh, (..., m, n), S of k = min(m, n) in descending order.

    U is (..., m, m) and Vh (..., n, n), without `full_matrices` (..., m, k) and (..., k, n).
    Gradients of U and Vh need singular values that differ; those of the columns that
    `full_matrices` adds do not count. Signs of vectors, or phases, are any. Raises LinAlgError as
    `eigh` does, and gives NaN in a captured function.
    """
    check_matrices("svd", A, also_complex=True)
    rows, columns = A.shape[-2:]
    if rows < columns:
        found = svd(A.mH, full_matrices)
        return SVD(found.Vh.mH, found.S, found.U.mH)
    with no_grad():
        factor = complex_singular_factor if A.is_complex() else singular_factor
        parts = factor(batch(A), rows if full_matrices else columns)
        left = parts[0].reshape(*A.shape[:-1], parts[0].shape[-1])
        values = parts[1].reshape(*A.shape[:-2], columns)
        right = parts[2].reshape(*A.shape[:-2], columns, columns)
        outer = left[..., :columns]
    made: list[Tensor] = []

    def pull_left(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        s, vh = made[1], made[2]
        inner = found.mH @ gradient
        mixed = _symmetric_over_gaps(inner, s) * s.unsqueeze(-2)
        if A.is_complex():
            mixed = mixed + _turns(inner, s)
        beside = gradient / s.unsqueeze(-2)
        beside = beside - found @ (found.mH @ beside)
        return ((found @ mixed + beside) @ vh,)

    def pull_values(_: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return ((made[0] * gradient.unsqueeze(-2)) @ made[2],)

    def pull_right(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        u, s = made[0], made[1]
        inner = found @ gradient.mH
        mixed = s.unsqueeze(-1) * _symmetric_over_gaps(inner, s)
        if A.is_complex():
            mixed = mixed - _turns(inner, s)
        return (u @ (mixed @ found),)

    made += [
        linked(outer, (A,), pull_left), linked(values, (A,), pull_values),
        linked(right, (A,), pull_right),
    ]  # fmt: skip
    u = made[0]
    if left.shape[-1] > columns:
        u = Tensor.cat(u, left[..., columns:], dim=-1)
    return SVD(u, made[1], made[2])


def _symmetric_over_gaps(x: Tensor, values: Tensor) -> Tensor:
    """J + J.mH of J = x / (s_j**2 - s_i**2) off the diagonal."""
    column, row = values.unsqueeze(-2), values.unsqueeze(-1)
    made = over_gaps(x, (column - row) * (column + row))
    both: Tensor = made + made.mH
    return both


def _turns(x: Tensor, values: Tensor) -> Tensor:
    """How far phases turn: half of what one side asks for, as the other asks for its opposite."""
    turned: Tensor = (x.diagonal(0, -2, -1).imag / (2 * values)).diag_embed() * 1j
    return turned


def svdvals(A: Tensor) -> Tensor:  # noqa: N803
    """Return the singular values of `svd`, in descending order: (..., m, n) -> (..., k)."""
    return svd(A, full_matrices=False).S

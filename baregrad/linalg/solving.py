"""Inverses, determinants and systems of equations, with gradients.

They come of LU factors; a solution is corrected once by what it leaves. Names, arguments and
results are those of `torch.linalg`; matrices are the last two axes of float32, float64 or complex
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes, finfo
from baregrad.linalg.blocks import block
from baregrad.linalg.checking import (
    batch,
    check_equations,
    check_matrices,
    check_tensors,
    linked,
    refuse_if,
)
from baregrad.linalg.decompositions import eigh, qr, svd, svdvals
from baregrad.linalg.factoring import first_zero, inverse_lower, lu_factor, take_rows
from baregrad.linalg.orthogonal import squares
from baregrad.linalg.triangular import (
    inverse_corners,
    solve_triangular,
    substituted,
)
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.ops.shapes import stored


class SLogDet(NamedTuple):
    """The sign of a determinant, 0 for a singular matrix, and the log of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


class InverseEx(NamedTuple):
    """The inverse, and for each matrix 0, or where its first pivot that is 0 stands, from 1 on."""

    inverse: Tensor
    info: Tensor


class SolveEx(NamedTuple):
    """The solution, and for each matrix 0, or where its first pivot that is 0 stands, from 1 on."""

    result: Tensor
    info: Tensor


class LstSq(NamedTuple):
    """The solution of least squares; squared residuals, rank and singular values if they are known.

    What is not known is None.
    """

    solution: Tensor
    residuals: Tensor | None
    rank: Tensor | None
    singular_values: Tensor | None


class _Factors(NamedTuple):
    """x (B, n, n), its factors L and U, the order of its rows in them, and inverses of corners.

    The corners are blocks on the diagonals of L and of U.T.
    """

    x: Tensor
    lower: Tensor
    upper: Tensor
    order: Tensor
    lower_corners: Tensor
    upper_corners: Tensor


@block
def _corners(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The corners of factors, and where U has a 0 on its diagonal."""
    return inverse_corners(lower), inverse_corners(upper.mT), first_zero(upper)


@block
def _solved(
    x: Tensor, lower: Tensor, upper: Tensor, order: Tensor, lower_corners: Tensor,
    upper_corners: Tensor, given: Tensor, is_turned: bool,
) -> Tensor:
    """The solution of x @ found = given, or of x.mH @ found = given, corrected once."""

    def solve(right: Tensor) -> Tensor:
        if is_turned:
            half = stored(substituted(upper.mH, upper_corners.conj(), right))
            found = substituted(lower.mH, lower_corners.mH, half, is_upper=True)
            return stored(take_rows(stored(found), order.argsort(dim=1)))
        half = stored(substituted(lower, lower_corners, stored(take_rows(right, order))))
        return stored(substituted(upper, upper_corners.mT, half, is_upper=True))

    found = solve(given)
    matrix = x.mH if is_turned else x
    return found + solve(stored(given - matrix @ found))


def _solve(matrix: Tensor, right: Tensor, factors: _Factors, is_turned: bool = False) -> Tensor:
    """The solution for (..., n, k), as a function of both."""
    with no_grad():
        value = _solved(*factors, batch(right), is_turned).reshape(*right.shape)

    def pull(found: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        to_right = _solve(matrix, gradient, factors, not is_turned)
        to_matrix = found @ to_right.mH if is_turned else to_right @ found.mH
        return -to_matrix, to_right

    return linked(value, (matrix, right), pull)


@block
def _inverted(lower: Tensor, upper: Tensor, order: Tensor) -> Tensor:
    """The inverse: the X of X @ L = inverse of U, block by block, its columns put in order.

    So X times the matrix leaves little of 1, as LAPACK's does (Higham, Accuracy and Stability of
    Numerical Algorithms, 14.3.2, method B). A correction by what the matrix times X leaves would
    take that away, by the square of the condition.
    """
    half = stored(inverse_lower(upper.mT))
    corners = inverse_corners(lower).mT
    found = stored(substituted(lower.mT, corners, half, is_upper=True, is_corrected=True))
    places = order.argsort(dim=1).unsqueeze(2).expand(*found.shape)
    inverse: Tensor = found.gather(1, places).mT
    return inverse


def _inverse(matrix: Tensor, lower: Tensor, upper: Tensor, order: Tensor) -> Tensor:
    """The inverse (..., n, n) of a matrix with these factors, as a function of it."""
    with no_grad():
        value = matrix.detach()
        if 0 not in matrix.shape:
            value = _inverted(lower, upper, order).reshape(*matrix.shape)

    def pull(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (-(found.mH @ gradient @ found.mH),)

    return linked(value, (matrix,), pull)


def _are_vectors(what: str, a: Tensor, b: Tensor) -> bool:
    """Whether b is one vector, or one for each matrix of a."""
    check_tensors(what, a, b)
    return b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])


def _of_one_kind(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both, a real one made complex beside a complex one of its precision."""
    if a.is_complex() and a.real.dtype is b.dtype:
        return a, b.cast(a.dtype)
    if b.is_complex() and b.real.dtype is a.dtype:
        return a.cast(b.dtype), b
    return a, b


_SINGULAR = (
    "the matrix is singular: a pivot is 0",
    "use lstsq or pinv for what comes closest to a solution",
)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:  # noqa: N803 - PyTorch's names
    """Return X (..., n, k) of A @ X = B, or of X @ A = B without `left`, A (..., n, n).

    B may be one vector for each matrix, (..., n). Columns of X may differ in rounding from those of
    a B with other columns beside. Raises LinAlgError for a singular matrix.
    """
    return solve_ex(A, B, left=left, check_errors=True).result


def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False  # noqa: N803
) -> SolveEx:
    """Return `solve(A, B)`, no numbers where there is no solution, and which matrices those are.

    With `check_errors` it raises LinAlgError as `solve` does.
    """
    if _are_vectors("solve", A, B):
        found = solve_ex(A, B.unsqueeze(-1), check_errors=check_errors)
        return found._replace(result=found.result.squeeze(-1))
    A, B = _of_one_kind(A, B)  # noqa: N806
    check_matrices("solve", A, B, square=True, also_complex=True)
    if not left:
        found = solve_ex(A.mT, B.mT, check_errors=check_errors)
        return found._replace(result=found.result.mT)
    shape = A.shape[:-2]
    A, B = check_equations(A, B)  # noqa: N806
    with no_grad():
        given = batch(A)
        lower, upper, order, _ = lu_factor(given)
        *corners, info = _corners(lower, upper)
        if check_errors:
            refuse_if(lambda: info, *_SINGULAR)
        factors = _Factors(given, lower, upper, order, *corners)
        # Of matrices that are broadcast, each once.
        info = info.reshape(*A.shape[:-2])
        for axis, (extent, own) in enumerate(zip(A.shape[-3::-1], shape[::-1], strict=False)):
            info = info if extent == own else info.narrow(-1 - axis, 0, 1)
        info = info[(0,) * (info.ndim - len(shape))]
    return SolveEx(_solve(A, B, factors), info)


def inv(A: Tensor) -> Tensor:  # noqa: N803
    """Return the inverse: (..., n, n) -> (..., n, n). Raises LinAlgError for a singular matrix.

    What it leaves of 1 is little where it stands on the left of A, as with LAPACK.
    """
    return inv_ex(A, check_errors=True).inverse


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InverseEx:  # noqa: N803
    """Return `inv(A)`, with no numbers where there is none, and which matrices those are.

    With `check_errors` it raises LinAlgError as `inv` does.
    """
    check_matrices("inv", A, square=True, also_complex=True)
    with no_grad():
        lower, upper, order, _ = lu_factor(batch(A))
        info = first_zero(upper).reshape(*A.shape[:-2])
        if check_errors:
            refuse_if(lambda: info != 0, *_SINGULAR)
    return InverseEx(_inverse(A, lower, upper, order), info)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:  # noqa: N803
    """Return the X for which sums of A * X over A's axes from `ind` on are one matrix's identity.

    A's first `ind` axes have as many elements as the others: X has those first. Raises LinAlgError
    for what has no inverse.
    """
    check_tensors("tensorinv", A)
    if ind.__class__ is not int or ind < 1:
        raise ArgumentError(
            "tensorinv counts axes, of which there is one at least", found=repr(ind)
        )
    before, behind = A.shape[:ind], A.shape[ind:]
    if math.prod(before) != math.prod(behind):
        raise ShapeError(
            "the axes of tensorinv before and from `ind` on have as many elements",
            found=f"{list(before)} and {list(behind)}",
        )
    return inv(A.reshape(math.prod(before), math.prod(behind))).reshape(*behind, *before)


def tensorsolve(
    A: Tensor, B: Tensor, dims: Sequence[int] | None = None  # noqa: N803
) -> Tensor:
    """Return the X whose products with A, summed over all its axes, are B.

    A has B's axes, then those of X; `dims` are axes of A that are moved behind the others first.
    Raises LinAlgError for a singular matrix.
    """
    check_tensors("tensorsolve", A, B)
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(-len(dims), 0)))  # noqa: N806
    shape = A.shape[B.ndim :]
    if math.prod(shape) != B.numel() or math.prod(A.shape) != B.numel() ** 2:
        raise ShapeError(
            "tensorsolve is of as many equations as unknowns",
            found=f"{list(A.shape)} and {list(B.shape)}",
        )
    matrix = A.reshape(B.numel(), B.numel())
    return solve(matrix, B.reshape(-1)).reshape(*shape)


def _signs(order: Tensor) -> Tensor:
    """-1 for an odd order of rows, 1 for an even one: (B, n) -> (B,)."""
    count = order.shape[1]
    above = (order.unsqueeze(2) > order.unsqueeze(1)).cast(dtypes.int64)
    odd = above.triu().sum(dim=(1, 2)) % 2 if count else order.sum(dim=1)
    return 1 - 2 * odd


def det(A: Tensor) -> Tensor:  # noqa: N803
    """Return the determinant: (..., n, n) -> (...)."""
    check_matrices("det", A, square=True, also_complex=True)
    with no_grad():
        lower, upper, order, _ = lu_factor(batch(A))
        pivots = upper.diagonal(0, 1, 2)
        sign = _signs(order).cast(A.dtype)
        value = (pivots.prod(dim=1) * sign).reshape(*A.shape[:-2])

    def pull(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        if 0 in A.shape:
            return (A.zeros_like(),)
        with no_grad():
            # Of a singular matrix the limit, by a pivot next to 0.
            largest = pivots.abs().amax(dim=1, keepdim=True)
            least = finfo(A.dtype).eps * (largest == 0).where(1.0, largest)
            is_zero = pivots == 0
            moved = is_zero.where(least, pivots)
            near = upper + is_zero.where(least, 0.0).diag_embed()
            limit = (moved.prod(dim=1) * sign).reshape(*A.shape[:-2], 1, 1)
            singular = is_zero.any(dim=1).reshape(*A.shape[:-2], 1, 1)
        # Of a matrix that is singular but for rounding, the determinant and this inverse are of the
        # same rounded factors, so that their errors cancel.
        turned = _inverse(A, lower, near, order).mH
        usual = found.conj().unsqueeze(-1).unsqueeze(-1) * turned
        cofactors = singular.where(limit.conj() * turned.detach(), usual)
        return (gradient.unsqueeze(-1).unsqueeze(-1) * cofactors,)

    return linked(value, (A,), pull)


def slogdet(A: Tensor) -> SLogDet:  # noqa: N803
    """Return sign and log of the absolute value of the determinant: (..., n, n) -> (...) each.

    A singular matrix has sign 0 and log -inf.
    """
    check_matrices("slogdet", A, square=True, also_complex=True)
    with no_grad():
        lower, upper, order, _ = lu_factor(batch(A))
        pivots = upper.diagonal(0, 1, 2)
        odd = _signs(order).cast(A.dtype)
        if A.is_complex():
            size = pivots.abs()
            phases = (size == 0).where(0.0, pivots / (size == 0).where(1.0, size))
            sign = (phases.prod(dim=1) * odd).reshape(*A.shape[:-2])
        else:
            sign = (pivots.sign().prod(dim=1) * odd).reshape(*A.shape[:-2])
        value = pivots.abs().log().sum(dim=1).reshape(*A.shape[:-2])

    def inverse() -> Tensor:
        return _inverse(A, lower, upper, order)

    def pull(_: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (gradient.unsqueeze(-1).unsqueeze(-1) * inverse().mH,)

    def pull_sign(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        """Of a complex sign: it turns by the imaginary part of the logarithm."""
        turned = (gradient.conj() * found).imag.unsqueeze(-1).unsqueeze(-1)
        return (inverse().mH * turned * -1j,)

    if A.is_complex():
        sign = linked(sign, (A,), pull_sign)
    return SLogDet(sign, linked(value, (A,), pull))


# --- least squares --------------------------------------------------------------------------------


def _least(
    values: Tensor, atol: float | None, rtol: float | Tensor | None, shape: tuple[int, ...]
) -> Tensor:
    """Singular values above which one counts, of the largest of them: (..., k) -> (..., 1)."""
    if not values.shape[-1]:
        return values[..., :1]
    if rtol is None:
        rtol = 0.0 if atol else max(shape[-2:]) * finfo(values.dtype).eps
    if isinstance(rtol, Tensor):
        # One for each matrix.
        rtol = rtol.unsqueeze(-1)
    return (values.amax(dim=-1, keepdim=True) * rtol).maximum(atol or 0.0)


def pinv(
    A: Tensor,  # noqa: N803
    *,
    atol: float | None = None,
    rtol: float | None = None,
    hermitian: bool = False,
) -> Tensor:
    """Return the pseudoinverse: (..., m, n) -> (..., n, m).

    Singular values up to max(atol, rtol * the largest) count as 0; rtol is max(m, n) times the
    distance of 1 to the next number if neither is given. hermitian: A is symmetric, or Hermitian,
    of which the lower triangle is read.
    """
    check_matrices("pinv", A, square=hermitian, also_complex=True)
    return _pseudoinverse(A, atol, rtol, hermitian)[0]


def _pseudoinverse(
    A: Tensor,  # noqa: N803
    atol: float | None,
    rtol: float | None,
    hermitian: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The pseudoinverse, the singular values that it came of, and which of them count."""
    with no_grad():
        if hermitian:
            values, right = eigh(A.detach())
            left, size = right, values.abs()
        else:
            left, values, turned = svd(A.detach(), full_matrices=False)
            right, size = turned.mH, values
        counts = size > _least(size, atol, rtol, A.shape)
        factors = counts.where(1 / counts.where(values, 1.0), 0.0)
        value = (right * factors.unsqueeze(-2)) @ left.mH

    def pull(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        turned, given = found.mH, gradient.mH
        first = turned @ gradient @ turned
        outer = given @ found @ turned
        inner = turned @ found @ given
        return (outer - A @ (found @ outer) + inner - (inner @ found) @ A - first,)

    return linked(value, (A,), pull), size, counts


def matrix_rank(
    A: Tensor,  # noqa: N803
    *,
    atol: float | None = None,
    rtol: float | None = None,
    hermitian: bool = False,
) -> Tensor:
    """Return how many singular values are above max(atol, rtol * the largest): (...), int64.

    rtol is as for `pinv`.
    """
    check_matrices("matrix_rank", A, square=hermitian, also_complex=True)
    with no_grad():
        values = eigh(A.detach()).eigenvalues.abs() if hermitian else svdvals(A.detach())
        return (values > _least(values, atol, rtol, A.shape)).sum(dim=-1)


def lstsq(
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> LstSq:
    """Return X that makes |A @ X - B| least, the shortest of them: (..., m, n), (..., m, k).

    B may be one vector for each matrix, (..., m). By singular values, of which those up to `rcond`
    times the largest count as 0, with driver "gelsd", the default; by QR, for matrices of full
    rank, with "gels".
    """
    if _are_vectors("lstsq", A, B):
        found = lstsq(A, B.unsqueeze(-1), rcond, driver=driver)
        return found._replace(solution=found.solution.squeeze(-1))
    A, B = _of_one_kind(A, B)  # noqa: N806
    check_matrices("lstsq", A, B, also_complex=True)
    rows, columns = A.shape[-2:]
    A, B = check_equations(A, B)  # noqa: N806
    rank = values = None
    if driver in (None, "gelsd"):
        inverse, values, counts = _pseudoinverse(A, None, rcond, False)
        solution, rank = inverse @ B, counts.sum(dim=-1)
    elif driver == "gels":
        outer, upper = qr(A if rows >= columns else A.mH)
        if rows >= columns:
            solution = solve_triangular(upper, outer.mH @ B, upper=True)
        else:
            solution = outer @ solve_triangular(upper.mH, B, upper=False)
    else:
        raise ArgumentError("lstsq has no such driver", found=repr(driver), wanted="gelsd or gels")
    residuals = squares(A @ solution - B).sum(dim=-2) if rows > columns else None
    return LstSq(solution, residuals, rank, values)

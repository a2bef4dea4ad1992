"""LU factors with gradients, what solves equations by them, and the row swaps they come with.

Names, arguments and results are those of `torch.linalg`, and pivots are LAPACK's: int32, from 1 on,
the row that each row was swapped with, in turn. Matrices are the last two axes of float32, float64
or complex tensors.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.linalg.blocks import block
from baregrad.linalg.checking import (
    batch,
    check_equations,
    check_matrices,
    check_tensors,
    linked,
    refuse_if,
)
from baregrad.linalg.factoring import first_zero
from baregrad.linalg.factoring import lu_factor as pivoted_lu
from baregrad.linalg.triangular import solve_triangular
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.ops.shapes import stored


class LUParts(NamedTuple):
    """A permutation matrix, a unit lower and an upper triangle: A = P @ L @ U."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactor(NamedTuple):
    """L below the diagonal and U on and above it (..., m, n), and the swaps of rows (..., k)."""

    LU: Tensor
    pivots: Tensor


class LUFactorEx(NamedTuple):
    """As `LUFactor`, and the first pivot that is 0, from 1 on, or 0 where there is none."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


def _check_pivot(what: str, pivot: bool) -> None:
    if not pivot:
        raise ArgumentError(
            f"{what} without pivoting is not there", found="pivot=False",
            hint="leave it out: rows that are swapped keep rounding small",
        )  # fmt: skip


def lu(A: Tensor, *, pivot: bool = True) -> LUParts:  # noqa: N803 - PyTorch's name
    """Return P (..., m, m), L (..., m, k) and U (..., k, n) of A = P @ L @ U, k = min(m, n).

    Pivots are the largest of their column, by |real part| + |imaginary part| where A is complex; of
    several as large the one that swaps put uppermost, as in LAPACK.
    """
    permutation, lower, upper, _ = _lu("lu", A, pivot)
    return LUParts(permutation, lower, upper)


def _lu(what: str, A: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: N803
    """P, L and U, and with which place each row swapped, (B, k)."""
    check_matrices(what, A, also_complex=True)
    _check_pivot(what, pivot)
    rows, columns = A.shape[-2:]
    count = min(rows, columns)
    with no_grad():
        lower, upper, order, swaps = pivoted_lu(batch(A))
        places = Tensor.arange(rows, device=A.device).unsqueeze(1)
        permutation = (order.unsqueeze(1) == places).cast(A.dtype).reshape(*A.shape[:-1], rows)
        lower = lower.reshape(*A.shape[:-1], count)
        upper = upper.reshape(*A.shape[:-2], count, columns)
    made: list[Tensor] = []

    def pull(to_lower: Tensor, to_upper: Tensor) -> Tensor:
        """The gradient of A by those of L and U."""
        low, up = made
        first, second = low[..., :count, :], up[..., :, :count]
        below = first.mH @ to_lower[..., :count, :]
        above = to_upper[..., :, :count] @ second.mH
        if columns > rows:
            below = below - to_upper[..., count:] @ up[..., count:].mH
        if rows > columns:
            above = above - low[..., count:, :].mH @ to_lower[..., count:, :]
        inner = solve_triangular(first.mH, below.tril(-1) + above.triu(), upper=True)
        inner = solve_triangular(second.mH, inner, upper=False, left=False)
        if columns > rows:
            more = solve_triangular(first.mH, to_upper[..., count:], upper=True)
            inner = Tensor.cat(inner, more, dim=-1)
        if rows > columns:
            rest = to_lower[..., count:, :]
            more = solve_triangular(second.mH, rest, upper=False, left=False)
            inner = Tensor.cat(inner, more, dim=-2)
        return permutation @ inner

    made += [
        linked(lower, (A,), lambda _, gradient: (pull(gradient, made[1].zeros_like()),)),
        linked(upper, (A,), lambda _, gradient: (pull(made[0].zeros_like(), gradient),)),
    ]
    return permutation, made[0], made[1], swaps


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:  # noqa: N803
    """Return L and U in one matrix (..., m, n), and pivots (..., k), k = min(m, n).

    Raises LinAlgError where a pivot is 0, by which `lu_solve` would divide.
    """
    found = lu_factor_ex(A, pivot=pivot)
    refuse_if(
        lambda: found.info != 0, "lu_factor of a matrix with a pivot that is 0",
        "use lu or lu_factor_ex, which take what cannot be solved with",
    )
    return LUFactor(found.LU, found.pivots)


def lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False  # noqa: N803
) -> LUFactorEx:
    """Return `lu_factor(A)` and which pivot is 0; with `check_errors` as `lu_factor` does."""
    _, lower, upper, swaps = _lu("lu_factor", A, pivot)
    rows, columns = A.shape[-2:]
    count = min(rows, columns)
    below = lower.tril(-1).pad((0, columns - count))
    both = below + upper.pad((0, 0, 0, rows - count))
    with no_grad():
        pivots = (swaps + 1).cast(dtypes.int32).reshape(*A.shape[:-2], count)
        info = first_zero(batch(upper)).reshape(*A.shape[:-2])
    if check_errors:
        refuse_if(lambda: info != 0, "a pivot is 0", "use lu, which takes such a matrix")
    return LUFactorEx(both, pivots, info)


@block
def _order_of(swaps: Tensor, rows: int) -> Tensor:
    """The order of rows (B, m) that swaps (B, k) of row i with row swaps[i], in turn, make.

    The row that comes to place i was at swaps[i] just before, and there since the last earlier
    swap with that place, which brought it from the place of its own turn, and so on back.
    """
    count = swaps.shape[1]
    turns = Tensor.arange(count, device=swaps.device)
    places = Tensor.arange(rows, device=swaps.device)
    rest = places[count:].expand(swaps.shape[0], rows - count)
    wanted = stored(Tensor.cat(swaps, rest, dim=1))

    def last_before(place: Tensor, turn: Tensor) -> Tensor:
        """The last turn before a turn that swapped with a place, or -1."""
        fits = (swaps.unsqueeze(1) == place.unsqueeze(-1)) & (turns < turn.unsqueeze(-1))
        return stored(fits.where(turns, -1).amax(dim=-1))

    own = turns.expand(*swaps.shape)
    above = last_before(own, turns)
    above = stored((above < 0).where(own, above))
    for _ in range(count.bit_length()):
        above = stored(above.gather(1, above))
    last = last_before(wanted, places.clamp(max=count))
    return (last < 0).where(wanted, above.gather(1, last.clamp(min=0)))


def _checked_order(what: str, LU: Tensor, pivots: Tensor) -> Tensor:  # noqa: N803
    """The order of rows (..., m) of pivots (..., k) for LU (..., m, n)."""
    check_tensors(what, LU, pivots)
    rows = LU.shape[-2]
    if pivots.dtype not in (dtypes.int32, dtypes.int64):
        raise DTypeError(f"{what} takes pivots of int32", found=f"dtype {pivots.dtype}")
    if pivots.shape != (*LU.shape[:-2], min(LU.shape[-2:])):
        raise ShapeError(
            f"{what} takes as many pivots as lu_factor gives",
            found=f"{list(pivots.shape)} for a matrix {list(LU.shape)}",
            wanted=str([*LU.shape[:-2], min(LU.shape[-2:])]),
        )  # fmt: skip
    with no_grad():
        if 0 in pivots.shape:
            return Tensor.arange(rows, device=LU.device).expand(*LU.shape[:-1])
        flat = pivots.cast(dtypes.int64).reshape(-1, pivots.shape[-1]) - 1
        refuse_if(
            lambda: (flat < 0) | (flat >= rows), "pivots name rows that there are not",
            "they are those of lu_factor, from 1 on",
        )
        return _order_of(flat, rows).reshape(*LU.shape[:-1])


def lu_unpack(
    LU: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True  # noqa: N803
) -> LUParts:
    """Return P, L and U of what `lu_factor` gave; what is not asked for is empty."""
    check_matrices("lu_unpack", LU, also_complex=True)
    rows, columns = LU.shape[-2:]
    count = min(rows, columns)
    permutation = lower = upper = Tensor.zeros(0, dtype=LU.dtype, device=LU.device)
    if unpack_data:
        one = Tensor.eye(rows, count, dtype=LU.dtype, device=LU.device)
        lower, upper = LU[..., :count].tril(-1) + one, LU[..., :count, :].triu()
    if unpack_pivots:
        order = _checked_order("lu_unpack", LU, pivots)
        places = Tensor.arange(rows, device=LU.device).unsqueeze(1)
        permutation = (order.unsqueeze(-2) == places).cast(LU.dtype)
    return LUParts(permutation, lower, upper)


def lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False  # noqa: N803
) -> Tensor:
    """Return X (..., n, k) of A @ X = B, of which `lu_factor(A)` gave LU and pivots.

    adjoint: of A.mH @ X = B. Without `left` A, or A.mH, comes behind X.
    """
    check_matrices("lu_solve", LU, B, square=True, also_complex=True)
    if not left:
        turned: Tensor = lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
        return turned
    order = _checked_order("lu_solve", LU, pivots)
    LU, B = check_equations(LU, B)  # noqa: N806
    order = order.expand(*LU.shape[:-1])
    if adjoint:
        half = solve_triangular(LU.mH, B, upper=False)
        found = solve_triangular(LU.mH, half, upper=True, unitriangular=True)
        return in_order(found, order.argsort(dim=-1))
    half = solve_triangular(LU, in_order(B, order), upper=False, unitriangular=True)
    return solve_triangular(LU, half, upper=True)


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """Rows of x (..., n, k) in orders (..., n)."""
    return x.gather(-2, order.unsqueeze(-1).expand(*x.shape))

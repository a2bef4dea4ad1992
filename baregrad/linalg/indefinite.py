"""Symmetric and Hermitian matrices as L @ D @ L.mT, and what is solved by that.

D has blocks of one or two rows. Names, arguments and results are those of `torch.linalg`, and LD
and pivots LAPACK's: int32, from 1 on, the row that each was swapped with, and negative for both
rows of a block of two. Pivots are chosen as Bunch and Kaufman chose them ("Some stable methods for
calculating inertia and solving symmetric linear systems", 1977).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from baregrad.base.errors import DTypeError, GradientError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.linalg.blocks import block, repeated
from baregrad.linalg.checking import (
    batch,
    check_equations,
    check_matrices,
    check_tensors,
    linked,
    refuse_if,
)
from baregrad.linalg.elimination import in_order
from baregrad.linalg.factoring import take_rows
from baregrad.linalg.triangular import solve_triangular
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.ops.shapes import stored

# Of growth by one block of two rows and by two of one row the larger is least with this.
_ALPHA = (1 + math.sqrt(17)) / 8
# Pivots that one replay chooses.
_ROUNDS = 4


class LDLFactor(NamedTuple):
    """L below the blocks of D in one matrix (..., n, n), and swaps of rows (..., n)."""

    LD: Tensor
    pivots: Tensor


class LDLFactorEx(NamedTuple):
    """As `LDLFactor`, and the first pivot that is 0, from 1 on, or 0 where there is none."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


def _sizes(x: Tensor) -> Tensor:
    """What pivots are compared by, as LAPACK's: of complex numbers the sum of their parts'."""
    found: Tensor = x.real.abs() + x.imag.abs() if x.is_complex() else x.abs()
    return found


def _over(x: Tensor, y: Tensor) -> Tensor:
    """x / y, 0 where y is."""
    is_zero = y == 0
    return stored(is_zero.where(0.0, x / is_zero.where(1.0, y)))


class _State(NamedTuple):
    """What is left of matrices (B, n, n), and LD so far. place: (B, 1), the next column."""

    left: Tensor
    found: Tensor
    pivots: Tensor
    info: Tensor
    place: Tensor


@block
def _step(
    left: Tensor, found: Tensor, pivots: Tensor, info: Tensor, place: Tensor, hermitian: bool
) -> tuple[Tensor, ...]:
    """The next pivots of matrices, of one or two rows each; nothing where all are chosen."""
    state = _State(left, found, pivots, info, place)
    for _ in range(_ROUNDS):
        state = _chosen(state, hermitian)
    return tuple(state)


def _chosen(state: _State, hermitian: bool) -> _State:
    left, found, pivots, info, place = state
    batch, count = left.shape[:2]
    places = Tensor.arange(count, device=left.device).expand(batch, count)
    is_busy = place < count
    at = place.clamp(max=count - 1)
    # Row k of what is left, which is its column, or the conjugate of that.
    size = stored(_sizes(take_rows(left, at).squeeze(1)))
    below = stored((places > place).where(size, -1.0))
    other = stored(below.argmax(dim=1, keepdim=True))
    largest = below.amax(dim=1, keepdim=True).clamp(min=0.0)
    own = _at(_sizes(_real(left, hermitian).diagonal(0, 1, 2)), at)
    row = _sizes(take_rows(left, other).squeeze(1))
    beside = stored(((places >= place) & (places != other)).where(row, 0.0))
    beside = beside.amax(dim=1, keepdim=True)
    theirs = _at(_sizes(_real(left, hermitian).diagonal(0, 1, 2)), other)
    is_zero = stored(~(own.maximum(largest) > 0))
    stays = is_zero | (own >= _ALPHA * largest) | (own >= _ALPHA * largest * _over(largest, beside))
    is_two = stored(is_busy & ~stays & (theirs < _ALPHA * beside))
    swapped = stored(stays.where(at, other))
    last = stored(at + is_two.cast(dtypes.int64))
    order = (places == last).where(swapped, (places == swapped).where(last, places))
    order = stored(is_busy.where(order, places))
    index = order.unsqueeze(1).expand(batch, count, count)
    left = stored(stored(take_rows(left, order)).gather(2, index))
    one = (places == at) & is_busy
    two = (places == last) & is_two
    is_behind = (places > last) & is_busy & ~is_zero
    diagonal = stored(_real(left, hermitian).diagonal(0, 1, 2))
    column = stored(_column(left, at, hermitian))
    second = stored(is_two.where(_column(left, last, hermitian), 0.0))
    first, then = _behind(
        column, second, _at(diagonal, at), _at(diagonal, last), _at(column, last), is_two,
        hermitian,
    )
    first = stored(is_behind.where(first, 0.0))
    then = stored((is_behind & is_two).where(then, 0.0))
    rows = [part.conj() if hermitian else part for part in (column, second)]
    left = stored(
        left - first.unsqueeze(2) * rows[0].unsqueeze(1) - then.unsqueeze(2) * rows[1].unsqueeze(1)
    )
    # What LD has in these columns.
    kept = is_zero & (places > at)
    first = (kept | two).where(column, one.where(diagonal, first))
    then = two.where(diagonal, then)
    found = stored(one.unsqueeze(1).where(first.unsqueeze(2), found))
    found = stored(two.unsqueeze(1).where(then.unsqueeze(2), found))
    told = is_two.where(-swapped - 1, swapped + 1)
    pivots = stored((one | two).where(told, pivots))
    info = stored((is_busy & is_zero & (info == 0)).where(place + 1, info))
    return _State(left, found, pivots, info, stored(is_busy.where(last + 1, place)))


def _real(x: Tensor, hermitian: bool) -> Tensor:
    return x.real.cast(x.dtype) if hermitian and x.is_complex() else x


def _at(x: Tensor, place: Tensor) -> Tensor:
    """The elements of x (B, n) at places (B, 1)."""
    return stored(x.gather(1, place))


def _column(x: Tensor, place: Tensor, hermitian: bool) -> Tensor:
    """Columns (B, n) of matrices that are symmetric or Hermitian."""
    row = take_rows(x, place).squeeze(1)
    return row.conj() if hermitian else row


def _behind(
    column: Tensor, second: Tensor, d: Tensor, e: Tensor, between: Tensor, is_two: Tensor,
    hermitian: bool,
) -> tuple[Tensor, Tensor]:
    """Two columns (B, n) times the inverse of a block [[d, between], [between, e]] at their top.

    Where that has one row, the first over d. Of a Hermitian block `between` is its lower element,
    whose conjugate stands above it. LAPACK's formula, in which nothing overflows.
    """
    factor, top, bottom, phase = _inverse(d, e, between, hermitian)
    first = factor * (top * column - phase * second)
    then = factor * (bottom * second - (phase.conj() if hermitian else phase) * column)
    return stored(is_two.where(first, _over(column, d))), stored(then)


def _inverse(d: Tensor, e: Tensor, below: Tensor, hermitian: bool) -> tuple[Tensor, ...]:
    """f, t, b and p of f * [[t, -p'], [-p, b]], the inverse of [[d, below'], [below, e]].

    p' is p, or its conjugate.
    """
    size = below.abs().cast(d.dtype) if hermitian else below
    top, bottom = _over(e, size), _over(d, size)
    return _over(_over(d.ones_like(), top * bottom - 1), size), top, bottom, _over(below, size)


def ldl_factor(A: Tensor, *, hermitian: bool = False) -> LDLFactor:  # noqa: N803 - PyTorch's name
    """Return L and D of a matrix A (..., n, n) of which the lower triangle is read, and swaps.

    A is symmetric; complex and Hermitian with `hermitian`. Raises LinAlgError where a pivot is 0,
    by which `ldl_solve` would divide. It has no gradient, as PyTorch's has none.
    """
    found = ldl_factor_ex(A, hermitian=hermitian, check_errors=True)
    return LDLFactor(found.LD, found.pivots)


def ldl_factor_ex(
    A: Tensor, *, hermitian: bool = False, check_errors: bool = False  # noqa: N803
) -> LDLFactorEx:
    """Return `ldl_factor(A)` and which pivot is 0; with `check_errors` as `ldl_factor` does."""
    check_matrices("ldl_factor", A, square=True, also_complex=True)
    count = A.shape[-1]
    with no_grad():
        given = batch(A)
        low = given.tril()
        whole = low + (low.mH if hermitian else low.mT).triu(1)
        pivots = Tensor.zeros(whole.shape[0], count, dtype=dtypes.int64, device=A.device)
        zero = pivots[:, :1] if count else pivots.sum(dim=1, keepdim=True)
        state: tuple[Tensor, ...] = (whole, whole.zeros_like(), pivots, zero, zero)
        if 0 not in A.shape:
            state = repeated(_step, math.ceil(count / _ROUNDS), state, (hermitian,))
        found = state[1].reshape(*A.shape)
        pivots = state[2].cast(dtypes.int32).reshape(*A.shape[:-1])
        info = state[3].cast(dtypes.int32).reshape(*A.shape[:-2])
        if check_errors:
            refuse_if(
                lambda: info != 0, "ldl_factor of a matrix with a pivot that is 0",
                "use ldl_factor_ex, which takes what cannot be solved with",
            )

    def pull(_: Tensor, gradient: Tensor) -> tuple[Tensor]:
        raise GradientError("ldl_factor has no gradient", hint="linalg.solve has one")

    return LDLFactorEx(linked(found, (A,), pull), pivots, info)


@block
def _swapped(index: Tensor, order: Tensor, place: Tensor, pivots: Tensor) -> tuple[Tensor, ...]:
    """Some swaps of rows of index (B, n, n), in the columns before them, and of order (B, n)."""
    count = order.shape[1]
    places = Tensor.arange(count, device=order.device).unsqueeze(0)
    # The second row of a block of two has its swap, which its first column has seen already.
    is_two = pivots < 0
    is_second = stored(is_two & ((is_two.cast(dtypes.int64).cumsum(1) % 2) == 0))
    targets = (is_two & ~is_second).where(places, pivots.abs() - 1)
    for _ in range(_ROUNDS):
        at = stored(place.clamp(max=count - 1).expand(order.shape[0], 1))
        target = _at(targets, at)
        turn = (places == at).where(target, (places == target).where(at, places))
        turn = stored((place < count).where(turn, places))
        order = stored(order.gather(1, turn))
        before = places < at - _at(is_second.cast(dtypes.int64), at)
        index = stored(before.unsqueeze(1).where(take_rows(index, turn), index))
        place = stored(place + 1)
    return index, order, place, pivots


def ldl_solve(
    LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False  # noqa: N803
) -> Tensor:
    """Return X (..., n, k) of A @ X = B, of which `ldl_factor(A)` gave LD and pivots."""
    check_tensors("ldl_solve", LD, pivots, B)
    check_matrices("ldl_solve", LD, B, square=True, also_complex=True)
    if pivots.dtype not in (dtypes.int32, dtypes.int64) or pivots.shape != LD.shape[:-1]:
        error = ShapeError if pivots.dtype in (dtypes.int32, dtypes.int64) else DTypeError
        raise error(
            "ldl_solve takes pivots as ldl_factor gives them",
            found=f"{pivots.dtype} {list(pivots.shape)} for a matrix {list(LD.shape)}",
            wanted=f"int32 {list(LD.shape[:-1])}",
        )
    shape, count = LD.shape, LD.shape[-1]
    with no_grad():
        flat = pivots.cast(dtypes.int64).reshape(math.prod(shape[:-2]), count)
        refuse_if(
            lambda: (flat == 0) | (flat.abs() > count), "pivots name rows that there are not",
            "they are those of ldl_factor, from 1 on, or negative",
        )
        places = Tensor.arange(count, device=LD.device)
        order = places.expand(*flat.shape)
        index = places.unsqueeze(1).expand(*flat.shape, count)
        if 0 not in shape:
            zero = places[:1].unsqueeze(0)
            index, order = repeated(
                _swapped, math.ceil(count / _ROUNDS), (index, order, zero, flat), ()
            )[:2]
        is_two = pivots < 0
        is_first = is_two & ((is_two.cast(dtypes.int64).cumsum(-1) % 2) == 1)
        in_block = is_first.diag_embed()[..., :, :count].roll(1, -2)
    diagonal = LD.diagonal(0, -2, -1)
    lower = in_block.where(0.0, LD).tril(-1).gather(-2, index.reshape(*shape))
    below = is_first.where(LD.roll(-1, -2).diagonal(0, -2, -1), 0.0)
    order = order.reshape(*shape[:-1])
    B, lower = check_equations(B, lower)  # noqa: N806
    order = order.expand(*lower.shape[:-1])
    half = solve_triangular(lower, in_order(B, order), upper=False, unitriangular=True)
    half = _through_blocks(diagonal, below, is_first, half, hermitian)
    turned = lower.mH if hermitian else lower.mT
    found = solve_triangular(turned, half, upper=True, unitriangular=True)
    return in_order(found, order.argsort(dim=-1))


def _through_blocks(
    diagonal: Tensor, below: Tensor, is_first: Tensor, x: Tensor, hermitian: bool
) -> Tensor:
    """The inverse of D times x (..., n, k). below: (..., n), not 0 at first rows of blocks."""
    is_second = is_first.roll(1, -1).unsqueeze(-1)
    is_first = is_first.unsqueeze(-1)
    diagonal = diagonal.real.cast(x.dtype) if hermitian and x.is_complex() else diagonal
    d, e, between = (
        part.unsqueeze(-1) for part in (diagonal, diagonal.roll(-1, -1), below)
    )
    factor, top, bottom, phase = _inverse(d, e, between, hermitian)
    then = x.roll(-1, -2)
    first = factor * (top * x - (phase.conj() if hermitian else phase) * then)
    second = (factor * (bottom * then - phase * x)).roll(1, -2)
    return is_first.where(first, is_second.where(second, _over(x, d)))

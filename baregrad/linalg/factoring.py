"""LU and Cholesky factors, and inverses of triangles, by blocks.

Every step works on arrays of one shape: what is left to factor moves to the upper left corner, so
one captured program serves all steps, and for half of the columns that are left a smaller one.
Matrices here are of shape (B, n, n), float32, float64 or, for LU and triangles, complex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.linalg.blocks import block, runs, stepped
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# Columns that are factored one after the other before products bring the others up to date.
BLOCK = 32
# Of how many columns, at most, a panel becomes narrower at a time.
_VECTOR = 8
# Rows of U that are solved for at once.
_ROWS = 8


def block_of(count: int) -> int:
    """How many columns are factored at once of `count`."""
    return min(BLOCK, count)


def shifted(x: Tensor, rows: int, columns: int) -> Tensor:
    """What is left without the first rows and columns, zeros after it: (B, m, n) -> (B, m, n)."""
    return x[:, rows:, columns:].pad((0, columns, 0, rows))


def corner_of(x: Tensor, rows: int, columns: int) -> Tensor:
    """The upper left corner of x (B, m, n), an array of its own: (B, rows, columns)."""
    is_whole = x.shape[1:] == (rows, columns)
    return x if is_whole else stored(x[:, :rows, :columns])


def placed(x: Tensor, first: int, rows: int) -> Tensor:
    """The upper rows of x (B, m, k) below `first` rows of zeros, `rows` in all."""
    kept = x[:, : rows - first]
    return kept.pad((0, 0, first, rows - first - kept.shape[1]))


# Arrays that are joined at once: each element of the result looks for its own among them.
_JOINED = 4


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Arrays one behind the other along an axis, in memory, a few at a time."""
    while len(parts) > 1:
        parts = [stored(Tensor.cat(*parts[at : at + _JOINED], dim=dim))
                 for at in range(0, len(parts), _JOINED)]  # fmt: skip
    return parts[0]


def padded(x: Tensor, size: int) -> Tensor:
    """x (B, n, n) in the upper left corner of `size` rows and columns of an identity."""
    count = x.shape[-1]
    if count == size:
        return x
    ones = Tensor.arange(size, device=x.device) >= count
    return x.pad((0, size - count, 0, size - count)) + ones.cast(x.dtype).diag()


# --- Cholesky -------------------------------------------------------------------------------------


@block
def _cholesky_step(left: Tensor) -> tuple[Tensor, Tensor]:
    """Some columns of the factor of what is left (B, n, n), and what is left after them."""
    width = block_of(left.shape[-1])
    panel, columns = left[:, :, :width], []
    for column in range(width):
        factor = stored(panel[:, :, :1] / panel[:, :1, :1].sqrt())
        columns.append(placed(factor, column, left.shape[-1]))
        panel = stored(shifted(panel - factor * factor[:, :width].mT, 1, 1))
    found = stored(Tensor.cat(*columns, dim=2))
    below = shifted(found, width, 0)
    return found, shifted(left, width, width) - below @ below.mT


@block
def _whole_of_lower(x: Tensor, size: int) -> Tensor:
    """The symmetric matrix with the lower triangle of x, in `size` rows and columns."""
    return padded(x.tril() + x.tril(-1).mT, size)


@block
def _columns_of_factor(count: int, size: int, *parts: Tensor) -> Tensor:
    """L of its columns, block by block, of which each begins on the diagonal."""
    width = parts[0].shape[2]
    placed_parts = [placed(one, at * width, size) for at, one in enumerate(parts)]
    return joined(placed_parts, 2)[:, :count, :count]


def cholesky_factor(x: Tensor) -> Tensor:
    """L, lower triangular, of which x = L @ L.mT: (B, n, n), of which the lower triangle is read.

    NaN where x is not positive definite.
    """
    if 0 in x.shape:
        return x
    count = x.shape[-1]
    width = block_of(count)
    size = math.ceil(count / width) * width
    left = _whole_of_lower(x, size)
    parts: list[Tensor] = []
    for _, number, extent in runs(size, size, width):
        left = corner_of(left, extent, extent)
        made, (left,) = stepped(_cholesky_step, number, (left,))
        parts += [one for (one,) in made]
    return _columns_of_factor(count, size, *parts)


# --- LU -------------------------------------------------------------------------------------------


class LUOfRows(NamedTuple):
    """L (B, m, k), U (B, k, n) and the order of rows (B, m) by which x[order] = L @ U.

    swaps: (B, k), with which place each of the first ones swapped rows, in turn.
    """

    lower: Tensor
    upper: Tensor
    order: Tensor
    swaps: Tensor


@block
def _lu_step(
    left: Tensor, position: Tensor, order: Tensor, turn: Tensor, width: int
) -> tuple[Tensor, ...]:
    """Some columns of L, rows of U and places of pivots of what is left (B, m, n).

    Rows stay where they are, those of earlier pivots too: (B, m, w), (B, w, n), (B, w), then what
    is left, to which place swaps brought each row, which row is at each place, and the next place.
    """
    panel, columns, heads, pivots, swaps = left[:, :, :width], [], [], [], []
    rows = left.shape[1]
    places = Tensor.arange(rows, device=left.device)
    for column in range(width):
        size = stored((position >= turn).where(_sizes(panel[:, :, 0]), -1.0))
        largest = stored(size.amax(dim=1, keepdim=True))
        # Of several as large the one that swaps put uppermost, as in LAPACK.
        place = stored((size == largest).where(position, rows).amin(dim=1, keepdim=True))
        pivot = stored(order.gather(1, place))
        own = order.gather(1, turn.expand(*place.shape))
        order = stored((places == turn).where(pivot, (places == place).where(own, order)))
        position = stored(
            (position == place).where(turn, (position == turn).where(place, position))
        )
        row = stored(take_rows(panel, pivot))
        divisor = (row[:, :, :1] == 0).where(1.0, row[:, :, :1])
        is_free = (position > turn).unsqueeze(2)
        factor = stored(is_free.where(panel[:, :, :1] / divisor, 0.0))
        turn = stored(turn + 1)
        # Columns that are left move to the front, in ever fewer whole vectors.
        kept = math.ceil((width - column - 1) / _VECTOR) * _VECTOR
        panel = stored(shifted(panel - factor * row, 0, 1)[:, :, :kept])
        columns.append(factor)
        heads.append(row[:, :, : width - column].pad((column, 0)))
        pivots.append(pivot)
        swaps.append(place)
    chosen = stored(Tensor.cat(*pivots, dim=1))
    lower = stored(Tensor.cat(*columns, dim=2))
    # Of the panel itself the rows that elimination left: those that one computes anew, where L has
    # a large inverse, are another matrix's.
    upper = stored(Tensor.cat(*heads, dim=1))
    rest = shifted(left, 0, width)
    if left.shape[2] > width:
        right = left[:, :, width:]
        tail = stored(_rows_of_upper(take_rows(lower, chosen), take_rows(right, chosen)))
        upper = stored(Tensor.cat(upper, tail, dim=2))
        rest = (right - lower @ tail).pad((0, width))
    return lower, upper, stored(Tensor.cat(*swaps, dim=1)), rest, position, order, turn


def _rows_of_upper(lower: Tensor, wanted: Tensor) -> Tensor:
    """x (B, w, n) of (lower + 1) @ x = wanted, of which what is below the diagonal is read.

    A few rows at a time: their inverses have elements of 2**(_ROWS - 1) at most, as no element of L
    is above 1, so that factors leave little even where L's own inverse is large.
    """
    width = lower.shape[1]
    blocks = -(-width // _ROWS)
    lower, wanted = padded(lower, blocks * _ROWS), wanted.pad((0, 0, 0, blocks * _ROWS - width))
    cut = lower.reshape(lower.shape[0], blocks, _ROWS, blocks, _ROWS).diagonal(0, 1, 3)
    corners = cut.permute(0, 3, 1, 2).reshape(lower.shape[0] * blocks, _ROWS, _ROWS).tril(-1)
    unit = stored(corners + Tensor.eye(_ROWS, dtype=lower.dtype, device=lower.device))
    inverses = stored(inverse_lower(unit).reshape(lower.shape[0], blocks, _ROWS, _ROWS))
    found: list[Tensor] = []
    for block_at in range(blocks):
        rows = slice(block_at * _ROWS, (block_at + 1) * _ROWS)
        left = wanted[:, rows]
        if found:
            before = stored(Tensor.cat(*found, dim=1)) if block_at > 1 else found[0]
            left = stored(left - stored(lower[:, rows, : rows.start]) @ before)
        found.append(stored(inverses[:, block_at] @ left))
    whole = stored(Tensor.cat(*found, dim=1)) if blocks > 1 else found[0]
    return whole[:, :width]


def _sizes(x: Tensor) -> Tensor:
    """What pivots are compared by: |x|, of complex numbers the sum of their parts', as LAPACK's.

    NaN counts as 0: a row of the padding that infinity makes NaN is not chosen before a real one.
    """
    found: Tensor = x.real.abs() + x.imag.abs() if x.is_complex() else x.abs()
    return found.isnan().where(0.0, found)


def take_rows(x: Tensor, places: Tensor) -> Tensor:
    """Rows of x (B, m, n) at places (B, k)."""
    index = places.unsqueeze(2).expand(*places.shape, x.shape[2])
    return x.gather(1, index)


def lu_factor(x: Tensor) -> LUOfRows:
    """Factors of x (B, m, n), k = min(m, n), whose pivots are the largest of their column."""
    batch, rows, columns = x.shape
    count = min(rows, columns)
    if 0 in x.shape:
        order = Tensor.arange(rows, device=x.device).expand(batch, rows)
        return LUOfRows(x[:, :, :count], x[:, :count], order, order[:, :count])
    width = block_of(count)
    size = math.ceil(count / width) * width
    # Rows of zeros are chosen after all others, and columns of zeros choose rows in their order.
    left = x.pad((0, max(size - columns, 0), 0, max(size - rows, 0)))
    high, wide = left.shape[1:]
    position = order = Tensor.arange(high, device=x.device).expand(batch, high)
    turn = Tensor.zeros(1, 1, dtype=dtypes.int64, device=x.device)
    parts: list[tuple[Tensor, ...]] = []
    for _, number, extent in runs(wide, size, width):
        left = corner_of(left, high, extent)
        made, (left, position, order, turn) = stepped(
            _lu_step, number, (left, position, order, turn), (width,)
        )
        parts += made
    lowers, uppers, swaps = zip(*parts, strict=True)
    return LUOfRows(*_factors_of_parts(order, rows, columns, *lowers, *uppers, *swaps))


@block
def _factors_of_parts(
    order: Tensor, rows: int, columns: int, *parts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L, U, the order of rows and their swaps, of what the steps made."""
    number, count = len(parts) // 3, min(rows, columns)
    lowers, uppers, swaps = parts[:number], parts[number : 2 * number], parts[2 * number :]
    _, high, width = lowers[0].shape
    wide = max(columns, number * width)
    unit = Tensor.eye(high, number * width, dtype=lowers[0].dtype, device=order.device)
    lower = take_rows(joined(lowers, 2), order) + unit
    upper = joined([
        one[:, :, : wide - at * width].pad((at * width, 0)) for at, one in enumerate(uppers)
    ], 1).triu()
    return (
        lower[:, :rows, :count], upper[:, :count, :columns], order[:, :rows],
        joined(swaps, 1)[:, :count],
    )


def first_zero(upper: Tensor) -> Tensor:
    """Where the first zero on the diagonals of (B, m, n) is, from 1 on, or 0: (B,), int32."""
    is_zero = upper.diagonal(0, 1, 2) == 0
    count = is_zero.shape[1]
    if not count:
        return Tensor.zeros(upper.shape[0], dtype=dtypes.int32, device=upper.device)
    places = Tensor.arange(1, count + 1, dtype=dtypes.int32, device=upper.device)
    least = is_zero.where(places, count + 1).amin(dim=1)
    return (least > count).where(0, least).cast(dtypes.int32)


# --- triangles ------------------------------------------------------------------------------------


def inverse_lower(x: Tensor) -> Tensor:
    """The inverse of a lower triangle (B, n, n), by ever larger blocks of its diagonal.

    What is above the diagonal is not read. Infinities and NaN where the diagonal has a zero.
    """
    if 0 in x.shape:
        return x
    batch, count = x.shape[:2]
    size = 1 << (count - 1).bit_length()
    x = padded(x, size)
    found = x.diagonal(0, 1, 2).reciprocal().reshape(batch, size, 1, 1)
    width = 1
    while width < size:
        pairs = size // width // 2
        blocks = x.reshape(batch, pairs, 2, width, pairs, 2, width)[:, :, 1, :, :, 0]
        below = blocks.diagonal(0, 1, 3).permute(0, 3, 1, 2)
        both = found.reshape(batch, pairs, 2, width, width)
        upper, lower = both[:, :, 0], both[:, :, 1]
        corner = -(lower @ stored(below @ upper))
        above = upper.pad((0, width))
        found = stored(Tensor.cat(above, Tensor.cat(corner, lower, dim=3), dim=2))
        width *= 2
    return found.reshape(batch, size, size)[:, :count, :count]

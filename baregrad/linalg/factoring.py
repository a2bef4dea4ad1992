"""LU and Cholesky factors, and inverses of triangles, by blocks.

Every step works on arrays of one shape: what is left to factor moves to the upper left corner, so
one captured program serves all steps, and for half of the columns that are left a smaller one.
Matrices here are of shape (B, n, n), float32, float64 or, for LU and triangles, complex.
"""

from __future__ import annotations

import math

from baregrad.dtypes import dtypes
from baregrad.linalg.blocks import block, runs, stepped
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# Columns that are factored one after the other before products bring the others up to date.
BLOCK = 32


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


def cholesky_factor(x: Tensor) -> Tensor:
    """L, lower triangular, of which x = L @ L.mT: (B, n, n), of which the lower triangle is read.

    NaN where x is not positive definite.
    """
    if 0 in x.shape:
        return x
    count = x.shape[-1]
    width = block_of(count)
    size = math.ceil(count / width) * width
    lower = x.tril()
    left = padded(lower + x.tril(-1).mT, size)
    parts = []
    for first, number, extent in runs(size, size, width):
        left = corner_of(left, extent, extent)
        made, (left,) = stepped(_cholesky_step, number, (left,))
        parts += [placed(one, first + at * width, size) for at, (one,) in enumerate(made)]
    return Tensor.cat(*parts, dim=2)[:, :count, :count]


# --- LU -------------------------------------------------------------------------------------------


@block
def _lu_step(
    left: Tensor, free: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Some columns of L, rows of U and pivots of what is left (B, m, n), whose rows are `free`.

    Rows stay where they are, those of earlier pivots too: (B, m, w), (B, w, n), (B, w), then what
    is left and which rows are free.
    """
    panel, columns, pivots = left[:, :, :width], [], []
    for _ in range(width):
        size = free.where(_sizes(panel[:, :, 0]), -1.0)
        pivot = stored(size.argmax(dim=1, keepdim=True))
        row = stored(take_rows(panel, pivot))
        places = Tensor.arange(left.shape[1], device=left.device)
        free = stored(free & (places != pivot))
        divisor = (row[:, :, :1] == 0).where(1.0, row[:, :, :1])
        factor = stored(free.unsqueeze(2).where(panel[:, :, :1] / divisor, 0.0))
        panel = stored(shifted(panel - factor * row, 0, 1))
        columns.append(factor)
        pivots.append(pivot)
    chosen = stored(Tensor.cat(*pivots, dim=1))
    lower = stored(Tensor.cat(*columns, dim=2))
    unit = take_rows(lower, chosen) + Tensor.eye(width, dtype=left.dtype, device=left.device)
    upper = stored(inverse_lower(unit) @ take_rows(left, chosen))
    return lower, upper, chosen, shifted(left - lower @ upper, 0, width), free


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


def lu_factor(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L (B, m, k), U (B, k, n) and the order of rows (B, m) by which x[order] = L @ U.

    k is min(m, n). Pivots are the largest of their column.
    """
    batch, rows, columns = x.shape
    count = min(rows, columns)
    if 0 in x.shape:
        order = Tensor.arange(rows, device=x.device).expand(batch, rows)
        return x[:, :, :count], x[:, :count], order
    width = block_of(count)
    size = math.ceil(count / width) * width
    # Rows of zeros are chosen after all others, and columns of zeros choose rows in their order.
    left = x.pad((0, max(size - columns, 0), 0, max(size - rows, 0)))
    high, wide = left.shape[1:]
    free = Tensor.ones(batch, high, dtype=dtypes.bool, device=x.device)
    lowers, uppers, pivots = [], [], []
    for first, number, extent in runs(wide, size, width):
        left = corner_of(left, high, extent)
        made, (left, free) = stepped(_lu_step, number, (left, free), (width,))
        for place, (lower, upper, pivot) in enumerate(made):
            at = first + place * width
            lowers.append(lower)
            uppers.append(upper[:, :, : wide - at].pad((at, 0)))
            pivots.append(pivot)
    return _lu_whole(Tensor.cat(*lowers, dim=2), Tensor.cat(*uppers, dim=1),
                     Tensor.cat(*pivots, dim=1), (rows, columns))


def _lu_whole(
    lower: Tensor, upper: Tensor, pivots: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """What `lu_factor` returns, of the columns of L, rows of U and pivots of a padded matrix."""
    batch, high, size = lower.shape
    places = Tensor.arange(high, device=lower.device).expand(batch, high)
    turns = Tensor.arange(size, device=lower.device).expand(batch, size)
    rows, columns = shape
    count = min(shape)
    if rows > columns:
        # Rows that no pivot chose are where the swaps leave them.
        pivots, turns = pivots[:, :count], turns[:, :count]
        ends = _next_at_least(pivots, high, places, places.zeros_like() + count)
        order = ends.scatter(1, pivots, turns).argsort(dim=1)
    else:
        order = (places + size).scatter(1, pivots, turns).argsort(dim=1)
    unit = Tensor.eye(high, size, dtype=lower.dtype, device=lower.device)
    lower = (take_rows(lower, order) + unit)[:, :rows, :count]
    return lower, upper.triu()[:, :count, :columns], order[:, :rows]


def first_zero(upper: Tensor) -> Tensor:
    """Where the first zero on the diagonals of (B, m, n) is, from 1 on, or 0: (B,), int32."""
    is_zero = upper.diagonal(0, 1, 2) == 0
    count = is_zero.shape[1]
    if not count:
        return Tensor.zeros(upper.shape[0], dtype=dtypes.int32, device=upper.device)
    places = Tensor.arange(1, count + 1, dtype=dtypes.int32, device=upper.device)
    least = is_zero.where(places, count + 1).amin(dim=1)
    return (least > count).where(0, least).cast(dtypes.int32)


def row_swaps(chosen: Tensor, rows: int) -> Tensor:
    """With which place each of the first k places swaps, in turn, so that row chosen[i] comes to i.

    chosen: (B, k) of `rows` rows. The row was moved to the place that its own place swapped with,
    if that had its turn already, from there on likewise, and so to the first place on the path
    i, chosen[i], chosen[chosen[i]], ... whose turn has not yet been.
    """
    turns = Tensor.arange(chosen.shape[1], device=chosen.device).expand(*chosen.shape)
    return _next_at_least(chosen, rows, turns, turns)


def _next_at_least(chosen: Tensor, rows: int, starts: Tensor, least: Tensor) -> Tensor:
    """The first place that is not below `least` behind each start on the path of `row_swaps`.

    chosen: (B, k), of which places from k to `rows` follow themselves; starts, least: (B, c).
    """
    batch, count = chosen.shape
    rest = Tensor.arange(count, rows, device=chosen.device).expand(batch, rows - count)
    # Where 1, 2, 4, ... steps lead, and the last place on the way there.
    leads = [(step := stored(Tensor.cat(chosen, rest, dim=1)), step)]
    for _ in range(1, count.bit_length()):
        step, top = leads[-1]
        further = stored(top.maximum(top.gather(1, step)))
        leads.append((stored(step.gather(1, step)), further))
    found = starts
    for step, top in reversed(leads):
        found = stored((top.gather(1, found) < least).where(step.gather(1, found), found))
    return leads[0][0].gather(1, found)


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

"""LU and Cholesky factors, and inverses of triangles, by blocks.

Every step works on arrays of one shape: what is left to factor moves to the upper left corner, so
one captured program serves all steps, and for half of the columns that are left a smaller one.
Matrices here are of shape (B, n, n), float32 or float64.
"""

from __future__ import annotations

import math

from baregrad.dtypes import dtypes
from baregrad.linalg.blocks import block
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
    for first in range(0, size, width):
        if 2 * (size - first) <= left.shape[-1]:
            left = stored(left[:, : size - first, : size - first])
        found, left = _cholesky_step(left)
        parts.append(placed(found, first, size))
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
        size = free.where(panel[:, :, 0].abs(), -1.0)
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
    for first in range(0, size, width):
        if 2 * (wide - first) <= left.shape[-1]:
            left = stored(left[:, :, : wide - first])
        lower, upper, pivot, left, free = _lu_step(left, free, width)
        lowers.append(lower)
        uppers.append(upper[:, :, : wide - first].pad((first, 0)))
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
    order = (places + size).scatter(1, pivots, turns).argsort(dim=1)
    rows, columns = shape
    count = min(shape)
    unit = Tensor.eye(high, size, dtype=lower.dtype, device=lower.device)
    lower = (take_rows(lower, order) + unit)[:, :rows, :count]
    return lower, upper.triu()[:, :count, :columns], order[:, :rows]


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

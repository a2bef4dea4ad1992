"""Singular vectors of bidiagonal matrices, by dividing them at a row.

What is above the row and what is below it share no columns, and each has one column more than rows.
With both their singular vectors known, what is left is a diagonal matrix and the row, and squares
of its singular values are the zeros of a rational function (Gu and Eisenstat, "A divide-and-conquer
algorithm for the bidiagonal SVD", 1995). Vectors of both sides follow from the zeros, and are
orthogonal however close or small the values are. Arrays have one shape whatever the numbers are, as
in `dividing`.
"""

from __future__ import annotations

import math

from baregrad.linalg.blocks import block, is_captured
from baregrad.linalg.factoring import take_rows
from baregrad.linalg.spectral.dividing import SMALL
from baregrad.linalg.spectral.rotations import singular_by_rotations
from baregrad.linalg.spectral.secular import (
    Poles,
    apart,
    least_of,
    roots_of,
    turned,
    united,
    zeros_of,
)
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored


def divided_rows(diagonal: Tensor, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U (B, n, n), values (B, n), descending, and V (B, n, n) of upper bidiagonal matrices.

    U and V have singular vectors as columns. diagonal: (B, n). above: (B, n), the last of which
    counts for nothing. Raises LinAlgError where the search for a value does not end; in a captured
    function the matrix's results are NaN then.
    """
    count = diagonal.shape[1]
    halvings = max(0, math.ceil(math.log2((count + 1) / (SMALL + 1))))
    width = math.ceil((count + 1) / (1 << halvings)) - 1
    size = (width + 1 << halvings) - 1
    small, rows, is_zero = _cut(diagonal, above, width, size)
    right, values, turned_left = singular_by_rotations(small, width + 1)
    left = turned_left.mT
    while width < size:
        parts = rows[:, :, width :: 2 * (width + 1)].transpose(1, 2).reshape(-1, 2)
        kept = count if 2 * width + 1 == size else 2 * width + 1
        values, left, right = _joined(values.reshape(-1, 2 * width), left, right, parts, kept)
        width = 2 * width + 1
    values = stored(is_zero.where(0.0, values[:, :count]))
    left, right = left[:, :count, :count], right[:, :count, :count]
    if not is_captured(values):
        return left, values, right
    is_found = values.isnan().logical_not().all(dim=1, keepdim=True)
    found = (is_found.unsqueeze(2).where(part, math.nan) for part in (left, right))
    return next(found), is_found.where(values, math.nan), next(found)


@block
def _cut(
    diagonal: Tensor, above: Tensor, width: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Transposed blocks (B * blocks, width + 1, width) of matrices that end with large values.

    Then both elements (B, 2, size) of each row, of which every `width + 1`-th stands between two
    blocks, and whether a matrix is zeros, (B, 1).
    """
    batch, count = diagonal.shape
    places = Tensor.arange(size, device=diagonal.device)
    above = (places < count - 1).where(above.pad((0, size - count)), 0.0)
    bound = diagonal.abs().amax(dim=1, keepdim=True) + above.abs().amax(dim=1, keepdim=True)
    largest = 1.25 * bound + (bound == 0).where(1.0, 0.0)
    diagonal = (places < count).where(diagonal.pad((0, size - count)), largest)
    both = stored(Tensor.stack(diagonal, above, dim=1))
    blocks = both.pad((0, 1)).reshape(batch, 2, -1, width + 1)[..., :width]
    one = Tensor.eye(width + 1, width, dtype=diagonal.dtype, device=diagonal.device)
    under = one.roll(1, 0)
    small = stored(one * blocks[:, 0].unsqueeze(2) + under * blocks[:, 1].unsqueeze(2))
    return small.reshape(-1, width + 1, width), both, stored(bound == 0)


def _joined(
    values: Tensor, left: Tensor, right: Tensor, row: Tensor, kept: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Values (M, k) of two parts and a row, in falling order, and vectors of both sides.

    values: (M, 2h). left: (2M, h, h), right: (2M, h + 1, h + 1), whose last column is of no value;
    (M, 2h + 1, k) and (M, 2h + 2, k + 1) of the whole. row: (M, 2), the elements of the row.
    kept: k, how many values are meant, the least of them. In a captured function a value that was
    not found is NaN.
    """
    *parts, null = _poles(values, right, row)
    found = Poles(*parts)
    search = zeros_of(found.poles, found.weights, squared=True)
    captured = is_captured(values)
    is_turned = captured or bool((found.turn != 0).any().item())
    return _vectors(
        left, right, *found, null, search.origin, search.offset, search.is_done, is_turned, kept
    )


@block
def _poles(values: Tensor, right: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    """The function whose zeros are the squares of values, as `Poles`; the first pole is 0.

    Then (M, 2), how the columns of no value of both parts make the one that the row has a part of.
    """
    batch, count = values.shape
    half = count // 2
    halves = right.reshape(batch, 2, half + 1, half + 1)
    one = stored(halves[:, 0, half] * row[:, :1])
    other = stored(halves[:, 1, 0] * row[:, 1:])
    size = values.amax(dim=1, keepdim=True).maximum(row.abs().amax(dim=1, keepdim=True))
    least = least_of(size)
    null = stored(Tensor.cat(one[:, half:], other[:, half:], dim=1))
    length = stored(null.square().sum(dim=1, keepdim=True).sqrt())
    is_none = length <= least
    first = Tensor([1.0, 0.0], dtype=values.dtype, device=values.device)
    null = stored(is_none.where(first, null / is_none.where(1.0, length)))
    z = stored(Tensor.cat(one[:, :half], other[:, :half], dim=1))
    values = stored(values.maximum(least / 2))
    found = united(values, z, least.ones_like(), least)
    return (
        stored(found.poles.pad((1, 0))),
        stored(Tensor.cat(length.maximum(least).square(), found.weights, dim=1)),
        stored(found.signs.pad((1, 0), value=1.0)), stored((found.places + 1).pad((1, 0))),
        found.bucket, found.turn, null,
    )


@block
def _vectors(
    left: Tensor, right: Tensor, poles: Tensor, weights: Tensor, signs: Tensor, places: Tensor,
    bucket: Tensor, turn: Tensor, null: Tensor, origin: Tensor, offset: Tensor, is_done: Tensor,
    is_turned: bool, kept: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values (M, k), falling, and vectors of both sides, by the zeros and both parts' vectors."""
    batch, count = poles.shape
    half = count // 2
    distances = stored(apart(poles, weights, origin, True) - offset.unsqueeze(2))
    roots = roots_of(poles, weights, signs, distances, True)
    values = stored(is_done.where((origin * origin + offset).sqrt(), math.nan))
    order = stored(values.argsort(dim=1)[:, :kept].flip(1))
    distances = stored(take_rows(distances, order))
    is_real = take_rows((weights > 0).unsqueeze(2), order)
    one = (Tensor.arange(count, device=poles.device) == order.unsqueeze(2)).cast(poles.dtype)
    index = places.argsort(dim=1).unsqueeze(1).expand(batch, kept, count)
    inner = roots.unsqueeze(1) / distances
    is_row = Tensor.arange(count, device=poles.device) == 0
    outer = is_row.where(-1.0, poles.unsqueeze(1) * inner)
    made = []
    for rows in (inner, outer):
        rows = _unit(stored(rows))
        # As columns of the parts are: in their order, and not turned into one.
        rows = stored(stored(is_real.where(rows, one)).gather(2, index))
        if is_turned:
            beside = turned(rows[:, :, 1:], bucket, turn)
            rows = stored(Tensor.cat(rows[:, :, :1], beside, dim=2))
        made.append(rows)
    inner, outer = made
    parts = left.reshape(batch, 2, half, half)
    upper = parts[:, 0] @ outer[:, :, 1 : half + 1].mT
    lower = parts[:, 1] @ outer[:, :, half + 1 :].mT
    left = stored(Tensor.cat(upper, outer[:, :, :1].mT, lower, dim=1))
    parts = right.reshape(batch, 2, half + 1, half + 1)
    first, own = inner[:, :, :1], null.unsqueeze(1)
    # The column of no value is made of those of both parts.
    turns = Tensor.cat(first * own[:, :, :1], -own[:, :, 1:], dim=1)
    upper = Tensor.cat(inner[:, :, 1 : half + 1].pad((0, 0, 0, 1)), turns, dim=2)
    turns = Tensor.cat(first * own[:, :, 1:], own[:, :, :1], dim=1)
    lower = Tensor.cat(inner[:, :, half + 1 :].pad((0, 0, 0, 1)), turns, dim=2)
    right = Tensor.cat(parts[:, 0] @ stored(upper).mT, parts[:, 1] @ stored(lower).mT, dim=1)
    return values.gather(1, order), left, stored(right)


def _unit(rows: Tensor) -> Tensor:
    """Rows of length 1. They are made smaller first: squares of the largest may overflow."""
    largest = rows.abs().amax(dim=2, keepdim=True)
    rows = stored(rows / (largest == 0).where(1.0, largest))
    length = rows.square().sum(dim=2, keepdim=True).sqrt()
    found: Tensor = rows / (length == 0).where(1.0, length)
    return found

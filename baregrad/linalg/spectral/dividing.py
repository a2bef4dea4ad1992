"""Eigenvectors of tridiagonal matrices, by dividing them in halves.

Two halves whose eigenvectors are known are a matrix of rank one beside a diagonal one, and its
eigenvalues are the zeros of a rational function (Cuppen, 1981). Eigenvectors of weights that have
these very zeros are orthogonal however close they are (Gu and Eisenstat, "A divide-and-conquer
algorithm for the symmetric tridiagonal eigenproblem", 1995). Arrays have one shape whatever the
numbers are: a pole that is left out, because it is another one's or has no weight, stays in place
behind the others, and its weight is 0.
"""

from __future__ import annotations

import math

from baregrad.dtypes import finfo
from baregrad.linalg.blocks import block, is_captured
from baregrad.linalg.factoring import take_rows
from baregrad.linalg.spectral.rotations import eigen_by_rotations
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

# The largest blocks whose eigenvectors are found by rotations.
SMALL = 32


def divided(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (B, n), rising, and eigenvectors as columns (B, n, n) of tridiagonal matrices.

    diagonal: (B, n). beside: (B, n), the last of which counts for nothing. Raises LinAlgError where
    the search for a value does not end; in a captured function the matrix's results are NaN then.
    """
    batch, count = diagonal.shape
    halvings = max(0, math.ceil(math.log2(count / SMALL)))
    width = math.ceil(count / (1 << halvings))
    size = width << halvings
    small, cuts = _cut(diagonal, beside, width, size)
    values, vectors = eigen_by_rotations(small)
    while width < size:
        between = cuts[:, width - 1 :: 2 * width].reshape(-1, 1)
        values, vectors = _joined(values.reshape(-1, 2 * width), vectors, between)
        width *= 2
    if not is_captured(values):
        return _in_order(values, vectors, count)
    # A value that was not found stayed NaN when halves were joined.
    is_found = values.reshape(batch, size).isnan().logical_not().all(dim=1).reshape(batch, 1, 1)
    values, vectors = _in_order(values, vectors, count)
    return is_found.squeeze(2).where(values, math.nan), is_found.where(vectors, math.nan)


@block
def _cut(diagonal: Tensor, beside: Tensor, width: int, size: int) -> tuple[Tensor, Tensor]:
    """Blocks (B * size / width, width, width) of matrices that end with large eigenvalues.

    And what is beside the diagonal, (B, size), of which the blocks lack every `width`-th: between
    two of them is a matrix of rank one, which takes as much from both of their corners.
    """
    count = diagonal.shape[1]
    places = Tensor.arange(size, device=diagonal.device)
    beside = (places < count - 1).where(beside.pad((0, size - count)), 0.0)
    bound = diagonal.abs().amax(dim=1, keepdim=True) + 2 * beside.abs().amax(dim=1, keepdim=True)
    whole = (places < count).where(diagonal.pad((0, size - count)), 2 * bound + 1)
    is_cut = (places % width == width - 1) & (places < size - 1)
    taken = is_cut.where(beside.abs(), 0.0)
    whole = stored(whole - taken - taken[:, :-1].pad((1, 0))).reshape(-1, width)
    kept = stored(is_cut.where(0.0, beside)).reshape(-1, width)[:, : width - 1]
    edge = kept.diag_embed(1) + kept.diag_embed(-1) if width > 1 else 0.0
    return stored(whole.diag_embed() + edge), stored(beside)


def _joined(values: Tensor, vectors: Tensor, between: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (M, 2h), in no order, and vectors (M, 2h, 2h) of two halves each.

    values: (M, 2h). vectors: (2M, h, h). between: (M, 1), what stands beside both. In a captured
    function a value that was not found is NaN.
    """
    found = Poles(*_poles(values, vectors, between))
    search = zeros_of(found.poles, found.weights)
    captured = is_captured(values)
    # Without columns that are turned into one all would be multiplied by 1, bit for bit.
    is_turned = captured or bool((found.turn != 0).any().item())
    values, vectors = _vectors(vectors, *found, search.origin, search.offset, is_turned)
    return search.is_done.where(values, math.nan) if captured else values, vectors


@block
def _poles(values: Tensor, vectors: Tensor, between: Tensor) -> tuple[Tensor, ...]:
    """The function whose zeros are the eigenvalues of two halves each, as `Poles`."""
    batch, count = values.shape
    half = count // 2
    halves = vectors.reshape(batch, 2, half, half)
    sign = (between < 0).where(-1.0, 1.0)
    z = Tensor.cat(halves[:, 0, half - 1], halves[:, 1, 0] * sign, dim=1)
    # So much does not count, and has no exact squares.
    z = stored((z.abs() > finfo(z.dtype).eps ** 2).where(z, 0.0))
    size = values.abs().amax(dim=1, keepdim=True).maximum(between.abs())
    return tuple(united(values, z, between.abs(), least_of(size)))


@block
def _vectors(
    vectors: Tensor, poles: Tensor, weights: Tensor, signs: Tensor, places: Tensor,
    bucket: Tensor, turn: Tensor, origin: Tensor, offset: Tensor, is_turned: bool,
) -> tuple[Tensor, Tensor]:
    """Eigenvalues (M, 2h), and vectors (M, 2h, 2h) of the zeros and of the halves' vectors."""
    batch, count = poles.shape
    distances = stored(apart(poles, weights, origin, False) - offset.unsqueeze(2))
    roots = roots_of(poles, weights, signs, distances, False)
    rows = stored(roots.unsqueeze(1) / distances)
    length = stored(rows.square().sum(dim=2, keepdim=True).sqrt())
    one = Tensor.eye(count, dtype=poles.dtype, device=poles.device)
    rows = (weights > 0).unsqueeze(2).where(rows / (length == 0).where(1.0, length), one)
    # As columns of the halves are: in their order, and not turned into one.
    index = places.argsort(dim=1).unsqueeze(1).expand(batch, count, count)
    rows = stored(stored(rows).gather(2, index))
    if is_turned:
        rows = turned(rows, bucket, turn)
    half = count // 2
    halves = vectors.reshape(batch, 2, half, half)
    upper = halves[:, 0] @ rows[:, :, :half].mT
    lower = halves[:, 1] @ rows[:, :, half:].mT
    return stored(origin + offset), stored(Tensor.cat(upper, lower, dim=1))


@block
def _in_order(values: Tensor, vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The least eigenvalues, rising, and the first elements of their vectors, as columns."""
    values = values.reshape(vectors.shape[:2])
    order = stored(values.argsort(dim=1)[:, :count])
    columns = take_rows(stored(vectors.mT), order).mT
    return values.gather(1, order), columns[:, :count]

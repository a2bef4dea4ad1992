"""Eigenvalues and singular values with their vectors, of small and of large matrices.

Matrices here are of shape (B, m, n), float32 or float64.
"""

from __future__ import annotations

import math

from baregrad.linalg.bidiagonal import made_bidiagonal
from baregrad.linalg.blocks import block
from baregrad.linalg.checking import refuse_if
from baregrad.linalg.dividing import SMALL, divided
from baregrad.linalg.factoring import take_rows
from baregrad.linalg.orthogonal import qr_factor, scale_of, turned_back
from baregrad.linalg.rotations import NOT_FINITE, eigen_by_rotations, singular_by_rotations
from baregrad.linalg.tridiagonal import made_tridiagonal
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored


def _finite(x: Tensor) -> Tensor:
    """X (B, m, n), all NaN where an element is not finite. Raises LinAlgError if it may look."""
    is_finite = x.isfinite().all(dim=(1, 2), keepdim=True)
    refuse_if(lambda: ~is_finite, NOT_FINITE, "look at where infinities, NaN or overflow come from")
    return is_finite.where(x, math.nan)


def eigen_factor(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (B, n), rising, and eigenvectors as columns (B, n, n) of symmetric x."""
    if 0 in x.shape:
        return x[:, :, :0].sum(dim=2), x
    if x.shape[-1] <= SMALL:
        return eigen_by_rotations(x)
    scale = scale_of(x)
    made = made_tridiagonal(_finite(stored(x / scale)))
    values, vectors = divided(made.diagonal, made.beside)
    return values * scale.squeeze(2), turned_back(vectors, made.steps, made.size)


def singular_factor(x: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """U (B, m, width), singular values (B, n), descending, V.T (B, n, n) of x (B, m, n), m >= n.

    width: n, or m for more columns that are orthogonal to the others.
    """
    rows, count = x.shape[1:]
    if 0 in x.shape:
        outer, upper = qr_factor(x, width)
        return outer, upper[:, :0].sum(dim=1), upper[:, :count]
    if count <= SMALL:
        return singular_by_rotations(x, width)
    scale = scale_of(x)
    outer: Tensor | None = None
    square = stored(x / scale)
    if rows > count:
        outer, square = qr_factor(square, width)
        square = stored(square[:, :count])
    made = made_bidiagonal(_finite(square))
    values, vectors = divided(*_both_ways(made.diagonal, made.above))
    # Vectors of a pair of values, of which one is the other's negative, hold those of both sides.
    # Where a value is next to 0 its vectors are mixed with those of its pair, but not with those of
    # larger values: they are made orthogonal, the large ones first, and the others with them.
    right = turned_back(stored(vectors[:, ::2].flip(2)[:, :, :count]), made.right, made.size)
    right, _ = qr_factor(right, count)
    left, upper = qr_factor(square @ right, count)
    left, values, right = _signed(left, upper, right)
    if outer is not None:
        left = outer[:, :, :count] @ left
        if width > count:
            left = left.cat(outer[:, :, count:], dim=2)
    return left, values * scale.squeeze(2), right.mT


@block
def _both_ways(diagonal: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """The tridiagonal matrix (B, 2n) whose eigenvalues are singular values and their negatives.

    Its vectors are those of both sides, element by element (Golub and Kahan, 1965).
    """
    beside = stored(Tensor.stack(diagonal, above, dim=2)).reshape(diagonal.shape[0], -1)
    return stored(beside.zeros_like()), stored(beside)


@block
def _signed(left: Tensor, upper: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of both sides in the order of their values, which are not negative."""
    values = stored(upper.diagonal(0, 1, 2))
    left = stored(left * (values < 0).where(-1.0, 1.0).unsqueeze(1))
    values = stored(values.abs())
    order = stored(values.argsort(dim=1, descending=True))
    columns = [take_rows(stored(part.mT), order).mT for part in (left, right)]
    return columns[0], values.gather(1, order), columns[1]

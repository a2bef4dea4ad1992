"""Eigenvalues and singular values with their vectors, of small and of large matrices.

Matrices here are of shape (B, m, n), float32 or float64, complex where a function says so.
"""

from __future__ import annotations

import math

from baregrad.linalg.checking import refuse_if
from baregrad.linalg.factoring import take_rows
from baregrad.linalg.orthogonal import qr_factor, scale_of, signed, turned_back
from baregrad.linalg.spectral.bidiagonal import made_bidiagonal
from baregrad.linalg.spectral.dividing import SMALL, divided
from baregrad.linalg.spectral.dividing_rows import divided_rows
from baregrad.linalg.spectral.rotations import NOT_FINITE, eigen_by_rotations, singular_by_rotations
from baregrad.linalg.spectral.tridiagonal import made_tridiagonal
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored


def finite(x: Tensor) -> Tensor:
    """X (B, m, n), all NaN where an element is not finite. Raises LinAlgError if it may look."""
    is_finite = x.isfinite().all(dim=(1, 2), keepdim=True)
    refuse_if(lambda: ~is_finite, NOT_FINITE, "look at where infinities, NaN or overflow come from")
    return is_finite.where(x, math.nan)


def eigen_factor(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (B, n), rising, and eigenvectors as columns (B, n, n) of symmetric x."""
    if 0 in x.shape:
        return x.abs()[:, :, :0].sum(dim=2), x
    if x.shape[-1] <= SMALL and not x.is_complex():
        return eigen_by_rotations(x)
    scale = scale_of(x)
    made = made_tridiagonal(finite(stored(x / scale)))
    if x.is_complex():
        values, vectors = _divided_phases(made.diagonal, made.beside)
    else:
        values, vectors = divided(made.diagonal, made.beside)
    return values * scale.squeeze(2), turned_back(vectors, made.steps, made.size)


def _divided_phases(diagonal: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """`divided` for a Hermitian matrix: real between phases, each the one before times another."""
    size = below.abs()
    phases = (size == 0).where(1.0, below / (size == 0).where(1.0, size))
    phases = phases[:, :-1].cumprod(1)
    one = phases.ones_like()[:, :1] if phases.shape[1] else diagonal.ones_like()
    phases = stored(Tensor.cat(one, phases / phases.abs(), dim=1))
    values, vectors = divided(stored(diagonal.real), stored(size))
    return values, stored(phases.unsqueeze(2) * vectors)


def complex_singular_factor(x: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """`singular_factor` of complex x (B, m, n), m >= n; its last part is V.mH.

    By the eigenvectors of [[0, x.mH], [x, 0]], which hold those of both sides.
    """
    count = x.shape[2]
    outer, square = qr_factor(x, width)
    square = stored(square[:, :count])
    if 0 in x.shape:
        return outer, square.real[:, :0].sum(dim=1), square
    scale = scale_of(square)
    square = stored(square / scale)
    both = Tensor.cat(square.mH.pad((count, 0)), square.pad((0, count)), dim=1)
    _, vectors = eigen_factor(stored(both))
    right, _ = qr_factor(stored(vectors[:, :count].flip(2)[:, :, :count]), count)
    left, upper = qr_factor(stored(square @ right), count)
    values = stored(upper.diagonal(0, 1, 2))
    left = stored(left * signed(values.abs().ones_like(), values).unsqueeze(1))
    values = stored(values.abs())
    order = stored(values.argsort(dim=1, descending=True))
    left, right = (take_rows(stored(part.mT), order).mT for part in (left, right))
    left = stored(outer[:, :, :count] @ left)
    if width > count:
        left = left.cat(outer[:, :, count:], dim=2)
    return left, values.gather(1, order) * scale.squeeze(2), right.mH


def singular_factor(x: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """U (B, m, width), singular values (B, n), descending, V.T (B, n, n) of x (B, m, n), m >= n.

    width: n, or m for more columns that are orthogonal to the others.
    """
    rows, count = x.shape[1:]
    if 0 in x.shape:
        empty, upper = qr_factor(x, width)
        return empty, upper[:, :0].sum(dim=1), upper[:, :count]
    if count <= SMALL:
        return singular_by_rotations(x, width)
    scale = scale_of(x)
    outer: Tensor | None = None
    square = stored(x / scale)
    if rows > count:
        outer, square = qr_factor(square, width)
        square = stored(square[:, :count])
    made = made_bidiagonal(finite(square))
    # In float64: squares of what is small beside the whole are no normal numbers of float32, and
    # vectors made of them are not orthogonal.
    parts = divided_rows(made.diagonal.double(), made.above.double())
    left, values, right = (part.cast(x.dtype) for part in parts)
    left = turned_back(left, made.left, made.size)
    right = turned_back(right, made.right, made.size)
    if outer is not None:
        left = outer[:, :, :count] @ left
        if width > count:
            left = left.cat(outer[:, :, count:], dim=2)
    return left, values * scale.squeeze(2), right.mT


"""Symmetric and Hermitian matrices made tridiagonal by reflections, whose products come in blocks.

Half of the work is products of the whole matrix with one vector a reflection, the other half
products of matrices (Dongarra, Hammarling and Sorensen, "Block reduction of matrices to condensed
forms", 1989). Matrices here are of shape (B, n, n), float32, float64 or complex.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from baregrad.dtypes import finfo
from baregrad.linalg.blocks import block, runs, stepped
from baregrad.linalg.factoring import BLOCK, corner_of, inverse_lower, shifted
from baregrad.linalg.orthogonal import Reflections, signed, squares, windowed
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored


class Tridiagonal(NamedTuple):
    """Diagonal (B, n), what is beside it (B, n), of which the last counts for nothing.

    The matrix is that one between the product of the steps, of `size` rows, and its adjoint.
    """

    diagonal: Tensor
    beside: Tensor
    steps: tuple[Reflections, ...]
    size: int


def reflection(x: Tensor, corner: Tensor, behind: Tensor) -> tuple[Tensor, Tensor]:
    """A vector v of I - v v.mH by which x (B, n) has zeros behind a corner: (B, n), (B, 1).

    Then what stands at the corner after it. corner: (1, n), one 1; behind: (1, n), ones. Places
    before the corner do not count, and |v|**2 is 2, or 0 where nothing is to be done. The largest
    elements of the matrix are about 1, and what has no exact squares counts as 0.
    """
    least = finfo(x.dtype).smallest_normal / finfo(x.dtype).eps ** 2
    first = stored((x * corner).sum(dim=1, keepdim=True))
    rest = stored(squares(x * behind).sum(dim=1, keepdim=True))
    length = (rest + squares(first)).sqrt()
    # Both terms have one sign, so nothing cancels.
    other = stored(signed(length, first))
    factor = (length * (length + first.abs())).sqrt()
    is_done = rest <= least
    whole = (x * behind + (first + other) * corner) / is_done.where(1.0, factor)
    return stored(is_done.where(0.0, whole)), is_done.where(first, -other)


def turns_of(vectors: Tensor) -> Tensor:
    """S (B, w, w) of I - V S V.mH, the last of the reflections V (B, n, w) applied last."""
    unit = (vectors.mH @ vectors).tril(-1)
    one = Tensor.eye(vectors.shape[2], dtype=vectors.dtype, device=vectors.device)
    return inverse_lower(unit + one)


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrices (B, m, n) times vectors (B, n)."""
    return stored((matrix * vector.unsqueeze(1)).sum(dim=2))


def without(x: Tensor, rows: Tensor, factors: Tensor, vector: Tensor) -> Tensor:
    """x (B, n) less the sum of rows (B, k, n), each times its factor's (B, k, m) with a vector."""
    return stored(x - (rows * times(factors, vector).unsqueeze(2)).sum(dim=1))


def pushed(row: Tensor, rows: Tensor) -> Tensor:
    """A row (B, n) before others (B, k, n), of which the last goes."""
    return stored(Tensor.cat(row.unsqueeze(1), rows[:, :-1], dim=1))


def moved_on(corner: Tensor, behind: Tensor) -> tuple[Tensor, Tensor]:
    """The next corner (1, n), and what is behind it."""
    corner = stored(corner[:, :-1].pad((1, 0)))
    return corner, stored(behind - corner)


@block
def _step(left: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Some columns of what is left (B, n, n): vectors (B, n, w), turns (B, w, w).

    Then the diagonal and what is beside it (B, w), and what is left. Each column does the same:
    what differs between them is in masks, so that one set of kernels serves all.
    """
    places = Tensor.arange(left.shape[1], device=left.device).unsqueeze(0)
    real = left.real.dtype if left.is_complex() else left.dtype
    corner, behind = stored((places == 0).cast(real)), stored((places > 0).cast(real))
    panel, diagonal, beside = stored(left[:, :BLOCK]), [], []
    # The newest first, and as many as there will be.
    ones = stored(panel.zeros_like())
    others = ones
    for _ in range(BLOCK):
        # The column is brought up to date when it is its turn.
        x = without(panel[:, 0].conj(), ones, others.conj(), corner)
        x = without(x, others, ones.conj(), corner)
        panel = stored(panel[:, 1:].pad((0, 0, 0, 1)))
        diagonal.append(stored((x * corner).sum(dim=1, keepdim=True)))
        corner, behind = moved_on(corner, behind)
        vector, edge = reflection(x, corner, behind)
        beside.append(stored(edge))
        # (I - v v.mH) A (I - v v.mH) = A - v w.mH - w v.mH.
        product = without(times(left, vector), ones, others.conj(), vector)
        product = without(product, others, ones.conj(), vector)
        onto = stored((product * vector.conj()).sum(dim=1, keepdim=True))
        other = stored(product - vector * (onto / 2))
        ones, others = pushed(vector, ones), pushed(other, others)
    vectors = stored(ones.flip(1).mT)
    others = stored(others.flip(1))
    rest = left - vectors @ others.conj() - others.mT @ vectors.mH
    parts = (Tensor.cat(*diagonal, dim=1), Tensor.cat(*beside, dim=1))
    return vectors, turns_of(vectors), *parts, shifted(rest, BLOCK, BLOCK)


def made_tridiagonal(x: Tensor) -> Tridiagonal:
    """The tridiagonal matrix of symmetric or Hermitian x (B, n, n), and what made it."""
    count = x.shape[-1]
    size = math.ceil(count / BLOCK) * BLOCK
    left = x.pad((0, size - count, 0, size - count))
    diagonals, besides, steps = [], [], []
    for first, number, extent in runs(size, size, BLOCK):
        left = corner_of(left, extent, extent)
        made, (left,) = stepped(_step, number, (left,))
        for place, (vectors, turns, diagonal, beside) in enumerate(made):
            steps.append(windowed(vectors, turns, first + place * BLOCK, size))
            diagonals.append(diagonal)
            besides.append(beside)
    diagonal, beside = Tensor.cat(*diagonals, dim=1), Tensor.cat(*besides, dim=1)
    return Tridiagonal(diagonal[:, :count], beside[:, :count], tuple(steps), size)

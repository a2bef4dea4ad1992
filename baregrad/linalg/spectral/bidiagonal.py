"""Square matrices made upper bidiagonal by reflections of rows and columns, in blocks.

As `tridiagonal` does it for symmetric matrices (Dongarra, Hammarling and Sorensen, "Block reduction
of matrices to condensed forms", 1989). Matrices here are of shape (B, n, n), float32 or float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from baregrad.linalg.blocks import block, runs, stepped
from baregrad.linalg.factoring import BLOCK, corner_of, shifted
from baregrad.linalg.orthogonal import Reflections, windowed
from baregrad.linalg.spectral.tridiagonal import (
    moved_on,
    pushed,
    reflection,
    times,
    turns_of,
    without,
)
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored


class Bidiagonal(NamedTuple):
    """Diagonal (B, n), what is above it (B, n), of which the last counts for nothing.

    The matrix is the bidiagonal one between the product of the left steps and the transpose of that
    of the right ones, all of `size` rows.
    """

    diagonal: Tensor
    above: Tensor
    left: tuple[Reflections, ...]
    right: tuple[Reflections, ...]
    size: int


class _Step(NamedTuple):
    """Vectors (B, n, w) and turns (B, w, w) of both sides, and diagonals (B, w)."""

    left_vectors: Tensor
    left_turns: Tensor
    right_vectors: Tensor
    right_turns: Tensor
    diagonal: Tensor
    above: Tensor


@block
def _step(left: Tensor) -> tuple[Tensor, ...]:
    """Some columns and rows of what is left (B, n, n), as `_Step`, then what is left."""
    places = Tensor.arange(left.shape[1], device=left.device).unsqueeze(0)
    corner, behind = stored((places == 0).cast(left.dtype)), stored((places > 0).cast(left.dtype))
    rows, columns = stored(left[:, :BLOCK]), stored(left[:, :, :BLOCK].mT)
    whole, diagonal, above = stored(left.mT), [], []
    # What is left of A is A - u y.T - x v.T, of all of these; the newest first.
    u = v = x = y = stored(rows.zeros_like())
    for _ in range(BLOCK):
        # The column and the row are brought up to date when it is their turn.
        column = without(without(columns[:, 0], u, y, corner), x, v, corner)
        one, edge = reflection(column, corner, behind)
        diagonal.append(stored(edge))
        product = without(without(times(whole, one), y, u, one), v, x, one)
        u, y = pushed(one, u), pushed(product, y)
        row = without(without(rows[:, 0], y, u, corner), v, x, corner)
        corner, behind = moved_on(corner, behind)
        other, edge = reflection(row, corner, behind)
        above.append(stored(edge))
        product = without(without(times(left, other), u, y, other), x, v, other)
        v, x = pushed(other, v), pushed(product, x)
        rows = stored(rows[:, 1:].pad((0, 0, 0, 1)))
        columns = stored(columns[:, 1:].pad((0, 0, 0, 1)))
    u, v, x, y = (stored(each.flip(1)) for each in (u, v, x, y))
    ones, others = stored(u.mT), stored(v.mT)
    rest = shifted(left - ones @ y - x.mT @ v, BLOCK, BLOCK)
    parts = Tensor.cat(*diagonal, dim=1), Tensor.cat(*above, dim=1), rest
    return (ones, turns_of(ones), others, turns_of(others), *parts)


def made_bidiagonal(x: Tensor) -> Bidiagonal:
    """The bidiagonal matrix of x (B, n, n), and the reflections that made it."""
    count = x.shape[-1]
    size = math.ceil(count / BLOCK) * BLOCK
    rest = x.pad((0, size - count, 0, size - count))
    steps: list[tuple[_Step, int]] = []
    for first, number, extent in runs(size, size, BLOCK):
        rest = corner_of(rest, extent, extent)
        made, (rest,) = stepped(_step, number, (rest,))
        steps += [(_Step(*parts), first + place * BLOCK) for place, parts in enumerate(made)]

    return Bidiagonal(
        Tensor.cat(*(step.diagonal for step, _ in steps), dim=1)[:, :count],
        Tensor.cat(*(step.above for step, _ in steps), dim=1)[:, :count],
        tuple(windowed(step.left_vectors, step.left_turns, at, size) for step, at in steps),
        tuple(windowed(step.right_vectors, step.right_turns, at, size) for step, at in steps),
        size,
    )

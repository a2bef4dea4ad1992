"""QR factors, by blocks of reflections.

Matrices here are of shape (B, m, n), float32, float64 or complex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.linalg.blocks import block, runs, stepped
from baregrad.linalg.factoring import block_of, corner_of, inverse_lower, placed, shifted
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored


def scale_of(x: Tensor) -> Tensor:
    """The power of two next to the largest element of each matrix, 1 for zeros: (B, 1, 1).

    What is divided by it has squares that neither overflow nor vanish all.
    """
    largest = x.abs().amax(dim=(1, 2), keepdim=True)
    usual = (largest > 0) & largest.isfinite()
    exponent = usual.where(largest, 1.0).log2().floor()
    most = 120 if x.dtype in (dtypes.float32, dtypes.complex64) else 1000
    return exponent.clamp(-most, most).exp2()


def squares(x: Tensor) -> Tensor:
    """|x|**2, real."""
    return (x.abs() if x.is_complex() else x).square()


def signed(size: Tensor, x: Tensor) -> Tensor:
    """A size with the sign of x, + for 0; of complex x with its phase."""
    if not x.is_complex():
        return (x < 0).where(-size, size)
    length = x.abs()
    return (length == 0).where(size, x / (length == 0).where(1.0, length) * size)


# --- QR -------------------------------------------------------------------------------------------


@block
def _qr_step(left: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Some reflections of what is left (B, m, n): their vectors v, of |v|**2 = 2, as columns.

    Then S, by which Q.mH = I - v S v.mH, the rows of R, and what is left.
    """
    panel, vectors = left[:, :, :width], []
    for column in range(width):
        # Of its own scale, or squares of small columns would vanish. The vector is the same.
        largest = stored(panel[:, :, :1].abs().amax(dim=1, keepdim=True))
        x = stored(panel[:, :, :1] / (largest == 0).where(1.0, largest))
        below = squares(x[:, 1:]).sum(dim=1, keepdim=True)
        corner = x[:, :1]
        length = stored((below + squares(corner)).sqrt())
        # Both terms have one sign, so nothing cancels.
        first = corner + signed(length, corner)
        factor = (length * (length + corner.abs())).sqrt()
        is_done = below == 0
        whole = Tensor.cat(first, x[:, 1:], dim=1)
        vector = stored(is_done.where(0.0, whole / is_done.where(1.0, factor)))
        onto = stored((vector.conj() * panel).sum(dim=1, keepdim=True))
        vectors.append(placed(vector, column, left.shape[1]))
        panel = stored(shifted(panel - vector * onto, 1, 1))
    found = stored(Tensor.cat(*vectors, dim=2))
    unit = (found.mH @ found).tril(-1) + Tensor.eye(width, dtype=left.dtype, device=left.device)
    turns = inverse_lower(unit)
    left = stored(left - found @ stored(turns @ stored(found.mH @ left)))
    return found, turns, left[:, :width], shifted(left, width, width)


class Reflections(NamedTuple):
    """I - V @ turns.mH @ V.mH: vectors V (B, h, w), of the last h rows, and turns (B, w, w)."""

    vectors: Tensor
    turns: Tensor


def windowed(vectors: Tensor, turns: Tensor, first: int, size: int) -> Reflections:
    """Reflections of what is left (B, h, w) without `first` rows of `size`: of the last h rows."""
    height = vectors.shape[1]
    return Reflections(placed(vectors, first + height - size, height), turns)


@block
def _reflect(x: Tensor, vectors: Tensor, turns: Tensor) -> Tensor:
    """Q @ x of the reflections of one step."""
    found: Tensor = stored(x - vectors @ stored(turns.mH @ stored(vectors.mH @ x)))
    return found


def turned_back(x: Tensor, steps: Sequence[Reflections], size: int) -> Tensor:
    """The product of all steps, of `size` rows, with x (B, n, k) of which the others are zeros."""
    count = x.shape[1]
    x = x.pad((0, 0, 0, size - count))
    # What the next step leaves as it is, and what it turns.
    above = x
    x = x[:, :0]
    for vectors, turns in reversed(steps):
        start = size - vectors.shape[1]
        if start < above.shape[1]:
            x = stored(Tensor.cat(above[:, start:], x, dim=1))
            above = above[:, :start]
        x = _reflect(x, vectors, turns)
    return Tensor.cat(above, x, dim=1)[:, :count]


def _reflected(x: Tensor) -> tuple[Tensor, list[Reflections], int]:
    """R (B, k, n) of x (B, m, n), none of whose extents is 0, and reflections of so many rows.

    k is at least min(m, n), and what is behind that is zeros.
    """
    rows, columns = x.shape[1:]
    scale = scale_of(x)
    count = min(rows, columns)
    width = block_of(count)
    size = math.ceil(count / width) * width
    left = (x / scale).pad((0, max(size - columns, 0), 0, max(size - rows, 0)))
    high, wide = left.shape[1:]
    uppers, steps = [], []
    for first, number, extent in runs(wide, size, width):
        left = corner_of(left, high - wide + extent, extent)
        made, (left,) = stepped(_qr_step, number, (left,), (width,))
        for place, (vectors, turns, upper) in enumerate(made):
            at = first + place * width
            steps.append(windowed(vectors, turns, at, high))
            uppers.append(upper[:, :, : wide - at].pad((at, 0)))
    return (Tensor.cat(*uppers, dim=1).triu() * scale)[:, :, :columns], steps, high


def qr_factor(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Q (B, m, width) and R (B, width, n), of which x = Q @ R: `width` is min(m, n), or m.

    Signs are those of LAPACK; of complex x, R's diagonal has phases.
    """
    batch, rows, columns = x.shape
    if 0 in x.shape:
        one = Tensor.eye(rows, width, dtype=x.dtype, device=x.device)
        upper = Tensor.zeros(batch, width, columns, dtype=x.dtype, device=x.device)
        return one.expand(batch, rows, width), upper
    upper, steps, high = _reflected(x)
    upper = upper[:, :width]
    if upper.shape[1] < width:
        upper = upper.pad((0, 0, 0, width - upper.shape[1]))
    found = Tensor.eye(high, width, dtype=x.dtype, device=x.device).expand(batch, high, width)
    return turned_back(found, steps, high)[:, :rows], upper


def packed_qr(x: Tensor) -> tuple[Tensor, Tensor]:
    """R of real x (B, m, n), below it vectors w, and tau (B, min(m, n)): I - tau * w @ w.T each.

    The first element of w, on the diagonal, is 1; where nothing is to be done tau is 0.
    """
    rows, columns = x.shape[1:]
    count = min(rows, columns)
    if 0 in x.shape:
        return x, x.new_zeros(x.shape[0], count)
    upper, steps, high = _reflected(x)
    columns_of = [placed(step.vectors, high - step.vectors.shape[1], high) for step in steps]
    vectors = stored(Tensor.cat(*columns_of, dim=2)[:, :rows, :count])
    first = vectors.diagonal(0, 1, 2)
    below = (vectors / (first == 0).where(1.0, first).unsqueeze(1)).tril(-1)
    upper = upper[:, :count].pad((0, 0, 0, rows - count))
    return upper + below.pad((0, columns - count)), first.square()

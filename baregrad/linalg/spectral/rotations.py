"""Eigenvectors and singular vectors of small matrices, by rotations of pairs of rows.

Matrices here are of shape (B, m, n), float32 or float64.
"""

from __future__ import annotations

import math

from baregrad.base.errors import LinAlgError
from baregrad.dtypes import finfo
from baregrad.linalg.blocks import block, is_captured, repeated
from baregrad.linalg.factoring import take_rows
from baregrad.linalg.orthogonal import qr_factor, scale_of
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# Rounds of rotations that one replay makes.
_ROUNDS = 8
NOT_FINITE = "eigenvalues and singular values are of finite matrices"
_MOST_SWEEPS = 60
# Sweeps in a captured function, which cannot ask whether it needs another: those that it does not
# need change nothing.
_SWEEPS_CAPTURED = 30


@block
def _rotate(x: Tensor, off: Tensor, length: int, limit: float) -> tuple[Tensor, Tensor]:
    """Some rounds in which each row is made orthogonal to one other, another in each round.

    x: (B, 2h, m), of whose rows the first `length` elements are meant, the others go along. Row i
    meets row h + i, and all but row 0 move on by one place then. off: (B, h), the largest cosines
    that were met. Rows whose cosine is under `limit` stay as they are, and so do rows that are
    zeros next to the largest: what is left of dependent rows would shrink in each sweep until its
    squares are no longer exact.
    """
    least = finfo(x.dtype).eps ** 4
    half = x.shape[1] // 2
    places = Tensor.arange(2 * half, device=x.device)
    # Where the row was that comes to a place.
    moved = (places < half).where(places - 1, places + 1)
    moved = (places == 0).where(0, (places == 1).where(half, moved))
    moved = stored((places == 2 * half - 1).where(max(half, 2) - 1, moved))
    for _ in range(_ROUNDS):
        one, other = x[:, :half], x[:, half:]
        a, b = one[:, :, :length], other[:, :, :length]
        square_a = stored((a * a).sum(dim=2))
        square_b = stored((b * b).sum(dim=2))
        product = stored((a * b).sum(dim=2))
        lengths = square_a.sqrt() * square_b.sqrt()
        is_none = lengths <= least
        cosine = is_none.where(0.0, product.abs() / is_none.where(1.0, lengths))
        is_turned = stored(cosine > limit)
        zeta = (square_b - square_a) / (2 * is_turned.where(product, 1.0))
        size = zeta.abs()
        # Of the two angles the smaller; 1 + size**2 may not overflow.
        root = (size > 1e8).where(size, (1 + size.clamp(max=1e8).square()).sqrt())
        tangent = (zeta < 0).where(-1.0, 1.0) / (size + root)
        cos = is_turned.where((1 + tangent.square()).rsqrt(), 1.0)
        sin = is_turned.where(tangent * (1 + tangent.square()).rsqrt(), 0.0)
        off = stored(off.maximum(cosine))
        cos = stored(Tensor.cat(cos, cos, dim=1).reshape(-1, 2, half, 1))
        sin = stored(Tensor.cat(-sin, sin, dim=1).reshape(-1, 2, half, 1))
        pairs = x.reshape(-1, 2, half, x.shape[2])
        # Stored before its rows move on: each is a loop along rows then.
        turned = stored(cos * pairs + sin * pairs.flip(1))
        x = stored(turned.reshape(*x.shape)[:, moved])
    return x, off


def rotated(x: Tensor, length: int) -> Tensor:
    """x (B, n, m) with rows turned into each other until their first parts are orthogonal.

    length: how many elements that part has. Rows are in no order of size, and one more, of zeros,
    makes their number even. Raises LinAlgError where x is not finite or the rows are not
    orthogonal after `_MOST_SWEEPS` sweeps. In a captured function, which looks at no numbers,
    a matrix whose rows are not orthogonal after `_SWEEPS_CAPTURED` sweeps is NaN.
    """
    batch, count = x.shape[:2]
    rows = max(count + count % 2, 2)
    x = x.pad((0, 0, 0, rows - count))
    # Sums of products are rounded by about so much.
    limit = finfo(x.dtype).eps * max(4.0, math.sqrt(length))
    replays = math.ceil((rows - 1) / _ROUNDS)
    none = Tensor.zeros(batch, rows // 2, dtype=x.dtype, device=x.device)
    if is_captured(x):
        sweeps = _SWEEPS_CAPTURED
        x, _ = repeated(_rotate, (sweeps - 1) * replays, (x, none), (length, limit))
        x, off = repeated(_rotate, replays, (x, none), (length, limit))
        x = (off.amax(dim=1).reshape(batch, 1, 1) <= limit).where(x, math.nan)
    else:
        sweeps = 0
        for _ in range(_MOST_SWEEPS):
            sweeps += 1
            x, off = repeated(_rotate, replays, (x, none), (length, limit))
            # Where no row was turned, none would be in another sweep.
            if _has_settled(off.amax().item(), limit):
                break
        else:
            raise LinAlgError(
                "rotations of rows did not make them orthogonal", found=f"{_MOST_SWEEPS} sweeps",
                hint="scale rows and columns to sizes that are closer together",
            )  # fmt: skip
    rounds = sweeps * replays * _ROUNDS
    # Where each row began, so that equal values come in one order after any number of sweeps.
    return x[:, Tensor(_places_after(rounds, rows), device=x.device)]


def _has_settled(cosine: float, limit: float) -> bool:
    """Whether the largest cosine of a sweep is small enough. Raises LinAlgError for NaN."""
    if math.isnan(cosine):
        raise LinAlgError(
            NOT_FINITE,
            found="infinities, NaN, or sums that overflow",
        )  # fmt: skip
    return cosine <= limit


def _places_after(rounds: int, rows: int) -> list[int]:
    """Where each of the rows of `_rotate` is after some rounds: row 0 stays, the others circle."""
    half = rows // 2
    circle = [*range(1, half), *reversed(range(half, rows))]
    turn = rounds % len(circle)
    found = list(range(rows))
    for place, row in enumerate(circle):
        found[row] = circle[(place + turn) % len(circle)]
    return found


@block
def _bound_of(x: Tensor) -> Tensor:
    """A number a little above the largest absolute eigenvalue of x (B, n, n), 1 for zeros."""
    size = x.abs().sum(dim=2, keepdim=True).amax(dim=1, keepdim=True)
    size = stored((size == 0).where(1.0, size))
    power = stored(x / size)
    for _ in range(3):
        power = stored(power @ power)
    norm = power.square().sum(dim=(1, 2), keepdim=True).sqrt()
    found = 1.05 * size * norm.sqrt().sqrt().sqrt()
    return (found == 0).where(size, found)


def eigen_by_rotations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (B, n), ascending, and eigenvectors as columns (B, n, n) of symmetric x."""
    count = x.shape[-1]
    scale = scale_of(x)
    x = stored(x / scale)
    # Above zero, rows that are orthogonal are eigenvectors, each times its eigenvalue.
    bound = 1.5 * _bound_of(x)
    one = Tensor.eye(count, dtype=x.dtype, device=x.device)
    rows = rotated(x + bound * one, count)
    return _eigen_whole(x, rows, scale)


@block
def _eigen_whole(x: Tensor, rows: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    count = x.shape[-1]
    squares = rows.square().sum(dim=2, keepdim=True)
    # Rows of zeros are those that made their number even.
    order = squares.squeeze(2).argsort(dim=1, descending=True)[:, :count]
    rows = stored(rows / (squares == 0).where(1.0, squares).sqrt())
    vectors = _nearest_orthogonal(take_rows(rows, order))
    values = stored((vectors * stored(vectors @ x)).sum(dim=2))
    order = stored(values.argsort(dim=1))
    vectors = take_rows(vectors, order)
    return values.gather(1, order) * scale.squeeze(2), vectors.mT


def singular_by_rotations(x: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """U (B, m, width), singular values (B, n), descending, V.T (B, n, n) of x (B, m, n), m >= n.

    width: n, or m for more columns that are orthogonal to the others.
    """
    count = x.shape[-1]
    scale = scale_of(x)
    outer, upper = qr_factor(x / scale, width)
    upper = upper[:, :count]
    one = Tensor.eye(count, dtype=x.dtype, device=x.device).expand(*upper.shape)
    rows = rotated(Tensor.cat(upper, one, dim=2), count)
    values, vectors, turned = _singular_rows(rows, upper)
    # Orthogonal also where a singular value is 0.
    inner, signs = qr_factor(vectors.mT, count)
    signs = (signs.diagonal(0, 1, 2) < 0).where(-1.0, 1.0).unsqueeze(1)
    left = outer[:, :, :count] @ turned.mT
    if width > count:
        left = left.cat(outer[:, :, count:], dim=2)
    return left, values * scale.squeeze(2), (inner * signs).mT


@block
def _singular_rows(rows: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values, and both parts of rotated rows, in the order of the values."""
    count = upper.shape[1]
    values = stored(rows[:, :, :count].square().sum(dim=2).sqrt())
    # The row that made their number even has no second part, the others one of length 1.
    is_real = rows[:, :, count:].square().sum(dim=2) > 0.5
    order = stored(is_real.where(values, -1.0).argsort(dim=1, descending=True)[:, :count])
    rows = stored(take_rows(rows, order))
    turned = rows[:, :, count:]
    turned = _nearest_orthogonal(turned)
    vectors = stored(turned @ upper)
    return vectors.square().sum(dim=2).sqrt(), vectors, turned


def _nearest_orthogonal(rows: Tensor) -> Tensor:
    """One step of rows that are nearly orthonormal towards the nearest that are."""
    product = stored(rows @ rows.mT)
    found: Tensor = stored(1.5 * rows - 0.5 * (product @ rows))
    return found

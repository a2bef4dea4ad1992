"""Eigenvalues and eigenvectors of matrices that need not be symmetric, by their Schur form.

Reflections make a matrix upper Hessenberg; QR steps, each shifted by an eigenvalue of the last two
rows that still hang together, make it a triangle (Francis, "The QR transformation", 1961); vectors
of the triangle come by substitution. A step is two loops of the graph over the rows and then the
columns, each of which reads one row at a time. Matrices here are complex, of shape (B, n, n).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from baregrad.dtypes import dtypes, finfo
from baregrad.func.branches import while_loop
from baregrad.func.loops import scan
from baregrad.linalg.blocks import is_captured
from baregrad.linalg.checking import refuse_if
from baregrad.linalg.orthogonal import scale_of, squares
from baregrad.linalg.spectral.tridiagonal import reflection
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# QR steps there are at most for each row, as many as LAPACK's; every tenth that finds no eigenvalue
# has a shift that no symmetry of the matrix can have made.
_MOST_STEPS = 30
_UNUSUAL = 10


class _Form(NamedTuple):
    """A = turns @ left @ turns.mH, the steps so far, those since the last value (B, 1), its place.

    goes_on: (B, 1), whether a matrix is not a triangle yet.
    """

    left: Tensor
    turns: Tensor
    steps: Tensor
    since: Tensor
    last: Tensor
    goes_on: Tensor


def general_eigen_factor(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (B, n), in no order, and eigenvectors of length 1 as columns of finite x.

    Of each vector the largest element is real. Raises LinAlgError where the search for the values
    does not end; in a captured function the matrix's results are NaN then.
    """
    count = x.shape[-1]
    if 0 in x.shape:
        return x.sum(dim=2), x
    scale = scale_of(x)
    left = stored(x / scale)
    one = Tensor.eye(count, dtype=x.dtype, device=x.device)
    turns = stored(one.expand(*x.shape) + left.zeros_like())
    if count > 2:
        left, turns = _hessenberg(left, turns)
    if count > 1:
        left, turns = _triangle(left, turns)
    values = left.diagonal(0, 1, 2)
    vectors = turns @ _substituted(left) if count > 1 else turns
    size = vectors.abs()
    largest = vectors.gather(1, size.argmax(dim=1, keepdim=True))
    vectors = vectors / largest.abs() * (largest.conj() / largest.abs())
    vectors = vectors / squares(vectors).sum(dim=1, keepdim=True).sqrt()
    return stored(values * scale.squeeze(2)), stored(vectors)


def _hessenberg(left: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """`left` without what is below the diagonal beside its own, and what turns it back."""
    count = left.shape[-1]
    places = Tensor.arange(count, device=left.device)
    column = Tensor.arange(count - 2, device=left.device).reshape(-1, 1, 1)
    real = left.real.dtype
    masks = [mask.cast(real) for mask in (
        places == column, places == column + 1, places > column + 1
    )]

    def step(carried: tuple[Tensor, Tensor], read: list[Tensor]) -> tuple[object, None]:
        left, turns = carried
        own, corner, behind = read
        vector, _ = reflection(stored((left * own.unsqueeze(1)).sum(dim=2)), corner, behind)
        across = vector.conj().unsqueeze(1)
        left = stored(left - vector.unsqueeze(2) * stored(across @ left))
        left = stored(left - stored(left @ vector.unsqueeze(2)) * across)
        turns = stored(turns - stored(turns @ vector.unsqueeze(2)) * across)
        is_gone = (behind.unsqueeze(2) * own.unsqueeze(1)) > 0
        return (stored(is_gone.where(0.0, left)), turns), None

    found: tuple[Tensor, Tensor] = scan(step, (left, turns), masks)[0]
    return found


def _triangle(left: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """The Schur form of a Hessenberg matrix, and what turns it back."""
    batch, count = left.shape[:2]
    zero = Tensor.zeros(batch, 1, dtype=dtypes.int64, device=left.device)
    begun = _Form(left, turns, zero[:1].sum(), zero, zero - 1, zero == 0)
    limit = _MOST_STEPS * count

    def goes_on(*carried: Tensor) -> Tensor:
        form = _Form(*carried)
        return form.goes_on.any() & (form.steps <= limit)

    found = _Form(*while_loop(goes_on, lambda *carried: tuple(_stepped(_Form(*carried))), begun))
    refuse_if(
        lambda: found.goes_on, "QR steps did not find all eigenvalues",
        "scale rows and columns to sizes that are closer together",
    )
    if not is_captured(left):
        return found.left, found.turns
    is_done = found.goes_on.logical_not().unsqueeze(2)
    return is_done.where(found.left, math.nan), is_done.where(found.turns, math.nan)


def _stepped(form: _Form) -> _Form:
    """One QR step of the lowest rows that hang together; none of matrices that are triangles."""
    left, turns = form.left, form.turns
    count = left.shape[1]
    places = Tensor.arange(count, device=left.device)
    size = left.diagonal(0, 1, 2).abs()
    both = stored(size[:, 1:] + size[:, :-1])
    both = (both == 0).where(left.abs().amax(dim=(1, 2)).unsqueeze(1), both)
    below = left.diagonal(-1, 1, 2).abs()
    hangs = stored(below > finfo(left.dtype).eps * both)
    is_gone = (places.unsqueeze(1) == places + 1) & ~hangs.pad((0, 1)).unsqueeze(1)
    left = stored(is_gone.where(0.0, left))
    # Rows from `first` to `last + 1`.
    pairs = places[:-1]
    last = stored(hangs.where(pairs, -1).amax(dim=1, keepdim=True))
    first = stored((~hangs & (pairs < last)).where(pairs + 1, 0).amax(dim=1, keepdim=True))
    goes_on = stored(last >= 0)
    since = stored((last == form.last).where(form.since + 1, 0))
    is_meant = (places >= first) & (places <= last + 1) & goes_on
    shift = _shift(left, last.clamp(min=0), since % _UNUSUAL == _UNUSUAL - 1)
    shifts = stored(is_meant.where(shift, 0.0).diag_embed())
    is_turned = (pairs >= first) & (pairs <= last) & goes_on
    upper, one, other = _rows_turned(stored(left - shifts), is_turned)
    both = stored(Tensor.cat(upper, turns, dim=1))
    both = _columns_turned(both, one, other, is_turned)
    left = is_meant.any(dim=1, keepdim=True).unsqueeze(2).where(both[:, :count] + shifts, left)
    return _Form(stored(left), stored(both[:, count:]), form.steps + 1, since, last, goes_on)


def _shift(left: Tensor, place: Tensor, is_unusual: Tensor) -> Tensor:
    """The eigenvalue of two rows from `place` on (B, 1) that is nearer to their last element."""
    count = left.shape[1]
    flat = left.reshape(left.shape[0], count * count)
    at = stored(place * (count + 1))
    a, b, c, d = (stored(flat.gather(1, at + more)) for more in (0, 1, count, count + 1))
    half, product = (a - d) / 2, b * c
    root = stored((half * half + product).sqrt())
    sum_, difference = stored(half + root), stored(half - root)
    larger = (sum_.abs() >= difference.abs()).where(sum_, difference)
    is_none = larger == 0
    usual = d - is_none.where(0.0, product / is_none.where(1.0, larger))
    found: Tensor = stored(is_unusual.where(d + 0.75 * c.abs(), usual))
    return found


def _rows_turned(left: Tensor, is_turned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The triangle that rotations of neighbouring rows make, and both elements of each (B, n - 1).

    A rotation is [[p, q], [-q.conj(), p.conj()]].
    """
    count = left.shape[1]
    own = Tensor.eye(count - 1, count, dtype=dtypes.bool, device=left.device).unsqueeze(1)

    def step(
        row: Tensor, read: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        following, own, is_turned = read
        a = stored(own.where(row, 0.0).sum(dim=1, keepdim=True))
        b = stored(own.where(following, 0.0).sum(dim=1, keepdim=True))
        most = stored(a.abs().maximum(b.abs()))
        is_turned = stored(is_turned & (most > 0))
        most = is_turned.where(most, 1.0)
        a, b = stored(a / most), stored(b / most)
        length = stored((squares(a) + squares(b)).sqrt())
        length = is_turned.where(length, 1.0)
        one = stored(is_turned.where(a.conj() / length, 1.0))
        other = stored(is_turned.where(b.conj() / length, 0.0))
        upper = is_turned.where(one * row + other * following, row)
        lower = is_turned.where(one.conj() * following - other.conj() * row, following)
        lower = (own & is_turned).where(0.0, lower)
        return stored(lower), (stored(upper), one, other)

    rows = stored(left.movedim(1, 0))
    masks = is_turned.mT.unsqueeze(2)
    end, (upper, one, other) = scan(step, rows[0], (rows[1:], own, masks))
    whole = Tensor.cat(upper, end.unsqueeze(0), dim=0).movedim(0, 1)
    return stored(whole), one, other


def _columns_turned(x: Tensor, one: Tensor, other: Tensor, is_turned: Tensor) -> Tensor:
    """x (B, m, n) times the adjoints of rotations of neighbouring columns, in turn."""

    def step(
        column: Tensor, read: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        following, one, other, is_turned = read
        found = is_turned.where(column * one.conj() + following * other.conj(), column)
        rest = is_turned.where(following * one - column * other, following)
        return stored(rest), stored(found)

    columns = stored(x.movedim(2, 0))
    masks = is_turned.mT.unsqueeze(2)
    end, found = scan(step, columns[0], (columns[1:], one, other, masks))
    whole: Tensor = stored(Tensor.cat(found, end.unsqueeze(0), dim=0).movedim(0, 2))
    return whole


def _substituted(upper: Tensor) -> Tensor:
    """Eigenvectors of triangles, as columns of triangles whose elements are at most 1.

    Where two values are as good as one they are taken apart by what does not count, as LAPACK does.
    """
    count = upper.shape[1]
    one = Tensor.eye(count, dtype=dtypes.bool, device=upper.device)
    values = upper.diagonal(0, 1, 2)
    precision = finfo(upper.dtype)
    least = stored(precision.eps * values.abs() + precision.smallest_normal / precision.eps)
    places = Tensor.arange(count, device=upper.device)
    above = stored((places.unsqueeze(0) > places.unsqueeze(1)).unsqueeze(1))

    def step(vectors: Tensor, read: tuple[Tensor, ...]) -> tuple[Tensor, None]:
        row, own, is_behind = read
        value = own.where(row, 0.0).sum(dim=1, keepdim=True)
        known = stored(is_behind.where(row, 0.0).unsqueeze(1) @ vectors).squeeze(1)
        gap = stored(value - values)
        is_near = gap.abs() < least
        gap = is_near.where(least.cast(gap.dtype), gap)
        found = stored(own.where(1.0, is_behind.where(-known / gap, 0.0)))
        factor = 1 / found.abs().maximum(1.0)
        vectors = own.unsqueeze(2).where(found.unsqueeze(1), vectors)
        return stored(vectors * factor.unsqueeze(1)), None

    rows = stored(upper.movedim(1, 0))
    found: Tensor = scan(
        step, stored(upper.zeros_like()), (rows, one.unsqueeze(1), above), reverse=True
    )[0]
    return found

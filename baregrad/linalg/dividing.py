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
from typing import NamedTuple

from baregrad.base.errors import LinAlgError
from baregrad.dtypes import finfo
from baregrad.linalg.blocks import block, is_captured
from baregrad.linalg.factoring import take_rows
from baregrad.linalg.rotations import eigen_by_rotations
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# The largest blocks whose eigenvectors are found by rotations.
SMALL = 32
# Steps towards the zeros that one replay makes, and how many replays there are at most.
_STEPS = 4
_MOST_REPLAYS = 30
# Replays in a captured function, which cannot ask whether it needs another.
_REPLAYS_CAPTURED = 6


class _Poles(NamedTuple):
    """The function 1 + sum(weights / (poles - x)), of which there are M with n poles.

    poles: (M, n), rising where there is a weight, those without one behind them. signs: of the
    roots of the weights, 0 where there is none. places: (M, n), where the poles come from.
    bucket: (M, n), alike for columns that are turned into one by I - turn turn.T.
    """

    poles: Tensor
    weights: Tensor
    signs: Tensor
    places: Tensor
    bucket: Tensor
    turn: Tensor


class _Search(NamedTuple):
    """Where each zero is: x = origin + offset, between low and high, all (M, n).

    near and far: the poles next to it, less its origin. before: what the function was a step ago.
    """

    origin: Tensor
    near: Tensor
    far: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor
    before: Tensor
    is_done: Tensor


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
    found = _Poles(*_poles(values, vectors, between))
    search = _Search(*_begun(found.poles, found.weights))
    captured = is_captured(values)
    for _ in range(_REPLAYS_CAPTURED if captured else _MOST_REPLAYS):
        search = _Search(*_searched(found.poles, found.weights, *search))
        # A zero that is found stays as it is in other steps.
        if not captured and bool(search.is_done.all().item()):
            break
    else:
        if not captured:
            raise LinAlgError(
                "a zero between two poles was not found", found=f"{_MOST_REPLAYS * _STEPS} steps",
                hint="scale rows and columns to sizes that are closer together",
            )  # fmt: skip
    # Without columns that are turned into one all would be multiplied by 1, bit for bit.
    is_turned = captured or bool((found.turn != 0).any().item())
    values, vectors = _vectors(vectors, *found, search.origin, search.offset, is_turned)
    return search.is_done.where(values, math.nan) if captured else values, vectors


@block
def _poles(values: Tensor, vectors: Tensor, between: Tensor) -> tuple[Tensor, ...]:
    """The function whose zeros are the eigenvalues of two halves each, as `_Poles`."""
    batch, count = values.shape
    half = count // 2
    halves = vectors.reshape(batch, 2, half, half)
    sign = (between < 0).where(-1.0, 1.0)
    z = Tensor.cat(halves[:, 0, half - 1], halves[:, 1, 0] * sign, dim=1)
    # So much does not count, and has no exact squares.
    z = stored((z.abs() > finfo(z.dtype).eps ** 2).where(z, 0.0))
    size = values.abs().amax(dim=1, keepdim=True).maximum(between.abs())
    least = stored(4 * finfo(values.dtype).eps * (size == 0).where(1.0, size))
    order = stored(values.argsort(dim=1))
    d = stored(values.gather(1, order))
    # Poles that are as good as one are turned into one.
    bucket = stored(((d - d[:, :1]) / least).floor())
    is_last = bucket[:, :-1] != bucket[:, 1:]
    is_last = stored(is_last.pad((0, 1), value=True).gather(1, order.argsort(dim=1)))
    bucket = stored(bucket.gather(1, order.argsort(dim=1)))
    alike = stored((bucket.unsqueeze(2) == bucket.unsqueeze(1)).cast(z.dtype))
    length = stored((alike * z.square().unsqueeze(1)).sum(dim=2).sqrt())
    last = stored((alike * is_last.where(z.abs(), 0.0).unsqueeze(1)).sum(dim=2))
    is_turned = (alike.sum(dim=2) > 1.5) & (length > 0)
    signed = (z < 0).where(-length, length)
    turn = z + is_last.where(signed, 0.0)
    turn = is_turned.where(turn / is_turned.where(length * (length + last), 1.0).sqrt(), 0.0)
    z = is_turned.where(is_last.where(-signed, 0.0), is_last.where(z, 0.0))
    z = stored((between.abs() * z.abs() > least).where(z, 0.0))
    # Those that have a weight come first.
    z = stored(z.gather(1, order))
    second = stored(((z == 0).where(count, 0) + Tensor.arange(count, device=z.device)).argsort(1))
    z = stored(z.gather(1, second))
    weights = stored(between.abs() * z * z)
    places = stored(order.gather(1, second))
    return stored(d.gather(1, second)), weights, stored(z.sign()), places, bucket, stored(turn)


def _apart(poles: Tensor, weights: Tensor, origin: Tensor) -> Tensor:
    """Poles less each zero's origin, (M, zeros, n); far away for those that have no weight."""
    far = 8 * poles.abs().amax(dim=1, keepdim=True) + 8 * weights.sum(dim=1, keepdim=True) + 1
    found = poles.unsqueeze(1) - origin.unsqueeze(2)
    return (weights > 0).unsqueeze(1).where(found, far.unsqueeze(2))


@block
def _begun(poles: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """Where the search begins, as `_Search`: each zero is counted from the pole next to it."""
    count = poles.shape[1]
    is_real = weights > 0
    has_next = is_real[:, 1:].pad((0, 1), value=False)
    reach = weights.sum(dim=1, keepdim=True)
    following = poles[:, 1:].pad((0, 1))
    gap = stored(is_real.where(has_next.where(following - poles, reach), 1.0))
    apart = stored(_apart(poles, weights, poles) - gap.unsqueeze(2) / 2)
    middle = 1 + (weights.unsqueeze(1) / apart).sum(dim=2)
    is_right = stored(has_next & (middle < 0))
    side = is_right.where(-1.0, 1.0)
    weight = is_right.where(weights[:, 1:].pad((0, 1)), weights)
    most = stored(has_next.where(gap / 2, gap))
    # What the other poles can add at most.
    least = stored((weight / (1 + reach / most) / 2).minimum(most / 2))
    low = stored(is_right.where(-most, least))
    high = stored(is_right.where(-least, most))
    offset = side * most * has_next.where(1.0, 0.5)
    near = is_right.where(-gap, 0.0)
    far = is_right.where(0.0, gap)
    origin = is_right.where(following, poles)
    before = low.full_like(math.inf)
    # Where there is no weight the pole is the zero.
    is_done = is_real.logical_not()
    parts = (origin, near, far, is_done.where(0.0, offset), low, high, before, is_done)
    return tuple(stored(part) for part in parts) if count else parts


@block
def _searched(
    poles: Tensor, weights: Tensor, origin: Tensor, near: Tensor, far: Tensor, offset: Tensor,
    low: Tensor, high: Tensor, before: Tensor, is_done: Tensor,
) -> tuple[Tensor, ...]:
    """Some steps of a search: each is to the zero of two poles and a constant.

    They have the values that the poles on either side have, and their slopes (Li, "Solving secular
    equations stably and efficiently", 1993). A step that leaves the bounds or helps too little is
    one to their geometric mean.
    """
    count = poles.shape[1]
    precision = finfo(poles.dtype).eps
    places = Tensor.arange(count, device=poles.device)
    is_below = stored((places.unsqueeze(0) <= places.unsqueeze(1)).unsqueeze(0))
    is_last = stored((weights[:, 1:].pad((0, 1)) > 0).logical_not())
    apart = stored(_apart(poles, weights, origin))
    for _ in range(_STEPS):
        inverse = stored(1 / (apart - offset.unsqueeze(2)))
        terms = weights.unsqueeze(1) * inverse
        value = stored(1 + terms.sum(dim=2))
        size = stored(1 + terms.abs().sum(dim=2))
        slopes = terms * inverse
        below = stored(is_below.where(slopes, 0.0).sum(dim=2))
        above = stored(is_below.where(0.0, slopes).sum(dim=2))
        low = stored((~is_done & (value < 0)).where(offset, low))
        high = stored((~is_done & (value > 0)).where(offset, high))
        width, most = high - low, low.abs().maximum(high.abs())
        is_done = stored(
            is_done | (value.abs() <= 2 * precision * size) | (width <= 2 * precision * most)
        )
        moved = offset + _towards(value, below, above, near - offset, far - offset, is_last)
        is_good = (moved > low) & (moved < high) & (value.abs() < before / 2)
        mean = low.abs().sqrt() * high.abs().sqrt()
        moved = is_good.where(moved, (high < 0).where(-mean, mean))
        before = stored(is_good.where(value.abs(), math.inf))
        offset = stored(is_done.where(offset, moved))
    return origin, near, far, offset, low, high, before, is_done


def _towards(
    value: Tensor, below: Tensor, above: Tensor, near: Tensor, far: Tensor, is_last: Tensor
) -> Tensor:
    """The step to the zero of c + a / (near - x) + b / (far - x), NaN where there is none."""
    above = is_last.where(0.0, above)
    a, b = below * near * near, above * far * far
    constant = value - below * near - above * far
    half = constant * (near + far) + a + b
    product = near * far * value
    root = (half * half - 4 * product * constant).maximum(0.0).sqrt()
    inner = (half <= 0).where((half - root) / (2 * constant), 2 * product / (half + root))
    return stored(is_last.where(near + a / constant, inner))


@block
def _vectors(
    vectors: Tensor, poles: Tensor, weights: Tensor, signs: Tensor, places: Tensor,
    bucket: Tensor, turn: Tensor, origin: Tensor, offset: Tensor, is_turned: bool,
) -> tuple[Tensor, Tensor]:
    """Eigenvalues (M, 2h), and vectors (M, 2h, 2h) of the zeros and of the halves' vectors."""
    batch, count = poles.shape
    is_real = weights > 0
    apart = stored(_apart(poles, weights, origin) - offset.unsqueeze(2))
    one = Tensor.eye(count, dtype=poles.dtype, device=poles.device)
    # The roots of weights whose zeros are these to the last bit.
    between = poles.unsqueeze(1) - poles.unsqueeze(2)
    is_other = (one == 0) & is_real.unsqueeze(2) & is_real.unsqueeze(1)
    ratios = apart / is_other.where(between, 1.0)
    ratios = (is_other | ((one != 0) & is_real.unsqueeze(1))).where(ratios, 1.0)
    roots = stored(stored(ratios).prod(dim=1).abs().sqrt() * signs)
    rows = stored(roots.unsqueeze(1) / apart)
    length = stored(rows.square().sum(dim=2, keepdim=True).sqrt())
    rows = is_real.unsqueeze(2).where(rows / (length == 0).where(1.0, length), one)
    # As columns of the halves are: in their order, and not turned into one.
    index = places.argsort(dim=1).unsqueeze(1).expand(batch, count, count)
    rows = stored(stored(rows).gather(2, index))
    if is_turned:
        alike = stored((bucket.unsqueeze(2) == bucket.unsqueeze(1)).cast(rows.dtype))
        turned = stored(rows * turn.unsqueeze(1)) @ alike
        rows = stored(rows - turned * turn.unsqueeze(1))
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

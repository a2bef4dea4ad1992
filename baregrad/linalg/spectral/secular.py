"""The zeros of 1 + sum(weights / (poles - x)), each found from the pole next to it.

They are the eigenvalues of a diagonal matrix and one of rank one, or the squares of the singular
values of a diagonal matrix and one row, whose poles are known by their roots: the difference of two
squares is the product of sum and difference, so that none is lost (Gu and Eisenstat, "A divide-and-
conquer algorithm for the bidiagonal SVD", 1995). A pole without a weight stays in place behind the
others. Arrays are (M, n), of float32 or float64, for M functions of n poles.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from baregrad.base.errors import LinAlgError
from baregrad.dtypes import finfo
from baregrad.linalg.blocks import block, is_captured, repeated
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# Steps towards the zeros that one replay makes, and how many replays there are at most.
_STEPS = 4
_MOST_REPLAYS = 30
# Replays in a captured function, which cannot ask whether it needs another.
_REPLAYS_CAPTURED = 16


class Poles(NamedTuple):
    """Poles of M functions, and where they come from.

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


class Search(NamedTuple):
    """Where each zero is: x = origin + offset, between low and high, all (M, n).

    The origin is a pole, as poles are given. near and far: the poles next to it, less its origin.
    before: what the function was a step ago.
    """

    origin: Tensor
    near: Tensor
    far: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor
    before: Tensor
    is_done: Tensor


def least_of(size: Tensor) -> Tensor:
    """What does not count in a matrix whose elements are of this size, 1 for zeros."""
    return stored(4 * finfo(size.dtype).eps * (size == 0).where(1.0, size))


def united(values: Tensor, z: Tensor, strength: Tensor, least: Tensor) -> Poles:
    """Poles at values (M, n), of weights strength * z**2, where those that are alike are one.

    strength, least: (M, 1); least is what does not count in values and in strength * z.
    """
    count = values.shape[1]
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
    z = stored((strength * z.abs() > least).where(z, 0.0))
    # Those that have a weight come first.
    z = stored(z.gather(1, order))
    second = stored(((z == 0).where(count, 0) + Tensor.arange(count, device=z.device)).argsort(1))
    z = stored(z.gather(1, second))
    weights = stored(strength * z * z)
    places = stored(order.gather(1, second))
    return Poles(stored(d.gather(1, second)), weights, stored(z.sign()), places, bucket,
                 stored(turn))


def turned(rows: Tensor, bucket: Tensor, turn: Tensor) -> Tensor:
    """Rows (M, k, n) of which columns that are alike are turned back from one, as `united` did."""
    alike = stored((bucket.unsqueeze(2) == bucket.unsqueeze(1)).cast(rows.dtype))
    both = stored(rows * turn.unsqueeze(1)) @ alike
    return stored(rows - both * turn.unsqueeze(1))


def zeros_of(poles: Tensor, weights: Tensor, squared: bool = False) -> Search:
    """The zeros of functions; `squared` where poles are given by their roots.

    Raises LinAlgError where one is not found; in a captured function its `is_done` is false.
    """
    search = Search(*_begun(poles, weights, squared))
    if is_captured(poles):
        return Search(*repeated(_searched, _REPLAYS_CAPTURED, search, (poles, weights, squared)))
    for _ in range(_MOST_REPLAYS):
        search = Search(*_searched(*search, poles, weights, squared))
        # A zero that is found stays as it is in other steps.
        if bool(search.is_done.all().item()):
            return search
    raise LinAlgError(
        "a zero between two poles was not found", found=f"{_MOST_REPLAYS * _STEPS} steps",
        hint="scale rows and columns to sizes that are closer together",
    )


def _less(one: Tensor, other: Tensor, squared: bool) -> Tensor:
    """How far one pole is from another."""
    return stored((one - other) * (one + other)) if squared else one - other


def apart(poles: Tensor, weights: Tensor, origin: Tensor, squared: bool) -> Tensor:
    """Poles less each zero's origin, (M, zeros, n); far away for those that have no weight."""
    largest = poles.abs().amax(dim=1, keepdim=True)
    largest = largest.square() if squared else largest
    far = 8 * largest + 8 * weights.sum(dim=1, keepdim=True) + 1
    found = _less(poles.unsqueeze(1), origin.unsqueeze(2), squared)
    return (weights > 0).unsqueeze(1).where(found, far.unsqueeze(2))


def roots_of(
    poles: Tensor, weights: Tensor, signs: Tensor, distances: Tensor, squared: bool
) -> Tensor:
    """The roots (M, n) of weights whose zeros are found ones to the last bit.

    distances: (M, zeros, n), of poles from the zeros.
    """
    is_real = weights > 0
    one = Tensor.eye(poles.shape[1], dtype=poles.dtype, device=poles.device)
    between = _less(poles.unsqueeze(1), poles.unsqueeze(2), squared)
    is_other = (one == 0) & is_real.unsqueeze(2) & is_real.unsqueeze(1)
    ratios = distances / is_other.where(between, 1.0)
    ratios = (is_other | ((one != 0) & is_real.unsqueeze(1))).where(ratios, 1.0)
    return stored(stored(ratios).prod(dim=1).abs().sqrt() * signs)


@block
def _begun(poles: Tensor, weights: Tensor, squared: bool) -> tuple[Tensor, ...]:
    """Where the search begins, as `Search`: each zero is counted from the pole next to it."""
    count = poles.shape[1]
    is_real = weights > 0
    has_next = is_real[:, 1:].pad((0, 1), value=False)
    reach = weights.sum(dim=1, keepdim=True)
    following = poles[:, 1:].pad((0, 1))
    between = _less(following, poles, squared)
    gap = stored(is_real.where(has_next.where(between, reach), 1.0))
    distances = stored(apart(poles, weights, poles, squared) - gap.unsqueeze(2) / 2)
    middle = 1 + (weights.unsqueeze(1) / distances).sum(dim=2)
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
    origin: Tensor, near: Tensor, far: Tensor, offset: Tensor, low: Tensor, high: Tensor,
    before: Tensor, is_done: Tensor, poles: Tensor, weights: Tensor, squared: bool,
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
    distances = stored(apart(poles, weights, origin, squared))
    for _ in range(_STEPS):
        inverse = stored(1 / (distances - offset.unsqueeze(2)))
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

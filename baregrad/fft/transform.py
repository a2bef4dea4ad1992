"""Discrete Fourier transforms of pairs, as products with small matrices.

A transform of a product n1*n2 is transforms of n1, factors, and transforms of n2 (Cooley and Tukey,
1965). Those of few points are products with their matrix, so that all work is in matrix products;
factors are part of the matrices where rows share them, else steps between. A transform of a large
prime is a convolution (Bluestein). What is done depends on the length alone.
"""

from __future__ import annotations

import threading
import weakref
from functools import lru_cache
from typing import Any

import numpy as np

from baregrad.dtypes import DType
from baregrad.fft import tables
from baregrad.tensor import Tensor
from baregrad.tensor.array.link import session

# Stages are of at most so many points, which keeps the error of a sum below that of the stages.
_STAGE = 32
# What a further stage costs beside its products: on an H200 a pass over memory takes as long as
# half of those of 32 points, and is what the others take longer than their products.
_PASS = 24
# Of primes up to this the matrix is less work than three transforms of twice the length.
_DIRECT = 128


# So many tables of at most so many numbers each stay on devices, of the session used last.
_MOST_KEPT = 1 << 6
_LARGEST_KEPT = 1 << 16


class _Kept:
    """Tables that are on a device already, so that not every call uploads them anew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner: weakref.ref[Any] | None = None
        # A table is held beside its tensor, so that no other one has its identity.
        self.tensors: dict[tuple[int, DType, str], tuple[Any, Tensor]] = {}

    def of(self, owner: Any, key: tuple[int, DType, str]) -> Tensor | None:
        with self.lock:
            if self.owner is None or self.owner() is not owner:
                self.owner, self.tensors = weakref.ref(owner), {}
            found = self.tensors.get(key)
        return None if found is None else found[1]

    def keep(self, owner: Any, key: tuple[int, DType, str], table: Any, made: Tensor) -> None:
        with self.lock:
            if self.owner is not None and self.owner() is owner:
                self.tensors[key] = table, made
                if len(self.tensors) > _MOST_KEPT:
                    del self.tensors[next(iter(self.tensors))]


_kept = _Kept()


def constant(table: tables.Table | tuple[float, ...], like: Tensor) -> Tensor:
    """A table in the dtype and on the device of a tensor."""
    owner, key = session(), (id(table), like.dtype, like.device)
    # A function that is captured makes the same in each of its calls.
    is_captured = bool(owner.watching.downloads)
    found = None if is_captured else _kept.of(owner, key)
    if found is not None:
        return found
    assert like.dtype.numpy is not None
    values = np.asarray(table, like.dtype.numpy)
    made = Tensor(values, device=like.device)
    if values.size <= _LARGEST_KEPT and not is_captured:
        _kept.keep(owner, key, table, made)
    return made


def times(pairs: Tensor, table: tables.Table) -> Tensor:
    """Pairs by the complex numbers of a table, which comes with i times them: (2, ..., 2)."""
    factors = constant(table, pairs)
    return pairs[..., 0:1] * factors[0] + pairs[..., 1:2] * factors[1]


def transform(pairs: Tensor, sign: int) -> Tensor:
    """The unscaled transform (..., n, 2) of pairs (..., n, 2); sign -1, or 1 for the inverse."""
    n = pairs.shape[-2]
    if n <= 1:
        return pairs
    stages = stages_of(n)
    if not stages:
        return _bluestein(pairs, sign)
    # What is left to transform, and the places of results so far (T. Stockham, 1966): the latter
    # stay side by side, so that whatever is read and written lies in stretches.
    found = pairs.unsqueeze(-2)
    for stage in stages:
        found = _stage(found, stage, sign)
    return found.squeeze(-3)


def _stage(pairs: Tensor, stage: int, sign: int) -> Tensor:
    """Transforms of `stage` points and factors: (..., m, q, 2) -> (..., m/stage, stage*q, 2)."""
    left, done = pairs.shape[-3:-1]
    rest = left // stage
    # j = j1*rest + j2 are transformed into k1 and j2.
    columns = pairs.unflatten(-3, (stage, rest)).movedim(-4, -2).flatten(-2)
    turns = rest > 1
    if turns and done > 1 and rest * (2 * stage) ** 2 <= _LARGEST_KEPT:
        # Rows beside each other have one matrix, which turns as well.
        matrices = constant(tables.turning(rest, stage, sign), pairs)
        found, turns = columns @ matrices, False
    else:
        found = columns @ constant(tables.whole(stage, sign), pairs)
    found = found.unflatten(-1, (stage, 2))
    if turns:
        found = times(found, tables.twiddles(rest, stage, sign))
    # Stored in the order in which it is read next.
    return found.transpose(-3, -2).contiguous().flatten(-3, -2)


@lru_cache(1 << 10)
def stages_of(n: int) -> tuple[int, ...]:
    """The points of the stages, largest first; none where no stages make the transform."""
    stages = _cheapest(n)
    return tuple(sorted(stages, reverse=True))


@lru_cache(1 << 10)
def _cheapest(n: int) -> tuple[int, ...]:
    found: tuple[int, ...] = (n,) if n <= _STAGE else ()
    for stage in range(2, min(_STAGE, n // 2) + 1):
        rest = _cheapest(n // stage) if n % stage == 0 else ()
        if rest and (not found or _cost((stage, *rest)) < _cost(found)):
            found = (stage, *rest)
    return found or ((n,) if n <= _DIRECT else ())


def _cost(stages: tuple[int, ...]) -> int:
    """Products for each point, and what passing memory once more takes, in as many."""
    return sum(stages) + _PASS * len(stages)


def _bluestein(pairs: Tensor, sign: int) -> Tensor:
    n = pairs.shape[-2]
    factors, spectrum, length = tables.chirp(n, sign)
    padded = times(pairs, factors).pad((0, 0, 0, length - n))
    product = times(transform(padded, -1), spectrum) * (1.0 / length)
    return times(transform(product, 1)[..., :n, :], factors)


def real_transform(x: Tensor) -> Tensor:
    """The first half of the unscaled transform of n real numbers: (..., n//2 + 1, 2)."""
    n = x.shape[-1]
    half = n // 2 + 1
    if n <= _STAGE or (n % 2 and stages_of(n) == (n,)):
        return (x @ constant(tables.real_rows(n), x)).unflatten(-1, (half, 2))
    if n % 2:
        return transform(x.unsqueeze(-1).pad((0, 1)), -1)[..., :half, :]
    # Neighbours are the parts of half as many complex numbers.
    found = transform(x.unflatten(-1, (n // 2, 2)), -1)
    there = Tensor.cat([found, found[..., :1, :]], dim=-2)
    back = _conjugate(there.flip(-2))
    odd = times(there - back, tables.halves(n, -1))
    return (there + back - _turned(odd)) * 0.5


def real_inverse(pairs: Tensor, n: int) -> Tensor:
    """The n real numbers, unscaled, of the first half (..., n//2 + 1, 2) of their transform."""
    if n <= _STAGE or (n % 2 and stages_of(n) == (n,)):
        return pairs.flatten(-2) @ constant(tables.real_columns(n), pairs)
    if n % 2:
        start = pairs[..., :1, :] * constant(tables.REAL, pairs)
        back = _conjugate(pairs[..., 1:, :].flip(-2))
        return transform(Tensor.cat([start, pairs[..., 1:, :], back], dim=-2), 1)[..., 0]
    ends = pairs[..., :: n // 2, :] * constant(tables.REAL, pairs)
    there = Tensor.cat([ends[..., :1, :], pairs[..., 1:-1, :], ends[..., 1:, :]], dim=-2)
    back = _conjugate(there.flip(-2))
    odd = times(there - back, tables.halves(n, 1))
    half = (there + back + _turned(odd))[..., : n // 2, :]
    return transform(half, 1).flatten(-2)


def _conjugate(pairs: Tensor) -> Tensor:
    return pairs * constant(tables.CONJUGATE, pairs)


def _turned(pairs: Tensor) -> Tensor:
    """i times complex numbers."""
    return pairs.flip(-1) * constant(tables.TURN, pairs)

"""Discrete Fourier transforms of pairs, as products with small matrices.

A transform of a product n1*n2 is transforms of n1, factors, and transforms of n2 (Cooley and Tukey,
1965). Those of few points are products with their matrix, so that all work is in matrix products
and in elementwise steps between, which fuse. A transform of a large prime is a convolution
(Bluestein). What is done depends on the length alone.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from baregrad.dtypes import DType
from baregrad.fft import tables
from baregrad.tensor import Tensor
from baregrad.tensor.array.link import session

# Stages are of at most so many points, which keeps the error of a sum below that of the stages.
_STAGE = 32
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
    stage = stage_of(n)
    if stage == n:
        return (pairs.flatten(-2) @ constant(tables.whole(n, sign), pairs)).unflatten(-1, (n, 2))
    if not stage:
        return _bluestein(pairs, sign)
    rest = n // stage
    # j = j1*rest + j2 and k = k1 + stage*k2.
    columns = pairs.unflatten(-2, (stage, rest)).transpose(-3, -2)
    first = columns.flatten(-2) @ constant(tables.whole(stage, sign), pairs)
    turned = times(first.unflatten(-1, (stage, 2)), tables.twiddles(rest, stage, sign))
    second = transform(turned.transpose(-3, -2), sign)
    return second.transpose(-3, -2).flatten(-3, -2)


def stage_of(n: int) -> int:
    """The points of the first stage: n for one product, 0 where no stages make the transform."""
    if n <= _STAGE:
        return n
    for stage in range(_STAGE, 1, -1):
        if n % stage == 0:
            return stage if stage_of(n // stage) else 0
    return n if n <= _DIRECT else 0


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
    if n <= _STAGE or (n % 2 and stage_of(n) == n):
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
    if n <= _STAGE or (n % 2 and stage_of(n) == n):
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

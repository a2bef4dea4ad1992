"""Shuffles that are the same everywhere: a published hash of seed, epoch and position.

NumPy's generators may change between versions; SplitMix64 will not. Source: Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014, figure 16 (its `mix64variant13`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import DTypeError, OutOfMemory, ShapeError
from baregrad.tensor.array.arguments import explained

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@explained
def splitmix64(positions: npt.NDArray[np.uint64], seed: int = 0) -> npt.NDArray[np.uint64]:
    """Return the SplitMix64 outputs of `seed` at `positions`, of which 0 is the first.

    uint64 in and out, any shape; `seed` counts modulo 2**64.
    """
    if positions.dtype != np.uint64:
        raise DTypeError("positions are of uint64", found=positions.dtype)
    step = positions + np.uint64(1)
    state = step * np.uint64(_GOLDEN) + np.uint64(seed & _MASK)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@explained
def permutation(count: int, *, seed: int, epoch: int = 0) -> npt.NDArray[np.int64]:
    """Return the numbers below `count` in the order of their hashes under `seed` and `epoch`.

    Raises ShapeError for a negative count.
    """
    if count < 0:
        raise ShapeError("a permutation's length", found=count, wanted="0 or more")
    if count >> 48:
        raise OutOfMemory("no room for a permutation", found=f"{count} numbers")
    # The epoch is hashed first, so that neighbouring seeds and epochs share no sequence.
    key = splitmix64(np.array([epoch & _MASK], np.uint64), seed)[0]
    keys = splitmix64(np.arange(count, dtype=np.uint64), int(key))
    return np.argsort(keys, kind="stable")


@explained
def batches(
    count: int, size: int, *, seed: int, epoch: int = 0, drop_last: bool = False
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions of each batch of one shuffled epoch: int64 arrays of `size`.

    The last batch is shorter where `size` does not divide `count`, or left out with `drop_last`.
    Raises ShapeError for a size below 1.
    """
    if size < 1:
        raise ShapeError("a batch's size", found=size, wanted="1 or more")
    order = permutation(count, seed=seed, epoch=epoch)
    end = count - count % size if drop_last else count
    return (order[start : start + size] for start in range(0, end, size))

"""What a random program knows of its values, so that a difference in the result means something.

Every value carries a bound of its magnitude, a bound of its error, and the grid that it lies on. A
float on a grid is summed exactly in any order while the sum fits its mantissa; a value without
error is the same on every device, bit for bit, and only such values may be compared, rounded or
turned into integers. The bounds grow with each operation as in running error analysis (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.3).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from baregrad.dtypes import DType, dtypes

# Beyond these a value says nothing any more, and the statement that makes it is not taken.
_LARGEST = 1e5
_WORST_ERROR = 0.02


@dataclass(frozen=True, slots=True)
class Known:
    """Bounds of a value's elements.

    `peak` bounds the magnitude, `error` the absolute difference between any two devices (0: none),
    and `grain` is what all elements are multiples of (0: nothing is known).
    """

    peak: float
    error: float = 0.0
    grain: float = 0.0


def mantissa_bits(dtype: DType) -> int:
    """Bits of precision of a floating dtype, the hidden one included."""
    table = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    return table[dtype.name]


def round_off(dtype: DType) -> float:
    """The largest relative error of one rounding."""
    return 2.0 ** -mantissa_bits(dtype)


def settle(known: Known, dtype: DType) -> Known | None:
    """What is known once the result is rounded or wrapped to `dtype`; None for too little."""
    if dtype.kind != "float":
        limit = 1 if dtype.kind == "bool" else 2.0**dtype.bits
        return Known(min(known.peak, limit), 0.0, 1.0)
    error = known.error + (known.peak * round_off(dtype) if known.error else 0.0)
    ceiling = min(_LARGEST, 3e4) if dtype is dtypes.float16 else _LARGEST
    if known.peak > ceiling or error > _WORST_ERROR * max(known.peak, 1.0):
        return None
    on_grid = known.grain and known.peak <= known.grain * 2.0 ** mantissa_bits(dtype)
    grain = known.grain if on_grid and known.grain >= 2.0**-14 else 0.0
    return Known(known.peak, error, grain)


def wrapped(known: Known, dtype: DType) -> Known:
    """What is known where numbers below 0 may come out: as unsigned integers they are large."""
    return Known(2.0**dtype.bits, 0.0, 1.0) if dtype.kind == "uint" else known


def summed(known: Known, count: int, dtype: DType) -> Known:
    """What is known of sums of `count` elements, whatever their order."""
    peak = known.peak * max(count, 1)
    if dtype.kind != "float":
        return Known(peak, 0.0, 1.0)
    wide = dtypes.float32 if dtype.bits < 32 else dtype
    exact = known.grain and peak <= known.grain * 2.0 ** mantissa_bits(wide)
    if not known.error and (exact or count <= 1):
        return Known(peak, 0.0, known.grain)
    # Narrow floats may be rounded on the way where the sum is taken in parts.
    error = count * known.error + count * peak * round_off(wide)
    return Known(peak, error + peak * round_off(dtype))


def multiplied(a: Known, b: Known) -> Known:
    """What is known of products of elements."""
    error = a.error * b.peak + b.error * a.peak + a.error * b.error
    return Known(a.peak * b.peak, error, a.grain * b.grain)


def added(a: Known, b: Known) -> Known:
    """What is known of sums and differences of elements."""
    return Known(a.peak + b.peak, a.error + b.error, min(a.grain, b.grain))


def either(a: Known, b: Known) -> Known:
    """What is known of elements that come from one or the other."""
    return Known(max(a.peak, b.peak), max(a.error, b.error), min(a.grain, b.grain))


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Data:
    """How the elements of an input are drawn: `rough` floats lie on no grid.

    wide: integers of all sizes. steep: floats up to 1000, some arrays with infinities and NaN.
    """

    shape: tuple[int, ...]
    dtype: DType
    rough: bool = False
    wide: bool = False
    steep: bool = False

    def known(self) -> Known:
        """What is known of what `draw` gives."""
        if self.dtype.kind == "bool":
            return Known(1.0, 0.0, 1.0)
        if self.dtype.kind in ("int", "uint"):
            return Known(2.0**self.dtype.bits if self.wide else 9.0, 0.0, 1.0)
        if self.steep:
            return Known(_STEEP, 0.0, 0.0 if self.rough else _steep_grain(self.dtype))
        return Known(4.0, 0.0, 0.0 if self.rough else 0.25)

    def draw(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Fresh elements; bfloat16 as float32 values that it holds exactly."""
        kind = self.dtype.kind
        if kind == "bool":
            return rng.random(self.shape) < 0.5
        if kind in ("int", "uint"):
            low, high = (0 if kind == "uint" else -9), 10
            if self.wide:
                low, high = int(self.dtype.min), int(self.dtype.max)
            drawn = rng.integers(low, high, self.shape, self.dtype.name, endpoint=self.wide)
            return np.asarray(drawn)
        name = "float32" if self.dtype is dtypes.bfloat16 else self.dtype.name
        if self.steep:
            return self._draw_steep(rng).astype(name)
        if self.rough:
            return np.asarray(rng.uniform(-4, 4, self.shape)).astype(name)
        return (np.asarray(rng.integers(-16, 17, self.shape)) / 4).astype(name)


    def _draw_steep(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        grain = _steep_grain(self.dtype)
        found = np.asarray(rng.uniform(-_STEEP, _STEEP, self.shape))
        if rng.random() < 0.5:
            # Some of very different magnitudes, some close to each other.
            found = np.where(rng.random(self.shape) < 0.5, found, found / 256)
        if not self.rough or self.dtype.bits < 32:
            found = np.trunc(found / grain) * grain
        if rng.random() < 0.3:
            special = rng.choice([np.inf, -np.inf, np.nan, 0.0], self.shape)
            found = np.where(rng.random(self.shape) < 0.15, special, found)
        return np.asarray(found)


_STEEP = 1000.0


def _steep_grain(dtype: DType) -> float:
    """What narrow floats of this size are all multiples of."""
    return 8.0 if dtype is dtypes.bfloat16 else 0.5


def draw_shape(rng: random.Random) -> tuple[int, ...]:
    """A small shape; few different ones, so that values often fit each other."""
    return rng.choice(SHAPES)


SHAPES = (
    (4,), (7,), (9,), (17,), (1,), (0,), (),
    (2, 3), (3, 4), (4, 3), (1, 6), (5, 1), (3, 3), (8, 4), (4, 8), (2, 17), (33, 2), (3, 0),
    (2, 3, 4), (2, 1, 5), (3, 4, 2), (1, 2, 9), (2, 2, 6, 5), (16, 16), (1, 3, 5, 5),
)  # fmt: skip


def tolerance(known: Known, dtype: DType) -> float:
    """The largest difference that rounding explains; 0 where there is none."""
    if dtype.kind != "float" or not known.error:
        return 0.0
    return 2 * known.error + math.ldexp(1.0, -60)

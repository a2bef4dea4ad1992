"""Inputs that both sides draw alike, from a seed and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np

from baregrad.apps.bench_measure import Array

# Random numbers repeat after so many: odd, so that no two rows of a matrix are alike.
PERIOD = (1 << 22) + 3
_NBYTES = MappingProxyType({
    "bfloat16": 2, "float16": 2, "int64": 8, "float64": 8, "uint8": 1, "int8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
})


@dataclass(frozen=True, slots=True)
class Draw:
    """An array of random numbers: normal ones times `scale` plus `shift`.

    Whole numbers from 0 up to `below` where that is given, int64 unless `dtype` is one of
    integers. `dtype` is what the numbers are converted to: drawn are float32 or int64.
    """

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    scale: float = 1.0
    shift: float = 0.0
    below: int = 0

    def __post_init__(self) -> None:
        if self.below and "int" not in self.dtype:
            object.__setattr__(self, "dtype", "int64")

    @property
    def nbytes(self) -> int:
        """Bytes of the array as it is given to the work."""
        return prod(self.shape) * _NBYTES.get(self.dtype, 4)

    def array(self, random: np.random.Generator) -> Array:
        """Draw: float32, or int64 for whole numbers."""
        count = prod(self.shape)
        drawn = min(count, PERIOD)
        if self.below:
            return np.resize(random.integers(0, self.below, drawn), self.shape)
        numbers = random.standard_normal(drawn, np.float32)
        if self.scale != 1.0:
            numbers *= np.float32(self.scale)
        if self.shift:
            numbers += np.float32(self.shift)
        return numbers.reshape(self.shape) if drawn == count else np.resize(numbers, self.shape)

"""Choices of a row of the sweep, which depend on the seed, the row and the largest size alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
FLOATS = ("float32", "float32", "bfloat16", "bfloat16", "float16")
INTEGERS = ("int32", "int64")


class Pick:
    """Random choices. `largest` bounds the elements of every array."""

    def __init__(self, seed: int, row: int, largest: int) -> None:
        # Of text, which Python hashes alike everywhere.
        self._random = random.Random(f"{seed}/{row}")
        self.largest = largest

    def one(self, options: Sequence[T]) -> T:
        """Choose one of several."""
        return options[self._random.randrange(len(options))]

    def chance(self, share: float) -> bool:
        """Say yes in a share of cases."""
        return self._random.random() < share

    def whole(self, low: int, high: int) -> int:
        """Choose a whole number from `low` to `high`, small ones as often as large ones."""
        high = max(low, high)
        found = math.exp(self._random.uniform(math.log(low), math.log(high + 1)))
        return min(high, max(low, int(found)))

    def size(self, low: int, high: int) -> int:
        """Choose an extent: a multiple of 8, a power of two, or any number, each as often."""
        found = self.whole(low, high)
        kind = self._random.randrange(3)
        rounded = 1 << (found.bit_length() - 1) if kind == 0 else found - found % 8
        return found if kind == 2 or rounded < low else rounded

    def shape(self, least: int = 1, most: int = 4, elements: int = 0) -> tuple[int, ...]:
        """Choose a shape of `least` to `most` axes: square, skinny or deep ones.

        Its elements are at most `elements`, by default anything from 1 to the largest number.
        """
        wanted = elements or self.whole(1, self.largest)
        axes = self._random.randint(least, most)
        weights = [self._random.expovariate(1.0) for _ in range(axes)]
        total = sum(weights)
        found = []
        for weight in weights:
            most_here = max(1, int(wanted ** (weight / total)))
            found.append(self.size(max(1, most_here * 3 // 4), most_here))
        return tuple(found)

    def floats(self) -> str:
        """Choose a dtype of floats."""
        return self.one(FLOATS)

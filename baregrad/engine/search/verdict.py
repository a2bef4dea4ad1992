"""Whether one program is faster than another by more than the noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# A winner is this much faster, on a device whose clock the host reads and on others, and by chance
# no oftener than this.
LEAST_RATIO, LEAST_RATIO_APART = 1.015, 1.03
CHANCE = 0.005
# The best round of a winner may be this much longer: some of what is noise is in the best too.
BEST_RATIO = 1.03


def ratio(first: Sequence[int], other: Sequence[int]) -> float:
    """How many times as fast `other` is, by the median of the rounds in which both ran."""
    return statistics.median([a / max(b, 1) for a, b in zip(first, other, strict=True)])


def chance(first: Sequence[int], other: Sequence[int]) -> float:
    """The probability of as many rounds won by `other`, if neither were faster (a sign test)."""
    wins = sum(b < a for a, b in zip(first, other, strict=True))
    count = sum(b != a for a, b in zip(first, other, strict=True))
    return float(sum(math.comb(count, k) for k in range(wins, count + 1))) / float(2**count)


def is_faster(
    first: Sequence[int], other: Sequence[int], least_ratio: float = LEAST_RATIO
) -> bool:
    """Whether `other` is faster: in enough of the rounds, by enough, and at best hardly slower."""
    if len(first) < 8 or min(other) > BEST_RATIO * min(first):
        return False
    return ratio(first, other) >= least_ratio and chance(first, other) <= CHANCE

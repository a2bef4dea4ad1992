"""Rotary positions: pairs of numbers that turn by angles which grow with the position."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import FileFormatError
from baregrad.dtypes import dtypes
from baregrad.llm.models.traits import RopeTraits
from baregrad.tensor import Tensor

# Fractions of a turn are kept in as many bits as float32 holds exactly.
_TURN_BITS = 24


def rates_of(
    rope: RopeTraits, factors: npt.NDArray[np.floating] | None = None
) -> npt.NDArray[np.float64]:
    """Return by how many radians each pair turns from one position to the next: (width / 2,).

    `factors`: what the tensor of that name holds. Raises FileFormatError for factors that are not
    positive numbers.
    """
    pairs = np.arange(rope.width // 2, dtype=np.float64)
    rates = rope.base ** (-2 * pairs / rope.width)
    if factors is not None:
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise FileFormatError(
                f"the tensor {rope.factors} divides rates of turning", found=factors.min(),
                wanted="positive numbers",
            )
        rates = rates / factors.astype(np.float64)
    if rope.scaling == "linear":
        rates = rates / rope.factor
    elif rope.scaling == "yarn":
        slow = _slowness(rope, pairs)
        rates = rates * (1 - slow) + rates / rope.factor * slow
    return rates


def _slowness(rope: RopeTraits, pairs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How far each pair belongs to those that are slowed down: 0 to 1."""

    def pair_of(turns: float) -> float:
        """The pair that turns so often within the original context."""
        length = rope.original_context / (turns * 2 * math.pi)
        return rope.width * math.log(length) / (2 * math.log(rope.base))

    low = max(math.floor(pair_of(rope.beta_fast)), 0)
    high = min(math.ceil(pair_of(rope.beta_slow)), rope.width - 1)
    return np.clip((pairs - low) / max(high - low, 0.001), 0.0, 1.0)


class Rotation:
    """The angles of one kind of rotation, and the turning by them.

    A position times a rate is taken as a fraction of a turn in 64-bit integers, which wrap around
    where turns do, so angles are as exact at position 100,000 as at position 1.
    """

    def __init__(
        self,
        rope: RopeTraits,
        factors: npt.NDArray[np.floating] | None = None,
        device: str | None = None,
    ) -> None:
        self.rope = rope
        turns = [Fraction(rate / (2 * math.pi)) for rate in rates_of(rope, factors)]
        steps = [round(each * (1 << 64)) % (1 << 64) for each in turns]
        self._steps = Tensor(np.array(steps, np.uint64), device=device).realize()

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (T, 1, width / 2) in float32 of positions (T,)."""
        turned = positions.cast(dtypes.uint64).unsqueeze(1) * self._steps
        part = (turned >> (64 - _TURN_BITS)).cast(dtypes.float32)
        angles = (part * (2 * math.pi / (1 << _TURN_BITS))).unsqueeze(1)
        cosines, sines = angles.cos(), angles.sin()
        if self.rope.magnitude != 1:
            cosines, sines = (each * self.rope.magnitude for each in (cosines, sines))
        # Every layer reads them.
        return cosines.contiguous(), sines.contiguous()

    def turn(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Return heads (T, heads, head width) with their first numbers turned."""
        cosines, sines = angles
        width = self.rope.width
        turning, still = x[..., :width], x[..., width:]
        if self.rope.kind == "norm":
            pairs = turning.reshape(*x.shape[:2], width // 2, 2)
            first, second = pairs[..., 0], pairs[..., 1]
        else:
            first, second = turning[..., : width // 2], turning[..., width // 2 :]
        parts = [first * cosines - second * sines, second * cosines + first * sines]
        if self.rope.kind == "norm":
            found = Tensor.stack(parts, dim=-1).reshape(*x.shape[:2], width)
        else:
            found = Tensor.cat(parts, dim=-1)
        found = found.cast(x.dtype)
        return found if x.shape[2] == width else Tensor.cat([found, still], dim=-1)

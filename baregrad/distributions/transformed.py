"""Functions of the draws of other distributions that have names of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from baregrad.distributions import constraints
from baregrad.distributions.base import Distribution, Number, parameters
from baregrad.distributions.combined import TransformedDistribution
from baregrad.distributions.constraints import ValueSet
from baregrad.distributions.continuous import EULER, Cauchy, Exponential, Normal, Uniform
from baregrad.distributions.transforms import AffineTransform, ExpTransform, PowerTransform
from baregrad.tensor import Tensor


class Made(TransformedDistribution):
    """Functions of draws that have a name, and parameters, of their own."""

    def expand(self, batch_shape: Sequence[int]) -> Any:
        """Return the distribution with a batch of another shape."""
        return Distribution.expand(self, batch_shape)

    __repr__ = Distribution.__repr__


class LogNormal(Made):
    """exp of normal numbers."""

    arg_constraints = Normal.arg_constraints
    support = constraints.positive
    _EVENT_AXES = Normal._EVENT_AXES

    def __init__(self, loc: Number, scale: Number, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args)
        self.loc, self.scale = base.loc, base.scale
        super().__init__(base, ExpTransform(), validate_args)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self.base_dist.entropy() + self.loc

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        return (self.loc - self.scale**2).exp()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        squared = self.scale**2
        return squared.expm1() * (2 * self.loc + squared).exp()


class _Half(Distribution):
    """The sizes of numbers that lie about 0."""

    arg_constraints = MappingProxyType({"scale": constraints.positive})
    support = constraints.nonnegative
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"scale": 0})
    _KIND: type[Normal | Cauchy] = Normal

    def __init__(self, scale: Number, validate_args: bool | None = None) -> None:
        (self.scale,) = parameters(scale)
        self.base_dist = self._KIND(self.scale.zeros_like(), self.scale)
        super().__init__(self.scale.shape, (), validate_args)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return self.base_dist.rsample(sample_shape).abs()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        return (value >= 0).where(self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self.base_dist.entropy() - math.log(2)

    @property
    def mode(self) -> Tensor:
        """Zero."""
        return self.scale.zeros_like()


class HalfNormal(_Half):
    """The sizes of normal numbers about 0."""

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale**2 * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """The sizes of numbers of a Cauchy distribution about 0."""

    _KIND = Cauchy

    @property
    def mean(self) -> Tensor:
        """Infinite."""
        return self.scale.full_like(math.inf)

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return self.scale.full_like(math.inf)


class Weibull(Made):
    """Times to a failure that becomes likelier with age, or less likely, as a power of it."""

    arg_constraints = MappingProxyType(
        {"scale": constraints.positive, "concentration": constraints.positive}
    )
    support = constraints.positive
    _EVENT_AXES = MappingProxyType({"scale": 0, "concentration": 0})

    def __init__(
        self, scale: Number, concentration: Number, validate_args: bool | None = None
    ) -> None:
        self.scale, self.concentration = parameters(scale, concentration)
        base = Exponential(self.scale.ones_like())
        way = [PowerTransform(1 / self.concentration), AffineTransform(0.0, self.scale)]
        super().__init__(base, way, validate_args)

    def _moment(self, power: int) -> Tensor:
        return self.scale**power * (1 + power / self.concentration).lgamma().exp()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        k = self.concentration
        return EULER * (1 - 1 / k) + (self.scale / k).log() + 1

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        k = self.concentration
        return self.scale * ((k - 1) / k).clamp(min=0) ** (1 / k)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self._moment(2) - self._moment(1) ** 2


class Pareto(Made):
    """Values above `scale` that are the rarer by a power the larger they are."""

    arg_constraints = MappingProxyType(
        {"alpha": constraints.positive, "scale": constraints.positive}
    )
    _EVENT_AXES = MappingProxyType({"scale": 0, "alpha": 0})

    @property
    def support(self) -> ValueSet:  # type: ignore[override]
        """The values from `scale` on."""
        return constraints.greater_than_eq(self.scale)

    def __init__(self, scale: Number, alpha: Number, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = parameters(scale, alpha)
        way = [ExpTransform(), AffineTransform(0.0, self.scale)]
        super().__init__(Exponential(self.alpha), way, validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        a = self.alpha
        return a.log() + a * self.scale.log() - (a + 1) * value.log()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return (self.scale / self.alpha).log() + 1 + 1 / self.alpha

    @property
    def mean(self) -> Tensor:
        """The mean: infinite for powers up to 1."""
        a = self.alpha
        return (a > 1).where(a * self.scale / (a - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        """The least value."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The variance: infinite for powers up to 2."""
        a = self.alpha
        return (a > 2).where(self.scale**2 * a / ((a - 1) ** 2 * (a - 2)), math.inf)


class Kumaraswamy(Made):
    """Numbers in (0, 1), much as those of a beta distribution."""

    arg_constraints = MappingProxyType(
        {"concentration1": constraints.positive, "concentration0": constraints.positive}
    )
    support = constraints.unit_interval
    _EVENT_AXES = MappingProxyType({"concentration1": 0, "concentration0": 0})

    def __init__(
        self, concentration1: Number, concentration0: Number, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = parameters(concentration1, concentration0)
        one = self.concentration1.ones_like()
        base = Uniform(one * 0, one)
        way = [PowerTransform(1 / self.concentration0), AffineTransform(1.0, -1.0),
               PowerTransform(1 / self.concentration1)]  # fmt: skip
        super().__init__(base, way, validate_args)

    def _moment(self, power: int) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return b * ((1 + power / a).lgamma() + b.lgamma() - (1 + power / a + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self._moment(2) - self._moment(1) ** 2

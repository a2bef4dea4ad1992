"""Distributions of real numbers whose draws are functions of uniform or normal ones."""

from __future__ import annotations

import math
from types import MappingProxyType

from baregrad import special
from baregrad.base.errors import ArgumentError
from baregrad.distributions import constraints
from baregrad.distributions.base import (
    Centred,
    Distribution,
    Number,
    first_taken,
    normal_like,
    parameters,
    uniform_like,
)
from baregrad.distributions.constraints import ValueSet
from baregrad.tensor import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
EULER = 0.57721566490153286
_LOC_SCALE = MappingProxyType({"loc": constraints.real, "scale": constraints.positive})
_TWO = MappingProxyType({"loc": 0, "scale": 0})


class _LocScale(Centred):
    """What distributions share that have a place and a width."""

    arg_constraints = _LOC_SCALE
    support = constraints.real
    has_rsample = True
    _EVENT_AXES = _TWO

    def __init__(self, loc: Number, scale: Number, validate_args: bool | None = None) -> None:
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    def _standard(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return (value - self.loc) / self.scale


class Normal(_LocScale):
    """The normal distribution of a mean and a standard deviation."""

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return normal_like(self.loc, self._extended(sample_shape)) * self.scale + self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        z = self._standard(value)
        return z * z * -0.5 - self.scale.log() - _HALF_LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        return special.ndtr(self._standard(value))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        return self.loc + self.scale * special.ndtri(value)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self.scale.log() + (0.5 + _HALF_LOG_2PI)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale * self.scale


class Laplace(_LocScale):
    """Two exponential distributions back to back."""

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        u = uniform_like(self.loc, self._extended(sample_shape)) * 2 - 1
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        return -(self.scale * 2).log() - self._standard(value).abs()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        z = self._standard(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        away = value - 0.5
        return self.loc - self.scale * away.sign() * (away.abs() * -2).log1p()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return 1 + (self.scale * 2).log()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale * self.scale * 2


class Cauchy(_LocScale):
    """The distribution of a ratio of normal numbers; it has no mean."""

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        u = uniform_like(self.loc, self._extended(sample_shape))
        return self.loc + self.scale * ((u - 0.5) * math.pi).tan()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        z = self._standard(value)
        return -math.log(math.pi) - self.scale.log() - (z * z).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        return self._standard(value).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        return ((value - 0.5) * math.pi).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self.scale.log() + math.log(4 * math.pi)

    @property
    def mean(self) -> Tensor:
        """NaN: there is no mean."""
        return self.loc.full_like(math.nan)

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return self.loc.full_like(math.inf)


class Gumbel(_LocScale):
    """The distribution of the largest of many."""

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        u = uniform_like(self.loc, self._extended(sample_shape))
        return self.loc - self.scale * (-u.log()).log()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        z = self._standard(value)
        return -z - (-z).exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        return (-(-self._standard(value)).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self.scale.log() + (1 + EULER)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale * self.scale * (math.pi**2 / 6)


class Uniform(Distribution):
    """Numbers from `low` to below `high`, all as likely. Raises ArgumentError if validated."""

    arg_constraints = MappingProxyType({"low": constraints.real, "high": constraints.real})
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"low": 0, "high": 0})

    def __init__(self, low: Number, high: Number, validate_args: bool | None = None) -> None:
        self.low, self.high = parameters(low, high)
        super().__init__(self.low.shape, (), validate_args)
        if self._validates and not (self.low < self.high).all().item():
            raise ArgumentError("low lies below high", found=f"{self.low}, {self.high}")

    @property
    def support(self) -> ValueSet:  # type: ignore[override]
        """The interval."""
        return constraints.interval(self.low, self.high)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        shape = self._extended(sample_shape)
        drawn = Tensor.rand(*shape, dtype=self.low.dtype, device=self.low.device)
        return self.low + drawn * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density: minus infinity outside."""
        self._check_value(value)
        inside = (value >= self.low) & (value < self.high)
        return inside.where(-(self.high - self.low).log(), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        self._check_value(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return (self.high - self.low).log()

    @property
    def mean(self) -> Tensor:
        """The middle."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        """NaN: all are as likely."""
        return self.low * math.nan

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (self.high - self.low) ** 2 / 12


class Exponential(Distribution):
    """Times between events of which `rate` happen in a unit of time."""

    arg_constraints = MappingProxyType({"rate": constraints.positive})
    support = constraints.nonnegative
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"rate": 0})

    def __init__(self, rate: Number, validate_args: bool | None = None) -> None:
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape, (), validate_args)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return -uniform_like(self.rate, self._extended(sample_shape)).log() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        self._check_value(value)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return 1.0 - self.rate.log()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        """Zero."""
        return self.rate.zeros_like()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.rate**-2


class VonMises(Centred):
    """The normal distribution on a circle: angles about `loc`, the closer the more concentrated.

    Draws: D. Best and N. Fisher, Applied Statistics 1979.
    """

    arg_constraints = MappingProxyType(
        {"loc": constraints.real, "concentration": constraints.positive}
    )
    support = constraints.real
    _EVENT_AXES = MappingProxyType({"loc": 0, "concentration": 0})
    # Each try succeeds with two thirds or more.
    _TRIES = 40

    def __init__(
        self, loc: Number, concentration: Number, validate_args: bool | None = None
    ) -> None:
        self.loc, self.concentration = parameters(loc, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws within [-pi, pi)."""
        shape = self._extended(sample_shape)
        with Tensor.no_grad():
            loc, kappa = self.loc.double(), self.concentration.double().clamp(min=1e-8)
            tau = 1 + (1 + 4 * kappa * kappa).sqrt()
            rho = (tau - (2 * tau).sqrt()) / (2 * kappa)
            r = (1 + rho * rho) / (2 * rho)
            # Nearly uniform, where the difference above loses its digits.
            r = (kappa < 1e-4).where(1 / kappa + kappa, r)
            many = (self._TRIES, *shape)
            first, second, third = [uniform_like(loc, many) for _ in range(3)]
            z = (first * math.pi).cos()
            f = (1 + r * z) / (r + z)
            c = kappa * (r - f)
            taken = (c * (2 - c) - second > 0) | ((c / second).log() + 1 - c >= 0)
            turned = (third - 0.5).sign() * f.clamp(-1, 1).acos()
            found = first_taken(taken, turned)
            angle = (found + math.pi + loc).remainder(2 * math.pi) - math.pi
            return angle.cast(self.loc.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        kappa = self.concentration
        log_i0 = special.i0e(kappa).log() + kappa
        return kappa * (value - self.loc).cos() - math.log(2 * math.pi) - log_i0

    @property
    def variance(self) -> Tensor:
        """One less the length of the mean of directions."""
        return 1 - special.i1e(self.concentration) / special.i0e(self.concentration)

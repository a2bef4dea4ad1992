"""The gamma distribution, and those made of its draws: beta, Dirichlet, chi-squared, Student's, F.

Draws: G. Marsaglia and W. Tsang, ACM Transactions on Mathematical Software 2000, of as many tries
as never all fail. Gradients pass them implicitly: at a draw z with the probability F(z; a) of less,
dz/da = -(dF/da) / (dF/dz). Source: M. Figurnov and others, "Implicit reparameterization
gradients", NeurIPS 2018.
"""

from __future__ import annotations

import math
from types import MappingProxyType

from baregrad import special
from baregrad.base.errors import ShapeError
from baregrad.distributions import constraints
from baregrad.distributions.base import (
    Distribution,
    Number,
    Shape,
    as_floats,
    first_taken,
    normal_like,
    parameters,
    uniform_like,
)
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor

# 5 % of tries fail at most: of so many all do in 2.4e-16 of cases.
_TRIES = 12
# Nodes of exp-sinh quadrature of [0, inf), from -_ENDS to _ENDS.
_NODES, _ENDS = 49, 3.0
_LEAST = MappingProxyType({dtypes.float64: 2.0**-1022, dtypes.float16: 2.0**-24})
_LEAST_F32 = 2.0**-126


def standard_gamma(concentration: Tensor, shape: Shape) -> Tensor:
    """Draws of unit rate, of a shape that `concentration` broadcasts to; gradients pass them."""
    alpha = concentration.double().expand(shape)
    with Tensor.no_grad():
        a = alpha.detach()
        log_z = _log_draws(a, shape)
        drawn = log_z.exp().clamp(min=_least(concentration))
        if not concentration.requires_grad:
            return drawn.cast(concentration.dtype)
        slope = drawn * log_gamma_slope(a, log_z)
    return (drawn + slope * (alpha - a)).cast(concentration.dtype)


def _log_standard_gamma(concentration: Tensor, shape: Shape) -> Tensor:
    """The logarithms of such draws, float64, for those that are too small for a number."""
    alpha = concentration.double().expand(shape)
    with Tensor.no_grad():
        a = alpha.detach()
        log_z = _log_draws(a, shape)
        if not concentration.requires_grad:
            return log_z
        slope = log_gamma_slope(a, log_z)
    return log_z + slope * (alpha - a)


def _least(like: Tensor) -> float:
    return _LEAST.get(like.dtype, _LEAST_F32)


def _log_draws(a: Tensor, shape: Shape) -> Tensor:
    """The logarithms of draws of concentrations a, float64, without gradients."""
    is_small = a < 1
    d = is_small.where(a + 1, a) - 1 / 3
    c = 1 / (9 * d).sqrt()
    many = (_TRIES, *shape)
    x, u = normal_like(a, many), uniform_like(a, many)
    v = 1 + c * x
    v = v * v * v
    inside = v > 0
    log_v = inside.where(v, 1.0).log()
    taken = inside & (u.log() < 0.5 * x * x + d * (1 - v + log_v))
    found = d.log() + first_taken(taken, log_v)
    # A draw of a + 1 is one of a by a power of a uniform number.
    return is_small.where(found + uniform_like(a, shape).log() / a, found)


def log_gamma_slope(a: Tensor, log_z: Tensor) -> Tensor:
    """d(log z)/da of a draw z of concentration a, both float64.

    With t = z * exp(+-s) the integral of the density's derivative by a, over what lies beyond z or
    before it, whichever is nearer to an end, is one over s from 0 on.
    """
    z = log_z.exp()
    sign = (z > a).where(1.0, -1.0)
    step = 2 * _ENDS / (_NODES - 1)
    nodes = [-_ENDS + step * place for place in range(_NODES)]
    points = [math.exp(math.pi / 2 * math.sinh(y)) for y in nodes]
    weights = [step * math.pi / 2 * math.cosh(y) * x for y, x in zip(nodes, points, strict=True)]
    rest = (-1,) + (1,) * z.ndim
    x = Tensor(points, dtype=dtypes.float64, device=z.device).reshape(rest)
    w = Tensor(weights, dtype=dtypes.float64, device=z.device).reshape(rest)
    scale = 1 / (1 + a.maximum(z)).sqrt() + 1 / (a + 1e-3)
    scale = (z > a).where(1 / (1 + z).sqrt(), scale)
    s = x * scale
    turn = sign * s
    power = (a * turn - z * turn.clamp(max=700.0).expm1()).clamp(max=700.0)
    rate = log_z + turn - a.digamma()
    whole = (power.exp() * rate * w).sum(0) * scale
    return sign * whole


class Gamma(Distribution):
    """Times to the `concentration`-th event, of which `rate` happen in a unit of time."""

    arg_constraints = MappingProxyType(
        {"concentration": constraints.positive, "rate": constraints.positive}
    )
    support = constraints.nonnegative
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"concentration": 0, "rate": 0})

    def __init__(
        self, concentration: Number, rate: Number, validate_args: bool | None = None
    ) -> None:
        self.concentration, self.rate = parameters(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return standard_gamma(self.concentration, self._extended(sample_shape)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        a, rate = self.concentration, self.rate
        return a.xlogy(rate) + (a - 1).xlogy(value) - rate * value - a.lgamma()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.concentration / (self.rate * self.rate)


class Chi2(Gamma):
    """The sum of `df` squares of normal numbers."""

    arg_constraints = MappingProxyType({"df": constraints.positive})
    _EVENT_AXES = MappingProxyType({"df": 0})

    def __init__(self, df: Number, validate_args: bool | None = None) -> None:
        (self.df,) = parameters(df)
        super().__init__(self.df * 0.5, 0.5, validate_args)


class InverseGamma(Distribution):
    """The distribution of 1 / x for x of a gamma distribution."""

    arg_constraints = Gamma.arg_constraints
    support = constraints.positive
    has_rsample = True
    _EVENT_AXES = Gamma._EVENT_AXES

    def __init__(
        self, concentration: Number, rate: Number, validate_args: bool | None = None
    ) -> None:
        self.concentration, self.rate = parameters(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return self.rate / standard_gamma(self.concentration, self._extended(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        a = self.concentration
        return a * self.rate.log() - (a + 1) * value.log() - self.rate / value - a.lgamma()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()

    @property
    def mean(self) -> Tensor:
        """The mean: infinite for concentrations up to 1."""
        a = self.concentration
        return (a > 1).where(self.rate / (a - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        """The variance: infinite for concentrations up to 2."""
        a = self.concentration
        found = (self.rate / (a - 1)) ** 2 / (a - 2)
        return (a > 2).where(found, math.inf)


class Dirichlet(Distribution):
    """Shares that sum to 1, of which each has a concentration (..., n)."""

    arg_constraints = MappingProxyType({"concentration": constraints.positive})
    support = constraints.simplex
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"concentration": 1})

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ShapeError("shares are along the last axis", found=list(concentration.shape))
        self.concentration = as_floats(concentration)
        shape = concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        a = self.concentration
        # By logarithms: of small concentrations all draws may be too small for numbers.
        shares = _log_standard_gamma(a, self._extended(sample_shape)).softmax(-1)
        return shares.clamp(min=_least(a)).cast(a.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        a = self.concentration
        return (a - 1).xlogy(value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        a = self.concentration
        total, count = a.sum(-1), a.shape[-1]
        whole = a.lgamma().sum(-1) - total.lgamma() - (count - total) * total.digamma()
        return whole - ((a - 1) * a.digamma()).sum(-1)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        """The most likely shares; the first corner where all concentrations are below 1.

        Each corner is as likely there.
        """
        over = (self.concentration - 1).clamp(min=0.0)
        found = over / over.sum(-1, True)
        alone = (self.concentration < 1).all(-1, True)
        corner = Tensor.arange(self._event_shape[0], device=found.device) == 0
        return alone.where(corner.cast(found.dtype), found)

    @property
    def variance(self) -> Tensor:
        """The variance of each share."""
        a = self.concentration
        total = a.sum(-1, True)
        return a * (total - a) / (total * total * (total + 1))


class Beta(Distribution):
    """A share in (0, 1), of which `concentration1` are for, `concentration0` against it."""

    arg_constraints = MappingProxyType(
        {"concentration1": constraints.positive, "concentration0": constraints.positive}
    )
    support = constraints.unit_interval
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"concentration1": 0, "concentration0": 0})

    def __init__(
        self, concentration1: Number, concentration0: Number, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = parameters(concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)

    def _both(self) -> Dirichlet:
        pair = Tensor.stack([self.concentration1, self.concentration0], dim=-1)
        return Dirichlet(pair, validate_args=False)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return self._both().rsample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        a, b = self.concentration1, self.concentration0
        return ((a - 1).xlogy(value) + special.xlog1py(b - 1, -value)
                + (a + b).lgamma() - a.lgamma() - b.lgamma())  # fmt: skip

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self._both().entropy()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        """The most likely share."""
        return self._both().mode[..., 0]

    @property
    def variance(self) -> Tensor:
        """The variance."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total * total * (total + 1))


class StudentT(Distribution):
    """A normal number over the root of a mean of `df` squares of others."""

    arg_constraints = MappingProxyType(
        {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    )
    support = constraints.real
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"df": 0, "loc": 0, "scale": 0})

    def __init__(
        self, df: Number, loc: Number = 0.0, scale: Number = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        self.df, self.loc, self.scale = parameters(df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        shape = self._extended(sample_shape)
        squares = standard_gamma(self.df * 0.5, shape) * 2
        return self.loc + self.scale * normal_like(self.df, shape) * (squares / self.df).rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        z = (value - self.loc) / self.scale
        df = self.df
        whole = self.scale.log() + 0.5 * df.log() + 0.5 * math.log(math.pi)
        whole = whole + (0.5 * df).lgamma() - (0.5 * (df + 1)).lgamma()
        return -0.5 * (df + 1) * (z * z / df).log1p() - whole

    def entropy(self) -> Tensor:
        """Return the entropy."""
        df = self.df
        log_beta = (0.5 * df).lgamma() + math.lgamma(0.5) - (0.5 * (df + 1)).lgamma()
        turned = (0.5 * (df + 1)).digamma() - (0.5 * df).digamma()
        return self.scale.log() + 0.5 * (df + 1) * turned + 0.5 * df.log() + log_beta

    @property
    def mean(self) -> Tensor:
        """The mean: NaN up to one degree of freedom."""
        return (self.df > 1).where(self.loc, math.nan)

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance: infinite up to two degrees of freedom, NaN up to one."""
        found = self.scale * self.scale * self.df / (self.df - 2)
        found = (self.df > 2).where(found, math.inf)
        return (self.df > 1).where(found, math.nan)


class FisherSnedecor(Distribution):
    """The ratio of two means of squares, of df1 and of df2 normal numbers."""

    arg_constraints = MappingProxyType({"df1": constraints.positive, "df2": constraints.positive})
    support = constraints.positive
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"df1": 0, "df2": 0})

    def __init__(self, df1: Number, df2: Number, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = parameters(df1, df2)
        super().__init__(self.df1.shape, (), validate_args)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        shape = self._extended(sample_shape)
        above, below = standard_gamma(self.df1 * 0.5, shape), standard_gamma(self.df2 * 0.5, shape)
        return above * self.df2 / (below * self.df1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        whole = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return whole + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()

    @property
    def mean(self) -> Tensor:
        """The mean: NaN up to two degrees of freedom below."""
        return (self.df2 > 2).where(self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Tensor:
        """The most likely value: NaN up to two degrees of freedom above."""
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return (self.df1 > 2).where(found, math.nan)

    @property
    def variance(self) -> Tensor:
        """The variance: NaN up to four degrees of freedom below."""
        a, b = self.df1, self.df2
        found = 2 * b**2 * (a + b - 2) / (a * (b - 2) ** 2 * (b - 4))
        return (b > 4).where(found, math.nan)

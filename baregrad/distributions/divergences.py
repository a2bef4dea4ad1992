"""How far one distribution is from another: Kullback and Leibler's divergence, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from baregrad import linalg
from baregrad.base.errors import UnsupportedError
from baregrad.distributions.base import Distribution, sum_last
from baregrad.distributions.combined import Independent, TransformedDistribution
from baregrad.distributions.continuous import (
    EULER,
    Cauchy,
    Exponential,
    Gumbel,
    Laplace,
    Normal,
    Uniform,
)
from baregrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from baregrad.distributions.gammas import Beta, Dirichlet, Gamma
from baregrad.distributions.multivariate import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    half_log_det,
)
from baregrad.distributions.transformed import HalfNormal, LogNormal, Pareto
from baregrad.tensor import Tensor
from baregrad.tensor.torch_names import broadcast_shapes

Divergence = Callable[[Any, Any], Tensor]
_Pair = tuple[type[Distribution], type[Distribution]]


class _Registered:
    """What users registered beside the table."""

    def __init__(self) -> None:
        self.table: Mapping[_Pair, Divergence] = MappingProxyType({})


_REGISTERED = _Registered()


def register_kl(
    type_p: type[Distribution], type_q: type[Distribution]
) -> Callable[[Divergence], Divergence]:
    """Return a decorator of the function (p, q) that `kl_divergence` calls for these classes."""

    def register(function: Divergence) -> Divergence:
        _REGISTERED.table = MappingProxyType(
            {**_REGISTERED.table, (type_p, type_q): function}
        )
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return the divergence of q from p for each of the batch, in nats.

    Raises UnsupportedError for a pair that nothing is known of.
    """
    table = {**_TABLE, **_REGISTERED.table}
    best: tuple[int, Divergence] | None = None
    for (one, two), function in table.items():
        if isinstance(p, one) and isinstance(q, two):
            away = type(p).__mro__.index(one) + type(q).__mro__.index(two)
            if best is None or away <= best[0]:
                best = away, function
    if best is None:
        raise UnsupportedError(
            "no divergence is known of this pair",
            found=f"{type(p).__name__} and {type(q).__name__}",
            hint="register_kl() adds one; or take the mean of p.log_prob(x) - q.log_prob(x)",
        )
    return best[1](p, q)


def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    away = ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + away - 1 - ratio.log())


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    chance = p.probs
    yes = chance * (q.logits.neg().softplus() - p.logits.neg().softplus())
    no = (1 - chance) * (q.logits.softplus() - p.logits.softplus())
    first = ((q.probs == 0) & (chance > 0)).where(math.inf, (chance == 0).where(0.0, yes))
    second = ((q.probs == 1) & (chance < 1)).where(math.inf, (chance == 1).where(0.0, no))
    return first + second


def _binomial(p: Binomial, q: Binomial) -> Tensor:
    n, chance = p.total_count, p.probs
    found = n * (chance * (p.logits - q.logits) + (-chance).log1p() - (-q.probs).log1p())
    return (n > q.total_count).where(math.inf, found)


def _categorical(p: Categorical, q: Categorical) -> Tensor:
    chances = p.probs
    terms = chances * (p.logits - q.logits)
    terms = (q.probs == 0).where(math.inf, terms)
    found: Tensor = (chances == 0).where(0.0, terms).sum(-1)
    return found


def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


def _geometric(p: Geometric, q: Geometric) -> Tensor:
    chance = p.probs
    no = (1 - chance) / chance * ((-chance).log1p() - (-q.probs).log1p())
    return (chance == 1).where(0.0, no) + chance.log() - q.probs.log()


def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


def _beta(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    whole, other = a + b, c + d
    scale = c.lgamma() + d.lgamma() + whole.lgamma() - a.lgamma() - b.lgamma() - other.lgamma()
    turned = (a - c) * a.digamma() + (b - d) * b.digamma() + (other - whole) * whole.digamma()
    return scale + turned


def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    return (b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma() + (a - b) * a.digamma()
            + a * (q.rate / p.rate - 1))  # fmt: skip


def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    whole = a.sum(-1)
    first = whole.lgamma() - b.sum(-1).lgamma()
    second = (a.lgamma() - b.lgamma()).sum(-1)
    third = ((a - b) * (a.digamma() - whole.digamma().unsqueeze(-1))).sum(-1)
    return first - second + third


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio = p.scale / q.scale
    away = (p.loc - q.loc).abs()
    return -ratio.log() + away / q.scale + ratio * (-away / p.scale).exp() - 1


def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    first = ((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2).log()
    return first - (4 * p.scale * q.scale).log()


def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    moved = (q.loc - p.loc) / q.scale
    stretched = (moved + (1 + ratio).lgamma()).exp()
    return stretched - 1 - ratio.log() - moved + (ratio - 1) * EULER


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return ((q.low > p.low) | (q.high < p.high)).where(math.inf, found)


def _pareto(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    found = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return (p.scale < q.scale).where(math.inf, found)


def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normal(p.base_dist, q.base_dist)  # type: ignore[arg-type]


def _uniform_normal(p: Uniform, q: Normal) -> Tensor:
    wide = p.high - p.low
    away = ((p.high + p.low - 2 * q.loc) / 2) ** 2
    whole = (math.sqrt(2 * math.pi) * q.scale / wide).log()
    return whole + (wide * wide / 12 + away) / (2 * q.scale**2)


_Vectors = MultivariateNormal | LowRankMultivariateNormal


def _multivariate(p: _Vectors, q: _Vectors) -> Tensor:
    first, second = p.scale_tril, q.scale_tril
    batch = broadcast_shapes(p.batch_shape, q.batch_shape)
    n = p.event_shape[0]
    lower = second.expand(*batch, n, n)
    turned = linalg.solve_triangular(lower, first.expand(*batch, n, n), upper=False)
    away = (q.loc - p.loc).expand(*batch, n).unsqueeze(-1)
    moved = linalg.solve_triangular(lower, away, upper=False)
    whole = half_log_det(second) - half_log_det(first)
    squares = (turned * turned).sum((-2, -1)) + (moved * moved).sum((-2, -1))
    return whole + 0.5 * (squares - n)


def _independent(p: Independent, q: Independent) -> Tensor:
    count = p.reinterpreted_batch_ndims
    if count != q.reinterpreted_batch_ndims:
        raise UnsupportedError(
            "events of as many axes", found=f"{count} and {q.reinterpreted_batch_ndims}"
        )
    return sum_last(kl_divergence(p.base_dist, q.base_dist), count)


def _alike(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether settings are the same; reads tensors that are not one and the same."""
    for a, b in zip(one.values(), two.values(), strict=True):
        if a is b:
            continue
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            same = type(a) is type(b) and a.shape == b.shape and bool((a == b).all().item())
        else:
            same = bool(a == b)
        if not same:
            return False
    return True


def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    same = [type(one) for one in p.transforms] == [type(one) for one in q.transforms] and all(
        _alike(vars(one), vars(two)) for one, two in zip(p.transforms, q.transforms, strict=True)
    )
    if not same or p.event_shape != q.event_shape:
        raise UnsupportedError("functions of draws have a divergence where they are the same",
                               found=f"{p.transforms} and {q.transforms}")  # fmt: skip
    return kl_divergence(p.base_dist, q.base_dist)


_TABLE: Mapping[_Pair, Divergence] = MappingProxyType({
    (Bernoulli, Bernoulli): _bernoulli, (Beta, Beta): _beta, (Binomial, Binomial): _binomial,
    (Categorical, Categorical): _categorical, (Cauchy, Cauchy): _cauchy,
    (Dirichlet, Dirichlet): _dirichlet, (Exponential, Exponential): _exponential,
    (Gamma, Gamma): _gamma, (Geometric, Geometric): _geometric, (Gumbel, Gumbel): _gumbel,
    (HalfNormal, HalfNormal): _half_normal, (Independent, Independent): _independent,
    (Laplace, Laplace): _laplace, (LogNormal, LogNormal): _transformed,
    (LowRankMultivariateNormal, LowRankMultivariateNormal): _multivariate,
    (LowRankMultivariateNormal, MultivariateNormal): _multivariate,
    (MultivariateNormal, LowRankMultivariateNormal): _multivariate,
    (MultivariateNormal, MultivariateNormal): _multivariate, (Normal, Normal): _normal,
    (OneHotCategorical, OneHotCategorical): _one_hot, (Pareto, Pareto): _pareto,
    (Poisson, Poisson): _poisson,
    (TransformedDistribution, TransformedDistribution): _transformed,
    (Uniform, Uniform): _uniform, (Uniform, Normal): _uniform_normal,
})  # fmt: skip

"""Probability distributions by the names of `torch.distributions`: draws, densities, divergences.

In come parameters, out go draws and logarithms of densities, graphs of ours that gradients pass.
Imports `tensor`, `special` and `linalg`.
"""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.distributions import constraints, transforms
from baregrad.distributions.base import Distribution
from baregrad.distributions.combined import (
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
)
from baregrad.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    Laplace,
    Normal,
    Uniform,
    VonMises,
)
from baregrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Multinomial,
    NegativeBinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from baregrad.distributions.divergences import kl_divergence, register_kl
from baregrad.distributions.gammas import (
    Beta,
    Chi2,
    Dirichlet,
    FisherSnedecor,
    Gamma,
    InverseGamma,
    StudentT,
)
from baregrad.distributions.multivariate import LowRankMultivariateNormal, MultivariateNormal
from baregrad.distributions.relaxed import RelaxedBernoulli, RelaxedOneHotCategorical
from baregrad.distributions.transformed import (
    HalfCauchy,
    HalfNormal,
    Kumaraswamy,
    LogNormal,
    Pareto,
    Weibull,
)
from baregrad.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "FisherSnedecor",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "InverseGamma",
    "Kumaraswamy",
    "Laplace",
    "LogNormal",
    "LowRankMultivariateNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "constraints",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transforms",
]


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.distributions", name, __all__)

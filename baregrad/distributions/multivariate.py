"""Normal distributions of vectors, by a Cholesky factor of the covariance."""

from __future__ import annotations

import math
from types import MappingProxyType

from baregrad import linalg
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.distributions import constraints
from baregrad.distributions.base import Centred, as_floats, normal_like
from baregrad.tensor import Tensor
from baregrad.tensor.torch_names import broadcast_shapes

_LOG_2PI = math.log(2 * math.pi)


def _factor_of_precision(precision: Tensor) -> Tensor:
    """The lower factor of the inverse of a matrix, without the inverse."""
    flipped = linalg.cholesky(precision.flip((-2, -1)))
    upper_inverse = flipped.flip((-2, -1)).mT
    one = Tensor.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    found: Tensor = linalg.solve_triangular(upper_inverse, one.expand(precision.shape), upper=False)
    return found


class MultivariateNormal(Centred):
    """Normal vectors of a mean (..., n) and one of three matrices (..., n, n).

    covariance_matrix, precision_matrix: the covariance, or its inverse. scale_tril: the lower
    triangle whose product with its transpose is the covariance. Raises ArgumentError unless one is
    given, LinAlgError where a matrix is not positive definite.
    """

    arg_constraints = MappingProxyType({
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    })  # fmt: skip
    support = constraints.real_vector
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"loc": 1, "scale_tril": 2})

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None, scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ArgumentError(
                "one of covariance_matrix, precision_matrix and scale_tril is given",
                found=f"{len(given)} of them",
            )
        (matrix,) = given
        if loc.ndim < 1 or matrix.ndim < 2 or matrix.shape[-2:] != (loc.shape[-1],) * 2:
            raise ShapeError(
                "a vector and a matrix as long and as wide", found=f"{loc.shape}, {matrix.shape}"
            )
        batch = broadcast_shapes(loc.shape[:-1], matrix.shape[:-2])
        event = loc.shape[-1:]
        self.loc = as_floats(loc).expand(*batch, *event)
        matrix = as_floats(matrix).expand(*batch, *event, *event)
        if covariance_matrix is not None:
            vars(self)["covariance_matrix"] = matrix
            self.scale_tril = linalg.cholesky(matrix)
        elif precision_matrix is not None:
            vars(self)["precision_matrix"] = matrix
            self.scale_tril = _factor_of_precision(matrix)
        else:
            self.scale_tril = matrix
        super().__init__(batch, event, validate_args)

    def __getattr__(self, name: str) -> Tensor:
        """The matrix that was not given."""
        if "scale_tril" in vars(self):
            factor: Tensor = self.scale_tril
            if name == "covariance_matrix":
                covariance: Tensor = factor @ factor.mT
                return covariance
            if name == "precision_matrix":
                one = Tensor.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
                wide = one.expand(factor.shape)
                inverse: Tensor = linalg.solve_triangular(factor, wide, upper=False)
                precision: Tensor = inverse.mT @ inverse
                return precision
        raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        drawn = normal_like(self.loc, self._extended(sample_shape))
        return self.loc + (self.scale_tril @ drawn.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        away = value - self.loc
        distance = _squared_distance(self.scale_tril, away)
        return -0.5 * (self._event_shape[0] * _LOG_2PI + distance) - half_log_det(self.scale_tril)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return 0.5 * self._event_shape[0] * (1 + _LOG_2PI) + half_log_det(self.scale_tril)

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        return (self.scale_tril * self.scale_tril).sum(-1)


def half_log_det(factor: Tensor) -> Tensor:
    """Half the logarithm of a matrix's determinant, by its Cholesky factor."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _squared_distance(factor: Tensor, away: Tensor) -> Tensor:
    """The squared length of what a lower factor takes to `away`."""
    batch = broadcast_shapes(factor.shape[:-2], away.shape[:-1])
    whole = factor.expand(*batch, *factor.shape[-2:])
    column = away.expand(*batch, away.shape[-1]).unsqueeze(-1)
    solved = linalg.solve_triangular(whole, column, upper=False).squeeze(-1)
    found: Tensor = (solved * solved).sum(-1)
    return found


class LowRankMultivariateNormal(Centred):
    """Normal vectors of covariance cov_factor @ cov_factor.mT + diag(cov_diag).

    loc and cov_diag are (..., n), cov_factor is (..., n, r), of a small r.
    """

    arg_constraints = MappingProxyType({
        "loc": constraints.real_vector, "cov_factor": constraints.real,
        "cov_diag": constraints.positive,
    })  # fmt: skip
    support = constraints.real_vector
    has_rsample = True
    _EVENT_AXES = MappingProxyType({"loc": 1, "cov_factor": 2, "cov_diag": 1})

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        if cov_factor.shape[-2:-1] != loc.shape[-1:] or cov_diag.shape[-1:] != loc.shape[-1:]:
            raise ShapeError(
                "vectors (..., n) and a matrix (..., n, r)",
                found=f"{loc.shape}, {cov_factor.shape}, {cov_diag.shape}",
            )
        batch = broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        event = loc.shape[-1:]
        self.loc = as_floats(loc).expand(*batch, *event)
        self.cov_factor = as_floats(cov_factor).expand(*batch, *cov_factor.shape[-2:])
        self.cov_diag = as_floats(cov_diag).expand(*batch, *event)
        super().__init__(batch, event, validate_args)

    def _capacitance(self) -> Tensor:
        """The lower factor of 1 + W.mT @ diag(1 / D) @ W."""
        scaled = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        one = Tensor.eye(scaled.shape[-2], dtype=scaled.dtype, device=scaled.device)
        found: Tensor = linalg.cholesky(one + scaled @ self.cov_factor)
        return found

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        found: Tensor = self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed()
        return found

    @property
    def scale_tril(self) -> Tensor:
        """The lower factor of the covariance."""
        found: Tensor = linalg.cholesky(self.covariance_matrix)
        return found

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        found: Tensor = linalg.inv(self.covariance_matrix)
        return found

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        shape = self._extended(sample_shape)
        few = normal_like(self.loc, (*shape[:-1], self.cov_factor.shape[-1]))
        many = normal_like(self.loc, shape)
        turned = (self.cov_factor @ few.unsqueeze(-1)).squeeze(-1)
        return self.loc + turned + self.cov_diag.sqrt() * many

    def _log_det(self, factor: Tensor) -> Tensor:
        return 2 * half_log_det(factor) + self.cov_diag.log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density, by Woodbury's identity."""
        self._check_value(value)
        away, factor = value - self.loc, self._capacitance()
        scaled = away / self.cov_diag
        inner = (self.cov_factor.mT @ scaled.unsqueeze(-1)).squeeze(-1)
        distance = (away * scaled).sum(-1) - _squared_distance(factor, inner)
        return -0.5 * (self._event_shape[0] * _LOG_2PI + self._log_det(factor) + distance)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        n = self._event_shape[0]
        return 0.5 * (n * (1 + _LOG_2PI) + self._log_det(self._capacitance()))

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        return (self.cov_factor * self.cov_factor).sum(-1) + self.cov_diag

"""Distributions made of others: batches as one event, mixtures, functions of draws."""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.distributions.base import Distribution, as_shape, sum_last
from baregrad.distributions.constraints import ValueSet
from baregrad.distributions.discrete import Categorical
from baregrad.distributions.transforms import ComposeTransform, Transform, composed
from baregrad.tensor import Tensor
from baregrad.tensor.torch_names import broadcast_shapes


class Independent(Distribution):
    """A distribution whose last axes of the batch are part of an event: densities are summed."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        shape = base_distribution.batch_shape
        count = reinterpreted_batch_ndims
        if not 0 <= count <= len(shape):
            raise ArgumentError(
                "as many axes as the batch has, or fewer", found=count, wanted=f"0 to {len(shape)}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = count
        cut = len(shape) - count
        super().__init__(
            shape[:cut], shape[cut:] + base_distribution.event_shape, validate_args
        )

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients pass draws."""
        return self.base_dist.has_rsample

    @property
    def support(self) -> ValueSet | None:  # type: ignore[override]
        """Events of which all values lie in the support of the other distribution."""
        own = self.base_dist.support
        axes = self.reinterpreted_batch_ndims
        return None if own is None else own._replace(event_dim=own.event_dim + axes)

    def expand(self, batch_shape: Sequence[int]) -> Independent:
        """Return the distribution with a batch of another shape."""
        own = self._event_shape[: self.reinterpreted_batch_ndims]
        return Independent(
            self.base_dist.expand((*as_shape(batch_shape), *own)), self.reinterpreted_batch_ndims
        )

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density of an event."""
        return sum_last(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        """Return the entropy of an event."""
        return sum_last(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        return self.base_dist.variance

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamily(Distribution):
    """One of several distributions of a kind, which a `Categorical` chooses.

    They lie along the last axis of the batch of the second.
    """

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ArgumentError(
                "a Categorical chooses", found=f"{type(mixture_distribution).__name__}"
            )
        whole = component_distribution.batch_shape
        count = mixture_distribution.param_shape[-1]
        if not whole or whole[-1] != count:
            raise ShapeError(
                "the last axis of the batch is what is chosen of", found=list(whole),
                wanted=f"{count} last",
            )
        broadcast_shapes(mixture_distribution.batch_shape, whole[:-1])
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        super().__init__(whole[:-1], component_distribution.event_shape, validate_args)

    @property
    def mixture_distribution(self) -> Categorical:
        """What chooses."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """What is chosen of."""
        return self._component_distribution

    def expand(self, batch_shape: Sequence[int]) -> MixtureSameFamily:
        """Return the distribution with a batch of another shape."""
        shape = as_shape(batch_shape)
        whole = (*shape, self._component_distribution.batch_shape[-1])
        return MixtureSameFamily(
            self._mixture_distribution.expand(shape), self._component_distribution.expand(whole)
        )

    def _weighted(self, x: Tensor) -> Tensor:
        """The mean over what is chosen of."""
        chances: Tensor = self._mixture_distribution.probs
        axes = len(self._event_shape)
        chances = chances.reshape(*chances.shape, *[1] * axes)
        return (x * chances).sum(-1 - axes)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws."""
        shape = as_shape(sample_shape)
        axes = len(self._event_shape)
        with Tensor.no_grad():
            drawn = self._component_distribution.sample(shape)
            chosen = self._mixture_distribution.expand(self._batch_shape).sample(shape)
            place = chosen.reshape(*chosen.shape, *[1] * (axes + 1))
            place = place.expand(*chosen.shape, 1, *self._event_shape)
            return drawn.gather(-1 - axes, place).squeeze(-1 - axes)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        inside = self._component_distribution.log_prob(value.unsqueeze(-1 - len(self._event_shape)))
        chances: Tensor = self._mixture_distribution.logits
        return (inside + chances.log_softmax(-1)).logsumexp(-1)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        below = self._component_distribution.cdf(value.unsqueeze(-1))
        found: Tensor = (below * self._mixture_distribution.probs).sum(-1)
        return found

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._weighted(self._component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        means = self._component_distribution.mean
        axis = -1 - len(self._event_shape)
        away = means - self.mean.unsqueeze(axis)
        return self._weighted(self._component_distribution.variance + away * away)

    def __repr__(self) -> str:
        return f"MixtureSameFamily({self._mixture_distribution}, {self._component_distribution})"


class TransformedDistribution(Distribution):
    """Functions of the draws of another distribution."""

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.transforms = composed(transforms)
        whole = ComposeTransform(self.transforms)
        shape = base_distribution.batch_shape + base_distribution.event_shape
        if len(shape) < whole.domain_dim:
            raise ShapeError(
                "the transforms work on more axes than there are", found=list(shape),
                wanted=f"{whole.domain_dim} or more",
            )
        # Parameters of the transforms may be a larger batch than there is.
        made = whole.forward_shape(shape)
        wide = whole.inverse_shape(made)
        if wide != shape:
            kept = len(wide) - len(base_distribution.event_shape)
            base_distribution = base_distribution.expand(wide[:kept])
        count = whole.domain_dim - len(base_distribution.event_shape)
        given = Independent(base_distribution, count) if count > 0 else base_distribution
        self.base_dist = given
        self._whole = whole
        axes = max(whole.codomain_dim, len(given.event_shape)
                   + whole.codomain_dim - whole.domain_dim)
        cut = len(made) - axes
        super().__init__(made[:cut], made[cut:], validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients pass draws."""
        return self.base_dist.has_rsample

    def expand(self, batch_shape: Sequence[int]) -> TransformedDistribution:
        """Return the distribution with a batch of another shape."""
        return TransformedDistribution(self.base_dist.expand(batch_shape), self.transforms)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws."""
        with Tensor.no_grad():
            return self._whole(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        return self._whole(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        y, found = value, None
        axes = len(self._event_shape)
        for part in reversed(self.transforms):
            x = part._inverse(y)
            axes += part.domain_dim - part.codomain_dim
            here = sum_last(part.log_abs_det_jacobian(x, y), axes - part.domain_dim)
            found = here if found is None else found + here
            y = x
        base = sum_last(self.base_dist.log_prob(y), axes - len(self.base_dist.event_shape))
        return base if found is None else base - found

    def _turned(self, chance: Tensor) -> Tensor:
        """The chance of the rest where the function falls. Raises UnsupportedError."""
        sign = self._whole.sign
        if isinstance(sign, int):
            if not sign:
                raise UnsupportedError("a cdf is of functions that rise or fall")
            return chance if sign > 0 else 1 - chance
        return (chance - 0.5) * sign + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`. Raises UnsupportedError."""
        return self._turned(self.base_dist.cdf(self._whole._inverse(value)))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability. Raises UnsupportedError."""
        return self._whole(self.base_dist.icdf(self._turned(value)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist}, {self.transforms})"

"""Discrete distributions made continuous, so that gradients pass their draws.

Source: C. Maddison and others, "The Concrete distribution", ICLR 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from baregrad.distributions import constraints
from baregrad.distributions.base import (
    Distribution,
    Number,
    as_shape,
    parameters,
    uniform_like,
)
from baregrad.distributions.combined import TransformedDistribution
from baregrad.distributions.discrete import Categorical, clamped, one_of
from baregrad.distributions.transformed import Made
from baregrad.distributions.transforms import ExpTransform, SigmoidTransform
from baregrad.tensor import Tensor


class RelaxedBernoulli(Made):
    """Numbers in (0, 1) that come to be 0 or 1 as the temperature falls, which gradients pass."""

    arg_constraints = MappingProxyType(
        {"temperature": constraints.positive, "logits": constraints.real}
    )
    support = constraints.unit_interval
    _EVENT_AXES = MappingProxyType({"temperature": 0, "probs": 0, "logits": 0})

    def __init__(
        self, temperature: Number, probs: Number | None = None, logits: Number | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = _LogitRelaxed(temperature, probs, logits)
        self.temperature, self.logits = base.temperature, base.logits
        super().__init__(base, SigmoidTransform(), validate_args)

    def expand(self, batch_shape: Sequence[int]) -> RelaxedBernoulli:
        """Return the distribution with a batch of another shape."""
        shape = as_shape(batch_shape)
        return RelaxedBernoulli(self.temperature.expand(*shape), logits=self.logits.expand(*shape))

    @property
    def probs(self) -> Tensor:
        """The probability that 1 comes to have."""
        return self.logits.sigmoid()


class _LogitRelaxed(Distribution):
    """The logits of what `RelaxedBernoulli` gives."""

    support = constraints.real
    has_rsample = True

    def __init__(self, temperature: Any, probs: Any, logits: Any) -> None:
        one_of("RelaxedBernoulli", probs, logits)
        given, self.temperature = parameters(logits if probs is None else probs, temperature)
        if logits is None:
            held = clamped(given)
            given = held.log() - (-held).log1p()
        self.logits = given
        super().__init__(given.shape)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        u = clamped(uniform_like(self.logits, self._extended(sample_shape)))
        return (u.log() - (-u).log1p() + self.logits) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        away = self.logits - value * self.temperature
        return self.temperature.log() + away - 2 * away.softplus()


class _ExpRelaxed(Distribution):
    """The logarithms of what `RelaxedOneHotCategorical` gives."""

    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any, logits: Any, validate_args: bool | None = None
    ) -> None:
        self._categorical = Categorical(probs, logits, validate_args)
        self.temperature = temperature
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:])

    def expand(self, batch_shape: Sequence[int]) -> _ExpRelaxed:
        """Return the distribution with a batch of another shape."""
        logits = self._categorical.logits.expand(*as_shape(batch_shape), *self._event_shape)
        return _ExpRelaxed(self.temperature, None, logits)

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass."""
        logits: Tensor = self._categorical.logits
        u = uniform_like(logits, self._extended(sample_shape))
        scores: Tensor = (logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, True)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        count = self._event_shape[0]
        t = self.temperature
        scores = self._categorical.logits - value * t
        scores = (scores - scores.logsumexp(-1, True)).sum(-1)
        scale = t.log() if isinstance(t, Tensor) else math.log(t)
        found: Tensor = scores + math.lgamma(count) + scale * (count - 1)
        return found


class RelaxedOneHotCategorical(TransformedDistribution):
    """Shares that come to be a single 1 as the temperature falls, which gradients pass."""

    support = constraints.simplex

    def __init__(
        self, temperature: Number, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = _ExpRelaxed(temperature, probs, logits, validate_args)
        self.temperature = temperature
        super().__init__(base, ExpTransform(), validate_args)

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities that ones come to have."""
        found: Tensor = self.base_dist._categorical.logits  # type: ignore[attr-defined]
        return found

    @property
    def probs(self) -> Tensor:
        """The probabilities that ones come to have."""
        return self.logits.softmax(-1)

    def expand(self, batch_shape: Sequence[int]) -> RelaxedOneHotCategorical:
        """Return the distribution with a batch of another shape."""
        logits = self.logits.expand(*as_shape(batch_shape), *self._event_shape)
        return RelaxedOneHotCategorical(self.temperature, logits=logits)

"""Distributions of integers and classes, of probabilities or of logits, whichever are given."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.distributions import constraints
from baregrad.distributions.base import (
    Distribution,
    Number,
    as_shape,
    first_taken,
    parameters,
    uniform_like,
)
from baregrad.distributions.constraints import ValueSet
from baregrad.distributions.gammas import standard_gamma
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor

_EVENT_AXES_OF_ONE = MappingProxyType({"probs": 0, "logits": 0})
_EVENT_AXES_OF_SEVERAL = MappingProxyType({"probs": 1, "logits": 1})
_EPSILONS = MappingProxyType(
    {dtypes.float64: 2.0**-52, dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7}
)
_EPSILON_F32 = 2.0**-23
# Up to this rate Poisson draws are looked up among so many probabilities.
_LOW_RATE, _LISTED = 10.0, 64
_POISSON_TRIES = 24


def clamped(probs: Tensor) -> Tensor:
    """Probabilities held away from 0 and 1, so that their logits are finite."""
    least = _EPSILONS.get(probs.dtype, _EPSILON_F32)
    return probs.clamp(least, 1 - least)


def one_of(what: str, probs: Any, logits: Any) -> None:
    """Refuse both or neither. Raises ArgumentError."""
    if (probs is None) == (logits is None):
        raise ArgumentError(
            f"{what} takes probs or logits", found="both" if probs is not None else "neither"
        )


class _Binary(Distribution):
    """What distributions share that have the probability of a yes: `probs`, or its `logits`."""

    arg_constraints = MappingProxyType(
        {"probs": constraints.unit_interval, "logits": constraints.real}
    )
    _EVENT_AXES = _EVENT_AXES_OF_ONE
    _given: Tensor
    total_count: Tensor

    def _take(self, probs: Number | None, logits: Number | None, *others: Any) -> Any:
        """Note which is given; return the others beside it."""
        one_of(type(self).__name__, probs, logits)
        given, *rest = parameters(logits if probs is None else probs, *others)
        # As attributes of its own: the other one is computed when it is asked for.
        vars(self)["probs" if logits is None else "logits"] = given
        self._given = given
        return rest

    def __getattr__(self, name: str) -> Tensor:
        held: dict[str, Tensor] = vars(self)
        if name == "logits" and "probs" in held:
            probs = clamped(held["probs"])
            return probs.log() - (-probs).log1p()
        if name == "probs" and "logits" in held:
            return held["logits"].sigmoid()
        raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)


class Bernoulli(_Binary):
    """1 by a probability, else 0."""

    support = constraints.boolean
    has_enumerate_support = True

    def __init__(
        self, probs: Number | None = None, logits: Number | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        super().__init__(self._given.shape, (), validate_args)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws of 0 and 1, of the parameter's dtype."""
        with Tensor.no_grad():
            return self.probs.detach().expand(self._extended(sample_shape)).bernoulli()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        self._check_value(value)
        logits = self.logits
        # What is certain, of infinite logits, has a probability of 1.
        yes = (value == 0).where(0.0, value * (-logits).softplus())
        no = (value == 1).where(0.0, (1 - value) * logits.softplus())
        return -(yes + no)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        logits = self.logits
        return logits.softplus() - self.probs * logits

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return 0 and 1."""
        return _listed(self._given.new_tensor([0.0, 1.0]), self._batch_shape, expand)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        found: Tensor = self.probs
        return found

    @property
    def mode(self) -> Tensor:
        """The likelier value, NaN where both are as likely."""
        probs = self.probs
        return (probs == 0.5).where(math.nan, (probs >= 0.5).cast(probs.dtype))

    @property
    def variance(self) -> Tensor:
        """The variance."""
        probs: Tensor = self.probs
        return probs * (1 - probs)


def _listed(values: Tensor, batch: tuple[int, ...], expand: bool) -> Tensor:
    column = values.reshape(-1, *[1] * len(batch))
    return column.expand(-1, *batch) if expand else column


class Geometric(_Binary):
    """How many times no comes before the first yes."""

    arg_constraints = MappingProxyType({
        "probs": ValueSet("positive unit_interval", 0, False, lambda x: (x > 0) & (x <= 1)),
        "logits": constraints.real,
    })  # fmt: skip
    support = constraints.nonnegative_integer

    def __init__(
        self, probs: Number | None = None, logits: Number | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        super().__init__(self._given.shape, (), validate_args)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws, of the parameter's dtype."""
        with Tensor.no_grad():
            u = uniform_like(self._given, self._extended(sample_shape))
            return (u.log() / (-self.probs.detach()).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        self._check_value(value)
        probs = self.probs
        # Where yes is certain, nothing comes before it.
        missed = ((probs == 1) & (value == 0)).where(0.0, probs)
        return value * (-missed).log1p() + probs.log()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        logits = self.logits
        return (logits.softplus() - self.probs * logits) / self.probs

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        """Zero."""
        found: Tensor = self.probs.zeros_like()
        return found

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (1.0 / self.probs - 1.0) / self.probs


class Binomial(_Binary):
    """How many of `total_count` are yes. Draws look at each of them."""

    arg_constraints = MappingProxyType({
        "total_count": constraints.nonnegative_integer, "probs": constraints.unit_interval,
        "logits": constraints.real,
    })  # fmt: skip
    has_enumerate_support = True
    _EVENT_AXES = MappingProxyType({"total_count": 0, "probs": 0, "logits": 0})

    def __init__(
        self, total_count: Number = 1, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._most = total_count if isinstance(total_count, int) else None
        (self.total_count,) = self._take(probs, logits, total_count)
        super().__init__(self._given.shape, (), validate_args)

    @property
    def support(self) -> ValueSet:  # type: ignore[override]
        """The integers up to the count."""
        return constraints.integer_interval(0, self.total_count)

    def _largest(self) -> int:
        """The largest count, which is read where it was given as a tensor."""
        return int(self.total_count.amax().item()) if self._most is None else self._most

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws, of the parameter's dtype."""
        shape = self._extended(sample_shape)
        with Tensor.no_grad():
            most = self._largest()
            drawn = uniform_like(self._given, (*shape, most)) < self.probs.detach().unsqueeze(-1)
            place = Tensor.arange(most, device=self._given.device)
            return (drawn & (place < self.total_count.unsqueeze(-1))).sum(-1).cast(
                self._given.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        self._check_value(value)
        n, logits = self.total_count, self.logits
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * logits - n * logits.softplus()

    def entropy(self) -> Tensor:
        """Return the entropy. Raises UnsupportedError where counts differ."""
        found = self.log_prob(self.enumerate_support(False))
        return -(found.exp() * found).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return 0 to the count. Raises UnsupportedError where counts differ."""
        most = self._largest()
        if self._most is None and self.total_count.amin().item() != most:
            raise UnsupportedError("supports of different counts are no list")
        values = Tensor.arange(most + 1, dtype=self._given.dtype, device=self._given.device)
        return _listed(values, self._batch_shape, expand)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        """The most likely count."""
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.total_count * self.probs * (1 - self.probs)


class NegativeBinomial(_Binary):
    """How many yes come before `total_count` of no."""

    arg_constraints = MappingProxyType({
        "total_count": constraints.nonnegative,
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    })  # fmt: skip
    support = constraints.nonnegative_integer
    _EVENT_AXES = Binomial._EVENT_AXES

    def __init__(
        self, total_count: Number, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        (self.total_count,) = self._take(probs, logits, total_count)
        super().__init__(self._given.shape, (), validate_args)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws, of the parameter's dtype."""
        shape = self._extended(sample_shape)
        with Tensor.no_grad():
            rate = standard_gamma(self.total_count.detach(), shape) * self.logits.detach().exp()
            return poisson(rate)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        self._check_value(value)
        n, logits = self.total_count, self.logits
        ways = (n + value).lgamma() - (value + 1).lgamma() - n.lgamma()
        ways = ((n + value) == 0).where(0.0, ways)
        return ways + n * (-logits).logsigmoid() + value * logits.logsigmoid()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        """The most likely count."""
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.mean / (-self.logits).sigmoid()


class _OfClasses(Distribution):
    """What distributions share that have `probs` of classes, or their `logits`."""

    def __getattr__(self, name: str) -> Tensor:
        held: dict[str, Tensor] = vars(self)
        if name == "logits" and "probs" in held:
            return clamped(held["probs"]).log()
        if name == "probs" and "logits" in held:
            return held["logits"].softmax(-1)
        raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)


class Categorical(_OfClasses):
    """Classes 0 to n - 1, of probabilities or logits (..., n), which need not be normalised."""

    arg_constraints = MappingProxyType(
        {"probs": constraints.simplex, "logits": constraints.real_vector}
    )
    has_enumerate_support = True
    _EVENT_AXES = _EVENT_AXES_OF_SEVERAL

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        one_of(type(self).__name__, probs, logits)
        given = logits if probs is None else probs
        if not isinstance(given, Tensor) or given.ndim < 1:
            raise ShapeError("classes are along the last axis", found=f"{given!r:.60}")
        given = given if given.dtype.is_float else given.float()
        if probs is None:
            vars(self)["logits"] = given - given.logsumexp(-1, True)
        else:
            vars(self)["probs"] = given / given.sum(-1, True)
        self._given = given
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], (), validate_args)

    @property
    def support(self) -> ValueSet:  # type: ignore[override]
        """The classes."""
        return constraints.integer_interval(0, self._num_events - 1)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return classes, int64."""
        shape = (*self._extended(sample_shape), self._num_events)
        with Tensor.no_grad():
            # The largest of logits and noise: a class by its probability.
            noise = -(-uniform_like(self._given.float(), shape).log()).log()
            return (self.logits.detach() + noise).argmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of classes."""
        self._check_value(value)
        logits: Tensor = self.logits
        places = value.cast(dtypes.int64).unsqueeze(-1)
        shape = (logits.zeros_like()[..., :1] + places).shape[:-1]
        rows = logits.expand(*shape, self._num_events)
        return rows.gather(-1, places.expand(*shape, 1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        least = -3.0e38 if self._given.dtype.bits >= 32 else -6e4
        return -(self.logits.clamp(min=least) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return the classes."""
        values = Tensor.arange(self._num_events, device=self._given.device)
        return _listed(values, self._batch_shape, expand)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self._given.shape

    @property
    def mean(self) -> Tensor:
        """NaN: classes have none."""
        return Tensor.full(self._batch_shape, math.nan, dtype=self._given.dtype,
                           device=self._given.device)

    @property
    def mode(self) -> Tensor:
        """The most likely class."""
        found: Tensor = self.probs.argmax(-1)
        return found

    @property
    def variance(self) -> Tensor:
        """NaN: classes have none."""
        return self.mean


class OneHotCategorical(_OfClasses):
    """Classes as vectors with a single 1, of probabilities or logits (..., n)."""

    arg_constraints = Categorical.arg_constraints
    support = constraints.one_hot
    has_enumerate_support = True
    _EVENT_AXES = _EVENT_AXES_OF_SEVERAL

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits, validate_args)
        shape = self._categorical.param_shape
        vars(self)["probs" if logits is None else "logits"] = getattr(
            self._categorical, "probs" if logits is None else "logits")
        super().__init__(shape[:-1], shape[-1:], validate_args)

    def _one_hot(self, places: Tensor) -> Tensor:
        return places.one_hot(self._event_shape[0]).cast(self._categorical._given.dtype)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return vectors, of the parameter's dtype."""
        return self._one_hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithms of probabilities."""
        self._check_value(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return the vectors."""
        count = self._event_shape[0]
        given = self._categorical._given
        values = Tensor.eye(count, dtype=given.dtype, device=given.device)
        column = values.reshape(count, *[1] * len(self._batch_shape), count)
        return column.expand(-1, *self._batch_shape, -1) if expand else column

    @property
    def mean(self) -> Tensor:
        """The probabilities."""
        found: Tensor = self._categorical.probs
        return found

    @property
    def mode(self) -> Tensor:
        """The vector of the most likely class."""
        return self._one_hot(self._categorical.mode)

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        return self.mean * (1 - self.mean)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose draws have the gradients of its probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """Return draws that gradients pass as if they were probabilities."""
        probs: Tensor = self._categorical.probs
        return self.sample(sample_shape) + (probs - probs.detach())


class Multinomial(_OfClasses):
    """How many of `total_count` draws fall to each class, of probabilities or logits (..., n)."""

    arg_constraints = Categorical.arg_constraints
    support = None
    _EVENT_AXES = _EVENT_AXES_OF_SEVERAL

    def __init__(
        self, total_count: int = 1, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int) or total_count < 0:
            raise ArgumentError(
                "total_count is an integer from 0 on", found=f"{total_count!r:.40}"
            )
        self.total_count = total_count
        self._categorical = Categorical(probs, logits, validate_args)
        vars(self)["probs" if logits is None else "logits"] = getattr(
            self._categorical, "probs" if logits is None else "logits")
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args)

    def expand(self, batch_shape: Any) -> Multinomial:
        """Return the distribution with a batch of another shape."""
        probs = self._categorical.probs.expand(*batch_shape, *self._event_shape)
        return Multinomial(self.total_count, probs, validate_args=False)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return counts, of the parameter's dtype."""
        drawn = self._categorical.sample((self.total_count, *as_shape(sample_shape)))
        counts = drawn.one_hot(self._event_shape[0]).sum(0)
        return counts.cast(self._categorical._given.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithms of probabilities."""
        self._check_value(value)
        logits: Tensor = self._categorical.logits
        logits = ((value == 0) & (logits == -math.inf)).where(0.0, logits)
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return ways + (logits * value).sum(-1)

    @property
    def mean(self) -> Tensor:
        """The mean counts."""
        found: Tensor = self._categorical.probs * self.total_count
        return found

    @property
    def variance(self) -> Tensor:
        """The variance of each count."""
        probs: Tensor = self._categorical.probs
        return probs * (1 - probs) * self.total_count


class Poisson(Distribution):
    """How many events there are where `rate` are expected."""

    arg_constraints = MappingProxyType({"rate": constraints.nonnegative})
    support = constraints.nonnegative_integer
    _EVENT_AXES = MappingProxyType({"rate": 0})

    def __init__(self, rate: Number, validate_args: bool | None = None) -> None:
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape, (), validate_args)

    def sample(self, sample_shape: object = ()) -> Tensor:
        """Return draws, of the parameter's dtype."""
        return poisson(self.rate.expand(self._extended(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        self._check_value(value)
        return value.xlogy(self.rate) - self.rate - (value + 1).lgamma()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.rate

    @property
    def mode(self) -> Tensor:
        """The most likely count."""
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.rate


def poisson(rate: Tensor) -> Tensor:
    """Return a draw for each rate, of its dtype, that no gradients pass.

    Low rates are looked up by one uniform number among the sums of probabilities. Above 10: the
    transformed rejection of W. Hormann, Insurance: Mathematics and Economics 1993.
    """
    with Tensor.no_grad():
        mean = rate.detach().double()
        is_low = mean < _LOW_RATE
        low, high = is_low.where(mean, 1.0), is_low.where(_LOW_RATE, mean)
        u = uniform_like(mean, mean.shape)
        count = Tensor.arange(_LISTED, dtype=dtypes.float64, device=mean.device)
        rates = low.unsqueeze(-1)
        chances = (count.xlogy(rates) - rates - (count + 1).lgamma()).exp()
        few = (u.unsqueeze(-1) > chances.cumsum(-1)).sum(-1).double()
        drawn = is_low.where(few, _many_events(high))
        return (mean >= 0).where(drawn, math.nan).cast(rate.dtype)


def _many_events(mean: Tensor) -> Tensor:
    b = 0.931 + 2.53 * mean.sqrt()
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    many = (_POISSON_TRIES, *mean.shape)
    u, v = uniform_like(mean, many) - 0.5, uniform_like(mean, many)
    us = 0.5 - u.abs()
    k = ((2 * a / us + b) * u + mean + 0.43).floor()
    at_once = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    possible = (k >= 0) & ~((us < 0.013) & (v > us))
    counts = k.clamp(min=0.0)
    bound = counts * mean.log() - mean - (counts + 1).lgamma()
    below = (v * inverse_alpha / (a / (us * us) + b)).log() <= bound
    return first_taken(at_once | (possible & below), counts)

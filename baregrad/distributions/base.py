"""What distributions have in common: shapes, draws, densities, and how parameters are taken.

A distribution has a batch of parameters, of shape `batch_shape`, and gives for each of them values
of shape `event_shape`. Draws and densities are graphs of ours, parts of captured functions too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar, Self

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from baregrad.distributions.constraints import ValueSet
from baregrad.dtypes import default_float, dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explain_arguments, explain_constructor
from baregrad.tensor.torch_names import broadcast_shapes

Number = Tensor | float
Shape = tuple[int, ...]
NO_CONSTRAINTS: Mapping[str, ValueSet] = MappingProxyType({})


def parameters(*values: Any) -> tuple[Tensor, ...]:
    """Numbers and tensors as tensors of floats, of one shape.

    A number is of the tensors' dtype and device. Raises DTypeError for what is neither.
    """
    tensors = [one for one in values if isinstance(one, Tensor)]
    for one in values:
        if not isinstance(one, Tensor | Real):
            raise DTypeError(
                "a parameter is a number or a tensor", found=f"{type(one).__name__} {one!r:.40}"
            )
    like = next((one for one in tensors if one.dtype.is_float), None)
    dtype = default_float() if like is None else like.dtype
    device = tensors[0].device if tensors else None
    made = [one if isinstance(one, Tensor) else Tensor(float(one), dtype=dtype, device=device)
            for one in values]
    made = [one if one.dtype.is_float else one.cast(dtype) for one in made]
    shape = broadcast_shapes(*[one.shape for one in made])
    return tuple(one if one.shape == shape else one.expand(shape) for one in made)


def as_floats(x: Tensor) -> Tensor:
    """A tensor as one of floats, as a parameter is."""
    return x if x.dtype.is_float else x.cast(default_float())


def as_shape(shape: Any) -> Shape:
    """A shape that users give: a number of draws, or several. Raises ShapeError."""
    found = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(n, int) and n >= 0 for n in found):
        raise ShapeError("a shape of draws is of integers from 0 on", found=found)
    return found


def first_taken(taken: Tensor, values: Tensor) -> Tensor:
    """Of tries along the first axis the first that was taken; the last one where none was."""
    last = values.shape[0] - 1
    where = taken.any(0).where(taken.cast("int32").argmax(0), last)
    return values.gather(0, where.unsqueeze(0)).squeeze(0)


def sum_last(x: Tensor, count: int) -> Tensor:
    """The sum over the last `count` axes."""
    return x.sum(tuple(range(-count, 0))) if count else x


# Half of the step between uniform numbers of a dtype.
_HALF_STEP = MappingProxyType({
    dtypes.float64: 2.0**-54, dtypes.float32: 2.0**-25, dtypes.float16: 2.0**-12,
    dtypes.bfloat16: 2.0**-9,
})  # fmt: skip


def uniform_like(x: Tensor, shape: Shape) -> Tensor:
    """Uniform numbers in (0, 1), both ends left out, of the dtype of `x`."""
    drawn = Tensor.rand(*shape, dtype=x.dtype, device=x.device)
    return drawn.clamp(min=_HALF_STEP[x.dtype])


def normal_like(x: Tensor, shape: Shape) -> Tensor:
    """Standard normal numbers of the dtype of `x`."""
    return Tensor.randn(*shape, dtype=x.dtype, device=x.device)


class Distribution:
    """The base of distributions; subclasses write `rsample` or `sample`, `log_prob`, and others.

    validate_args: whether parameters and values are looked at, which reads them, and ArgumentError
    raised for those that do not fit; unlike PyTorch they are only where one asks, here or by
    `set_default_validate_args`.
    """

    arg_constraints: Mapping[str, ValueSet] = NO_CONSTRAINTS
    support: ValueSet | None = None
    has_rsample: ClassVar[bool] = False
    has_enumerate_support: ClassVar[bool] = False
    # The parameters by which another of the class is made, and how many last axes an event has.
    _EVENT_AXES: ClassVar[Mapping[str, int]] = MappingProxyType({})
    _is_validating: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_constructor(cls)
        explain_arguments(cls)

    def __init__(
        self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape = tuple(batch_shape)
        self._event_shape = tuple(event_shape)
        self._validates = self._is_validating if validate_args is None else validate_args
        if not self._validates:
            return
        for name, constraint in self.arg_constraints.items():
            value = vars(self).get(name)
            if isinstance(value, Tensor) and not constraint.check(value.detach()).all().item():
                raise ArgumentError(
                    f"the {name} of {type(self).__name__} lies outside of what it takes",
                    found=f"{value.detach().numpy()!s:.60}", wanted=f"{constraint}",
                )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Say whether distributions that are made from now on look at their parameters."""
        Distribution._is_validating = bool(value)

    @property
    def batch_shape(self) -> Shape:
        """The shape of a batch of parameters."""
        return self._batch_shape

    @property
    def event_shape(self) -> Shape:
        """The shape of one value."""
        return self._event_shape

    def _extended(self, sample_shape: Any = ()) -> Shape:
        """The shape of draws."""
        return (*as_shape(sample_shape), *self._batch_shape, *self._event_shape)

    def _lacks(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} has no {what}")

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return draws (sample_shape, batch_shape, event_shape), that no gradients pass."""
        with Tensor.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return draws that gradients pass, towards the parameters. Raises UnsupportedError."""
        raise self._lacks("draws that gradients pass")

    def sample_n(self, n: int) -> Tensor:
        """Return n draws."""
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density, or the probability, at values."""
        raise self._lacks("density")

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most `value`."""
        raise self._lacks("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value below which a draw lies with a probability."""
        raise self._lacks("icdf")

    def entropy(self) -> Tensor:
        """Return the entropy of each of the batch, in nats."""
        raise self._lacks("entropy")

    def perplexity(self) -> Tensor:
        """Return exp(entropy)."""
        return self.entropy().exp()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values along a new first axis, for each of the batch with `expand`."""
        raise self._lacks("support that can be listed")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """Return the distribution with a batch of another shape, to which this one's broadcasts."""
        shape = as_shape(batch_shape)
        given: dict[str, Any] = {}
        for name, axes in self._EVENT_AXES.items():
            held = vars(self).get(name)
            if isinstance(held, Tensor):
                own = held.shape[held.ndim - axes :]
                given[name] = held.expand(*shape, *own)
        made = type(self)(**given, validate_args=False)
        made._validates = self._validates
        return made

    def _check_value(self, value: Tensor) -> None:
        """Refuse values of another shape, and where values are looked at, outside the support."""
        if not isinstance(value, Tensor):
            raise DTypeError("a value is a tensor", found=f"{type(value).__name__} {value!r:.40}")
        own = len(self._event_shape)
        if own and value.shape[-own:] != self._event_shape:
            raise ShapeError(
                "a value of another shape", found=list(value.shape),
                wanted=f"{list(self._event_shape)} last",
            )
        if self._validates and self.support is not None:
            if not self.support.check(value.detach()).all().item():
                raise ArgumentError(
                    f"a value outside of what {type(self).__name__} gives",
                    found=f"{value.detach().numpy()!s:.60}", wanted=f"{self.support}",
                )

    def __repr__(self) -> str:
        shown = [f"{name}: {held.shape}" if held.ndim else f"{name}: {held.item():g}"
                 for name in self._EVENT_AXES
                 if isinstance(held := vars(self).get(name), Tensor)]
        return f"{type(self).__name__}({', '.join(shown)})"


explain_arguments(Distribution)


class Centred(Distribution):
    """What distributions share whose mean and most likely value are where they lie, `loc`."""

    loc: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean: the place."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most likely value: the place."""
        return self.loc

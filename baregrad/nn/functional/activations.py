"""Activations that may write over their argument, or draw numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import by_our_names, explained
from baregrad.tensor.ops.inplace import update


def in_place_too(name: str, always: bool = False) -> Callable[..., Any]:
    """The method of this name as a function whose last argument is `inplace`.

    always: whether it writes over what it is given without being told.
    """
    method: Callable[..., Any] = getattr(Tensor, name)
    places = len(inspect.signature(method).parameters)

    def function(*args: Any, inplace: bool = always, **kwargs: Any) -> Tensor:
        args, kwargs = by_our_names(method, args, kwargs) or (args, kwargs)
        if len(args) == places + 1:
            args, inplace = args[:-1], args[-1]
        made: Tensor = method(*args, **kwargs)
        over = args[0] if args else next(iter(kwargs.values()))
        return update(over, made) if inplace else made

    function.__name__ = function.__qualname__ = name + "_" * always
    function.__doc__ = method.__doc__
    return function


@explained
def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Return `x`, times a slope below 0: one drawn for each element in training, else the mean."""
    if not lower <= upper:
        raise ArgumentError("slopes are between two numbers, the lower first",
                            found=f"{lower}, {upper}")
    slope: Any = (lower + upper) / 2
    if training:
        slope = Tensor.uniform(*x.shape, low=lower, high=upper, dtype=x.dtype, device=x.device)
    made = (x >= 0).where(x, x * slope)
    return update(x, made) if inplace else made


@explained
def rrelu_(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Tensor:
    """Write what `rrelu` gives over `x`; return `x`."""
    made: Tensor = rrelu(x, lower, upper, training, inplace=True)
    return made


@explained
def gumbel_softmax(
    logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Return a soft draw of one class of each row; with `hard` a one-hot one, its gradient soft.

    Source: E. Jang and others, "Categorical Reparameterization with Gumbel-Softmax", 2017.
    """
    if not tau > 0:
        raise ArgumentError("a temperature is above 0", found=tau)
    share = Tensor.rand(*logits.shape, device=logits.device).clamp(min=1e-30)
    noise = -(-share.log()).clamp(min=1e-30).log()
    soft = ((logits + noise.cast(logits.dtype)) / tau).softmax(dim)
    if not hard:
        return soft
    first = soft.detach().argmax(dim, True)
    chosen = soft.detach().zeros_like().scatter(dim, first, 1.0)
    return chosen - soft.detach() + soft

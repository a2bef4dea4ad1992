"""Keeping gradients small, between `backward()` and `step()`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable

import numpy as np

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.link import session
from baregrad.tensor.tensor import Tensor


@explained
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale all gradients so that their norm, as one vector, is at most `max_norm`.

    Return the norm before, a float32 tensor of one element (float64 where gradients are).
    Parameters without gradient do not count. Raises ShapeError where parameters have none at all.
    """
    holders = _with_gradients(parameters)
    total = get_total_norm([p.grad.detach() for p in holders if p.grad is not None], norm_type)
    clip_grads_with_norm_(holders, max_norm, total)
    session().watching.companions.append(weakref.ref(total._storage))
    return total


@explained
def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """Return the norm of all tensors as one vector, float32, or float64 where one is."""
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not given:
        return Tensor(0.0)
    wide = dtypes.float64 if any(x.dtype is dtypes.float64 for x in given) else dtypes.float32
    with Tensor.no_grad():
        norms = [x.detach().cast(wide).norm(norm_type) for x in given]
        return norms[0] if len(norms) == 1 else Tensor.stack(*norms).norm(norm_type)


@explained
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor
) -> None:
    """Scale all gradients by max_norm / total_norm, where that is below 1.

    Raises ShapeError where parameters have no gradient at all.
    """
    with Tensor.no_grad():
        factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0).contiguous()
        for p in _with_gradients(parameters):
            assert p.grad is not None
            gradient = p.grad.detach()
            p.grad = (gradient * factor).cast(gradient.dtype)


@explained
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Hold every element of every gradient within [-clip_value, clip_value].

    Raises ShapeError where parameters have no gradient at all.
    """
    if not clip_value >= 0 or math.isinf(clip_value):
        raise ArgumentError(f"clip_value is a number from 0 on, not {clip_value}")
    with Tensor.no_grad():
        for p in _with_gradients(parameters):
            assert p.grad is not None
            p.grad = p.grad.detach().clamp(-clip_value, clip_value)


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    if not isinstance(parameters, Iterable) or isinstance(parameters, np.ndarray):
        raise DTypeError("gradients are clipped of tensors", found=f"{type(parameters).__name__}")
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for p in given:
        if not isinstance(p, Tensor):
            raise DTypeError(
                "gradients are clipped of tensors", found=f"{type(p).__name__} {p!r:.40}"
            )
    found = [p for p in given if p.grad is not None]
    if not found:
        raise ShapeError(
            "no gradient to clip", found=f"{len(given)} parameters", hint="call backward() first"
        )
    return found

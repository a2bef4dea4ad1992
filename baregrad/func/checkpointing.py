"""`checkpoint`: what a function computes on its way is computed again for gradients, not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.func.regions import traced_region
from baregrad.func.stand_ins import check_callable, results_of, tensors_of, with_tensors
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.tensor import Tensor


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return function(*args, **kwargs), of which its arguments and results alone stay in memory.

    The backward pass computes the function again. It is computed now, as a program of its own, and
    draws the same random numbers both times. Arguments may be trees of tensors beside anything
    else; what the function closes over gets gradients as well. Raises ArgumentError.
    """
    check_callable(function, "checkpoint")
    tree = (args, kwargs)
    given = tensors_of(tree)
    if not given:
        raise ArgumentError(
            "checkpoint takes the tensors that a function computes with", found="no tensor"
        )
    device = given[0].device

    def call(tensors: list[Tensor]) -> tuple[Any, list[Tensor]]:
        held, named = with_tensors(tree, tensors)
        result = function(*held, **named)
        return result, results_of(result, "checkpoint")

    values = [each.node for each in given]
    traced = traced_region(call, values, device)
    found = traced.region.run([*values, *traced.captured])
    results = tensors_of(traced.result)
    for storage, value in zip(traced.written, found[len(results) :], strict=True):
        storage.put(value, storage.grad)
    grad = grad_enabled()
    made = [
        Tensor._make(value, device, grad and each.requires_grad)
        for value, each in zip(found, results, strict=False)
    ]
    return with_tensors(traced.result, made)

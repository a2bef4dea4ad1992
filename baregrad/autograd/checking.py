"""Gradients beside quotients of differences, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, GradientError
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.autograd.backward import gradients
from baregrad.tensor.tensor import Tensor


def gradcheck(
    func: Callable[..., Any], inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5,
    rtol: float = 1e-3, raise_exception: bool = True,
) -> bool:
    """Return whether gradients of `func` are the quotients of differences of 2 * `eps`.

    inputs: a tensor or a tuple of arguments; those that require gradients are looked at, which are
    best of float64. Raises GradientError where they are not, unless told, ArgumentError for none.
    """
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    looked = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    if not looked:
        raise ArgumentError("gradcheck wants a tensor that requires gradients", found="none")
    outputs = func(*given)
    outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if not all(isinstance(output, Tensor) for output in outputs):
        raise ArgumentError("gradcheck wants a function of tensors to tensors",
                            found=[type(output).__name__ for output in outputs])  # fmt: skip
    for which, output in enumerate(outputs):
        rows = _rows(output, looked)
        for place, x in enumerate(looked):
            wanted = _quotients(func, given, x, which, eps)
            found = np.stack([row[place] for row in rows]) if rows else np.zeros_like(wanted)
            if not np.allclose(found, wanted, rtol, atol):
                if not raise_exception:
                    return False
                worst = np.abs(found - wanted).max()
                raise GradientError(
                    f"the gradient of output {which} by input {place} is not its slope",
                    found=f"a difference of {worst:.3g}", wanted=f"{atol} + {rtol} of it at most",
                )
    return True


def _rows(output: Tensor, inputs: list[Tensor]) -> list[list[Any]]:
    """For each element of an output its gradients by all inputs, flat."""
    rows = []
    for place in range(output.numel()):
        seed = np.zeros(output.numel())
        seed[place] = 1.0
        weights = Tensor(seed, dtype=output.dtype, device=output.device).reshape(output.shape)
        found = gradients([output], inputs, [weights], False, True)
        rows.append([one.double().numpy().reshape(-1) for one in found])
    return rows


def _quotients(
    func: Callable[..., Any], given: tuple[Any, ...], x: Tensor, which: int, eps: float
) -> Any:
    """The slopes of an output by each element of `x`: (output, input)."""
    start = x.detach().numpy().copy()
    columns = []
    for place in range(start.size):
        ends = []
        for step in (eps, -eps):
            moved = start.copy().reshape(-1)
            moved[place] += step
            other = Tensor(moved.reshape(start.shape), dtype=x.dtype, device=x.device)
            with no_grad():
                found = func(*[other if one is x else one for one in given])
            found = found[which] if isinstance(found, list | tuple) else found
            ends.append(found.double().numpy().reshape(-1))
        columns.append((ends[0] - ends[1]) / (2 * eps))
    return np.stack(columns, axis=1)

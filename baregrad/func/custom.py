"""`custom_gradient`: a function whose gradient its author gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.func.regions import marked
from baregrad.func.stand_ins import check_callable, results_of, tensors_of, with_tensors
from baregrad.ir.core.node import Node
from baregrad.tensor.array import nodes
from baregrad.tensor.array.grad_mode import enable_grad, grad_enabled
from baregrad.tensor.array.views import twin
from baregrad.tensor.tensor import Tensor


def custom_gradient(function: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Return a function of a result and its gradient: function(*args) gives (result, backward).

    backward takes a gradient for each tensor of the result, zeros for one that has none, and gives
    one for each tensor among the arguments, in order, alone or in a tuple; None for one without. It
    may use whatever tensors it closes over, and is differentiated like any other function; what
    `function` itself does on its way is not. Use it as a decorator. Raises ArgumentError or
    ShapeError where what comes back does not fit.
    """
    check_callable(function, "custom_gradient")

    @functools.wraps(function)
    def custom(*args: Any, **kwargs: Any) -> Any:
        tree = (args, kwargs)
        given = tensors_of(tree)
        if not given:
            raise ArgumentError("a function with a gradient takes tensors", found="none")
        # Marked, so that a gradient of backward's goes to what it closes over.
        values = [twin(x.node) if x.dtype.is_float else x.node for x in given]
        grad = grad_enabled() and any(x.requires_grad for x in given)
        device = given[0].device
        tensors = [Tensor._make(v, device, grad) for v in values]
        with enable_grad():
            held, named = with_tensors(tree, tensors)
            made = function(*held, **named)
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[1]):
            raise ArgumentError(
                "a function with a gradient returns (result, backward)",
                found=f"{type(made).__name__}",
            )
        result, backward = made
        outputs = results_of(result, "custom_gradient")
        if not grad:
            return with_tensors(result, [Tensor._make(y.node, y.device) for y in outputs])
        roots = [nodes.detach(y._value()) for y in outputs]
        puller = _Puller(backward, values, [(y.shape, y.dtype) for y in outputs], device)
        found = marked(roots, values, values, puller)
        return with_tensors(result, [
            Tensor._make(value, y.device, True) for value, y in zip(found, outputs, strict=True)
        ])

    return custom


class _Puller:
    """What asks the author's function for gradients."""

    def __init__(
        self, backward: Callable[..., Any], values: list[Node], outputs: list[Any], device: str
    ) -> None:
        self.backward = backward
        self.values = values
        self.outputs = outputs
        self.device = device

    def __call__(self, values: Any, results: Any, seeds: dict[int, Node]) -> list[Node | None]:
        """One gradient for each value."""
        handed = [
            Tensor._make(seeds.get(i, nodes.full(0, shape, dtype)), self.device, dtype.is_float)
            for i, (shape, dtype) in enumerate(self.outputs)
        ]
        with enable_grad():
            parts = self.backward(*handed)
        parts = tuple(parts) if isinstance(parts, tuple | list) else (parts,)
        if len(parts) != len(self.values):
            raise ArgumentError(
                "backward gives a gradient for each tensor that the function took",
                found=len(parts), wanted=len(self.values),
            )
        made: list[Node | None] = []
        for part, value in zip(parts, self.values, strict=True):
            shape = list(part.shape) if isinstance(part, Tensor) else type(part).__name__
            if part is not None and shape != list(value.shape):
                raise ShapeError(
                    "a gradient has the shape of its tensor", found=str(shape),
                    wanted=str(list(value.shape)),
                )
            made.append(None if part is None else nodes.cast(part._value(), value.dtype))
        return made

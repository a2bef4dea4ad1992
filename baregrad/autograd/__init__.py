"""PyTorch's `torch.autograd`: gradients of any tensors, and functions with their own gradients.

In come tensors and functions, out go gradients. Imports `tensor` and `func`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from baregrad.base.errors import ArgumentError
from baregrad.base.namespaces import unknown_name
from baregrad.func.custom import custom_gradient
from baregrad.tensor.array.grad_mode import enable_grad, no_grad, set_grad_enabled
from baregrad.tensor.autograd.backward import gradients, gradients_reached
from baregrad.tensor.tensor import Tensor
from baregrad.tensor.torch_names import inference_mode

if TYPE_CHECKING:
    from baregrad.autograd import functional as functional
    from baregrad.autograd.anomalies import detect_anomaly as detect_anomaly
    from baregrad.autograd.anomalies import set_detect_anomaly as set_detect_anomaly
    from baregrad.autograd.checking import gradcheck as gradcheck

__all__ = ["Function", "Variable", "backward", "detect_anomaly", "enable_grad", "functional",
           "grad", "gradcheck", "inference_mode", "no_grad", "set_detect_anomaly",
           "set_grad_enabled"]  # fmt: skip


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def grad(
    outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None, create_graph: bool = False, allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Return the gradients of the sum of outputs by inputs; `grad` of no leaf changes.

    Graphs are kept as long as their tensors are, so `retain_graph` says nothing. What is not
    reached has None with `allow_unused`, zeros with `materialize_grads`, and else raises
    GradientError. Raises ShapeError for gradients of other shapes.
    """
    roots = _several(outputs)
    seeds = [None] * len(roots) if grad_outputs is None else _several(grad_outputs)
    if len(seeds) != len(roots):
        raise ArgumentError("a gradient for each output", found=len(seeds), wanted=len(roots))
    if materialize_grads and allow_unused is False:
        raise ArgumentError("zeros for what is not reached", found="allow_unused=False",
                            wanted="materialize_grads alone")  # fmt: skip
    find = gradients if materialize_grads else gradients_reached
    return find(
        roots, _several(inputs), seeds, create_graph, bool(allow_unused or materialize_grads)
    )


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None, create_graph: bool = False,
) -> None:
    """Add gradients of the sum of tensors to `grad` of every leaf; see `Tensor.backward`."""
    roots = _several(tensors)
    seeds = [None] * len(roots) if grad_tensors is None else _several(grad_tensors)
    if len(seeds) != len(roots):
        raise ArgumentError("a gradient for each tensor", found=len(seeds), wanted=len(roots))
    for root, seed in zip(roots, seeds, strict=True):
        root.backward(seed, create_graph=create_graph)


def Variable(data: Tensor, requires_grad: bool = False) -> Tensor:  # noqa: N802 - PyTorch's name
    """Return a leaf that aliases a tensor."""
    return data.detach().requires_grad_(requires_grad)


class FunctionContext:
    """What `forward` of a function leaves for its `backward`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, which `backward` finds as `saved_tensors`."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say that gradients of these results are of no use; they are handed as zeros."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Refuse functions that write over what they are given. Raises ArgumentError."""
        raise ArgumentError(
            "a function with a gradient of its own changes nothing in place",
            hint="return a new tensor",
        )

    def set_materialize_grads(self, value: bool) -> None:
        """Take note of nothing: gradients that nobody gave are zeros here."""


class Function:
    """A function with a gradient of its own: a subclass writes `forward` and `backward`.

    Both are static methods whose first argument is a context; `backward` gives a gradient, or None,
    for each argument of `forward`. `apply` calls it. With `setup_context(ctx, inputs, output)`
    `forward` takes no context.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Return the result. Raises NotImplementedError."""
        raise NotImplementedError("a function has a forward()")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        """Return a gradient for each argument of `forward`. Raises NotImplementedError."""
        raise NotImplementedError("a function has a backward()")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Return what `forward` does of these arguments; gradients pass by `backward`."""
        ctx = FunctionContext(tuple([isinstance(a, Tensor) and a.requires_grad for a in args]))
        tensors = [place for place, arg in enumerate(args) if isinstance(arg, Tensor)]
        apart = getattr(cls, "setup_context", None)

        def called(*given: Any) -> tuple[Any, Any]:
            with no_grad():
                result = cls.forward(*given) if apart is not None else cls.forward(ctx, *given)
                if apart is not None:
                    apart(ctx, given, result)
            return result, pulled

        def pulled(*grads: Tensor) -> tuple[Any, ...]:
            found = _several(cls.backward(ctx, *grads))
            if len(found) != len(args):
                raise ArgumentError(
                    f"{cls.__name__}.backward gives a gradient, or None, for each argument",
                    found=len(found), wanted=len(args),
                )
            return tuple([found[place] for place in tensors])

        return custom_gradient(called)(*args)


def __getattr__(name: str) -> object:
    if name == "functional":
        return importlib.import_module(f"{__name__}.{name}")
    if name == "gradcheck":
        return importlib.import_module(f"{__name__}.checking").gradcheck
    if name in ("detect_anomaly", "set_detect_anomaly"):
        return getattr(importlib.import_module(f"{__name__}.anomalies"), name)
    if name in ("function", "grad_mode", "variable"):
        return importlib.import_module(f"{__name__}.{name}")
    raise unknown_name("baregrad.autograd", name, __all__)

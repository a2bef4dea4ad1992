"""Modules as functions of their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.tensor.tensor import Tensor


def functional_call(
    module: Any, parameter_and_buffer_dicts: Any, args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return module(*args, **kwargs) with other tensors in place of its own, by their dotted names.

    parameter_and_buffer_dicts: one mapping, or several of which each adds names; what is not named
    stays. args: the arguments, or one that is no tuple. What the module writes in place, it writes
    into the tensors given. Parameters that are one in the module stay one. Raises ArgumentError.
    """
    _check(module, "functional_call")
    given: dict[str, Tensor] = {}
    several = isinstance(parameter_and_buffer_dicts, tuple | list)
    for part in parameter_and_buffer_dicts if several else (parameter_and_buffer_dicts,):
        if not isinstance(part, Mapping) or not all(isinstance(x, Tensor) for x in part.values()):
            raise ArgumentError(
                "functional_call takes tensors by their names", found=f"{part!r:.60}",
                wanted="a mapping of names to tensors, or several",
            )
        given.update(part)
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    if "_is_ready" not in vars(module):
        # Its own initial values are drawn now, as at a first call.
        module.realize()
    with _holding(module, given):
        return module(*args, **(kwargs or {}))


@contextmanager
def _holding(module: Any, given: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a module hold other tensors inside the block."""
    known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArgumentError(
            "functional_call got names that the module has no tensors of",
            found=", ".join(unknown[:6]), wanted="names of its parameters and buffers",
        )
    put = {id(known[name]): value for name, value in given.items()}
    held = []
    for _, one in module.named_modules():
        attributes = vars(one)
        for name, value in attributes.items():
            if isinstance(value, Tensor) and id(value) in put:
                held.append((attributes, name, value))
    try:
        for attributes, name, value in held:
            attributes[name] = put[id(value)]
        yield
    finally:
        for attributes, name, value in held:
            attributes[name] = value


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters and the buffers of equal modules, each stacked along a first axis.

    They are new leaves, for functional_call under vmap: an ensemble as one function. Raises
    ArgumentError for no modules, or others than those of one class.
    """
    if not hasattr(models, "__getitem__") or not len(models):
        raise ArgumentError("stack_module_state takes modules", found=f"{models!r:.40}",
                            wanted="a list of them")
    for model in models:
        _check(model, "stack_module_state")
        if type(model) is not type(models[0]):
            raise ArgumentError(
                "stack_module_state takes modules of one class",
                found=f"{type(models[0]).__name__} and {type(model).__name__}",
            )
    parameters = {
        name: Tensor.stack([dict(m.named_parameters())[name].detach() for m in models])
        .realize().requires_grad_()
        for name, _ in models[0].named_parameters()
    }
    buffers = {
        name: Tensor.stack([dict(m.named_buffers())[name].detach() for m in models]).realize()
        for name, _ in models[0].named_buffers()
    }
    return parameters, buffers


def _check(module: Any, what: str) -> None:
    if not callable(module) or not hasattr(module, "named_parameters"):
        raise ArgumentError(f"{what} takes modules", found=f"{type(module).__name__}")

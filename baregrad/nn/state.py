"""State of any object that holds tensors: modules, and plain objects, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from baregrad.nn.hooks import IncompatibleKeys, load_into
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained


@explained
def get_state_dict(holder: Any) -> dict[str, Tensor]:
    """Return the tensors that an object holds, by dotted paths of attributes, keys and positions.

    A module gives its `state_dict()`. The tensors are detached and alias those of the object.
    """
    return {name: tensor.detach() for name, tensor in _find(holder, "", ())}


@explained
def load_state_dict(
    holder: Any, state: Mapping[str, Tensor], strict: bool = True
) -> IncompatibleKeys:
    """Put the values of `state` into the tensors that an object holds, cast to their dtypes.

    Raises ShapeError as `Module.load_state_dict` does.
    """
    own = dict(_find(holder, "", ()))
    return load_into(own, state, strict, type(holder).__name__)


@explained
def get_parameters(holder: Any) -> list[Tensor]:
    """Return the tensors that an object holds and that require gradients, each once."""
    found = {id(tensor): tensor for _, tensor in _find(holder, "", ()) if tensor.requires_grad}
    return list(found.values())


def _find(holder: Any, prefix: str, above: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(holder, Tensor):
        yield prefix.removesuffix("."), holder
        return
    if isinstance(holder, Module):
        for name, tensor in holder._state().items():
            yield prefix + name, tensor
        return
    if id(holder) in above:
        return
    if isinstance(holder, Mapping):
        parts: list[tuple[object, Any]] = list(holder.items())
    elif isinstance(holder, list | tuple):
        parts = list(enumerate(holder))
    elif isinstance(holder, type | ModuleType):
        # What a program is made of holds no state of its own.
        return
    else:
        parts = list(getattr(holder, "__dict__", {}).items())
    for key, part in parts:
        yield from _find(part, f"{prefix}{key}.", (*above, id(holder)))

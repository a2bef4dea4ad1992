"""Trees of arguments and results: tensors inside lists, tuples, dicts and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from baregrad.base.errors import JitError
from baregrad.ir.node import Node
from baregrad.ir.op import Ops
from baregrad.tensor.tensor import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple)


def is_variable(value: object) -> bool:
    """Whether a value is a symbolic integer that has a value now."""
    return isinstance(value, Node) and value.op is Ops.VAR and bool(value.src)


def map_tree(tree: Any, visit: Callable[[Any], Any]) -> Any:
    """`tree` with each leaf replaced by what `visit` makes of it; containers are made anew."""
    if isinstance(tree, Tensor):
        return visit(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[map_tree(item, visit) for item in tree])
    if isinstance(tree, _SEQUENCES):
        return type(tree)([map_tree(item, visit) for item in tree])
    if isinstance(tree, dict):
        return type(tree)([(key, map_tree(item, visit)) for key, item in tree.items()])
    if _is_dataclass(tree):
        changes = {
            field.name: map_tree(getattr(tree, field.name), visit)
            for field in dataclasses.fields(tree)
            if field.init
        }
        return dataclasses.replace(tree, **changes)
    return visit(tree)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in order."""
    found: list[Any] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, found: list[Any]) -> None:
    """Append the leaves of a tree. Every call of a jitted function does this: no copies."""
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, _SEQUENCES):
        for item in tree:
            _gather(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _gather(item, found)
    elif isinstance(tree, _PLAIN) or not _is_dataclass(tree):
        found.append(tree)
    else:
        for field in dataclasses.fields(tree):
            if field.init:
                _gather(getattr(tree, field.name), found)


def _is_dataclass(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, (type, Node))


def shape_of_tree(tree: Any) -> Any:
    """A hashable that is equal for trees of equal containers and equal plain leaves.

    Tensors count by shape, dtype, device and whether they require gradients; symbolic integers by
    name and bounds. Raises JitError for a leaf that cannot be compared by value.
    """
    if isinstance(tree, Tensor):
        return ("tensor", tree.shape, tree.dtype.name, tree.device, tree.requires_grad)
    if isinstance(tree, _SEQUENCES):
        return (type(tree).__name__, *[shape_of_tree(item) for item in tree])
    if isinstance(tree, dict):
        return ("dict", *[(key, shape_of_tree(item)) for key, item in tree.items()])
    if is_variable(tree):
        return ("variable", tree.arg)
    if isinstance(tree, _PLAIN):
        return (type(tree).__name__, repr(tree) if isinstance(tree, float) else tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = (f.name for f in dataclasses.fields(tree))
        return (
            type(tree).__name__,
            *((name, shape_of_tree(getattr(tree, name))) for name in fields),
        )
    try:
        hash(tree)
    except TypeError as error:
        raise JitError(
            f"a jitted function got a {type(tree).__name__}, which cannot be compared",
            wanted="tensors, plain values, or lists, tuples, dicts and dataclasses of them",
            hint="pass arrays as tensors",
        ) from error
    return ("object", tree)

"""Trees of arguments and results: tensors inside lists, tuples, dicts and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from baregrad.base.errors import JitError
from baregrad.ir.node import Node
from baregrad.ir.op import Ops
from baregrad.tensor.tensor import Tensor

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
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
    """Append the leaves of a tree."""
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, _SEQUENCES):
        for item in tree:
            _gather(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _gather(item, found)
    elif not _is_dataclass(tree):
        found.append(tree)
    else:
        for field in dataclasses.fields(tree):
            if field.init:
                _gather(getattr(tree, field.name), found)


def _is_dataclass(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, (type, Node))


def describe(
    tree: Any, tensors: list[Tensor], variables: dict[str, int], key: list[Any]
) -> None:
    """Append a tree's tensors, its symbolic integers' values and what tells its kind to lists.

    Keys are equal for trees of equal containers and equal plain leaves. Tensors count by shape,
    dtype, device and whether they require gradients; symbolic integers by name and bounds. Every
    call of a jitted function does this, so it is one walk that copies nothing. Raises JitError for
    a leaf that cannot be compared by value.
    """
    if isinstance(tree, Tensor):
        tensors.append(tree)
        storage = tree._storage
        if tree._steps:
            value, grad = tree._value(), tree.requires_grad
        else:
            value, grad = storage.node, storage.grad
        key.append((value.shape, value.dtype, storage.device, grad))
        return
    kind = tree.__class__
    if kind in _PLAIN:
        key.append((kind, repr(tree) if kind is float else tree))
    elif isinstance(tree, _SEQUENCES):
        key.append((kind, len(tree)))
        for item in tree:
            describe(item, tensors, variables, key)
    elif isinstance(tree, dict):
        key.append((kind, *tree))
        for item in tree.values():
            describe(item, tensors, variables, key)
    elif is_variable(tree):
        variables[tree.arg.name] = int(tree.src[0].arg)
        key.append((kind, tree.arg))
    elif _is_dataclass(tree):
        key.append(kind)
        for field in dataclasses.fields(tree):
            # What is not given when a dataclass is made is looked at, but is no leaf.
            found = (tensors, variables) if field.init else ([], {})
            describe(getattr(tree, field.name), *found, key)
    else:
        key.append((kind, repr(tree) if isinstance(tree, float) else _hashable(tree)))


def _hashable(leaf: Any) -> Any:
    try:
        hash(leaf)
    except TypeError as error:
        raise JitError(
            f"a jitted function got a {type(leaf).__name__}, which cannot be compared",
            wanted="tensors, plain values, or lists, tuples, dicts and dataclasses of them",
            hint="pass arrays as tensors",
        ) from error
    return leaf

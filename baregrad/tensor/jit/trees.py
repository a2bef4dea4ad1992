"""Trees of arguments and results: tensors inside lists, tuples, dicts and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from baregrad.base.errors import JitError
from baregrad.engine.canonical import unbind
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.views import hooks_at
from baregrad.tensor.tensor import Tensor

PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_SEQUENCES = (list, tuple)


def is_variable(value: object) -> bool:
    """Whether a value is a symbolic integer that has a value now."""
    return isinstance(value, Node) and value.op is Ops.VAR and bool(value.src)


def map_tree(tree: Any, visit: Callable[[Any], Any]) -> Any:
    """`tree` with each leaf replaced by what `visit` makes of it; containers are made anew."""
    if isinstance(tree, Tensor):
        return visit(tree) if not tree.is_paired else _paired(tree, visit(tree.pairs()))
    if isinstance(tree, _Paired):
        return _paired(tree, visit(tree.pairs))
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


@dataclasses.dataclass(slots=True)
class _Paired:
    """A complex tensor whose place in a tree is kept by something else than a tensor.

    The leaf is what holds its pairs, so that what goes through trees knows of real tensors alone.
    """

    pairs: Any
    kind: type[Any]


def _paired(tree: Any, pairs: Any) -> Any:
    """What stands for a complex tensor once its pairs are replaced."""
    kind = tree.kind if isinstance(tree, _Paired) else type(tree)
    if not isinstance(pairs, Tensor):
        return _Paired(pairs, kind)
    same = isinstance(tree, Tensor) and pairs is tree.pairs()
    return tree if same else kind._on(pairs._storage, pairs._steps)


def leaves(tree: Any, *, as_pairs: bool = True) -> list[Any]:
    """The leaves of a tree, in order; unless as_pairs complex tensors are there as themselves."""
    found: list[Any] = []
    _gather(tree, found, as_pairs)
    return found


def _gather(tree: Any, found: list[Any], as_pairs: bool) -> None:
    """Append the leaves of a tree."""
    if isinstance(tree, Tensor):
        found.append(tree.pairs() if tree.is_paired and as_pairs else tree)
    elif isinstance(tree, _Paired):
        found.append(tree.pairs)
    elif isinstance(tree, _SEQUENCES):
        for item in tree:
            _gather(item, found, as_pairs)
    elif isinstance(tree, dict):
        for item in tree.values():
            _gather(item, found, as_pairs)
    elif not _is_dataclass(tree):
        found.append(tree)
    else:
        for field in dataclasses.fields(tree):
            if field.init:
                _gather(getattr(tree, field.name), found, as_pairs)


def _is_dataclass(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, (type, Node))


def describe(
    items: Iterable[Any], tensors: list[Tensor], variables: dict[str, int], key: list[Any]
) -> None:
    """Append the items' tensors, symbolic integers' values and their kinds to lists.

    Keys are equal for trees of equal containers and equal plain leaves. Tensors count by shape,
    dtype, device and whether they require gradients; symbolic integers, extents among them, by name
    and bounds. Every call of a jitted function does this, so it is one walk that copies nothing.
    Raises JitError for a leaf that cannot be compared by value, and ShapeError where a symbolic
    integer has two values.
    """
    for item in items:
        kind = item.__class__
        if isinstance(item, Tensor):
            if item.is_paired:
                key.append(kind)
                item = item.pairs()
            tensors.append(item)
            storage = item._storage
            if item._steps:
                shape, dtype, grad = item.shape, item.dtype, item.requires_grad
                hooks = hooks_at(item._steps)
                if hooks is not None and (hooks.before or hooks.after):
                    key.append((hooks.before, hooks.after))
            else:
                deferred = storage.deferred
                like = storage.node if deferred is None else deferred.form
                shape, dtype, grad = like.shape, like.dtype, storage.grad
            for extent in shape:
                if extent.__class__ is not int:
                    shape = unbind(shape, variables)
                    break
            key.append((shape, dtype, storage.device, grad))
        elif kind in PLAIN:
            key.append((kind, repr(item) if kind is float else item))
        elif isinstance(item, _SEQUENCES):
            key.append((kind, len(item)))
            describe(item, tensors, variables, key)
        elif isinstance(item, dict):
            key.append((kind, *item))
            describe(item.values(), tensors, variables, key)
        elif is_variable(item):
            unbind((item,), variables)
            key.append((kind, item.arg))
        elif _is_dataclass(item):
            key.append(kind)
            for field in dataclasses.fields(item):
                # What is not given when a dataclass is made is looked at, but is no leaf.
                found = (tensors, variables) if field.init else ([], {})
                describe((getattr(item, field.name),), *found, key)
        else:
            key.append((kind, repr(item) if isinstance(item, float) else _hashable(item)))


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

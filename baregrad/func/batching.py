"""`vmap`: a function of one example as one of a batch of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.engine.session import current_session
from baregrad.func.batching_rules import Mapped
from baregrad.func.regions import refuse_writes, writes_outside
from baregrad.func.stand_ins import (
    check_callable,
    check_randomness,
    drawing,
    results_of,
    shown_in,
    stand_in,
    tensors_of,
    with_tensors,
)
from baregrad.ir.core.node import toposort
from baregrad.tensor.array.axes import one_axis
from baregrad.tensor.tensor import Tensor


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error"
) -> Callable[..., Any]:
    """Return `func` of a batch: it is called once, for one example, and its graph is rewritten.

    in_dims: for each argument the axis along which its tensors are examples, or None where all
    examples have the same; an int is that of all arguments, and a tree of them that of a tree's
    parts. out_dims: where the axis comes in each result. randomness: "error" refuses functions that
    draw, "same" gives each example the same draws. Functions under vmap read no numbers; vmap,
    derivatives and jit nest in any order. Raises ArgumentError and ShapeError.
    """
    check_callable(func, "vmap")
    check_randomness(randomness, "vmap")

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        tree = (args, kwargs)
        tensors = tensors_of(tree)
        axes = [*_axes_of(args, in_dims), *[0] * len(tensors_of(kwargs))]
        shown = shown_in(tree)
        extent = _extent(shown, axes)
        # Counted from the front: behind them complex tensors have an axis that is not shown.
        axes = [axis if axis is None else axis % each.ndim
                for axis, each in zip(axes, shown, strict=True)]
        ones, given = [], {}
        for tensor, axis in zip(tensors, axes, strict=True):
            if axis is None:
                ones.append(tensor)
                continue
            # Through the tensor, so that what no_grad asks for is done.
            value = tensor.movedim(axis, 0).node
            one = stand_in(value.shape[1:], value.dtype, tensor.device)
            given[one] = value
            ones.append(Tensor._make(one, tensor.device, tensor.requires_grad))
        # In place of an example's tensor the function may write; one from outside is of all.
        inner = {tensor._storage for tensor, axis in zip(ones, axes, strict=True)
                 if axis is not None}
        held, kept = with_tensors(tree, ones)
        standing_in = current_session().watching.standing_in()
        with drawing(randomness, "vmap", "example"), writes_outside() as written, standing_in:
            result = func(*held, **kept)
        refuse_writes({each: old for each, old in written.items()
                       if each not in inner and not given.keys().isdisjoint(toposort(each.node))},
                      "vmap")
        return _batched(result, Mapped(extent, given), out_dims)

    return mapped


def _batched(result: Any, batch: Mapped, out_dims: Any) -> Any:
    """A function's result for all of a batch."""
    found = results_of(result, "vmap")
    places = [
        place if place is None else one_axis(place, each.ndim + 1)
        for place, each in zip(_spread(out_dims, result, "out_dims"), shown_in(result), strict=True)
    ]
    roots = [tensor._value() for tensor in found]
    batch.rewrite(roots)
    made = []
    for tensor, root, place in zip(found, roots, places, strict=True):
        if place is None:
            if root in batch.done:
                raise ArgumentError("a result with out_dims None is the same for all examples")
            made.append(tensor)
            continue
        value = Tensor._make(batch.of(root), tensor.device, tensor.requires_grad)
        made.append(value if place == 0 else value.movedim(0, place))
    return with_tensors(result, made)


def _axes_of(args: tuple[Any, ...], in_dims: Any) -> list[int | None]:
    """The batch's axis in each tensor of the arguments, in order."""
    if isinstance(in_dims, int | None):
        return [in_dims] * len(tensors_of(args))
    if not isinstance(in_dims, tuple | list) or len(in_dims) != len(args):
        raise ArgumentError(
            "in_dims is an axis, or one for each argument", found=f"{in_dims!r}",
            wanted=f"{len(args)} of them",
        )
    found = []
    for one, part in zip(args, in_dims, strict=True):
        found += _spread(part, one, "in_dims")
    return found


def _spread(part: Any, tree: Any, what: str) -> list[int | None]:
    """A tree of axes over the tensors of a tree that has it as its upper part."""
    if isinstance(part, int | None):
        return [part] * len(tensors_of(tree))
    parts: Sequence[Any]
    if isinstance(part, dict) and isinstance(tree, dict) and part.keys() == tree.keys():
        parts, below = [part[key] for key in tree], list(tree.values())
    elif isinstance(part, tuple | list) and isinstance(tree, tuple | list):
        parts, below = part, list(tree)
    else:
        parts, below = (), [None]
    if len(parts) != len(below):
        raise ArgumentError(f"{what} has other parts than what it is for", found=f"{part!r}")
    return [axis for one, under in zip(parts, below, strict=True)
            for axis in _spread(one, under, what)]


def _extent(tensors: Sequence[Tensor], axes: Sequence[int | None]) -> Any:
    """The number of examples."""
    found = []
    for tensor, axis in zip(tensors, axes, strict=True):
        if axis is None:
            continue
        if not -tensor.ndim <= axis < tensor.ndim:
            raise ShapeError(
                "vmap maps over an axis that a tensor does not have",
                found=f"axis {axis} of shape {list(tensor.shape)}",
            )
        found.append(tensor.shape[axis])
    if not found:
        raise ArgumentError("vmap maps over an axis of one argument at least", found="none")
    if any(extent != found[0] for extent in found):
        raise ShapeError("vmap's arguments have as many examples each", found=f"{found}")
    return found[0]

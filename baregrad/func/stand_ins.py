"""Stand-ins: leaves of a graph in the place of values that come later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.dtypes import DType
from baregrad.engine.session import current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.views import Twin, passes_gradients
from baregrad.tensor.autograd.gradients import below, is_leaf
from baregrad.tensor.jit.trees import leaves, map_tree
from baregrad.tensor.tensor import Tensor

_BUFFER, _DETACH = Ops.BUFFER.bit, Ops.DETACH.bit


class StandIn:
    """The memory of a value that is not there: whoever wants it gets an error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ArgumentError(
            "a function that is transformed reads the numbers of a tensor (numpy(), item(), print, "
            "or an if on one), which are not there yet",
            hint="choose with where(), or func.cond(); loop with func.scan()",
        )


def stand_in(shape: tuple[Any, ...], dtype: DType, device: str) -> Node:
    """A leaf for an array that comes later."""
    return Node(Ops.BUFFER, dtype, (), BufferRef(StandIn(), shape, device))


def is_stand_in(node: Node) -> bool:
    """Whether a node is such a leaf."""
    return node.op is Ops.BUFFER and node.arg.handle.__class__ is StandIn


def reads_stand_ins(roots: Iterable[Node]) -> bool:
    """Whether values are made of what is not there yet."""
    below = toposort(*roots, enter=lambda node: bool(node.mask & _BUFFER))
    return any(map(is_stand_in, below))


def carries(value: Node) -> bool:
    """Whether gradients may pass through a value to a leaf, or to what a transformation marked."""
    if not value.dtype.is_float or not value.mask & _DETACH:
        return False
    found = below([value], lambda node: bool(node.mask & _DETACH) and passes_gradients(node))
    return any(is_leaf(node) or node.arg.__class__ is Twin for node in found)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def shown_in(tree: Any) -> list[Tensor]:
    """The same, complex ones as themselves and not as their pairs."""
    return [leaf for leaf in leaves(tree, as_pairs=False) if isinstance(leaf, Tensor)]


def with_tensors(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """A tree with other tensors in the place of its own."""
    rest = iter(tensors)
    return map_tree(tree, lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf)


def places_of(tree: Any) -> dict[tuple[Any, ...], Tensor]:
    """The tensors of a tree, in order, by where they are in it; complex ones as their pairs."""
    if isinstance(tree, Tensor):
        return {("pairs",): tree.pairs()} if tree.is_paired else {(): tree}
    parts: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict):
        parts = tree.items()
    elif isinstance(tree, tuple | list):
        parts = enumerate(tree)
    elif is_dataclass(tree):
        parts = [(each.name, getattr(tree, each.name)) for each in fields(tree) if each.init]
    else:
        return {}
    return {(key, *place): one for key, part in parts for place, one in places_of(part).items()}


def results_of(tree: Any, what: str) -> list[Tensor]:
    """The tensors that a function returned. Raises ArgumentError for anything else in the tree."""
    found = leaves(tree)
    for leaf in found:
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"a function under {what} returns tensors, or lists, tuples and dicts of them",
                found=f"{type(leaf).__name__} {leaf!r:.40}",
            )
    return found


def check_callable(function: Callable[..., Any], what: str) -> None:
    """Raise ArgumentError for what is no function."""
    if not callable(function):
        raise ArgumentError(
            f"{what} transforms functions", found=f"{type(function).__name__} {function!r:.40}",
            hint=f"give it the function itself: {what}(f), not {what}(f(x))",
        )


def check_randomness(randomness: str, what: str) -> None:
    """Raise UnsupportedError for what is no way of drawing."""
    if randomness not in ("error", "same"):
        raise UnsupportedError(
            f"randomness of {what} is 'error' or 'same'", found=repr(randomness),
            hint="for different draws draw for all of them first, and take the draws in",
        )


@contextmanager
def drawing(randomness: str, what: str, each: str = "") -> Iterator[None]:
    """Raise ArgumentError where the block draws random numbers, unless they may be the same."""
    before = _random_states()
    yield
    if randomness == "error" and _random_states() != before:
        raise ArgumentError(
            f"a function under {what} draws random numbers",
            hint=f"randomness='same' gives each {each} the same; for different ones draw for all "
            "of them first, and take the draws in" if each else "draw first, and take the draws in",
        )


def _random_states() -> list[Node]:
    """The states of all random numbers now."""
    return [state.storage.node for state in list(current_session().random_states.values())]

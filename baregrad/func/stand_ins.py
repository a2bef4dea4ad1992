"""Stand-ins: leaves of a graph in the place of values that come later."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.dtypes import DType, dtypes
from baregrad.engine.session import current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, make_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.views import Pull, Pulled, Twin, passes_gradients
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


def made_of(node: Node) -> tuple[Node, ...]:
    """What a node is made of, and what its mark names."""
    if node.arg.__class__ is Pulled:
        return (*node.src, *node.arg.sources)
    return (*node.src, node.arg.gradient) if node.arg.__class__ is Handed else node.src


def order_below(roots: Sequence[Node], known: Container[Node]) -> list[Node]:
    """Every node that roots are made of, sources first; nothing below `known` ones."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(() if root in known else made_of(root)))]
        while path:
            node, rest = path[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    path.append((child, iter(() if child in known else made_of(child))))
                    break
            else:
                order.append(node)
                path.pop()
    return order


def put_in(roots: Sequence[Node], values: Mapping[Node, Node]) -> list[Node]:
    """The roots with values in place of some nodes; what marks name as well."""
    done = dict(values)
    return [_put_in(root, done) for root in roots]


def _put_in(root: Node, done: dict[Node, Node]) -> Node:
    for node in order_below([root], done):
        if node in done:
            continue
        src = tuple([done[one] for one in node.src])
        mark = node.arg
        if mark.__class__ is Handed:
            done[node] = Node(node.op, node.dtype, src, Handed(mark.place, done[mark.gradient]))
        elif mark.__class__ is Pulled:
            done[node] = Node(node.op, node.dtype, src, _pulled(mark, done))
        else:
            same = src == node.src
            done[node] = node if same else make_node(node.op, node.dtype, src, mark)
    return done[root]


def _pulled(mark: Pulled, done: dict[Node, Node]) -> Pulled:
    """A mark whose sources, and whose rule's gradients, have the values put in."""
    sources = tuple([done[source] for source in mark.sources])
    if sources == mark.sources:
        return mark

    def put(rule: Pull) -> Pull:
        def changed(gradient: Node) -> tuple[Node | None, ...]:
            parts = rule(gradient)
            return tuple([part if part is None else _put_in(part, done) for part in parts])

        return changed

    return Pulled(sources, put(mark.rule), put(mark.once))


class Handed:
    """A mark of the gradient of one of several results, on the way to where all are pulled back."""

    __slots__ = ("gradient", "place")

    def __init__(self, place: int, gradient: Node) -> None:
        self.place = place
        self.gradient = gradient


def handed_over(gradients: Mapping[int, Node]) -> Node:
    """Gradients of results, by their places, as what stands for the gradient of all of them.

    It is one zero, with a mark for each; what is of the same results is added up to one.
    """
    total = nothing = nodes.full(0, (1,), dtypes.float32)
    for place, gradient in gradients.items():
        mark = Node(Ops.DETACH, nothing.dtype, (nothing,), Handed(place, gradient))
        total = mark if total is nothing else nodes.add(total, mark)
    return total


def what_was_handed(total: Node) -> dict[int, Node]:
    """The gradients of results, by their places."""
    marks = [node.arg for node in toposort(total) if node.arg.__class__ is Handed]
    return {mark.place: mark.gradient for mark in marks}


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
    return [state.storage.node for state in current_session().random_states.values()]

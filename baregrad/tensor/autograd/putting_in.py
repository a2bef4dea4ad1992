"""Graphs with other values put in: marks of gradients go along with what they name."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping, MutableMapping, Sequence

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, make_node, toposort
from baregrad.ir.core.op import CONTROL_MASK, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.views import Pull, Pulled, twin


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


def without_seeds(derivatives: Sequence[Node], seeds: Sequence[Node]) -> list[Node]:
    """Derivatives by seeds, which are linear in these, without them.

    Loops and choices have all that any of their results reads as sources, so that a derivative may
    name a seed that it does not depend on; it gets zeros there.
    """
    if not any(one.mask & CONTROL_MASK for one in derivatives):
        return list(derivatives)
    return put_in(derivatives, {seed: nodes.zeros_like(seed) for seed in seeds})


def _put_in(root: Node, done: MutableMapping[Node, Node]) -> Node:
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


def _pulled(mark: Pulled, done: MutableMapping[Node, Node]) -> Pulled:
    """A mark whose sources, and whose rule's gradients, have the values put in."""
    sources = tuple([done[source] for source in mark.sources])
    if sources == mark.sources:
        return mark

    def put(rule: Pull) -> Pull:
        def changed(gradient: Node) -> tuple[Node | None, ...]:
            # It is of the values already: a PARAM in it may be one that others are put in for.
            handed = what_was_handed(gradient)
            ones = {place: twin(part) for place, part in handed.items()}
            one = handed_over(ones) if ones else twin(gradient)
            given = {ones[place]: part for place, part in handed.items()} or {one: gradient}
            known = ChainMap(given, done)
            parts = rule(one)
            return tuple([part if part is None else _put_in(part, known) for part in parts])

        return changed

    return Pulled(sources, put(mark.rule), put(mark.once))

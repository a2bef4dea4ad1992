"""Passes that say what became of each node, so that reports can name the user's line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from baregrad.ir.algebra.passes import Pass
from baregrad.ir.core.node import Node, instruction, make_node, toposort
from baregrad.ir.core.op import Ops

# Every node of a graph, sources first, the sink last; and what receives the nodes that changed.
Rewrite = Callable[[list[Node], dict[Node, Node]], Node]
Visit = Callable[[Node], Node | None]
_VAR = Ops.VAR.bit


def rewrite(
    order: list[Node], visit: Visit, asked: int, changed: dict[Node, Node], within: int = 0
) -> Node:
    """The sink after one walk, sources first: nodes of the ops in the set `asked` go to `visit`.

    `visit` returns the replacement, or None to keep the node. changed: receives what each node
    became that did not stay as it was. within: nothing is looked at that has none of these ops at
    or below it; `asked` where left out.
    """
    bits = within or asked
    sink = order[-1]
    if not sink.mask & bits:
        return sink
    # Until something changes, nothing else is looked at: most passes find nothing to do.
    for first in [one for one in order if one.op.bit & asked and one.mask & bits]:
        found = visit(first)
        if found is not None and found is not first:
            changed[first] = found
            break
    else:
        return sink
    unchanged = changed.keys().isdisjoint
    for node in islice(order, order.index(first) + 1, None):
        if not node.mask & bits:
            continue
        made = node if unchanged(node.src) else again(node, changed)
        if node.op.bit & asked:
            found = visit(made)
            if found is not None:
                made = found
        if made is not node:
            changed[node] = made
    return changed.get(sink, sink)


def again(node: Node, changed: dict[Node, Node]) -> Node:
    """`node` over what its sources became; walks ask first whether any of them changed."""
    src = tuple(map(changed.get, node.src, node.src))
    if node.mask & _VAR:
        return make_node(node.op, node.dtype, src, node.arg)
    # What a source became has its shape.
    return instruction(node.op, node.dtype, src, node.arg, node.shape)


@dataclass(frozen=True, slots=True)
class Traced:
    """A pass over tensor-level graphs; `walk` also notes what each node became."""

    name: str
    why: str
    walk: Rewrite
    needs: tuple[str, ...] = ()

    def rewrite(self, sink: Node, changed: dict[Node, Node]) -> Node:
        """`sink` after the pass; changed: receives what each changed node became."""
        return self.walk(toposort(sink), changed)

    def as_pass(self) -> Pass:
        """The same as the compiler's runner takes it."""

        def run(sink: Node) -> Node:
            return self.rewrite(sink, {})

        return Pass(self.name, self.why, "tensor", "tensor", run, self.needs)

    @property
    def shown(self) -> tuple[Traced, ...]:
        """The passes that are shown one by one: itself."""
        return (self,)


# What replaces a node: given as it was in the graph, and over what its sources became.
Rule = Callable[[Node, Node], Node | None]


@dataclass(frozen=True, slots=True)
class Part:
    """A pass that needs no walk of its own: what it replaces depends on what is below alone.

    asked: the ops of the nodes that it looks at. rule: given a graph, sources first, and what will
    hold what became of its nodes: the rule; None where that graph has nothing for it.
    """

    name: str
    why: str
    asked: int
    rule: Callable[[list[Node], dict[Node, Node]], Rule | None]
    needs: tuple[str, ...] = ()

    def alone(self) -> Traced:
        """The same as a pass with a walk of its own."""

        def walk(order: list[Node], changed: dict[Node, Node]) -> Node:
            return walk_once((self,), order, changed)

        return Traced(self.name, self.why, walk, self.needs)


@dataclass(frozen=True, slots=True)
class Joined:
    """Passes that are made in one walk."""

    parts: tuple[Part, ...]

    def walk(self, order: list[Node], changed: dict[Node, Node]) -> Node:
        """The sink after all of them."""
        return walk_once(self.parts, order, changed)

    @property
    def shown(self) -> tuple[Traced, ...]:
        """The passes that are shown one by one."""
        return tuple(part.alone() for part in self.parts)


def walk_once(parts: Sequence[Part], order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink after several passes in one walk: each node goes through all before its readers.

    What a pass makes is seen by those after it, down to what has been through all of them.
    """
    sink = order[-1]
    rules = [(part.asked, rule) for part in parts if (rule := part.rule(order, changed))]
    asked = 0
    for mask, _ in rules:
        asked |= mask
    if not sink.mask & asked:
        return sink
    finished: set[Node] = set()
    finish, unchanged = finished.add, changed.keys().isdisjoint
    for node in order:
        made = node if unchanged(node.src) else again(node, changed)
        if node.op.bit & asked:
            made = _visited(rules, node, made, finished)
        if made is not node:
            changed[node] = made
        finish(made)
    return changed.get(sink, sink)


_Rules = list[tuple[int, Rule]]


def _visited(rules: _Rules, node: Node, made: Node, finished: set[Node]) -> Node:
    """What becomes of a node, which over what its sources became is `made`."""
    for number, (mask, rule) in enumerate(rules):
        if made.op.bit & mask:
            found = rule(node, made)
            if found is not None:
                return _through(rules[number + 1 :], found, finished)
    return made


def _through(rules: _Rules, root: Node, finished: set[Node]) -> Node:
    """What a rule made, after the rules behind it; what is `finished` has been through them."""
    if not rules:
        return root
    changed: dict[Node, Node] = {}
    unchanged = changed.keys().isdisjoint
    for node in toposort(root, enter=lambda one: one not in finished):
        if node not in finished:
            current = node if unchanged(node.src) else again(node, changed)
            made = _visited(rules, current, current, finished)
            if made is not node:
                changed[node] = made
    return changed.get(root, root)

"""Passes that say what became of each node, so that reports can name the user's line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baregrad.ir.node import Node, make_node, toposort
from baregrad.ir.passes import Pass

# Every node of a graph, sources first, the sink last; and what receives the nodes that changed.
Rewrite = Callable[[list[Node], dict[Node, Node]], Node]
Visit = Callable[[Node], Node | None]


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
    for node in order:
        if not node.mask & bits:
            continue
        made = again(node, changed) if changed else node
        if node.op.bit & asked:
            found = visit(made)
            if found is not None:
                made = found
        if made is not node:
            changed[node] = made
    return changed.get(sink, sink)


def again(node: Node, changed: dict[Node, Node]) -> Node:
    """`node` over what its sources became."""
    for child in node.src:
        if child in changed:
            src = tuple([changed.get(one, one) for one in node.src])
            return make_node(node.op, node.dtype, src, node.arg)
    return node


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

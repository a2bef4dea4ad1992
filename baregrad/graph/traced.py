"""Passes that say what became of each node, so that reports can name the user's line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baregrad.ir.node import Node, toposort
from baregrad.ir.passes import Pass

Rewrite = Callable[[Node, dict[Node, Node]], Node]
Visit = Callable[[Node], Node | None]


def rewrite(
    sink: Node,
    visit: Visit,
    asked: int,
    changed: dict[Node, Node],
    within: int = 0,
) -> Node:
    """`sink` after one walk, sources first: nodes of the ops in the set `asked` go to `visit`.

    `visit` returns the replacement, or None to keep the node. changed: receives what each node
    became that did not stay as it was. within: below a node without any of these ops nothing is
    looked at; `asked` where left out.
    """
    bits = within or asked
    if not sink.mask & bits:
        return sink
    order = toposort(sink, enter=lambda node: node.mask & bits != 0)
    return rewrite_in_order(order, visit, asked, changed, bits)


def rewrite_in_order(
    order: list[Node], visit: Visit, asked: int, changed: dict[Node, Node], within: int
) -> Node:
    """The same for what is listed already, sources first: what the last node became."""
    for node in order:
        if not node.mask & within:
            continue
        made = again(node, changed) if changed else node
        if node.op.bit & asked:
            found = visit(made)
            if found is not None:
                made = found
        if made is not node:
            changed[node] = made
    return changed.get(node, node)


def again(node: Node, changed: dict[Node, Node]) -> Node:
    """`node` over what its sources became."""
    for child in node.src:
        if child in changed:
            src = tuple([changed.get(one, one) for one in node.src])
            return Node(node.op, node.dtype, src, node.arg)
    return node


@dataclass(frozen=True, slots=True)
class Traced:
    """A pass over tensor-level graphs; `rewrite` also notes what each node became."""

    name: str
    why: str
    rewrite: Rewrite
    needs: tuple[str, ...] = ()

    def as_pass(self) -> Pass:
        """The same as the compiler's runner takes it."""

        def run(sink: Node) -> Node:
            return self.rewrite(sink, {})

        return Pass(self.name, self.why, "tensor", "tensor", run, self.needs)

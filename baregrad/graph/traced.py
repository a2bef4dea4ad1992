"""Passes that say what became of each node, so that reports can name the user's line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baregrad.ir.node import Node
from baregrad.ir.passes import Pass

Rewrite = Callable[[Node, dict[Node, Node]], Node]


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

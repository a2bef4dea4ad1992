"""Passes: named rewrites of a whole graph, and the check that they stand in a legal order.

A pass says the level it takes and the level it gives. Each must take what the one before gives, and
what it needs must have run, so that the order of passes is never folklore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import LEVELS


@dataclass(frozen=True, slots=True)
class Pass:
    """One named rewrite.

    name: what `explain --after` takes. why: one sentence. level_in, level_out: of the graph before
    and after. run: the rewrite itself. needs: names of passes that must have run before.
    """

    name: str
    why: str
    level_in: str
    level_out: str
    run: Callable[[Node], Node]
    needs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Pass({self.name}: {self.level_in} -> {self.level_out})"


def check_order(passes: Iterable[Pass], level: str = "") -> None:
    """Raise CompilerBug unless the levels join up, names differ and every need has run before.

    level: of the graph that enters, or empty for whatever the first pass takes.
    """
    done: set[str] = set()
    for step in passes:
        for name in (step.level_in, step.level_out):
            if name not in LEVELS:
                raise CompilerBug(
                    f"pass {step.name} names an unknown level", found=name, wanted=", ".join(LEVELS)
                )
        if level and step.level_in != level:
            raise CompilerBug(
                f"pass {step.name} stands in the wrong place", found=level, wanted=step.level_in
            )
        missing = [name for name in step.needs if name not in done]
        if missing:
            raise CompilerBug(
                f"pass {step.name} stands too early",
                found=", ".join(sorted(done)) or "no pass before it",
                wanted=", ".join(missing),
            )
        if step.name in done:
            raise CompilerBug("two passes of one name", found=step.name)
        done.add(step.name)
        level = step.level_out

"""Passes: named rewrites of a whole graph, and the runner that orders, verifies and shows them.

A pass says the level it takes and the level it gives. The runner checks that each takes what the
one before gives and that what it needs has run, so that the order of passes is never folklore;
where the level changes, the verifier reads the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from baregrad.base.errors import CompilerBug
from baregrad.ir.node import Node
from baregrad.ir.op import LEVELS
from baregrad.ir.verify import verify as verify_graph


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


@dataclass(frozen=True, slots=True)
class Stage:
    """What an observer sees: the graph after one pass, its level, and the seconds that it took.

    The graph that entered is reported first, under the name `input` and with no pass.
    """

    name: str
    level: str
    root: Node
    seconds: float
    made_by: Pass | None = None


Observer = Callable[[Stage], None]


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


def run_passes(
    node: Node,
    passes: Iterable[Pass],
    observe: Observer | None = None,
    verify: bool = False,
) -> Node:
    """Return `node` after every pass in order.

    observe: is told of the graph that enters and of the graph after each pass. verify: reads the
    graph that enters and the graph after each change of level; the error names the pass. Raises
    CompilerBug where the order is wrong, VerifyError where a pass breaks the grammar.
    """
    steps = tuple(passes)
    check_order(steps)
    if not steps:
        return node
    if verify:
        verify_graph(node, steps[0].level_in, where="before the first pass")
    if observe is not None:
        observe(Stage("input", steps[0].level_in, node, 0.0))
    for step in steps:
        started = perf_counter()
        node = step.run(node)
        seconds = perf_counter() - started
        if observe is not None:
            observe(Stage(step.name, step.level_out, node, seconds, step))
        if verify and step.level_out != step.level_in:
            verify_graph(node, step.level_out, where=f"after pass {step.name}")
    return node

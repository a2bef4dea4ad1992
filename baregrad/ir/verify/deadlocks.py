"""Liveness of a kernel's protocol: the marked graph of its traces, played once.

Pipes and barriers make a marked graph: no choice depends on time, so one play that comes to its end
proves that every play does, and one that stops shows a deadlock.
"""

from __future__ import annotations

from collections import Counter

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.protocol_traces import Agent, TraceStep


def deadlock(agents: tuple[Agent, ...], cluster: int) -> str | None:
    """Who waits for what when nobody can go on; None when all come to their end.

    The blocks of a cluster do the same, so one block stands for all: an arrival counts `cluster`
    times where it goes to every block.
    """
    return _Play(agents, cluster).run()


class _Play:
    """Where each agent stands, and the tokens on every pipe."""

    def __init__(self, agents: tuple[Agent, ...], cluster: int) -> None:
        self.agents = agents
        self.cluster = cluster
        self.at = [0] * len(agents)
        self.filled: set[tuple[Node, int]] = set()
        self.released: Counter[tuple[Node, int]] = Counter()
        self.waiting: dict[str, set[int]] = {}

    def run(self) -> str | None:
        """Let everyone go as far as possible, until all have ended or none moves."""
        moved = True
        while moved:
            moved = False
            for number, agent in enumerate(self.agents):
                while self.at[number] < len(agent.steps):
                    if not self.passes(number, agent.steps[self.at[number]]):
                        break
                    self.at[number] += 1
                    moved = True
        stuck = [
            f"{agent} waits at {_said(agent.steps[self.at[number]])}"
            for number, agent in enumerate(self.agents)
            if self.at[number] < len(agent.steps)
        ]
        return "; ".join(stuck) if stuck else None

    def passes(self, number: int, step: TraceStep) -> bool:
        """Whether a step can be taken now; if so, its tokens are moved."""
        pipe = step.pipe
        if step.op is Ops.BARRIER:
            return self.meets(number, step)
        if pipe is None:
            return True
        if step.op is Ops.ACQUIRE:
            return step.counter < pipe.arg.depth or self.empty(pipe, step.counter - pipe.arg.depth)
        if step.op is Ops.COMMIT:
            self.filled.add((pipe, step.counter))
        elif step.op is Ops.WAIT:
            return (pipe, step.counter) in self.filled
        elif step.op is Ops.RELEASE:
            self.released[pipe, step.counter] += self.cluster if pipe.arg.scope == "cluster" else 1
        elif step.op is Ops.DRAIN:
            last = range(max(step.counter - pipe.arg.depth, 0), step.counter)
            return all(self.empty(pipe, counter) for counter in last)
        return True

    def empty(self, pipe: Node, counter: int) -> bool:
        """Whether the slot's use number `counter` has been released by all."""
        needed: int = pipe.arg.empty_arrivals
        return self.released[pipe, counter] >= needed

    def meets(self, number: int, step: TraceStep) -> bool:
        """A barrier opens when every agent of its scope stands at one of the same scope."""
        scope = step.node.arg.scope
        if scope == "warpgroup":
            return True
        here = self.waiting.setdefault(scope, set())
        here.add(number)
        if len(here) == len(self.agents):
            # The last to come opens it; the others pass at their next try.
            self.waiting[scope] = set()
            for other in here - {number}:
                self.at[other] += 1
            return True
        return False


def _said(step: TraceStep) -> str:
    if step.pipe is not None:
        return f"{step.op.name} {step.pipe.arg.name} {step.counter}"
    return f"{step.op.name} of the {step.node.arg.scope}"

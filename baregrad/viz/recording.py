"""Running a program to see what the compiler makes of it: every graph, rewrite and kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baregrad.engine.backends import CompiledBackend, open_backend
from baregrad.engine.explain import null_backend, run_observed
from baregrad.engine.explain_kernel import Found, rates_of, work_of
from baregrad.engine.rates import Rates
from baregrad.engine.session import Session
from baregrad.graph import canonicalise, replaced
from baregrad.graph import stages as graph_stages
from baregrad.ir.algebra.rewrite import Rule, watched
from baregrad.ir.core.node import Node
from baregrad.kernel import facts_of
from baregrad.kernel.search import roofline_ns
from baregrad.schedule import Plan


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One node that a pass replaced; rule and law are "" where the pass has no rule for it."""

    step: str
    rule: str
    law: str
    old: Node
    new: Node


@dataclass(frozen=True, slots=True)
class ShownPass:
    """The graph that a pass left behind, or that the user's code built."""

    name: str
    why: str
    sink: Node


@dataclass(frozen=True, slots=True)
class ShownLaunch:
    """One launch of a plan: its kernel, the user's line, and the least time that it can take."""

    found: Found
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    least_ns: float
    origins: tuple[Node, ...]


@dataclass(slots=True)
class Computation:
    """What is computed at once: its graphs, what was decided, and its launches.

    lines: the user's file:line of a node of the first or of the last graph. origins: what a node of
    the last graph stands for in the first. variables: values of its symbolic sizes. runs: how often
    it ran.
    """

    passes: list[ShownPass]
    rewrites: list[Rewrite]
    plan: Plan
    steps: list[ShownLaunch]
    lines: Mapping[Node, str]
    origins: Mapping[Node, Node]
    variables: Mapping[str, int]
    runs: int = 1


@dataclass(slots=True)
class Recording:
    """A program's computations, in the order in which they first ran.

    title: the program's name. backend: what compiled it, to be asked for a kernel's code.
    """

    title: str
    backend: CompiledBackend
    rates: Rates | None = None
    computations: list[Computation] = field(default_factory=list)
    _known: dict[Node, Computation] = field(default_factory=dict)

    def note(self, run: Any, session: Session) -> None:
        """Keep what became of a run of a session, or that it ran once more."""
        known = self._known.get(run.program.sink)
        if known is not None:
            known.runs += 1
            return
        made = self._known[run.program.sink] = _computation(run, session, self)
        self.computations.append(made)

    @property
    def target(self) -> str:
        """The machine that the kernels are for."""
        return str(self.backend.compiler.target.name)


def record(path: Path, gpu: str | None = None) -> Recording:
    """Run a Python program on the NULL device and return what became of it.

    gpu: the generation of GPUs that it is compiled for; this machine's CPU without. Nothing is
    computed, so a program that looks at its results sees zeros. Raises ArgumentError where there is
    no such file, and what the program raises.
    """
    recording = Recording(path.name, null_backend(gpu))
    if gpu is None:
        backend, recording.rates = rates_of(open_backend)
        backend.close()
    run_observed(path, recording.note, recording.backend, lines=True)
    return recording


def _computation(run: Any, session: Session, recording: Recording) -> Computation:
    program, plan = run.program, run.executable.plan
    target = recording.backend.compiler.target
    sink = program.sink
    fired: dict[Node, Rule] = {}

    def fire(rule: Rule, old: Node, new: Node) -> None:
        fired[new] = rule

    with watched(fire):
        rewrites = []
        for step, old, new in replaced(sink, target):
            rule = fired.get(new)
            rewrites.append(Rewrite(step, rule.name if rule else "", rule.law if rule else "",
                                    old, new))
    origins: dict[Node, Node] = {}
    canonicalise(sink, origins, target)
    steps = [_step(run, session, launch, recording) for launch in plan.steps]
    passes = [ShownPass(*one) for one in graph_stages(sink, target)]
    lines = _lines(program, origins, session)
    return Computation(passes, rewrites, plan, steps, lines, origins, dict(program.variables))


def _step(run: Any, session: Session, launch: Any, recording: Recording) -> ShownLaunch:
    where = session.where(run.program, launch)
    found = Found(launch.kernel, run.program.variables, where)
    writes = tuple(launch.buffers[one] for one in launch.writes)
    written = set(launch.writes)
    reads = tuple(one for at, one in enumerate(launch.buffers) if at not in written)
    return ShownLaunch(found, reads, writes, least_ns(found, recording), tuple(launch.origins))


def least_ns(found: Found, recording: Recording) -> float:
    """How long a kernel takes at least: its bytes through memory once, or its operations."""
    target = recording.backend.compiler.target
    if recording.rates is None:
        return roofline_ns(facts_of(found.kernel), target)
    work = work_of(found)
    return 1e9 * max(recording.rates.seconds(work.nbytes, work.weighted))


def _lines(program: Any, origins: Mapping[Node, Node], session: Session) -> dict[Node, str]:
    """The user's line of each canonical node, and of each that passes made of one."""
    found: dict[Node, str] = {}
    for node, made in program.origins.items():
        where = session.origins.get(made)
        if where is not None:
            found[node] = where
    for new, old in origins.items():
        if old in found:
            found.setdefault(new, found[old])
    return found

"""A recording as JSON documents, each made when somebody asks for it.

Names of documents: `summary`; `graph/C/P`, the graph of computation C after its pass P; `plan/C`,
its launches, decisions and rewrites; `kernel/K`, all there is to tell about a kernel; `machine/K`,
its machine code; `words/C`, the command list for a GPU of Hopper's. Nodes are
numbered, so that one that two passes share has one number in both graphs.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from baregrad.engine.explain_kernel import Found, choice_lines, work_of
from baregrad.engine.search.written import chosen, written_for
from baregrad.ir.analysis.outline import outline
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.text.dump import dump
from baregrad.kernel import lower
from baregrad.target.gpu import GpuTarget
from baregrad.viz.command_words import words_document
from baregrad.viz.filed import FORMAT
from baregrad.viz.machine import machine_document
from baregrad.viz.recording import Computation, Recording, ShownLaunch

# Attributes are shown up to this length; what is longer is cut, with a mark.
_ATTRIBUTE = 400


class RecordedDocuments:
    """The documents of a recording; each is made once."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._made: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._numbers: dict[Node, int] = {}
        self._kernels: dict[Node, tuple[int, ShownLaunch]] = {}
        for computation in recording.computations:
            for step in computation.steps:
                kernel = step.found.kernel
                self._kernels.setdefault(kernel, (len(self._kernels), step))

    def names(self) -> list[str]:
        """Every document there is."""
        found = ["summary"]
        for number, computation in enumerate(self.recording.computations):
            found.append(f"plan/{number}")
            found += [f"graph/{number}/{one}" for one in range(len(computation.passes))]
            found += [f"words/{number}"] * self._has_commands()
        numbers = range(len(self._kernels))
        return found + [f"{kind}/{one}" for kind in ("kernel", "machine") for one in numbers]

    def _has_commands(self) -> bool:
        return isinstance(self.recording.backend.compiler.target, GpuTarget)

    def get(self, name: str) -> bytes | None:
        """The JSON text of a document; None where there is none of that name."""
        # One at a time: a kernel's code is made by passes that two threads gain nothing from.
        with self._lock:
            if name not in self._made:
                if name not in self.names():
                    return None
                self._made[name] = json.dumps(self._make(name), separators=(",", ":")).encode()
            return self._made[name]

    def _make(self, name: str) -> Any:
        kind, *numbers = name.split("/")
        at = [int(one) for one in numbers]
        if kind == "summary":
            return self._summary()
        if kind in ("kernel", "machine"):
            found = list(self._kernels.values())[at[0]][1].found
            return self._kernel(found) if kind == "kernel" else self._machine(found)
        computation = self.recording.computations[at[0]]
        if kind == "words":
            compiler = self.recording.backend.compiler
            return words_document(computation.plan, compiler, computation.variables)
        if kind == "plan":
            return self._plan(computation)
        return self._graph(computation, computation.passes[at[1]].sink)

    def _summary(self) -> Any:
        recording = self.recording
        files: dict[str, list[str]] = {}
        computations = []
        for computation in recording.computations:
            for where in computation.lines.values():
                _read_file(where, files)
            computations.append({
                "passes": [
                    {"name": one.name, "why": one.why, "nodes": len(toposort(one.sink))}
                    for one in computation.passes
                ],
                "kernels": len(computation.steps),
                "runs": computation.runs,
                "least_ns": sum(step.least_ns for step in computation.steps),
            })
        return {
            "format": FORMAT, "title": recording.title, "target": recording.target,
            "views": ["lines", "kernels", "graph", *["commands"] * self._has_commands()],
            "computations": computations, "lines": self._costs(), "files": files,
        }

    def _costs(self) -> list[Any]:
        """For each of the user's lines what its kernels take at least, the dearest first."""
        least: dict[str, float] = {}
        launches: Counter[str] = Counter()
        for computation in self.recording.computations:
            for step in computation.steps:
                where = step.found.where
                least[where] = least.get(where, 0.0) + step.least_ns * computation.runs
                launches[where] += computation.runs
        return [
            {"where": where, "least_ns": cost, "launches": launches[where]}
            for where, cost in sorted(least.items(), key=lambda one: -one[1])
        ]

    def _number(self, node: Node) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    def _graph(self, computation: Computation, sink: Node) -> Any:
        """A graph by columns, which is a quarter of the text that one record a node would be."""
        order = toposort(sink)
        lines = computation.lines
        names: dict[str, int] = {}

        def name(text: str) -> int:
            return names.setdefault(text, len(names))

        columns: dict[str, list[Any]] = {
            key: [] for key in ("id", "of", "op", "dtype", "shape", "src", "line", "arg")
        }
        for node in order:
            columns["id"].append(self._number(node))
            columns["of"].append(self._number(computation.origins.get(node, node)))
            columns["op"].append(name(node.op.name))
            columns["dtype"].append(name(node.dtype.name))
            columns["shape"].append(name(_shape(node)))
            columns["src"].append([self._number(one) for one in node.src])
            columns["line"].append(name(lines.get(node, "")))
            columns["arg"].append(name(_attribute(node)))
        return {**columns, "names": list(names)}

    def _plan(self, computation: Computation) -> Any:
        known = {node for one in computation.passes for node in toposort(one.sink)}
        return {
            "steps": [self._step(step) for step in computation.steps],
            "decisions": [
                {
                    "id": self._number(one.value),
                    "of": self._number(computation.origins.get(one.value, one.value)),
                    "value": str(one).split(":", 1)[0],
                    "stored": one.stored, "reason": str(one).split(":", 1)[1].strip(),
                    "line": computation.lines.get(one.value, ""),
                }
                for one in computation.plan.decisions
            ],
            "rewrites": [
                {
                    "step": one.step, "rule": one.rule, "law": one.law,
                    "old": self._number(one.old), "new": self._number(one.new),
                    "before": _short(one.old), "after": _short(one.new),
                }
                for one in computation.rewrites
                if one.old in known or one.new in known
            ],
        }

    def _step(self, step: ShownLaunch) -> Any:
        work = work_of(step.found)
        return {
            "kernel": self._kernels[step.found.kernel][0], "name": step.found.kernel.arg.name,
            "where": step.found.where, "reads": step.reads, "writes": step.writes,
            "bytes": work.nbytes, "operations": work.operations, "least_ns": step.least_ns,
            "computes": [self._number(one) for one in step.origins],
        }

    def _kernel(self, found: Found) -> Any:
        compiler = self.recording.backend.compiler
        target = compiler.target
        choice = chosen(found.kernel, target)
        work = work_of(found)
        stages = [
            {
                "name": one.name, "why": one.why,
                "text": dump(one.result) if isinstance(one.result, Node) else str(one.result),
            }
            for one in compiler.stages(found.kernel, choice.schedule)
        ]
        return {
            "name": found.kernel.arg.name, "where": found.where, "bytes_read": work.bytes_read,
            "bytes_written": work.bytes_written, "operations": work.operations,
            "choice": choice_lines(choice, found.kernel.arg.name),
            "loops": outline(lower(found.kernel, target, choice.schedule)), "stages": stages,
        }

    def _machine(self, found: Found) -> Any:
        compiler = self.recording.backend.compiler
        written = written_for(found.kernel, compiler.target)
        (*_, rendered) = compiler.stages(found.kernel, written)
        return machine_document(compiler, str(rendered.result))


def _read_file(where: str, files: dict[str, list[str]]) -> None:
    name = where.rpartition(":")[0]
    if name and name not in files:
        try:
            files[name] = Path(name).read_text(errors="replace").splitlines()
        except OSError:
            files[name] = []


def _shape(node: Node) -> str:
    return "x".join(str(one) if isinstance(one, int) else "?" for one in node.shape)


def _attribute(node: Node) -> str:
    if node.arg is None:
        return ""
    text = repr(node.arg)
    return text if len(text) <= _ATTRIBUTE else text[:_ATTRIBUTE] + "…"


def _short(node: Node) -> str:
    sources = ", ".join(one.op.name for one in node.src)
    return f"{node.op.name}({sources}) {node.dtype.name} {_shape(node)}".rstrip()

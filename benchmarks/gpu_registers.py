"""What the assembler makes of every kernel that a set of tests computes, for each GPU generation.

    python benchmarks/gpu_registers.py [--rows sm_75,..] [--jobs N] [--output F] [--record F] TESTS

The tests run on the CPU; what they compute is planned, compiled and rendered for each generation,
and ptxas says how many registers a thread has and how much it keeps in memory for want of them. One
line a generation is printed, and one for each kernel that is refused or that spills; `--output`
gets a row a kernel, `--record` what is kept of them in gpu_registers.json: counts, how many kernels
use how many registers, and every kernel that spills. No GPU is needed.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from baregrad import render
from baregrad.assemble.cuda_toolkit import find_program
from baregrad.assemble.ptxas import DEFAULT_FLAGS, PACKAGE
from baregrad.base.errors import BaregradError
from baregrad.engine.backends import CompiledBackend, ReferenceBackend
from baregrad.engine.canonical import Canonical
from baregrad.engine.compiler import Compiler
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.schedule import make_plan
from baregrad.target.gpu import GPU_ROWS, NvidiaTarget, gpu_row

# Kernels that are assembled in one go.
GROUP = 40
_USED = re.compile(
    r"Compiling entry function '(\w+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one generation's assembler made of a kernel; `refused` is its complaint."""

    generation: str
    kernel: str
    registers: int = 0
    stack: int = 0
    spilled: int = 0
    refused: str = ""


class Collector:
    """A plugin of pytest that keeps the graphs of what was computed, each once.

    It keeps nothing of the tests' own alive, neither arrays nor graphs.
    """

    def __init__(self) -> None:
        self.sinks: dict[Node, None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Listen to what backends prepare."""
        with pytest.MonkeyPatch.context() as patch:
            for backend in (CompiledBackend, ReferenceBackend):
                patch.setattr(backend, "prepare", self._listening(backend.prepare))
            return (yield)

    def _listening(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def listening(backend: Any, program: Canonical, donated: Mapping[int, int]) -> Any:
            self.sinks[program.sink] = None
            return prepare(backend, program, donated)

        return listening


def texts(sinks: list[Node], row: NvidiaTarget) -> Iterator[tuple[str, str]]:
    """The name and PTX of each kernel of the graphs, each once; a remark where there is none."""
    compiler = Compiler(row, render.get("ptx"), None, None)
    seen: set[Node] = set()
    for sink in sinks:
        for kernel in make_plan(canonicalise(sink, target=row), donate={}, target=row).kernels:
            if kernel in seen:
                continue
            seen.add(kernel)
            name = f"{kernel.arg.name}_{len(seen)}"
            try:
                *_, last = compiler.stages(kernel)
            except BaregradError as error:
                yield name, f"// {error}"
                continue
            yield name, re.sub(r"\.entry \w+", f".entry {name}", str(last.result), count=1)


def assembled(group: list[tuple[str, str]], row: NvidiaTarget) -> list[Row]:
    """Assemble kernels together, or one by one where one of them is refused."""
    parts = [text if not place else text[text.index("\n", text.index(".address_size")) :]
             for place, (_, text) in enumerate(group)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "k.ptx"
        source.write_text("\n".join(parts))
        command = [str(find_program("ptxas", PACKAGE)), f"-arch={row.name}", "-v", *DEFAULT_FLAGS]
        command += [str(source), "-o", f"{folder}/k.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if len(group) == 1:
            return [Row(row.name, group[0][0], refused=done.stderr.strip())]
        return [found for one in group for found in assembled([one], row)]
    rows = []
    for name, stack, stores, loads, registers in _USED.findall(done.stderr):
        rows.append(Row(row.name, name, int(registers), int(stack), int(stores) + int(loads)))
    return rows


def measure(sinks: list[Node], row: NvidiaTarget) -> list[Row]:
    """Assemble every kernel of the programs for one generation."""
    rows: list[Row] = []
    good: list[tuple[str, str]] = []
    for name, text in texts(sinks, row):
        if text.startswith("// "):
            rows.append(Row(row.name, name, refused=text[3:]))
        else:
            good.append((name, text))
    # A module has one dynamic array of shared memory.
    apart = [one for one in good if ".extern" in one[1]]
    plain = [one for one in good if ".extern" not in one[1]]
    groups = [plain[at : at + GROUP] for at in range(0, len(plain), GROUP)]
    for group in (*groups, *[[one] for one in apart]):
        rows += assembled(group, row)
    return rows


def measure_each(sinks: list[Node], names: list[str], jobs: int) -> Iterator[list[Row]]:
    """Do so for each of the generations, some side by side."""
    # Forked, since graphs are not made to be sent.
    actions = [functools.partial(measure, sinks, gpu_row(name)) for name in names]
    if jobs == 1:
        yield from (action() for action in actions)
        return
    _forked.extend(actions)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_run_forked, range(len(actions)))


_forked: list[Callable[[], list[Row]]] = []


def _run_forked(number: int) -> list[Row]:
    return _forked[number]()


def report(rows: list[Row], generation: str) -> bool:
    """Print what is worth knowing of one generation; whether every kernel was assembled."""
    refused = [row for row in rows if row.refused]
    spilled = [row for row in rows if row.spilled]
    used = sorted(row.registers for row in rows if not row.refused) or [0]
    print(
        f"{generation}: {len(rows)} kernels, {len(refused)} refused, {len(spilled)} spill, "
        f"registers: median {used[len(used) // 2]}, most {used[-1]}, "
        f"with a stack: {sum(row.stack > 0 for row in rows)}"
    )
    for row in spilled:
        print(f"  {row.kernel} spills {row.spilled} bytes with {row.registers} registers")
    for row in refused:
        print(f"  {row.kernel} is refused: {row.refused.splitlines()[0]}")
    return not refused


def record(rows: list[Row], tests: list[str]) -> dict[str, Any]:
    """Return what is kept of the rows: where from, and a summary for each generation."""
    ptxas = [str(find_program("ptxas", PACKAGE)), "--version"]
    told = subprocess.run(ptxas, capture_output=True, text=True, check=True).stdout
    generations: dict[str, Any] = {}
    for name in dict.fromkeys(row.generation for row in rows):
        mine = [row for row in rows if row.generation == name]
        used = Counter(row.registers for row in mine if not row.refused)
        generations[name] = {
            "kernels": len(mine),
            "refused": {row.kernel: row.refused for row in mine if row.refused},
            "stacks": sum(row.stack > 0 for row in mine),
            "kernels_by_registers": {str(count): used[count] for count in sorted(used)},
            "spilled_bytes": {row.kernel: row.spilled for row in mine if row.spilled},
        }
    return {"tests": tests, "ptxas": told.strip().splitlines()[-1], "generations": generations}


def main() -> int:
    """Run the tests, then assemble for each generation; 1 if a kernel is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--rows", default=",".join(row.name for row in GPU_ROWS))
    parser.add_argument("--jobs", type=int, default=1, help="generations at a time")
    parser.add_argument("--output", default="")
    parser.add_argument("--record", default="")
    given = parser.parse_args()
    collector = Collector()
    status = pytest.main(["-q", "-n0", "--no-header", *given.tests], plugins=[collector])
    sinks = list(collector.sinks)
    print(f"tests ended with status {int(status)} and computed {len(sinks)} programs")
    complete = True
    everything: list[Row] = []
    names = given.rows.split(",")
    for name, rows in zip(names, measure_each(sinks, names, given.jobs), strict=True):
        complete &= report(rows, name)
        everything += rows
    if given.output:
        Path(given.output).write_text(json.dumps([asdict(row) for row in everything], indent=1))
    if given.record:
        kept = record(everything, given.tests)
        Path(given.record).write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

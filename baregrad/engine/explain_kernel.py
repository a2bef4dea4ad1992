"""What one kernel does, how fast it could and does run, and why it runs as it does.

The roofline: a kernel takes at least the longer of two times: what the machine needs to
move its bytes, and what it needs to do its operations (S. Williams and others, CACM 52(4), 2009).
Bytes are those of every array once, whatever the caches do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from baregrad.base.bits import human_bytes, human_seconds
from baregrad.base.errors import ArgumentError, OptionError
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.launch import launch_expr
from baregrad.engine.rates import Rates, measure_rates
from baregrad.engine.search.candidate_table import candidate_lines
from baregrad.engine.search.records import Records, records_path
from baregrad.engine.search.written import chosen, short_name
from baregrad.ir.analysis.outline import outline
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import Choice, Schedule, cost_of, facts_of, lower
from baregrad.kernel.facts.analysis import itemsize, op_flops
from baregrad.kernel.gpu.pictures import pipeline_lines
from baregrad.kernel.search import roofline_ns
from baregrad.program import evaluate
from baregrad.runtime.cpu.device import CpuDevice
from baregrad.target import AnyTarget, GpuTarget

_TIMED_S = 0.5
_MOST_RUNS = 50


@dataclass(frozen=True, slots=True)
class Found:
    """A kernel of a program: the values of its symbolic sizes, and the user's line, if noted."""

    kernel: Node
    variables: Mapping[str, int]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes, operations, and operations with functions and divisions at what they cost.

    A product and its addition are two; `weighted` counts an exponential as sixteen.
    """

    bytes_read: int
    bytes_written: int
    operations: int
    weighted: int

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.operations / max(self.nbytes, 1)


def work_of(found: Found) -> Work:
    """Count what one launch does."""
    cost = cost_of(found.kernel)

    def number(size: index.Dim) -> int:
        return evaluate(launch_expr(size), found.variables)

    operations = number(cost.flops)
    extra = [
        index.mul(index.product(extent_of(axis) for axis in node.ranges), op_flops(node) - 1)
        for node in facts_of(found.kernel).order
        if op_flops(node) > 1 and node.ranges
    ]
    weighted = operations + sum(number(size) for size in extra)
    return Work(number(cost.bytes_read), number(cost.bytes_written), operations, weighted)


def schedule_text(schedule: Schedule, name: str) -> str:
    """Return a kernel's schedule as Python, a step a line, as the option `schedules` reads it."""
    if not schedule.steps:
        return f"{name} = Schedule()"
    steps = "".join(f"    {step},\n" for step in schedule.steps)
    return f"{name} = Schedule(\n{steps})"


def choice_lines(choice: Choice, name: str) -> list[str]:
    """Return a kernel's schedule as Python and the reasons for it."""
    text = schedule_text(choice.schedule, name)
    lines = ["schedule", *(f"  {line}" for line in text.splitlines())]
    return [*lines, "why", *(f"  - {reason}" for reason in choice.why())]


def list_kernels(kernels: list[Found], rates: Rates) -> str:
    """Return a line for each kernel: number, name, work, what bounds it, and where it came from."""
    lines = []
    for number, found in enumerate(kernels, 1):
        work = work_of(found)
        memory, maths = rates.seconds(work.nbytes, work.weighted)
        lines.append(
            f"{number:>3}  {found.kernel.arg.name:<32.32} {human_bytes(work.nbytes):>10} "
            f"{_count(work.operations):>7} op {work.intensity:8.2f} op/B  "
            f"{_bound(work, rates):<12} "
            f">= {human_seconds(max(memory, maths)):>8}  {found.where}".rstrip()
        )
    return "\n".join([*lines, _machine(rates)])


def pick(kernels: list[Found], wanted: str) -> tuple[int, Found]:
    """Return the kernel of that number, counted from 1, or name; raises ArgumentError."""
    if wanted.isdigit() and 1 <= int(wanted) <= len(kernels):
        return int(wanted), kernels[int(wanted) - 1]
    named = [one for one in enumerate(kernels, 1) if one[1].kernel.arg.name == wanted]
    if len(named) == 1:
        return named[0]
    if named:
        raise ArgumentError(
            f"{len(named)} kernels are called {wanted!r}",
            wanted=f"one of the numbers {', '.join(str(number) for number, _ in named)}",
        )
    names = ", ".join(f"{number} {one.kernel.arg.name}" for number, one in enumerate(kernels, 1))
    raise ArgumentError(
        "there is no such kernel", found=repr(wanted), wanted=names or "a program that computes",
        hint="`baregrad explain FILE --kernels` lists them",
    )


def describe(found: Found, backend: CompiledBackend, rates: Rates) -> str:
    """Return all there is to tell about a kernel, having run it."""
    work = work_of(found)
    memory, maths = rates.seconds(work.nbytes, work.weighted)
    least = max(memory, maths)
    seconds = time_kernel(found, backend)
    target = backend.compiler.target
    choice = chosen(found.kernel, target)
    loop = lower(found.kernel, target, choice.schedule)
    lines = [
        *_heading(found, work),
        _machine(rates),
        f"bound by    {_bound(work, rates)}: bytes alone take {human_seconds(memory)}, "
        f"operations alone {human_seconds(maths)}",
        f"time        {human_seconds(seconds)}: {least / seconds:.0%} of what the machine could",
        f"rates       {work.nbytes / seconds / 1e9:.2f} GB/s, "
        f"{work.operations / seconds / 1e9:.2f} GFLOP/s",
        *_plan_lines(found, target, getattr(backend.device, "threads", 0), choice, loop),
    ]
    return "\n".join(lines)


def list_planned(kernels: list[Found], target: GpuTarget) -> str:
    """Return a line for each kernel: number, name, work, and where it came from."""
    lines = []
    for number, found in enumerate(kernels, 1):
        work = work_of(found)
        least = roofline_ns(facts_of(found.kernel), target) / 1e9
        lines.append(
            f"{number:>3}  {found.kernel.arg.name:<32.32} {human_bytes(work.nbytes):>10} "
            f"{_count(work.operations):>7} op {work.intensity:8.2f} op/B  "
            f">= {human_seconds(least):>8}  {found.where}".rstrip()
        )
    return "\n".join(lines)


def describe_planned(found: Found, target: GpuTarget) -> str:
    """Return what there is to tell about a kernel for a GPU's row, without running it."""
    work = work_of(found)
    choice = chosen(found.kernel, target)
    loop = lower(found.kernel, target, choice.schedule)
    return "\n".join([*_heading(found, work), *_plan_lines(found, target, 0, choice, loop)])


def _heading(found: Found, work: Work) -> list[str]:
    return [
        f"kernel      {found.kernel.arg.name}  {short_name(found.kernel)}"
        + (f"  ({found.where})" if found.where else ""),
        f"bytes       {human_bytes(work.bytes_read)} read, "
        f"{human_bytes(work.bytes_written)} written",
        f"operations  {_count(work.operations)}, {work.intensity:.2f} for each byte"
        + _weights(work),
    ]


def _plan_lines(
    found: Found, target: AnyTarget, threads: int, choice: Choice, loop: Node
) -> list[str]:
    records = Records(records_path()).all()
    picture = pipeline_lines(loop, target) if target.kind == "gpu" else []
    machine = [f"target      {target.name}"] if target.kind == "gpu" else []
    return [
        *machine,
        *choice_lines(choice, found.kernel.arg.name),
        *candidate_lines(found.kernel, target, threads, records),
        *(["pipeline", *(f"  {line}" for line in picture)] if picture else []),
        "loops",
        *(f"  {line}" for line in outline(loop).splitlines()),
    ]


def _weights(work: Work) -> str:
    if work.weighted == work.operations:
        return ""
    return f" ({_count(work.weighted)} with functions and divisions at what they cost)"


def _bound(work: Work, rates: Rates) -> str:
    """Say what the kernel waits for: operations, or where its arrays lie."""
    memory, maths = rates.seconds(work.nbytes, work.weighted)
    return rates.level(work.nbytes).name if memory >= maths else "operations"


def _machine(rates: Rates) -> str:
    copied = ", ".join(f"{one.bytes_per_s / 1e9:.1f} in {one.name}" for one in rates.levels)
    return (
        f"machine     {rates.flops_per_s / 1e9:.0f} GFLOP/s in float32; GB/s copied: {copied}; "
        f"measured just now on {rates.threads} threads"
    )


def _count(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.0f}{unit}" if not unit else f"{value:.2f}{unit}"
        value /= 1000
    return f"{value:.2f}T"


def time_kernel(found: Found, backend: CompiledBackend) -> float:
    """Run a kernel on arrays of zeros for half a second; return its median time in seconds."""
    device = backend.device
    kernel = backend.compiler.load([found.kernel], device, _nothing)[found.kernel]
    params = {node.arg.slot: node for node in toposort(found.kernel) if node.op is Ops.PARAM}
    buffers = []
    for slot in range(len(params)):
        node = params[slot]
        elements = evaluate(launch_expr(index.product(node.shape)), found.variables)
        buffer = device.allocate(elements * itemsize(node.dtype))
        # Written, so that every page is memory of its own.
        device.copy_in(buffer, bytes(buffer.nbytes))
        buffers.append(buffer)
    known = {name: found.variables[name] for name in kernel.program.variables}
    clock = time.perf_counter
    device.run(kernel, buffers, known)
    times: list[float] = []
    begin = clock()
    while len(times) < 3 or (clock() - begin < _TIMED_S and len(times) < _MOST_RUNS):
        start = clock()
        device.run(kernel, buffers, known)
        device.synchronize()
        times.append(clock() - start)
    return statistics.median(times)


def _nothing() -> None:
    return


def rates_of(open_backend: Callable[[str], object]) -> tuple[CompiledBackend, Rates]:
    """Open the CPU and measure it. Raises OptionError where it runs no native code."""
    backend = open_backend("CPU")
    if not isinstance(backend, CompiledBackend) or not isinstance(backend.device, CpuDevice):
        raise OptionError("kernels are timed on the CPU", found=backend)
    return backend, measure_rates(backend.device, backend.compiler)

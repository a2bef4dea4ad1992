"""What `DEBUG` prints: a line per kernel, schedules, sources, IR and machine code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from baregrad.base.options import options
from baregrad.ir.algebra.rewrite import Rule, watched
from baregrad.ir.core.node import Node
from baregrad.program import Program, evaluate
from baregrad.runtime.commands import CommandList, Copy, Exec, Timeline

if TYPE_CHECKING:
    from baregrad.kernel import Choice
    from baregrad.target import AnyTarget

# The level of `DEBUG` that shows rewrites.
REWRITES = 5


def print_graph_rewrites(sink: Node, target: AnyTarget) -> None:
    """Print what the passes over a tensor-level graph replace, and by which rules, to stderr."""
    from baregrad.graph import replaced

    fired: Counter[Rule] = Counter()

    def note(rule: Rule, old: Node, new: Node) -> None:
        fired[rule] += 1

    with watched(note):
        steps = list(replaced(sink, target))
    for name, old, new in steps:
        print(f"{name}: {_summary(old)} -> {_summary(new)}", file=sys.stderr)
    if not steps:
        print("the passes over the graph replace nothing", file=sys.stderr)
    for rule, count in fired.most_common():
        print(f"rule {rule.name}, {count} times: {rule.law}", file=sys.stderr)


def _summary(node: Node) -> str:
    sources = ", ".join(one.op.name for one in node.src)
    shape = ", ".join(str(extent) if isinstance(extent, int) else "?" for extent in node.shape)
    return f"{node.op.name}({sources}) {node.dtype.name}[{shape}]"


def kernel_line(name: str, nanoseconds: int, flops: int, nbytes: int, where: str) -> str:
    """One line: name, time, GFLOP/s, GB/s and the user's file:line."""
    microseconds = nanoseconds / 1e3
    rate = flops / max(nanoseconds, 1)
    bandwidth = nbytes / max(nanoseconds, 1)
    return (
        f"{name:<40.40} {microseconds:10.1f} us {rate:8.2f} GFLOP/s {bandwidth:8.2f} GB/s  {where}"
    )


def print_kernels(
    launches: Sequence[Any],
    timeline: Timeline,
    variables: Mapping[str, int],
    where: Callable[[Any], str],
) -> None:
    """Print the kernels of one run with their times to stderr.

    where: the user's file:line of a launch, "" if unknown.
    """
    for launch, duration in zip(launches, timeline.durations_ns(), strict=True):
        program = launch.kernel.program
        flops, nbytes = _work(program, variables)
        print(kernel_line(program.name, duration, flops, nbytes, where(launch)), file=sys.stderr)


def _work(program: Program, variables: Mapping[str, int]) -> tuple[int, int]:
    """The operations of a program, and the bytes that it reads and writes."""
    meta = program.meta
    nbytes = evaluate(meta.bytes_read, variables) + evaluate(meta.bytes_written, variables)
    return evaluate(meta.flops, variables), nbytes


def print_commands(
    commands: CommandList, timeline: Timeline | None, variables: Mapping[str, int]
) -> None:
    """Print the kernels and copies of a command list with their times to stderr."""
    durations = () if timeline is None else timeline.durations_ns()
    for command, duration in zip(commands.commands, durations, strict=True):
        flops, nbytes, name, where = 0, 0, command.label, ""
        if isinstance(command, Exec):
            name, _, where = command.label.partition(" ")
            flops, nbytes = _work(command.kernel.program, variables)
        else:
            nbytes = command.nbytes * (2 if isinstance(command, Copy) else 1)
        print(kernel_line(name, duration, flops, nbytes, where), file=sys.stderr)


def print_compilation(
    stages: list[Any], program: Program, disassemble: Any, choice: Choice
) -> None:
    """Print what `DEBUG` asks for of one kernel's compilation to stderr.

    `choice` is what the heuristic says of the kernel; its reasons are those of the schedule unless
    a search found another one.
    """
    from baregrad.ir.text.dump import dump

    level = options.debug
    for stage in stages:
        if stage.name == "schedule" and level >= 2:
            print(f"{program.name} = {stage.result}", file=sys.stderr)
            is_its = stage.result == choice.schedule
            for reason in choice.why() if is_its else ("a search found it faster",):
                print(f"  - {reason}", file=sys.stderr)
        elif isinstance(stage.result, Node) and level >= 4:
            print(f"-- {stage.name}: {stage.why}\n{dump(stage.result)}", file=sys.stderr)
    if level >= 3:
        print(program.source, file=sys.stderr)
    if level >= 6:
        print(disassemble(program.source), file=sys.stderr)

"""`baregrad explain FILE [--after PASS]`: what the compiler made of a program, stage by stage.

FILE is either a Python program, which is run on the NULL device with every stage of every kernel
printed, or the saved text of one kernel (as CompilerBug writes it), whose compilation is replayed.
`--kernels` lists its kernels instead, `--kernel` describes one of them in full, having run it. With
`--target sm_90a` kernels are those for that GPU, which need not be there, and none is run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from baregrad.base.bits import human_bytes
from baregrad.base.errors import ArgumentError, OptionError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend, open_backend
from baregrad.engine.compiler import Compiler
from baregrad.engine.script import run_to_end
from baregrad.engine.search.written import written_for
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.runtime.buffers import MemoryStats
from baregrad.target.gpu import GPU_ROWS, gpu_row

if TYPE_CHECKING:
    from baregrad.engine.explain_kernel import Found

# What is said of a program without any kernels.
NOTHING = "the program computes nothing"


def parser() -> argparse.ArgumentParser:
    """The command line of `baregrad explain`."""
    result = argparse.ArgumentParser(
        prog="baregrad explain",
        description="Show every stage of a program's compilation, or what one kernel does.",
    )
    result.add_argument(
        "file", type=Path, nargs="?", help="a Python program, or the saved text of a kernel"
    )
    result.add_argument("--after", metavar="PASS", help="show only what this pass left behind")
    result.add_argument(
        "--kernels", action="store_true", help="list the kernels: bytes, operations, what bounds"
    )
    result.add_argument(
        "--kernel", metavar="NAME|N",
        help="run one kernel: its time beside the machine's limits, its schedule and why; "
        "with --after, what that pass made of it",
    )
    result.add_argument(
        "--target", metavar="|".join(row.name for row in GPU_ROWS),
        help="with --kernels or --kernel: those for a GPU of this generation, without running "
        "them, or of one that uses an older one's instructions alone, as sm_90a:sm_80",
    )
    result.add_argument("--list", action="store_true", help="name the passes in order and stop")
    return result


def main(argv: Sequence[str]) -> int:
    """Run `baregrad explain`; 0 when everything was shown."""
    understood = parser()
    arguments = understood.parse_args(argv)
    if arguments.file is None and not arguments.list:
        understood.error("which program? give a Python file, or the saved text of a kernel")
    if arguments.kernels and arguments.after is not None and arguments.kernel is None:
        understood.error("--kernels lists; --after shows a program, or one kernel with --kernel N")
    if arguments.target and not (arguments.kernels or arguments.kernel):
        understood.error("--target is for kernels: give --kernels, or --kernel N")
    backend = null_backend(arguments.target)
    names = pass_names(backend)
    if arguments.list:
        print("\n".join(f"{name:<24} {why}" for name, why in names))
        return 0
    if arguments.after is not None and arguments.after not in dict(names):
        raise OptionError(
            f"there is no pass {arguments.after!r}",
            wanted=", ".join(name for name, _ in names),
            hint="`baregrad explain --list` says what each does",
        )
    if arguments.kernels or arguments.kernel is not None:
        _tell_of_kernels(arguments.file, arguments.kernel, arguments.after, backend)
    elif arguments.file.suffix == ".py":
        _explain_program(arguments.file, arguments.after)
    else:
        _explain_kernel(backend, _saved(arguments.file), arguments.after, sys.stdout)
    return 0


def null_backend(gpu: str | None) -> CompiledBackend:
    """What compiles for this machine's CPU, or for a generation of GPUs, and runs nothing.

    That for GPUs is named as they are, since some functions compute otherwise there.
    """
    backend = open_backend("NULL")
    if not isinstance(backend, CompiledBackend):
        raise OptionError("explain needs a compiling device", found=backend.name, wanted="NULL")
    if gpu is None:
        return backend
    from baregrad.assemble.virtual_cubin import VirtualAssembler
    from baregrad.render import get

    compiler = Compiler(gpu_row(gpu), get("ptx"), VirtualAssembler(), None)
    return CompiledBackend("NV", backend.device, compiler)


def pass_names(backend: CompiledBackend) -> list[tuple[str, str]]:
    """Every pass and why it is there, in order, from the user's graph to text."""
    from baregrad.graph import INPUT
    from baregrad.graph import passes as graph_passes
    from baregrad.schedule import DECISIONS
    from baregrad.schedule import passes as schedule_passes

    rows = [INPUT]
    rows.extend((item.name, item.why) for item in graph_passes)
    rows.append(DECISIONS)
    rows.extend((item.name, item.why) for item in schedule_passes)
    return rows + backend.compiler.stage_names()


def _explain_kernel(
    backend: CompiledBackend, kernel: Node, after: str | None, stream: TextIO
) -> None:
    print(f"== {kernel.arg.name}", file=stream)
    for stage in backend.compiler.stages(kernel, written_for(kernel, backend.compiler.target)):
        if after is None or stage.name == after:
            _show(stage.name, stage.why, stage.result, stream)


def _show(name: str, why: str, result: Any, stream: TextIO) -> None:
    from baregrad.ir.text.dump import dump

    print(f"-- {name}: {why}", file=stream)
    print(dump(result) if isinstance(result, Node) else result, file=stream)


def _saved(path: Path) -> Node:
    from baregrad.ir.text.dump import parse

    if not path.is_file():
        raise ArgumentError(
            "there is no such file", found=str(path), wanted="a Python file, or IR as text"
        )
    return parse(path.read_text())


def _tell_of_kernels(
    path: Path, wanted: str | None, after: str | None, null: CompiledBackend
) -> None:
    """List the kernels of a program or a saved kernel, or tell all about one."""
    from baregrad.engine import explain_kernel

    kernels = kernels_of(path, null)
    if wanted is not None:
        _, found = explain_kernel.pick(kernels, wanted)
        if after is not None:
            _check_pass(null, after)
            _explain_kernel(null, found.kernel, after, sys.stdout)
            return
    target = null.compiler.target
    if target.kind == "gpu":
        if wanted is not None:
            print(explain_kernel.describe_planned(found, target))
        else:
            print(explain_kernel.list_planned(kernels, target) or NOTHING)
        return
    backend, rates = explain_kernel.rates_of(open_backend)
    try:
        if wanted is None and not kernels:
            print(NOTHING)
        elif wanted is None:
            print(explain_kernel.list_kernels(kernels, rates))
        else:
            print(explain_kernel.describe(found, backend, rates))
    finally:
        backend.close()


def _check_pass(null: CompiledBackend, after: str) -> None:
    """Refuse a pass that comes before there are kernels. Raises OptionError."""
    names = [name for name, _ in pass_names(null)]
    first = names.index(null.compiler.stage_names()[0][0])
    if names.index(after) < first:
        raise OptionError(
            f"{after!r} is done before there are kernels", wanted=", ".join(names[first:]),
            hint="leave --kernel out to see what the pass made of the program",
        )


def kernels_of(path: Path, null: CompiledBackend | None = None) -> list[Found]:
    """The distinct kernels of a program, in the order in which they are first run, or the saved.

    null: the NULL device that they are planned for.
    """
    from baregrad.engine.explain_kernel import Found

    if path.suffix != ".py":
        kernel = _saved(path)
        names = {node.arg.name for node in toposort(kernel) if node.op is Ops.VAR}
        if names:
            raise OptionError(
                "a saved kernel with symbolic sizes has no size of its own",
                found=", ".join(sorted(names)), wanted="the program that it came from",
            )
        return [Found(kernel, {})]
    seen: dict[Node, Found] = {}

    def note(run: Any, session: Session) -> None:
        for launch in run.executable.plan.steps:
            kernel = launch.kernel
            if kernel not in seen:
                where = session.where(run.program, launch)
                seen[kernel] = Found(kernel, run.program.variables, where)

    run_observed(path, note, null, debug=1)
    return list(seen.values())


def run_observed(
    path: Path, note: Callable[[Any, Session], None], null: CompiledBackend | None = None,
    **setting: Any,
) -> MemoryStats:
    """Run a program where nothing is computed, noting what would be, with options set.

    Gives the memory that it would have taken.
    """
    name = "NULL" if null is None else null.name
    with use_session(Session()) as session, options.override(device=name, **setting):
        if null is not None:
            session.adopt(null)

        def note_each(run: Any) -> None:
            for one in run.programs:
                note(one, session)

        session.watching.observers.append(note_each)
        try:
            run_to_end(path)
            return session.backend(name).device.memory_stats()
        finally:
            session.close()


def _explain_program(path: Path, after: str | None) -> None:
    """Run a program on the NULL device and show what became of each computation in it."""
    seen: set[Node] = set()
    programs = 0

    def note(run: Any, session: Session) -> None:
        nonlocal programs
        from baregrad.graph import canonicalise
        from baregrad.graph import stages as graph_stages
        from baregrad.schedule import stages as schedule_stages

        programs += 1
        backend = session.backend("NULL")
        assert isinstance(backend, CompiledBackend)
        sink = run.program.sink
        for name, why, result in (
            *graph_stages(sink),
            *schedule_stages(canonicalise(sink)),
        ):
            if after is None or name == after:
                _show(name, why, result, sys.stdout)
        for kernel in run.executable.plan.kernels:
            if kernel not in seen:
                seen.add(kernel)
                _explain_kernel(backend, kernel, after, sys.stdout)

    memory = run_observed(path, note)
    if not programs:
        print(NOTHING)
    elif after is None:
        print(f"-- memory: {human_bytes(memory.peak_nbytes)} at most, "
              f"{human_bytes(memory.in_use_nbytes)} in the end")

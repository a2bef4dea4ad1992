"""Counts what compiling and replaying cost the interpreter: `python -m baregrad.apps.instructions`.

A figure is a number of bytecode instructions, so that it does not depend on the machine, nor on how
busy that is. Those of a replay are the same in every run; those of compiling differ by a hundredth
of a percent, as sets of nodes are walked in the order of addresses. Newer versions of Python take
up to an eighth fewer than 3.11. NumPy's own instructions are left out, and those of code that is
not in Python are not seen. What is compiled is the loss of ResNet-18 with all its gradients, for
one row of `target`, with all modules imported before and an assembler that does nothing. What is
replayed are the functions of `baregrad.apps.call_time`: that and `compile_time` measure seconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import pkgutil
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

ROW = "x86-64-avx2"
# Calls before the counted one: the second is captured, and what knows a call again is made later.
CALLS_BEFORE = 5
_ROOMS = ("dtypes", "engine", "graph", "ir", "kernel", "nn", "render", "schedule", "tensor")
_NUMPY = str(Path(np.__file__).parent)


class Instructions:
    """Counts bytecode instructions of this thread inside `with` blocks, one after the other.

    A search for cycles would run the callbacks of whatever died before: there is none inside. Nor
    is there one before, which takes seconds in a process that holds much.
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Instructions:
        self._collects = gc.isenabled()
        gc.disable()
        self._watch(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch(False)
        if self._collects:
            gc.enable()

    if sys.version_info >= (3, 12):

        def _watch(self, on: bool) -> None:
            """Ask the interpreter to tell of instructions, or no longer."""
            monitoring = sys.monitoring
            tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
            if on:
                monitoring.use_tool_id(tool, "baregrad")
                monitoring.register_callback(tool, event, self._noted)
                monitoring.set_events(tool, event)
            else:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)

        def _noted(self, code: CodeType, offset: int) -> Any:
            if _is_left_out(code):
                return sys.monitoring.DISABLE
            self.count += 1
            return None

    else:

        def _watch(self, on: bool) -> None:
            """Ask the interpreter to tell of instructions, or no longer."""
            sys.settrace(self._traced if on else None)

        def _traced(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            if event == "opcode":
                self.count += 1
            elif event == "call":
                if _is_left_out(frame.f_code):
                    return None
                frame.f_trace_opcodes = True
                frame.f_trace_lines = False
            return self._traced


def _is_left_out(code: CodeType) -> bool:
    """Whether code is the counting itself, or NumPy's, which differs from version to version."""
    return code.co_filename.startswith(_NUMPY) or code in _OWN


_OWN = (Instructions.__exit__.__code__, Instructions._watch.__code__)


def count(call: Callable[[], Any]) -> int:
    """How many instructions a call takes."""
    meter = Instructions()
    with meter:
        call()
    return meter.count


class _Submissions:
    """Notes what a device is asked for: lists, commands in them, and fresh memory."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.found = dict.fromkeys(("submissions", "commands", "allocations"), 0)

    def __enter__(self) -> dict[str, int]:
        submit, allocate = self.device.submit, self.device.allocate

        def submitted(commands: Any, *args: Any, **kwargs: Any) -> Any:
            self.found["submissions"] += 1
            self.found["commands"] += len(commands)
            return submit(commands, *args, **kwargs)

        def allocated(nbytes: int) -> Any:
            self.found["allocations"] += 1
            return allocate(nbytes)

        self.device.submit, self.device.allocate = submitted, allocated
        return self.found

    def __exit__(self, *_: object) -> None:
        del self.device.submit, self.device.allocate


def replay_row(call: Callable[[], Any]) -> dict[str, int]:
    """What one replay of a jitted call on the CPU takes, once it has been called a few times.

    Results of earlier calls are let go of before it, but for `held_allocations`: what is allocated
    while the results of the call before are held.
    """
    from baregrad.engine.session import current_session

    for _ in range(CALLS_BEFORE):
        call()
    backend: Any = current_session().backend("CPU")
    with _Submissions(backend.device) as asked:
        call()
    held = call()
    with _Submissions(backend.device) as while_held:
        call()
    del held
    call()
    return {
        "instructions": count(call),
        **asked,
        "held_allocations": while_held["allocations"],
    }


def replays() -> dict[str, dict[str, int]]:
    """What each function of `call_time` takes a replay, by name."""
    from baregrad.apps.call_time import cases
    from baregrad.base.options import options

    with options.override(device="CPU", debug=0, jit_check=False):
        return {name: replay_row(call) for name, call in cases().items()}


class _NoAssembler:
    """Stands for an assembler, and adds up what it is given."""

    version = "none"
    several_at_once = False

    def __init__(self) -> None:
        self.nbytes = 0

    def assemble_all(self, texts: Iterable[str]) -> Iterator[bytes]:
        """One byte for each text."""
        for text in texts:
            self.nbytes += len(text.encode())
            yield b"\0"


def compilation() -> dict[str, int]:
    """What compiling takes: building the graph, planning it, and lowering and rendering kernels.

    `plan` is everything of realising that is not a kernel's `lower_render`.
    """
    from baregrad.apps.compile_time import build, prepare
    from baregrad.base.options import options
    from baregrad.engine.backends import cpu_backend
    from baregrad.engine.session import current_session
    from baregrad.target.cpu import CPU_ROWS

    import_rooms()
    row = next(row for row in CPU_ROWS if row.name == ROW)
    with options.override(device="NULL", cache=False, verify=False, debug=0, beam=0):
        backend = cpu_backend("NULL", row)
        current_session().adopt(backend)
        compiler: Any = backend.compiler
        compiler.assembler = assembler = _NoAssembler()
        inputs = prepare()
        before = compiler.compiled, assembler.nbytes, set(sys.modules)
        stages = compiler.stages
        per_kernel: list[int] = []
        whole = Instructions()
        gc.collect()

        def counted(kernel: Any) -> Any:
            begin = whole.count
            found = list(stages(kernel))
            per_kernel.append(whole.count - begin)
            return iter(found)

        compiler.stages = counted
        with whole:
            tensors = build(*inputs)
            built = whole.count
            tensors[0].realize(*tensors[1:])
    lowered = sum(per_kernel)
    return {
        "kernels": compiler.compiled - before[0],
        "text_nbytes": assembler.nbytes - before[1],
        "imports": len(set(sys.modules) - before[2]),
        "build": built,
        "plan": whole.count - built - lowered,
        "lower_render": lowered,
        "median_kernel": sorted(per_kernel)[len(per_kernel) // 2],
    }


def import_rooms() -> None:
    """Import all that takes part in compiling, as imports are no part of what it takes."""
    for room in _ROOMS:
        module = importlib.import_module(f"baregrad.{room}")
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
            importlib.import_module(found.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, and write them to a file when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args(argv)
    figures = {
        "python": platform.python_version(),
        "compile": compilation(),
        "replay": replays(),
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

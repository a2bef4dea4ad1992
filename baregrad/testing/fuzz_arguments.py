"""Calls the public functions with hostile arguments: every failure must be an error of the tree.

    python -m baregrad.testing.fuzz_arguments --calls 20000 --seed 0
    python -m baregrad.testing.fuzz_arguments --call "Tensor([1.0]).unfold(0, -1, 1)"

What is raised is a finding unless it is a `BaregradError` (a `CompilerBug` is one all the same),
Python's own word on how many arguments there are, the system's on a file, or that on a method which
a subclass is to write. So are warnings, calls that take long and deaths
of the process. A call is drawn from the seed and its number alone, and is a line of Python that
`--call` runs again. Calls are run in a process of their own, in an empty folder, with little memory
to have.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import inspect
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, GeneratorType
from typing import Any, NamedTuple

from baregrad import nn
from baregrad.base.errors import BaregradError, CompilerBug
from baregrad.base.options import options
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_calls import draw, names

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_LONGEST_S = 5.0
_DEAD_AFTER_S = 60.0
_MEMORY_NBYTES = 6 << 30
_CHUNK = 2000
# One call in this many is compiled, which takes longer.
_COMPILED = 8
_COUNTED = re.compile(r"\(\) (takes|missing|got an unexpected|got multiple|got some positional)")


class ArgumentFinding(NamedTuple):
    """A call that fails as it should not; `problem` is a line."""

    place: int
    call: str
    problem: str

    def __str__(self) -> str:
        program = f"python -m baregrad.testing.fuzz_arguments --call {json.dumps(self.call)}"
        return f"{self.problem}\n    {program}"


class _TooLong(BaseException):
    """A call that takes longer than calls may."""


def problem_of(call: str, device: str, longest_s: float = _LONGEST_S) -> str | None:
    """Run a call; return what is wrong with how it fails, None where nothing is."""
    try:
        with options.override(device=device), warnings.catch_warnings():
            warnings.simplefilter("error")
            # What asserts holds then is the call's alone.
            Tensor.set_grad_enabled(True)
            _read(eval(compile(call, "<call>", "eval"), names()))  # noqa: S307
    except _TooLong:
        return f"takes longer than {longest_s} s"
    except CompilerBug as error:
        return f"CompilerBug: {_line(error)}"
    except (BaregradError, OSError, NotImplementedError):
        return None
    except Exception as error:  # noqa: BLE001 - anything at all is looked at
        return _judged(error)
    finally:
        Tensor.set_grad_enabled(True)
    return None


def _judged(error: Exception) -> str | None:
    frames = list(traceback.walk_tb(error.__traceback__))
    ours = [frame for frame, _ in frames if frame.f_code.co_filename.startswith(PACKAGE)]
    inside = [frame for frame in ours if "/testing/" not in frame.f_code.co_filename]
    last = frames[-1][0]
    if not inside:
        drawn = frames[-1][0].f_code.co_filename.startswith(PACKAGE)
        return f"the drawing fails: {_line(error)}" if drawn and len(frames) > 2 else None
    # Who passes on what it was given has it as a tuple and a dictionary.
    given = last.f_code.co_varnames[: last.f_code.co_argcount]
    passed_on = last.f_code.co_flags & inspect.CO_VARARGS or {"args", "kwargs"} <= set(given)
    if isinstance(error, TypeError) and passed_on and _COUNTED.search(str(error)):
        return None
    where = inside[-1].f_code
    line = next(line for frame, line in reversed(frames) if frame is inside[-1])
    at = f"{where.co_filename.removeprefix(PACKAGE)}:{line}"
    return f"{type(error).__name__}: {_line(error)} [{at} {where.co_name}]"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:150]


def _read(result: Any, depth: int = 0) -> None:
    """Compute what a call gave, and its gradients."""
    if isinstance(result, Tensor):
        if result.dtype.storage_only:
            result.tolist()
            return
        result.numpy()
        if result.requires_grad and result.numel() and not isinstance(result.numel(), Tensor):
            result.sum().backward()
        return
    if isinstance(result, nn.Module):
        result = list(result.parameters())
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, GeneratorType):
        result = list(itertools.islice(result, 3))
    if isinstance(result, list | tuple) and depth < 3:
        for one in result[:8]:
            _read(one, depth + 1)


# --- processes ------------------------------------------------------------------------------------


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _TooLong


@contextlib.contextmanager
def _in_time(longest_s: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, longest_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def work(seed: int, start: int, stop: int, progress: int, longest_s: float) -> None:
    """Run calls and print findings; `progress` is a file for the number of the one that runs."""
    signal.signal(signal.SIGALRM, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_NBYTES, _MEMORY_NBYTES))
    for place in range(start, stop):
        os.pwrite(progress, place.to_bytes(8, "little"), 0)
        call = draw(seed, place)
        faulthandler.dump_traceback_later(longest_s + _DEAD_AFTER_S, exit=True)
        problem = None
        try:
            with _in_time(longest_s):
                device = "CPU" if place % _COMPILED == 0 else "REF"
                problem = problem_of(call, device, longest_s)
        except _TooLong:
            problem = f"takes longer than {longest_s} s"
        if problem:
            print(json.dumps([place, call, problem]), flush=True)
    faulthandler.cancel_dump_traceback_later()


def fuzz(calls: int, seed: int, longest_s: float = _LONGEST_S) -> list[ArgumentFinding]:
    """Run calls in processes of their own; return what was found.

    longest_s: how long a call may take.
    """
    found: list[ArgumentFinding] = []
    start = 0
    while start < calls:
        stop = min(start + _CHUNK, calls)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as progress:
            handle = progress.fileno()
            os.pwrite(handle, start.to_bytes(8, "little"), 0)
            line = [sys.executable, "-m", "baregrad.testing.fuzz_arguments", "--seed", str(seed),
                    "--longest", str(longest_s),
                    "--work", str(start), str(stop), str(handle)]  # fmt: skip
            done = subprocess.run(
                line, cwd=folder, capture_output=True, text=True, check=False, pass_fds=[handle],
            )
            last = int.from_bytes(os.pread(handle, 8, 0), "little")
        lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
        found += [ArgumentFinding(*json.loads(line)) for line in lines]
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:]
            problem = f"dies of {done.returncode}: {said}"
            found.append(ArgumentFinding(last, draw(seed, last), problem))
            stop = last + 1
        start = stop
    return found


def main() -> int:
    """Run the program; the exit code is 1 where something was found."""
    parser = argparse.ArgumentParser(description="call public functions with hostile arguments")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--call", help="run this one and show what it raises")
    parser.add_argument("--longest", type=float, default=_LONGEST_S, help="seconds a call may take")
    parser.add_argument("--work", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        start, stop, progress = given.work
        work(given.seed, start, stop, progress, given.longest)
        return 0
    if given.call:
        for device in ("REF", "CPU"):
            with options.override(device=device):
                print(repr(eval(given.call, names())))  # noqa: S307
        return 0
    found = fuzz(given.calls, given.seed, given.longest)
    print("\n".join(map(str, found)))
    print(f"{len(found)} findings in {given.calls} calls of seed {given.seed}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The profile of a block of Python, or of a whole process."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.base.tracing import SpanContext, span

if TYPE_CHECKING:
    # What a profile is made of is imported when one is: the package's face names `Profile`.
    from types import TracebackType

    from baregrad.profiling.summary import KernelRow, Utilisation
    from baregrad.runtime.interface import Device


class Profile:
    """What every device and thread does in a block, written to a file when the block ends.

        with baregrad.profile("step.json") as profile:
            with profile.span("epoch"):
                step(x)
        print(profile.table())

    path: the file; `.json` is Chrome's form, all else Perfetto's. Processes that a profiled one
    starts join its file, where they make a profile of the same path. None for no file. lines: note
    which line asks for what from now on; what was planned before is not known by its line, and
    calls without `jit` lose their short cut. Kernels overlap as ever: on `NV` each writes the time
    when it ends, and is given the time since the one before had ended. On `CUDA` that costs much,
    so of a list that runs often one run in 64 has its commands timed, more at first.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, lines: bool = False) -> None:
        from baregrad.profiling.collector import Collector

        self.path = None if path is None else Path(path)
        self._lines = lines
        self._seen = Collector()
        self._open = contextlib.ExitStack()
        self._pid = 0

    def __enter__(self) -> Profile:
        if self._pid:
            raise ArgumentError("a profile is made once", hint="make another")
        self._pid = os.getpid()
        if self.path is not None:
            from baregrad.profiling.trace_file import begin_file

            begin_file(self.path)
        if self._lines:
            self._open.enter_context(options.override(lines=True))
        self._open.enter_context(self._seen.watching())
        _open_ones.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open_ones.discard(self)
        self._open.close()
        if self.path is None:
            return
        from baregrad.profiling.events import events_of
        from baregrad.profiling.trace_file import join_file

        try:
            join_file(self.path, events_of(self._seen))
        except ArgumentError as lost:
            if error is None:
                raise
            # What ended the block is what its user has to know first.
            error.add_note(str(lost))

    @staticmethod
    def span(name: str) -> SpanContext:
        """Return a context manager that shows a block of Python under a name."""
        return span(name)

    def kernels(self) -> list[KernelRow]:
        """Return what each kernel came to, those that took longest first."""
        from baregrad.profiling.summary import kernel_rows

        return kernel_rows(self._seen.runs(), {})

    def utilisations(self) -> list[Utilisation]:
        """Return how busy each device was."""
        from baregrad.profiling.summary import utilisations

        seen = self._seen
        return utilisations(seen.runs(), seen.end_ns - seen.begin_ns)

    def table(self) -> str:
        """Return kernels, devices, threads and memory as text; measures the CPU's limits."""
        from baregrad.profiling.limits import limits_of
        from baregrad.profiling.summary import summary

        seen = self._seen
        limits = {
            device: limits_of(device, architecture)
            for device, architecture in seen.architectures.items()
        }
        return summary(seen, limits)


# Those whose blocks are not left yet.
_open_ones: weakref.WeakSet[Profile] = weakref.WeakSet()


def _begin_in_child() -> None:
    for one in list(_open_ones):
        one._seen.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


class _OfProcess:
    """The profile that `PROFILE` asks for: from the first device on to the process's end.

    A forked child has one of its own, from its first work on.
    """

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self._told_of_forks = False

    def begin(self) -> None:
        if self.profile is not None:
            return
        self.profile = Profile(options.profile, lines=False)
        self.profile.__enter__()
        atexit.register(self.end, os.getpid())
        # A child of `multiprocessing` ends without what is registered above.
        if "multiprocessing.util" in sys.modules:
            sys.modules["multiprocessing.util"].Finalize(
                None, self.end, (os.getpid(),), exitpriority=100
            )
        if not self._told_of_forks and hasattr(os, "register_at_fork"):
            self._told_of_forks = True
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        inherited, self.profile = self.profile, None
        if inherited is None:
            return
        # Of what was inherited nothing is this process's.
        devices = inherited._seen.forget()
        inherited._open.close()
        for device in devices:
            vars(device)["submit"] = partial(self._first_work, device)

    def _first_work(self, device: Device, *words: Any, **named: Any) -> Any:
        vars(device).pop("submit", None)
        self.begin()
        return device.submit(*words, **named)

    def end(self, pid: int) -> None:
        if self.profile is not None and pid == os.getpid():
            profile, self.profile = self.profile, None
            profile.__exit__(None, None, None)
            print(f"{profile.table()}\nwritten to {profile.path}", file=sys.stderr)


_of_process = _OfProcess()


def begin_for_process() -> None:
    """Profile this process until it ends, into the file that the option `profile` names."""
    _of_process.begin()

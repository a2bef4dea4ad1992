"""The loop that follows a program: its threads, forks and execs, and stops them where asked.

A program that we start carries a seccomp filter, so that only calls that matter stop it: first
those by which it may turn to the driver, then all (`widening`). One that ran before us cannot be
given a filter that goes away again, so each of its system calls stops it.
What we started dies with us, since its filter needs us; what we joined goes on without us.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.trace import ptrace as px
from baregrad.trace.memory import (
    ProcessMemory,
    filters_of,
    parent_of,
    process_of,
    threads_of,
    tracer_of,
)
from baregrad.trace.widening import FilterWidener, SetAside

_OPTIONS = px.OPTION_SYSGOOD | px.OPTION_FORKS | px.OPTION_EXEC | px.OPTION_SECCOMP
_GROUP_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_EXEC_FAILED, _NO_PTRACE = 127, 126
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DETACH_S = 10.0
_PERIOD_S = 0.05


@dataclass
class TracedProcess:
    """A traced process: what its threads share. Its memory changes with an exec."""

    pid: int
    memory: ProcessMemory
    execs: int = 0
    # Whether its filter is the first one, and whether it is being replaced.
    narrow: bool = False
    widening: bool = False
    # How many filters it had when it was replaced.
    filters: int = 0
    # Whether each system call stops it, as its filter cannot be replaced.
    whole: bool = False


@dataclass
class TracedThread:
    """A traced thread, and the call that it is in if its end is waited for."""

    tid: int
    process: TracedProcess
    entered: px.Syscall | None = None
    began: float = 0.0
    mark: object = None
    # Where the last system call returned to.
    pointer: int = 0
    # What it had, if it is made to install a filter.
    aside: SetAside | None = None
    # Whether it stopped before a call that it has not ended, where each stops it.
    in_call: bool = False


class Watcher(Protocol):
    """What is done at stops. Times are those of `time.monotonic`, in seconds."""

    def enter(self, thread: TracedThread, name: str, call: px.Syscall) -> object | None:
        """Look at a call before the kernel does it; return what `leave` gets, or None."""
        ...

    def leave(self, thread: TracedThread, mark: object, value: int, seconds: float) -> None:
        """Look at what it did; a negative `value` is an error number."""
        ...

    def born(self, process: TracedProcess, parent: TracedProcess | None) -> None:
        """Take note of a process."""
        ...

    def became(self, process: TracedProcess) -> None:
        """Take note that a process runs another program now."""
        ...

    def gone(self, process: TracedProcess) -> None:
        """Take note of the end of a process, whose memory is no more."""
        ...

    def signalled(self, thread: TracedThread, number: int) -> int:
        """Return the signal to deliver in place of one that a thread got, 0 for none."""
        ...

    def idle(self) -> None:
        """Do what is to be done between stops."""
        ...

    def patience(self) -> float | None:
        """Return how long to wait for a stop, in seconds; None for as long as it takes."""
        ...


@dataclass
class BegunProgram:
    """A program that runs, traced by the thread that began it, up to the first of its stops.

    `said` is the reading end of a pipe that tells why it could not be run, if so.
    """

    pid: int
    command: Sequence[str]
    said: int
    widener: FilterWidener | None

    def end(self) -> None:
        """Kill it, where nobody followed it to its end."""
        if self.said < 0:
            return
        os.close(self.said)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, px.WAIT_ALL)


def begin(
    command: Sequence[str], names: tuple[str, ...] = px.WATCHED, *, early: bool = False
) -> BegunProgram:
    """Run a command, for the same thread to follow.

    early: stop at all calls of `names` from the beginning, at which it otherwise begins when
    a call of the driver was seen; until then files that are opened for reading alone are not.
    Raises UnsupportedError where nothing may be traced.
    """
    ptrace, widener = px.Ptrace(), None
    begin_r, begin_w = os.pipe()
    said_r, said_w = os.pipe()
    if not early and FilterWidener.works():
        widener = FilterWidener(ptrace, names)
    ready = px.SyscallFilter(names if widener is None else px.FIRST)
    pid = os.fork()
    if pid == 0:
        os.close(begin_w)
        _become(command, ready, begin_r, said_w)
    os.close(begin_r)
    os.close(said_w)
    try:
        ptrace(px.SEIZE, pid, 0, _OPTIONS | px.OPTION_EXITKILL)
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise UnsupportedError(
            "this system does not let programs be traced", found=str(error),
            hint="in a container, allow it: docker run --cap-add SYS_PTRACE",
        ) from error  # fmt: skip
    finally:
        os.close(begin_w)
    return BegunProgram(pid, command, said_r, widener)


@dataclass
class ProgramFollower:
    """Follows one program, and all that it starts, until the end."""

    watcher: Watcher
    threads: dict[int, TracedThread] = field(default_factory=dict)
    _parents: dict[int, TracedProcess] = field(default_factory=dict)
    _attached: bool = False
    _leaving: bool = False
    _asked: bool = False
    _first: int = 0
    _status: int = 0
    _widener: FilterWidener | None = None

    def __post_init__(self) -> None:
        self._ptrace = px.Ptrace()
        self._machine = px.machine()

    # How it begins.

    def start(
        self, command: Sequence[str], names: tuple[str, ...] = px.WATCHED, *, early: bool = False
    ) -> int:
        """Run a command to its end, as `begin` and `follow` do."""
        return self.follow(begin(command, names, early=early))

    def follow(self, begun: BegunProgram) -> int:
        """Follow a program that was begun to its end; return its exit status.

        128 + n where signal n ended it. Raises ArgumentError where it cannot be run.
        """
        self._first, self._widener = begun.pid, begun.widener
        self._add(begun.pid, None)
        # The terminal gives an interrupt to the program as well; that is for it to end by.
        # What ends us is passed on, so that nothing of the trace is lost.
        ends = [one for one in (signal.SIGTERM, signal.SIGHUP)
                if signal.getsignal(one) != signal.SIG_IGN]  # fmt: skip
        with (
            _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGQUIT),
            _handled(self._pass_on, *ends),
        ):
            self._loop()
        said = os.read(begun.said, 4096).decode(errors="replace")
        os.close(begun.said)
        begun.said = -1
        if said:
            if said.startswith("seccomp"):
                raise UnsupportedError("this system does not let calls be filtered", found=said)
            raise ArgumentError("the command cannot be run", found=f"{begun.command[0]}: {said}")
        return self._status

    def _pass_on(self, number: int, _frame: object) -> None:
        """Hand a signal on to the command, or to what is left of it; a second one kills it all."""
        again, self._asked = self._asked, True
        left = {one.process.pid for one in list(self.threads.values())}
        for pid in {self._first} if self._first in left and not again else left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if again else number)

    def attach(self, pid: int) -> int:
        """Follow a process that runs already until it ends or we are interrupted."""
        if not threads_of(pid):
            raise ArgumentError("there is no such process", found=pid)
        self._attached, self._first = True, pid
        found: set[int] = set()
        while new := set(threads_of(pid)) - found:
            found |= new
            for tid in sorted(new):
                self._seize(tid)
        if not self.threads:
            if not threads_of(pid):
                raise ArgumentError("the process has just ended", found=pid)
            if other := tracer_of(pid):
                raise UnsupportedError(f"process {pid} is traced by process {other} already",
                                       hint="a process has one tracer or debugger")  # fmt: skip
            raise UnsupportedError(
                "this process may not be traced", found=pid,
                hint="be its user or root; kernel.yama.ptrace_scope must be 0 or you its parent",
            )  # fmt: skip
        # An exception in the middle of a stop would leave its thread stopped for ever.
        with _handled(lambda *_: setattr(self, "_leaving", True), *_ENDS):
            self._loop()
            self._detach()
        return self._status

    def _seize(self, tid: int) -> None:
        try:
            self._ptrace(px.SEIZE, tid, 0, _OPTIONS)
            self._ptrace(px.INTERRUPT, tid)
        except OSError:
            return
        self._add(tid, None)

    def _detach(self) -> None:
        """Let every thread go as it is: each must stop once more to be let go of."""
        for tid in list(self.threads):
            with contextlib.suppress(OSError):
                self._ptrace(px.INTERRUPT, tid)
        deadline = time.monotonic() + _DETACH_S
        while self.threads and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                self._let_go(*self._wait())

    def _let_go(self, tid: int, status: int) -> None:
        self.threads.pop(tid, None)
        if not tid or not os.WIFSTOPPED(status):
            return
        number, event = os.WSTOPSIG(status), status >> 16
        deliver = 0 if event or number & px.SYSCALL_STOP else number
        with contextlib.suppress(OSError):
            self._ptrace(px.DETACH, tid, 0, deliver)

    # The loop.

    def _loop(self) -> None:
        while self.threads and not self._leaving:
            try:
                tid, status = self._wait()
            except ChildProcessError:
                break
            if tid:
                self._stopped(tid, status)
            self.watcher.idle()
        if not self._leaving:
            for process in {id(one.process): one.process for one in self.threads.values()}.values():
                self._end(process)
            self.threads.clear()

    def _wait(self) -> tuple[int, int]:
        """Return the next stop, or (0, 0) where there was none for a period."""
        patience = self.watcher.patience()
        if patience is None and not self._attached:
            return os.waitpid(-1, px.WAIT_ALL)
        tid, status = os.waitpid(-1, px.WAIT_ALL | os.WNOHANG)
        if not tid and patience != 0:
            # The signal is blocked, so that it waits for us; the limit is for the case that
            # another of our threads took it, and for interrupts.
            signal.sigtimedwait([signal.SIGCHLD], _PERIOD_S if patience is None else patience)
            tid, status = os.waitpid(-1, px.WAIT_ALL | os.WNOHANG)
        return tid, status

    def _stopped(self, tid: int, status: int) -> None:
        thread = self.threads.get(tid)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            self._ended(tid, status)
            return
        number, event = os.WSTOPSIG(status), status >> 16
        if thread is None:
            # A child may stop before its parent's event says whose it is.
            thread = self._add(tid, self._parents.pop(tid, None))
        deliver = 0
        try:
            if number == signal.SIGTRAP | px.SYSCALL_STOP or event == px.EVENT_SECCOMP:
                self._syscall(thread)
            elif event == px.EVENT_STOP:
                if number in _GROUP_STOPS:
                    self._ptrace(px.LISTEN, tid)
                    return
            elif event in (px.EVENT_FORK, px.EVENT_VFORK, px.EVENT_CLONE):
                child = self._ptrace.message(tid)
                if child not in self.threads:
                    self._parents[child] = thread.process
            elif event == px.EVENT_EXEC:
                self._exec(thread, self._ptrace.message(tid))
            elif not event:
                deliver = self.watcher.signalled(thread, number)
            self._go_on(thread, deliver)
        except ProcessLookupError:
            # Killed between its stop and our request; its end comes by itself.
            pass

    def _go_on(self, thread: TracedThread, deliver: int) -> None:
        whole = self._each_call(thread) or thread.entered is not None or thread.aside is not None
        self._ptrace(px.SYSCALL if whole else px.CONT, thread.tid, 0, deliver)

    def _syscall(self, thread: TracedThread) -> None:
        call = self._ptrace.syscall(thread.tid)
        if call is None:
            return
        thread.pointer = call.pointer
        if call.kind == 2:
            self._left(thread, call)
            return
        twice, thread.in_call = thread.in_call, self._each_call(thread)
        known = call.audit == self._machine.audit
        name = self._machine.names.get(call.number, "") if known else ""
        # Where each call stops, the filter does so once more.
        if not name or (twice and call.kind == 3):
            return
        if name in px.FILTERS:
            self._widen(thread)
            return
        if name not in px.WATCHED and self._each_call(thread):
            return
        thread.mark = self.watcher.enter(thread, name, call)
        if thread.mark is not None and not self._widen(thread):
            thread.entered, thread.began = call, time.monotonic()

    def _left(self, thread: TracedThread, call: px.Syscall) -> None:
        """Look at what a call did, or at what the installation of a filter did in its place."""
        entered, thread.entered, thread.in_call = thread.entered, None, False
        aside, thread.aside = thread.aside, None
        if aside is not None and self._widener is not None:
            self._widener.end(thread.tid, aside)
            self._widened(thread, call.value == 0)
        elif entered is not None:
            seconds = time.monotonic() - thread.began
            self.watcher.leave(thread, thread.mark, call.value, seconds)

    def _each_call(self, thread: TracedThread) -> bool:
        return self._attached or thread.process.whole

    def _widen(self, thread: TracedThread) -> bool:
        """Have a thread install the whole filter in place of its call; return whether it does.

        If not, it goes on with its call: another thread is doing it, or did, or it cannot be done.
        """
        process = thread.process
        if self._widener is None or not process.narrow or process.widening:
            return False
        thread.aside = self._widener.begin(thread.tid, process.memory.read)
        process.widening = thread.aside is not None
        if not process.widening:
            self._widened(thread, False)
        return process.widening

    def _widened(self, thread: TracedThread, done: bool) -> None:
        """Take note of a process's new filter, or stop all of its threads at each call."""
        process = thread.process
        process.filters = filters_of(thread.tid)
        process.narrow = process.widening = False
        process.whole = not done
        for tid, one in self.threads.items() if not done else ():
            if one.process is process:
                with contextlib.suppress(OSError):
                    self._ptrace(px.INTERRUPT, tid)

    # Who there is.

    def _add(self, tid: int, parent: TracedProcess | None) -> TracedThread:
        pid = process_of(tid)
        by_pid = {one.process.pid: one.process for one in self.threads.values()}
        known = by_pid.get(pid)
        if known is None:
            parent = parent or by_pid.get(parent_of(pid))
            known = TracedProcess(pid, ProcessMemory(pid))
            known.narrow = self._widener is not None
            if parent is not None:
                # It may have been forked before the filter came that its parent has by now.
                known.narrow &= parent.narrow or filters_of(tid) < parent.filters
                known.filters, known.whole = parent.filters, parent.whole
            self.watcher.born(known, parent)
        thread = self.threads[tid] = TracedThread(tid, known)
        return thread

    def _exec(self, thread: TracedThread, former: int) -> None:
        """After an exec the process has one thread, which has the process's number."""
        process = thread.process
        # What a thread was about to install, it did not if it is gone.
        process.widening = False
        for tid in [tid for tid, one in self.threads.items() if one.process is process]:
            if tid != thread.tid:
                del self.threads[tid]
        former_memory, process.memory = process.memory, ProcessMemory(process.pid)
        process.execs += 1
        thread.entered, thread.aside, thread.in_call = None, None, False
        self.watcher.became(process)
        # Only now does no thread of the watcher's read it any more.
        former_memory.close()

    def _ended(self, tid: int, status: int) -> None:
        thread = self.threads.pop(tid, None)
        self._parents.pop(tid, None)
        if thread is not None and thread.aside is not None:
            thread.process.widening = False
        if tid == self._first:
            ended = os.waitstatus_to_exitcode(status)
            self._status = ended if ended >= 0 else 128 - ended
        if thread is not None:
            process = thread.process
            if not any(one.process is process for one in self.threads.values()):
                self._end(process)

    def _end(self, process: TracedProcess) -> None:
        self.watcher.gone(process)
        process.memory.close()


@contextlib.contextmanager
def _handled(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals in a way of our own, and keep those of children waiting."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    former = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, one in zip(numbers, former, strict=True):
            signal.signal(number, one)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become(command: Sequence[str], ready: px.SyscallFilter, begin: int, said: int) -> None:
    """In the child: wait until we are followed, install the filter, and be the command."""
    try:
        os.read(begin, 1)
        os.close(begin)
        ready.install()
        # Python ignores these; a program expects the system's habit.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], list(command))
    except (OSError, ValueError) as error:
        # An empty name, or one with a zero in it, is refused by Python itself.
        os.write(said, str(error).encode())
        refused = getattr(error, "errno", None) in (errno.EINVAL, errno.ENOSYS)
        os._exit(_NO_PTRACE if refused else _EXEC_FAILED)
    finally:
        # Whatever happened, what comes behind is the parent's.
        os._exit(_EXEC_FAILED)

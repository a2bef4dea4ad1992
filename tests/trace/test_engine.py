"""The engine against small C programs: what it sees, and that they do not notice."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.trace.engine import ProgramFollower, TracedProcess, TracedThread
from baregrad.trace.memory import node_of, written_stretches
from baregrad.trace.ptrace import OPENS, Syscall
from tests.trace.programs import CALLS, compiled

ALLOC = 0xC020462B
NOT_A_TERMINAL = -25  # what a plain file answers to an ioctl


@dataclass
class Notes:
    """Writes down what is seen of calls on one file."""

    node: str
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    opens: list[str] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    born_: list[tuple[int, int | None]] = field(default_factory=list)
    became_: list[int] = field(default_factory=list)
    gone_: list[int] = field(default_factory=list)

    def enter(self, thread: TracedThread, name: str, call: Syscall) -> object | None:
        if name in OPENS:
            text = thread.process.memory.text(call.arguments[0 if name == "open" else 1])
            return ("open", text) if text == self.node else None
        if name == "ioctl" and node_of(thread.tid, call.arguments[0]) == self.node:
            self.classes.append(
                int.from_bytes(thread.process.memory.read(call.arguments[2] + 12, 4), "little")
            )
            return ("ioctl", call.arguments[1])
        return None

    def leave(self, thread: TracedThread, mark: object, value: int, seconds: float) -> None:
        assert seconds >= 0 and isinstance(mark, tuple)
        if mark[0] == "open":
            self.opens.append(mark[1])
        else:
            assert mark[1] == ALLOC
            self.calls.append(("ioctl", thread.tid, value))

    def born(self, process: TracedProcess, parent: TracedProcess | None) -> None:
        self.born_.append((process.pid, parent.pid if parent else None))

    def became(self, process: TracedProcess) -> None:
        self.became_.append(process.pid)

    def gone(self, process: TracedProcess) -> None:
        self.gone_.append(process.pid)

    def signalled(self, thread: TracedThread, number: int) -> int:
        return number

    def idle(self) -> None:
        pass

    def patience(self) -> float | None:
        return None


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "node"
    path.write_bytes(b"")
    return str(path)


def traced(program: Path, node: str, *words: str) -> tuple[int, Notes]:
    notes = Notes(node)
    try:
        status = ProgramFollower(notes).start([str(program), node, *words])
    except UnsupportedError as error:
        pytest.skip(str(error))
    return status, notes


@pytest.mark.parametrize("flags", [(), ("-static",)])
@pytest.mark.parametrize("word,status,processes", [
    ("plain", 3, 1), ("thread", 4, 1), ("fork", 7, 2), ("stop", 11, 2),
])
def test_calls_are_seen_and_statuses_kept(
    tmp_path: Path, node: str, flags: tuple[str, ...], word: str, status: int, processes: int
) -> None:
    found, notes = traced(compiled(tmp_path, CALLS, *flags), node, word)
    assert found == status
    assert notes.opens == [node]
    assert [(call, value) for call, _, value in notes.calls] == [("ioctl", NOT_A_TERMINAL)]
    assert notes.classes == [0x41]
    assert len(notes.born_) == len(notes.gone_) == processes
    first = notes.born_[0][0]
    assert [parent for _, parent in notes.born_] == [None, first][:processes]
    thread = notes.calls[0][1]
    assert (thread == first) is (word == "plain")


def test_an_exec_is_followed(tmp_path: Path, node: str) -> None:
    status, notes = traced(compiled(tmp_path), node, "exec")
    assert status == 3
    assert notes.opens == [node, node]
    assert len(notes.calls) == 2
    assert len(notes.became_) == 2
    assert len(notes.born_) == 1


def test_signals_reach_the_program(tmp_path: Path, node: str) -> None:
    status, _ = traced(compiled(tmp_path), node, "signal")
    assert status == 128 + signal.SIGTERM


def test_a_command_that_is_not_there(node: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\x7fELF and no program")
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "script").write_text("#!/there/is/none\n")
    (tmp_path / "script").chmod(0o755)
    here = os.getpid()
    for name in (node + ".nothing", node, str(tmp_path), *map(str, tmp_path.iterdir()), "", "a\0b"):
        with pytest.raises(ArgumentError, match="cannot be run"):
            ProgramFollower(Notes(node)).start([name])
    assert os.getpid() == here


def test_a_running_process_is_joined_and_left_running(tmp_path: Path, node: str) -> None:
    program = compiled(tmp_path)
    with subprocess.Popen([program, node, "wait"], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            notes = Notes(node)

            def interrupt() -> None:
                for _ in range(3000):
                    if len(notes.calls) >= 3:
                        break
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)

            stopper = threading.Thread(target=interrupt)
            stopper.start()
            try:
                ProgramFollower(notes).attach(child.pid)
            except UnsupportedError as error:
                pytest.skip(str(error))
            finally:
                stopper.join()
            assert len(notes.calls) >= 3
            assert child.poll() is None
            state = Path(f"/proc/{child.pid}/status").read_text()
            assert "TracerPid:\t0" in state
            assert "State:\tT" not in state and "State:\tt" not in state
        finally:
            child.kill()


def test_a_process_that_is_stopped_is_left_so(tmp_path: Path, node: str) -> None:
    def state() -> str:
        text = Path(f"/proc/{child.pid}/status").read_text()
        return next(row.split()[1] for row in text.splitlines() if row.startswith("State:"))

    def wait_for(*states: str) -> None:
        for _ in range(3000):
            if state() in states:
                return
            time.sleep(0.01)
        raise AssertionError(f"its state is {state()}, not {states}")

    with subprocess.Popen([compiled(tmp_path), node, "wait"], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGSTOP)
            wait_for("T")

            def interrupt() -> None:
                wait_for("t")
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGINT)

            stopper = threading.Thread(target=interrupt)
            stopper.start()
            notes = Notes(node)
            try:
                ProgramFollower(notes).attach(child.pid)
            except UnsupportedError as error:
                pytest.skip(str(error))
            finally:
                stopper.join()
            assert not notes.calls
            wait_for("T")
            child.send_signal(signal.SIGCONT)
            wait_for("S", "R")
        finally:
            child.kill()


def test_no_such_process(node: str) -> None:
    with pytest.raises(ArgumentError, match="no such process"):
        ProgramFollower(Notes(node)).attach(2**22 + 1)


@pytest.mark.parametrize("times,status", [(1, 12), (2, 128 + signal.SIGKILL)])
def test_what_ends_the_tracer_is_passed_on(tmp_path: Path, times: int, status: int) -> None:
    """The program ends by its own habit; one that does not is killed by a second signal."""
    ready = tmp_path / "ready"
    traps = "trap 'exit 12' TERM" if times == 1 else "trap '' TERM"
    script = f"{traps}; : > {ready}; while :; do sleep 0.05; done"

    def end() -> None:
        for _ in range(3000):
            if ready.exists():
                break
            time.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)

    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ender = threading.Thread(target=end, daemon=True)
    ender.start()
    try:
        assert ProgramFollower(Notes("")).start(["sh", "-c", script]) == status
    except UnsupportedError as error:
        pytest.skip(str(error))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ender.join()
        signal.signal(signal.SIGTERM, former)


def test_memory_that_is_there_is_found_by_its_pages() -> None:
    size = mmap.PAGESIZE
    with mmap.mmap(-1, 64 * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as whole:
        held = ctypes.c_char.from_buffer(whole)
        begin = ctypes.addressof(held)
        del held
        for page in (3, 4, 6, 20):
            whole[page * size] = 1
        found = [row for row in written_stretches(os.getpid())
                 if begin < row[1] and row[0] < begin + 64 * size]  # fmt: skip
        # Over a few pages that are not there it goes on; its neighbours may join it.
        assert any(one <= begin + 3 * size and begin + 7 * size <= two for one, two in found)
        assert any(one == begin + 20 * size and two == one + size for one, two in found)
        assert not any(one <= begin + 12 * size < two for one, two in found)
    assert written_stretches(2**22 + 1) == []

"""Stores to a page that is closed: each is seen, and each is done."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from baregrad.base.errors import UnsupportedError
from baregrad.trace.engine import ProgramFollower, TracedProcess, TracedThread
from baregrad.trace.exact import DoorbellTrap
from baregrad.trace.ptrace import Syscall
from tests.trace.programs import compiled

PROGRAM = r"""
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned *page;
static void *ring(void *count) {
    for (long turn = 0; turn < (long)count; turn++) page[0x90 / 4] += 1;
    return 0;
}
static void fault(int number) { _exit(50); }

int main(int count, char **words) {
    int node = open(words[1], O_RDWR), status;
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, node, 0);
    ring((void *)5);
    pthread_t thread;
    pthread_create(&thread, 0, ring, (void *)3);
    pthread_join(thread, 0);
    int pid = fork();
    if (!pid) { ring((void *)2); _exit(0); }
    waitpid(pid, &status, 0);
    if (status) return 90;
    if (page[0x90 / 4] != 10) return 91;
    /* A fault of the program's own stays its own. */
    signal(SIGSEGV, fault);
    *(volatile int *)8 = 1;
    return 92;
}
"""


@dataclass
class Closing:
    """Closes each shared mapping of a file."""

    trap: DoorbellTrap
    processes: list[int] = field(default_factory=list)

    def enter(self, thread: TracedThread, name: str, call: Syscall) -> object | None:
        return call.arguments[1] if name == "mmap" else None

    def leave(self, thread: TracedThread, mark: object, value: int, seconds: float) -> None:
        assert isinstance(mark, int)
        self.trap.arm(thread, value, mark, thread.pointer)

    def born(self, process: TracedProcess, parent: TracedProcess | None) -> None:
        self.processes.append(process.pid)
        if parent is not None:
            self.trap.inherit(process.pid, parent.pid)

    def became(self, process: TracedProcess) -> None:
        self.trap.forget(process.pid)

    def gone(self, process: TracedProcess) -> None:
        pass

    def signalled(self, thread: TracedThread, number: int) -> int:
        return 0 if number == 11 and self.trap.caught(thread) else number

    def idle(self) -> None:
        pass

    def patience(self) -> float | None:
        return None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86-64")
def test_no_store_is_missed_and_none_is_lost(tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.write_bytes(bytes(4096))
    told: list[int] = []
    watch = Closing(DoorbellTrap(told.append))
    try:
        status = ProgramFollower(watch).start([str(compiled(tmp_path, PROGRAM)), str(node)])
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert status == 50
    assert int.from_bytes(node.read_bytes()[0x90:0x94], "little") == 10
    # Each increment stores once (as one instruction or a load and a store), and one load checks.
    assert watch.trap.stores in (11, 21)
    assert len(told) == 2 * watch.trap.stores
    assert set(told) == set(watch.processes)

"""Programs that are hard to trace: what is seen of them, and that they do not notice."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.runtime.nvidia.abi.vendor import load_tables
from baregrad.trace.calls import RawCall
from baregrad.trace.engine import ProgramFollower, TracedProcess
from baregrad.trace.memory import Read
from baregrad.trace.watch import DriverWatch
from baregrad.trace.widening import FilterWidener, SetAside
from tests.trace.programs import compiled
from tests.trace.test_engine import Notes, traced

PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char **words;
static void call(void) {
    unsigned argument[8] = {0};
    int node = open(words[1], O_RDWR);
    argument[3] = 0x41;
    ioctl(node, 0xC020462B, argument);
    close(node);
}
/* A filter that kills who installs another one. */
static void forbid(void) {
    struct sock_filter rows[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rows / sizeof *rows, rows};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) exit(90);
}
static void *late(void *unused) {
    usleep(50000);
    call();
    exit(5);
}
static void *become(void *unused) {
    call();
    execl(words[0], words[0], words[1], "call", (char *)0);
    exit(91);
}
/* Forks once a file is there; the child comes to the driver a moment later. */
static void *forks(void *unused) {
    int status, pid;
    while (access(words[3], F_OK)) usleep(1000);
    pid = fork();
    if (!pid) { usleep(100000); call(); _exit(0); }
    waitpid(pid, &status, 0);
    return 0;
}
static volatile int ready;
static void *beside(void *path) {
    ready = 1;
    for (int turn = 0; turn < 400; turn++) { int fd = open("/dev/null", O_RDONLY); close(fd); }
    call();
    return 0;
}
static volatile long told;
static void handler(int number, siginfo_t *info, void *unused) {
    if (info->si_code == SI_QUEUE && info->si_pid == getpid()) told = info->si_value.sival_int;
}

int main(int count, char **all) {
    words = all;
    const char *word = all[2];
    if (!strcmp(word, "call")) { call(); return 3; }
    if (!strcmp(word, "filter")) { forbid(); call(); return 4; }
    if (!strcmp(word, "nobody")) {
        if (setgid(65534) || setuid(65534)) return 92;
        call();
        call();
        return 6;
    }
    if (!strcmp(word, "leader")) {
        pthread_t thread;
        pthread_create(&thread, 0, late, 0);
        pthread_exit(0);
    }
    if (!strcmp(word, "become")) {
        pthread_t thread;
        pthread_create(&thread, 0, become, 0);
        pthread_join(thread, 0);
        return 93;
    }
    if (!strcmp(word, "beside")) {
        pthread_t threads[6];
        for (int at = 0; at < 6; at++) pthread_create(&threads[at], 0, beside, 0);
        for (int at = 0; at < 6; at++) pthread_join(threads[at], 0);
        return 7;
    }
    if (!strcmp(word, "vfork")) {
        int status, pid = vfork();
        if (!pid) { execl(all[0], all[0], all[1], "call", (char *)0); _exit(94); }
        waitpid(pid, &status, 0);
        call();
        return WEXITSTATUS(status) + 5;
    }
    if (!strcmp(word, "many")) {
        for (int turn = 0; turn < 200; turn++) {
            int status, pid = fork();
            if (!pid) { if (turn % 20 == 0) call(); _exit(turn % 7); }
            waitpid(pid, &status, 0);
            if (WEXITSTATUS(status) != turn % 7) return 95;
        }
        return 9;
    }
    if (!strcmp(word, "queue")) {
        struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
        union sigval value = {.sival_int = 4711};
        sigaction(SIGUSR2, &action, 0);
        call();
        sigqueue(getpid(), SIGUSR2, value);
        call();
        return told == 4711 ? 10 : 96;
    }
    if (!strcmp(word, "killed")) {
        for (int turn = 0; turn < 20; turn++) {
            int status, pid = fork();
            if (!pid) for (;;) call();
            usleep(1000 * turn);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) return 97;
        }
        return 12;
    }
    if (!strcmp(word, "forks")) {
        pthread_t thread;
        pthread_create(&thread, 0, forks, 0);
        usleep(50000);
        call();
        pthread_join(thread, 0);
        return 13;
    }
    if (!strcmp(word, "copies")) {
        char number[16];
        int node = open(words[1], O_RDWR);
        sprintf(number, "%d", dup(node));
        close(node);
        execl(all[0], all[0], all[1], "closes", number, (char *)0);
    }
    if (!strcmp(word, "closes")) { close(atoi(words[3])); return 14; }
    if (!strcmp(word, "has")) {
        int node = open(words[1], O_RDWR);
        void *there = mmap(0, 4096, PROT_READ, MAP_SHARED, node, 0);
        puts("ready");
        fflush(stdout);
        getchar();
        munmap(there, 4096);
        close(node);
        return 15;
    }
    if (!strcmp(word, "reads")) {
        /* A stack that cannot be written. */
        long node, flags = MAP_SHARED | MAP_ANONYMOUS;
        char *there = mmap(0, 8192, PROT_READ, flags, -1, 0);
#ifdef __x86_64__
        __asm__ volatile("mov %%rsp, %%rbx\n mov %1, %%rsp\n syscall\n mov %%rbx, %%rsp"
                         : "=a"(node)
                         : "r"(there + 4096), "a"(SYS_open), "D"(words[1]), "S"(O_RDWR + 0L)
                         : "rbx", "rcx", "r11", "memory");
#else
        node = open(words[1], O_RDWR);
#endif
        ioctl(node, 0xC020462B, there);
        return 16;
    }
    if (!strcmp(word, "wait")) { puts("ready"); fflush(stdout); sleep(60); }
    return 98;
}
"""
GIVEN_UP = 60.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("hard"), PROGRAM)


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "node"
    path.write_bytes(b"")
    path.chmod(0o666)
    # Whoever the program becomes must get there.
    for folder in path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path(folder.root):
            folder.chmod(folder.stat().st_mode | 0o011)
    return str(path)


@pytest.mark.parametrize("word,status,calls,execs,processes", [
    ("call", 3, 1, 1, 1),
    pytest.param("filter", 4, 1, 1, 1, id="its own filter forbids another"),
    pytest.param("nobody", 6, 2, 1, 1, id="it may install none any more"),
    pytest.param("leader", 5, 1, 1, 1, id="the first thread ends first"),
    pytest.param("become", 3, 2, 2, 1, id="another thread becomes a program"),
    ("beside", 7, 6, 1, 1),
    ("vfork", 8, 2, 2, 2),
    pytest.param("many", 9, 10, 1, 201, id="many that live shortly"),
    pytest.param("reads", 16, 1, 1, 1, id="a stack that cannot be written"),
    pytest.param("queue", 10, 2, 1, 1, id="a signal comes with its value"),
])  # fmt: skip
def test_what_is_seen(
    program: Path, node: str, word: str, status: int, calls: int, execs: int, processes: int
) -> None:
    if word == "nobody" and os.getuid():
        pytest.skip("only root becomes somebody else")
    found, notes = traced(program, node, word)
    assert found == status
    assert len(notes.opens) == len(notes.calls) == calls
    assert len(notes.became_) == execs
    assert len(notes.born_) == len(notes.gone_) == processes
    assert sum(parent is None for _, parent in notes.born_) == 1


@dataclass
class _Joined(DriverWatch):
    """Has a process go on once it is followed."""

    child: subprocess.Popen[bytes] | None = None

    def born(self, process: TracedProcess, parent: TracedProcess | None) -> None:
        super().born(process, parent)
        if self.child is not None and self.child.stdin is not None:
            self.child.stdin.close()


def _watched(program: Path, node: str, *words: str) -> list[str]:
    """Return the names of the calls that are said to be the driver's."""
    calls: list[RawCall] = []
    watch = _Joined(load_tables("580.159.04"), calls.append, {node: "/dev/nvidiactl"})
    follower = ProgramFollower(watch)
    try:
        if words[0] != "has":
            assert follower.start([str(program), node, *words]) in (13, 14)
        else:
            with subprocess.Popen([program, node, *words], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE) as watch.child:  # fmt: skip
                assert watch.child.stdout is not None
                watch.child.stdout.readline()
                assert follower.attach(watch.child.pid) == 15
    except UnsupportedError as error:
        pytest.skip(str(error))
    while watch.finish_some(1.0):
        pass
    return [one.call for one in calls]


def test_descriptors_and_mappings_that_came_by_no_open(program: Path, node: str) -> None:
    """Copies, those that a program inherits, and those that a process had before."""
    Path(node).write_bytes(bytes(4096))
    assert _watched(program, node, "copies", "0") == ["open", "close", "close"]
    assert _watched(program, node, "has") == ["munmap", "close"]


def test_a_fork_while_the_filter_is_replaced(
    program: Path, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has the former filter, though its parent is the first to be heard of again."""
    begin, mark = FilterWidener.begin, tmp_path / "mark"

    def late(self: FilterWidener, tid: int, read: Read) -> SetAside | None:
        mark.touch()
        time.sleep(0.05)
        return begin(self, tid, read)

    monkeypatch.setattr(FilterWidener, "begin", late)
    # Both stop before we look.
    monkeypatch.setattr(DriverWatch, "idle", lambda _: time.sleep(0.01))
    calls = _watched(program, node, "forks", str(mark))
    assert sorted(calls) == ["close", "close", "ioctl", "ioctl", "open", "open"]


def test_children_are_killed_in_the_middle_of_calls(program: Path, node: str) -> None:
    found, notes = traced(program, node, "killed")
    assert found == 12
    # One may have been killed before it was there to be seen.
    assert 15 < len(notes.born_) == len(notes.gone_) <= 21


def test_what_is_traced_ends_with_the_tracer(program: Path, node: str) -> None:
    text = (
        "import sys\n"
        "from tests.trace.test_engine import Notes\n"
        "from baregrad.trace.engine import ProgramFollower\n"
        "ProgramFollower(Notes(sys.argv[2])).start(sys.argv[1:])\n"
    )
    words = [sys.executable, "-c", text, str(program), node, "wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        if not tracer.stdout.readline():
            pytest.skip("nothing may be traced here")
        tracer.kill()
        # The program holds the other end of the pipe as long as it lives.
        began = time.monotonic()
        assert tracer.stdout.read() == b""
        assert time.monotonic() - began < GIVEN_UP / 2


def test_a_process_that_somebody_traces_already(program: Path, node: str) -> None:
    with subprocess.Popen([program, node, "wait"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        text = (
            "import sys, time\n"
            "from baregrad.trace import ptrace\n"
            "ptrace.Ptrace()(ptrace.SEIZE, int(sys.argv[1]))\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)\n"
        )
        words = [sys.executable, "-c", text, str(child.pid)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None
                if not other.stdout.readline():
                    pytest.skip("nothing may be traced here")
                with pytest.raises(UnsupportedError, match=f"is traced by process {other.pid}"):
                    ProgramFollower(Notes(node)).attach(child.pid)
            finally:
                other.kill()
                child.kill()


def test_processes_that_end_as_they_are_joined(program: Path, node: str) -> None:
    """Whatever comes first, it is an answer or an error by name, and nothing hangs."""
    joined = refused = 0
    for turn in range(12):
        with subprocess.Popen([program, node, "call"]) as child:
            time.sleep(0.0002 * turn)
            try:
                ProgramFollower(Notes(node)).attach(child.pid)
                joined += 1
            except (ArgumentError, UnsupportedError):
                refused += 1
    assert joined + refused == 12


# A 32-bit program of 84 bytes: `mov eax, 1; mov ebx, 5; int 0x80`, which is exit(5).
SMALL = (
    b"\x7fELF\x01\x01\x01" + bytes(9) + bytes.fromhex(
        "02000300010000005480040834000000000000000000000034002000010000000000000001000000"
        "00000000008004080080040860000000600000000500000000100000b801000000bb05000000cd80"
    )
)  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit programs of x86 alone")
def test_a_program_of_another_width_is_said(tmp_path: Path) -> None:
    program = tmp_path / "small"
    program.write_bytes(SMALL)
    program.chmod(0o755)
    try:
        if subprocess.run([program], check=False).returncode != 5:
            pytest.skip("this kernel runs no 32-bit programs")
    except OSError as error:
        pytest.skip(f"this kernel runs no 32-bit programs: {error}")
    words = [sys.executable, "-m", "baregrad", "trace", "--", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=GIVEN_UP)
    assert done.returncode == 5
    assert f"{program} is a 32-bit program, whose calls are not seen" in done.stderr


def test_signals_that_end_a_program_are_its_status(program: Path, node: str) -> None:
    words = [sys.executable, "-m", "baregrad", "trace", "-o", os.devnull, "--", str(program), node,
             "wait"]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        if not tracer.stdout.readline():
            pytest.skip("nothing may be traced here")
        tracer.send_signal(signal.SIGTERM)
        assert tracer.wait(GIVEN_UP) == 128 + signal.SIGTERM

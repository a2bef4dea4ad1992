"""Small C programs for the tracer to follow, compiled when a test asks for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CALLS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int node;
static void *call(void *unused) {
    unsigned argument[8] = {0};
    argument[3] = 0x41;
    ioctl(node, 0xC020462B, argument);
    return unused;
}
static volatile int caught;
static void handler(int number) { caught = number; }

int main(int count, char **words) {
    if (count < 3) return 99;
    node = open(words[1], O_RDWR);
    if (node < 0) return 98;
    if (!strcmp(words[2], "plain")) {
        call(0);
        return 3;
    }
    if (!strcmp(words[2], "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, call, 0);
        pthread_join(thread, 0);
        return 4;
    }
    if (!strcmp(words[2], "fork")) {
        int status, pid = fork();
        if (!pid) { call(0); _exit(7); }
        waitpid(pid, &status, 0);
        return WEXITSTATUS(status);
    }
    if (!strcmp(words[2], "exec")) {
        call(0);
        execl(words[0], words[0], words[1], "plain", (char *)0);
        return 97;
    }
    if (!strcmp(words[2], "signal")) {
        signal(SIGUSR1, handler);
        raise(SIGUSR1);
        if (caught != SIGUSR1) return 96;
        raise(SIGTERM);
        return 95;
    }
    if (!strcmp(words[2], "stop")) {
        /* A child that stops itself must look stopped, and go on when told. */
        int status, pid = fork();
        if (!pid) { raise(SIGSTOP); call(0); _exit(11); }
        waitpid(pid, &status, WUNTRACED);
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) return 94;
        kill(pid, SIGCONT);
        waitpid(pid, &status, 0);
        return WEXITSTATUS(status);
    }
    if (!strcmp(words[2], "wait")) {
        puts("ready");
        fflush(stdout);
        for (int turn = 0; turn < 600; turn++) { call(0); usleep(10000); }
        return 0;
    }
    return 93;
}
"""


def compiled(folder: Path, text: str = CALLS, *flags: str) -> Path:
    """Return the program of a text; skips where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, binary = folder / "program.c", folder / "program"
    source.write_text(text)
    command = [compiler, "-w", "-O1", "-pthread", *flags, "-o", str(binary), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "-static" in flags:
        pytest.skip("no static C library here")
    assert done.returncode == 0, done.stderr
    return binary

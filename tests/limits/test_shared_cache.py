"""The folder of compiled kernels, end to end: shared, damaged, full, read-only, killed."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from tests.limits.harness import REPORT, STEP, finish, run, start

# The disk is full: whatever writes a file of the cache is told so.
FULL_DISK = textwrap.dedent("""
    import errno, os

    def refuse(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    import baregrad.assemble.cache as cache
    os.write, write = refuse, os.write
""")
# The file system is read-only, for root too.
READ_ONLY = textwrap.dedent("""
    import errno, os

    def refuse(path, *rest, **named):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    os.mkdir = refuse
""")
# Stops for good in the middle of writing its third entry, so that the test can kill it there.
STOPS = textwrap.dedent("""
    import os, time

    written = 0
    write = os.write

    def slow(descriptor, data):
        global written
        written += 1
        if written == 3:
            write(descriptor, bytes(data[: len(data) // 2]))
            print("midway", flush=True)
            time.sleep(600)
        return write(descriptor, data)

    os.write = slow
""")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program prints when nothing disturbs it."""
    return run(STEP, tmp_path_factory.mktemp("undisturbed"))[0][0]


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and path.parent.name != "tmp"]


def test_a_second_process_compiles_nothing(answer: str, tmp_path: Path) -> None:
    first, _ = run(STEP + REPORT, tmp_path)
    second, _ = run(STEP + REPORT, tmp_path)
    assert first[0] == second[0] == answer
    count = int(first[1].split()[1])
    assert count > 2
    assert second[1] == f"compiled 0 loaded {count}"
    assert second[2] == "llvmlite False"


def test_two_processes_compile_the_same_at_once(answer: str, tmp_path: Path) -> None:
    both = [start(STEP + REPORT, tmp_path) for _ in range(2)]
    for process in both:
        lines, errors = finish(process)
        assert lines[0] == answer
        assert errors == ""
    assert run(STEP + REPORT, tmp_path)[0][1].startswith("compiled 0 ")
    assert not list((tmp_path / "tmp").iterdir())


def test_a_process_killed_while_it_writes_does_no_harm(answer: str, tmp_path: Path) -> None:
    victim = start(STOPS + STEP, tmp_path)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "midway\n"
    beside = start(STEP, tmp_path)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    lines, errors = finish(beside)
    assert (lines, errors) == ([answer], "")
    assert len(list((tmp_path / "tmp").iterdir())) == 1, "the half-written entry"
    after, _ = run(STEP + REPORT, tmp_path)
    assert after[0] == answer
    assert after[1].startswith("compiled 0 ")


def test_a_full_disk_costs_a_warning_and_time(answer: str, tmp_path: Path) -> None:
    lines, errors = run(FULL_DISK + STEP + "os.write = write\n" + REPORT, tmp_path)
    assert lines[0] == answer
    assert int(lines[1].split()[1]) > 2
    assert errors.count("RuntimeWarning") == 1
    assert "No space left on device" in errors
    assert "BAREGRAD_CACHE_DIR" in errors
    assert entries(tmp_path) == []


def test_a_read_only_file_system_costs_a_warning_and_time(answer: str, tmp_path: Path) -> None:
    lines, errors = run(READ_ONLY + STEP, tmp_path)
    assert lines == [answer]
    assert errors.count("RuntimeWarning") == 1
    assert "Read-only file system" in errors
    assert entries(tmp_path) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_costs_a_warning_and_time(answer: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        lines, errors = run(STEP, tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert lines == [answer]
    assert errors.count("RuntimeWarning") == 1


def test_a_folder_that_is_a_file_costs_a_warning_and_time(answer: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    lines, errors = run(STEP, tmp_path / "cache")
    assert lines == [answer]
    assert errors.count("RuntimeWarning") == 1


def test_a_full_read_only_cache_is_still_read(answer: str, tmp_path: Path) -> None:
    run(STEP, tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        lines, errors = run(STEP + REPORT, tmp_path)
    finally:
        for path in (tmp_path, *tmp_path.rglob("*")):
            path.chmod(0o700)
    assert lines[0] == answer
    assert lines[1].startswith("compiled 0 ")
    assert errors == ""


def test_damaged_entries_are_compiled_anew(answer: str, tmp_path: Path) -> None:
    run(STEP, tmp_path)
    for number, path in enumerate(sorted(entries(tmp_path))):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if number % 2 else data[:-1] + b"?")
    lines, errors = run(STEP + REPORT, tmp_path)
    assert lines[0] == answer
    assert int(lines[1].split()[1]) > 2
    assert errors == ""
    assert run(STEP + REPORT, tmp_path)[0][1].startswith("compiled 0 ")

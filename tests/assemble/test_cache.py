"""The disk cache under everything that can go wrong with a disk or a process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from baregrad.assemble import cache as module
from baregrad.assemble import default_cache
from baregrad.assemble.cache import DiskCache, key_of, source_fingerprint
from baregrad.base.options import options

KEY = key_of("a key")
ROOMS = ("room", "beside.py")


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def run_python(text: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE)


def test_keys_tell_parts_apart() -> None:
    assert key_of("ab", "c") != key_of("a", "bc") != key_of("abc")
    assert key_of("ab", "c") == key_of(b"ab", "c")
    assert len(key_of("x")) == 64


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"payload")
    assert cache.get(KEY) == b"payload"
    assert DiskCache(tmp_path / "c").get(KEY) == b"payload"
    assert (cache.hits, cache.misses, cache.failed_writes) == (1, 1, 0)


def test_building_happens_once(tmp_path: Path) -> None:
    built: list[int] = []

    def build() -> bytes:
        built.append(1)
        return b"made"

    cache = DiskCache(tmp_path)
    assert cache.get_or_build(KEY, build) == cache.get_or_build(KEY, build) == b"made"
    assert len(built) == 1


def test_the_folder_is_the_user_s_own(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    cache.put(KEY, b"x")
    for path in (tmp_path / "c").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "a header alone": lambda data: data[:48],
    "truncated": lambda data: data[:-1],
    "extended": lambda data: data + b"\0",
    "a flipped payload bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a flipped checksum bit": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "another file": lambda data: b"\x7fELF" * 50,
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_a_corrupted_entry_is_built_again(tmp_path: Path, what: str) -> None:
    cache = DiskCache(tmp_path)
    cache.put(KEY, b"payload")
    (path,) = entries(tmp_path)
    path.write_bytes(CORRUPTIONS[what](path.read_bytes()))
    assert cache.get(KEY) is None
    assert not path.exists()
    assert cache.get_or_build(KEY, lambda: b"payload") == b"payload"
    assert cache.get(KEY) == b"payload"


def test_a_full_disk_costs_a_warning_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path)
    genuine = os.write

    def full(descriptor: int, data: bytes) -> int:
        # A short write first, as file systems do.
        if len(data) > 10:
            return genuine(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert cache.get_or_build(KEY, lambda: b"made") == b"made"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get_or_build(key_of("other"), lambda: b"more") == b"more"
    assert cache.failed_writes == 2
    assert entries(tmp_path) == []
    monkeypatch.undo()
    assert cache.put(KEY, b"made")
    assert cache.get(KEY) == b"made"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: genuine(fd, data[:7]))
    cache = DiskCache(tmp_path)
    assert cache.put(KEY, b"p" * 1000)
    assert cache.get(KEY) == b"p" * 1000


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path) -> None:
    # A file where the folder should be: it stops even the superuser.
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be written") as caught:
        assert cache.get_or_build(KEY, lambda: b"made") == b"made"
        assert cache.get_or_build(KEY, lambda: b"made") == b"made"
    assert len(caught) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_read(tmp_path: Path) -> None:
    DiskCache(tmp_path).put(KEY, b"old")
    tmp_path.chmod(0o500)
    (tmp_path / KEY[:2]).chmod(0o500)
    try:
        _check_read_only(tmp_path)
    finally:
        tmp_path.chmod(0o700)
        (tmp_path / KEY[:2]).chmod(0o700)


def test_a_read_only_file_system_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for those whom permissions do not stop."""
    DiskCache(tmp_path).put(KEY, b"old")
    genuine = os.open

    def locked(path: str, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system")
        return genuine(path, flags, *rest)

    monkeypatch.setattr(os, "open", locked)
    _check_read_only(tmp_path)


def _check_read_only(folder: Path) -> None:
    cache = DiskCache(folder)
    assert cache.get(KEY) == b"old"
    with pytest.warns(RuntimeWarning, match="cannot be written") as caught:
        assert cache.get_or_build(key_of("1"), lambda: b"new") == b"new"
        assert cache.get_or_build(key_of("2"), lambda: b"new") == b"new"
    assert len(caught) == 1


def test_a_folder_open_to_all_is_not_trusted(tmp_path: Path) -> None:
    DiskCache(tmp_path).put(KEY, b"planted")
    tmp_path.chmod(0o777)
    cache = DiskCache(tmp_path)
    with pytest.warns(RuntimeWarning, match="open to every user"):
        assert cache.get_or_build(KEY, lambda: b"built") == b"built"


HAMMER = """
import sys
from pathlib import Path
from baregrad.assemble.cache import DiskCache, key_of
cache = DiskCache(Path(sys.argv[1]))
for turn in range(400):
    index = turn % 20
    payload = bytes([index]) * (100_000 + index)
    if turn % 3 == 0:
        assert cache.put(key_of(str(index)), payload)
    found = cache.get(key_of(str(index)))
    assert found is None or found == payload, "half an entry was seen"
print("fine")
"""


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    runs = [run_python(HAMMER, str(tmp_path)) for _ in range(2)]
    for run in runs:
        output, _ = run.communicate(timeout=600)
        assert run.returncode == 0
        assert output == b"fine\n"
    assert [path for path in entries(tmp_path) if path.parent.name == "tmp"] == []


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    results: list[bool] = []

    def work() -> None:
        for index in range(50):
            payload = bytes([index]) * 5000
            results.append(cache.get_or_build(key_of(str(index)), lambda p=payload: p) == payload)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 200


VICTIM = """
import os, sys, time
from pathlib import Path
from baregrad.assemble.cache import DiskCache
write = os.write
def slow(descriptor, data):
    done = write(descriptor, data[:1000])
    print("writing", flush=True)
    time.sleep(600)
    return done
os.write = slow
DiskCache(Path(sys.argv[1])).put(sys.argv[2], b"p" * 100_000)
"""


def test_a_process_killed_while_writing_leaves_no_entry_and_its_litter_is_swept(
    tmp_path: Path,
) -> None:
    run = run_python(VICTIM, str(tmp_path), KEY)
    assert run.stdout is not None
    assert run.stdout.readline() == b"writing\n"
    run.send_signal(signal.SIGKILL)
    run.wait(timeout=600)
    run.stdout.close()
    (litter,) = entries(tmp_path)
    assert litter.parent.name == "tmp"
    young = DiskCache(tmp_path)
    assert young.get(KEY) is None
    assert young.put(KEY, b"made")
    assert litter.exists(), "another machine's process may still be writing"
    assert DiskCache(tmp_path, litter_age_s=0).put(key_of("other"), b"x")
    assert not litter.exists()
    assert young.get(KEY) == b"made"


def test_the_file_of_a_living_process_is_not_litter_before_an_hour(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    mine = folder / f"{os.getpid()}.9.abc"
    mine.write_bytes(b"x")
    DiskCache(tmp_path, litter_age_s=0).put(KEY, b"x")
    assert mine.exists()
    old = time.time() - 4000
    os.utime(mine, (old, old))
    DiskCache(tmp_path, litter_age_s=0).put(KEY, b"x")
    assert not mine.exists()


def test_the_folder_does_not_grow_without_bound(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    keys = [KEY[:2] + key_of(str(index))[2:] for index in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, b"p" * 1000)
        moment = time.time() - 100 + age
        os.utime(tmp_path / key[:2] / key[2:], (moment, moment))
    newest = KEY[:2] + "f" * 62
    DiskCache(tmp_path, max_nbytes=256 * 3500).put(newest, b"p" * 1000)
    kept = [key for key in (*keys, newest) if cache.get(key) is not None]
    assert kept == [keys[8], keys[9], newest]


def test_the_options_choose_the_cache(tmp_path: Path) -> None:
    with options.override(cache=False):
        assert default_cache() is None
    with options.override(cache_dir=tmp_path):
        cache = default_cache()
        assert cache is not None
        assert cache.folder == tmp_path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("room/one.py", "room/below/two.py", "beside.py", "other/three.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    return tmp_path


def test_every_text_of_the_rooms_counts_and_no_other(package: Path) -> None:
    whole = source_fingerprint(ROOMS)
    for name in ("room/one.py", "room/below/two.py", "beside.py", "other/three.py"):
        (package / name).write_text("changed")
        assert (source_fingerprint(ROOMS) == whole) == name.startswith("other")
        (package / name).write_text(name)
    assert source_fingerprint(ROOMS) == whole
    (package / "room/below").rename(package / "room/beneath")
    assert source_fingerprint(ROOMS) != whole


def test_text_that_was_changed_under_a_process_is_nobody_elses(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a process runs the old code, and would keep what it makes as the new code's."""
    told = set()
    for loaded_ns in (1, 2, 1 << 62):
        monkeypatch.setattr(module, "LOADED_NS", loaded_ns)
        told.add(source_fingerprint(ROOMS))
        assert source_fingerprint(ROOMS) in told
    assert len(told) == 3


@pytest.mark.slow  # an interpreter that imports everything from an archive
def test_a_package_in_an_archive_computes_without_a_cache(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in module.PACKAGE.rglob("*.py"):
            file.write(path, Path("baregrad", path.relative_to(module.PACKAGE)).as_posix())
    code = "from baregrad import Tensor; print((Tensor([1.0, 2.0]) + 1).tolist())"
    found = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {code}"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert found.stdout.strip() == "[2.0, 3.0]", found.stderr
    assert "no folder of Python's text" in found.stderr

"""A content-addressed folder of compiled kernels, shared by processes, safe when they die.

An entry is a file named by the hash of everything that it was made from, so it is never out of
date and never changed. It is written under a name of its own and then renamed, so a reader sees
all of it or nothing; it carries a checksum, so a damaged one is dropped and built again. The
cache is a help, never a need: a full disk, a read-only folder or a broken file system cost a
warning and the time of compiling, nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import struct
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

_MAGIC = b"BGCACHE\x01"
_HEADER = struct.Struct("<8sQ32s")
_SHARDS = 256
_DAY_S = 86400.0
PACKAGE = Path(__file__).resolve().parent.parent
# What of the package is changed later may not be what this process runs.
LOADED_NS = time.time_ns()
# Times of files may lie behind other clocks by a few milliseconds.
_TICK_NS = 10_000_000


def key_of(*parts: bytes | str) -> str:
    """Return the key of what is made from `parts`: 64 hexadecimal digits.

    Parts are hashed with their lengths, so ("ab", "c") and ("a", "bc") differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.hexdigest()


def is_text_there() -> bool:
    """Whether the package lies in a folder as text: not in an archive, nor compiled alone."""
    return (PACKAGE / "dtypes.py").is_file()


def source_fingerprint(rooms: Sequence[str]) -> str:
    """A hash of the text of rooms and files of the package, for keys of what they make.

    Where some of it was changed since this process came, the text may not be what runs here: the
    hash is of this process alone then, and no other one has it.
    """
    files: list[Path] = []
    for room in rooms:
        path = PACKAGE / room
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    if max(file.stat().st_ctime_ns for file in files) < LOADED_NS - _TICK_NS:
        return _text_as_loaded(tuple(files))
    return key_of(_hash_of(files), f"{os.getpid()} {LOADED_NS}")


def _hash_of(files: Iterable[Path]) -> str:
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(file.relative_to(PACKAGE).as_posix().encode())
        hasher.update(file.read_bytes())
    return hasher.hexdigest()


# Text that is as it was when it was loaded need not be read again.
_text_as_loaded = lru_cache(maxsize=8)(_hash_of)


class DiskCache:
    """A folder of entries, each found by the key of what it was made from.

    `max_nbytes` bounds the folder (roughly: it is enforced on each of its 256 parts when a process
    first writes there, the oldest entries going first). Nothing here raises OSError. `hits`,
    `misses` and `failed_writes` count. Several threads and processes may use one folder.
    """

    def __init__(
        self, folder: Path, *, max_nbytes: int = 1 << 30, litter_age_s: float = 60.0
    ) -> None:
        self.folder = Path(folder)
        self.max_nbytes = max_nbytes
        self.litter_age_s = litter_age_s
        self.hits = 0
        self.misses = 0
        self.failed_writes = 0
        self._usable: bool | None = None
        self._swept: set[str] = set()
        self._warned = False
        self._serial = itertools.count()

    def get(self, key: str) -> bytes | None:
        """Return the entry of `key`, or None where there is none that is whole."""
        if not self._trusted():
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = file.read()
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
        except OSError:
            self.misses += 1
            return None
        payload = _unpack(data)
        if payload is None:
            self.misses += 1
            _remove(path)
            return None
        self.hits += 1
        if age_s > _DAY_S:
            _touch(path)
        return payload

    def put(self, key: str, payload: bytes) -> bool:
        """Store `payload` under `key`; return whether that worked."""
        if not self._trusted():
            return False
        path = self._path(key)
        temporary = self.folder / "tmp" / f"{os.getpid()}.{next(self._serial)}.{key[:16]}"
        try:
            temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write(temporary, _pack(payload))
            temporary.replace(path)
        except OSError as error:
            _remove(temporary)
            self.failed_writes += 1
            self._warn(f"the cache folder {self.folder} cannot be written ({error})")
            return False
        self._sweep(path.parent)
        return True

    def get_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """Return the entry of `key`, made by `build` and stored if it is not there.

        Two processes that miss at once both build; the entries are equal, so the order of the
        renames does not matter.
        """
        found = self.get(key)
        if found is not None:
            return found
        made = build()
        self.put(key, made)
        return made

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def _trusted(self) -> bool:
        """Return whether the folder may be used: one that anyone can write to may hold any code."""
        if self._usable is None:
            try:
                mode = self.folder.stat().st_mode
            except OSError:
                # Not there yet, or not to be read: the first write finds out and says so.
                return True
            self._usable = stat.S_ISDIR(mode) and not mode & stat.S_IWOTH
            if not self._usable:
                self._warn(
                    f"the cache folder {self.folder} is open to every user's writing, or no folder"
                )
        return self._usable

    def _warn(self, what: str) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"{what}; kernels are compiled anew in each process. "
            "Set BAREGRAD_CACHE_DIR to a folder of your own, or BAREGRAD_CACHE=0",
            RuntimeWarning,
            stacklevel=4,
        )

    def _sweep(self, shard: Path) -> None:
        """Remove litter of killed processes, and the oldest entries of an overfull part.

        Done once for each part and process, so its cost stays out of the way.
        """
        if shard.name in self._swept:
            return
        if not self._swept:
            self._sweep_litter()
        self._swept.add(shard.name)
        entries = sorted(_files(shard), key=lambda entry: entry[0], reverse=True)
        total = 0
        for index, (_, nbytes, path) in enumerate(entries):
            total += nbytes
            if index and total > self.max_nbytes // _SHARDS:
                _remove(path)

    def _sweep_litter(self) -> None:
        now = time.time()
        for modified_s, _, path in _files(self.folder / "tmp"):
            age_s = now - modified_s
            # A process number means little to another machine or container: age has its say too.
            if age_s > 3600 or (age_s > self.litter_age_s and not _alive(path.name)):
                _remove(path)


def _pack(payload: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, len(payload), hashlib.sha256(payload).digest()) + payload


def _unpack(data: bytes) -> bytes | None:
    """Return the payload of an entry, or None where a bit of it is wrong."""
    if len(data) < _HEADER.size:
        return None
    magic, nbytes, digest = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or nbytes != len(payload):
        return None
    return payload if hashlib.sha256(payload).digest() == digest else None


def _write(path: Path, data: bytes) -> None:
    """Write a file that nobody else has, minding short writes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return (modification time, bytes, path) of the files in a folder; none if it is missing."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # A file may vanish between the listing and this: another process swept it.
                try:
                    status = entry.stat()
                except OSError:
                    continue
                found.append((status.st_mtime, status.st_size, Path(entry.path)))
    except OSError:
        return found
    return found


def _alive(name: str) -> bool:
    """Return whether the process that a temporary file is named after still runs here."""
    text = name.partition(".")[0]
    if not text.isdigit():
        return False
    try:
        os.kill(int(text), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        return


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        return

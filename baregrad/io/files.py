"""Files: mapped to be read without a copy, and written whole or not at all."""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from baregrad.base.errors import FileFormatError


def map_file(path: str | os.PathLike[str]) -> memoryview:
    """Map the file at `path` and return its bytes as a read-only view.

    The mapping lives as long as the view or any slice of it, and no longer. Cutting the file short
    while it is mapped makes the operating system kill whoever reads the lost pages, so files are
    best replaced by renaming. Raises FileFormatError for what is not a regular file and OSError
    for a file that cannot be opened.
    """
    place = Path(path)
    # Before opening: opening a named pipe would wait for a writer.
    if not stat.S_ISREG(place.stat().st_mode):
        raise FileFormatError(
            f"{os.fspath(path)!r} cannot be mapped",
            found="a folder, device or pipe",
            wanted="a regular file",
            hint="give the path of the file itself",
        )
    with place.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def write_atomically(path: str | os.PathLike[str], chunks: Iterable[memoryview]) -> None:
    """Write `chunks` one after the other to `path`; see `replaced`."""
    with replaced(path) as file:
        for chunk in chunks:
            file.write(chunk)


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write that becomes the one at `path` at the end of the block, by a rename.

    On any failure the temporary file is removed and what stood at `path` stays. A device or a pipe
    is written to as it is: renaming would put a file in its place. Raises OSError.
    """
    # A link keeps pointing at the file that it names.
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        # Perhaps never created, or gone already: the first error is the one to tell.
        with suppress(OSError):
            temporary.unlink()
        raise

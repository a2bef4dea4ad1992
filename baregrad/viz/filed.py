"""Where documents come from, and the file that holds them all.

To show such a file takes nothing of the compiler, which is therefore not imported here.
"""

from __future__ import annotations

import io
import json
import threading
import zipfile
import zlib
from pathlib import Path
from typing import Protocol

from baregrad.base.errors import ArgumentError, FileFormatError

# The version of the documents in a file.
FORMAT = 2


class Documents(Protocol):
    """Where documents come from: a recording, or a file that one was written to."""

    def names(self) -> list[str]:
        """Every document there is."""

    def get(self, name: str) -> bytes | None:
        """The JSON text of a document; None where there is none of that name."""


# What a file that was damaged, or that is another one, may raise.
_DAMAGES = (
    OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, KeyError, TypeError,
    ValueError,
)  # fmt: skip


class FiledDocuments:
    """The documents of a file that `save` wrote.

    Raises ArgumentError where it is no such file.
    """

    def __init__(self, path: Path) -> None:
        wanted = "a file that `baregrad viz PROGRAM --save FILE` wrote"
        try:
            self._archive = zipfile.ZipFile(path)
            form = json.loads(self._archive.read("summary.json"))["format"]
        except _DAMAGES as error:
            raise ArgumentError(
                "this is no recording of a program", found=f"{path}: {error}", wanted=wanted
            ) from error
        if form != FORMAT:
            raise ArgumentError(
                "the recording was written by another version", found=f"format {form}",
                wanted=f"format {FORMAT}", hint="record the program again",
            )
        self._lock = threading.Lock()
        self._names = [one.removesuffix(".json") for one in self._archive.namelist()
                       if one.endswith(".json")]  # fmt: skip

    def names(self) -> list[str]:
        """Every document there is."""
        return list(self._names)

    def get(self, name: str) -> bytes | None:
        """The JSON text of a document; None where there is none of that name.

        Raises FileFormatError where that part of the file is damaged.
        """
        if name not in self._names:
            return None
        try:
            with self._lock:
                return self._archive.read(f"{name}.json")
        except _DAMAGES as error:
            raise FileFormatError(
                "this part of the recording is damaged", found=f"{name}: {error}",
                hint="copy the file again, or record the program again",
            ) from error


def save(documents: Documents, path: Path) -> None:
    """Write every document into one compressed file, whole or not at all."""
    from baregrad.io.files import write_atomically

    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in documents.names():
            archive.writestr(f"{name}.json", documents.get(name) or b"null")
    write_atomically(path, [whole.getbuffer()])

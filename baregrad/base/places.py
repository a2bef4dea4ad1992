"""Places in the file system, looked at before time is spent on what goes there."""

from __future__ import annotations

import os
from pathlib import Path

from baregrad.base.errors import ArgumentError


def check_writable(path: Path, message: str) -> None:
    """Raise ArgumentError, saying `message`, where no file of that path can be written."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(
            message, found=str(path), wanted="a file in a folder that exists and can be written to"
        )

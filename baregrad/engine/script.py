"""Running a user's Python file, as `python FILE` would."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from baregrad.base.errors import ArgumentError


def check_program(path: Path) -> None:
    """Raise ArgumentError where there is no such file."""
    if not path.is_file():
        raise ArgumentError("there is no such program", found=str(path), wanted="a Python file")


def run_to_end(path: Path, words: Sequence[str] = ()) -> None:
    """Run a Python file as `run_script` does, whichever way it ends but by an error.

    `sys.exit(main())` is how many programs end: what they computed is told all the same.
    """
    try:
        run_script(path, words)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)


def run_script(path: Path, words: Sequence[str] = ()) -> None:
    """Run a Python file as the main program: its folder is imported from, `words` are its argv.

    Raises ArgumentError where there is no such file, and what the program raises.
    """
    check_program(path)
    arguments, places = sys.argv, list(sys.path)
    sys.argv = [str(path), *words]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = arguments
        sys.path[:] = places

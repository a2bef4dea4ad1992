"""`baregrad profile SCRIPT [words]`: runs a program and says what took the time."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path

from baregrad.engine.script import check_program, run_script
from baregrad.profiling.profile import Profile


def main(argv: Sequence[str]) -> int:
    """Run a program as `python` would, and print the table of its profile."""
    parser = argparse.ArgumentParser(
        prog="baregrad profile",
        description="Run a Python program and say what each kernel, copy and thread took.",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="write a file for trace viewers: .json for Chrome's form, else Perfetto's",
    )
    parser.add_argument(
        "--no-lines", action="store_true",
        help="do not note which line asks for what: calls without jit keep their short cut",
    )
    parser.add_argument("script", type=Path, help="the program")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="its command line")
    arguments = parser.parse_args(argv)
    check_program(arguments.script)
    profile = Profile(arguments.output, lines=not arguments.no_lines)
    with contextlib.ExitStack() as told, profile:
        # Told of programs that end themselves, or fail, as well.
        told.callback(_tell, profile)
        run_script(arguments.script, arguments.words)
    return 0


def _tell(profile: Profile) -> None:
    print(profile.table())
    if profile.path is not None:
        print(f"written to {profile.path}")

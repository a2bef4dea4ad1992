"""The command `baregrad diff`."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from baregrad.apps.diff.case import reference_of
from baregrad.apps.diff.comparison import Comparison, FoundDifference
from baregrad.apps.diff.judging import OpDifference
from baregrad.apps.diff.references import (
    RecordedReference,
    Reference,
    RunRecorder,
    asking,
    recorded_nodes,
    run,
)
from baregrad.base.bits import human_count
from baregrad.base.errors import ArgumentError, DriverError
from baregrad.base.options import DEVICE_NAMES, options
from baregrad.engine.script import run_to_end
from baregrad.engine.session import Session, use_session
from baregrad.runtime.lifetime import watching_devices

_TORCH = "torch"


def _observed(
    script: Path, words: Sequence[str], watch: Callable[[Session, Any], None]
) -> OpDifference | None:
    """Run a program with its default device watched; return the difference that ended it."""
    # What threads of the program compute is the process's session's, which opens devices as well.
    opened: Counter[str] = Counter()
    try:
        with watching_devices(lambda one: opened.update([getattr(one, "name", "")])):
            opened.clear()
            return _observed_here(script, words, watch)
    finally:
        if max(opened.values(), default=0) > 1:
            print("# what threads of the program computed was not looked at", file=sys.stderr)


def _observed_here(
    script: Path, words: Sequence[str], watch: Callable[[Session, Any], None]
) -> OpDifference | None:
    with use_session(Session()) as session, options.override(lines=True):
        # A function that is captured would be replayed, of which nothing could be compared.
        session.watching.downloads.append(lambda ref: None)
        watch(session, session.backend(options.device))
        found = None
        try:
            run_to_end(script, words)
        except FoundDifference as error:
            found = error.difference
        finally:
            # A device that was stopped may have no good end.
            with contextlib.suppress(*([DriverError] if found is not None else [])):
                session.close()
    return found


def compare(
    script: Path, words: Sequence[str], against: str, tolerance: float | None, nan: bool,
    *, with_script: bool = False,
) -> tuple[OpDifference | None, Mapping[str, int]]:
    """Run a program and compare; return the first difference, and how much was computed.

    against: a device, "torch", or the path of a recording. with_script: look for the smallest
    script that shows it as well.
    """
    reference: Reference | None = None
    named = against if against in DEVICE_NAMES or against == _TORCH else ""
    if not nan:
        reference = reference_of(named) if named else RecordedReference(Path(against))
    comparison: Comparison | None = None

    def watch(session: Session, backend: Any) -> None:
        nonlocal comparison
        comparison = Comparison(
            session, reference, tolerance=tolerance, against=named if with_script else ""
        )
        comparison.watch(backend)

    try:
        found = _observed(script, words, watch)
    finally:
        if reference is not None:
            reference.close()
    assert comparison is not None
    return found, {"compared": comparison.compared, "runs": comparison.runs}


def record(script: Path, words: Sequence[str], path: Path) -> int:
    """Run a program and write what each of its operations gave; return how much was computed."""
    recorder = RunRecorder()

    def watch(session: Session, backend: Any) -> None:
        original = backend.execute

        def execute(executable: Any, program: Any, where: Any) -> Any:
            raw = [ref.handle.contents() for ref in program.inputs]
            results = original(executable, program, where)
            nodes = recorded_nodes(program)
            found = dict(
                zip(nodes, run(backend, original, asking(program, nodes), raw), strict=True)
            )
            found.update(
                zip(program.sink.src, [one.contents() for one in results], strict=True)
            )
            recorder.take(program, raw, found)
            return results

        backend.execute = execute

    _observed(script, words, watch)
    # Nothing replaces an older recording with none.
    _check_some(recorder.computations, script)
    recorder.save(path)
    return recorder.computations


def main(argv: Sequence[str]) -> int:
    """Compare a program on its device with a reference; return 1 where they differ."""
    arguments = _parsed(argv)
    _check_together(arguments)
    if arguments.tolerance is not None and not 0 <= arguments.tolerance < math.inf:
        raise ArgumentError(
            "no difference can be judged by this tolerance", found=arguments.tolerance,
            wanted="a number from 0 on",
        )
    for path in (arguments.record, arguments.write):
        if path is not None and not path.parent.is_dir():
            raise ArgumentError("there is no such folder to write to", found=str(path.parent))
        if path is not None and path.resolve() == arguments.script.resolve():
            raise ArgumentError("what is written would replace the program", found=str(path))
    if arguments.record is not None:
        count = record(arguments.script, arguments.words, arguments.record)
        print(f"{human_count(count, 'computation')} written to {arguments.record}")
        return 0
    against = _checked("REF" if arguments.against is None else arguments.against, arguments.nan)
    found, counts = compare(
        arguments.script, arguments.words, against, arguments.tolerance, arguments.nan,
        with_script=not arguments.no_script,
    )
    if found is None:
        _check_some(counts["compared"], arguments.script)
        what = "nothing is born that is not finite" if arguments.nan else "nothing differs"
        print(f"{what}: {human_count(counts['compared'], 'computation')}")
        return 0
    after, runs = counts["compared"], counts["runs"]
    after_them, in_them = human_count(after, "computation"), human_count(runs, "further run")
    print(f"the first operation, after {after_them}, in {in_them}:\n{found}")
    if found.script:
        place = arguments.write or Path(f"{arguments.script.stem}_differs.py")
        place.write_text(found.script)
        print(f"  shown by {place}")
    return 1


def _check_together(arguments: argparse.Namespace) -> None:
    """Raise ArgumentError for an option that would have no effect beside another."""
    chosen = "record" if arguments.record is not None else "nan" if arguments.nan else ""
    for name in ("against", "tolerance", "write", "nan"):
        given = getattr(arguments, name)
        if chosen and name != chosen and given is not None and given is not False:
            raise ArgumentError(
                "an option has no effect", found=f"--{name} beside --{chosen}", wanted="one of them"
            )


def _check_some(count: int, script: Path) -> None:
    """Raise ArgumentError for a program of which nothing was looked at."""
    if not count:
        raise ArgumentError(
            "the program computes nothing that is looked at", found=str(script),
            wanted="a program that asks for values of tensors, on its first thread",
        )  # fmt: skip


def _checked(against: str, nan: bool) -> str:
    """Return what to compare with: a device, "torch", or a file. Raises ArgumentError."""
    if against.lower() == _TORCH:
        return _TORCH
    device = against.upper()
    if device in DEVICE_NAMES and device != "NULL":
        if device == options.device and not nan:
            raise ArgumentError(
                "the default device would be compared with itself", found=f"--against {device}",
                hint="give another one, or another BAREGRAD_DEVICE",
            )  # fmt: skip
        return device
    if Path(against).is_file():
        return against
    devices = ", ".join(name for name in DEVICE_NAMES if name != "NULL")
    raise ArgumentError(
        "there is no such device or recording to compare with", found=against,
        wanted=f"{devices}, torch, or what `baregrad diff --record FILE SCRIPT` wrote",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baregrad diff", usage="%(prog)s [options] script [options] [words] [-- words]",
        allow_abbrev=False,
        description="Run a Python program on the default device, compute all of it by a reference "
        "as well, and say which operation differs first. The exit status is 1 where one does. "
        "Words that are no options of ours are the program's, and so is all that follows --.",
    )
    parser.add_argument(
        "--against", metavar="R",
        help="a device (REF, CPU, NV, CUDA), torch, or a recording of another run; REF without",
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="R",
        help="the largest difference, by the largest magnitude of the array",
    )
    parser.add_argument(
        "--nan", action="store_true", help="find where the first NaN or infinity is born instead"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE",
        help="write what every operation gives, to be compared with elsewhere or later",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE",
        help="where the smallest script that shows it goes; SCRIPT_differs.py without",
    )
    parser.add_argument("--no-script", action="store_true", help="write no such script")
    parser.add_argument("script", type=Path, help="the program")
    return parser


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Return our options, before the script or behind it, and the program's own words.

    A program that had been handed `--nan` of ours would be compared, and would pass.
    """
    parser = _parser()
    at = argv.index("--") if "--" in argv else len(argv)
    ours, theirs = list(argv[:at]), list(argv[at + 1 :])
    arguments, words = parser.parse_known_args(ours)
    for word in words:
        if ours.index(word) < ours.index(str(arguments.script)):
            parser.error(f"unrecognized arguments: {word}")
    arguments.words = words + theirs
    return arguments

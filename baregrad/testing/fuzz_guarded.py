"""Random programs of movements with symbolic extents, on memory in which a wrong read is a crash.

    python -m baregrad.testing.fuzz_guarded --programs 10000 --seed 0

Every array lies between pages that may not be touched. Processes do the work: one that crashes is
a finding, whose program is made small in processes as well. What does not crash is compared with
the same program with plain integers. Sizes take any value within their bounds, also values that
do not fit what is done with them, which has to be refused by an error that has a name.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baregrad.base.options import options
from baregrad.base.progress import ProgressBar
from baregrad.engine.session import Session, use_session
from baregrad.testing.fuzz_compare import Difference, check
from baregrad.testing.fuzz_grow import grow
from baregrad.testing.fuzz_program import FuzzProgram
from baregrad.testing.fuzz_shrink import script, shrink
from baregrad.testing.fuzz_workers import Chunk, spread
from baregrad.testing.guarded_memory import GuardedDevice, use_guarded_memory
from baregrad.testing.large_schedules import machines

KIND = "chain"
CHUNK = 250
_CRASH = "eager crashes"


@dataclass(frozen=True, slots=True)
class GuardedFinding:
    """A seed, what went wrong, and the script that shows it, made small."""

    seed: int
    difference: Difference
    script: str


def check_chunk(chunk: Chunk) -> Iterator[tuple[int, GuardedFinding | None]]:
    """Each seed of a chunk with what was found, on guarded memory."""
    session = Session()
    device = _guard(session, chunk)

    def differs(program: FuzzProgram) -> Difference | None:
        # What an array ends at is not to hang on what ran before.
        device.guarded.begin(program.seed)
        return check(program, lowered=False)

    with options.override(cache=False, device="CPU"), use_session(session):
        for seed in range(chunk.first, chunk.first + chunk.count):
            if chunk.end is not None and time.monotonic() > chunk.end:
                return
            program = grow(seed, chunk.kind)
            difference = differs(program)
            if difference is None:
                yield seed, None
                continue
            small, shown = shrink(program, difference, differs)
            yield seed, GuardedFinding(seed, shown, _script(small, shown, chunk))


def _guard(session: Session, chunk: Chunk) -> GuardedDevice:
    """Guarded memory; every other chunk has the schedules of large arrays."""
    rows = machines()
    target = rows[chunk.machine // 2 % len(rows)] if chunk.machine % 2 else None
    return use_guarded_memory(session, target)


def _script(program: FuzzProgram, difference: Difference, chunk: Chunk) -> str:
    large = chunk.machine // 2 if chunk.machine % 2 else None
    return script(program, difference, large, guarded=True)


def crashed(seed: int, chunk: Chunk, how: str) -> GuardedFinding:
    """The finding of a seed at which a process died, its program made small in processes."""
    program = grow(seed, chunk.kind)
    difference = Difference(_CRASH, program.calls - 1, "", how)
    small, shown = shrink(program, difference, lambda p: _crash_of(p, chunk))
    return GuardedFinding(seed, shown, _script(small, shown, chunk))


def _crash_of(program: FuzzProgram, chunk: Chunk) -> Difference | None:
    """How a program crashes in a process of its own; None if it does not."""
    chunk = replace(chunk, first=0, count=1)
    (found,) = spread(_OneProgram(program), _how, [chunk], 1)
    return found[1]


def _how(seed: int, chunk: Chunk, how: str) -> Difference:
    return Difference(_CRASH, 2, "", how)


@dataclass(frozen=True, slots=True)
class _OneProgram:
    """Runs one program on guarded memory, for the sake of a crash alone."""

    program: FuzzProgram

    def __call__(self, chunk: Chunk) -> Iterator[tuple[int, Difference | None]]:
        session = Session()
        _guard(session, chunk).guarded.begin(self.program.seed)
        with options.override(cache=False, device="CPU"), use_session(session):
            check(self.program, lowered=False)
        yield chunk.first, None


def fuzz(
    programs: int,
    seed: int = 0,
    minutes: float | None = None,
    processes: int = 1,
    kind: str = KIND,
) -> list[GuardedFinding]:
    """Check the programs of seeds from `seed` on; what crashes or differs."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    chunks = [
        Chunk(first, min(CHUNK, seed + programs - first), kind, end, "CPU", first // CHUNK)
        for first in range(seed, seed + programs, CHUNK)
    ]
    found: list[GuardedFinding] = []
    with ProgressBar(programs, "fuzz") as bar:
        for _, finding in spread(check_chunk, crashed, chunks, processes):
            if finding is not None:
                found.append(finding)
            bar.advance(note=f"{len(found)} found" if found else None)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    name = "python -m baregrad.testing.fuzz_guarded"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share them")
    parser.add_argument("--kind", default=KIND, help="programs of another kind")
    parser.add_argument("--save", type=Path, default=None, help="a folder for the scripts")
    chosen = parser.parse_args(arguments)
    start = time.monotonic()
    found = fuzz(chosen.programs, chosen.seed, chosen.minutes, chosen.processes, chosen.kind)
    for finding in found:
        print(finding.script)
        if chosen.save is not None:
            chosen.save.mkdir(parents=True, exist_ok=True)
            (chosen.save / f"seed_{finding.seed}.py").write_text(finding.script)
    elapsed = time.monotonic() - start
    asked = f"{chosen.programs} programs from seed {chosen.seed}"
    print(f"{asked}: {len(found)} found, {elapsed:.1f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

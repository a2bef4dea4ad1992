"""Random programs run eagerly, jitted and on the reference device: all must agree.

    python -m baregrad.testing.fuzz --programs 2000 --seed 0 --minutes 10 --processes 2

A program follows from its seed. On a difference the program is made small and printed as a script
of its own. Exits with 1 if any program differed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from baregrad.base.options import options
from baregrad.base.progress import ProgressBar
from baregrad.engine.session import Session, use_session
from baregrad.testing.fuzz_compare import Difference, check
from baregrad.testing.fuzz_grow import KINDS, grow
from baregrad.testing.fuzz_oracle import check_statements
from baregrad.testing.fuzz_program import FuzzProgram
from baregrad.testing.fuzz_shrink import script, shrink
from baregrad.testing.fuzz_workers import Chunk, spread
from baregrad.testing.large_schedules import use_large_schedules

LOWERED_EVERY = 8
LARGE_EVERY = 4
SESSION_EVERY = 200


@dataclass(frozen=True, slots=True)
class FuzzFinding:
    """A program that differs, as small as it was made, and the script that shows it."""

    seed: int
    program: FuzzProgram
    difference: Difference
    script: str


def check_seed(seed: int, large: int | None = None, kind: str | None = None) -> FuzzFinding | None:
    """Grow and check one program; every eighth also at lower levels of the reference.

    large: the session has the schedules of large arrays, on that machine; the script will say so.
    kind: of program, see `grow`.
    """
    program = grow(seed, kind)
    lowered = seed % LOWERED_EVERY == 0

    def differs(candidate: FuzzProgram) -> Difference | None:
        return check_statements(candidate) or check(candidate, lowered)

    difference = differs(program)
    if difference is None:
        return None
    small, shown = shrink(program, difference, differs)
    return FuzzFinding(seed, small, shown, script(small, shown, large))


def is_large(seed: int) -> bool:
    """Whether a program runs with the schedules of large arrays, where the CPU is tried."""
    return seed % LARGE_EVERY == 1 and options.device == "CPU"


def fuzz(
    programs: int,
    seed: int = 0,
    minutes: float | None = None,
    stop_at: int | None = None,
    kind: str | None = None,
    processes: int = 1,
    told: Callable[[FuzzFinding], None] | None = None,
) -> list[FuzzFinding]:
    """Check the programs of seeds from `seed` on, in sessions of a few hundred; what differs.

    Stops early after `minutes`, or at `stop_at` findings. Compiled kernels are not kept on disk.
    `told` gets each finding at once, so that whoever is stopped has those until then.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    chunks = [
        Chunk(
            first, min(SESSION_EVERY, seed + programs - first), kind, end, options.device,
            first // SESSION_EVERY,
        )
        for first in range(seed, seed + programs, SESSION_EVERY)
    ]  # fmt: skip
    found: list[FuzzFinding] = []
    if processes > 1:
        checked = spread(check_chunk, crashed, chunks, processes)
    else:
        checked = (each for chunk in chunks for each in check_chunk(chunk))
    with ProgressBar(programs, "fuzz") as bar:
        for _, finding in checked:
            if finding is not None:
                found.append(finding)
                if told is not None:
                    told(finding)
                if stop_at is not None and len(found) >= stop_at:
                    break
            bar.advance(note=f"{len(found)} different" if found else None)
    return found


def check_chunk(chunk: Chunk) -> Iterator[tuple[int, FuzzFinding | None]]:
    """Each seed of a chunk with what was found, in sessions of its own."""
    sessions = (Session(), Session())
    use_large_schedules(sessions[True], chunk.machine)
    try:
        with options.override(cache=False, device=chunk.device):
            for seed in range(chunk.first, chunk.first + chunk.count):
                if chunk.end is not None and time.monotonic() > chunk.end:
                    return
                large = is_large(seed)
                with use_session(sessions[large]):
                    finding = check_seed(seed, chunk.machine if large else None, chunk.kind)
                yield seed, finding
    finally:
        for session in sessions:
            session.close()


def crashed(seed: int, chunk: Chunk, how: str) -> FuzzFinding:
    """The finding of a seed at which a process died."""
    program = grow(seed, chunk.kind)
    difference = Difference("eager crashes", program.calls - 1, "", how)
    large = chunk.machine if is_large(seed) else None
    return FuzzFinding(seed, program, difference, script(program, difference, large))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m baregrad.testing.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--stop-at", type=int, default=None, help="stop at so many findings")
    parser.add_argument("--device", default=options.device, help="the device that is tried")
    parser.add_argument("--save", type=Path, default=None, help="a folder for the scripts")
    parser.add_argument("--kind", choices=KINDS, default=None, help="programs of one kind alone")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share them")
    chosen = parser.parse_args(arguments)
    start = time.monotonic()

    def told(finding: FuzzFinding) -> None:
        print(finding.script, flush=True)
        if chosen.save is not None:
            chosen.save.mkdir(parents=True, exist_ok=True)
            (chosen.save / f"seed_{finding.seed}.py").write_text(finding.script)

    with options.override(device=chosen.device):
        found = fuzz(
            chosen.programs, chosen.seed, chosen.minutes, chosen.stop_at, chosen.kind,
            chosen.processes, told,
        )  # fmt: skip
    elapsed = time.monotonic() - start
    asked = f"{chosen.programs} programs from seed {chosen.seed}"
    if chosen.minutes is not None and elapsed >= 60 * chosen.minutes:
        asked = f"part of {asked}"
    print(f"{asked}: {len(found)} differ, {elapsed:.1f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command: many seeds in several processes; see the package.

A case follows from its seed; `--only SEED` runs one again. Exits with 1 if any case differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

from baregrad.base.options import is_gpu, options
from baregrad.base.progress import ProgressBar
from baregrad.testing.fuzz_products.cases import SMALL, CaseLimits, drawn
from baregrad.testing.fuzz_products.checks import check_chunk, crashed
from baregrad.testing.fuzz_workers import Chunk, spread

SAY_EVERY = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, help="run this seed alone, and show its case")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="small cases, for interpreters")
    given = parser.parse_args(argv)
    device = options.device
    small = given.small or not is_gpu(device) or options.nv_port == "virtual"
    limits = SMALL if small else CaseLimits()
    first, count = (given.seed, given.cases) if given.only is None else (given.only, 1)
    end = None if given.minutes is None else time.time() + 60 * given.minutes
    each = max(-(-count // max(given.processes * 8, 1)), 1)
    chunks = [
        Chunk(start, min(each, first + count - start), None, end, device, 0)
        for start in range(first, first + count, each)
    ]
    if given.only is not None:
        print(drawn(given.only, limits))
    checked, found = 0, 0
    with ProgressBar(count, "fuzz") as bar:
        check = partial(check_chunk, limits)
        for seed, problem in spread(check, crashed, chunks, given.processes):
            checked += 1
            bar.advance()
            if checked % SAY_EVERY == 0:
                print(f"{checked} cases, {found} differ", flush=True)
            if problem is not None:
                found += 1
                print(f"seed {seed}: {problem}", flush=True)
    print(f"{checked} cases on {device}, {found} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

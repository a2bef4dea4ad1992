"""Measures what a replay of a jitted function costs: `python -m baregrad.apps.call_time`.

Kernels are so small that a replay is all cost and no work, and run on the calling thread. Every
figure is the least of many rounds, in microseconds of processor time a call and in steps of the
interpreter work that `baregrad.apps.compile_time` calibrates with, timed in the same process, so
that figures of different machines can be compared.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from baregrad.apps.compile_time import calibrate

ROUNDS = 30
CALLS = 50
STEPS = 10_000
LENGTH = 16
CHAINS = (10, 100)
PARAMETERS = 100


def cases() -> dict[str, Callable[[], Any]]:
    """Jitted calls by name: of one kernel, of several, and of one that changes much state."""
    from baregrad.tensor import Tensor
    from baregrad.tensor.jit.jit import jit

    x, y = (Tensor.zeros(LENGTH).contiguous().realize() for _ in range(2))

    @jit
    def one(x: Tensor) -> Tensor:
        return x + 1

    @jit
    def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x * y

    def chain(count: int) -> Callable[[], Any]:
        @jit
        def several(x: Tensor) -> Tensor:
            for _ in range(count):
                x = (x + 1).realize()
            return x

        return lambda: several(x)

    state = [Tensor.zeros(LENGTH).contiguous().realize() for _ in range(PARAMETERS)]

    @jit
    def step(x: Tensor) -> None:
        for held in state:
            held.add_(x)

    found: dict[str, Callable[[], Any]] = {
        "1 kernel": lambda: one(x),
        "2 arguments, 2 results": lambda: two(x, y),
    }
    found |= {f"{count} kernels": chain(count) for count in CHAINS}
    return found | {f"{PARAMETERS} changed tensors": lambda: step(x)}


def measure(rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Replay each case many times: by name, microseconds and interpreter steps a call.

    Cases and interpreter work take turns, so that all of them meet the machine at its best.
    """
    calls = cases()
    for call in calls.values():
        _time(call)
    unit_s = float("inf")
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        unit_s = min(unit_s, calibrate(STEPS) / STEPS)
        for name, call in calls.items():
            best[name] = min(best[name], _time(call))
    return {name: {"us": 1e6 * took, "steps": took / unit_s} for name, took in best.items()}


def _time(call: Callable[[], Any]) -> float:
    """Seconds a call. A search for cycles is what all that makes objects pays for, not a call."""
    gc.collect()
    gc.disable()
    try:
        begin = time.process_time()
        for _ in range(CALLS):
            call()
        return (time.process_time() - begin) / CALLS
    finally:
        gc.enable()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, and write them to a file when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(argv)
    figures = measure(arguments.rounds)
    for name, row in figures.items():
        print(f"{name:<24} {row['us']:8.1f} us {row['steps']:8.1f} steps")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

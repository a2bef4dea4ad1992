"""Random programs run by several threads at once, in one session: each finds what it finds alone.

    python -m baregrad.testing.fuzz_threads --rounds 100 --seed 0 --threads 3

In a round every thread has programs of its own, which it runs eagerly and jitted, one of them a
small model that is trained. What they compute is compared, bit for bit, with what the same
programs computed one after the other.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from baregrad.base.options import options
from baregrad.base.progress import ProgressBar
from baregrad.engine.session import Session, current_session, use_session
from baregrad.testing.fuzz_compare import EAGER, JITTED, run
from baregrad.testing.fuzz_grow import grow
from baregrad.testing.fuzz_program import FuzzProgram

PROGRAMS = 3
TIMEOUT_S = 120.0
# So short that threads interrupt each other in the middle of everything.
SWITCH_S = 1e-5
STEPS = 4

Arrays = list[dict[str, np.ndarray[Any, Any]]]


@dataclass(slots=True)
class Task:
    """What one thread does: programs by seed, and the seed of a model that is trained.

    The programs are grown beforehand: Python's own parser may fail in several threads at once.
    """

    seeds: tuple[int, ...]
    model: int
    programs: list[FuzzProgram] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        grown = [grow(seed, "state" if seed % 3 == 0 else "mixed") for seed in self.seeds]
        # Random numbers are the session's: who draws first is not decided.
        self.programs = [program for program in grown if not program.draws]

    def __call__(self) -> list[Arrays]:
        """Everything that its programs return and leave behind."""
        found = []
        for program in self.programs:
            found += [run(program, EAGER), run(program, JITTED)]
        return [*found, trained(self.model)]


def trained(seed: int) -> Arrays:
    """The weights of a small model after each jitted step of training."""
    from baregrad.optim import SGD
    from baregrad.tensor import Tensor
    from baregrad.tensor.jit.jit import jit

    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 9))
    weights = Tensor(rng.normal(size=(4, width)).astype(np.float32), requires_grad=True)
    bias = Tensor(np.zeros(width, np.float32), requires_grad=True)
    optimizer = SGD([weights, bias], lr=0.1, momentum=0.9)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((x @ weights + bias).tanh() - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found: Arrays = []
    for _ in range(STEPS):
        x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, width))
        loss = step(Tensor(x.astype(np.float32)), Tensor(y.astype(np.float32)))
        found.append({"loss": loss.numpy(), "weights": weights.numpy(), "bias": bias.numpy()})
    return found


@dataclass(slots=True)
class ThreadOutcome:
    """What a thread found, or what it raised."""

    found: list[Arrays] = field(default_factory=list)
    raised: str = ""


def together(tasks: Sequence[Callable[[], list[Arrays]]]) -> list[ThreadOutcome]:
    """Run tasks in a thread each, all begun at once, in the session and options in force."""
    session, device = current_session(), options.device
    gate = threading.Barrier(len(tasks))
    outcomes = [ThreadOutcome() for _ in tasks]

    def work(position: int) -> None:
        with use_session(session), options.override(cache=False, device=device, verify=False):
            gate.wait()
            try:
                outcomes[position].found = tasks[position]()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                last = traceback.extract_tb(error.__traceback__)[-1]
                told = f"{type(error).__name__}: {error}"[:300]
                outcomes[position].raised = f"{told} (line {last.lineno} of {last.filename})"

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(tasks))]
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        for thread in threads:
            thread.start()
        end = time.monotonic() + TIMEOUT_S
        for thread, outcome in zip(threads, outcomes, strict=True):
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                outcome.raised = f"it did not end within {TIMEOUT_S:.0f} s"
    finally:
        sys.setswitchinterval(before)
    return outcomes


def differs(found: list[Arrays], wanted: list[Arrays]) -> str:
    """The first array that has other bits than it should."""
    for run_number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        for call, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            for name, array in left.items():
                if array.shape != right[name].shape or array.tobytes() != right[name].tobytes():
                    place = f"run {run_number}, call {call}, {name}"
                    return f"{place}: {array} instead of {right[name]}"
    return ""


def check_round(seed: int, threads: int) -> list[str]:
    """What is wrong in the round of a seed, in words."""
    count = PROGRAMS * threads
    first = seed * count
    tasks = [
        Task(tuple(range(first + i * PROGRAMS, first + (i + 1) * PROGRAMS)), first + i)
        for i in range(threads)
    ]
    session = Session()
    with use_session(session), options.override(cache=False, verify=False):
        wanted = [task() for task in tasks]
    session.close()
    # Nothing is compiled yet where they run together.
    session = Session()
    with use_session(session), options.override(cache=False, verify=False):
        outcomes = together(tasks)
    found = []
    for task, outcome, right in zip(tasks, outcomes, wanted, strict=True):
        detail = outcome.raised or differs(outcome.found, right)
        if detail:
            found.append(f"round {seed}, {threads} threads, {task}: {detail}")
    if not any("did not end" in text for text in found):
        session.close()
    return found


def fuzz(rounds: int, seed: int = 0, threads: int = 3, stop_at: int | None = None) -> list[str]:
    """Check rounds from a seed on; what was wrong, in words."""
    found: list[str] = []
    with ProgressBar(rounds, "fuzz") as bar:
        for each in range(seed, seed + rounds):
            found += check_round(each, threads)
            if stop_at is not None and len(found) >= stop_at:
                break
            bar.advance(note=f"{len(found)} different" if found else None)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    name = "python -m baregrad.testing.fuzz_threads"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="how many rounds")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first round")
    parser.add_argument("--threads", type=int, default=3, help="how many threads in a round")
    parser.add_argument("--stop-at", type=int, default=None, help="stop at so many findings")
    chosen = parser.parse_args(arguments)
    start = time.monotonic()
    found = fuzz(chosen.rounds, chosen.seed, chosen.threads, chosen.stop_at)
    for text in found:
        print(text)
    print(f"{chosen.rounds} rounds: {len(found)} different, {time.monotonic() - start:.1f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

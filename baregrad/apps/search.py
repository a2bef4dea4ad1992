"""`baregrad search PROGRAM`: run a program while faster schedules of its kernels are searched for.

What is found is kept in the file of schedules, from which later runs take it: with BEAM set, or
with BEAM_FILE naming the file. Programs that are there already: `--app resnet18`, and the training
steps of `models.py`, as `--app resnet-50`. `--list` prints what a file holds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from baregrad.apps.models import train, training_steps
from baregrad.base.errors import ArgumentError
from baregrad.base.options import DEVICE_NAMES, options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.script import run_script
from baregrad.engine.search import search
from baregrad.engine.search.records import Records, SearchRecord, records_path
from baregrad.engine.session import current_session
from baregrad.tensor.jit.jit import jit

RESNET18 = "resnet18"
# Calls after which a function is captured, and has run so.
CAPTURED = 3


def parser() -> argparse.ArgumentParser:
    """The command line of `baregrad search`."""
    result = argparse.ArgumentParser(
        prog="baregrad search",
        description="Run a program and search for faster schedules of its kernels.",
    )
    result.add_argument("program", nargs="?", type=Path, help="a Python program")
    result.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    apps = (RESNET18, *[name.lower() for name in training_steps()])
    result.add_argument("--app", choices=apps, help="a network of ours, trained a step")
    result.add_argument("--batch", type=int, default=4, help=f"images in the step of {RESNET18}")
    result.add_argument(
        "--device", type=str.upper, choices=DEVICE_NAMES, default=options.device,
        help="the default device of the program",
    )
    result.add_argument("--beam", type=int, default=options.beam or 4, help="width of the search")
    result.add_argument("--seconds", type=int, help="seconds for all of it")
    result.add_argument("--file", type=Path, help="the file of schedules")
    result.add_argument("--list", action="store_true", help="print what the file holds, and stop")
    return result


def main(argv: list[str]) -> int:
    """Run `baregrad search`; 0 when the program ran."""
    arguments = parser().parse_args(argv)
    if not arguments.list and (arguments.program is None) == (arguments.app is None):
        raise ArgumentError(
            "nothing to search for", wanted="a Python program, or --app, or --list",
        )
    chosen = search(arguments.beam, seconds=arguments.seconds, file=arguments.file)
    with options.override(device=arguments.device), chosen:
        if arguments.list:
            if arguments.file is not None and not arguments.file.exists():
                raise ArgumentError("there is no such file of schedules", found=arguments.file)
            print(report(Records(records_path()).all()))
            return 0
        backend = current_session().backend(options.device)
        try:
            if arguments.app == RESNET18:
                train_resnet18(arguments.batch)
            elif arguments.app:
                train_model(arguments.app)
            else:
                run_script(arguments.program, arguments.arguments)
        finally:
            tuner = backend.compiler.tuner if isinstance(backend, CompiledBackend) else None
            if tuner is not None:
                print(report(tuner.found))
                print(tuner.summary())
    return 0


def train_resnet18(batch: int) -> None:
    """The loss of ResNet-18 and its gradients, computed once."""
    from baregrad.apps.compile_time import build, prepare

    with options.override(beam=0):
        inputs = prepare(batch)
    loss, *gradients = build(*inputs)
    loss.realize(*gradients)


def train_model(name: str) -> None:
    """Capture a training step of a model, on GPUs in bfloat16; it is searched meanwhile."""
    (step,) = [each for key, each in training_steps().items() if key.lower() == name]
    dtype = "float32" if options.device == "CPU" else "bfloat16"
    with options.override(beam=0):
        model = step.model().to(dtype)
        optimiser = step.optimiser(list(model.parameters()))
        batch = step.batch(np.random.default_rng(0), dtype)
        # The optimiser's state is made in the first step.
        train(model, optimiser, *batch).realize()
    captured = jit(lambda: train(model, optimiser, *batch))
    for _ in range(CAPTURED):
        captured().realize()


def report(records: Iterable[SearchRecord]) -> str:
    """A line for each kernel: what it took at first, what it takes now, and the median gain."""
    rows = sorted(records, key=lambda record: record.ns - record.first_ns)
    if not rows:
        return "no kernel was searched"
    lines = [f"{'kernel':<40} {'tried':>5} {'first us':>10} {'now us':>10} {'gain':>6}"]
    for each in rows:
        times = f"{each.first_ns / 1e3:>10.1f} {each.ns / 1e3:>10.1f}"
        lines.append(f"{each.name:<40.40} {each.tried:>5} {times} {each.gain:>6.2f}")
    table = "\n".join(lines)
    gains = [record.gain for record in rows]
    first, now = sum(r.first_ns for r in rows), sum(r.ns for r in rows)
    return (
        f"{table}\n{len(rows)} kernels, {sum(gain > 1 for gain in gains)} faster; the median gain "
        f"is {statistics.median(gains):.2f}, of their times together {first / now:.2f}"
    )

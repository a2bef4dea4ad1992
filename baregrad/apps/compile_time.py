"""Measures what compiling costs: `python -m baregrad.apps.compile_time [--json FILE]`.

The work is the loss of ResNet-18 and all its gradients, on one core, in processor time, with
nothing of it compiled before; weights and inputs are in memory. A kernel's time is that of choosing
its schedule, lowering and rendering it, and its share of planning the graph. Importing our own
modules is not part of it, and neither is LLVM (`assemble_s`). Every figure is also given in units
of a fixed piece of interpreter work, so that figures of different machines can be compared. It is
timed between kernels, as the speed of a machine that others use too changes all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CALIBRATION_STEPS = 200_000
# Of the work that is timed between two kernels.
SLICE_STEPS = 5_000
BATCH = 4


def calibrate(steps: int) -> float:
    """Seconds of steps of a fixed kind of interpreter work (dicts, tuples, integers)."""
    begin = time.process_time()
    table: dict[tuple[int, int], int] = {}
    for step in range(steps):
        key = (step & 1023, step >> 10)
        table[key] = table.get(key, 0) + step
    return time.process_time() - begin


def unit_now() -> float:
    """Seconds that the fixed work would take at the speed of this moment."""
    return calibrate(SLICE_STEPS) * CALIBRATION_STEPS / SLICE_STEPS


def prepare(batch: int = BATCH) -> tuple[Any, Any, Any]:
    """ResNet-18 with its weights in memory, and a batch of images and labels."""
    from baregrad.apps.resnet import ResNet18
    from baregrad.tensor.tensor import Tensor

    model = ResNet18()
    model.realize()
    images = Tensor.zeros(batch, 3, 224, 224).contiguous().realize()
    labels = Tensor.zeros(batch, dtype="int64").contiguous().realize()
    return model, images, labels


def build(model: Any, images: Any, labels: Any) -> list[Any]:
    """The loss and the gradients of a model, as lazy tensors."""
    loss = model(images).cross_entropy(labels)
    loss.backward()
    return [loss, *(parameter.grad for parameter in model.parameters())]


def measure() -> dict[str, float]:
    """Compile in this process, on the NULL device, and say what took how long."""
    # Imported before the clock starts.
    import baregrad.graph
    import baregrad.kernel
    import baregrad.render.llvm.llvm
    import baregrad.schedule.pipeline  # noqa: F401
    from baregrad.base.options import options
    from baregrad.base.tracing import Recorder
    from baregrad.engine.session import current_session

    units = [unit_now() for _ in range(5)]
    per_kernel: list[float] = []
    in_units: list[float] = []
    with options.override(device="NULL"):
        session = current_session()
        compiler: Any = session.backend("NULL").compiler  # type: ignore[attr-defined]
        stages = compiler.stages

        def timed(kernel: Any) -> Any:
            begin = time.process_time()
            found = list(stages(kernel))
            per_kernel.append(time.process_time() - begin)
            units.append(unit_now())
            in_units.append(per_kernel[-1] / statistics.mean(units[-2:]))
            return iter(found)

        inputs = prepare()
        before = (compiler.compiled, compiler.loaded)
        compiler.stages = timed
        with Recorder(time.thread_time) as recorder:
            begin = time.process_time()
            tensors = build(*inputs)
            built = time.process_time()
            tensors[0].realize(*tensors[1:])
            done = time.process_time()
        totals = recorder.totals()
    compiled, loaded = compiler.compiled - before[0], compiler.loaded - before[1]
    kernels = compiled + loaded
    scheduling = sum(totals[name][1] for name in ("canonicalise", "schedule") if name in totals)
    ours = scheduling + sum(per_kernel)
    median = statistics.median(per_kernel) if per_kernel else 0.0
    unit = statistics.median(units)
    timing = sum(units[5:]) * SLICE_STEPS / CALIBRATION_STEPS
    planning = scheduling / max(kernels, 1)
    return {
        "kernels": kernels,
        "compiled": compiled,
        "unit_s": unit,
        "build_s": built - begin,
        "schedule_s": scheduling,
        "lower_render_s": sum(per_kernel),
        "ours_s": ours,
        "median_kernel_ms": 1e3 * (median + planning),
        "assemble_s": totals.get("assemble", (0, 0.0))[1],
        "realize_s": done - built - timing,
        "ours_units": scheduling / unit + sum(in_units),
        "median_kernel_units": statistics.median(in_units or [0.0]) + planning / unit,
    }


def measure_in_processes(folder: Path) -> dict[str, dict[str, float]]:
    """The figures of a cold process and of a second one that finds the disk cache in `folder`."""
    result = {}
    for name in ("cold", "warm"):
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "baregrad.apps.compile_time", "--inner", str(folder)],
            capture_output=True,
            text=True,
            check=True,
        )
        figures = json.loads(done.stdout.splitlines()[-1])
        figures["process_s"] = time.perf_counter() - begin
        result[name] = figures
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, and write them to a file when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.inner is not None:
        from baregrad.base.options import options

        _use_one_core()
        # As for users: byte code of our modules is kept, whoever started us.
        sys.dont_write_bytecode = False
        with options.override(cache_dir=arguments.inner, cache=True, verify=False):
            print(json.dumps(measure()))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_in_processes(Path(folder))
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0


def _use_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


if __name__ == "__main__":
    raise SystemExit(main())

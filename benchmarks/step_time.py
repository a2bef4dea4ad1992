"""The digits network's training step, jitted, beside PyTorch's eager step on as many threads.

    python benchmarks/step_time.py [--threads 2] [--steps 300] [--rounds 5] [--json FILE]

Both train the network of `baregrad demo digits` (dropout included) on batches of 128 images with
AdamW and copy each batch in from NumPy. The two take turns, each in a process of its own; times are
medians over all steps, and memory is the highest resident size of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 128
WARM_UP = 30


def ours(threads: int) -> Callable[[Any, Any], float]:
    """Our step: images and labels in, loss out."""
    os.environ["BAREGRAD_THREADS"] = str(threads)
    from baregrad import jit, optim
    from baregrad.apps.digits import DigitsNet, training_step
    from baregrad.tensor import Tensor

    model = DigitsNet()
    optimiser = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = optim.CosineAnnealingLR(optimiser, 10_000)
    step = jit(training_step(model, optimiser, schedule, 0.1))
    return lambda images, labels: float(step(Tensor(images), Tensor(labels)).item())


def pytorch(threads: int) -> Callable[[Any, Any], float]:
    """PyTorch's step, with its fused optimiser."""
    import torch

    torch.set_num_threads(threads)
    t = torch.nn
    model = t.Sequential(
        t.Conv2d(1, 16, 3, padding=1), t.ReLU(), t.Conv2d(16, 32, 3, padding=1), t.ReLU(),
        t.MaxPool2d(2), t.Flatten(), t.Dropout(0.5), t.Linear(512, 128), t.ReLU(),
        t.Dropout(0.5), t.Linear(128, 10),
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10_000)

    def step(images: Any, labels: Any) -> float:
        optimiser.zero_grad()
        scores = model(torch.from_numpy(images))
        loss = t.functional.cross_entropy(scores, torch.from_numpy(labels), label_smoothing=0.1)
        loss.backward()
        optimiser.step()
        schedule.step()
        return float(loss.item())

    return step


def measure(make: Callable[[int], Callable[[Any, Any], float]], threads: int, steps: int) -> None:
    """Print the times of the steps after a warm-up, and the peak memory, as JSON."""
    step = make(threads)
    random = np.random.default_rng(0)
    images = random.random((8, BATCH, 1, 8, 8), np.float32)
    labels = random.integers(0, 10, (8, BATCH))
    times = []
    for number in range(WARM_UP + steps):
        begin = time.perf_counter()
        step(images[number % 8], labels[number % 8])
        times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"times": times[WARM_UP:], "peak": peak}))


def main() -> int:
    """Measure both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=("ours", "pytorch"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        make = ours if chosen.child == "ours" else pytorch
        measure(make, chosen.threads, chosen.steps)
        return 0
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "pytorch": []}
    for _ in range(chosen.rounds):
        for name, runs in found.items():
            command = [sys.executable, __file__, "--child", name]
            command += ["--threads", str(chosen.threads), "--steps", str(chosen.steps)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    summary = {"threads": chosen.threads, "batch": BATCH}
    for name, runs in found.items():
        medians = [1e3 * statistics.median(run["times"]) for run in runs]
        summary[name] = {
            "step_ms": statistics.median(medians),
            "spread_ms": [min(medians), max(medians)],
            "peak_mb": max(run["peak"] for run in runs) / 1e6,
        }
    summary["time_ratio"] = summary["ours"]["step_ms"] / summary["pytorch"]["step_ms"]
    summary["memory_ratio"] = summary["ours"]["peak_mb"] / summary["pytorch"]["peak_mb"]
    print(json.dumps(summary, indent=2))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Times training steps of published models by `torch.compile` with our backend and with inductor.

    python benchmarks/torch_compile.py [--seconds 4] [NAME ...]

The models are those of `tests/examples/published`, larger than there. Each backend has a process
and empty caches of its own: its first step, which compiles forward and backward, is timed, and then
the two run by turns. Prints a line for each model: how long the first steps took, the medians of
the later ones, the ratios (above 1 we are faster), how far the gradients lie apart, and how many
graphs were left to PyTorch; last, the geometric mean of the ratios. Exit status 1: a graph was
left, gradients differ, the mean is below 1, or first steps took more than half of inductor's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(__file__).parents[1] / "tests/examples/published"
SIDES = ("baregrad", "inductor")
WANTED, FIRST_STEP, AGREEMENT = 1.0, 0.5, 1e-3
# Shorter gradients count as this much of the longest one. A bias before a norm has the gradient 0
# (EfficientNet's 16: below 1e-16 in float64), and in float32 what rounding leaves of the numbers
# that are added up: 1e-7 here, 4e-8 in eager PyTorch. All its others lie within 3e-5 of float64's.
SHORTEST = 1e-4
# The file of each model, how it is made of what the file declares, and what it takes.
ROWS: dict[str, tuple[str, Callable[[Any], Any], list[tuple[str, tuple[int, ...]]]]] = {
    "ResNet-18": ("resnet", lambda m: m.ResNet(m.BasicBlock, [2, 2, 2, 2], width=64),
                  [("float", (4, 3, 64, 64))]),
    "EfficientNet-B0": ("efficientnet", lambda m: m.EfficientNet(width=1.0),
                        [("float", (4, 3, 64, 64))]),
    "ViT-S": ("vit", lambda m: m.VisionTransformer(size=64, dim=192, depth=4, heads=3),
              [("float", (4, 3, 64, 64))]),
    "Swin-T": ("swin", lambda m: m.Swin(dim=96), [("float", (8, 3, 32, 32))]),
    "U-Net with attention": ("unet", lambda m: m.UNet(ch=32),
                             [("float", (4, 3, 32, 32)), ("index 1000", (4,))]),
    "BERT": ("bert", lambda m: m.BertForMaskedLM(vocab=1000, hidden=256, layers=4),
             [("index 1000", (16, 16)), ("index 2", (16, 16)), ("ones", (16, 16))]),
    "GPT-2": ("gpt2", lambda m: m.GPT(vocab_size=1000, block_size=64, n_layer=4, n_embd=256),
              [("index 1000", (4, 64)), ("index 1000", (4, 64))]),
    "Llama": ("llama", lambda m: m.Transformer(vocab=1000, dim=256, layers=4),
              [("index 1000", (4, 64))]),
    "T5": ("t5", lambda m: m.T5(vocab=1000, d=192),
           [("index 1000", (8, 64)), ("index 1000", (8, 32))]),
    "WaveNet": ("wavenet", lambda m: m.WaveNet(classes=64, channels=32, skip=64, layers=6),
                [("index 64", (4, 512))]),
    "DiT": ("dit", lambda m: m.DiT(size=16, hidden=192, depth=4),
            [("float", (4, 4, 16, 16)), ("index 1000", (4,)), ("index 10", (4,))]),
    "Whisper-tiny": ("whisper",
                     lambda m: m.Whisper(mels=80, ctx=100, state=192, vocab=1000, text=32),
                     [("float", (4, 80, 200)), ("index 1000", (4, 32))]),
}  # fmt: skip


# --- one side, in its process ---------------------------------------------------------------------


def _given(wanted: list[tuple[str, tuple[int, ...]]]) -> list[Any]:
    import torch

    made = []
    for kind, shape in wanted:
        if kind == "float":
            made.append(torch.randn(shape))
        elif kind == "ones":
            made.append(torch.ones(shape, dtype=torch.int64))
        else:
            made.append(torch.randint(0, int(kind.split()[1]), shape))
    return made


def side(name: str, backend: str) -> None:
    """Answer the lines of standard input: `steps N` with the seconds of each of N steps."""
    import torch

    file, make, wanted = ROWS[name]
    declared = SimpleNamespace(**runpy.run_path(str(FOLDER / f"{file}.txt")))
    torch.manual_seed(0)
    model, given = make(declared), _given(wanted)
    for parameter in model.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape)
    if backend == SIDES[0]:
        from baregrad.bridges import torch_backend

    # By itself: it has a name where the package is installed.
    compiled = torch.compile(
        model, backend=torch_backend.baregrad if backend == SIDES[0] else backend
    )

    def step() -> None:
        model.zero_grad()
        found = compiled(*given)
        parts = found if isinstance(found, tuple | list) else [found]
        sum(one.square().mean() for one in parts).backward()

    before = time.perf_counter()
    step()
    first = time.perf_counter() - before
    gradients = Path(os.environ["GRADIENTS"])
    torch.save({key: one.grad for key, one in model.named_parameters()}, gradients)
    left = torch_backend.report().left if backend == SIDES[0] else 0
    print(json.dumps({"first": first, "left": left}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            before, cpu = time.perf_counter(), time.process_time()
            step()
            times.append((time.perf_counter() - before, time.process_time() - cpu))
        print(json.dumps(times), flush=True)


# --- both -----------------------------------------------------------------------------------------


def _start(name: str, backend: str, folder: Path) -> subprocess.Popen[str]:
    cache = folder / backend
    where = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache), "BAREGRAD_CACHE_DIR": str(cache),
        "GRADIENTS": str(folder / f"{backend}.pt"),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, __file__, "--side", backend, name], env={**os.environ, **where},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def _read(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a side ended with status {process.wait()}")
    return json.loads(line)


def _steps(process: subprocess.Popen[str], count: int) -> list[tuple[float, float]]:
    assert process.stdin is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    found: list[tuple[float, float]] = _read(process)
    return found


def apart(folder: Path) -> float:
    """The largest distance of the two sides' gradients of a parameter, relative to its length.

    That is at least SHORTEST of the longest.
    """
    import torch

    ours, theirs = (torch.load(folder / f"{backend}.pt") for backend in SIDES)
    lengths = {key: float(one.norm()) for key, one in theirs.items() if one is not None}
    least = SHORTEST * max(lengths.values())
    return max(
        float((ours[key] - theirs[key]).norm()) / max(length, least)
        for key, length in lengths.items()
    )


def compare(name: str, seconds: float) -> dict[str, float]:
    """Run both sides of a model by turns; times are in seconds, `left` in graphs."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sides, first = [], []
        try:
            for backend in SIDES:
                sides.append(_start(name, backend, folder))
                first.append(_read(sides[-1]))
            turns: tuple[list[tuple[float, float]], ...] = ([], [])
            for one in sides:
                _steps(one, 3)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(turns[0]) < 15:
                for kept, one in zip(turns, sides, strict=True):
                    kept.extend(_steps(one, 3)[1:])
        finally:
            for one in sides:
                one.kill()
        ours, theirs = ([statistics.median(times) for times in zip(*kept, strict=True)]
                        for kept in turns)  # fmt: skip
        return {
            "first": first[0]["first"], "first there": first[1]["first"], "left": first[0]["left"],
            "step": ours[0], "step there": theirs[0], "ratio": theirs[0] / ours[0],
            "processor": theirs[1] / ours[1], "apart": apart(folder),
        }  # fmt: skip


def main() -> int:
    """Compare the models asked for, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--side")
    asked = parser.parse_args()
    if asked.side:
        side(asked.names[0], asked.side)
        return 0
    rows = []
    for name in asked.names or ROWS:
        row = compare(name, asked.seconds)
        rows.append(row)
        print(
            f"{name}: first step {row['first']:.1f} s, inductor {row['first there']:.1f} s; "
            f"step {row['step'] * 1e3:.2f} ms, inductor {row['step there'] * 1e3:.2f} ms, "
            f"ratio {row['ratio']:.2f} (processor time {row['processor']:.2f}); gradients apart "
            f"{row['apart']:.1e}; {row['left']} graphs left",
            flush=True,
        )
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    first = math.exp(statistics.fmean(
        math.log(row["first"] / row["first there"]) for row in rows))  # fmt: skip
    print(f"geometric mean {mean:.2f} of {len(rows)} (wanted {WANTED}); first steps {first:.2f} "
          f"of inductor's (wanted {FIRST_STEP})")  # fmt: skip
    good = all(row["apart"] <= AGREEMENT and not row["left"] for row in rows)
    return 0 if good and mean >= WANTED and first <= FIRST_STEP else 1


if __name__ == "__main__":
    sys.exit(main())

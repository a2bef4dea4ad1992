"""`baregrad onnx FILE`: what a model takes, gives and uses, and a run of it.

The run is on inputs that are given as .npy files, or on random ones; where onnxruntime is
installed, its results are put beside ours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError
from baregrad.io.onnx.graph import ValueType
from baregrad.io.onnx.model import OnnxModel, load_onnx
from baregrad.io.onnx.packages import onnxruntime_package
from baregrad.io.onnx.values import Value, array_of

# Largest differences from onnxruntime, by the largest element, that count as agreement.
AGREEMENT = 1e-3
SECONDS = 1.0
MOST_RUNS = 30


def main(argv: Sequence[str]) -> int:
    """Run the command; return 1 where results differ from onnxruntime's."""
    args = _parser().parse_args(argv)
    model = load_onnx(args.file, device=args.device)
    print(described(model, args.file))
    if args.list:
        return 0
    inputs = {
        declared.name: _given(declared, args.input, args.size, np.random.default_rng(args.seed))
        for declared in model.inputs.values() if not declared.kind.startswith("optional")
    }  # fmt: skip
    for name, array in inputs.items():
        print(f"given    {name}: {array.dtype} {list(array.shape)}")
    found = {name: array_of(value) for name, value in model(inputs).items()}
    for name, value in found.items():
        print(f"result   {name}: {_summary(value)}")
    ours = _milliseconds(lambda: _computed(model, inputs))
    print(f"way      {model.way}")
    print(f"time     {ours:.3f} ms on {model.device}")
    return _beside_onnxruntime(args.file, inputs, list(found.values()), ours)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baregrad onnx", description="Show an ONNX model and run it."
    )
    parser.add_argument("file", help="the model; external data is read from beside it")
    parser.add_argument("--list", action="store_true", help="show the model alone")
    parser.add_argument("--device", help="where it runs")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy",
                        help="an input; the others are random")  # fmt: skip
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N",
                        help="size of a symbolic dimension of random inputs, else 1")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    return parser


def described(model: OnnxModel, name: str) -> str:
    """Return the lines that say what a model takes, gives and uses."""
    definition = model.definition
    rows = sorted(definition.opsets.items())
    opsets = ", ".join(f"{key or 'ai.onnx'} {version}" for key, version in rows)
    lines = [f"model    {name} ({opsets}; {definition.producer or 'unknown'})"]
    lines += [f"input    {one.name}: {one}" for one in model.inputs.values()]
    lines += [f"output   {one.name}: {one}" for one in model.outputs.values()]
    used = ", ".join(f"{op} {count}" for op, count in model.operators.most_common())
    return "\n".join([*lines, f"uses     {used}"])


def _pairs(given: Sequence[str], form: str) -> dict[str, str]:
    found = dict(one.partition("=")[::2] for one in given)
    for name, value in found.items():
        if not value:
            raise ArgumentError("an argument is of another form", found=repr(name), wanted=form)
    return found


def _given(
    declared: ValueType, files: Sequence[str], sizes: Sequence[str], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """An input from its file, or a random one: numbers around 0, integers 0 and 1."""
    path = _pairs(files, "NAME=FILE.npy").get(declared.name)
    if path is not None:
        with Path(path).open("rb") as file:
            return np.asarray(np.load(file, allow_pickle=False))
    if declared.kind != "tensor" or declared.dtype == "str" or declared.shape is None:
        raise ArgumentError(
            "an input of this type must be given", found=f"{declared.name}: {declared}",
            wanted=f"--input {declared.name}=FILE.npy",
        )
    known = {name: int(value) for name, value in _pairs(sizes, "NAME=N").items()}
    shape = [dim if isinstance(dim, int) else known.get(str(dim), 1) for dim in declared.shape]
    dtype = np.dtype(declared.dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _summary(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} of {len(value)}" if isinstance(value, list) else repr(value)
    text = f"{value.dtype} {list(value.shape)}"
    if value.size and value.dtype.kind in "iuf":
        text += f", {value.min():.5g} to {value.max():.5g}, mean {value.mean():.5g}"
    return text


def _computed(model: OnnxModel, inputs: Mapping[str, Any]) -> list[Value]:
    return [array_of(value) for value in model(inputs).values()]


def _milliseconds(run: Any) -> float:
    """The median time of a run, after two that are captured."""
    for _ in range(2):
        run()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < MOST_RUNS and (not times or time.perf_counter() - started < SECONDS):
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return float(np.median(times)) * 1e3


def _beside_onnxruntime(
    file: str, inputs: Mapping[str, Any], found: Sequence[Any], ours: float
) -> int:
    package = onnxruntime_package()
    if package is None:
        print("onnxruntime is not installed: nothing to compare with (pip install onnxruntime)")
        return 0
    settings = package.SessionOptions()
    settings.log_severity_level = 3
    session = package.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    wanted = session.run(None, dict(inputs))
    worst = max((apart(one, other) for one, other in zip(found, wanted, strict=True)), default=0.0)
    theirs = _milliseconds(lambda: session.run(None, dict(inputs)))
    agrees = worst <= AGREEMENT
    print(f"compared with onnxruntime {package.__version__} on the CPU: largest difference "
          f"{worst:.2g} of the largest element, {theirs:.3f} ms ({theirs / ours:.2f} of ours)"
          f"{'' if agrees else ': THEY DIFFER'}")  # fmt: skip
    return 0 if agrees else 1


def apart(found: Any, wanted: Any) -> float:
    """The largest difference of two results, by the largest element; infinite for other shapes."""
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return float("inf")
        return max((apart(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind not in "biuf":
        return 0.0 if np.array_equal(found.astype(str), wanted.astype(str)) else float("inf")
    if not wanted.size:
        return 0.0
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    difference = np.where(same, 0.0, np.abs(a - b))
    finite = np.abs(b[np.isfinite(b)])
    largest = float(difference.max()) / max(float(finite.max(initial=0.0)), 1e-30)
    return largest if not np.isnan(largest) else float("inf")

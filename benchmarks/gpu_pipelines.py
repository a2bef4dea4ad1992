"""Matrix products on a GPU under schedules that differ in how their panels are copied.

    python benchmarks/gpu_pipelines.py --device NV --sizes 1024,2048,4096

For each size and dtype, the schedule that the rules choose and the same with pipelines, layouts of
shared memory and deeper panels. Each is compiled, its result compared with NumPy's in float64 at
some rows, and timed by the device's own clock; PyTorch's product, where there is one, with events.
Prints TFLOP/s (2 m n k operations, the median of the rounds) and how far rounds are apart.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from baregrad.assemble.ptxas import PtxAssembler
from baregrad.base.errors import BaregradError
from baregrad.dtypes import DType, as_dtype, dtypes, to_numpy
from baregrad.engine.compiler import Compiler
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel import Schedule, choose_schedule, parse_schedule
from baregrad.kernel.language.schedule import Pipeline, Split, StageInput
from baregrad.render import get
from baregrad.runtime import open_device
from baregrad.runtime.commands import CommandList
from baregrad.target import gpu_row
from baregrad.testing.examples.levels import contracted, expanded, kernel_of, param, reshaped

# Rows of the result that are compared.
ROWS = 8
LAUNCHES = 10


def product(size: int, dtype: DType, turned: bool) -> Node:
    """The KERNEL of c = a b, or of c = a b.T, in float32."""
    left = param(1, size, size, dtype=dtype)
    if turned:
        return kernel_of(contracted(left, param(2, size, size, dtype=dtype)))
    wide = dtypes.float32
    a = expanded(reshaped(left, size, size, 1), size, size, size)
    b = expanded(reshaped(param(2, size, size, dtype=dtype), 1, size, size), size, size, size)
    if dtype is not wide:
        a, b = Node(Ops.CAST, wide, (a,)), Node(Ops.CAST, wide, (b,))
    value = Node(Ops.MUL, wide, (a, b))
    total = Node(Ops.REDUCE, wide, (value,), Reduce(primitive(Ops.ADD, wide), (1,)))
    return kernel_of(total)


def variants(first: Schedule) -> Iterator[tuple[str, Schedule]]:
    """The first schedule of a product, and others like it."""
    loop = next(
        (step.parts[0][0] for step in first.steps if isinstance(step, Split)
         and step.parts[-1][0] == "k_i"), ""
    )  # fmt: skip
    yield "as it is chosen", first
    if not loop:
        return
    pipes = {
        "two slots by registers": Pipeline(loop),
        "2 slots async": Pipeline(loop, 2, "async"),
        "3 slots async": Pipeline(loop, 3, "async"),
        "4 slots async": Pipeline(loop, 4, "async"),
    }
    for depth in (16, 8, 32):
        for pad in (None, 0, 4):
            based = Schedule(tuple([_changed(step, depth, pad) for step in first.steps]))
            what = f"depth {depth}, " + ("rows as chosen" if pad is None else f"pad {pad}")
            if based != first:
                yield what, based
            for name, pipe in pipes.items():
                yield f"{what}, {name}", based.then(pipe)


def on_matrix_units(turned: bool) -> Iterator[tuple[str, Schedule]]:
    """Schedules of a product of 16-bit floats for the matrix units of warps."""
    for w, u, x, v, deep in ((2, 4, 4, 4, 4), (2, 4, 2, 8, 2), (4, 2, 2, 8, 4), (2, 2, 2, 4, 4)):
        head = (
            f"split('i0', outer='bm', w={w}, u={u}, m=16, masked=True),"
            f"split('i1', outer='bn', x={x}, v={v}, n=8, masked=True),"
            f"split('r2', outer='ko', ki={deep}, kk=16, masked=True),"
            "bind('bm', 'grid'), bind('bn', 'grid'), bind('w', 'thread_z'), bind('x', 'thread_y'),"
            "bind('u', 'unroll'), bind('v', 'unroll'),"
            "tensorize('m', 'n', 'kk', instruction='mma')"
        )
        for how in ("pad=8", "swizzle=3" if deep == 4 else "pad=0"):
            right = "'x', 'v', 'n', 'ki', 'kk'" if turned else "'ki', 'kk', 'x', 'v', 'n'"
            also = how if turned else "pad=8"
            left = f"stage_input(1, 'w', 'u', 'm', 'ki', 'kk', {how})"
            copies = f"{left}, stage_input(2, {right}, {also})"
            for slots in (0, 2, 3, 4):
                pipe = f", pipeline('ko', {slots}, 'async')" if slots else ""
                what = f"mma {16 * w * u} x {8 * x * v} x {16 * deep}, {w * x} warps, {how}"
                more = f", {slots} slots async" if slots else ""
                yield what + more, parse_schedule(f"Schedule({head}, {copies}{pipe})")


def _changed(step: Any, depth: int, pad: int | None) -> Any:
    if isinstance(step, Split) and step.parts[-1][0] == "k_i":
        return Split(step.axis, (*step.parts[:-1], ("k_i", depth)), step.tail, step.masked)
    if isinstance(step, StageInput):
        return StageInput(step.param, step.axes, step.lanes, pad, step.swizzle)
    return step


class Bench:
    """A device and its compiler."""

    def __init__(self, name: str) -> None:
        self.device: Any = open_device(name)
        self.row = gpu_row(self.device.architecture)
        self.compiler = Compiler(self.row, get("ptx"), PtxAssembler(self.row.name), None)

    def run(self, kernel: Node, schedule: Schedule, arrays: list[Any], rounds: int) -> list[float]:
        """Seconds of a launch in each round; arrays[0] is the result of the last."""
        program = self.compiler.compile(kernel, schedule)
        loaded = self.device.load(program)
        buffers = [self.device.allocate(array.nbytes) for array in arrays]
        for buffer, array in zip(buffers, arrays, strict=True):
            self.device.copy_in(buffer, array)
        found = []
        for count in (1, *[LAUNCHES] * rounds):
            commands = CommandList(self.device)
            for _ in range(count):
                commands.exec(loaded, buffers)
            timeline = self.device.submit(commands, timed=True)
            self.device.synchronize()
            found.append((timeline.end_ns[-1] - timeline.begin_ns[0]) / count / 1e9)
        self.device.copy_out(buffers[0], arrays[0])
        return found[1:] or found


def torch_seconds(size: int, dtype: DType, turned: bool, rounds: int) -> list[float]:
    """Seconds of PyTorch's product in each round; none without PyTorch or its GPU."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(size, size, device="cuda").to(getattr(torch, dtype.name)) for _ in "ab")
    found = []
    for _ in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
        begin.record()
        for _ in range(LAUNCHES):
            torch.matmul(a, b.T if turned else b)
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / LAUNCHES / 1e3)
    return found[1:]


def worst_error(arrays: list[Any], turned: bool) -> float:
    """The largest error at some rows, relative to the largest result."""
    rows = np.linspace(0, len(arrays[0]) - 1, ROWS).astype(int)
    right = arrays[2].astype(np.float64)
    wanted = arrays[1][rows].astype(np.float64) @ (right.T if turned else right)
    return float(np.abs(arrays[0][rows] - wanted).max() / np.abs(wanted).max())


def told(what: str, seconds: list[float], size: int, more: str = "") -> None:
    """Print one line."""
    middle = statistics.median(seconds)
    spread = (max(seconds) - min(seconds)) / middle
    print(f"{2e-12 * size**3 / middle:8.2f} TFLOP/s {spread:6.1%}  {what}{more}", flush=True)


def compare(bench: Bench, size: int, dtype: DType, turned: bool, rounds: int) -> None:
    """Print the speed of each variant of one product."""
    print(f"{size}^3 {dtype}, {'a b.T' if turned else 'a b'} on {bench.row.name}")
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((size, size)).astype(to_numpy(dtype)) for _ in range(2)]
    kernel = product(size, dtype, turned)
    every = list(variants(choose_schedule(kernel, bench.row)))
    if dtype.bits == 16:
        every = [*every[:1], *on_matrix_units(turned)]
    for what, schedule in every:
        arrays = [np.zeros((size, size), np.float32), *inputs]
        try:
            seconds = bench.run(kernel, schedule, arrays, rounds)
        except BaregradError as error:
            print(f"       - refused        {what}: {str(error)[:120]}")
            continue
        error = worst_error(arrays, turned)
        told(what, seconds, size, f", error {error:.1e}" + ("" if error < 1e-5 else " WRONG"))
    for name, seconds in (("PyTorch", torch_seconds(size, dtype, turned, rounds)),):
        if seconds:
            told(name, seconds, size)


def main(run: Callable[..., None] = compare) -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="NV")
    parser.add_argument("--sizes", default="2048")
    parser.add_argument("--dtypes", default="float32,float16")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    bench = Bench(arguments.device)
    try:
        for size in map(int, arguments.sizes.split(",")):
            for dtype in map(as_dtype, arguments.dtypes.split(",")):
                for turned in (False, True):
                    run(bench, size, dtype, turned, arguments.rounds)
    finally:
        bench.device.close()


if __name__ == "__main__":
    main()

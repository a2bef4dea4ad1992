"""Work that memory bounds on a GPU: values, rates beside a copy's and PyTorch's, and kernels.

    python benchmarks/gpu_bandwidth.py --plan [--target sm_90a] [--only GLOB]
    python benchmarks/gpu_bandwidth.py --device NV [--only GLOB] [--rounds 5]

With `--plan` no device is needed: the kernels of each case are told, with their blocks, the
accesses of one thread, and what memory moves by their arrays. Otherwise each value is compared with
PyTorch's in float64 on the same device, both are replayed by turns, and a line is printed: GB/s of
the bytes that have to be moved, as a part of the rate of PyTorch's copy of 1 GiB, and PyTorch's
time by ours. The exit status says whether all values are right.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from baregrad import render
from baregrad.base.options import options
from baregrad.dtypes import as_dtype, dtypes
from baregrad.engine.compiler import Compiler
from baregrad.engine.session import Session, use_session
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.kernel import grid_size
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from benchmarks.kernel_digests import listening

GIB = 1 << 30
CALLS = 20
# Largest error by the largest magnitude, of values and sums of each dtype.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-7}


@dataclass(frozen=True, slots=True)
class Case:
    """Work on arrays of `shapes` and one dtype that has to move `nbytes` bytes.

    ours, theirs: what is computed of them, as a list. The last array may be a gradient.
    """

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int
    ours: Callable[..., Sequence[Tensor]]
    theirs: Callable[..., Sequence[Any]]


def _torch() -> Any:
    import torch

    return torch


def _both(
    name: str, dtype: str, shapes: Sequence[tuple[int, ...]], nbytes: int, work: Callable[..., Any]
) -> Case:
    """A case that both frameworks spell alike."""
    return Case(name, dtype, tuple(shapes), nbytes,
                lambda *x: [work(*x)], lambda *x: [work(*x)])  # fmt: skip


def _with_gradients(work: Callable[..., Any], ours: bool, every: Sequence[Any]) -> list[Any]:
    """The result of `work` and the gradients of all arrays but the last, which is the result's."""
    fresh = [one.detach().requires_grad_() for one in every[:-1]]
    result = work(*fresh)
    if not ours:
        return [result.detach(), *_torch().autograd.grad(result, fresh, every[-1])]
    result.backward(every[-1])
    return [result.detach(), *[one.grad for one in fresh]]


def _gradients(
    name: str, dtype: str, shapes: Sequence[tuple[int, ...]], nbytes: int,
    ours: Callable[..., Any], theirs: Callable[..., Any],
) -> Case:  # fmt: skip
    return Case(
        name, dtype, tuple(shapes), nbytes,
        lambda *x: _with_gradients(ours, True, x), lambda *x: _with_gradients(theirs, False, x),
    )  # fmt: skip


def _chain(x: Any) -> Any:
    return ((x * 2 + 1).relu() * x - 3).abs()


def _maps() -> Iterator[Case]:
    n = 1 << 28
    yield _both("x + 1", "float32", [(n,)], 8 * n, lambda x: x + 1)
    yield _both("x + 1, odd", "float32", [(n - 3,)], 8 * n, lambda x: x + 1)
    yield _both("x + 1 of bfloat16", "bfloat16", [(n,)], 4 * n, lambda x: x + 1)
    yield _both("copy", "float32", [(n,)], 8 * n, lambda x: x.clone())
    yield _both("chain of five", "float32", [(n,)], 8 * n, _chain)
    yield _both("a row added to rows", "float32", [(1 << 16, 4095), (4095,)], 8 * n,
                lambda x, y: x + y)  # fmt: skip
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        yield _both(f"transpose {dtype}", dtype, [(8192, 8192)], 2 * size << 26,
                    lambda x: x.transpose(0, 1).contiguous())  # fmt: skip
    yield _both("channels last", "bfloat16", [(64, 256, 56, 56)], 4 * 64 * 256 * 3136,
                lambda x: x.permute(0, 2, 3, 1).contiguous())  # fmt: skip


def _sums() -> Iterator[Case]:
    n = 1 << 28
    yield _both("sum", "float32", [(n,)], 4 * n, lambda x: x.sum())
    yield _both("sum of columns", "float32", [(1 << 14, 1 << 14)], 4 * n, lambda x: x.sum(0))
    yield _both("sum of rows", "float32", [(1 << 15, 1 << 13)], 4 * n, lambda x: x.sum(1))
    yield _both("gradient of a bias", "bfloat16", [(8192, 3072)], 2 * 8192 * 3072,
                lambda x: x.sum(0))  # fmt: skip
    yield _both("argmax 64x128256", "float32", [(64, 128256)], 4 * 64 * 128256,
                lambda x: x.argmax(-1))  # fmt: skip
    yield _both("argmax 1x128256", "float32", [(1, 128256)], 4 * 128256, lambda x: x.argmax(-1))
    yield _both("any", "float32", [(n,)], 4 * n, lambda x: (x > 9).any())
    yield _both("all", "float32", [(n,)], 4 * n, lambda x: (x > -9).all())
    image = (64, 256, 56, 56)
    yield Case("batch norm's statistics", "float32", (image,), 8 * 64 * 256 * 3136,
               lambda x: [x.mean((0, 2, 3)), x.var((0, 2, 3))],
               lambda x: [x.mean((0, 2, 3)), x.var((0, 2, 3))])  # fmt: skip


def _rows() -> Iterator[Case]:
    rows, length = 16384, 8192
    n = rows * length
    shape, row = (rows, length), (length,)

    def norm(x: Any, w: Any, b: Any) -> Any:
        return _torch().nn.functional.layer_norm(x, row, w, b)

    def mean_square(x: Any, w: Any) -> Any:
        return _torch().nn.functional.rms_norm(x, row, w, 1e-5)

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x.layer_norm(row, w, b)

    def our_mean_square(x: Tensor, w: Tensor) -> Tensor:
        return x.rms_norm(row, w, 1e-5)

    yield _both("softmax", "bfloat16", [shape], 4 * n, lambda x: x.softmax(-1))
    yield Case("rmsnorm", "bfloat16", (shape, row), 4 * n,
               lambda x, w: [our_mean_square(x, w)], lambda x, w: [mean_square(x, w)])  # fmt: skip
    yield Case("layernorm", "bfloat16", (shape, row, row), 4 * n,
               lambda *x: [ours(*x)], lambda *x: [norm(*x)])  # fmt: skip
    yield _gradients("softmax and gradient", "bfloat16", [shape, shape], 8 * n,
                     lambda x: x.softmax(-1), lambda x: x.softmax(-1))  # fmt: skip
    yield _gradients("rmsnorm and gradients", "bfloat16", [shape, row, shape], 8 * n,
                     our_mean_square, mean_square)  # fmt: skip
    yield _gradients("layernorm and gradients", "bfloat16", [shape, row, row, shape], 8 * n,
                     ours, norm)  # fmt: skip
    yield from _losses()
    for short in (64, 768, 1000):
        many = (1 << 25) // short
        yield _both(f"softmax of {short}", "float32", [(many, short)], 8 * many * short,
                    lambda x: x.softmax(-1))  # fmt: skip


def _losses() -> Iterator[Case]:
    rows, classes = 8192, 50304

    def ours(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        loss = x.cross_entropy(Tensor.arange(rows))
        loss.backward()
        assert x.grad is not None
        return [loss.detach(), x.grad]

    def theirs(x: Any) -> list[Any]:
        torch = _torch()
        x = x.detach().requires_grad_()
        targets = torch.arange(rows, device=x.device)
        loss = torch.nn.functional.cross_entropy(x, targets)
        return [loss.detach(), *torch.autograd.grad(loss, [x])]

    yield Case("cross entropy and gradient", "bfloat16", ((rows, classes),), 6 * rows * classes,
               ours, theirs)  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _maps()
    yield from _sums()
    yield from _rows()


# --- plans ----------------------------------------------------------------------------------------


def show(case: Case, target: Any) -> None:
    """Print the kernels of a case on a machine, none of them run."""
    sinks: dict[Node, None] = {}
    dtype = as_dtype(case.dtype)
    with options.override(device="NULL", cache=False):
        inputs = [Tensor.rand(*shape).cast(dtype).realize() for shape in case.shapes]
        with listening(sinks):
            first, *others = case.ours(*inputs)
            first.realize(*others)
    print(f"\n{case.name}: {case.nbytes / 2**20:.1f} MiB to move")
    compiler = Compiler(target, render.get("ptx"), None, None)
    for sink in sinks:
        graph = canonicalise(sink, target=target)
        for kernel in make_plan(graph, donate={}, target=target).kernels:
            stages = {stage.name: stage.result for stage in compiler.stages(kernel)}
            text = str(stages["render"])
            found = re.findall(r"((?:ld|st)\.global\S*)", text)
            counts = ", ".join(f"{found.count(one)} {one}" for one in sorted(set(found)))
            moved = sum(
                int(count) * as_dtype(name).itemsize
                for name, count in re.findall(r"// (\w+)\[(\d+)\]", text)
            )
            blocks = grid_size(stages["check-shared"])  # type: ignore[arg-type]
            print(f"  {blocks} blocks, arrays of {moved / 2**20:.1f} MiB, a thread: {counts}")
            print(f"    {stages['schedule']}")


# --- times ----------------------------------------------------------------------------------------


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """A replay of PyTorch's work."""
    torch = _torch()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], Any] = graph.replay
    return replay


def timed(work: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Seconds of one of some calls in a row."""
    work()
    wait()
    begin = time.perf_counter()
    for _ in range(CALLS):
        work()
    wait()
    return (time.perf_counter() - begin) / CALLS


def copy_rate(rounds: int) -> float:
    """Bytes per second that a copy of 1 GiB on the device moves, read and written."""
    torch = _torch()
    source = torch.ones(GIB // 4, device="cuda")
    target = torch.empty_like(source)
    replay = captured(lambda: target.copy_(source))
    times = [timed(replay, torch.cuda.synchronize) for _ in range(rounds)]
    return 2 * GIB / statistics.median(times)


def worst_error(found: Sequence[Tensor], wanted: Sequence[Any]) -> float:
    """The largest error of some values, each by its largest magnitude."""
    torch = _torch()
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        plain = one.cast(dtypes.float32) if one.dtype.kind == "float" else one
        here = torch.from_numpy(plain.numpy()).to(other.device)
        if tuple(here.shape) != tuple(other.shape):
            return float("inf")
        scale = max(float(other.double().abs().max()), 1e-30)
        worst = max(worst, float((here.double() - other.double()).abs().max()) / scale)
    return worst


def run(case: Case, session: Session, name: str, rounds: int, copied: float) -> bool:
    """Compare a case's values and times with PyTorch's, and print a line; whether it is right."""
    torch = _torch()
    generator = torch.Generator("cuda").manual_seed(0)
    kind = getattr(torch, case.dtype)
    theirs = [
        torch.randn(shape, generator=generator, device="cuda").to(kind) for shape in case.shapes
    ]
    dtype = as_dtype(case.dtype)
    ours = [Tensor(one.float().cpu().numpy()).cast(dtype).realize() for one in theirs]
    replayed = jit(lambda *every: list(case.ours(*every)))
    for _ in range(3):
        found = replayed(*ours)
    exact = case.dtype == "float32" and "sum" not in case.name and "stat" not in case.name
    wanted = case.theirs(*(theirs if exact else [one.double() for one in theirs]))
    error = worst_error(found, wanted)
    del wanted
    replay = captured(lambda: case.theirs(*theirs))
    device = session.device(name)
    mine, peers = [], []
    for _ in range(rounds):
        mine.append(timed(lambda: replayed(*ours), device.synchronize))
        peers.append(timed(replay, torch.cuda.synchronize))
    a, b = statistics.median(mine), statistics.median(peers)
    rate = case.nbytes / a
    right = error <= TOLERANCE[case.dtype]
    share = rate / copied
    print(f"{case.name:28} {1e6 * a:9.1f} us {1e-9 * rate:7.0f} GB/s, {share:5.2f} of a copy, "
          f"PyTorch {1e6 * b:9.1f} us, ratio {b / a:5.2f}, error {error:.1e}"
          f"{'' if right else '  WRONG'}", flush=True)  # fmt: skip
    return right


def main() -> int:
    """Show plans, or compare; 1 where a value is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plan", action="store_true", help="tell kernels, run nothing")
    parser.add_argument("--target", default="sm_90a", help="the row of `target` of a plan")
    parser.add_argument("--device", default="NV")
    parser.add_argument("--only", default="*", metavar="GLOB")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    every = [case for case in cases() if fnmatch(case.name, chosen.only)]
    if chosen.plan:
        for case in every:
            show(case, gpu_row(chosen.target))
        return 0
    copied = copy_rate(chosen.rounds)
    print(f"a copy of 1 GiB: {1e-9 * copied:.0f} GB/s")
    with options.override(device=chosen.device), use_session(Session()) as session:
        right = [run(case, session, chosen.device, chosen.rounds, copied) for case in every]
        return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())

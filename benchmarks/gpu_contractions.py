"""Contractions of 16-bit floats on a GPU beside PyTorch, and what their kernels are.

    python benchmarks/gpu_contractions.py --plan [--target sm_90a] [--only GLOB]
    python benchmarks/gpu_contractions.py --device NV [--only GLOB] [--rounds 7]

With `--plan` no device is needed: each case is planned, and every kernel that sums products of
16-bit floats is told with its schedule, its grid, and whether it is on the matrix unit; the exit
status says whether all are. Otherwise values are compared with PyTorch's in float64 on the same
device (its largest error by the largest magnitude), both are replayed by turns, and the medians of
the rounds are printed with PyTorch's time by ours.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import numpy as np

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.session import Session, use_session
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.kernel import facts_of, grid_size, lower
from baregrad.kernel.lowering import prepare_pass
from baregrad.kernel.planning.first_schedule import choose
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

CALLS = 20
# Of the largest magnitude: bfloat16 rounds to 8 bits.
TOLERANCE = 2.0**-7
# Products of a kernel that are worth a matrix unit.
LEAST_PRODUCTS = 1 << 16
Make = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Case:
    """Work on arrays of `shapes`; `both` the function of either framework, `products` its sums'.

    gradients: whether those of all inputs are computed as well.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    work: Make
    products: int
    gradients: bool = False


def _matmul(m: int, n: int, k: int, turned: str = "") -> Case:
    a_turned, b_turned = "a" in turned, "b" in turned

    def work(a: Any, b: Any) -> Any:
        return (a.transpose(0, 1) if a_turned else a) @ (b.transpose(0, 1) if b_turned else b)

    shapes = ((k, m) if a_turned else (m, k), (n, k) if b_turned else (k, n))
    name = f"matmul {m}x{n}x{k}" + (f" {turned} turned" if turned else "")
    return Case(name, shapes, work, m * n * k)


def _linear(gradients: bool) -> Case:
    def work(x: Any, w: Any, bias: Any) -> Any:
        y = x @ w.transpose(0, 1) + bias
        return y.gelu() if isinstance(y, Tensor) else _torch().nn.functional.gelu(y)

    shapes = ((8, 1024, 768), (3072, 768), (3072,))
    products = 8 * 1024 * 768 * 3072
    name = "linear 8x1024x768 to 3072, gelu"
    return Case(name, shapes, work, products, gradients)


def _convolution(
    name: str, image: tuple[int, ...], filters: tuple[int, ...], stride: int, padding: int,
    gradients: bool,
) -> Case:  # fmt: skip
    def work(x: Any, w: Any) -> Any:
        if isinstance(x, Tensor):
            return x.conv2d(w, stride=stride, padding=padding)
        return _torch().nn.functional.conv2d(x, w, stride=stride, padding=padding)

    side = (image[2] + 2 * padding - filters[2]) // stride + 1
    products = image[0] * side**2 * int(np.prod(filters))
    return Case(name, (image, filters), work, products, gradients)


def _cases() -> Iterator[Case]:
    for size in (1024, 2048, 4096, 8192):
        yield _matmul(size, size, size)
    yield _matmul(8192, 8192, 1024)
    for turned in ("a", "b", "ab"):
        yield _matmul(4096, 4096, 4096, turned)
    yield _matmul(16, 8192, 8192)
    yield Case("batched 64 x (128x64x128)", ((64, 128, 128), (64, 128, 64)),
               lambda a, b: a @ b, 64 * 128 * 64 * 128)  # fmt: skip
    for gradients in (False, True):
        yield _linear(gradients)
        for name, image, filters, stride, padding in (
            ("conv 3x3", (64, 256, 56, 56), (256, 256, 3, 3), 1, 1),
            ("conv 1x1", (64, 256, 56, 56), (256, 256, 1, 1), 1, 0),
            ("conv 3x3 of 14x14", (64, 256, 14, 14), (256, 256, 3, 3), 1, 1),
            ("conv 3x3 stride 2", (64, 128, 56, 56), (128, 128, 3, 3), 2, 1),
            ("conv 7x7 stride 2", (64, 3, 224, 224), (64, 3, 7, 7), 2, 3),
        ):
            yield _convolution(name, image, filters, stride, padding, gradients)


def _torch() -> Any:
    import torch

    return torch


def title(case: Case) -> str:
    """The name of a case, as it is printed and chosen by."""
    return case.name + (" and gradients" if case.gradients else "")


def computed(case: Case, inputs: list[Tensor], seed: Tensor | None) -> list[Tensor]:
    """The result of a case, and the gradients of its inputs for the gradient `seed`."""
    if seed is None:
        return [case.work(*inputs)]
    fresh = [one.detach().requires_grad_() for one in inputs]
    result = case.work(*fresh)
    result.backward(seed)
    return [result.detach(), *[one.grad for one in fresh if one.grad is not None]]


def result_shape(case: Case) -> tuple[int, ...]:
    """The shape of a case's result."""
    meta = [_torch().empty(shape, device="meta") for shape in case.shapes]
    return tuple(case.work(*meta).shape)


# --- plans ----------------------------------------------------------------------------------------


@contextmanager
def _listening(sinks: dict[Node, None]) -> Iterator[None]:
    real = CompiledBackend.prepare

    def prepare(self: CompiledBackend, program: Any, donated: Any) -> Any:
        sinks[program.sink] = None
        return real(self, program, donated)

    CompiledBackend.prepare = prepare  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompiledBackend.prepare = real  # type: ignore[method-assign]


def kernels_of(case: Case, target: Any) -> list[Node]:
    """The kernels of a case on a machine, none of them run."""
    sinks: dict[Node, None] = {}
    with options.override(device="NULL", cache=False):
        shapes = [*case.shapes, *([result_shape(case)] if case.gradients else [])]
        every = [Tensor.rand(*shape).cast(dtypes.bfloat16).realize()
                 for shape in shapes]  # fmt: skip
        seed = every[-1] if case.gradients else None
        inputs = every[: len(case.shapes)]
        with _listening(sinks):
            results = computed(case, inputs, seed)
            results[0].realize(*results[1:])
    found: list[Node] = []
    for sink in sinks:
        plan = make_plan(canonicalise(sink, target=target), donate={}, target=target)
        found += plan.kernels
    return found


def show(case: Case, target: Any) -> bool:
    """Print the kernels of a case; whether all of its products are on the matrix unit."""
    print(f"\n{title(case)}: {2e-9 * case.products:.1f} GFLOP forward")
    good = True
    for kernel in kernels_of(case, target):
        prepared = prepare_pass(target).run(kernel)
        choice = choose(prepared, target)
        facts = facts_of(prepared)
        reads = [a for a in facts.accesses if not a.write]
        halves = [a for a in reads if a.array.dtype.bits == 16]
        longest = max([facts.points(r.free.union(r.own)) for r in facts.reductions], default=0)
        summed = longest >= LEAST_PRODUCTS and len({a.array for a in halves}) > 1
        text = str(choice.schedule)
        unit = "mma" if "tensorize" in text else "OTHER UNITS" if summed else "no product"
        good = good and unit != "OTHER UNITS"
        arrays = ", ".join(
            f"{'w' if a.write else 'r'} {a.array.dtype}{list(a.array.shape)}"
            for a in {a.array: a for a in facts.accesses}.values()
        )
        blocks = grid_size(lower(kernel, target, choice.schedule))
        print(f"  {unit}: {blocks} blocks, {arrays}")
        if unit != "no product":
            print(f"    {text}")
        for reason in choice.reasons:
            print(f"    because {reason[0].format(*reason[1:])}")
    return good


# --- times ----------------------------------------------------------------------------------------


def peer(case: Case, inputs: list[Any], seed: Any) -> list[Any]:
    """What `computed` gives, in PyTorch."""
    if seed is None:
        return [case.work(*inputs)]
    fresh = [one.detach().requires_grad_() for one in inputs]
    result = case.work(*fresh)
    return [result.detach(), *_torch().autograd.grad(result, fresh, seed)]


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
    return graph.replay


def timed(work: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Seconds of one of some calls in a row."""
    work()
    wait()
    begin = time.perf_counter()
    for _ in range(CALLS):
        work()
    wait()
    return (time.perf_counter() - begin) / CALLS


def run(case: Case, session: Session, name: str, rounds: int) -> bool:
    """Compare a case's values and times with PyTorch's, and print a line; whether it is right."""
    torch = _torch()
    gpu = torch.device("cuda")
    generator = torch.Generator(gpu).manual_seed(0)
    shapes = [*case.shapes, *([result_shape(case)] if case.gradients else [])]
    theirs = [torch.randn(shape, generator=generator, device=gpu, dtype=torch.bfloat16)
              for shape in shapes]  # fmt: skip
    ours = [Tensor(one.float().cpu().numpy()).cast(dtypes.bfloat16).realize() for one in theirs]
    count = len(case.shapes)

    def step(*every: Tensor) -> list[Tensor]:
        return computed(case, list(every[:count]), every[count] if case.gradients else None)

    replayed = jit(step)
    for _ in range(3):
        found = replayed(*ours)
    wide = [one.double() for one in theirs]
    wanted = peer(case, wide[:count], wide[count] if case.gradients else None)
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        here = torch.from_numpy(one.cast(dtypes.float32).numpy()).to(gpu).double()
        worst = max(worst, float((here - other).abs().max() / other.abs().max()))
    del wide, wanted
    replay = captured(lambda: peer(case, theirs[:count], theirs[-1] if case.gradients else None))
    device = session.device(name)
    mine, peers = [], []
    for _ in range(rounds):
        mine.append(timed(lambda: replayed(*ours), device.synchronize))
        peers.append(timed(replay, torch.cuda.synchronize))
    a, b = statistics.median(mine), statistics.median(peers)
    total = 2e-12 * case.products * (3 if case.gradients else 1)
    right = worst <= TOLERANCE
    print(f"{title(case):44} {1e3 * a:9.3f} ms {total / a:7.1f} TFLOP/s, PyTorch {1e3 * b:9.3f} ms "
          f"{total / b:7.1f}, ratio {b / a:5.2f}, error {worst:.1e}{'' if right else '  WRONG'}",
          flush=True)  # fmt: skip
    return right


def main() -> int:
    """Show plans, or compare; 1 where a product is on other units, or a value wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plan", action="store_true", help="tell kernels, run nothing")
    parser.add_argument("--target", default="sm_90a", help="the row of `target` of a plan")
    parser.add_argument("--device", default="NV")
    parser.add_argument("--only", default="*", metavar="GLOB")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    cases = [case for case in _cases() if fnmatch(title(case), chosen.only)]
    if chosen.plan:
        target = gpu_row(chosen.target)
        good = [show(case, target) for case in cases]
        return int(not all(good))
    with options.override(device=chosen.device), use_session(Session()) as session:
        right = [run(case, session, chosen.device, chosen.rounds) for case in cases]
        return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())

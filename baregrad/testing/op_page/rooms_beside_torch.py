"""Runs the calls of `rooms` with drawn sizes, dtypes and numbers here and in PyTorch.

    python -m baregrad.testing.op_page.rooms_beside_torch --cases 20000 --seed 0 --device CPU

Sizes may be 0 or 1; numbers may be special; arrays may lie turned in memory. Results, their dtypes
and gradients are compared as `beside_torch` compares them, those of float64 closer. A call that
either side refuses is counted; what one side alone refuses is listed at the end.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import baregrad
from baregrad import fft, linalg, nn, optim, special
from baregrad.base.errors import BaregradError, MissingDependency
from baregrad.base.options import options
from baregrad.nn import functional
from baregrad.testing.op_page.beside_torch import (
    Told,
    difference,
    flat,
    is_as_near,
    numbers,
    strew,
    total,
)
from baregrad.testing.op_page.rooms import CALLS

_SIZES = (1, 2, 3, 5, 8)
# What arithmetic of special numbers makes of these has no one answer: sums of infinities, ties.
_ORDINARY = (
    "linalg", "fft", "nn.", "trained", "F.grid", "F.interp", "F.conv", "F.binary", "interpolate",
    "cdist", "pdist", "cov", "quantile", "histc", "kron", "einsum", "addmm", "logdet", "zeta",
    "polar", "complex", "lp_pool", "lerp", "int32", "polygamma", "multigammaln", "triplet", "angle",
    "cosine", "scatter_reduce", "F.softmin", "normalize", "_norm", "median", "mode", "searchsorted",
    "bucketize", "sort", "topk", "F.scaled", "huber", "smooth", "hinge", "ranking", "F.kl",
    "trapez",
    "dist", "F.bilinear", "F.gelu", "silu", "hardswish", "mish", "logsigmoid", "F.glu", "remainder",
    "fmod", "atan2", "special", "softsign", "std", "var", "cum", "prod", "addcmul", "diff",
    "nan_to",
    "gaussian", "poisson", "soft_margin", "tensordot", "F.linear", "matmul", "bmm", "outer",
    "logsumexp", "cross_entropy", "nll_loss", "hardsigmoid", "tanhshrink", "nanmean", "softplus",
    "amax", "aminmax", "pool", "threshold", "shrink", "prelu", "norm(", "masked_select", "elu",
)  # fmt: skip
# Gradients that PyTorch gives otherwise: of ties, by a sixth in float32; and those of few elements
# normalised, which are what rounding leaves of them.
_WITHOUT_GRADIENTS = (
    "adaptive_max", "max_pool", "F.pdist", "linalg.pinv", "scatter(", "hardsigmoid", "_norm(",
    "celu", "Norm",
)


class RoomCase(NamedTuple):
    """A call, the dtype of its floats, its sizes, and what its arrays hold."""

    call: str
    dtype: str
    sizes: tuple[int, ...]
    special: bool
    turned: bool
    number: int
    seed: int

    def __str__(self) -> str:
        facts = f"{self.dtype} {list(self.sizes)}"
        facts += f"{', special' * self.special}{', turned' * self.turned}"
        return f"{self.call} ({facts}; case {self.number} of seed {self.seed})"


def drawn_case(seed: int, number: int) -> RoomCase:
    """The case of this number; calls take turns."""
    random = np.random.default_rng((seed, number))
    call = CALLS[number % len(CALLS)]
    dtype = str(random.choice(("float32", "float64", "bfloat16"), p=(0.6, 0.25, 0.15)))
    if any(word in call for word in ("linalg", "fft", "logdet", "complex", "polar", "special")):
        dtype = "float64" if dtype == "bfloat16" else dtype
    sizes = [int(one) for one in random.choice(_SIZES, 5)]
    if random.random() < 0.1:
        sizes[int(random.integers(5))] = 0
    hostile, turned = random.random(2) < 0.3
    hostile = hostile and dtype != "bfloat16" and not any(word in call for word in _ORDINARY)
    return RoomCase(call, dtype, tuple(sizes), bool(hostile), bool(turned), number, seed)


def arrays(case: RoomCase) -> dict[str, Any]:
    """The arrays that the calls name; floats in float64."""
    random = np.random.default_rng((case.seed, case.number, 1))
    a, b, c, h, w = case.sizes
    shapes = {"x": (a, b, c), "y": (a, b, c), "m": (b, c), "v": (c,), "s": (b, b), "p": (a, b, c),
              "u": (a, b, c), "img": (a, 4, h, w), "line": (a, 4, w)}  # fmt: skip
    made: dict[str, Any] = {name: random.standard_normal(shape) * 1.5
                            for name, shape in shapes.items()}  # fmt: skip
    made["p"] = np.abs(made["p"]) + 0.1
    made["u"] = random.random((a, b, c)) * 0.9 + 0.05
    if case.special:
        strew(random, made)
    made["e"] = np.eye(b)
    made["n"] = random.integers(-3, 4, (a, b, c))
    made["k"] = random.random((a, b, c)) < 0.5
    made["ids"] = random.integers(0, 3, (a, b))
    return made


def run(
    case: RoomCase, side: SimpleNamespace, values: dict[str, Any] | None = None
) -> list[tuple[str, Any]]:
    """The results of a case on one side, dtypes first, then gradients; of its arrays or others."""
    def tensor(value: Any) -> Any:
        return side.cast(side.t.tensor(np.ascontiguousarray(value)), case.dtype)

    def held(module: Any) -> Any:
        if type(module).__name__.startswith("Lazy"):
            return _Filled(module, held)
        module = module.to(dtype=getattr(side.t, case.dtype))
        for place, parameter in enumerate(module.parameters()):
            random = np.random.default_rng((place, *parameter.shape))
            parameter.data = tensor(random.standard_normal(tuple(parameter.shape)) * 0.4)
        return module

    leaves, made = [], {}
    for name, value in (arrays(case) if values is None else values).items():
        turned = case.turned and value.ndim > 1
        one = side.t.tensor(np.ascontiguousarray(value.T if turned else value))
        if value.dtype.kind == "f":
            one = side.cast(one, case.dtype).detach().requires_grad_()
            leaves.append(one)
            one = one * 1
        made[name] = one.permute(*range(value.ndim)[::-1]) if turned else one

    def trained(kind: Any, **settings: Any) -> Any:
        weight = made["x"].detach().clone().requires_grad_()
        optimiser = kind([weight], **settings)
        for step in range(3):
            optimiser.zero_grad()
            ((weight - step) * made["y"].detach() + weight * weight).sum().backward()
            optimiser.step()
        return weight.detach()

    space = {**made, **vars(side), "held": held, "trained": trained}
    results = flat(eval(case.call, {"__builtins__": {"range": range}}, space))  # noqa: S307
    told = [(str(getattr(one, "dtype", "")).removeprefix("torch."), numbers(one))
            for one in results]  # fmt: skip
    summed = None
    # Those of bfloat16 are rounded in the middle, here and there at other places.
    ordinary = not case.special and case.dtype != "bfloat16"
    if ordinary and not any(word in case.call for word in _WITHOUT_GRADIENTS):
        summed = total(results, lambda x: getattr(x, "requires_grad", False))
    if summed is not None:
        summed.backward()
        told += [("", None if x.grad is None else numbers(x.grad)) for x in leaves]
    return told


class _Filled:
    """A lazy module that gets its parameters' numbers when it has parameters."""

    def __init__(self, module: Any, held: Callable[[Any], Any]) -> None:
        self.module, self.held = module, held

    def __call__(self, *args: Any) -> Any:
        self.module.to(dtype=args[0].dtype)
        self.module(*args)
        return self.held(self.module)(*args)


@functools.lru_cache(maxsize=2)
def sides() -> tuple[SimpleNamespace, SimpleNamespace]:
    """Our namespaces, and PyTorch's."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependency("PyTorch is compared with", package="torch") from error
    ours = SimpleNamespace(
        t=baregrad, F=functional, nn=nn, linalg=linalg, fft=fft, special=special, optim=optim,
        cast=lambda x, dtype: x.cast(dtype),
    )  # fmt: skip
    theirs = SimpleNamespace(
        t=torch, F=torch.nn.functional, nn=torch.nn, linalg=torch.linalg, fft=torch.fft,
        special=torch.special, optim=torch.optim,
        cast=lambda x, dtype: x.to(getattr(torch, dtype)),
    )  # fmt: skip
    return ours, theirs


def compare(case: RoomCase) -> Told:
    """Run a case on both sides."""
    ours, theirs = sides()
    try:
        wanted = run(case, theirs)
    except Exception as error:  # noqa: BLE001 - whatever PyTorch refuses it with
        return Told("none", f"{type(error).__name__}: {error}"[:200])
    try:
        found = run(case, ours)
    except (BaregradError, TypeError, AttributeError) as error:
        return Told("refused", f"{type(error).__name__}: {error}"[:200])
    if len(found) < len(wanted):
        found += [("", None)] * (len(wanted) - len(found))
    for place, (mine, other) in enumerate(zip(found, wanted, strict=False)):
        if mine[1] is None and other[1] is None:
            continue
        how = difference(_filled(mine, other), _filled(other, mine), case.dtype)
        if how and not is_as_near(
            _filled(mine, other), case.dtype, arrays(case), place,
            lambda values, dtype: run(case._replace(dtype=dtype), theirs, values),
        ):
            return Told("different", f"result {place}: {how}")
    return Told("same")


def _filled(one: tuple[str, Any], other: tuple[str, Any]) -> tuple[str, Any]:
    """A result; where it is no gradient, zeros, as many as the other side has."""
    return one if one[1] is not None else (one[0], np.zeros(np.shape(other[1])))


def main() -> None:
    """Run cases, and tell those that differ."""
    parser = argparse.ArgumentParser(description="Compare calls of the rooms with PyTorch's.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="CPU")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    told: Counter[str] = Counter()
    refused: dict[str, str] = {}
    warnings.simplefilter("ignore")
    with options.override(device=asked.device):
        for number in range(asked.first, asked.first + asked.cases):
            case = drawn_case(asked.seed, number)
            found = compare(case)
            counts[found.outcome] += 1
            if found.outcome == "refused":
                refused.setdefault(case.call, f"{case}: {found.how}")
            if found.outcome == "different":
                told[case.call] += 1
                if told[case.call] <= 2:
                    print(f"{case}\n    {found.how}", flush=True)
    for text in refused.values():
        print("refused here:", text)
    print(dict(counts))


if __name__ == "__main__":
    main()

"""Runs the sound calls of all operations with drawn numbers here and in PyTorch, and compares.

    python -m baregrad.testing.op_page.beside_torch --cases 20000 --seed 0 --device CPU

A case is drawn from the seed and its number: an operation, a dtype, numbers of which some are
special, and whether arrays lie in memory as they are told. Results and their dtypes are compared,
and gradients where no number is special: at edges PyTorch has no one rule. A call that PyTorch
takes and we refuse with an error of the tree is counted, not told.
"""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from baregrad.base.errors import BaregradError, MissingDependency
from baregrad.base.options import options
from baregrad.tensor import Tensor
from baregrad.testing.op_page.facts import FLOATS, KINDS, arrays, run_call
from baregrad.testing.op_page.samples import DIFFERENCES, call_of, operations

_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e20, 1.0, -1.0, 0.5, 2.5)
# By how much results may differ, beside a part of the same size of the largest of them: what each
# dtype rounds to, and what sums of a few dozen products in another order leave.
_TOLERANCE = MappingProxyType({
    "float32": 2e-5, "bfloat16": 2e-2, "complex64": 4e-5, "float64": 1e-9, "complex128": 1e-9,
})
# What draws numbers, leaves memory as it is, or goes where PyTorch may have nothing to go to.
_NOT_COMPARED = frozenset(
    name for name, how in DIFFERENCES.items()
    if any(word in how for word in ("other numbers", "ours alone", "saturate"))
) | {
    "cdist", "to_device", "cuda", "pin_memory", "empty", "new", "new_empty", "empty_like",
    "new_empty_strided", "data_ptr", "const_data_ptr", "resize_", "set_", "is_shared", "storage",
    "untyped_storage",
}  # fmt: skip


# As near to the truth as PyTorch is who is not further from it than so many times what PyTorch is
# at the case's numbers or at one of so many sets of numbers beside them.
_AS_NEAR = 4.0
_NEIGHBOURS = 6
# Where the truth is computed, and what a dtype's parts are.
_WIDER = MappingProxyType({"float32": "float64", "bfloat16": "float64", "complex64": "complex128"})
_PARTS = MappingProxyType({"complex64": "float32"})
# Dtypes of which gradients are compared too.
_DIFFERENTIATED = ("float32", "float64")


class DrawnCall(NamedTuple):
    """A call of one operation, and what its tensors hold."""

    name: str
    dtype: str
    special: bool
    turned: bool
    number: int
    seed: int

    def __str__(self) -> str:
        facts = f"{self.dtype}{', special' * self.special}{', turned' * self.turned}"
        return f"{call_of(self.name)} ({facts}; case {self.number} of seed {self.seed})"


class Told(NamedTuple):
    """What came of a case: "same", "refused" here, "none" there, or "different", and how.

    "documented" is a difference of an operation that has one on its page.
    """

    outcome: str
    how: str = ""


def drawn_case(seed: int, number: int) -> DrawnCall:
    """The case of this number; operations take turns."""
    names = compared()
    random = np.random.default_rng((seed, number))
    kind = KINDS[random.choice(len(KINDS), p=(0.5, 0.1, 0.15, 0.05, 0.1, 0.1))][0]
    special, turned = random.random(2) < 0.3
    name = names[number % len(names)]
    # At infinity PyTorch has NaN where we have the limit.
    special = special and "infinity" not in DIFFERENCES.get(name, "")
    return DrawnCall(name, kind, bool(special), bool(turned), number, seed)


@functools.lru_cache(maxsize=1)
def compared() -> tuple[str, ...]:
    """The operations that PyTorch has too."""
    return tuple(name for name in operations() if name not in _NOT_COMPARED)


def _values(case: DrawnCall) -> dict[str, Any]:
    random = np.random.default_rng((case.seed, case.number, 1))
    made = arrays(random, case.dtype)
    if case.special and case.dtype == "float32":
        strew(random, made)
    return made


def strew(random: np.random.Generator, made: dict[str, Any]) -> None:
    """Put special numbers into some elements of the arrays `x` and `y`."""
    for name in ("x", "y"):
        places = random.random(made[name].shape) < 0.3
        made[name][places] = random.choice(_SPECIAL, int(places.sum()))


def compare(case: DrawnCall) -> Told:
    """Run a case on both sides."""
    values = _values(case)
    try:
        wanted = _peer_results(case, values)
    except Exception as error:  # noqa: BLE001 - whatever PyTorch refuses it with
        return Told("none", f"{type(error).__name__}: {error}"[:200])
    try:
        found = _our_results(case, values)
    except (BaregradError, TypeError) as error:
        return Told("refused", f"{type(error).__name__}: {error}"[:200])
    # Where one side has no gradients at all, those of the other are to be zeros.
    if len(found) < len(wanted):
        found += [("", np.zeros(np.shape(one))) for _, one in wanted[len(found) :]]
    elif len(wanted) < len(found):
        wanted += [("", np.zeros(np.shape(one))) for _, one in found[len(wanted) :]]
    for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        how = difference(ours, theirs, case.dtype)
        if how and not is_as_near(
            ours, case.dtype, values, place,
            lambda arrays, dtype: _peer_results(case._replace(dtype=dtype), arrays),
        ):
            outcome = "documented" if case.name in DIFFERENCES else "different"
            return Told(outcome, f"result {place}: {how}")
    return Told("same")


def is_as_near(
    ours: Any, dtype: str, values: dict[str, Any], place: int,
    peer: Callable[[dict[str, Any], str], list[tuple[str, Any]]],
) -> bool:
    """Whether our numbers are about as near to those of twice the digits as PyTorch's are here.

    `peer` computes PyTorch's results of arrays in a dtype. Its errors are taken at the case's
    arrays and at some that lie one rounding beside them: the largest follows the condition of the
    problem, as of a logarithm's gradient at a matrix that is nearly singular, and of one rounding
    by itself the error may happen to be next to none. What is larger than the dtype's numbers comes
    as an infinity or as none at all, as sums happen to pass their bounds.
    """
    if dtype not in _WIDER:
        return False
    import torch

    largest = torch.finfo(getattr(torch, dtype)).max
    a = np.asarray(ours[1])
    error, limit = np.inf, 0.0
    for number in range(1 + _NEIGHBOURS):
        beside = _rounded(values, dtype, number)
        try:
            told, exact = peer(beside, dtype), peer(beside, _WIDER[dtype])
        except Exception:  # noqa: BLE001 - such as of gradients that this dtype alone has
            return False
        if place >= min(len(told), len(exact)):
            return False
        b, truth = (np.asarray(one[place][1]) for one in (told, exact))
        if a.dtype.kind not in "fc" or not a.shape == b.shape == truth.shape:
            return False
        with np.errstate(all="ignore"):
            beyond = np.isfinite(truth) & (np.abs(truth) > largest)
            finite = np.isfinite(truth) & ~beyond
            if np.isfinite(a[beyond]).any():
                return False
            off = float(np.abs(b - truth)[finite].max(initial=0.0))
            if not number:
                if told[place][0] != ours[0] or not np.array_equal(
                    a[~(finite | beyond)], b[~(finite | beyond)], equal_nan=True
                ):
                    return False
                error = float(np.abs(a - truth)[finite].max(initial=0.0))
        limit = max(limit, off) if np.isfinite(off) else limit
    return error <= _AS_NEAR * limit


def _rounded(values: dict[str, Any], dtype: str, number: int) -> dict[str, Any]:
    """Arrays of floats rounded to a dtype; those of a number above 0 moved by a rounding first."""
    import torch

    random = np.random.default_rng(number)
    made = {}
    for name, one in values.items():
        if one.dtype.kind != "f":
            made[name] = one
            continue
        kind = getattr(torch, _PARTS.get(dtype, dtype))
        step = torch.finfo(kind).eps * bool(number)
        moved = one * (1 + step * random.choice((-1.0, 1.0), one.shape))
        made[name] = torch.tensor(moved).to(kind).double().numpy()
    return made


def difference(ours: Any, theirs: Any, dtype: str) -> str:
    """How two results differ, "" where they do not; the first of each pair is its dtype."""
    if ours[0] != theirs[0]:
        return f"dtype {ours[0]} for {theirs[0]}"
    a, b = np.asarray(ours[1]), np.asarray(theirs[1])
    if a.shape != b.shape:
        return f"shape {a.shape} for {b.shape}"
    if a.dtype.kind not in "fc":
        return "" if np.array_equal(a, b) else f"{a.tolist()} for {b.tolist()}"[:200]
    finite = np.abs(b[np.isfinite(b)])
    # Gradients are differences of numbers that are about 1.
    scale = max(float(finite.max()) if finite.size else 0.0, 0.1 if ours[0] else 1.0)
    within = _TOLERANCE.get(dtype, 2e-5)
    with np.errstate(all="ignore"):
        same = np.isclose(a, b, rtol=within, atol=within * min(scale, 1e30), equal_nan=True)
    return "" if bool(same.all()) else f"{a[~same][:4].tolist()} for {b[~same][:4].tolist()}"


def flat(result: Any) -> list[Any]:
    """What a result holds, tuples and lists laid out."""
    if isinstance(result, tuple | list):
        return [one for part in result for one in flat(part)]
    return [result]


def _our_results(case: DrawnCall, values: dict[str, Any]) -> list[tuple[str, Any]]:
    made: dict[str, Any] = {}
    leaves: list[Tensor] = []
    for name, value in values.items():
        x = Tensor(np.ascontiguousarray(value.T)).permute(*range(value.ndim)[::-1]) \
            if case.turned else Tensor(value)  # fmt: skip
        if name in FLOATS:
            x = x.cast(case.dtype)
            if case.dtype in _DIFFERENTIATED:
                x = x.detach().requires_grad_()
                leaves.append(x)
                x = x * 1
        made[name] = x
    results = flat(run_call(call_of(case.name), made, Tensor))
    told = [(str(getattr(one, "dtype", "")), numbers(one)) for one in results]
    summed = None if case.special else total(results, lambda x: x.requires_grad)
    if summed is not None:
        summed.backward()
        told += [("", np.zeros(x.shape) if x.grad is None else x.grad.numpy()) for x in leaves]
    return told


def numbers(x: Any) -> Any:
    """A result of either side as NumPy's."""
    if not hasattr(x, "detach"):
        return x
    plain = x.detach()
    if not isinstance(plain, Tensor):
        plain = plain.resolve_conj()
        return (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
    return (plain.cast("float32") if str(plain.dtype) == "bfloat16" else plain).numpy()


def total(results: list[Any], carries: Any) -> Any:
    """A sum of results, each element with a weight of its own, for gradients."""
    summed = None
    for one in results:
        if not hasattr(one, "shape") or not carries(one):
            continue
        size = one.abs() if "complex" in str(one.dtype) else one
        weights = np.cos(np.arange(size.numel())) * 0.5 + 1
        part = (size * size.new_tensor(weights.reshape(tuple(size.shape)))).sum()
        summed = part if summed is None else summed + part
    return summed


def _peer_results(case: DrawnCall, values: dict[str, Any]) -> list[tuple[str, Any]]:
    try:
        import torch
    except ImportError as error:
        raise MissingDependency("PyTorch is compared with", package="torch") from error

    kind = _peer_class()
    made: dict[str, Any] = {}
    leaves: list[Any] = []
    for name, value in values.items():
        x = torch.tensor(value)
        if case.turned:
            x = torch.tensor(np.ascontiguousarray(value.T)).permute(*range(value.ndim)[::-1])
        if name in FLOATS:
            x = x.to(getattr(torch, case.dtype))
            if case.dtype in _DIFFERENTIATED:
                x = x.detach().requires_grad_()
                leaves.append(x)
                x = x * 1
        made[name] = x.as_subclass(kind)
    results = flat(run_call(call_of(case.name), made, torch))
    told = []
    for one in results:
        dtype = str(getattr(one, "dtype", "")).removeprefix("torch.")
        plain = one.as_subclass(torch.Tensor) if isinstance(one, torch.Tensor) else one
        told.append((dtype, numbers(plain)))
    summed = None if case.special else total(
        results, lambda x: isinstance(x, torch.Tensor) and x.requires_grad
    )
    if summed is not None:
        summed.backward()
        told += [("", np.zeros(x.shape) if x.grad is None else x.grad.numpy()) for x in leaves]
    return told


@functools.lru_cache(maxsize=1)
def _peer_class() -> Any:
    import torch

    class Peer(torch.Tensor):  # type: ignore[misc]
        """A tensor of PyTorch that has its functions as methods, as ours have."""

        def __getattr__(self, name: str) -> Any:
            places = (torch.nn.functional, torch)
            names = {"im2col": "unfold", "col2im": "fold", "cast": "to", "bitcast": "view"}
            for place in places:
                found = getattr(place, names.get(name, name), None)
                if found is not None:
                    return functools.partial(found, self)
            raise AttributeError(name)

    return Peer


def main() -> None:
    """Run cases, and tell those that differ."""
    parser = argparse.ArgumentParser(description="Compare all operations with PyTorch's.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="CPU")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    told: set[tuple[str, str]] = set()
    refused: set[str] = set()
    with options.override(device=asked.device):
        for number in range(asked.first, asked.first + asked.cases):
            case = drawn_case(asked.seed, number)
            found = compare(case)
            counts[found.outcome] += 1
            if found.outcome == "refused":
                refused.add(f"{case.name} of {case.dtype}")
            if found.outcome == "different" and (case.name, case.dtype) not in told:
                told.add((case.name, case.dtype))
                print(f"{case}\n    {found.how}", flush=True)
    print("refused here:", ", ".join(sorted(refused)) or "nothing")
    print(dict(counts))


if __name__ == "__main__":
    main()

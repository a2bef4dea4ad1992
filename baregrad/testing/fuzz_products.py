"""Random contractions and attentions of all dtypes and layouts, beside NumPy's in float64.

    python -m baregrad.testing.fuzz_products --cases 50000 --seed 0 --minutes 3 --processes 8

A case follows from its seed; `--only SEED` runs one again. Half of the numbers drawn are small
whole ones, whose sums are exact in any order: then a result is the exact one, rounded as often as
its dtype says. Of others it may be off by the bounds that `_allowed` and `_attended` state. Exits
with 1 if any case differs.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import OutOfMemory
from baregrad.base.options import is_gpu, options
from baregrad.base.progress import ProgressBar
from baregrad.dtypes import DType, as_dtype, decode, dtypes, encode, finfo
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_workers import Chunk, spread

Array = npt.NDArray[Any]
SESSION_EVERY = 200


@dataclass(frozen=True, slots=True)
class CaseLimits:
    """The longest axis, the most products of a case, and the most elements of an array."""

    most: int = 4096
    products: int = 1 << 28
    elements: int = 1 << 22


# What an interpreter of GPU programs does in a second or less.
SMALL = CaseLimits(96, 1 << 18, 1 << 13)


@dataclass(frozen=True, slots=True)
class Kinds:
    """The dtypes of both factors and of the result. asked: as `out_dtype`; high: by tfloat32."""

    left: str
    right: str
    out: str
    asked: bool = False
    high: bool = False


_E4M3, _E5M2 = "float8_e4m3fn", "float8_e5m2"
KINDS = (
    *[Kinds(one, one, one) for one in ("float32", "bfloat16", "float16") for _ in range(3)],
    Kinds("float32", "float32", "float32", high=True),
    Kinds("tfloat32", "tfloat32", "float32", asked=True),
    Kinds("float64", "float64", "float64"),
    Kinds("bfloat16", "float32", "float32"),
    Kinds("bfloat16", "bfloat16", "float32", asked=True),
    Kinds("float16", "float16", "float32", asked=True),
    *[Kinds(one, other, out, asked=True) for one in (_E4M3, _E5M2) for other in (_E4M3, _E5M2)
      for out in ("float32", "bfloat16")],
    *[Kinds(one, one, "int32", asked=True) for one in ("int8", "uint8")],
    *[Kinds(one, one, one) for one in ("int8", "int16", "int32", "int64", "uint8", "bool")],
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProductCase:
    """A product of two arrays summed over the axes that the result has not.

    equation: as `einsum` takes it; by_matmul: the operation is `matmul`, of the last two axes.
    after: what is done with the result. gradients: of both factors, for a gradient of the result.
    """

    equation: str
    sizes: tuple[tuple[str, int], ...]
    kinds: Kinds
    whole: bool
    by_matmul: bool
    after: str = ""
    gradients: bool = False


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """softmax(q k^T / sqrt(d)) v over heads; keys and values are of `groups` of them."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    values: int
    dtype: str
    mask: str


Case = ProductCase | AttentionCase


# --- what is drawn -------------------------------------------------------------------------------


def drawn(seed: int, limits: CaseLimits) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    return _attention(rng, limits) if rng.random() < 0.2 else _contraction(rng, limits)


def _size(rng: Random, most: int) -> int:
    """From 1 to `most`, all magnitudes alike; often what vectors or tiles divide."""
    size = round(2 ** rng.uniform(0, np.log2(most)))
    step = rng.choice((1, 1, 2, 4, 8, 16, 32, 64, 128))
    return max(size // step * step, 1)


def _fit(rng: Random, sizes: dict[str, int], groups: Sequence[str], limits: CaseLimits) -> None:
    """Halve sizes until products and arrays, whose axes `groups` name, are within limits."""
    bounds = (limits.products, *[limits.elements for _ in groups[1:]])
    for letters, bound in zip(groups, bounds, strict=True):
        while prod(sizes[letter] for letter in letters) > bound:
            letter = rng.choice([one for one in letters if sizes[one] > 1])
            sizes[letter] = -(-sizes[letter] // 2)


def _contraction(rng: Random, limits: CaseLimits) -> ProductCase:
    kinds = rng.choice(KINDS)
    is_float = as_dtype(kinds.out).is_float
    whole = not is_float or "float8" in kinds.left or rng.random() < 0.5
    by_matmul = kinds.asked or rng.random() < 0.6
    counts = (1, 1, 1) if by_matmul else (rng.randint(0, 2), rng.randint(0, 2), rng.randint(1, 2))
    rows, columns, summed = ("mi"[: counts[0]], "nj"[: counts[1]], "kl"[: counts[2]])
    shared = "ab"[: rng.choice((0, 0, 0, 1, 1, 2))]
    sizes = {letter: _size(rng, limits.most) for letter in shared + rows + columns + summed}
    left, right, out = shared + rows + summed, shared + summed + columns, shared + rows + columns
    _fit(rng, sizes, (shared + rows + columns + summed, left, right, out), limits)
    if not by_matmul:
        left, right, out = ("".join(rng.sample(term, len(term))) for term in (left, right, out))
    gradients = is_float and not kinds.asked and rng.random() < 0.3
    after = "" if gradients or not is_float else rng.choice(("", "", "bias", "relu", "half"))
    return ProductCase(
        f"{left},{right}->{out}", tuple(sizes.items()), kinds, whole, by_matmul, after, gradients
    )


def _attention(rng: Random, limits: CaseLimits) -> AttentionCase:
    dtype = rng.choice(("bfloat16", "bfloat16", "float16", "float32"))
    heads, groups = rng.choice(((1, 1), (2, 1), (4, 1), (4, 2), (3, 1), (8, 4)))
    width = rng.choice((1, 8, 16, 24, 32, 64, 64, 80, 128, 128, 256))
    values = width if rng.random() < 0.8 else rng.choice((8, 16, 48, 64, 128))
    sizes = {
        "b": rng.choice((1, 1, 2, 3)), "h": heads, "q": _size(rng, limits.most),
        "k": _size(rng, limits.most), "d": max(width, values),
    }
    _fit(rng, sizes, ("bhqkd", "bhqd", "bhkd", "bhqk"), limits)
    mask = rng.choice(("", "", "causal", "causal", "bool", "added"))
    if sizes["h"] != heads:
        # Fewer than were drawn: one group has them all.
        heads, groups = sizes["h"], 1
    return AttentionCase(
        sizes["b"], heads, groups, sizes["q"], sizes["k"], min(width, sizes["d"]),
        min(values, sizes["d"]), dtype, mask,
    )  # fmt: skip


def _numbers(rng: np.random.Generator, shape: Sequence[int], dtype: DType, whole: bool) -> Array:
    """Numbers that a dtype has, as float64: small whole ones, or normal ones."""
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.float64) * (rng.random(shape) < 0.3)
    if not dtype.is_float:
        low, high = max(int(dtype.min), -128), min(int(dtype.max), 127)
        return rng.integers(low, high + 1, shape).astype(np.float64)
    if whole:
        return rng.integers(-4, 5, shape).astype(np.float64)
    return _rounded(rng.standard_normal(shape), dtype)


def _rounded(values: Array, dtype: DType) -> Array:
    """Float64 as a dtype has it."""
    if dtype is dtypes.float64:
        return values
    return decode(encode(values, dtype), dtype).astype(np.float64)


def _laid_out(rng: Random, values: Array, dtype: DType) -> Tensor:
    """A tensor of numbers whose axes lie in any order in memory, sometimes part of more."""
    order = list(range(values.ndim))
    if rng.random() < 0.6:
        rng.shuffle(order)
    stored = np.asarray(values.transpose(order), order="C")
    pads = [rng.choice((1, 3, 8)) if rng.random() < 0.1 else 0 for _ in order]
    if any(pads):
        stored = np.pad(stored, [(0, pad) for pad in pads], constant_values=1)
    kind = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    kind = dtype if not dtype.is_float else kind
    whole = Tensor(stored.astype(str(kind))).cast(dtype).contiguous().realize()
    cut = whole[tuple([slice(0, values.shape[axis]) for axis in order])] if any(pads) else whole
    found = cut.permute([order.index(axis) for axis in range(values.ndim)]) if order else cut
    if values.ndim and rng.random() < 0.05:
        # Read backwards, what lies backwards.
        axis = rng.randrange(values.ndim)
        found = found.flip(axis).contiguous().realize().flip(axis)
    return found


# --- contractions --------------------------------------------------------------------------------


def _check_contraction(case: ProductCase, seed: int) -> str | None:
    rng, random = np.random.default_rng(seed), Random(seed + 1)
    sizes = dict(case.sizes)
    terms, out = case.equation.split("->")
    left, right = terms.split(",")
    kinds = [as_dtype(name) for name in (case.kinds.left, case.kinds.right)]
    a, b = (
        _numbers(rng, [sizes[letter] for letter in term], kind, case.whole)
        for term, kind in zip((left, right), kinds, strict=True)
    )
    x, y = (_laid_out(random, one, kind) for one, kind in zip((a, b), kinds, strict=True))
    is_high = case.kinds.high and is_gpu(options.device)
    if is_high:
        a, b = _rounded(a, dtypes.tfloat32), _rounded(b, dtypes.tfloat32)
    target = as_dtype(case.kinds.out)
    if case.gradients:
        x.requires_grad_()
        y.requires_grad_()
    with options.override(matmul_precision="high" if case.kinds.high else "highest"):
        if case.kinds.asked:
            found = x.matmul(y, out_dtype=target)
        else:
            found = x @ y if case.by_matmul else Tensor.einsum(case.equation, x, y)
        if case.gradients:
            g = _numbers(rng, found.shape, target, case.whole)
            found.backward(_laid_out(random, g, target))
    exact = np.asarray(np.einsum(case.equation, a, b, optimize=True))
    size = np.asarray(np.einsum(case.equation, np.abs(a), np.abs(b), optimize=True))
    depth = prod(sizes[letter] for letter in set(left + right) - set(out))
    problem = _compared(case, _after(case, found, rng), exact, size, depth, target)
    if problem is not None or not case.gradients:
        return problem
    assert x.grad is not None and y.grad is not None
    if is_high:
        g = _rounded(g, dtypes.tfloat32)
    for name, found, other, term, own, kind in (
        ("gradient by the left", x.grad, b, right, left, kinds[0]),
        ("gradient by the right", y.grad, a, left, right, kinds[1]),
    ):
        equation = f"{out},{term}->{own}"
        exact = np.asarray(np.einsum(equation, g, other, optimize=True))
        size = np.asarray(np.einsum(equation, np.abs(g), np.abs(other), optimize=True))
        depth = prod(sizes[letter] for letter in set(out + term) - set(own))
        problem = _compared(case, (found, None), exact, size, depth, kind)
        if problem is not None:
            return f"{name}: {problem}"
    return None


def _after(
    case: ProductCase, found: Tensor, rng: np.random.Generator
) -> tuple[Tensor, Array | None]:
    """A result with what is done to it, and what it is added to."""
    if case.after == "relu":
        return found.relu(), None
    if case.after == "half":
        return found * 0.5, None
    if case.after == "bias" and found.ndim:
        bias = _numbers(rng, found.shape[-1:], found.dtype, True)
        kind = "float64" if found.dtype is dtypes.float64 else "float32"
        return found + Tensor(bias.astype(kind)).cast(found.dtype), bias
    return found, None


def _compared(
    case: ProductCase, made: tuple[Tensor, Array | None], exact: Array, size: Array, depth: int,
    dtype: DType,
) -> str | None:  # fmt: skip
    """What is wrong with a result. size: the sum of its products' magnitudes, `depth` of them."""
    found, bias = made
    if found.dtype is not dtype or found.shape != exact.shape:
        return f"{list(found.shape)} of {found.dtype}, wanted {list(exact.shape)} of {dtype}"
    if dtype.kind == "bool":
        return _differences(found.numpy(), exact > 0, np.zeros(exact.shape))
    if not dtype.is_float:
        # Sums wrap.
        wanted = exact.astype(np.int64).astype(str(dtype))
        return _differences(found.numpy(), wanted, np.zeros(exact.shape))
    got = found.cast("float64").numpy()
    wanted = _rounded(exact, dtype)
    if case.after == "relu":
        wanted = np.maximum(wanted, 0)
    elif case.after == "half":
        wanted = _rounded(wanted * 0.5, dtype)
    elif bias is not None:
        wanted = _rounded(wanted + bias, dtype)
    allowed = np.zeros(exact.shape) if case.whole else _allowed(exact, size, depth, dtype)
    return _differences(got, wanted, allowed)


def _allowed(exact: Array, size: Array, depth: int, dtype: DType) -> Array:
    """How far a float may be off: its own rounding twice, and that of each addition before it.

    Sums are kept in float32, or float64. Matrix units cut what they add, so each addition may lose
    a whole last digit of the sum of magnitudes.
    """
    summed = 2.0**-52 if dtype is dtypes.float64 else 2.0**-23
    info = finfo(dtype)
    return (depth + 4) * summed * size + 2 * info.eps * (np.abs(exact) + 4) + info.smallest_normal


def _differences(found: Array, wanted: Array, allowed: Array) -> str | None:
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(found.astype(np.float64) - wanted) <= allowed) | (found == wanted))
    if not wrong.any():
        return None
    place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
    return (
        f"{int(wrong.sum())} of {wrong.size} differ, the first at {list(place)}: {found[place]}, "
        f"wanted {wanted[place]} within {allowed[place]:.3g}"
    )


# --- attention -----------------------------------------------------------------------------------


def _check_attention(case: AttentionCase, seed: int) -> str | None:
    rng, random = np.random.default_rng(seed), Random(seed + 1)
    dtype = as_dtype(case.dtype)
    shared = case.groups
    q = _numbers(rng, (case.batch, case.heads, case.queries, case.width), dtype, False)
    k = _numbers(rng, (case.batch, shared, case.keys, case.width), dtype, False)
    v = _numbers(rng, (case.batch, shared, case.keys, case.values), dtype, False)
    query, key, value = (_laid_out(random, one, dtype) for one in (q, k, v))
    hidden = np.zeros((case.queries, case.keys), bool)
    added = np.zeros((case.queries, case.keys))
    settings: dict[str, Any] = {}
    if case.mask == "causal":
        hidden = ~np.tri(case.queries, case.keys, dtype=bool)
        settings["is_causal"] = True
    elif case.mask == "bool":
        hidden = rng.random(hidden.shape) < 0.5
        settings["attn_mask"] = Tensor(~hidden)
    elif case.mask == "added":
        added = _rounded(rng.standard_normal(added.shape), dtype)
        settings["attn_mask"] = Tensor(added.astype(np.float32)).cast(dtype)
    found = Tensor.scaled_dot_product_attention(
        query, key, value, enable_gqa=True, **settings
    )
    wanted, allowed = _attended(q, k, v, hidden, added, dtype)
    if found.dtype is not dtype or found.shape != wanted.shape:
        return f"{list(found.shape)} of {found.dtype}, wanted {list(wanted.shape)} of {dtype}"
    return _differences(found.cast("float64").numpy(), wanted, allowed)


def _attended(
    q: Array, k: Array, v: Array, hidden: Array, added: Array, dtype: DType
) -> tuple[Array, Array]:
    """Attention in float64, and how far a result may be off.

    Scores are off by float32's roundings of their sums, so powers are by as much relatively; powers
    are rounded to the dtype, sums of them kept in float32, and the result rounded once or twice.
    """
    times = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, times, 1), np.repeat(v, times, 1)
    factor = q.shape[-1] ** -0.5
    scores = np.where(hidden, -np.inf, q @ k.swapaxes(-1, -2) * factor + added)
    most = scores.max(-1, keepdims=True, initial=-1e30)
    powers = np.exp(scores - most)
    total = powers.sum(-1, keepdims=True)
    weights = powers / np.where(total > 0, total, 1)
    size = np.abs(q) @ np.abs(k).swapaxes(-1, -2) * factor + np.abs(added)
    off = 2.0**-23 * ((q.shape[-1] + 8) * size.max(initial=0) + k.shape[-2] + 64)
    eps = finfo(dtype).eps
    spread_of = weights @ np.abs(v)
    allowed = (2 * off + 2 * eps) * spread_of + 2 * eps * np.abs(weights @ v) + 2.0**-24
    return weights @ v, allowed


# --- many ----------------------------------------------------------------------------------------


def check_case(case: Case, seed: int) -> str | None:
    """Run a case; what is wrong with it, None for nothing. Where memory does not do, so be it."""
    try:
        if isinstance(case, AttentionCase):
            return _check_attention(case, seed)
        return _check_contraction(case, seed)
    except OutOfMemory:
        return None
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        return traceback.format_exc().strip().splitlines()[-1]


def check_chunk(limits: CaseLimits, chunk: Chunk) -> Iterator[tuple[int, str | None]]:
    """Check the seeds of a chunk, in sessions of a few hundred."""
    seeds = range(chunk.first, chunk.first + chunk.count)
    with options.override(device=chunk.device, cache=False):
        for start in range(0, len(seeds), SESSION_EVERY):
            with use_session(Session()):
                for seed in seeds[start : start + SESSION_EVERY]:
                    if chunk.end is not None and time.time() > chunk.end:
                        return
                    case = drawn(seed, limits)
                    problem = check_case(case, seed)
                    yield seed, None if problem is None else f"{case}: {problem}"


def _crashed(seed: int, chunk: Chunk, how: str) -> str:
    return f"the process ended by {how}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, help="run this seed alone, and show its case")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="small cases, for interpreters")
    given = parser.parse_args(argv)
    device = options.device
    small = given.small or not is_gpu(device) or options.nv_port == "virtual"
    limits = SMALL if small else CaseLimits()
    first, count = (given.seed, given.cases) if given.only is None else (given.only, 1)
    end = None if given.minutes is None else time.time() + 60 * given.minutes
    each = max(-(-count // max(given.processes * 8, 1)), 1)
    chunks = [
        Chunk(start, min(each, first + count - start), None, end, device, 0)
        for start in range(first, first + count, each)
    ]
    if given.only is not None:
        print(drawn(given.only, limits))
    checked, found = 0, 0
    with ProgressBar(count, "fuzz") as bar:
        check = partial(check_chunk, limits)
        for seed, problem in spread(check, _crashed, chunks, given.processes):
            checked += 1
            bar.advance()
            if problem is not None:
                found += 1
                print(f"seed {seed}: {problem}", flush=True)
    print(f"{checked} cases on {device}, {found} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

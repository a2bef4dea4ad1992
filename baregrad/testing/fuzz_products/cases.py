"""What is drawn: the shapes, dtypes and surroundings of a contraction or an attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from random import Random

import numpy as np

from baregrad.dtypes import as_dtype


@dataclass(frozen=True, slots=True)
class CaseLimits:
    """The longest axis, the most products of a case, and the most elements of an array."""

    most: int = 4096
    products: int = 1 << 28
    elements: int = 1 << 22

    def drawn(self, rng: Random) -> CaseLimits:
        """These or less: most cases are small, and take a planner the more of them to see."""
        at_most, products, elements = rng.choice((
            (128, 18, 14), (128, 18, 14), (512, 22, 17), (512, 22, 17), (2048, 25, 20),
            (4096, 28, 22),
        ))
        return CaseLimits(
            min(self.most, at_most), min(self.products, 1 << products),
            min(self.elements, 1 << elements),
        )  # fmt: skip


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

# What the left factor is made by, before it is multiplied: see `contractions.prepared`.
BEFORE = ("relu", "scale", "int8", _E4M3, "gather")
# What is done with the result: see `contractions.finished`.
AFTER = ("bias", "relu", "half", "residual", "silu", "sum", "cast", "both")
MASKS = ("causal", "bool", "added", "window")


@dataclass(frozen=True, slots=True)
class ProductCase:
    """A product of two arrays summed over the axes that the result has not.

    equation: as `einsum` takes it; by_matmul: the operation is `matmul`, of the last two axes.
    whole: numbers are small whole ones, whose sums are exact in any order. before: how the left
    factor is made, of `BEFORE`; after: what is done with the result, of `AFTER`; empty for nothing.
    gradients: of both factors, for a gradient of the result.
    """

    equation: str
    sizes: tuple[tuple[str, int], ...]
    kinds: Kinds
    whole: bool
    by_matmul: bool
    before: str = ""
    after: str = ""
    gradients: bool = False


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """softmax(q k^T / sqrt(d)) v over heads; keys and values are of `groups` of them.

    stored: the dtype that keys and values lie in, which are cast to `dtype`. by_hand: made of
    products and a softmax, as users write it. gradients: of all three, for one of the result.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    values: int
    dtype: str
    mask: str = ""
    stored: str = ""
    by_hand: bool = False
    gradients: bool = False


Case = ProductCase | AttentionCase


def drawn(seed: int, limits: CaseLimits) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    within = limits.drawn(rng)
    return _attention(rng, within) if rng.random() < 0.25 else _contraction(rng, within)


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
    # A factor that all matrices of a batch share, as weights are.
    lone = rng.choice(("", "", "", "left", "right", "right")) if shared else ""
    left = ("" if lone == "left" else shared) + rows + summed
    right = ("" if lone == "right" else shared) + summed + columns
    out = shared + rows + columns
    _fit(rng, sizes, (shared + rows + columns + summed, left, right, out), limits)
    if not by_matmul:
        left, right, out = ("".join(rng.sample(term, len(term))) for term in (left, right, out))
    gradients = is_float and not kinds.asked and rng.random() < 0.3
    before = rng.choice(_makers(kinds, whole, gradients)) if rng.random() < 0.3 else ""
    after = rng.choice(AFTER) if is_float and not gradients and rng.random() < 0.5 else ""
    return ProductCase(
        f"{left},{right}->{out}", tuple(sizes.items()), kinds, whole, by_matmul, before, after,
        gradients,
    )  # fmt: skip


def _makers(kinds: Kinds, whole: bool, gradients: bool) -> tuple[str, ...]:
    """What may make the left factor, with the same numbers on every machine."""
    left = as_dtype(kinds.left)
    if gradients:
        return ("scale",)
    if not left.is_float or left.bits < 16 or kinds.left == "tfloat32":
        return ("gather",)
    return BEFORE if whole else ("relu", "scale", "gather")


def _attention(rng: Random, limits: CaseLimits) -> AttentionCase:
    dtype = rng.choice(("bfloat16", "bfloat16", "float16", "float16", "float32", "float64"))
    heads, groups = rng.choice(((1, 1), (2, 1), (4, 1), (4, 2), (3, 1), (8, 4)))
    width = rng.choice((1, 8, 16, 24, 32, 64, 64, 80, 128, 128, 256))
    values = width if rng.random() < 0.8 else rng.choice((8, 16, 48, 64, 128))
    queries = 1 if rng.random() < 0.1 else _size(rng, limits.most)
    sizes = {
        "b": rng.choice((1, 1, 2, 3)), "h": heads, "q": queries, "k": _size(rng, limits.most),
        "d": max(width, values),
    }
    _fit(rng, sizes, ("bhqkd", "bhqd", "bhkd", "bhqk"), limits)
    if sizes["h"] != heads:
        # Fewer than were drawn: one group has them all.
        heads, groups = sizes["h"], 1
    found = AttentionCase(
        sizes["b"], heads, groups, sizes["q"], sizes["k"], min(width, sizes["d"]),
        min(values, sizes["d"]), dtype, rng.choice(("", "causal", *MASKS)),
        by_hand=rng.random() < 0.25,
    )  # fmt: skip
    if rng.random() < 0.3:
        return replace(found, gradients=True)
    is_narrow = as_dtype(dtype).bits == 16
    stored = rng.choice((_E4M3, _E5M2)) if is_narrow and rng.random() < 0.15 else ""
    return replace(found, stored=stored)

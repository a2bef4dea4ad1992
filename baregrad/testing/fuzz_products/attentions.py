"""Attention and its gradients beside NumPy's in float64."""

from __future__ import annotations

from random import Random

import numpy as np

from baregrad.dtypes import DType, as_dtype, dtypes, finfo
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_products.cases import AttentionCase
from baregrad.testing.fuzz_products.operands import (
    Array,
    differences,
    laid_out,
    misshapen,
    numbers,
    rounded,
    tensor_of,
    values_of,
)

# Keys that a position sees beside its own, and the first one, where a window is all it sees.
WINDOW = 40


def check_attention(case: AttentionCase, seed: int) -> str | None:
    """Compute a case; what is wrong with its results, None for nothing."""
    rng, random = np.random.default_rng(seed), Random(seed + 1)
    dtype = as_dtype(case.dtype)
    stored = as_dtype(case.stored or case.dtype)
    q = numbers(rng, (case.batch, case.heads, case.queries, case.width), dtype, False)
    k = numbers(rng, (case.batch, case.groups, case.keys, case.width), stored, False)
    v = numbers(rng, (case.batch, case.groups, case.keys, case.values), stored, False)
    leaves = [
        laid_out(random, one, kind)
        for one, kind in ((q, dtype), (k, stored), (v, stored))
    ]  # fmt: skip
    if case.gradients:
        for leaf in leaves:
            leaf.requires_grad_()
    hidden, added, mask = _mask(case, rng, dtype)
    query, key, value = leaves[0], leaves[1].cast(dtype), leaves[2].cast(dtype)
    found = (_by_hand if case.by_hand else _by_function)(case, query, key, value, mask)
    oracle = Attended(q, k, v, hidden, added, dtype, case.by_hand)
    problem = misshapen(found, oracle.result.shape, dtype)
    if problem is not None:
        return problem
    if not case.gradients:
        return differences(values_of(found), oracle.result, oracle.allowed)
    g = numbers(rng, found.shape, dtype, False)
    found.backward(laid_out(random, g, dtype))
    problem = differences(values_of(found), oracle.result, oracle.allowed)
    if problem is not None:
        return problem
    for name, leaf, (wanted, allowed) in zip(
        ("queries", "keys", "values"), leaves, oracle.gradients(g), strict=True
    ):
        assert leaf.grad is not None
        problem = misshapen(leaf.grad, wanted.shape, dtype)
        problem = problem or differences(values_of(leaf.grad), wanted, allowed)
        if problem is not None:
            return f"gradient by the {name}: {problem}"
    return None


def _mask(
    case: AttentionCase, rng: np.random.Generator, dtype: DType
) -> tuple[Array, Array, Tensor | None]:
    """Which keys a position does not see, what is added to scores, and the mask as a tensor."""
    shape = (case.queries, case.keys)
    hidden, added = np.zeros(shape, bool), np.zeros(shape)
    if case.mask == "causal":
        hidden = ~np.tri(*shape, dtype=bool)
        return hidden, added, Tensor(~hidden) if case.by_hand else None
    if case.mask == "bool":
        hidden = rng.random(shape) < 0.5
        if case.by_hand:
            # A softmax of nothing is NaN.
            hidden[:, 0] = False
        return hidden, added, Tensor(~hidden)
    if case.mask == "added":
        added = rounded(rng.standard_normal(shape), dtype)
        return hidden, added, tensor_of(added, dtype)
    if case.mask == "window":
        rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])
        hidden = ((columns > rows) | (columns < rows - WINDOW)) & (columns > 0)
        places = Tensor.arange(shape[0]).reshape(shape[0], 1)
        keys = Tensor.arange(shape[1])
        return hidden, added, (keys <= places) & (keys >= places - WINDOW) | (keys == 0)
    return hidden, added, None


def _by_function(
    case: AttentionCase, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    return Tensor.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=case.mask == "causal", enable_gqa=True
    )


def _by_hand(
    case: AttentionCase, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    times = case.heads // case.groups
    if times > 1:
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    scores = (query @ key.transpose(-1, -2)) * case.width**-0.5
    if mask is not None and mask.dtype is dtypes.bool:
        scores = mask.where(scores, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights: Tensor = scores.softmax(-1)
    return weights @ value


class Attended:
    """Attention in float64, and how far results may be off.

    Scores are off by float32's roundings of their sums, and by hand by their dtype's, so powers are
    by as much relatively; powers are rounded to the dtype, sums of them kept in float32, and the
    result rounded once or twice. Likewise for gradients, whose products take powers and
    differences of powers that are rounded to the dtype.
    """

    def __init__(
        self, q: Array, k: Array, v: Array, hidden: Array, added: Array, dtype: DType,
        by_hand: bool = False,
    ) -> None:  # fmt: skip
        self.groups = k.shape[1]
        times = q.shape[1] // self.groups
        self.q, self.k, self.v = q, np.repeat(k, times, 1), np.repeat(v, times, 1)
        self.factor = q.shape[-1] ** -0.5
        scores = np.where(hidden, -np.inf, q @ self.k.swapaxes(-1, -2) * self.factor + added)
        most = scores.max(-1, keepdims=True, initial=-1e30)
        powers = np.exp(scores - most)
        total = powers.sum(-1, keepdims=True)
        self.weights = powers / np.where(total > 0, total, 1)
        # A bound of the sum of a score's magnitudes, by Cauchy and Schwarz.
        size = self.factor * _longest(q) * _longest(k) + np.abs(added).max(initial=0)
        self.eps = finfo(dtype).eps
        last = 2.0**-52 if dtype is dtypes.float64 else 2.0**-23
        self.off = last * ((q.shape[-1] + 8) * size + k.shape[-2] + 64)
        if by_hand:
            self.off += 3 * self.eps * (size if dtype.bits == 16 else 0)
        self.result = self.weights @ self.v
        self.relative = 2 * self.off + 2 * self.eps
        self.allowed = (
            self.relative * (self.weights @ np.abs(self.v)) + 2 * self.eps * np.abs(self.result)
            + 2.0**-24
        )  # fmt: skip

    def gradients(self, g: Array) -> list[tuple[Array, Array]]:
        """Those by queries, keys and values, each with how far it may be off."""
        weights, turned = self.weights, self.weights.swapaxes(-1, -2)
        by_weights = g @ self.v.swapaxes(-1, -2)
        mean = (g * self.result).sum(-1, keepdims=True)
        by_scores = weights * (by_weights - mean)
        # The result that a mean is made of is rounded, and so is what a weight's gradient is.
        around = (np.abs(g) * (np.abs(self.result) + self.allowed)).sum(-1, keepdims=True)
        sizes = np.abs(g) @ np.abs(self.v).swapaxes(-1, -2)
        off = weights * (self.relative * (np.abs(by_weights) + np.abs(mean) + around)
                         + 2.0**-20 * sizes) + self.relative * np.abs(by_scores)  # fmt: skip
        found = []
        for value, bound in (
            (by_scores @ self.k, off @ np.abs(self.k)),
            (self._shared(by_scores.swapaxes(-1, -2) @ self.q),
             self._shared(off.swapaxes(-1, -2) @ np.abs(self.q))),
        ):  # fmt: skip
            found.append((value * self.factor, self._bound(value, bound) * self.factor))
        value = self._shared(turned @ g)
        bound = self._shared(turned @ np.abs(g))
        found.append((value, self._bound(value, self.relative * bound)))
        return found

    def _bound(self, value: Array, off: Array) -> Array:
        return 2 * off + 4 * self.eps * np.abs(value) + 2.0**-20

    def _shared(self, gradients: Array) -> Array:
        """Sums over the heads that share keys and values."""
        batch, heads, *rest = gradients.shape
        shape = (batch, self.groups, heads // self.groups, *rest)
        found: Array = gradients.reshape(shape).sum(2)
        return found


def _longest(rows: Array) -> float:
    return float(np.sqrt((rows * rows).sum(-1).max(initial=0)))

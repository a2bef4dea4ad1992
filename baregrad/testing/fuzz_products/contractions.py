"""A product of two arrays beside NumPy's in float64, with what makes a factor and what follows.

Sums of small whole numbers are exact in any order: then a result is the exact one, rounded as often
as its dtype says. Others may be off by what `operands.roundings` states.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random

import numpy as np

from baregrad.base.options import is_gpu, options
from baregrad.dtypes import DType, as_dtype, dtypes, finfo
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_products.cases import ProductCase
from baregrad.testing.fuzz_products.operands import (
    Array,
    contracted,
    differences,
    laid_out,
    misshapen,
    numbers,
    roundings,
    tensor_of,
    values_of,
)
from baregrad.testing.fuzz_products.operands import rounded as rounded_to


def check_contraction(case: ProductCase, seed: int) -> str | None:
    """Compute a case; what is wrong with its results, None for nothing."""
    rng, random = np.random.default_rng(seed), Random(seed + 1)
    sizes = dict(case.sizes)
    terms, out = case.equation.split("->")
    left, right = terms.split(",")
    kinds = [as_dtype(name) for name in (case.kinds.left, case.kinds.right)]
    shapes = [[sizes[letter] for letter in term] for term in (left, right)]
    x, made, a, factor = prepared(case, rng, random, shapes[0], kinds[0])
    b = _numbers_of(case, rng, random, shapes[1], kinds[1])
    y = laid_out(random, b, kinds[1])
    is_high = case.kinds.high and is_gpu(options.device)
    if is_high:
        a, b = rounded_to(a, dtypes.tfloat32), rounded_to(b, dtypes.tfloat32)
    target = as_dtype(case.kinds.out)
    if case.gradients:
        x.requires_grad_()
        y.requires_grad_()
    with options.override(matmul_precision="high" if case.kinds.high else "highest"):
        left_tensor = made(x)
        if case.kinds.asked:
            found = left_tensor.matmul(y, out_dtype=target)
        elif case.by_matmul:
            found = left_tensor @ y
        else:
            found = Tensor.einsum(case.equation, left_tensor, y)
        if case.gradients:
            g = numbers(rng, found.shape, target, case.whole)
            found.backward(laid_out(random, g, target))
    depth = prod(sizes[letter] for letter in set(left + right) - set(out))
    bound = 64.0 * depth if case.whole and target.is_float else 0.0
    exact = contracted(case.equation, a, b, bound)
    size = 0.0 if case.whole else contracted(case.equation, np.abs(a), np.abs(b))
    if target.is_float:
        allowed = roundings(exact, size, depth, target)
        if is_high and depth == 1:
            # No sum, so it may be a plain product, of factors that are not rounded.
            allowed = allowed + 2 * finfo(dtypes.tfloat32).eps * np.abs(exact)
        problem = _finished(case, found, exact, allowed, target, rng)
    else:
        problem = _integers(found, exact, target)
    if problem is not None or not case.gradients:
        return problem
    if is_high:
        g = rounded_to(g, dtypes.tfloat32)
    assert x.grad is not None and y.grad is not None
    for name, grad, other, term, own, scale in (
        ("left", x.grad, b, right, left, factor), ("right", y.grad, a, left, right, None),
    ):  # fmt: skip
        problem = _gradient(case, grad, (g, other), (out, term, own), sizes, scale)
        if problem is not None:
            return f"gradient by the {name}: {problem}"
    return None


def _numbers_of(
    case: ProductCase, rng: np.random.Generator, random: Random, shape: list[int], dtype: DType
) -> Array:
    """The numbers of a factor; now and then all alike along an axis."""
    if shape and random.random() < 0.05:
        one = list(shape)
        one[random.randrange(len(shape))] = 1
        return np.broadcast_to(numbers(rng, one, dtype, case.whole), shape)
    return numbers(rng, shape, dtype, case.whole)


def prepared(
    case: ProductCase, rng: np.random.Generator, random: Random, shape: list[int], dtype: DType
) -> tuple[Tensor, Callable[[Tensor], Tensor], Array, Array | None]:
    """The left factor.

    What it is made of, how, the numbers that it comes to, and what a gradient by it is scaled by.
    """
    if case.before == "gather":
        # Rows by their numbers, as of an embedding.
        table = numbers(rng, [max(shape[0] // 2, 1), *shape[1:]], dtype, case.whole)
        rows = rng.integers(0, len(table), shape[0])
        index = Tensor(rows)
        return laid_out(random, table, dtype), lambda x: x[index], table[rows], None
    if case.before == "scale":
        # Powers of two, along rows or along what is summed.
        axis = random.randrange(len(shape))
        along = [size if one == axis else 1 for one, size in enumerate(shape)]
        scales = 2.0 ** rng.integers(-1, 2, along)
        factor = tensor_of(scales, dtype)
        a = numbers(rng, shape, dtype, case.whole)
        return laid_out(random, a, dtype), lambda x: x * factor, a * scales, scales
    if case.before in ("int8", "float8_e4m3fn"):
        stored = as_dtype(case.before)
        a = rng.integers(-4, 5, shape).astype(np.float64)
        return laid_out(random, a, stored), lambda x: x.cast(dtype), a, None
    a = _numbers_of(case, rng, random, shape, dtype)
    x = laid_out(random, a, dtype)
    if case.before == "relu":
        return x, lambda x: x.relu(), np.maximum(a, 0), None
    return x, lambda x: x, a, None


def _integers(found: Tensor, exact: Array, dtype: DType) -> str | None:
    problem = misshapen(found, exact.shape, dtype)
    if problem is not None:
        return problem
    if dtype.kind == "bool":
        return differences(found.numpy(), exact > 0, 0.0)
    # Sums wrap.
    return differences(found.numpy(), exact.astype(np.int64).astype(str(dtype)), 0.0)


def _finished(
    case: ProductCase, found: Tensor, exact: Array, allowed: Array, dtype: DType,
    rng: np.random.Generator,
) -> str | None:  # fmt: skip
    """Do what is done with a result, and compare. allowed: how far it may be off before."""
    if case.whole:
        allowed = np.zeros(exact.shape)
    value, eps = rounded_to(exact, dtype), finfo(dtype).eps
    problem = misshapen(found, exact.shape, dtype)
    if problem is not None:
        return problem
    after = case.after if exact.ndim or case.after not in ("bias", "sum") else ""
    if after in ("bias", "residual"):
        shape = exact.shape[-1:] if after == "bias" else exact.shape
        added = numbers(rng, shape, dtype, True)
        found, value = found + tensor_of(added, dtype), rounded_to(value + added, dtype)
        allowed = allowed * (1 + 2 * eps) + (0 if case.whole else 2 * eps * np.abs(value))
    elif after == "relu":
        found, value = found.relu(), np.maximum(value, 0)
    elif after == "half":
        found, value = found * 0.5, rounded_to(value * 0.5, dtype)
    elif after == "silu":
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.where(value == -np.inf, np.nan, value / (1 + np.exp(-value)))
        found = found.silu()
        allowed = 1.1 * allowed + 4 * eps * np.abs(value) + 2.0**-14
        allowed = np.where(np.isnan(value), np.inf, allowed)
        value = np.nan_to_num(value, nan=0.0, posinf=np.inf)
    elif after == "sum":
        size = np.abs(value).sum(-1)
        found, value = found.sum(-1), value.sum(-1)
        allowed = allowed.sum(-1) + roundings(value, size, exact.shape[-1], dtype)
    elif after == "cast":
        other = dtypes.bfloat16 if dtype is dtypes.float32 else dtypes.float32
        found, value = found.cast(other), rounded_to(value, other)
        allowed = allowed + (0 if case.whole else 2 * finfo(other).eps * (np.abs(value) + 1))
    elif after == "both":
        beside = found.relu()
        Tensor.realize(found, beside)
        problem = differences(values_of(beside), np.maximum(value, 0), allowed)
        if problem is not None:
            return f"beside it: {problem}"
    return differences(values_of(found), value, allowed)


def _gradient(
    case: ProductCase, found: Tensor, factors: tuple[Array, Array], terms: tuple[str, str, str],
    sizes: dict[str, int], scale: Array | None,
) -> str | None:  # fmt: skip
    """What is wrong with a gradient. terms: the axes of the result, of the other factor, its own.

    scale: of its own factor, by powers of two.
    """
    out, term, own = terms
    dtype = as_dtype(case.kinds.left if found.dtype.name == case.kinds.left else case.kinds.right)
    equation = f"{out},{term}->{own}"
    depth = prod(sizes[letter] for letter in set(out + term) - set(own))
    exact = contracted(equation, *factors, 128.0 * depth if case.whole else 0.0)
    allowed: Array | float = 0.0
    if not case.whole:
        size = contracted(equation, np.abs(factors[0]), np.abs(factors[1]))
        allowed = roundings(exact, size, depth, dtype)
    value = rounded_to(exact, dtype)
    if scale is not None:
        value, allowed = rounded_to(value * scale, dtype), allowed * scale
    problem = misshapen(found, exact.shape, dtype)
    return differences(values_of(found), value, allowed) if problem is None else problem

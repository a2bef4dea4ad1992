"""Integer division, remainders and shifts against Python's own; of narrow integers, all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baregrad.dtypes import DType, dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.legalise.divide import magic
from baregrad.kernel.legalise.lower_integers import lower_integers
from baregrad.tensor import Tensor
from tests.kernel.legalise.integers import INT, RULES, edges, floor, modulo, wrap
from tests.render.harness import (
    check,
    compiled,
    elementwise,
    kernel,
    load,
    loop,
    lower,
    param,
    store,
    vector,
)


def divided(dtype: DType, divisor: int, x: Any, evaluate: bool = True) -> list[Any]:
    """The three quotients of an array by a constant, as lowered."""
    functions: list[Callable[..., Node]] = [
        lambda a, op=op: alu(op, a, const(divisor, dtype)) for op, _ in RULES
    ]
    lanes = len(x) if evaluate else 8
    node = elementwise(functions, len(x), [dtype], lanes)
    found = [np.zeros(len(x), dtype.numpy) for _ in RULES]
    if evaluate:
        evaluate_loop(lower_integers(node), [*found, x])
    else:
        compiled(lower(node))([*found, x])
    return found


@pytest.mark.parametrize("dtype", INT[:2], ids=str)
def test_bytes_by_every_constant(dtype: DType) -> None:
    values = np.arange(int(dtype.min), int(dtype.max) + 1)
    x = values.astype(dtype.numpy)
    for divisor in values.tolist():
        found = divided(dtype, divisor, x)
        for (op, rule), quotient in zip(RULES, found, strict=True):
            expected = wrap([rule(v, divisor) for v in values.tolist()], dtype)
            assert np.array_equal(quotient, expected), (op, divisor)


def divisors(dtype: DType) -> list[int]:
    sparse = [3, 5, 6, 7, 9, 10, 11, 12, 13, 25, 60, 100, 125, 127, 128, 641, 1000, 10007, 30000]
    return sorted({*sparse, *edges(dtype)[:: 1 if dtype.bits <= 16 else 5], 0, 1, 2})


@pytest.mark.parametrize("dtype", INT[2:4], ids=str)
def test_every_16_bit_integer_by_many_constants(dtype: DType) -> None:
    values = np.arange(int(dtype.min), int(dtype.max) + 1)
    x = values.astype(dtype.numpy)
    for divisor in divisors(dtype):
        if not dtype.min <= divisor <= dtype.max:
            continue
        found = divided(dtype, divisor, x)
        quotient = values // divisor if divisor else values * 0
        rest = values - quotient * divisor if divisor else values * 0
        size = np.abs(values) // max(abs(divisor), 1) if divisor else values * 0
        towards_zero = np.where((values < 0) == (divisor < 0), size, -size)
        for got, expected in zip(found, (quotient, rest, towards_zero), strict=True):
            assert np.array_equal(got, expected.astype(dtype.numpy)), divisor


@pytest.mark.parametrize("dtype", INT[4:], ids=str)
def test_wide_integers_by_constants(dtype: DType) -> None:
    generator = np.random.default_rng(5)
    for divisor in divisors(dtype):
        if not dtype.min <= divisor <= dtype.max:
            continue
        factors = (1, 2, 1000, int(dtype.max) // max(abs(divisor), 1))
        multiples = [k * divisor + d for k in factors for d in (-1, 0, 1)]
        noise = generator.integers(dtype.min, dtype.max, 50, dtype=dtype.numpy, endpoint=True)
        values = [v for v in (*edges(dtype), *multiples) if dtype.min <= v <= dtype.max]
        values += noise.tolist()
        x = wrap(values, dtype)
        for (op, rule), quotient in zip(RULES, divided(dtype, divisor, x), strict=True):
            expected = wrap([rule(v, divisor) for v in values], dtype)
            assert np.array_equal(quotient, expected), (op, divisor)


@pytest.mark.parametrize("dtype", INT, ids=str)
def test_compiled_division_by_constants(dtype: DType) -> None:
    values = edges(dtype)
    values += values[: -len(values) % 8]
    x = wrap(values, dtype)
    for divisor in (3, 7, 10, -5, int(dtype.min), int(dtype.max)):
        if not dtype.min <= divisor <= dtype.max:
            continue
        for (op, rule), quotient in zip(RULES, divided(dtype, divisor, x, False), strict=True):
            expected = wrap([rule(v, divisor) for v in values], dtype)
            assert np.array_equal(quotient, expected), (op, divisor)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 33), st.integers(0, 1 << 33))
def test_magic_multipliers(divisor: int, limit: int, near: int) -> None:
    multiplier, shift = magic(divisor, limit)
    last = (limit - 1) // divisor * divisor
    for x in (0, 1, near % limit, limit - 1, last, max(last - 1, 0), limit // 2):
        if x < limit:
            assert x * multiplier >> shift == x // divisor


@pytest.mark.parametrize("divisor", (2, 3, 7, 10, 12, 64, 1000))
@pytest.mark.parametrize("start", (0, -50, 100000, -(1 << 40)))
def test_index_division(divisor: int, start: int) -> None:
    """Quotients and remainders of index arithmetic, scalar and in lanes, also of negatives."""
    i, v = range_node(5, 0), vector(8, 1)
    x = param(2, 40, dtype=dtypes.int64)
    place = index.add(index.mul(i, 8), v)
    moved = Node(Ops.CAST, dtypes.index, (load(x, place),))
    bounded = alu(Ops.MIN, alu(Ops.MAX, moved, const(-300, dtypes.index)), const(300, dtypes.index))
    value = alu(Ops.ADD, bounded, const(start, dtypes.index))
    by = const(divisor, dtypes.index)
    quotient = Node(Ops.CAST, dtypes.int64, (alu(Ops.FLOORDIV, value, by),))
    rest = Node(Ops.CAST, dtypes.int64, (alu(Ops.MOD, value, by),))
    outputs = (param(0, 40, dtype=dtypes.int64), param(1, 40, dtype=dtypes.int64))
    node = kernel(loop(i, store(outputs[0], quotient, place), store(outputs[1], rest, place)))
    numbers = np.linspace(-400, 400, 40).astype(np.int64)
    zeros = np.zeros(40, np.int64)
    high, low, _ = check(node, [zeros, zeros, numbers])
    shifted = np.clip(numbers, -300, 300) + start
    assert np.array_equal(high, shifted // divisor)
    assert np.array_equal(low, shifted % divisor)


@pytest.mark.parametrize("divisor", (3, 7, 9, 1000, (1 << 31) - 1))
def test_index_division_of_all_an_int32_may_be(divisor: int) -> None:
    """Indices read from memory may lie anywhere: what is added to them needs room as well."""
    v = vector(16, 0)
    x = param(2, 16, dtype=dtypes.int32)
    place = Node(Ops.CAST, dtypes.index, (load(x, v),))
    by = const(divisor, dtypes.index)
    quotient = Node(Ops.CAST, dtypes.int64, (alu(Ops.FLOORDIV, place, by),))
    rest = Node(Ops.CAST, dtypes.int64, (alu(Ops.MOD, place, by),))
    outputs = (param(0, 16, dtype=dtypes.int64), param(1, 16, dtype=dtypes.int64))
    node = kernel(store(outputs[0], quotient, v), store(outputs[1], rest, v))
    ends = [-(1 << 31), -(1 << 31) + 1, (1 << 31) - 2, (1 << 31) - 1]
    numbers = np.array([*range(-6, 6), *ends], np.int32)
    high, low, _ = check(node, [np.zeros(16, np.int64), np.zeros(16, np.int64), numbers])
    assert high.tolist() == [int(n) // divisor for n in numbers]
    assert low.tolist() == [int(n) % divisor for n in numbers]


@pytest.mark.parametrize("op", ["//", "%"])
def test_index_division_by_what_may_be_zero_or_less(op: str) -> None:
    """Where an extent may be 0, a place is divided by it, though nothing is read there."""
    n = variable("n", 1, 7)
    numbers = np.arange(4.0)
    for value in range(1, 8):
        bound: Any = bind(n, value)
        divisor = bound - 4
        made = bound // divisor if op == "//" else bound % divisor
        below = (floor if op == "//" else modulo)(value, value - 4)
        np.testing.assert_array_equal((Tensor(numbers) + made).numpy(), numbers + below)


def test_an_extent_of_zero_divides_places_of_nothing() -> None:
    x = Tensor(np.ones((3, 4), np.float32))
    for value in (3, 1, 2):
        n: Any = bind(variable("n", 1, 3), value)
        padded = x.narrow(1, 0, n - 1).reshape(3 * (n - 1)).pad((2 * n, 0))
        wanted = [0.0] * (2 * value) + [1.0] * (3 * (value - 1))
        assert padded.tolist() == wanted

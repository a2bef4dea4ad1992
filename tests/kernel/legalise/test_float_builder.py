"""Blocks that functions are built of, against NumPy: exact where they are said to be."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.legalise.float_builder import (
    FLOAT32,
    FLOAT64,
    LONG,
    FloatBuilder,
    builder_of,
)
from tests.render.harness import elementwise

BOTH = pytest.mark.parametrize("f", (FLOAT32, FLOAT64), ids=("float32", "float64"))


def computed(f: FloatBuilder, function: Callable[..., Node], *arrays: Any) -> Any:
    """A function of floats over arrays, by the evaluator of the loop level."""
    count = len(arrays[0])
    found = np.zeros(count, f.dtype.numpy)
    node = elementwise([function], count, [f.dtype] * len(arrays), count)
    with np.errstate(all="ignore"):
        evaluate_loop(node, [found, *arrays])
    return found


def numbers(f: FloatBuilder, low: float, high: float, count: int = 512) -> Any:
    return np.random.default_rng(3).uniform(low, high, count).astype(f.dtype.numpy)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 5, LONG - 1, LONG, LONG + 1, 2 * LONG])
def test_a_polynomial_is_the_sum_of_its_powers(f: FloatBuilder, count: int) -> None:
    coefficients = [float(c) for c in numbers(f, -1, 1, count)]
    x = numbers(f, -1, 1, 64)
    found = computed(f, lambda node: f.polynomial(node, coefficients), x)
    exact = [sum(Fraction(c) * Fraction(float(v)) ** k for k, c in enumerate(coefficients))
             for v in x]
    bound = count * float(np.finfo(f.dtype.numpy).eps) * sum(map(abs, coefficients))
    for got, wanted in zip(found, exact, strict=True):
        assert abs(Fraction(float(got)) - wanted) <= bound


def test_long_polynomials_have_fewer_steps_that_wait_for_each_other() -> None:
    def depth(node: Node) -> int:
        below = max([depth(child) for child in node.src], default=0)
        return below + (node.op in (Ops.FMA, Ops.MUL))

    x = FLOAT32.c(0.5)
    short, long = (FLOAT32.polynomial(x, [1.0] * count) for count in (LONG - 1, 2 * (LONG - 1)))
    assert depth(short) == LONG - 2
    assert depth(long) <= depth(short) + 2


@BOTH
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0), (1.0, 7), (2.5, 0), (0.125, 100)])
def test_rounding_to_integers_keeps_them_in_the_low_bits(
    f: FloatBuilder, scale: float, offset: int
) -> None:
    x = numbers(f, -5000, 5000)
    whole = computed(f, lambda node: f.round_scaled(node, scale, offset)[0], x)
    np.testing.assert_array_equal(whole, np.rint(x.astype(np.longdouble) * scale))
    held = computed(f, lambda node: f.round_scaled(node, scale, offset)[1], x)
    low = held.view(np.int64 if f is FLOAT64 else np.int32) & 0xFFFF
    np.testing.assert_array_equal(low, (whole.astype(np.int64) + offset) & 0xFFFF)


@BOTH
def test_scaling_by_powers_of_two_rounds_once_and_reaches_every_binade(f: FloatBuilder) -> None:
    info = np.finfo(f.dtype.numpy)
    low, high = f.power_limits
    power = np.arange(int(low), int(high) + 1).astype(f.dtype.numpy)
    x = np.resize(numbers(f, 0.5, 2.0), len(power))
    made = computed(
        f,
        lambda value, n: f.scaled_by_power(
            f.mul(value, f.c(f.power_scale)), f.round_scaled(n, 1.0, f.power_offset)[1]
        ),
        x, power,
    )
    with np.errstate(all="ignore"):
        wanted = np.ldexp(x, power.astype(np.int32))
    np.testing.assert_array_equal(made, wanted)
    assert wanted.min() < info.tiny and np.isinf(wanted).any()


@BOTH
def test_signs_and_bounds(f: FloatBuilder) -> None:
    x = np.array([-2.0, -0.0, 0.0, 3.0, np.nan, -np.inf, np.inf, -1.0], f.dtype.numpy)
    size = np.abs(x)
    found = computed(f, lambda node: f.with_sign_of(f.abs(node), node), x)
    np.testing.assert_array_equal(np.signbit(found[:4]), np.signbit(x[:4]))
    np.testing.assert_array_equal(np.abs(found), size)
    bounded = computed(f, lambda node: f.at_least(f.at_most(node, 1.5), -1.5), x)
    np.testing.assert_array_equal(bounded, np.clip(x, -1.5, 1.5))
    assert builder_of(f.dtype) is f

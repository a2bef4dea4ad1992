"""Guards, factors and steps of accumulators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import (
    Schedule,
    lower,
)
from baregrad.kernel.language.schedule import vectorise
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX, check


def test_a_guarded_factor_stays_guarded_since_zero_times_infinity_is_no_zero() -> None:
    loop = check(k.conv(1, 1, 2, 4, 4, 3, 1, 1), Schedule())
    assert loop.has(Ops.GUARD)
    assert not loop.has(Ops.IF)


@pytest.mark.parametrize("lanes", ["", "i0", "r1"])
def test_a_product_of_two_constants_stays_guarded(lanes: str) -> None:
    """One constant needs no guard where the other factor has it; two of them need one."""
    i, j = range_node(6, 0), range_node(4, 1)
    two, eighth = const(2.0, dtypes.float32), const(0.125, dtypes.float32)
    product = Node(Ops.MUL, dtypes.float32, (two, eighth))
    total = k.reduce(Ops.ADD, k.guard(alu(Ops.CMPLT, j, i), product), j)
    kernel = k.kernel(k.out(k.param(0, 6), total, i))
    loop = check(kernel, Schedule((vectorise(lanes),) if lanes else ()))
    assert loop.has(Ops.FMA)
    found = np.zeros(6, np.float32)
    evaluate_loop(loop, {0: found})
    np.testing.assert_array_equal(found, 0.25 * np.minimum(np.arange(6), 4))


def test_products_are_summed_with_one_rounding_where_the_target_can() -> None:
    kernel = k.matmul(4, 4, 4)
    assert lower(kernel, AVX, Schedule()).has(Ops.FMA)
    assert not lower(kernel, replace(AVX, fma=False), Schedule()).has(Ops.FMA)
    assert not lower(k.matmul(4, 4, 4, dtype=dtypes.int32), AVX, Schedule()).has(Ops.FMA)


def test_narrow_floats_are_summed_in_float32() -> None:
    loop = lower(k.row_reduce(3, 9, dtype=dtypes.float16), AVX, Schedule())
    allocs = {node.dtype for node in toposort(loop) if node.op is Ops.ALLOC}
    assert allocs == {dtypes.float32}

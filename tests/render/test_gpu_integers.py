"""Integers that fit are narrowed, no others, and the program does what it did."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.render.gpu_integers import narrow_integers
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel, any_schedule
from tests.render.gpu_harness import I32, I64, Writer, run_ptx
from tests.render.harness import same_bits
from tests.render.test_ptx_kernels import lowered
from tests.render.test_ptx_memory import param

pytestmark = pytest.mark.differential
MOST = 2**31 - 1


def number(name: str, lo: int, hi: int) -> Node:
    return Node(Ops.VAR, I64, (), Var(name, lo, hi))


@pytest.mark.parametrize("seed", range(16))
def test_programs_do_what_they_did(seed: int) -> None:
    rng = random.Random(seed + 100)
    make, sizes = any_kernel(rng, (1, 2, 3, 5, 8))
    kernel = make(*sizes)
    try:
        program = lowered(kernel, any_schedule(rng, kernel))
    except ScheduleError:
        pytest.skip("the schedule that was drawn is not legal")
    arrays = k.arguments(kernel, seed)
    expected = [np.array(arrays[slot]) for slot in range(len(arrays))]
    found = [np.array(array) for array in expected]
    evaluate_linear(program, expected)
    evaluate_linear(narrow_integers(program), found)
    for left, right in zip(expected, found, strict=True):
        assert same_bits(left, right)


def wide_ops(program: Node) -> set[Any]:
    """The ops that are computed with 64 bits, conversions aside."""
    code = narrow_integers(program).src
    return {node.op for node in code if node.dtype is I64 and node.op is not Ops.CAST}


Make = Callable[[Writer, Node, Node], Node]
CASES: list[tuple[str, Make, tuple[int, int], tuple[int, int], bool]] = [
    ("sum that fits", lambda w, x, y: w.do(Ops.ADD, x, y), (0, MOST - 5), (0, 5), True),
    ("sum that does not", lambda w, x, y: w.do(Ops.ADD, x, y), (0, MOST - 5), (0, 6), False),
    ("difference", lambda w, x, y: w.do(Ops.SUB, x, y), (-MOST, 0), (0, 1), True),
    ("difference too low", lambda w, x, y: w.do(Ops.SUB, x, y), (-MOST, 0), (0, 2), False),
    ("product", lambda w, x, y: w.do(Ops.MUL, x, y), (-46340, 46340), (0, 46340), True),
    ("product too high", lambda w, x, y: w.do(Ops.MUL, x, y), (-46341, 0), (-46341, 0), False),
    ("mask", lambda w, x, y: w.do(Ops.AND, x, const(255, I64)), (0, 1 << 40), (0, 0), False),
    ("shift", lambda w, x, y: w.do(Ops.SHL, x, const(4, I64)), (0, 1 << 26), (0, 0), True),
    ("shift too far", lambda w, x, y: w.do(Ops.SHL, x, const(5, I64)), (0, 1 << 26), (0, 0), False),
    ("long shift", lambda w, x, y: w.do(Ops.SHR, x, const(33, I64)), (-9, 9), (0, 0), False),
    ("remainder", lambda w, x, y: w.do(Ops.MOD, x, const(7, I64)), (-9, 900), (0, 0), True),
    ("quotient", lambda w, x, y: w.do(Ops.FLOORDIV, x, const(7, I64)), (-9, 900), (0, 0), True),
    ("remainder of 8", lambda w, x, y: w.do(Ops.MOD, x, const(8, I64)), (-9, 90), (0, 0), True),
    ("eighth", lambda w, x, y: w.do(Ops.FLOORDIV, x, const(8, I64)), (-9, 900), (0, 0), True),
    ("toward zero", lambda w, x, y: w.do(Ops.TRUNCDIV, x, const(2, I64)), (-1, 0), (0, 0), True),
    ("least", lambda w, x, y: w.do(Ops.MIN, x, y), (-MOST, MOST), (0, 9), True),
]


@pytest.mark.parametrize("name,make,first,second,fits", CASES, ids=[row[0] for row in CASES])
def test_what_fits_is_narrowed(
    name: str, make: Make, first: tuple[int, int], second: tuple[int, int], fits: bool
) -> None:
    """Values at the ends of the bounds give what Python's integers give."""
    w = Writer()
    x, y = number("x", *first), number("y", *second)
    value = make(w, x, y)
    w.store(param(0, 1, I64), 0, value)
    program = w.program()
    assert (value.op not in wide_ops(program)) == fits
    for a in first:
        for b in second:
            found, expected = np.zeros(1, np.int64), np.zeros(1, np.int64)
            evaluate_linear(program, [expected], {"x": a, "y": b})
            run_ptx(program, [found], {"x": a, "y": b})
            assert found[0] == expected[0], (a, b)


def test_positions_of_threads_take_32_bits() -> None:
    w = Writer()
    place = w.do(Ops.MUL, w.thread(256), const(4, I64))
    w.store(param(0, 1024), place, w.load(param(1, 1024), place, width=4, align=16),
            width=4, align=16)  # fmt: skip
    assert not wide_ops(w.program())


@pytest.mark.parametrize("stop", (0, 3))
def test_counters_are_narrowed_and_widened_where_they_are_stored(stop: int) -> None:
    w = Writer()
    out = param(0, 8, I64)
    i = w.begin(0, number("n", 0, 8))
    w.store(out, i, w.do(Ops.ADD, i, const(1 << 40, I64)))
    w.store(param(1, 8, dtypes.float32), i, w.cast(i, dtypes.float32))
    w.end()
    found, floats = np.zeros(8, np.int64), np.zeros(8, np.float32)
    run_ptx(w.program(), [found, floats], {"n": stop})
    steps = np.arange(8)
    np.testing.assert_array_equal(found, np.where(steps < stop, steps + (1 << 40), 0))
    np.testing.assert_array_equal(floats, np.where(steps < stop, steps, 0))


def test_a_register_of_32_bits_is_read_when_it_is_widened() -> None:
    w = Writer()
    count = w.register(I32)
    w.set(count, const(1, I32))
    before = w.cast(count, I64)
    w.set(count, const(5, I32))
    w.store(param(0, 1, I64), 0, before)
    found = np.zeros(1, np.int64)
    run_ptx(w.program(), [found])
    assert found[0] == 1

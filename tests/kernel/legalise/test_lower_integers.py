"""Integer ops at the loop level: any operands, compared with Python's own integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.legalise.lower_integers import lower_integers
from tests.kernel.legalise.integers import INT, RULES, edges, wrap
from tests.render.harness import (
    compiled,
    elementwise,
    kernel,
    load,
    lower,
    param,
    store,
    vector,
)


@pytest.mark.parametrize("dtype", INT, ids=str)
def test_shifts_by_variable_amounts(dtype: DType) -> None:
    amounts = [a for a in (*range(dtype.bits + 3), 100, -1, int(dtype.min), int(dtype.max))
               if dtype.min <= a <= dtype.max]
    pairs = [(v, a) for v in edges(dtype)[::3] for a in amounts]
    pairs += pairs[: -len(pairs) % 8]
    x, y = (wrap(list(column), dtype) for column in zip(*pairs, strict=True))
    node = elementwise(
        [lambda a, b: alu(Ops.SHL, a, b), lambda a, b: alu(Ops.SHR, a, b)], len(x), [dtype] * 2
    )
    left, right = np.zeros_like(x), np.zeros_like(x)
    compiled(lower(node))([left, right, x, y])
    fits = [0 <= a < dtype.bits for _, a in pairs]
    up = wrap([v << a if f else 0 for (v, a), f in zip(pairs, fits, strict=True)], dtype)
    sign = [v >> a if f else (-1 if v < 0 else 0) for (v, a), f in zip(pairs, fits, strict=True)]
    assert np.array_equal(left, up)
    assert np.array_equal(right, wrap(sign, dtype))


def lowered(functions: list[Callable[..., Node]], dtype: DType, *arrays: Any) -> list[Any]:
    """Functions of integers over arrays: lowered, then by the evaluator of the loop level."""
    count = len(arrays[0])
    found = [np.zeros(count, dtype.numpy) for _ in functions]
    node = elementwise(functions, count, [dtype] * len(arrays), count)
    evaluate_loop(lower_integers(node), [*found, *arrays])
    return found


@pytest.mark.parametrize("dtype", INT, ids=str)
def test_division_by_variables_is_defined_for_all_operands(dtype: DType) -> None:
    """By 0 it is 0, as is the remainder; the lowest number by -1 wraps around."""
    some = [*edges(dtype)[:: 1 if dtype.bits == 8 else 5], 0, 1]
    some += [-1] if dtype.kind == "int" else []
    pairs = [(x, y) for x in some for y in some]
    x, y = (wrap(list(column), dtype) for column in zip(*pairs, strict=True))
    functions = [lambda a, b, op=op: alu(op, a, b) for op, _ in RULES]
    for (op, rule), found in zip(RULES, lowered(functions, dtype, x, y), strict=True):
        wanted = wrap([rule(a, b) for a, b in pairs], dtype)
        np.testing.assert_array_equal(found, wanted, err_msg=str(op))


def test_the_machine_never_divides_by_zero_or_overflows() -> None:
    """What its division is given in the place of such operands gives a quotient."""
    x, y = param(1, 8, dtype=dtypes.int32), param(2, 8, dtype=dtypes.int32)
    v = vector(8, 0)
    quotient = alu(Ops.FLOORDIV, load(x, v), load(y, v))
    node = lower_integers(kernel(store(param(0, 8, dtype=dtypes.int32), quotient, v)))
    (division,) = [one for one in toposort(node) if one.op is Ops.TRUNCDIV]
    low = -(1 << 31)
    numbers = np.array([low, low, low, 7, 0, -1, 5, -9], np.int32)
    divisors = np.array([-1, 0, 1, 0, 0, -1, 2, 2], np.int32)
    safe = kernel(store(param(0, 8, dtype=dtypes.int32), division.src[1], v))
    found = np.zeros(8, np.int32)
    evaluate_loop(safe, [found, numbers, divisors])
    assert found.tolist() == [1, 1, 1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("dtype", INT[1::2], ids=str)
@pytest.mark.parametrize("width", [1, 3, 7])
def test_bits_of_a_word(dtype: DType, width: int) -> None:
    words = wrap(edges(dtype), dtype)
    functions = [
        lambda a, at=at: Node(Ops.BITFIELD, dtype, (a, const(at, dtype)), width)
        for at in range(dtype.bits - width + 1)
    ]
    for at, found in enumerate(lowered(functions, dtype, words)):
        wanted = [(word >> at) & ((1 << width) - 1) for word in edges(dtype)]
        assert found.tolist() == wanted


def test_remainders_by_powers_of_two_are_masks() -> None:
    x = load(param(1, 4, dtype=dtypes.int16), vector(4, 0))
    for divisor, op in ((8, Ops.AND), (1, Ops.AND), (6, Ops.SUB), (-8, Ops.SUB), (0, Ops.CONST)):
        rest = alu(Ops.MOD, x, const(divisor, dtypes.int16))
        node = kernel(store(param(0, 4, dtype=dtypes.int16), rest, vector(4, 0)))
        assert lower_integers(node).src[0].src[1].op is op


def test_index_arithmetic_is_for_later() -> None:
    """Positions are divided where their widths are known."""
    v = vector(8, 0)
    place = index.floordiv(v, 3)
    node = kernel(store(param(0, 3), load(param(1, 8), v), place))
    assert lower_integers(node) is node

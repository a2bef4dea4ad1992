"""Sizes as launch expressions: they have the value that Python's integers give."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.engine.launch import launch_expr
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops
from baregrad.program import check, evaluate

M, N = variable("m", 1, 9), variable("n", 1, 9)
# Each is a size made of nodes, and the same of Python's integers.
SIZES: dict[str, tuple[Any, Callable[[int, int], int]]] = {
    "sum": (index.add(M, N), lambda m, n: m + n),
    "product": (index.mul(index.mul(M, 3), N), lambda m, n: 3 * m * n),
    "difference": (alu(Ops.SUB, M, N), lambda m, n: m - n),
    "quotient": (index.floordiv(index.add(M, 7), 4), lambda m, n: (m + 7) // 4),
    "rest": (index.mod(index.mul(N, 5), 7), lambda m, n: 5 * n % 7),
    "maximum": (index.maximum(index.mul(M, 2), N), lambda m, n: max(2 * m, n)),
    "minimum": (index.minimum(M, N), lambda m, n: min(m, n)),
    "shared parts": (
        alu(Ops.SUB, alu(Ops.MUL, index.add(M, N), index.add(M, N)), index.add(M, N)),
        lambda m, n: (m + n) ** 2 - (m + n),
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_its_value_for_all_values_of_its_variables(name: str) -> None:
    size, wanted = SIZES[name]
    expression = launch_expr(size)
    check(expression)
    for m, n in itertools.product(range(1, 10), repeat=2):
        assert evaluate(expression, {"m": m, "n": n}) == wanted(m, n)


def test_integers_stay_what_they_are() -> None:
    assert launch_expr(12) == 12
    assert launch_expr(const(-5, dtypes.index)) == -5
    assert launch_expr(M) == ("var", "m")


@pytest.mark.parametrize("size", [
    alu(Ops.CMPLT, M, N),
    Node(Ops.CAST, dtypes.index, (const(3, dtypes.int32),)),
    alu(Ops.WHERE, alu(Ops.CMPLT, M, N), M, N),
], ids=["comparison", "cast", "choice"])  # fmt: skip
def test_what_is_no_size_is_refused(size: Node) -> None:
    with pytest.raises(CompilerBug, match="cannot stand in a launch size"):
        launch_expr(size)

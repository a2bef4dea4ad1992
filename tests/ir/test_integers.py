"""Symbolic integers in Python's own operators: values against ints, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.index import as_node, variable
from baregrad.ir.core.node import Node, const
from baregrad.ir.evaluate.tensor_level import evaluate

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "n + 3": lambda n: n + 3,
    "3 + n": lambda n: 3 + n,
    "n - 4": lambda n: n - 4,
    "4 - n": lambda n: 4 - n,
    "5 * n": lambda n: 5 * n,
    "n * n": lambda n: n * n,
    "n // 3": lambda n: n // 3,
    "n % 3": lambda n: n % 3,
    "-n": lambda n: -n,
    "(n - 9) // 2": lambda n: (n - 9) // 2,
    "(n - 9) % 4": lambda n: (n - 9) % 4,
    "8 * n // 4 - n": lambda n: 8 * n // 4 - n,
}


@pytest.mark.parametrize("text", OPERATORS)
def test_operators_give_what_ints_give(text: str) -> None:
    n = variable("n", 0, 12)
    made = as_node(OPERATORS[text](n))
    assert made.dtype is dtypes.index
    lo, hi = bounds(made)
    for value in range(13):
        wanted = OPERATORS[text](value)
        assert int(evaluate(made, variables={"n": value})) == wanted
        assert lo <= wanted <= hi


def test_a_constant_result_is_an_int() -> None:
    n = variable("n", 1, 8)
    assert n - n == 0
    assert isinstance(n - n, int)
    assert n % 1 == 0
    assert n + 1 - 1 is n


def test_they_print_as_they_are_written() -> None:
    n = variable("n", 1, 8)
    assert repr(n) == "n"
    assert repr(n + 1) == "n + 1"
    assert repr(bind(n, 5)) == "n=5"
    assert repr(n // 2 * 3) == "(n // 2) * 3"


@pytest.mark.parametrize("ask", [
    lambda n: n < 3,
    lambda n: 3 <= n,
    lambda n: n > 3,
    lambda n: n >= 3,
    bool,
    range,
    lambda n: [0, 1, 2][n],
])  # fmt: skip
def test_python_is_told_no_value(ask: Callable[[Node], object]) -> None:
    with pytest.raises(ShapeError, match="needs an integer that is known now.*found n=2"):
        ask(bind(variable("n", 1, 8), 2))


def test_other_operands_are_python_errors() -> None:
    n = variable("n", 1, 8)
    for other in (0.5, True, const(1.0, dtypes.float32)):
        with pytest.raises(TypeError, match="unsupported operand"):
            n * other
        with pytest.raises(TypeError, match="unsupported operand"):
            other - n


@pytest.mark.parametrize(("name", "lo", "hi", "told"), [
    ("n", 3, 1, "no such bounds: found 3 to 1"),
    ("n", 0, 2.5, "no such bounds: found 0 to 2.5"),
    ("n", False, 3, "no such bounds"),
    ("a b", 0, 1, "a variable has a name: found 'a b'"),
    ("", 0, 1, "a variable has a name"),
    (".block", 0, 1, "a variable has a name"),
    (3, 0, 1, "a variable has a name: found 3"),
])  # fmt: skip
def test_declarations_that_are_none(name: Any, lo: Any, hi: Any, told: str) -> None:
    with pytest.raises(ShapeError, match=told):
        variable(name, lo, hi)


def test_values_that_are_none() -> None:
    n = variable("n", 1, 8)
    with pytest.raises(ShapeError, match="declared in 1..8 and cannot be 9"):
        bind(n, 9)
    for value in (2.5, True, "3"):
        with pytest.raises(DTypeError, match="n is an integer: found"):
            bind(n, value)  # type: ignore[arg-type]
    for thing in (5, n + 1):
        with pytest.raises(DTypeError, match="bind gives a variable a value"):
            bind(thing, 5)  # type: ignore[arg-type]

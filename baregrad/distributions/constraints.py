"""Sets that parameters and samples lie in; `check(value)` says where a tensor is inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from baregrad.tensor import Tensor

__all__ = [
    "ValueSet",
    "boolean",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "integer_interval",
    "interval",
    "lower_cholesky",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "real",
    "real_vector",
    "simplex",
    "unit_interval",
]

# How far the sum of a simplex may be from 1, as in PyTorch.
_SUM_ERROR = 1e-6
_SYMMETRY_ERROR = 1e-6


class ValueSet(NamedTuple):
    """A set: its name, how many last axes an element has, whether it is of integers, and a test."""

    name: str
    event_dim: int
    is_discrete: bool
    test: Callable[[Tensor], Tensor]

    def check(self, value: Tensor) -> Tensor:
        """Return where elements, of `event_dim` axes each, lie in the set."""
        inside = self.test(value)
        for _ in range(self.event_dim - (value.ndim - inside.ndim)):
            inside = inside.all(-1)
        return inside

    def __repr__(self) -> str:
        return self.name


def _is_integer(x: Tensor) -> Tensor:
    return x == x.floor() if x.dtype.is_float else x == x


def interval(lower_bound: float | Tensor, upper_bound: float | Tensor) -> ValueSet:
    """Return the numbers from one bound to another."""
    name = f"interval({lower_bound}, {upper_bound})"
    return ValueSet(name, 0, False, lambda x: (x >= lower_bound) & (x <= upper_bound))


def integer_interval(lower_bound: float | Tensor, upper_bound: float | Tensor) -> ValueSet:
    """Return the integers from one bound to another."""
    name = f"integer_interval({lower_bound}, {upper_bound})"
    return ValueSet(
        name, 0, True, lambda x: _is_integer(x) & (x >= lower_bound) & (x <= upper_bound)
    )


def half_open_interval(lower_bound: float | Tensor, upper_bound: float | Tensor) -> ValueSet:
    """Return the numbers from one bound to below another."""
    name = f"half_open_interval({lower_bound}, {upper_bound})"
    return ValueSet(name, 0, False, lambda x: (x >= lower_bound) & (x < upper_bound))


def greater_than_eq(lower_bound: float | Tensor) -> ValueSet:
    """Return the numbers from a bound on."""
    return ValueSet(f"greater_than_eq({lower_bound})", 0, False, lambda x: x >= lower_bound)


def greater_than(lower_bound: float | Tensor) -> ValueSet:
    """Return the numbers above a bound."""
    return ValueSet(f"greater_than({lower_bound})", 0, False, lambda x: x > lower_bound)


def _is_symmetric_and_positive(x: Tensor) -> Tensor:
    from baregrad import linalg

    symmetric = ((x - x.mT).abs() <= _SYMMETRY_ERROR).all(-1).all(-1)
    info: Tensor = linalg.cholesky_ex(x).info
    found: Tensor = symmetric & info.eq(0)
    return found


def _is_lower_cholesky(x: Tensor) -> Tensor:
    return (x.tril() == x).all(-1).all(-1) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


real = ValueSet("real", 0, False, lambda x: x == x)
real_vector = ValueSet("real_vector", 1, False, lambda x: x == x)
positive = ValueSet("positive", 0, False, lambda x: x > 0)
nonnegative = ValueSet("nonnegative", 0, False, lambda x: x >= 0)
nonnegative_integer = ValueSet(
    "nonnegative_integer", 0, True, lambda x: _is_integer(x) & (x >= 0)
)
boolean = ValueSet("boolean", 0, True, lambda x: (x == 0) | (x == 1))
unit_interval = interval(0.0, 1.0)
simplex = ValueSet(
    "simplex", 1, False,
    lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < _SUM_ERROR),
)  # fmt: skip
one_hot = ValueSet(
    "one_hot", 1, True, lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)
)
positive_definite = ValueSet("positive_definite", 2, False, _is_symmetric_and_positive)
lower_cholesky = ValueSet("lower_cholesky", 2, False, _is_lower_cholesky)
circle = interval(-math.pi, math.pi)

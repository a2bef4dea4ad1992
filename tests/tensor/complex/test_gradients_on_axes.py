"""Gradients of complex functions where one part is 0, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.options import options

REAL = np.array([-0.5, 0.3, 1.2, 0.0, 0.0])
IMAG = np.array([0.0, 0.0, 0.7, 0.0, 0.4])
FUNCTIONS = (
    "exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sigmoid", "asin", "acos",
    "atan", "asinh", "atanh", "square",
)
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "log": lambda t, z: t.log(z + 2), "sqrt": lambda t, z: t.sqrt(z + 2),
    "power": lambda t, z: (z + 2) ** 1.5, "acosh": lambda t, z: t.acosh(z + 3),
    "quotient": lambda t, z: (z + 1) / (z - 3), "size": lambda t, z: t.abs(z + 2),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FUNCTIONS, *CASES])
def test_gradients_on_the_axes(name: str) -> None:
    found = []
    with options.override(device="REF"):
        for t in (baregrad, torch):
            sides: Any = t
            parts = [sides.tensor(part, requires_grad=True) for part in (REAL, IMAG)]
            z = sides.complex(*parts)
            y = CASES[name](sides, z) if name in CASES else getattr(sides, name)(z * 0.8)
            (y.real * 2 + y.imag * 3 if y.is_complex() else y).sum().backward()
            found.append(np.stack([part.grad.numpy() for part in parts]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.bridges.aten.cases import check, draw

X, Y = draw(3, 4), draw(3, 4, seed=1)


@pytest.mark.parametrize(
    "name",
    ["abs", "exp", "expm1", "erf", "floor", "neg", "relu", "rsqrt", "sigmoid", "sign", "sin",
     "tanh", "trunc", "silu", "isnan", "hardswish", "softplus", "log1p", "elu"],
)
def test_operators_of_one_tensor(name: str) -> None:
    check(name, X.abs() if name in ("rsqrt", "log1p") else X)


@pytest.mark.parametrize(
    ("name", "overload", "arguments", "named"),
    [
        ("add", "Tensor", (X, Y), {"alpha": 2}),
        ("sub", "Tensor", (X, Y), {"alpha": 3}),
        ("rsub", "Scalar", (X, 2), {}),
        ("div", "Tensor_mode", (X, Y), {"rounding_mode": "floor"}),
        ("div", "Tensor_mode", (X, Y), {"rounding_mode": "trunc"}),
        ("pow", "Scalar", (2.0, X), {}),
        ("pow", "Tensor_Scalar", (X, 3), {}),
        ("clamp", "default", (X, -0.5, None), {}),
        ("where", "self", (X > 0, X, Y), {}),
        ("gelu", "default", (X,), {"approximate": "tanh"}),
        ("gelu_backward", "default", (X, Y), {"approximate": "tanh"}),
        ("gelu_backward", "default", (X, Y), {}),
        ("elu", "default", (X, 1.5, 2.0, 0.5), {}),
        ("threshold_backward", "default", (X, Y, 0), {}),
        ("_to_copy", "default", (X,), {"dtype": torch.int32}),
        ("bitwise_and", "Tensor", (X > 0, Y > 0), {}),
    ],
)
def test_operators_with_arguments(
    name: str, overload: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    check(name, *arguments, overload=overload, **named)

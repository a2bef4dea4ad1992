from __future__ import annotations

from typing import Any

import pytest

from tests.bridges.aten.cases import check, draw

X = draw(3, 4, 5)


@pytest.mark.parametrize(
    ("name", "overload", "arguments", "named"),
    [
        ("sum", "dim_IntList", (X, [0, 2], True), {}),
        ("sum", "default", (X,), {}),
        ("sum", "dim_IntList", (X, []), {}),
        ("mean", "dim", (X, [-1]), {}),
        ("var", "correction", (X, [1]), {"correction": 0, "keepdim": True}),
        ("var_mean", "correction", (X, [1]), {"correction": 1}),
        ("amax", "default", (X, [0, 1]), {}),
        ("any", "dim", (X > 1, 1), {}),
        ("max", "dim", (X, 1), {}),
        ("argmax", "default", (X, 1, True), {}),
        ("prod", "dim_int", (X, 1), {}),
        ("cumsum", "default", (X, 1), {}),
        ("_softmax", "default", (X, 1, False), {}),
        ("_log_softmax", "default", (X, 2, False), {}),
        ("sort", "default", (X, 1, True), {}),
        ("topk", "default", (X, 2, 1), {}),
        ("linalg_vector_norm", "default", (X, 2, [1]), {}),
        ("linalg_vector_norm", "default", (X, 1, [1], True), {}),
        ("linalg_vector_norm", "default", (X, float("inf")), {}),
        ("linalg_vector_norm", "default", (X, 3, [0]), {}),
    ],
)
def test_operators(
    name: str, overload: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    check(name, *arguments, overload=overload, **named)

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.bridges.aten.cases import check, draw

X = draw(5, 4)
ROWS = torch.tensor([[0, 2], [2, 4]])


@pytest.mark.parametrize(
    ("name", "overload", "arguments"),
    [
        ("index", "Tensor", (X, [ROWS])),
        ("index", "Tensor", (X, [ROWS, ROWS % 4])),
        ("index", "Tensor", (X, [None, ROWS % 4])),
        ("index_put", "default", (X, [ROWS[0]], draw(2, 4), False)),
        ("index_put", "default", (X, [ROWS], draw(2, 2, 4), True)),
        ("index_put", "default", (X, [None, ROWS % 4], draw(5, 2, 2), True)),
        ("embedding", "default", (X, ROWS)),
        ("embedding_dense_backward", "default", (draw(2, 2, 4), ROWS, 5, -1, False)),
        ("embedding_dense_backward", "default", (draw(2, 2, 4), ROWS, 5, 2, False)),
        ("gather", "default", (X, 0, ROWS)),
        ("scatter", "src", (X, 0, torch.tensor([[0, 3]]), draw(1, 2))),
        ("scatter", "value", (X, 0, torch.tensor([[0, 3]]), 2.0)),
        ("scatter_add", "default", (X, 0, ROWS, draw(2, 2))),
        ("index_select", "default", (X, 1, ROWS[0])),
    ],
)
def test_operators(name: str, overload: str, arguments: tuple[Any, ...]) -> None:
    check(name, *arguments, overload=overload)

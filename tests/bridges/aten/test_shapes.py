from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.bridges.aten.cases import check, draw

X = draw(3, 4, 5)


@pytest.mark.parametrize(
    ("name", "overload", "arguments", "named"),
    [
        ("view", "default", (X, [3, 20]), {}),
        ("view", "dtype", (X, torch.int32), {}),
        ("view", "dtype", (draw(3, 4), torch.int16), {}),
        ("view", "dtype", (X > 0, torch.uint8), {}),
        ("permute", "default", (X, [2, 0, 1]), {}),
        ("expand", "default", (draw(1, 4, 1), [3, 4, 5]), {}),
        ("squeeze", "dims", (draw(1, 4, 1), [0, 1]), {}),
        ("slice", "Tensor", (X, 1, 1, 9223372036854775807, 2), {}),
        ("slice", "Tensor", (X, 2, -3, -1), {}),
        ("select", "int", (X, 1, -1), {}),
        ("slice_scatter", "default", (X, draw(3, 2, 5), 1, 0, 2), {}),
        ("select_scatter", "default", (X, draw(3, 5), 1, 2), {}),
        ("cat", "default", ([X, X], 2), {}),
        ("split_with_sizes", "default", (X, [1, 3], 1), {}),
        ("constant_pad_nd", "default", (X, [1, 2, 0, 1], 3.0), {}),
        ("full", "default", ([2, 3], 7), {"dtype": torch.int64}),
        ("full_like", "default", (X, 2), {}),
        ("arange", "start_step", (2, 11, 3), {}),
        ("scalar_tensor", "default", (2.5,), {}),
        ("zeros_like", "default", (X,), {}),
    ],
)
def test_operators(
    name: str, overload: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    check(name, *arguments, overload=overload, **named)

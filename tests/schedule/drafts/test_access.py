"""Views are index arithmetic: they cost no kernel, whatever they read."""

from __future__ import annotations

import pytest

from tests.schedule.graphs import check, param


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.permute(1, 0),
        lambda x: x.reshape(4, 6, 5),
        lambda x: x.flip(0, 1),
        lambda x: x.pad((1, 2), (0, 3)),
        lambda x: x.pad((0, 0, 2), (1, 0, 1)),
        lambda x: x.shrink((1, 11, 3), (2, 9)),
        lambda x: x.reshape(12, 1, 10).expand(12, 3, 10),
        lambda x: x.window(1, 3, 2, 2).window(0, 2),
        lambda x: x.permute(1, 0).reshape(8, 15).flip(1).permute(1, 0).reshape(5, 24),
        lambda x: x.pad((1, 1), (1, 1)).window(0, 3),
    ],
)
def test_views_cost_no_kernel(view: object) -> None:
    x = param(0, 12, 10)
    check([view(x + 1.0) * 2.0], kernels=1)  # type: ignore[operator]


def test_view_of_a_stored_value_is_read_in_place() -> None:
    x = (param(0, 6, 8) * 2.0).contiguous()
    check([x.permute(1, 0).reshape(4, 12) + 1.0], kernels=2)

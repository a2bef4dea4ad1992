"""Running folds along several axes of one array, in one expression or side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.tensor import Tensor
from tests.differential import sweep

pytestmark = pytest.mark.differential

EXPRESSIONS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("inner, then outer", lambda x: x.cumsum(2).cumsum(0)),
    ("outer, then inner", lambda x: x.cumsum(0).cumsum(2)),
    ("every axis", lambda x: (x.cumsum(1) * 0.5).cumsum(0).cumsum(2)),
    ("one axis twice", lambda x: (x.cumsum(1) * 0.5).cumsum(1)),
    ("beside each other", lambda x: x.cumsum(0) + x.cumsum(2)),
    ("of one axis that is read along another", lambda x: x[0].cumsum(0).T * x[1].T),
    ("beside its own transpose", lambda x: x[:, :3, 0].cumsum(0) + x[:, :3, 0].cumsum(0).T),
    ("of what a running fold scales", lambda x: (x.sum(1).cumsum(1) * x[:, 0]).cumsum(0)),
    ("summed, and along another axis", lambda x: x.cumsum(0).sum(2) + x.sum(2).cumsum(1)),
    ("along an axis of one element", lambda x: x[:, :1].cumsum(1).cumsum(0)),
)


def data() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((3, 4, 5))


@pytest.mark.parametrize("row", EXPRESSIONS, ids=[row[0] for row in EXPRESSIONS])
def test_running_folds_along_several_axes(row: tuple[str, Callable[[Any], Any]]) -> None:
    with options.override(device=sweep.DEVICE):
        found = row[1](Tensor(data())).numpy()
    np.testing.assert_allclose(found, row[1](data()), rtol=1e-12, atol=1e-12, strict=True)


def test_running_folds_realised_together() -> None:
    with options.override(device=sweep.DEVICE):
        x = Tensor(data())
        made = [x.cumsum(axis) for axis in range(3)]
        made[0].realize(*made[1:])
        found = [one.numpy() for one in made]
    for axis, one in enumerate(found):
        np.testing.assert_allclose(one, data().cumsum(axis), rtol=1e-12, atol=1e-12, strict=True)

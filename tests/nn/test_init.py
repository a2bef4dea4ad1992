"""Initial values have PyTorch's distributions."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, nn
from baregrad.base.errors import ArgumentError, ShapeError

SHAPE = (60, 40, 5, 4)


@pytest.mark.differential
@pytest.mark.parametrize("fill", [
    lambda f, x: f.uniform_(x, -1.0, 3.0),
    lambda f, x: f.normal_(x, 2.0, 0.5),
    lambda f, x: f.trunc_normal_(x, 0.5, 1.0, -1.0, 1.0),
    lambda f, x: f.constant_(x, 3.0),
    lambda f, x: f.zeros_(x),
    lambda f, x: f.ones_(x),
    lambda f, x: f.xavier_uniform_(x, 2.0),
    lambda f, x: f.xavier_normal_(x),
    lambda f, x: f.kaiming_uniform_(x, 0.3),
    lambda f, x: f.kaiming_uniform_(x, mode="fan_out", nonlinearity="tanh"),
    lambda f, x: f.kaiming_normal_(x, nonlinearity="relu"),
])  # fmt: skip
def test_numbers_are_spread_as_pytorchs(fill: Any) -> None:
    torch.manual_seed(3)
    Tensor.manual_seed(3)
    ours, theirs = Tensor.empty(*SHAPE), torch.empty(SHAPE)
    assert fill(nn.init, ours) is ours
    fill(torch.nn.init, theirs)
    found, wanted = np.sort(ours.numpy().reshape(-1)), np.sort(theirs.numpy().reshape(-1))
    # Two samples of one distribution: at no place do they differ by more of the numbers than
    # Kolmogorov's and Smirnov's test finds in one of 10,000 pairs.
    places = np.concatenate([found, wanted])
    shares = [np.searchsorted(one, places, "right") / len(one) for one in (found, wanted)]
    assert np.abs(shares[0] - shares[1]).max() < 2.23 * np.sqrt(2 / len(found))


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (-9.0, -3.0), (0.1, 0.2), (2.0, 40.0)])
def test_a_cut_normal_distribution_has_its_shares(low: float, high: float) -> None:
    Tensor.manual_seed(1)
    x = nn.init.trunc_normal_(Tensor.empty(20_000), a=low, b=high).numpy().astype(np.float64)
    assert low <= x.min() and x.max() <= high
    normal = NormalDist()
    first, last = normal.cdf(low), normal.cdf(high)
    wanted = np.array([(normal.cdf(v) - first) / (last - first) for v in np.sort(x)])
    assert np.abs(wanted - np.arange(len(x)) / len(x)).max() < 2.23 / np.sqrt(len(x))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ShapeError, match="two axes or more"):
        nn.init.xavier_uniform_(Tensor.empty(3))
    with pytest.raises(ArgumentError, match="fan_in"):
        nn.init.kaiming_normal_(Tensor.empty(3, 3), mode="fan")
    with pytest.raises(ArgumentError, match="gain"):
        nn.init.kaiming_normal_(Tensor.empty(3, 3), nonlinearity="sine")


def test_weights_that_keep_what_they_are_given() -> None:
    for shape in ((6, 4), (3, 5, 2)):
        w = nn.init.orthogonal_(Tensor.zeros(*shape), 2.0).numpy().reshape(shape[0], -1)
        small = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)
    for shape, groups in (((4, 3, 3), 1), ((4, 2, 3, 2), 2), ((2, 5, 1, 3, 3), 2)):
        found = nn.init.dirac_(Tensor.ones(*shape), groups).numpy()
        wanted = torch.nn.init.dirac_(torch.ones(*shape), groups).numpy()
        assert (found == wanted).all()
    assert (nn.init.eye_(Tensor.zeros(2, 3)).numpy() == np.eye(2, 3)).all()
    found = nn.init.sparse_(Tensor.zeros(10, 4), 0.25).numpy()
    assert ((found == 0).sum(0) == 3).all()
    for name in ("relu", "tanh", "selu", "linear"):
        assert nn.init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    with pytest.raises(ShapeError):
        nn.init.eye_(Tensor.zeros(2))

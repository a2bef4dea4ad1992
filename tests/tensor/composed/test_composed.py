"""Short compositions of operations, with arguments that the page of operations does not try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import ArgumentError, GradientError, ShapeError
from baregrad.base.options import options
from baregrad.tensor import Tensor

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
NAN = np.where(X > 1, np.nan, X).astype(np.float32)
CASES: tuple[Callable[[Any], Any], ...] = (
    *[lambda t, k=k: t(X).rot90(k) for k in (-1, 0, 2, 3)],
    lambda t: t(X).rot90(1, (1, 0)),
    lambda t: t(X[0]).hsplit([1, 3])[1],
    lambda t: t(X).diagflat(-1),
    lambda t: t(X).slice_scatter(t(X[:, :2]), 1, 0, 4, 2),
    lambda t: t(X).select_scatter(t(X[0]), 0, -1),
    lambda t: t(X).diagonal_scatter(t(X[0, :3]), 1),
    lambda t: t(X).masked_scatter(t(X > 0), t(X.reshape(-1)[:10].copy())),
    lambda t: t(X).sum_to_size(1, 4),
    lambda t: t(X).sum_to_size((4,)),
    lambda t: t(NAN).fmax(t(-X)),
    lambda t: t(NAN).fmin(t(NAN)),
    lambda t: t(X).logaddexp2(t(X * 100)),
    lambda t: t(X).inner(t(X[:2])),
    lambda t: t(X[:, :3]).cross(t(X[:, 1:]), dim=-1),
    lambda t: t(X).dist(t(X * 2), 1),
    lambda t: t(X).cov(correction=0),
    lambda t: t(X).cov(fweights=t(np.array([1, 2, 3, 4]))),
    lambda t: t(X).cov(aweights=t(np.array([1.0, 2.0, 3.0, 4.0], "f4"))),
    lambda t: t(X[0]).cov(),
    lambda t: t(X).corrcoef(),
    lambda t: t(X).renorm(1, 0, 2.0),
    lambda t: t(X[:, 0]).addmv(t(X), t(X[0]), beta=0.5, alpha=2),
    lambda t: t(X).clone().unsqueeze_(0).transpose_(0, 2).squeeze_(1),
    lambda t: t(X).clone().t_().mul_(2),
    lambda t: t(X).gt_(0.5),
    lambda t: t(np.array([np.inf, -np.inf, 1.0])).isposinf(),
    lambda t: t(X).float_power(2),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_compositions_agree(case: Callable[[Any], Any]) -> None:
    with options.override(device="REF"), np.errstate(all="ignore"):
        found = case(Tensor).numpy()
    wanted = case(torch.tensor).numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


def test_what_is_refused() -> None:
    x = Tensor(X, requires_grad=True)
    with pytest.raises(GradientError, match="axes of a leaf"):
        x.unsqueeze_(0)
    with pytest.raises(ArgumentError, match="requires_grad_"):
        x.detach_()
    with pytest.raises(ShapeError, match="broadcast"):
        x.sum_to_size(2, 4)
    with pytest.raises(ShapeError, match="fewer values"):
        x.masked_scatter(Tensor(np.ones((3, 4), bool)), Tensor([1.0]))
    y = x * 2
    assert y.detach_() is y and not y.requires_grad


def test_changed_axes_still_alias() -> None:
    base = Tensor(X).clone()
    view = base[1:]
    view.t_()
    view.fill_(0.0)
    assert (base.numpy()[1:] == 0).all() and view.shape == (4, 2)

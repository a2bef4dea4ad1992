"""Averages of models beside PyTorch's: weights, buffers, states, rates, statistics anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import swa_utils as theirs

from baregrad import jit, nn, optim
from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.optim import swa_utils as ours
from baregrad.tensor import Tensor


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with options.override(device="REF"):
        Tensor.manual_seed(0)
        yield


def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    mine = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    mine.load_state_dict({name: Tensor(t) for name, t in other.state_dict().items()})
    return mine, other


def twice(averaged: Any, current: Any, count: Any) -> None:
    """An average that changes even what it is given as both."""
    for one, value in zip(averaged, current, strict=True):
        one.copy_(one + value)


def agree(mine: nn.Module, other: torch.nn.Module) -> None:
    state = other.state_dict()
    assert list(mine.state_dict()) == list(state)
    for name, value in mine.state_dict().items():
        np.testing.assert_allclose(value.numpy(), state[name].numpy(), 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize(("words", "words_t"), [
    ({}, {}),
    ({"multi_avg_fn": ours.get_ema_multi_avg_fn(0.7)},
     {"multi_avg_fn": theirs.get_ema_multi_avg_fn(0.7)}),
    ({"avg_fn": lambda a, b, n: a * 0.5 + b * 0.5, "use_buffers": True},
     {"avg_fn": lambda a, b, n: a * 0.5 + b * 0.5, "use_buffers": True}),
    pytest.param({"multi_avg_fn": twice}, {"multi_avg_fn": twice}, marks=pytest.mark.slow),
], ids=["equal", "ema", "function", "functions"])  # fmt: skip
def test_averages_equal_pytorchs(words: dict[str, Any], words_t: dict[str, Any]) -> None:
    mine, other = pair()
    averaged, averaged_t = ours.AveragedModel(mine, **words), theirs.AveragedModel(other, **words_t)
    for step in range(3):
        data = np.random.default_rng(step).standard_normal((4, 3)).astype(np.float32)
        mine(Tensor(data))
        other(torch.tensor(data))
        with torch.no_grad(), Tensor.no_grad():
            for p, q in zip(mine.parameters(), other.parameters(), strict=True):
                p.add_(0.1 * (step + 1))
                q.add_(0.1 * (step + 1))
        averaged.update_parameters(mine)
        averaged_t.update_parameters(other)
    agree(averaged, averaged_t)
    mine.eval()
    x = Tensor(data)
    assert averaged.eval()(x).shape == mine(x).shape
    again = ours.AveragedModel(mine)
    again.load_state_dict(averaged.state_dict())
    agree(again, averaged_t)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("epochs", [4, 0])
def test_rates_equal_pytorchs(strategy: str, epochs: int) -> None:
    mine, other = pair()
    sgd = optim.SGD(mine.parameters(), lr=0.5)
    sgd_t = torch.optim.SGD(other.parameters(), lr=0.5)
    first, first_t = (optim.lr_scheduler.ExponentialLR(sgd, 0.8),
                      torch.optim.lr_scheduler.ExponentialLR(sgd_t, 0.8))  # fmt: skip
    last = ours.SWALR(sgd, 0.05, anneal_epochs=epochs, anneal_strategy=strategy)
    last_t = theirs.SWALR(sgd_t, 0.05, anneal_epochs=epochs, anneal_strategy=strategy)
    for step in range(8):
        sgd_t.step()
        (first if epochs and step < 2 else last).step()
        (first_t if epochs and step < 2 else last_t).step()
        found = sgd.param_groups[0]["lr"].item()
        assert found == pytest.approx(sgd_t.param_groups[0]["lr"], rel=1e-9)


def test_statistics_anew_equal_pytorchs() -> None:
    mine, other = pair()
    batches = [np.random.default_rng(n).standard_normal((5, 3)).astype(np.float32) for n in (1, 2)]
    mine.eval()
    other.eval()
    ours.update_bn([(Tensor(batch), 0) for batch in batches], mine)
    theirs.update_bn([(torch.tensor(batch), 0) for batch in batches], other)
    agree(mine, other)
    assert not mine.training and next(iter(mine.children())) is not None
    assert [m.momentum for m in mine.modules() if isinstance(m, nn.BatchNorm1d)] == [0.1]


@pytest.mark.slow
def test_a_captured_step_averages() -> None:
    model = nn.Linear(3, 2)
    averaged = ours.AveragedModel(model, multi_avg_fn=ours.get_ema_multi_avg_fn(0.5))
    sgd = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        sgd.step()
        averaged.update_parameters(model)
        return loss.detach()

    wanted = None
    for seed in range(5):
        step(Tensor(np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)))
        now = model.weight.numpy()
        wanted = now if wanted is None else wanted * 0.5 + now * 0.5
        np.testing.assert_allclose(averaged.module.weight.numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert averaged.n_averaged.item() == 5


def test_what_is_refused() -> None:
    model = nn.Linear(2, 2)
    sgd = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="found both"):
        ours.AveragedModel(model, avg_fn=ours.get_swa_avg_fn(), multi_avg_fn=lambda a, b, n: None)
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        ours.get_ema_avg_fn(1.5)
    with pytest.raises(ArgumentError, match="for each group"):
        ours.SWALR(sgd, [0.1, 0.2])
    with pytest.raises(ArgumentError, match="'cos' or 'linear'"):
        ours.SWALR(sgd, 0.1, anneal_strategy="step")
    with pytest.raises(ArgumentError, match="from 0 on"):
        ours.SWALR(sgd, 0.1, anneal_epochs=-1)
    with pytest.raises(AttributeError, match="'AveragedModel'"):
        _ = ours.AverageModel

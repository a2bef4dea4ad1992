"""Recurrent layers against PyTorch's: outputs, states, gradients, keys, and under jit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad import jit, nn, optim
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.base.options import options
from baregrad.tensor import Tensor

KINDS = ("RNN", "GRU", "LSTM")
SETTINGS: tuple[dict[str, Any], ...] = (
    {}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False},
    {"num_layers": 2, "batch_first": True},
)  # fmt: skip


def draw(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def parts(result: Any) -> list[Any]:
    """The outputs and the states of a layer, flat."""
    outputs, states = result
    return [outputs, *(states if isinstance(states, tuple) else (states,))]


def agree(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.differential
@pytest.mark.parametrize("words", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True])
def test_layers_equal_pytorchs(kind: str, words: dict[str, Any], given: bool) -> None:
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(3, 4, **words)
    ours = getattr(nn, kind)(3, 4, **words)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: Tensor(t) for name, t in theirs.state_dict().items()})
    data = draw(2, 5, 3) if words.get("batch_first") else draw(5, 2, 3)
    x, t = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    count = words.get("num_layers", 1) * (2 if words.get("bidirectional") else 1)
    firsts = [draw(count, 2, 4, seed=seed) for seed in (1, 2)]
    hx: Any = [Tensor(first) for first in firsts]
    hz: Any = [torch.tensor(first) for first in firsts]
    hx, hz = (tuple(hx), tuple(hz)) if kind == "LSTM" else (hx[0], hz[0])
    found = parts(ours(x, hx) if given else ours(x))
    wanted = parts(theirs(t, hz) if given else theirs(t))
    total, sum_ = Tensor(0.0), torch.tensor(0.0)
    for seed, (one, other) in enumerate(zip(found, wanted, strict=True)):
        agree(one, other)
        weights = draw(*other.shape, seed=seed + 9)
        total, sum_ = total + (one * Tensor(weights)).sum(), sum_ + (
            other * torch.tensor(weights)).sum()
    total.backward()
    sum_.backward()
    agree(x.grad, t.grad)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-5,
                                   err_msg=name)


@pytest.mark.differential
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_without_a_batch(kind: str) -> None:
    theirs, ours = getattr(torch.nn, kind)(3, 4), getattr(nn, kind)(3, 4)
    ours.load_state_dict({name: Tensor(t) for name, t in theirs.state_dict().items()})
    first = draw(1, 4, seed=1)
    hx: Any = Tensor(first)
    hz: Any = torch.tensor(first)
    if kind == "LSTM":
        hx, hz = (hx, hx), (hz, hz)
    for one, other in zip(parts(ours(Tensor(draw(5, 3)), hx)),
                          parts(theirs(torch.tensor(draw(5, 3)), hz)), strict=True):
        assert one.shape == tuple(other.shape)
        agree(one, other)


@pytest.mark.differential
def test_cells_equal_pytorchs() -> None:
    for kind in ("RNNCell", "GRUCell", "LSTMCell"):
        theirs, ours = getattr(torch.nn, kind)(3, 4), getattr(nn, kind)(3, 4)
        ours.load_state_dict({name: Tensor(t) for name, t in theirs.state_dict().items()})
        state: Any = Tensor(draw(2, 4, seed=1))
        wanted: Any = torch.tensor(draw(2, 4, seed=1))
        if kind == "LSTMCell":
            state, wanted = (state, state * 2), (wanted, wanted * 2)
        for seed in range(3):
            x = draw(2, 3, seed=seed)
            state, wanted = ours(Tensor(x), state), theirs(torch.tensor(x), wanted)
        pairs = zip(state, wanted, strict=True) if kind == "LSTMCell" else [(state, wanted)]
        for one, other in pairs:
            agree(one, other)


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_a_captured_step_trains(device: str) -> None:
    """Sums of the numbers so far: a recurrent layer learns them, replayed."""
    with options.override(device=device):
        Tensor.manual_seed(1)
        layer, head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)
        optimiser = optim.Adam([*layer.parameters(), *head.parameters()], lr=0.02)

        @jit
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimiser.zero_grad()
            loss = head(layer(x)[0]).mse_loss(y)
            loss.backward()
            optimiser.step()
            return loss

        losses = []
        for seed in range(60 if device == "CPU" else 4):
            x = draw(16, 6, 1, seed=seed) * np.float32(0.3)
            losses.append(step(Tensor(x), Tensor(x.cumsum(1))).item())
        assert step.captures == 1
        assert device == "REF" or np.mean(losses[-5:]) < 0.2 * np.mean(losses[:5])


def test_dropout_between_layers_alone() -> None:
    layer = nn.LSTM(3, 4, num_layers=2, dropout=1.0)
    x = Tensor(draw(5, 2, 3))
    dropped, _ = layer(x)
    silent, _ = layer(Tensor.zeros(5, 2, 3))
    assert np.abs(dropped.numpy() - silent.numpy()).max() < 1e-6
    kept, _ = layer.eval()(x)
    assert np.abs(kept.numpy() - dropped.numpy()).max() > 1e-3


def test_what_is_no_sequence() -> None:
    layer = nn.LSTM(3, 4)
    for make, error, told in (
        (lambda: layer(Tensor.ones(5, 2, 4)), ShapeError, r"wanted \(L, N, 3\) or \(L, 3\)"),
        (lambda: layer(Tensor.ones(3)), ShapeError, "the input has another shape"),
        (lambda: layer(Tensor.ones(0, 2, 3)), ShapeError, "a first step"),
        (lambda: nn.GRU(3, 4)(Tensor.ones(5, 2, 3), Tensor.ones(2, 4)), ShapeError,
         r"the state has another shape: found \[2, 4\], wanted \[1, 2, 4\]"),
        (lambda: nn.GRUCell(3, 4)(Tensor.ones(2, 3), Tensor.ones(4)), ShapeError, "the state"),
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), ArgumentError, "found 'sin'"),
        (lambda: nn.RNN(3, 0), ArgumentError, "hidden_size is an integer from 1 on: found 0"),
        (lambda: nn.GRU(3, 4, dropout=2), ArgumentError, "a probability"),
    ):
        with pytest.raises(error, match=told):
            make()

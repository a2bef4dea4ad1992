"""Tensors that are made of others, beside PyTorch's: names, values, gradients, writes, removal."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations as theirs
from torch.nn.utils import parametrize as their_parametrize

from baregrad import jit, nn, optim
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.nn.utils import parametrizations as ours
from baregrad.nn.utils import parametrize
from baregrad.tensor import Tensor

slow = pytest.mark.slow
Make = Callable[[Any, Any], Any]

CASES = [
    pytest.param(lambda n, p: p.weight_norm(n.Linear(4, 3)), (2, 4), id="weight norm"),
    pytest.param(lambda n, p: p.weight_norm(n.Conv1d(2, 3, 3), dim=None), (2, 2, 6),
                 id="weight norm whole", marks=slow),
    pytest.param(lambda n, p: p.spectral_norm(n.ConvTranspose2d(2, 3, 3)), (2, 2, 4, 4),
                 id="spectral norm"),
    pytest.param(lambda n, p: p.spectral_norm(n.BatchNorm1d(4)), (3, 4), id="of a vector",
                 marks=slow),
    pytest.param(lambda n, p: p.orthogonal(n.Linear(4, 3)), (2, 4), id="orthogonal"),
    pytest.param(lambda n, p: p.orthogonal(n.Linear(3, 3)), (2, 3), id="square", marks=slow),
    pytest.param(lambda n, p: p.orthogonal(n.Linear(3, 5), orthogonal_map="cayley"), (2, 3),
                 id="cayley", marks=slow),
    pytest.param(lambda n, p: p.orthogonal(n.Linear(3, 5), use_trivialization=False), (2, 3),
                 id="reflections", marks=slow),
]  # fmt: skip


def agree(mine: Any, other: Any, rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=rtol, atol=2e-5)


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_parametrizations_equal_pytorchs(make: Make, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    other, mine = make(torch.nn, theirs), make(nn, ours)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5).add_(0.05)
    state = {name: Tensor(t) for name, t in other.state_dict().items()}
    assert {name: t.shape for name, t in mine.state_dict().items()} == {
        name: t.shape for name, t in state.items()}
    assert type(mine).__name__ == type(other).__name__
    mine.load_state_dict(state)
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found, wanted = mine(Tensor(data)), other(torch.tensor(data))
    agree(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    held = dict(mine.named_parameters())
    for name, q in other.named_parameters():
        agree(held[name].grad, q.grad, 1e-3)
    # Power iteration writes.
    for name, t in other.state_dict().items():
        agree(mine.state_dict()[name], t)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


class TheirSymmetric(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T


class Doubled(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return x * 2

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / 2


def test_a_tensor_of_several_functions() -> None:
    layer, other = nn.Linear(3, 3), torch.nn.Linear(3, 3)
    layer.load_state_dict({name: Tensor(t) for name, t in other.state_dict().items()})
    parametrize.register_parametrization(layer, "weight", Symmetric())
    their_parametrize.register_parametrization(other, "weight", TheirSymmetric())
    agree(layer.weight, other.weight)
    assert isinstance(layer, nn.Linear) and parametrize.is_parametrized(layer, "weight")
    assert parametrize.type_before_parametrizations(layer) is nn.Linear
    parametrize.register_parametrization(layer, "weight", Doubled())
    agree(layer.weight, other.weight * 2)
    before = Doubled.calls
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert Doubled.calls == before + 1
    value = Tensor.eye(3) * 3
    layer.weight = value
    np.testing.assert_array_equal(layer.weight.numpy(), value.numpy())
    kept = copy.deepcopy(layer)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear and list(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_array_equal(layer.weight.numpy(), value.numpy())
    for one in (kept, pickle.loads(pickle.dumps(kept))):
        assert list(one.state_dict()) == ["bias", "parametrizations.weight.original"]
        np.testing.assert_array_equal(one.weight.numpy(), value.numpy())
    there = nn.Linear(3, 3)
    parametrize.transfer_parametrizations_and_params(kept, there)
    np.testing.assert_array_equal(there.weight.numpy(), value.numpy())
    parametrize.remove_parametrizations(kept, "weight", leave_parametrized=False)
    np.testing.assert_array_equal(kept.weight.numpy(), value.numpy() / 2)


@pytest.mark.slow
def test_training_stays_orthogonal_under_jit() -> None:
    layer = ours.orthogonal(nn.Linear(4, 4, bias=False))
    sgd = optim.SGD(layer.parameters(), lr=0.1)
    x, target = Tensor.randn(8, 4).realize(), Tensor.randn(8, 4).realize()

    @jit
    def step() -> Tensor:
        sgd.zero_grad()
        loss = (layer(x) - target).square().mean()
        loss.backward()
        sgd.step()
        return loss.detach()

    losses = [step().item() for _ in range(6)]
    assert losses[-1] < losses[0]
    q = layer.weight.numpy()
    np.testing.assert_allclose(q @ q.T, np.eye(4), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights_can_be_set(way: str) -> None:
    layer = ours.orthogonal(nn.Linear(4, 3), orthogonal_map=way)
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0][:3].astype(np.float32)
    layer.weight = Tensor(q)
    np.testing.assert_allclose(layer.weight.numpy(), q, atol=1e-5)


def test_what_is_refused() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="no parameter or buffer there.*weight"):
        parametrize.register_parametrization(layer, "wait", Doubled())
    with pytest.raises(ShapeError, match="keeps the shape"):
        parametrize.register_parametrization(layer, "weight", nn.Flatten(0))
    with pytest.raises(ArgumentError, match="no such tensor"):
        parametrize.remove_parametrizations(layer, "weight")
    with pytest.raises(ArgumentError, match="no such tensor"):
        parametrize.transfer_parametrizations_and_params(layer, nn.Linear(3, 2))
    ours.weight_norm(layer)
    with pytest.raises(ArgumentError, match="leave_parametrized=True"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    with pytest.raises(DTypeError, match="returns a tensor"):
        parametrize.register_parametrization(layer, "bias", nn.Sequential(lambda x: 1))
    with pytest.raises(ArgumentError, match="orthogonal_map is one of"):
        ours.orthogonal(nn.Linear(2, 2), orthogonal_map="qr")
    with pytest.raises(ShapeError, match="a matrix"):
        ours.orthogonal(nn.Linear(2, 2), "bias")
    with pytest.raises(ArgumentError, match="from 1 on"):
        ours.spectral_norm(nn.Linear(2, 2), n_power_iterations=0)
    with pytest.raises(AttributeError, match="'weight_norm'"):
        _ = ours.weights_norm


class _Held(nn.Module):
    def __init__(self, dtype: str) -> None:
        self.register_buffer("table", Tensor([[1, 2], [3, 4]], dtype=dtype))


class _Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_buffers_stay_buffers(dtype: str) -> None:
    module = parametrize.register_parametrization(_Held(dtype), "table", _Twice())
    assert list(module.state_dict()) == ["parametrizations.table.original"]
    assert not list(module.parameters()) and len(list(module.buffers())) == 1
    parametrize.remove_parametrizations(module, "table")
    assert list(module.state_dict()) == ["table"] and not list(module.parameters())
    assert module.table.tolist() == [[2, 4], [6, 8]]


def test_layers_show_weights_that_are_made() -> None:
    layer = ours.weight_norm(nn.GRU(2, 2), "weight_hh_l0")
    shapes = [tuple(one.shape) for one in layer.all_weights[0]]
    assert shapes == [(6, 2), (6, 2), (6,), (6,)]

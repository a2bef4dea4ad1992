"""Modules as functions of their parameters: gradients, ensembles, ties, and names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad import nn
from baregrad.base.errors import ArgumentError
from baregrad.func import functional_call, grad, stack_module_state, vmap
from baregrad.tensor import Tensor

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


class _Net(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).tanh())


class _Tied(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(3, 3, bias=False)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def test_gradients_by_parameters_beside_pytorch() -> None:
    net = nn.Linear(3, 2)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return (functional_call(net, parameters, x) ** 2).sum()

    found = vmap(grad(loss), (None, 0))(parameters, Tensor(X))
    theirs = torch.nn.Linear(3, 2)
    own = {name: torch.tensor(p.numpy()) for name, p in parameters.items()}
    wanted = torch.vmap(
        torch.func.grad(lambda p, x: (torch.func.functional_call(theirs, p, x) ** 2).sum()),
        (None, 0),
    )(own, torch.tensor(X))
    for name, one in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), one.numpy(), rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in net.parameters())


def test_an_ensemble_is_one_function() -> None:
    nets = [_Net().eval() for _ in range(3)]
    parameters, buffers = stack_module_state(nets)
    assert all(p.shape[0] == 3 and p.requires_grad for p in parameters.values())
    found = vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)), (0, 0, None))(
        parameters, buffers, Tensor(X)
    )
    for place, net in enumerate(nets):
        np.testing.assert_allclose(
            found.detach().numpy()[place], net(Tensor(X)).detach().numpy(), rtol=1e-4, atol=1e-6
        )


def test_tensors_come_back_and_ties_stay() -> None:
    net = _Tied()
    before = dict(net.named_parameters())
    weight = Tensor(np.eye(3, dtype=np.float32) * 2)
    found = functional_call(net, {"first.weight": weight}, Tensor(X))
    np.testing.assert_allclose(found.numpy(), X * 4, rtol=1e-6)
    assert dict(net.named_parameters()) == before and net.last.weight is net.first.weight
    norm = _Net()
    running = {name: b.detach().clone() for name, b in norm.named_buffers()}
    functional_call(norm, running, Tensor(X))
    assert (norm.norm.running_mean.numpy() == 0).all()
    assert (running["norm.running_mean"].numpy() != 0).any()


def test_refused() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="no tensors of"):
        functional_call(net, {"wieght": Tensor(X)}, Tensor(X))
    with pytest.raises(ArgumentError, match="takes modules"):
        functional_call(3, {}, Tensor(X))
    for given in (None, [3], {"weight": 3}):
        with pytest.raises(ArgumentError, match="by their names"):
            functional_call(net, given, Tensor(X))
    for models in ([], 3):
        with pytest.raises(ArgumentError, match="takes modules"):
            stack_module_state(models)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="one class"):
        stack_module_state([net, _Net()])

"""First values of layers, drawn again; classes made of layers; states and modes of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, nn
from baregrad.base.errors import UnsupportedError

LAYERS = (
    ("Linear", (40, 50)), ("Conv2d", (8, 8, 3)), ("ConvTranspose1d", (8, 8, 5)),
    ("Embedding", (40, 50, 3)), ("EmbeddingBag", (40, 50)), ("Bilinear", (9, 8, 7)),
    ("LSTM", (9, 16)), ("GRUCell", (9, 16)), ("BatchNorm2d", (5,)), ("LayerNorm", (5,)),
    ("GroupNorm", (2, 4)), ("InstanceNorm1d", (5, 1e-5, 0.1, True)), ("PReLU", (3,)),
    ("RMSNorm", (6,)),
)


@pytest.mark.parametrize(("name", "arguments"), LAYERS)
def test_first_values_are_drawn_again(name: str, arguments: tuple[Any, ...]) -> None:
    """As widely as PyTorch draws them: the same bounds, deviations and constants."""
    torch.manual_seed(0)
    theirs, ours = getattr(torch.nn, name)(*arguments), getattr(nn, name)(*arguments)
    for module in (theirs, ours):
        for parameter in module.parameters():
            parameter.data.fill_(7.0)
        module.reset_parameters()
    names = dict(ours.named_parameters())
    assert list(names) == [one for one, _ in theirs.named_parameters()]
    for one, wanted in theirs.named_parameters():
        there = names[one].numpy()
        wide = wanted.detach().numpy()
        assert there.std() == pytest.approx(wide.std(), rel=0.35, abs=1e-12)
        assert abs(there).max() <= 1.5 * abs(wide).max() + 1e-12
        assert names[one].requires_grad
    if name == "Embedding":
        assert names["weight"][3].abs().sum().item() == 0


def test_classes_made_of_layers_write_their_own_first_values() -> None:
    for package in (torch, baregrad):
        t: Any = package

        class Ones(t.nn.Linear):  # type: ignore[misc, name-defined]
            def reset_parameters(self) -> None:
                t.nn.init.ones_(self.weight)  # noqa: B023
                t.nn.init.zeros_(self.bias)  # noqa: B023

        class Halves(t.nn.Conv1d):  # type: ignore[misc, name-defined]
            def reset_parameters(self) -> None:
                super().reset_parameters()
                t.nn.init.constant_(self.weight, 0.5)  # noqa: B023

        assert Ones(2, 3)(t.ones(2)).tolist() == [2, 2, 2]
        assert (Halves(1, 1, 3).weight == 0.5).all()


def test_modes_go_by_the_methods_of_what_is_below() -> None:
    for package in (torch, baregrad):
        t: Any = package

        class Frozen(t.nn.BatchNorm1d):  # type: ignore[misc, name-defined]
            def train(self, mode: bool = True) -> Any:
                return super().train(False)

        model = t.nn.Sequential(t.nn.Dropout(), t.nn.Sequential(Frozen(2)))
        assert model.train() is model
        assert model[0].training and model[1].training and not model[1][0].training
        assert not model.eval()[0].training


def test_states_tell_the_versions_of_modules() -> None:
    for package in (torch, baregrad):
        t: Any = package
        model = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.ReLU())
        found = model.state_dict()
        assert found._metadata == {"": {"version": 1}, "0": {"version": 1}, "1": {"version": 1}}
        into = found.__class__()
        assert model.state_dict(into, "a.") is into
        assert list(into) == ["a.0.weight", "a.0.bias"]


@pytest.mark.parametrize("norm_type", [2.0, 1.0])
def test_rows_that_are_read_are_scaled_down(norm_type: float) -> None:
    table = np.random.default_rng(1).standard_normal((6, 3)) * 2
    index = np.array([[0, 2, 2], [5, 0, 0]])
    found = []
    for package in (torch, baregrad):
        t: Any = package
        layer = t.nn.Embedding(6, 3, 5, 1.5, norm_type, True, dtype=t.float64)
        with t.no_grad():
            layer.weight.copy_(t.tensor(table))
        y = layer(t.tensor(index))
        (y * t.arange(18.0).reshape(2, 3, 3)).sum().backward()
        found.append([y.detach().numpy(), layer.weight.detach().numpy(), layer.weight.grad.numpy()])
    for ours, theirs in zip(*reversed(found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    with pytest.raises(UnsupportedError, match="sparse"):
        nn.Embedding(2, 2, sparse=True)(Tensor([0]))
    with pytest.raises(UnsupportedError, match="scale_grad_by_freq"):
        nn.EmbeddingBag(2, 2, scale_grad_by_freq=True)(Tensor([[0]]))


def test_training_is_a_bool() -> None:
    for layer in (torch.nn.Linear(1, 1), nn.Linear(1, 1)):
        with pytest.raises(ValueError, match=r"bool"):
            layer.train("yes")  # type: ignore[arg-type]
        assert layer.training

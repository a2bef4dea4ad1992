"""Layouts: strides and values as PyTorch has them, gradients, layers, and what is refused."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, nn, optim
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.tensor.ops.shapes import LAYOUTS

RNG = np.random.default_rng(11)
FORMATS = {"channels_last": (2, 3, 5, 4), "channels_last_3d": (2, 3, 2, 5, 4),
           "contiguous_format": (2, 3, 5), "preserve_format": (2, 3)}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", FORMATS)
def test_strides_and_values_are_those_of_pytorch(name: str, dtype: str) -> None:
    array = RNG.standard_normal(FORMATS[name]).astype(dtype)
    x, t = Tensor(array), torch.from_numpy(array)
    ours, theirs = getattr(baregrad, name), getattr(torch, name)
    ways = ["to", "clone"] if name == "preserve_format" else ["to", "clone", "contiguous"]
    for way in ways:
        found = getattr(x, way)(memory_format=ours)
        wanted = getattr(t, way)(memory_format=theirs)
        assert found.stride() == wanted.stride()
        np.testing.assert_array_equal(found.numpy(), array)
        if name != "preserve_format":
            assert found.is_contiguous(memory_format=ours)
            assert found.contiguous(memory_format=ours) is found
        assert found.is_contiguous() == wanted.is_contiguous()
    assert x.is_contiguous(memory_format=baregrad.channels_last_3d) == t.is_contiguous(
        memory_format=torch.channels_last_3d
    )


def test_extents_of_one_and_none_lie_in_every_order_as_in_pytorch() -> None:
    names = ("contiguous_format", "channels_last")
    for shape in itertools.product((0, 1, 2), (1, 3), (0, 1, 4), (1, 5)):
        x, t = Tensor(np.ones(shape, np.float32)), torch.ones(shape)
        for laid, asked in itertools.product(names, names if 0 not in shape else names[:1]):
            found = x.contiguous(memory_format=getattr(baregrad, laid))
            wanted = t.contiguous(memory_format=getattr(torch, laid))
            assert found.is_contiguous(memory_format=getattr(baregrad, asked)) == (
                wanted.is_contiguous(memory_format=getattr(torch, asked))
            ), (shape, laid, asked)


def test_copies_of_a_layout_are_the_layout() -> None:
    x = Tensor(np.ones((2, 3, 4, 5), np.float32))
    for one in LAYOUTS:
        for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert other is one
    for name in ("zeros_like", "ones_like", "empty_like"):
        made = getattr(baregrad, name)(x, memory_format=copy.copy(baregrad.channels_last))
        assert made.stride() == (60, 1, 15, 3)
        assert getattr(x, name)(memory_format=baregrad.preserve_format).stride() == x.stride()
    assert x.full_like(2, memory_format=baregrad.channels_last).sum().item() == 240


def test_gradients_pass_and_dtypes_change_with_it() -> None:
    array = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)
    x = Tensor(array, requires_grad=True)
    y = x.to(baregrad.float64, memory_format=baregrad.channels_last)
    assert y.stride() == (48, 1, 12, 3)
    (y.exp() * 2).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(array), rtol=1e-6)


def _trained(side: Any, layers: Any, learner: Any, arrays: list[Any], state: Any) -> list[Any]:
    model = layers.Sequential(
        layers.Conv2d(3, 8, 3, padding=1, bias=False), layers.BatchNorm2d(8), layers.ReLU(),
        layers.Conv2d(8, 4, 3, stride=2),
    )
    model.load_state_dict(state(model))
    model = model.to(memory_format=side.channels_last)
    assert model[0].weight.is_contiguous(memory_format=side.channels_last)
    step = learner.AdamW(model.parameters(), lr=0.01)
    losses = []
    for array in arrays:
        x = side.tensor(array).to(memory_format=side.channels_last)
        loss = model(x).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(float(loss.item()))
    return [losses, *[p.detach().numpy() for p in model.parameters()]]


def test_a_network_trains_as_pytorch_trains_it() -> None:
    arrays = [RNG.standard_normal((2, 3, 9, 8)).astype(np.float32) for _ in range(3)]
    drawn: dict[str, Any] = {}

    def state(model: Any, wrap: Any) -> dict[str, Any]:
        for name, value in model.state_dict().items():
            if "num_batches" not in name and name not in drawn:
                drawn[name] = RNG.random(tuple(value.shape)).astype(np.float32)
        own = model.state_dict()
        return {name: wrap(drawn[name]) if name in drawn else own[name] for name in own}

    found = _trained(baregrad, nn, optim, arrays, lambda model: state(model, Tensor))
    wanted = _trained(
        torch, torch.nn, torch.optim, arrays, lambda model: state(model, torch.from_numpy)
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_what_is_no_layout_is_refused() -> None:
    x = Tensor(np.zeros((2, 3, 4), np.float32))
    with pytest.raises(ShapeError, match="4 axes"):
        x.contiguous(memory_format=baregrad.channels_last)
    with pytest.raises(ArgumentError, match="channels_last"):
        x.to(memory_format="channels_last")
    with pytest.raises(ArgumentError, match="memory_format"):
        x.clone(memory_format=3)

"""Hooks around a module's calls, against PyTorch's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, nn
from baregrad.base.errors import ArgumentError


def told(library: Any, tensor: Any) -> list[Any]:
    """What hooks of a layer see and do, in order."""
    seen: list[Any] = []
    layer = library.ReLU()
    layer.register_forward_pre_hook(lambda m, args: seen.append(("first", len(args))))
    layer.register_forward_pre_hook(lambda m, args: args[0] - 1)
    layer.register_forward_hook(lambda m, args, out: seen.append(("after", out.tolist())))
    layer.register_forward_hook(lambda m, args, out: out * 10)
    handle = layer.register_forward_hook(
        lambda m, args, kwargs, out: seen.append((kwargs, out.tolist())), with_kwargs=True,
        prepend=True,
    )
    results = [layer(tensor([0.0, 1.0, 3.0])).tolist()]
    handle.remove()
    handle.remove()
    results.append(layer(tensor([5.0])).tolist())
    with layer.register_forward_pre_hook(
        lambda m, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True
    ):
        results.append(layer(tensor([5.0])).tolist())
    results.append(layer(tensor([5.0])).tolist())
    return [*seen, results]


def test_hooks_are_pytorchs() -> None:
    assert told(nn, Tensor) == told(torch.nn, torch.tensor)


def test_features_of_a_layer_inside_a_model() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    features = []
    handle = model[1].register_forward_hook(lambda m, args, out: features.append(out))
    x = Tensor(np.ones((2, 3), np.float32))
    out = model(x)
    np.testing.assert_array_equal(model[2](features[0]).numpy(), out.numpy())
    assert set(model.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert len(copy.deepcopy(model)[1](x).shape) == 2
    handle.remove()
    model(x)
    assert len(features) == 2


def test_a_hook_that_comes_after_a_capture_counts() -> None:
    layer = nn.ReLU()

    @jit
    def f(x: Tensor) -> Any:
        return layer(x)

    x = Tensor([1.0, -2.0])
    for _ in range(4):
        assert f(x).tolist() == [1.0, 0.0]
    handle = layer.register_forward_hook(lambda m, args, out: out + 1)
    for _ in range(4):
        assert f(x).tolist() == [2.0, 1.0]
    handle.remove()
    for _ in range(4):
        assert f(x).tolist() == [1.0, 0.0]


def test_a_hook_is_a_function() -> None:
    with pytest.raises(ArgumentError, match="a hook is a function"):
        nn.ReLU().register_forward_hook(3)  # type: ignore[arg-type]

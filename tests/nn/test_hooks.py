"""Hooks around a module's calls, against PyTorch's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, nn
from baregrad.base.errors import ArgumentError, UnsupportedError


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


def test_hooks_see_gradients_pass_back() -> None:
    """As PyTorch's do: gradients of inputs and outputs, and what replaces them."""
    data = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    told = []
    for n, kind in ((nn, Tensor), (torch.nn, torch.tensor)):
        layer = n.Linear(4, 2)
        model = n.Sequential(layer, n.Tanh())
        for p in layer.parameters():
            p.data = kind(np.full(tuple(p.shape), 0.25, np.float32))
        seen = []
        layer.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,))
        handle = layer.register_full_backward_hook(
            lambda m, into, out, seen=seen: seen.append((into[0].numpy(), out[0].numpy()))
        )
        layer.register_full_backward_hook(lambda m, into, out: (into[0] * 2,))
        x = kind(data)
        x.requires_grad_()
        model(x).sum().backward()
        handle.remove()
        model(x).sum().backward()
        assert len(seen) == 1
        told.append([*seen[0], x.grad.numpy(), layer.weight.grad.numpy()])
    for ours, theirs in zip(*told, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_hooks_of_a_module_of_several_tensors_see_all_gradients() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x * y, x + y

    layer, seen = Product(), []
    layer.register_full_backward_hook(lambda m, into, out: seen.append((into, out)))
    x, y = Tensor([2.0], requires_grad=True), Tensor([5.0], requires_grad=True)
    first, second = layer(x, y)
    (first * 3 + second).sum().backward()
    ((by_x, by_y), (by_first, by_second)), = seen
    assert [one.item() for one in (by_x, by_y, by_first, by_second)] == [16.0, 7.0, 3.0, 1.0]
    layer.register_full_backward_hook(lambda m, into, out: into)
    with pytest.raises(UnsupportedError, match="of one tensor"):
        layer(x, y)[0].sum().backward()

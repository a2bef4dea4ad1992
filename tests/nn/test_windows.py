"""Fractional and adaptive pooling with places, and the adaptive softmax, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad import nn
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.nn import functional
from baregrad.tensor import Tensor


def draw(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("name", "shape", "args"), [
    ("fractional_max_pool2d", (2, 3, 9, 11), {"kernel_size": 2, "output_size": (4, 5)}),
    ("fractional_max_pool2d", (3, 12, 10), {"kernel_size": (3, 2), "output_ratio": (0.5, 0.5)}),
    ("fractional_max_pool3d", (1, 2, 6, 9, 7), {"kernel_size": 2, "output_size": (3, 4, 1)}),
    ("adaptive_max_pool1d", (2, 3, 11), {"output_size": 4}),
    ("adaptive_max_pool2d", (2, 3, 7, 10), {"output_size": (3, None)}),
    ("adaptive_max_pool3d", (2, 5, 6, 4), {"output_size": 3}),
])
def test_pooling_with_places(name: str, shape: tuple[int, ...], args: dict[str, Any]) -> None:
    data = draw(*shape)
    x, t = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    words, words_t = dict(args), dict(args)
    if "fractional" in name:
        axes = int(name[-2])
        lead = (1,) * (axes + 2 - len(shape)) + shape[:-axes]
        samples = np.random.default_rng(1).random((*lead, axes)).astype(np.float32)
        words["_random_samples"] = Tensor(samples)
        words_t["_random_samples"] = torch.tensor(samples)
    found, places = getattr(functional, name)(x, return_indices=True, **words)
    wanted, places_t = getattr(torch.nn.functional, name)(t, return_indices=True, **words_t)
    np.testing.assert_array_equal(found.numpy(), wanted.detach().numpy())
    np.testing.assert_array_equal(places.numpy(), places_t.numpy())
    (found * found).sum().backward()
    (wanted * wanted).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", ["max_pool1d", "adaptive_max_pool1d"])
def test_places_by_their_own_names(name: str) -> None:
    data = draw(2, 3, 8)
    found = getattr(functional, f"{name}_with_indices")(Tensor(data), 2)
    wanted = getattr(torch.nn.functional, f"{name}_with_indices")(torch.tensor(data), 2)
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


@pytest.mark.slow
def test_modules_draw_windows_of_their_own() -> None:
    x = Tensor(draw(2, 3, 16, 16))
    layer = nn.FractionalMaxPool2d(2, output_size=9)
    assert layer(x).shape == (2, 3, 9, 9) and not layer.state_dict()
    assert (layer(x) != layer(x)).any().item()
    values, places = nn.AdaptiveMaxPool2d(4, return_indices=True)(x)
    flat = x.flatten(2).gather(2, places.flatten(2)).reshape(values.shape)
    np.testing.assert_array_equal(values.numpy(), flat.numpy())
    assert nn.FractionalMaxPool3d(2, output_ratio=0.5)(Tensor(draw(1, 8, 8, 8))).shape == (
        1, 4, 4, 4)


@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_adaptive_softmax_equals_pytorchs(bias: bool) -> None:
    torch.manual_seed(0)
    other = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 12], div_value=2.0, head_bias=bias)
    mine = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 12], div_value=2.0, head_bias=bias)
    assert list(mine.state_dict()) == list(other.state_dict())
    mine.load_state_dict({name: Tensor(t) for name, t in other.state_dict().items()})
    data, ids = draw(6, 8), np.array([0, 4, 5, 11, 12, 19])
    x, t = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    found, wanted = mine(x, Tensor(ids)), other(t, torch.tensor(ids))
    np.testing.assert_allclose(found.output.numpy(), wanted.output.detach().numpy(), rtol=1e-5)
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-5)
    found.loss.backward()
    wanted.loss.backward()
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-6)
    for p, q in zip(mine.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine.log_prob(x).numpy(), other.log_prob(t).detach().numpy(),
                               rtol=1e-4)
    np.testing.assert_array_equal(mine.predict(x).numpy(), other.predict(t).numpy())
    assert mine(x[0], Tensor(3)).output.shape == ()


def test_what_is_refused() -> None:
    x = Tensor(draw(1, 2, 6, 6))
    with pytest.raises(ArgumentError, match="output_size or output_ratio"):
        functional.fractional_max_pool2d(x, 2)
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        functional.fractional_max_pool2d(x, 2, output_ratio=1.5)
    for ratio in (1, (0.5, 0.5, 0.5)):
        with pytest.raises(ArgumentError, match="for each axis"):
            functional.fractional_max_pool2d(x, 2, output_ratio=ratio)
    with pytest.raises(ShapeError, match="have room"):
        functional.fractional_max_pool2d(x, 3, 5)
    with pytest.raises(ShapeError, match="a sample for each"):
        functional.fractional_max_pool2d(x, 2, 3, _random_samples=Tensor.rand(2))
    with pytest.raises(ShapeError, match="for each pooled axis"):
        functional.adaptive_max_pool2d(x, (2, 2, 2), return_indices=True)
    with pytest.raises(ShapeError, match="or more"):
        functional.adaptive_max_pool2d(x, 0, return_indices=True)
    layer = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5])
    found = layer(Tensor(draw(4, 4)), Tensor([-1, 10, 0, 9])).output
    np.testing.assert_array_equal(np.isnan(found.detach().numpy()), [True, True, False, False])
    with pytest.raises(ShapeError, match="rows"):
        layer.predict(Tensor(draw(4)))
    with pytest.raises(ArgumentError, match="cutoffs rise"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5, 3])
    with pytest.raises(ShapeError, match="a class of each"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5])(Tensor(draw(2, 4)), Tensor([1, 2, 3]))

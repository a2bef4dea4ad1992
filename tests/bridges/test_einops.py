"""einops on our tensors gives what it gives on NumPy's arrays and PyTorch's tensors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import einops
import numpy as np
import pytest
import torch
from einops.layers import torch as torch_layers

from baregrad.bridges.einops import EinMix, Rearrange, Reduce
from baregrad.nn import Sequential
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

X = np.random.default_rng(5).standard_normal((2, 6, 4)).astype(np.float32)
CASES: list[Callable[[Any], Any]] = [
    lambda x: einops.rearrange(x, "a (b c) d -> c a (d b)", c=3),
    lambda x: einops.rearrange(x, "a ... -> ... a"),
    lambda x: einops.rearrange([x, x], "n a b c -> a (n b) c"),
    *[lambda x, how=how: einops.reduce(x, "a (b 2) d -> b", how)
      for how in ("max", "min", "sum", "mean", "prod")],
    lambda x: einops.reduce(x, "a b c -> a 1 c", "sum"),
    lambda x: einops.repeat(x, "a b c -> n a (b 3) c", n=2),
    lambda x: einops.einsum(x, x, "a b c, d b c -> a d"),
    lambda x: einops.pack([x, x[:, 0]], "a * c")[0],
    lambda x: einops.unpack(x, [[2], [2, 2]], "a * c")[1],
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[str(number) for number in range(len(CASES))])
def test_functions_give_what_they_give_on_numpy(case: Callable[[Any], Any]) -> None:
    found, wanted = case(Tensor(X)), case(X)
    assert isinstance(found, Tensor) and found.shape == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-6)


def test_gradients_and_captures_go_through() -> None:
    def loss(x: Any) -> Any:
        folded = einops.reduce(x, "a (b c) d -> b (c d)", "max", c=2)
        return (einops.repeat(folded, "b c -> b k c", k=3) ** 2).sum()

    @jit
    def gradient(x: Tensor) -> Tensor:
        given = x.detach().requires_grad_()
        loss(given).backward()
        assert given.grad is not None
        return given.grad

    x = torch.tensor(X, requires_grad=True)
    loss(x).backward()
    for _ in range(3):
        np.testing.assert_allclose(gradient(Tensor(X)).numpy(), x.grad, rtol=1e-6)


@pytest.mark.parametrize(("pattern", "weight", "bias"), [
    ("b t c -> b k t", "c k", "k"), ("b (s t) c -> (b s) (t k)", "s c k", ""),
])  # fmt: skip
def test_layers_are_pytorchs(pattern: str, weight: str, bias: str) -> None:
    sizes = {"s": 3, "t": 2} if "s" in weight else {}
    given = {"weight_shape": weight, "bias_shape": bias or None, "c": 4, "k": 5, **sizes}
    ours, theirs = EinMix(pattern, **given), torch_layers.EinMix(pattern, **given)
    ours.load_state_dict({name: Tensor(one.numpy()) for name, one in theirs.state_dict().items()})
    chain = Sequential(ours, Rearrange("... a -> a ..."), Reduce("a ... -> ...", "mean"))
    other = torch.nn.Sequential(
        theirs, torch_layers.Rearrange("... a -> a ..."),
        torch_layers.Reduce("a ... -> ...", "mean"),
    )  # fmt: skip
    wanted = other(torch.tensor(X)).detach()
    np.testing.assert_allclose(chain(Tensor(X)).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert (ours.bias is None) == (not bias)


def test_layers_are_pickled() -> None:
    layer = pickle.loads(pickle.dumps(Rearrange("a b c -> a (b c)")))
    assert repr(layer) == "Rearrange('a b c -> a (b c)')"
    assert layer(Tensor(X)).shape == (2, 24)

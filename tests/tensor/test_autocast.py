"""Products in narrow floats inside `autocast`, and scaled losses, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import nn, optim
from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def network(t: Any) -> Any:
    layers = t.nn if t is torch else nn
    made = layers.Sequential(layers.Linear(6, 8), layers.LayerNorm(8), layers.Linear(8, 3))
    for place, p in enumerate(made.parameters()):
        values = np.random.default_rng(place).standard_normal(tuple(p.shape)).astype(np.float32)
        p.data = t.tensor(values)
    return made


def test_dtypes_are_pytorchs() -> None:
    for t in (baregrad, torch):
        x, w = t.tensor(X, requires_grad=True), t.tensor(X.T.copy())
        with t.autocast("cpu", dtype=t.bfloat16):
            y = x @ w
            assert y.dtype == t.bfloat16 and (y + x[:, :4]).dtype == t.float32
            assert (x.double() @ w.double()).dtype == t.float64
            with t.no_grad():
                assert t.matmul(x, w).dtype == t.bfloat16
            with t.autocast("cpu", enabled=False):
                assert (x @ w).dtype == t.float32
            assert (x @ w).dtype == t.bfloat16
        assert (x @ w).dtype == t.float32
    with baregrad.autocast():
        assert Tensor(X).bfloat16().softmax(-1).dtype is baregrad.float32
        assert Tensor.einsum("ij,kj->ik", Tensor(X), Tensor(X)).dtype is baregrad.bfloat16


def test_gradients_come_in_the_dtypes_of_parameters() -> None:
    found = []
    for t in (baregrad, torch):
        model, x = network(t), t.tensor(X)
        with t.autocast("cpu", dtype=t.bfloat16):
            out = model(x)
            loss = out.float().square().mean()
        loss.backward()
        assert all(p.grad.dtype == t.float32 and p.dtype == t.float32 for p in model.parameters())
        found.append([loss.item(), *[p.grad.numpy() for p in model.parameters()]])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.06 * np.abs(theirs).max())


def test_captures_are_told_apart_by_the_mode() -> None:
    w = Tensor(X.T.copy())

    @jit
    def product(x: Tensor) -> Tensor:
        return x @ w

    for _ in range(4):
        assert product(Tensor(X)).dtype is baregrad.float32
        with baregrad.autocast():
            assert product(Tensor(X)).dtype is baregrad.bfloat16
    cast = baregrad.autocast()(lambda x: x @ w)
    assert cast(Tensor(X)).dtype is baregrad.bfloat16
    with pytest.raises(DTypeError, match="floats of 16 bits"):
        baregrad.autocast(dtype="float32")


def scaled_steps(t: Any, captured: bool) -> list[Any]:
    """Weights and scales of steps of which the third overflows."""
    w = t.tensor(X[0].copy(), requires_grad=True)
    kind = optim if t is baregrad else torch.optim
    optimiser = kind.SGD([w], lr=0.1, momentum=0.9)
    make = optim.GradScaler if t is baregrad else torch.amp.GradScaler
    words = {} if t is baregrad else {"device": "cpu"}
    scaler = make(init_scale=4.0, growth_interval=2, **words)

    def step(factor: Any) -> Any:
        optimiser.zero_grad()
        scaler.scale((w * w * factor).sum()).backward()
        scaler.unscale_(optimiser)
        scaler.step(optimiser)
        scaler.update()
        return w.detach().clone()

    run = jit(step) if captured else step
    told = []
    for factor in (1.0, 1.0, float("inf"), 1.0, 1.0, 0.5):
        told.append(run(t.tensor(factor)).numpy())
        told.append(np.float32(scaler.get_scale()))
    return told


@pytest.mark.parametrize("captured", [False, True])
def test_losses_are_scaled_and_steps_left_out(captured: bool) -> None:
    ours, theirs = scaled_steps(baregrad, captured), scaled_steps(torch, False)
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=str(place))


def test_what_a_scaler_refuses() -> None:
    w = Tensor(X[0], requires_grad=True)
    optimiser, scaler = optim.SGD([w], lr=0.1), optim.GradScaler()
    scaler.scale(w.sum()).backward()
    scaler.unscale_(optimiser)
    with pytest.raises(ArgumentError, match="already"):
        scaler.unscale_(optimiser)
    scaler.step(optimiser)
    # Gradients of a second backward pass would not be divided by the scale.
    with pytest.raises(ArgumentError, match="stepped"):
        scaler.step(optimiser)
    scaler.update()
    state = scaler.state_dict()
    other = optim.GradScaler(init_scale=2.0)
    other.load_state_dict(state)
    assert other.get_scale() == scaler.get_scale() == 65536.0
    off = optim.GradScaler(enabled=False)
    loss = w.sum()
    assert off.scale(loss) is loss and off.get_scale() == 1.0
    with pytest.raises(ArgumentError):
        optim.GradScaler(growth_factor=0.5)


@pytest.mark.parametrize(("kind", "dtype"), [
    ("NAdam", "float32"), ("Rprop", "float32"), ("AdamW", "float16"),
])  # fmt: skip
def test_a_first_step_that_overflows_leaves_nothing_behind(kind: str, dtype: str) -> None:
    found = []
    for first in ([], [float("inf")]):
        w = Tensor(X[0]).cast(dtype).detach().requires_grad_()
        optimiser, scaler = getattr(optim, kind)([w], lr=0.1), optim.GradScaler(init_scale=8.0)
        for factor in (*first, 1.0, 2.0):
            optimiser.zero_grad()
            scaler.scale((w * factor).sum()).backward()
            scaler.step(optimiser)
            scaler.update()
        found.append(w.numpy())
    np.testing.assert_array_equal(*found)


def test_a_step_that_overflows_leaves_shared_counts_as_they_were() -> None:
    a, b = (Tensor(X[0]).requires_grad_() for _ in range(2))
    optimiser, scaler = optim.Adam([a, b], lr=0.1), optim.GradScaler(init_scale=8.0)
    for factor in (1.0, float("inf"), 1.0):
        optimiser.zero_grad()
        loss = (a * factor).sum()
        scaler.scale(loss + b.sum() if optimiser.state == {} else loss).backward()
        scaler.step(optimiser)
        scaler.update()
    assert [state["step"].item() for state in optimiser.state.values()] == [2.0, 1.0]

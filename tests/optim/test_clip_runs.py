"""A gradient that is put in another's place costs no second backward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad import nn, optim
from baregrad.engine.session import Run, current_session
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit


def halve(params: list[Tensor]) -> None:
    for p in params:
        assert p.grad is not None
        p.grad = p.grad * 0.5


def halve_in_place(params: list[Tensor]) -> None:
    for p in params:
        assert p.grad is not None
        p.grad.mul_(0.5)


CHANGES: dict[str, Callable[[list[Tensor]], object]] = {
    "norm": lambda params: optim.clip_grad_norm_(params, 1.0),
    "value": lambda params: optim.clip_grad_value_(params, 0.01),
    "replaced": halve,
    "in place": halve_in_place,
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("stepped", [False, True])
def test_a_step_is_one_run(name: str, jitted: bool, stepped: bool) -> None:
    rng = np.random.default_rng(0)
    net = nn.Linear(6, 5)
    params = list(net.parameters())
    optimiser = optim.SGD(params, lr=0.1)
    change = CHANGES[name]

    def step(x: Tensor) -> Tensor:
        optimiser.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        change(params)
        if stepped:
            optimiser.step()
        return loss

    run = jit(step) if jitted else step
    runs: list[Run] = []
    x = Tensor(rng.normal(size=(3, 6)).astype(np.float32)).realize()
    run(x).realize()
    session = current_session()
    session.watching.observers.append(runs.append)
    try:
        loss = run(x).realize()
        gradients = [p.grad.numpy() for p in params if p.grad is not None]
    finally:
        session.watching.observers.remove(runs.append)
    assert len(runs) == 1
    assert len(gradients) == 2 and np.isfinite(loss.item())

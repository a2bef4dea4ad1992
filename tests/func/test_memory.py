"""What a program takes, told in advance, beside what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import func, optim
from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.engine.session import Session, current_session, use_session
from baregrad.tensor import Tensor

# Results of more than a mebibyte: smaller ones are kept by programs for their next runs.
LAYERS, SIZE, ROWS = 8, 256, 1100


def trained(through: Any) -> Any:
    """A step of a stack of layers; what holds its state."""
    weights = Tensor(np.full((LAYERS, SIZE, SIZE), 0.01, np.float32)).requires_grad_()
    x = Tensor(np.ones((ROWS, SIZE), np.float32))

    def layer(h: Tensor, w: Tensor) -> tuple[Tensor, None]:
        return h + (h @ w).tanh().exp() * (h @ w.mT).sin(), None

    optimiser = optim.SGD([weights], lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        h = through(layer, x, weights)
        (h * h).mean().backward()
        optimiser.step()
        weights.realize()
    return weights, optimiser


def by_scan(layer: Any, x: Tensor, weights: Tensor) -> Tensor:
    end: Tensor = func.scan(layer, x, weights)[0]
    return end


def by_checkpoints(layer: Any, x: Tensor, weights: Tensor) -> Tensor:
    for i in range(LAYERS):
        x = func.checkpoint(lambda x, w: layer(x, w)[0], x, weights[i])
    return x


@pytest.mark.parametrize("through", [by_scan, by_checkpoints])
def test_it_is_told_within_a_twentieth(through: Any) -> None:
    told = func.memory_of(lambda: trained(through))
    with use_session(Session()), options.override(device="CPU"):
        kept = trained(through)
        taken = current_session().backend("CPU").device.memory_stats()
        del kept
    assert abs(told.peak_nbytes - taken.peak_nbytes) <= 0.05 * taken.peak_nbytes


def test_refused() -> None:
    with pytest.raises(ArgumentError, match="transforms functions"):
        func.memory_of(Tensor(1.0))  # type: ignore[arg-type]

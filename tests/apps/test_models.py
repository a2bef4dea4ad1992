"""The models whose training steps are counted and timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad import nn, optim
from baregrad.apps.models import GPT, TrainingStep, UNet, ViT, WordLSTM, train, training_steps
from baregrad.apps.resnet import ResNet18, ResNet50
from baregrad.base.options import options


@pytest.mark.parametrize(("make", "published"), [
    (lambda: GPT(words=50257), 124_439_808), (ResNet18, 11_689_512), (ResNet50, 25_557_032),
    (ViT, 22_050_664),
])  # fmt: skip
def test_sizes_are_those_published(make: Callable[[], nn.Module], published: int) -> None:
    with options.override(device="NULL"):
        sizes = [p.numel() for p in make().parameters()]
    assert sum(sizes) == published


SMALL = {
    "GPT-2": TrainingStep(
        lambda: GPT(1, 32, 2, 40, 16), lambda p: optim.AdamW(p, lr=1e-2), (2, 16), (32,), 40, 40
    ),
    "ViT": TrainingStep(
        lambda: ViT(1, 32, 2, 4, 8, 5), lambda p: optim.AdamW(p, lr=1e-2), (2, 3, 8, 8), (2,), 0, 5
    ),
    "U-Net": TrainingStep(
        lambda: UNet(4, 2, 3), lambda p: optim.AdamW(p, lr=1e-2), (2, 3, 8, 8), (2, 8, 8), 0, 3
    ),
    "LSTM": TrainingStep(
        lambda: WordLSTM(16, 1, 20), lambda p: optim.AdamW(p, lr=1e-2), (2, 3), (6,), 20, 20
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_steps_lower_the_loss(name: str) -> None:
    step = SMALL[name]
    model = step.model()
    optimiser = step.optimiser(list(model.parameters()))
    x, y = step.batch(np.random.default_rng(0), "float32")
    losses = [train(model, optimiser, x, y).item() for _ in range(8)]
    assert losses[-1] < losses[0]


def test_few_layers_have_the_batches_of_many() -> None:
    few, many = training_steps(few=True), training_steps()
    assert list(few) == list(many)
    assert [step.x for name, step in few.items() if name != "LSTM"] == [
        step.x for name, step in many.items() if name != "LSTM"
    ]

"""The models whose training steps are counted and timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad import nn, optim
from baregrad.apps.models import GPT, TrainingStep, UNet, ViT, WordLSTM, train, training_steps
from baregrad.apps.resnet import ResNet18, ResNet50
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor


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


# Sides of 16 and more: what matrix units take.
WIDER = {
    "GPT-2": TrainingStep(
        lambda: GPT(1, 32, 2, 48, 16), lambda p: optim.AdamW(p, lr=1e-2), (2, 16), (32,), 48, 48
    ),
    "LSTM": TrainingStep(
        lambda: WordLSTM(32, 1, 20), lambda p: optim.AdamW(p, lr=1e-2), (16, 3), (48,), 20, 20
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


def trained(name: str, device: str) -> list[np.ndarray]:
    """The loss, the gradients and the parameters after two steps in bfloat16."""
    step = WIDER[name]
    session = Session()
    random = np.random.default_rng(0)
    with use_session(session), options.override(device=device, nv_port="virtual"):
        model = step.model()
        for p in model.parameters():
            drawn = random.standard_normal(p.shape, np.float32) * 0.2 + float(p.ndim == 1)
            p.detach().assign(Tensor(drawn))
        model.to("bfloat16")
        parameters = list(model.parameters())
        optimiser = step.optimiser(parameters)
        x, y = step.batch(random, "bfloat16")
        losses = [train(model, optimiser, x, y).float().numpy() for _ in range(2)]
        found = losses + [value.float().numpy() for p in parameters for value in (p, p.grad)]
    session.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDER)
def test_steps_are_alike_on_a_gpu_in_software(name: str) -> None:
    for found, wanted in zip(trained(name, "NV"), trained(name, "CPU"), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0.02, atol=0.02 * np.abs(wanted).max())


def test_few_layers_have_the_batches_of_many() -> None:
    few, many = training_steps(few=True), training_steps()
    assert list(few) == list(many)
    assert [step.x for name, step in few.items() if name != "LSTM"] == [
        step.x for name, step in many.items() if name != "LSTM"
    ]

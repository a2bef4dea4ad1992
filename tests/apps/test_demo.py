"""The demonstrations as commands, and the digits network against PyTorch's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from baregrad import nn, optim
from baregrad.apps import demo, digits
from baregrad.data.digits import Examples, load_digits
from baregrad.io import safe_load
from baregrad.tensor import Tensor


def torch_net() -> torch.nn.Sequential:
    t = torch.nn
    return t.Sequential(
        t.Conv2d(1, 16, 3, padding=1), t.ReLU(), t.Conv2d(16, 32, 3, padding=1), t.ReLU(),
        t.MaxPool2d(2), t.Flatten(), t.Linear(512, 128), t.ReLU(), t.Linear(128, 10),
    )


def few(count: int) -> Examples:
    data = load_digits().train
    return Examples(data.images[:count], data.labels[:count], data.positions[:count])


def without_dropout() -> digits.DigitsNet:
    model = digits.DigitsNet()
    model.classifier = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))
    return model


@pytest.mark.differential
@pytest.mark.parametrize("is_jitted", [False, True])
def test_training_steps_equal_pytorchs(is_jitted: bool) -> None:
    """Dropout left out, since its random numbers are not PyTorch's."""
    torch.manual_seed(0)
    theirs, ours = torch_net(), without_dropout()
    values = [Tensor(p.detach().clone()) for p in theirs.parameters()]
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
    optimiser = optim.AdamW(ours.parameters(), lr=3e-3)
    schedule = optim.CosineAnnealingLR(optimiser, 10)
    step = digits.training_step(ours, optimiser, schedule, 0.1)
    if is_jitted:
        from baregrad.tensor.jit.jit import Jit

        step = Jit(step)
    other = torch.optim.AdamW(theirs.parameters(), lr=3e-3)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(other, 10)
    for number in range(5):
        data = few(16 * (number + 1))
        images, labels = data.images[-16:], data.labels[-16:]
        loss = step(Tensor(images), Tensor(labels))
        other.zero_grad()
        wanted = torch.nn.functional.cross_entropy(
            theirs(torch.tensor(images)), torch.tensor(labels), label_smoothing=0.1
        )
        wanted.backward()
        other.step()
        rates.step()
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-4)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), atol=2e-4)


def test_a_few_epochs_learn_and_are_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    for _ in range(2):
        outcome = digits.train(few(256), digits.Settings(epochs=3))
        losses.append(outcome.loss)
    assert losses[0] == losses[1]
    assert losses[0] < 2.25
    assert outcome.steps == 6


def test_saved_weights_predict_the_same(tmp_path: Path) -> None:
    model, data = digits.DigitsNet(), few(20)
    path = tmp_path / "digits.safetensors"
    other = digits.saved_and_loaded(model, path)
    np.testing.assert_array_equal(digits.scores_of(model, data), digits.scores_of(other, data))
    assert list(safe_load(path)) == list(model.state_dict())


def test_wrong_words_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        ([], "DEMO"),
        (["digits", "--epochs", "0"], "not 1 or more"),
        (["digits", "--device", "abacus"], "ABACUS"),
        (["embed"], "TEXT"),
        (["chat"], "QUESTION"),
    ):
        with pytest.raises(SystemExit) as caught:
            demo.main(words)
        assert caught.value.code == 2
        assert told in capsys.readouterr().err


def test_embed_prints_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["embed", "one text", "one text", "another"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"1 +1\.0000 +1\.0000 +0\.\d{4}", out)


@pytest.mark.slow
def test_the_digits_are_learned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert demo.main(["digits", "--output", str(tmp_path / "kept.safetensors")]) == 0
    out = capsys.readouterr().out
    found = re.search(r"held-out accuracy (\d\.\d+)", out)
    assert found
    assert float(found[1]) >= 0.98
    assert re.search(r"training +\d+\.\d+ s", out)
    assert "predictions equal" in out
    assert (tmp_path / "kept.safetensors").exists()


@pytest.mark.slow
def test_a_language_model_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["chat", "Name the capital of France.", "And of Italy?"]) == 0
    out = capsys.readouterr().out
    assert "Paris" in out
    assert "Rome" in out

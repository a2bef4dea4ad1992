"""Training a small convolutional network on the handwritten digits, and what came of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baregrad import nn, optim
from baregrad.base.progress import ProgressBar
from baregrad.data.digits import Digits, Examples, load_digits
from baregrad.data.shuffle import batches
from baregrad.engine.session import Run, current_session
from baregrad.io import safe_load, safe_save
from baregrad.tensor import Tensor

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train. The learning rate falls to 0 along half a cosine."""

    epochs: int = 20
    seed: int = 0
    batch_size: int = 128
    lr: float = 3e-3
    weight_decay: float = 1e-2
    label_smoothing: float = 0.1
    is_jitted: bool = True


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What training came to: the model, seconds, steps, and kernels of one step (0: evaluated)."""

    model: DigitsNet
    seconds: float
    steps: int
    kernels: int
    loss: float


class DigitsNet(nn.Module):
    """(N, 1, 8, 8) grey levels -> (N, 10) scores of the digits; 73,000 parameters."""

    def __init__(self) -> None:
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(32 * 4 * 4, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.classifier(self.features(x))
        return scores


def training_step(
    model: DigitsNet, optimiser: optim.Optimizer, schedule: optim.LRScheduler, smoothing: float
) -> Step:
    """Return the function that learns from one batch and returns its loss."""

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimiser.zero_grad()
        scores: Tensor = model(images)
        loss = scores.cross_entropy(labels, label_smoothing=smoothing)
        loss.backward()
        optimiser.step()
        schedule.step()
        return loss

    return step


def train(data: Examples, settings: Settings) -> TrainedModel:
    """Train a fresh network on the examples, on the default device."""
    Tensor.manual_seed(settings.seed)
    model = DigitsNet()
    optimiser = optim.AdamW(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    per_epoch = max(1, len(data) // settings.batch_size)
    schedule = optim.CosineAnnealingLR(optimiser, settings.epochs * per_epoch)
    step = training_step(model, optimiser, schedule, settings.label_smoothing)
    if settings.is_jitted:
        from baregrad.tensor.jit.jit import Jit

        step = Jit(step)
    kernels = 0
    start = time.perf_counter()
    with ProgressBar(settings.epochs * per_epoch, "training") as bar:
        for number, (images, labels) in enumerate(_batches(data, settings)):
            counted = _Kernels()
            with counted:
                loss = step(Tensor(images), Tensor(labels))
            # The first step makes states; the second is like all that follow.
            kernels = counted.count if number == 1 else kernels
            note = f"loss {loss.item():.3f}" if number % per_epoch == 0 else None
            bar.advance(note=note)
        final = float(loss.item())
    return TrainedModel(model, time.perf_counter() - start, bar.done, kernels, final)


def _batches(
    data: Examples, settings: Settings
) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    size = min(settings.batch_size, len(data))
    for epoch in range(settings.epochs):
        for places in batches(len(data), size, seed=settings.seed, epoch=epoch, drop_last=True):
            yield data.images[places], data.labels[places]


class _Kernels:
    """Counts the kernels that a session launches inside a `with` block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _Kernels:
        self._session = current_session()
        self._session.watching.observers.append(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._session.watching.observers.remove(self._note)

    def _note(self, run: Run) -> None:
        self.count += len(getattr(run.executable, "launches", ()))


def scores_of(model: DigitsNet, data: Examples) -> npt.NDArray[np.float32]:
    """Return the scores (N, 10) that a model gives to examples, outside training."""
    model.eval()
    with Tensor.no_grad():
        found: npt.NDArray[np.float32] = model(Tensor(data.images)).numpy()
    return found


def accuracy(scores: npt.NDArray[np.float32], data: Examples) -> float:
    """Return the share of examples whose highest score is that of their label."""
    return float((scores.argmax(1) == data.labels).mean())


def saved_and_loaded(model: DigitsNet, path: Path) -> DigitsNet:
    """Return a fresh model with the weights of another, by way of a safetensors file."""
    safe_save(model.state_dict(), path, {"model": "baregrad demo digits"})
    loaded = DigitsNet()
    loaded.load_state_dict(safe_load(path))
    return loaded


def run(settings: Settings, output: Path | None = None) -> int:
    """Train, test, save, load and print; 1 where the loaded network predicts something else."""
    data: Digits = load_digits()
    outcome = train(data.train, settings)
    scores = scores_of(outcome.model, data.held_out)
    with tempfile.TemporaryDirectory() as folder:
        path = output or Path(folder) / "digits.safetensors"
        same = np.array_equal(
            scores, scores_of(saved_and_loaded(outcome.model, path), data.held_out)
        )
        nbytes = path.stat().st_size
    session = current_session()
    name = session.default_device()
    peak = session.backend(name).device.memory_stats().peak_nbytes
    where = f" in {output}" if output is not None else ""
    mode = "jitted" if settings.is_jitted else "eager"
    rate = outcome.seconds / outcome.steps * 1e3
    lines = (
        ("device", name),
        ("data", f"{len(data.train)} images to train, {len(data.held_out)} held out"),
        ("training", f"{outcome.seconds:.2f} s, {outcome.steps} {mode} steps, {rate:.2f} ms each"),
        ("kernels", f"{outcome.kernels} a step" if outcome.kernels else "none: evaluated"),
        ("memory", f"{peak / 1e6:.1f} MB at most"),
        ("last loss", f"{outcome.loss:.4f}"),
        ("weights", f"{nbytes:,} bytes{where}, loaded back: predictions "
                    f"{'equal' if same else 'DIFFER'}"),
    )
    for label, text in lines:
        print(f"{label:<10} {text}")
    print(f"held-out accuracy {accuracy(scores, data.held_out):.4f}")
    return 0 if same else 1

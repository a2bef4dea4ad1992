"""Optimisers, chains of tiny kernels, and training steps beside PyTorch's eager ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad import optim
from baregrad.apps.bench_measure import Array
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.ours import Ours
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.beside.work import SideWork
from baregrad.apps.gpu_suite.row import FLOAT32, GpuRow
from baregrad.apps.gpu_suite.twins import image_model_of_torch, language_model_of_torch
from baregrad.apps.models import GPT, train
from baregrad.apps.resnet import ResNet50
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

_CHECKED_STEPS = 3
_SETTINGS: MappingProxyType[str, Any] = MappingProxyType({"lr": 1e-3, "weight_decay": 0.1})


def _tiny_kernels(is_tiny: bool) -> TensorCase:
    """A chain of kernels that each need the last one's result."""
    length = 5 if is_tiny else 1000

    def ours(x: Tensor) -> Tensor:
        for _ in range(length):
            x = (x + 1).realize()
        return x

    def theirs(torch: Any, x: Any) -> Any:
        for _ in range(length):
            x = x + 1
        return x

    return TensorCase((Draw((1024,), "float32"),), ours, theirs, sets=1)


# --- AdamW ----------------------------------------------------------------------------------------


def _parameter_shapes(depth: int, width: int, words: int, length: int) -> list[tuple[int, ...]]:
    """The shapes of GPT-2's parameters, whose scores share the words' weights."""
    block = (
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,),
    )
    return [(words, width), (length, width), *(block * depth), (width,), (width,)]


class AdamWCase:
    """Steps of AdamW alone, with the same gradients each time, on parameters of these draws."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        self.draws = draws
        # Parameter, gradient and two means are read, three of them written.
        self.facts = {"traffic": 7 * sum(draw.nbytes for draw in self.draws)}

    def on_ours(self, side: Ours) -> SideWork:
        """Update all parameters in one replay."""

        def made() -> tuple[list[Tensor], Callable[[], Any]]:
            parameters = []
            for number, draw in enumerate(self.draws):
                random = np.random.default_rng(number)
                p = side.tensor(draw, random).requires_grad_()
                p.grad = side.tensor(draw, random)
                parameters.append(p)
            # As PyTorch's: what is beside a parameter has its dtype.
            optimiser = optim.AdamW(parameters, master_weights=False, **_SETTINGS)
            return parameters, jit(optimiser.step)

        def outputs() -> list[Array]:
            parameters, step = made()
            for _ in range(_CHECKED_STEPS):
                step()
            return [side.array(p) for p in parameters]

        return SideWork(made()[1], outputs, facts=self.facts)

    def on_peer(self, side: Peer) -> SideWork:
        """Update by the fused optimiser in a CUDA graph; exact are float64's parameters."""
        torch = side.torch

        def made(dtype: str) -> tuple[list[Any], Callable[[], Any]]:
            parameters = []
            for number, draw in enumerate(self.draws):
                random = np.random.default_rng(number)
                p = side.tensor(draw, random).to(getattr(torch, dtype)).requires_grad_()
                p.grad = side.tensor(draw, random).to(getattr(torch, dtype))
                parameters.append(p)
            optimiser = torch.optim.AdamW(
                parameters, fused=True, capturable=side.has_graphs, **_SETTINGS
            )
            return parameters, optimiser.step

        def after(dtype: str) -> list[Array]:
            parameters, step = made(dtype)
            for _ in range(_CHECKED_STEPS):
                step()
            return [side.array(p) for p in parameters]

        dtype = self.draws[0].dtype
        return SideWork(
            side.captured(made(dtype)[1]), lambda: after(dtype), exact=lambda: after("float64")
        )


def _adamw_steps(dtype: str, is_tiny: bool) -> AdamWCase:
    sizes = (1, 8, 40, 6) if is_tiny else (12, 768, 50304, 1024)
    return AdamWCase([Draw(shape, dtype) for shape in _parameter_shapes(*sizes)])


# --- training steps -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """A training step in bf16: a model of each side, whose parameters have the same names.

    `optimiser` makes the optimiser of either side's module of that subject. With `is_compiled`,
    PyTorch compiles its model and the loss, and replays the step.
    """

    ours: Callable[[], Any]
    torch: Callable[[Any], Any]
    optimiser: Callable[[Any, Iterable[Any], dict[str, Any]], Any]
    x: Draw
    y: Draw
    flops: float = 0.0
    is_compiled: bool = False

    def on_ours(self, side: Ours) -> SideWork:
        """Train in one replay; what is compared are losses."""
        x, y = side.tensor(self.x, _random("x")), side.tensor(self.y, _random("y"))

        def made() -> Callable[[], Tensor]:
            model = self.ours().bfloat16()
            for name, p in model.named_parameters():
                p.detach().assign(Tensor(_value(name, tuple(p.shape))).cast(p.dtype))
            optimiser = self.optimiser(optim, model.parameters(), {})
            return jit(lambda: train(model, optimiser, x, y))

        def outputs() -> list[Array]:
            step = made()
            return [side.array(step()) for _ in range(_CHECKED_STEPS)]

        return SideWork(made(), outputs, facts={"flops": self.flops})

    def on_peer(self, side: Peer) -> SideWork:
        """Train eagerly, or compiled; exact are the losses of training in float32, eagerly."""
        torch = side.torch
        functional = torch.nn.functional
        x, y = side.tensor(self.x, _random("x")), side.tensor(self.y, _random("y"))
        if x.ndim == 4:
            x = x.to(memory_format=torch.channels_last)

        def made(dtype: Any, is_compiled: bool = False) -> Callable[[], Any]:
            with torch.device(side.device):
                model = self.torch(torch)
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(torch.from_numpy(_value(name, tuple(p.shape))))
            model.to(dtype)
            if x.ndim == 4:
                model.to(memory_format=torch.channels_last)
            more = {"fused": True}
            if is_compiled and side.has_graphs:
                more["capturable"] = True
            optimiser = self.optimiser(torch.optim, model.parameters(), more)
            inputs = x.to(dtype) if x.is_floating_point() else x

            def loss_of(inputs: Any, y: Any) -> Any:
                return functional.cross_entropy(model(inputs).flatten(0, -2), y)

            compute = side.compiled(loss_of) if is_compiled else loss_of

            def step() -> Any:
                optimiser.zero_grad()
                loss = compute(inputs, y)
                loss.backward()
                optimiser.step()
                return loss.detach()

            return step

        def losses(dtype: Any) -> list[Array]:
            step = made(dtype)
            return [side.array(step()) for _ in range(_CHECKED_STEPS)]

        step = made(torch.bfloat16, self.is_compiled)
        return SideWork(
            side.captured(step) if self.is_compiled else step, lambda: losses(torch.bfloat16),
            exact=lambda: losses(torch.float32),
        )


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _value(name: str, shape: tuple[int, ...]) -> Array:
    """The first value of a parameter: norms' scales are ones, biases zeros."""
    if len(shape) > 1:
        scale = 0.02 if len(shape) == 2 else float(np.prod(shape[1:])) ** -0.5
        return Draw(shape, scale=scale).array(_random(name))
    return np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)


def adamw(module: Any, parameters: Iterable[Any], more: dict[str, Any]) -> Any:
    """AdamW of either side, with more of its arguments."""
    return module.AdamW(parameters, lr=6e-4, weight_decay=0.1, **more)


def sgd(module: Any, parameters: Iterable[Any], more: dict[str, Any]) -> Any:
    """SGD of either side, with more of its arguments."""
    return module.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4, **more)


def language_model(batch: int, is_tiny: bool) -> TrainingCase:
    """A step of GPT-2 124M on so many sequences of 1,024 words."""
    depth, width, heads, words, length, batch = (
        (1, 32, 2, 64, 16, 2) if is_tiny else (12, 768, 12, 50304, 1024, batch)
    )
    shapes = _parameter_shapes(depth, width, words, length)
    parameters = sum(int(np.prod(shape)) for shape in shapes)
    attention = 12.0 * depth * width * length
    return TrainingCase(
        lambda: GPT(depth, width, heads, words, length),
        lambda torch: language_model_of_torch(torch, depth, width, heads, words, length),
        adamw, Draw((batch, length), below=words), Draw((batch * length,), below=words),
        flops=(6.0 * parameters + attention) * batch * length,
    )


def image_model(batch: int, is_tiny: bool) -> TrainingCase:
    """A step of ResNet-50 on so many images."""
    batch, size = (2, 64) if is_tiny else (batch, 224)
    return TrainingCase(
        ResNet50, image_model_of_torch, sgd, Draw((batch, 3, size, size)),
        Draw((batch,), below=1000), flops=3 * 2 * 4.1e9 * batch,
    )


TRAINING = (
    GpuRow("chain of 1000 tiny kernels", 1.0, _tiny_kernels, tolerance=FLOAT32),
    GpuRow(
        "AdamW of 124M in 148 tensors", 1.0, lambda is_tiny: _adamw_steps("bfloat16", is_tiny),
        tolerance=2.0**-6, limit_s=30.0,
    ),
    GpuRow(
        "AdamW of 124M in 148 tensors fp32", 1.0, lambda is_tiny: _adamw_steps("float32", is_tiny),
        tolerance=FLOAT32, limit_s=30.0,
    ),
    GpuRow(
        "GPT-2 124M training step b8x1024", 0.45, partial(language_model, 8), tolerance=2.0**-5,
        limit_s=60.0,
    ),
    GpuRow(
        "ResNet-50 training step b64", 0.4, partial(image_model, 64), tolerance=2.0**-4,
        limit_s=60.0,
    ),
)

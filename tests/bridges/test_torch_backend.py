"""Modules of PyTorch through `torch.compile`, beside themselves run as they are."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from baregrad.base.options import options
from baregrad.bridges.torch_backend import MissingOperators, baregrad, report

IMAGE, TEXT, ROWS = (2, 4, 8, 8), (2, 5, 16), (3, 8)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with options.override(device="CPU"), torch._dynamo.config.patch(allow_rnn=True):
        yield


def run(function: Callable[..., Any], module: nn.Module, *shapes: tuple[int, ...]) -> list[Any]:
    """Results, gradients of arguments and parameters, and buffers after one step."""
    inputs = [
        torch.randn(*shape, generator=torch.Generator().manual_seed(at)).requires_grad_()
        for at, shape in enumerate(shapes)
    ]
    result = function(*inputs)
    several = [one for one in (result if isinstance(result, tuple) else (result,))
               if isinstance(one, torch.Tensor)]
    sum((one * torch.linspace(0, 1, one.numel()).reshape(one.shape)).sum()
        for one in several).backward()
    return [*several, *(one.grad for one in inputs), *(one.grad for one in module.parameters()),
            *module.buffers()]


def agree(module: nn.Module, *shapes: tuple[int, ...]) -> None:
    ours = copy.deepcopy(module)
    before = report()
    found = run(torch.compile(ours, backend=baregrad), ours, *shapes)
    assert report().left == before.left
    assert report().compiled > before.compiled
    for one, other in zip(found, run(module, module, *shapes), strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


FEW = {
    "mlp": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)), ROWS),
    "conv": (nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(),
                           nn.MaxPool2d(2)), IMAGE),
    "attention": (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), TEXT),
    "lstm": (nn.LSTM(16, 4, batch_first=True), TEXT),
}
MANY = {
    "grouped": (nn.Conv2d(4, 8, 3, groups=2, dilation=2), IMAGE),
    "transposed": (nn.ConvTranspose2d(4, 3, 3, 2, 1, 1), IMAGE),
    "conv1d": (nn.Conv1d(5, 3, 3), TEXT), "conv3d": (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    "group norm": (nn.GroupNorm(2, 4), IMAGE), "rms norm": (nn.RMSNorm(16), TEXT),
    "instance norm": (nn.InstanceNorm2d(4, affine=True), IMAGE),
    "average": (nn.AvgPool2d(2), IMAGE),
    "average by a divisor": (nn.AvgPool2d(2, divisor_override=3), IMAGE),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 5)), IMAGE),
    "upsample": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "shuffle": (nn.PixelShuffle(2), IMAGE), "pad": (nn.ReflectionPad2d(1), IMAGE),
    "replicate": (nn.ReplicationPad2d(1), IMAGE), "gru": (nn.GRU(16, 8), TEXT),
    "two-way": (nn.LSTM(16, 8, 2, bidirectional=True), TEXT), "selu": (nn.SELU(), ROWS),
    "prelu": (nn.PReLU(), ROWS), "mish": (nn.Mish(), ROWS), "glu": (nn.GLU(), ROWS),
    "log softmax": (nn.LogSoftmax(-1), ROWS), "bilinear": (nn.Bilinear(8, 8, 3), ROWS, ROWS),
    "cosine": (nn.CosineSimilarity(), ROWS, ROWS), "huber": (nn.HuberLoss(), ROWS, ROWS),
    "triplet": (nn.TripletMarginLoss(), ROWS, ROWS, ROWS), "unfold": (nn.Unfold(2), IMAGE),
    "response norm": (nn.LocalResponseNorm(2), IMAGE),
}


@pytest.mark.parametrize("name", FEW)
def test_a_module_and_its_gradients(name: str) -> None:
    agree(*FEW[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_more_modules_and_their_gradients(name: str) -> None:
    agree(*MANY[name])


def test_training_goes_the_same_way() -> None:
    one = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    other = copy.deepcopy(one)
    compiled = torch.compile(other, backend=baregrad)
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    for module, function in ((one, one), (other, compiled)):
        optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(20):
            optimiser.zero_grad()
            (function(x) - y).square().mean().backward()
            optimiser.step()
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def test_steps_of_a_pooled_image_and_two_convolutions_after_it() -> None:
    """Images in memory that is used again, and buffers of norms, at first and later steps."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
            self.one, self.other = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.pool(x)
            return torch.relu(self.other(torch.relu(self.one(x))) + x).square()

    ours = Block()
    theirs = copy.deepcopy(ours).double()
    compiled = torch.compile(ours, backend=baregrad)
    for _ in range(4):
        x = torch.randn(2, 4, 8, 8)
        for module, function in ((ours, compiled), (theirs, theirs)):
            module.zero_grad()
            function(x.to(module.one.weight.dtype)).mean().backward()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-5)
            for parameter in (one, other):
                parameter.data.sub_(parameter.grad, alpha=0.1)
        for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)


def test_writing_to_a_result_leaves_what_the_backward_pass_needs() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        kept = y.clone()
        return y, (kept * kept).sum()

    x = torch.ones(3, requires_grad=True)
    y, total = torch.compile(function, backend=baregrad)(x)
    with torch.no_grad():
        y.fill_(100)
    total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8, 8, 8]


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_views_that_pytorch_takes_of_permuted_results(needs_gradient: bool) -> None:
    """It takes views of a result by strides, so elements lie where it thinks they do."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.transpose(0, 2) * 3
        return y, y.as_strided((2, 2), (1, 2), 1), y.unbind(0)[1], y[1:].permute(1, 2, 0)

    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, requires_grad=needs_gradient)
    z = x.detach().clone().requires_grad_(needs_gradient)
    torch._dynamo.reset()
    found, wanted = torch.compile(function, backend="baregrad")(x), function(z)
    assert found[0].stride() == wanted[0].stride()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    if needs_gradient:
        for results in (found, wanted):
            sum((each**3).sum() for each in results).backward()
        torch.testing.assert_close(x.grad, z.grad)


def test_lengths_that_change_are_followed() -> None:
    module = nn.Linear(4, 2)
    compiled = torch.compile(module, backend=baregrad, dynamic=True)
    for length in (3, 7, 5, 7):
        x = torch.randn(length, 4)
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("count", [1, 4])
def test_values_under_a_mask_agree_at_every_call(count: int) -> None:
    """One is put by the mask alone; how many places there are for several, no replay could tell."""

    def put(x: Any, mask: Any, values: Any) -> Any:
        y = x * 2
        y[mask] = values
        return y.sum(0)

    before = report().left
    compiled = torch.compile(put, backend=baregrad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingOperators)
        for call in range(4):
            x, values = torch.randn(6, 3), torch.randn(*((count, 3) if count > 1 else (1,)))
            mask = torch.randperm(6, generator=torch.Generator().manual_seed(call)) < 4
            torch.testing.assert_close(compiled(x, mask, values), put(x, mask, values))
    assert report().left == before + (count > 1)


def test_what_we_lack_is_left_to_pytorch_and_told() -> None:
    before = report()
    compiled = torch.compile(lambda x: torch.linalg.det(x) * 2, backend=baregrad)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = compiled(torch.eye(3) * 2)
    assert found.item() == pytest.approx(16)
    assert any(issubclass(one.category, MissingOperators) and "linalg" in str(one.message)
               for one in told)
    assert report().left == before.left + 1
    assert "left to PyTorch" in str(report())

"""Memory stays flat, however often a captured step runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from baregrad.base.options import options
from baregrad.engine.session import current_session
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

PAGE_NBYTES = 4096
# What the allocator of Python may keep for itself; a leak of 100 bytes a step is far above it.
SLACK_NBYTES = 2 << 20


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    with options.override(device="CPU"):
        yield


def resident_nbytes() -> int:
    """The memory of this process that is in RAM now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_NBYTES


def device_nbytes() -> int:
    """The bytes that buffers of the CPU device hold now."""
    gc.collect()
    return int(current_session().backend("CPU").device.memory_stats().in_use_nbytes)


@pytest.mark.parametrize("steps", [
    pytest.param(20_000), pytest.param(1_000_000, marks=pytest.mark.slow),
])
def test_jitted_steps_leave_memory_flat(steps: int) -> None:
    weight = Tensor([0.5, 0.25, 0.125])

    @jit
    def step(x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        weight.assign(weight * 0.5 + x * 0.25)
        return loss

    x = Tensor([1.0, 2.0, 3.0]).realize()
    for _ in range(1_000):
        loss = step(x)
    del loss
    device, resident = device_nbytes(), resident_nbytes()
    for _ in range(steps):
        loss = step(x)
    assert step.replays >= steps
    assert loss.item() == pytest.approx(0.5 * 14.0)
    del loss
    assert device_nbytes() <= device
    assert resident_nbytes() - resident < SLACK_NBYTES


def test_eager_steps_leave_memory_flat() -> None:
    weight = Tensor([0.5, 0.25, 0.125], requires_grad=True)
    x = Tensor([1.0, 2.0, 3.0]).realize()

    def step() -> float:
        loss = (weight * x).exp().sum()
        loss.backward()
        assert weight.grad is not None
        with Tensor.no_grad():
            weight.sub_(weight.grad * 1e-3)
        weight.grad = None
        return float(loss.item())

    for _ in range(100):
        step()
    device, resident = device_nbytes(), resident_nbytes()
    for _ in range(400):
        step()
    assert device_nbytes() <= device
    assert resident_nbytes() - resident < SLACK_NBYTES

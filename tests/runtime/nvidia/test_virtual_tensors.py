"""Tensors on the device NV over the virtual GPU: every driver release, every architecture."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, DriverError, UnsupportedDevice
from baregrad.base.options import options
from baregrad.engine.canonical import bind
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.virtual_gpu import virtual_port
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import Failure, VirtualPort
from tests.testing.virtual_gpu.virtual_tools import RELEASES


@contextlib.contextmanager
def tensors_on(port: VirtualPort, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run tensors on a virtual GPU; nothing of it may be left."""
    monkeypatch.setattr(virtual_port, "default_port", lambda: port)
    session = Session()
    try:
        with use_session(session), options.override(device="NV", nv_port="virtual"):
            yield
    finally:
        session.close()
    assert port.held() == []


def check() -> None:
    """A product, a softmax and a gradient, against NumPy."""
    random = np.random.default_rng(4)
    a, b = random.standard_normal((5, 7)), random.standard_normal((7, 6))
    x, y = (Tensor(one.astype(np.float32), requires_grad=True) for one in (a, b))
    out = (x @ y).softmax(-1)
    logits = a @ b
    wanted = np.exp(logits - logits.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=2e-5, atol=1e-6)
    (out * out).sum().backward()
    inner = 2 * wanted * wanted
    inner -= wanted * inner.sum(1, keepdims=True)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), inner @ b.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_computes(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = VirtualPort(release)
    with tensors_on(port, monkeypatch):
        check()
    assert len(port.launched) > 3 and not port.faults


@pytest.mark.parametrize(
    "architecture", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
)
def test_every_architecture_computes(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = VirtualPort(models=(GpuModel(architecture),))
    with tensors_on(port, monkeypatch):
        check()
    assert len(port.launched) > 3 and not port.faults


def test_a_gpu_that_cannot_be_opened_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = VirtualPort(failure=Failure(9, errno.EACCES))
    with tensors_on(port, monkeypatch):
        with pytest.raises(DriverError, match="cannot open /dev/nvidia0"):
            check()
        port.failure = None
        check()


def test_a_gpu_without_a_compiler_for_it_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    port = VirtualPort(models=(GpuModel("sm_100"),))

    def refuse(name: str) -> None:
        raise UnsupportedDevice("not today", found=name)

    with tensors_on(port, monkeypatch), monkeypatch.context() as patch:
        patch.setattr("baregrad.target.gpu_row", refuse)
        with pytest.raises(UnsupportedDevice, match="not today"):
            check()
        assert port.held() == []


def test_failures_while_tensors_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 23rd call of opening, computing and closing: an error or the right result."""
    port = VirtualPort()
    with tensors_on(port, monkeypatch):
        check()
    for at in range(2, port.calls + 1, 23):
        port = VirtualPort(failure=Failure(at, errno.EIO))
        with contextlib.suppress(BaregradError), tensors_on(port, monkeypatch):
            check()
        assert port.held() == [], at


def check_beside_an_axis() -> None:
    """A kernel of two outputs, of which one may be empty, runs for the other one still."""
    n = variable("n", 0, 4)
    state = Tensor(0.5).realize()

    @jit
    def step(count: Node) -> Tensor:
        shown = state.unsqueeze(0).expand(count)
        state.add_(1)
        return shown

    for call, count in enumerate((3, 4, 0, 2, 0)):
        assert step(bind(n, count)).tolist() == [call + 1.5] * count
        assert state.item() == call + 1.5


def test_what_lies_beside_an_axis_without_points_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tensors_on(VirtualPort(RELEASES[-1]), monkeypatch):
        check_beside_an_axis()

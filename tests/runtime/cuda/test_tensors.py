"""Tensors through the GPU's compiler on the device CUDA, over a pretended driver."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from baregrad import Tensor, func, jit, nn, optim
from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.compiler import Compiler
from baregrad.engine.session import Session, use_session
from baregrad.render import get
from baregrad.runtime.cuda.device import CudaDevice
from baregrad.target import gpu_row
from tests.runtime.cuda.fake_driver import FakeCuda
from tests.runtime.cuda.kernels import assert_clean


@pytest.fixture()
def fake() -> Iterator[FakeCuda]:
    fake = FakeCuda()
    device = CudaDevice(functions=fake.functions)
    compiler = Compiler(gpu_row(device.architecture), get("ptx"), VirtualAssembler(), None)
    session = Session()
    session.adopt(CompiledBackend("CUDA", device, compiler))
    with use_session(session), options.override(device="CUDA"):
        yield fake
    session.close()
    assert_clean(fake)


def test_results_and_gradients_are_those_of_numpy(fake: FakeCuda) -> None:
    data = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    x = Tensor(data, requires_grad=True)
    y = (x * x).sum(1).relu() + x.amax(1)
    y.sum().backward()
    assert np.allclose(y.numpy(), (data * data).sum(1) + data.max(1), rtol=1e-6)
    wanted = 2 * data + (data == data.max(1, keepdims=True))
    assert x.grad is not None
    assert np.allclose(x.grad.numpy(), wanted, rtol=1e-6)
    assert fake.launches


def test_a_jitted_training_step_becomes_a_graph(fake: FakeCuda) -> None:
    def train(device: str) -> list[float]:
        with options.override(device=device, seed=3):
            data = np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32)
            model = nn.Linear(6, 4)
            weights = np.linspace(-1, 1, 24, dtype=np.float32).reshape(model.weight.shape)
            with Tensor.no_grad():
                model.weight.assign(Tensor(weights))
                if model.bias is not None:
                    model.bias.assign(Tensor.zeros(4))
            optimiser = optim.SGD(model.parameters(), lr=0.05)

            @jit
            def step(x: Tensor) -> Tensor:
                optimiser.zero_grad()
                loss = (model(x).tanh() ** 2).mean()
                loss.backward()
                optimiser.step()
                return loss

            return [float(step(Tensor(data + i)).item()) for i in range(9)]

    assert np.allclose(train("CUDA"), train("CPU"), rtol=1e-5)
    assert "cuGraphLaunch" in fake.calls


def test_loops_are_recorded_or_submitted_step_by_step(fake: FakeCuda) -> None:
    def layers(h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        leaf = w.detach().requires_grad_()
        end, _ = func.scan(lambda h, row: ((h * row).tanh(), None), h, leaf)
        end.sum().backward()
        assert leaf.grad is not None
        return end.detach(), leaf.grad

    def halved(x: Tensor) -> Tensor:
        found: Tensor = func.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, (x,))[0]
        return func.cond(found[0] > 0.25, lambda x: x + 1, lambda x: -x, (found,))

    h, w = (np.random.default_rng(i).standard_normal((4, 5)[i:]).astype(np.float32)
            for i in (1, 0))
    ours, theirs = [], []
    for device, found in (("CUDA", ours), ("CPU", theirs)):
        with options.override(device=device):
            captured, taken = jit(layers), jit(halved)
            for _ in range(9):
                found += [x.numpy() for x in captured(Tensor(h), Tensor(w))]
                found += [taken(Tensor(np.full(3, start, np.float32))).numpy()
                          for start in (0.2, 1.0, 9.0)]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert "cuGraphLaunch" in fake.calls

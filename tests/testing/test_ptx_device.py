"""The device that interprets PTX: whole programs through the GPU's compiler, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from baregrad import Tensor, jit, nn, optim
from baregrad.base.errors import DeviceError, UnsupportedDevice
from baregrad.base.options import options
from baregrad.engine.canonical import bind
from baregrad.engine.session import Session
from baregrad.ir.core.index import variable
from baregrad.testing.ptx_device import PtxDevice, ptx_session

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with ptx_session() as made:
        yield made


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def both(session: Session, function, *arrays) -> tuple[list, list]:
    """What a function of tensors gives on the interpreted GPU and on the CPU."""
    found = []
    for device in ("NV", "CPU"):
        with options.override(device=device):
            results = function(*map(Tensor, arrays))
            results = results if isinstance(results, tuple) else (results,)
            assert all(result.device == device for result in results)
            found.append([result.numpy() for result in results])
    return found[0], found[1]


CASES = {
    "map": lambda x, y: (x * y + 1).exp(),
    "broadcast": lambda x, y: x + y[:1],
    "transpose": lambda x, y: x.T + 1,
    "rows": lambda x, y: x.sum(1),
    "columns": lambda x, y: x.sum(0),
    "all": lambda x, y: (x * y).sum(),
    "mean and variance": lambda x, y: (x.mean(1), x.var(1)),
    "softmax": lambda x, y: x.softmax(-1),
    "argmax": lambda x, y: x.argmax(1),
    "cumsum": lambda x, y: x.cumsum(1),
    "product": lambda x, y: x @ y.T,
    "layer norm": lambda x, y: x.layer_norm((x.shape[1],)),
    "sort": lambda x, y: x.sort(1)[0],
    "pad": lambda x, y: x.pad((1, 2, 0, 1)),
    "half": lambda x, y: (x.half() * y.half()).float(),
    "gather": lambda x, y: x[(y[0] > 0).long()],
    "scatter": lambda x, y: Tensor.zeros(3, x.shape[1]).index_add(0, (y[:, 0] > 0).long(), x),
}


@pytest.mark.parametrize("name", CASES)
def test_operations(session: Session, name: str) -> None:
    for shape in ((5, 7), (40, 130)):
        ours, theirs = both(session, CASES[name], normal(*shape), normal(*shape))
        for left, right in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_a_convolution_and_its_gradients(session: Session) -> None:
    def step(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x.requires_grad = w.requires_grad = True
        y = x.conv2d(w, padding=1).relu()
        (y * y).sum().backward()
        return y.detach(), x.grad, w.grad

    ours, theirs = both(session, step, normal(2, 4, 6, 6), normal(5, 4, 3, 3))
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3)


def test_training_steps_replay(session: Session) -> None:
    losses = {}
    data, labels = normal(8, 6), RNG.integers(0, 3, 8)
    weights = [normal(6, 5) * 0.3, normal(5, 3) * 0.3]
    for device in ("NV", "CPU"):
        with options.override(device=device):
            params = [Tensor(w, requires_grad=True) for w in weights]
            rule = optim.SGD(params, lr=0.1, momentum=0.9)

            @jit
            def step(x: Tensor, y: Tensor, rule: optim.SGD = rule, params: list = params) -> Tensor:
                rule.zero_grad()
                loss = ((x @ params[0]).relu() @ params[1]).cross_entropy(y)
                loss.backward()
                rule.step()
                return loss

            losses[device] = [step(Tensor(data), Tensor(labels)).item() for _ in range(4)]
    np.testing.assert_allclose(losses["NV"], losses["CPU"], rtol=1e-4)
    assert losses["NV"][-1] < losses["NV"][0]


def test_a_module_moves(session: Session) -> None:
    with options.override(device="CPU"):
        layer = nn.Linear(4, 3)
        x = Tensor(normal(2, 4))
        wanted = layer(x).numpy()
        there = x.to("NV") @ layer.weight.to("NV").T + layer.bias.to("NV")
        assert there.device == "NV"
        np.testing.assert_allclose(there.numpy(), wanted, rtol=1e-5)
        np.testing.assert_allclose(there.to("CPU").numpy(), wanted, rtol=1e-5)
        gradient = Tensor(normal(2, 2), requires_grad=True)
        (gradient.to("NV") * 3).sum().backward()
        assert gradient.grad is not None
        assert gradient.grad.device == "CPU"
        np.testing.assert_array_equal(gradient.grad.numpy(), np.full((2, 2), 3, np.float32))


def test_symbolic_sizes_make_one_program(session: Session) -> None:
    compiler = session.backend("NV").compiler
    array = normal(600, 6)
    whole = Tensor(array).realize()
    compiled = []
    for size in (1, 3, 300):
        n = bind(variable("n", 1, 600), size)
        part = whole[:n]
        np.testing.assert_allclose((part.exp() * 2).numpy(), np.exp(array[:size]) * 2, rtol=1e-5)
        sums = part.sum(0).numpy()
        np.testing.assert_allclose(sums, array[:size].sum(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            part.softmax(0).sum(0).numpy(), np.ones(6), rtol=1e-4, atol=1e-4
        )
        compiled.append(compiler.compiled)
    assert compiled[0] == compiled[-1]


def test_memory_is_not_the_hosts(session: Session) -> None:
    device = session.backend("NV").device
    buffer = device.allocate(16)
    with pytest.raises(UnsupportedDevice, match="copy_out"):
        buffer.as_memoryview()
    device.copy_in(buffer, np.arange(16, dtype=np.uint8))
    assert buffer.contents().tolist() == list(range(16))
    assert device.duplicate(buffer).contents().tolist() == list(range(16))
    with pytest.raises(DeviceError):
        device.copy_out(buffer, bytearray(4))


def test_generations_have_rows() -> None:
    for architecture in ("sm_75", "sm_80", "sm_120"):
        with ptx_session("CUDA", architecture) as made:
            x = Tensor(normal(4, 9))
            np.testing.assert_allclose(x.softmax(1).sum(1).numpy(), np.ones(4), rtol=1e-5)
            device = made.backend("CUDA").device
            assert isinstance(device, PtxDevice)
            assert device.launches

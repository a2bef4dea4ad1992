"""Linear layers of 8-bit floats against PyTorch's casts and products; a network trained by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad import nn, optim
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.base.options import options
from baregrad.nn.float8 import float8_linear
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session

RNG = np.random.default_rng(7)
INPUTS = RNG.standard_normal((256, 32)).astype(np.float32)
WANTED = np.tanh(INPUTS @ RNG.standard_normal((32, 8)).astype(np.float32) / 4)


def network() -> nn.Sequential:
    Tensor.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(),
                         nn.Linear(64, 8))  # fmt: skip


def losses(model: nn.Module, dtype: str, steps: int = 60) -> list[float]:
    optimiser = optim.AdamW(model.parameters(), lr=3e-3)
    x, y = Tensor(INPUTS).cast(dtype), Tensor(WANTED)
    found = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = ((model(x).cast("float32") - y) ** 2).mean()
        loss.backward()
        optimiser.step()
        found.append(float(loss.item()))
    return found


def test_the_loss_is_that_of_bfloat16() -> None:
    narrow = losses(nn.to_float8(network(), lambda path, layer: path != "4"), "float32")
    wide = losses(network().to(dtype="bfloat16"), "bfloat16")
    assert narrow[0] > 10 * narrow[-1]
    assert all(abs(one - other) < 0.05 * other for one, other in zip(narrow, wide, strict=True))


def test_layers_keep_their_parameters() -> None:
    model = network()
    before = model.parameters()
    nn.to_float8(model, lambda path, layer: path != "4")
    kinds = [type(each) for each in model.children()]
    assert kinds == [nn.Float8Linear, nn.GELU, nn.Float8Linear, nn.GELU, nn.Linear]
    after = model.parameters()
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert [*model.state_dict()] == [*network().state_dict()]


# --- one layer -----------------------------------------------------------------------------------


def scaled(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.float().abs().max() / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype).float(), scale


def theirs(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (a, sa), (b, sb) = (scaled(one, torch.float8_e4m3fn) for one in (x, w))
    d, sd = scaled(g, torch.float8_e5m2)
    return a @ b.T * (sa * sb), d @ b * (sd * sb), d.T @ a * (sd * sa)


@pytest.mark.parametrize("device", ("CPU", "REF"))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_against_pytorch(device: str, dtype: str) -> None:
    x, w, g = (RNG.standard_normal(shape).astype(np.float32) for shape in
               ((3, 5, 24), (16, 24), (3, 5, 16)))  # fmt: skip
    kind = getattr(torch, dtype)
    rows = torch.tensor(x).reshape(15, 24).to(kind), torch.tensor(w).to(kind)
    wanted = theirs(*rows, torch.tensor(g).reshape(15, 16).to(kind))
    with options.override(device=device):
        a, b = (Tensor(one).cast(dtype).contiguous().requires_grad_() for one in (x, w))
        bias = Tensor(np.ones(16, np.float32)).cast(dtype).requires_grad_()
        out = float8_linear(a, b, bias)
        out.backward(Tensor(g).cast(dtype))
        assert a.grad is not None and b.grad is not None and bias.grad is not None
        found = out - bias, a.grad, b.grad
        for one, other in zip(found, wanted, strict=True):
            assert str(one.dtype) == dtype
            size = 2**-6 if dtype == "bfloat16" else 1e-5
            got = one.cast("float32").numpy().reshape(other.shape)
            np.testing.assert_allclose(got, other.numpy(), rtol=size, atol=size)
        total = Tensor(g).cast(dtype).cast("float32").sum((0, 1)).numpy()
        np.testing.assert_allclose(bias.grad.cast("float32").numpy(), total, rtol=2**-6, atol=0.1)


def test_on_a_gpu() -> None:
    """Sizes that matrix units do, forward and for both gradients."""
    x, w, g = (RNG.standard_normal(shape).astype(np.float32) for shape in
               ((64, 32), (64, 32), (64, 64)))  # fmt: skip
    wanted = theirs(*map(torch.tensor, (x, w, g)))
    with ptx_session():
        a, b = (Tensor(one).requires_grad_() for one in (x, w))
        out = float8_linear(a, b)
        out.backward(Tensor(g))
        assert a.grad is not None and b.grad is not None
        for one, other in zip((out, a.grad, b.grad), wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


def test_zeros_and_what_is_no_number() -> None:
    w = Tensor(RNG.standard_normal((4, 8)).astype(np.float32))
    assert (float8_linear(Tensor.zeros(3, 8), w).numpy() == 0).all()
    x = np.ones((3, 8), np.float32)
    x[1, 2] = np.inf
    assert np.isnan(float8_linear(Tensor(x), w).numpy()).any()


def test_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match="takes a module"):
        nn.to_float8(3)  # type: ignore[arg-type]
    x, w = Tensor.ones(3, 8), Tensor.ones(4, 8)
    with pytest.raises(ShapeError, match="a linear layer takes"):
        float8_linear(x, w.T)
    with pytest.raises(DTypeError, match="are of floats"):
        float8_linear(x.cast("int32"), w)

"""Short-time transforms against PyTorch's, there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad import fft
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.tensor import Tensor

SIGNAL = np.random.default_rng(1).normal(size=(2, 1500)).astype(np.float32)
CASES: tuple[dict[str, Any], ...] = (
    {"n_fft": 400, "hop_length": 160}, {"n_fft": 64},
    {"n_fft": 100, "hop_length": 30, "win_length": 80, "normalized": True},
    {"n_fft": 64, "center": False, "onesided": False},
)


@pytest.mark.differential
@pytest.mark.parametrize("options", CASES, ids=str)
def test_both_ways_are_pytorchs(options: dict[str, Any]) -> None:
    width = options.get("win_length", options["n_fft"])
    # Without padding a signal's ends are under the window's.
    window = torch.hann_window(width) + (0.0 if options.get("center", True) else 0.1)
    ours = Tensor(window.numpy())
    found = fft.stft(Tensor(SIGNAL), window=ours, **options)
    wanted = torch.stft(torch.tensor(SIGNAL), window=window, return_complex=True, **options)
    assert found.shape == tuple(wanted.shape)
    assert np.allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=2e-5)
    for length in (None, 1400):
        back = fft.istft(found, window=ours, length=length, **options)
        there = torch.istft(wanted, window=window, length=length, **options)
        assert back.shape == tuple(there.shape)
        assert np.allclose(back.numpy(), there.numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_flow() -> None:
    x = Tensor(SIGNAL[0], requires_grad=True)
    other = torch.tensor(SIGNAL[0], requires_grad=True)
    fft.stft(x, 64).abs().square().sum().backward()
    made = torch.stft(other, 64, window=torch.ones(64), return_complex=True)
    made.abs().square().sum().backward()
    assert x.grad is not None and other.grad is not None
    assert np.allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-2)


def test_what_is_wrong_is_said() -> None:
    x = Tensor(SIGNAL)
    with pytest.raises(ArgumentError, match="hops"):
        fft.stft(x, 64, 0)
    with pytest.raises(ShapeError, match="window"):
        fft.stft(x, 64, window=Tensor.ones(5))
    with pytest.raises(ShapeError, match="longer"):
        fft.stft(x[:, :50], 64, center=False)
    with pytest.raises(ArgumentError, match="no window"):
        fft.istft(fft.stft(x, 64), 64, window=Tensor.zeros(64))

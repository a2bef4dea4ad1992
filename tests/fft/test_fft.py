"""Fourier transforms against NumPy's in float64, and against PyTorch's conventions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from baregrad import fft
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.fft import tables
from baregrad.tensor import Tensor
from baregrad.tensor.array.link import session
from baregrad.tensor.jit.jit import jit

_RANDOM = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return _RANDOM.normal(size=shape) + 1j * _RANDOM.normal(size=shape)


# One point, one product, several stages, a prime with a matrix, with a chirp, and beside others.
LENGTHS = (
    1, 12, 97, 131, 400,
    *[pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 31, 48, 100, 1009, 1155, 2048)],
)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("dtype", "unit"), [(np.complex64, 2.0**-24), (np.complex128, 2.0**-53)])
def test_errors_grow_as_the_logarithm_of_the_length(n: int, dtype: type, unit: float) -> None:
    z = numbers(2, n).astype(dtype)
    real = z.real.copy()
    half = np.fft.rfft(real.astype(float)).astype(dtype) + dtype(1j)
    wide = z.astype(complex)
    for found, wanted in (
        (fft.fft(Tensor(z)), np.fft.fft(wide)),
        (fft.ifft(Tensor(z)), np.fft.ifft(wide)),
        (fft.rfft(Tensor(real)), np.fft.rfft(real.astype(float))),
        (fft.irfft(Tensor(half), n), np.fft.irfft(half.astype(complex), n)),
    ):
        assert found.shape == wanted.shape
        error = np.sqrt((abs(found.numpy() - wanted) ** 2).sum() / (abs(wanted) ** 2).sum())
        assert error <= 3 * unit * max(1.0, math.log2(n))


CASES = (
    ("fft", {"n": 5}), ("fft", {"dim": 0, "norm": "ortho"}), ("ifft", {"n": 9, "norm": "forward"}),
    ("hfft", {}), ("hfft", {"n": 7, "norm": "forward"}), ("irfft", {"norm": "ortho"}),
    ("irfft", {"n": 7, "dim": 1}), ("fft2", {}), ("ifft2", {"s": (3, 8), "norm": "ortho"}),
    ("fftn", {"dim": (0, 2)}), ("ifftn", {"s": (4, 5)}), ("irfft2", {}), ("irfftn", {"s": (3, 7)}),
    ("hfft2", {}), ("hfftn", {"s": (4, 9), "norm": "ortho"}),
)
REAL_CASES = (
    ("fft", {}), ("rfft", {"n": 9, "norm": "ortho"}), ("rfft", {"dim": 1}), ("rfft2", {}),
    ("rfftn", {"s": (4, 5)}), ("ihfft", {"norm": "forward"}), ("ihfft2", {}), ("ihfftn", {}),
)


@pytest.mark.differential
@pytest.mark.parametrize(("name", "options"), [*CASES, *REAL_CASES], ids=str)
def test_a_function_is_pytorchs_and_so_is_its_gradient(
    name: str, options: dict[str, object]
) -> None:
    z = numbers(3, 4, 6)
    given = z.real.copy() if (name, options) in REAL_CASES else z
    x, other = Tensor(given, requires_grad=True), torch.tensor(given, requires_grad=True)
    found = getattr(fft, name)(x, **options)
    wanted = getattr(torch.fft, name)(other, **options)
    assert found.shape == tuple(wanted.shape)
    assert np.allclose(found.detach().numpy(), wanted.detach().resolve_conj().numpy())
    weights = np.asarray(numbers(*found.shape))
    ((found * Tensor(weights)).real).sum().backward()
    ((wanted * torch.tensor(weights)).real).sum().backward()
    assert x.grad is not None and other.grad is not None
    assert np.allclose(x.grad.numpy(), other.grad.resolve_conj().numpy())


@pytest.mark.parametrize("n", [1, 8, 9])
def test_frequencies_and_shifts(n: int) -> None:
    assert np.allclose(fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5))
    assert np.allclose(fft.rfftfreq(n, 0.5).numpy(), np.fft.rfftfreq(n, 0.5))
    x = np.arange(2 * n).reshape(2, n)
    assert np.array_equal(fft.fftshift(Tensor(x)).numpy(), np.fft.fftshift(x))
    assert np.array_equal(fft.ifftshift(Tensor(x), 1).numpy(), np.fft.ifftshift(x, 1))
    assert np.array_equal(fft.fftshift(Tensor(x * 1j)).numpy(), np.fft.fftshift(x * 1j))


def test_a_transform_is_jitted_and_is_the_same_on_the_reference_device() -> None:
    z = numbers(2, 48).astype(np.complex64)
    replayed = jit(fft.fft)
    for _ in range(3):
        assert np.array_equal(replayed(Tensor(z)).numpy(), fft.fft(Tensor(z)).numpy())
    on_reference = fft.fft(Tensor(z, device="REF")).numpy()
    assert np.allclose(on_reference, np.fft.fft(z), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [12, 64, 37])
def test_tables_are_uploaded_once_for_each_dtype(n: int) -> None:
    for dtype in (np.complex64, np.complex128):
        z = Tensor(numbers(2, n).astype(dtype))
        fft.ifft(z).realize()
        uploads: list[object] = []
        watching = session().watching.uploads
        watching.append(lambda ref, data, uploads=uploads: uploads.append(data))
        try:
            found = fft.ifft(z)
        finally:
            watching.pop()
        assert not uploads
        assert np.allclose(found.numpy(), np.fft.ifft(z.numpy()), atol=1e-6)


@pytest.mark.parametrize("least", [1, 2, 7, 17, 255, 257, 2017])
def test_a_smooth_number_is_the_least(least: int) -> None:
    def is_smooth(n: int) -> bool:
        for prime in (2, 3, 5):
            while n % prime == 0:
                n //= prime
        return n == 1

    wanted = next(n for n in range(least, 2 * least + 2) if is_smooth(n))
    assert tables.smooth(least) == wanted


def test_what_is_wrong_is_said() -> None:
    x = Tensor.zeros(3, 4)
    with pytest.raises(ArgumentError, match="one point"):
        fft.fft(x, 0)
    with pytest.raises(ArgumentError, match="norm"):
        fft.fft(x, norm="unit")
    with pytest.raises(ShapeError):
        fft.fft(Tensor(1.0))
    with pytest.raises(ShapeError):
        fft.fftn(x, s=(2,), dim=(0, 1))
    with pytest.raises(DTypeError, match="real"):
        fft.rfft(x.cast(dtypes.complex64))

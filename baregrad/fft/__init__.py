"""Fourier transforms of any length, as matrix products: PyTorch's names, and NumPy's.

In come tensors, out go tensors; all is operations of tensors, on every device and with gradients.
Imports `tensor`.
"""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.fft.frames import istft, stft
from baregrad.fft.functions import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "istft",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "stft",
]


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.fft", name, __all__)

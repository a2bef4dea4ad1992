"""The extension `fft` of the array API: `baregrad.fft`, by the standard's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from baregrad import fft as own
from baregrad.base.errors import DTypeError
from baregrad.dtypes import DType
from baregrad.tensor import Tensor

Norm: TypeAlias = Literal["backward", "ortho", "forward"]


def _along(name: str, meaning: str) -> Callable[..., Tensor]:
    """A transform along one axis."""
    transform: Callable[..., Tensor] = getattr(own, name)

    def function(
        x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
    ) -> Tensor:
        return transform(_floating(x), n, axis, norm)

    return _named(function, name, meaning)


def _over(name: str, meaning: str) -> Callable[..., Tensor]:
    """A transform along several axes."""
    transform: Callable[..., Tensor] = getattr(own, name)

    def function(
        x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
        norm: Norm = "backward",
    ) -> Tensor:
        return transform(_floating(x), s, axes, norm)

    return _named(function, name, meaning)


def _shift(name: str, meaning: str) -> Callable[..., Tensor]:
    """A move of all frequencies along axes."""
    move: Callable[..., Tensor] = getattr(own, name)

    def function(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
        return move(x, axes)

    return _named(function, name, meaning)


def _frequencies(name: str, meaning: str) -> Callable[..., Tensor]:
    """The frequencies of a transform."""
    make: Callable[..., Tensor] = getattr(own, name)

    def function(
        n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: str | None = None
    ) -> Tensor:
        return make(n, d, dtype=dtype, device=device)

    return _named(function, name, meaning)


def _floating(x: Tensor) -> Tensor:
    if x.dtype.kind not in ("float", "complex"):
        raise DTypeError("transforms are of floats and complex numbers", found=x.dtype)
    return x


def _named(function: Any, name: str, meaning: str) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = meaning
    found: Callable[..., Tensor] = function
    return found


fft = _along("fft", "Return transforms along an axis.")
ifft = _along("ifft", "Return inverse transforms along an axis.")
rfft = _along("rfft", "Return the first half of transforms of real numbers.")
irfft = _along("irfft", "Return the real numbers of half transforms.")
hfft = _along("hfft", "Return the real transforms of what is Hermitian.")
ihfft = _along("ihfft", "Return what is Hermitian and has real numbers for its transform.")
fftn = _over("fftn", "Return transforms along several axes.")
ifftn = _over("ifftn", "Return inverse transforms along several axes.")
rfftn = _over("rfftn", "Return transforms of real numbers, half along the last axis.")
irfftn = _over("irfftn", "Return the real numbers of transforms, half along the last axis.")
fftshift = _shift("fftshift", "Return frequencies in rising order.")
ifftshift = _shift("ifftshift", "Return what `fftshift` moved in the order before.")
fftfreq = _frequencies("fftfreq", "Return the frequencies of a transform.")
rfftfreq = _frequencies("rfftfreq", "Return the frequencies of a transform of real numbers.")

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

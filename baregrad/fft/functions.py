"""Fourier transforms by name, as PyTorch's `torch.fft` and NumPy's `numpy.fft`.

`n` or `s`: lengths to which axes are cut or filled up with zeros first. `norm`: "backward" scales
the inverse by 1/n, "forward" the transform, "ortho" both by 1/sqrt(n). float32 and narrower give
complex64, float64 complex128. Any length works, at O(n log n); gradients flow. Errors are
ShapeError, ArgumentError and DTypeError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, complex_of, default_float, dtypes
from baregrad.fft.transform import real_inverse, real_transform, transform
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import one_axis, several_axes
from baregrad.tensor.array.core import check_shape_is_int

Sizes = Sequence[int] | None
Dims = int | Sequence[int] | None


def fft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the transform along an axis."""
    return _along(x, n, dim, norm, -1)


def ifft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse transform along an axis."""
    return _along(x, n, dim, norm, 1)


def rfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the first n//2 + 1 places of the transform of real numbers along an axis."""
    axis, length = _axis_and_length(x, n, dim)
    work = _real(x).movedim(axis, -1)
    made = real_transform(_fitted(work, -1, length)) * _scale(length, norm, -1)
    return made.view_as_complex().movedim(-1, axis)


def irfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the n real numbers whose transform begins with `x`; n is 2*(len - 1) unless given."""
    axis, given = _axis_and_length(x, None, dim)
    length = _positive(2 * (given - 1) if n is None else n)
    pairs = _fitted(_pairs(x.movedim(axis, -1)), -2, length // 2 + 1)
    made = real_inverse(pairs, length) * _scale(length, norm, 1)
    return made.movedim(-1, axis)


def hfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the n real numbers that are the transform of what begins with `x` and is Hermitian."""
    return irfft(_complex(x).conj(), n, dim, _other(norm))


def ihfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the beginning of what is Hermitian and has the real numbers `x` for its transform."""
    return rfft(x, n, dim, _other(norm)).conj()


def fftn(x: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """Return the transform along several axes, all by default."""
    for axis, length in _axes_and_lengths(x, s, dim):
        x = fft(x, length, axis, norm)
    return _complex(x)


def ifftn(x: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """Return the inverse transform along several axes, all by default."""
    for axis, length in _axes_and_lengths(x, s, dim):
        x = ifft(x, length, axis, norm)
    return _complex(x)


def rfftn(x: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """Return the transform of real numbers along several axes, half of it along the last."""
    *rest, (axis, length) = _some(_axes_and_lengths(x, s, dim))
    x = rfft(x, length, axis, norm)
    for each, extent in rest:
        x = fft(x, extent, each, norm)
    return x


def irfftn(x: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """Return the real numbers of a half transform along several axes, cut along the last."""
    *rest, (axis, length) = _some(_axes_and_lengths(x, s, dim))
    for each, extent in rest:
        x = ifft(x, extent, each, norm)
    return irfft(x, length, axis, norm)


def hfftn(x: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """Return the real transform of what is Hermitian along the last of several axes."""
    *rest, (axis, length) = _some(_axes_and_lengths(x, s, dim))
    for each, extent in rest:
        x = fft(x, extent, each, norm)
    return hfft(x, length, axis, norm)


def ihfftn(x: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """Return the half inverse transform of real numbers along several axes."""
    *rest, (axis, length) = _some(_axes_and_lengths(x, s, dim))
    x = ihfft(x, length, axis, norm)
    for each, extent in rest:
        x = ifft(x, extent, each, norm)
    return x


def fft2(x: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """Return the transform along two axes."""
    return fftn(x, s, dim, norm)


def ifft2(x: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """Return the inverse transform along two axes."""
    return ifftn(x, s, dim, norm)


def rfft2(x: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """Return the transform of real numbers along two axes, half of it along the last."""
    return rfftn(x, s, dim, norm)


def irfft2(x: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """Return the real numbers of a half transform along two axes."""
    return irfftn(x, s, dim, norm)


def hfft2(x: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """Return the real transform of what is Hermitian along the second of two axes."""
    return hfftn(x, s, dim, norm)


def ihfft2(x: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """Return the half inverse transform of real numbers along two axes."""
    return ihfftn(x, s, dim, norm)


def fftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """Return the frequency of each place of a transform of n points that lie `d` apart."""
    place = Tensor.arange(_positive(n), dtype=dtypes.int64, device=device)
    turned = (place < (n + 1) // 2).where(place, place - n)
    return (turned.double() / (n * d)).cast(dtype or default_float())


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """Return the frequencies of a transform of n real points that lie `d` apart."""
    place = Tensor.arange(_positive(n) // 2 + 1, dtype=dtypes.float64, device=device)
    return (place / (n * d)).cast(dtype or default_float())


def fftshift(x: Tensor, dim: Dims = None) -> Tensor:
    """Return frequencies in rising order: 0 in the middle of axes, all by default."""
    axes = several_axes(dim, x.ndim)
    return x.roll([x.shape[axis] // 2 for axis in axes], axes) if axes else x


def ifftshift(x: Tensor, dim: Dims = None) -> Tensor:
    """Return what `fftshift` moved in the order that it had before."""
    axes = several_axes(dim, x.ndim)
    return x.roll([-(x.shape[axis] // 2) for axis in axes], axes) if axes else x


# --- arguments ------------------------------------------------------------------------------------


def _along(x: Tensor, n: int | None, dim: int, norm: str | None, sign: int) -> Tensor:
    axis, length = _axis_and_length(x, n, dim)
    pairs = _fitted(_pairs(x.movedim(axis, -1)), -2, length)
    made = transform(pairs, sign)
    scale = _scale(length, norm, sign)
    return (made if scale == 1.0 else made * scale).view_as_complex().movedim(-1, axis)


def _axis_and_length(x: Tensor, n: int | None, dim: int) -> tuple[int, int]:
    if not isinstance(x, Tensor):
        raise DTypeError("a transform is of a tensor", found=type(x).__name__)
    if not x.ndim:
        raise ShapeError("a transform wants an axis", found="a tensor without axes")
    check_shape_is_int(x.shape, "a transform")
    axis = one_axis(dim, x.ndim)
    return axis, _positive(x.shape[axis] if n is None else n)


def _positive(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ArgumentError("a transform is of one point at least", found=f"{n!r}")
    return n


def _axes_and_lengths(x: Tensor, s: Sizes, dim: Dims) -> list[tuple[int, int | None]]:
    """The axes of a transform in the order given, with the length of each, None for its own."""
    if dim is None:
        if s is not None and len(s) > x.ndim:
            raise ShapeError("more lengths than axes", found=f"{list(s)} for {x.ndim}")
        axes = list(range(x.ndim if s is None else x.ndim - len(s), x.ndim)) if s else list(
            range(x.ndim))
    else:
        given = (dim,) if isinstance(dim, int) else dim
        axes = [one_axis(axis, x.ndim) for axis in given]
        several_axes(given, x.ndim)
    if s is None:
        return [(axis, None) for axis in axes]
    if len(s) != len(axes):
        raise ShapeError("a length for each axis", found=f"{list(s)} for axes {axes}")
    return [(axis, None if n == -1 else n) for axis, n in zip(axes, s, strict=True)]


def _some(axes: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    if not axes:
        raise ShapeError("a transform of real numbers wants an axis", found="none")
    return axes


def _real(x: Tensor) -> Tensor:
    if x.is_complex():
        raise DTypeError(
            "a transform of real numbers", found=x.dtype, hint="use fft(), or take x.real"
        )
    return x.cast(dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32)


def _complex(x: Tensor) -> Tensor:
    return x if x.is_complex() else x.cast(complex_of(x.dtype))


def _pairs(x: Tensor) -> Tensor:
    return _complex(x).view_as_real()


def _fitted(x: Tensor, axis: int, length: int) -> Tensor:
    """An axis counted from the end, cut or filled up with zeros."""
    have = x.shape[axis]
    if have >= length:
        return x if have == length else x.narrow(axis, 0, length)
    return x.pad([*[0] * (2 * (-axis - 1)), 0, length - have])


_NORMS = ("backward", "ortho", "forward")


def _scale(n: int, norm: str | None, sign: int) -> float:
    norm = norm or "backward"
    if norm not in _NORMS:
        raise ArgumentError("norm", found=repr(norm), wanted="'backward', 'ortho' or 'forward'")
    if norm == "ortho":
        return 1.0 / math.sqrt(n)
    return 1.0 / n if (norm == "forward") == (sign < 0) else 1.0


def _other(norm: str | None) -> str:
    """The norm of what scales the other way."""
    swapped = {"backward": "forward", "forward": "backward"}
    return swapped.get(norm or "backward", norm or "")

"""Complex numbers from their parts, and their parts: of real tensors and complex ones alike."""

from __future__ import annotations

import math

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.ops.creation import complex_class


def is_complex(x: Tensor) -> bool:
    """Return whether the elements are complex numbers."""
    return x.is_paired


def view_as_complex(x: Tensor) -> Tensor:
    """Return the complex numbers whose parts are along the last axis, of 2, aliased.

    Raises ShapeError for another axis, DTypeError unless the dtype is float32 or float64.
    """
    _check_part(x.dtype)
    if not x.ndim or x.shape[-1] != 2:
        raise ShapeError(
            "a real and an imaginary part lie along the last axis", found=f"shape {list(x.shape)}",
            wanted="a last extent of 2",
        )
    return complex_class(type(x))._on(x._storage, x._steps)


def _check_part(dtype: DType) -> None:
    if dtype not in (dtypes.float32, dtypes.float64):
        raise DTypeError(
            "the parts of complex numbers are float32 or float64", found=dtype,
            hint="cast it first, for example with float()",
        )


def view_as_real(x: Tensor) -> Tensor:
    """Return the parts of complex numbers along a new last axis of 2, aliased."""
    if not x.is_paired:
        raise DTypeError("view_as_real is of complex tensors", found=x.dtype)
    return type(x)._real()._on(x._storage, x._steps)


def complex(x: Tensor, imag: Tensor) -> Tensor:
    """Return x + i*imag; both are float32 or both float64, and broadcast."""
    if x.dtype is not imag.dtype:
        raise DTypeError("both parts have one dtype", found=f"{x.dtype} and {imag.dtype}")
    _check_part(x.dtype)
    shape = (x + imag.detach()).shape
    return view_as_complex(x.expand(shape).stack(imag.expand(shape), dim=-1))


def polar(x: Tensor, angle: Tensor) -> Tensor:
    """Return x * exp(i*angle); both are float32 or both float64, and broadcast."""
    return complex(x * angle.cos(), x * angle.sin())


def real(x: Tensor) -> Tensor:
    """Return the real part, aliased; a real tensor itself."""
    return view_as_real(x)[..., 0] if x.is_paired else x


def imag(x: Tensor) -> Tensor:
    """Return the imaginary part, aliased. Raises DTypeError for a real tensor, which has none."""
    if not x.is_paired:
        raise DTypeError("only complex numbers have an imaginary part", found=x.dtype)
    return view_as_real(x)[..., 1]


def conj(x: Tensor) -> Tensor:
    """Return the complex conjugate; a real tensor itself."""
    return complex(real(x), -imag(x)) if x.is_paired else x


def angle(x: Tensor) -> Tensor:
    """Return the angle in radians, within [-pi, pi]: of real numbers 0 or pi, NaN of NaN."""
    if x.is_paired:
        return imag(x).atan2(real(x))
    number = x if x.dtype.kind == "float" else x.float()
    return number.isnan().where(number, (number < 0).where(math.pi, number.zeros_like()))


def adjoint(x: Tensor) -> Tensor:
    """Return matrices with their last two axes exchanged, and conjugated."""
    return conj(x.mT)


def isreal(x: Tensor) -> Tensor:
    """Return where the imaginary part is 0."""
    return imag(x) == 0 if x.is_paired else x.ones_like(dtype=dtypes.bool)

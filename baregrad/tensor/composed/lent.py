"""Methods whose functions live in rooms that are made of tensors: linear algebra, frames.

Such a room is imported by its name, when one of its methods is first called.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from baregrad.tensor.array.tensor_like import Tensor


def _room(name: str) -> Any:
    return importlib.import_module(f"baregrad.{name}")


def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """Return the triangular L of x = L @ L.mH; with `upper` the R of x = R.mH @ R."""
    return cast("Tensor", _room("linalg.older").cholesky(x, upper))


def cholesky_inverse(x: Tensor, upper: bool = False) -> Tensor:
    """Return the inverse of the matrix of which x is L, or R with `upper`."""
    return cast("Tensor", _room("linalg.older").cholesky_inverse(x, upper))


def cholesky_solve(x: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Return what the matrix of a Cholesky factor takes to x."""
    return cast("Tensor", _room("linalg.older").cholesky_solve(x, factor, upper))


def lu_solve(x: Tensor, LU: Tensor, pivots: Tensor) -> Tensor:  # noqa: N803
    """Return what the matrix that `linalg.lu_factor` made LU and pivots of takes to x."""
    return cast("Tensor", _room("linalg.older").lu_solve(x, LU, pivots))


def triangular_solve(
    x: Tensor,
    A: Tensor,  # noqa: N803
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    """Return what a triangle A takes to x, and A."""
    return _room("linalg.older").triangular_solve(x, A, upper, transpose, unitriangular)


def geqrf(x: Tensor) -> Any:
    """Return R and what it left of QR's reflections in one matrix, and their factors."""
    return _room("linalg.householder").geqrf(x)


def orgqr(x: Tensor, tau: Tensor) -> Tensor:
    """Return the first columns of a product of reflections, as `geqrf` gives them."""
    return cast("Tensor", _room("linalg.householder").orgqr(x, tau))


def ormqr(
    x: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """Return a product of reflections times another matrix, or behind it without `left`."""
    return cast("Tensor", _room("linalg.householder").ormqr(x, tau, other, left, transpose))


def qr(x: Tensor, some: bool = True) -> Any:
    """Return orthonormal columns and an upper triangle, x = Q @ R, reduced with `some`."""
    return _room("linalg.older").qr(x, some)


def svd(x: Tensor, some: bool = True, compute_uv: bool = True) -> Any:
    """Return U, S and V of x = U @ diag(S) @ V.mH; without `compute_uv` U and V are zeros."""
    return _room("linalg.older").svd(x, some, compute_uv)


def logdet(x: Tensor) -> Tensor:
    """Return the logarithm of the determinant; NaN below 0."""
    return cast("Tensor", _room("linalg.older").logdet(x))


def det(x: Tensor) -> Tensor:
    """Return the determinants of the last two axes."""
    return cast("Tensor", _room("linalg").det(x))


def slogdet(x: Tensor) -> Any:
    """Return the signs of determinants, and the logarithms of their sizes."""
    return _room("linalg").slogdet(x)


def inverse(x: Tensor) -> Tensor:
    """Return the inverse matrices of the last two axes."""
    return cast("Tensor", _room("linalg").inv(x))


def pinverse(x: Tensor, rcond: float = 1e-15) -> Tensor:
    """Return the pseudoinverses of the last two axes.

    Singular values below `rcond` times the largest count as 0.
    """
    return cast("Tensor", _room("linalg").pinv(x, rtol=rcond))


def matrix_power(x: Tensor, n: int) -> Tensor:
    """Return x multiplied n times by itself."""
    return cast("Tensor", _room("linalg").matrix_power(x, n))


def matrix_exp(x: Tensor) -> Tensor:
    """Return the exponentials of square matrices."""
    return cast("Tensor", _room("linalg").matrix_exp(x))


def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool = True,
) -> Tensor:
    """Return the transforms of windows of a signal; see `fft.stft`."""
    found: Tensor = _room("fft").stft(
        x, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided,
        return_complex,
    )  # fmt: skip
    return found


def istft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Return the signal of such transforms; see `fft.istft`."""
    found: Tensor = _room("fft").istft(
        x, n_fft, hop_length, win_length, window, center, normalized, onesided, length,
        return_complex,
    )  # fmt: skip
    return found

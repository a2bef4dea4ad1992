"""Methods whose functions live in rooms that are made of tensors: linear algebra, frames.

Such a room is imported by its name, when one of its methods is first called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from baregrad.tensor.array.tensor_like import Tensor


def lent(room: str, name: str, sentence: str, method: str = "") -> Callable[..., Any]:
    """The function `name` of a room, as a method of the same name or another one."""

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(f"baregrad.{room}"), name)(x, *args, **kwargs)

    function.__name__ = function.__qualname__ = method or name
    function.__doc__ = sentence
    return function


cholesky = lent("linalg.older", "cholesky", "Return the triangular L of x = L @ L.mH.")
cholesky_inverse = lent(
    "linalg.older", "cholesky_inverse", "Return the inverse of the matrix of which x is L."
)
cholesky_solve = lent(
    "linalg.older", "cholesky_solve", "Return what the matrix of a Cholesky factor takes to x."
)
qr = lent("linalg.older", "qr", "Return orthonormal columns and an upper triangle, x = Q @ R.")
svd = lent("linalg.older", "svd", "Return U, S and V of x = U @ diag(S) @ V.mH.")
logdet = lent("linalg.older", "logdet", "Return the logarithm of the determinant; NaN below 0.")
triangular_solve = lent(
    "linalg.older", "triangular_solve", "Return what a triangle A takes to x, and A."
)
det = lent("linalg", "det", "Return the determinants of the last two axes.")
slogdet = lent("linalg", "slogdet", "Return the signs of determinants, and log of their sizes.")
inverse = lent("linalg", "inv", "Return the inverse matrices of the last two axes.", "inverse")
pinverse = lent("linalg", "pinv", "Return the pseudoinverses of the last two axes.", "pinverse")
matrix_power = lent("linalg", "matrix_power", "Return x multiplied n times by itself.")
matrix_exp = lent("linalg", "matrix_exp", "Return the exponentials of square matrices.")
stft = lent("fft", "stft", "Return the transforms of windows of a signal; see `fft.stft`.")
istft = lent("fft", "istft", "Return the signal of such transforms; see `fft.istft`.")

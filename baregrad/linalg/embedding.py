"""Complex matrices as real ones of twice the size, whose products and inverses are theirs."""

from __future__ import annotations

from baregrad.tensor import Tensor
from baregrad.tensor.complex.structure import real_form


def embedded(x: Tensor) -> Tensor:
    """The real matrices (..., 2m, 2n) of complex ones (..., m, n): [[re, im], [-im, re]] of each.

    Sums, products, inverses and pseudoinverses of them are those of the complex ones, embedded, and
    so is the conjugate transpose; each singular value comes twice.
    """
    return real_form(x.view_as_real())


def extracted(x: Tensor) -> Tensor:
    """The complex matrices that were embedded."""
    rows, columns = x.shape[-2] // 2, x.shape[-1] // 2
    pairs = x.unflatten(-2, (rows, 2)).select(-2, 0).unflatten(-1, (columns, 2))
    return pairs.contiguous().view_as_complex()

"""Eigenvalues and eigenvectors of matrices that need not be symmetric, with gradients.

Names, arguments and results are those of `torch.linalg`; matrices are the last two axes of float32,
float64 or complex tensors.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.dtypes import complex_of
from baregrad.linalg.checking import batch, check_matrices, linked
from baregrad.linalg.decompositions import over_gaps
from baregrad.linalg.solving import solve
from baregrad.linalg.spectral.schur import general_eigen_factor
from baregrad.linalg.spectral.spectra import finite
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad


class Eig(NamedTuple):
    """Complex eigenvalues in no order, and their eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def eig(A: Tensor) -> Eig:  # noqa: N803 - PyTorch's name
    """Return complex eigenvalues (..., n), in no order, and eigenvectors (..., n, n) of any A.

    Vectors are columns of length 1, whose largest element is real. Those of a real A are as exact
    as others: imaginary parts that would be 0 are of the size of rounding. Gradients of the vectors
    need eigenvalues that differ, and a loss that phases do not change. Raises LinAlgError where A
    is not finite or the search for the values does not end; a captured function gives NaN there.
    """
    check_matrices("eig", A, square=True, also_complex=True)
    with no_grad():
        given = finite(batch(A))
        values, vectors = general_eigen_factor(given.cast(complex_of(given.dtype)))
        values = values.reshape(*A.shape[:-1])
        vectors = vectors.reshape(*A.shape)
    made: list[Tensor] = []

    def back(inner: Tensor) -> tuple[Tensor]:
        turned = made[1].mH
        return (solve(turned, inner @ turned),)

    def pull_values(_: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return back(gradient.diag_embed())

    def pull_vectors(found: Tensor, gradient: Tensor) -> tuple[Tensor]:
        values = made[0]
        inner = found.mH @ gradient
        # Vectors keep their length.
        along = inner.diagonal(0, -2, -1).real.unsqueeze(-2)
        inner = inner - found.mH @ (found * along)
        gaps = (values.unsqueeze(-2) - values.unsqueeze(-1)).conj()
        return back(over_gaps(inner, gaps))

    made += [linked(values, (A,), pull_values), linked(vectors, (A,), pull_vectors)]
    return Eig(made[0], made[1])


def eigvals(A: Tensor) -> Tensor:  # noqa: N803
    """Return the eigenvalues of `eig`: (..., n, n) -> (..., n), complex."""
    return eig(A).eigenvalues

"""Systems of equations with triangular matrices, by inverses of blocks and a correction."""

from __future__ import annotations

from baregrad.linalg.blocks import block
from baregrad.linalg.checking import batch, check_equations, check_matrices, linked
from baregrad.linalg.factoring import inverse_lower
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.ops.shapes import stored


@block
def _solve_lower(lower: Tensor, given: Tensor) -> Tensor:
    """x (B, n, k) of lower @ x = given, corrected once by what is left."""
    inverse = inverse_lower(lower)
    found = stored(inverse @ given)
    return found + inverse @ stored(given - lower @ found)


def solve_triangular(
    A: Tensor,  # noqa: N803 - PyTorch's name
    B: Tensor,  # noqa: N803
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """Return X (..., n, k) of A @ X = B, or of X @ A = B without `left`, A (..., n, n).

    A is the upper or the lower triangle of what is given, with ones on its diagonal if it is
    `unitriangular`. A zero on the diagonal gives infinities and NaN.
    """
    check_matrices("solve_triangular", A, B, square=True, also_complex=True)
    if not left:
        turned: Tensor = solve_triangular(
            A.mT, B.mT, upper=not upper, unitriangular=unitriangular
        ).mT
        return turned
    A, B = check_equations(A, B)  # noqa: N806
    with no_grad():
        given, right = batch(A), batch(B)
        # An upper triangle is a lower one with both axes turned round.
        lower = (given.flip(-2, -1) if upper else given).tril(-1 if unitriangular else 0)
        if unitriangular:
            lower = lower + Tensor.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        value = _solve_lower(lower, right.flip(-2) if upper else right)
        value = (value.flip(-2) if upper else value).reshape(*B.shape)

    def pull(found: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        right = solve_triangular(A.mH, gradient, upper=not upper, unitriangular=unitriangular)
        matrix = -(right @ found.mH)
        edge = int(unitriangular)
        return (matrix.triu(edge) if upper else matrix.tril(-edge)), right

    return linked(value, (A, B), pull)

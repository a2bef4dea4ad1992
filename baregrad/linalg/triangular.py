"""Systems of equations with triangular matrices, by inverses of blocks and a correction."""

from __future__ import annotations

from baregrad.linalg.blocks import block
from baregrad.linalg.checking import batch, check_equations, check_matrices, linked
from baregrad.linalg.factoring import inverse_lower, padded
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.ops.shapes import stored

# From so many rows on a triangle is cut into so many blocks of rows: their inverses are of a small
# part of it, and what a product of all of it would do, a block's rows alone do once.
_CUT_FROM = 256
_BLOCKS = 4


@block
def _solve_lower(lower: Tensor, given: Tensor) -> Tensor:
    """x (B, n, k) of lower @ x = given, block by block, each corrected once by what is left."""
    count = lower.shape[1]
    blocks = _BLOCKS if count >= _CUT_FROM else 1
    width = -(-count // blocks)
    lower = stored(padded(lower, width * blocks))
    right = given.pad((0, 0, 0, width * blocks - count))
    found: list[Tensor] = []
    for at in range(blocks):
        rows = slice(at * width, (at + 1) * width)
        corner = stored(lower[:, rows, rows])
        inverse = inverse_lower(corner)
        wanted = right[:, rows]
        if found:
            before = stored(lower[:, rows, : at * width])
            wanted = stored(wanted - before @ stored(Tensor.cat(*found, dim=1)))
        x = stored(inverse @ wanted)
        found.append(stored(x + inverse @ stored(wanted - corner @ x)))
    return (Tensor.cat(*found, dim=1) if blocks > 1 else found[0])[:, :count]


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

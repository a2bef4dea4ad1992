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


def blocks_of(count: int) -> int:
    """Of how many blocks of rows a triangle is."""
    return _BLOCKS if count >= _CUT_FROM else 1


def inverse_corners(lower: Tensor) -> Tensor:
    """Inverses of the blocks on the diagonal of a lower triangle: (B, n, n) -> (B, b, w, w).

    What is above the diagonal is not read. A last block that has fewer rows ends in an identity.
    """
    count = lower.shape[1]
    blocks = blocks_of(count)
    width = -(-count // blocks)
    cut = padded(lower, width * blocks).reshape(lower.shape[0], blocks, width, blocks, width)
    corners = stored(cut.diagonal(0, 1, 3).permute(0, 3, 1, 2))
    stacked = corners.reshape(corners.shape[0] * blocks, width, width)
    return inverse_lower(stacked).reshape(*corners.shape)


def substituted(
    triangle: Tensor, inverses: Tensor, given: Tensor, *, is_upper: bool = False,
    is_corrected: bool = False,
) -> Tensor:
    """x (B, n, k) of triangle @ x = given, block by block, each perhaps corrected once.

    inverses: those of the blocks on the diagonal, (B, b, w, w). A correction is by what is left.
    """
    count = triangle.shape[1]
    blocks, width = inverses.shape[1:3]
    triangle = stored(padded(triangle, width * blocks))
    right = given.pad((0, 0, 0, width * blocks - count))
    found: list[Tensor] = []
    for turn in range(blocks):
        at = blocks - 1 - turn if is_upper else turn
        rows = slice(at * width, (at + 1) * width)
        inverse, wanted = inverses[:, at], right[:, rows]
        if found:
            known = slice((at + 1) * width, None) if is_upper else slice(at * width)
            before = stored(triangle[:, rows, known])
            wanted = stored(wanted - before @ stored(Tensor.cat(*found, dim=1)))
        x = stored(inverse @ wanted)
        if is_corrected:
            x = stored(x + inverse @ stored(wanted - stored(triangle[:, rows, rows]) @ x))
        found = [x, *found] if is_upper else [*found, x]
    return (Tensor.cat(*found, dim=1) if blocks > 1 else found[0])[:, :count]


@block
def _solve_lower(lower: Tensor, given: Tensor) -> Tensor:
    """x (B, n, k) of lower @ x = given, corrected block by block."""
    return substituted(lower, inverse_corners(lower), given, is_corrected=True)


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

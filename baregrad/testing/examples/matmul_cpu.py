"""A matrix product as CPUs like it: packed panels, a tile of accumulators in registers."""

from __future__ import annotations

from baregrad.ir.core.node import Node
from baregrad.kernel import Schedule
from baregrad.kernel.language.schedule import (
    parallelise,
    reorder,
    split,
    stage_input,
    unroll,
    vectorise,
)
from baregrad.testing.examples.levels import (
    Levels,
    contracted,
    kernel_of,
    lowered,
    param,
)


def matmul_tensor(m: int, n: int, k: int) -> Node:
    """(M, K), (N, K) -> (M, N): a times b transposed; b is packed so that n is contiguous."""
    return contracted(param(1, m, k, name="a"), param(2, n, k, name="b"))


def matmul_schedule() -> Schedule:
    """Tiles of 4 x 32 accumulators in registers, one packed panel of b per column of tiles.

    i0 is M, i1 is N, r2 is K. The tile's rows are unrolled, its columns are two vectors of 16; a
    thread packs the panel of its columns once and uses it for every row of tiles.
    """
    return Schedule(
        (
            split("i0", outer="m", mr=4),
            split("i1", outer="n", nu=2, nv=16),
            unroll("mr"),
            unroll("nu"),
            vectorise("nv"),
            reorder("n", "m"),
            parallelise("n"),
            stage_input(2, "r2", "nu", "nv"),
        )
    )


def matmul_levels(m: int = 8, n: int = 64, k: int = 32) -> Levels:
    """The four levels; everything below the tensor level is derived by the compiler's passes."""
    tensor = matmul_tensor(m, n, k)
    return lowered("matmul", tensor, kernel_of(tensor), matmul_schedule())

"""Sums of products that the matrix unit of four warps makes, from shared memory to registers.

64 rows, 16 steps, and as many tiles of 8 columns as lie beside each other in one instruction. It
runs beside its threads: what it reads stays as it is, and its results are not there, until the
group that it is of is waited for. Each warp has 16 of the rows, in the registers that a product of
16 x 8 by one warp has (`mma_sync`). Source: PTX ISA, "wgmma".

Both factors lie in rows of 128 bytes whose chunks are exchanged: rows of 64 steps, or, turned,
panels of 64 rows (or columns) of the factor, each with all steps one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from baregrad.base.errors import ScheduleError
from baregrad.ir.core import index
from baregrad.ir.core.layout import Swizzle
from baregrad.ir.core.node import Node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.axis_table import Axis, AxisTable
from baregrad.kernel.instructions import mma_sync
from baregrad.kernel.instructions.instruction import Instruction
from baregrad.kernel.instructions.mma_sync import FIRST_ID, PRODUCTS, TILE, N, operand_of
from baregrad.kernel.language.schedule import Tensorize, illegal
from baregrad.target.gpu import GpuTarget

INSTRUCTION = "wgmma"
M, DEPTH = 64, 16
WARPS, LANES = 4, 128
# Elements of a row of 128 bytes; and how its chunks of 16 bytes are exchanged.
ROW = 64
EXCHANGED = Swizzle(3, 4, 3)
# Tiles of 8 columns that one instruction has at most.
MOST_TILES = 32
_THREADS = range_node(LANES, FIRST_ID, "lane", "thread")


def has_groups(target: GpuTarget, dtype: str) -> bool:
    """Whether a machine multiplies 16-bit floats of a dtype by groups of four warps."""
    return target.warpgroup_warps == WARPS and any(
        dtype in shape.operands and (shape.m, shape.k) == (M, DEPTH)
        for shape in target.matrix_shapes
    )


def _check(table: AxisTable, step: Tensorize, axes: list[Axis]) -> None:
    """Refuse threads along the lanes of the warps, and what the machine's unit does not sum."""
    if table.matrix or any(other.unit == "thread" for other in table.axes.values()):
        raise illegal(
            step, "the lanes of the warps are taken",
            wanted="groups of warps along thread_y and thread_z, and one such step",
        )
    dtype = operand_of(table.facts)
    if table.gpu is None or dtype is None or not has_groups(table.gpu, dtype.name):
        raise illegal(
            step, "the machine has no such instruction for this sum",
            found=f"products of {dtype or 'something else'}", wanted=WGMMA.needs,
        )
    for axis in axes:
        axis.unit = TILE
    table.matrix = LANES


# Rows, columns, steps.
WGMMA = Instruction(
    INSTRUCTION, "warp", MappingProxyType(dict.fromkeys(PRODUCTS, INSTRUCTION)),
    ((M,), (N,), (DEPTH,)), 1,
    "the result in registers as `registers_of` says, both factors in shared memory, in rows of 64",
    "a GPU of compute capability 9.0, and one sum of products of two float16 or bfloat16, each "
    "cast to float32",
    _check,
)


def is_of_groups(axis: Node) -> bool:
    """Whether an axis is the rows of a product that four warps make."""
    return bool(axis.arg.bind == TILE) and axis.src[0].arg == M


def sums_by_groups(roots: tuple[Node, ...]) -> bool:
    """Whether there is such a product below some nodes."""
    return any(node.op is Ops.RANGE and is_of_groups(node) for node in toposort(*roots))


def lanes_of_tile(axis: Node) -> Node:
    """The threads that have a matrix unit's product, one of whose axes is `axis`."""
    return _THREADS if is_of_groups(axis) else mma_sync.LANES


def product(total: Node, value: Node, own: tuple[Node, ...]) -> Node:
    """The MMA that adds one step of a sum, of one warp or of four, to registers.

    As `mma_sync.product`. Raises ScheduleError where a factor of four warps' lies otherwise.
    """
    node = mma_sync.product(total, value, own)
    rows, columns, steps = node.src[4:7]
    if not is_of_groups(rows):
        return node
    mma = node.arg
    for load, side, major in (
        (node.src[1], rows, mma.a_major), (node.src[2], columns, mma.b_major)
    ):
        _check_rows(load, side, steps, major == "k")
    return node.replace(arg=replace(mma, name=INSTRUCTION, shape=(M, N, DEPTH)))


def _check_rows(load: Node, side: Node, steps: Node, along: bool) -> None:
    """Refuse a copy of which the instruction cannot find the rows."""
    where = load.src[0].arg
    terms, _ = index.flat_terms(load.src[-len(where.shape):], where.shape)
    inner, outer = (steps, side) if along else (side, steps)
    swizzle = None if where.layout is None else where.layout.swizzle
    if (
        where.shape[-1] != ROW or swizzle != EXCHANGED
        or terms.get(inner) != 1 or terms.get(outer) != ROW
    ):
        raise ScheduleError(
            "four warps read factors of rows of 64 elements whose chunks are exchanged",
            found=f"the copy of shape {list(where.shape)}",
            wanted="swizzle=3, and as its last axes 64 steps, or 64 rows or columns ahead of which "
            "the steps are",
        )

"""Sums of products that the matrix unit of four warps makes, from shared memory to registers.

64 rows, 32 bytes of steps, and as many tiles of 8 columns as lie beside each other in one
instruction. It runs beside its threads: what it reads stays as it is, and its results are not
there, until the group that it is of is waited for. Each warp has 16 of the rows, in the registers
that a product of 16 x 8 by one warp has (`mma_sync`). Source: PTX ISA, "wgmma".

Both factors lie in rows of 128 bytes whose chunks are exchanged: rows of steps, or, turned, panels
of 64 rows (or columns) of the factor, each with all steps one after the other. Only 16-bit floats
may be turned, and the first factor of tfloat32, in panels of 32 rows: lanes read their words of
those themselves, and the unit takes them from registers.

Sums of products of 8-bit floats keep 13 bits below the first one of the largest term. So those of
a panel's steps are sums of their own, which threads add up in float32.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from types import MappingProxyType

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import Factors
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.layout import Swizzle
from baregrad.ir.core.node import Node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.axis_table import Axis, AxisTable
from baregrad.kernel.facts.stream_facts import StreamFacts, array_read
from baregrad.kernel.instructions import mma_sync
from baregrad.kernel.instructions.instruction import Instruction, product_of
from baregrad.kernel.instructions.mma_sync import FIRST_ID, FLOATS8, TILE, N
from baregrad.kernel.language.schedule import Tensorize, illegal
from baregrad.target.gpu import GpuTarget

INSTRUCTION = "wgmma"
M = 64
WARPS, LANES = 4, 128
# Bytes of a row, and of an instruction's steps in it; columns of a panel; and how the chunks of 16
# bytes of a row are exchanged.
ROW_NBYTES, STEPS_NBYTES = 128, 32
PANEL = 64
EXCHANGED = Swizzle(3, 4, 3)
# Tiles of 8 columns that one instruction has at most.
MOST_TILES = 32
_THREADS = range_node(LANES, FIRST_ID, "lane", "thread")


PRODUCTS = (
    *mma_sync.PRODUCTS,
    *[Factors(left, right, dtypes.float32) for left, right in permutations(FLOATS8, 2)],
)


def row_of(dtype: DType) -> int:
    """Elements of a row of 128 bytes: the steps of a panel."""
    return ROW_NBYTES // dtype.itemsize


def depth_of(dtype: DType) -> int:
    """Steps of an instruction."""
    return STEPS_NBYTES // dtype.itemsize


def adds_apart(dtype: DType) -> bool:
    """Whether sums of a panel's products are added up by threads, as the unit rounds too much."""
    return dtype in FLOATS8


def suits_stream(facts: StreamFacts) -> bool:
    """Whether groups of warps make the products of a stream: of rows, of whole panels."""
    even = not any(width % PANEL for width in facts.widths)
    return facts.row is not None and facts.over is None and even


def goes_ahead(facts: StreamFacts) -> bool:
    """Whether scores of a stream may be made one tile ahead of what their powers are summed for.

    It is one sum, of powers as they are, of values that are not the keys themselves. All tiles are
    computed.
    """
    if facts.leaves_out:
        return False
    plain = facts.states > 0 and facts.weights == (facts.near,) and len(facts.values) == 1
    if not plain or len(facts.products) != 1:
        return False
    key, value = facts.products[0].right, facts.values[0]
    return _array(key) is not _array(value)


def _array(read: Node) -> Node | None:
    """What is read."""
    found = array_read(read)
    return None if found is None else found.src[0]


def has_groups(target: GpuTarget, dtype: DType) -> bool:
    """Whether a machine multiplies numbers of a dtype by groups of four warps."""
    return target.multiplies_in_groups(dtype.name, depth_of(dtype))


def _check(table: AxisTable, step: Tensorize, axes: list[Axis]) -> None:
    """Refuse threads along the lanes of the warps, and what the machine's unit does not sum."""
    if table.matrix or any(other.unit == "thread" for other in table.axes.values()):
        raise illegal(
            step, "the lanes of the warps are taken",
            wanted="groups of warps along thread_y and thread_z, and one such step",
        )
    what = product_of(table.facts, PRODUCTS)
    is_there = table.gpu is not None and what is not None and has_groups(table.gpu, what.left)
    if not is_there or what is None or axes[2].extent != depth_of(what.left):
        kind = "something else" if what is None else f"{what.left} and {what.right}"
        raise illegal(
            step, "the machine has no such instruction for this sum",
            found=f"{axes[2].extent} products of {kind}", wanted=WGMMA.needs,
        )
    for axis in axes:
        axis.unit = TILE
    table.matrix = LANES


# Rows, columns, steps.
WGMMA = Instruction(
    INSTRUCTION, "warp", MappingProxyType(dict.fromkeys(PRODUCTS, INSTRUCTION)),
    ((M,), (N,), (8, 16, 32)), 1,
    "the result in registers as `registers_of` says, both factors in shared memory, in rows of 128 "
    "bytes",
    "a GPU of compute capability 9.0, and one sum of 16 products of two float16 or bfloat16, of 8 "
    "of tfloat32, or of 32 of 8-bit floats, each cast to float32, or of 32 of int8 or of uint8, "
    "cast to int32",
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
    depth = depth_of(node.src[1].dtype)
    return node.replace(arg=replace(mma, name=INSTRUCTION, shape=(M, N, depth)))


def is_read_by_lanes(left: DType, along: bool) -> bool:
    """Whether lanes read a first factor for the unit, which would take none that lies so.

    along: whether its steps lie together.
    """
    return not along and left is dtypes.tfloat32


def lane_of_turned(lane: Dim) -> tuple[Dim, Dim]:
    """The row and the step of the first number that a lane reads of 64 rows and 8 steps.

    A warp's rows are half a row of 128 bytes, which is a step. Of two neighbours for each lane at
    once, all of a half warp lie in other banks if every other two lanes of a step begin with the
    steps from the fourth on (chunk c of step s lies where chunk c ^ s would).
    """
    own = index.mod(index.floordiv(lane, 4), 8)
    row = index.add(index.mul(index.floordiv(lane, 32), 16), index.mul(own, 2))
    late = index.mod(index.floordiv(own, 2), 2)
    return row, index.add(index.mod(lane, 4), index.mul(late, 4))


def _check_rows(load: Node, side: Node, steps: Node, along: bool) -> None:
    """Refuse a copy of which the instruction cannot find the rows."""
    where, row = load.src[0].arg, row_of(load.dtype)
    terms, _ = index.flat_terms(load.src[-len(where.shape):], where.shape)
    inner, outer = (steps, side) if along else (side, steps)
    if terms.get(index.as_node(index.mod(side, row))) == 1:
        inner = index.as_node(index.mod(side, row))
    swizzle = None if where.layout is None else where.layout.swizzle
    if (
        where.shape[-1] != row or swizzle != EXCHANGED
        or terms.get(inner) != 1 or terms.get(outer) != row
        or (not along and load.dtype.bits != 16 and not is_read_by_lanes(load.dtype, along))
    ):
        raise ScheduleError(
            f"four warps read factors of rows of {row} elements whose chunks are exchanged",
            found=f"the copy of shape {list(where.shape)}",
            wanted=f"swizzle=3, and as its last axes {row} steps, or of 16-bit floats 64 rows or "
            "columns ahead of which the steps are",
        )

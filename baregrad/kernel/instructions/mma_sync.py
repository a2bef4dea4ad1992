"""Sums of products that a warp's matrix unit makes: tiles of 16 x 8 results, over 16 or 32 bytes.

The factors lie in shared memory, the results in the registers of a warp's 32 lanes: lane l has rows
l / 4 and l / 4 + 8 of columns 2 (l % 4) and the next. Whatever the factors are, a lane has the same
bytes of rows of steps. Only 16-bit floats may be turned on their way: the others lie along the sum.
Panels' sums of 8-bit floats are added up by threads, as those of groups of warps are (`wgmma`).
Source: PTX ISA, "mma.sync" and "ldmatrix".
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import NamedTuple

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import Factors
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const, make_node, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Mma
from baregrad.kernel.facts.axis_table import Axis, AxisTable
from baregrad.kernel.instructions.instruction import Instruction, product_of, scaled_bits
from baregrad.kernel.language.schedule import Tensorize, illegal

INSTRUCTION = "mma"
TILE = "tile"
M, N = 16, 8
FLOATS8 = (dtypes.float8_e4m3fn, dtypes.float8_e5m2)
HALVES_PRODUCTS = tuple([
    Factors(dtype, dtype, dtypes.float32) for dtype in (dtypes.float16, dtypes.bfloat16)
])  # fmt: skip
ALONG_PRODUCTS = (
    *[Factors(dtype, dtype, dtypes.int32) for dtype in (dtypes.int8, dtypes.uint8)],
    Factors(dtypes.tfloat32, dtypes.tfloat32, dtypes.float32),
    *[Factors(dtype, dtype, dtypes.float32) for dtype in FLOATS8],
)
PRODUCTS = (*HALVES_PRODUCTS, *ALONG_PRODUCTS)
_ALONG = tuple([product.left for product in ALONG_PRODUCTS])
# Rows of a matrix, and elements of 16 bits of each; bytes of such a row, for which a lane's address
# stands, and of an instruction's steps at most.
ROW, ROW_NBYTES, STEPS_NBYTES = 8, 16, 32
# Beyond the ids of a kernel's own axes, of its copies' and of its threads'.
FIRST_ID = 1 << 23
LANES = range_node(32, FIRST_ID, "lane", "thread")
# The rows of a lane's registers, at a distance of 8. Each has two columns side by side.
HALVES = range_node(2, FIRST_ID + 1, "", "unroll")
# The four lanes that have a row's results, and the two tiles of columns that are 16 steps.
QUAD, DEEP = range_node(4, FIRST_ID + 4, "", "thread"), range_node(2, FIRST_ID + 5, "", "unroll")


def _check_mma(table: AxisTable, step: Tensorize, axes: list[Axis]) -> None:
    """Refuse threads along the lanes of a warp, and what the machine's unit does not sum."""
    if table.matrix or any(other.unit == "thread" for other in table.axes.values()):
        raise illegal(
            step, "the lanes of a warp are taken",
            wanted="warps along thread_y and thread_z, and one such step",
        )
    what, depth = product_of(table.facts, PRODUCTS, scaled_bits(table.gpu)), axes[2].extent
    dtype = None if what is None else what.left
    if table.gpu is None or dtype is None or (dtype.name, depth) not in table.gpu.warp_products:
        raise illegal(
            step, "the machine has no such instruction for this sum",
            found=f"{depth} products of {dtype or 'something else'}", wanted=MMA_SYNC.needs,
        )
    for axis in axes:
        axis.unit = TILE
    table.matrix = table.gpu.warp_lanes


# Rows, columns, steps.
MMA_SYNC = Instruction(
    INSTRUCTION, "warp", MappingProxyType(dict.fromkeys(PRODUCTS, INSTRUCTION)),
    ((M,), (N,), (8, 16, 32)), 1,
    "the result in registers as `registers_of` says, both factors in shared memory, in rows of 16 "
    "bytes",
    "a GPU of compute capability 8.0 (7.5 for 8 steps of float16), and one sum of products of two "
    "float16 or bfloat16, or of 8 of tfloat32, each cast to float32, or of int8 or uint8, cast to "
    "int32; of 8.9 and 12.0 also of 32 of 8-bit floats",
    _check_mma,
)


def product(total: Node, value: Node, own: tuple[Node, ...]) -> Node:
    """The MMA that adds one step of a sum, whose `value` reads shared memory, to registers.

    total: a LOAD of the accumulators. Raises ScheduleError where a factor's rows of 8 elements do
    not lie together.
    """
    (summed,) = [axis for axis in own if axis.arg.bind == TILE]
    factors = value.src if value.op is Ops.MUL else ()
    loads = [side.src[0] if side.op is Ops.CAST else side for side in factors]
    if len(loads) != 2 or not all(map(_is_shared, loads)):
        raise ScheduleError(
            "a matrix unit takes its factors from shared memory",
            wanted="stage_factor of both factors, over all axes of the tile", found=value,
        )
    tiles = [axis for axis in total.ranges if axis.arg.bind == TILE]
    rows, columns = sorted(tiles, key=lambda axis: -int(axis.src[0].arg))
    if rows not in loads[0].ranges:
        loads.reverse()
    # A single warp's lanes are handed matrices, which are turned by 16 bits.
    of_warp = int(rows.src[0].arg) == M
    majors = [
        _major(load, {"k": summed} | ({} if of_warp and load.dtype in _ALONG else {name: side}))
        for load, name, side in zip(loads, "mn", (rows, columns), strict=True)
    ]
    depth = int(summed.src[0].arg)
    left, right = (load.dtype for load in loads)
    info = Mma("mma.sync", (M, N, depth), left, total.dtype, b_major=majors[1], a_major=majors[0],
               beside=None if right is left else right)  # fmt: skip
    true = const(True, dtypes.bool)
    src = (total, loads[0], loads[1], true, rows, columns, summed)
    return make_node(Ops.MMA, dtypes.token, src, info)


def _is_shared(load: Node) -> bool:
    return load.op is Ops.LOAD and load.src[0].op is Ops.ALLOC and (
        load.src[0].arg.space == "shared"
    )


def _major(load: Node, axes: dict[str, Node]) -> str:
    """The axis along which a factor's elements are neighbours, 16 bytes at a time."""
    terms, constant = index.linear(load.src[-1])
    row = ROW_NBYTES // load.dtype.itemsize
    for name, axis in axes.items():
        others = [scale for atom, scale in terms.items() if atom is not axis]
        pitch = load.src[0].arg.shape[-1]
        if terms.get(axis) == 1 and all(s % row == 0 for s in (constant, pitch, *others)):
            return name
        if terms == {index.as_node(index.mod(axis, pitch)): 1} and pitch % row == 0 == constant:
            return name
    raise ScheduleError(
        f"a matrix unit reads rows of {row} elements, 16 bytes to 16 bytes",
        found=f"the copy of shape {list(load.src[0].arg.shape)}",
        wanted=f"an axis of the tile innermost in the copy, rows (and pad) of a multiple of {row}",
    )


def is_exchanged(mma: Node, wide: Node, stores: Iterable[Node]) -> bool:
    """Whether tiles along a vector axis lie one after the other, each with its columns together.

    So they lie in the second factor's rows, or, where those are not of columns, in what is stored:
    tiles may be parted there, as by the end of an image.
    """
    right, columns = mma.src[2], mma.src[5]
    for place in right.src[1:]:
        terms, _ = index.linear(place)
        if columns in terms and wide in terms:
            return bool(terms[wide] == N * terms[columns])
    for store in stores:
        if store.src[0].op is Ops.PARAM or store.src[0].arg.space == "shared":
            found = [index.linear(place)[0] for place in store.src[2:]]
            if any(terms.get(columns) == 1 and terms.get(wide) != 1 for terms in found):
                return True
    return False


def lane_places(mma: Mma, lane: Dim) -> tuple[tuple[Dim, Dim], tuple[Dim, Dim]]:
    """Where a lane's address points in the first factor (row, step) and the second (column, step).

    Lane 8 i + r gives row r of matrix i. Where steps are not neighbours, matrices come turned, and
    a lane's row is one of steps. Of 8-bit floats a row of a matrix is all 16 steps, or the columns
    of two tiles; the first factor's lie in the order in which lanes have those steps.
    """
    low, second = index.mod(lane, ROW), index.mod(index.floordiv(lane, ROW), 2)
    third = index.mod(index.floordiv(lane, 2 * ROW), 2) if is_deep(mma) else 0
    row = ROW_NBYTES // mma.operand.itemsize
    if of_octets(mma) and mma.b_major == "k":
        return (index.add(low, index.mul(second, ROW)), index.mul(third, 2)), (low, 0)
    if mma.a_major == "k":
        a = (index.add(low, index.mul(second, ROW)), index.mul(third, row))
    else:
        a = (index.mul(second, ROW), index.add(low, index.mul(third, ROW)))
    half = second if is_deep(mma) else 0
    if mma.b_major == "k":
        return a, (low, index.mul(half, row))
    return a, (0, index.add(low, index.mul(half, ROW)))


def is_deep(mma: Mma) -> bool:
    """Whether an instruction has 32 bytes of steps: two rows of matrices."""
    return mma.shape[2] * mma.operand.itemsize == STEPS_NBYTES


def of_octets(mma: Mma) -> bool:
    """Whether the second factor of a warp's 16-bit floats is one of 8-bit floats."""
    return mma.beside is not None and mma.operand.bits == 2 * mma.beside.bits


def paired_axis(mma: Mma, total: Node, left: Node, beside: int) -> Node | None:
    """The axis along which two tiles of the second factor come by one instruction, if one has.

    That of tiles beside each other, or the innermost unrolled one of an even extent that results
    are along and the first factor is not. Lanes 16 to 31 then point to the second tile of each two.
    """
    if not is_deep(mma):
        return None
    if beside > 1:
        return registers_of(0, beside).alone
    axes = [
        axis for axis in total.ranges - left.ranges
        if axis.arg.bind == "unroll" and axis is not HALVES and int(axis.src[0].arg) % 2 == 0
    ]  # fmt: skip
    return max(axes, key=lambda axis: int(axis.arg.id), default=None)


def paired_place(mma: Mma, axis: Node, lane: Dim) -> Node:
    """The tile along a `paired_axis` that a lane points to."""
    first = index.mul(index.floordiv(axis, 2), 2)
    if of_octets(mma):
        # Turned ones have columns of both tiles in each row, from the first of them on.
        second = index.floordiv(lane, ROW) if mma.b_major == "k" else 0
    else:
        second = index.floordiv(lane, 2 * ROW)
    return index.as_node(index.add(first, index.mod(second, 2)))


class LaneRegisters(NamedTuple):
    """The results in a lane's registers, over HALVES and the vector `columns`.

    Both its columns of a tile are a vector. With `beside` tiles along a vector axis it is those
    of all of them: first the one column of each, then the other. So where the tiles' columns take
    turns in memory a lane's vector lies together; where tiles lie one after the other it has all
    columns of one, once lanes have exchanged theirs. row, column, tile: places of the vector's
    elements. alone: in place of the vector's axis where a tile stands by itself.
    """

    columns: Node
    row: Node
    column: Node
    tile: Node
    alone: Node


def registers_of(
    lane: Dim, beside: int = 1, exchanged: bool = False, warps: int = 1, paired: bool = False
) -> LaneRegisters:
    """The registers of a lane that has `beside` tiles in each vector.

    exchanged: of four tiles, whose columns the four lanes of a row have exchanged. warps: those
    that have 16 rows of a tile each, one after the other. paired: both rows of a lane are
    neighbours, as it reads them so.
    """
    warp, lane = (index.floordiv(lane, 32), index.mod(lane, 32)) if warps > 1 else (0, lane)
    columns = range_node(2 * beside, FIRST_ID + 2, "", "vector")
    each, apart = (2, 1) if paired else (1, ROW)
    row = index.add(index.mul(index.floordiv(lane, 4), each), index.mul(HALVES, apart))
    row = index.as_node(index.add(row, index.mul(warp, M)))
    first = index.mul(index.mod(lane, 4), 2)
    column = index.as_node(index.add(first, index.floordiv(columns, beside)))
    tile = index.as_node(index.mod(columns, beside))
    if exchanged:
        column, tile = columns, index.as_node(index.mod(lane, beside))
    return LaneRegisters(
        columns, row, column, tile, range_node(beside, FIRST_ID + 3, "", "unroll")
    )  # fmt: skip

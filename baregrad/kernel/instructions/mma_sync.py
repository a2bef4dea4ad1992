"""Sums of products that a warp's matrix unit makes: tiles of 16 x 8 results, over 8 or 16 steps.

The factors lie in shared memory, the results in the registers of a warp's 32 lanes: lane l has rows
l / 4 and l / 4 + 8 of columns 2 (l % 4) and the next. Source: PTX ISA, "mma.sync" and "ldmatrix".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const, make_node, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Mma
from baregrad.kernel.facts.analysis import Facts, is_read
from baregrad.kernel.language.schedule import Tensorize

if TYPE_CHECKING:
    from baregrad.kernel.applying.axes import AxisTable

INSTRUCTION = "mma"
TILE = "tile"
M, N = 16, 8
# The first compute capability that multiplies a dtype over so many steps at once.
SINCE: MappingProxyType[tuple[DType, int], tuple[int, int]] = MappingProxyType({
    (dtypes.float16, 8): (7, 5),
    (dtypes.float16, 16): (8, 0),
    (dtypes.bfloat16, 8): (8, 0),
    (dtypes.bfloat16, 16): (8, 0),
})  # fmt: skip
# Elements of 16 bits that a lane's address stands for: a row of a matrix of 8 x 8.
ROW = 8
# Beyond the ids of a kernel's own axes, of its copies' and of its threads'.
FIRST_ID = 1 << 23
LANES = range_node(32, FIRST_ID, "lane", "thread")
# The registers of a lane: two rows apart, two columns side by side.
HALVES, PAIR = range_node(2, FIRST_ID + 1, "", "unroll"), range_node(2, FIRST_ID + 2, "", "vector")


def check_mma(table: AxisTable, step: Tensorize) -> None:
    """Bind a tile's axes to a warp's matrix unit. Raises ScheduleError where it cannot do them."""
    if table.gpu is None:
        raise ScheduleError(f"{step} is not legal: a CPU has no matrix unit", wanted="dot4")
    if len(set(step.axes)) != 3 or len(step.axes) != 3:
        raise ScheduleError(
            f"{step} is not legal", found=f"{len(step.axes)} axes", wanted="rows, columns, summed"
        )
    axes = [table.axis(name, step) for name in step.axes]
    for axis, sizes in zip(axes, ((M,), (N,), (8, 16)), strict=True):
        free = axis.unit == "loop" and not axis.serial and axis.name not in table.staged
        if axis.extent not in sizes or not free or axis.reduced != (axis is axes[2]):
            raise ScheduleError(
                f"{step} is not legal: an axis is no part of the size that the unit does",
                found=f"{axis.name} of {axis.extent} on {axis.unit}",
                wanted="loops of 16 (rows), 8 (columns) and 8 or 16 (summed), not staged yet",
            )
    if table.matrix or any(other.unit == "thread" for other in table.axes.values()):
        raise ScheduleError(
            f"{step} is not legal: the lanes of a warp are taken",
            wanted="warps along thread_y and thread_z, and one such step",
        )
    depth = axes[2].extent
    dtype = operand_of(table.facts)
    since = SINCE.get((dtype, depth)) if dtype is not None and isinstance(depth, int) else None
    if since is None or table.gpu.capability < since:
        raise ScheduleError(
            f"{step} is not legal: {table.gpu.name} has no such instruction for this sum",
            found=f"{depth} products of {dtype or 'something else'}",
            wanted=f"compute capability {since[0]}.{since[1]}" if since else
            "one sum of products of two float16 or bfloat16, each cast to float32",
        )
    for axis in axes:
        axis.unit, axis.serial = TILE, "an instruction does all of the axis"
    table.matrix = True


def operand_of(facts: Facts) -> DType | None:
    """The 16-bit dtype of the factors of a kernel's only sum; None where it is no such sum."""
    if len(facts.reductions) != 1 or len(facts.outs) != 1:
        return None
    node = facts.reductions[0].node
    value = node.src[0]
    if node.arg.monoid.primitive is not Ops.ADD or value.op is not Ops.MUL:
        return None
    if value.dtype is not dtypes.float32 or any(side.op is not Ops.CAST for side in value.src):
        return None
    reads = [side.src[0] for side in value.src]
    plain = [read.src[1] if read.op is Ops.GUARD else read for read in reads]
    if not all(map(is_read, plain)) or reads[0].dtype is not reads[1].dtype:
        return None
    return reads[0].dtype if (reads[0].dtype, M) in SINCE else None


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
            wanted="stage_input of both inputs, over all axes of the tile", found=value,
        )
    tiles = [axis for axis in total.ranges if axis.arg.bind == TILE]
    rows, columns = sorted(tiles, key=lambda axis: -int(axis.src[0].arg))
    if rows not in loads[0].ranges:
        loads.reverse()
    majors = [_major(load, {"k": summed, name: axis})
              for load, name, axis in zip(loads, "mn", (rows, columns), strict=True)]
    depth = int(summed.src[0].arg)
    info = Mma("mma.sync", (M, N, depth), loads[0].dtype, dtypes.float32,
               b_major=majors[1], a_major=majors[0])  # fmt: skip
    true = const(True, dtypes.bool)
    src = (total, loads[0], loads[1], true, rows, columns, summed)
    return make_node(Ops.MMA, dtypes.token, src, info)


def _is_shared(load: Node) -> bool:
    return load.op is Ops.LOAD and load.src[0].op is Ops.ALLOC and (
        load.src[0].arg.space == "shared"
    )


def _major(load: Node, axes: dict[str, Node]) -> str:
    """The axis along which a factor's elements are neighbours, eight at a time."""
    terms, constant = index.linear(load.src[-1])
    for name, axis in axes.items():
        others = [scale for atom, scale in terms.items() if atom is not axis]
        pitch = load.src[0].arg.shape[-1]
        if terms.get(axis) == 1 and all(s % ROW == 0 for s in (constant, pitch, *others)):
            return name
    raise ScheduleError(
        "a matrix unit reads rows of 8 elements, 16 bytes to 16 bytes",
        found=f"the copy of shape {list(load.src[0].arg.shape)}",
        wanted="an axis of the tile innermost in the copy, rows (and pad) of a multiple of 8",
    )


def lane_places(mma: Mma, lane: Dim) -> tuple[tuple[Dim, Dim], tuple[Dim, Dim]]:
    """Where a lane's address points in the first factor (row, step) and the second (column, step).

    Lane 8 i + r gives row r of matrix i. Where steps are not neighbours, matrices come turned, and
    a lane's row is one of steps.
    """
    low, second = index.mod(lane, ROW), index.mod(index.floordiv(lane, ROW), 2)
    third = index.mod(index.floordiv(lane, 2 * ROW), 2) if mma.shape[2] == 16 else 0
    if mma.a_major == "k":
        a = (index.add(low, index.mul(second, ROW)), index.mul(third, ROW))
    else:
        a = (index.mul(second, ROW), index.add(low, index.mul(third, ROW)))
    half = second if mma.shape[2] == 16 else 0
    if mma.b_major == "k":
        return a, (low, index.mul(half, ROW))
    return a, (0, index.add(low, index.mul(half, ROW)))


def registers_of(lane: Dim) -> tuple[Node, Node]:
    """The row and column of a lane's results, over its registers' axes."""
    row = index.add(index.floordiv(lane, 4), index.mul(HALVES, ROW))
    column = index.add(index.mul(index.mod(lane, 4), 2), PAIR)
    return index.as_node(row), index.as_node(column)

"""Products of groups of four warps as instructions: one for tiles of columns beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Machine
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.instructions.mma_sync import DEEP, HALVES, N, registers_of
from baregrad.kernel.instructions.wgmma import MOST_TILES, PANEL, is_read_by_lanes, row_of
from baregrad.kernel.linearise.tile_axes import Point
from baregrad.kernel.linearise.values import Values

Registers = tuple[Node, ...]
# Tiles of columns in a panel whose rows are one step of each.
PANEL_TILES = PANEL // N


def multiply_group(values: Values, node: Node) -> None:
    """An MMA over the steps of a panel: a group of instructions, one for each step and 64 rows.

    The columns of an instruction are those of a copy in their order there.
    """
    left, right = node.src[1:3]
    outer = node.src[7:]
    rows = _axes(values, left, outer)
    tiles = _axes(values, right, outer)
    here = values.point
    points = values.tiles.points(tiles, here)
    points = sorted(
        points, key=lambda point: _place(values, right, {**point, **dict.fromkeys(outer, 0)})
    )
    # As few instructions as can be, and those of one size.
    count = -(-len(points) // MOST_TILES)
    if len(points) % count:
        raise CompilerBug("columns that are no instructions of one size", found=len(points))
    size = len(points) // count
    known: dict[Any, Registers] = {}
    if left.op is Ops.CAST:
        # What threads round themselves they do ahead of all products.
        for point in values.tiles.points((*outer, *rows), here):
            values.point = point
            rounded(values, known, left)
    elif is_read_by_lanes(left.dtype, node.arg.a_major == "k"):
        for point in values.tiles.points((*outer, *rows), here):
            values.point = point
            _read_by_lanes(values, known, left)
        # One lane says for all that a slot was read.
        values.scopes.append(_plain("bar.warp"))
    values.scopes.append(_plain("wgmma.fence"))
    keep = bool(node.src[3].arg)
    for number, step in enumerate(values.tiles.points(outer, here)):
        for row in values.tiles.points(rows, here):
            for first in range(0, len(points), size):
                beside = points[first : first + size]
                _multiply(values, node, {**step, **row}, beside, keep or number > 0, known)
    values.scopes.append(_plain("wgmma.commit"))
    values.point = {}
    values.scopes.end_statement()


def _plain(name: str) -> Node:
    return make_node(Ops.MACHINE, dtypes.token, (), Machine(name))


def _axes(values: Values, factor: Node, outer: Sequence[Node]) -> tuple[Node, ...]:
    """The unrolled axes of a factor, but those of the steps."""
    inside = (*outer, HALVES, DEEP)
    return tuple([axis for axis in values.tiles.axes_of(factor.ranges) if axis not in inside])


def rounded(values: Values, known: dict[Any, Registers], factor: Node) -> Registers:
    """The first factor's words at the present point, of results that are in registers."""
    (load,) = factor.src
    axes = [axis for axis in values.tiles.axes_of(load.ranges) if axis not in (HALVES, DEEP)]
    key = (factor, tuple([values.point[axis] for axis in axes]))
    found = known.get(key)
    if found is None:
        address = values.memory.addresses[load]
        words = []
        for deep in range(2):
            for half in range(2):
                pair = values.register(
                    load.src[0], address.at({**values.point, DEEP: deep, HALVES: half})
                )
                word = values.fresh_register(dtypes.uint32, 1)
                what = Machine("cvt.pack", (factor.dtype.name,))
                values.scopes.append(make_node(Ops.MACHINE, dtypes.token, (pair, word), what))
                words.append(word)
        found = known[key] = tuple(words)
    return found


def _read_by_lanes(values: Values, known: dict[Any, Registers], load: Node) -> Registers:
    """The first factor's words at the present point, of shared memory where it lies across."""
    axes = values.tiles.axes_of(load.ranges)
    key = (load, tuple([values.point[axis] for axis in axes]))
    found = known.get(key)
    if found is None:
        offset, at = values.offset(values.memory.addresses[load])
        words = tuple([values.fresh_register(dtypes.uint32, 1) for _ in range(4)])
        src, what = (load.src[0], offset, *words), Machine("ldmatrix.across", (at,))
        values.scopes.append(make_node(Ops.MACHINE, dtypes.token, src, what))
        found = known[key] = words
    return found


def _multiply(
    values: Values, node: Node, where: Point, points: Sequence[Point], keep: bool,
    known: dict[Any, Registers],
) -> None:  # fmt: skip
    """One instruction: 64 rows and a step at a point, and the tiles of columns at some others.

    keep: it adds to what is there. known: words of the first factor that are made already.
    """
    total, left, right = node.src[:3]
    mma = node.arg
    beside = int(node.src[5].src[0].arg) // 2
    alone = registers_of(0, beside).alone
    places = [_place(values, right, {**where, **point}) for point in points]
    panel = _panel(places, mma.b_major != "k", row_of(right.dtype))
    by_lanes = is_read_by_lanes(left.dtype, mma.a_major == "k")
    operands: list[Node] = []
    starts = []
    for load, point in ((left, where), (right, {**where, **points[0]})):
        values.point = point
        if load.op is Ops.CAST:
            operands += rounded(values, known, load)
            starts.append(0)
            continue
        if load is left and by_lanes:
            operands += _read_by_lanes(values, known, load)
            starts.append(0)
            continue
        offset, at = values.offset(values.memory.addresses[load])
        operands += [load.src[0], offset]
        starts.append(at)
    accumulators = values.memory.addresses[total]
    registers = [
        values.register(total.src[0], accumulators.at({**where, **point, HALVES: half}))
        for point in points for half in range(2)
    ]
    turned = int(mma.a_major != "k"), int(mma.b_major != "k")
    tiles = [point.get(alone, 0) for point in points]
    lanes = beside, int(mma.exchanged), int(keep)
    kinds = mma.operand.name, (mma.beside or mma.operand).name
    sizes = (*kinds, *turned, panel, *starts, *lanes, *tiles)
    what = Machine("wgmma.held" if left.op is Ops.CAST or by_lanes else "wgmma", sizes)
    values.scopes.append(make_node(Ops.MACHINE, dtypes.token, (*operands, *registers), what))


def _place(values: Values, load: Node, point: Point) -> int:
    """Where a factor is read at a point, from where no unrolled axis moves it on."""
    address = values.memory.addresses[load]
    if not address.points:
        return address.at(point)
    # Columns go on in the next panel.
    values.point = point
    rest, more = values.at_point(address.points)
    if rest:
        raise CompilerBug("columns that do not lie as a matrix unit reads them", found=rest)
    return address.at(point) + more


def _panel(places: Sequence[int], turned: bool, row: int) -> int:
    """Elements from a panel of columns to the next one, if the tiles lie as instructions read them.

    Tiles of columns are eight rows after eight; turned, they are side by side in panels, of which
    the last may have more than are read.
    """
    first, *_ = places
    panel = places[PANEL_TILES] - first if turned and len(places) > PANEL_TILES else 0
    wanted = [
        first + (
            number // PANEL_TILES * panel + number % PANEL_TILES * N if turned else number * N * row
        )
        for number in range(len(places))
    ]  # fmt: skip
    if list(places) != wanted or (turned and first % row):
        raise CompilerBug("columns that do not lie as a matrix unit reads them", found=places)
    return panel

"""Tiles of a stream's inputs in shared memory, as matrix units read them.

A warp reads matrices of 8 x 8, of rows that lie a chunk further apart than they are long. Groups of
four warps read rows of 128 bytes whose chunks are exchanged: a panel for each 64 elements.

Keys and values of 8-bit floats may lie there as they do elsewhere: lanes get four neighbours of a
row where they would get two, and widen them. So a lane's four steps of a product are neighbours,
two for each half of an instruction's steps, and rows lie there in that order (`in_quads`). Of
values a lane gets two columns side by side, one for each of two tiles of columns (`in_panel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from baregrad.dtypes import DType
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, Reduce
from baregrad.ir.core.index import Dim
from baregrad.ir.core.layout import row_major
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, cast, extent_of, make_node, range_node, rebuild
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.stream_facts import CHUNK_NBYTES, MaskLimit, StreamFacts, lies_together
from baregrad.kernel.instructions import mma_sync, wgmma
from baregrad.kernel.instructions.mma_sync import N
from baregrad.kernel.instructions.wgmma import EXCHANGED, PANEL
from baregrad.kernel.language.schedule import StreamTiles, illegal
from baregrad.kernel.loops.loop_pieces import guarded, load
from baregrad.target import AnyTarget

# Steps of a product, and neighbours of 16 bits in a lane's register.
DEPTH, PAIR = 16, 2


# Beyond the ids of a kernel's own axes and of its copies' axes.
FIRST_ID = 1 << 22


@dataclass(slots=True)
class Panel:
    """An input's tile in shared memory: `read` along rows or keys, and across the other axis.

    quads: columns lie there in the order in which steps of 8-bit floats are multiplied.
    """

    array: Node
    read: Node
    across: Node
    quads: bool = False

    @property
    def width(self) -> int:
        """Elements across."""
        return width_of(self.across)

    @property
    def count(self) -> int:
        """Rows or keys."""
        rows: int = self.array.arg.shape[-2]
        return rows

    @property
    def lanes(self) -> int:
        """Neighbours that a thread copies at once."""
        count = chunk_of(self.array.dtype)
        if not lies_together(self.read, self.across, count):
            return 1
        return PAIR if self.quads else count

    def places(self, at: Dim, *column: Dim) -> tuple[Dim, ...]:
        """Where an element lies: its row, and across its column, or its panel and column there."""
        if self.array.arg.layout is None:
            (place,) = column
            return at, in_quads(place) if self.quads else place
        if len(column) == 1:
            column = index.floordiv(column[0], PANEL), index.mod(column[0], PANEL)
        return column[0], at, column[1]


def width_of(across: Node) -> int:
    """Elements of an axis."""
    width = extent_of(across)
    assert isinstance(width, int)
    return width


def panel_array(
    number: int, count: int, width: int, dtype: DType, slots: int, is_exchanged: bool
) -> Node:
    """The ALLOC of a tile of so many rows; `number` distinguishes arrays."""
    name = f"s{number}"
    if not is_exchanged:
        where = Alloc(number, "shared", (count, width + chunk_of(dtype)), depth=slots, name=name)
        return make_node(Ops.ALLOC, dtype, (), where)
    shape = (width // PANEL, count, PANEL)
    plain = row_major(dtype.bits, ("panel", shape[0]), ("row", count), ("column", PANEL))
    layout = replace(plain, swizzle=EXCHANGED)
    where = Alloc(number, "shared", shape, layout, slots, name)
    return make_node(Ops.ALLOC, dtype, (), where)


def chunk_of(dtype: DType) -> int:
    """Elements of a chunk."""
    return CHUNK_NBYTES // dtype.itemsize


def in_quads(column: Dim) -> Dim:
    """Where a column lies among the steps of instructions, whose lanes have four neighbours each.

    The first two of four are steps of an instruction's first half, the others of its second half.
    """
    pair = index.floordiv(column, PAIR)
    half, quad = index.mod(pair, 2), index.mod(index.floordiv(pair, 2), DEPTH // 4)
    first = index.mul(index.floordiv(pair, DEPTH // PAIR), DEPTH)
    place = index.add(first, index.add(index.mul(half, DEPTH // 2), index.mul(quad, PAIR)))
    return index.add(place, index.mod(column, PAIR))


def whole(places: Sequence[Dim]) -> tuple[Node, ...]:
    """Places as nodes."""
    return tuple([index.as_node(place) for place in places])


def flat(array: Node) -> Node:
    """A PARAM as one axis."""
    shape = (index.as_dim(index.product(array.shape)),)
    return make_node(Ops.PARAM, array.dtype, (), array.arg._replace(shape=shape))


def read_where(read: Node, places: dict[Node, Dim], there: Node, dtype: DType) -> Node:
    """An element of an input in some dtype, at places along some axes, where it is there, else 0.

    Places that are read as well are read only where all other conditions hold.
    """
    read = substitute(read, {axis: index.as_node(place) for axis, place in places.items()})
    conditions = list[Node]()
    while read.op is not Ops.INDEX:
        if read.op is Ops.GUARD:
            conditions += index.conjuncts(read.src[0])
        read = read.src[-1]
    there = index.both(there, *[one for one in conditions if not one.mask & Ops.INDEX.bit])

    def loaded(node: Node) -> Node | None:
        if node.op is not Ops.INDEX:
            return index.resimplify(node)
        array, *indices = node.src
        place = index.flatten(indices, array.shape)
        return guarded(there, load(flat(array), whole((place,))))

    array, *indices = read.src
    at = index.flatten([rebuild(place, loaded) for place in indices], array.shape)
    others = [rebuild(one, loaded) for one in conditions if one.mask & Ops.INDEX.bit]
    found = guarded(index.both(there, *others), load(flat(array), whole((at,))))
    return found if found.dtype is dtype else cast(found, dtype)


def axis_of(number: int, extent: Dim, bind: str, name: str = "") -> Node:
    """An axis of a stream's kernel."""
    return range_node(extent, FIRST_ID + number, name, bind)


def rows_of(step: StreamTiles) -> int:
    """Rows of a tile."""
    return wgmma.M if step.instruction == wgmma.INSTRUCTION else mma_sync.M


def tiles_of(wide: int, groups: bool) -> tuple[Node, ...]:
    """The axes of tiles of columns of sums: those of each panel of groups of warps."""
    if not groups:
        return (axis_of(31, wide // N, "unroll", "d"),)
    tiles = PANEL // N
    return axis_of(31, wide // PANEL, "unroll", "p"), axis_of(32, tiles, "unroll", "d")


def steps_of(depths: Sequence[int], place: int, groups: bool) -> tuple[Node, ...]:
    """The axes of the steps of a product of scores, which those as deep have in common."""
    number = 3 * depths.index(depths[place])
    if not groups:
        return (axis_of(10 + number, depths[place] // DEPTH, "unroll", "ko"),)
    panels = axis_of(9 + number, depths[place] // PANEL, "unroll", "kp")
    return panels, axis_of(10 + number, PANEL // DEPTH, "unroll", "ko")


def in_panel(wide: Sequence[Node], own: Node, octets: bool = False) -> tuple[Node, ...]:
    """A column of sums, or its panel and its column there, of the axes of tiles and of its own.

    octets: of values of 8-bit floats, of which two tiles take turns.
    """
    *panel, tile = wide
    if octets:
        first = index.mul(index.floordiv(tile, 2), 2 * N)
        place = index.add(index.mul(own, 2), index.mod(tile, 2))
        return (*panel, index.as_node(index.add(first, place)))
    return (*panel, index.as_node(index.add(index.mul(tile, N), own)))


def folded(op: Op, value: Node, *axes: Node) -> Node:
    """A value in float32 folded over axes."""
    return Node(Ops.REDUCE, value.dtype, (value, *axes), Reduce(primitive(op, value.dtype)))


class BlockAxes(NamedTuple):
    """The axes of blocks outside of the loop over rows and inside, each the innermost first.

    places: where a block is along each axis of the batch, in terms of them.
    """

    outside: tuple[Node, ...]
    inside: tuple[Node, ...]
    places: tuple[Node, ...]


def block_axes(facts: StreamFacts, step: StreamTiles) -> BlockAxes:
    """The axes of a batch, of whose innermost ones `step.beside` members are inside."""
    left = step.beside
    outside, inside, places = list[Node](), list[Node](), list[Node]()
    for axis in reversed(facts.batch):
        extent, place = extent_of(axis), axis.replace(arg=axis.arg._replace(bind="grid"))
        if left == 1:
            outside.append(place)
        elif isinstance(extent, int) and left % extent == 0:
            inside.append(place)
            left //= extent
        elif isinstance(extent, int) and extent % left == 0:
            inside.append(axis_of(5, left, "grid", "beside"))
            outside.append(axis_of(4, extent // left, "grid", "batch"))
            place = index.as_node(index.add(index.mul(outside[-1], left), inside[-1]))
            left = 1
        else:
            break
        places.append(place)
    if left != 1:
        raise illegal(
            step, "the batch has no so many members beside each other", found=step.beside,
            wanted="the product of its innermost extents, or a divisor of it",
        )
    return BlockAxes(tuple(outside), tuple(inside), tuple(reversed(places)))


def limits_of(facts: StreamFacts, blocks: tuple[Node, ...]) -> tuple[MaskLimit, ...]:
    """The limits of masks by places, over the axes of blocks."""
    of_block = dict(zip(facts.batch, blocks, strict=True))
    return tuple([
        limit._replace(
            constant=index.as_dim(substitute(index.as_node(limit.constant), of_block))
        )
        for limit in facts.limits
    ])


def check_stream(step: StreamTiles, facts: StreamFacts, target: AnyTarget) -> None:
    """Raise ScheduleError where a machine, or a stream, has no such tiles."""
    dtype = facts.products[0].left.dtype
    if target.kind != "gpu" or (dtype.name, DEPTH) not in target.warp_products:
        raise illegal(step, "the machine has no such instruction", found=dtype)
    groups = step.instruction == wgmma.INSTRUCTION
    if not groups and step.instruction != mma_sync.INSTRUCTION:
        raise illegal(step, "its tiles are those of a warp or of four", found=step.instruction)
    if step.keys % DEPTH or any(width % DEPTH for width in facts.widths):
        raise illegal(step, "keys and widths are multiples of 16", found=[step.keys, *facts.widths])
    if step.shares > 1 and (groups or step.warps > 1 or not facts.shares_keys):
        raise illegal(
            step, "single warps share keys of a maximum and sums of powers and values",
            found=step.shares,
        )
    threads = step.warps * step.shares * wgmma.LANES // (1 if groups else wgmma.WARPS)
    if threads > target.threads_per_block:
        raise illegal(
            step, f"{target.name} has no block of so many threads", found=threads,
            wanted=f"at most {target.threads_per_block}",
        )
    if groups and not (wgmma.has_groups(target, dtype) and wgmma.suits_stream(facts)):
        raise illegal(
            step, "groups of warps take rows of 64 elements, of keys that all pass",
            found=facts.widths,
        )
    if step.ahead and not (step.ahead == 1 and groups and wgmma.goes_ahead(facts)):
        raise illegal(
            step, "scores are one tile ahead of one sum, by groups of warps", found=step.ahead
        )

"""The last tiles of a persistent grid, cut along what is summed, so that all blocks sum as long.

Where blocks take whole tiles in turns and a last round has few, most blocks wait for that one. Here
as many blocks as the round has tiles do the heads of these, all as long. What is left of them,
tails, is one row of panels, of which all other blocks have stretches as long as a head; then all do
their whole tiles. Who has the head of a tile makes its results: it waits for the sums of all who
have some of its tail, which lie in memory of the kernel's own, and adds them up in the order of
panels. What is added to what depends on the sizes alone. All heads are at the same panels at the
same time, and so mostly are tails: what neighbours read alike meets in the second cache. Stretches
of one row of all panels, without heads, took an H200 138 us for 1,536 x 1,536 sums of 16,384 where
these take 126, and whole tiles 137 to 143.

What is true of it: (1) who has tails waits for nobody; (2) who has a head has a higher number, and
the machine begins blocks of lower ones no later; (3) a warp waits for the same warp of other
blocks, and lanes read what their like wrote; (4) whoever waited for a flag lowers it, so the next
launch finds all of them down; launches of one kernel never overlap, as a runtime sees that it has
variables (`Program.keeps_variables`), and these begin anew after a fault. The parts of tails have
places of their own: of two that follow each other in the row either the tile is the next one or the
block, so a part's is the sum of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from baregrad.base.errors import CompilerBug, ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo
from baregrad.ir.core.axes import Var
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, alu, extent_of, make_node, range_node, rebuild, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import Pipe, is_box
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.gpu.barriers import THREAD, WARP, sequence
from baregrad.kernel.gpu.boxes import ENGINE, as_box

# Panels that take as long as a part's sums do to be stored, or read.
HANDED = 4
# Beyond the ids of all other arrays and axes: sums that are handed over, and flags that say so.
SUMS_ID, FLAGS_ID, OTHERS_ID = (1 << 25) + 2, (1 << 25) + 3, 1 << 27


def check_cut(table: AxisTable) -> None:
    """Raise ScheduleError where tiles are to be cut whose panels no warps of their own copy."""
    if not table.cut:
        return
    boxes = any(step.engine == ENGINE for step in table.pipelines)
    if not boxes or table.teams > 1 or table.cluster > 1 or table.staged_outputs:
        raise ScheduleError(
            "tiles are cut between blocks whose panels an engine copies for each by itself",
            wanted=f"pipeline(..., engine={ENGINE!r}), one team, no clusters and no stage_output",
            hint="persist(...) without `cut`",
        )


@dataclass(frozen=True, slots=True)
class CutTiles:
    """The turns of a block: heads or tails of the tiles that are cut, then whole ones.

    block: its number among `blocks`. tiles: those that are cut, behind `whole` rounds of others.
    panels: of each tile.
    """

    block: Node
    blocks: int
    tiles: int
    whole: int
    panels: int

    @property
    def head(self) -> int:
        """Panels of a tile's head: as many as each block has, but for what parts take of tails.

        Who has a head reads blocks / tiles of them, the others store blocks / sharers.
        """
        parts = HANDED * (self.tiles - self.sharers) // self.tiles
        found = self.tiles * self.panels // self.blocks + parts
        most = self.panels - -(-self.sharers // self.tiles)
        return max(min(found, most), 1)

    @property
    def tail(self) -> int:
        """Panels of a tile's tail."""
        return self.panels - self.head

    @property
    def sharers(self) -> int:
        """Blocks that have tails: the first ones."""
        return self.blocks - self.tiles

    def _stretch(self, block: Dim) -> Dim:
        """Where the stretch of a block begins in the row of all tails."""
        return index.floordiv(index.mul(block, self.tiles * self.tail), self.sharers)

    def _sharer(self, panel: Dim) -> Dim:
        """The block whose stretch has a panel of the row of all tails."""
        ends = index.sub(index.mul(index.add(panel, 1), self.sharers), 1)
        return index.floordiv(ends, self.tiles * self.tail)

    @property
    def _begin(self) -> Dim:
        return self._stretch(self.block)

    @property
    def _end(self) -> Dim:
        return self._stretch(index.add(self.block, 1))

    @property
    def _first(self) -> Dim:
        """The first tile of whose tail the block has some."""
        return index.floordiv(self._begin, self.tail)

    def _of_block(self, tails: Dim, head: Dim) -> Dim:
        """One of two numbers, by whether the block has tails or a head."""
        return _chosen(index.less(self.block, self.sharers), tails, head)

    @property
    def _parts(self) -> Dim:
        """How many tiles the block has a head or a part of a tail of."""
        last = index.floordiv(index.sub(self._end, 1), self.tail)
        return self._of_block(index.add(index.sub(last, self._first), 1), 1)

    @property
    def turns(self) -> Dim:
        """How many turns the block has."""
        return index.add(self._parts, self.whole)

    def _of_turn(self, turn: Node, cut: Dim, whole: Dim) -> Dim:
        """One of two numbers, by whether a turn is that of a tile that is cut."""
        return _chosen(index.less(turn, self._parts), cut, whole) if self.whole else cut

    def part(self, turn: Node) -> Dim:
        """Which of the tiles that are cut a turn has a part of."""
        tails = index.add(self._first, turn)
        found = self._of_block(tails, index.sub(self.block, self.sharers))
        return index.minimum(index.maximum(found, 0), self.tiles - 1)

    def tile(self, turn: Node) -> Dim:
        """The tile of a turn."""
        cut = index.add(self.part(turn), self.whole * self.blocks)
        later = index.mul(index.sub(turn, self._parts), self.blocks)
        whole = index.maximum(index.add(later, self.block), 0)
        return self._of_turn(turn, cut, index.minimum(whole, self.whole * self.blocks))

    def _bounds(self, turn: Node) -> tuple[Dim, Dim]:
        """Where the block's part of a tail begins and ends, in that tail."""
        base = index.mul(index.add(self._first, turn), self.tail)
        first = index.maximum(index.sub(self._begin, base), 0)
        return first, index.minimum(index.sub(self._end, base), self.tail)

    def begin(self, turn: Node) -> Dim:
        """The first panel of a turn's tile that the block has."""
        first, _ = self._bounds(turn)
        return self._of_turn(turn, self._of_block(index.add(first, self.head), 0), 0)

    def end(self, turn: Node) -> Dim:
        """The first one behind those."""
        _, last = self._bounds(turn)
        cut = self._of_block(index.add(last, self.head), self.head)
        return self._of_turn(turn, cut, self.panels)

    def before(self, turn: Node) -> Dim:
        """The panels of all turns before."""
        base = index.mul(index.add(self._first, turn), self.tail)
        cut = self._of_block(index.maximum(index.sub(base, self._begin), 0), 0)
        own = self._of_block(index.sub(self._end, self._begin), self.head)
        own = index.add(own, index.mul(index.sub(turn, self._parts), self.panels))
        return self._of_turn(turn, cut, index.maximum(own, 0))

    def others(self, part: Dim) -> tuple[Dim, Dim]:
        """The first block that has some of a tile's tail, and how many there are."""
        base = index.mul(part, self.tail)
        first = self._sharer(base)
        last = self._sharer(index.add(base, self.tail - 1))
        return first, index.add(index.sub(last, first), 1)


def _chosen(condition: Node, some: Dim, others: Dim) -> Dim:
    ends = index.as_node(some), index.as_node(others)
    return index.as_dim(alu(Ops.WHERE, condition, *ends))


def cut_tiles(info: KernelInfo, block: Node) -> CutTiles:
    """The turns of a block, of a KERNEL that is the code of one thread or about to be that."""
    tiles, whole, panels = info.cut
    return CutTiles(block, info.grid[0], tiles, whole, panels)


def number_of_block(info: KernelInfo) -> Node:
    """The block's number, in code of one thread."""
    return Node(Ops.VAR, dtypes.index, (), Var(".block", 0, info.grid[0] - 1))


def with_cut(info: KernelInfo, axes: Sequence[Node], body: Node) -> KernelInfo:
    """What a KERNEL's `cut` means for the tiles of a grid.

    Raises ScheduleError where that is not known, or blocks would have nothing.
    """
    extents = [extent_of(axis) for axis in axes]
    loops = _rings(body)
    steps = [extent_of(loop.src[0]) for loop in loops]
    known = [each for each in (*extents, *steps) if isinstance(each, int)]
    if len(loops) != 1 or len(known) != len(extents) + 1:
        raise ScheduleError(
            "tiles are cut that are of one size, and of one loop over panels",
            found=f"a grid of {extents}, {len(loops)} loops of {steps} panels",
            hint="persist(...) without `cut`",
        )
    *tiled, panels = known
    blocks, tiles = info.grid[0], prod(tiled)
    whole, cut = divmod(tiles, blocks)
    if not cut or cut * panels < blocks:
        raise ScheduleError(
            "a last round has no tiles, or fewer panels than blocks among which they are cut",
            found=f"{cut} tiles of {panels}", wanted=f"at least {blocks} panels",
            hint="persist(...) of fewer blocks, or without `cut`",
        )
    return info._replace(cut=(cut, whole, panels))


def _rings(body: Node) -> list[Node]:
    """The loops whose iterations each copy boxes."""
    return [
        node for node in toposort(body)
        if node.op is Ops.LOOP and any(map(is_box, _items(node.src[1])))
    ]


def of_turn(body: Node, cut: CutTiles, turn: Node) -> Node:
    """The loop-level body of a tile, as far as a turn has its panels."""
    (loop,) = _rings(body)
    axis = loop.src[0]
    begin = cut.begin(turn)
    own = range_node(index.sub(cut.end(turn), begin), axis.arg.id, axis.arg.axis)
    # What a box is shows in terms of the axis alone.
    copies = rebuild(loop.src[1], lambda node: as_box(node) if is_box(node) else None)
    moved = substitute(copies, {axis: index.as_node(index.add(begin, own))})
    made = make_node(Ops.LOOP, dtypes.token, (own, moved))
    return rebuild(body, lambda node: made if node is loop else None)


def joined(body: Node, cut: CutTiles, turn: Node, block: Sequence[int]) -> Node:
    """What a thread does in a turn: it hands its sums over, or adds up others' and stores results.

    body: what it does of a whole tile. block: the threads of a block along its dimensions.
    """
    items = _items(body)
    (place,) = [at for at, one in enumerate(items) if one.op is Ops.LOOP and one.mask & Ops.MMA.bit]
    total = next(node.src[0] for node in toposort(items[place]) if node.op is Ops.MMA)
    part = cut.part(turn)
    handed = _Handed.of(total, cut.blocks, block)
    if any(total.src[0] in toposort(one) for one in items[:place] if one.op is Ops.LOOP):
        raise CompilerBug("sums that begin in several loops", found=body)
    first, count = cut.others(part)
    number = range_node(count, OTHERS_ID, "other")
    other = index.add(index.add(part, first), number)
    more = alu(Ops.ADD, total, handed.read(other))
    joins = make_node(Ops.LOOP, dtypes.token, (number, sequence([
        handed.step(Ops.WAIT, other),
        make_node(Ops.STORE, dtypes.token, (total.src[0], more, *total.src[1:])),
        handed.step(Ops.RELEASE, other),
    ])))  # fmt: skip
    begin = cut.begin(turn)
    some = make_node(Ops.IF, dtypes.token, (index.less(cut.end(turn), cut.panels), joins))
    own = index.add(part, cut.block)
    gives = [handed.store(total, own), handed.step(Ops.COMMIT, own)]
    return sequence([
        *items[: place + 1],
        make_node(Ops.IF, dtypes.token, (index.less(0, begin), sequence(gives))),
        make_node(Ops.IF, dtypes.token, (
            index.less(begin, 1), sequence([some, *items[place + 1 :]])
        )),
    ])  # fmt: skip


def _items(body: Node) -> list[Node]:
    if body.op is not Ops.SEQ:
        return [body]
    return [one for child in body.src for one in _items(child)]


@dataclass(frozen=True, slots=True)
class _Handed:
    """Sums that blocks hand over: where, and the flags of each part's warps.

    inner: where a thread's element lies, of those that it has beside each other.
    """

    sums: Node
    size: int
    inner: Dim
    flags: Node
    warps: int
    thread: Node

    @classmethod
    def of(cls, total: Node, parts: int, block: Sequence[int]) -> _Handed:
        """Those of a thread's accumulators, of which `total` is the LOAD of one."""
        array, *places = total.src
        threads = prod(block)
        thread = Node(Ops.VAR, dtypes.index, (), Var(THREAD, 0, threads - 1))
        wide = [n for n, place in enumerate(places)
                if place.op is Ops.RANGE and place.arg.bind == "vector"]  # fmt: skip
        outer = [n for n in range(len(places)) if n not in wide]
        shape = array.shape
        lanes = prod([shape[n] for n in wide])
        row = index.flatten([places[n] for n in outer], [shape[n] for n in outer])
        lane = index.flatten([places[n] for n in wide], [shape[n] for n in wide]) if wide else 0
        inner = index.add(index.mul(index.add(index.mul(row, threads), thread), lanes), lane)
        size, warps = prod(shape) * threads, threads // WARP
        sums = Alloc(SUMS_ID, "device", (parts * size,), name="sums")
        flags = Alloc(FLAGS_ID, "device", (parts * warps,), name="flags")
        return cls(
            Node(Ops.ALLOC, array.dtype, (), sums), size, inner,
            Node(Ops.ALLOC, dtypes.uint32, (), flags), warps, thread,
        )  # fmt: skip

    def _place(self, part: Dim) -> Node:
        return index.as_node(index.add(index.mul(part, self.size), self.inner))

    def store(self, value: Node, part: Dim) -> Node:
        """The STORE of a part's sums."""
        return make_node(Ops.STORE, dtypes.token, (self.sums, value, self._place(part)))

    def read(self, part: Dim) -> Node:
        """The LOAD of them."""
        return make_node(Ops.LOAD, self.sums.dtype, (self.sums, self._place(part)))

    def step(self, op: Op, part: Dim) -> Node:
        """A statement about the flag of a warp of a part."""
        count = self.flags.shape[0]
        what = Pipe("handed", count, "products", ("products",), scope="grid")
        pipe = Node(Ops.PIPE, dtypes.token, (self.flags,), what)
        warp = index.floordiv(self.thread, WARP)
        place = index.add(index.mul(part, self.warps), warp)
        return make_node(op, dtypes.token, (pipe, index.as_node(place)))

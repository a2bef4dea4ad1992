"""Loop level of a GPU: what a block does, statement by statement, becomes what one thread does.

Before, a statement runs for all threads of the block at once, as for the lanes of a vector; loops
over the grid are around everything. After, the axes of threads and grid are numbers that a thread
finds out: the flat number of its block and its own flat number in it, the hidden variables `.block`
and `.thread`; of a block of a cluster, the cluster's number `.cluster` and its own in it, `.rank`.
What lay across threads in private memory is each thread's own. A statement that ran once is run by
the first thread, and threads meet at a BARRIER before one reads in shared memory what another
wrote, or writes what another reads.

A REDUCE over threads stays: all of a block's threads take part in it, and all know the result. So
does a SCAN, of which each knows its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.axes import BLOCK_BINDS, THREAD_BINDS, Var
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import (
    Node,
    alu,
    const,
    extent_of,
    make_node,
    range_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import Done, is_box
from baregrad.kernel.gpu.absent_tiles import told_apart
from baregrad.kernel.gpu.barriers import sequence, with_barriers
from baregrad.kernel.gpu.boxes import as_box
from baregrad.kernel.gpu.clusters import block_of
from baregrad.kernel.gpu.roles import count_slots
from baregrad.kernel.gpu.shared_layouts import with_addresses
from baregrad.kernel.gpu.teams import TURNS_ID
from baregrad.kernel.gpu.turns.cut_tiles import (
    CutTiles,
    cut_tiles,
    joined,
    of_turn,
    with_cut,
)
from baregrad.kernel.instructions.mma_sync import (
    DEEP,
    HALVES,
    QUAD,
    ROW,
    LaneRegisters,
    is_exchanged,
    lane_places,
    paired_axis,
    paired_place,
    registers_of,
)
from baregrad.kernel.instructions.wgmma import (
    INSTRUCTION,
    WARPS,
    is_read_by_lanes,
    lane_of_turned,
    lanes_of_tile,
)

# Blocks of a launch, at most: the limit of a grid's first dimension.
MOST_BLOCKS = (1 << 31) - 1
_PRIVATE = ("register", "scratch")
# Rows of a thread of which each is asked whether something is to be done for any.
MOST_ROWS = 4
_ZERO = const(0, dtypes.index)


def block_shape(root: Node) -> dict[str, Node]:
    """An axis for each dimension of the block that has threads, of a loop-level KERNEL."""
    found: dict[str, Node] = {}
    rows: Node | None = None
    for node in toposort(root):
        if node.op is Ops.RANGE and node.arg.is_thread and extent_of(node) != 1:
            first = found.setdefault(node.arg.bind, node)
            if first.src[0] is not node.src[0]:
                raise CompilerBug("a block of two sizes", found=f"{first!r} and {node!r}")
        elif node.op is Ops.MMA:
            rows = node.src[4]
    if rows is not None and "thread" not in found:
        # No thread has a part of a copy, but each has results.
        found["thread"] = lanes_of_tile(rows)
    return {bind: found[bind] for bind in THREAD_BINDS if bind in found}


def grid_axes(kernel: Node) -> tuple[Node, ...]:
    """The axes of a loop-level KERNEL that its blocks lie along, outermost first."""
    found = []
    body = kernel.src
    while len(body) == 1 and body[0].op is Ops.LOOP and body[0].src[0].arg.bind in BLOCK_BINDS:
        axis, inner = body[0].src
        found.append(axis)
        body = (inner,)
    return tuple(found)


def tile_of(kernel: Node) -> tuple[Node, ...]:
    """What a loop-level KERNEL does for each point of its grid."""
    body = kernel.src
    for _ in grid_axes(kernel):
        body = (body[0].src[1],)
    return body


def grid_size(kernel: Node) -> Dim:
    """The number of blocks that run a loop-level KERNEL."""
    if kernel.arg.cut:
        # All have some of the tiles that are cut.
        return int(kernel.arg.grid[0])
    total = _iterations(kernel)
    return index.minimum(total, kernel.arg.grid[0]) if kernel.arg.grid else total


def _iterations(kernel: Node) -> Dim:
    """The iterations of a loop-level KERNEL's blocks, all together."""
    return index.product(extent_of(axis) for axis in grid_axes(kernel))


def to_threads(kernel: Node) -> Node:
    """The loop-level KERNEL that one thread runs."""
    axes, body = grid_axes(kernel), tile_of(kernel)
    worker = _Threads(kernel)
    total, every = grid_size(kernel), _iterations(kernel)
    limit = MOST_BLOCKS if not isinstance(total, int) else max(total, 1)
    if limit > MOST_BLOCKS:
        raise CompilerBug("more blocks than a grid has", found=total, wanted=MOST_BLOCKS)
    block = Node(Ops.VAR, dtypes.index, (), Var(".block", 0, limit - 1))
    if (cluster := kernel.arg.cluster) > 1:
        # All blocks of a cluster do as many iterations, each its own tile of the cluster's.
        total, every = index.floordiv(total, cluster), index.floordiv(every, cluster)
        block, worker.memo[axes[-1]] = block_of(cluster, max(limit // cluster, 1))
        axes = axes[:-1]
    info = kernel.arg
    if info.cut:
        info = with_cut(info, axes, sequence(body))
        statements = worker.of_cut(axes, body, cut_tiles(info, block))
    else:
        statements = worker.of_block(axes, body, block, None if every == total else total)
    copies = toposort(kernel) if kernel.mask & Ops.COPYTO.bit else ()
    if any(one.op is Ops.COPYTO and one.arg.engine == "bulk" for one in copies):
        # A block ends once its shared memory was read.
        statements += (make_node(Ops.DONE, dtypes.token, (), Done("bulk")),)
    if index.lower(total) < 1 and axes:
        # A launch has a block at least.
        some = index.less(0, worker.expression(index.as_node(total)))
        statements = (make_node(Ops.IF, dtypes.token, (some, sequence(statements))),)
    info = info._replace(device="GPU", block=worker.block)
    done = with_barriers(Node(Ops.KERNEL, kernel.dtype, statements, info))
    return with_addresses(done)


class _Threads:
    """Rewrites statements. `memo` holds what axes are, and what was rewritten."""

    def __init__(self, kernel: Node) -> None:
        self.memo: dict[Node, Node] = {}
        self.dims = block_shape(kernel)
        # Which positions of a private array's places are threads.
        self.private: dict[Node, frozenset[int]] = {}
        sizes = [int(axis.src[0].arg) for axis in self.dims.values()]
        count = prod(sizes)
        thread: Dim = 0
        if count > 1:
            thread = Node(Ops.VAR, dtypes.index, (), Var(".thread", 0, count - 1))
        self.block = tuple(
            [int(self.dims[b].src[0].arg) if b in self.dims else 1 for b in THREAD_BINDS]
        )
        self.places: dict[str, Node] = {}
        # Which positions of a private array's places are a warp's tile, and its registers' axes;
        # None for one that is part of the other's.
        self.tiled: dict[Node, dict[int, Node | None]] = {}
        self.tiles: dict[Node, Node | None] = {}
        self.registers: LaneRegisters | None = None
        self.exchanged = False
        self.axis_at: dict[Node, Node] = {}
        stride = 1
        for (bind, axis), size in zip(self.dims.items(), sizes, strict=True):
            place = index.as_node(index.mod(index.floordiv(thread, stride), size))
            self.places[bind] = place
            self.axis_at[place] = axis
            stride *= size
        stores = [node for node in toposort(kernel) if node.op is Ops.STORE]
        for node in toposort(kernel):
            if node.op is Ops.MMA:
                self._note_tile(node, stores)
        for node in toposort(kernel):
            if node.op is Ops.RANGE and node.arg.is_thread:
                self.memo[node] = self.places.get(node.arg.bind, _ZERO)
            elif node.op in (Ops.LOAD, Ops.STORE):
                self._note(node)

    def _note_tile(self, node: Node, stores: Sequence[Node]) -> None:
        """Say where a lane's registers of a warp's tile are in it."""
        total, (rows, columns) = node.src[0], node.src[4:6]
        wide = next((axis for axis in total.ranges if axis.arg.bind == "vector"), None)
        beside = 1 if wide is None else int(wide.src[0].arg)
        self.exchanged = wide is not None and is_exchanged(node, wide, stores)
        warps = WARPS if node.arg.name == INSTRUCTION else 1
        thread = self.places["thread"]
        turned = warps > 1 and is_read_by_lanes(node.src[1].dtype, node.arg.a_major == "k")
        found = self.registers = registers_of(thread, beside, self.exchanged, warps, turned)
        self.memo[rows], self.memo[columns] = found.row, found.column
        if wide is None:
            self.tiles |= {rows: HALVES, columns: found.columns}
        else:
            self.memo[wide] = found.tile
            self.tiles |= {rows: HALVES, columns: None, wide: found.columns}

    def _note(self, access: Node) -> None:
        array = access.src[0]
        if array.op is not Ops.ALLOC or array.arg.space not in _PRIVATE:
            return
        places = access.src[1:] if access.op is Ops.LOAD else access.src[2:]
        across = frozenset(
            [p for p, place in enumerate(places) if place.op is Ops.RANGE and place.arg.is_thread]
        )
        tiled = self.tiled.setdefault(array, {})
        tiled |= {p: self.tiles[at] for p, at in enumerate(places) if at in self.tiles}
        if self.private.setdefault(array, across) != across:
            raise CompilerBug("a thread reads what another one keeps to itself", found=access)

    # --- tiles ----------------------------------------------------------------------------------

    def of_block(
        self, axes: Sequence[Node], body: Sequence[Node], block: Dim, blocks: Dim | None
    ) -> tuple[Node, ...]:
        """A block's own tile of a grid; of so many blocks in all each further one, in turns."""
        if blocks is None:
            return self.at(axes, index.unflatten(block, tuple(map(extent_of, axes))), body)
        found = []
        for number, part in enumerate(told_apart(axes, sequence(body))):
            # Blocks that have one tile less than others of a part are the first of the next one.
            first = index.sub(index.sub(blocks, 1), block) if number else block
            left = index.sub(index.sub(index.product(part.extents), 1), first)
            turns = index.add(index.floordiv(left, blocks), 1)
            own = range_node(turns, TURNS_ID + number, "turn", "loop")
            # Where a size is 0 nothing is divided by it.
            sizes = tuple([index.maximum(extent, 1) for extent in part.extents])
            within = index.unflatten(index.add(first, index.mul(own, blocks)), sizes)
            places = tuple(map(index.add, part.begins, within))
            tile = self.at(axes, places, (count_slots(part.body, own),))
            found.append(make_node(Ops.LOOP, dtypes.token, (own, sequence(tile))))
        return tuple(found)

    def of_cut(
        self, axes: Sequence[Node], body: Sequence[Node], cut: CutTiles
    ) -> tuple[Node, ...]:
        """A block's stretch of the tiles that are cut, and its whole tiles, in turns."""
        own = range_node(cut.turns, TURNS_ID, "turn", "loop")
        places = index.unflatten(cut.tile(own), tuple(map(extent_of, axes)))
        part = count_slots(of_turn(sequence(body), cut, own), own, cut.before(own))
        tile = sequence(self.at(axes, places, (part,)))
        made = joined(tile, cut, own, self.block)
        return (make_node(Ops.LOOP, dtypes.token, (own, made)),)

    def at(
        self, axes: Sequence[Node], places: Sequence[Dim], body: Sequence[Node]
    ) -> tuple[Node, ...]:
        """What a thread does of the tile at a place of a grid."""
        before = dict(self.memo)
        self.memo.update(zip(axes, map(index.as_node, places), strict=True))
        found = tuple([self.statement(child, frozenset()) for child in body])
        self.memo = before
        return found

    # --- statements -----------------------------------------------------------------------------

    def statement(self, node: Node, around: frozenset[Node]) -> Node:
        """A statement as one thread runs it; `around`: the axes of the conditions around it."""
        op = node.op
        if op is Ops.SEQ:
            return sequence(tuple([self.statement(child, around) for child in node.src]))
        if op is Ops.LOOP:
            axis, body = node.src
            if axis.arg.bind in BLOCK_BINDS:
                raise CompilerBug("a loop over blocks inside another statement", found=axis)
            place = self.expression(axis)
            return make_node(op, dtypes.token, (place, self.statement(body, around)))
        if op is Ops.IF:
            condition, body = node.src
            inside = self.statement(body, around | condition.ranges)
            condition = self.expression(condition)
            made = make_node(op, dtypes.token, (condition, inside))
            return _if_any(condition, made) if _changes_registers(body) else made
        if is_box(node):
            box = as_box(node)
            return box.replace(src=tuple(map(self.expression, box.src)))
        if op is Ops.STORE or op is Ops.COPYTO:
            return self.store(node, around)
        if op is Ops.COMMIT or op is Ops.DONE:
            return node
        if op is Ops.MMA:
            return self.multiply(node)
        raise CompilerBug("not a statement of a block's threads", found=node)

    def multiply(self, node: Node) -> Node:
        """An MMA whose factors are read where this lane's address points."""
        total, left, right, keep, rows, columns, summed, *outer = node.src
        lane = self.places["thread"]
        assert self.registers is not None
        axes = {axis: place for axis, place in self.memo.items() if axis.op is Ops.RANGE}
        axes.update({a: self.registers.alone for a in self.tiles if a.arg.bind == "vector"})
        # Four warps name where both factors begin.
        groups = node.arg.name == INSTRUCTION
        where = ((0, 0), (0, 0)) if groups else lane_places(node.arg, lane)
        if groups and is_read_by_lanes(left.dtype, node.arg.a_major == "k"):
            where = lane_of_turned(lane), where[1]
        found = [self.expression(total)]
        for load, tile, (across, step) in zip((left, right), (rows, columns), where, strict=True):
            places = {tile: index.as_node(across), summed: index.as_node(step)}
            if load.op is Ops.CAST:
                # In registers already, of which each lane names its own.
                places = {summed: index.as_node(index.mul(DEEP, ROW))}
            found.append(rebuild(load, self.visit, memo={**axes, **places}))
        beside = int(self.registers.columns.src[0].arg) // 2
        axis = None if groups else paired_axis(node.arg, found[0], found[1], beside)
        if axis is not None:
            found[2] = substitute(found[2], {axis: paired_place(node.arg, axis, lane)})
        own = (HALVES, self.registers.columns, summed, *outer)
        info = replace(node.arg, exchanged=self.exchanged)
        return make_node(node.op, node.dtype, (*found, keep, *own), info)

    def store(self, node: Node, around: frozenset[Node]) -> Node:
        """A STORE by each thread of its own element, or by the first thread alone."""
        array, value, *places = node.src
        if any(axis.arg.is_thread for axis in around) and _folds_threads(value):
            raise CompilerBug("threads are folded where some of them do not come", found=node)
        inside = self.expression(value)
        rewritten = tuple([self.expression(place) for place in places])
        array, rewritten = self.access(array, rewritten)
        done = make_node(node.op, dtypes.token, (array, inside, *rewritten), node.arg)
        if array.op is Ops.ALLOC and array.arg.space in _PRIVATE:
            return done
        axes = around.union(value.ranges, *[place.ranges for place in places])
        binds = {axis.arg.bind for axis in axes}
        if not axes.isdisjoint(self.tiles):
            # A tile of results lies along the lanes of a warp.
            binds.add("thread")
        first = [
            alu(Ops.CMPEQ, place, _ZERO)
            for bind, place in self.places.items()
            if bind not in binds
        ]
        if not first:
            return done
        if _folds_threads(value):
            # All threads take part in the fold, the first one keeps it.
            raise CompilerBug("a fold of threads is stored at once", found=node)
        return make_node(Ops.IF, dtypes.token, (index.both(*first), done))

    # --- expressions ----------------------------------------------------------------------------

    def expression(self, root: Node) -> Node:
        """An expression as one thread computes it."""
        return rebuild(root, self.visit, memo=self.memo)

    def visit(self, node: Node) -> Node | None:
        """One node whose sources are rewritten."""
        op = node.op
        if op is Ops.LOAD:
            array, places = self.access(node.src[0], node.src[1:])
            return Node(op, node.dtype, (array, *places))
        if op is Ops.REDUCE or op is Ops.SCAN:
            count = node.arg.monoid.arity
            axes = [self.axis_at.get(child, child) for child in node.src[count:]]
            lane = self.registers
            if lane is not None and lane.column in axes:
                # A tile's columns are those of a lane, and of four lanes.
                place = axes.index(lane.column)
                axes[place : place + 1] = [lane.columns, QUAD]
            kept = [axis for axis in axes if axis.op is Ops.RANGE]
            if not kept:
                raise CompilerBug("a fold of one thread", found=node)
            return Node(op, node.dtype, (*node.src[:count], *kept), node.arg)
        return index.resimplify(node)

    def access(self, array: Node, places: tuple[Node, ...]) -> tuple[Node, tuple[Node, ...]]:
        """An access without the places that are threads, if each thread has its own array."""
        across, tiled = self.private.get(array), self.tiled.get(array)
        if not across and not tiled:
            return array, places
        axes = tiled or {}
        kept, shape = [], []
        for position, (place, extent) in enumerate(zip(places, array.arg.shape, strict=True)):
            axis = axes.get(position)
            if axis is not None:
                kept.append(axis)
                shape.append(int(axis.src[0].arg))
            elif position not in axes and position not in (across or ()):
                kept.append(place)
                shape.append(extent)
        return Node(Ops.ALLOC, array.dtype, (), array.arg._replace(shape=tuple(shape))), tuple(kept)


def _changes_registers(body: Node) -> bool:
    """Whether statements do nothing but write a thread's registers."""
    if body.op is Ops.SEQ:
        return all(map(_changes_registers, body.src))
    return body.op is Ops.STORE and body.src[0].op is Ops.ALLOC and (
        body.src[0].arg.space == "register"
    )


def _if_any(condition: Node, made: Node) -> Node:
    """A statement of some rows of a thread, left out where none of them has it."""
    rows = [axis for axis in condition.ranges if axis.arg.bind == "unroll"]
    if HALVES not in rows or prod([int(axis.src[0].arg) for axis in rows]) > MOST_ROWS:
        return made
    found = [condition]
    for axis in rows:
        found = [substitute(one, {axis: const(place, dtypes.index)})
                 for one in found for place in range(int(axis.src[0].arg))]  # fmt: skip
    return make_node(Ops.IF, dtypes.token, (reduce(partial(alu, Ops.OR), found), made))


def _folds_threads(value: Node) -> bool:
    if not value.has(Ops.REDUCE, Ops.SCAN):
        return False
    folds = [node for node in toposort(value) if node.op in (Ops.REDUCE, Ops.SCAN)]
    return any(
        child.op is Ops.RANGE and child.arg.is_thread for fold in folds for child in fold.src
    )

"""Kernel level to loop level: loops by the order of the axes, reductions as accumulators.

Inputs are read by LOADs already, what is staged by INDEX.

Each OUT becomes a STORE inside the loops over its axes, in the order of their ids. Each REDUCE
becomes accumulators (an ALLOC over its tile axes), a loop nest over its own axes, and a load; it
stands as far out as its free axes allow. Loops over the same axis in the same place are shared, as
far as no reduction then reads what the loop is still computing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, Reduce, Scan
from baregrad.ir.core.axes import BLOCK_BINDS
from baregrad.ir.core.monoid import Monoid, filled
from baregrad.ir.core.node import (
    NO_RANGES,
    Node,
    alu,
    cast,
    const,
    fill,
    instruction,
    make_node,
    scalar,
)
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.applying.apply import NOWHERE
from baregrad.kernel.applying.scope import is_sum_alone
from baregrad.kernel.applying.stage_in_output import Kept, behind, kept_in_output
from baregrad.kernel.applying.staged_accumulators import is_of_panels
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.gpu.pipelines import Ring, into_ring
from baregrad.kernel.gpu.shared_copies import copied_by_threads, row_of, thread_axes
from baregrad.kernel.gpu.shared_layouts import in_rows
from baregrad.kernel.instructions.amx import product as tiles_product
from baregrad.kernel.instructions.mma_sync import TILE
from baregrad.kernel.instructions.wgmma import product, sums_by_groups
from baregrad.kernel.loops.loop_blocks import (
    Placed,
    StatementBlock,
    in_registers,
    nest_position,
    statement,
)
from baregrad.kernel.loops.loop_pieces import (
    SCOPED,
    Masks,
    added_once,
    cleared,
    guarded,
    is_carried,
    load,
    looped,
    narrowed,
    peeled_guards,
    peeled_masks,
    places_of_states,
    register_places,
    scoped_below,
    shape_of,
    split_by_tiles,
    state_parts,
    stepped,
    store,
    widened,
)
from baregrad.kernel.loops.outer_products import sums_outer

NOTHING = -1
_STAGE = Ops.STAGE.bit
Ranges = tuple[Node, ...]


def to_loop(
    kernel: Node, fma: bool, ordered: frozenset[int] = frozenset(), masks: bool = False
) -> Node:
    """The loop level of a KERNEL that `apply_chunked` made.

    With `fma`, products that are summed use one rounding. With `masks`, loads of part of a vector
    cost no more, so that sums in memory need no loop that clears them. Writes to the slots
    `ordered` may meet, so no loops of theirs are shared but the parallel one. Loops over axes bound
    to the grid are around everything else.
    """
    axes = NO_RANGES.union(*[node.ranges for out in kernel.src for node in out.src[1:]])
    pools = [axis for axis in axes if axis.arg.bind == "pool"]
    if len(pools) > 1:
        raise CompilerBug("a kernel has several parallel axes", found=sorted(map(repr, pools)))
    pool = pools[0] if pools else None
    blocks = by_id({axis for axis in axes if axis.arg.bind in BLOCK_BINDS})
    grid = tuple(sorted(blocks, key=lambda axis: axis.arg.bind == "cluster"))
    builder = _Builder(fma, masks, pool, grid, kernel)
    for out in kernel.src:
        builder.out(out, out.src[0].arg.slot in ordered)
    return instruction(Ops.KERNEL, dtypes.token, (statement(builder.root),), kernel.arg)


@dataclass(slots=True)
class _Builder:
    """Builds the statement tree of one kernel."""

    fma: bool
    masks: bool
    pool: Node | None
    grid: tuple[Node, ...]
    kernel: Node
    root: StatementBlock = field(default_factory=lambda: StatementBlock(frozenset()))
    placed: dict[Node, Placed] = field(default_factory=dict)
    # Expressions of the loop level that read what is placed, by what they were.
    converted: dict[Node, Node] = field(default_factory=dict)
    # The tile axes that a staged array has beside its stage's own, around those.
    around: dict[Node, tuple[tuple[Node, ...], tuple[Node, ...]]] = field(default_factory=dict)
    # Stages whose values lie in an output from the start: that OUT.
    in_place: dict[Node, Node] = field(default_factory=dict)
    # The stage whose values wait in the output, by itself and by that array.
    kept: dict[Node, Kept] = field(default_factory=dict)
    # The sizes of the axes that are one in a shared array: its last ones.
    rows: dict[Node, tuple[int, ...]] = field(default_factory=dict)
    # The loops that begin copies ahead of their iterations, by their bodies.
    rings: dict[StatementBlock, Ring] = field(default_factory=dict)
    # Reductions that their stages make: they have no accumulators of their own.
    made_by_stages: set[Node] = field(default_factory=set)
    # The axes of reductions by what they close, and those of what is read by what they are.
    owned: dict[frozenset[Node], tuple[Ranges, list[Node], Ranges]] = field(default_factory=dict)
    sorts: dict[frozenset[Node], tuple[frozenset[Node], Ranges]] = field(default_factory=dict)
    known_masks: Masks = field(default_factory=dict)
    count: int = 0

    # --- places ---------------------------------------------------------------------------------

    def nest(
        self, block: StatementBlock, key: Node, needs: int, share: bool = True
    ) -> StatementBlock:
        """The body of a loop over (or an IF of) `key` in `block`, after item `needs`."""
        if share:
            for position in range(len(block.items) - 1, needs, -1):
                item = block.items[position]
                if isinstance(item, StatementBlock) and item.key is key:
                    return item
        axes = block.axes | {key} if key.op is Ops.RANGE else block.axes
        body = StatementBlock(axes, key)
        block.items.append(body)
        return body

    def needs(self, below: tuple[Node, ...], block: StatementBlock) -> int:
        """The last item of `block` that holds one of the reductions `below`; NOTHING if none."""
        found = [self.placed[node] for node in below if node in self.placed]
        return max([each.position for each in found if each.block is block], default=NOTHING)

    def buffer(
        self, dtype: DType, shape: tuple[int, ...], space: str = "register", ahead: int = 0
    ) -> Node:
        """A fresh private array."""
        self.count += 1
        if space == "register" and not ahead:
            return in_registers(self.count, dtype, shape)
        alloc = Alloc(self.count, space, shape, None, 1, f"a{self.count}", ahead)
        return instruction(Ops.ALLOC, dtype, (), alloc, shape)

    # --- statements -----------------------------------------------------------------------------

    def out(self, out: Node, crowded: bool) -> None:
        """The loops and the STORE of one OUT; `crowded`: its writes may meet another's."""
        loops = looped(by_id(out.src[1].ranges | out.src[2].ranges))
        roots = out.src[1:]
        below = scoped_below(roots)
        if (roots[0].mask | roots[1].mask) & _STAGE:
            if not crowded and is_sum_alone(out, self.kernel):
                self.in_place[out.src[1].src[0]] = out
                loops = [axis for axis in loops if axis not in out.src[1].src[1:]]
            kept = None if crowded or self.grid else kept_in_output(out, self.kernel)
            if kept is not None:
                self.kept = {kept.stage: kept, kept.array: kept}
            carried = [node.src[0] for node in below if node.op is Ops.STAGE and is_carried(node)]
            self.made_by_stages.update(carried)
        path = [self.root]
        share = out.arg.monoid is None and not crowded
        pool = self.pool
        if self.grid:
            loops = self.blocks(loops, path)
        if pool is not None and pool in loops:
            loops.remove(pool)
            loops.insert(0, pool)
        elif pool is not None:
            # What does not run along the parallel axis is done once, with its last chunk.
            path.append(self.nest(self.root, pool, self.needs(below, self.root)))
            last = alu(Ops.CMPEQ, pool, index.as_node(index.sub(pool.src[0], 1)))
            path.append(self.nest(path[-1], last, self.needs(below, path[-1]), share))
        # Once there is a parallel loop all else goes into it: a kernel has one.
        nests = [item.key for item in self.root.items if isinstance(item, StatementBlock)]
        opened = pool is not None and pool in nests
        for axis in loops:
            if axis is not pool or not opened:
                self.reductions(below, path)
            needs = self.needs(below, path[-1])
            # Writes of two iterations of the parallel loop never meet.
            path.append(self.nest(path[-1], axis, needs, share or axis is pool))
        self.reductions(below, path)
        if out.src[1].src and out.src[1].src[0] in self.in_place:
            return
        value, *indices = self.convert(roots)
        if indices[0].op is Ops.WHERE and indices[0].src[2] is NOWHERE:
            condition, indices[0], _ = indices[0].src
            for part in split_by_tiles(condition) if out.arg.apart else (condition,):
                path.append(self.nest(path[-1], part, NOTHING, share=out.arg.apart))
        source = (out.src[0], value, *indices)
        path[-1].items.append(instruction(Ops.STORE, dtypes.token, source, out.arg.monoid))

    def blocks(self, loops: list[Node], path: list[StatementBlock]) -> list[Node]:
        """Open the loops over blocks, which all outputs share; the loops that are left."""
        for axis in self.grid:
            path.append(self.nest(path[-1], axis, NOTHING))
        # What does not run along an axis is done once, by the first block along it.
        zero = const(0, dtypes.index)
        alone = [alu(Ops.CMPEQ, axis, zero) for axis in self.grid if axis not in loops]
        if alone:
            path.append(self.nest(path[-1], index.both(*alone), NOTHING, share=False))
        return [axis for axis in loops if axis not in self.grid]

    def place(self, node: Node, placed: Placed) -> None:
        """Note where a reduction's states are; what read it where it was before is made anew."""
        if node in self.placed:
            self.converted.clear()
        self.placed[node] = placed

    def reductions(self, below: tuple[Node, ...], path: list[StatementBlock]) -> None:
        """Place every reduction of `below` that is possible in the loops open so far.

        That is not so of those which the innermost open block can read already.
        """
        axes = path[-1].axes
        for node in below:
            found = self.placed.get(node)
            if (found is not None and found.block in path) or node in self.made_by_stages:
                continue
            loops, _ = self.loops_and_tiles(node.ranges)
            if loops <= axes:
                if node.op is Ops.REDUCE:
                    self.reduction(node, path)
                elif node.op is Ops.SCAN:
                    self.scan(node, path)
                else:
                    self.stage(node, path)

    def reduction(self, node: Node, path: list[StatementBlock]) -> None:
        """Accumulators, loops and the final value of a REDUCE, in the innermost open block."""
        block = path[-1]
        count = len(node.arg.monoid.states)
        own, loops, lanes = self.own_axes(frozenset(node.src[count:]))
        matrix = len(own) > len(loops) + len(lanes)
        monoid, values = widened(node.arg.monoid, node.src[:count])
        _, tiles = self.loops_and_tiles(node.ranges)
        below = scoped_below(values)
        self.reductions(below, path)
        places = register_places(lanes + tiles)
        every = places_of_states(monoid, values, places, lanes)
        accumulators = tuple(map(self.buffer, monoid.states, map(shape_of, every)))
        loads = tuple(map(load, accumulators, every))
        conditions, values = peeled_guards(monoid, values)
        if lanes and self.masks:
            masks, values = peeled_masks(monoid, values, frozenset(lanes), self.known_masks)
            conditions += masks
        # Conditions that were peeled off may have read some.
        below = scoped_below(values)
        needs = self.needs(behind(below, values, own), block)
        inner = list(path)
        once = not conditions and added_once(monoid, values[0], loops, lanes)
        start = list(map(store, accumulators, monoid.identity, every))
        self.open(inner, loops, conditions, below, needs, [] if once else start)
        if matrix:
            total = load(accumulators[0], places)
            update = [product(total, self.convert(values)[0], own)]
        elif once:
            lifted = filled(monoid.lift, self.convert(values))
            update = list(map(store, accumulators, lifted, every))
        else:
            fma = self.sums_unrounded(node, values[0]) or is_of_panels(values[0])
            update = self.update(monoid, accumulators, loads, values, every, fma)
        inner[-1].items.extend(update)
        if lanes:
            fold = make_node(Ops.REDUCE, monoid.states[0], (*loads, *lanes), Reduce(monoid))
            loads = self.held(fold, monoid, tiles, block, once)
        position = len(block.items) - 1 if lanes else nest_position(block, inner, path)
        parts = narrowed(loads, node.arg.monoid)
        self.place(node, Placed(parts, block, position))

    def own_axes(self, axes: frozenset[Node]) -> tuple[Ranges, list[Node], Ranges]:
        """The axes of a reduction in order, those that are loops, and those that are lanes.

        A matrix unit's are neither.
        """
        found = self.owned.get(axes)
        if found is None:
            own = by_id(axes)
            matrix = any(axis.arg.bind == TILE for axis in own)
            lanes = tuple([axis for axis in own if axis.arg.is_tile and not matrix])
            found = self.owned[axes] = (own, looped(own), lanes)
        return found

    def loops_and_tiles(self, ranges: frozenset[Node]) -> tuple[frozenset[Node], Ranges]:
        """Those of some axes that are loops, and the tile axes, as those of a register array."""
        found = self.sorts.get(ranges)
        if found is None:
            loops = frozenset(looped(ranges))
            found = self.sorts[ranges] = (loops, register_places(by_id(ranges - loops)))
        return found

    def open(
        self,
        path: list[StatementBlock],
        loops: list[Node],
        conditions: list[Node],
        below: tuple[Node, ...],
        needs: int,
        start: list[Node],
    ) -> None:
        """Open loops and IFs below path[-1], each condition as far out as its axes allow.

        below: the reductions that are read inside them.
        """
        keys = self.with_conditions(loops, conditions, path[-1].axes) if conditions else loops
        for key in keys:
            body = self.nest(path[-1], key, needs)
            body.before.extend(start)
            start = []
            path.append(body)
            self.reductions(below, path)
            needs = self.needs(below, body)
        path[-1].items.extend(start)

    def with_conditions(
        self, loops: list[Node], conditions: list[Node], axes: frozenset[Node]
    ) -> list[Node]:
        """Loops inside those over `axes`, each condition after those that it depends on."""
        waiting = list(conditions)
        keys: list[Node] = []
        bound = set(axes)
        for opened in ([], *[[axis] for axis in loops]):
            keys += opened
            bound.update(opened)
            ready = [cond for cond in waiting if cond.ranges <= bound]
            if ready:
                waiting = [cond for cond in waiting if cond not in ready]
                keys.append(self.convert((index.both(*ready),))[0])
        if waiting:
            # Masks: of what is in registers, only the innermost statements.
            keys.append(self.convert((index.both(*waiting),))[0])
        return keys

    def sums_unrounded(self, reduce: Node, value: Node) -> bool:
        """Whether a sum takes the products that it adds up as they are."""
        known = reduce.arg.unrounded
        return self.fma and (sums_outer(value) if known is None else known)

    def accumulators(self, monoid: Monoid, places: tuple[Node, ...]) -> tuple[Node, ...]:
        """One register array per state."""
        return tuple([self.buffer(dtype, shape_of(places)) for dtype in monoid.states])

    def update(
        self,
        monoid: Monoid,
        buffers: tuple[Node, ...],
        states: tuple[Node, ...],
        values: tuple[Node, ...],
        places: list[Ranges],
        fma: bool,
    ) -> list[Node]:
        """What adds an element, by `fma` unrounded, to accumulators of `states` at their places."""
        inputs = self.convert(values)
        if monoid.primitive is not None:
            return [store(buffers[0], stepped(monoid, states[0], inputs[0], fma), places[0])]
        lifted = filled(monoid.lift, inputs)
        after = filled(monoid.combine, states + lifted)
        if monoid.arity == 1:
            return [store(buffers[0], after[0], places[0])]
        spare = [self.buffer(buffer.dtype, buffer.arg.shape) for buffer in buffers]
        first = list(map(store, spare, after, places))
        return first + list(map(store, buffers, map(load, spare, places), places))

    def held(
        self, fold: Node, monoid: Monoid, tiles: tuple[Node, ...], block: StatementBlock,
        starts: bool = False,
    ) -> tuple[Node, ...]:
        """The states of a fold of lanes or tiles, in accumulators over the free tile axes.

        starts: nothing was added to an identity before, so that the result is.
        """
        results, parts = self.accumulators(monoid, tiles), state_parts(fold, monoid)
        parts = filled(monoid.combine, (*monoid.identity, *parts)) if starts else parts
        block.items += [store(*each, tiles) for each in zip(results, parts, strict=True)]
        return tuple([load(result, tiles) for result in results])

    def scan(self, node: Node, path: list[StatementBlock]) -> None:
        """A running fold: a carried accumulator, set before the loop and stepped inside it.

        Along threads and lanes it is one statement.
        """
        axis = node.src[-1]
        if axis.arg.is_tile:
            self.tile_scan(node, path)
            return
        monoid, values = widened(node.arg.monoid, node.src[:-1])
        depth = next((d for d, block in enumerate(path) if axis in block.axes), None)
        if depth is None or depth == 0:
            raise CompilerBug("a scan's axis is not looped over", found=node)
        inner = [a for a in node.ranges if not a.arg.is_tile and a not in path[depth].axes]
        if inner:
            raise CompilerBug("a scan inside loops that it depends on", found=node)
        self.reductions(scoped_below(values), path)
        _, tiles = self.loops_and_tiles(node.ranges)
        buffers = self.accumulators(monoid, tiles)
        for buffer, identity in zip(buffers, monoid.identity, strict=True):
            path[depth].before.append(store(buffer, identity, tiles))
        block = path[-1]
        states = tuple([load(buffer, tiles) for buffer in buffers])
        fma = self.fma and sums_outer(values[0])
        every = [tiles] * len(buffers)
        block.items.extend(self.update(monoid, buffers, states, values, every, fma))
        parts = narrowed(states, node.arg.monoid)
        self.place(node, Placed(parts, block, len(block.items) - 1))

    def tile_scan(self, node: Node, path: list[StatementBlock]) -> None:
        """A running fold of a tile, kept in registers."""
        block = path[-1]
        count = node.arg.monoid.arity
        monoid, values = widened(node.arg.monoid, node.src[:count])
        self.reductions(scoped_below(values), path)
        places = register_places(by_id(node.ranges - frozenset(looped(node.ranges))))
        source = (*filled(monoid.lift, self.convert(values)), *node.src[count:])
        running = make_node(Ops.SCAN, monoid.states[0], source, Scan(monoid))
        parts = narrowed(self.held(running, monoid, places, block), node.arg.monoid)
        self.place(node, Placed(parts, block, len(block.items) - 1))

    def stage(self, node: Node, path: list[StatementBlock]) -> None:
        """A value kept over its axes: a private array, filled by a loop nest."""
        block = path[-1]
        value, *axes = node.src
        if node.arg.space == "shared":
            self.shared(node, path)
            return
        if is_carried(node):
            self.carried(node, value, [each for each in value.src if each.op is Ops.RANGE], path)
            return
        kept = self.kept.get(node)
        if kept is None:
            buffer, places = self.staged_array(node)
        else:
            buffer, places = kept.array, (kept.place(tuple(axes)),)
        below = scoped_below((value,))
        self.reductions(below, path)
        inner = list(path)
        loops = looped(by_id(set(axes)))
        self.open(inner, loops, [], below, self.needs(below, block), [])
        inner[-1].items.append(store(buffer, self.convert((value,))[0], places))
        self.place(node, Placed((buffer,), block, len(block.items) - 1))

    def staged_array(self, node: Node) -> tuple[Node, tuple[Node, ...]]:
        """A private array for what is staged, and the places of its elements."""
        value, *axes = node.src
        # Each step of a tile around the stage has its own: its loops are not distinguished yet.
        tiles = by_id({axis for axis in node.ranges if axis.arg.is_tile})
        before = tuple(axis for axis in tiles if axis.arg.bind != "vector")
        after = tuple(axis for axis in tiles if axis.arg.bind == "vector")
        places = (*before, *axes, *after)
        shape = tuple(int(axis.src[0].arg) for axis in places)
        space = "register" if node.arg.space == "register" else "scratch"
        buffer = self.buffer(value.dtype, shape, space, node.arg.ahead)
        self.around[buffer] = (before, after)
        return buffer, places

    def shared(self, node: Node, path: list[StatementBlock]) -> None:
        """A value kept for all threads of a block, which make it together."""
        if scoped_below((node.src[0],)):
            raise CompilerBug("a reduction is staged for a block's threads", found=node)
        block = path[-1]
        threads = thread_axes([node for out in self.kernel.src for node in out.src])
        if node.arg.depth > 1:
            groups = sums_by_groups(self.kernel.src)
            buffer, slot, held = into_ring(self.rings, node, path, threads, groups, self.count + 1)
            self.around[buffer] = ((slot,), ())
            self.count += held
        else:
            buffer, copy = copied_by_threads(node, threads, self.count + 1)
            place = block
            for key in (copy.loop, copy.condition):
                if key is not None:
                    place = self.nest(place, key, len(place.items) - 1, share=False)
            place.items.append(store(buffer, copy.value, copy.places))
        self.count += 1
        self.rows[buffer] = row_of(node)
        self.place(node, Placed((buffer,), block, len(block.items) - 1))

    def carried(
        self, node: Node, reduce: Node, own: list[Node], path: list[StatementBlock]
    ) -> None:
        """A staged REDUCE whose loops stand outside those of its stage: accumulators in memory.

        Unrolled steps of the reduction are added one after the other before a state is written.
        """
        block = path[-1]
        axes = node.src[1:]
        monoid, values = widened(reduce.arg.monoid, (reduce.src[0],))
        buffer, places, within = self.accumulator_array(node, monoid, axes)
        inner_axes = looped(by_id(set(axes)))
        self.reductions(scoped_below(values), path)
        conditions, values = peeled_guards(monoid, values)
        loops = looped(by_id(set(own)))
        matrix = [axis for axis in own if axis.arg.bind == TILE]
        # The first step of a sum may take 0 in place of what is in memory.
        clears = monoid.primitive is not Ops.ADD or not self.masks or bool(conditions)
        start: list[Node] = []
        if not matrix and (clears or not loops):
            start = [cleared(store(buffer, monoid.identity[0], places), within, inner_axes)]
        inner = list(path)
        below = scoped_below(values)
        self.open(inner, loops + inner_axes, conditions, below, self.needs(below, block), start)
        state = load(buffer, places)
        later = index.less(0, index.total(loops))
        if matrix:
            tile = (*[axis for axis in axes if axis.arg.bind == TILE], *matrix)
            inner[-1].items.append(tiles_product(state, self.convert(values)[0], tile, later))
            self.place(node, Placed((buffer,), block, nest_position(block, inner, path)))
            return
        fma = self.sums_unrounded(reduce, values[0])
        points: list[dict[Node, Node]] = [{}]
        for axis in by_id({axis for axis in own if axis.arg.is_tile}):
            extent = range(int(axis.src[0].arg))
            points = [{**p, axis: const(i, dtypes.index)} for p in points for i in extent]
        if not start:
            state = guarded(later, state)
        for point in points:
            (value,) = self.convert((substitute(values[0], point),))
            state = stepped(monoid, state, value, fma)
        if within is not None:
            inner.append(self.nest(inner[-1], within, NOTHING, share=False))
        inner[-1].items.append(store(buffer, state, places))
        self.place(node, Placed((buffer,), block, nest_position(block, inner, path)))

    def accumulator_array(
        self, node: Node, monoid: Monoid, axes: tuple[Node, ...]
    ) -> tuple[Node, tuple[Node, ...], Node | None]:
        """Where a staged REDUCE keeps its sums: an array, the places in it, and where they exist.

        That is scratch memory, or the output that the sums are written to as they are.
        """
        out = self.in_place.get(node)
        if out is None:
            shape = tuple(int(axis.src[0].arg) for axis in axes)
            return self.buffer(monoid.states[0], shape, "scratch"), axes, None
        copies = dict(zip(out.src[1].src[1:], axes, strict=True))
        (place,) = self.convert((substitute(out.src[2], copies),))
        if place.op is Ops.WHERE and place.src[2] is NOWHERE:
            return out.src[0], (place.src[1],), place.src[0]
        return out.src[0], (place,), None

    # --- expressions ----------------------------------------------------------------------------

    def convert(self, roots: tuple[Node, ...]) -> tuple[Node, ...]:
        """Expressions of the loop level: what is staged or reduced is read from its array."""
        if not any(root.mask & SCOPED for root in roots):
            return roots
        # Where an expression is read decides what its reductions are read from.
        placed, done = self.placed, self.converted

        def enter(node: Node) -> bool:
            return bool(node.mask & SCOPED) and node not in placed

        fill(done, roots, self.visit, done, enter)
        return tuple([done[root] for root in roots])

    def visit(self, node: Node, done: dict[Node, Node]) -> Node:
        """One node whose sources are converted, in `done`."""
        op = node.op
        if not node.mask & SCOPED:
            return node
        if op is Ops.INDEX:
            source, *places = [done[child] for child in node.src]
            if source in self.kept:
                places = [self.kept[source].place(tuple(places))]
            if source in self.rows:
                places = list(in_rows(places, self.rows[source]))
            before, after = self.around.get(source, ((), ()))
            read = scalar(Ops.LOAD, source.dtype, (source, *before, *places, *after))
            return cast(read, node.dtype)
        if op.bit & SCOPED:
            placed = self.placed.get(node)
            if placed is None:
                raise CompilerBug("a reduction has no place in the loops around it", found=node)
            return placed.parts[0]
        if op is Ops.PROJ:
            position: int = node.arg
            return self.placed[node.src[0]].parts[position]
        src = tuple([done[child] for child in node.src])
        return scalar(op, node.dtype, src, node.arg)

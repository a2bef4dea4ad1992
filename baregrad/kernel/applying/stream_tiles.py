"""A stream over the keys as loops of a GPU's block: tiles of keys pass a tile of rows.

Each warp has some rows. Of each tile of keys it makes the scores by its matrix unit, in registers;
their largest may raise the row's maximum, then what was summed so far is scaled, once for the tile.
The powers stay in the registers in which the second product takes them as its first factor. Keys
and values are copied to shared memory one tile ahead. Of rows that see keys up to a limit alone,
the tiles beyond it are left out. Gradients are sums of weights times values as well, whose weights
are made of one or two products; of those by key or value, queries pass rows of keys. A sum of what
is made of products alone needs no second one. Sums over heads or sequences, one for each row and
key, have a tile of both in each block, which those pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import (
    Node,
    alu,
    cast,
    const,
    extent_of,
    make_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import CopyTo, Mma
from baregrad.kernel.applying.stream_ahead import (
    GroupsBegun,
    StreamParts,
    Term,
    commit,
    done,
    one_ahead,
)
from baregrad.kernel.applying.stream_panels import (
    DEPTH,
    Panel,
    axis_of,
    block_axes,
    check_stream,
    flat,
    folded,
    in_panel,
    limits_of,
    panel_array,
    read_where,
    rows_of,
    steps_of,
    tiles_of,
    whole,
    width_of,
)
from baregrad.kernel.applying.stream_results import SharedStates, written
from baregrad.kernel.applying.stream_states import LOWEST, ZERO, RowArrays, RowStates, less
from baregrad.kernel.facts.stream_facts import StreamFacts, array_read, holds_between, stream_facts
from baregrad.kernel.gpu.barriers import sequence
from baregrad.kernel.instructions import mma_sync, wgmma
from baregrad.kernel.instructions.mma_sync import TILE, N
from baregrad.kernel.instructions.wgmma import lanes_of_tile
from baregrad.kernel.language.schedule import Schedule, StreamTiles, illegal
from baregrad.kernel.loops.loop_pieces import guarded, load, store
from baregrad.target import AnyTarget

F32 = dtypes.float32
Places = tuple[Node, ...]


def streams(schedule: Schedule) -> bool:
    """Whether a schedule has the step of a stream."""
    return any(isinstance(step, StreamTiles) for step in schedule.steps)


def stream_to_loop(kernel: Node, schedule: Schedule, target: AnyTarget) -> Node:
    """The loop-level KERNEL of a stream, in tiles as its step says.

    Raises ScheduleError where the kernel is no stream, the machine has no such unit, or the step is
    not the only one.
    """
    (step,) = [one for one in schedule.steps if isinstance(one, StreamTiles)][:1]
    facts = stream_facts(kernel)
    if facts is None or len(schedule.steps) != 1:
        raise illegal(step, "it is the only step of a kernel that is one stream over keys")
    check_stream(step, facts, target)
    return _Builder(facts, step, target).kernel()


class _Builder:
    """The axes and arrays of one kernel, and its statements."""

    def __init__(self, facts: StreamFacts, step: StreamTiles, target: AnyTarget) -> None:
        self.facts, self.step = facts, step
        self.dtype: DType = facts.products[0].left.dtype
        self.groups, size = step.instruction == wgmma.INSTRUCTION, rows_of(step)
        self.rows = step.warps * step.tiles * size
        self.lengths: tuple[Dim, Dim] = (
            1 if facts.row is None else extent_of(facts.row), extent_of(facts.key)
        )
        count = index.floordiv(index.add(self.lengths[0], self.rows - 1), self.rows)
        self.outside, self.inside, self.blocks = block_axes(facts, step)
        self.number = axis_of(0, count, "grid", "rows")
        self.warps, self.keys = step.warps * step.shares, step.keys * step.shares
        self.warp = axis_of(2, self.warps, "thread_y", "w")
        self.tile, self.m = axis_of(20, step.tiles, "unroll", "u"), axis_of(40, size, TILE, "m")
        self.lanes = lanes_of_tile(self.m)
        # Tiles of keys and their columns; of values; steps of the last product.
        self.part, self.n = axis_of(30, step.keys // N, "unroll", "v"), axis_of(41, N, TILE, "n")
        wide = facts.widths[-1] if facts.column is not None else N
        self.wide, self.c = tiles_of(wide, self.groups), axis_of(42, N, TILE, "c")
        self.turn = axis_of(11, step.keys // DEPTH, "unroll", "jo")
        self.k, self.j = axis_of(43, DEPTH, TILE, "k"), axis_of(44, DEPTH, TILE, "j")
        # Where no row sees later keys, the blocks with most to do come first.
        place: Dim = self.number
        self.limits = limits_of(facts, self.blocks)
        if [limit.sign for limit in self.limits] == [1]:
            place = index.sub(index.sub(count, 1), self.number)
        self.start = index.mul(place, self.rows)
        # Which keys the block has, where these do not pass.
        keys = index.floordiv(index.add(self.lengths[1], self.keys - 1), self.keys)
        self.column = axis_of(3, keys, "grid", "columns")
        # Warps have rows of their own, or keys of those that pass at a time.
        with_rows, with_keys = (self.warp, 0) if step.shares == 1 else (0, self.warp)
        own = index.add(index.mul(with_rows, step.tiles * size), index.mul(self.tile, size))
        self.place, self.of_warp = index.add(own, self.m), index.mul(with_keys, step.keys)
        self.own_key = index.add(self.of_warp, index.add(index.mul(self.part, N), self.n))
        self.row = index.add(self.start, self.place)
        self.first, trips = self._span()
        trips = index.maximum(trips, 1) if step.ahead else trips
        self.loop = axis_of(1, trips, "loop", "keys")
        self.own: Places = (self.warp, self.tile, self.m)
        self.allocs, shape = 0, (self.warps, step.tiles, size)
        self.slots = facts.slots(target, self.groups)
        self.octets = facts.octets(target, self.groups)
        self.turned = not self.octets.isdisjoint(facts.values)
        self.left, self.right = list[Panel](), list[Panel]()
        self._lay_out()
        self.s = [self._array("register", (*shape, step.keys // N, N)) for _ in facts.products]
        sums = *shape, *map(width_of, self.wide), N
        self.acc = [self._array("register", sums) for _ in facts.values]
        # Where scores are ahead of what is summed, powers lie elsewhere.
        tile = *shape, step.keys // N, N
        self.powers = self._array("register", tile) if step.ahead else self.s[0]
        self.every = self._array("register", tile)
        self.sums = self._array("register", (*shape, N))
        self.total = self._array("register", shape)
        each = [self._array("register", shape) for _ in range(4)]
        self.states = RowStates(
            facts, self.own, self.part, self.n, self.s[0], self.powers, RowArrays(*each), self.sums,
            self.turned, trips == 1 and facts.over is None and not step.ahead,
        )

    def _lay_out(self) -> None:
        """The tiles of all inputs in shared memory."""
        facts = self.facts
        slots = 1 if facts.over is None else self.slots
        for one in facts.products:
            panel = self._panel(one.left, one.depth, self.rows, slots)
            panel.quads = one.right in self.octets
            self.left.append(panel)
        factors = [(one.right, one.depth) for one in facts.products]
        factors += [(values, facts.column) for values in facts.values if facts.column is not None]
        for read, across in factors:
            self.right.append(self._panel(read, across, self.keys, self.slots))
        # Warps that share keys wait for none but their own, once all have their rows.
        lanes = int(self.lanes.src[0].arg)
        uneven = [self.step.keys * one.width % (lanes * one.lanes) for one in self.right]
        self.by_warps = self.step.shares > 1 and self.slots > 1 and not any(uneven)

    def _array(
        self, space: str, shape: tuple[int, ...], dtype: DType = F32, slots: int = 1
    ) -> Node:
        self.allocs += 1
        name = f"{space[0]}{self.allocs}"
        where = Alloc(self.allocs, space, shape, depth=slots, name=name)
        return make_node(Ops.ALLOC, dtype, (), where)

    def _panel(self, read: Node, across: Node, count: int, slots: int) -> Panel:
        """The tile of an input; the one that is there already where it holds the same."""
        for panel in self.right if slots > 1 else ():
            if substitute(read, {across: panel.across}) is panel.read:
                return Panel(panel.array, read, across)
        self.allocs += 1
        width, found = width_of(across), array_read(read) if read in self.octets else None
        dtype = self.dtype if found is None else found.dtype
        array = panel_array(self.allocs, count, width, dtype, slots, self.groups)
        return Panel(array, read, across)

    def _span(self) -> tuple[Dim, Dim]:
        """The first tile of keys that the block's rows see, and how many they see."""
        if self.facts.over is not None:
            return 0, extent_of(self.facts.over)
        keys = self.keys
        every = index.floordiv(index.add(self.lengths[1], keys - 1), keys)
        first: Dim = 0
        last = every
        for constant, factor, sign in self.limits:
            if sign > 0:
                most = index.add(constant, index.mul(index.add(self.start, self.rows - 1), factor))
                last = index.minimum(last, index.floordiv(index.add(most, keys), keys))
            else:
                # constant + factor * row + key < 0 hides: factor is -1 or 0.
                least = index.sub(index.mul(self.start, -factor), constant)
                first = index.minimum(index.maximum(index.floordiv(least, keys), 0), every)
        if len(self.limits) == 1 and self.limits[0].sign < 0:
            return first, index.sub(every, first)
        return first, index.maximum(index.sub(last, first), 0)

    def kernel(self) -> Node:
        """The loops over blocks, and in each: the rows, the tiles of keys, the results."""
        facts = self.facts
        still = self.left if facts.over is None else ()
        statements = [
            self._copy(panel, facts.row, 50 + 5 * place) for place, panel in enumerate(still)
        ]
        if not self.step.ahead and self.slots > 1:
            statements += [*self._copies(0, 60), commit()]
        if self.by_warps:
            # Rows, which all warps read, have come as well.
            statements.append(done("copy"))
        has_sums = facts.states > 0 or not (facts.values or facts.over is not None)
        if facts.over is not None:
            statements.append(store(self.every, ZERO, (*self.own, self.part, self.n)))
        statements += self.states.begun()
        if has_sums:
            statements.append(store(self.sums, ZERO, (*self.own, self.n)))
        statements += [store(acc, ZERO, (*self.own, *self.wide, self.c)) for acc in self.acc]
        if self.step.ahead:
            statements += self._ahead()
        else:
            loop = self.loop, sequence(self._iteration())
            statements.append(make_node(Ops.LOOP, dtypes.token, loop))
        statements += self.states.ended(self.acc, (*self.wide, self.c))
        if has_sums:
            total = folded(Ops.ADD, load(self.sums, (*self.own, self.n)), self.n)
            statements.append(store(self.total, total, self.own))
        statements += self._results()
        body = sequence(statements)
        tiles = (self.number,) if facts.over is None else (self.column, self.number)
        for axis in (*self.inside, *tiles, *self.outside):
            body = make_node(Ops.LOOP, dtypes.token, (axis, body))
        info = facts.kernel.arg._replace(resident=self.step.resident)
        return make_node(Ops.KERNEL, dtypes.token, (body,), info)

    # --- copies ---------------------------------------------------------------------------------

    def _slot(self, tile: Dim) -> tuple[Dim, ...]:
        """Where a tile of keys lies, of several."""
        return () if self.slots == 1 else (index.mod(tile, self.slots),)

    def _copies(
        self, tile: Dim, number: int, of: Sequence[Panel] | None = None
    ) -> tuple[Node, ...]:
        """The copies of one tile of keys, of all or of some inputs, begun if there is one."""
        there = index.both(index.less(tile, extent_of(self.loop)), self._is_seen(tile))
        if there.op is Ops.CONST and not there.arg:
            return ()
        slot = self._slot(tile)
        panels = {panel.array: panel for panel in reversed(of or self.right)}
        made = tuple([
            self._copy(panel, self.facts.key, number + 5 * place, tile, slot)
            for place, panel in enumerate(reversed(panels.values()))
        ])
        if self.facts.over is not None:
            made += tuple([
                self._copy(panel, self.facts.row, number + 5 * place, tile, slot)
                for place, panel in enumerate(self.left, len(panels))
            ])
        if there.op is Ops.CONST:
            return made
        return (make_node(Ops.IF, dtypes.token, (there, sequence(made))),)

    def _is_seen(self, tile: Dim) -> Node:
        """Whether some row may see a key of a tile, as far as one answer for the block tells."""
        start = self._first_key(tile)
        ends = index.as_node(start), index.as_node(index.add(start, self.keys - 1))
        seen = list[Node]()
        rows = index.as_node(self.start), index.as_node(index.add(self.start, self.rows - 1))
        key, row = self.facts.key, self.facts.row
        for condition in self.facts.hidden:
            hidden = holds_between(condition, key, ends)
            if hidden is not None and row is not None and key not in condition.ranges:
                # Whatever passes, as keys past the length of a sequence that queries pass.
                hidden = holds_between(hidden, row, rows)
            if hidden is not None and row not in hidden.ranges:
                seen.append(alu(Ops.NOT, self._of_block(hidden)))
        for constant, factor, sign in self.limits if self.facts.over is not None else ():
            place = index.add(self.start, self.rows - 1) if factor > 0 else self.start
            most = index.add(constant, index.mul(place, factor))
            seen.append(index.at_least(index.sub(most, index.mul(ends[sign < 0], sign)), 0))
        return index.both(*seen)

    def _first_key(self, tile: Dim) -> Dim:
        passed = self.column if self.facts.over is not None else index.add(self.first, tile)
        return index.mul(passed, self.keys)

    def _axes(self, tile: Dim | None) -> dict[Node, Node]:
        """The block's axes for the kernel's, and for what passes, that of a tile."""
        found = dict(zip(self.facts.batch, self.blocks, strict=True))
        if self.facts.over is not None and tile is not None:
            found[self.facts.over] = index.as_node(tile)
        return found

    def _of_block(self, value: Node) -> Node:
        """An expression over the axes of blocks alone."""
        value = substitute(value, self._axes(None))

        def loaded(node: Node) -> Node | None:
            if node.op is not Ops.INDEX:
                return index.resimplify(node)
            array, *indices = node.src
            return load(flat(array), whole((index.flatten(indices, array.shape),)))

        return rebuild(value, loaded)

    def _copy(
        self, panel: Panel, along: Node | None, number: int,
        tile: Dim | None = None, slot: tuple[Dim, ...] = (),
    ) -> Node:  # fmt: skip
        """A tile of an input in shared memory, by all threads; zeros past its end."""
        is_of_rows = along is self.facts.row
        array = panel.array
        count, width = panel.count, panel.width
        each_warp = int(self.lanes.src[0].arg)
        threads = self.warps * each_warp
        lanes = panel.lanes
        first = self.start if is_of_rows or tile is None else self._first_key(tile)
        vector = axis_of(number, lanes, "vector")
        rounds = -(-count * width // (threads * lanes))
        each = axis_of(number + 1, rounds, "unroll" if lanes > 1 else "loop")
        apart = (rounds, each_warp) if self.by_warps and not is_of_rows else (1, threads)
        place: Dim = index.add(index.mul(self.warp, apart[0] * each_warp), self.lanes)
        place = index.add(place, index.mul(each, apart[1]))
        at = index.floordiv(place, width // lanes)
        column = index.add(index.mul(index.mod(place, width // lanes), lanes), vector)
        row = index.add(first, at)
        places: dict[Node, Dim] = {**self._axes(tile), panel.across: column}
        if along is not None:
            places[along] = row
        limit = self.lengths[0 if is_of_rows else 1]
        found = read_where(panel.read, places, index.less(row, limit), array.dtype)
        to = whole((*slot, *panel.places(at, column)))
        if lanes == 1 or found.op is Ops.CAST:
            done = store(array, found, to)
        else:
            target = (array, found, *to)
            lines = not is_of_rows and self.facts.passes_once(panel.read, self.rows)
            done = make_node(Ops.COPYTO, dtypes.token, target, CopyTo("async", lines=lines))
        if count * width % (threads * lanes):
            done = make_node(Ops.IF, dtypes.token, (index.less(at, count), done))
        return make_node(Ops.LOOP, dtypes.token, (each, done)) if lanes == 1 else done

    # --- one tile of keys -----------------------------------------------------------------------

    def _iteration(self) -> list[Node]:
        """What a block does for a tile of keys."""
        facts, own = self.facts, (*self.own, self.part, self.n)
        begun = [store(s, ZERO, own) for s in self.s]
        begun += [self._scores(place, load(s, own)) for place, s in enumerate(self.s)]
        copies = [*self._copies(index.add(self.loop, self.slots - 1), 75), commit()]
        came = done("copy", by_warps=self.by_warps)
        statements = [came, *copies] if self.slots > 1 else [*copies, came]
        work = begun
        is_seen = self._is_seen(self.loop)
        if self.groups and is_seen.op is Ops.CONST:
            # They multiply while their threads begin the next copies.
            statements, work = [statements[0], *begun, *copies], []
        groups = GroupsBegun(list(range(len(self.s))), self.groups)
        work += groups.wait(facts.exponent_reads)
        if facts.states:
            work += [*self._exponents(self.s[0], own), *self.states.raised()]
            work += self.states.scaled(self.acc, (*self.wide, self.c))
        weighing, terms = self._terms(own)
        work += weighing
        if facts.values:
            last = list[Node]()
            for term in terms:
                total = load(self.acc[term.number], (*self.own, *self.wide, self.c))
                factors = self._second(term.array, self.right[len(self.s) + term.number])
                made = self._product(total, *factors, "n", (self.j, self.turn))
                work += [*groups.wait(term.reads), *term.statements]
                groups.begun.append(len(self.s) + term.number)
                # The unit of a single warp waits for nothing, and reads all factors one by one.
                (work if self.groups else last).append(made)
            work += [*last, *groups.wait(groups.begun)]
        else:
            work += groups.wait(groups.begun)
            into, places = self.sums, (*self.own, self.n)
            if facts.over is not None:
                into, places = self.every, own
            for term in terms:
                weights = load(term.array, own)
                more = weights if places is own else folded(Ops.ADD, weights, self.part)
                more = alu(Ops.ADD, load(into, places), more)
                work += [*term.statements, store(into, more, places)]
        if is_seen.op is not Ops.CONST:
            work = [make_node(Ops.IF, dtypes.token, (is_seen, sequence(work)))]
        return [*statements, *work]

    def _ahead(self) -> list[Node]:
        """What a block does for all tiles of keys, whose scores come one tile early."""
        own = (*self.own, self.part, self.n)
        keys, values = self.right
        total = load(self.acc[0], (*self.own, *self.wide, self.c))
        factors = self._second(self.powers, values)
        number = axis_of(5, index.sub(extent_of(self.loop), 1), "loop", "keys")
        parts = StreamParts(
            [store(self.s[0], ZERO, own), self._scores(0, load(self.s[0], own))],
            [*self._exponents(self.s[0], own), *self.states.raised()],
            self.states.scaled(self.acc, (*self.wide, self.c)),
            [self._product(total, *factors, "n", (self.j, self.turn))],
            lambda tile: self._copies(tile, 60, [keys]),
            lambda tile: self._copies(tile, 75, [values]),
        )  # fmt: skip
        return one_ahead(self.loop, number, parts)

    def _terms(self, own: Places) -> tuple[list[Node], list[Term]]:
        """The weights of a tile, made in registers: what all share, and the terms in order."""
        facts, statements = self.facts, list[Node]()
        known: dict[Node, Node] = {}
        # Where the exponent lies: in its product's place, if nothing else reads that.
        place = min(facts.exponent_reads)
        if facts.states:
            known[facts.near] = load(self.s[0], own)
            if facts.weights == (facts.near,):
                return statements, [Term(0, self.s[0], frozenset(), ())]
        elif not facts.exponent_reads & facts.read_beside(facts.exponent):
            exponent = load(self.s[place], own)
            statements += self._exponents(self.s[place], own)
            difference = facts.near.src[0]
            known[facts.exponent] = exponent
            if facts.scaled is not None:
                shift = self._at_tile(difference.src[1], {})
                known[difference] = less(facts, exponent, shift)
            common = facts.shared_weight
            if len(facts.weights) > 1 and not facts.exponent_reads & facts.read_beside(common):
                # What several weights are made of is computed once.
                statements.append(store(self.s[place], self._weights(common, known), own))
                known = {common: exponent}
        reads = [{n for n, each in enumerate(facts.products) if each.total in toposort(weights)}
                 for weights in facts.weights]  # fmt: skip
        order = sorted(range(len(reads)), key=lambda term: -len(reads[term]))
        held: dict[int, Node] = {}
        terms = list[Term]()
        for term in [term for term in order if known.get(facts.weights[term]) is not None]:
            # It is there already: the unit is busy with it while others are made.
            order.remove(term)
            held[term] = self.s[place]
            terms.append(Term(term, self.s[place], frozenset(), ()))
        for number, term in enumerate(order):
            later = set[int]().union(*[reads[other] for other in order[number + 1 :]])
            free = [s for n, s in enumerate(self.s) if n not in later and s not in held.values()]
            shape = self.s[0].arg.shape
            held[term] = free[0] if free else self._array("register", shape)
            weights = self._weights(facts.weights[term], known)
            made = (store(held[term], weights, own),)
            terms.append(Term(term, held[term], frozenset(reads[term]), made))
        return statements, terms

    def _scores(self, place: int, total: Node) -> Node:
        """The MMA of a product inside the stream."""
        left, right = self.left[place], self.right[place]
        slot = () if self.facts.over is None else self._slot(self.loop)
        outer = steps_of([width_of(one.depth) for one in self.facts.products], place, self.groups)
        step = (*outer[:-1], index.add(index.mul(outer[-1], DEPTH), self.k))
        a = load(left.array, whole((*slot, *left.places(self.place, *step))))
        there = right.places(self.own_key, *step)
        b = load(right.array, whole((*self._slot(self.loop), *there)))
        return self._product(total, a, b, "k", (self.k, *outer))

    def _second(self, array: Node, panel: Panel) -> tuple[Node, Node]:
        """The factors of a last product: weights in registers, and values."""
        part = index.add(index.mul(self.turn, DEPTH // N), index.floordiv(self.j, N))
        held = load(array, (*self.own, *whole((part, index.mod(self.j, N)))))
        step = index.add(self.of_warp, index.add(index.mul(self.turn, DEPTH), self.j))
        places = panel.places(step, *in_panel(self.wide, self.c, self.turned))
        there = load(panel.array, whole((*self._slot(self.loop), *places)))
        return cast(held, self.states.narrow), there

    def _product(
        self, total: Node, left: Node, right: Node, major: str, summed: Places
    ) -> Node:
        """The MMA that adds all steps of a tile's product to registers."""
        columns = self.n if major == "k" else self.c
        space = "shared" if major == "k" else "register"
        name, rows = ("wgmma", wgmma.M) if self.groups else ("mma.sync", mma_sync.M)
        beside = None if right.dtype is left.dtype else right.dtype
        info = Mma(name, (rows, N, DEPTH), left.dtype, F32, space, major, beside=beside)
        # Scores begin anew; what they are set to before is for products of single warps.
        keep = const(major != "k" or not self.groups, dtypes.bool)
        src = (total, left, right, keep, self.m, columns, *summed)
        return make_node(Ops.MMA, dtypes.token, src, info)

    def _key(self) -> Dim:
        return index.add(self._first_key(self.loop), self.own_key)

    def _at_tile(self, value: Node, known: dict[Node, Node]) -> Node:
        """An expression over the kernel's axes at the elements of a tile."""
        facts, key, own = self.facts, self._key(), (*self.own, self.part, self.n)
        places = self._axes(self.loop)
        places[facts.key] = index.as_node(key)
        if facts.row is not None:
            places[facts.row] = index.as_node(self.row)
        for scores, s in zip(facts.products, self.s, strict=True):
            places[scores.total] = load(s, own)
        bounds = {facts.row: index.less(self.row, self.lengths[0]),
                  facts.key: index.less(key, self.lengths[1])}  # fmt: skip

        def visit(node: Node) -> Node | None:
            return index.resimplify(node)

        def read(node: Node) -> Node:
            """An element, where there is one: reads of a row alone ask nothing of the key."""
            array, *indices = node.src
            there = [holds for axis, holds in bounds.items() if axis in node.ranges]
            place = index.flatten([rebuild(one, visit, memo=memo) for one in indices], array.shape)
            return guarded(index.both(*there), load(flat(array), whole((place,))))

        memo = {**places, **known}
        for node in toposort(value, enter=lambda one: one not in memo):
            if node.op is Ops.INDEX and node not in memo:
                memo[node] = read(node)
        return rebuild(value, visit, memo=memo)

    def _exponents(self, s: Node, own: Places) -> list[Node]:
        """Scores become x, -inf where it is hidden: what no row sees whole is asked by element."""
        facts, known = self.facts, dict[Node, Node]()
        if facts.scaled is not None:
            # They stay as they are: what takes their powers multiplies.
            known[facts.scaled.product] = self._at_tile(facts.scaled.value, {})
        masked = self._at_tile(facts.exponent, known)
        there = index.less(self._key(), self.lengths[1])
        if there.op is not Ops.CONST:
            masked = alu(Ops.WHERE, there, masked, LOWEST)
        plain = self._at_tile(facts.unmasked, known)
        if masked is plain:
            return [store(s, plain, own)]
        whole = self._sees_whole()
        if whole.op is Ops.CONST:
            return [store(s, plain if whole.arg else masked, own)]
        return [
            make_node(Ops.IF, dtypes.token, (whole, store(s, plain, own))),
            make_node(Ops.IF, dtypes.token, (alu(Ops.NOT, whole), store(s, masked, own))),
        ]

    def _sees_whole(self) -> Node:
        """Whether all rows of the block see all keys of a tile."""
        start = self._first_key(self.loop)
        after = index.add(start, self.keys)
        conditions = [index.less(index.sub(after, 1), self.lengths[1])]
        for constant, factor, sign in self.limits:
            rows = self.start if factor > 0 else index.add(self.start, self.rows - 1)
            far = index.sub(after, 1) if sign > 0 else start
            least = index.add(constant, index.mul(rows, factor))
            conditions.append(index.at_least(index.sub(least, index.mul(far, sign)), 0))
        return index.both(*conditions)

    def _weights(self, weights: Node, known: dict[Node, Node]) -> Node:
        """The weights of a tile's elements, 0 past the last key."""
        found = self._at_tile(weights, known)
        there = index.less(self._key(), self.lengths[1])
        return found if there.op is Ops.CONST else alu(Ops.WHERE, there, found, ZERO)

    # --- results --------------------------------------------------------------------------------

    def _results(self) -> list[Node]:
        """What is made of the states, written where there is a row."""
        facts = self.facts
        sums = [load(acc, (*self.own, *self.wide, self.c)) for acc in self.acc]
        states = [load(self.total, self.own), *sums] if facts.states or not sums else sums
        if facts.states:
            states.insert(0, load(self.states.row.top, self.own))
        memo = self._axes(None)
        if facts.column is not None:
            places = in_panel(self.wide, self.c, self.turned)
            column = index.flatten(places, [0, wgmma.PANEL][-len(self.wide):])
            memo[facts.column] = index.as_node(column)
        if self.step.shares > 1:
            put = SharedStates(self.states, self.warp, self.place, self.rows, self.lanes)
            return put.results(states, memo, self.start)
        if facts.row is not None:
            memo[facts.row] = index.as_node(self.row)
        there = index.less(self.row, self.lengths[0])
        if facts.over is not None:
            states = [load(self.every, (*self.own, self.part, self.n))]
            memo[facts.fold], memo[facts.key] = states[0], index.as_node(self._key())
            there = index.both(there, index.less(self._key(), self.lengths[1]))
        return [written(facts, out, states, memo, there) for out in facts.kernel.src]

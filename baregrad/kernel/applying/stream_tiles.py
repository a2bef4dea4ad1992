"""A stream over the keys as loops of a GPU's block: tiles of keys pass a tile of rows.

Each warp has some rows. Of each tile of keys it makes the scores by its matrix unit, in registers;
their largest may raise the row's maximum, then what was summed so far is scaled, once for the tile.
The powers stay in the registers in which the second product takes them as its first factor. Keys
and values are copied to shared memory one tile ahead. Of rows that see keys up to a limit alone,
the tiles beyond it are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, Reduce
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const, extent_of, make_node, range_node, rebuild
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import CopyTo, Done, Mma
from baregrad.kernel.facts.stream_facts import StreamFacts, stream_facts
from baregrad.kernel.gpu.barriers import sequence
from baregrad.kernel.instructions.mma_sync import LANES, TILE, M, N
from baregrad.kernel.language.schedule import Schedule, StreamTiles, illegal
from baregrad.kernel.loops.loop_pieces import guarded, load, store
from baregrad.target import AnyTarget

F32 = dtypes.float32
DEPTH = 16
CHUNK = 8
SLOTS = 2
# Beyond the ids of a kernel's own axes and of its copies' axes.
FIRST_ID = 1 << 22
_LOWEST, _ZERO, _TRUE = const(float("-inf"), F32), const(0.0, F32), const(True, dtypes.bool)
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
    dtype = facts.values.dtype
    if target.kind != "gpu" or (dtype.name, DEPTH) not in target.warp_products:
        raise illegal(step, "the machine has no such instruction", found=dtype)
    if step.keys % DEPTH or any(width % DEPTH for width in facts.widths):
        raise illegal(step, "keys and widths are multiples of 16", found=[step.keys, *facts.widths])
    return _Builder(facts, step).kernel()


def _axis(number: int, extent: Dim, bind: str, name: str = "") -> Node:
    return range_node(extent, FIRST_ID + number, name, bind)


def _whole(places: Sequence[Dim]) -> Places:
    return tuple([index.as_node(place) for place in places])


class _Builder:
    """The axes and arrays of one kernel, and its statements."""

    def __init__(self, facts: StreamFacts, step: StreamTiles) -> None:
        self.facts, self.step = facts, step
        self.dtype: DType = facts.values.dtype
        self.rows = step.warps * step.tiles * M
        deep, wide = facts.widths
        keys = step.keys
        self.lengths: tuple[Dim, Dim] = (
            1 if facts.row is None else extent_of(facts.row), extent_of(facts.key)
        )
        count = index.floordiv(index.add(self.lengths[0], self.rows - 1), self.rows)
        self.blocks = tuple([axis.replace(arg=axis.arg._replace(bind="grid"))
                             for axis in facts.batch])  # fmt: skip
        self.number = _axis(0, count, "grid", "rows")
        self.warp = _axis(2, step.warps, "thread_y", "w")
        self.tile, self.m = _axis(20, step.tiles, "unroll", "u"), _axis(40, M, TILE, "m")
        # Tiles of keys and their columns; of values; steps of either product.
        self.part, self.n = _axis(30, keys // N, "unroll", "v"), _axis(41, N, TILE, "n")
        self.block, self.c = _axis(31, wide // N, "unroll", "d"), _axis(42, N, TILE, "c")
        self.outer, self.k = _axis(10, deep // DEPTH, "unroll", "ko"), _axis(43, DEPTH, TILE, "k")
        self.turn, self.j = _axis(11, keys // DEPTH, "unroll", "jo"), _axis(44, DEPTH, TILE, "j")
        # Where no row sees later keys, the blocks with most to do come first.
        place: Dim = self.number
        if facts.last_key is not None:
            place = index.sub(index.sub(count, 1), self.number)
        self.start = index.mul(place, self.rows)
        own = index.add(index.mul(self.warp, step.tiles * M), index.mul(self.tile, M))
        self.place = index.add(own, self.m)
        self.row = index.add(self.start, self.place)
        self.loop = _axis(1, self._trips(), "loop", "keys")
        self.own: Places = (self.warp, self.tile, self.m)
        self.allocs = 0
        shape = (step.warps, step.tiles, M)
        self.q = self._array("shared", (self.rows, deep + CHUNK), self.dtype)
        self.kept = self._array("shared", (keys, deep + CHUNK), self.dtype, SLOTS)
        self.values = self._array("shared", (keys, wide + CHUNK), self.dtype, SLOTS)
        self.s = self._array("register", (*shape, keys // N, N))
        self.sums = self._array("register", (*shape, N))
        self.acc = self._array("register", (*shape, wide // N, N))
        self.top, self.next, self.scale, self.total = [
            self._array("register", shape) for _ in range(4)
        ]

    def _array(
        self, space: str, shape: tuple[int, ...], dtype: DType = F32, slots: int = 1
    ) -> Node:
        self.allocs += 1
        name = f"{space[0]}{self.allocs}"
        where = Alloc(self.allocs, space, shape, depth=slots, name=name)
        return make_node(Ops.ALLOC, dtype, (), where)

    def _trips(self) -> Dim:
        """How many tiles of keys the block's rows see."""
        facts, keys = self.facts, self.step.keys
        every = index.floordiv(index.add(self.lengths[1], keys - 1), keys)
        if facts.last_key is None:
            return every
        constant, factor = facts.last_key
        last = index.add(constant, index.mul(index.add(self.start, self.rows - 1), factor))
        seen = index.floordiv(index.add(last, keys), keys)
        return index.maximum(index.minimum(every, seen), 0)

    def kernel(self) -> Node:
        """The loops over blocks, and in each: the rows, the tiles of keys, the results."""
        statements = (
            self._copy(self.q, self.facts.left, self.facts.row, self.facts.depth, 50),
            *self._copies(0, 60),
            make_node(Ops.COMMIT, dtypes.token),
            store(self.top, _LOWEST, self.own),
            store(self.sums, _ZERO, (*self.own, self.n)),
            store(self.acc, _ZERO, (*self.own, self.block, self.c)),
            make_node(Ops.LOOP, dtypes.token, (self.loop, sequence(self._iteration()))),
            store(self.total, self._folded(Ops.ADD, load(self.sums, (*self.own, self.n)), self.n),
                  self.own),
            self._result(),
        )  # fmt: skip
        body = sequence(statements)
        for axis in (self.number, *reversed(self.blocks)):
            body = make_node(Ops.LOOP, dtypes.token, (axis, body))
        return make_node(Ops.KERNEL, dtypes.token, (body,), self.facts.kernel.arg)

    # --- copies ---------------------------------------------------------------------------------

    def _copies(self, tile: Dim, number: int) -> tuple[Node, ...]:
        """The copies of one tile of keys, begun if there is one."""
        facts, slot = self.facts, index.mod(tile, SLOTS)
        start = index.mul(tile, self.step.keys)
        made = (
            self._copy(self.kept, facts.right, facts.key, facts.depth, number, start, slot),
            self._copy(self.values, facts.values, facts.key, facts.column, number + 5, start, slot),
        )
        there = index.less(tile, extent_of(self.loop))
        if there.op is Ops.CONST:
            return made if there.arg else ()
        return (make_node(Ops.IF, dtypes.token, (there, sequence(made))),)

    def _copy(
        self, array: Node, read: Node, along: Node | None, across: Node, number: int,
        start: Dim | None = None, slot: Dim | None = None,
    ) -> Node:  # fmt: skip
        """A tile of an input in shared memory, by all threads; zeros past its end."""
        count, width = array.arg.shape[0], array.arg.shape[1] - CHUNK
        threads = self.step.warps * LANES.src[0].arg
        lanes = CHUNK if self._is_chunked(read, across) else 1
        first = self.start if start is None else start
        vector = _axis(number, lanes, "vector")
        place: Dim = index.add(index.mul(self.warp, LANES.src[0].arg), LANES)
        rounds = -(-count * width // (threads * lanes))
        each = _axis(number + 1, rounds, "unroll" if lanes > 1 else "loop")
        place = index.add(place, index.mul(each, threads))
        at = index.floordiv(place, width // lanes)
        column = index.add(index.mul(index.mod(place, width // lanes), lanes), vector)
        row = index.add(first, at)
        places: dict[Node, Dim] = {across: column}
        if along is not None:
            places[along] = row
        found = self._read(read, places)
        limit = self.lengths[0 if start is None else 1]
        found = guarded(index.less(row, limit), found)
        to = _whole((*(() if slot is None else (slot,)), at, column))
        if lanes == 1:
            done = store(array, found, to)
        else:
            target = (array, found, *to)
            done = make_node(Ops.COPYTO, dtypes.token, target, CopyTo("async"))
        if count * width % (threads * lanes):
            done = make_node(Ops.IF, dtypes.token, (index.less(at, count), done))
        return make_node(Ops.LOOP, dtypes.token, (each, done)) if lanes == 1 else done

    def _is_chunked(self, read: Node, across: Node) -> bool:
        """Whether elements along an axis lie together, in chunks of 16 bytes."""
        terms, constant = index.linear(index.flatten(read.src[1:], read.src[0].shape))
        others = [scale for atom, scale in terms.items() if atom is not across]
        return terms.get(across) == 1 and not any(s % CHUNK for s in (constant, *others))

    def _read(self, read: Node, places: dict[Node, Dim]) -> Node:
        """An element of an input, at places along some axes."""
        mapping = dict(zip(self.facts.batch, self.blocks, strict=True))
        mapping.update({axis: index.as_node(place) for axis, place in places.items()})
        array, *indices = substitute(read, mapping).src
        return load(_flat(array), _whole((index.flatten(indices, array.shape),)))

    # --- one tile of keys -----------------------------------------------------------------------

    def _iteration(self) -> list[Node]:
        """What a block does for a tile of keys."""
        s, own = self.s, (*self.own, self.part, self.n)
        sums, acc = (*self.own, self.n), (*self.own, self.block, self.c)
        scores, top = load(s, own), load(self.top, self.own)
        following, scale = load(self.next, self.own), load(self.scale, self.own)
        high = self._folded(Ops.MAX, scores, self.part, self.n)
        known = alu(Ops.CMPEQ, following, _LOWEST)
        shift = alu(Ops.WHERE, known, _ZERO, following)
        power = Node(Ops.EXP2_NEAR, F32, (alu(Ops.SUB, scores, shift),))
        factor = Node(Ops.EXP2, F32, (alu(Ops.SUB, top, shift),))
        summed = self._folded(Ops.ADD, scores, self.part)
        statements = [
            make_node(Ops.DONE, dtypes.token, (), Done("copy")),
            *self._copies(index.add(self.loop, 1), 70),
            make_node(Ops.COMMIT, dtypes.token),
            store(s, _ZERO, own),
            self._product(load(s, own), self._left(), self._right(), "k"),
            store(s, self._exponent(scores), own),
            store(self.next, alu(Ops.MAX, top, Node(Ops.CEIL, F32, (high,))), self.own),
            store(self.scale, factor, self.own),
            store(s, power, own),
            store(self.sums, Node(Ops.FMA, F32, (load(self.sums, sums), scale, summed)), sums),
            store(self.acc, alu(Ops.MUL, load(self.acc, acc), scale), acc),
        ]
        if self.facts.weights is not self.facts.power:
            statements.append(store(s, self._weights(scores), own))
        statements.append(self._product(load(self.acc, acc), *self._second(), "n"))
        statements.append(store(self.top, following, self.own))
        return statements

    def _left(self) -> Node:
        step = index.add(index.mul(self.outer, DEPTH), self.k)
        return load(self.q, _whole((self.place, step)))

    def _right(self) -> Node:
        slot, step = index.mod(self.loop, SLOTS), index.add(index.mul(self.outer, DEPTH), self.k)
        return load(self.kept, _whole((slot, index.add(index.mul(self.part, N), self.n), step)))

    def _second(self) -> tuple[Node, Node]:
        """The factors of the second product: powers in registers, and values."""
        part = index.add(index.mul(self.turn, DEPTH // N), index.floordiv(self.j, N))
        held = load(self.s, (*self.own, *_whole((part, index.mod(self.j, N)))))
        step = index.add(index.mul(self.turn, DEPTH), self.j)
        column = index.add(index.mul(self.block, N), self.c)
        places = _whole((index.mod(self.loop, SLOTS), step, column))
        return cast(held, self.dtype), load(self.values, places)

    def _product(self, total: Node, left: Node, right: Node, major: str) -> Node:
        """The MMA that adds all steps of a tile's product to registers."""
        summed = (self.k, self.outer) if major == "k" else (self.j, self.turn)
        columns = self.n if major == "k" else self.c
        space = "shared" if major == "k" else "register"
        info = Mma("mma.sync", (M, N, DEPTH), self.dtype, F32, space, major)
        src = (total, left, right, _TRUE, self.m, columns, *summed)
        return make_node(Ops.MMA, dtypes.token, src, info)

    def _folded(self, op: Op, value: Node, *axes: Node) -> Node:
        return Node(Ops.REDUCE, F32, (value, *axes), Reduce(primitive(op, F32)))

    def _key(self) -> Dim:
        part = index.add(index.mul(self.part, N), self.n)
        return index.add(index.mul(self.loop, self.step.keys), part)

    def _at_tile(self, value: Node, known: dict[Node, Node]) -> Node:
        """An expression over the kernel's axes at the elements of a tile."""
        facts, key = self.facts, self._key()
        places: dict[Node, Node] = dict(zip(facts.batch, self.blocks, strict=True))
        places[facts.key] = index.as_node(key)
        if facts.row is not None:
            places[facts.row] = index.as_node(self.row)
        inside = index.both(index.less(self.row, self.lengths[0]), index.less(key, self.lengths[1]))

        def visit(node: Node) -> Node | None:
            if node.op is not Ops.INDEX:
                return index.resimplify(node)
            array, *indices = node.src
            place = index.flatten(indices, array.shape)
            return guarded(inside, load(_flat(array), _whole((place,))))

        return rebuild(value, visit, memo={**places, **known})

    def _exponent(self, scores: Node) -> Node:
        """x of a tile's elements, -inf past the last key."""
        found = self._at_tile(self.facts.exponent, {self.facts.scores: scores})
        there = index.less(self._key(), self.lengths[1])
        return found if there.op is Ops.CONST else alu(Ops.WHERE, there, found, _LOWEST)

    def _weights(self, scores: Node) -> Node:
        """What is made of a tile's powers."""
        return self._at_tile(self.facts.weights, {self.facts.power: scores})

    # --- results --------------------------------------------------------------------------------

    def _result(self) -> Node:
        """What is made of the states, written where there is a row."""
        facts = self.facts
        states = (
            load(self.top, self.own), load(self.total, self.own),
            load(self.acc, (*self.own, self.block, self.c)),
        )
        column = index.add(index.mul(self.block, N), self.c)
        places: dict[Node, Node] = dict(zip(facts.batch, self.blocks, strict=True))
        places[facts.column] = index.as_node(column)
        if facts.row is not None:
            places[facts.row] = index.as_node(self.row)
        there = index.less(self.row, self.lengths[0])

        def visit(node: Node) -> Node | None:
            if node.op is Ops.PROJ and node.src[0] is facts.fold:
                return states[node.arg]
            if node.op is Ops.INDEX:
                array, *indices = node.src
                place = index.flatten(indices, array.shape)
                return guarded(there, load(_flat(array), _whole((place,))))
            return index.resimplify(node)

        def enter(node: Node) -> bool:
            return node is not facts.fold

        array, value, *indices = facts.out.src
        found = rebuild(value, visit, memo=dict(places), enter=enter)
        at = [rebuild(place, visit, memo=dict(places)) for place in indices]
        done = store(_flat(array), found, _whole((index.flatten(at, array.shape),)))
        return done if there.op is Ops.CONST else make_node(Ops.IF, dtypes.token, (there, done))


def _flat(array: Node) -> Node:
    """A PARAM as one axis."""
    shape = (index.as_dim(index.product(array.shape)),)
    return make_node(Ops.PARAM, array.dtype, (), array.arg._replace(shape=shape))

"""Folds of items, of a vector's lanes and of a block's threads, in an order that never changes.

Along an axis whose threads lie in one warp, lanes exchange values: point i meets point i + n/2,
then i + n/4, and so on, and every lane ends with the same bits because what is combined commutes.
Any other axis goes through shared memory: all write, meet, and each reads and folds all points in
the order of the evaluator; of a long one those of its own lane, which are apart by whole warps,
before lanes exchange what they found. Vectors of many points are folded by a thread for each
element, which shows the others what it found. Where a statement has several sums of threads, as
those of some rows side by side, or statements next to each other have, they are folded together:
threads meet once for all, and no exchange waits for another sum's.

A running fold is one of each thread's own elements, after what is before that thread: lanes find
that by the same exchanges, warps by what each of them comes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from baregrad.base.bits import is_power_of_two, next_power_of_two
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, Machine, Reduce
from baregrad.ir.core.axes import THREAD_BINDS, Var
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, const, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.gpu.shared_copies import is_shared_out
from baregrad.kernel.linearise.access import access_of, lanes_of
from baregrad.kernel.linearise.lazy import SPARE_ID
from baregrad.kernel.linearise.reader import Reader
from baregrad.kernel.linearise.scopes import MOMENT
from baregrad.kernel.linearise.tile_axes import Point

WARP = 32
BARRIER = Node(Ops.MACHINE, dtypes.token, (), Machine("bar.sync", (0,)))
OF_WARP = Node(Ops.MACHINE, dtypes.token, (), Machine("bar.warp.sync"))
Parts = tuple[Node, ...]
# Bytes of a fold's arrays in shared memory up to which the next has others: those of vectors may
# take half of what a multiprocessor has.
TURN_NBYTES = 8 << 10
# Arrays in shared memory, each with the lanes of an element.
Arrays = list[tuple[Node, int]]


def reduce(values: Reader, node: Node, operands: Sequence[Any]) -> Any:
    """The rule of a REDUCE over tile ranges: unrolled ones first, then lanes, then threads."""
    monoid: Monoid = node.arg.monoid
    threads = _threads(values, node)
    if threads:
        known = values.scopes.memo.get(values.key(node))
        if known is not None:
            return known
    result = _own(values, node, threads)
    if threads:
        (result,) = fold_threads(values, monoid, [result], threads)
        if monoid.arity > 1:
            # Its other states are asked for as well.
            _note(values, values.key(node), monoid, result)
    return result if monoid.arity > 1 else result[0]


def _note(values: Reader, key: Any, monoid: Monoid, parts: Parts) -> None:
    """Let what threads have folded be found until the statement ends."""
    values.scopes.memo[key] = parts if monoid.arity > 1 else parts[0]
    values.scopes.momentary_keys.append(key)


def fold_of_threads(value: Node) -> Node | None:
    """The one fold of several states by a block's threads that a value is made of; else None."""
    if not (value.has(Ops.PROJ) and value.has(Ops.REDUCE)):
        return None
    found = [
        node for node in toposort(value) if node.op is Ops.REDUCE and node.arg.monoid.arity > 1
        and any(child.op is Ops.RANGE and child.arg.is_thread for child in node.src)
    ]
    return found[0] if len(found) == 1 else None


def fold_together(values: Reader, stores: Sequence[tuple[Node, Sequence[Point]]]) -> None:
    """Fold what some values have of the block's threads at their points, as many as fit at once."""
    folds: dict[Node, Sequence[Point]] = {}
    for root, points in stores:
        for node in toposort(root):
            if node.op is not Ops.REDUCE or node in folds:
                continue
            if len(points) > 1 and not values.tiles.axes_of(node.ranges):
                continue
            threads = _threads(values, node)
            if prod(map(lanes_of, threads)) <= WARP:
                continue
            # Those of the same threads, none of which is made of another, are folded at once.
            if folds and not _is_beside(values, [*folds], node, threads):
                _fold_points(values, folds)
                folds = {}
            folds[node] = points
    if folds:
        _fold_points(values, folds)


def _is_beside(values: Reader, folds: list[Node], node: Node, threads: list[Node]) -> bool:
    """Whether a REDUCE is one by the same threads as some others are, and made of none of them."""
    first = folds[0]
    is_alike = node.arg.monoid == first.arg.monoid and threads == _threads(values, first)
    return is_alike and set(folds).isdisjoint(toposort(node))


def _fold_points(values: Reader, nodes: Mapping[Node, Sequence[Point]]) -> None:
    """Fold REDUCEs, each at some points; their rule finds the results until the statement ends."""
    one = next(iter(nodes))
    monoid: Monoid = one.arg.monoid
    threads = _threads(values, one)
    nbytes = prod(values.block) * sum(dtype.itemsize for dtype in monoid.states)
    most = WARP if _is_for_lanes(values, monoid, threads) else max(TURN_NBYTES // nbytes, 1)
    found: dict[Any, tuple[Node, Point]] = {}
    for node, points in nodes.items():
        for values.point in points:
            found.setdefault(values.key(node), (node, values.point))
    keys = [key for key in found if key not in values.scopes.memo]
    for first in range(0, len(keys), most):
        some = keys[first : first + most]
        states: list[Parts] = []
        for key in some:
            node, values.point = found[key]
            states.append(_own(values, node, threads))
        if len(some) == 1 or any(part.shape for parts in states for part in parts):
            states = [fold_threads(values, monoid, [parts], threads)[0] for parts in states]
        else:
            states = fold_threads(values, monoid, states, threads)
        for key, parts in zip(some, states, strict=True):
            _note(values, key, monoid, parts)
    values.point = {}


def _threads(values: Reader, node: Node) -> list[Node]:
    """The axes of a REDUCE along which threads of a block lie."""
    if not values.gpu:
        return []
    return [child for child in node.src if child.op is Ops.RANGE and child.arg.is_thread]


def _own(values: Reader, node: Node, threads: list[Node]) -> Parts:
    """What a thread itself has of a REDUCE: along unrolled axes, then lanes."""
    monoid: Monoid = node.arg.monoid
    inner = [child for child in node.src if child.op is Ops.RANGE]
    parts = node.src[: len(node.src) - len(inner)]
    unrolled = [axis for axis in inner if axis.arg.bind != "vector" and axis not in threads]
    vectors = [axis for axis in inner if axis.arg.bind == "vector" and lanes_of(axis) > 1]
    if len(vectors) > 1:
        raise CompilerBug("a reduction over two vector ranges", found=node)
    if vectors:
        for part in parts:
            # Raises where what is folded has other lanes, too.
            values.tiles.lanes_of(part.ranges)
    # The first range varies slowest; folding it first means folding columns of the others.
    items: list[Parts] = []
    before = values.point
    around, values.folds_lanes = values.folds_lanes, values.folds_lanes or bool(vectors)
    for point in values.tiles.points(tuple(unrolled), values.point):
        values.point = point
        items.append(tuple([values.value(part) for part in parts]))
    values.point, values.folds_lanes = before, around
    for axis in unrolled:
        count = lanes_of(axis)
        stride = len(items) // count
        items = [fold_items(values, monoid, items[place::stride]) for place in range(stride)]
    result = items[0]
    if vectors:
        lanes = lanes_of(vectors[0])
        result = tuple(values.vector(part, lanes) for part in result)
        result = fold_lanes(values, monoid, result, lanes)
    return result


def combine(values: Reader, monoid: Monoid, left: Parts, right: Parts) -> Parts:
    """The monoid's combination of two tuples of linear values."""
    if monoid.primitive is not None:
        return (values.compute(monoid.primitive, monoid.states[0], (left[0], right[0])),)
    found: dict[Node, Node] = {}
    for node in toposort(*monoid.combine):
        if node.op is Ops.SLOT:
            found[node] = (left + right)[node.arg]
        elif node.op is Ops.CONST:
            found[node] = node
        else:
            operands = [found[child] for child in node.src]
            found[node] = values.compute(node.op, node.dtype, operands)
    return tuple([found[part] for part in monoid.combine])


def fold_items(values: Reader, monoid: Monoid, items: list[Parts]) -> Parts:
    """Items folded by halves, in the order of the loop level's evaluator.

    Item i meets item i + h, h the largest power of two below n; neighbours if order counts.
    """
    while len(items) > 1:
        if monoid.commutative:
            half = next_power_of_two(len(items)) // 2
            pairs = zip(items, items[half:], strict=False)
            rest = items[len(items) - half : half]
        else:
            pairs = zip(items[0::2], items[1::2], strict=False)
            rest = items[len(items) & ~1 :]
        items = [combine(values, monoid, left, right) for left, right in pairs] + rest
    return items[0]


def fold_lanes(values: Reader, monoid: Monoid, parts: Parts, lanes: int) -> Parts:
    """The lanes of vectors folded into scalars, in the order of `fold_items`."""
    emit = values.scopes.emit
    if monoid.primitive is not None and monoid.commutative and not values.gpu:
        return (emit(Ops.ACROSS, monoid.states[0], parts, Reduce(monoid)),)
    while monoid.commutative and lanes > 2 and is_power_of_two(lanes):
        lanes //= 2
        low, high = [
            tuple([emit(Ops.PART, part.dtype, (part,), half, 0, lanes) for part in parts])
            for half in ((0, lanes), (lanes, lanes))
        ]
        parts = combine(values, monoid, low, high)
    items = [
        tuple([emit(Ops.EXTRACT, part.dtype, (part,), lane) for part in parts])
        for lane in range(lanes)
    ]
    return fold_items(values, monoid, items)


def fold_threads(
    values: Reader, monoid: Monoid, states: list[Parts], axes: list[Node]
) -> list[Parts]:
    """States of each thread folded along some axes of the block; every thread gets the results.

    Several states, none of vectors, are folded by themselves side by side.
    """
    if 1 < len(states) <= WARP and _is_for_lanes(values, monoid, axes):
        return _fold_by_lanes(values, monoid, states)
    for axis in sorted(axes, key=lambda axis: THREAD_BINDS.index(axis.arg.bind)):
        count = lanes_of(axis)
        stride = prod(values.block[: THREAD_BINDS.index(axis.arg.bind)])
        beside = _in_warp(values, monoid, states[0], count, stride)
        if count > beside:
            states = _through_memory(values, monoid, states, count // beside, stride * beside)
        states = _through_lanes(values, monoid, states, beside, stride)
    return states


def _in_warp(values: Reader, monoid: Monoid, parts: Parts, count: int, stride: int) -> int:
    """How many neighbours along an axis the lanes of one warp can fold among themselves."""
    if prod(values.block) % WARP or any(part.shape for part in parts):
        return 1
    # Both partners of an exchange must compute the same bits.
    if monoid.primitive is None and not monoid.idempotent:
        return 1
    if not (monoid.commutative and is_power_of_two(count) and is_power_of_two(stride)):
        return 1
    return min(count, max(WARP // stride, 1))


def _through_lanes(
    values: Reader, monoid: Monoid, states: list[Parts], count: int, stride: int
) -> list[Parts]:
    half = count // 2
    while half:
        others = [
            tuple([_exchanged(values, part, stride * half) for part in parts]) for parts in states
        ]
        pairs = zip(states, others, strict=True)
        states = [combine(values, monoid, one, other) for one, other in pairs]
        half //= 2
    return states


def _is_for_lanes(values: Reader, monoid: Monoid, axes: list[Node]) -> bool:
    """Whether lanes may share out numbers that a block of some whole warps folds."""
    one, warps = monoid.states[0], prod(values.block) // WARP
    plain = monoid.primitive is not None and monoid.commutative and not one.is_narrow
    sizes = {axis.arg.bind: lanes_of(axis) for axis in axes}
    whole = {bind: size for bind, size in zip(THREAD_BINDS, values.block, strict=True) if size > 1}
    is_block = whole == sizes and sizes.get(THREAD_BINDS[0]) == WARP and warps > 1
    return plain and is_block and one.bits == WARP


def _fold_by_lanes(values: Reader, monoid: Monoid, states: list[Parts]) -> list[Parts]:
    """Numbers of each thread folded by a block: lanes share them out, and show each other the sums.

    Lanes whose numbers differ in a bit give each other halves of what they have: each number is
    added up as if all lanes did, and all but the last exchanges are of fewer.
    """
    thread = _thread(values)
    count, bit = len(states), WARP // 2
    own = [parts[0] for parts in states]
    own += own[-1:] * (next_power_of_two(count) - count)
    tests: list[tuple[Node, int]] = []
    while bit:
        if len(own) > 1:
            tests.append((_has_bit(values, thread, bit), bit))
            halves = [
                _in_turn(values, tests[-1][0], low, high)
                for low, high in zip(own[: len(own) // 2], own[len(own) // 2 :], strict=True)
            ]
            given = [_exchanged(values, other, bit) for _, other in halves]
            own = [
                combine(values, monoid, (kept,), (other,))[0]
                for (kept, _), other in zip(halves, given, strict=True)
            ]
        else:
            own = [combine(values, monoid, (own[0],), (_exchanged(values, own[0], bit),))[0]]
        bit //= 2
    warps = prod(values.block) // WARP
    (total,) = _through_memory(values, monoid, [tuple(own)], warps, WARP)
    found = list(total)
    for test, bit in reversed(tests):
        pairs = [_in_turn(values, test, one, _exchanged(values, one, bit)) for one in found]
        found = [low for low, _ in pairs] + [high for _, high in pairs]
    return [(one,) for one in found[:count]]


def _has_bit(values: Reader, thread: Node, bit: int) -> Node:
    placed = values.apply(Ops.AND, dtypes.int32, thread, const(bit, dtypes.int32))
    return values.apply(Ops.CMPNE, dtypes.bool, placed, const(0, dtypes.int32))


def _in_turn(values: Reader, test: Node, low: Node, high: Node) -> tuple[Node, Node]:
    """Two values, the other way round where a condition holds."""
    one = values.apply(Ops.WHERE, low.dtype, test, high, low)
    return one, values.apply(Ops.WHERE, low.dtype, test, low, high)


def _exchanged(values: Reader, part: Node, mask: int) -> Node:
    """The value of the lane whose number differs in the bits of `mask`."""
    one = values.cast(part, _carrier(part.dtype))
    found = values.scopes.emit(Ops.MACHINE, one.dtype, (one,), Machine("shfl.sync.bfly", (mask,)))
    return values.cast(found, part.dtype)


def _carrier(dtype: DType) -> DType:
    """The dtype as which lanes exchange values: 32 or 64 bits wide."""
    if dtype.bits >= WARP:
        return dtype
    return dtypes.float32 if dtype.kind == "float" else dtypes.int32


def _through_memory(
    values: Reader, monoid: Monoid, states: list[Parts], count: int, stride: int
) -> list[Parts]:
    arrays, slot = _shown(values, tuple([part for parts in states for part in parts]))
    first = values.value(_first(_thread(values).arg, stride, count))
    mark = values.scopes.mark()
    first = _in_slot(values, first, slot)
    widths = {width for _, width in arrays}
    if len(widths) == 1 and is_shared_out(count, max(widths)):
        shared = _shared_out(values, monoid, arrays, first, (count, stride))
        return [_kept(values, shared, arrays, mark)]
    found: list[Node] = []
    for begin in range(0, len(arrays), monoid.arity):
        own = arrays[begin : begin + monoid.arity]
        items = [_seen(values, own, first, point * stride) for point in range(count)]
        found += fold_items(values, monoid, items)
    kept = _kept(values, tuple(found), arrays, mark)
    return [kept[begin : begin + monoid.arity] for begin in range(0, len(kept), monoid.arity)]


def _shared_out(
    values: Reader, monoid: Monoid, arrays: Arrays, first: Node, axis: tuple[int, int]
) -> Parts:
    """Vectors folded by as many threads as they have elements; axis: its points and stride."""
    scopes = values.scopes
    (count, stride), (_, width) = axis, arrays[0]
    total = prod(values.block)
    number = Node(Ops.VAR, dtypes.index, (), _thread(values).arg)
    place = index.as_node(index.mod(index.floordiv(number, stride), count))
    element = index.add(index.mul(_first(number.arg, stride, count), width), place)
    own = values.value(index.as_node(element))
    elements = (total - (count - 1) * stride) * width
    folded = [
        (_exchange(values, ("folded", at), array.dtype, elements), width)
        for at, (array, _) in enumerate(arrays)
    ]
    test = Node(Ops.TEST, dtypes.token, (values.value(index.as_node(index.less(place, width))),))
    scopes.open(test, True)
    single = [(array, 1) for array, _ in arrays]
    points = [_seen(values, single, own, point * stride * width) for point in range(count)]
    parts = fold_items(values, monoid, points)
    for part, (array, _) in zip(parts, folded, strict=True):
        access = access_of(1, 1, 0, array.dtype.itemsize)
        scopes.append(Node(Ops.VSTORE, dtypes.token, (array, own, part), access))
    scopes.close()
    scopes.append(BARRIER)
    return _seen(values, folded, first, 0)


def _thread(values: Reader) -> Node:
    """The number of a thread in its block."""
    return Node(Ops.VAR, dtypes.int32, (), Var(".thread", 0, prod(values.block) - 1))


def _shown(values: Reader, parts: Parts) -> tuple[Arrays, Node | None]:
    """The arrays in shared memory that every thread has written its values to, and their lanes.

    And where what is read begins in them, if that differs from turn to turn of a loop.
    """
    slotted = _shown_in_turns(values, parts)
    if slotted is not None:
        return slotted
    scopes = values.scopes
    total = prod(values.block)
    used = len(values.exchanges)
    inner = [scope.opening for scope in scopes.stack if scope.opening is not None]
    widths = [part.shape[0] if part.shape else 1 for part in parts]
    sizes = [width * part.dtype.itemsize for part, width in zip(parts, widths, strict=True)]
    found = list[list[Node]]()
    for turn in range(1 if inner or total * sum(sizes) > TURN_NBYTES else 2):
        places = [(turn, place) for place in range(len(parts))]
        found.append([
            _exchange(values, place, part.dtype, total * width)
            for place, part, width in zip(places, parts, widths, strict=True)
        ])  # fmt: skip
        if not values.shown.intersection(found[-1]):
            break
    arrays = list(zip(found[-1], widths, strict=True))
    is_new = len(values.exchanges) >= used + len(parts)
    # Folds outside of loops and conditions take turns: where all met for the last one, what was
    # written before that to other arrays had been read.
    is_read = bool(values.shown) and not inner and not values.shown.intersection(found[-1])
    if not (is_new or is_read) or any(opening.op is Ops.BEGIN for opening in inner):
        # What was written last to any of them was read by all.
        scopes.append(BARRIER)
    values.shown = frozenset() if inner else frozenset(found[-1])
    _show(values, parts, arrays, _thread(values))
    return arrays, None


def _shown_in_turns(values: Reader, parts: Parts) -> tuple[Arrays, Node] | None:
    """Arrays of a loop's own that have a slot for even turns and one for odd ones; or None.

    Threads meet in each turn between writing and reading. So what is written was read two turns
    ago by all: they met since.
    """
    loops = [scope.opening for scope in values.scopes.stack if scope.opening is not None]
    total = prod(values.block)
    if len(loops) != 1 or loops[0].op is not Ops.BEGIN or any(part.shape for part in parts):
        return None
    (loop,) = loops
    taken = [one for key, one in values.exchanges.items() if key[0][0] is loop]
    nbytes = sum([prod(one.arg.shape) * one.dtype.itemsize for one in taken])
    nbytes += 2 * total * sum([part.dtype.itemsize for part in parts])
    if nbytes > TURN_NBYTES:
        return None
    places = range(len(taken), len(taken) + len(parts))
    arrays = [
        (_exchange(values, (loop, place), part.dtype, 2 * total), 1)
        for place, part in zip(places, parts, strict=True)
    ]
    counter = values.cast(loop, dtypes.int32)
    odd = values.apply(Ops.AND, dtypes.int32, counter, const(1, dtypes.int32))
    slot = values.apply(Ops.MUL, dtypes.int32, odd, const(total, dtypes.int32))
    _show(values, parts, arrays, _in_slot(values, _thread(values), slot))
    return arrays, slot


def _in_slot(values: Reader, place: Node, slot: Node | None) -> Node:
    if slot is None:
        return place
    return values.apply(Ops.ADD, dtypes.int32, values.cast(place, dtypes.int32), slot)


def _show(values: Reader, parts: Parts, arrays: Arrays, place: Node) -> None:
    """Have every thread write its values, and wait for all others'."""
    scopes = values.scopes
    for part, (array, width) in zip(parts, arrays, strict=True):
        start = values.scaled(place, width, dtypes.int32)
        access = access_of(width, 1, 0, width * part.dtype.itemsize)
        scopes.append(Node(Ops.VSTORE, dtypes.token, (array, start, part), access))
    scopes.append(BARRIER)


def _seen(values: Reader, arrays: Arrays, first: Node, thread: int) -> Parts:
    """What a thread has shown, so many behind the `first`."""
    found = []
    for array, width in arrays:
        access = access_of(width, 1, thread * width, width * array.dtype.itemsize)
        start = values.scaled(first, width, dtypes.int32)
        load = Node(Ops.VLOAD, array.dtype, (array, start), access)
        values.scopes.put(load, MOMENT)
        found.append(load)
    return tuple(found)


def _kept(values: Reader, parts: Parts, arrays: Arrays, mark: tuple[int, int]) -> Parts:
    """Registers for what was made of values in shared memory since `mark`."""
    scopes = values.scopes
    kept = []
    for value, (_, width) in zip(parts, arrays, strict=True):
        register = values.fresh_register(value.dtype, width)
        scopes.append(Node(Ops.SET, dtypes.token, (register, value)))
        kept.append(register)
    # The next fold reads other values in the same places.
    scopes.forget_since(mark)
    for register in kept:
        scopes.settle(register)
    return tuple(kept)


def _exchange(values: Reader, place: Any, dtype: DType, count: int) -> Node:
    """Shared memory in which threads show each other a part of a state, the same for all folds."""
    key = (place, dtype, count)
    found = values.exchanges.get(key)
    if found is None:
        where = Alloc(SPARE_ID + values.spare(), "shared", (count,))
        found = values.exchanges[key] = Node(Ops.ALLOC, dtype, (), where)
    return found


def _first(thread: Var, stride: int, count: int) -> Node:
    """The number of the first thread along an axis, among those that differ along it alone."""
    number = Node(Ops.VAR, dtypes.index, (), thread)
    place = index.mod(index.floordiv(number, stride), count)
    return index.as_node(index.sub(number, index.mul(place, stride)))


# --- running folds ------------------------------------------------------------------------------


def scan(values: Reader, node: Node, operands: Sequence[Any]) -> Any:
    """The rule of a SCAN over tile ranges: threads, and the lanes of a vector in each."""
    monoid: Monoid = node.arg.monoid
    sources, axes = node.src[: monoid.arity], node.src[monoid.arity :]
    threads = [axis for axis in axes if axis.arg.is_thread]
    vectors = [axis for axis in axes if axis.arg.bind == "vector"]
    if [*axes] != threads + vectors or len(threads) > 1 or len(vectors) > 1:
        raise CompilerBug("a running fold over other than threads and lanes", found=node)
    emit = values.scopes.emit
    lanes = lanes_of(vectors[0]) if vectors else 1
    own: list[Parts] = [tuple([values.value(source) for source in sources])]
    if lanes > 1:
        wide = [values.vector(value, lanes) for value in own[0]]
        own = []
        for lane in range(lanes):
            item = tuple([emit(Ops.EXTRACT, each.dtype, (each,), lane) for each in wide])
            own.append(combine(values, monoid, own[-1], item) if own else item)
    if threads:
        before = _before(values, monoid, own[-1], threads[0])
        own = [combine(values, monoid, before, item) for item in own]
    found = own[0]
    if lanes > 1:
        parts = zip(monoid.states, zip(*own, strict=True), strict=True)
        found = tuple([emit(Ops.JOIN, dtype, items) for dtype, items in parts])
    return found if monoid.arity > 1 else found[0]


def _before(values: Reader, monoid: Monoid, total: Parts, axis: Node) -> Parts:
    """What the threads before one along an axis come to, each given what its own elements do."""
    count = lanes_of(axis)
    block = prod(values.block)
    wanted = is_power_of_two(count) and axis.arg.bind == THREAD_BINDS[0] and block % WARP == 0
    if not wanted or not monoid.commutative:
        raise CompilerBug("a running fold of threads that are no warps", found=axis)
    thread = _thread(values)
    nothing = monoid.identity
    warp_total, before = total, nothing
    bit = 1
    while bit < min(count, WARP):
        other = tuple([_exchanged(values, part, bit) for part in warp_total])
        placed = values.apply(Ops.AND, dtypes.int32, thread, const(bit, dtypes.int32))
        later = values.apply(Ops.CMPNE, dtypes.bool, placed, const(0, dtypes.int32))
        grown = other if bit == 1 else combine(values, monoid, other, before)
        before = _chosen(values, later, grown, before)
        warp_total = combine(values, monoid, warp_total, other)
        bit *= 2
    if count <= WARP:
        return before
    arrays, slot = _shown(values, warp_total)
    first = values.value(_first(thread.arg, 1, count))
    mark = values.scopes.mark()
    begin = _in_slot(values, first, slot)
    place = values.apply(Ops.SUB, dtypes.int32, thread, values.cast(first, dtypes.int32))
    prior = nothing
    for warp in range(count // WARP - 1):
        behind = const(warp * WARP + WARP - 1, dtypes.int32)
        later = values.apply(Ops.CMPLT, dtypes.bool, behind, place)
        grown = combine(values, monoid, prior, _seen(values, arrays, begin, warp * WARP))
        prior = _chosen(values, later, grown, prior)
    return _kept(values, combine(values, monoid, prior, before), arrays, mark)


def _chosen(values: Reader, condition: Node, left: Parts, right: Parts) -> Parts:
    """The left parts where a condition holds, else the right ones."""
    pairs = zip(left, right, strict=True)
    return tuple([values.apply(Ops.WHERE, one.dtype, condition, one, two) for one, two in pairs])

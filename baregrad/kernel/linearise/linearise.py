"""Loop level -> linear level: a flat list of instructions on virtual registers.

Serial loops stay loops; vector ranges become lanes, unrolled ranges are written out point by point,
invariant values move out of loops, and constant parts of addresses go into the accesses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import Machine
from baregrad.ir.core.axes import TILE_BINDS, Var
from baregrad.ir.core.bounds import INFINITE, bounds
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, instruction, make_node, toposort
from baregrad.ir.core.op import ATOMIC, Ops
from baregrad.kernel.linearise.access import Address, MemoryUse, access_of
from baregrad.kernel.linearise.copies import commit, copy_to, done, fence
from baregrad.kernel.linearise.folds import (
    BARRIER,
    OF_WARP,
    combine,
    fold_of_threads,
    fold_together,
)
from baregrad.kernel.linearise.lazy import OPAQUE, is_lazy
from baregrad.kernel.linearise.mma import multiply
from baregrad.kernel.linearise.phases import (
    acquire,
    begin_role,
    last_meeting,
    meeting,
    release,
    wait,
)
from baregrad.kernel.linearise.points import interleave
from baregrad.kernel.linearise.rules import INT32
from baregrad.kernel.linearise.scopes import END, MOMENT, ZERO, number
from baregrad.kernel.linearise.statement_rows import find_tiles, store_rows
from baregrad.kernel.linearise.transposed import copied_transposed, neighbours, store_transposed
from baregrad.kernel.linearise.values import READS, Values

# The chunks of the pool loop that a call does; a user's variable cannot have a dot.
CHUNK_BEGIN = make_node(Ops.VAR, dtypes.int64, (), Var(".chunk_begin", 0, INFINITE))
CHUNK_END = make_node(Ops.VAR, dtypes.int64, (), Var(".chunk_end", 0, INFINITE))
# Bytes of the widest registers: a wider mask is split for each of them.
WIDEST_NBYTES = 64
# Elements of one statement, at most, that a GPU's thread loads for before it stores any.
TOGETHER = 32
# What is done where a statement ends; and the statements inside one, with that.
Leave = Callable[[], None]
Inside = tuple[tuple[Node, ...], Leave | None]


def linearise(kernel: Node) -> Node:
    """The PROGRAM of a loop-level KERNEL whose GUARDs hold LOADs and whose ops the target has.

    On a GPU the kernel is the code of one thread (`threads.py`).
    """
    block: tuple[int, ...] = kernel.arg.block
    values = Values(MemoryUse(kernel, bool(block)), block)
    if kernel.mask & Ops.PIPE.bit:
        values.pipes = tuple([node for node in toposort(kernel) if node.op is Ops.PIPE])
    tiles = {} if block else find_tiles(values, kernel)
    # The statements around the one being written, and what to do where each of them ends.
    path: list[tuple[deque[Node], Leave | None]] = []
    values.ahead, leave = deque(kernel.src), None
    while True:
        while values.ahead:
            node = values.ahead.popleft()
            _go_on(values, node)
            if node in tiles:
                store_rows(values, node, tiles[node])
                continue
            rule = _rule_of(node.op)
            if rule is None:
                raise CompilerBug("not a statement of the CPU's loop level", found=node)
            inside = rule(values, node)
            if inside is not None:
                path.append((values.ahead, leave))
                values.ahead, leave = deque(inside[0]), inside[1]
                break
        else:
            _go_on(values, None)
            if leave is not None:
                leave()
            if not path:
                break
            values.ahead, leave = path.pop()
    return instruction(Ops.PROGRAM, dtypes.token, tuple(values.scopes.stack[0].code), kernel.arg)


def _go_on(values: Values, node: Node | None) -> None:
    """End the last statement, if that waits for it; not if the next one stores what it folded."""
    if node in values.folded:
        values.folded.remove(node)
        return
    last, values.unended = values.unended, None
    if last is None:
        return
    if node is not None and node.op is Ops.STORE:
        fold = fold_of_threads(node.src[1])
        reads = [one.src[0] for one in toposort(node) if one.op is Ops.LOAD]
        if fold is not None and fold is fold_of_threads(last.src[1]) and last.src[0] not in reads:
            return
    values.scopes.end_statement()


def _seq(values: Values, node: Node) -> Inside | None:
    return node.src, None


def _loop(values: Values, node: Node) -> Inside | None:
    axis = node.src[0]
    bind = axis.arg.bind
    if bind in TILE_BINDS:
        raise CompilerBug("a tile range cannot be looped over", found=axis)
    size = axis.src[0]
    extent = number(size.arg) if size.op is Ops.CONST else values.value(size)
    values.scopes.end_statement()
    pool = bind == "pool"
    known = extent.op is Ops.CONST
    leave = None
    if known and extent.arg == 1 and not pool:
        values.counters[axis] = ZERO
    else:
        # A call that does no chunk is never made.
        least = extent.arg if known else bounds(size)[0]
        span: tuple[Node, ...] = (CHUNK_BEGIN, CHUNK_END, extent) if pool else (ZERO, extent)
        if values.gpu and bounds(size)[1] <= INT32[1]:
            span = tuple([values.cast(end, dtypes.int32) for end in span])
        counter = _counted(span, axis.arg.id) if known else _begin(span, axis.arg.id)
        values.counters[axis] = counter
        values.scopes.open(counter, not pool and least < 1)
        leave = values.scopes.close
    if values.memory.requests:
        _ask(values, axis)
    return node.src[1:], leave


def _begin(span: tuple[Node, ...], id: int) -> Node:
    """The instruction that a loop begins with."""
    return instruction(Ops.BEGIN, span[0].dtype, span, id)


# Loops of a constant number of iterations are alike in all kernels.
_counted = lru_cache(1 << 10)(_begin)


def _ask(values: Values, axis: Node) -> None:
    """Ask for the shares that an iteration of a loop has of arrays."""
    memory = values.memory
    for array, row, first, elements in memory.requests.get(axis.arg.axis, ()):
        # Loops that are still to come begin where the iteration does.
        begun = [term for term in row if all(_is_open(values, loop) for loop in term[0].ranges)]
        offset = values.total((*begun, (axis, elements)))
        access = access_of(elements, 1, first, array.dtype.itemsize, array not in memory.written)
        request = instruction(Ops.PREFETCH, dtypes.token, (array, offset), access)
        values.scopes.append(request)


def _is_open(values: Values, axis: Node) -> bool:
    """Whether a loop is one of those around the current statement."""
    counter = values.counters.get(axis)
    return counter is not None and (counter.op is Ops.CONST or counter in values.scopes.depth)


def _if(values: Values, node: Node) -> Inside | None:
    scopes = values.scopes
    cond = node.src[0]
    # What is read under masks is read at points alone.
    at_points = values.masks and cond.mask & READS
    if not (at_points or any(axis.arg.is_tile for axis in cond.ranges)):
        test = instruction(Ops.TEST, dtypes.token, (values.value(cond),))
        scopes.end_statement()
        scopes.open(test, True)
        return node.src[1:], scopes.close
    before = values.masks
    values.masks = (*before, cond)
    mark = scopes.mask()

    def restore() -> None:
        values.masks = before
        scopes.unmask(mark)

    return node.src[1:], restore


def _barrier(values: Values, node: Node) -> None:
    if not values.gpu:
        raise CompilerBug("not a statement of the CPU's loop level", found=node)
    values.scopes.end_statement()
    rule = _MEETINGS.get(node.arg.scope)
    values.scopes.append(BARRIER if rule is None else rule(values))


def _store(values: Values, node: Node) -> None:
    value = node.src[1]
    ranges = own = value.ranges
    for place in (*node.src[2:], *values.masks):
        # Mostly what is written where has the axes of both already.
        if not place.ranges <= ranges:
            ranges = ranges | place.ranges
    axes = values.tiles.axes_of(ranges)
    lanes = values.tiles.lanes_of(ranges)
    address = values.memory.addresses[node]
    points = values.tiles.points(axes, values.point)
    to_register = node.src[0] in values.memory.registers
    # A value that differs from point to point is not asked for twice.
    same_axes = own is ranges or axes == values.tiles.axes_of(own)
    compute = values.fresh if same_axes else values.value
    if values.gpu and value.has(Ops.REDUCE) and not values.masks:
        _fold_with_next(values, node, points)
    if axes and values.memory.reads_elsewhere(node, axes, values.masks):
        _store_late(values, node, lanes, compute, points)
        points = []
    ahead = axes and values.gpu and not to_register
    ahead = ahead and (node.arg is None or _is_atomic(values, node))
    size = max(TOGETHER * _in_a_word(node) // lanes, 1) if ahead else 0
    plain = node.arg is None and not values.masks and not values.gpu
    begins: list[int] = []
    code = values.scopes.innermost.code
    if plain and to_register:
        # A finished sum that nothing else writes needs no register.
        kept = value.op is Ops.REDUCE and node.src[0] not in values.memory.again
        for values.point in points:
            begins.append(len(code))
            (_keep if kept else _set)(values, node, address, compute(value))
        points = []
    elif plain and points and axes and _transposed(values, node, axes, lanes, compute):
        points = []
    for order, point in enumerate(points):
        if size and order % size == 0:
            _load_all(values, node.src[1:], points[order : order + size])
        values.point = point
        begins.append(len(code))
        mask = values.mask(values.masks) if values.masks else None
        if mask is None or mask.op is not Ops.CONST:
            _write(values, node, address, lanes, compute(value), mask)
    if len(begins) > 1 and plain and code is values.scopes.innermost.code:
        if address.is_regular(lanes) and not address.points:
            interleave(code, begins)
    values.point = {}
    if values.folded:
        values.unended = node
    elif values.gpu and fold_of_threads(value) is not None:
        # Threads meet once for all states.
        values.unended = node
    else:
        values.scopes.end_statement()


def _fold_with_next(values: Values, node: Node, points: list[Any]) -> None:
    """Fold what threads have for a STORE, and for those behind it whose folds need no other."""
    if values.folded:
        return
    stores = [(node.src[1], points)]
    for other in _beside(values, node):
        ranges = other.src[1].ranges.union(*[place.ranges for place in other.src[2:]])
        axes = values.tiles.axes_of(ranges)
        stores.append((other.src[1], values.tiles.points(axes, values.point)))
        values.folded.append(other)
    if len(stores) > 1 or len(points) > 1:
        fold_together(values, stores)


def _beside(values: Values, store: Node) -> Iterator[Node]:
    """The STOREs of sums right behind one, all of them to registers that none of them reads."""
    arrays = {store.src[0]}
    for other in values.ahead:
        if other.op is not Ops.STORE or not other.src[1].has(Ops.REDUCE):
            return
        reads = {one.src[0] for one in toposort(other) if one.op is Ops.LOAD}
        arrays.add(other.src[0])
        if not arrays <= values.memory.registers.keys() or arrays & reads:
            return
        yield other


def _store_late(
    values: Values, node: Node, lanes: int, compute: Callable[[Node], Node], points: list[Any]
) -> None:
    """Store the values of all points once all of them are computed."""
    writes: list[tuple[Node, Node | None, Any]] = []
    for values.point in points:
        mask = values.mask(values.masks) if values.masks else None
        if mask is not None and mask.op is Ops.CONST:
            continue
        result = compute(node.src[1])
        if result.op is Ops.REG:
            result = values.scopes.emit(Ops.READ, result.dtype, (result,))
        writes.append((result, mask, values.point))
    address = values.memory.addresses[node]
    for result, mask, point in writes:
        values.point = point
        _write(values, node, address, lanes, result, mask)


def _in_a_word(store: Node) -> int:
    """How many elements one register has as they are loaded, on their way to shared memory."""
    if store.src[0].op is not Ops.ALLOC or store.src[0].arg.space != "shared":
        return 1
    order = toposort(store.src[1], enter=lambda one: one.op is not Ops.LOAD)
    sizes = [one.dtype.bits for one in order if one.op is Ops.LOAD]
    return max(32 // max(sizes), 1) if sizes and max(sizes) == 8 else 1


def _load_all(values: Values, roots: tuple[Node, ...], points: list[Any]) -> None:
    """Load what a value and its places read of memory at some points, all of it under way at once.

    No load passes a store, wherever that goes, nor a branch, as a division has. What is computed
    under some condition alone loads for itself.
    """
    if len(points) == 1:
        return
    order = toposort(*roots, enter=lambda one: one.op not in OPAQUE)
    loads = [one for one in order if one.op is Ops.LOAD and values.tiles.axes_of(one.ranges)]
    guards = [one for one in order if one.op is Ops.GUARD and not is_lazy(one)]
    for values.point in points:
        for one in (*loads, *guards):
            values.value(one)


def _transposed(
    values: Values,
    node: Node,
    axes: tuple[Node, ...],
    lanes: int,
    compute: Callable[[Node], Node],
) -> bool:
    """Write a tile transposed, if unrolled steps are adjacent in memory and lanes are not."""
    value = node.src[1]
    address = values.memory.addresses[node]
    near = neighbours(address, axes, lanes)
    if near and value.op is not Ops.CONST:
        store_transposed(values, node, axes, near, compute)
        return True
    return copied_transposed(values, node, axes, lanes)


def _set(values: Values, store: Node, address: Address, result: Node) -> None:
    """Write a value to the register of the current point."""
    register = values.register(store.src[0], address.at(values.point))
    if register.shape and not result.shape and result.op is not Ops.CONST:
        result = values.vector(result, register.arg.width)
    values.scopes.innermost.code.append(instruction(Ops.SET, dtypes.token, (register, result)))


def _keep(values: Values, store: Node, address: Address, result: Node) -> None:
    """Let a value stand for the register of the current point."""
    buffer = store.src[0]
    result = values.vector(result, values.memory.registers[buffer])
    values.registers[buffer, address.at(values.point)] = result
    if values.scopes.depth.get(result) == MOMENT:
        values.scopes.settle(result)


def _write(
    values: Values, node: Node, address: Address, lanes: int, result: Node, mask: Node | None
) -> None:
    """Write the value of one point: to a register, to adjacent elements, or lane by lane."""
    buffer = node.src[0]
    monoid: Monoid | None = node.arg
    if buffer in values.memory.registers:
        mark = values.scopes.mark()
        if monoid is not None or mask is not None:
            register = values.register(buffer, address.at(values.point))
            if monoid is not None:
                (result,) = combine(values, monoid, (register,), (result,))
            if mask is not None:
                result = values.apply(Ops.WHERE, buffer.dtype, mask, result, register)
        _set(values, node, address, result)
        values.scopes.forget_since(mark)
        return
    place = values.offset(address)
    regular = address.is_regular(lanes) and not place[0].shape
    adjacent = regular and address.stride == (1 if lanes > 1 else 0)
    if monoid is not None and _is_atomic(values, node):
        _scatter(values, node, place, lanes, result, mask)
    elif adjacent or (regular and address.stride and mask is None):
        _store_at(values, node, place, address.stride, result, mask)
    else:
        _scatter(values, node, place, lanes, result, mask)


def _store_at(
    values: Values,
    node: Node,
    place: tuple[Node, int],
    stride: int,
    result: Node,
    mask: Node | None,
) -> None:
    """A VSTORE, after a VLOAD and the combination when it accumulates.

    A condition that is the same for all lanes of a wide vector is tested, as that of a scalar.

    stride: elements between neighbouring lanes, 0 for a scalar.
    """
    scopes = values.scopes
    buffer: Node = node.src[0]
    monoid: Monoid | None = node.arg
    offset, at = place
    address = values.memory.addresses[node]
    lanes = address.width if stride else 1
    align = values.alignment(buffer, address, lanes, stride, at)
    ahead = values.memory.ahead.get(node, 0) if mask is None and monoid is None else 0
    access = access_of(lanes, stride or 1, at, align, False, ahead)
    test = mask is not None and not mask.shape and _is_tested(values, lanes, buffer.dtype)
    if test:
        assert mask is not None
        scopes.append(instruction(Ops.TEST, dtypes.token, (mask,)))
        mask = None
    guard = () if mask is None else (values.vector(mask, lanes),)
    mark = scopes.mark()
    if monoid is not None:
        old = make_node(Ops.VLOAD, buffer.dtype, (buffer, offset, *guard), access)
        scopes.put(old, MOMENT)
        (result,) = combine(values, monoid, (old,), (result,))
    result = values.vector(result, lanes)
    scopes.append(instruction(Ops.VSTORE, dtypes.token, (buffer, offset, result, *guard), access))
    if test:
        scopes.append(END)
    scopes.forget_since(mark)


def _is_atomic(values: Values, store: Node) -> bool:
    """Whether a GPU combines with memory in one step: no thread waits for what was there."""
    buffer, monoid = store.src[0], store.arg
    if not values.gpu or buffer.op is not Ops.PARAM:
        return False
    return buffer.dtype.is_int and buffer.dtype.bits >= 32 and monoid.primitive in ATOMIC


def _is_tested(values: Values, lanes: int, dtype: DType) -> bool:
    """Whether a condition is tested: else it is a mask, which costs less than a branch."""
    return lanes == 1 or (not values.gpu and lanes * dtype.itemsize > WIDEST_NBYTES)


def _scatter(
    values: Values,
    node: Node,
    place: tuple[Node, int],
    lanes: int,
    result: Node,
    mask: Node | None,
) -> None:
    """Lanes written one after the other, in order, so that the last one wins or all add up."""
    emit = values.scopes.emit
    address = values.memory.addresses[node]
    offset, at = place
    if address.is_regular(lanes) and not offset.shape:
        places = [(offset, at + address.stride * lane) for lane in range(lanes)]
    else:
        offsets = values.lane_offsets(address, offset, at, lanes)
        places = [
            (emit(Ops.EXTRACT, offsets.dtype, (offsets,), lane), 0) for lane in range(lanes)
        ]
    for lane, place in enumerate(places):
        one = emit(Ops.EXTRACT, result.dtype, (result,), lane) if result.shape else result
        active = mask
        if mask is not None and mask.shape:
            active = emit(Ops.EXTRACT, mask.dtype, (mask,), lane)
        if node.arg is not None and _is_atomic(values, node):
            guard = () if active is None else (active,)
            what = Machine(f"atom.{node.arg.primitive.name.lower()}", place[1:])
            src = (node.src[0], place[0], one, *guard)
            values.scopes.append(instruction(Ops.MACHINE, dtypes.token, src, what))
        else:
            _store_at(values, node, place, 0, one, active)


# What threads meet at, by its scope; all of a block where it is another one.
_MEETINGS: MappingProxyType[str, Callable[[Values], Node]] = MappingProxyType(
    {"warp": lambda values: OF_WARP, "role": meeting, "cluster": last_meeting}
)
_rule_of = {
    Ops.SEQ: _seq,
    Ops.LOOP: _loop,
    Ops.IF: _if,
    Ops.STORE: _store,
    Ops.BARRIER: _barrier,
    Ops.ROLE: begin_role,
    Ops.ACQUIRE: acquire,
    Ops.WAIT: wait,
    Ops.RELEASE: release,
    Ops.COPYTO: copy_to,
    Ops.COMMIT: commit,
    Ops.DONE: done,
    Ops.MMA: multiply,
    Ops.FENCE: fence,
}.get

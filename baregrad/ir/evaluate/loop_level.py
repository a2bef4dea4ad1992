"""Reference evaluator of the loop level: runs a statement tree on NumPy arrays.

Serial loops run in Python; the tile ranges of a statement (`vector`, `unroll`, ...) are the axes of
NumPy arrays, so a statement executes for all its points at once, as the level's meaning says.
Memory that nobody has written holds NaN or a garbage pattern, so reading it shows in the result.

Order of a horizontal REDUCE over tile ranges, which the linear level follows bit for bit: unrolled
ranges first, then vector ranges, each in source order, then the threads of a block along their
first dimension, their second and their third; a range of n points is folded by halves,
point i with point i + h, h the largest power of two below n, until one is left (neighbours i and
i + 1 where the monoid does not commute). Its values are states already: `lift` is not applied
again.

A SCAN's ranges lie one inside the other, in source order: threads, then the elements of each, which
it folds one after the other. What comes before a thread is folded in its warp first, of pairs, of
fours and so on those that lie before it; then come the warps before, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import PRODUCTS, tiles_value
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.alu import Array, read_raw, to_array, to_raw, wide_count
from baregrad.ir.evaluate.box_places import box_elements
from baregrad.ir.evaluate.monoids import States, combine, fold_axis, scan_threads
from baregrad.ir.evaluate.ranged_values import (
    SHARED_RULES,
    Rule,
    Value,
    aligned,
    axis_order,
    elementwise,
    guard,
    leaf,
    need_unmarked,
    places_of,
    reduced,
    scanned,
    union,
    value_of,
    whole,
)

STRUCTURE = frozenset((Ops.KERNEL, Ops.SEQ, Ops.LOOP, Ops.IF))
_GARBAGE = 0xA5


def evaluate_loop(
    kernel: Node,
    params: Sequence[Array] | Mapping[int, Array],
    variables: Mapping[str, int] | None = None,
    chunks: tuple[int, int] | None = None,
) -> None:
    """Run a loop-level KERNEL (or statement) in place on its argument arrays.

    params: one C-contiguous array per slot, of any shape of the right size; elements are the
    dtype's own NumPy type, or raw codes (`DType.storage`) where NumPy has none. variables: values
    of VARs by name. chunks: [begin, end) of the pool loop's chunks, all of them by default. Raises
    IndexOutOfRange where an access that is not guarded leaves its array.
    """
    if chunks is not None and kernel.op is Ops.KERNEL:
        chunks = chunks[0] * kernel.arg.grain, chunks[1] * kernel.arg.grain
    machine = LoopMachine(dict(variables or {}), chunks, flat_arguments(params))
    machine.run(kernel)


def flat_arguments(params: Sequence[Array] | Mapping[int, Array]) -> dict[int, Array]:
    """Argument arrays by slot as flat memory; raises CompilerBug for one that is not contiguous."""
    given = dict(params.items() if isinstance(params, Mapping) else enumerate(params))
    for slot, array in given.items():
        if not array.flags.c_contiguous:
            raise CompilerBug("an argument array is not contiguous", found=f"slot {slot}")
    return {slot: array.reshape(-1) for slot, array in given.items()}


class LoopMachine:
    """The state of a run: loop counters, variables, memory and the mask of active points."""

    def __init__(
        self,
        variables: dict[str, int],
        chunks: tuple[int, int] | None = None,
        params: Mapping[int, Array] | None = None,
    ) -> None:
        self.variables = variables
        self.chunks = chunks
        self.memory: dict[int | Node, Array] = dict((params or {}).items())
        self.counters: dict[Node, int] = {}
        self.conditions: list[Node] = []
        # Asynchronous copies: those of no group yet, and groups, the oldest first. Each has the
        # memory, the places in it, and what will be there.
        self.loose: list[tuple[Array, Array, Array]] = []
        self.landing: list[list[tuple[Array, Array, Array]]] = []
        # Stores beside the threads, which land once they are waited for, or at the end.
        self.stored: list[tuple[Array, Array, Array]] = []

    def run(self, root: Node) -> None:
        """Execute statements in order; an explicit stack stands in for recursion over bodies."""
        stack: list[Any] = [root]
        while (item := self.statement(stack)) is not None:
            if item.op is Ops.COPYTO and item.arg.box is not None:
                self._copy_box(item)
            elif item.op is Ops.STORE or item.op is Ops.COPYTO:
                self._store(item)
            elif item.op is Ops.COMMIT:
                self.landing.append(self.loose)
                self.loose = []
            elif item.op is Ops.DONE:
                self._done(item)
            elif item.op is Ops.MMA:
                self._multiply(item)
            else:
                raise CompilerBug("not a statement of the CPU's loop level", found=item)
        self._land(self.stored)

    def statement(self, stack: list[Any]) -> Node | None:
        """The next node on the stack that is no structure, or None at its end."""
        while stack:
            item = stack.pop()
            if not isinstance(item, Node):
                item(stack)
            elif item.op in STRUCTURE:
                self.structure(item, stack)
            else:
                return item
        return None

    def structure(self, item: Node, stack: list[Any]) -> None:
        """Put what a KERNEL, SEQ, LOOP or IF runs next on the stack."""
        if item.op is Ops.LOOP:
            axis, body = item.src
            self._iterate(axis, body, *self.span(axis), stack)
        elif item.op is Ops.IF:
            self._branch(item, stack)
        else:
            stack.extend(reversed(item.src))

    def _iterate(self, axis: Node, body: Node, at: int, stop: int, stack: list[Any]) -> None:
        """Start an iteration of a LOOP, the next one after it, or leave."""
        if at >= stop:
            self.counters.pop(axis, None)
            return
        self.counters[axis] = at
        stack += [partial(self._iterate, axis, body, at + 1, stop), body]

    def span(self, axis: Node) -> tuple[int, int]:
        """First and one past the last value that a LOOP's range takes in this run."""
        extent = int(self.scalar(axis.src[0]))
        if axis.arg.bind == "pool" and self.chunks is not None:
            return max(self.chunks[0], 0), min(self.chunks[1], extent)
        return 0, extent

    def scalar(self, node: Node) -> Any:
        """The value of an expression without free tile ranges."""
        value = Expression(self).value(node)
        need_unmarked(value, node)
        return value.parts[0].item()

    def _branch(self, node: Node, stack: list[Any]) -> None:
        cond, body = node.src
        if not any(axis.arg.is_tile for axis in cond.ranges):
            if self.scalar(cond):
                stack.append(body)
            return
        self.conditions.append(cond)
        stack.append(lambda _: self.conditions.pop())
        stack.append(body)

    def buffer(self, node: Node) -> Array:
        """The flat memory of a PARAM or ALLOC, in memory's own dtype."""
        if node.op is Ops.PARAM:
            found = self.memory.get(node.arg.slot)
            if found is None:
                raise CompilerBug("a kernel reads a slot that was not given", found=node.arg)
            return viewed(found, node.dtype)
        if node.op is not Ops.ALLOC:
            raise CompilerBug("neither PARAM nor ALLOC", found=node)
        if node not in self.memory:
            count = int(np.prod(self.shape(node), dtype=np.int64))
            self.memory[node] = poisoned(count, node.dtype)
        return self.memory[node]

    def shape(self, node: Node) -> tuple[int, ...]:
        """The extents of a buffer, symbolic ones evaluated; several slots come first."""
        extents = tuple(e if isinstance(e, int) else int(self.scalar(e)) for e in node.shape)
        slots = node.op is Ops.ALLOC and node.arg.depth > 1
        return (node.arg.depth, *extents) if slots else extents

    def _store(self, node: Node) -> None:
        buffer, source, *indices = node.src
        scope = Expression(self)
        holds = scope.holds(self.conditions)
        value, offset = scope.value(source), scope.offset(buffer, indices)
        for one in (value, offset):
            need_unmarked(guard(holds, one), node)
        axes = union([holds, value, offset])
        active = whole(holds, axes, scope)
        places, data = (whole(one, axes, scope)[active] for one in (offset, value))
        memory = self.buffer(buffer)
        if node.op is Ops.COPYTO:
            # It lands at any time from now on: nobody can count on what is there before.
            landing = self.stored if node.arg.engine == "bulk" else self.loose
            landing.append((memory, places, to_raw(data, buffer.dtype)))
            memory[places] = poisoned(places.size, buffer.dtype)
            return
        if node.arg is None:
            memory[places] = to_raw(data, buffer.dtype)
            return
        for place, one in zip(places, data, strict=True):
            old = to_array(memory[place : place + 1], buffer.dtype)
            (total,) = combine(node.arg, (old,), (one.reshape(1),), round_narrow=True)
            memory[place] = to_raw(total, buffer.dtype)[0]

    def _copy_box(self, node: Node) -> None:
        """A box of an array, one element after the other; it lands like other copies."""
        target, array, slot, *places = node.src
        where, *begins = (int(self.scalar(one)) for one in places)
        offset, inside = box_elements(node.arg.box, begins)
        memory, source = self.buffer(target), self.buffer(array)
        first = int(self.scalar(slot)) * int(np.prod(target.shape, dtype=np.int64)) + where
        found = to_array(source[offset], array.dtype)
        data = to_raw(np.where(inside, found, np.zeros((), found.dtype)), target.dtype)
        landed = np.arange(first, first + offset.size)
        self.loose.append((memory, landed, data))
        memory[landed] = poisoned(landed.size, target.dtype)

    def _multiply(self, node: Node) -> None:
        """A product of matrices is added, exactly, and rounded once; of words, as tiles do it."""
        total, left, right, keep, *axes = node.src
        scope = Expression(self)
        offset = scope.offset(total.src[0], total.src[1:])
        memory = self.buffer(total.src[0])
        if node.arg.name in PRODUCTS:
            rows, columns, words, *steps = axes
            places = scope.matrix(offset, [rows], [columns])
            old = memory[places] if self.scalar(keep) else np.zeros_like(memory[places])
            a = scope.matrix(scope.value(left), [rows], [*steps, words])
            b = scope.matrix(scope.value(right), [*steps, words], [columns])
            memory[places] = tiles_value(node.arg.name, old, a, b)
            return
        values = [offset, *map(scope.value, (total, left, right))]
        holds = scope.holds(self.conditions)
        for one in values:
            need_unmarked(guard(holds, one), node)
        order = union(values)
        places, old, a, b = (aligned(one.parts[0], one.axes, order) for one in values)
        kinds = node.arg.operand, node.arg.beside or node.arg.operand
        # What lies in memory as codes.
        a, b = (
            to_array(each.astype(kind.storage), kind) if load.dtype.is_int and kind.is_float
            else each for each, load, kind in zip((a, b), (left, right), kinds, strict=True)
        )  # fmt: skip
        product = a.astype(np.float64) * b.astype(np.float64)
        summed = tuple([order.index(axis) for axis in axes[2:] if axis in order])
        old = old.astype(np.float64) if self.scalar(keep) else np.zeros_like(old, np.float64)
        new = old + product.sum(axis=summed, keepdims=True)
        if memory.dtype.kind == "i":
            # Sums of integers wrap.
            new = new.astype(np.int64)
        memory[np.broadcast_to(places, new.shape)] = new.astype(memory.dtype)

    def _done(self, node: Node) -> None:
        """Let all but the last groups land, as late as possible."""
        if node.arg.engine == "bulk":
            self._land(self.stored)
        if node.arg.engine == "tma":
            self._land(self.loose)
        if node.arg.engine != "copy":
            return
        last = max(len(self.landing) - node.arg.keep, 0)
        for group in self.landing[:last]:
            self._land(group)
        del self.landing[:last]

    def _land(self, copies: list[tuple[Array, Array, Array]]) -> None:
        """What copies bring is there."""
        for memory, places, data in copies:
            memory[places] = data
        copies.clear()


class Expression:
    """Where the expressions of one execution of a statement are evaluated."""

    def __init__(self, machine: LoopMachine) -> None:
        self.machine = machine
        self.values: dict[Node, Value] = {}

    def extent(self, axis: Node) -> int:
        """The points of a tile range."""
        if axis.src[0].op is not Ops.CONST:
            raise CompilerBug("a tile range needs a constant extent", found=axis)
        return int(axis.src[0].arg)

    def value(self, node: Node) -> Value:
        """The value of an expression."""
        return value_of(node, self, LOOP_RULES)

    def holds(self, conditions: Sequence[Node]) -> Value:
        """The conjunction of conditions, each evaluated where those before it hold."""
        found = leaf(np.ones((), np.bool_))
        for condition in conditions:
            found = guard(found, self.value(condition))
            need_unmarked(found, condition)
        return found

    def offset(self, buffer: Node, indices: Sequence[Node]) -> Value:
        """Flat positions of elements; those outside are marked."""
        values = [self.value(index) for index in indices]
        axes, shape = union(values), self.machine.shape(buffer)
        places, marked = places_of(values, shape, axes)
        flat = np.zeros((1,) * len(axes), np.int64)
        for place, extent in zip(places, shape, strict=True):
            flat = flat * extent + place
        return Value(axes, (flat,), marked)

    def matrix(self, value: Value, *sides: Sequence[Node]) -> Array:
        """A value with an axis for each side: the ranges of a side are joined, the first slowest.

        Raises IndexOutOfRange for a marked point.
        """
        order = [axis for side in sides for axis in side]
        need_unmarked(value, order[0])
        axes = tuple(sorted(order, key=axis_order))
        moved = whole(value, axes, self).transpose([axes.index(axis) for axis in order])
        return moved.reshape([math.prod(map(self.extent, side)) for side in sides])


def _range(node: Node, args: list[Value], scope: Expression) -> Value:
    if node.arg.is_tile:
        return Value((node,), (np.arange(scope.extent(node), dtype=np.int64),))
    return leaf(np.asarray(scope.machine.counters[node], np.int64))


def _variable(node: Node, args: list[Value], scope: Expression) -> Value:
    return leaf(np.asarray(scope.machine.variables[node.arg.name], np.int64))


def _load(node: Node, args: list[Value], scope: Expression) -> Value:
    offset = scope.offset(node.src[0], node.src[1:])
    memory = scope.machine.buffer(node.src[0])
    if not memory.size:
        # Nothing can be read; whatever is wanted here is out of bounds.
        memory = np.zeros(1, memory.dtype)
    places, marked = offset.parts[0], offset.marked
    count = wide_count(node, node.src[0])
    if count > 1:
        outside = places + count > memory.size
        marked = outside if marked is None else marked | outside
        places = np.where(outside, 0, places)
    loaded = to_array(read_raw(memory, places, count, node.dtype), node.dtype)
    return Value(offset.axes, (loaded,), marked)


def _reduce(node: Node, args: list[Value], scope: Expression) -> Value:
    ranges = node.src[node.arg.monoid.arity :]

    def fold(states: States, closed: list[int]) -> States:
        places = dict(zip(ranges, closed, strict=True))
        for axis in sorted(ranges, key=fold_rank):
            states = fold_axis(node.arg.monoid, states, places[axis])
        return tuple(state.squeeze(tuple(closed)) for state in states)

    return reduced(node, args, scope, fold)


def _scan(node: Node, args: list[Value], scope: Expression) -> Value:
    ranges = node.src[node.arg.monoid.arity :]
    threads = math.prod(scope.extent(axis) for axis in ranges if axis.arg.is_thread)

    def fold(states: States) -> States:
        shape = states[0].shape
        parts = tuple(state.reshape(*shape[:-1], threads, -1) for state in states)
        return tuple(state.reshape(shape) for state in scan_threads(node.arg.monoid, parts))

    return scanned(node, args, scope, fold)


def fold_rank(axis: Node) -> int:
    """When a tile range is folded: 0 for unrolled ones, 1 for vectors, then the threads."""
    if axis.arg.is_thread:
        return 2 + THREAD_BINDS.index(axis.arg.bind)
    return int(axis.arg.bind == "vector")


# --- memory's form of a value -------------------------------------------------------------------


def memory_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype of a buffer's elements: the dtype's own, or that of its raw codes."""
    if dtype is dtypes.index:
        return np.dtype(np.int64)
    found = dtype.numpy if dtype.numpy is not None else dtype.storage
    if found is None:
        raise CompilerBug("a dtype that is never stored", found=dtype)
    return found


def viewed(memory: Array, dtype: DType) -> Array:
    """Memory read as elements of `dtype`: a lowered kernel may read codes where it had values."""
    wanted = memory_dtype(dtype)
    return memory if memory.dtype == wanted else memory.view(wanted)


def poisoned(count: int, dtype: DType) -> Array:
    """Memory that nobody has written: NaN, a garbage pattern for integers, True for bool."""
    memory = np.empty(count, memory_dtype(dtype))
    memory.view(np.uint8)[:] = _GARBAGE
    if dtype.kind == "float":
        memory[:] = to_raw(np.full(count, np.nan), dtype)
    if dtype is dtypes.bool:
        memory[:] = True
    return memory


LOOP_RULES: MappingProxyType[Op, Rule] = MappingProxyType({
    **SHARED_RULES,
    Ops.LOOKUP: elementwise,
    Ops.RANGE: _range,
    Ops.VAR: _variable,
    Ops.LOAD: _load,
    Ops.REDUCE: _reduce,
    Ops.SCAN: _scan,
    Ops.CONVERT: lambda node, args, scope: args[0],
})  # fmt: skip

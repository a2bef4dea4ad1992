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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import PRODUCTS, tiles_value
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import ELEMENTWISE, Ops
from baregrad.ir.evaluate.alu import (
    apply_scalar_op,
    constant,
    to_array,
    to_raw,
    working_dtype,
)
from baregrad.ir.evaluate.monoids import States, combine, fold_axis

Array = npt.NDArray[Any]
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


@dataclass(slots=True)
class Tile:
    """How a statement's tile ranges lie on NumPy axes: axis of each range, and their extents."""

    axes: dict[Node, int] = field(default_factory=dict)
    extents: list[int] = field(default_factory=list)

    def line(self, axis: Node) -> Array:
        """0, 1, ..., extent - 1 along the axis of a tile range."""
        position = self.axes[axis]
        shape = [1] * len(self.extents)
        shape[position] = self.extents[position]
        return np.arange(self.extents[position], dtype=np.int64).reshape(shape)


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

    def run(self, root: Node) -> None:
        """Execute statements in order; an explicit stack stands in for recursion over bodies."""
        stack: list[Any] = [root]
        while (item := self.statement(stack)) is not None:
            if item.op is Ops.STORE or item.op is Ops.COPYTO:
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
            _Counter(self, item).step(stack)
        elif item.op is Ops.IF:
            self._branch(item, stack)
        else:
            stack.extend(reversed(item.src))

    def span(self, axis: Node) -> tuple[int, int]:
        """First and one past the last value that a LOOP's range takes in this run."""
        extent = int(self.scalar(axis.src[0]))
        if axis.arg.bind == "pool" and self.chunks is not None:
            return max(self.chunks[0], 0), min(self.chunks[1], extent)
        return 0, extent

    def scalar(self, node: Node) -> Any:
        """The value of an expression without free tile ranges."""
        return Expression(self, Tile()).value(node).item()

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
        buffer, value, *indices = node.src
        tile = tile_of(node, self.conditions)
        expression = Expression(self, tile)
        mask = expression.all_true(self.conditions)
        data = expression.value(value, mask)
        offset = expression.offset(buffer, indices, mask)
        shape = tuple(tile.extents)
        # Points along a closed axis (a horizontal REDUCE's) are one point.
        kept = open_axes(node, tile, self.conditions)
        shape = tuple(e if p in kept else 1 for p, e in enumerate(shape))
        active = np.broadcast_to(mask, shape).reshape(-1)
        places = np.broadcast_to(offset, shape).reshape(-1)[active]
        data = np.broadcast_to(data, shape).reshape(-1)[active]
        memory = self.buffer(buffer)
        if node.op is Ops.COPYTO:
            # It lands at any time from now on: nobody can count on what is there before.
            self.loose.append((memory, places, to_raw(data, buffer.dtype)))
            memory[places] = poisoned(places.size, buffer.dtype)
            return
        if node.arg is None:
            memory[places] = to_raw(data, buffer.dtype)
            return
        for place, one in zip(places, data, strict=True):
            old = to_array(memory[place : place + 1], buffer.dtype)
            (total,) = combine(node.arg, (old,), (one.reshape(1),), round_narrow=True)
            memory[place] = to_raw(total, buffer.dtype)[0]


    def _multiply(self, node: Node) -> None:
        """A product of matrices is added, exactly, and rounded once; of words, as tiles do it."""
        total, left, right = node.src[:3]
        if node.arg.name in PRODUCTS:
            self._multiply_words(node)
            return
        tile = tile_of(node, self.conditions)
        expression = Expression(self, tile)
        mask = expression.all_true(self.conditions)
        old = expression.value(total, mask)
        factors = [expression.value(side, mask).astype(np.float64) for side in (left, right)]
        summed = (factors[0] * factors[1]).sum(axis=tile.axes[node.src[6]], keepdims=True)
        offset = expression.offset(total.src[0], total.src[1:], mask)
        new = (old + summed).astype(np.float32)
        memory = self.buffer(total.src[0])
        memory[np.broadcast_to(offset, new.shape).reshape(-1)] = new.reshape(-1)

    def _multiply_words(self, node: Node) -> None:
        total, left, right, keep, *axes = node.src
        tile = tile_of(node, self.conditions)
        expression = Expression(self, tile)
        rows, columns, words, *steps = [tile.axes[axis] for axis in axes]
        offset = expression.offset(total.src[0], total.src[1:], expression.masks[0])

        def flat(values: Array, *sides: list[int]) -> Array:
            """Values over these axes of the tile, the others being of one element, as a matrix."""
            order = [place for side in sides for place in side]
            shape = [e if p in order else 1 for p, e in enumerate(tile.extents)]
            moved = np.moveaxis(np.broadcast_to(values, shape), order, range(-len(order), 0))
            return moved.reshape([math.prod(tile.extents[p] for p in side) for side in sides])

        memory = self.buffer(total.src[0])
        places = flat(offset, [rows], [columns])
        old = memory[places]
        if not self.scalar(keep):
            old = np.zeros_like(old)
        a = flat(expression.value(left), [rows], [*steps, words])
        b = flat(expression.value(right), [*steps, words], [columns])
        memory[places] = tiles_value(node.arg.name, old, a, b)

    def _done(self, node: Node) -> None:
        """Let all but the last groups land, as late as possible."""
        if node.arg.engine != "copy":
            return
        last = max(len(self.landing) - node.arg.keep, 0)
        for group in self.landing[:last]:
            for memory, places, data in group:
                memory[places] = data
        del self.landing[:last]


class _Counter:
    """One LOOP in progress."""

    def __init__(self, machine: LoopMachine, loop: Node) -> None:
        self.machine = machine
        self.axis, self.body = loop.src
        self.next, self.stop = machine.span(self.axis)

    def step(self, stack: list[Any]) -> None:
        """Start the next iteration, or leave."""
        if self.next >= self.stop:
            self.machine.counters.pop(self.axis, None)
            return
        self.machine.counters[self.axis] = self.next
        self.next += 1
        stack.append(self.step)
        stack.append(self.body)


class Expression:
    """Evaluates the expressions of one statement execution; every node once per mask."""

    def __init__(self, machine: LoopMachine, tile: Tile) -> None:
        self.machine = machine
        self.tile = tile
        self.known: dict[tuple[Node, int], Any] = {}
        self.masks: list[Array] = [np.ones((1,) * len(tile.extents), np.bool_)]

    def all_true(self, conditions: Sequence[Node]) -> Array:
        """The conjunction of conditions, each evaluated where those before it hold."""
        mask = self.masks[0]
        for cond in conditions:
            mask = mask & self.value(cond, mask)
        return mask

    def value(self, root: Node, mask: Array | None = None) -> Any:
        """The array (tuple of arrays for REDUCE) of an expression; 0 where a guard is false."""
        start = self._mask_id(self.masks[0] if mask is None else mask)
        stack: list[tuple[Node, int]] = [(root, start)]
        while stack:
            node, where = stack[-1]
            if (node, where) in self.known:
                stack.pop()
                continue
            needs = self._needs(node, where)
            missing = [need for need in needs if need not in self.known]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.known[node, where] = self._compute(node, where, needs)
        return self.known[root, start]

    def offset(self, buffer: Node, indices: Sequence[Node], mask: Array) -> Array:
        """Flat element positions; raises IndexOutOfRange for an active point outside."""
        extents = self.machine.shape(buffer)
        flat = np.zeros((1,) * len(self.tile.extents), np.int64)
        if len(extents) != len(indices):
            raise CompilerBug("as many indices as axes are wanted", found=buffer, wanted=extents)
        for axis, (index, extent) in enumerate(zip(indices, extents, strict=True)):
            position = self.value(index, mask)
            outside = mask & ((position < 0) | (position >= extent))
            if outside.any():
                worst = np.broadcast_to(position, outside.shape)[outside][0]
                raise IndexOutOfRange(
                    f"an access to axis {axis} of {buffer!r}",
                    found=int(worst),
                    wanted=f"0 <= index < {extent}",
                )
            flat = flat * extent + np.where(mask, position, 0)
        return flat

    def _mask_id(self, mask: Array) -> int:
        for position, known in enumerate(self.masks):
            if known is mask:
                return position
        self.masks.append(mask)
        return len(self.masks) - 1

    def _needs(self, node: Node, where: int) -> list[tuple[Node, int]]:
        if node.op in (Ops.RANGE, Ops.CONST, Ops.VAR):
            return []
        if node.op is Ops.LOAD:
            return [(child, where) for child in node.src[1:]]
        if node.op is Ops.GUARD:
            if (node.src[0], where) not in self.known:
                return [(node.src[0], where)]
            return [(node.src[0], where), (node.src[1], self._narrowed(node, where))]
        if node.op is Ops.REDUCE:
            return [(child, where) for child in node.src if child.op is not Ops.RANGE]
        return [(child, where) for child in node.src]

    def _narrowed(self, node: Node, where: int) -> int:
        key = (node, -1 - where)
        if key not in self.known:
            self.known[key] = self._mask_id(self.masks[where] & self.known[node.src[0], where])
        found: int = self.known[key]
        return found

    def _compute(self, node: Node, where: int, needs: list[tuple[Node, int]]) -> Any:
        values = [self.known[need] for need in needs]
        op = node.op
        ones = (1,) * len(self.tile.extents)
        if op is Ops.CONST:
            return constant(node).reshape(ones)
        if op is Ops.VAR:
            return np.asarray(self.machine.variables[node.arg.name], np.int64).reshape(ones)
        if op is Ops.RANGE:
            if node in self.tile.axes:
                return self.tile.line(node)
            return np.asarray(self.machine.counters[node], np.int64).reshape(ones)
        if op is Ops.LOAD:
            mask = self.masks[where]
            flat = self.offset(node.src[0], node.src[1:], mask)
            memory = self.machine.buffer(node.src[0])
            if not mask.any():
                return np.zeros(flat.shape, working_dtype(node.dtype))
            loaded = to_array(memory[np.asarray(flat)], node.dtype)
            return np.where(mask, loaded, np.zeros((), loaded.dtype))
        if op is Ops.GUARD:
            return np.where(values[0], values[1], np.zeros((), working_dtype(node.dtype)))
        if op is Ops.PROJ:
            return values[0][node.arg]
        if op is Ops.REDUCE:
            return self._reduce(node, values)
        if op is Ops.CONVERT:
            return values[0]
        if op in ELEMENTWISE or op is Ops.BITFIELD:
            return apply_scalar_op(node, *values)
        raise CompilerBug("not an expression of the CPU's loop level", found=node)

    def _reduce(self, node: Node, values: list[Array]) -> Any:
        monoid: Monoid = node.arg.monoid
        ranges = [child for child in node.src if child.op is Ops.RANGE]
        ranges.sort(key=fold_rank)
        shape = list(np.broadcast_shapes(*(value.shape for value in values)))
        for axis in ranges:
            shape[self.tile.axes[axis]] = self.tile.extents[self.tile.axes[axis]]
        parts: States = tuple(np.broadcast_to(value, shape) for value in values)
        for axis in ranges:
            parts = fold_axis(monoid, parts, self.tile.axes[axis])
        return parts if monoid.arity > 1 else parts[0]


def fold_rank(axis: Node) -> int:
    """When a tile range is folded: 0 for unrolled ones, 1 for vectors, then the threads."""
    if axis.arg.is_thread:
        return 2 + THREAD_BINDS.index(axis.arg.bind)
    return int(axis.arg.bind == "vector")


def tile_of(statement: Node, conditions: Sequence[Node]) -> Tile:
    """An axis for every tile range below a statement, in the order of range ids."""
    found = {
        node
        for node in toposort(statement, *conditions)
        if node.op is Ops.RANGE and node.arg.is_tile
    }
    tile = Tile()
    for axis in sorted(found, key=lambda node: node.arg.id):
        if axis.src[0].op is not Ops.CONST:
            raise CompilerBug("a tile range needs a constant extent", found=axis)
        tile.axes[axis] = len(tile.extents)
        tile.extents.append(int(axis.src[0].arg))
    return tile


def open_axes(statement: Node, tile: Tile, conditions: Sequence[Node]) -> set[int]:
    """The axes of a tile that a statement's own points lie along."""
    found: set[int] = set()
    for node in (*statement.src[1:], *conditions):
        found |= {tile.axes[axis] for axis in node.ranges if axis in tile.axes}
    return found


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

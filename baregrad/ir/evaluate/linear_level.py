"""Reference evaluator of the linear level: runs the instructions of a PROGRAM one by one.

A value is a NumPy array of shape () or (lanes,); a tile is run row by row. Accesses are checked
against their arrays, and memory and registers that nobody has written hold NaN or a garbage
pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.ir.analysis.rows import by_rows
from baregrad.ir.analysis.words import PRODUCTS, TILE, tiles_value
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.ir.evaluate.alu import apply_scalar_op, constant, to_array, to_raw, working_dtype
from baregrad.ir.evaluate.loop_level import fold_axis, poisoned, viewed

Array = npt.NDArray[Any]


def evaluate_linear(
    program: Node,
    params: Sequence[Array] | Mapping[int, Array],
    variables: Mapping[str, int] | None = None,
    chunks: tuple[int, int] | None = None,
) -> None:
    """Run a PROGRAM in place on its argument arrays.

    params, variables, chunks: as `evaluate_loop` takes them.
    Raises IndexOutOfRange where an unmasked lane leaves its array.
    """
    machine = LinearMachine(program, dict(variables or {}), chunks)
    given = params.items() if isinstance(params, Mapping) else enumerate(params)
    for slot, array in given:
        if not array.flags.c_contiguous:
            raise CompilerBug("an argument array is not contiguous", found=f"slot {slot}")
        machine.memory[slot] = array.reshape(-1)
    machine.run()


class LinearMachine:
    """The state of a run: the value that each instruction last had, and memory."""

    def __init__(
        self, program: Node, variables: dict[str, int], chunks: tuple[int, int] | None
    ) -> None:
        program = by_rows(program)
        self.code = program.src
        self.variables = variables
        self.chunks = chunks
        self.grain: int = program.arg.grain if program.arg else 1
        self.memory: dict[int | Node, Array] = {}
        self.values: dict[Node, Array] = {}
        self.next = 0
        # The instruction at which each open loop or condition began; of loops, its counter's end.
        self.open: list[tuple[int, int | None]] = []
        self.ends = matching_ends(program.src)

    def run(self) -> None:
        """Execute from the first instruction to the last."""
        while self.next < len(self.code):
            self.execute(self.code[self.next])
            self.next += 1

    def execute(self, node: Node) -> None:
        """Run one instruction."""
        rule = LINEAR_RULES.get(node.op)
        if rule is not None:
            rule(self, node)
        elif node.op in ELEMENTWISE:
            self.values[node] = apply_scalar_op(node, *map(self.use, node.src))
        else:
            raise CompilerBug("not an instruction of this machine's linear level", found=node)

    def use(self, node: Node) -> Array:
        """The value of an operand now."""
        found = self.values.get(node)
        if found is not None:
            return found
        if node.op is Ops.CONST:
            return constant(node)
        if node.op is Ops.VAR:
            return np.asarray(self.variables[node.arg.name], np.int64)
        if node.op is Ops.REG:
            return to_array(poisoned(max(node.arg.width, 1), node.dtype), node.dtype).reshape(
                node.shape
            )
        raise CompilerBug("an instruction uses a value that was not made yet", found=node)

    def buffer(self, node: Node) -> Array:
        """The flat memory of a PARAM or ALLOC."""
        if node.op is Ops.PARAM:
            return viewed(self.memory[node.arg.slot], node.dtype)
        if node not in self.memory:
            count = int(np.prod(node.shape, dtype=np.int64)) * max(node.arg.depth, 1)
            self.memory[node] = poisoned(count, node.dtype)
        return self.memory[node]

    def places(self, node: Node) -> tuple[Array, Array]:
        """Flat positions of an access's lanes, and which lanes are active."""
        access = node.arg
        offset = self.use(node.src[1]) + access.at
        if access.width > 1 and not offset.shape:
            offset = offset + np.arange(access.width) * access.stride
        masked = len(node.src) > (2 if node.op is Ops.VLOAD else 3)
        active = self.use(node.src[-1]) if masked else np.ones(offset.shape, np.bool_)
        active = np.broadcast_to(active, offset.shape)
        size = self.buffer(node.src[0]).size
        outside = active & ((offset < 0) | (offset >= size))
        if outside.any():
            raise IndexOutOfRange(
                f"{node!r} of {node.src[0]!r}",
                found=offset[outside].tolist(),
                wanted=f"0 <= offset < {size}",
            )
        return np.where(active, offset, 0), active


def matching_ends(code: Sequence[Node]) -> dict[int, int]:
    """The place of the END of every BEGIN and TEST."""
    ends: dict[int, int] = {}
    stack: list[int] = []
    for place, node in enumerate(code):
        if node.op is Ops.BEGIN or node.op is Ops.TEST:
            stack.append(place)
        elif node.op is Ops.END:
            ends[stack.pop()] = place
    return ends


def _begin(machine: LinearMachine, node: Node) -> None:
    if len(node.src) == 3:
        extent = int(machine.use(node.src[2]))
        start, stop = 0, extent
        if machine.chunks is not None:
            start, stop = (end * machine.grain for end in machine.chunks)
    else:
        start, stop = (int(machine.use(child)) for child in node.src)
    if start >= stop:
        machine.next = machine.ends[machine.next]
        return
    machine.open.append((machine.next, stop))
    machine.values[node] = np.asarray(start, np.int64)


def _test(machine: LinearMachine, node: Node) -> None:
    if bool(machine.use(node.src[0])):
        machine.open.append((machine.next, None))
    else:
        machine.next = machine.ends[machine.next]


def _end(machine: LinearMachine, node: Node) -> None:
    place, stop = machine.open.pop()
    if stop is None:
        return
    counter = machine.code[place]
    following = int(machine.values[counter]) + 1
    if following < stop:
        machine.values[counter] = np.asarray(following, np.int64)
        machine.open.append((place, stop))
        machine.next = place


def _set(machine: LinearMachine, node: Node) -> None:
    register, value = node.src
    machine.values[register] = np.broadcast_to(machine.use(value), register.shape)


def _read(machine: LinearMachine, node: Node) -> None:
    machine.values[node] = machine.use(node.src[0])


def _vload(machine: LinearMachine, node: Node) -> None:
    offset, active = machine.places(node)
    memory = machine.buffer(node.src[0])
    zero = np.zeros((), working_dtype(node.dtype))
    if not active.any():
        machine.values[node] = np.broadcast_to(zero, offset.shape)
        return
    found = to_array(memory[offset.reshape(-1)], node.dtype).reshape(offset.shape)
    machine.values[node] = np.where(active, found, zero)


def _vstore(machine: LinearMachine, node: Node) -> None:
    offset, active = machine.places(node)
    dtype = node.src[0].dtype
    data = np.broadcast_to(to_raw(machine.use(node.src[2]), dtype), offset.shape)
    machine.buffer(node.src[0])[offset[active]] = data[active]


def _prefetch(machine: LinearMachine, node: Node) -> None:
    """Nothing: it changes no value, and what it names need not be there."""


def _turn(machine: LinearMachine, node: Node) -> None:
    base, offset, *rows = node.src
    for place, row in enumerate(rows):
        # Neighbours in memory are one lane of one vector after the other.
        access = node.arg._replace(at=node.arg.at + place)
        lanes = Node(Ops.PART, row.dtype, (row,), (0, access.width))
        _part(machine, lanes)
        _vstore(machine, Node(Ops.VSTORE, node.dtype, (base, offset, lanes), access))


def _splat(machine: LinearMachine, node: Node) -> None:
    machine.values[node] = np.broadcast_to(machine.use(node.src[0]), node.shape)


def _lanes(machine: LinearMachine, node: Node) -> None:
    machine.values[node] = np.arange(node.arg, dtype=working_dtype(node.dtype))


def _extract(machine: LinearMachine, node: Node) -> None:
    machine.values[node] = machine.use(node.src[0])[node.arg]


def _any(machine: LinearMachine, node: Node) -> None:
    machine.values[node] = np.asarray(machine.use(node.src[0]).any())


def _across(machine: LinearMachine, node: Node) -> None:
    (folded,) = fold_axis(node.arg.monoid, (machine.use(node.src[0]),), 0)
    machine.values[node] = folded[0]


def _part(machine: LinearMachine, node: Node) -> None:
    first, count = node.arg
    machine.values[node] = machine.use(node.src[0])[first : first + count]


def _machine(machine: LinearMachine, node: Node) -> None:
    """A run of products of tiles.

    src: whether results are kept, then array and offset of the results and of both factors. The
    immediates: rows, columns and steps, then of each array a constant to be added to the offset,
    and the elements between rows and between steps.
    """
    run = node.arg
    if run.name not in PRODUCTS:
        raise CompilerBug("not an instruction of a CPU", found=node)
    rows, columns, steps, *places = run.immediates
    keep, *bases = node.src
    arrays = []
    sizes = ((1, rows, columns), (steps, rows, TILE), (steps, TILE, columns))
    for place, (outer, first, second) in enumerate(sizes):
        base, offset = bases[2 * place : 2 * place + 2]
        at, pitch, stride = places[3 * place : 3 * place + 3]
        start = int(machine.use(offset)) + at
        lines = np.arange(outer)[:, None, None] * stride + np.arange(first)[:, None] * pitch
        found = start + lines + np.arange(second)
        memory = machine.buffer(base)
        if found.min() < 0 or found.max() >= memory.size:
            raise IndexOutOfRange(
                f"{node!r} of {base!r}", found=[int(found.min()), int(found.max())],
                wanted=f"0 <= offset < {memory.size}",
            )
        arrays.append((memory, found))
    (total, where), *factors = arrays
    old = total[where] if bool(machine.use(keep)) else np.zeros_like(total[where])
    a, b = (memory[found] for memory, found in factors)
    a, b = a.transpose(1, 0, 2).reshape(rows, -1), b.reshape(-1, columns)
    total[where[0]] = tiles_value(run.name, old[0], a, b)


LINEAR_RULES: MappingProxyType[Op, Callable[[LinearMachine, Node], None]] = MappingProxyType(
    {
        Ops.BEGIN: _begin,
        Ops.TEST: _test,
        Ops.END: _end,
        Ops.SET: _set,
        Ops.READ: _read,
        Ops.VLOAD: _vload,
        Ops.VSTORE: _vstore,
        Ops.TURN: _turn,
        Ops.PREFETCH: _prefetch,
        Ops.SPLAT: _splat,
        Ops.LANES: _lanes,
        Ops.EXTRACT: _extract,
        Ops.PART: _part,
        Ops.ACROSS: _across,
        Ops.ANY: _any,
        Ops.MACHINE: _machine,
    }
)

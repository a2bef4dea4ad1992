"""Reference evaluator of the linear level: runs the instructions of a PROGRAM one by one.

A value is a NumPy array of shape () or (lanes,); a tile is run row by row. Accesses are checked
against their arrays, and memory and registers that nobody has written hold NaN or a garbage
pattern. The same rules run the code of a GPU's thread for many threads in step
(`thread_machine.py`): the axes of the threads then come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.ir.analysis.rows import by_rows
from baregrad.ir.analysis.words import PRODUCTS, TILE, tiles_value
from baregrad.ir.core.attrs import Access
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.ir.evaluate.alu import (
    Array,
    apply_scalar_op,
    constant,
    read_raw,
    to_array,
    to_raw,
    wide_count,
    working_dtype,
)
from baregrad.ir.evaluate.loop_level import flat_arguments, poisoned, viewed
from baregrad.ir.evaluate.monoids import fold_axis


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
    machine = LinearMachine(program, flat_arguments(params), dict(variables or {}), chunks)
    while not machine.ended:
        machine.step()


class LinearMachine:
    """The state of a run: the value that each instruction last had, and memory.

    A value has the shape (*threads, *lanes), or only (*lanes) if it is the same for all threads.
    `threads` has the number of each thread, of shape () for the only one of a CPU; `active` says
    which of them run the present instruction. `lanes_are_threads`: a vector has one lane in each.
    """

    lanes_are_threads = False

    def __init__(
        self,
        program: Node,
        params: Mapping[int, Array],
        variables: Mapping[str, int | Array],
        chunks: tuple[int, int] | None = None,
        threads: Array | None = None,
    ) -> None:
        program = by_rows(program)
        self.code = program.src
        self.variables = variables
        self.chunks = chunks
        self.threads = np.zeros((), np.int64) if threads is None else threads
        self.active = np.ones(self.threads.shape, np.bool_)
        self.grain: int = program.arg.grain if program.arg else 1
        self.memory: dict[int | Node, Array] = dict(params.items())
        self.values: dict[Node, Array] = {}
        self.next = 0
        # The instruction at which each open loop or condition began; of loops, its counter's end;
        # of conditions, the threads that were active before.
        self.open: list[tuple[int, int, Array]] = []
        self.ends = matching_ends(program.src)

    @property
    def ended(self) -> bool:
        """Whether the last instruction has run."""
        return self.next >= len(self.code)

    def step(self) -> None:
        """Run one instruction."""
        self.execute(self.code[self.next])
        self.next += 1

    def execute(self, node: Node) -> None:
        """Run an instruction for the active threads."""
        if node.op in VALUE_RULES:
            self.values[node] = VALUE_RULES[node.op](self, node)
        elif node.op in LINEAR_RULES:
            LINEAR_RULES[node.op](self, node)
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

    def copies(self, array: Node) -> int:
        """How many arrays a PARAM or ALLOC stands for: each thread has its own private ones."""
        private = array.op is Ops.ALLOC and array.arg.space not in ("shared", "device")
        return self.threads.size if private else 1

    def buffer(self, node: Node) -> Array:
        """The flat memory of a PARAM or ALLOC; of a private one, that of all threads."""
        if node.op is Ops.PARAM:
            return viewed(self.memory[node.arg.slot], node.dtype)
        if node not in self.memory:
            count = int(np.prod(node.shape, dtype=np.int64)) * max(node.arg.depth, 1)
            self.memory[node] = poisoned(count * self.copies(node), node.dtype)
        return self.memory[node]

    def places(self, node: Node) -> tuple[Array, Array]:
        """Flat positions of an access of each thread (and lane), and which of them are active."""
        access: Access = node.arg
        array, index, *rest = node.src
        mask = rest[node.op is Ops.VSTORE :]
        offset = np.asarray(self.use(index), np.int64) + access.at
        wide = bool(index.shape) or access.width > 1
        if wide and not index.shape:
            step = access.stride * wide_count(node, array)
            lanes = np.array(access.order or range(0, step * access.width, step), np.int64)
            offset = offset[..., None] + lanes
        shape = (*self.threads.shape, *offset.shape[-1:]) if wide else self.threads.shape
        active = self.active[..., None] if wide else self.active
        if mask:
            holds = self.use(mask[0])
            active = active & (holds[..., None] if wide and not mask[0].shape else holds)
        offset, active = np.broadcast_to(offset, shape), np.broadcast_to(active, shape)
        aligned = access.align // max(array.dtype.itemsize, 1) if wide else 1
        last = offset + wide_count(node, array) - 1
        size = self.check(node, array, np.where(offset < 0, offset, last), active, aligned)
        offset = np.where(active, offset, 0)
        if self.copies(array) > 1:
            offset = offset + (self.threads[..., None] if wide else self.threads) * size
        self.note(node, offset, active, node.op is Ops.VSTORE)
        return offset, active

    def check(
        self, node: Node, array: Node, offset: Array, active: Array, lanes: int = 1
    ) -> int:
        """The elements of an array; raises IndexOutOfRange unless active places lie in it.

        lanes: the first of each thread's places must be a multiple of it.
        """
        size = self.buffer(array).size // self.copies(array)
        outside = active & ((offset < 0) | (offset >= size))
        if lanes > 1:
            outside = outside | (active.all(-1, keepdims=True) & (offset[..., :1] % lanes != 0))
        if outside.any():
            aligned = f", a multiple of {lanes}" if lanes > 1 else ""
            raise IndexOutOfRange(
                f"{node!r} of {array!r}", found=offset[outside].tolist()[:8],
                wanted=f"0 <= offset < {size}{aligned}",
            )
        return size

    def note(self, node: Node, offset: Array, active: Array, write: bool) -> None:
        """Take note of the places of an access; a single thread races with nobody."""

    def machine(self, node: Node) -> None:
        """Run a MACHINE: on a CPU, a run of products of tiles.

        src: whether results are kept, then array and offset of the results and of both factors. The
        immediates: rows, columns and steps, then of each array a constant to be added to the
        offset, and the elements between rows and between steps.
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
            start = int(self.use(offset)) + at
            lines = np.arange(outer)[:, None, None] * stride + np.arange(first)[:, None] * pitch
            found = start + lines + np.arange(second)
            memory = self.buffer(base)
            self.check(node, base, found, np.ones(found.shape, np.bool_))
            arrays.append((memory, found))
        (total, where), *factors = arrays
        old = total[where] if bool(self.use(keep)) else np.zeros_like(total[where])
        a, b = (memory[found] for memory, found in factors)
        a, b = a.transpose(1, 0, 2).reshape(rows, -1), b.reshape(-1, columns)
        total[where[0]] = tiles_value(run.name, old[0], a, b)


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
    # A pool's loop names the chunk's ends first, which `chunks` gives, and its extent last.
    pooled = len(node.src) == 3
    ends = [np.unique(_of_active(machine, one)) for one in (node.src[2:] if pooled else node.src)]
    if any(end.size != 1 for end in ends):
        raise CompilerBug("threads of one block run a loop unequally often", found=node)
    start, stop = (0, int(ends[0][0])) if pooled else (int(end[0]) for end in ends)
    if pooled and machine.chunks is not None:
        start, stop = (end * machine.grain for end in machine.chunks)
    if start >= stop:
        machine.next = machine.ends[machine.next]
        return
    machine.open.append((machine.next, stop, machine.active))
    machine.values[node] = np.asarray(start, np.int64)


def _of_active(machine: LinearMachine, value: Node) -> Array:
    """What an operand is in the threads that come to an instruction."""
    every, active = np.broadcast_arrays(machine.use(value), machine.active)
    found: Array = every[active]
    return found


def _test(machine: LinearMachine, node: Node) -> None:
    holds = machine.active & machine.use(node.src[0])
    if not holds.any():
        machine.next = machine.ends[machine.next]
        return
    machine.open.append((machine.next, 0, machine.active))
    machine.active = holds


def _end(machine: LinearMachine, node: Node) -> None:
    place, stop, active = machine.open.pop()
    begun = machine.code[place]
    if begun.op is Ops.TEST:
        machine.active = active
        return
    following = int(machine.values[begun]) + 1
    if following < stop:
        machine.values[begun] = np.asarray(following, np.int64)
        machine.open.append((place, stop, active))
        machine.next = place


def _set(machine: LinearMachine, node: Node) -> None:
    register, value = node.src
    lanes = () if machine.lanes_are_threads else register.shape
    new = np.broadcast_to(machine.use(value), (*machine.threads.shape, *lanes))
    if not machine.active.all():
        active = machine.active[..., None] if lanes else machine.active
        new = np.where(active, new, machine.use(register))
    machine.values[register] = new


def _vload(machine: LinearMachine, node: Node) -> Array:
    offset, active = machine.places(node)
    zero = np.zeros((), working_dtype(node.dtype))
    if not active.any():
        return np.broadcast_to(zero, offset.shape)
    count = wide_count(node, node.src[0])
    found = read_raw(machine.buffer(node.src[0]), offset.reshape(-1), count, node.dtype)
    found = to_array(found, node.dtype)
    return np.where(active, found.reshape(offset.shape), zero)


def _vstore(machine: LinearMachine, node: Node) -> None:
    offset, active = machine.places(node)
    value = machine.use(node.src[2])
    if offset.ndim > machine.threads.ndim and not node.src[2].shape:
        value = value[..., None]
    data = np.broadcast_to(to_raw(value, node.src[0].dtype), offset.shape)
    machine.buffer(node.src[0])[offset[active]] = data[active]


def _turn(machine: LinearMachine, node: Node) -> None:
    base, offset, *rows = node.src
    for place, row in enumerate(rows):
        # Neighbours in memory are one lane of one vector after the other.
        access = node.arg._replace(at=node.arg.at + place)
        lanes = Node(Ops.PART, row.dtype, (row,), (0, access.width))
        machine.values[lanes] = _part(machine, lanes)
        _vstore(machine, Node(Ops.VSTORE, node.dtype, (base, offset, lanes), access))


def _across(machine: LinearMachine, node: Node) -> Array:
    value = machine.use(node.src[0])
    (folded,) = fold_axis(node.arg.monoid, (value,), value.ndim - 1)
    return folded[..., 0]


def _part(machine: LinearMachine, node: Node) -> Array:
    first, count = node.arg
    return machine.use(node.src[0])[..., first : first + count]


def _join(machine: LinearMachine, node: Node) -> Array:
    lanes = np.broadcast_arrays(*[machine.use(lane) for lane in node.src])
    return np.stack(lanes, axis=-1)


def _splat(machine: LinearMachine, node: Node) -> Array:
    value = machine.use(node.src[0])
    return np.broadcast_to(value[..., None], (*value.shape, *node.shape))


# Instructions that do nothing but give a value.
VALUE_RULES: MappingProxyType[Op, Callable[[LinearMachine, Node], Array]] = MappingProxyType({
    **dict.fromkeys(
        ELEMENTWISE,
        lambda machine, node: apply_scalar_op(node, *map(machine.use, node.src)),
    ),
    Ops.READ: lambda machine, node: machine.use(node.src[0]),
    Ops.VLOAD: _vload,
    Ops.SPLAT: _splat,
    Ops.LANES: lambda machine, node: np.arange(node.arg, dtype=working_dtype(node.dtype)),
    Ops.EXTRACT: lambda machine, node: machine.use(node.src[0])[..., node.arg],
    Ops.PART: _part,
    Ops.JOIN: _join,
    Ops.ACROSS: _across,
    Ops.ANY: lambda machine, node: np.asarray(machine.use(node.src[0]).any(axis=-1)),
})  # fmt: skip
LINEAR_RULES: MappingProxyType[Op, Callable[[LinearMachine, Node], None]] = MappingProxyType({
    Ops.BEGIN: _begin,
    Ops.TEST: _test,
    Ops.END: _end,
    Ops.SET: _set,
    Ops.VSTORE: _vstore,
    Ops.TURN: _turn,
    # It changes no value, and what it names need not be there.
    Ops.PREFETCH: lambda machine, node: None,
    Ops.MACHINE: lambda machine, node: machine.machine(node),
})  # fmt: skip

"""Reference evaluator of the linear level of ordinary GPU kernels.

The code of one thread is run by all threads of a block in step, block after block. A value has one
element (or vector) for each thread of the block, unless it is the same for all. Threads that a
condition leaves out keep what they had. Between two barriers no element of shared memory may be
touched by two threads of which one writes: that would be a race on a real machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.dtypes import as_dtype
from baregrad.ir.core.attrs import Access
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.ir.evaluate.alu import apply_scalar_op, to_array, to_raw, working_dtype
from baregrad.ir.evaluate.linear_level import LINEAR_RULES, LinearMachine
from baregrad.ir.evaluate.loop_level import memory_dtype, poisoned
from baregrad.ir.protocol.attributes import ProtocolError

Array = npt.NDArray[Any]
WARP = 32
_NOBODY, _SEVERAL = -1, -2


def evaluate_threads(
    program: Node,
    params: Sequence[Array] | Mapping[int, Array],
    blocks: int,
    variables: Mapping[str, int] | None = None,
) -> None:
    """Run a PROGRAM on `blocks` blocks, in place on its argument arrays.

    params, variables: as `evaluate_linear` takes them. Raises IndexOutOfRange where an active
    thread leaves an array, ProtocolError for a race in shared memory and for a barrier or an
    exchange where some threads do not come.
    """
    given = dict(params.items() if isinstance(params, Mapping) else enumerate(params))
    for block in range(blocks):
        machine = ThreadsMachine(program, dict(variables or {}), block)
        for slot, array in given.items():
            machine.memory[slot] = array.reshape(-1)
        machine.run()


class Flight(NamedTuple):
    """A copy under way: what will be at some places of a shared array, and whose it is."""

    array: Node
    places: Array
    data: Array
    threads: Array


class ThreadsMachine(LinearMachine):
    """The threads of one block. `active` says which of them run the present instruction."""

    def __init__(self, program: Node, variables: dict[str, int], block: int) -> None:
        super().__init__(program, {**variables, ".block": block}, None)
        self.count = int(np.prod(program.arg.block or (1,), dtype=np.int64))
        self.threads = np.arange(self.count)
        self.active = np.ones(self.count, np.bool_)
        self.masks: list[Array] = []
        self.writers: dict[Node, Array] = {}
        self.readers: dict[Node, Array] = {}
        # Asynchronous copies under way: where, those of no group yet, and groups, the oldest first.
        self.flying: dict[Node, Array] = {}
        self.loose: list[Flight] = []
        self.groups: list[list[Flight]] = []

    def execute(self, node: Node) -> None:
        """Run one instruction for the active threads."""
        rule = _RULES.get(node.op)
        if rule is not None:
            rule(self, node)
        elif node.op in ELEMENTWISE:
            self.values[node] = apply_scalar_op(node, *map(self.use, node.src))
        else:
            LINEAR_RULES[node.op](self, node)

    def use(self, node: Node) -> Array:
        """The value of an operand now."""
        if node.op is Ops.VAR and node.arg.name == ".thread":
            return self.threads.astype(np.int64)
        return super().use(node)

    def is_private(self, array: Node) -> bool:
        """Whether each thread has an array of its own."""
        return array.op is Ops.ALLOC and array.arg.space != "shared"

    def buffer(self, node: Node) -> Array:
        """The flat memory of a PARAM or ALLOC; of a private one, that of all threads."""
        if self.is_private(node) and node not in self.memory:
            size = int(np.prod(node.shape, dtype=np.int64))
            self.memory[node] = poisoned(size * self.count, node.dtype)
        return super().buffer(node)

    def lanes(self, node: Node) -> tuple[Array, Array]:
        """Element numbers of an access for each thread (and lane), and which are active."""
        access: Access = node.arg
        offset = np.asarray(self.use(node.src[1]), np.int64) + access.at
        wide = bool(node.src[1].shape)
        if access.width > 1 and not wide:
            offset = offset[..., None] + np.arange(access.width) * access.stride
            wide = True
        shape = (self.count, offset.shape[-1]) if wide else (self.count,)
        offset = np.broadcast_to(offset, shape)
        active = np.broadcast_to(self.active[:, None] if wide else self.active, shape)
        if len(node.src) > (2 if node.op is Ops.VLOAD else 3):
            mask = np.asarray(self.use(node.src[-1]))
            if wide and not node.src[-1].shape:
                mask = mask[..., None]
            active = active & mask
        self.check_bounds(node, offset, active)
        offset = np.where(active, offset, 0)
        if self.is_private(node.src[0]):
            size = self.buffer(node.src[0]).size // self.count
            own = self.threads[:, None] if wide else self.threads
            offset = offset + own * size
        return offset, active

    def check_bounds(self, node: Node, offset: Array, active: Array) -> None:
        """Raise IndexOutOfRange where an active place is not in its array, or not aligned."""
        array = node.src[0]
        size = self.buffer(array).size // (self.count if self.is_private(array) else 1)
        outside = active & ((offset < 0) | (offset >= size))
        if outside.any():
            raise IndexOutOfRange(
                f"{node!r} of {array!r}",
                found=offset[outside].tolist()[:8], wanted=f"0 <= offset < {size}",
            )
        lanes = node.arg.align // max(array.dtype.itemsize, 1)
        if lanes > 1 and (offset[active.all(axis=-1), 0] % lanes).any():
            raise IndexOutOfRange(f"{node!r} is not aligned", found=offset[:, 0].tolist()[:8])

    def note(self, node: Node, offset: Array, active: Array, write: bool) -> None:
        """Remember who touches shared memory; raise ProtocolError for a race."""
        array = node.src[0]
        if array.op is not Ops.ALLOC or array.arg.space != "shared":
            return
        size = self.buffer(array).size
        writer = self.writers.setdefault(array, np.full(size, _NOBODY))
        reader = self.readers.setdefault(array, np.full(size, _NOBODY))
        who = np.broadcast_to(
            self.threads[:, None] if offset.ndim > 1 else self.threads, offset.shape
        )
        flying = self.flying.get(array)
        if flying is not None and flying[offset[active]].any():
            place = offset[active][flying[offset[active]]][0]
            raise ProtocolError(
                f"element {place} of {array!r} is touched while a copy to it is under way"
            )
        for place, thread in zip(offset[active].tolist(), who[active].tolist(), strict=True):
            clash = writer[place] not in (_NOBODY, thread)
            if write:
                clash = clash or reader[place] not in (_NOBODY, thread)
                writer[place] = thread
            else:
                same = reader[place] in (_NOBODY, thread)
                reader[place] = thread if same else _SEVERAL
            if clash:
                raise ProtocolError(
                    f"threads race for element {place} of {array!r}: thread {thread} "
                    f"{'writes' if write else 'reads'} it in {node!r}"
                )

    def meet(self, what: str) -> None:
        """Raise ProtocolError unless all threads are here."""
        if not self.active.all():
            missing = self.threads[~self.active].tolist()[:8]
            raise ProtocolError(f"{what} where threads {missing} do not come")


def _vload(machine: ThreadsMachine, node: Node) -> None:
    offset, active = machine.lanes(node)
    machine.note(node, offset, active, False)
    found = to_array(machine.buffer(node.src[0])[offset.reshape(-1)], node.dtype)
    zero = np.zeros((), working_dtype(node.dtype))
    machine.values[node] = np.where(active, found.reshape(offset.shape), zero)


def _vstore(machine: ThreadsMachine, node: Node) -> None:
    offset, active = machine.lanes(node)
    machine.note(node, offset, active, True)
    value = np.asarray(machine.use(node.src[2]))
    if offset.ndim > 1 and not node.src[2].shape:
        value = value[..., None]
    data = np.broadcast_to(to_raw(value, node.src[0].dtype), offset.shape)
    machine.buffer(node.src[0])[offset[active]] = data[active]


def _set(machine: ThreadsMachine, node: Node) -> None:
    register, value = node.src
    shape = (machine.count, *register.shape)
    new = np.asarray(machine.use(value))
    new = np.broadcast_to(new, shape) if new.ndim != len(shape) else new
    old = np.broadcast_to(machine.use(register), shape)
    active = machine.active[:, None] if register.shape else machine.active
    machine.values[register] = np.where(active, new, old)


def _test(machine: ThreadsMachine, node: Node) -> None:
    holds = machine.active & np.asarray(machine.use(node.src[0]))
    if not holds.any():
        machine.next = machine.ends[machine.next]
        return
    machine.open.append((machine.next, None))
    machine.masks.append(machine.active)
    machine.active = holds


def _begin(machine: ThreadsMachine, node: Node) -> None:
    ends = []
    for child in node.src:
        end = np.unique(np.asarray(machine.use(child)))
        if end.size != 1:
            raise CompilerBug("threads of one block run a loop unequally often", found=node)
        ends.append(int(end[0]))
    start, stop = ends
    if start >= stop:
        machine.next = machine.ends[machine.next]
        return
    machine.open.append((machine.next, stop))
    machine.values[node] = np.asarray(start, np.int64)


def _end(machine: ThreadsMachine, node: Node) -> None:
    place, stop = machine.open[-1]
    LINEAR_RULES[Ops.END](machine, node)
    if stop is None and machine.code[place].op is Ops.TEST:
        machine.active = machine.masks.pop()


def _splat(machine: ThreadsMachine, node: Node) -> None:
    value = np.asarray(machine.use(node.src[0]))
    machine.values[node] = np.broadcast_to(value[..., None], (*value.shape, node.arg))


def _extract(machine: ThreadsMachine, node: Node) -> None:
    machine.values[node] = machine.use(node.src[0])[..., node.arg]


def _part(machine: ThreadsMachine, node: Node) -> None:
    first, count = node.arg
    machine.values[node] = machine.use(node.src[0])[..., first : first + count]


def _any(machine: ThreadsMachine, node: Node) -> None:
    machine.values[node] = np.asarray(np.any(machine.use(node.src[0]), axis=-1))


def _copy(machine: ThreadsMachine, node: Node) -> None:
    """Elements that land when their group is waited for; nobody may touch the places till then."""
    target, at, array, offset, *mask = node.src
    nbytes, to, first = node.arg.immediates
    lanes = nbytes // target.dtype.itemsize
    every = machine.active[:, None]
    taken = every & machine.use(mask[0])[..., None] if mask else every
    count = np.arange(lanes)
    shape = (machine.count, lanes)

    def places(start: Node, more: int, active: Array, buffer: Node) -> Array:
        found = np.asarray(machine.use(start), np.int64)[..., None] + more + count
        found = np.broadcast_to(found, shape)
        size = machine.buffer(buffer).size
        bad = active & ((found < 0) | (found >= size) | (found[:, :1] % lanes != 0))
        if bad.any():
            raise IndexOutOfRange(
                f"{node!r} of {buffer!r}", found=found[bad].tolist()[:8],
                wanted=f"0 <= offset < {size}, a multiple of {lanes}",
            )
        return np.where(active, found, 0)

    active = np.broadcast_to(every, shape)
    target_places = places(at, to, active, target)
    origin = places(offset, first, np.broadcast_to(taken, shape), array)
    machine.note(node, target_places, active, True)
    memory = machine.buffer(target)
    data = np.where(taken, machine.buffer(array)[origin], np.zeros((), memory.dtype))
    who = np.broadcast_to(machine.threads[:, None], shape)
    memory[target_places[active]] = poisoned(int(active.sum()), target.dtype)
    flying = machine.flying.setdefault(target, np.zeros(memory.size, np.bool_))
    flying[target_places[active]] = True
    machine.loose.append(Flight(target, target_places[active], data[active], who[active]))


def _commit(machine: ThreadsMachine, node: Node) -> None:
    machine.meet("a group of copies is closed")
    machine.groups.append(machine.loose)
    machine.loose = []


def _wait(machine: ThreadsMachine, node: Node) -> None:
    """All but so many groups land, seen by their own threads until the next barrier."""
    machine.meet("a wait for copies")
    last = max(len(machine.groups) - node.arg.immediates[0], 0)
    landed = [one for group in machine.groups[:last] for one in group]
    del machine.groups[:last]
    for one in landed:
        machine.buffer(one.array)[one.places] = one.data
        machine.flying[one.array][one.places] = False
        size = machine.buffer(one.array).size
        writer = machine.writers.setdefault(one.array, np.full(size, _NOBODY))
        writer[one.places] = one.threads


def _machine(machine: ThreadsMachine, node: Node) -> None:
    name = node.arg.name
    rule = _COPIES.get(name)
    if rule is not None:
        rule(machine, node)
        return
    if name == "bar.sync":
        machine.meet("a barrier")
        machine.writers.clear()
        machine.readers.clear()
        return
    if name == "shfl.sync.bfly":
        machine.meet("an exchange")
        value = np.broadcast_to(machine.use(node.src[0]), (machine.count,))
        partner = machine.threads ^ node.arg.immediates[0]
        if machine.count % WARP or (partner // WARP != machine.threads // WARP).any():
            raise ProtocolError(f"{node!r} leaves the warp")
        machine.values[node] = value[partner]
        return
    raise CompilerBug("an instruction that ordinary kernels have not", found=name)


def _load_matrices(machine: ThreadsMachine, node: Node) -> None:
    """Lane l of a warp has elements 2 (l % 4) and the next of row l / 4, of each matrix.

    The address of row r of matrix i is that of lane 8 i + r. Turned, rows are columns.
    """
    machine.meet("matrices are loaded")
    _, turned, first = (*node.arg.immediates, 0)[:3]
    array, offset, *registers = node.src
    starts = np.asarray(machine.use(offset), np.int64) + first
    starts = np.broadcast_to(starts, (machine.count,)).reshape(-1, WARP)
    lane = np.arange(WARP)
    memory = machine.buffer(array).view(np.uint16)
    for number, register in enumerate(registers):
        halves = []
        for half in range(2):
            row, column = lane // 4, 2 * (lane % 4) + half
            if turned:
                row, column = column, row
            places = (starts[:, 8 * number + row] + column).reshape(-1)
            if (starts[:, 8 * number + row] % 8).any() or (places >= memory.size).any():
                raise IndexOutOfRange(f"{node!r} of {array!r}", found=places.tolist()[:8])
            machine.note(node, places, np.ones(machine.count, np.bool_), False)
            halves.append(memory[places].astype(np.uint32))
        machine.values[register] = halves[0] | halves[1] << np.uint32(16)


def _multiply_matrices(machine: ThreadsMachine, node: Node) -> None:
    """Products of a warp's fragments, element by element where the manual says that they are."""
    machine.meet("matrices are multiplied")
    depth, name = node.arg.immediates
    words = depth // 4
    operand = as_dtype(name)
    pairs = [np.asarray(machine.use(one)).reshape(-1, WARP) for one in node.src[:-2]]
    values = [
        [to_array((word >> np.uint32(16 * half)).astype(np.uint16).view(memory_dtype(operand)),
                  operand).astype(np.float64) for half in range(2)]
        for word in pairs
    ]  # fmt: skip
    lane = np.arange(WARP)
    warps = len(pairs[0])
    left, right = np.zeros((warps, 16, depth)), np.zeros((warps, depth, 8))
    for half in range(2):
        for number in range(words):
            step = 8 * (number >> 1) + 2 * (lane % 4) + half
            left[:, lane // 4 + 8 * (number & 1), step] = values[number][half]
        for number in range(words // 2):
            right[:, 8 * number + 2 * (lane % 4) + half, lane // 4] = values[words + number][half]
    total = left @ right
    for half, register in enumerate(node.src[-2:]):
        old = np.broadcast_to(machine.use(register), (machine.count, 2)).reshape(-1, WARP, 2)
        rows = lane // 4 + 8 * half
        added = np.stack([total[:, rows, 2 * (lane % 4) + pair] for pair in range(2)], axis=-1)
        machine.values[register] = (old + added).astype(np.float32).reshape(-1, 2)


_COPIES: MappingProxyType[str, Callable[[ThreadsMachine, Node], None]] = MappingProxyType(
    {
        "cp.async": _copy,
        "cp.async.commit": _commit,
        "cp.async.wait": _wait,
        "ldmatrix": _load_matrices,
        "mma.sync": _multiply_matrices,
    }
)
_RULES: MappingProxyType[Op, Callable[[Any, Node], None]] = MappingProxyType(
    {
        Ops.BEGIN: _begin,
        Ops.TEST: _test,
        Ops.END: _end,
        Ops.SET: _set,
        Ops.VLOAD: _vload,
        Ops.VSTORE: _vstore,
        Ops.SPLAT: _splat,
        Ops.EXTRACT: _extract,
        Ops.PART: _part,
        Ops.ANY: _any,
        Ops.MACHINE: _machine,
    }
)

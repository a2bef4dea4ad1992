"""Executor of the GPU's linear level: the threads of all blocks, cluster after cluster.

The code of one thread is run by all threads of a block in step; code of whole warps (which asks for
the `warp`) by each warp by itself, in random order. Between two barriers no element of a shared
array may be touched by two threads of which one writes: that would be a race on a real machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from baregrad.base.errors import IndexOutOfRange
from baregrad.dtypes import DType, as_dtype
from baregrad.ir.analysis.words import octet_sums
from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.alu import Array, round_to, to_array, to_raw
from baregrad.ir.evaluate.gpu_cluster import Cluster, wait_for
from baregrad.ir.evaluate.gpu_hopper import HOPPER_INSTRUCTIONS, WARP, accumulator_places
from baregrad.ir.evaluate.gpu_roles import (
    ROLE_INSTRUCTIONS,
    check_flags,
    device_memory,
    role_threads,
)
from baregrad.ir.evaluate.gpu_thread_machine import NOBODY, ThreadBlock, Threads, is_of_warps
from baregrad.ir.evaluate.loop_level import flat_arguments, memory_dtype, poisoned
from baregrad.ir.protocol.attributes import ProtocolError
from baregrad.target.gpu import GpuTarget

# Threads of four warps.
_GROUP = 4 * WARP


def evaluate_threads(
    program: Node,
    params: Sequence[Array] | Mapping[int, Array],
    target: GpuTarget,
    clusters: int | None = None,
    variables: Mapping[str, int] | None = None,
    seed: int = 0,
) -> None:
    """Run a PROGRAM of a GPU in place on its argument arrays, one order of warps per seed.

    params, variables: as `evaluate_linear` takes them. clusters: how many clusters (of one block,
    where the kernel asks for no more) are run; the grid's by default. Raises IndexOutOfRange where
    an active thread leaves an array; ProtocolError for a race in shared memory, a barrier or an
    exchange where some threads do not come, deadlocks and broken protocols.
    """
    memory, own = flat_arguments(params), device_memory(program)
    rng = random.Random(seed)
    if clusters is None:
        clusters = int(np.prod(program.arg.grid, dtype=np.int64))
    for number in range(clusters):
        cluster = Cluster(target, number, rng)
        blocks = [_block(program, rank, cluster) for rank in range(program.arg.cluster)]
        for rank, block in enumerate(blocks):
            block.warps = tuple(
                Threads(
                    program, memory, variables or {}, cluster, blocks, rank, threads, INSTRUCTIONS
                )
                for threads in _in_step(program, target)
            )
            for warp in block.warps:
                warp.memory.update(own)
        cluster.run([warp for block in blocks for warp in block.warps])
    if clusters == int(np.prod(program.arg.grid, dtype=np.int64)):
        check_flags(own)


def _block(program: Node, rank: int, cluster: Cluster) -> ThreadBlock:
    info, target = program.arg, cluster.target
    registers = target.registers_at_launch(info.warps * target.warp_lanes)
    number = cluster.number * info.cluster + rank
    return ThreadBlock(rank, number, info.shared_nbytes, info.warps, registers)


def _in_step(program: Node, target: GpuTarget) -> list[Array]:
    """The numbers of a block's threads, by those that run in step."""
    if is_of_warps(program):
        return np.split(np.arange(program.arg.warps * target.warp_lanes), program.arg.warps)
    return role_threads(program)


# --- barriers and exchanges ----------------------------------------------------------------------


def _bar_warp_sync(machine: Threads, node: Node) -> None:
    """The lanes of each warp meet: which warp reads what another wrote is not looked for here."""
    machine.meet("a barrier of warps")
    machine.writers.clear()
    machine.readers.clear()


def _bar_sync(machine: Threads, node: Node) -> None:
    """All threads of the block meet, or a number of warps at a numbered barrier."""
    machine.meet("a barrier")
    machine.writers.clear()
    machine.readers.clear()
    if not machine.lanes_are_threads:
        # Those in step are there together: of all of a block there may be others.
        sets = len(machine.block.warps)
        if sets > 1 and not node.src:
            machine.blocked = machine.cluster.meet(("bar", str(machine.block)), sets)
    elif node.src:
        name = ("bar", machine.uniform(node.src[0]), "of", str(machine.block))
        machine.blocked = machine.cluster.meet(name, node.arg.immediates[0])


def _exchange(machine: Threads, node: Node) -> None:
    here = np.broadcast_to(machine.active, machine.threads.shape)
    if here.size % WARP or (here.reshape(-1, WARP) != here[::WARP, None]).any():
        machine.meet("an exchange")
    value = np.broadcast_to(machine.use(node.src[0]), machine.threads.shape)
    partner = machine.threads ^ node.arg.immediates[0]
    if machine.threads.size % WARP or (partner // WARP != machine.threads // WARP).any():
        raise ProtocolError(f"{node!r} leaves the warp")
    # Those of a team follow each other from its first one on.
    machine.values[node] = value[partner - machine.threads[0]]


# --- copies --------------------------------------------------------------------------------------


def _copy(machine: Threads, node: Node) -> None:
    """Elements that land when their group is waited for; nobody may touch the places till then."""
    target, at, array, offset, *mask = node.src
    nbytes, to, first = node.arg.immediates[:3]
    lanes = nbytes // target.dtype.itemsize
    shape = (machine.threads.size, lanes)
    every = machine.active[:, None]
    active = np.broadcast_to(every, shape)
    taken = np.broadcast_to(every & machine.use(mask[0])[..., None] if mask else every, shape)

    def places(start: Node, more: int, active: Array, buffer: Node) -> Array:
        found = np.asarray(machine.use(start), np.int64)[..., None] + more + np.arange(lanes)
        found = np.broadcast_to(found, shape)
        machine.check(node, buffer, found, active, lanes)
        return np.where(active, found, 0)

    target_places = places(at, to, active, target)
    origin = places(offset, first, taken, array)
    machine.note(node, target_places, active, True)
    memory = machine.buffer(target)
    data = np.where(taken, machine.buffer(array)[origin], np.zeros((), memory.dtype))[active]
    who = np.broadcast_to(machine.threads[:, None], shape)[active]
    where = target_places[active]
    memory[where] = poisoned(where.size, target.dtype)
    flying = machine.flying.setdefault(target, np.zeros(memory.size, np.bool_))
    flying[where] = True

    def land() -> None:
        """What a thread has waited for, it alone sees before the next barrier."""
        memory[where] = data
        flying[where] = False
        machine.writers.setdefault(target, np.full(memory.size, NOBODY))[where] = who

    machine.loose["copy"].work.append(land)


def _store_run(machine: Threads, node: Node) -> None:
    """Runs of shared memory that are stored beside the threads, as it is when that is done."""
    target, offset, array, at = node.src
    nbytes, first, more = node.arg.immediates
    lanes = nbytes // target.dtype.itemsize
    active = np.broadcast_to(machine.active[:, None], (machine.threads.size, lanes))
    found = []
    for buffer, start, begin in ((target, offset, first), (array, at, more)):
        places = np.asarray(machine.use(start), np.int64)[..., None] + begin + np.arange(lanes)
        places = np.broadcast_to(places, active.shape)
        # Words of 16 bytes.
        machine.check(node, buffer, places, active, 16 // buffer.dtype.itemsize)
        found.append(places[active])
    where, origin = found
    machine.see(node, array, origin)
    memory, source = machine.buffer(target), machine.buffer(array)
    memory[where] = poisoned(where.size, target.dtype)

    def complete() -> None:
        memory[where] = source[origin]

    machine.loose["store"].work.append(complete)


def _elect(machine: Threads, node: Node) -> None:
    """Whether a thread is the one of its warp that does what one has to do."""
    whole = machine.active.reshape(-1, WARP)
    if (whole != whole[:, :1]).any():
        raise ProtocolError("a lane is elected where some of its warp do not come", found=node)
    machine.values[node] = machine.threads % WARP == 0


def _commit(machine: Threads, node: Node) -> None:
    machine.meet("a group of copies is closed")
    machine.commit("copy")


def _wait(machine: Threads, node: Node) -> None:
    machine.meet("a wait for copies")
    wait_for(machine.groups["copy"], node.arg.immediates[0])


# --- a warp's matrix unit ------------------------------------------------------------------------


def _load_matrices(machine: Threads, node: Node) -> None:
    """Lane l of a warp has 4 bytes, those at 4 (l % 4), of row l / 4 of each matrix.

    The address of row r of matrix i is that of lane 8 i + r. Turned, rows of 16-bit elements are
    columns.
    """
    machine.meet("matrices are loaded")
    _, turned, first = (*node.arg.immediates, 0)[:3]
    array, offset, *registers = node.src
    starts = np.asarray(machine.use(offset), np.int64) + first
    starts = np.broadcast_to(starts, (machine.threads.size,)).reshape(-1, WARP)
    lane = np.arange(WARP)
    memory, size = machine.buffer(array).view(np.uint16), array.dtype.itemsize
    for number, register in enumerate(registers):
        halves = []
        for half in range(2):
            row, column = lane // 4, 2 * (lane % 4) + half
            if turned:
                row, column = column, row
            begins = starts[:, 8 * number + row] * size
            places = (begins // 2 + column).reshape(-1)
            if (begins % 16).any() or (places >= memory.size).any():
                raise IndexOutOfRange(f"{node!r} of {array!r}", found=places.tolist()[:8])
            every = np.ones(machine.threads.size, np.bool_)
            for touched in range(max(2 // size, 1)):
                machine.note(node, places * 2 // size + touched, every, False)
            halves.append(memory[places].astype(np.uint32))
        machine.values[register] = halves[0] | halves[1] << np.uint32(16)


def _load_across(machine: Threads, node: Node) -> None:
    """Two neighbours at each lane's place, and two of 4 steps on or back: the first ones first."""
    (first,) = node.arg.immediates
    array, offset, *registers = node.src
    starts = np.broadcast_to(np.asarray(machine.use(offset), np.int64), machine.threads.shape)
    starts = starts + first
    memory = machine.buffer(array).view(np.uint32)
    late = starts & 128 != 0
    pairs = []
    for places in (starts, starts ^ (128 | 16)):
        both = places[:, None] + np.arange(2)
        if (places % 2).any() or (both >= memory.size).any():
            raise IndexOutOfRange(f"{node!r} of {array!r}", found=places.tolist()[:8])
        machine.see(node, array, both)
        pairs.append(memory[both])
    for number, register in enumerate(registers):
        mine, theirs = pairs[number // 2], pairs[1 - number // 2]
        machine.values[register] = np.where(late, theirs[:, number % 2], mine[:, number % 2])


def _multiply_matrices(machine: Threads, node: Node) -> None:
    """Products of a warp's fragments, element by element where the manual says that they are."""
    machine.meet("matrices are multiplied")
    depth, name, *lanes = node.arg.immediates[:4]
    operand = as_dtype(name)
    words, each = depth * operand.itemsize // 8, 4 // operand.itemsize
    found = [np.asarray(machine.use(one), np.uint32).reshape(-1, WARP) for one in node.src[:-2]]
    warps = len(found[0])
    values = [
        to_array(
            np.ascontiguousarray(word).view(memory_dtype(operand)).reshape(warps, WARP, each),
            operand,
        ).astype(np.float64)
        for word in found
    ]
    lane = np.arange(WARP)
    left, right = np.zeros((warps, 16, depth)), np.zeros((warps, depth, 8))
    for part in range(each):
        for number in range(words):
            step = each * (lane % 4 + 4 * (number >> 1)) + part
            left[:, lane // 4 + 8 * (number & 1), step] = values[number][..., part]
        for number in range(words // 2):
            step = each * (lane % 4 + 4 * number) + part
            right[:, step, lane // 4] = values[words + number][..., part]
    total = left @ right
    rows, columns = accumulator_places(8)
    added = total[:, rows, columns].reshape(warps, 2, 2, WARP)
    for half, register in enumerate(node.src[-2:]):
        new = np.array(np.broadcast_to(
            machine.use(register), (machine.threads.size, *register.shape)
        ))  # fmt: skip
        more = added[:, half].transpose(0, 2, 1).reshape(-1, 2)
        if register.dtype.is_int:
            # Sums of integers wrap.
            more = more.astype(np.int64).astype(new.dtype)
        new[:, lanes or [0, 1]] += more
        machine.values[register] = new


def _multiply_groups(machine: Threads, node: Node) -> None:
    """Products of groups of four warps, of what shared memory has as their group is waited for."""
    machine.meet("matrices are multiplied")
    *kinds, turn_a, turn_b, panel, at_a, at_b, beside, _, keep = node.arg.immediates[:10]
    turned, tiles = (turn_a, turn_b), node.arg.immediates[10:]
    is_held = node.arg.name == "wgmma.held"
    first, registers = (4, node.src[6:]) if is_held else (2, node.src[4:])
    held, (b, offset_b) = node.src[:first], node.src[first : first + 2]
    size = b.dtype.itemsize
    # Elements of a row of 128 bytes, of which an instruction takes 32, and of a chunk of 16.
    line, chunk = 128 // size, 16 // size
    step, row, column = np.arange(32 // size), np.arange(64), np.arange(8 * len(tiles))
    own = row * (1 if turned[0] else line)
    other = column // line * panel + column % line if turned[1] else column * line
    places = []
    sides = [] if is_held else [(held[0], held[1], at_a, own, turned[0])]
    sides.append((b, offset_b, at_b, other, turned[1]))
    for array, offset, at, side, across in sides:
        starts = np.broadcast_to(np.asarray(machine.use(offset), np.int64), machine.threads.shape)
        starts = starts.reshape(-1, _GROUP)
        if (starts != starts[:, :1]).any():
            raise ProtocolError(f"{node!r} of factors that begin elsewhere for each thread")
        flat = starts[:, :1, None] + at + side[:, None] + step * (line if across else 1)
        # Of each row the chunks are exchanged.
        flat ^= flat // line % 8 * chunk
        machine.see(node, array, flat)
        places.append(flat)
    known = [_held_rows(machine, held, as_dtype(kinds[0]))] if is_held else []
    for register in registers:
        if register not in machine.hidden:
            shape = (machine.threads.size, *register.shape)
            machine.hidden[register] = np.array(np.broadcast_to(machine.use(register), shape))
        sums = machine.hidden[register]
        machine.values[register] = poisoned(sums.size, register.dtype).reshape(sums.shape)
    lanes = [
        (register, beside * place + tiles[number // 2])
        for number, register in enumerate(registers) for place in range(2)
    ]

    def retire() -> None:
        factors: list[Array] = [
            to_array(machine.buffer(one[0])[at], as_dtype(kind)).astype(np.float64)
            for kind, one, at in zip(kinds[is_held:], sides, places, strict=True)
        ]
        left, right = known + factors
        _add_up(machine, lanes, (left, right), kinds, bool(keep))

    machine.loose["mma"].work.append(retire)
    machine.loose["mma"].registers.update(registers)


def _add_up(
    machine: Threads, lanes: list[tuple[Node, int]], factors: tuple[Array, Array],
    kinds: Sequence[str], keep: bool,
) -> None:
    """Add products of (groups, 64, K) and (groups, N, K) to hidden registers, or set these."""
    left, right = factors
    rows, columns = accumulator_places(right.shape[1])
    # By groups, warps, rows of a warp.
    before: Array = np.zeros((len(right), 4, 16, right.shape[1]))
    for at, (register, lane) in enumerate(lanes if keep else ()):
        sums = machine.hidden[register][:, lane].reshape(len(right), 4, -1)
        before[:, :, rows[at], columns[at]] = sums
    before = before.reshape(len(right), 64, -1)
    is_int = lanes[0][0].dtype.is_int
    # Of 32 bytes 32 elements are those of 8 bits.
    if right.shape[2] == 32 and not is_int:
        total = octet_sums(left, right, before, (as_dtype(kinds[0]), as_dtype(kinds[1])))
    else:
        total = left @ right.transpose(0, 2, 1) + before
    found = total.reshape(len(total), 4, 16, -1)[:, :, rows, columns]
    found = found.transpose(2, 0, 1, 3).reshape(len(rows), -1)
    for new, (register, lane) in zip(found, lanes, strict=True):
        # Sums of integers wrap.
        new = new.astype(np.int64) if is_int else new
        machine.hidden[register][:, lane] = new.astype(machine.hidden[register].dtype)


def _held_rows(machine: Threads, words: Sequence[Node], dtype: DType) -> Array:
    """The first factor of groups of four warps, 64 rows of 16 steps, in two of four words each."""
    lane = np.arange(WARP)
    count = machine.threads.size // _GROUP
    found = np.zeros((count, 4, 16, 16))
    if dtype.itemsize == 4:
        found = found[..., :8]
    for number, one in enumerate(words):
        word = np.broadcast_to(np.asarray(machine.use(one)), machine.threads.shape)
        if dtype.itemsize == 4:
            row, step = lane // 4 + 8 * (number & 1), lane % 4 + 4 * (number >> 1)
            held = to_array(word.astype(np.uint32).view(memory_dtype(dtype)), dtype)
            found[:, :, row, step] = held.reshape(count, 4, WARP)
            continue
        for half in range(2):
            codes = (word >> np.uint32(16 * half)).astype(np.uint16).view(memory_dtype(dtype))
            row, step = lane // 4 + 8 * (number & 1), 8 * (number >> 1) + 2 * (lane % 4) + half
            found[:, :, row, step] = to_array(codes, dtype).reshape(count, 4, WARP)
    return found.reshape(count, 64, -1)


def _pack(machine: Threads, node: Node) -> None:
    """Two floats rounded to 16 bits each, the first in the lower half of a word."""
    pair, word = node.src
    dtype = as_dtype(node.arg.immediates[0])
    values = np.broadcast_to(machine.use(pair), (machine.threads.size, 2))
    codes = to_raw(round_to(values, dtype), dtype).view(np.uint16).astype(np.uint32)
    machine.values[word] = codes[:, 0] | codes[:, 1] << np.uint32(16)


def _widen(machine: Threads, node: Node) -> None:
    """The four 8-bit floats of a word as 16-bit ones, two in each of two words.

    Turned, the second and the third change places.
    """
    word, *found = node.src
    source, target, turned = node.arg.immediates
    words = np.broadcast_to(machine.use(word), machine.threads.shape).astype(np.uint32)
    octets = words[:, None] >> np.arange(0, 32, 8, dtype=np.uint32) & np.uint32(255)
    codes = to_raw(to_array(octets.astype(np.uint8), as_dtype(source)), as_dtype(target))
    codes = codes.view(np.uint16).astype(np.uint32)[:, [0, 2, 1, 3] if turned else [0, 1, 2, 3]]
    for place, register in enumerate(found):
        low, high = codes[:, 2 * place], codes[:, 2 * place + 1]
        machine.values[register] = low | high << np.uint32(16)


def _atomic(machine: Threads, node: Node) -> None:
    """Combine with elements of an argument array; nobody asks for what they were."""
    array, index, value, *mask = node.src
    shape = machine.threads.shape
    active = machine.active & machine.use(mask[0]) if mask else machine.active
    offset = np.broadcast_to(np.asarray(machine.use(index), np.int64), shape)
    offset = offset + node.arg.immediates[0]
    machine.check(node, array, offset, active)
    data = np.broadcast_to(to_raw(machine.use(value), array.dtype), shape)
    with np.errstate(all="ignore"):
        _ATOMS[node.arg.name].at(machine.buffer(array), offset[active], data[active])


_ATOMS: MappingProxyType[str, np.ufunc] = MappingProxyType(
    {"atom.add": np.add, "atom.max": np.maximum, "atom.min": np.minimum}
)
INSTRUCTIONS: MappingProxyType[str, Callable[[Threads, Node], None]] = MappingProxyType({
    "bar.sync": _bar_sync,
    "bar.warp.sync": _bar_warp_sync,
    "shfl.sync.bfly": _exchange,
    **dict.fromkeys(_ATOMS, _atomic),
    "elect": _elect,
    "bulk.store": _store_run,
    # Nothing else runs beside a PROGRAM here.
    "launch.wait": lambda machine, node: None,
    "cp.async": _copy,
    "cp.async.commit": _commit,
    "cp.async.wait": _wait,
    "ldmatrix": _load_matrices,
    "ldmatrix.across": _load_across,
    "bar.warp": lambda machine, node: machine.meet("a warp meets"),
    "mma.sync": _multiply_matrices,
    **dict.fromkeys(("wgmma", "wgmma.held"), _multiply_groups),
    "cvt.pack": _pack,
    "cvt.widen": _widen,
    **HOPPER_INSTRUCTIONS,
    **ROLE_INSTRUCTIONS,
})  # fmt: skip

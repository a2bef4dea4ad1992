"""Linear level of a GPU: weights and numbers that are read before the kernel in front has ended.

A kernel that begins early waits before it reads what others write. Nobody writes weights while they
are used, so a thread's first ones are asked for ahead of that, and memory is busy while small
kernels follow each other. Where threads have one turn, registers hold what comes. Where a block has
its rows in turn, a thread copies its own words to places in shared memory that no other thread
touches, and those of the next turn as soon as it has used what was there: while it multiplies by
others, and while threads meet for a sum; so it does in each of several versions of that loop, of
which a block runs one. That nothing in front writes the weights is for the list to see
(`GpuLaunch.early`).
Two turns under way were no better than one; and with the words of a single turn in shared memory
too, a step of 1 billion weights in six bits took 666 us on an H200, for 634.
Source: PTX ISA, "cp.async" and "griddepcontrol".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from math import prod
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Access, Alloc, Machine, Reg
from baregrad.ir.core.node import Node, alu, const, instruction, make_node, toposort
from baregrad.ir.core.op import WORD_PRODUCTS, Op, Ops
from baregrad.kernel.gpu.ahead.early_loads import arithmetic_of, is_fold, renamed
from baregrad.kernel.gpu.barriers import THREAD
from baregrad.target.gpu import GpuTarget

BLOCK = ".block"
# Bytes of asynchronous copies, and of what a thread has in registers while it waits, at most.
COPIED, MOST_HELD = (4, 8, 16), 256
# In how many parts a turn's places are filled again: each costs some instructions that wait.
REFILLS = 4
# Registers of a thread, about, which say how many blocks share what memory there is; and those that
# it has at least beside what it loads, of so many bytes each.
REGISTERS, LEAST_BESIDE, REGISTER_NBYTES = 64, 16, 4
BLOCKS = (Ops.BEGIN, Ops.TEST)


class _Ahead(NamedTuple):
    """Loads that may begin early, and the arithmetic that their places are made of, in order."""

    loads: tuple[Node, ...]
    places: tuple[Node, ...]


def load_ahead(program: Node, target: GpuTarget) -> Node:
    """A PROGRAM that asks for packed weights before it waits for the kernel in front."""
    code = program.src
    is_early = target.dependent_launch and target.async_copies
    if not is_early or not has_words(program):
        return program
    thread = _thread(code)
    if thread is None or any(node.op is Ops.MACHINE and not is_fold(node) for node in code):
        return program
    counts = Counter(code)
    found = _straight(program, counts)
    loops = list(_outer(code, Ops.BEGIN))
    while found is None and loops:
        found = _looped(program, *loops.pop(0), thread, counts, target, code)
    if found is None:
        found = _in_versions(program, thread, target)
    return program if found is None else found


def has_words(program: Node) -> bool:
    """Whether a PROGRAM multiplies packed weights."""
    return any(node.op in WORD_PRODUCTS for node in program.src)


def machine(name: str, *immediates: int) -> Node:
    """An instruction of the machine by its name."""
    return make_node(Ops.MACHINE, dtypes.token, (), Machine(name, immediates))


def _thread(code: Sequence[Node]) -> Node | None:
    """The variable that numbers a block's threads."""
    names = (child for node in code for child in node.src if child.op is Ops.VAR)
    return next((one for one in names if one.arg.name == THREAD), None)


def count_of(code: Sequence[Node], name: str) -> int:
    """How many blocks, or threads of one, there are at most: as many as a variable numbers."""
    names = (child for node in code for child in node.src if child.op is Ops.VAR)
    return max([one.arg.hi + 1 for one in names if one.arg.name == name], default=1)


def _outer(code: Sequence[Node], op: Op) -> Iterator[tuple[int, int]]:
    """Where blocks of a kind that are in nothing else begin, and where they have ended."""
    depth = begin = 0
    for place, node in enumerate(code):
        if node.op in BLOCKS:
            if not depth:
                begin = place
            depth += 1
        elif node.op is Ops.END:
            depth -= 1
            if not depth and code[begin].op is op:
                yield begin, place + 1


# --- which loads ---------------------------------------------------------------------------------


def _ahead(
    program: Node, within: Sequence[Node], counts: Counter[Node], counter: Node | None,
    known: Container[Node] = (),
) -> _Ahead:
    """The loads of weights among some instructions, whose places may hang on a loop's `counter`.

    known: instructions that are ahead of all of these.

    Each block has its own, and each thread of it: what all blocks read alike is of another kind.
    """
    written = {node.src[0] for node in program.src if node.op is Ops.VSTORE}

    def is_there(node: Node) -> bool:
        return node is counter or node in known or node.op in (Ops.VAR, Ops.CONST)

    loads: list[Node] = []
    places: dict[Node, None] = {}
    for load in within:
        if load.op is not Ops.VLOAD or counts[load] > 1 or not _is_plain(load, written):
            continue
        needed = arithmetic_of((load.src[1], *condition_of(load)), counts, is_there)
        names = {one.arg.name for one in toposort(load.src[1]) if one.op is Ops.VAR}
        if needed is not None and {BLOCK, THREAD} <= names:
            loads.append(load)
            places.update(dict.fromkeys(needed))
    return _Ahead(tuple(loads), tuple(places))


def _is_plain(load: Node, written: set[Node]) -> bool:
    """Whether a load reads neighbours of an array that nothing here changes, all or none."""
    access, array = load.arg, load.src[0]
    if len(load.src) > 2 and not condition_of(load):
        return False
    if access.rows or access.order or access.strays or not access.constant:
        return False
    is_one = access.width == 1 or (access.stride == 1 and not load.src[1].shape)
    return is_one and array.op is Ops.PARAM and array not in written


def condition_of(load: Node) -> tuple[Node, ...]:
    """The condition on which a load reads all of its elements; () for none, or one on each."""
    if len(load.src) < 3:
        return ()
    mask = load.src[2]
    if mask.op is Ops.SPLAT:
        return mask.src
    return () if mask.shape else (mask,)


def _masks(load: Node) -> list[Node]:
    """The instruction that makes the condition on a load's elements of the one on all."""
    return [one for one in load.src[2:] if one.op is Ops.SPLAT]


def nbytes_of(load: Node) -> int:
    """Bytes that a thread has of a load."""
    size: int = load.arg.width * load.dtype.itemsize
    return size


def _can_copy(load: Node) -> bool:
    nbytes = nbytes_of(load)
    return nbytes in COPIED and load.arg.align % nbytes == 0


# --- their places in shared memory ---------------------------------------------------------------


class _Slots:
    """What each thread of a block has in shared memory for loads of a loop that can be copied.

    A register says where in an array the next turn's words are.
    """

    def __init__(
        self, code: Sequence[Node], ahead: _Ahead, counter: Node, thread: Node
    ) -> None:
        self.loads = [load for load in ahead.loads if _can_copy(load)]
        self.fixed = [node for node in ahead.places if counter not in toposort(node)]
        self.moving = [node for node in ahead.places if counter in toposort(node)]
        self._counter, self._thread = counter, thread
        self._arrays: dict[Node, Node] = {}
        self._places: dict[Node, Node] = {}
        # The first element of a turn's loads, behind the place that they share; and for each such
        # place where it is in the next turn, and how far that is.
        self._least: dict[Node, int] = {}
        self._following: dict[Node, tuple[Node, int | None]] = {}
        leaves = {child for node in code for child in node.src}
        number = 1 + max([one.arg.id for one in leaves if one.op is Ops.ALLOC], default=-1)
        register = 1 + max([one.arg.id for one in leaves if one.op is Ops.REG], default=-1)
        for load in self.loads:
            width, place = load.arg.width, load.src[1]
            own = _folded(Ops.MUL, thread, const(width, thread.dtype))
            where = Alloc(number, "shared", (self.threads * width,))
            self._arrays[load] = Node(Ops.ALLOC, load.dtype, (), where)
            self._places[load] = own
            if own is not thread and own not in self.fixed:
                self.fixed.append(own)
            self._least[place] = min(load.arg.at, self._least.get(place, load.arg.at))
            if place not in self._following:
                node = instruction(Ops.REG, place.dtype, (), Reg(register, 1))
                self._following[place] = node, _step(place, counter)
                register += 1
            number += 1

    @property
    def threads(self) -> int:
        """How many threads a block has."""
        return int(self._thread.arg.hi) + 1

    def fits(self, code: Sequence[Node], target: GpuTarget) -> bool:
        """Whether all blocks that a multiprocessor has registers for have room."""
        warps = -(-self.threads // target.warp_lanes)
        blocks = max(target.resident_blocks(warps, REGISTERS, 0), 1)
        room = target.shared_bytes_per_unit // blocks - target.shared_bytes_reserved
        are_even = all(step is not None for _, step in self._following.values())
        return bool(self.loads) and are_even and self._taken(code) <= room

    def _taken(self, code: Sequence[Node]) -> int:
        """Bytes of a block, all arrays of the code and these together."""
        arrays = {child for node in code for child in node.src if child.op is Ops.ALLOC}
        taken: int = sum([
            prod(one.shape) * max(one.arg.depth, 1) * one.dtype.itemsize
            for one in arrays if one.arg.space == "shared"
        ])  # fmt: skip
        return taken + sum([nbytes_of(load) for load in self.loads]) * self.threads

    def spread(self, code: Sequence[Node], blocks: int, target: GpuTarget) -> None:
        """Take so much that no multiprocessor has room for more of all blocks than its share.

        They begin while those of the kernel in front leave: where these leave first there would be
        most of them, which share what memory gives to one multiprocessor.
        """
        warps = -(-self.threads // target.warp_lanes)
        share = -(-blocks // target.units)
        loads = [one for one in code if one.op is Ops.VLOAD and one.src[0].op is Ops.PARAM]
        registers = sum(map(nbytes_of, loads)) // REGISTER_NBYTES + LEAST_BESIDE
        if share >= target.resident_blocks(warps, registers, 0):
            return
        wanted = target.shared_bytes_per_unit // (share + 1) - target.shared_bytes_reserved + 1
        last = self.loads[-1]
        array = self._arrays[last]
        more = -(-max(wanted - self._taken(code), 0) // array.dtype.itemsize)
        where = array.arg._replace(shape=(array.arg.shape[0] + more,))
        self._arrays[last] = Node(Ops.ALLOC, array.dtype, (), where)

    def begun(self, first: Node) -> list[Node]:
        """What begins the copies of the first turn, and says where those of the next one are."""
        code, memo = self._moved(first, self.moving)
        starts: dict[Node, Node] = {}
        for place, least in self._least.items():
            start = memo.get(place, place)
            starts[place] = _folded(Ops.ADD, start, const(least, start.dtype))
            code.append(starts[place])
        code += [*self._copies(starts, memo), machine("cp.async.commit")]
        return [*code, *self._further(starts)]

    def followed(self, turn: Node) -> tuple[list[Node], dict[Node, Node], list[Node]]:
        """What finds the words of a turn that follows, the copy of each load, and what is last."""
        roots = [one for load in self.loads for one in condition_of(load)]
        code, memo = self._moved(turn, [one for one in self.moving if one in toposort(*roots)])
        starts = {
            place: instruction(Ops.READ, place.dtype, (register,))
            for place, (register, _) in self._following.items()
        }
        copies = dict(zip(self.loads, self._copies(starts, memo), strict=True))
        return [*code, *starts.values()], copies, list(self._further(starts))

    def read(self, load: Node) -> Node:
        """What reads a thread's own words in the place of a load."""
        access = Access(load.arg.width, align=nbytes_of(load))
        src = self._arrays[load], self._places[load]
        return instruction(Ops.VLOAD, load.dtype, src, access, load.shape)

    def _moved(
        self, turn: Node, nodes: Sequence[Node]
    ) -> tuple[list[Node], dict[Node, Node]]:
        """Arithmetic of a turn, and what stands in the place of which."""
        memo = {self._counter: turn}
        for node in nodes:
            src = [memo.get(child, child) for child in node.src]
            memo[node] = _cast(node, src[0]) if node.op is Ops.CAST else _folded(node.op, *src)
        return [memo[node] for node in nodes], memo

    def _copies(self, starts: dict[Node, Node], memo: dict[Node, Node]) -> Iterator[Node]:
        for load in self.loads:
            place = load.src[1]
            taken = [memo.get(one, one) for one in condition_of(load)]
            src = (self._arrays[load], self._places[load], load.src[0], starts[place], *taken)
            one = Machine("cp.async", (nbytes_of(load), 0, load.arg.at - self._least[place]))
            yield make_node(Ops.MACHINE, dtypes.token, src, one)

    def _further(self, starts: dict[Node, Node]) -> Iterator[Node]:
        for place, (register, step) in self._following.items():
            following = _folded(Ops.ADD, starts[place], const(step or 0, place.dtype))
            yield following
            yield instruction(Ops.SET, dtypes.token, (register, following))


def _step(place: Node, counter: Node) -> int | None:
    """How far a place is from that of the turn before; None where that is not always as far."""
    if place is counter:
        return 1
    if counter not in toposort(place):
        return 0
    steps = [_step(child, counter) for child in place.src]
    if place.op is Ops.CAST and place.dtype.itemsize >= place.src[0].dtype.itemsize:
        return steps[0]
    if place.op is Ops.ADD and None not in steps:
        return sum([step or 0 for step in steps])
    factors = [child.arg for child in place.src if child.op is Ops.CONST]
    if place.op is Ops.MUL and len(factors) == 1 and None not in steps:
        return int(factors[0]) * sum([step or 0 for step in steps])
    return None


def _computed(code: Sequence[Node], known: Sequence[Node]) -> list[Node]:
    """Instructions without what is no instruction, is `known`, or was there before."""
    found: dict[Node, None] = {}
    for node in code:
        if node.op not in (Ops.CONST, Ops.VAR) and node not in known:
            found[node] = None
    return list(found)


def _cast(node: Node, value: Node) -> Node:
    """A CAST of another value."""
    if value.op is Ops.CONST:
        return const(value.arg, node.dtype)
    return node.replace(src=(value,))


def _folded(op: Op, *src: Node) -> Node:
    """A node of arithmetic, of which what needs no computing is left out."""
    if op in (Ops.ADD, Ops.MUL):
        x, y = src
        if x.op is y.op is Ops.CONST:
            return const(x.arg + y.arg if op is Ops.ADD else x.arg * y.arg, y.dtype)
        for one, other in ((x, y), (y, x)):
            if one.op is Ops.CONST and one.arg == (op is Ops.MUL):
                return other
    return alu(op, *src)


# --- kernels -------------------------------------------------------------------------------------


def _straight(program: Node, counts: Counter[Node]) -> Node | None:
    """A PROGRAM whose threads have one turn, with its loads in registers; None if it has none."""
    code = program.src
    before: list[Node] = []
    for node in code:
        if node.op in BLOCKS or is_fold(node):
            break
        before.append(node)
    ahead = _ahead(program, before, counts, None)
    held: dict[Node, None] = {}
    room = MOST_HELD
    for load in ahead.loads:
        if nbytes_of(load) <= room:
            room -= nbytes_of(load)
            held.update(dict.fromkeys([*_masks(load), load]))
    if not held:
        return None
    moved = {**dict.fromkeys(ahead.places), **held}
    rest = [node for node in code if node not in moved]
    return program.replace(src=(*moved, machine("launch.wait"), *rest))


def _in_versions(program: Node, thread: Node, target: GpuTarget) -> Node | None:
    """A PROGRAM whose blocks run one of several versions of a loop; None if not all have room.

    Places in shared memory are the same in all, and so are the arrays that are read before a wait,
    as what is read by then is known from the first wait in the code (`read_early`).
    """
    code = program.src
    arrays = set[frozenset[Node]]()
    spans = list(_outer(code, Ops.TEST))
    inside = {place for span in spans for place in range(*span)}
    outside = [node for place, node in enumerate(code) if place not in inside]
    if len(spans) < 2 or any(node.op in (Ops.VLOAD, Ops.BEGIN) for node in outside):
        return None
    done, last = list[Node](), 0
    for begin, end in spans:
        own = program.replace(src=code[begin + 1 : end - 1])
        known = frozenset(code[:begin]).intersection(outside)
        loops = list(_outer(own.src, Ops.BEGIN))
        if len(loops) != 1:
            return None
        found = _looped(own, *loops[0], thread, Counter(own.src), target, code, known)
        if found is None:
            return None
        arrays.add(frozenset([node.src[2] for node in found.src if _is_copy(node)]))
        done += [*code[last : begin + 1], *found.src, code[end - 1]]
        last = end
    return None if len(arrays) > 1 else program.replace(src=(*done, *code[last:]))


def _is_copy(node: Node) -> bool:
    return node.op is Ops.MACHINE and node.arg.name == "cp.async"


def _looped(
    program: Node, begin: int, end: int, thread: Node, counts: Counter[Node], target: GpuTarget,
    whole: Sequence[Node], known: Container[Node] = (),
) -> Node | None:
    """A PROGRAM whose loop reads what its threads have copied ahead; None if there is no room.

    whole: all code that it is part of. known: of this, what is ahead of the program.
    """
    code, loop = program.src, program.src[begin:end]
    counter = loop[0]
    low, high = counter.src[:2]
    if not (low.op is high.op is Ops.CONST) or low.arg >= high.arg:
        return None
    # Where all that was loaded has been used.
    fold = next((place for place, node in enumerate(loop) if is_fold(node)), len(loop) - 1)
    if any(node.op in BLOCKS or node.op is Ops.VSTORE for node in loop[1:fold]):
        return None
    ahead = _ahead(program, loop[1:fold], counts, counter, known)
    slots = _Slots(whole, ahead, counter, thread)
    if not slots.fits(whole, target):
        return None
    if whole is code:
        slots.spread(code, count_of(code, BLOCK), target)
    begun = _computed(slots.begun(low), slots.fixed)
    front = [*slots.fixed, *begun, machine("launch.wait")]
    following = alu(Ops.ADD, counter, const(1, counter.dtype))
    more = alu(Ops.CMPLT, following, high)
    found, copies, further = slots.followed(following)
    memo = {load: slots.read(load) for load in slots.loads}
    used = _refilled(loop[1:fold], memo, copies, more)
    further.append(machine("cp.async.commit"))
    found = [following, more, *_computed(found, slots.fixed)]
    body = [counter, machine("cp.async.wait", 0), *found, *used, *further, *loop[fold:]]
    rest = [*_without(body, frozenset(slots.fixed), frozenset(slots.moving), code[end:])]
    outside = [node for node in code[:begin] if node not in slots.fixed]
    return program.replace(src=(*front, *outside, *renamed(rest, memo), *code[end:]))


def _refilled(
    used: Sequence[Node], memo: dict[Node, Node], copies: dict[Node, Node], more: Node
) -> list[Node]:
    """What uses a turn's words, which `memo` reads; behind the last use of some the next's copies.

    Words that are used behind all of this are in registers once they are read.

    more: whether there is a next turn.
    """
    last = {one: place for place, node in enumerate(used) for one in (node, *node.src)}
    order = sorted(copies, key=last.__getitem__)
    size = -(-len(order) // REFILLS)
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    ending = {last[part[-1]]: [copies[load] for load in part] for part in parts}
    test = instruction(Ops.TEST, dtypes.token, (more,))
    close = instruction(Ops.END, dtypes.token, ())
    found: list[Node] = []
    for place, node in enumerate(used):
        found.append(memo.get(node, node))
        if place in ending:
            found += [test, *ending[place], close]
    return found


def _without(
    body: Sequence[Node], gone: frozenset[Node], idle: frozenset[Node], rest: Sequence[Node]
) -> list[Node]:
    """A loop's instructions but those that are `gone`, and those of `idle` that nothing uses."""
    used = {child for node in rest for child in node.src}
    kept: list[Node] = []
    for node in reversed(body):
        if node in gone or (node in idle and node not in used):
            continue
        used.update(node.src)
        kept.append(node)
    return kept[::-1]

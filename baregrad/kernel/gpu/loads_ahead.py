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

Nor does anybody write positions and tables of pages meanwhile (`KernelInfo.fixed`). What they name
may be written in front, but not where it lies: once it is known, the second cache, which all share,
is asked for it.
Source: PTX ISA, "cp.async" and "griddepcontrol".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Access, Alloc, Machine, Reg
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, alu, const, instruction, make_node, toposort
from baregrad.ir.core.op import ELEMENTWISE, WORD_PRODUCTS, Op, Ops
from baregrad.kernel.gpu.barriers import THREAD
from baregrad.kernel.gpu.early_loads import arithmetic_of, is_fold, made_under, renamed
from baregrad.target.gpu import GpuTarget

BLOCK = ".block"
# Bytes of asynchronous copies, and of what a thread has in registers while it waits, at most.
COPIED, MOST_HELD = (4, 8, 16), 256
# In how many parts a turn's places are filled again: each costs some instructions that wait.
REFILLS = 4
# Registers of a thread, about, which say how many blocks share what memory there is; and those that
# it has at least beside what it loads, of so many bytes each.
REGISTERS, LEAST_BESIDE, REGISTER_NBYTES = 64, 16, 4
_BLOCKS = (Ops.BEGIN, Ops.TEST)


class _Ahead(NamedTuple):
    """Loads that may begin early, and the arithmetic that their places are made of, in order."""

    loads: tuple[Node, ...]
    places: tuple[Node, ...]


def load_ahead(program: Node, target: GpuTarget) -> Node:
    """A PROGRAM that asks for packed weights before it waits for the kernel in front."""
    code = program.src
    if not target.dependent_launch:
        return program
    if not any(node.op in WORD_PRODUCTS for node in code):
        return _numbers_ahead(program, target)
    if not target.async_copies:
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


def _machine(name: str, *immediates: int) -> Node:
    return make_node(Ops.MACHINE, dtypes.token, (), Machine(name, immediates))


def _thread(code: Sequence[Node]) -> Node | None:
    """The variable that numbers a block's threads."""
    names = (child for node in code for child in node.src if child.op is Ops.VAR)
    return next((one for one in names if one.arg.name == THREAD), None)


def _blocks(code: Sequence[Node]) -> int:
    """How many blocks there are at most."""
    names = (child for node in code for child in node.src if child.op is Ops.VAR)
    return max([one.arg.hi + 1 for one in names if one.arg.name == BLOCK], default=1)


def _outer(code: Sequence[Node], op: Op) -> Iterator[tuple[int, int]]:
    """Where blocks of a kind that are in nothing else begin, and where they have ended."""
    depth = begin = 0
    for place, node in enumerate(code):
        if node.op in _BLOCKS:
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
        needed = arithmetic_of((load.src[1], *_condition(load)), counts, is_there)
        names = {one.arg.name for one in toposort(load.src[1]) if one.op is Ops.VAR}
        if needed is not None and {BLOCK, THREAD} <= names:
            loads.append(load)
            places.update(dict.fromkeys(needed))
    return _Ahead(tuple(loads), tuple(places))


def _is_plain(load: Node, written: set[Node]) -> bool:
    """Whether a load reads neighbours of an array that nothing here changes, all or none."""
    access, array = load.arg, load.src[0]
    if len(load.src) > 2 and not _condition(load):
        return False
    if access.rows or access.order or access.strays or not access.constant:
        return False
    is_one = access.width == 1 or (access.stride == 1 and not load.src[1].shape)
    return is_one and array.op is Ops.PARAM and array not in written


def _condition(load: Node) -> tuple[Node, ...]:
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


def _nbytes(load: Node) -> int:
    size: int = load.arg.width * load.dtype.itemsize
    return size


def _can_copy(load: Node) -> bool:
    nbytes = _nbytes(load)
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
        return taken + sum([_nbytes(load) for load in self.loads]) * self.threads

    def spread(self, code: Sequence[Node], blocks: int, target: GpuTarget) -> None:
        """Take so much that no multiprocessor has room for more of all blocks than its share.

        They begin while those of the kernel in front leave: where these leave first there would be
        most of them, which share what memory gives to one multiprocessor.
        """
        warps = -(-self.threads // target.warp_lanes)
        share = -(-blocks // target.units)
        loads = [one for one in code if one.op is Ops.VLOAD and one.src[0].op is Ops.PARAM]
        registers = sum(map(_nbytes, loads)) // REGISTER_NBYTES + LEAST_BESIDE
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
        code += [*self._copies(starts, memo), _machine("cp.async.commit")]
        return [*code, *self._further(starts)]

    def followed(self, turn: Node) -> tuple[list[Node], dict[Node, Node], list[Node]]:
        """What finds the words of a turn that follows, the copy of each load, and what is last."""
        roots = [one for load in self.loads for one in _condition(load)]
        code, memo = self._moved(turn, [one for one in self.moving if one in toposort(*roots)])
        starts = {
            place: instruction(Ops.READ, place.dtype, (register,))
            for place, (register, _) in self._following.items()
        }
        copies = dict(zip(self.loads, self._copies(starts, memo), strict=True))
        return [*code, *starts.values()], copies, list(self._further(starts))

    def read(self, load: Node) -> Node:
        """What reads a thread's own words in the place of a load."""
        access = Access(load.arg.width, align=_nbytes(load))
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
            taken = [memo.get(one, one) for one in _condition(load)]
            src = (self._arrays[load], self._places[load], load.src[0], starts[place], *taken)
            one = Machine("cp.async", (_nbytes(load), 0, load.arg.at - self._least[place]))
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
        if node.op in _BLOCKS or is_fold(node):
            break
        before.append(node)
    ahead = _ahead(program, before, counts, None)
    held: dict[Node, None] = {}
    room = MOST_HELD
    for load in ahead.loads:
        if _nbytes(load) <= room:
            room -= _nbytes(load)
            held.update(dict.fromkeys([*_masks(load), load]))
    if not held:
        return None
    moved = {**dict.fromkeys(ahead.places), **held}
    rest = [node for node in code if node not in moved]
    return program.replace(src=(*moved, _machine("launch.wait"), *rest))


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
    if any(node.op in _BLOCKS or node.op is Ops.VSTORE for node in loop[1:fold]):
        return None
    ahead = _ahead(program, loop[1:fold], counts, counter, known)
    slots = _Slots(whole, ahead, counter, thread)
    if not slots.fits(whole, target):
        return None
    if whole is code:
        slots.spread(code, _blocks(code), target)
    begun = _computed(slots.begun(low), slots.fixed)
    front = [*slots.fixed, *begun, _machine("launch.wait")]
    following = alu(Ops.ADD, counter, const(1, counter.dtype))
    more = alu(Ops.CMPLT, following, high)
    found, copies, further = slots.followed(following)
    memo = {load: slots.read(load) for load in slots.loads}
    used = _refilled(loop[1:fold], memo, copies, more)
    further.append(_machine("cp.async.commit"))
    found = [following, more, *_computed(found, slots.fixed)]
    body = [counter, _machine("cp.async.wait", 0), *found, *used, *further, *loop[fold:]]
    rest = [*_without(body, frozenset(slots.fixed), frozenset(slots.moving), code[end:])]
    outside = [node for node in code[:begin] if node not in slots.fixed]
    return program.replace(src=(*front, *outside, *renamed(rest, memo), *code[end:]))


def _refilled(
    used: Sequence[Node], memo: dict[Node, Node], copies: dict[Node, Node], more: Node
) -> list[Node]:
    """What uses a turn's words, which `memo` reads; behind the last use of some the next's copies.

    more: whether there is a next turn.
    """
    last = {child: place for place, node in enumerate(used) for child in node.src}
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


# --- numbers that places are made of -------------------------------------------------------------


def _numbers_ahead(program: Node, target: GpuTarget) -> Node:
    """A PROGRAM that reads its `fixed` numbers before it waits, and asks for what they name.

    One that is no more than arithmetic on what it loads begins its other loads as soon as it has
    waited, and computes what hangs on the numbers alone while they are under way.
    """
    numbers = _Numbers(program)
    if not numbers.early:
        return program
    requests = numbers.requests() if _begins_at_once(program, target) else []
    is_map = not any(node.op in (Ops.MACHINE, Ops.BEGIN) for node in program.src)
    others = numbers.others() if is_map else {}
    memo: dict[Node, Node] = {}

    def placed(loads: dict[Node, list[Node]], wanted: Sequence[Node] = ()) -> list[Node]:
        """Loads, and known values that are wanted, with what they are made of."""
        below = set(toposort(*wanted, *[one for made in loads.values() for one in made]))
        code: list[Node] = []
        for node in (*numbers.known, *others):
            if node not in memo and (node in loads or (node in below and node in numbers.known)):
                made = numbers.early.get(node) or others.get(node, [node])
                code += renamed([one for one in made if one not in memo], memo)
                memo[node] = memo[made[-1]]
        return code

    front = placed(numbers.early, [child for one in requests for child in one.src])
    front += renamed(requests, memo)
    begun = placed(others)
    front += [one for one in begun if one.op is not Ops.VLOAD]
    gone = memo.keys() - set(requests)
    rest = renamed([node for node in program.src if node not in gone], memo)
    begun = [one for one in begun if one.op is Ops.VLOAD]
    at = 0 if begun else next(n for n, one in enumerate(rest) if one.op not in ELEMENTWISE)
    src = (*front, *rest[:at], _machine("launch.wait"), *begun, *rest[at:])
    return program.replace(src=src)


def _begins_at_once(program: Node, target: GpuTarget) -> bool:
    """Whether all blocks of a PROGRAM have room beside each other."""
    leaves = {child for node in program.src for child in node.src if child.op is Ops.VAR}
    counts = {one.arg.name: one.arg.hi + 1 for one in leaves}
    warps = -(-counts.get(THREAD, 1) // target.warp_lanes)
    resident = target.resident_blocks(warps, REGISTERS, 0)
    return bool(counts.get(BLOCK, 1) <= resident * target.units)


class _Numbers:
    """The loads of a PROGRAM's fixed numbers that may begin early, and what is known by them.

    early: those loads, each with what is made in its place. known: they, and all arithmetic on
    them and on the numbers of blocks and threads, in order.
    """

    def __init__(self, program: Node) -> None:
        fixed = program.arg.fixed if program.arg is not None else ()
        self._code = program.src
        self._written = {one.src[0] for one in program.src if one.op is Ops.VSTORE}
        self.known: dict[Node, None] = {}
        self.early: dict[Node, list[Node]] = {}
        if not fixed:
            return
        # The conditions on all places where a load stands, but those in loops.
        self._tests: dict[Node, list[tuple[Node, ...] | None]] = {}
        standing = list(_standing(program.src))
        for node, tests in standing:
            if node.op is Ops.VLOAD and node.src[0].op is Ops.PARAM:
                self._tests.setdefault(node, []).append(tests)
        for node, _ in standing:
            if node.op in _PURE and self._has(node.src):
                self.known[node] = None
            elif node in self._tests and node not in self.known:
                is_number = node.src[0].arg.slot in fixed and node.arg.width == 1
                if is_number and (made := self._made(node)):
                    self.early[node] = made
                    self.known[node] = None

    def _has(self, nodes: Iterable[Node]) -> bool:
        return all(one in self.known or one.op in (Ops.CONST, Ops.VAR) for one in nodes)

    def _made(self, load: Node) -> list[Node]:
        """A load that is made on the conditions on it; [] where it may not begin early."""
        tests, own = self._tests[load], _condition(load)
        if load.src[0] in self._written or load.arg.rows or None in tests:
            return []
        if len(load.src) > 2 and not own:
            return []
        if not self._has([*load.src[1:], *[one for each in tests for one in each or ()]]):
            return []
        if not all(tests) or _is_inside(load):
            return [load]
        made: list[Node] = []
        any_of = _joined(Ops.OR, [_joined(Ops.AND, each, made) for each in tests if each], made)
        on_all = _joined(Ops.AND, [any_of, *own], made)
        return [*made, *made_under(load.replace(src=load.src[:2]), [on_all])]

    def others(self) -> dict[Node, list[Node]]:
        """Other loads whose places and conditions are known, as many as threads have room for."""
        found: dict[Node, list[Node]] = {}
        room = MOST_HELD
        for load in self._tests:
            if load not in self.early and _nbytes(load) <= room and (made := self._made(load)):
                found[load] = made
                room -= _nbytes(load)
        return found

    def requests(self) -> list[Node]:
        """What asks for elements whose places hang on what is loaded early."""
        after: set[Node] = set(self.early)
        for node in self.known:
            if not after.isdisjoint(node.src):
                after.add(node)
        found: list[Node] = []
        for node, tests in _standing(self._code):
            request, mask = _request(node)
            if tests is None or request is None or request.src[0] in self._written:
                continue
            conditions = [*tests, *mask]
            if node in after or request.src[1] not in after or not self._has(conditions):
                continue
            both: list[Node] = []
            if conditions:
                condition = _joined(Ops.AND, conditions, both)
                both = [one for one in both if one not in self.known and one not in found]
                found += [*both, instruction(Ops.TEST, dtypes.token, (condition,)), request, _END]
            else:
                found.append(request)
        return found


_PURE = ELEMENTWISE | {Ops.SPLAT}
_END = instruction(Ops.END, dtypes.token, ())


def _joined(op: Op, nodes: Sequence[Node], made: list[Node]) -> Node:
    """All of some conditions, or any: the instructions that say so are added to `made`."""
    found = nodes[0]
    for other in nodes[1:]:
        found = alu(op, found, other)
        made.append(found)
    return found


def _standing(code: Sequence[Node]) -> Iterator[tuple[Node, tuple[Node, ...] | None]]:
    """Instructions with the conditions under which they stand; None for those in loops."""
    around: list[Node] = []
    for node in code:
        if node.op is Ops.END:
            around.pop()
        elif node.op in _BLOCKS:
            around.append(node)
        elif any(one.op is Ops.BEGIN for one in around):
            yield node, None
        else:
            yield node, tuple([one.src[0] for one in around])


def _is_inside(load: Node) -> bool:
    """Whether a load's places are elements of its array whatever its threads count."""
    array, place = load.src[:2]
    shape, (low, high) = array.arg.shape, bounds(place)
    if load.shape or load.arg.width > 1 or not all(isinstance(size, int) for size in shape):
        return False
    return bool(0 <= low + load.arg.at and high + load.arg.at < prod(shape))


def _request(node: Node) -> tuple[Node | None, tuple[Node, ...]]:
    """What asks for the elements of an argument that a copy or a load moves, and its condition."""
    if node.op is Ops.MACHINE and node.arg.name == "cp.async":
        nbytes, _, first = (*node.arg.immediates, 0, 0)[:3]
        array, place, *mask = node.src[2:]
        access = Access(nbytes // array.dtype.itemsize, at=first, align=nbytes)
    elif node.op is Ops.VLOAD and node.src[0].op is Ops.PARAM:
        (array, place, *mask), access = node.src, node.arg
    else:
        return None, ()
    if place.shape or access.rows or access.stride != 1 or any(one.shape for one in mask):
        return None, ()
    return instruction(Ops.PREFETCH, dtypes.token, (array, place), access), tuple(mask)

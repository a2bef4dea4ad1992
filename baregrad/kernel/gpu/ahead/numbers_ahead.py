"""Linear level of a GPU: a kernel reads positions and tables before it waits for the one in front.

Nobody writes positions and tables of pages meanwhile (`KernelInfo.fixed`). What they name may be
written in front, but not where it lies: once it is known, the second cache, which all share, is
asked for it. That no command ahead writes them is for the list to see (`GpuLaunch.early`). Kernels
that multiply packed weights ask for those instead (`loads_ahead`).
Source: PTX ISA, "griddepcontrol" and "prefetch".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Access
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, alu, instruction, toposort
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.kernel.gpu.ahead.early_loads import made_under, renamed
from baregrad.kernel.gpu.ahead.loads_ahead import (
    BLOCK,
    BLOCKS,
    MOST_HELD,
    REGISTERS,
    condition_of,
    count_of,
    has_words,
    machine,
    nbytes_of,
)
from baregrad.kernel.gpu.barriers import THREAD
from baregrad.target.gpu import GpuTarget

_PURE = ELEMENTWISE | {Ops.SPLAT}
_END = instruction(Ops.END, dtypes.token, ())


def numbers_ahead(program: Node, target: GpuTarget) -> Node:
    """A PROGRAM that reads its `fixed` numbers before it waits, and asks for what they name.

    One that is no more than arithmetic on what it loads begins its other loads as soon as it has
    waited, and computes what hangs on the numbers alone while they are under way.
    """
    if not target.dependent_launch or has_words(program):
        return program
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
    src = (*front, *rest[:at], machine("launch.wait"), *begun, *rest[at:])
    return program.replace(src=src)


def _begins_at_once(program: Node, target: GpuTarget) -> bool:
    """Whether all blocks of a PROGRAM have room beside each other."""
    warps = -(-count_of(program.src, THREAD) // target.warp_lanes)
    resident = target.resident_blocks(warps, REGISTERS, 0)
    return count_of(program.src, BLOCK) <= resident * target.units


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
        tests, own = self._tests[load], condition_of(load)
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
            if load not in self.early and nbytes_of(load) <= room and (made := self._made(load)):
                found[load] = made
                room -= nbytes_of(load)
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
        elif node.op in BLOCKS:
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

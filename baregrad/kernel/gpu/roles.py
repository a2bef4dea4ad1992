"""Warps with work of their own: one begins the copies of boxes, the others compute with them.

An iteration of a pipeline's loop copies boxes, waits for them, and multiplies. Here the loop is
told apart into two: a warp that is there for nothing else has the copies, all other threads have
the rest. Between them is the ring of slots, each guarded by two barriers that count phases. The one
who copies waits until a slot is empty, says how many bytes are coming, and begins them; the others
wait until all are there, and say that a slot is empty once they have waited for their products of
it, mostly one iteration later. Slots are taken in turns over all tiles of a block, so that the
copies for a tile begin while the one before is still multiplied, or stored.

What is true of the ring: (1) all bytes that are announced for a filling are those of the boxes, (2)
each warp says once per iteration that a slot is empty, (3) every slot is written behind the wait
for empty and read behind the wait for full of its own counter, (4) it is released behind the wait
for the products that read it, (5) both sides count the same iterations, one after the other.

Blocks of a cluster share rings of boxes that are the same for all (`clusters.py`).

Where data says that nobody reads what a block sums, both sides end after a few iterations, or none:
those left out are whole rounds of all slots, twice, so that counting goes on as if they had been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from baregrad.base.errors import CompilerBug, ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import (
    Node,
    alu,
    const,
    extent_of,
    make_node,
    range_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import Barrier, Pipe, Role, is_box
from baregrad.kernel.gpu.barriers import BARRIER, THREAD, WARP, sequence
from baregrad.kernel.gpu.boxes import ENGINE
from baregrad.kernel.gpu.clusters import MEETING, differs, nbytes_of, slice_of
from baregrad.kernel.gpu.teams import block_of_teams, in_teams
from baregrad.kernel.gpu.turns.cut_tiles import CutTiles, cut_tiles, number_of_block

_STATEMENTS = (Ops.LOOP, Ops.IF)
# Beyond the ids of all other arrays. A slot has two barriers: that it is full, that it is empty.
BARRIERS_ID, BARRIERS = 1 << 25, 2
_MEETING = Node(Ops.BARRIER, dtypes.token, (), Barrier("role"))


def count_slots(kernel: Node, turn: Node, before: Dim | None = None) -> Node:
    """The loop-level KERNEL whose rings of boxes go on from a block's iteration to its next one.

    turn: the axis of a block's iterations, around all that a thread does. before: what its earlier
    ones have filled, where they are not alike.
    """
    slots: dict[Node, Node] = {}
    for loop in toposort(kernel):
        if loop.op is Ops.LOOP:
            for copy in _boxes(loop.src[1]):
                filled = index.mul(turn, extent_of(loop.src[0])) if before is None else before
                number = index.add(filled, loop.src[0])
                slots[copy.src[0]] = index.as_node(index.mod(number, copy.src[0].arg.depth))

    def visit(node: Node) -> Node | None:
        if node.op not in (Ops.LOAD, Ops.COPYTO) or node.src[0] not in slots:
            return None
        at = 1 if node.op is Ops.LOAD else 2
        src = (*node.src[:at], slots[node.src[0]], *node.src[at + 1 :])
        return node.replace(src=src)

    return rebuild(kernel, visit) if slots else kernel


def _boxes(body: Node) -> list[Node]:
    """The copies of boxes right inside a body."""
    return [one for one in _items(body) if is_box(one)]


def _items(body: Node) -> Sequence[Node]:
    found: list[Node] = []
    for one in body.src if body.op is Ops.SEQ else (body,):
        found += _items(one) if one.op is Ops.SEQ else [one]
    return found


def with_roles(kernel: Node) -> Node:
    """The loop-level KERNEL of one thread in which a warp of its own copies boxes."""
    if not kernel.mask & Ops.COPYTO.bit:
        return kernel
    loops = [
        node for node in toposort(kernel) if node.op is Ops.LOOP and _boxes(node.src[1])
    ]
    if not loops:
        return kernel.replace(arg=kernel.arg._replace(roles=()))
    if len(loops) > 1:
        raise CompilerBug("a block has one ring of boxes", found=loops)
    warps = prod(kernel.arg.block) // WARP
    kernel, loop = _ended(kernel, loops[0])
    ring = _ring(loop, extent_of(loops[0].src[0]), warps, kernel.arg)
    copies = sequence(_copying(kernel.src, ring, None))
    computed = _computing(kernel.src, ring, None)
    info = kernel.arg
    if info.teams > 1:
        computed = in_teams(computed, info, ring.pipe, warps)
        info, warps = info._replace(block=block_of_teams(info)), info.teams * warps
    (copiers, few), (others, many) = info.roles
    if others != warps:
        raise CompilerBug("a role has other warps than its block", found=others, wanted=warps)
    roles: tuple[Node, ...] = (
        Node(Ops.ROLE, dtypes.token, (copies,), Role("copies", copiers, warps, few, elect=True)),
        Node(Ops.ROLE, dtypes.token, (sequence(computed),), Role("products", warps, 0, many)),
    )
    if ring.pipe.arg.scope == "cluster":
        roles += (MEETING,)
    return Node(Ops.KERNEL, kernel.dtype, roles, info)


def _ended(kernel: Node, loop: Node) -> tuple[Node, Node]:
    """A KERNEL and its ring's loop, which ends early where nobody reads what it sums."""
    axis, body = loop.src
    extent, needed = extent_of(axis), _needed(kernel, loop)
    rounds = 2 * _boxes(body)[0].src[0].shape[0]
    if needed is None or not isinstance(extent, int) or extent < rounds:
        return kernel, loop
    ends = [const(end, dtypes.index) for end in (extent, extent % rounds)]
    short = range_node(alu(Ops.WHERE, needed, *ends), axis.arg.id, axis.arg.axis)
    ended = make_node(Ops.LOOP, dtypes.token, (short, substitute(body, {axis: short})))
    return substitute(kernel, {loop: ended}), ended


def _needed(kernel: Node, loop: Node) -> Node | None:
    """The condition, one for a whole block, under which sums of a loop are read; None for always.

    It is read off what is stored: a choice between what is computed of sums and what is not.
    """
    nodes = toposort(kernel)
    stores = [node for node in nodes if node.op is Ops.STORE and node.src[0].op is Ops.PARAM]
    if not stores or any(one.op is Ops.COPYTO and not is_box(one) for one in nodes):
        return None
    written = {store.src[0] for store in stores}
    turns = {node.src[0] for node in nodes if node.op is Ops.LOOP and loop in toposort(node.src[1])}
    for choice in toposort(stores[0].src[1]):
        condition = choice.src[0] if choice.op is Ops.WHERE else None
        if condition is not None and is_of_block(condition, turns, written):
            if not any(reads_sums(store.src[1], condition) for store in stores):
                # All blocks that share a ring must end it together.
                return None if kernel.arg.cluster > 1 and differs(condition) else condition
    return None


def is_of_block(condition: Node, turns: set[Node], written: set[Node]) -> bool:
    """Whether a condition is the same for all threads of a block, before and after it computes."""
    for node in toposort(condition):
        if node.op is Ops.RANGE and node not in turns:
            return False
        if node.op is Ops.VAR and node.arg.name == THREAD:
            return False
        if node.op is Ops.LOAD and (node.src[0].op is not Ops.PARAM or node.src[0] in written):
            return False
    return True


def reads_sums(value: Node, condition: Node) -> bool:
    """Whether a value is computed of what a thread keeps where a condition is false."""
    pending, seen = [value], set[Node]()
    while pending:
        node = pending.pop()
        if node.op is Ops.LOAD and node.src[0].op is Ops.ALLOC:
            return True
        chosen = node.op is Ops.WHERE and node.src[0] is condition
        below = node.src[2:] if chosen else node.src
        pending += [child for child in below if child not in seen and child.has(Ops.LOAD)]
        seen.update(below)
    return False


@dataclass(frozen=True, slots=True)
class _Ring:
    """The loop of a ring, the iterations that count for each turn, its copies, and its protocol."""

    loop: Node
    extent: Dim
    copies: tuple[Node, ...]
    pipe: Node
    cut: CutTiles | None

    def number(self, axis: Dim, turn: Node | None) -> Dim:
        """An iteration of the loop, counted over all turns."""
        if turn is None:
            return axis
        if self.cut is not None:
            return index.add(self.cut.before(turn), axis)
        return index.add(index.mul(turn, self.extent), axis)

    def step(self, op: Op, number: Dim) -> Node:
        """A statement of the protocol about the slot that an iteration takes."""
        return make_node(op, dtypes.token, (self.pipe, index.as_node(number)))


def _ring(loop: Node, extent: Dim, warps: int, info: KernelInfo) -> _Ring:
    cluster = info.cluster
    copies = tuple([slice_of(copy, cluster) for copy in _boxes(loop.src[1])])
    depth = copies[0].src[0].shape[0]
    nbytes = sum(nbytes_of(copy, cluster) for copy in copies)
    if cluster > 1 and not any(copy.arg.multicast for copy in copies):
        raise ScheduleError(
            "no box is the same for all blocks of a cluster, in slices of whole rows",
            found=f"clusters of {cluster}", hint="bind(..., 'grid')",
        )
    scope, warps = "cluster" if cluster > 1 else "block", warps * cluster
    where = Alloc(BARRIERS_ID, "shared", (depth, BARRIERS), name="phases")
    phases = Node(Ops.ALLOC, dtypes.uint64, (), where)
    what = Pipe("ring", depth, "copies", ("products",), 1, nbytes, warps, scope)
    cut = cut_tiles(info, number_of_block(info)) if info.cut else None
    return _Ring(loop, extent, copies, Node(Ops.PIPE, dtypes.token, (phases,), what), cut)


def _copying(statements: Sequence[Node], ring: _Ring, turn: Node | None) -> list[Node]:
    """What the warp that copies does of some statements: loops around copies, and these."""
    found: list[Node] = []
    for node in statements:
        if node.op is Ops.SEQ:
            found += _copying(node.src, ring, turn)
        elif node is ring.loop:
            axis = node.src[0]
            number = ring.number(axis, turn)
            own = [
                copy.replace(src=(*copy.src, ring.pipe, index.as_node(number)))
                for copy in ring.copies
            ]
            inside = sequence([ring.step(Ops.ACQUIRE, number), *own])
            found.append(make_node(node.op, dtypes.token, (axis, inside)))
        elif node.op in _STATEMENTS and (inner := _inside(node, ring, turn, _copying)):
            found.append(make_node(node.op, dtypes.token, (node.src[0], sequence(inner))))
    return found


def _inside(node: Node, ring: _Ring, turn: Node | None, what: object) -> list[Node]:
    """What a role does of a LOOP's or an IF's body."""
    key, body = node.src
    if node.op is Ops.LOOP and ring.loop in toposort(body):
        if turn is not None:
            raise CompilerBug("a ring inside two loops", found=node)
        turn = key
    if node.op is Ops.IF and differs(key) and ring.loop in toposort(body):
        raise CompilerBug("a ring that some blocks of a cluster do not come to", found=node)
    return what([body], ring, turn)  # type: ignore[operator,no-any-return]


def _computing(statements: Sequence[Node], ring: _Ring, turn: Node | None) -> list[Node]:
    """What all other threads do of some statements: all but the copies."""
    found: list[Node] = []
    releases: Node | None = None
    for node in statements:
        if node == BARRIER:
            found.append(_MEETING)
        elif node.op is Ops.SEQ:
            found += _computing(node.src, ring, turn)
        elif node is ring.loop:
            axis, body = node.src
            inside, is_left = _iteration(_items(body), ring, ring.number(axis, turn), axis)
            found.append(make_node(node.op, dtypes.token, (axis, sequence(inside))))
            if is_left:
                end = extent_of(axis)
                releases = ring.step(Ops.RELEASE, ring.number(index.sub(end, 1), turn))
                if not isinstance(end, int):
                    # Of no iterations none has a slot.
                    releases = make_node(Ops.IF, dtypes.token, (index.less(0, end), releases))
        elif node.op in _STATEMENTS:
            inner = _inside(node, ring, turn, _computing)
            found.append(make_node(node.op, dtypes.token, (node.src[0], sequence(inner))))
        else:
            found.append(node)
        if releases is not None and node.op is Ops.DONE and node.arg.engine == "mma":
            # All products are done.
            found.append(releases)
            releases = None
    if releases is not None:
        raise CompilerBug("products of the last slot are not waited for", found=ring.loop)
    return found


def _iteration(
    items: Sequence[Node], ring: _Ring, number: Dim, axis: Node
) -> tuple[list[Node], bool]:
    """An iteration of the ring's loop without its copies; whether its slot is left to the next one.

    The slot is empty behind the first wait for all products that read it: at the end of its own
    iteration, at the beginning of the next one, or where that has begun its products.
    """
    multiplies = [place for place, node in enumerate(items) if node.mask & Ops.MMA.bit]
    found, is_left, is_due = list[Node](), True, True
    for place, node in enumerate(items):
        if is_box(node):
            continue
        if node.op is Ops.DONE and node.arg.engine == ENGINE:
            # Products of the iteration before go on meanwhile. Behind them others begin at once.
            found.append(ring.step(Ops.WAIT, number))
            continue
        is_done = node.op is Ops.DONE and node.arg.engine == "mma"
        found.append(_MEETING if node == BARRIER else node)
        if not is_done or not is_due:
            continue
        if not node.arg.keep and place > multiplies[-1]:
            found.append(ring.step(Ops.RELEASE, number))
            is_left = is_due = False
        elif node.arg.keep or place < multiplies[0]:
            before = ring.step(Ops.RELEASE, index.sub(number, 1))
            found.append(make_node(Ops.IF, dtypes.token, (index.less(0, axis), before)))
            is_due = False
    return found, is_left

"""Products that groups of four warps make beside their threads: begun, and waited for.

The steps of a panel are one group. It is begun as soon as the panel is there, ahead of the copies
of panels to come; what a pipeline's loop waits for at its end is the group of the iteration before.
Behind all loops the last group is waited for, too. What threads have written to shared memory the
matrix unit sees once each of them has said so, ahead of the barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.node import (
    Node,
    const,
    extent_of,
    make_node,
    range_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import STATEMENTS, Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import Done, Fence
from baregrad.kernel.gpu.barriers import BARRIER, sequence
from baregrad.kernel.gpu.parted_sums import DONE, FIRST_ID, last_parts, parts_of, read_by_rows
from baregrad.kernel.gpu.teams import TURNS_ID
from baregrad.kernel.instructions.wgmma import INSTRUCTION, adds_apart, is_read_by_lanes

# Beyond the ids of all other arrays: scales of panels' sums, and those of the next panel's; and as
# many as a thread keeps of them.
SCALES_ID, LATER_ID, MOST_SCALES = 1 << 27, (1 << 27) + (1 << 10), 16
_STATEMENTS = mask_of(STATEMENTS)
_MMA = Ops.MMA.bit
_BODIES = mask_of((Ops.KERNEL, Ops.SEQ, Ops.LOOP, Ops.IF))
_FENCE = Node(Ops.FENCE, dtypes.token, (), Fence("generic", "async"))
_ANEW = const(False, dtypes.bool)
_ONE_LEFT = Node(Ops.DONE, dtypes.token, (), Done("mma", 1))
_SLOTS = Node(Ops.DONE, dtypes.token, (), Done("slots"))


def group_products(kernel: Node) -> Node:
    """The loop-level KERNEL of one thread in which products of four warps are groups."""
    if not kernel.mask & _MMA or not _by_groups(kernel):
        return kernel
    done = rebuild(kernel, _visit, enter=lambda node: bool(node.mask & _STATEMENTS))
    return done.replace(src=tuple([each for child in done.src for each in _ahead(child)]))


def _by_groups(node: Node) -> bool:
    """Whether a product of four warps is below a statement."""
    stack = [node]
    while stack:
        one = stack.pop()
        if one.op is Ops.MMA:
            return bool(one.arg.name == INSTRUCTION)
        stack.extend(child for child in one.src if child.mask & _MMA)
    return False


def _visit(node: Node) -> Node | None:
    """A statement whose parts are rewritten already: those inside a body in their order."""
    if not node.op.bit & _BODIES or _group(node) is not None:
        return None
    if node.op is Ops.LOOP or node.op is Ops.IF:
        key, body = node.src
        if body.op is Ops.SEQ:
            return None
        found = _in_order([body])
        return None if found == [body] else make_node(node.op, node.dtype, (key, sequence(found)))
    found = _in_order(node.src)
    if node.op is Ops.SEQ:
        return sequence(found)
    return Node(node.op, node.dtype, tuple(found), node.arg)


def _in_order(items: Sequence[Node]) -> list[Node]:
    """Statements with what groups need; of copies and a group, the group first."""
    found: list[Node] = []
    keeps = [item.arg.keep for item in items if item.op is Ops.DONE and item.arg.engine == "mma"]
    # Whether an iteration leaves a group to the next one.
    waits, late = bool(keeps), any(keeps)
    read: Node | None = None
    for at, item in enumerate(items):
        if item is read:
            continue
        if item.op is Ops.BARRIER and found and found[-1] == _SLOTS:
            # Of what was written nothing is read next.
            found.append(item)
        elif item.op is Ops.BARRIER:
            found += [_FENCE, item]
        elif (group := _group(item)) is not None:
            place = len(found)
            while place and _is_copy(found[place - 1]) and not _sets(found[place - 1], group):
                place -= 1
            begun, after = parts_of(group, late)
            if is_read_by_lanes(group.src[1].dtype, group.arg.a_major == "k"):
                begun = _in_halves(group)
            follows = items[at + 1] if at + 1 < len(items) else item
            if _reads(follows, group) and (clears := _begins(found, group)) is not None:
                # What reads its sums comes next, and reads all else while they are made.
                reads, reader = _read_early(follows)
                read, after = follows, [DONE, reader]
                begun = [*reads, group.replace(src=(*group.src[:3], _ANEW, *group.src[4:]))]
                if adds_apart(group.arg.operand):
                    found.pop(clears)
                    place -= clears < place
                    begun, after = reads, read_by_rows(group, reader)
            found[place:place] = begun
            found += after
            if not waits and not after:
                found.append(DONE)
        elif item.op is Ops.LOOP and item.mask & _MMA:
            lead, behind = last_parts(item)
            scales, item = _one_ahead(item)
            lead += scales
            place = len(found)
            while place and _fills(found[place - 1]):
                place -= 1
            found[place:place] = lead
            found += [item, DONE, *behind]
        else:
            found.append(item)
    return found


def _ahead(turns: Node) -> list[Node]:
    """A block's loop over its iterations, of which each begins the first copies of the next one.

    It does so once its own panels are read, before it stores results.
    """
    if turns.op is not Ops.LOOP or turns.src[0].arg.id != TURNS_ID:
        return [turns]
    axis, body = turns.src
    items = list(body.src) if body.op is Ops.SEQ else [body]
    loops = [at for at, item in enumerate(items) if item.op is Ops.LOOP and item.mask & _MMA]
    first = sums = loops[0] if loops else 0
    while first and _fills(items[first - 1]):
        first -= 1
    copies = items[first:sums]
    # Behind the loop of sums is the wait for the last of them.
    waits = sums + 1 < len(items) and items[sums + 1] == DONE
    if not copies or not waits or any(map(_fills, items[:first])):
        return [turns]
    lead = items[:first]
    while lead and lead[-1].op in (Ops.BARRIER, Ops.FENCE):
        lead.pop()
    later = index.as_node(index.add(axis, 1))
    more = index.less(later, extent_of(axis))
    begun = [
        item if item.op is Ops.COMMIT else make_node(
            Ops.IF, dtypes.token, (more, _for(item, axis, later))
        )
        for item in copies
    ]  # fmt: skip
    order = [*lead, *items[sums : sums + 2], _FENCE, BARRIER, *begun, *items[sums + 2 :]]
    start = [_for(item, axis, const(0, dtypes.index)) for item in copies]
    return [*start, make_node(Ops.LOOP, dtypes.token, (axis, sequence(order)))]


def _for(copies: Node, axis: Node, turn: Node) -> Node:
    """Copies for an iteration: of what its place says is not there a constant is stored."""
    return rebuild(substitute(copies, {axis: turn}), lambda node: (
        make_node(Ops.STORE, node.dtype, node.src)
        if node.op is Ops.COPYTO and node.src[1].op is Ops.CONST else None
    ))  # fmt: skip


def _fills(statement: Node) -> bool:
    """Whether a statement fills shared memory for the loop of sums, or closes a group of copies."""
    if statement.op is Ops.IF or statement.op is Ops.LOOP:
        return _fills(statement.src[1])
    if statement.op is Ops.SEQ:
        return all(map(_fills, statement.src))
    if statement.op is Ops.STORE:
        return statement.src[0].op is Ops.ALLOC and bool(statement.src[0].arg.space == "shared")
    return statement.op is Ops.COPYTO or (statement.op is Ops.COMMIT and not statement.src)


def _sets(statement: Node, group: Node) -> bool:
    """Whether a statement sets what a group adds to, or registers that it multiplies."""
    if statement.op is Ops.IF or statement.op is Ops.LOOP:
        return _sets(statement.src[1], group)
    if statement.op is Ops.SEQ:
        return any(_sets(one, group) for one in statement.src)
    total, left = group.src[:2]
    held = (total, left.src[0]) if left.op is Ops.CAST else (total,)
    return statement.op is Ops.STORE and any(statement.src[0] is load.src[0] for load in held)


def _begins(statements: Sequence[Node], group: Node) -> int | None:
    """Which statement has just set what a group adds to: its sums are those of one iteration.

    None where something has been added between, as by a loop whose last iteration the group is.
    """
    array = group.src[0].src[0]
    touching = [place for place, one in enumerate(statements) if array in toposort(one)]
    if not touching:
        return None
    last = statements[touching[-1]]
    sets = last.op is Ops.STORE and last.src[0] is array and last.src[1].op is Ops.CONST
    return touching[-1] if sets else None


def _reads(statement: Node, group: Node) -> bool:
    """Whether a statement stores what it makes of a group's sums: nothing is done before."""
    array = group.src[0].src[0]
    return statement.op is Ops.STORE and array in toposort(*statement.src[1:])


def _read_early(statement: Node) -> tuple[list[Node], Node]:
    """What a STORE reads in memory, kept in registers, and the STORE that takes it from there.

    Nothing where that is too much, or for other statements.
    """
    if statement.op is not Ops.STORE:
        return [], statement
    reads = [one for one in toposort(statement.src[1])
             if one.op is Ops.LOAD and one.src[0].op is Ops.PARAM]  # fmt: skip
    stores, kept, total = list[Node](), dict[Node, Node](), 0
    for number, read in enumerate(reads):
        axes = tuple(sorted([axis for axis in read.ranges if axis.arg.is_tile], key=_by_id))
        shape = tuple([int(axis.src[0].arg) for axis in axes])
        total += prod(shape)
        where = Alloc(SCALES_ID + number, "register", shape, name=f"s{number}")
        array = make_node(Ops.ALLOC, read.dtype, (), where)
        stores.append(make_node(Ops.STORE, dtypes.token, (array, read, *axes)))
        kept[read] = make_node(Ops.LOAD, read.dtype, (array, *axes))
    if total > MOST_SCALES or any(one in kept for read in reads for one in toposort(*read.src)):
        return [], statement
    return stores, rebuild(statement, kept.get)


def _one_ahead(loop: Node) -> tuple[list[Node], Node]:
    """What is ahead of a loop over panels, and the loop, where it reads the next panel's scales.

    They are there by then: what a panel asks for itself takes as long to come as its products. Of
    8,192 cubed an H200 made products of 8-bit floats in blocks of 128 in 976 us so, in 1,077 else.
    """
    axis, body = loop.src
    extent = extent_of(axis)
    items = body.src if body.op is Ops.SEQ else (body,)
    reads = [item for item in items if _is_scale(item, axis)]
    if not reads or not isinstance(extent, int) or extent < 2:
        return [], loop
    ends = const(0, dtypes.index), index.as_node(index.minimum(index.add(axis, 1), extent - 1))
    first, now, later = list[Node](), list[Node](), list[Node]()
    for read in reads:
        held, value, *places = read.src
        where = held.arg._replace(id=held.arg.id + LATER_ID - SCALES_ID, name=f"n{held.arg.name}")
        after = held.replace(arg=where)
        kept = make_node(Ops.LOAD, value.dtype, (after, *places))
        now.append(make_node(Ops.STORE, dtypes.token, (held, kept, *places)))
        for found, end in zip((first, later), ends, strict=True):
            moved = substitute(value, {axis: end})
            found.append(make_node(Ops.STORE, dtypes.token, (after, moved, *places)))
    place = items.index(reads[0])
    others = [item for item in items if item not in reads]
    inside = sequence([*others[:place], *now, *later, *others[place:]])
    return first, make_node(loop.op, loop.dtype, (axis, inside))


def _is_scale(statement: Node, axis: Node) -> bool:
    """Whether a statement keeps what an iteration reads of memory for a panel's sums."""
    return (
        statement.op is Ops.STORE and statement.src[0].op is Ops.ALLOC
        and SCALES_ID <= statement.src[0].arg.id < LATER_ID and axis in statement.src[1].ranges
    )


def _by_id(axis: Node) -> int:
    return int(axis.arg.id)


def _in_halves(group: Node) -> list[Node]:
    """A product of what lanes read, as two groups of half its steps.

    Each reads words into registers that the group before the last one has read: the other half's
    products are made meanwhile.
    """
    steps = group.src[7] if len(group.src) > 7 else None
    count = 1 if steps is None else int(steps.src[0].arg)
    if steps is None or count % 2:
        return [DONE, group]
    half = range_node(count // 2, steps.arg.id, steps.arg.axis, steps.arg.bind)
    found = []
    for first in (0, count // 2):
        place = index.as_node(index.add(half, first))
        left, right = (substitute(load, {steps: place}) for load in group.src[1:3])
        found.append(group.replace(src=(group.src[0], left, right, *group.src[3:7], half)))
    return [found[0], _ONE_LEFT, found[1]]


def _is_copy(statement: Node) -> bool:
    """Whether a statement begins copies, or closes a group of them."""
    if statement.op is Ops.IF:
        return _is_copy(statement.src[1])
    if statement.op is Ops.SEQ:
        return all(map(_is_copy, statement.src))
    if statement.op is Ops.STORE:
        # What comes through registers is read ahead.
        target = statement.src[0]
        return target.op is Ops.ALLOC and bool(target.arg.space == "register")
    return statement.op is Ops.COPYTO or (statement.op is Ops.COMMIT and not statement.src)


def _group(loop: Node) -> Node | None:
    """A product, or one over all steps of the short loop around it; None for other statements."""
    if loop.op is Ops.MMA:
        return loop
    if loop.op is not Ops.LOOP or loop.src[1].op is not Ops.MMA:
        return None
    axis, step = loop.src
    extent = extent_of(axis)
    if not isinstance(extent, int) or len(step.src) > 7:
        return None
    bind = axis.arg._replace(id=FIRST_ID + axis.arg.id, bind="unroll")
    steps = axis.replace(arg=bind)
    moved = substitute(step, {axis: steps})
    return moved.replace(src=(*moved.src, steps))

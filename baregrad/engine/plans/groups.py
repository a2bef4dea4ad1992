"""Launches that follow each other and have nothing to do with each other, as one, on GPUs.

An optimiser's step is a kernel for each parameter, of which most are too small to keep a GPU busy
and none begins before the one in front of it has ended. Kernels that compute elements from elements
at the same place, of arrays of their own, become one along a single axis: each has a stretch of
it, and whole blocks at that. So do small ones that read, and write, wherever they like, as those of
one token's keys, values and queries: their axes are digits of the place in their stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from baregrad.base.bits import round_up
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Param
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
from baregrad.ir.core.op import Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.analysis import by_id, distinct_axes, out_axes
from baregrad.schedule.plan import Launch, Plan, PlannedBuffer, copies_itself

# Where a stretch begins: at a block's first element, however many a thread has.
STRETCH = 1 << 13
# Elements that one access of a thread has, at most.
LANES = 4
# Members of a group: of arrays that keep a GPU busy by themselves, and of smaller ones, whose
# launches take longer than they do. Each is code, of which threads of small ones have little.
MOST_MEMBERS, MOST_SMALL = 8, 16
LARGE = 1 << 16
# Arrays of a group, at most: each is an argument.
MOST_ARRAYS = 120
# Values of a kernel that may be one of a group: each is code.
MOST_NODES = 160
_LOOPS = mask_of((Ops.REDUCE, Ops.SCAN, Ops.STAGE))
_NEVER = _LOOPS | mask_of((Ops.GUARD, Ops.VAR))
_NOWHERE = const(-1, dtypes.index)


def grouped(plan: Plan) -> Plan:
    """The plan with launches in groups, those of equal kernels first, so that groups are equal."""
    steps: list[Launch] = []
    over = dict(plan.over)
    run = _Run(plan.buffers, over)
    for step in plan.steps:
        # What may write a part of its array only is to do so, or nothing.
        settled = tuple([over.get(place, place) for place in step.buffers])
        alone = step.part is not None or copies_itself(step, settled)
        alone = alone or not (_is_plain(step.kernel) or _is_small(step.kernel))
        if alone or not run.is_beside(step):
            steps += run.launches()
            run = _Run(plan.buffers, over)
        if alone:
            steps.append(step)
        else:
            run.add(step)
    steps += run.launches()
    return plan if len(steps) == len(plan.steps) else replace(plan, steps=tuple(steps))


class _Run:
    """Launches that follow each other, of which none touches what another writes.

    over: outputs that may lie where an argument does, which count as that argument.
    """

    def __init__(self, buffers: Sequence[PlannedBuffer], over: Mapping[int, int]) -> None:
        self.buffers = buffers
        self.over = over
        self.members: list[Launch] = []
        self.written: set[int] = set()
        self.touched: set[int] = set()

    def add(self, step: Launch) -> None:
        """Take one more, which is beside the others."""
        self.members.append(step)
        self.written.update(self._places(step.buffers[slot] for slot in step.writes))
        self.touched.update(self._places(step.buffers))

    def is_beside(self, step: Launch) -> bool:
        """Whether a launch touches nothing that others write, and the other way round."""
        written = self._places(step.buffers[slot] for slot in step.writes)
        return not self._meet(written, self.touched) and not self._meet(
            self.written, self._places(step.buffers)
        )

    def _places(self, buffers: Iterable[int]) -> set[int]:
        return {self.over.get(one, one) for one in buffers}

    def _meet(self, some: set[int], others: set[int]) -> bool:
        if not some.isdisjoint(others):
            return True
        ours, theirs = (
            [one for place in places if (one := self.buffers[place]).kind == "temp"]
            for places in (some, others)
        )
        return any(_overlap(one, other) for one in ours for other in theirs)

    def launches(self) -> list[Launch]:
        """The launches, as few as may be."""
        order: dict[Node, int] = {}
        for one in self.members:
            order.setdefault(one.kernel, len(order))
        members = sorted(self.members, key=lambda one: (_is_large(one), order[one.kernel]))
        found: list[Launch] = []
        group: list[Launch] = []
        for one in members:
            if group and not _has_room(group, one):
                found.append(_joined(group))
                group = []
            group.append(one)
        return [*found, _joined(group)] if group else found


def _overlap(one: PlannedBuffer, other: PlannedBuffer) -> bool:
    """Whether two temporaries share memory."""
    ends = [index.upper(buffer.nbytes) + buffer.offset for buffer in (one, other)]
    return one.offset < ends[1] and other.offset < ends[0]


def _has_room(group: Sequence[Launch], step: Launch) -> bool:
    arrays = {place for one in (*group, step) for place in one.buffers}
    is_large = _is_large(step)
    if is_large is not _is_large(group[0]):
        return False
    return len(group) < (MOST_MEMBERS if is_large else MOST_SMALL) and len(arrays) <= MOST_ARRAYS


def _is_large(step: Launch) -> bool:
    return _points(step.kernel) >= LARGE


def _axes(kernel: Node) -> tuple[Node, ...]:
    """The axes of a kernel without loops of its own, outermost first."""
    return by_id(out_axes(kernel.src[0]))


def _points(kernel: Node) -> int:
    """For how many places a kernel computes something; 0 where that is symbolic."""
    extents = [extent_of(axis) for axis in _axes(kernel)]
    known = [extent for extent in extents if isinstance(extent, int)]
    return prod(known) if len(known) == len(extents) else 0


def _is_plain(kernel: Node) -> bool:
    """Whether a kernel computes elements from elements at the same place."""
    if kernel.mask & _NEVER:
        return False
    places = kernel.src[0].src[2:]
    shape = kernel.src[0].src[0].shape
    count = prod(shape) if all(isinstance(extent, int) for extent in shape) else 0
    if not count or count % LANES:
        return False
    for out in kernel.src:
        if out.arg != Out() or out.src[2:] != places or out.src[0].shape != shape:
            return False
    if any(place.op is not Ops.RANGE for place in places) or len(set(places)) < len(places):
        return False
    if tuple(map(extent_of, places)) != shape:
        return False  # it writes a part of an array alone
    nodes = toposort(kernel)
    if len(nodes) > MOST_NODES:
        return False
    for node in nodes:
        if node.op is Ops.PARAM:
            if not _is_whole(node):
                return False
        elif node.op is Ops.INDEX:
            if node.src[0].op is not Ops.PARAM or (
                node.src[0].shape and (node.src[1:] != places or node.src[0].shape != shape)
            ):
                return False
        elif node.op is not Ops.OUT and any(child.dtype is dtypes.index for child in node.src):
            if node.op is not Ops.RANGE:
                return False
    return True


def _is_whole(param: Node) -> bool:
    """Whether no two elements of an array lie in one byte."""
    return param.dtype.bits >= 8 or param.dtype.kind == "bool"


def _is_small(kernel: Node) -> bool:
    """Whether a kernel computes few elements, none from another, and each has its own place."""
    if kernel.mask & _LOOPS or not 0 < _points(kernel) < LARGE:
        return False
    axes = frozenset(_axes(kernel))
    for out in kernel.src:
        if out.arg not in (Out(), Out(apart=True)) or out_axes(out) != axes:
            return False
        if any(not isinstance(extent, int) for extent in out.src[0].shape):
            return False
        told = axes if out.arg.apart else distinct_axes(out)
        if any(extent_of(axis) != 1 for axis in axes - told):
            return False
    nodes = toposort(kernel)
    return len(nodes) <= MOST_NODES and all(
        _is_whole(node) for node in nodes if node.op is Ops.PARAM
    )


def _joined(members: list[Launch]) -> Launch:
    """Launches as one; as it is where there is only one."""
    if len(members) < 2:
        return members[0]
    written = [one.buffers[slot] for one in members for slot in one.writes]
    read = dict.fromkeys(
        place for one in members for slot, place in enumerate(one.buffers)
        if slot not in one.writes
    )
    places = (*written, *read)
    read_slot = {place: len(written) + number for number, place in enumerate(read)}
    total = 0
    begins = []
    for one in members:
        begins.append(total)
        total += round_up(_points(one.kernel), STRETCH)
    line = range_node(total, 0)
    outs: list[Node] = []
    for one, begin in zip(members, begins, strict=True):
        slots = {slot: len(outs) + number for number, slot in enumerate(one.writes)}
        slots.update(
            (slot, read_slot[place]) for slot, place in enumerate(one.buffers)
            if slot not in slots
        )
        outs += _moved(one.kernel, slots, index.sub(line, begin))
    kernel = Node(Ops.KERNEL, dtypes.token, tuple(outs), KernelInfo(f"maps_{len(members)}_{total}"))
    origins = tuple(dict.fromkeys(node for one in members for node in one.origins))
    return Launch(kernel, places, tuple(range(len(written))), origins)


def _moved(kernel: Node, slots: dict[int, int], place: Dim) -> list[Node]:
    """The OUTs of a kernel over a stretch of one axis; `place` counts from where it begins."""
    count = _points(kernel)
    # Whole blocks are inside the stretch or not, though its last one may not be full.
    inside = index.both(
        index.at_least(place, 0), index.less(place, round_up(count, STRETCH)),
        index.less(place, count),
    )
    if _is_plain(kernel):
        return _moved_plainly(kernel, slots, index.as_node(place), inside)
    params = {
        node: make_node(Ops.PARAM, node.dtype, (), node.arg._replace(slot=slots[node.arg.slot]))
        for node in toposort(kernel) if node.op is Ops.PARAM
    }
    changed = {**params, **_digits(kernel, place)}
    # Where an element goes is computed in all blocks, and may be read from an element's own place.
    nearest = index.maximum(index.minimum(place, count - 1), 0)
    read = {**params, **_digits(kernel, nearest)}
    made = []
    for out in kernel.src:
        array, value = (substitute(node, changed) for node in out.src[:2])
        is_read = any(node.op is Ops.INDEX and node.ranges for node in toposort(*out.src[2:]))
        places = [substitute(node, read if is_read else changed) for node in out.src[2:]]
        if places and places[0].op is Ops.WHERE and places[0].src[2] is _NOWHERE:
            # It is a group already, which says itself where it writes.
            condition, places[0], _ = places[0].src
            where = index.both(inside, condition)
        else:
            where = index.both(inside, *map(index.inside, places, array.shape))
        flat = index.as_node(index.flatten(places, array.shape))
        line = make_node(
            Ops.PARAM, array.dtype, (), array.arg._replace(shape=(prod(array.shape),))
        )
        spot = alu(Ops.WHERE, where, flat, _NOWHERE)
        made.append(Node(Ops.OUT, dtypes.token, (line, value, spot), Out(apart=True)))
    return made


def _digits(kernel: Node, place: Dim) -> dict[Node, Node]:
    """The axes of a kernel as digits of a place on one that has room for all of them."""
    axes = _axes(kernel)
    digits = index.unflatten(index.as_node(place), tuple([int(axis.src[0].arg) for axis in axes]))
    return dict(zip(axes, map(index.as_node, digits), strict=True))


def _moved_plainly(
    kernel: Node, slots: dict[int, int], at: Node, inside: Node
) -> list[Node]:
    """The OUTs of a kernel of elements from elements at the same place, all at `at`."""
    count = _points(kernel)

    def array(param: Node) -> Node:
        shape = (count,) if param.shape else ()
        return Node(Ops.PARAM, param.dtype, (), Param(slots[param.arg.slot], shape))

    def visit(node: Node) -> Node | None:
        if node.op is not Ops.INDEX:
            return None
        param = node.src[0]
        # Nothing is read where nothing is written.
        return Node(Ops.INDEX, node.dtype, (array(param), at) if param.shape else (array(param),))

    memo: dict[Node, Node] = {}
    where = alu(Ops.WHERE, inside, at, _NOWHERE)
    made = []
    for out in kernel.src:
        value = rebuild(out.src[1], visit, memo=memo)
        made.append(
            Node(Ops.OUT, dtypes.token, (array(out.src[0]), value, where), Out(apart=True))
        )
    return made

"""Donated arguments: when an output may be written over an argument that nobody needs any more.

It is safe when every kernel that reads the argument runs before the one that writes the output, or
is that one and reads, for each element it writes, that element alone. In a kernel with several
outputs, those that read the argument must be written before it; on a GPU its threads run in any
order, and only the one that writes an element may read it.

A value in which some elements of an array are replaced (a slice that is assigned, a row of a cache)
is computed whole: WHERE(place is one of those, new, old). Written over the old array, only the new
elements need be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Out
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.schedule.fusing.fusion import Fusion
from baregrad.schedule.partition import Step, remake

Donation = dict[Node, Node]  # output value -> PARAM whose memory it takes
Reads = dict[Node, list[Node]]  # OUT -> where its value reads arguments
_TRUE = const(True, dtypes.bool)


def settle_donations(fusion: Fusion, steps: list[Step], donate: Mapping[int, int]) -> Donation:
    """The donations that are safe; steps change places, or their outputs do, to make more so."""
    if not donate:
        return {}
    params = {node.arg.slot: node for node in fusion.order if node.op is Ops.PARAM}
    _delay(fusion, steps, donate, params)
    writers: dict[Node, list[int]] = {}
    readers: dict[Node, list[int]] = {}
    for position, step in enumerate(steps):
        for written in step.written:
            writers.setdefault(fusion.memory_of(written), []).append(position)
        for read in step.read:
            readers.setdefault(read, []).append(position)
    found: Donation = {}
    taken: set[Node] = set()
    reads: Reads = {}
    for output, slot in sorted(donate.items()):
        param = params.get(slot)
        if param is None or output >= len(fusion.outputs):
            continue
        value = fusion.outputs[output]
        if value in found or param in taken or value not in writers:
            continue
        if param in fusion.outputs or not _alike(value, param):
            continue
        first = writers[value][0]
        if max(readers.get(param, [-1])) > first:
            continue
        if first in readers.get(param, ()):
            if not _in_place(fusion, steps, first, value, param, found, reads):
                continue
        found[value] = param
        taken.add(param)
    return found


def _delay(
    fusion: Fusion, steps: list[Step], donate: Mapping[int, int], params: Mapping[int, Node]
) -> None:
    """Let steps that write over an argument wait for those that still read it, if none needs them.

    An update of a weight may be part of the kernel of its gradient, which comes before the kernel
    that passes the gradient on through that weight.
    """
    over: dict[Node, Node] = {}
    for output, slot in donate.items():
        if slot in params and output < len(fusion.outputs):
            over[fusion.outputs[output]] = params[slot]
    last: dict[Node, int] = {}
    for position, step in enumerate(steps):
        for read in step.read:
            last[read] = position
    until: dict[int, int] = {}
    for position, step in enumerate(steps):
        ends = [last.get(over[value], 0) for value in step.written if value in over]
        end = max(ends, default=0)
        if end > position and _may_wait(fusion, step, steps[position + 1 : end + 1]):
            until[position] = end
    if until:
        # Right after the step that it waits for.
        order = sorted(range(len(steps)), key=lambda at: (until.get(at, at), at in until, at))
        steps[:] = [steps[position] for position in order]


def _may_wait(fusion: Fusion, step: Step, others: list[Step]) -> bool:
    """Whether a step may run after some that follow it: they need nothing of what it writes."""
    written = {fusion.memory_of(value) for value in step.written}
    for other in others:
        used = {fusion.memory_of(value) for value in (*other.written, *other.read)}
        if step.draft in other.draft.after or not written.isdisjoint(used):
            return False
    return True


def _alike(value: Node, param: Node) -> bool:
    """Whether two arrays have elements of one dtype, and as many."""
    return value.dtype is param.dtype and (index.product(value.shape) == index.product(param.shape))


def _in_place(
    fusion: Fusion, steps: list[Step], position: int, value: Node, param: Node, known: Donation,
    reads: Reads,
) -> bool:
    """Whether the kernel at `position` may write `value` over `param`, which it reads."""
    step = steps[position]
    if value not in step.written:
        return False  # a scatter below it shares its memory
    wanted = {value: param}
    for written in step.written:
        if written in known and known[written] in step.read:
            wanted[written] = known[written]
    before: dict[Node, set[Node]] = {written: set() for written in step.written}
    for target, source in wanted.items():
        readers = _readers(step, target, source, reads, fusion.gpu)
        if readers is None:
            return False
        before[target].update(readers - {target})
    order = _sorted_outputs(step.written, before)
    if order is None:
        return False
    if order != step.written:
        if _is_sensitive(step.kernel):
            return False
        steps[position] = remake(step, order)
    return True


def _is_sensitive(kernel: Node) -> bool:
    """Whether another order of outputs might sum in another order: several reductions.

    What is donated must not change a bit of the results.
    """
    if not kernel.has(Ops.REDUCE):
        return False
    return sum(1 for node in toposort(kernel) if node.op is Ops.REDUCE) > 1


def _readers(
    step: Step, target: Node, source: Node, reads: Reads, alone: bool
) -> set[Node] | None:
    """The outputs that read `source`; None if one reads another element than its own.

    alone: None as well if one reads an element more than once, for several of its own.
    """
    slot = len(step.written) + step.read.index(source)
    place = step.written.index(target)
    outs = [out for out in step.kernel.src if out.src[0].arg.slot == place]
    if len(outs) != 1 or outs[0].arg.monoid is not None:
        return None
    offset = _offset(outs[0].src[0], outs[0].src[2:])
    axes = _axes(outs[0])
    found: set[Node] = set()
    for out in step.kernel.src:
        if out not in reads:
            # Layers have equal kernels.
            order = toposort(*out.src[1:])
            reads[out] = [
                node for node in order if node.op is Ops.INDEX and node.src[0].op is Ops.PARAM
            ]
        for node in reads[out]:
            if node.src[0].arg.slot == slot:
                if _offset(node.src[0], node.src[1:]) != offset:
                    return None
                if alone and not _axes(out) <= axes:
                    return None
                found.add(step.written[out.src[0].arg.slot])
    return found


def _offset(array: Node, idx: tuple[Node, ...]) -> index.Dim:
    return index.flatten(idx, array.shape)


def _axes(out: Node) -> frozenset[Node]:
    """The axes that an OUT runs along."""
    return frozenset().union(*[place.ranges for place in out.src[2:]])


def _sorted_outputs(
    written: tuple[Node, ...], before: Mapping[Node, set[Node]]
) -> tuple[Node, ...] | None:
    """The outputs in an order in which each comes after those in its set, or None."""
    order: list[Node] = []
    rest = list(written)
    while rest:
        ready = next((one for one in rest if before[one] <= set(order)), None)
        if ready is None:
            return None
        order.append(ready)
        rest.remove(ready)
    return tuple(order)


# --- parts of arrays ------------------------------------------------------------------------------

def changed_part(kernel: Node, olds: Sequence[int]) -> tuple[Node, ...] | None:
    """The OUTs of those elements alone that a kernel does not take from the arrays it writes over.

    olds: for the array that it writes in each slot, the slot of the one that lies there. None
    where the elements are not one block of known size along the kernel's axes, the same for all
    outputs, or where others of those arrays are read as well.
    """
    block: Mapping[Node, Node] | None = None
    outs: list[Node] = []
    for out in kernel.src:
        target, value, *places = out.src
        old = olds[target.arg.slot]
        if out.arg != Out() or value.op is not Ops.WHERE or not _is_read_in_place(
            value.src[2], old, target, places
        ):  # fmt: skip
            return None
        condition, new, _ = value.src
        found = _block(condition, places)
        if found is None or (block is not None and found != block):
            return None
        block = found
        holds = dict.fromkeys((condition, *index.conjuncts(condition)), _TRUE)
        new = substitute(substitute(new, holds), found)
        if any(node.op is Ops.PARAM and node.arg.slot in olds for node in toposort(new)):
            return None
        moved = [substitute(place, found) for place in places]
        outs.append(Node(Ops.OUT, dtypes.token, (target, new, *moved), Out()))
    return tuple(outs)


def _is_read_in_place(value: Node, old: int, target: Node, places: list[Node]) -> bool:
    """Whether a value is the element of the array `old` at the place that is written."""
    if value.op is not Ops.INDEX or value.src[0].op is not Ops.PARAM:
        return False
    array = value.src[0]
    same = index.flatten(value.src[1:], array.shape) == index.flatten(places, target.shape)
    return array.arg.slot == old and array.dtype is target.dtype and same


def _block(condition: Node, places: list[Node]) -> Mapping[Node, Node] | None:
    """What axes are where a condition holds, if that is from one place on along each of them."""
    begins: dict[Node, Dim] = {}
    ends: dict[Node, Dim] = {}
    for part in index.conjuncts(condition):
        bound = _bound(part)
        if bound is None:
            return None
        axis, limit, is_end = bound
        known = ends if is_end else begins
        if axis in known or axis not in places:
            return None
        known[axis] = limit
    found: dict[Node, Node] = {}
    for axis in {**begins, **ends}:
        whole = index.as_dim(axis.src[0])
        begin, end = begins.get(axis, 0), ends.get(axis, whole)
        count = index.as_dim(index.sub(end, begin))
        if not isinstance(whole, int) or not isinstance(count, int) or count < 1:
            return None
        if index.lower(begin) < 0 or index.upper(begin) + count > whole:
            return None  # what lies outside is not written
        place = range_node(count, axis.arg.id) if count > 1 else 0
        found[axis] = index.as_node(index.add(begin, place))
    return found or None


def _bound(condition: Node) -> tuple[Node, Dim, bool] | None:
    """The axis that a condition is of, and where it ends, or begins, by it."""
    if condition.op is not Ops.CMPLT or condition.src[0].dtype is not dtypes.index:
        return None
    low, high = condition.src
    terms, constant = index.linear(index.sub(low, high))
    axes = [atom for atom in terms if atom.ranges]
    if len(axes) != 1 or axes[0].op is not Ops.RANGE or abs(terms[axes[0]]) != 1:
        return None
    axis = axes[0]
    # axis + rest < 0, or rest < axis
    others = {one: by for one, by in terms.items() if one is not axis}
    rest = index.as_dim(index.from_linear(others, constant))
    if terms[axis] == 1:
        return axis, index.mul(rest, -1), True
    return axis, index.add(rest, 1), False

"""Sums that the matrix unit of four warps rounds too much, as sums of parts that threads add up.

Each panel of 8-bit floats is a sum of its own (`adds_apart`). Where an iteration leaves its group
to the next one, that adds up what the group made before it begins another one with the same
registers: meanwhile another group of warps has the unit.
"""

from __future__ import annotations

from itertools import product

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, alu, const, make_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import Done
from baregrad.kernel.instructions.wgmma import adds_apart

DONE = Node(Ops.DONE, dtypes.token, (), Done("mma"))
# Beyond the ids of all other axes and arrays.
FIRST_ID = 1 << 25
_NAME = "part"


def parts_of(group: Node, late: bool) -> tuple[list[Node], list[Node]]:
    """What begins a group, and what is done behind the copies that come next.

    late: whether the group before is still there to be added up. Sums of their own are made for one
    tile of rows after the other, so that they share registers.
    """
    if not adds_apart(group.arg.operand):
        return [group], []
    part, rows = _by_rows(group)
    begins, adds = list[list[Node]](), list[list[Node]]()
    for row, _ in rows:
        begins.append([_cleared(part), _anew(row, part)])
        array, *places = row.src[0].src
        more = alu(Ops.ADD, row.src[0], part)
        adds.append([DONE, make_node(Ops.STORE, dtypes.token, (array, more, *places))])
    if late:
        adds.insert(0, adds.pop())
        (first, *others), last = zip(adds, begins, strict=True), []
        steps = [*first[0], *first[1]]
    else:
        steps, others, last = begins[0], list(zip(adds, begins[1:], strict=False)), adds[-1]
    after = [one for add, begin in others for one in (*add, *begin)]
    return steps, after + last


def read_by_rows(group: Node, reader: Node) -> list[Node]:
    """A group whose sums begin anew, and the STORE that alone reads them: a tile of rows at a time.

    Tiles share registers; of the reader's axes those of tiles of rows are among the group's.
    """
    part, rows = _by_rows(group)
    found = [_cleared(part)]
    for row, places in rows:
        there = substitute(substitute(reader, places), {row.src[0]: part})
        if group.src[0].src[0] in toposort(there):
            raise CompilerBug("sums are read elsewhere than they are made", found=reader)
        found += [_anew(row, part), DONE, there]
    return found


def _by_rows(group: Node) -> tuple[Node, list[tuple[Node, dict[Node, Node]]]]:
    """Registers of the sums of one tile of rows; the group of each, and where its axes are then."""
    total, left = group.src[:2]
    axes = [axis for axis in total.src[1:] if axis in left.ranges and axis.arg.bind == "unroll"]
    array, *places = total.src
    shape = [1 if place in axes else size for place, size in zip(places, array.shape, strict=True)]
    where = array.arg._replace(id=FIRST_ID + array.arg.id, shape=tuple(shape), name=_NAME)
    zero = const(0, dtypes.index)
    at = [zero if place in axes else place for place in places]
    rows = list[tuple[Node, dict[Node, Node]]]()
    for point in product(*[range(int(axis.src[0].arg)) for axis in axes]):
        values = dict(zip(axes, [const(place, dtypes.index) for place in point], strict=True))
        rows.append((substitute(group, values), values))
    return total.replace(src=(array.replace(arg=where), *at)), rows


def _anew(row: Node, part: Node) -> Node:
    """A group whose sums lie in registers of a part, of which it begins anew."""
    return row.replace(src=(part, *row.src[1:3], const(False, dtypes.bool), *row.src[4:]))


def _cleared(part: Node) -> Node:
    """The store of zeros to a part's registers, of which products begin anew."""
    array, *places = part.src
    return make_node(Ops.STORE, dtypes.token, (array, const(0, part.dtype), *places))


def last_parts(loop: Node) -> tuple[list[Node], list[Node]]:
    """What is ahead of a loop whose iterations leave parts to the next one, and behind it."""
    body = loop.src[1]
    for item in body.src if body.op is Ops.SEQ else (body,):
        if item.op is Ops.DONE and item.arg.engine == "mma":
            continue
        if item.op is Ops.STORE and item.src[1].op is Ops.ADD:
            part = item.src[1].src[1]
            if part.op is Ops.LOAD and part.src[0].arg.name == _NAME:
                return [_cleared(part)], [item]
        if item.op is Ops.MMA:
            # What this iteration began it has added up itself.
            break
    return [], []

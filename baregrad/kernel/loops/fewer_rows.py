"""Loop level of a GPU: blocks whose rows are not all there compute none of the others.

A block has some rows of a symbolic number, each in registers of its own, and stores those that are
there. That is asked once for all that a block does: where one is there, or two, it runs a version
for as many, whose instructions are those of the whole for these rows. No bit of a row changes.
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.axes import BLOCK_BINDS
from baregrad.ir.core.node import Node, const, make_node, range_node, rebuild, toposort
from baregrad.ir.core.op import STATEMENTS, WORD_PRODUCTS, Ops, mask_of
from baregrad.ir.core.substitution import substitute

_STATEMENTS = mask_of(STATEMENTS)


def part_fewer_rows(kernel: Node) -> Node:
    """The loop-level KERNEL whose blocks multiply words by as many rows as are there."""
    if not any(node.op in WORD_PRODUCTS for node in toposort(kernel)):
        return kernel
    found = _rows(kernel)
    if found is None:
        return kernel
    axis, place = found
    last = max([node.arg.id for node in toposort(kernel) if node.op is Ops.RANGE])
    return rebuild(kernel, lambda node: _visit(node, axis, place, last),
                   enter=lambda node: bool(node.mask & _STATEMENTS))  # fmt: skip


def _rows(kernel: Node) -> tuple[Node, Node] | None:
    """A block's axis of rows that are written out, and what says which of them there are."""
    for node in toposort(kernel):
        if node.op is not Ops.IF:
            continue
        for condition in index.conjuncts(node.src[0]):
            own = [axis for axis in condition.ranges if axis.arg.bind == "unroll"]
            others = [axis for axis in condition.ranges if axis not in own]
            is_symbolic = any(one.op is Ops.VAR for one in toposort(condition))
            blocks = all(axis.arg.bind in BLOCK_BINDS for axis in others)
            if len(own) == 1 and is_symbolic and blocks and condition.op is Ops.CMPLT:
                return own[0], condition
    return None


def _visit(node: Node, axis: Node, condition: Node, last: int) -> Node | None:
    """The innermost loop over blocks, with a version of its body for each number of rows."""
    if node.op is not Ops.LOOP or node.src[0].arg.bind not in BLOCK_BINDS:
        return None
    loop, body = node.src
    if body.op is Ops.LOOP and body.src[0].arg.bind in BLOCK_BINDS:
        return None
    most = int(axis.src[0].arg)
    versions = list[Node]()
    count, more = 1, const(True, dtypes.bool)
    while count < most:
        there, missing = _there(condition, axis, count)
        # Bounds may say that no block has so many rows, or that all have.
        if missing.op is Ops.CONST and missing.arg:
            break
        if there.op is not Ops.CONST:
            few = _of_rows(body, axis, count, last)
            versions.append(_if(index.both(more, missing), few))
            more = there
        count *= 2
    whole = body if count >= most else _of_rows(body, axis, count, last)
    versions.append(_if(more, whole) if versions else whole)
    sequence = make_node(Ops.SEQ, dtypes.token, tuple(versions))
    return make_node(Ops.LOOP, node.dtype, (loop, sequence))


def _there(condition: Node, axis: Node, place: int) -> tuple[Node, Node]:
    """Whether the row at a place is there, and whether it is not."""
    row, end = [substitute(side, {axis: const(place, dtypes.index)}) for side in condition.src]
    return index.less(row, end), index.at_least(row, end)


def _of_rows(body: Node, axis: Node, count: int, last: int) -> Node:
    """What a block does, for the first rows alone."""
    few = range_node(count, last + count, axis.arg.axis, axis.arg.bind)
    return substitute(body, {axis: few if count > 1 else const(0, dtypes.index)})


def _if(condition: Node, body: Node) -> Node:
    return make_node(Ops.IF, dtypes.token, (condition, body))

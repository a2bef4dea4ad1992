"""Where a tile is partial: what lies past its end reads nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, alu, const, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.scope import Scope
from baregrad.kernel.facts.axis_table import AxisTable, Piece
from baregrad.kernel.loops.loop_pieces import guarded

TRUE = const(True, dtypes.bool)
_CLOSING = Ops.REDUCE.bit | Ops.SCAN.bit | Ops.STAGE.bit | Ops.OUT.bit


def within(monoid: Monoid, values: tuple[Node, ...], own: Node) -> tuple[Node, ...]:
    """What is reduced, so that nothing changes where the condition `own` fails: past the end."""
    if own is TRUE or (monoid.primitive is Ops.ADD and is_staged_product(values[0], own.ranges)):
        return values
    if monoid.primitive in (Ops.ADD, Ops.OR, Ops.XOR):
        return tuple([guarded(own, value) for value in values])
    if any(lift.op is not Ops.SLOT for lift in monoid.lift):
        raise ScheduleError(
            f"an axis that {monoid!r} reduces cannot be masked: it has no neutral element",
            wanted="tail='name'",
        )
    pairs = zip(values, monoid.identity, strict=True)
    return tuple([alu(Ops.WHERE, own, guarded(own, value), start) for value, start in pairs])


def is_staged_product(value: Node, axes: frozenset[Node]) -> bool:
    """Whether a value is 0 where any of `axes` lies past its end: a product of copies alone.

    Copies hold 0 there. Each factor has to run along all the axes, as infinity times 0 is no 0.
    """
    stack = [value]
    while stack:
        node = stack.pop()
        if node.op is Ops.MUL:
            stack.extend(node.src)
        elif node.op is Ops.CAST:
            stack.append(node.src[0])
        elif node.op is not Ops.INDEX or node.src[0].op is not Ops.STAGE:
            return False
        elif not is_padded_copy(node.src[0]) or not axes <= node.ranges:
            return False
    return True


def is_padded_copy(stage: Node) -> bool:
    """Whether a STAGE has 0 past an axis' end: elements of an input, or a factor that is kept."""
    value = stage.src[0]
    if value.op is Ops.GUARD:
        if stage.arg.space == "shared":
            return True
        value = value.src[1]
    return value.op in (Ops.INDEX, Ops.LOAD) and value.src[0].op is Ops.PARAM


def guards_reads(table: AxisTable) -> bool:
    """Whether every read of a partial tile has a guard of its own.

    Not where reduced axes alone are partial, on a CPU: the statement that adds up is masked. Words
    of bytes are filled up with zeros where they are read.
    """
    if table.gpu is not None or table.tensorized:
        return True
    data = {table.names[node] for node in table.facts.data}
    data |= {table.merged[node][0] for node in table.facts.data if node in table.merged}
    return any(piece.limits for name in data for piece in table.pieces.get(name, ()))


def held_inside(
    table: AxisTable,
    read: Node,
    scope: Scope,
    finals_of: Callable[[Node, Scope], Sequence[tuple[Node, int]]],
) -> dict[Node, Piece]:
    """Pieces of a read's unrolled axes that stay at the last element past the axis' end.

    finals_of: the final axes of an original one, with their scales. What is computed past the end
    of an axis of the output is not written, whatever it is, and an address that is the same all
    through a loop costs less in it than a condition does. A GPU's threads read nothing there.
    """
    found: dict[Node, Piece] = {}
    if table.gpu is not None:
        return found
    for axis in read.ranges.intersection(table.facts.data):
        piece = scope.pieces[axis]
        if len(piece.limits) != 1:
            continue
        (limit,) = piece.limits
        extent = limit.extent
        finals = finals_of(axis, scope)
        binds = {final.arg.bind for final, _ in finals}
        whole = (limit.terms, limit.start) == (piece.terms, piece.start)
        if whole and isinstance(extent, int) and "unroll" in binds and "vector" not in binds:
            place = index.total((index.from_linear(dict(finals), 0), piece.start))
            found[axis] = Piece(index.minimum(place, extent - 1), ())
    return found


def check_threads(kernel: Node) -> None:
    """No expression runs along two axes that both lie across one dimension of a block's threads.

    Raises ScheduleError.
    """
    for node in toposort(kernel, enter=lambda node: bool(node.mask & _CLOSING)):
        if not node.op.bit & _CLOSING:
            continue
        axes = node.ranges.union(*[child.ranges for child in node.src])
        taken: dict[str, Node] = {}
        for axis in axes:
            if axis.arg.is_thread and taken.setdefault(axis.arg.bind, axis) is not axis:
                other = taken[axis.arg.bind]
                raise ScheduleError(
                    "two axes of one expression lie across the same threads",
                    found=f"{other.arg.axis} and {axis.arg.axis}, both bound to {axis.arg.bind}",
                    wanted=f"another of {', '.join(THREAD_BINDS)} for one of them",
                )

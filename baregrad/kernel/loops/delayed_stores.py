"""Stores that wait for the next iteration: a row is written while the next one is read.

A store that passes the caches by takes its time, and a loop of little else leaves the core idle
meanwhile. As part of the next row's first loop it has company: the reads and the arithmetic there.
"""

from __future__ import annotations

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import (
    NO_RANGES,
    Node,
    alu,
    const,
    extent_of,
    rebuild,
    toposort,
    toposort_having,
)
from baregrad.ir.core.op import STATEMENTS, Op, Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.language.schedule import Pipeline
from baregrad.kernel.loops.loop_blocks import StatementBlock, in_registers, statement
from baregrad.kernel.loops.loop_pieces import load, store

# Iterations of the loop of stores that one iteration of the other loop makes, at most.
MOST_TOGETHER = 8
_LOAD = Ops.LOAD.bit
_AROUND = frozenset((Ops.KERNEL, Ops.SEQ, Ops.LOOP, Ops.IF))


def delay_stores(kernel: Node, step: Pipeline) -> Node:
    """A loop-level KERNEL in which the last loop of each iteration of `step.axis` is delayed.

    Each iteration but the first then stores in its own first loop what the one before computed, and
    what the last one computed is stored after the loop. Raises ScheduleError where no loop of the
    next iteration can take the stores: what they read must still be there.
    """
    loops = [node for node in toposort(kernel, enter=_is_around) if node.op is Ops.LOOP]
    outer = [node for node in loops if node.src[0].arg.axis == step.axis]
    if len(outer) != 1 or outer[0].src[0].arg.bind == "pool":
        raise _refused(step, f"{len(outer)} loops over {step.axis}", "one, with loops inside it")
    (loop,) = outer
    axis, body = loop.src
    statements = _parts(body)
    last = next((node for node in reversed(statements) if _stores_outputs(node)), None)
    if last is None:
        raise _refused(step, "no loop of stores to outputs in it", "a loop after the first one")
    position = statements.index(last)
    others = [*statements[:position], *statements[position + 1 :]]
    arrays = [n for n in toposort_having(Ops.ALLOC.bit, kernel) if n.op is Ops.ALLOC]
    last, ends = _handed_on(last, 1 + max([array.arg.id for array in arrays], default=0))
    host = _host(last, others, position, [end.src[0] for end in ends])
    if host is None:
        raise _refused(
            step, f"none ahead of {last.src[0].arg.axis}, or one that overwrites what that stores",
            "a loop ahead of it, of as many iterations or a part of them",
        )
    # The first iteration finds something in them.
    starts = [store(end.src[0], const(0, end.src[0].dtype), ()) for end in ends]
    taken = _taken_over(host, last, axis)
    inside = [taken if node is host else node for node in others]
    final = substitute(last, {axis: index.as_node(index.sub(axis.src[0], 1))})
    after = _nest(index.less(0, axis.src[0]), final)
    whole = _around(*starts, _nest(axis, *inside, *ends), after)
    return rebuild(kernel, lambda node: whole if node is loop else None, enter=_is_around)


def _refused(step: Pipeline, found: str, wanted: str) -> ScheduleError:
    return ScheduleError(
        f"{step} is not legal: no loop of the next iteration can take the stores",
        found=found, wanted=wanted,
    )


def _host(
    last: Node, others: list[Node], position: int, handed_on: list[Node]
) -> Node | None:
    """The first loop that can make the stores of `last`, the iteration before having ended.

    handed_on: the registers that are written for it at the end of an iteration.
    """
    needed, made = _arrays(Ops.LOAD, last).difference(handed_on), _arrays(Ops.STORE, last)
    # A register that was not handed on is the present iteration's alone.
    if any(array.op is Ops.ALLOC and array.arg.space == "register" for array in needed):
        return None
    # What comes after the loop of stores will come before it.
    if any(not needed.isdisjoint(_arrays(Ops.STORE, node)) for node in others[position:]):
        return None
    if any(not made.isdisjoint(_arrays(Ops.LOAD, node)) for node in others):
        return None
    for node in others:
        if not needed.isdisjoint(_arrays(Ops.STORE, node)):
            return None
        if node.op is Ops.LOOP and _times(last, node):
            return node
    return None


def times_taken(stores: Dim, trips: Dim) -> int:
    """How many iterations of a loop of stores one of another makes; 0 if it cannot.

    stores, trips: their iterations.
    """
    if not isinstance(stores, int) or not isinstance(trips, int):
        return 0
    if trips < 2 or stores % trips or stores // trips > MOST_TOGETHER:
        return 0
    return stores // trips


def _times(last: Node, host: Node) -> int:
    return times_taken(extent_of(last.src[0]), extent_of(host.src[0]))


def _handed_on(last: Node, first: int) -> tuple[Node, list[Node]]:
    """The loop of stores, what it reads that is the same for all of them being in registers.

    Also the statements that write those registers, which are numbered from `first` on. What a
    condition guards stays where it is: elsewhere it may not be there to be read.
    """

    def varies(node: Node) -> bool:
        return bool(node.ranges) or node.op in STATEMENTS

    def enter(node: Node) -> bool:
        return varies(node) and node.op is not Ops.GUARD

    same = [node for node in toposort(last, enter=enter) if not varies(node) and node.mask & _LOAD]
    numbered = enumerate(same, first)
    registers = {node: in_registers(number, node.dtype, ()) for number, node in numbered}
    memo = {node: load(register, ()) for node, register in registers.items()}
    changed = rebuild(last, lambda _: None, memo=memo)
    return changed, [store(register, node, ()) for node, register in registers.items()]


def _stores_outputs(node: Node) -> bool:
    """Whether a statement is a loop over nothing but stores to arguments, each element once."""
    if node.op is not Ops.LOOP or node.src[0].arg.bind == "pool":
        return False
    inside = [each for each in toposort(*node.src[1:], enter=_is_around) if each.op in STATEMENTS]
    stores = [each for each in inside if each.op is Ops.STORE]
    if any(each.op not in (Ops.STORE, Ops.SEQ, Ops.IF, Ops.LOOP) for each in inside):
        return False
    return all(each.arg is None and each.src[0].op is Ops.PARAM for each in stores)


def _arrays(op: Op, root: Node) -> set[Node]:
    """The arrays that the LOADs or the STOREs of a statement speak of."""
    return {node.src[0] for node in toposort_having(op.bit, root) if node.op is op}


def _is_around(node: Node) -> bool:
    """Whether statements stand inside a node."""
    return node.op in _AROUND


def _parts(node: Node) -> tuple[Node, ...]:
    """The statements of a SEQ, or the one that it is not."""
    return node.src if node.op is Ops.SEQ else (node,)


def _nest(key: Node, *items: Node | StatementBlock) -> StatementBlock:
    """The body of a loop over `key`, or of an IF of it."""
    return StatementBlock(NO_RANGES, key, [*items])


def _around(*items: Node | StatementBlock) -> Node:
    """Statements in order."""
    return statement(StatementBlock(NO_RANGES, None, [*items]))


def _taken_over(host: Node, last: Node, axis: Node) -> Node:
    """`host` with the stores of `last` for the iteration of `axis` before."""
    own, stores = last.src
    times = _times(last, host)
    before = index.as_node(index.sub(axis, 1))
    parts: list[Node] = []
    for number in range(times):
        place = index.add(index.mul(host.src[0], times), number)
        parts += _parts(substitute(stores, {own: index.as_node(place), axis: before}))
    late = _nest(alu(Ops.CMPNE, axis, const(0, dtypes.index)), *parts)
    return _around(_nest(host.src[0], *_parts(host.src[1]), late))

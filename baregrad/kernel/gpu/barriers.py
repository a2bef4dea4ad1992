"""Where the threads of a block meet: before shared memory that changed hands is touched again.

A barrier stands between a write of a shared array and a read of it, and between a read and the next
write, on every path, the way around a loop included. It never stands where some threads of the
block do not come. Where copies are begun ahead of their iteration, the one that waits for them
(`DONE`) has it behind it, and slots that are taken in turns need no other; where warps have parts
of the slots of their own, each meets by itself. What an engine copies in
boxes has barriers of its own (`roles.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, make_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Barrier, is_box

BARRIER = Node(Ops.BARRIER, dtypes.token, (), Barrier("block"))
OF_WARP = Node(Ops.BARRIER, dtypes.token, (), Barrier("warp"))
THREAD = ".thread"
# Lanes of a warp.
WARP = 32


@dataclass(slots=True)
class _State:
    """The shared arrays touched since the threads last met.

    rings: those of several slots in the loop whose iterations take them in turns, so that what is
    read and what is written there do not meet before the next iteration. Those of boxes never do.
    """

    written: set[Node] = field(default_factory=set)
    read: set[Node] = field(default_factory=set)
    rings: frozenset[Node] = frozenset()

    def meet(self) -> None:
        self.written.clear()
        self.read.clear()

    def include(self, other: _State) -> None:
        self.written |= other.written
        self.read |= other.read

    def copy(self) -> _State:
        return _State(set(self.written), set(self.read))

    def clashes(self, touched: _State) -> bool:
        """Whether threads must meet before these arrays are touched."""
        clashing = touched.read & self.written | touched.written & self.read
        # Slots that are filled one after the other are different ones.
        again = {one for one in touched.written & self.written if one.arg.depth == 1}
        return bool((clashing | again) - self.rings)


def with_barriers(kernel: Node) -> Node:
    """A loop-level KERNEL of one thread, with a BARRIER wherever its block must meet."""
    nodes = toposort(kernel)
    if not any(_is_shared(node) for node in nodes):
        return kernel
    state = _State(rings=frozenset([node.src[0] for node in nodes if is_box(node)]))
    statements = tuple([each for child in kernel.src for each in _placed(child, state)])
    return Node(Ops.KERNEL, kernel.dtype, statements, kernel.arg)


def _placed(node: Node, state: _State) -> list[Node]:
    """A statement behind the barrier that it needs, with those inside it."""
    op = node.op
    if op is Ops.SEQ:
        return [each for child in node.src for each in _placed(child, state)]
    if op is Ops.DONE and node.arg.engine in ("mma", "tma"):
        return [node]
    if op is Ops.DONE and node.arg.by_warps:
        # What warps share is as it was.
        return [node, OF_WARP]
    if op is Ops.DONE:
        state.meet()
        return [node, BARRIER]
    touched = _touched(node)
    if not (touched.read or touched.written):
        return [node]
    if op is Ops.LOOP and _meets_first(node.src[1]):
        axis, body = node.src
        before, rings = state.copy(), state.rings
        state.rings = rings.union([one for one in touched.written if one.arg.depth > 1])
        inside = _placed(body, state)
        state.rings = rings
        state.include(before)
        return [make_node(op, dtypes.token, (axis, sequence(inside)))]
    if op is Ops.LOOP:
        axis, body = node.src
        # Better once ahead of the loop than in each iteration.
        lead = _meeting(state, touched)
        # What an iteration touches, the next one finds touched.
        before = state.copy()
        _placed(body, state)
        state.include(before)
        inside = _placed(body, state)
        state.include(before)
        return [*lead, make_node(op, dtypes.token, (axis, sequence(inside)))]
    if op is Ops.IF and not _varies(node.src[0]):
        condition, body = node.src
        first = _touched(condition)
        lead = _meeting(state, first)
        state.include(first)
        before = state.copy()
        inside = _placed(body, state)
        state.include(before)
        return [*lead, make_node(op, dtypes.token, (condition, sequence(inside)))]
    lead = _meeting(state, touched)
    if op is Ops.IF:
        alone = _State(rings=state.rings)
        if len(_placed(node.src[1], alone)) > 1:
            raise CompilerBug("threads meet where some of them do not come", found=node)
    state.include(touched)
    return [*lead, node]


def _meets_first(body: Node) -> bool:
    """Whether threads wait for a slot, and so meet, before anything else in a loop."""
    first = body.src[0] if body.op is Ops.SEQ else body
    return first.op is Ops.DONE and first.arg.engine not in ("mma", "tma")


def _meeting(state: _State, touched: _State) -> list[Node]:
    if not state.clashes(touched):
        return []
    state.meet()
    return [BARRIER]


def _touched(statement: Node) -> _State:
    """The shared arrays that a statement reads and writes, those inside it included."""
    state = _State()
    for node in toposort(statement):
        if node.op in (Ops.LOAD, Ops.STORE, Ops.COPYTO) and _is_shared(node.src[0]):
            (state.read if node.op is Ops.LOAD else state.written).add(node.src[0])
    return state


def _varies(condition: Node) -> bool:
    """Whether threads of one block may differ about a condition."""
    for node in toposort(condition):
        if node.op is Ops.VAR and node.arg.name == THREAD:
            return True
        if node.op is Ops.LOAD and node.src[0].op is Ops.ALLOC and not _is_shared(node.src[0]):
            # Private memory may hold anything.
            return True
    return False


def _is_shared(node: Node) -> bool:
    return node.op is Ops.ALLOC and node.arg.space == "shared"


def sequence(statements: Sequence[Node]) -> Node:
    """Statements as one."""
    if len(statements) == 1:
        return statements[0]
    return Node(Ops.SEQ, dtypes.token, tuple(statements))

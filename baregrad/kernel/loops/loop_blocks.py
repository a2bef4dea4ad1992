"""What `to_loop` builds: blocks that later statements may still go into, and register arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.node import Node, instruction
from baregrad.ir.core.op import Ops
from baregrad.kernel.loops.loop_pieces import nodes_having


@dataclass(eq=False, slots=True)
class StatementBlock:
    """Statements in order, in the scope of the loops over `axes`; a block among them is a nest.

    key: the range of the loop, or the condition of the IF, that it is the body of; None for what is
    around all others. `before` is run ahead of that: what was placed there once the nest was there
    already. `first` and `last` run ahead of and after all items, whatever is put in later.
    """

    axes: frozenset[Node]
    key: Node | None = None
    items: list[Node | StatementBlock] = field(default_factory=list)
    before: list[Node | StatementBlock] = field(default_factory=list)
    first: tuple[Node | StatementBlock, ...] = ()
    last: tuple[Node | StatementBlock, ...] = ()


@dataclass(eq=False, slots=True)
class Placed:
    """The states of a lowered reduction: how to read them, where they are, and after which item."""

    parts: tuple[Node, ...]
    block: StatementBlock
    position: int


def statement(block: StatementBlock) -> Node:
    """What is in a block, as a SEQ or a single statement."""
    done: list[Node] = []
    items = (*block.first, *block.items, *block.last) if block.first else block.items
    for item in items:
        if isinstance(item, Node):
            done.append(item)
            continue
        for ahead in item.before:
            done.append(ahead if isinstance(ahead, Node) else _nest(ahead))
        if item.items or item.first:
            done.append(_nest(item))
    done = _late_folds(done)
    return done[0] if len(done) == 1 else instruction(Ops.SEQ, dtypes.token, tuple(done))


def _late_folds(items: list[Node]) -> list[Node]:
    """Statements with the folds of threads' sums behind the sums that need none of them.

    No load that follows where threads meet begins before they have.
    """
    found, folds = list[Node](), list[Node]()
    for item in items:
        is_fold = _is_fold(item)
        if folds and not _is_apart(item, folds):
            found += folds
            folds = []
        (folds if is_fold else found).append(item)
    return found + folds


def _is_fold(item: Node) -> bool:
    """Whether a statement folds the values of warps into a register of each thread."""
    if item.op is not Ops.STORE or item.src[1].op is not Ops.REDUCE:
        return False
    states = len(item.src[1].arg.monoid.states)
    return any(axis.arg.bind in THREAD_BINDS[1:] for axis in item.src[1].src[states:])


def _is_apart(item: Node, folds: list[Node]) -> bool:
    """Whether a statement is for registers of its own, which folds neither read nor write."""
    if item.op is not Ops.STORE or item.src[0].op is not Ops.ALLOC:
        return False
    own = nodes_having(Ops.ALLOC.bit, (item,))
    return all(
        fold.src[0] not in own and item.src[0] not in nodes_having(Ops.ALLOC.bit, (fold,))
        for fold in folds
    )


def _nest(block: StatementBlock) -> Node:
    """A LOOP or IF with its body; one that surely holds is its body."""
    key = block.key
    assert key is not None
    if key.op is Ops.CONST and key.arg:
        return statement(block)
    op = Ops.LOOP if key.op is Ops.RANGE else Ops.IF
    return instruction(op, dtypes.token, (key, statement(block)))


def nest_position(
    block: StatementBlock, inner: list[StatementBlock], path: list[StatementBlock]
) -> int:
    """The item of `block` that holds the loops opened inside it; the last one without any."""
    if len(inner) == len(path):
        return len(block.items) - 1
    return block.items.index(inner[len(path)])


@lru_cache(1 << 10)
def in_registers(number: int, dtype: DType, shape: tuple[int, ...]) -> Node:
    """The `number`-th array of a kernel: those of kernels are alike."""
    where = Alloc(number, "register", shape, name=f"a{number}")
    return instruction(Ops.ALLOC, dtype, (), where, shape)

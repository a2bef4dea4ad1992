"""The tree of statements that `to_loop` builds: blocks that later statements may still go into."""

from __future__ import annotations

from dataclasses import dataclass, field

from baregrad.dtypes import dtypes
from baregrad.ir.node import Node, make_node
from baregrad.ir.op import Ops


@dataclass(eq=False, slots=True)
class Block:
    """Statements in order, in the scope of the loops over `axes`.

    `first` and `last` run ahead of and after all others, whatever is put in later.
    """

    axes: frozenset[Node]
    items: list[Item] = field(default_factory=list)
    first: list[Item] = field(default_factory=list)
    last: list[Item] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Item:
    """A statement, or a nest: `key` is the range of a loop or the condition of an IF.

    `before` is run ahead of the nest: what was placed here once the nest was there already.
    """

    statement: Node | None = None
    key: Node | None = None
    body: Block | None = None
    before: list[Node | Item] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Placed:
    """The states of a lowered reduction: how to read them, where they are, and after which item."""

    parts: tuple[Node, ...]
    block: Block
    position: int


def statement(block: Block) -> Node:
    """A block as a SEQ or a single statement."""
    done: list[Node] = []
    for items in (block.first, block.items, block.last) if block.first else (block.items,):
        for item in items:
            for ahead in item.before:
                done.append(ahead if isinstance(ahead, Node) else _nest(ahead))
            if item.statement is not None:
                done.append(item.statement)
            elif item.body is not None and item.key is not None:
                done.append(_nest(item))
    return done[0] if len(done) == 1 else make_node(Ops.SEQ, dtypes.token, tuple(done))


def _nest(item: Item) -> Node:
    """A statement, or a LOOP or IF with its body; one that surely holds is its body."""
    if item.statement is not None:
        return item.statement
    assert item.key is not None and item.body is not None
    if item.key.op is Ops.CONST and item.key.arg:
        return statement(item.body)
    op = Ops.LOOP if item.key.op is Ops.RANGE else Ops.IF
    return make_node(op, dtypes.token, (item.key, statement(item.body)))


def nest_position(block: Block, inner: list[Block], path: list[Block]) -> int:
    """The item of `block` that holds the loops opened inside it; the last one without any."""
    if len(inner) == len(path):
        return len(block.items) - 1
    body = inner[len(path)]
    return next(n for n, item in enumerate(block.items) if item.body is body)

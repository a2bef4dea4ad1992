"""The loops and conditions of a program, and what they do to its registers: where phi nodes are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.interface import leaves

_BLOCKS = frozenset((Ops.BEGIN, Ops.TEST, Ops.END))
_REGISTERS = Ops.REG.bit
_BEGIN, _END, _SET, _REG, _CONST = Ops.BEGIN, Ops.END, Ops.SET, Ops.REG, Ops.CONST


@dataclass(eq=False, slots=True)
class ControlBlock:
    """A loop or condition: what it does to registers, and what its END needs when it is written.

    loops: whether it is a loop. certain: whether the body surely runs. carried: written in a loop
    after being read there, so that an iteration sees the one before. merged: written inside and
    read after the END before being written again. To find these: what is written inside, what is
    surely written (`killed`), what is read before that (`exposed`), and what will be read after the
    END (`after`).

    start: the label of what it comes after. before: what registers held there. counter: a loop's
    name for its counter, its first value and its end. phis: the names of what is carried, from the
    line `phi_at` on. pointers: the addresses that are known inside.
    """

    label: int
    loops: bool
    certain: bool
    carried: tuple[Node, ...] = ()
    merged: tuple[Node, ...] = ()
    written: dict[Node, None] = field(default_factory=dict)
    killed: set[Node] = field(default_factory=set)
    exposed: set[Node] = field(default_factory=set)
    after: set[Node] | None = None
    start: str = ""
    before: dict[Node, str] = field(default_factory=dict)
    counter: tuple[str, str, str] | None = None
    phis: list[str] = field(default_factory=list)
    phi_at: int = 0
    pointers: list[tuple[str, str]] = field(default_factory=list)


# A block that begins or ends, or a register that is written, or what is read.
_Event = tuple[ControlBlock | None, Node | None, Collection[Node]]


def blocks_of(program: Node) -> list[ControlBlock]:
    """The block of every BEGIN and TEST of a PROGRAM, in their order."""
    known = frozenset([node for node in leaves(program) if node.op is _REG])
    read_of, unrelated = known.intersection, known.isdisjoint
    blocks: list[ControlBlock] = []
    events: list[_Event] = []
    innermost = ControlBlock(0, False, True)
    stack = [innermost]
    for node in program.src:
        op = node.op
        if op in _BLOCKS:
            if op is _END:
                closed = stack.pop()
                innermost = stack[-1]
                if events and events[-1][0] is closed:
                    # It has nothing to do with registers.
                    events.pop()
                    continue
                events.append((closed, None, ()))
                innermost.written.update(closed.written)
                if closed.certain:
                    innermost.killed |= closed.killed
                continue
            if node.mask & _REGISTERS:
                _read(read_of(node.src), stack, events)
            innermost = _opened(node, len(blocks) + 1)
            stack.append(innermost)
            blocks.append(innermost)
            events.append((innermost, None, ()))
        elif not node.mask & _REGISTERS:
            # Most read no register, and their masks say so.
            continue
        elif op is _SET:
            register, value = node.src
            if value.op is _REG:
                _read((value,), stack, events)
            innermost.killed.add(register)
            innermost.written[register] = None
            events.append((None, register, ()))
        elif not unrelated(node.src):
            _read(read_of(node.src), stack, events)
    if known:
        _find_merges(events)
    return blocks


def _opened(node: Node, label: int) -> ControlBlock:
    """The block of a BEGIN or TEST."""
    if node.op is not _BEGIN:
        return ControlBlock(label, False, False)
    low, high = node.src[0], node.src[-1]
    certain = low.op is _CONST and high.op is _CONST and low.arg < high.arg
    return ControlBlock(label, True, certain)


def _read(reads: Collection[Node], stack: list[ControlBlock], events: list[_Event]) -> None:
    """Note in the open blocks the registers that are read before they were surely written."""
    for read in reads:
        for block in reversed(stack):
            # What is exposed here is already noted in the blocks around.
            if read in block.exposed or read in block.killed:
                break
            block.exposed.add(read)
    if reads:
        events.append((None, None, reads))


def _find_merges(events: list[_Event]) -> None:
    """Go backwards with the registers that will be read, and fill in `carried` and `merged`."""
    live: set[Node] = set()
    for block, register, reads in reversed(events):
        if block is None:
            if register is not None:
                live.discard(register)
            live.update(reads)
        elif block.after is None:
            # Its END comes first.
            block.after = live
            block.merged = tuple(filter(live.__contains__, block.written))
            if block.loops:
                block.carried = tuple(filter(block.exposed.__contains__, block.written))
            live = live | block.exposed
        elif not block.certain:
            live |= block.after

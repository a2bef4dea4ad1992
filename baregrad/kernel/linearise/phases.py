"""Roles of warps, and the phases of the slots between them, as instructions.

A slot has two barriers in shared memory, which count phases: of being full and of being empty. The
first phase of either is that of the ring's first turn: a slot is empty for turn n once turn n - 1
was released, which of turn 0 is true from the start. Between the blocks of a grid a slot is that of
a warp: a flag in memory, which is up while it is full.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Machine
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.folds import BARRIER
from baregrad.kernel.linearise.values import Values

# Barriers of a slot, and where they are among them.
FULL, EMPTY, EACH = 0, 1, 2
# The barrier at which the warps of a role meet; all of a block do at 0.
ROLE_BARRIER, WARP = 1, 32
# That threads of a warp may come to a barrier one after the other.
APART = 1


def _machine(name: str, *src: Node, imm: tuple[int, ...] = ()) -> Node:
    return make_node(Ops.MACHINE, dtypes.token, src, Machine(name, imm))


def begin_role(values: Values, node: Node) -> tuple[tuple[Node, ...], Callable[[], None]]:
    """A ROLE: its warps, of which one lane where one thread is to run it.

    Ahead of the first one barriers begin, for all of the block.
    """
    role = node.arg
    if role.elect:
        _begin_phases(values)
    scopes = values.scopes
    scopes.end_statement()
    opened = _open(values, Machine("warps", (role.first, role.warps)))
    if role.registers:
        scopes.append(_machine("role.registers", imm=(role.registers,)))
    if role.elect:
        opened += _open(values, Machine("warps", (role.first, 1)), Machine("elect"))

    def leave() -> None:
        for _ in range(opened):
            scopes.end_statement()
            scopes.close()

    return node.src, leave


def _open(values: Values, *conditions: Machine) -> int:
    """Tests of what holds for the same threads all the time; how many."""
    for condition in conditions:
        test = make_node(Ops.MACHINE, dtypes.bool, (), condition)
        values.scopes.append(test)
        values.scopes.open(make_node(Ops.TEST, dtypes.token, (test,)), True, lazy=True)
    return len(conditions)


def _begin_phases(values: Values) -> None:
    """The first thread makes the barriers of all slots, and all wait until they are there."""
    scopes = values.scopes
    scopes.end_statement()
    _open(values, Machine("warps", (0, 1)), Machine("elect"))
    for pipe in values.pipes:
        counts = pipe.arg.full_arrivals, pipe.arg.empty_arrivals
        for slot in range(pipe.arg.depth):
            for which, count in zip((FULL, EMPTY), counts, strict=True):
                place = const(EACH * slot + which, dtypes.int32)
                # Who waits for what nobody takes away waits for one kind of phases.
                if count:
                    scopes.append(_machine("mbarrier.init", pipe.src[0], place, imm=(count,)))
    scopes.append(_machine("mbarrier.fence_init"))
    scopes.close()
    scopes.close()
    wide = any(pipe.arg.scope == "cluster" for pipe in values.pipes)
    scopes.append(_machine("barrier.cluster") if wide else BARRIER)


def meeting(values: Values) -> Node:
    """What all warps of a role that are not copiers meet at."""
    number = const(ROLE_BARRIER, dtypes.int32)
    return _machine("bar.sync", number, imm=(prod(values.block) // WARP,))


def last_meeting(values: Values) -> Node:
    """What all threads of a cluster meet at before any of its blocks ends."""
    return _machine("barrier.cluster", imm=(APART,))


def _place(values: Values, node: Node, which: int) -> tuple[Node, Node]:
    """The barrier of a slot: the array, and where it is there."""
    pipe, counter = node.src
    slot = index.mod(index.as_dim(counter), pipe.arg.depth)
    place = values.value(index.as_node(index.add(index.mul(slot, EACH), which)))
    return pipe.src[0], place


def _parity(values: Values, node: Node, turns: int) -> Node:
    """Whether the turn that a slot is in, and some more, is an odd one."""
    pipe, counter = node.src
    turn: Dim = index.floordiv(index.as_dim(counter), pipe.arg.depth)
    found: Node = values.value(index.as_node(index.mod(index.add(turn, turns), 2)))
    return found


def acquire(values: Values, node: Node) -> None:
    """An ACQUIRE: a slot is empty, and then so many bytes are announced."""
    parity = _parity(values, node, 1)
    scopes = values.scopes
    scopes.end_statement()
    scopes.append(_machine("mbarrier.wait", *_place(values, node, EMPTY), parity))
    full = _place(values, node, FULL)
    nbytes = node.src[0].arg.full_nbytes
    scopes.append(_machine("mbarrier.arrive.expect_tx", *full, imm=(nbytes,)))


def wait(values: Values, node: Node) -> None:
    """A WAIT: a slot is full."""
    if node.src[0].arg.scope == "grid":
        values.scopes.end_statement()
        values.scopes.append(_machine("flag.wait", *_flag(values, node)))
        return
    parity = _parity(values, node, 0)
    place = _place(values, node, FULL)
    values.scopes.end_statement()
    values.scopes.append(_machine("mbarrier.wait", *place, parity))


def release(values: Values, node: Node) -> None:
    """A RELEASE: each warp says once that it is done with a slot, to all who copy there."""
    _say(values, node, EMPTY)


def commit_filled(values: Values, node: Node) -> None:
    """A COMMIT of a pipe that no bytes fill: each warp says once that its slot is full."""
    _say(values, node, FULL)


def _flag(values: Values, node: Node) -> tuple[Node, Node]:
    """The flag of a slot between blocks, which is in memory: the array, and where it is there."""
    pipe, slot = node.src
    return pipe.src[0], values.value(slot)


def _say(values: Values, node: Node, which: int) -> None:
    wide = node.src[0].arg.scope == "grid"
    place = _flag(values, node) if wide else _place(values, node, which)
    scopes = values.scopes
    scopes.end_statement()
    if wide:
        # Before one lane speaks for all, and memory knows of what each did.
        scopes.append(_machine("bar.warp.sync"))
    elected = make_node(Ops.MACHINE, dtypes.bool, (), Machine("elect"))
    scopes.append(elected)
    scopes.open(make_node(Ops.TEST, dtypes.token, (elected,)), True)
    if wide:
        scopes.append(_machine("flag.raise" if which == FULL else "flag.lower", *place))
    elif node.src[0].arg.scope == "cluster":
        scopes.append(_machine("mbarrier.arrive.cluster", *place))
    else:
        scopes.append(_machine("mbarrier.arrive", *place))
    scopes.close()


def copy_box(values: Values, node: Node) -> None:
    """A COPYTO of a box, which says that its bytes are there where the slot becomes full."""
    target, param, slot, at, *corner, pipe, counter = node.src
    if pipe.op is not Ops.PIPE or values.masks:
        raise CompilerBug("a copy of a box outside a ring", found=node)
    box = node.arg.box
    places = index.mul(index.as_dim(slot), prod(target.shape[1:]))
    where = values.value(index.as_node(index.add(places, index.as_dim(at))))
    phases = _place(values, make_node(Ops.ACQUIRE, dtypes.token, (pipe, counter)), FULL)
    begins = [values.value(each) for each in corner]
    name, sizes = "tma.box", (len(box.shape), *box.shape, *box.strides, *box.box)
    if box.walk is not None:
        name, sizes = "tma.walk", (*sizes, *box.walk.low, *box.walk.high, *box.walk.steps)
    if node.arg.multicast:
        name = "tma.multicast"
    values.scopes.end_statement()
    values.scopes.append(_machine(name, target, where, *phases, param, *begins, imm=sizes))

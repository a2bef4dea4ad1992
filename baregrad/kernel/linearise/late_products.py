"""The last products of a pipelined loop's iteration, made behind the next iteration's barrier.

Behind a barrier all warps ask for their first matrices at once, and the units wait for them. What
the iteration before has read, but not yet multiplied, gives them work meanwhile. So a loop's last
products stand first in its next iteration, and once more behind the loop. In the first iteration
they add products of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const, make_node
from baregrad.ir.core.op import Ops

_BLOCKS = (Ops.BEGIN, Ops.TEST)
_ZERO = const(0, dtypes.uint32)


def delay_products(program: Node) -> Node:
    """The linear-level PROGRAM of one thread with late products."""
    code: list[Node] = []
    open_at: list[int] = []
    for node in program.src:
        code.append(node)
        if node.op in _BLOCKS:
            open_at.append(len(code) - 1)
        elif node.op is Ops.END:
            begin = open_at.pop()
            if code[begin].op is Ops.BEGIN:
                code[begin:] = _delayed(code[begin:])
    return program.replace(src=tuple(code))


def _delayed(loop: list[Node]) -> list[Node]:
    """A loop, its BEGIN and END included, and what is before and behind it then."""
    begin, *body, end = loop
    meeting = _meeting(body)
    late = _last_products(body)
    if meeting is None or not late:
        return loop
    kept = [node for node in body if node not in late]
    fragments = dict.fromkeys(register for node in late for register in node.src[:-2])
    zeros = [make_node(Ops.SET, dtypes.token, (register, _ZERO)) for register in fragments]
    first = meeting + 1
    return [*zeros, begin, *kept[:first], *late, *kept[first:], end, *late]


def _is(node: Node, name: str) -> bool:
    return node.op is Ops.MACHINE and bool(node.arg.name == name)


def _meeting(body: Sequence[Node]) -> int | None:
    """Where an iteration's threads meet, once what it reads has come; None without."""
    waits = [place for place, node in enumerate(body) if _is(node, "cp.async.wait")]
    meetings = [place for place, node in enumerate(body) if _is(node, "bar.sync")]
    if len(waits) != 1 or len(meetings) != 1 or waits[0] > meetings[0]:
        return None
    before = body[: meetings[0]]
    plain = not any(_is(node, "mma.sync") or node.op in _BLOCKS for node in before)
    return meetings[0] if plain else None


def _last_products(body: Sequence[Node]) -> list[Node]:
    """The products behind the last copies, if their factors are read there and nothing else.

    Products of which some are made before, too, are several steps.
    """
    place = max((at for at, node in enumerate(body) if _is(node, "cp.async.commit")), default=-1)
    if place < 0 or not any(_is(node, "mma.sync") for node in body[:place]):
        return []
    last = list(takewhile(lambda node: node.op not in _BLOCKS, body[place + 1 :]))
    late = [node for node in body[place + 1 :] if _is(node, "mma.sync")]
    read = {register for node in last if _is(node, "ldmatrix") for register in node.src[2:]}
    within = frozenset(last).issuperset(late)
    return late if within and all(read.issuperset(node.src[:-2]) for node in late) else []

"""The instructions of several points of a tile, taken in turns.

One point's instructions wait for each other: a polynomial's steps take four cycles each, and a
processor looks ahead over a few hundred instructions at most. In turns, what waits is far from
what it waits for.
"""

from __future__ import annotations

from baregrad.ir.analysis.rows import SHORTEST, TOGETHER
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops

# What holds other instructions in place.
_BLOCKS = frozenset((Ops.BEGIN, Ops.TEST, Ops.END))


def interleave(code: list[Node], begins: list[int]) -> None:
    """Rearrange `code` from begins[0] on: what starts at each of `begins` is one point's.

    Points do not touch what others write. An instruction may read what an earlier point computed.
    Where some of them are blocks, all stay as they are.
    """
    if len(code) - begins[-1] < SHORTEST:
        return
    if any(node.op in _BLOCKS for node in code[begins[0] :]):
        return
    ends = [*begins[1:], len(code)]
    parts = [code[begin:end] for begin, end in zip(begins, ends, strict=True)]
    del code[begins[0] :]
    for first in range(0, len(parts), TOGETHER):
        _merge(code, parts[first : first + TOGETHER])


def _merge(code: list[Node], parts: list[list[Node]]) -> None:
    """Append the instructions of some points: each in order, and after what it reads."""
    owner = {node: place for place, part in enumerate(parts) for node in part}
    done = set()
    ahead = [0] * len(parts)

    def take(place: int) -> None:
        part = parts[place]
        node = part[ahead[place]]
        ahead[place] += 1
        for child in node.src:
            other = owner.get(child, place)
            while other != place and child not in done:
                take(other)
        code.append(node)
        done.add(node)

    for _ in range(max(map(len, parts))):
        for place, part in enumerate(parts):
            if ahead[place] < len(part):
                take(place)

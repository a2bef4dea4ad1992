"""Whether two runs of a function differ in constants alone: in numbers that its Python made."""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops


def differing_constant(before: Sequence[Node], now: Sequence[Node]) -> tuple[object, object] | None:
    """The first constant that differs between graphs that are otherwise the same, else None.

    before, now: the sinks of what two calls computed, in order.
    """
    if len(before) != len(now):
        return None
    found = None
    for old, new in zip(before, now, strict=True):
        if old is new:
            continue
        olds, news = toposort(old), toposort(new)
        if len(olds) != len(news):
            return None
        pair = {}
        for one, other in zip(olds, news, strict=True):
            pair[one] = other
            if (one.op, one.dtype, len(one.src)) != (other.op, other.dtype, len(other.src)):
                return None
            if any(pair[a] is not b for a, b in zip(one.src, other.src, strict=True)):
                return None
            if one.op is Ops.CONST and one is not other:
                found = found or (one.arg, other.arg)
            elif one.arg != other.arg:
                return None
    return found

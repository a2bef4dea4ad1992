"""Loop level: neighbours in memory that are put together as one wider integer are read at once.

What spells a word as its bytes, each shifted to its place, is one load of as many bytes from the
first of them on, wherever that lies; under a condition where all of them have the same.
"""

from __future__ import annotations

from baregrad.base.bits import is_power_of_two
from baregrad.dtypes import as_dtype
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, cast, make_node, rebuild, toposort
from baregrad.ir.core.op import Ops

_BOTH = Ops.OR.bit | Ops.LOAD.bit


def widen_reads(loop: Node) -> Node:
    """A loop-level KERNEL in which such integers are LOADs of their own dtype.

    Their places are those of the first element. For machines that load from any address.
    """
    if loop.mask & _BOTH != _BOTH:
        return loop
    order = toposort(loop, enter=lambda node: node.mask & _BOTH == _BOTH)
    found = {node: _read_at_once(node) for node in order if node.op is Ops.OR}
    joined = {node: wide for node, wide in found.items() if wide is not None}
    return rebuild(loop, lambda node: None, memo=joined) if joined else loop


def _read_at_once(node: Node) -> Node | None:
    """The load of all that a chain of ORs puts together; None where that is anything else."""
    parts: dict[int, Node] = {}
    conditions: set[Node | None] = set()
    pending = [node]
    while pending:
        part = pending.pop()
        if part.op is Ops.OR:
            pending += part.src
            continue
        place = 0
        if part.op is Ops.SHL and part.src[1].op is Ops.CONST:
            part, place = part.src[0], part.src[1].arg
        load, condition = _narrow_load(part)
        if load is None or place in parts:
            return None
        parts[place] = load
        conditions.add(condition)
    first = parts.get(0)
    if first is None or not is_power_of_two(len(parts)) or len(conditions) > 1:
        return None
    bits, count = first.dtype.bits, len(parts)
    if bits * count > node.dtype.bits:
        return None
    for step in range(1, count):
        load = parts.get(step * bits)
        if load is None or not _is_after(load, first, step):
            return None
    found = first.replace(dtype=as_dtype(f"uint{bits * count}"))
    (condition,) = conditions
    if condition is not None:
        found = make_node(Ops.GUARD, found.dtype, (condition, found))
    return cast(found, node.dtype)


def _narrow_load(part: Node) -> tuple[Node | None, Node | None]:
    """The LOAD whose bits, without a sign, a wider integer holds, and its condition if it has one.

    None twice for anything else.
    """
    if part.op is not Ops.CAST:
        return None, None
    load, condition = part.src[0], None
    if load.op is Ops.BITCAST and load.dtype.kind == "uint":
        load = load.src[0]
    elif load.dtype.kind != "uint":
        return None, None
    if load.op is Ops.GUARD:
        condition, load = load.src
    is_whole = load.op is Ops.LOAD and load.dtype is load.src[0].dtype
    return (load, condition) if is_whole and load.src[0].op is Ops.PARAM else (None, None)


def _is_after(load: Node, first: Node, step: int) -> bool:
    """Whether a LOAD is of the element `step` after that of another."""
    if load.src[0] is not first.src[0] or load.src[1:-1] != first.src[1:-1]:
        return False
    return index.as_dim(index.sub(load.src[-1], first.src[-1])) == step

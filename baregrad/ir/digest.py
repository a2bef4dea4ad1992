"""Structural digests: a name for a node that is the same in every process."""

from __future__ import annotations

import hashlib

from baregrad.dtypes import DType
from baregrad.ir.attribute_fields import attribute_fields
from baregrad.ir.node import Node, toposort
from baregrad.ir.op import Op

_KEY = "digest"


def digest(node: Node) -> str:
    """32 hex digits over op, dtype, attribute and sources.

    Equal structure has equal digests in every process. Nodes that hold runtime buffers have digests
    that are only stable within a process.
    """
    known = node._memo
    if known is not None and _KEY in known:
        found: str = known[_KEY]
        return found
    for below in toposort(node, enter=lambda n: n._memo is None or _KEY not in n._memo):
        memo = below.memo
        if _KEY in memo:
            continue
        parts = [below.op.name, below.dtype.name, stable_repr(below.arg)]
        parts.extend(child.memo[_KEY] for child in below.src)
        memo[_KEY] = hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()
    result: str = node.memo[_KEY]
    return result


def stable_repr(arg: object) -> str:
    """A text of an attribute that holds no addresses; nodes inside it print as digests."""
    if arg is None or isinstance(arg, str | int | float):
        return repr(arg)
    if isinstance(arg, Node):
        return "@" + digest(arg)
    if isinstance(arg, DType | Op):
        return arg.name
    fields = attribute_fields(type(arg))
    if fields is not None:
        inside = ",".join(stable_repr(getattr(arg, one.name)) for one in fields)
        return f"{type(arg).__name__}({inside})"
    if isinstance(arg, tuple):
        return "(" + ",".join(stable_repr(item) for item in arg) + ")"
    return repr(arg)

"""Structural digests: a name for a node that is the same in every process."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from functools import lru_cache

from baregrad.dtypes import DType
from baregrad.ir.core.attribute_fields import attribute_fields
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, rebuild, toposort
from baregrad.ir.core.op import Op, Ops

_KEY = "digest"
# Made once: a union is made anew wherever it is written out.
_PLAIN = str | int | float
_NAMED = DType | Op


def digest(node: Node) -> str:
    """32 hex digits over op, dtype, attribute and sources.

    Equal structure has equal digests in every process. Nodes that hold runtime buffers have digests
    that are only stable within a process.
    """
    known = node._memo
    if known is not None and _KEY in known:
        found: str = known[_KEY]
        return found
    # Layers that are alike share their attributes.
    texts: dict[int, str] = {}
    for below in toposort(node, enter=lambda n: n._memo is None or _KEY not in n._memo):
        memo = below._memo
        if memo is None:
            memo = below._memo = {}
        elif _KEY in memo:
            continue
        text = texts.get(id(below.arg))
        if text is None:
            text = texts[id(below.arg)] = stable_repr(below.arg)
        parts = [below.op.name, below.dtype.name, text]
        # Sources come first, so that each has its digest by now.
        parts += [child._memo[_KEY] for child in below.src]  # type: ignore[index]
        memo[_KEY] = hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()
    result: str = node.memo[_KEY]
    return result


def whole_digest(order: Sequence[Node]) -> str:
    """32 hex digits over a graph whose nodes are all in `order`, sources first.

    It says what `digest` says of the last node, in a third of the time, as no node gets a digest of
    its own; but another order of the same nodes has other digits.
    """
    numbers: dict[Node, int] = {}
    kinds: dict[tuple[Op, DType, int], int] = {}
    texts: dict[str, int] = {}
    words: list[int] = []
    add, number_of = words.append, numbers.__getitem__
    for place, node in enumerate(order):
        numbers[node] = place
        # Layers that are alike share their attributes.
        key = (node.op, node.dtype, id(node.arg))
        kind = kinds.get(key)
        if kind is None:
            text = f"{node.op.name}|{node.dtype.name}|{stable_repr(node.arg)}"
            kind = kinds[key] = texts.setdefault(text, len(texts))
        add(kind)
        add(len(node.src))
        words.extend(map(number_of, node.src))
    hasher = hashlib.blake2b(array("q", words).tobytes(), digest_size=16)
    hasher.update("\n".join(texts).encode())
    return hasher.hexdigest()


def stable_repr(arg: object) -> str:
    """A text of an attribute that holds no addresses; nodes inside it print as digests."""
    if arg is None or isinstance(arg, _PLAIN):
        return repr(arg)
    if isinstance(arg, Node):
        return "@" + digest(arg)
    if isinstance(arg, _NAMED):
        return arg.name
    if isinstance(arg, Monoid):
        return _monoid_repr(arg)
    return _fields_repr(arg)


@lru_cache(1 << 8)
def _monoid_repr(monoid: Monoid) -> str:
    """The same of a monoid: there are few, of many parts, and every reduction has one."""
    return _fields_repr(monoid)


def _fields_repr(arg: object) -> str:
    fields = attribute_fields(type(arg))
    if fields is not None:
        inside = ",".join([stable_repr(getattr(arg, one.name)) for one in fields])
        return f"{type(arg).__name__}({inside})"
    if isinstance(arg, tuple):
        return "(" + ",".join([stable_repr(item) for item in arg]) + ")"
    return repr(arg)


def free_digest(node: Node) -> str:
    """The digest of a node without the values that its variables are bound to.

    Terms keep their order where values are bound, and where they are taken away.
    """
    if not node.mask & Ops.VAR.bit:
        return digest(node)
    found: str | None = node.memo.get("free digest")
    if found is None:
        found = node.memo["free digest"] = digest(rebuild(node, _freed))
    return found


def _freed(node: Node) -> Node | None:
    return Node(Ops.VAR, node.dtype, (), node.arg) if node.op is Ops.VAR and node.src else None

"""A byte of a word in the place of a byte of a constant, in PTX: one permutation.

That is how packed numbers are made floats: shifted, masked and written after the first bits of a
float, each of which would be an instruction. Source: PTX ISA, "prmt".
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.ptx.text import PtxText

BYTE = 255
# The bytes of the second operand, each of four bits.
SELECTOR = 0x7654
_PLACES = (0, 8, 16, 24)
# Where a byte is none of a word's.
_MANY = -1
_KNOWN: MappingProxyType[Op, Callable[[int, int], int]] = MappingProxyType({
    Ops.MUL: lambda x, y: x * y, Ops.ADD: lambda x, y: x + y,
})  # fmt: skip


def replace_octet(f: PtxText, node: Node) -> bool:
    """Write an OR if it is one of a word's byte and a constant without that; whether it is."""
    if node.op is not Ops.OR or node.dtype is not dtypes.uint32:
        return False
    masked, lead = node.src
    target = 0
    if masked.op is Ops.SHL and masked.src[1].op is Ops.CONST and masked.src[1].arg in _PLACES:
        masked, target = masked.src[0], int(masked.src[1].arg)
    if lead.op is not Ops.CONST or lead.arg & (BYTE << target) or masked.op is not Ops.AND:
        return False
    word, mask = masked.src
    if mask.op is not Ops.CONST or mask.arg != BYTE:
        return False
    places: tuple[int, ...] | None = (0,)
    if word.op is Ops.SHR:
        word, distance = word.src
        places = _known(distance)
    if word.op is Ops.REG or places is None or not all(place in _PLACES for place in places):
        return False
    count = f.width(node)
    words = f.lanes(word, count)
    others = SELECTOR & ~(0xF << target // 2)
    for lane, result in enumerate(f.define(node)):
        octet = places[lane if len(places) > 1 else 0] // 8
        choice = others | octet << target // 2
        f.emit("prmt.b32", result, words[lane], f.constant(lead), str(choice))
    return True


def join_octets(f: PtxText, node: Node) -> bool:
    """Write an OR if each of its bytes is one of two words' bytes; whether it is."""
    if node.op is not Ops.OR or node.dtype not in (dtypes.int32, dtypes.uint32):
        return False
    (first, left), (second, right) = map(_octets, node.src)
    if any(word.op in (Ops.CONST, Ops.REG) for word in (first, second)):
        return False
    choice = 0
    for at, (own, other) in enumerate(zip(left, right, strict=True)):
        if own is not None and other is None:
            choice |= own << 4 * at
        elif own is None and other is not None:
            choice |= other + len(_PLACES) << 4 * at
        else:
            return False
        if _MANY in (own, other):
            return False
    count = f.width(node)
    words = [f.lanes(word, count) for word in (first, second)]
    for lane, result in enumerate(f.define(node)):
        f.emit("prmt.b32", result, words[0][lane], words[1][lane], str(choice))
    return True


def _octets(node: Node) -> tuple[Node, tuple[int | None, ...]]:
    """A word, and which of its bytes each byte of what it is shifted and masked to is.

    None stands for 0, `_MANY` for what is no byte of it.
    """
    whole = tuple(range(len(_PLACES)))
    if node.op not in (Ops.AND, Ops.SHL, Ops.SHR) or node.src[1].op is not Ops.CONST:
        return node, whole
    word, places = _octets(node.src[0])
    number = int(node.src[1].arg)
    if node.op is Ops.AND:
        octets = [number >> shift & BYTE for shift in _PLACES]
        if set(octets) <= {0, BYTE}:
            kept = zip(places, octets, strict=True)
            return word, tuple([place if octet else None for place, octet in kept])
    elif number in _PLACES:
        gone = number // 8
        if node.op is Ops.SHL:
            return word, ((None,) * gone + places)[: len(whole)]
        # What comes in of a signed number are copies of its sign.
        more = _MANY if node.dtype is dtypes.int32 else None
        return word, places[gone:] + (more,) * gone
    return node, whole


def _known(node: Node) -> tuple[int, ...] | None:
    """The lanes of an integer that is known as the text is written."""
    if node.op is Ops.CONST:
        return (int(node.arg),)
    if node.op is Ops.LANES:
        return tuple(range(node.arg))
    if node.op in (Ops.CAST, Ops.SPLAT) and node.src[0].dtype.kind in ("int", "uint"):
        return _known(node.src[0])
    function = _KNOWN.get(node.op)
    if function is None:
        return None
    first, second = map(_known, node.src)
    if first is None or second is None:
        return None
    count = max(len(first), len(second))
    lanes = [each * (count // len(each)) for each in (first, second)]
    return tuple(map(function, *lanes))

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

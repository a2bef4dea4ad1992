"""Numbers of a table in LLVM IR: of a register with AVX-512, of memory elsewhere."""

from __future__ import annotations

from hashlib import blake2s

from baregrad.ir.core.node import Node
from baregrad.render.llvm.parts import joined, part
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import lanes_of, splat_text, type_text

# Lanes of the registers that hold tables.
_LANES = 16


def lookup(f: FunctionText, node: Node) -> None:
    """LOOKUP, in as many registers as there are lanes for."""
    (place,) = node.src
    held = len(node.arg) == _LANES and place.dtype.bits == node.dtype.bits == 32
    if not held or not f.target.has_lookup:
        f.names[node] = _from_memory(f, node)
        return
    lanes = lanes_of(node)
    places = f.use(place, lanes)
    parts = []
    for first in range(0, lanes, _LANES):
        parts.append(_from_register(f, node, part(f, place.dtype, lanes, places, first, _LANES)))
    f.names[node] = joined(f, node.dtype, lanes, _LANES, parts)


def _from_register(f: FunctionText, node: Node, places: str) -> str:
    """The instruction, which looks at the low bits of a place: no more are asked for."""
    numbers, words = f"<{_LANES} x float>", f"<{_LANES} x i32>"
    name = "llvm.x86.avx512.permvar.sf.512"
    return f.call(name, numbers, (numbers, _text(node)), (words, places))


def _text(node: Node) -> str:
    """The numbers of the table, between the brackets of a vector."""
    element = type_text(node.dtype)
    numbers = [splat_text(number, node.dtype, 1) for number in node.arg]
    return "<" + ", ".join([f"{element} {number}" for number in numbers]) + ">"


def _from_memory(f: FunctionText, node: Node) -> str:
    """Lane by lane."""
    (place,) = node.src
    lanes, length = lanes_of(node), len(node.arg)
    words, word = type_text(place.dtype, lanes), type_text(place.dtype)
    kinds, element = type_text(node.dtype, lanes), type_text(node.dtype)
    table = f"[{length} x {element}]"
    value = f"{table} [{_text(node)[1:-1]}]"
    # Equal tables are one.
    name = f"@table.{blake2s(value.encode(), digest_size=8).hexdigest()}"
    f.declarations[f"{name} = private constant {value}"] = None
    last = splat_text(length - 1, place.dtype, lanes)
    low = f.value(f"and {words} {f.use(place, lanes)}, {last}")
    whole = "poison"
    for lane in range(lanes):
        at = low if lanes == 1 else f.value(f"extractelement {words} {low}, i32 {lane}")
        address = f.value(f"getelementptr {table}, ptr {name}, i64 0, {word} {at}")
        number = f.value(f"load {element}, ptr {address}")
        if lanes == 1:
            return number
        whole = f.value(f"insertelement {kinds} {whole}, {element} {number}, i32 {lane}")
    return whole

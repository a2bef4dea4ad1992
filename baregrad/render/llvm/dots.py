"""Products of the numbers in words, added to lanes, in LLVM IR: one instruction, or plain steps."""

from __future__ import annotations

from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import constant_text, lanes_of, suffix_text, type_text, value_type

# The instruction of the products of a word's numbers a lane: lanes, and features that have it.
_DOT4_LANES = MappingProxyType(
    {16: ("avx512vnni",), 8: ("avx512vnni", "avxvnni"), 4: ("avx512vnni", "avxvnni")}
)
_DOT2_LANES = (4, 8, 16)


def dot_bytes(f: FunctionText, node: Node) -> None:
    """DOT4, byte by byte where there is no instruction of so many lanes."""
    lanes = lanes_of(node)
    kinds = value_type(node)
    x, y, z = [f.use(child, lanes) for child in node.src]
    if not set(_DOT4_LANES.get(lanes, ())).isdisjoint(f.target.features):
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        f.declare(name, kinds, kinds, kinds, kinds)
        arguments = f"{kinds} {z}, {kinds} {x}, {kinds} {y}"
        f.lines.append(f"  {f.define(node)} = call {kinds} @{name}({arguments})")
        return
    for place in range(0, 32, 8):
        low, up, top = [_words(value, lanes) for value in (place, 24 - place, 24)]
        mask = _words(255, lanes)
        down, unsigned, raised, signed, product, total = (next(f.unused) for _ in range(6))
        f.lines.append(
            f"  {down} = lshr {kinds} {x}, {low}\n"
            f"  {unsigned} = and {kinds} {down}, {mask}\n"
            f"  {raised} = shl {kinds} {y}, {up}\n"
            f"  {signed} = ashr {kinds} {raised}, {top}\n"
            f"  {product} = mul {kinds} {unsigned}, {signed}\n"
            f"  {total} = add {kinds} {z}, {product}"
        )
        z = total
    f.names[node] = z


def dot_halves(f: FunctionText, node: Node) -> None:
    """DOT2, by two FMAs where there is no instruction of so many lanes."""
    lanes = lanes_of(node)
    kinds, words = value_type(node), type_text(dtypes.int32, lanes)
    x, y, z = [f.use(child, lanes) for child in node.src]
    if lanes in _DOT2_LANES and "avx512bf16" in f.target.features:
        name, halves = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", f"<{2 * lanes} x bfloat>"
        f.declare(name, kinds, kinds, halves, halves)
        a, b = next(f.unused), next(f.unused)
        f.lines.append(
            f"  {a} = bitcast {words} {x} to {halves}\n  {b} = bitcast {words} {y} to {halves}\n"
            f"  {f.define(node)} = call {kinds} @{name}({kinds} {z}, {halves} {a}, {halves} {b})"
        )
        return
    suffix = suffix_text(node.dtype, lanes)
    f.declare(f"llvm.fma.{suffix}", kinds, kinds, kinds, kinds)
    upper, place = _words(-(1 << 16), lanes), _words(16, lanes)
    z = _without_subnormals(f, z, lanes, is_float=True)
    for lower in (False, True):
        factors = []
        for word in (x, y):
            half = next(f.unused)
            change = f"shl {words} {word}, {place}" if lower else f"and {words} {word}, {upper}"
            f.lines.append(f"  {half} = {change}")
            factors.append(_without_subnormals(f, half, lanes, is_float=False))
        total = next(f.unused)
        arguments = f", {kinds} ".join((*factors, z))
        f.lines.append(f"  {total} = call {kinds} @llvm.fma.{suffix}({kinds} {arguments})")
        z = _without_subnormals(f, total, lanes, is_float=True)
    f.names[node] = z


def _words(value: int, lanes: int) -> str:
    """A word in every lane."""
    return constant_text(Node(Ops.CONST, dtypes.int32, (), value), lanes)


def _without_subnormals(f: FunctionText, value: str, lanes: int, is_float: bool) -> str:
    """float32s, given as such or as their bits, with 0 of their sign in place of subnormal ones."""
    kinds, words = type_text(dtypes.float32, lanes), type_text(dtypes.int32, lanes)
    if is_float:
        bits = next(f.unused)
        f.lines.append(f"  {bits} = bitcast {kinds} {value} to {words}")
        value = bits
    exponent, small, sign, chosen, found = (next(f.unused) for _ in range(5))
    masks = type_text(dtypes.bool, lanes)
    f.lines.append(
        f"  {exponent} = and {words} {value}, {_words(0x7F800000, lanes)}\n"
        f"  {small} = icmp eq {words} {exponent}, {_words(0, lanes)}\n"
        f"  {sign} = and {words} {value}, {_words(-(1 << 31), lanes)}\n"
        f"  {chosen} = select {masks} {small}, {words} {sign}, {words} {value}\n"
        f"  {found} = bitcast {words} {chosen} to {kinds}"
    )
    return found

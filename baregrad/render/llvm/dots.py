"""Products of the numbers in words, added to lanes, in LLVM IR: one instruction, or plain steps."""

from __future__ import annotations

from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import lanes_of, splat_text, suffix_text, type_text, value_type

# By lanes: what a machine has that adds up pairs of products of 16 bits, and by which name.
_PAIRS = MappingProxyType({
    4: ("sse2", "llvm.x86.sse2.pmadd.wd"), 8: ("avx2", "llvm.x86.avx2.pmadd.wd"),
})  # fmt: skip


def dot_bytes(f: FunctionText, node: Node) -> None:
    """DOT4: one instruction, two of words of 16 bits, or byte by byte, as lanes allow."""
    lanes = lanes_of(node)
    kinds = value_type(node)
    x, y, z = [f.use(child, lanes) for child in node.src]
    if lanes in f.target.dot_lanes("dot4"):
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        f.names[node] = f.call(name, kinds, (kinds, z), (kinds, x), (kinds, y))
        return
    feature, name = _PAIRS.get(lanes, ("", ""))
    if feature in f.target.features:
        f.names[node] = _by_pairs(f, name, lanes, (x, y, z))
        return
    for place in range(0, 32, 8):
        low, up, top = [_words(value, lanes) for value in (place, 24 - place, 24)]
        down = f.value(f"lshr {kinds} {x}, {low}")
        unsigned = f.value(f"and {kinds} {down}, {_words(255, lanes)}")
        signed = f.value(f"ashr {kinds} {f.value(f'shl {kinds} {y}, {up}')}, {top}")
        z = f.value(f"add {kinds} {z}, {f.value(f'mul {kinds} {unsigned}, {signed}')}")
    f.names[node] = z


def dot_pairs(f: FunctionText, node: Node) -> None:
    """DOT2LO and DOT2HI, which only GPUs have instructions for: plain steps."""
    lanes = lanes_of(node)
    kinds = value_type(node)
    x, y, z = [f.use(child, lanes) for child in node.src]
    first = 0 if node.op is Ops.DOT2LO else 16
    for place in range(2):
        up, top = [_words(value, lanes) for value in (16 - 16 * place, 16)]
        down = f.value(f"lshr {kinds} {x}, {_words(first + 8 * place, lanes)}")
        unsigned = f.value(f"and {kinds} {down}, {_words(255, lanes)}")
        signed = f.value(f"ashr {kinds} {f.value(f'shl {kinds} {y}, {up}')}, {top}")
        z = f.value(f"add {kinds} {z}, {f.value(f'mul {kinds} {unsigned}, {signed}')}")
    f.names[node] = z


def _by_pairs(f: FunctionText, name: str, lanes: int, operands: tuple[str, str, str]) -> str:
    """Every other byte of words as 16 bits, whose products an instruction adds up in pairs."""
    x, y, total = operands
    kinds, halves = type_text(dtypes.int32, lanes), type_text(dtypes.int16, 2 * lanes)
    x, y = (f.value(f"bitcast {kinds} {word} to {halves}") for word in (x, y))
    low, byte = (splat_text(value, dtypes.int16, 2 * lanes) for value in (255, 8))
    lower = f.value(f"and {halves} {x}, {low}"), f.value(f"shl {halves} {y}, {byte}")
    pairs = (
        (lower[0], f.value(f"ashr {halves} {lower[1]}, {byte}")),
        (f.value(f"lshr {halves} {x}, {byte}"), f.value(f"ashr {halves} {y}, {byte}")),
    )
    for a, b in pairs:
        total = f.value(f"add {kinds} {total}, {f.call(name, kinds, (halves, a), (halves, b))}")
    return total


def dot_halves(f: FunctionText, node: Node) -> None:
    """DOT2, by two FMAs where there is no instruction for that number of lanes."""
    lanes = lanes_of(node)
    kinds, words = value_type(node), type_text(dtypes.int32, lanes)
    x, y, z = [f.use(child, lanes) for child in node.src]
    if lanes in f.target.dot_lanes("dot2"):
        name, halves = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", f"<{2 * lanes} x bfloat>"
        a, b = [f.value(f"bitcast {words} {word} to {halves}") for word in (x, y)]
        f.names[node] = f.call(name, kinds, (kinds, z), (halves, a), (halves, b))
        return
    upper, place = _words(-(1 << 16), lanes), _words(16, lanes)
    z = _without_subnormals(f, z, lanes, is_float=True)
    for change in (f"and {words} {{}}, {upper}", f"shl {words} {{}}, {place}"):
        a, b = [
            _without_subnormals(f, f.value(change.format(word)), lanes, is_float=False)
            for word in (x, y)
        ]
        name = f"llvm.fma.{suffix_text(node.dtype, lanes)}"
        total = f.call(name, kinds, (kinds, a), (kinds, b), (kinds, z))
        z = _without_subnormals(f, total, lanes, is_float=True)
    f.names[node] = z


def _words(value: int, lanes: int) -> str:
    """A word in every lane."""
    return splat_text(value, dtypes.int32, lanes)


def _without_subnormals(f: FunctionText, value: str, lanes: int, is_float: bool) -> str:
    """float32s, given as such or as their bits, with 0 of their sign in place of subnormal ones."""
    kinds, words = type_text(dtypes.float32, lanes), type_text(dtypes.int32, lanes)
    masks = type_text(dtypes.bool, lanes)
    if is_float:
        value = f.value(f"bitcast {kinds} {value} to {words}")
    exponent = f.value(f"and {words} {value}, {_words(0x7F800000, lanes)}")
    small = f.value(f"icmp eq {words} {exponent}, {_words(0, lanes)}")
    sign = f.value(f"and {words} {value}, {_words(-(1 << 31), lanes)}")
    chosen = f.value(f"select {masks} {small}, {words} {sign}, {words} {value}")
    return f.value(f"bitcast {words} {chosen} to {kinds}")

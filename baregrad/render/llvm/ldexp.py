"""Products with powers of two in LLVM IR: an instruction of AVX-512, arithmetic elsewhere."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.render.llvm.parts import joined, part
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import lanes_of, splat_text, type_text


def ldexp(f: FunctionText, node: Node) -> None:
    """LDEXP, in as many registers as there are lanes for."""
    dtype, lanes = node.dtype, lanes_of(node)
    x, y = [f.use(child, lanes) for child in node.src]
    if not f.target.has_ldexp:
        f.names[node] = _written_out(f, dtype, lanes, x, y)
        return
    fitting = [bits // dtype.bits for bits in f.target.ldexp_bits]
    size = next((s for s in reversed(fitting) if s >= lanes), fitting[0])
    parts = []
    for first in range(0, lanes, size):
        a, b = (part(f, dtype, lanes, name, first, size) for name in (x, y))
        parts.append(_scaled(f, dtype, size, a, b))
    f.names[node] = joined(f, dtype, lanes, size, parts)


def _scaled(f: FunctionText, dtype: DType, lanes: int, x: str, y: str) -> str:
    """The instruction, on a whole register."""
    kinds, width = type_text(dtype, lanes), lanes * dtype.bits
    name = f"llvm.x86.avx512.mask.scalef.p{'s' if dtype.bits == 32 else 'd'}.{width}"
    operands = [(kinds, x), (kinds, y), (kinds, "zeroinitializer"), (f"i{max(lanes, 8)}", "-1")]
    # Only the widest says how to round; 4 is as ever.
    if width == 512:
        operands.append(("i32", "4"))
    return f.call(name, kinds, *operands)


def _written_out(f: FunctionText, dtype: DType, lanes: int, x: str, y: str) -> str:
    """Two products with the halves of the power, for powers that two halves reach."""
    integer = dtypes.int32 if dtype.bits == 32 else dtypes.int64
    form = dtype.format
    assert form is not None
    kinds, words = type_text(dtype, lanes), type_text(integer, lanes)
    one, bias, shift = [
        splat_text(value, integer, lanes) for value in (1, form.bias, form.mantissa_bits)
    ]
    whole = f.value(f"fptosi {kinds} {y} to {words}")
    half = f.value(f"ashr {words} {whole}, {one}")
    for power_of_two in (half, f.value(f"sub {words} {whole}, {half}")):
        field = f.value(f"add {words} {power_of_two}, {bias}")
        bits = f.value(f"shl {words} {field}, {shift}")
        x = f.value(f"fmul {kinds} {x}, {f.value(f'bitcast {words} {bits} to {kinds}')}")
    return x

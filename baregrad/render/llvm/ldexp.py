"""Products with powers of two in LLVM IR: an instruction of AVX-512, arithmetic elsewhere."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, const
from baregrad.render.llvm.parts import joined, part
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import constant_text, lanes_of, type_text

# Bits of the registers that the instruction works on, widest first.
_WIDTHS = (512, 256, 128)


def ldexp(f: FunctionText, node: Node) -> None:
    """LDEXP, in as many registers as there are lanes for."""
    dtype, lanes = node.dtype, lanes_of(node)
    x, y = [f.use(child, lanes) for child in node.src]
    if "avx512f" not in f.target.features:
        f.names[node] = _written_out(f, dtype, lanes, x, y)
        return
    vl = "avx512vl" in f.target.features
    fitting = [w // dtype.bits for w in (_WIDTHS if vl else _WIDTHS[:1])]
    size = next((s for s in reversed(fitting) if s >= lanes), fitting[0])
    parts = []
    for first in range(0, lanes, size):
        a, b = (part(f, dtype, lanes, name, first, size) for name in (x, y))
        parts.append(_scaled(f, dtype, size, a, b))
    f.names[node] = joined(f, dtype, lanes, size, parts)


def _scaled(f: FunctionText, dtype: DType, lanes: int, x: str, y: str) -> str:
    """The instruction, on a whole register."""
    kinds, width = type_text(dtype, lanes), lanes * dtype.bits
    mask = f"i{max(lanes, 8)}"
    name = f"llvm.x86.avx512.mask.scalef.p{'s' if dtype.bits == 32 else 'd'}.{width}"
    # Only the widest says how to round; 4 is as ever.
    rounding = ("i32",) if width == 512 else ()
    f.declare(name, kinds, kinds, kinds, kinds, mask, *rounding)
    tail = ", i32 4" if rounding else ""
    found = next(f.unused)
    f.lines.append(
        f"  {found} = call {kinds} @{name}({kinds} {x}, {kinds} {y}, {kinds} zeroinitializer, "
        f"{mask} -1{tail})"
    )
    return found


def _written_out(f: FunctionText, dtype: DType, lanes: int, x: str, y: str) -> str:
    """Two products with the halves of the power, for powers that two halves reach."""
    integer = dtypes.int32 if dtype.bits == 32 else dtypes.int64
    form = dtype.format
    assert form is not None
    kinds, words = type_text(dtype, lanes), type_text(integer, lanes)
    one, bias, shift = [
        constant_text(const(value, integer), lanes) for value in (1, form.bias, form.mantissa_bits)
    ]
    whole, half, rest = (next(f.unused) for _ in range(3))
    f.lines.append(
        f"  {whole} = fptosi {kinds} {y} to {words}\n"
        f"  {half} = ashr {words} {whole}, {one}\n"
        f"  {rest} = sub {words} {whole}, {half}"
    )
    for power_of_two in (half, rest):
        field, bits, power, product = (next(f.unused) for _ in range(4))
        f.lines.append(
            f"  {field} = add {words} {power_of_two}, {bias}\n"
            f"  {bits} = shl {words} {field}, {shift}\n"
            f"  {power} = bitcast {words} {bits} to {kinds}\n"
            f"  {product} = fmul {kinds} {x}, {power}"
        )
        x = product
    return x

"""Products with powers of two in LLVM IR: an instruction of AVX-512, arithmetic elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.dtypes import DType, dtypes
from baregrad.ir.node import Node, const
from baregrad.render.llvm_text import FunctionText
from baregrad.render.llvm_types import constant_text, lanes_of, type_text

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
        a, b = (_part(f, dtype, lanes, name, first, size) for name in (x, y))
        parts.append(_scaled(f, dtype, size, a, b))
    f.names[node] = _joined(f, dtype, lanes, size, parts)


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


def _part(f: FunctionText, dtype: DType, lanes: int, name: str, first: int, size: int) -> str:
    """`size` lanes of a value of `lanes`, from `first` on; what is not there is anything."""
    found, element = next(f.unused), type_text(dtype)
    if lanes == 1:
        whole = type_text(dtype, size)
        f.lines.append(f"  {found} = insertelement {whole} poison, {element} {name}, i32 0")
        return found
    if lanes == size:
        return name
    return _shuffled(f, dtype, lanes, (name,), [
        place if place < lanes else None for place in range(first, first + size)
    ])


def _joined(
    f: FunctionText, dtype: DType, lanes: int, size: int, parts: list[str]
) -> str:
    """The first `lanes` lanes of registers of `size`."""
    while len(parts) > 1:
        if len(parts) % 2:
            parts.append("poison")
        pairs = zip(parts[0::2], parts[1::2], strict=True)
        parts = [_shuffled(f, dtype, size, pair, list(range(2 * size))) for pair in pairs]
        size *= 2
    (whole,) = parts
    if lanes == size:
        return whole
    if lanes == 1:
        found = next(f.unused)
        f.lines.append(f"  {found} = extractelement {type_text(dtype, size)} {whole}, i32 0")
        return found
    return _shuffled(f, dtype, size, (whole,), list(range(lanes)))


def _shuffled(
    f: FunctionText, dtype: DType, lanes: int, sources: Sequence[str], places: list[int | None]
) -> str:
    """Some lanes of one value or two of `lanes` each, by number; None is anything."""
    kinds, found = type_text(dtype, lanes), next(f.unused)
    second = sources[1] if len(sources) > 1 else "poison"
    wanted = ", ".join("i32 poison" if p is None else f"i32 {p}" for p in places)
    f.lines.append(
        f"  {found} = shufflevector {kinds} {sources[0]}, {kinds} {second}, "
        f"<{len(places)} x i32> <{wanted}>"
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
    for part in (half, rest):
        field, bits, power, product = (next(f.unused) for _ in range(4))
        f.lines.append(
            f"  {field} = add {words} {part}, {bias}\n"
            f"  {bits} = shl {words} {field}, {shift}\n"
            f"  {power} = bitcast {words} {bits} to {kinds}\n"
            f"  {product} = fmul {kinds} {x}, {power}"
        )
        x = product
    return x

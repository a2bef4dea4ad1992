"""Conversions in LLVM IR. Floats become integers by truncation, saturating, NaN as 0."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, const
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import constant_text, lanes_of, suffix_text, type_text, value_type


def cast(f: FunctionText, node: Node) -> None:
    """CAST between any two dtypes that are plain here."""
    (x,) = node.src
    lanes = lanes_of(node)
    source, target = x.dtype, node.dtype
    old, kinds = type_text(source, lanes), value_type(node)
    operand = f.use(x, lanes)
    if target.kind == "bool":
        if source.kind == "bool":
            f.names[node] = operand
            return
        zero = constant_text(const(0.0 if source.is_float else 0, source), lanes)
        test = "fcmp une" if source.is_float else "icmp ne"
        f.lines.append(f"  {f.define(node)} = {test} {old} {operand}, {zero}")
        return
    if source.is_float and target.is_float:
        how = "fpext" if target.bits > source.bits else "fptrunc"
    elif target.is_float:
        how = "sitofp" if source.kind == "int" else "uitofp"
    elif source.is_float:
        f.names[node] = _truncated(f, source, target, lanes, operand)
        return
    elif source.kind == "bool" or target.bits > source.bits:
        how = "sext" if source.kind == "int" else "zext"
    elif target.bits < source.bits:
        how = "trunc"
    else:
        f.names[node] = operand
        return
    f.lines.append(f"  {f.define(node)} = {how} {old} {operand} to {kinds}")


def _truncated(f: FunctionText, source: DType, target: DType, lanes: int, x: str) -> str:
    """A float as an integer: an instruction of AArch64, and for one lane what LLVM makes of it."""
    sign = "s" if target.kind == "int" else "u"
    if lanes > 1 and f.target.architecture == "x86_64":
        return _within_range(f, source, target, lanes, x, f"fpto{sign}i")
    old, kinds, found = type_text(source, lanes), type_text(target, lanes), next(f.unused)
    name = f"llvm.fpto{sign}i.sat.{suffix_text(target, lanes)}.{suffix_text(source, lanes)}"
    f.declare(name, kinds, old)
    f.lines.append(f"  {found} = call {kinds} @{name}({old} {x})")
    return found


def _within_range(
    f: FunctionText, source: DType, target: DType, lanes: int, x: str, how: str
) -> str:
    """The same for vectors where LLVM goes lane by lane: choices around the plain conversion.

    That makes anything of what is out of its range, which is never chosen.
    """
    old, kinds = type_text(source, lanes), type_text(target, lanes)
    mask, form = type_text(dtypes.bool, lanes), source.format
    assert form is not None
    signed = target.kind == "int"
    bits = target.bits - signed

    def chosen(test: str, value: str, bound: float, *choices: str) -> str:
        """The first choice where a float passes a test against a bound, else the second."""
        holds, found = next(f.unused), next(f.unused)
        f.lines.append(
            f"  {holds} = fcmp {test} {old} {value}, {constant_text(const(bound, source), lanes)}\n"
            f"  {found} = select {mask} {holds}, {choices[0]}, {choices[1]}"
        )
        return found

    def floats(bound: float) -> str:
        return f"{old} {constant_text(const(bound, source), lanes)}"

    def integers(value: int) -> str:
        return f"{kinds} {constant_text(const(value, target), lanes)}"

    # Of two choices the processor's instruction for the larger takes the second for NaN.
    low = -(2.0**bits) if signed else 0.0
    kept = chosen("ogt", x, low, f"{old} {x}", floats(low))
    whole = bits <= form.mantissa_bits + 1
    if whole:
        high = 2.0**bits - 1
        kept = chosen("olt", kept, high, f"{old} {kept}", floats(high))
    found = next(f.unused)
    f.lines.append(f"  {found} = {how} {old} {kept} to {kinds}")
    if not whole:
        found = chosen("oge", kept, 2.0**bits, integers(2**bits - 1), f"{kinds} {found}")
    if signed:
        found = chosen("uno", x, 0.0, integers(0), f"{kinds} {found}")
    return found


def bitcast(f: FunctionText, node: Node) -> None:
    """BITCAST between dtypes of the same width."""
    (x,) = node.src
    lanes = lanes_of(node)
    old, kinds = type_text(x.dtype, lanes), value_type(node)
    if old == kinds:
        f.names[node] = f.use(x, lanes)
        return
    operand = f.use(x, lanes)
    f.lines.append(f"  {f.define(node)} = bitcast {old} {operand} to {kinds}")

"""Conversions in LLVM IR. Floats become integers by truncation, saturating, NaN as 0."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import lanes_of, splat_text, suffix_text, type_text, value_type


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
        zero = splat_text(0.0 if source.is_float else 0, source, lanes)
        test = "fcmp une" if source.is_float else "icmp ne"
        f.set(node, f"{test} {old} {operand}, {zero}")
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
    f.set(node, f"{how} {old} {operand} to {kinds}")


def _truncated(f: FunctionText, source: DType, target: DType, lanes: int, x: str) -> str:
    """A float as an integer: an instruction of AArch64, and for one lane what LLVM makes of it."""
    sign = "s" if target.kind == "int" else "u"
    if lanes > 1 and not f.target.saturates:
        return _within_range(f, source, target, lanes, x, f"fpto{sign}i")
    name = f"llvm.fpto{sign}i.sat.{suffix_text(target, lanes)}.{suffix_text(source, lanes)}"
    return f.call(name, type_text(target, lanes), (type_text(source, lanes), x))


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
        holds = f.value(f"fcmp {test} {old} {value}, {splat_text(bound, source, lanes)}")
        return f.value(f"select {mask} {holds}, {choices[0]}, {choices[1]}")

    def floats(bound: float) -> str:
        return f"{old} {splat_text(bound, source, lanes)}"

    def integers(value: int) -> str:
        return f"{kinds} {splat_text(value, target, lanes)}"

    # Of two choices the processor's instruction for the larger takes the second for NaN.
    low = -(2.0**bits) if signed else 0.0
    kept = chosen("ogt", x, low, f"{old} {x}", floats(low))
    whole = bits <= form.mantissa_bits + 1
    if whole:
        high = 2.0**bits - 1
        kept = chosen("olt", kept, high, f"{old} {kept}", floats(high))
    found = f.value(f"{how} {old} {kept} to {kinds}")
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
    f.set(node, f"bitcast {old} {f.use(x, lanes)} to {kinds}")

"""The remainder of floats in LLVM IR: of all lanes at once where no quotient is large."""

from __future__ import annotations

from functools import lru_cache

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import lanes_of, splat_text, suffix_text, type_text, value_type


def modulo(f: FunctionText, node: Node) -> None:
    """MOD of floats: the exact remainder with the divisor's sign, from the dividend's."""
    lanes = lanes_of(node)
    kinds, mask = value_type(node), type_text(dtypes.bool, lanes)
    x, y = (f.use(child, lanes) for child in node.src)
    zero = splat_text(0.0, node.dtype, lanes)
    rest = f.value(_remainder(f, node.dtype, lanes, x, y))
    nonzero = f.value(f"fcmp une {kinds} {rest}, {zero}")
    below = f.value(f"fcmp olt {kinds} {rest}, {zero}")
    down = f.value(f"fcmp olt {kinds} {y}, {zero}")
    differ = f.value(f"xor {mask} {below}, {down}")
    wrong = f.value(f"and {mask} {differ}, {nonzero}")
    moved = f.value(f"fadd {kinds} {rest}, {y}")
    f.set(node, f"select {mask} {wrong}, {kinds} {moved}, {kinds} {rest}")


def _remainder(f: FunctionText, dtype: DType, lanes: int, x: str, y: str) -> str:
    """The exact remainder with the dividend's sign, as an instruction."""
    kinds = type_text(dtype, lanes)
    if lanes == 1 or not f.target.fma:
        return f"frem {kinds} {x}, {y}"
    for name, operands in (("fabs", 1), ("trunc", 1), ("copysign", 2), ("fma", 3)):
        f.declare(f"llvm.{name}.{suffix_text(dtype, lanes)}", kinds, *[kinds] * operands)
    name, text = _function_text(dtype, lanes)
    f.declarations[text] = None
    return f"call {kinds} {name}({kinds} {x}, {kinds} {y})"


@lru_cache(1 << 6)
def _function_text(dtype: DType, lanes: int) -> tuple[str, str]:
    """The name and text of a function of two vectors: their remainders with the first's signs.

    LLVM calls the C library for each lane. While |x| / |y| is far below where not every integer has
    a float, its whole part is right or one too large, and |x| less that many |y| is not rounded. If
    any quotient is larger, as of a y of 0, all lanes are the library's.
    """
    kinds, mask = type_text(dtype, lanes), type_text(dtypes.bool, lanes)
    suffix, form = suffix_text(dtype, lanes), dtype.format
    assert form is not None
    bounds = (0.0, 2.0 ** (form.mantissa_bits - 1))
    zero, far = (splat_text(bound, dtype, lanes) for bound in bounds)
    name = f"@remainder.{suffix}"
    return name, f"""define internal {kinds} {name}({kinds} %x, {kinds} %y) #0 {{
  %a = call {kinds} @llvm.fabs.{suffix}({kinds} %x)
  %b = call {kinds} @llvm.fabs.{suffix}({kinds} %y)
  %quotient = fdiv {kinds} %a, %b
  %large = fcmp oge {kinds} %quotient, {far}
  %bits = bitcast {mask} %large to i{lanes}
  %any = icmp ne i{lanes} %bits, 0
  br i1 %any, label %each, label %all
all:
  %whole = call {kinds} @llvm.trunc.{suffix}({kinds} %quotient)
  %minus = fneg {kinds} %whole
  %left = call {kinds} @llvm.fma.{suffix}({kinds} %minus, {kinds} %b, {kinds} %a)
  %over = fcmp olt {kinds} %left, {zero}
  %more = fadd {kinds} %left, %b
  %rest = select {mask} %over, {kinds} %more, {kinds} %left
  %within = fcmp olt {kinds} %a, %b
  %size = select {mask} %within, {kinds} %a, {kinds} %rest
  %found = call {kinds} @llvm.copysign.{suffix}({kinds} %size, {kinds} %x)
  ret {kinds} %found
each:
  %slow = frem {kinds} %x, %y
  ret {kinds} %slow
}}"""

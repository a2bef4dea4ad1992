"""CAST and BITCAST in PTX, lane by lane. Source: PTX ISA, "cvt", with its tables of NaN results."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.ptx.text import PtxText, braces
from baregrad.render.ptx.types import literal, ptx_type, sign_text

F32, F64 = dtypes.float32, dtypes.float64
# Lines between a rounding and what reads it, as far as one looks.
MOST_BETWEEN = 128


def narrow(f: PtxText, dtype: DType, result: str, wide: str) -> None:
    """The low 8 or 16 bits of a 32-bit register, extended as registers hold that dtype."""
    sign = sign_text(dtype)
    f.emit(f"cvt.{sign}32.{sign}{dtype.bits}", result, wide)


def _cast(f: PtxText, node: Node, result: str, x: str) -> None:
    source, target = node.src[0].dtype, node.dtype
    if source is target:
        f.emit(f"mov.{ptx_type(target).bits}", result, x)
        return
    if source is dtypes.bfloat16 and target is F32 and _is_rounded(f, node.src[0], x):
        # Rounded to the upper half of a word, it is the float32: one fast instruction is both.
        word = f.made("%r", "cvt.rn.bf16x2.f32", f.rounded[x], literal(0, F32))
        f.emit("mov.b32", result, word)
        return
    if source.is_narrow:
        x, source = _widen(f, source, x, result if target is F32 else ""), F32
        if target is F32:
            return
    if target.kind == "bool":
        test = "neu" if source.is_float else "ne"
        f.emit(f"setp.{test}.{ptx_type(source).compute}", result, x, literal(0, source))
    elif source.kind == "bool":
        one, zero = literal(1, target), literal(0, target)
        f.emit(f"selp.{ptx_type(target).bits}", result, one, zero, x)
    elif target.is_float:
        if source.bits == 64 and source.kind in ("int", "uint") and _is_short(node.src[0]):
            # Conversions of words take a fraction of the time.
            source, x = dtypes.uint32, f.made("%r", "cvt.u32.u64", x)
        inner = node.src[0]
        if target is dtypes.float16 and inner.op is Ops.CAST and inner.src[0].dtype.bits == 8:
            half = f.halves.get(x)
            if half is not None:
                f.emit("mov.b16", result, half)
                return
        _to_float(f, source, target, result, x)
    elif source.is_float:
        _to_integer(f, source, target, result, x)
    else:
        _between_integers(f, source, target, result, x)


def _is_rounded(f: PtxText, value: Node, x: str) -> bool:
    """Whether a narrow float, in a register, is a float32's that nothing has set anew."""
    wide = f.rounded.get(x)
    if wide is None or value.op is not Ops.CAST or value.src[0].dtype is not F32:
        return False
    if value.src[0].op is not Ops.REG:
        return True
    # A REG is what it was as far back as no instruction names it and no other way leads here.
    named = re.compile(re.escape(wide) + r"\b")
    for line in reversed(f.lines[-MOST_BETWEEN:]):
        if line.endswith(f" {x}, {wide};"):
            return True
        if line.endswith(":") or named.search(line):
            return False
    return False


# --- integers ------------------------------------------------------------------------------------


def _between_integers(f: PtxText, source: DType, target: DType, result: str, x: str) -> None:
    if target.bits == 64:
        if source.bits == 64:
            f.emit("mov.b64", result, x)
        else:
            f.emit(f"cvt.{sign_text(target)}64.{sign_text(source)}32", result, x)
        return
    if source.bits == 64:
        word = result if target.bits == 32 else f.fresh("%r")
        f.emit("cvt.u32.u64", word, x)
        x = word
    if target.bits < 32 and not _holds(source, target):
        narrow(f, target, result, x)
    elif x != result:
        f.emit("mov.b32", result, x)


def _holds(source: DType, target: DType) -> bool:
    """Whether every value of an integer dtype is one of another."""
    return bool(target.min <= source.min and source.max <= target.max)


def _to_integer(f: PtxText, source: DType, target: DType, result: str, x: str) -> None:
    """Truncation that saturates; NaN is 0."""
    kind = ptx_type(target)
    opcode = f"cvt.rzi.{kind.compute}.{ptx_type(source).compute}"
    limited = target.bits < 32
    # Where either side has 64 bits, a NaN converts to the lowest bit pattern but one.
    guarded = source is F64 or target.bits == 64
    found = f.register(target) if limited or guarded else result
    f.emit(opcode, found, x)
    if guarded:
        unordered = f.fresh("%p")
        number = f.register(target) if limited else result
        f.emit(f"setp.nan.{ptx_type(source).compute}", unordered, x, x)
        f.emit(f"selp.{kind.bits}", number, "0", found, unordered)
        found = number
    if limited and target.kind == "int":
        above = f.value(target, "max.s32", found, str(int(target.min)))
        f.emit("min.s32", result, above, str(int(target.max)))
    elif limited:
        f.emit("min.u32", result, found, str(int(target.max)))


def _is_short(value: Node) -> bool:
    """Whether an integer is one of 32 bits without a sign, whatever it is computed from."""
    low, high = bounds(value)
    return low >= 0 and high < 1 << 32


# --- floats --------------------------------------------------------------------------------------


def _to_float(f: PtxText, source: DType, target: DType, result: str, x: str) -> None:
    """To narrow floats by way of float32, as the evaluators do."""
    compute, kind = ptx_type(target).compute, ptx_type(source).compute
    if target.is_narrow:
        if target.name not in f.target.converted_floats:
            raise CompilerBug(
                f"{f.target.name} does not round to a dtype; it was to be lowered", found=target
            )
        if source is not F32:
            x, kind = f.value(F32, f"cvt.rn.f32.{kind}", x), "f32"
        if target is dtypes.bfloat16:
            f.rounded[result] = x
    f.emit(f"cvt{'' if target is F64 and source is F32 else '.rn'}.{compute}.{kind}", result, x)


def _widen(f: PtxText, source: DType, x: str, result: str) -> str:
    """A narrower float as float32; an 8-bit one by way of float16, which it is as well."""
    found = result or f.register(F32)
    if source is dtypes.tfloat32:
        f.emit("mov.b32", found, x)
        return found
    if source.bits == 8:
        code = f.made("%h", "cvt.u16.u32", x)
        pair = f.made("%r", f"cvt.rn.f16x2.{ptx_type(source).compute}x2", code)
        x, source = f.made("%h", "cvt.u16.u32", pair), dtypes.float16
        f.halves[found] = x
    if source is dtypes.float16:
        f.emit("cvt.f32.f16", found, x)
        return found
    # The code of a bfloat16 is the upper half of the float32, and of some words that were loaded.
    if x in f.uppers:
        f.emit("mov.b32", found, f.made("%r", "and.b32", f.uppers[x], "0xFFFF0000"))
        return found
    word = f.made("%r", "cvt.u32.u16", x)
    f.emit("mov.b32", found, f.made("%r", "shl.b32", word, "16"))
    return found


def widen_pairs(f: PtxText, node: Node) -> bool:
    """8-bit floats as float32, of which one instruction takes two; False for other nodes."""
    count = f.width(node)
    source = node.src[0].dtype if node.op is Ops.CAST else F32
    if not source.is_float or source.bits != 8 or node.dtype is not F32 or count % 2:
        return False
    codes, found = f.lanes(node.src[0], count), f.define(node)
    for lane in range(0, count, 2):
        code = _two_bytes(f, *codes[lane : lane + 2])
        pair = f.made("%r", f"cvt.rn.f16x2.{ptx_type(source).compute}x2", code)
        halves = [f.fresh("%h") for _ in range(2)]
        f.emit("mov.b32", braces(halves), pair)
        for result, half in zip(found[lane : lane + 2], halves, strict=True):
            f.halves[result] = half
            f.emit("cvt.f32.f16", result, half)
    return True


def _two_bytes(f: PtxText, low: str, high: str) -> str:
    """Two bytes as one register of 16 bits: half of the word that they were loaded in, if any."""
    word, place = f.bytes.get(low, ("", 0))
    if word and place % 2 == 0 and f.bytes.get(high) == (word, place + 1):
        halves = [f.fresh("%h") for _ in range(2)]
        f.emit("mov.b32", braces(halves), word)
        return halves[place // 2]
    return f.made("%h", "cvt.u16.u32", f.made("%r", "prmt.b32", low, high, "0x5540"))


# --- bits ----------------------------------------------------------------------------------------


def _bitcast(f: PtxText, node: Node, result: str, x: str) -> None:
    source, target = node.src[0].dtype, node.dtype
    if source.bits != target.bits:
        raise CompilerBug("a BITCAST between sizes", found=node)
    half = ptx_type(source).bits == "b16", ptx_type(target).bits == "b16"
    if "bool" in (source.kind, target.kind):
        _cast(f, node, result, x)
    elif source.bits == target.bits == 8:
        f.emit("mov.b32", result, x)
        if x in f.bytes:
            f.bytes[result] = f.bytes[x]
    elif half[1]:
        f.emit("mov.b16" if half[0] else "cvt.u16.u32", result, x)
    elif target.bits < 32:
        narrow(f, target, result, x)
    else:
        f.emit(f"mov.b{target.bits}", result, x)


CONVERSIONS: MappingProxyType[Op, Callable[..., None]] = MappingProxyType(
    {Ops.CAST: _cast, Ops.BITCAST: _bitcast}
)

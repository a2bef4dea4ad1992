"""Elementwise ops in PTX: one rule per op, written lane by lane.

Every float operation carries its rounding, `.rn`, so that nothing is contracted, flushed to zero
or approximated: the bits are those of the evaluator, but for EXP2_NEAR and RECIPROCAL_NEAR, whose
rows state bounds. A rule writes its result last.
Source: PTX ISA, "Integer Arithmetic", "Floating-Point", "Comparison and Selection" instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType

from baregrad.base.bits import is_power_of_two, next_power_of_two
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import COMPARE, Op, Ops, mask_of
from baregrad.render.interface import BOOL_OPS
from baregrad.render.ptx.convert import CONVERSIONS, narrow, widen_pairs
from baregrad.render.ptx.octets import join_octets, replace_octet
from baregrad.render.ptx.text import PtxText
from baregrad.render.ptx.types import literal, ptx_type

# (text, node, register of the result, operands of one lane)
LaneRule = Callable[..., None]


def elementwise(f: PtxText, node: Node) -> None:
    """An elementwise instruction, for each of its lanes."""
    if replace_octet(f, node) or join_octets(f, node) or widen_pairs(f, node):
        return
    rule = LANE_RULES.get(node.op)
    if rule is None or node.dtype.kind in ("index", "token"):
        raise CompilerBug("PTX has no such instruction; it was to be lowered", found=node)
    count = f.width(node)
    operands = [f.lanes(child, count) for child in node.src]
    for lane, result in enumerate(f.define(node)):
        rule(f, node, result, *[names[lane] for names in operands])


def across(f: PtxText, node: Node) -> None:
    """The lanes of a vector folded: lane i with i + h, h the largest power of two below them."""
    op = node.arg.monoid.primitive
    (vector,) = node.src
    (result,) = f.define(node)
    both = make_node(op, node.dtype, (vector, vector))
    lanes = list(f.lanes(vector, vector.shape[0]))
    while len(lanes) > 1:
        half = next_power_of_two(len(lanes)) // 2
        for lane in range(len(lanes) - half):
            folded = result if len(lanes) == 2 else f.register(node.dtype)
            LANE_RULES[op](f, both, folded, lanes[lane], lanes[lane + half])
            lanes[lane] = folded
        del lanes[half:]


def _refuse_narrow(node: Node) -> None:
    if node.dtype.is_narrow:
        raise CompilerBug("arithmetic on narrow floats; it was to be lowered", found=node)


# --- arithmetic ----------------------------------------------------------------------------------


# op: (of floats, of integers); {c} is the type that arithmetic is done in, {b} that of moves and
# {n} the bits of a register.
_OPCODES: MappingProxyType[Op, tuple[str, str]] = MappingProxyType(
    {
        Ops.ADD: ("add.rn.{c}", "add.{c}"),
        Ops.SUB: ("sub.rn.{c}", "sub.{c}"),
        Ops.MUL: ("mul.rn.{c}", "mul.lo.{c}"),
        Ops.FMA: ("fma.rn.{c}", "mad.lo.{c}"),
        Ops.DIV: ("div.rn.{c}", ""),
        Ops.TRUNCDIV: ("", "div.{c}"),
        Ops.NEG: ("neg.{c}", "neg.s{n}"),
        Ops.ABS: ("abs.{c}", "abs.{c}"),
        Ops.NOT: ("", "not.{b}"),
        Ops.SHL: ("", "shl.{b}"),
        Ops.SHR: ("", "shr.{c}"),
        **{op: ("", f"{op.name.lower()}.{{b}}") for op in (Ops.AND, Ops.OR, Ops.XOR)},
        **{op: ("", f"{op.name.lower()}.{{c}}") for op in (Ops.MAX, Ops.MIN)},
        Ops.SQRT: ("sqrt.rn.{c}", ""),
        Ops.RECIPROCAL: ("rcp.rn.{c}", ""),
        Ops.RECIPROCAL_NEAR: ("rcp.approx.ftz.{c}", ""),
        Ops.EXP2_NEAR: ("ex2.approx.ftz.{c}", ""),
        # Integers are whole already.
        Ops.FLOOR: ("cvt.rmi.{c}.{c}", "mov.{b}"),
        Ops.CEIL: ("cvt.rpi.{c}.{c}", "mov.{b}"),
        Ops.TRUNC: ("cvt.rzi.{c}.{c}", "mov.{b}"),
        Ops.RINT: ("cvt.rni.{c}.{c}", "mov.{b}"),
    }
)
# What may leave in a register more bits than an integer has.
_WRAPS = mask_of((Ops.ADD, Ops.SUB, Ops.MUL, Ops.FMA, Ops.TRUNCDIV, Ops.NEG, Ops.ABS, Ops.SHL))


@lru_cache(1 << 8)
def _opcode(op: Op, dtype: DType) -> str:
    kind = ptx_type(dtype)
    form = _OPCODES[op][0 if dtype.is_float else 1]
    return form.format(c=kind.compute, b=kind.bits, n=kind.bits[1:])


def _whole(f: PtxText, dtype: DType, opcode: str, result: str, *operands: str) -> None:
    """An integer instruction, whose result of fewer than 32 bits wraps."""
    if dtype.bits >= 32:
        f.emit(opcode, result, *operands)
    else:
        narrow(f, dtype, result, f.value(dtype, opcode, *operands))


def _plain(f: PtxText, node: Node, result: str, *operands: str) -> None:
    """One instruction."""
    op, dtype = node.op, node.dtype
    if dtype.kind == "bool" and op in BOOL_OPS:
        f.emit(f"{BOOL_OPS[op]}.pred", result, *operands)
        return
    _refuse_narrow(node)
    opcode = _opcode(op, dtype)
    if not opcode:
        raise CompilerBug("PTX has no such instruction; it was to be lowered", found=node)
    if op.bit & _WRAPS or (op is Ops.NOT and dtype.kind == "uint"):
        _whole(f, dtype, opcode, result, *operands)
    else:
        f.emit(opcode, result, *operands)


def _multiply(f: PtxText, node: Node, result: str, x: str, y: str) -> None:
    """MUL; of two int32 that were made int64 a single instruction."""
    if node.dtype is dtypes.int64 and all(map(_is_widened, node.src)):
        short = [f.one(child.src[0]) if child.op is Ops.CAST else name
                 for child, name in zip(node.src, (x, y), strict=True)]  # fmt: skip
        f.emit("mul.wide.s32", result, *short)
    else:
        _plain(f, node, result, x, y)


def _is_widened(node: Node) -> bool:
    """Whether an int64 is a scalar int32 made wider."""
    if node.op is Ops.CONST:
        return bool(-(1 << 31) <= node.arg < 1 << 31)
    plain = node.op is Ops.CAST and not node.shape and node.src[0].op is not Ops.REG
    return plain and node.src[0].dtype is dtypes.int32


def _shift(f: PtxText, node: Node, result: str, x: str, y: str) -> None:
    """Distances beyond the width count as the width, as they are to; they have 32 bits."""
    _plain(f, node, result, x, _low_word(f, y) if node.dtype.bits == 64 else y)


def _low_word(f: PtxText, operand: str) -> str:
    if not operand.startswith("%"):
        return str(min(int(operand.rstrip("U")) & 0xFFFFFFFFFFFFFFFF, 64))
    return f.made("%r", "cvt.u32.u64", operand)


def _absolute(f: PtxText, node: Node, result: str, x: str) -> None:
    if node.dtype.kind == "uint":
        f.emit(f"mov.{ptx_type(node.dtype).bits}", result, x)
    else:
        _plain(f, node, result, x)


# --- choosing ------------------------------------------------------------------------------------

_COMPARISONS: MappingProxyType[Op, str] = MappingProxyType(
    {Ops.CMPLT: "lt", Ops.CMPLE: "le", Ops.CMPEQ: "eq", Ops.CMPNE: "ne"}
)


def _compare(f: PtxText, node: Node, result: str, x: str, y: str) -> None:
    dtype = node.src[0].dtype
    name = _COMPARISONS[node.op]
    if dtype.kind == "bool":
        _compare_bools(f, node.op, result, x, y)
        return
    if dtype.is_narrow:
        raise CompilerBug("a comparison of narrow floats; it was to be lowered", found=node)
    # A NaN differs from everything: `neu`, where `ne` would be ordered.
    suffix = "u" if dtype.is_float and name == "ne" else ""
    f.emit(f"setp.{name}{suffix}.{ptx_type(dtype).compute}", result, x, y)


def _compare_bools(f: PtxText, op: Op, result: str, x: str, y: str) -> None:
    """x < y is !x & y, x <= y is !x | y."""
    if op is Ops.CMPNE:
        f.emit("xor.pred", result, x, y)
    elif op is Ops.CMPEQ:
        f.emit("not.pred", result, f.made("%p", "xor.pred", x, y))
    else:
        opposite = f.made("%p", "not.pred", x)
        f.emit("and.pred" if op is Ops.CMPLT else "or.pred", result, opposite, y)


def _extreme(f: PtxText, node: Node, result: str, x: str, y: str) -> None:
    """MAX and MIN: a NaN in either operand gives NaN.

    Of two registers with signed integers the larger is chosen after a comparison: for sm_90 `ptxas`
    (13.0) joins a chain of `max.s32` to VIMNMX3, and there it loses the signs of negated operands.
    """
    dtype = node.dtype
    if not dtype.is_float:
        kind = ptx_type(dtype)
        if kind.compute == "s32" and x.startswith("%") and y.startswith("%"):
            order = "gt" if node.op is Ops.MAX else "lt"
            f.emit("selp.b32", result, x, y, f.made("%p", f"setp.{order}.s32", x, y))
        else:
            _plain(f, node, result, x, y)
        return
    _refuse_narrow(node)
    name, compute = node.op.name.lower(), ptx_type(dtype).compute
    if dtype is dtypes.float32 and f.target.nan_extremes:
        f.emit(f"{name}.NaN.f32", result, x, y)
        return
    # Without `.NaN` a number wins over a NaN.
    number = f.value(dtype, f"{name}.{compute}", x, y)
    unordered = f.made("%p", f"setp.nan.{compute}", x, y)
    f.emit(f"selp.{compute}", result, literal(float("nan"), dtype), number, unordered)


def _where(f: PtxText, node: Node, result: str, cond: str, x: str, y: str) -> None:
    kind = ptx_type(node.dtype)
    if node.dtype.kind != "bool":
        f.emit(f"selp.{kind.bits}", result, x, y, cond)
        return
    opposite = f.made("%p", "not.pred", cond)
    first = f.made("%p", "and.pred", cond, x)
    f.emit("or.pred", result, first, f.made("%p", "and.pred", opposite, y))


# --- remainders ----------------------------------------------------------------------------------


def _floor_divide(f: PtxText, node: Node, result: str, x: str, y: str) -> None:
    """FLOORDIV and MOD of integers as they stand; y is not 0."""
    dtype = node.dtype
    compute, bits = ptx_type(dtype).compute, ptx_type(dtype).bits
    quotient = node.op is Ops.FLOORDIV
    divisor = node.src[1]
    if divisor.op is Ops.CONST and is_power_of_two(divisor.arg):
        opcode = f"shr.{compute}" if quotient else f"and.{bits}"
        operand = divisor.arg.bit_length() if quotient else divisor.arg
        f.emit(opcode, result, x, str(operand - 1))
        return
    if dtype.kind == "uint":
        f.emit(f"{'div' if quotient else 'rem'}.{compute}", result, x, y)
        return
    rest = f.value(dtype, f"rem.{compute}", x, y)
    mixed = f.value(dtype, f"xor.{bits}", rest, y)
    # The remainder has the dividend's sign; one step of the divisor gives it the divisor's.
    nonzero = f.made("%p", f"setp.ne.{compute}", rest, "0")
    wrong = f.made("%p", f"setp.lt.and.{compute}", mixed, "0", nonzero)
    if quotient:
        found = f.value(dtype, f"div.{compute}", x, y)
        step = f.value(dtype, f"selp.{bits}", "-1", "0", wrong)
        _whole(f, dtype, f"add.{compute}", result, found, step)
    else:
        step = f.value(dtype, f"selp.{bits}", y, "0", wrong)
        f.emit(f"add.{compute}", result, rest, step)


def _modulo(f: PtxText, node: Node, result: str, x: str, y: str) -> None:
    """MOD of floats: an exact remainder with the divisor's sign.

    `scale` goes up from |y| by powers of two while it stays far below |x|, then down again; at each
    step |x| loses the multiple of it that a rounded quotient gives, which leaves an exact rest, and
    puts a quotient that was one too large right.
    """
    dtype = node.dtype
    if not dtype.is_float:
        _floor_divide(f, node, result, x, y)
        return
    _refuse_narrow(node)
    kind = ptx_type(dtype).compute
    power = 22 if dtype is dtypes.float32 else 50
    up, down = literal(2.0**power, dtype), literal(2.0**-power, dtype)
    zero = literal(0.0, dtype)
    more, number = f.fresh("%p"), f.fresh_label()
    rest = f.value(dtype, f"abs.{kind}", x)
    size = f.value(dtype, f"abs.{kind}", y)
    scale = f.value(dtype, f"mov.{kind}", size)
    sound = f.made("%p", f"setp.lt.{kind}", rest, literal(float("inf"), dtype))
    positive = f.made("%p", f"setp.gt.and.{kind}", size, zero, sound)
    reach = f.made("%p", f"setp.le.and.{kind}", size, rest, positive)
    f.emit("bra", f"M{number}_done", guard=f"!{reach}")
    f.label(f"M{number}_up")
    high = f.value(dtype, f"mul.rn.{kind}", scale, up)
    f.emit(f"setp.le.{kind}", more, high, rest)
    f.emit(f"selp.{kind}", scale, high, scale, more)
    f.emit("bra", f"M{number}_up", guard=more)
    f.label(f"M{number}_down")
    ratio = f.value(dtype, f"div.rn.{kind}", rest, scale)
    whole = f.value(dtype, f"cvt.rzi.{kind}.{kind}", ratio)
    minus = f.value(dtype, f"neg.{kind}", whole)
    left = f.value(dtype, f"fma.rn.{kind}", minus, scale, rest)
    back = f.value(dtype, f"add.rn.{kind}", left, scale)
    below = f.made("%p", f"setp.lt.{kind}", left, zero)
    f.emit(f"selp.{kind}", rest, back, left, below)
    last = f.made("%p", f"setp.gt.{kind}", scale, size)
    f.emit(f"mul.rn.{kind}", scale, scale, down)
    f.emit("bra", f"M{number}_down", guard=last)
    f.label(f"M{number}_done")
    # Below an infinite y, too, x is the rest; a zero or a NaN in y, or an infinite x, gives NaN.
    _sign_of_divisor(f, dtype, result, (x, y, rest), positive)


def _sign_of_divisor(
    f: PtxText, dtype: DType, result: str, values: tuple[str, str, str], positive: str
) -> None:
    """The end of `_modulo`: |rest| with x's sign, then moved by y where the signs differ."""
    x, y, rest = values
    kind = ptx_type(dtype).compute
    zero = literal(0.0, dtype)
    signed = f.value(dtype, f"copysign.{kind}", x, rest)
    below = f.made("%p", f"setp.lt.{kind}", signed, zero)
    down = f.made("%p", f"setp.lt.{kind}", y, zero)
    differ = f.made("%p", "xor.pred", below, down)
    nonzero = f.made("%p", f"setp.ne.{kind}", signed, zero)
    wrong = f.made("%p", "and.pred", differ, nonzero)
    moved = f.value(dtype, f"add.rn.{kind}", signed, y)
    chosen = f.value(dtype, f"selp.{kind}", moved, signed, wrong)
    f.emit(f"selp.{kind}", result, chosen, literal(float("nan"), dtype), positive)


def _dot_bytes(f: PtxText, node: Node, result: str, x: str, y: str, z: str) -> None:
    f.emit("dp4a.u32.s32", result, x, y, z)


def _dot_pairs(f: PtxText, node: Node, result: str, x: str, y: str, z: str) -> None:
    part = "lo" if node.op is Ops.DOT2LO else "hi"
    f.emit(f"dp2a.{part}.s32.u32", result, y, x, z)


LANE_RULES: MappingProxyType[Op, LaneRule] = MappingProxyType(
    {
        **CONVERSIONS,
        **dict.fromkeys(_OPCODES, _plain),
        Ops.MUL: _multiply,
        **dict.fromkeys((Ops.SHL, Ops.SHR), _shift),
        **dict.fromkeys(COMPARE, _compare),
        **dict.fromkeys((Ops.MAX, Ops.MIN), _extreme),
        Ops.ABS: _absolute,
        Ops.WHERE: _where,
        Ops.FLOORDIV: _floor_divide,
        Ops.MOD: _modulo,
        Ops.DOT4: _dot_bytes,
        **dict.fromkeys((Ops.DOT2LO, Ops.DOT2HI), _dot_pairs),
    }
)

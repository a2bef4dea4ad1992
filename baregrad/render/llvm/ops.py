"""Elementwise ops in LLVM IR: one rule per op."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import COMPARE, Op, Ops
from baregrad.render.interface import BOOL_OPS, FLOAT_FUNCTIONS
from baregrad.render.llvm.casts import bitcast, cast
from baregrad.render.llvm.dots import dot_bytes, dot_halves, dot_pairs
from baregrad.render.llvm.ldexp import ldexp
from baregrad.render.llvm.lookup import lookup
from baregrad.render.llvm.modulo import modulo
from baregrad.render.llvm.text import FunctionText, Rule
from baregrad.render.llvm.types import (
    constant_text,
    lanes_of,
    splat_text,
    suffix_text,
    type_text,
    value_type,
)

# op: (of floats, of signed integers, of unsigned ones)
_INSTRUCTIONS: MappingProxyType[Op, tuple[str, str, str]] = MappingProxyType(
    {
        Ops.ADD: ("fadd", "add", "add"),
        Ops.SUB: ("fsub", "sub", "sub"),
        Ops.MUL: ("fmul", "mul", "mul"),
        Ops.AND: ("", "and", "and"),
        Ops.OR: ("", "or", "or"),
        Ops.XOR: ("", "xor", "xor"),
        Ops.SHL: ("", "shl", "shl"),
        Ops.DIV: ("fdiv", "", ""),
        Ops.TRUNCDIV: ("", "sdiv", "udiv"),
        Ops.SHR: ("", "ashr", "lshr"),
        Ops.CMPLT: ("fcmp olt", "icmp slt", "icmp ult"),
        Ops.CMPLE: ("fcmp ole", "icmp sle", "icmp ule"),
        Ops.CMPEQ: ("fcmp oeq", "icmp eq", "icmp eq"),
        Ops.CMPNE: ("fcmp une", "icmp ne", "icmp ne"),
    }
)


@lru_cache(1 << 10)
def _spelled(op: Op, dtype: DType, lanes: int) -> str:
    """An instruction of two operands of a dtype but for their names."""
    if dtype.kind == "bool" and op not in COMPARE:
        spelling = BOOL_OPS.get(op)
    else:
        floats, signed, unsigned = _INSTRUCTIONS.get(op, ("", "", ""))
        spelling = {"float": floats, "int": signed}.get(dtype.kind, unsigned)
    if not spelling:
        raise CompilerBug("LLVM IR has no such instruction; it was to be lowered", found=op)
    return f"{spelling} {type_text(dtype, lanes)}"


def _binary(f: FunctionText, node: Node) -> None:
    shape = node.shape
    lanes = shape[-1] if shape else 1
    x, y = node.src
    names = f.names
    a, b = names.get(x) or f.use(x, lanes), names.get(y) or f.use(y, lanes)
    name = names[node] = next(f.unused)
    f.lines.append(f"  {name} = {_spelled(node.op, x.dtype, lanes)} {a}, {b}")


def _extreme(f: FunctionText, node: Node) -> None:
    """MAX and MIN: a NaN in either operand gives NaN."""
    dtype, lanes = node.dtype, lanes_of(node)
    if dtype.kind == "bool":
        _binary(f, node)
        return
    x, y = node.src
    if x.op is Ops.CONST:
        x, y = y, x
    a, b = f.use(x, lanes), f.use(y, lanes)
    if node.op is Ops.MIN and dtype.kind == "uint" and y.op is Ops.CONST and not y.arg:
        # LLVM 22 takes the lesser of a float's conversion and 2**n - 1 for one to n bits, even 0.
        f.names[node] = b
        return
    if dtype.kind == "float" and y.op is Ops.CONST and y.arg == y.arg:
        # The constant wins only where it is certainly beyond x, so a NaN in x stays.
        kinds, mask = value_type(node), type_text(dtypes.bool, lanes)
        chosen = f.value(f"fcmp {'ogt' if node.op is Ops.MAX else 'olt'} {kinds} {b}, {a}")
        f.set(node, f"select {mask} {chosen}, {kinds} {b}, {kinds} {a}")
        return
    f.lines.append(folding_text(node.op, dtype, lanes, f.define(node), a, b))


def folding_text(op: Op, dtype: DType, lanes: int, name: str, a: str, b: str) -> str:
    """The instructions of a primitive monoid's op on two operands; `name` is the result's."""
    kind = dtype.kind
    if op not in (Ops.MAX, Ops.MIN) or kind == "bool":
        return f"  {name} = {_spelled(op, dtype, lanes)} {a}, {b}"
    if kind != "float":
        return beyond_text(op, dtype, lanes, name, a, b)
    kinds, mask = type_text(dtype, lanes), type_text(dtypes.bool, lanes)
    # A NaN in b is what the machine's instruction gives; where a is one it is masked, and a stays.
    return (
        f"{beyond_text(op, dtype, lanes, f'{name}.e', a, b)}\n"
        f"  {name}.n = fcmp ord {kinds} {a}, {a}\n"
        f"  {name} = select {mask} {name}.n, {kinds} {name}.e, {kinds} {a}"
    )


def beyond_text(op: Op, dtype: DType, lanes: int, name: str, a: str, b: str) -> str:
    """The instructions of MAX or MIN that give b where one of the two is NaN."""
    kinds, mask = type_text(dtype, lanes), type_text(dtypes.bool, lanes)
    order = "gt" if op is Ops.MAX else "lt"
    compared = {"float": "fcmp o", "int": "icmp s"}.get(dtype.kind, "icmp u")
    return (
        f"  {name}.c = {compared}{order} {kinds} {a}, {b}\n"
        f"  {name} = select {mask} {name}.c, {kinds} {a}, {kinds} {b}"
    )




def _intrinsic(f: FunctionText, node: Node) -> None:
    lanes, kinds = lanes_of(node), value_type(node)
    operands = [(kinds, f.use(child, lanes)) for child in node.src]
    if node.dtype.kind != "float":
        # Integers are whole already.
        f.names[node] = operands[0][1]
        return
    name = f"llvm.{FLOAT_FUNCTIONS[node.op]}.{suffix_text(node.dtype, lanes)}"
    f.names[node] = f.call(name, kinds, *operands)


def _fma(f: FunctionText, node: Node) -> None:
    if node.dtype.kind == "float":
        _intrinsic(f, node)
        return
    lanes, kinds = lanes_of(node), value_type(node)
    a, b, c = [f.use(child, lanes) for child in node.src]
    f.set(node, f"add {kinds} {f.value(f'mul {kinds} {a}, {b}')}, {c}")


_RECIPROCALS = (Ops.RECIPROCAL, Ops.RECIPROCAL_NEAR)


def _unary(f: FunctionText, node: Node) -> None:
    lanes = lanes_of(node)
    kinds = value_type(node)
    operand = f.use(node.src[0], lanes)
    floating = node.dtype.kind == "float"
    op = node.op
    if op is Ops.NEG:
        text = f"fneg {kinds} {operand}" if floating else f"sub {kinds} zeroinitializer, {operand}"
    elif op is Ops.NOT:
        ones = Node(Ops.CONST, node.dtype, (), True if node.dtype.kind == "bool" else -1)
        text = f"xor {kinds} {operand}, {constant_text(ones, lanes)}"
    elif op in _RECIPROCALS:
        text = f"fdiv {kinds} {splat_text(1.0, node.dtype, lanes)}, {operand}"
    elif node.dtype.kind == "uint":
        f.names[node] = operand
        return
    else:
        name = f"llvm.{'fabs' if floating else 'abs'}.{suffix_text(node.dtype, lanes)}"
        options = () if floating else (("i1", "false"),)
        f.names[node] = f.call(name, kinds, (kinds, operand), *options)
        return
    f.set(node, text)


def _where(f: FunctionText, node: Node) -> None:
    lanes, kinds = lanes_of(node), value_type(node)
    cond, x, y = [f.use(child, lanes) for child in node.src]
    mask = type_text(dtypes.bool, lanes)
    f.set(node, f"select {mask} {cond}, {kinds} {x}, {kinds} {y}")


ELEMENTWISE_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        **dict.fromkeys(_INSTRUCTIONS, _binary),
        **dict.fromkeys((Ops.MAX, Ops.MIN), _extreme),
        **dict.fromkeys(FLOAT_FUNCTIONS, _intrinsic),
        Ops.FMA: _fma,
        **dict.fromkeys((Ops.NEG, Ops.NOT, Ops.ABS, *_RECIPROCALS), _unary),
        Ops.MOD: modulo,
        Ops.LDEXP: ldexp,
        Ops.DOT4: dot_bytes,
        **dict.fromkeys((Ops.DOT2LO, Ops.DOT2HI), dot_pairs),
        Ops.DOT2: dot_halves,
        Ops.WHERE: _where,
        Ops.CAST: cast,
        Ops.BITCAST: bitcast,
        Ops.LOOKUP: lookup,
    }
)

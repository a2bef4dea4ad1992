"""Linear level to C with GNU builtins: a vector is an array, and an instruction a loop over it.

It exists to keep the linear level honest (nothing in it may be LLVM's) and for machines without
llvmlite. Integers are computed unsigned, where C defines wrapping; the compiler must not contract
floating-point operations (-ffp-contract=off).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.node import Node, const
from baregrad.ir.op import COMPARE, Op, Ops
from baregrad.render.interface import alloc_nbytes, round_float32, signature
from baregrad.target.cpu import CpuTarget


class CRenderer:
    """Renders programs for CPUs as C."""

    name = "c"
    assembler = "c"

    def render(
        self, program: Node, target: CpuTarget, variables: Sequence[str] | None = None
    ) -> str:
        """The translation unit of one PROGRAM: one function of the CPU kernels' signature."""
        return _Function(program, variables).text()


_TYPES: MappingProxyType[DType, str] = MappingProxyType(
    {
        dtypes.bool: "uint8_t",
        dtypes.int8: "int8_t",
        dtypes.uint8: "uint8_t",
        dtypes.int16: "int16_t",
        dtypes.uint16: "uint16_t",
        dtypes.int32: "int32_t",
        dtypes.uint32: "uint32_t",
        dtypes.int64: "int64_t",
        dtypes.uint64: "uint64_t",
        dtypes.float16: "_Float16",
        dtypes.float32: "float",
        dtypes.float64: "double",
    }
)


class _Function:
    """One function being written."""

    def __init__(self, program: Node, variables: Sequence[str] | None) -> None:
        self.program = program
        self.signature = signature(program, variables)
        self.lines: list[str] = []
        self.functions: dict[str, str] = {}
        self.registers: dict[Node, None] = {}
        self.names: dict[Node, str] = {}
        self.count = 0
        self.depth = 1

    def text(self) -> str:
        """The text of the translation unit."""
        prologue = self._prologue()
        for node in self.program.src:
            self._instruction(node)
        registers = [
            f"  {_TYPES[register.dtype]} {self.names[register]}{_array_text(register)};"
            for register in self.registers
        ]
        head = (
            f"void {self.signature.entry}(void **restrict buffers, "
            "const int64_t *restrict variables, int64_t chunk_begin, int64_t chunk_end, "
            "void *restrict scratch) {"
        )
        parts = ["#include <stdint.h>", *self.functions.values(), head, *prologue, *registers]
        return "\n".join([*parts, *self.lines, "}", ""])

    def _prologue(self) -> list[str]:
        lines = []
        for param in self.signature.params:
            name = self.names[param] = f"b{param.arg.slot}"
            kind = _TYPES[param.dtype]
            lines.append(f"  {kind} *{name} = ({kind} *)buffers[{param.arg.slot}];")
        for alloc, offset in self.signature.scratch.items():
            name = self.names[alloc] = f"a{alloc.arg.id}"
            kind = _TYPES[alloc.dtype]
            lines.append(f"  {kind} *{name} = ({kind} *)((char *)scratch + {offset});")
        for alloc in self.signature.stack:
            name = self.names[alloc] = f"s{alloc.arg.id}"
            count = alloc_nbytes(alloc) // alloc.dtype.itemsize
            lines.append(f"  {_TYPES[alloc.dtype]} {name}[{max(count, 1)}];")
        return lines

    # --- pieces ---------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def use(self, node: Node) -> str:
        """The operand text of a value; of a vector, its lane `l`."""
        op = node.op
        if op is Ops.CONST:
            return constant_text(node)
        if op is Ops.VAR:
            variable: str = node.arg.name
            if variable.startswith("."):
                return variable[1:]
            return f"variables[{self.signature.variables.index(variable)}]"
        if op is Ops.REG and node not in self.registers:
            self.registers[node] = None
            self.names[node] = f"r{len(self.registers)}"
        name = self.names[node]
        return f"{name}[l]" if node.shape else name

    def define(self, node: Node, expression: str) -> None:
        """Declare a value and compute it, lane by lane."""
        self.count += 1
        name = self.names[node] = f"v{self.count}"
        kind = _TYPES[node.dtype]
        if node.shape:
            lanes = node.shape[0]
            self.line(f"{kind} {name}[{lanes}];")
            self.line(f"for (int l = 0; l < {lanes}; l++) {name}[l] = {expression};")
        else:
            self.line(f"{kind} {name} = {expression};")

    def function(self, name: str, text: str) -> str:
        """The name of a function that is defined once before ours."""
        self.functions.setdefault(name, text)
        return name

    # --- instructions ---------------------------------------------------------------------------

    def _instruction(self, node: Node) -> None:
        op = node.op
        rule = _RULES.get(op)
        if rule is not None:
            rule(self, node)
            return
        expression = _EXPRESSIONS.get(op)
        if expression is None:
            raise CompilerBug("C has no rule for an op", found=node)
        operands = [self.use(child) for child in node.src]
        self.define(node, expression(self, node, *operands))


def _array_text(node: Node) -> str:
    return f"[{node.shape[0]}]" if node.shape else ""


def constant_text(node: Node) -> str:
    """A constant as C spells it, with its type."""
    value, dtype = node.arg, node.dtype
    if dtype.kind == "bool":
        return "1" if value else "0"
    if dtype.kind != "float":
        if dtype is dtypes.int64 and value == dtype.min:
            return "INT64_MIN"
        suffix = {dtypes.int64: "LL", dtypes.uint64: "ULL", dtypes.uint32: "U"}.get(dtype, "")
        return f"({value}{suffix})"
    kind = _TYPES[dtype]
    if math.isnan(value):
        return f'(({kind})__builtin_nan(""))'
    if math.isinf(value) or (dtype is dtypes.float32 and math.isinf(round_float32(value))):
        return f"(({kind}){'-' if value < 0 else ''}__builtin_inf())"
    if dtype is dtypes.float32:
        return f"({round_float32(value).hex()}f)"
    return f"(({kind}){float(value).hex()})"


# --- elementwise --------------------------------------------------------------------------------

Expression = Callable[..., str]


def _unsigned(dtype: DType) -> str:
    return "uint64_t" if dtype.bits == 64 else "uint32_t"


def _operator(symbol: str) -> Expression:
    def rule(f: _Function, node: Node, x: str, y: str) -> str:
        dtype = node.dtype
        if dtype.kind == "float":
            return f"{x} {symbol} {y}"
        if dtype.kind == "bool":
            return f"{x} {_BOOL_SYMBOLS.get(symbol, symbol)} {y}"
        wide = _unsigned(dtype)
        return f"({_TYPES[dtype]})(({wide}){x} {symbol} ({wide}){y})"

    return rule


_BOOL_SYMBOLS = MappingProxyType({"+": "|", "*": "&", "-": "^"})
_COMPARISONS = MappingProxyType(
    {Ops.CMPLT: "<", Ops.CMPLE: "<=", Ops.CMPEQ: "==", Ops.CMPNE: "!="}
)


def _compare(f: _Function, node: Node, x: str, y: str) -> str:
    return f"{x} {_COMPARISONS[node.op]} {y}"


def _divide(f: _Function, node: Node, x: str, y: str) -> str:
    return f"({_TYPES[node.dtype]})({x} / {y})"


def _shift(symbol: str) -> Expression:
    def rule(f: _Function, node: Node, x: str, y: str) -> str:
        kind = _TYPES[node.dtype]
        operand = f"({_unsigned(node.dtype)}){x}" if symbol == "<<" else x
        return f"({kind})({operand} {symbol} {y})"

    return rule


def _extreme(f: _Function, node: Node, x: str, y: str) -> str:
    kind, dtype = _TYPES[node.dtype], node.dtype
    sign = ">" if node.op is Ops.MAX else "<"
    if dtype.kind == "bool":
        return f"{x} {'|' if node.op is Ops.MAX else '&'} {y}"
    # A NaN in either operand gives NaN.
    nan = " || x != x" if dtype.kind == "float" else ""
    name = f.function(
        f"{node.op.name.lower()}_{dtype.name}",
        f"static inline {kind} {node.op.name.lower()}_{dtype.name}({kind} x, {kind} y) "
        f"{{ return x {sign} y{nan} ? x : y; }}",
    )
    return f"{name}({x}, {y})"


def _builtin(name: str) -> Expression:
    def rule(f: _Function, node: Node, *operands: str) -> str:
        if node.dtype.kind != "float":
            if len(operands) == 1:
                return operands[0]
            wide = _unsigned(node.dtype)
            x, y, z = (f"({wide}){operand}" for operand in operands)
            return f"({_TYPES[node.dtype]})({x} * {y} + {z})"
        suffix = "f" if node.dtype is dtypes.float32 else ""
        return f"__builtin_{name}{suffix}({', '.join(operands)})"

    return rule


def _negate(f: _Function, node: Node, x: str) -> str:
    if node.dtype.kind == "float":
        return f"-{x}"
    return f"({_TYPES[node.dtype]})(0 - ({_unsigned(node.dtype)}){x})"


def _absolute(f: _Function, node: Node, x: str) -> str:
    if node.dtype.kind == "float":
        return _builtin("fabs")(f, node, x)
    if node.dtype.kind == "uint":
        return x
    return f"({_TYPES[node.dtype]})({x} < 0 ? 0 - ({_unsigned(node.dtype)}){x} : {x})"


def _invert(f: _Function, node: Node, x: str) -> str:
    return f"!{x}" if node.dtype.kind == "bool" else f"({_TYPES[node.dtype]})~{x}"


def _reciprocal(f: _Function, node: Node, x: str) -> str:
    return f"{constant_text(const(1.0, node.dtype))} / {x}"


def _where(f: _Function, node: Node, cond: str, x: str, y: str) -> str:
    return f"{cond} ? {x} : {y}"


def _modulo(f: _Function, node: Node, x: str, y: str) -> str:
    kind = _TYPES[node.dtype]
    suffix = "f" if node.dtype is dtypes.float32 else ""
    name = f.function(
        f"mod_{node.dtype.name}",
        f"static inline {kind} mod_{node.dtype.name}({kind} x, {kind} y) {{ {kind} r = "
        f"__builtin_fmod{suffix}(x, y); return r != 0 && (r < 0) != (y < 0) ? r + y : r; }}",
    )
    return f"{name}({x}, {y})"


def _cast(f: _Function, node: Node, x: str) -> str:
    source, target = node.src[0].dtype, node.dtype
    kind = _TYPES[target]
    if target.kind == "bool":
        return f"{x} != 0"
    if source.kind != "float" or target.kind == "float":
        return f"({kind}){x}"
    least, most = int(target.min), int(target.max)
    old = _TYPES[source]
    low = constant_text(const(float(least), source))
    high = constant_text(const(float(most + 1), source))
    name = f.function(
        f"{source.name}_to_{target.name}",
        f"static inline {kind} {source.name}_to_{target.name}({old} x) {{ return x != x ? 0 : "
        f"x < {low} ? {constant_text(const(least, target))} : "
        f"x >= {high} ? {constant_text(const(most, target))} : ({kind})x; }}",
    )
    return f"{name}({x})"


def _bitcast(f: _Function, node: Node, x: str) -> str:
    source, target = node.src[0].dtype, node.dtype
    old, kind = _TYPES[source], _TYPES[target]
    if source.kind != "float" and target.kind != "float":
        return f"({kind}){x}"
    name = f.function(
        f"{source.name}_as_{target.name}",
        f"static inline {kind} {source.name}_as_{target.name}({old} x) {{ {kind} y; "
        "__builtin_memcpy(&y, &x, sizeof y); return y; }",
    )
    return f"{name}({x})"


_EXPRESSIONS: MappingProxyType[Op, Expression] = MappingProxyType(
    {
        Ops.ADD: _operator("+"),
        Ops.SUB: _operator("-"),
        Ops.MUL: _operator("*"),
        Ops.AND: _operator("&"),
        Ops.OR: _operator("|"),
        Ops.XOR: _operator("^"),
        Ops.DIV: _divide,
        Ops.TRUNCDIV: _divide,
        Ops.MOD: _modulo,
        Ops.SHL: _shift("<<"),
        Ops.SHR: _shift(">>"),
        **dict.fromkeys(COMPARE, _compare),
        **dict.fromkeys((Ops.MAX, Ops.MIN), _extreme),
        Ops.SQRT: _builtin("sqrt"),
        Ops.FLOOR: _builtin("floor"),
        Ops.CEIL: _builtin("ceil"),
        Ops.TRUNC: _builtin("trunc"),
        Ops.RINT: _builtin("roundeven"),
        Ops.FMA: _builtin("fma"),
        Ops.NEG: _negate,
        Ops.ABS: _absolute,
        Ops.NOT: _invert,
        Ops.RECIPROCAL: _reciprocal,
        Ops.WHERE: _where,
        Ops.CAST: _cast,
        Ops.BITCAST: _bitcast,
    }
)


# --- lanes, memory, control ---------------------------------------------------------------------


def _splat(f: _Function, node: Node) -> None:
    f.define(node, f.use(node.src[0]))


def _line(f: _Function, node: Node) -> None:
    f.define(node, "l")


def _part(f: _Function, node: Node) -> None:
    f.define(node, f"{f.use(node.src[0])[:-3]}[l + {node.arg[0]}]")


def _extract(f: _Function, node: Node) -> None:
    f.define(node, f"{f.use(node.src[0])[:-3]}[{node.arg}]")


def _any(f: _Function, node: Node) -> None:
    vector = f.use(node.src[0])
    f.define(node, "0")
    lanes = node.src[0].shape[0]
    f.line(f"for (int l = 0; l < {lanes}; l++) {f.names[node]} |= {vector};")


def _set(f: _Function, node: Node) -> None:
    register, value = node.src
    target, source = f.use(register), f.use(value)
    if register.shape:
        f.line(f"for (int l = 0; l < {register.shape[0]}; l++) {target} = {source};")
    else:
        f.line(f"{target} = {source};")


def _place(f: _Function, node: Node) -> str:
    """The element of an access; in a vector access, of its lane `l`."""
    base, offset = node.src[:2]
    access = node.arg
    parts = [f.use(offset)]
    if access.width > 1 and not offset.shape:
        parts.append("l" if access.stride == 1 else f"l * {access.stride}LL")
    if access.at:
        parts.append(str(access.at))
    return f"{f.names[base]}[{' + '.join(parts)}]"


def _vload(f: _Function, node: Node) -> None:
    place = _place(f, node)
    f.define(node, f"{f.use(node.src[2])} ? {place} : 0" if len(node.src) > 2 else place)


def _vstore(f: _Function, node: Node) -> None:
    text = f"{_place(f, node)} = {f.use(node.src[2])};"
    if len(node.src) > 3:
        text = f"if ({f.use(node.src[3])}) {text}"
    if node.arg.width > 1:
        text = f"for (int l = 0; l < {node.arg.width}; l++) {text}"
    f.line(text)


def _begin(f: _Function, node: Node) -> None:
    start, stop = (f.use(child) for child in node.src[:2])
    f.count += 1
    name = f.names[node] = f"v{f.count}"
    f.line(f"for (int64_t {name} = {start}; {name} < {stop}; {name}++) {{")
    f.depth += 1


def _test(f: _Function, node: Node) -> None:
    f.line(f"if ({f.use(node.src[0])}) {{")
    f.depth += 1


def _end(f: _Function, node: Node) -> None:
    f.depth -= 1
    f.line("}")


_RULES: MappingProxyType[Op, Callable[[_Function, Node], None]] = MappingProxyType(
    {
        Ops.SPLAT: _splat,
        Ops.READ: _splat,
        Ops.LANES: _line,
        Ops.PART: _part,
        Ops.EXTRACT: _extract,
        Ops.ANY: _any,
        Ops.SET: _set,
        Ops.VLOAD: _vload,
        Ops.VSTORE: _vstore,
        Ops.BEGIN: _begin,
        Ops.TEST: _test,
        Ops.END: _end,
    }
)

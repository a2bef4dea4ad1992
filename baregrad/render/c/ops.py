"""Instructions in C: one rule per op, the same for C and CUDA C but for what `Dialect` says."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2s
from types import MappingProxyType

from baregrad.base.bits import next_power_of_two
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, const, make_node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.c.text import CText, Rule
from baregrad.render.interface import BOOL_OPS, FLOAT_FUNCTIONS

# --- elementwise --------------------------------------------------------------------------------

Expression = Callable[..., str]


_SYMBOLS = MappingProxyType(
    {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^"}
)
_COMPARISONS = MappingProxyType(
    {Ops.CMPLT: "<", Ops.CMPLE: "<=", Ops.CMPEQ: "==", Ops.CMPNE: "!="}
)
_BOOL_SYMBOLS = MappingProxyType({"and": "&", "or": "|", "xor": "^"})


def _binary(f: CText, node: Node, x: str, y: str) -> str:
    dtype = node.dtype
    if dtype.kind == "bool":
        return f"{x} {_BOOL_SYMBOLS[BOOL_OPS[node.op]]} {y}"
    symbol = _SYMBOLS[node.op]
    if dtype.kind == "float":
        return f"{x} {symbol} {y}"
    wide = f.unsigned(dtype)
    return f"({f.type(dtype)})(({wide}){x} {symbol} ({wide}){y})"


def _infix(symbol: str) -> Expression:
    """What C has as it is, but for its type."""
    return lambda f, node, x, y: f"({f.type(node.dtype)})({x} {symbol} {y})"


def _shift_left(f: CText, node: Node, x: str, y: str) -> str:
    return _infix("<<")(f, node, f"({f.unsigned(node.dtype)}){x}", y)


def _extreme(f: CText, node: Node, x: str, y: str) -> str:
    kind, dtype = f.type(node.dtype), node.dtype
    sign = ">" if node.op is Ops.MAX else "<"
    if dtype.kind == "bool":
        return _binary(f, node, x, y)
    # A NaN in either operand gives NaN.
    nan = " || x != x" if dtype.kind == "float" else ""
    name = f"{node.op.name.lower()}_{dtype.name}"
    body = f"return x {sign} y{nan} ? x : y;"
    if f.dialect.extreme and dtype.kind == "int" and dtype.bits <= 32:
        body = f.dialect.extreme.replace("{test}", "gt" if node.op is Ops.MAX else "lt")
    return f.apply(name, kind, (kind, kind), body, x, y)


def _builtin(name: str) -> Expression:
    def rule(f: CText, node: Node, *operands: str) -> str:
        if node.dtype.kind != "float":
            if len(operands) == 1:
                return operands[0]
            wide = f.unsigned(node.dtype)
            x, y, z = (f"({wide}){operand}" for operand in operands)
            return f"({f.type(node.dtype)})({x} * {y} + {z})"
        return f"{f.math(name, node.dtype)}({', '.join(operands)})"

    return rule


def _negate(f: CText, node: Node, x: str) -> str:
    if node.dtype.kind == "float":
        # GCC makes one instruction of a negated FMA, which gives 0 where the sum is 0, not -0.
        hidden = node.src[0].op is Ops.FMA and node.dtype.bits >= 32
        return _negate_bits(f, node.dtype, x) if hidden else f"-{x}"
    return f"({f.type(node.dtype)})(0 - ({f.unsigned(node.dtype)}){x})"


def _negate_bits(f: CText, dtype: DType, x: str) -> str:
    kind, bits = f.type(dtype), f.unsigned(dtype)
    copy = f.dialect.functions["memcpy"]
    body = (
        f"{bits} b; {copy}(&b, &x, sizeof b); "
        f"b ^= ({bits})1 << {dtype.bits - 1}; {copy}(&x, &b, sizeof x); return x;"
    )
    return f.apply(f"negated_{dtype.name}", kind, (kind,), body, x)


def _absolute(f: CText, node: Node, x: str) -> str:
    if node.dtype.kind == "float":
        return _builtin("fabs")(f, node, x)
    if node.dtype.kind == "uint":
        return x
    return f"({f.type(node.dtype)})({x} < 0 ? 0 - ({f.unsigned(node.dtype)}){x} : {x})"


def _invert(f: CText, node: Node, x: str) -> str:
    return f"!{x}" if node.dtype.kind == "bool" else f"({f.type(node.dtype)})~{x}"


def _modulo(f: CText, node: Node, x: str, y: str) -> str:
    kind = f.type(node.dtype)
    rest = f"{kind} r = {f.math('fmod', node.dtype)}(x, y);"
    body = f"{rest} return r != 0 && (r < 0) != (y < 0) ? r + y : r;"
    return f.apply(f"mod_{node.dtype.name}", kind, (kind, kind), body, x, y)


def _cast(f: CText, node: Node, x: str) -> str:
    source, target = node.src[0].dtype, node.dtype
    halves = f.dialect.halves
    if source in halves and source is target:
        return x
    if source in halves:
        x, source = f"{f.function(*halves[source][0])}({x})", dtypes.float32
    if target in halves:
        return f"{f.function(*halves[target][1])}({_converted(f, x, source, dtypes.float32)})"
    return _converted(f, x, source, target)


def _converted(f: CText, x: str, source: DType, target: DType) -> str:
    kind = f.type(target)
    if target.kind == "bool":
        return f"{x} != 0"
    if source.kind != "float" or target.kind == "float":
        return f"({kind}){x}"
    least, most = int(target.min), int(target.max)
    low = f.constant(const(float(least), source))
    high = f.constant(const(float(most + 1), source))
    body = (
        f"return x != x ? 0 : x < {low} ? {f.constant(const(least, target))} : "
        f"x >= {high} ? {f.constant(const(most, target))} : ({kind})x;"
    )
    return f.apply(f"{source.name}_to_{target.name}", kind, (f.type(source),), body, x)


def _bitcast(f: CText, node: Node, x: str) -> str:
    source, target = node.src[0].dtype, node.dtype
    old, kind = f.type(source), f.type(target)
    if source.kind != "float" and target.kind != "float":
        return f"({kind}){x}"
    body = f"{kind} y; {f.dialect.functions['memcpy']}(&y, &x, sizeof y); return y;"
    return f.apply(f"{source.name}_as_{target.name}", kind, (old,), body, x)


def _lookup(f: CText, node: Node, x: str) -> str:
    kind, place = f.type(node.dtype), f.type(node.src[0].dtype)
    numbers = ", ".join([f.constant(const(number, node.dtype)) for number in node.arg])
    name = f"table_{blake2s(f'{kind} {numbers}'.encode(), digest_size=8).hexdigest()}"
    body = f"const {kind} table[] = {{{numbers}}}; return table[x & {len(node.arg) - 1}];"
    return f.apply(name, kind, (place,), body, x)


def _ldexp(f: CText, node: Node, x: str, y: str) -> str:
    kind = f.type(node.dtype)
    # What is further off is 0 or infinite as well, and no int.
    body = (
        "if (y != y) return y; int n = (int)(y < -5000 ? -5000 : y > 5000 ? 5000 : y); "
        f"return {f.math('ldexp', node.dtype)}(x, n);"
    )
    return f.apply(f"ldexp_{node.dtype.name}", kind, (kind, kind), body, x, y)


def _dot_bytes(f: CText, node: Node, x: str, y: str, z: str) -> str:
    kind, byte = f.type(dtypes.int32), f.type(dtypes.int8)
    wide = f.unsigned(dtypes.int32)
    products = " + ".join(
        f"({wide})(({kind})(({wide})x >> {place} & 255) * ({byte})(({wide})y >> {place}))"
        for place in range(0, 32, 8)
    )
    return f.apply("dot4", kind, (kind,) * 3, f"return ({kind})(({wide})z + {products});", x, y, z)


def _dot_pairs(f: CText, node: Node, x: str, y: str, z: str) -> str:
    kind, half = f.type(dtypes.int32), f.type(dtypes.int16)
    wide = f.unsigned(dtypes.int32)
    name, first = ("dot2lo", 0) if node.op is Ops.DOT2LO else ("dot2hi", 16)
    products = " + ".join(
        f"({wide})(({kind})(({wide})x >> {first + 8 * place} & 255) * "
        f"({half})(({wide})y >> {16 * place}))"
        for place in range(2)
    )
    return f.apply(name, kind, (kind,) * 3, f"return ({kind})(({wide})z + {products});", x, y, z)


def _dot_halves(f: CText, node: Node, x: str, y: str, z: str) -> str:
    kind, word, bits = f.type(node.dtype), f.type(dtypes.int32), f.unsigned(dtypes.int32)
    copy, fma = f.dialect.functions["memcpy"], f.math("fma", node.dtype)
    # Subnormal numbers are 0.
    number = f.function(
        "number_of_bits",
        f"{kind} number_of_bits({bits} b) {{ {kind} x; if (!(b & 0x7f800000)) b &= 0x80000000; "
        f"{copy}(&x, &b, sizeof x); return x; }}",
    )
    flushed = f.function(
        "flushed",
        f"{kind} flushed({kind} x) {{ {bits} b; {copy}(&b, &x, sizeof b); return {number}(b); }}",
    )
    upper, lower = [
        [f"{number}(({bits}){word_of}{change})" for word_of in "xy"]
        for change in (" & 0xffff0000", " << 16")
    ]
    body = (
        f"z = {flushed}({fma}({', '.join(upper)}, {flushed}(z))); "
        f"return {flushed}({fma}({', '.join(lower)}, z));"
    )
    return f.apply("dot2", kind, (word, word, kind), body, x, y, z)


def _reciprocal(f: CText, node: Node, x: str) -> str:
    return f"{f.constant(const(1.0, node.dtype))} / {x}"


_EXPRESSIONS: MappingProxyType[Op, Expression] = MappingProxyType(
    {
        **dict.fromkeys(_SYMBOLS, _binary),
        **dict.fromkeys(_COMPARISONS, lambda f, n, x, y: f"{x} {_COMPARISONS[n.op]} {y}"),
        **dict.fromkeys((Ops.DIV, Ops.TRUNCDIV), _infix("/")),
        Ops.MOD: _modulo,
        Ops.SHL: _shift_left,
        Ops.SHR: _infix(">>"),
        **dict.fromkeys((Ops.MAX, Ops.MIN), _extreme),
        **{op: _builtin(name) for op, name in FLOAT_FUNCTIONS.items()},
        Ops.EXP_NEAR: _builtin("exp"),
        Ops.EXP2_NEAR: _builtin("exp2"),
        Ops.LDEXP: _ldexp,
        Ops.DOT4: _dot_bytes,
        **dict.fromkeys((Ops.DOT2LO, Ops.DOT2HI), _dot_pairs),
        Ops.DOT2: _dot_halves,
        Ops.NEG: _negate,
        Ops.ABS: _absolute,
        Ops.NOT: _invert,
        **dict.fromkeys((Ops.RECIPROCAL, Ops.RECIPROCAL_NEAR), _reciprocal),
        Ops.WHERE: lambda f, n, condition, x, y: f"{condition} ? {x} : {y}",
        Ops.CAST: _cast,
        Ops.BITCAST: _bitcast,
        Ops.LOOKUP: _lookup,
        **dict.fromkeys((Ops.SPLAT, Ops.READ), lambda f, n, x: x),
        Ops.LANES: lambda f, n: "l",
        Ops.PART: lambda f, n, _: f"{f.names[n.src[0]]}[l + {n.arg[0]}]",
        Ops.EXTRACT: lambda f, n, _: f"{f.names[n.src[0]]}[{n.arg}]",
    }
)


# --- lanes, registers, control ------------------------------------------------------------------


def _across(f: CText, node: Node) -> None:
    """Folded by halves in an array of its own."""
    (vector,) = node.src
    f.count += 1
    name = f"t{f.count}"
    lanes = vector.shape[0]
    f.line(f"{f.type(node.dtype)} {name}[{lanes}];")
    f.each(lanes, f"{name}[l] = {f.use(vector)};")
    op = node.arg.monoid.primitive
    both = make_node(op, node.dtype, (vector, vector))
    while lanes > 1:
        half = next_power_of_two(lanes) // 2
        folded = _EXPRESSIONS[op](f, both, f"{name}[l]", f"{name}[l + {half}]")
        f.each(lanes - half, f"{name}[l] = {folded};")
        lanes = half
    f.define(node, f"{name}[0]")


def _join(f: CText, node: Node) -> None:
    lanes = ", ".join([f.use(lane) for lane in node.src])
    f.line(f"{f.type(node.dtype)} {f.fresh(node)}[{len(node.src)}] = {{ {lanes} }};")


def _any(f: CText, node: Node) -> None:
    vector = f.use(node.src[0])
    f.define(node, "0")
    lanes = node.src[0].shape[0]
    f.each(lanes, f"{f.names[node]} |= {vector};")


def _set(f: CText, node: Node) -> None:
    register, value = node.src
    target, source = f.use(register), f.use(value)
    if register.shape:
        f.each(register.shape[0], f"{target} = {source};")
    else:
        f.line(f"{target} = {source};")


def _begin(f: CText, node: Node) -> None:
    start, stop = (f.use(child) for child in node.src[:2])
    if len(node.src) > 2 and f.program.arg.grain > 1:
        start, stop = (f"{end} * {f.program.arg.grain}" for end in (start, stop))
    name = f.fresh(node)
    f.line(f"for ({f.type(node.dtype)} {name} = {start}; {name} < {stop}; {name}++) {{")
    f.depth += 1


def _test(f: CText, node: Node) -> None:
    f.line(f"if ({f.use(node.src[0])}) {{")
    f.depth += 1


def _end(f: CText, node: Node) -> None:
    f.depth -= 1
    f.line("}")


# --- memory --------------------------------------------------------------------------------------


def place_text(f: CText, node: Node, more: str) -> str:
    """The element of an access, `more` elements on."""
    base, offset = node.src[:2]
    parts = [f.use(offset), more, str(node.arg.at) if node.arg.at else ""]
    return f"{f.names[base]}[{' + '.join(filter(None, parts))}]"


def _lane_place(f: CText, node: Node) -> str:
    """The element of an access; in a vector access, of its lane `l`."""
    access = node.arg
    if access.width == 1 or node.src[1].shape:
        return place_text(f, node, "")
    if access.order:
        *front, last = access.order
        lane = "".join([f"l == {at} ? {place} : " for at, place in enumerate(front)])
        return place_text(f, node, f"({lane}{last})")
    step = access.stride * _elements_at_once(node)
    stride = "l" if step == 1 else f"l * {step}{f.dialect.stride}"
    return place_text(f, node, stride)


def _elements_at_once(node: Node) -> int:
    """How many elements of its array each lane of a VLOAD is made of."""
    return node.dtype.bits // node.src[0].dtype.bits if node.op is Ops.VLOAD else 1


def vload(f: CText, node: Node) -> None:
    """VLOAD, one lane after the other."""
    place = _lane_place(f, node)
    if _elements_at_once(node) > 1:
        kind, copy = f.type(node.dtype), f.dialect.functions["memcpy"]
        name = f"read_{node.dtype.name}"
        body = f"{kind} x; {copy}(&x, p, sizeof x); return x;"
        place = f"{f.function(name, f'{kind} {name}(const void *p) {{ {body} }}')}(&{place})"
    f.define(node, f"{f.use(node.src[2])} ? {place} : 0" if len(node.src) > 2 else place)


def vstore(f: CText, node: Node) -> None:
    """VSTORE, one lane after the other."""
    text = f"{_lane_place(f, node)} = {f.use(node.src[2])};"
    if len(node.src) > 3:
        text = f"if ({f.use(node.src[3])}) {text}"
    if node.arg.width > 1:
        f.each(node.arg.width, text)
    else:
        f.line(text)


CONTROL_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.ACROSS: _across,
        Ops.JOIN: _join,
        Ops.ANY: _any,
        Ops.SET: _set,
        Ops.BEGIN: _begin,
        Ops.TEST: _test,
        Ops.END: _end,
    }
)


def instruction(f: CText, node: Node, rules: MappingProxyType[Op, Rule]) -> None:
    """Write an instruction: by a rule of the renderer's own, or as all of them do."""
    rule = rules.get(node.op) or CONTROL_RULES.get(node.op)
    if rule is not None:
        rule(f, node)
        return
    expression = _EXPRESSIONS.get(node.op)
    if expression is None:
        raise CompilerBug(f"{f.dialect.name} has no rule for an op", found=node)
    operands = [f.use(child) for child in node.src]
    f.define(node, expression(f, node, *operands))

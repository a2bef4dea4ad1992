"""Value ranges: inclusive bounds of index, integer and bool nodes, computed once per node."""

from __future__ import annotations

from collections.abc import Callable

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Column, Ops

Bounds = tuple[int, int]
# Larger than any extent or offset.
INFINITE = 1 << 62
# Beyond every integer that memory can hold, so that arithmetic on unknown values stays sound.
UNKNOWN = 1 << 64
_KINDS = frozenset(("index", "int", "uint", "bool"))
BOUNDS: Column[Callable[[Node], Bounds | None]] = Column("rule of bounds")


def bounds(node: Node) -> Bounds:
    """The smallest and largest value `node` can take, inclusive; +-UNKNOWN where nothing is known.

    `index` arithmetic is exact; for wrapping integer dtypes bounds that leave the dtype widen to
    all of it.
    """
    found: Bounds | None = node._bounds
    if found is not None:
        return found
    for child in node.src:
        if child._bounds is None and child.src:
            break
    else:
        # Mostly what a node is made of was asked for before it.
        found = node._bounds = _clamp(node, _rule(node))
        return found
    for below in toposort(node, enter=lambda n: n._bounds is None):
        if below._bounds is None:
            below._bounds = _clamp(below, _rule(below))
    assert node._bounds is not None
    return node._bounds


def _everything(node: Node) -> Bounds:
    dtype = node.dtype
    if dtype.kind == "bool":
        return (0, 1)
    if dtype.kind == "uint":
        return (0, (1 << dtype.bits) - 1)
    if dtype.kind == "int":
        return (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    return (-UNKNOWN, UNKNOWN)


def _clamp(node: Node, found: Bounds | None) -> Bounds:
    if found is None:
        return _everything(node)
    if node.dtype.kind == "index":
        return found
    lo, hi = found
    everything = _everything(node)
    return found if lo >= everything[0] and hi <= everything[1] else everything


def _rule(node: Node) -> Bounds | None:
    if node.dtype.kind not in _KINDS:
        return None
    rule = BOUNDS.get(node.op)
    return None if rule is None else rule(node)


@BOUNDS(Ops.CONST)
def _const(node: Node) -> Bounds:
    return (int(node.arg), int(node.arg))


@BOUNDS(Ops.VAR)
def _var(node: Node) -> Bounds:
    return (node.arg.lo, node.arg.hi)


@BOUNDS(Ops.RANGE)
def _range(node: Node) -> Bounds:
    return (0, max(bounds(node.src[0])[1] - 1, 0))


@BOUNDS(Ops.ADD)
def _add(node: Node) -> Bounds:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    return (a + c, b + d)


@BOUNDS(Ops.SUB)
def _sub(node: Node) -> Bounds:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    return (a - d, b - c)


@BOUNDS(Ops.MUL)
def _mul(node: Node) -> Bounds:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    products = (a * c, a * d, b * c, b * d)
    return (min(products), max(products))


@BOUNDS(Ops.NEG)
def _neg(node: Node) -> Bounds:
    lo, hi = bounds(node.src[0])
    return (-hi, -lo)


@BOUNDS(Ops.FLOORDIV)
def _floordiv(node: Node) -> Bounds | None:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    if c <= 0:
        return None
    quotients = (a // c, a // d, b // c, b // d)
    return (min(quotients), max(quotients))


@BOUNDS(Ops.MOD)
def _mod(node: Node) -> Bounds | None:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    if c <= 0:
        return None
    if a >= 0 and b < c:
        return (a, b)
    return (0, min(d - 1, b) if a >= 0 else d - 1)


@BOUNDS(Ops.MAX)
def _max(node: Node) -> Bounds:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    return (max(a, c), max(b, d))


@BOUNDS(Ops.MIN)
def _min(node: Node) -> Bounds:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    return (min(a, c), min(b, d))


@BOUNDS(Ops.WHERE)
def _where(node: Node) -> Bounds:
    _, x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    return (min(a, c), max(b, d))


def _operands(node: Node) -> tuple[Bounds, Bounds] | None:
    """The bounds of both operands of a comparison, None for floats."""
    if node.src[0].dtype.kind not in ("index", "int", "uint", "bool"):
        return None
    return bounds(node.src[0]), bounds(node.src[1])


@BOUNDS(Ops.CMPLT)
def _cmplt(node: Node) -> Bounds | None:
    operands = _operands(node)
    if operands is None:
        return None
    (a, b), (c, d) = operands
    return (1, 1) if b < c else (0, 0) if a >= d else (0, 1)


@BOUNDS(Ops.CMPLE)
def _cmple(node: Node) -> Bounds | None:
    operands = _operands(node)
    if operands is None:
        return None
    (a, b), (c, d) = operands
    return (1, 1) if b <= c else (0, 0) if a > d else (0, 1)


@BOUNDS(Ops.CMPEQ)
def _cmpeq(node: Node) -> Bounds | None:
    operands = _operands(node)
    if operands is None:
        return None
    (a, b), (c, d) = operands
    return (1, 1) if a == b == c == d else (0, 0) if b < c or d < a else (0, 1)


@BOUNDS(Ops.CMPNE)
def _cmpne(node: Node) -> Bounds | None:
    found = _cmpeq(node)
    return None if found is None else (1 - found[1], 1 - found[0])


@BOUNDS(Ops.ABS)
def _abs(node: Node) -> Bounds:
    lo, hi = bounds(node.src[0])
    return (0 if lo <= 0 <= hi else min(abs(lo), abs(hi)), max(abs(lo), abs(hi)))


@BOUNDS(Ops.NOT)
def _not(node: Node) -> Bounds | None:
    lo, hi = bounds(node.src[0])
    return (1 - hi, 1 - lo) if node.dtype.kind == "bool" else None


@BOUNDS(Ops.SHR)
def _shr(node: Node) -> Bounds | None:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    if c < 0 or d > 64:
        return None
    return (min(a >> c, a >> d), max(b >> c, b >> d))


@BOUNDS(Ops.CAST)
def _cast(node: Node) -> Bounds | None:
    if node.src[0].dtype.kind not in ("index", "int", "uint", "bool"):
        return None
    lo, hi = bounds(node.src[0])
    if node.dtype.kind == "bool":
        return (int(lo > 0 or hi < 0), int(lo != 0 or hi != 0))
    return (lo, hi)


@BOUNDS(Ops.AND)
def _and(node: Node) -> Bounds | None:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    if node.dtype.kind == "bool":
        return (min(a, c), min(b, d))
    return (0, min(b, d)) if a >= 0 and c >= 0 else None


@BOUNDS(Ops.OR)
def _or(node: Node) -> Bounds | None:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    return (max(a, c), max(b, d)) if node.dtype.kind == "bool" else None


@BOUNDS(Ops.XOR)
def _xor(node: Node) -> Bounds | None:
    x, y = node.src
    (a, b), (c, d) = bounds(x), bounds(y)
    if node.dtype.kind == "bool" or a < 0 or c < 0:
        return None
    return (0, (1 << max(b, d).bit_length()) - 1)


@BOUNDS(Ops.GUARD)
def _guard(node: Node) -> Bounds:
    lo, hi = bounds(node.src[1])
    return (min(lo, 0), max(hi, 0))

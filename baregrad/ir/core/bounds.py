"""Value ranges: inclusive bounds of index, integer and bool nodes, computed once per node."""

from __future__ import annotations

from collections.abc import Callable

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import COMPARE, Column, Ops

Bounds = tuple[int, int]
# Larger than any extent or offset.
INFINITE = 1 << 62
# Beyond every integer that memory can hold, so that arithmetic on unknown values stays sound.
UNKNOWN = 1 << 64
_KINDS = frozenset(("index", "int", "uint", "bool"))
# Of a <= x <= b and c <= y <= d.
PAIRS: Column[Callable[[int, int, int, int], Bounds | None]] = Column("rule of bounds")
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
    pair = PAIRS.get(node.op)
    if pair is not None:
        x, y = node.src
        return pair(*bounds(x), *bounds(y))
    rule = BOUNDS.get(node.op)
    return None if rule is None else rule(node)


BOUNDS.add(lambda node: (int(node.arg), int(node.arg)), Ops.CONST)
BOUNDS.add(lambda node: (node.arg.lo, node.arg.hi), Ops.VAR)
BOUNDS.add(lambda node: (0, max(bounds(node.src[0])[1] - 1, 0)), Ops.RANGE)
PAIRS.add(lambda a, b, c, d: (a + c, b + d), Ops.ADD)
PAIRS.add(lambda a, b, c, d: (a - d, b - c), Ops.SUB)
PAIRS.add(lambda a, b, c, d: (max(a, c), max(b, d)), Ops.MAX)
PAIRS.add(lambda a, b, c, d: (min(a, c), min(b, d)), Ops.MIN)


@PAIRS(Ops.MUL)
def _mul(a: int, b: int, c: int, d: int) -> Bounds:
    products = (a * c, a * d, b * c, b * d)
    return (min(products), max(products))


@BOUNDS(Ops.NEG)
def _neg(node: Node) -> Bounds:
    lo, hi = bounds(node.src[0])
    return (-hi, -lo)


@PAIRS(Ops.FLOORDIV)
def _floordiv(a: int, b: int, c: int, d: int) -> Bounds | None:
    if c <= 0:
        return None
    quotients = (a // c, a // d, b // c, b // d)
    return (min(quotients), max(quotients))


@PAIRS(Ops.MOD)
def _mod(a: int, b: int, c: int, d: int) -> Bounds | None:
    if c <= 0:
        return None
    if a >= 0 and b < c:
        return (a, b)
    return (0, min(d - 1, b) if a >= 0 else d - 1)


@BOUNDS(Ops.WHERE)
def _where(node: Node) -> Bounds:
    (a, b), (c, d) = map(bounds, node.src[1:])
    return (min(a, c), max(b, d))


@BOUNDS(*COMPARE)
def _compare(node: Node) -> Bounds | None:
    if node.src[0].dtype.kind not in _KINDS:
        return None
    (a, b), (c, d) = map(bounds, node.src)
    if node.op is Ops.CMPLT:
        return (int(b < c), int(a < d))
    if node.op is Ops.CMPLE:
        return (int(b <= c), int(a <= d))
    least, most = int(a == b == c == d), int(a <= d and c <= b)
    return (least, most) if node.op is Ops.CMPEQ else (1 - most, 1 - least)


@BOUNDS(Ops.ABS)
def _abs(node: Node) -> Bounds:
    lo, hi = bounds(node.src[0])
    return (0 if lo <= 0 <= hi else min(abs(lo), abs(hi)), max(abs(lo), abs(hi)))


@BOUNDS(Ops.NOT)
def _not(node: Node) -> Bounds | None:
    lo, hi = bounds(node.src[0])
    return (1 - hi, 1 - lo) if node.dtype.kind == "bool" else None


@PAIRS(Ops.SHR)
def _shr(a: int, b: int, c: int, d: int) -> Bounds | None:
    if c < 0 or d > 64:
        return None
    return (min(a >> c, a >> d), max(b >> c, b >> d))


@BOUNDS(Ops.CAST)
def _cast(node: Node) -> Bounds | None:
    if node.src[0].dtype.kind not in _KINDS:
        return None
    lo, hi = bounds(node.src[0])
    if node.dtype.kind == "bool":
        return (int(lo > 0 or hi < 0), int(lo != 0 or hi != 0))
    return (lo, hi)


@BOUNDS(Ops.AND)
def _and(node: Node) -> Bounds | None:
    (a, b), (c, d) = map(bounds, node.src)
    if node.dtype.kind == "bool":
        return (min(a, c), min(b, d))
    # A mask without a sign leaves no more than its own bits of whatever there is.
    most = [high for low, high in ((a, b), (c, d)) if low >= 0]
    return (0, min(most)) if most else None


@BOUNDS(Ops.OR)
def _or(node: Node) -> Bounds | None:
    (a, b), (c, d) = map(bounds, node.src)
    return (max(a, c), max(b, d)) if node.dtype.kind == "bool" else None


@BOUNDS(Ops.XOR)
def _xor(node: Node) -> Bounds | None:
    (a, b), (c, d) = map(bounds, node.src)
    if node.dtype.kind == "bool" or a < 0 or c < 0:
        return None
    return (0, (1 << max(b, d).bit_length()) - 1)


@BOUNDS(Ops.GUARD)
def _guard(node: Node) -> Bounds:
    lo, hi = bounds(node.src[1])
    return (min(lo, 0), max(hi, 0))

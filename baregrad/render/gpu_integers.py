"""Linear level: integers of 64 bits that surely fit 32 are computed in 32.

A GPU computes with 32 bits at a time, so that positions of 64 cost two to four times as much.
What loops and threads count is bounded, and so are most positions made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from operator import floordiv, is_, lshift, mul, rshift
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import COMPARE, Op, Ops, mask_of
from baregrad.render.gpu import ATOMS
from baregrad.render.interface import leaves

I32, I64 = dtypes.int32, dtypes.int64
Span = tuple[int, int]
_ANY: Span = (-(1 << 63), (1 << 63) - 1)
_FITS: Span = (-(1 << 31), (1 << 31) - 1)


def narrow_integers(program: Node) -> Node:
    """A PROGRAM that does the same, with int32 in the place of int64 where the values fit."""
    return program.replace(src=tuple(_Narrowing(program).code))


class _Narrowing:
    """One walk.

    wide: the replacement of each node, of the same dtype. narrow: its int32 form, where it fits.
    spans: the least and greatest value of integers.
    """

    def __init__(self, program: Node) -> None:
        self.code: list[Node] = []
        self.wide: dict[Node, Node] = {}
        self.narrow: dict[Node, Node] = {}
        self.spans: dict[Node, Span] = {}
        # Widened forms, which hold to the end of the block that they stand in.
        self.blocks: list[list[Node]] = [[]]
        info = program.arg
        # How many values the numbers of warps and blocks have.
        self.counts = (
            {"warp": info.warps, "cluster.rank": info.cluster, "cluster.id": prod(info.grid)}
            if info is not None
            else {}
        )
        for leaf in leaves(program):
            if leaf.op is Ops.VAR:
                self._variable(leaf)
        for node in program.src:
            self.visit(node)

    # --- operands -------------------------------------------------------------------------------

    def span(self, node: Node) -> Span:
        """Bounds of an integer."""
        if node.op is Ops.CONST:
            return node.arg, node.arg
        return self.spans.get(node, _ANY)

    def fits(self, node: Node) -> bool:
        """Whether a node's value is at hand in 32 bits."""
        if node.op is Ops.CONST:
            return _inside((node.arg, node.arg))
        return node in self.narrow

    def short(self, node: Node) -> Node:
        """The int32 form of a node that fits."""
        return const(node.arg, I32) if node.op is Ops.CONST else self.narrow[node]

    def full(self, node: Node) -> Node:
        """The replacement of an operand, in its own dtype."""
        found = self.wide.get(node)
        if found is None and node in self.narrow:
            found = self.wide[node] = self.put(Node(Ops.CAST, I64, (self.narrow[node],)))
            self.blocks[-1].append(node)
        return node if found is None else found

    def put(self, node: Node) -> Node:
        """Append an instruction."""
        self.code.append(node)
        return node

    # --- instructions ---------------------------------------------------------------------------

    def visit(self, node: Node) -> None:
        """Append the replacement of an instruction."""
        op = node.op
        if op is Ops.END:
            for value in self.blocks.pop():
                self.wide.pop(value, None)
        if op is Ops.BEGIN:
            self._begin(node)
        elif op.bit & _PLACED and self.fits(node.src[1]):
            buffer, offset, *rest = node.src
            src = (buffer, self.short(offset), *map(self.full, rest))
            self._same(node, src)
        elif op is Ops.MACHINE:
            self._machine(node)
        elif node.dtype is I64 and op is Ops.CAST:
            self._widening(node)
        elif node.dtype is I64 and op.bit & _COUNTED:
            self._counted(node)
        elif op.bit & _READS and node.src[-1].dtype is I64 and all(map(self.fits, node.src)):
            self._of_short(node)
        else:
            self._same(node)
        if op is Ops.TEST or op is Ops.BEGIN:
            self.blocks.append([])

    def _same(self, node: Node, src: tuple[Node, ...] | None = None) -> None:
        """Append an instruction of the same dtype, of replaced operands or others."""
        src = tuple(map(self.full, node.src)) if src is None else src
        unchanged = all(map(is_, src, node.src))
        self.wide[node] = self.put(node if unchanged else Node(node.op, node.dtype, src, node.arg))

    def _variable(self, node: Node) -> None:
        span = node.arg.lo, node.arg.hi
        self.spans[node] = span
        self.wide[node] = node
        if node.dtype is I64 and _inside(span):
            self.narrow[node] = self.put(Node(Ops.CAST, I32, (node,)))

    def _begin(self, node: Node) -> None:
        """A counter runs from its first source to just before its second."""
        low, high = node.src[:2]
        span = self.span(low)[0], max(self.span(high)[1] - 1, self.span(low)[0])
        self.spans[node] = span
        if len(node.src) == 2 and node.dtype is I64 and self.fits(low) and self.fits(high):
            self.wide.pop(node, None)
            src = self.short(low), self.short(high)
            self.narrow[node] = self.put(Node(Ops.BEGIN, I32, src, node.arg))
        else:
            self._same(node)

    def _widening(self, node: Node) -> None:
        """A CAST to int64: of what has 32 bits or fewer there is nothing to do."""
        (x,) = node.src
        kind = x.dtype
        small = kind.kind == "bool" or (kind.kind in ("int", "uint") and kind.bits < 32)
        if kind is I32 or small:
            source = self.full(x)
            self.wide.pop(node, None)
            self.spans[node] = self.spans.get(x) or _span_of(x)
            self.narrow[node] = (
                source if kind is I32 else self.put(Node(Ops.CAST, I32, (source,)))
            )
            if x.op is Ops.REG:
                # A register may change: its value now is meant.
                self.narrow[node] = self.put(Node(Ops.READ, I32, (source,)))
        else:
            self._same(node)

    def _counted(self, node: Node) -> None:
        """Integer arithmetic: in 32 bits if all operands and the result fit."""
        span = _SPANS[node.op](*map(self.span, node.src)) if node.op in _SPANS else _ANY
        operands = node.src[1:] if node.op is Ops.WHERE else node.src
        if node.op is Ops.LANES:
            span = 0, node.arg - 1
        elif node.op.bit & _ARRANGED:
            span = self.span(node.src[0])
        if not (_ANY[0] <= span[0] and span[1] <= _ANY[1]):
            span = _ANY
        self.spans[node] = span
        fits = _inside(span)
        if fits and all(map(self.fits, operands)) and _is_safe(node):
            src = tuple(map(self.short, operands))
            if node.op is Ops.WHERE:
                src = (self.full(node.src[0]), *src)
            self.wide.pop(node, None)
            self.narrow[node] = self.put(Node(node.op, I32, src, node.arg))
            return
        self._same(node)
        self.narrow.pop(node, None)
        if fits:
            self.narrow[node] = self.put(Node(Ops.CAST, I32, (self.wide[node],)))

    def _machine(self, node: Node) -> None:
        """A machine instruction: addresses, coordinates and barriers have 32 bits anyway."""
        name = node.arg.name
        src: tuple[Node, ...]
        if name in ATOMS and self.fits(node.src[1]):
            buffer, offset, *rest = node.src
            src = (buffer, self.short(offset), *map(self.full, rest))
        elif name.startswith(_ADDRESSED):
            src = tuple(
                [self.short(x) if x.dtype is I64 and self.fits(x) else self.full(x)
                 for x in node.src]
            )  # fmt: skip
        else:
            src = tuple(map(self.full, node.src))
        self._same(node, src)
        count = self.counts.get(name)
        if count is not None and node.dtype is I64:
            self.spans[node] = (0, count - 1)
            self.narrow[node] = self.put(Node(Ops.CAST, I32, (self.wide[node],)))

    def _of_short(self, node: Node) -> None:
        """A comparison or conversion of what fits."""
        src = tuple(map(self.short, node.src))
        if node.op is Ops.CAST and node.dtype is I32 and src[0].op is not Ops.CONST:
            self.wide[node] = src[0]
        else:
            self.wide[node] = self.put(Node(node.op, node.dtype, src, node.arg))


def _inside(span: Span) -> bool:
    return _FITS[0] <= span[0] and span[1] <= _FITS[1]


def _span_of(node: Node) -> Span:
    if node.dtype.kind == "bool":
        return 0, 1
    return int(node.dtype.min), int(node.dtype.max)


def _is_safe(node: Node) -> bool:
    """Whether 32 bits do what 64 do: a shift by 32 or more does not."""
    if node.op is Ops.SHL or node.op is Ops.SHR:
        return node.src[1].op is Ops.CONST and 0 <= node.src[1].arg < 32
    return True


# --- bounds --------------------------------------------------------------------------------------


def _corners(function: Callable[[int, int], int]) -> Callable[..., Span]:
    """Bounds of what is monotone in each operand."""

    def rule(x: Span, y: Span) -> Span:
        values = [function(a, b) for a, b in product(x, y)]
        return min(values), max(values)

    return rule


def _and(x: Span, y: Span) -> Span:
    """Of a mask without a sign the result is at most the mask."""
    masks = [span[1] for span in (x, y) if span[0] >= 0]
    return (0, min(masks)) if masks else _ANY


def _or(x: Span, y: Span) -> Span:
    if x[0] < 0 or y[0] < 0:
        return _ANY
    return 0, (1 << max(x[1], y[1]).bit_length()) - 1


def _shift(x: Span, y: Span, left: bool) -> Span:
    if not 0 <= y[0] <= y[1] < 64:
        return _ANY
    return _corners(lshift if left else rshift)(x, y)


def _divided(x: Span, y: Span) -> Span:
    """Quotients by a positive divisor, rounded either way."""
    if y[0] < 1:
        return _ANY
    low, high = _corners(floordiv)(x, y)
    return low, max(high, 0)


def _modulo(x: Span, y: Span) -> Span:
    return (0, y[1] - 1) if y[0] >= 1 else _ANY


_SPANS: MappingProxyType[Op, Callable[..., Span]] = MappingProxyType(
    {
        Ops.ADD: lambda x, y: (x[0] + y[0], x[1] + y[1]),
        Ops.SUB: lambda x, y: (x[0] - y[1], x[1] - y[0]),
        Ops.MUL: _corners(mul),
        Ops.NEG: lambda x: (-x[1], -x[0]),
        Ops.MIN: _corners(min),
        Ops.MAX: _corners(max),
        Ops.AND: _and,
        Ops.OR: _or,
        Ops.XOR: _or,
        Ops.SHL: lambda x, y: _shift(x, y, True),
        Ops.SHR: lambda x, y: _shift(x, y, False),
        Ops.TRUNCDIV: _divided,
        Ops.FLOORDIV: _divided,
        Ops.MOD: _modulo,
        Ops.WHERE: lambda c, x, y: (min(x[0], y[0]), max(x[1], y[1])),
    }
)
_ARRANGED = mask_of((Ops.SPLAT, Ops.EXTRACT, Ops.PART, Ops.JOIN))
_ADDRESSED = ("mbarrier.", "tma.", "bar.", "wgmma.", "stmatrix", "ldmatrix", "cp.async", "bulk.")
_COUNTED = mask_of(_SPANS) | _ARRANGED | Ops.LANES.bit
_PLACED = mask_of((Ops.VLOAD, Ops.VSTORE))
_READS = mask_of((*COMPARE, Ops.CAST))

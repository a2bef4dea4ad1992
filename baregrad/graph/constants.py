"""Constant arrays met by arithmetic: scalars, folded where everything is constant.

An elementwise op takes a scalar of shape () beside an array, so a repeated constant is replaced by
the scalar itself; the algebra's rules then see it. Arrays without elements become constants too.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from baregrad.graph.traced import Traced, again
from baregrad.graph.views import DATA, constant_of, full
from baregrad.ir.algebra.rules import ALGEBRA, simplify
from baregrad.ir.core.node import Node, const, toposort
from baregrad.ir.core.op import ELEMENTWISE, MOVEMENT, Op, Ops, mask_of

_UNFOLDED = frozenset((Ops.SINK, Ops.CONTIGUOUS, Ops.PARAM, Ops.BUFFER, Ops.CONST))


def _visit(node: Node) -> Node | None:
    shape = node.shape
    op = node.op
    if not shape:
        rule = _rule_of(op)
        return None if rule is None else rule(node)
    if 0 in shape and op not in _UNFOLDED:
        if op not in MOVEMENT or constant_of(node) is None:
            return full(const(0, node.dtype), shape)
        return None
    if op.bit & _ELEMENTWISE:
        return _elementwise(node)
    rule = _rule_of(op)
    return None if rule is None else rule(node)


def _elementwise(node: Node) -> Node | None:
    """Repeated constants as scalars; one operand keeps the shape."""
    for child in node.src:
        if not child.mask & DATA and child.shape:
            break
    else:
        return None
    constants = [constant_of(child) if child.shape else None for child in node.src]
    for found in constants:
        if found is not None:
            break
    else:
        return None
    scalars = tuple(child if c is None else c for c, child in zip(constants, node.src, strict=True))
    if any(child.shape for child in scalars):
        return Node(node.op, node.dtype, scalars, node.arg)
    return full(simplify(Node(node.op, node.dtype, scalars, node.arg)), node.shape)


def _gather(node: Node) -> Node | None:
    value = constant_of(node.src[0])
    return None if value is None else full(value, node.shape)


def _fold(node: Node) -> Node | None:
    value = constant_of(node.src[0])
    # -0.0 is another constant, which what is padded with and folded from are not.
    return full(value, node.shape) if value is not None and value is const(0, value.dtype) else None


def _pad(node: Node) -> Node | None:
    """Nothing but zeros is left around an array without elements."""
    return full(const(0, node.dtype), node.shape) if 0 in node.src[0].shape else None


def _scan(node: Node) -> Node | None:
    """A running maximum of a constant is the constant; a running sum of c is (1, 2, ...)*c."""
    value = constant_of(node.src[0])
    monoid = node.arg.monoid
    if value is None or monoid.primitive is None:
        return None
    if monoid.idempotent:
        return full(value, node.shape)
    if monoid.primitive is not Ops.ADD or node.dtype.kind not in ("int", "uint"):
        return None
    axis = node.arg.axis
    extent = node.shape[axis]
    if extent.__class__ is int:
        line = Node(Ops.IOTA, node.dtype, (), extent)
    else:
        line = Node(Ops.IOTA, node.dtype, (extent,))
    counted = Node(Ops.ADD, node.dtype, (line, const(1, node.dtype)))
    product = Node(Ops.MUL, node.dtype, (counted, value))
    beside = tuple(e if i == axis else 1 for i, e in enumerate(node.shape))
    return Node(
        Ops.EXPAND,
        node.dtype,
        (Node(Ops.RESHAPE, node.dtype, (product,), beside),),
        node.shape,
    )


_RULES: MappingProxyType[Op, Callable[[Node], Node | None]] = MappingProxyType(
    {Ops.GATHER: _gather, Ops.FOLD: _fold, Ops.PAD: _pad, Ops.SCAN: _scan}
)
# Asked faster than a read-only view of it.
_rule_of = dict(_RULES).get
_ELEMENTWISE = mask_of(ELEMENTWISE)


def _met_by_arithmetic(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink after `_visit` of what reads constant arrays, or an array without elements."""
    bare = {node for node in order if node.shape and (not node.mask & DATA or 0 in node.shape)}
    sink = order[-1]
    if not bare:
        return sink
    # What is asked about, and in `changed`, by whatever its sources were.
    met, unchanged = bare.isdisjoint, changed.keys().isdisjoint
    for node in order:
        src = node.src
        same = unchanged(src)
        if same and met(src) and node not in bare:
            continue
        made = node if same else again(node, changed)
        found = _visit(made)
        if found is not None:
            made = found
        if made is not node:
            changed[node] = made
    return changed.get(sink, sink)


def fold_constants(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with constant arrays as scalars in arithmetic, and with the scalar rules applied."""
    first: dict[Node, Node] = {}
    later: dict[Node, Node] = {}
    sink = _met_by_arithmetic(order, first)
    result = ALGEBRA.walk(toposort(sink) if first else order, later)
    if first or later:
        for old in order:
            new = first.get(old, old)
            new = later.get(new, new)
            if new is not old:
                changed[old] = new
    return result


CONSTANTS = Traced(
    "constants",
    "repeated constants become scalars, what is constant is computed, x*1 and its like vanish",
    fold_constants,
)

"""What each op of the loop level's expressions is as instructions: one rule per op."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, const, make_node
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.kernel.legalise.divide import divide_index
from baregrad.kernel.linearise.access import lanes_of, touches_index
from baregrad.kernel.linearise.folds import reduce, scan
from baregrad.kernel.linearise.lazy import is_branch, lazy, lazy_load
from baregrad.kernel.linearise.reader import Operands, Reader, Rule
from baregrad.kernel.linearise.scopes import ZERO, number
from baregrad.kernel.loops.loop_pieces import stays_inside

INT32 = (-(1 << 31), (1 << 31) - 1)


def _const(values: Reader, node: Node, operands: Operands) -> Node:
    return number(node.arg) if node.dtype is dtypes.index else node


def _var(values: Reader, node: Node, operands: Operands) -> Node:
    hidden = values.gpu and node.arg.name.startswith(".")
    return make_node(Ops.VAR, dtypes.int32 if hidden else dtypes.int64, (), node.arg)


def _range(values: Reader, node: Node, operands: Operands) -> Node:
    counter = values.counters.get(node)
    if counter is not None:
        return counter
    if node.arg.bind != "vector":
        return number(values.point[node])
    lanes = lanes_of(node)
    return ZERO if lanes == 1 else values.scopes.emit(Ops.LANES, dtypes.int32, (), lanes)


def _load(values: Reader, node: Node, operands: Operands) -> Node:
    # A statement's masks keep what it reads inside its arrays, and its values for its own lanes.
    masks = values.masks
    masked = masks and node.src[0] not in values.memory.registers and not stays_inside(node)
    return values.load(node, values.mask(masks) if masked else None)


def _guard(values: Reader, node: Node, operands: Operands) -> Any:
    cond, inner = node.src
    if inner.op is not Ops.LOAD:
        return lazy(values, node)
    mask = values.mask((*values.masks, cond))
    if mask is not None and inner.src[0] in values.memory.registers:
        zero = const(0, node.dtype)
        return values.apply(Ops.WHERE, node.dtype, mask, values.load(inner, None), zero)
    if mask is None or not is_branch(values, inner, mask):
        return values.load(inner, mask)
    return lazy_load(values, node, mask)


def _elementwise(values: Reader, node: Node, operands: Operands) -> Node:
    return values.compute(node.op, node.dtype, operands, node.arg)


def _cast(values: Reader, node: Node, operands: Operands) -> Node:
    (operand,) = operands
    if node.dtype is dtypes.index:
        low, high = bounds(node)
        narrow = values.gpu and low >= INT32[0] and high <= INT32[1]
        return values.cast(operand, dtypes.int32 if narrow else dtypes.int64)
    if node.src[0].dtype is dtypes.index and operand.op is Ops.CONST:
        value = operand.arg
        return const(bool(value) if node.dtype.kind == "bool" else value, node.dtype)
    same: Node = operand
    return same if same.dtype is node.dtype else values.apply(Ops.CAST, node.dtype, same)


def _index(values: Reader, node: Node, operands: Operands) -> Node:
    """Arithmetic on indices: 64 bits, or 32 where it surely fits, on GPUs or in vectors."""
    width = dtypes.int64
    if values.gpu or any(operand.shape for operand in operands):
        held = [*node.src] if node.dtype.kind == "bool" else [node, *node.src]
        spans = [bounds(child) for child in held if child.dtype is dtypes.index]
        if all(INT32[0] <= low and high <= INT32[1] for low, high in spans):
            width = dtypes.int32
    pairs = zip(node.src, operands, strict=True)
    operands = [values.cast(x, width) if child.dtype is dtypes.index else x for child, x in pairs]
    if node.op is Ops.FLOORDIV or node.op is Ops.MOD:
        return divide_index(values.apply, node, operands, width)
    dtype = node.dtype if node.dtype is not dtypes.index else width
    return values.apply(node.op, dtype, *operands)


def _proj(values: Reader, node: Node, operands: Operands) -> Node:
    part: Node = operands[0][node.arg]
    return part


RULES: MappingProxyType[Op, Rule] = MappingProxyType({
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    Ops.CONST: _const,
    Ops.VAR: _var,
    Ops.RANGE: _range,
    Ops.CAST: _cast,
    Ops.LOAD: _load,
    Ops.GUARD: _guard,
    Ops.REDUCE: reduce,
    Ops.SCAN: scan,
    Ops.PROJ: _proj,
})
# What is computed element by element; where positions are meant, by a rule of its own.
COMPUTED = frozenset([op for op, rule in RULES.items() if rule is _elementwise])
# Asked faster than by a read-only view.
_rule_of = dict(RULES).get
# Of expressions whose values need no steps, and that are as cheap to make again as to remember.
direct_rule = {op: RULES[op] for op in (Ops.CONST, Ops.VAR, Ops.RANGE, Ops.LOAD)}.get


def rule_of(node: Node) -> Rule:
    """The rule for a node; raises CompilerBug for what is no expression."""
    op = node.op
    if op in COMPUTED and touches_index(node):
        return _index
    rule = _rule_of(op)
    if rule is None:
        raise CompilerBug("not an expression of the CPU's loop level", found=node)
    return rule


def known(values: Reader, node: Node, operands: Operands) -> Any:
    """The rule of a value that has steps of its own, since several expressions read it."""
    return values.value(node)

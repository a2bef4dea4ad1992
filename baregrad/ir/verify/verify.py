"""The verifier: the grammar of each level, read from the op table and checked node by node.

A rule is a function that returns what is wrong, or None. The error names the node, the rule, and
the path from the root to the node; the graph is saved so that the failure can be replayed.
"""

from __future__ import annotations

from functools import cache

from baregrad.base.errors import CompilerBug, VerifyError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import ALU, ELEMENTWISE, LEVELS, STATEMENTS, Op, Ops, form_fault
from baregrad.ir.verify.node_rules import NODE_RULES, elementwise_rule, sources_fault
from baregrad.ir.verify.structure import structure_faults


def verify(node: Node, level: str, where: str = "") -> None:
    """Raise VerifyError unless the graph below `node` obeys the grammar of `level`.

    where: said in the message, as in "after pass fuse". Raises CompilerBug for an unknown level.
    """
    if level not in LEVELS:
        raise CompilerBug("an unknown level", found=level, wanted=", ".join(LEVELS))
    order = toposort(node)
    for below in order:
        fault = node_fault(below, level)
        if fault is not None:
            _fail(node, below, fault, level, where)
    for place, fault in structure_faults(order, level):
        _fail(node, place, fault, level, where)


def node_fault(node: Node, level: str) -> str | None:
    """What is wrong with one node, its sources taken as right; None when nothing is."""
    op, arg = node.op, node.arg
    if op in ALU and arg is None:
        return _alu_fault(op, level, node.dtype, *[one.dtype for one in node.src])
    fault = _form_fault(op, level, len(node.src), arg, node.dtype) or sources_fault(node)
    if fault is not None:
        return fault
    if op in ELEMENTWISE and op is not Ops.LOOKUP:
        return elementwise_rule(op, node.dtype, tuple([one.dtype for one in node.src]))
    rule = NODE_RULES.get(op)
    return None if rule is None else rule(node, level)


@cache
def _alu_fault(op: Op, level: str, dtype: DType, *operands: DType) -> str | None:
    """What is wrong with arithmetic, which dtypes tell: half of all nodes, of few kinds."""
    fault = _form_fault(op, level, len(operands), None, dtype)
    return elementwise_rule(op, dtype, operands) if fault is None else fault


def _form_fault(op: Op, level: str, sources: int, arg: object, dtype: DType) -> str | None:
    """What the op's row says against a level, a number of sources, an attribute or a dtype."""
    if level not in op.levels:
        return f"{op.name} stands at the {level} level, legal at: {', '.join(op.levels)}"
    return form_fault(op, sources, arg) or _dtype_fault(op, dtype)


_EFFECTS = STATEMENTS | {
    Ops.OUT, Ops.KERNEL, Ops.PROGRAM, Ops.SET, Ops.VSTORE, Ops.TURN, Ops.TURNED, Ops.PREFETCH,
    Ops.END,
}
_EITHER = frozenset((Ops.SINK, Ops.MACHINE, Ops.PIPE, Ops.TEST))


def _dtype_fault(op: Op, dtype: DType) -> str | None:
    """Effects have the dtype token, everything else a dtype of values."""
    if op in _EITHER:
        return None
    if (dtype is dtypes.token) != (op in _EFFECTS):
        wanted = "token" if op in _EFFECTS else "a dtype of values"
        return f"{op.name} has dtype {dtype}, wanted {wanted}"
    return None


def _fail(root: Node, node: Node, fault: str, level: str, where: str) -> None:
    raise VerifyError(
        f"the {level} level's grammar is broken{' ' + where if where else ''}: {fault}",
        found=f"{node!r} at {path_to(root, node)}",
        ir_text=_text(root),
    )


def _text(root: Node) -> str:
    from baregrad.ir.text.dump import dump

    try:
        return dump(root)
    except CompilerBug:
        # A graph too broken to print must not hide what is wrong with it.
        return repr(root)


def path_to(root: Node, node: Node) -> str:
    """A shortest way down from `root`: op names with the position of each source."""
    parents: dict[Node, tuple[Node, int]] = {}
    reached = [root]
    # Nearer nodes come first: what is reached is looked at in turn.
    for parent in reached:
        for position, child in enumerate(parent.src):
            if child not in parents:
                parents[child] = (parent, position)
                reached.append(child)
    steps = [node.op.name]
    while node is not root and node in parents:
        node, position = parents[node]
        steps.append(f"{node.op.name}[{position}]")
    shown = list(reversed(steps))
    if len(shown) > 12:
        shown = [*shown[:6], f"... {len(shown) - 12} more ...", *shown[-6:]]
    return " > ".join(shown)

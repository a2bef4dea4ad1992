"""The verifier: the grammar of each level, read from the op table and checked node by node.

A rule is a function that returns what is wrong, or None. The error names the node, the rule, and
the path from the root to the node; the graph is saved so that the failure can be replayed.
"""

from __future__ import annotations

from baregrad.base.errors import CompilerBug, VerifyError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import ELEMENTWISE, LEVELS, STATEMENTS, Ops, form_fault
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
    op = node.op
    if level not in op.levels:
        return f"{op.name} stands at the {level} level, legal at: {', '.join(op.levels)}"
    fault = form_fault(op, len(node.src), node.arg) or _dtype_fault(node) or sources_fault(node)
    if fault is not None:
        return fault
    if op in ELEMENTWISE:
        return elementwise_rule(node)
    rule = NODE_RULES.get(op)
    return None if rule is None else rule(node, level)


_EFFECTS = STATEMENTS | {
    Ops.OUT, Ops.KERNEL, Ops.PROGRAM, Ops.SET, Ops.VSTORE, Ops.TURN, Ops.TURNED, Ops.PREFETCH,
    Ops.END,
}
_EITHER = frozenset((Ops.SINK, Ops.MACHINE, Ops.PIPE, Ops.TEST))


def _dtype_fault(node: Node) -> str | None:
    """Effects have the dtype token, everything else a dtype of values."""
    if node.op in _EITHER:
        return None
    if (node.dtype is dtypes.token) != (node.op in _EFFECTS):
        wanted = "token" if node.op in _EFFECTS else "a dtype of values"
        return f"{node.op.name} has dtype {node.dtype}, wanted {wanted}"
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

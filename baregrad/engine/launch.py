"""Launch expressions: symbolic sizes as the small tuples that a Program carries."""

from __future__ import annotations

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.program import BINARY_OPS, LaunchExpr


def launch_expr(value: int | Node) -> LaunchExpr:
    """`value` (an int or an index node over VARs) as a launch expression."""
    if isinstance(value, int):
        return value
    done: dict[Node, LaunchExpr] = {}
    for node in toposort(value):
        if node.op is Ops.CONST:
            done[node] = int(node.arg)
        elif node.op is Ops.VAR:
            done[node] = ("var", node.arg.name)
        elif node.op is Ops.SUB:
            done[node] = ("add", done[node.src[0]], ("mul", done[node.src[1]], -1))
        elif (spelling := node.op.name.lower()) in BINARY_OPS:
            done[node] = (spelling, done[node.src[0]], done[node.src[1]])
        else:
            raise CompilerBug(f"{node.op.name} cannot stand in a launch size")
    return done[value]

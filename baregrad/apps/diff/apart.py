"""Each operation of a program by itself, over the values that a device stored of those before it.

So a reference says of each whether it is right, whatever roundings came before: a comparison of two
floats, or an integer made of one, is the same of the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from baregrad.apps.diff.judging import Array
from baregrad.apps.diff.references import asking
from baregrad.engine.canonical import Canonical
from baregrad.ir.core.attrs import BufferRef, Param
from baregrad.ir.core.node import Node, rebuild
from baregrad.ir.core.op import Ops


def apart(
    program: Canonical, raw: Sequence[Array], values: Mapping[Node, Array], nodes: Sequence[Node],
    device: str,
) -> tuple[Canonical, list[Array]]:
    """Return a program of some nodes, each over parameters for the values below it; its inputs.

    values: raw codes, as the device had them, of nodes of the program.
    """
    inputs, data = list(program.inputs), list(raw)
    memo: dict[Node, Node] = {}
    for node, one in values.items():
        memo[node] = Node(Ops.PARAM, node.dtype, (), Param(len(data), node.shape))
        inputs.append(BufferRef(None, node.shape, device))
        data.append(one)
    made = []
    for node in nodes:
        sources = [rebuild(one, lambda below: None, memo=memo) for one in node.src]
        made.append(Node(node.op, node.dtype, tuple(sources), node.arg))
    whole = replace(program, inputs=tuple(inputs), made={}, requirements=())
    return asking(whole, made), data

"""The smallest script that shows a difference: one operation over the values that it had.

Where the operation by itself is right, those that it is computed with are taken in, one step away
after the other, and the whole program last.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from baregrad.apps.diff.judging import Array, nearest
from baregrad.apps.diff.references import asking
from baregrad.engine.canonical import Canonical
from baregrad.ir.core.attrs import BufferRef, Param
from baregrad.ir.core.node import Node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.text.dump import dump

_WIDTH = 88
# So many steps away from the operation are what it is computed with, before all is taken in.
_STEPS = 3


@dataclass(frozen=True)
class ShownFault:
    """What is to be shown: a node of a program over its inputs, up to a result that has it.

    values: what the operations of the program gave, as raw codes. told: what was found, in words.
    """

    program: Canonical
    raw: tuple[Array, ...]
    node: Node
    result: Node
    values: Mapping[Node, Array]
    told: str
    device: str
    against: str
    tolerance: float | None


def smallest(shown: ShownFault, differs: Callable[[Canonical, Sequence[Array]], bool]) -> str:
    """Return a script; `differs` says whether a program over its inputs shows the difference.

    "" where no program made of this one does, as of a fault that comes and goes.
    """
    for cut in (*_cuts(shown), set()):
        program, raw = _replaced(shown, cut)
        if differs(program, raw):
            return _script(shown, program, raw)
    return ""


def _cuts(shown: ShownFault) -> list[set[Node]]:
    """Return sets of nodes that are given as arrays, those nearest to the node first."""
    known = set(shown.values)
    edge = set(nearest(shown.node, known))
    found = [edge]
    for _ in range(_STEPS):
        edge = {below for one in edge for below in nearest(one, known)}
        if not edge:
            break
        found.append(edge)
    return found


def _replaced(shown: ShownFault, cut: set[Node]) -> tuple[Canonical, list[Array]]:
    """Return the program of a result over arrays in place of some of its nodes."""
    raw: list[Array] = []
    inputs: list[BufferRef] = []

    def given(node: Node) -> Node:
        if node.op is Ops.PARAM:
            ref, data = shown.program.inputs[node.arg.slot], shown.raw[node.arg.slot]
        else:
            data = shown.values[node]
            ref = BufferRef(None, node.shape, shown.device)
        raw.append(data)
        inputs.append(ref)
        return Node(Ops.PARAM, node.dtype, (), Param(len(raw) - 1, node.shape))

    # Below what is given nothing is needed.
    memo: dict[Node, Node] = {}
    for node in toposort(shown.result, enter=lambda one: one not in cut):
        if node in cut or node.op is Ops.PARAM:
            memo[node] = given(node)
    top = rebuild(shown.result, lambda node: None, memo=memo)
    sink = asking(shown.program, [top]).sink
    made = replace(shown.program, sink=sink, inputs=tuple(inputs), made={}, requirements=())
    return made, raw


def _script(shown: ShownFault, program: Canonical, raw: Sequence[Array]) -> str:
    params = {one.arg.slot: one for one in toposort(program.sink) if one.op is Ops.PARAM}
    arrays = "".join(f"    {_array(raw[slot])},\n" for slot in sorted(params))
    told = shown.told.replace("\\", "/").replace('"', "'")
    return (
        f'"""{told}\n\nWritten by `baregrad diff`.\n"""\n\n'
        "from baregrad.apps.diff.case import show\n\n"
        f'GRAPH = """\\\n{dump(program.sink)}\n"""\n'
        f"# The raw codes of the parameters, packed.\nARRAYS = [\n{arrays}]\n"
        f"show(GRAPH, ARRAYS, {dict(program.variables)}, "
        f"device={shown.device!r}, against={shown.against!r}, tolerance={shown.tolerance})\n"
    )


def _array(raw: Array) -> str:
    """Return an array as Python text: its bytes, packed."""
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(raw).tobytes(), 9)).decode()
    lines = [packed[at : at + _WIDTH] for at in range(0, len(packed), _WIDTH)]
    return "(\n" + "".join(f'        "{line}"\n' for line in lines) + "    )"


def unpacked(text: str) -> Any:
    """Return the bytes of an array in a script."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).copy()

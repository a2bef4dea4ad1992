"""Results of matrix units, exchanged among the four lanes that have a row of four tiles.

A lane has two columns of each tile. Where the columns of a tile lie together in memory it is to
have all eight of one: lane q those of tile q. As any square of four by four is transposed, that
takes two rounds: with the neighbour, and then with the lane two further on, each gives the half
that it does not keep.
"""

from __future__ import annotations

from math import prod

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Machine
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, const, instruction
from baregrad.ir.core.op import Ops

# Lanes of a row, and columns that each has of a tile.
QUAD, PAIR = 4, 2


def exchange_results(program: Node) -> Node:
    """The linear-level PROGRAM of one thread in which lanes exchange the results that they should.

    They do so behind the last product of each, outside of all loops that add to it, once it is
    there.
    """
    last: dict[Node, int] = {}
    inside: dict[Node, None] = {}
    # How many loops are around what sets a register first.
    begun: dict[Node, int] = {}
    depth = 0
    flies = False
    for place, node in enumerate(program.src):
        if node.op in (Ops.BEGIN, Ops.TEST):
            depth += 1
        elif node.op is Ops.END:
            depth -= 1
        elif _is_exchanged(node):
            inside.update(dict.fromkeys(node.src[4:] if _is(node, "wgmma") else node.src[-2:]))
            flies = _is(node, "wgmma")
        elif _is(node, "wgmma.wait"):
            flies = flies and bool(node.arg.immediates[0])
        elif node.op is Ops.SET:
            begun[node.src[0]] = depth
        if not flies and inside and depth <= min([begun.get(one, 0) for one in inside]):
            last.update(dict.fromkeys(inside, place))
            inside = {}
    if not last:
        return program
    thread = Node(Ops.VAR, dtypes.int32, (), Var(".thread", 0, prod(program.arg.block) - 1))
    code: list[Node] = []
    for place, node in enumerate(program.src):
        code.append(node)
        for register in [one for one, at in last.items() if at == place]:
            code += _exchanged(register, thread)
    return program.replace(src=tuple(code))


def _is_exchanged(node: Node) -> bool:
    if _is(node, "wgmma"):
        return bool(node.arg.immediates[8])
    return _is(node, "mma.sync") and bool(node.arg.immediates[4:] == (1,))


def _is(node: Node, name: str) -> bool:
    return node.op is Ops.MACHINE and bool(node.arg.name == name)


def _exchanged(register: Node, thread: Node) -> list[Node]:
    """What turns two columns of four tiles into eight of one, in the lanes of a vector."""
    code: list[Node] = []

    def emit(node: Node) -> Node:
        code.append(node)
        return node

    dtype = register.dtype
    keeps = []
    for bit in (1, 2):
        mask = const(bit, dtypes.int32)
        own = emit(instruction(Ops.AND, dtypes.int32, (thread, mask)))
        zero = const(0, dtypes.int32)
        keeps.append((bit, emit(instruction(Ops.CMPEQ, dtypes.bool, (own, zero)))))
    found: list[list[Node]] = []
    for first in range(0, QUAD * PAIR, QUAD):
        square = [
            emit(instruction(Ops.EXTRACT, dtype, (register,), first + tile)) for tile in range(QUAD)
        ]
        for bit, low in keeps:
            for place in [at for at in range(QUAD) if not at & bit]:
                one, other = square[place], square[place | bit]
                given = emit(instruction(Ops.WHERE, dtype, (low, other, one)))
                what = Machine("shfl.sync.bfly", (bit,))
                taken = emit(instruction(Ops.MACHINE, dtype, (given,), what))
                square[place] = emit(instruction(Ops.WHERE, dtype, (low, one, taken)))
                square[place | bit] = emit(instruction(Ops.WHERE, dtype, (low, taken, other)))
        found.append(square)
    columns = tuple([square[lane] for lane in range(QUAD) for square in found])
    row = emit(instruction(Ops.JOIN, dtype, columns, None, (len(columns),)))
    code.append(instruction(Ops.SET, dtypes.token, (register, row)))
    return code

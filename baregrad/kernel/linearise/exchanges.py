"""Results of matrix units, exchanged among the four lanes that have a row of four tiles.

A lane has two columns of each tile. Where the columns of a tile lie together in memory it is to
have all eight of one: lane q those of tile q. As any square of four by four is transposed, that
takes two rounds: with the neighbour, and then with the lane two further on, each gives the half
that it does not keep. Results of which all that is wanted is that they are rounded to 16 bits are
rounded first, and both columns of a tile are one word, of which there are half as many.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import Machine, Reg
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, const, instruction, toposort
from baregrad.ir.core.op import Ops

# Lanes of a row, and columns that each has of a tile.
QUAD, PAIR = 4, 2


def exchange_results(program: Node, rounded: Collection[DType] = ()) -> Node:
    """The linear-level PROGRAM of one thread in which lanes exchange the results that they should.

    They do so behind the last product of each, outside of all loops that add to it, once it is
    there, and ahead of what reads the first of them. rounded: 16-bit floats to which the machine
    rounds two at once.
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
    readers = {register: _readers(program.src, register, at) for register, at in last.items()}
    first = frozenset([node for nodes in readers.values() for node in nodes])
    points = {at: _ahead(program.src, at, first) for at in set(last.values())}
    due: dict[int, list[Node]] = {}
    for register, at in last.items():
        due.setdefault(points[at], []).append(register)
    thread = Node(Ops.VAR, dtypes.int32, (), Var(".thread", 0, prod(program.arg.block) - 1))
    fresh = 1 + max([node.arg.id for node in toposort(*program.src) if node.op is Ops.REG])
    code: list[Node] = []
    moved: dict[Node, Node] = {}
    gone: set[Node] = set()
    for place, node in enumerate(program.src):
        if node not in gone:
            code.append(_with(node, moved))
        if place not in due:
            continue
        keeps = _keeps(code, thread)
        for register in due[place]:
            dtype = _narrow(readers[register], rounded)
            if dtype is None:
                code.append(_exchanged(code, register, keeps))
                continue
            halves = _rounded(code, register, dtype, keeps, fresh)
            fresh += QUAD
            moved.update(dict.fromkeys(readers[register], halves))
            gone.update(readers[register])
    return program.replace(src=tuple(code))


def _readers(code: Sequence[Node], register: Node, at: int) -> list[Node]:
    """What reads a register behind a place, until it is set again."""
    found: dict[Node, None] = {}
    for node in code[at + 1 :]:
        if node.op is Ops.SET and node.src[0] is register:
            break
        if register in node.src:
            found[node] = None
    return list(found)


def _ahead(code: Sequence[Node], at: int, readers: Collection[Node]) -> int:
    """The last place at or behind one, in its own block, ahead of the first of some nodes."""
    depth, found = 0, at
    for place in range(at + 1, len(code)):
        node = code[place]
        if node in readers:
            break
        depth += (node.op is Ops.BEGIN or node.op is Ops.TEST) - (node.op is Ops.END)
        if depth < 0:
            break
        if not depth:
            found = place
    return found


def _with(node: Node, moved: dict[Node, Node]) -> Node:
    """A node that reads other values in place of some; what it is now is noted, too."""
    if not any(child in moved for child in node.src):
        return node
    found = node.replace(src=tuple([moved.get(child, child) for child in node.src]))
    moved[node] = found
    return found


def _narrow(readers: Sequence[Node], rounded: Collection[DType]) -> DType | None:
    """The 16-bit floats that all readers of a register round it to, if there are such."""
    kinds = {node.dtype if node.op is Ops.CAST else None for node in readers}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return kind if kind in rounded else None


def _is_exchanged(node: Node) -> bool:
    if _is(node, "wgmma"):
        return bool(node.arg.immediates[8])
    return _is(node, "mma.sync") and bool(node.arg.immediates[4:] == (1,))


def _is(node: Node, name: str) -> bool:
    return node.op is Ops.MACHINE and bool(node.arg.name == name)


def _keeps(code: list[Node], thread: Node) -> list[tuple[int, Node]]:
    """Of each bit of a lane's number, whether it is 0."""
    found = []
    for bit in (1, 2):
        mask, zero = const(bit, dtypes.int32), const(0, dtypes.int32)
        own = _emitted(code, instruction(Ops.AND, dtypes.int32, (thread, mask)))
        found.append((bit, _emitted(code, instruction(Ops.CMPEQ, dtypes.bool, (own, zero)))))
    return found


def _emitted(code: list[Node], node: Node) -> Node:
    code.append(node)
    return node


def _turned(
    code: list[Node], square: Sequence[Node], keeps: Sequence[tuple[int, Node]]
) -> list[Node]:
    """Of one value for each tile, that of this lane's tile in each lane of the row."""
    found, dtype = list(square), square[0].dtype
    for bit, low in keeps:
        for place in [at for at in range(QUAD) if not at & bit]:
            one, other = found[place], found[place | bit]
            given = _emitted(code, instruction(Ops.WHERE, dtype, (low, other, one)))
            what = Machine("shfl.sync.bfly", (bit,))
            taken = _emitted(code, instruction(Ops.MACHINE, dtype, (given,), what))
            found[place] = _emitted(code, instruction(Ops.WHERE, dtype, (low, one, taken)))
            found[place | bit] = _emitted(code, instruction(Ops.WHERE, dtype, (low, taken, other)))
    return found


def _column(code: list[Node], register: Node, tile: int, column: int) -> Node:
    """One of the two columns that a lane has of a tile."""
    place = QUAD * column + tile
    return _emitted(code, instruction(Ops.EXTRACT, register.dtype, (register,), place))


def _exchanged(code: list[Node], register: Node, keeps: Sequence[tuple[int, Node]]) -> Node:
    """What sets a register of two columns of four tiles to eight of one."""
    found = [
        _turned(code, [_column(code, register, tile, column) for tile in range(QUAD)], keeps)
        for column in range(PAIR)
    ]
    columns = tuple([square[lane] for lane in range(QUAD) for square in found])
    row = instruction(Ops.JOIN, register.dtype, columns, None, (len(columns),))
    return instruction(Ops.SET, dtypes.token, (register, _emitted(code, row)))


def _rounded(
    code: list[Node], register: Node, dtype: DType, keeps: Sequence[tuple[int, Node]], fresh: int
) -> Node:
    """Eight columns of one tile, of a register that has two of four, rounded to 16 bits.

    fresh: ids of registers that there are not yet, from here on.
    """
    words = []
    for tile in range(QUAD):
        columns = tuple([_column(code, register, tile, column) for column in range(PAIR)])
        pair = _emitted(code, instruction(Ops.JOIN, register.dtype, columns, None, (PAIR,)))
        words.append(instruction(Ops.REG, dtypes.uint32, (), Reg(fresh + tile)))
        what = Machine("cvt.pack", (dtype.name,))
        code.append(instruction(Ops.MACHINE, dtypes.token, (pair, words[-1]), what))
    halves = []
    for word in _turned(code, words, keeps):
        half = const(dtype.bits, dtypes.uint32)
        high = _emitted(code, instruction(Ops.SHR, dtypes.uint32, (word, half)))
        for each in (word, high):
            bits = _emitted(code, instruction(Ops.CAST, dtypes.uint16, (each,)))
            halves.append(_emitted(code, instruction(Ops.BITCAST, dtype, (bits,))))
    row = instruction(Ops.JOIN, dtype, tuple(halves), None, (len(halves),))
    return _emitted(code, row)

"""Tiles of the linear level split into rows: one instruction for each."""

from __future__ import annotations

from operator import itemgetter

from baregrad.base.bits import next_power_of_two
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Access, Reg, Turned
from baregrad.ir.core.node import Node, alu, const, instruction
from baregrad.ir.core.op import Ops

# Rows that take turns where each waits for itself: about what the latency of a step asks for, and
# few enough that what they hold fits the registers.
TOGETHER = 4
# Of fewer instructions a row does not wait for itself long enough.
SHORTEST = 12
# From this many neighbours in memory on, rows are exchanged for them: one access serves them all.
LEAST_NEIGHBOURS = 4
_PLACE = itemgetter(0)
# Rows of a register get ids of their own: its own one, then theirs in this number of bits.
_BITS = 12


def by_rows(program: Node) -> Node:
    """The PROGRAM in which no value is a tile: for machines and renderers that know none."""
    if not any(_has_tile(node) for node in program.src):
        return program
    return _Rows().program(program)


def _has_tile(node: Node) -> bool:
    if node.op is Ops.SET:
        return len(node.src[0].shape) == 2
    return len(node.shape) == 2 or node.op is Ops.TURNED or bool(_rows(node))


def _rows(node: Node) -> tuple[int, ...]:
    access = node.arg if node.op is Ops.VSTORE else None
    return access.rows if access is not None else ()


class _Rows:
    """The rows of each tile, and what stands for other values that were made of them."""

    def __init__(self) -> None:
        self.rows: dict[Node, tuple[Node, ...]] = {}
        self.moved: dict[Node, Node] = {}

    def program(self, program: Node) -> Node:
        """The PROGRAM with its instructions split into rows, in order."""
        code: list[Node] = []
        for node in program.src:
            if len(node.shape) == 2:
                found = self._tile(node)
                if node.op is not Ops.ROWS:
                    code += found
            elif node.op is Ops.SET and len(node.src[0].shape) == 2:
                rows = self._tile(node.src[0])
                values = [self._row(node.src[1], row) for row in range(len(rows))]
                pairs = zip(rows, values, strict=True)
                code += [instruction(Ops.SET, node.dtype, pair) for pair in pairs]
            elif node.op is Ops.ROW:
                self.moved[node] = self._tile(node.src[0])[node.arg]
            elif node.op is Ops.TURNED:
                code += self._turned(node)
            elif _rows(node):
                code += self._accesses(node, len(node.arg.rows), ())
            else:
                code.append(self._moved(node))
        return instruction(Ops.PROGRAM, dtypes.token, tuple(code), program.arg)

    def _tile(self, node: Node) -> tuple[Node, ...]:
        """The rows of a tile."""
        found = self.rows.get(node)
        if found is None:
            found = self.rows[node] = tuple(self._made(node))
        return found

    def _made(self, node: Node) -> list[Node]:
        count, lanes = node.shape
        shape = (lanes,) if lanes > 1 else ()
        op, dtype = node.op, node.dtype
        if op is Ops.ROWS:
            return [self._row(node.src[0], 0)] * count
        if op is Ops.REG:
            ids = range((node.arg.id + 1) << _BITS, ((node.arg.id + 1) << _BITS) + count)
            return [instruction(op, dtype, (), Reg(each, lanes), shape) for each in ids]
        if op is Ops.VLOAD:
            return self._accesses(node, count, shape)
        return [
            instruction(op, dtype, tuple([self._row(c, row) for c in node.src]), node.arg, shape)
            for row in range(count)
        ]

    def _accesses(self, node: Node, count: int, shape: tuple[int, ...]) -> list[Node]:
        access = node.arg
        return [
            instruction(
                node.op,
                node.dtype,
                tuple([self._row(child, row) for child in node.src]),
                access._replace(at=access.at + access.rows[row], rows=()),
                shape,
            )
            for row in range(count)
        ]

    def _turned(self, node: Node) -> list[Node]:
        """The rows loaded, under a mask where they fill no vector, and written by columns."""
        base, place, source, offset = [self._moved(child) for child in node.src]
        form: Turned = node.arg
        dtype = base.dtype
        size = next_power_of_two(form.columns)
        code: list[Node] = []
        mask: tuple[Node, ...] = ()
        if form.columns < size:
            lanes = Node(Ops.LANES, dtypes.int32, (), size)
            below = alu(Ops.CMPLT, lanes, const(form.columns, dtypes.int32))
            code, mask = [lanes, below], (below,)
        rows = [
            Node(
                Ops.VLOAD,
                dtype,
                (source, offset, *mask),
                Access(size, 1, form.at + row * form.stride, dtype.itemsize),
            )
            for row in range(form.rows)
        ]
        access = Access(form.columns, form.pitch, form.start, dtype.itemsize)
        return [*code, *rows, Node(Ops.TURN, node.dtype, (base, place, *rows), access)]

    def _row(self, node: Node, row: int) -> Node:
        """An operand as a row has it."""
        return self._tile(node)[row] if self._is_tile(node) else self._moved(node)

    def _is_tile(self, node: Node) -> bool:
        return len(node.shape) == 2 and node.op is not Ops.PARAM and node.op is not Ops.ALLOC

    def _moved(self, node: Node) -> Node:
        """A value without tiles below it."""
        if not node.src or node in self.moved:
            return self.moved.get(node, node)
        src: list[Node] = []
        for child in node.src:
            if self._is_tile(child):
                src += self._tile(child)
            else:
                src.append(self._moved(child))
        arg = node.arg
        if node.op is Ops.TURN and arg.rows:
            ordered = sorted(zip(arg.rows, src[2:], strict=True), key=_PLACE)
            src[2:] = [row for _, row in ordered]
            arg = arg._replace(rows=())
        made = tuple(src)
        if made != node.src:
            made_node = instruction(node.op, node.dtype, made, arg, node.shape)
            self.moved[node] = made_node
            return made_node
        self.moved[node] = node
        return node

"""Instructions on linear values: scalars, vectors, tiles and registers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, const, instruction
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel.legalise.divide import fold_integers
from baregrad.kernel.linearise.access import (
    Address,
    MemoryUse,
    is_streamed,
    register_of,
    vector_nbytes,
)
from baregrad.kernel.linearise.scopes import MOMENT, Scopes

# Where a register ALLOC's tile begins, and its rows: elements from there.
Layout = tuple[int, tuple[int, ...]]


class StatementTile(NamedTuple):
    """The points of a statement: of unrolled axes, the first varying slowest; and its lanes."""

    axes: tuple[Node, ...]
    rows: int
    lanes: int


class Emitter:
    """Emits instructions and owns the registers of a kernel.

    memory: what the kernel does to buffers. block: of a GPU's kernel the threads of a block, whose
    integers of 32 bits are cheaper than those of 64. tile: the points of the statement that is done
    for all of them at once. layouts: of the registers that are tiles. pipes: whose phases a block
    counts. spare: returns a number that it has not returned before.
    """

    def __init__(self, memory: MemoryUse, block: tuple[int, ...]) -> None:
        self.memory = memory
        self.block = block
        self.gpu = bool(block)
        self.scopes = Scopes()
        self.tile: StatementTile | None = None
        self.layouts: dict[Node, Layout] = {}
        self.pipes: tuple[Node, ...] = ()
        self.registers: dict[Any, Node] = {}
        self.spare = itertools.count(1).__next__

    def vector(self, value: Node, lanes: int) -> Node:
        """`value` as a vector of `lanes`, constants too."""
        shape = value.shape
        if lanes == 1 or (shape and shape[-1] > 1):
            return value
        if shape:
            node = instruction(Ops.SPLAT, value.dtype, (value,), lanes, (shape[0], lanes))
            return self.scopes.place(node)
        return self.scopes.emit(Ops.SPLAT, value.dtype, (value,), lanes, 0, lanes)

    def cast(self, value: Node, dtype: DType) -> Node:
        """An integer value as another integer dtype."""
        if value.dtype is dtype:
            return value
        if value.op is Ops.CONST:
            return const(value.arg, dtype)
        return self.scopes.emit(Ops.CAST, dtype, (value,))

    def apply(self, op: Op, dtype: DType, *operands: Node) -> Node:
        """The value of an elementwise op on linear values, scalars brought to all lanes."""
        return self.compute(op, dtype, operands)

    def compute(self, op: Op, dtype: DType, operands: Sequence[Node], arg: Any = None) -> Node:
        """`apply` to a sequence of operands, with an attribute."""
        scopes = self.scopes
        depth = scopes.depth
        place = scopes.innermost.pin
        lanes: tuple[int, ...] = ()
        scalars = mixed = False
        for operand in operands:
            shape = operand.shape
            if shape:
                if lanes and shape != lanes:
                    mixed = True
                else:
                    lanes = shape
            elif operand.op is Ops.CONST:
                continue
            else:
                scalars = True
            at = depth.get(operand, 0)
            if at > place:
                place = at
        if mixed or (scalars and len(lanes) == 2):
            operands, lanes = self.in_rows(operands)
        elif scalars:
            if lanes:
                width = lanes[0]
                operands = [x if x.op is Ops.CONST else self.vector(x, width) for x in operands]
        elif not lanes and dtype.kind != "float":
            folded = fold_integers(op, dtype, operands)
            if folded is not None:
                return folded
        node = instruction(op, dtype, tuple(operands), arg, lanes)
        if node not in depth:
            scopes.put(node, place)
        return node

    def scaled(self, value: Node, scale: int, width: DType) -> Node:
        """An offset times a constant."""
        if self.gpu:
            value = self.cast(value, width)
        return value if scale == 1 else self.compute(Ops.MUL, width, (value, const(scale, width)))

    def width_of(self, address: Address) -> DType:
        """The integers in which an offset is summed up: on GPUs of 32 bits, if all parts fit."""
        return dtypes.int32 if self.gpu and address.is_narrow else dtypes.int64

    def alignment(self, buffer: Node, address: Address, lanes: int, stride: int, at: int) -> int:
        """Bytes that an access's addresses are multiples of, arrays being aligned to vectors.

        Only GPUs and non-temporal stores care for more than those of an element.
        """
        matters = self.gpu or is_streamed(buffer)
        if matters and lanes > 1 and stride == 1 and not at % lanes and address.is_even(lanes):
            return vector_nbytes(lanes, buffer.dtype)
        return buffer.dtype.itemsize

    # --- registers and tiles ----------------------------------------------------------------------

    def register(self, alloc: Node, at: int) -> Node:
        """The register that holds the elements of an ALLOC from `at` on."""
        found = self.registers.get((alloc, at))
        if found is None:
            if alloc in self.layouts:
                return self.row_of(alloc, at)
            width = self.memory.registers[alloc]
            found = self.registers[alloc, at] = self.fresh_register(alloc.dtype, width)
        return found

    def fresh_register(self, dtype: DType, width: int, rows: int = 0) -> Node:
        """A register that nobody else has; a tile of `rows` of them."""
        found = register_of(len(self.registers), dtype, width, rows)
        self.registers[found] = found
        self.scopes.depth[found] = MOMENT
        return found

    def register_rows(self, alloc: Node) -> Node:
        """The register that is the tile of an ALLOC."""
        found = self.registers.get(alloc)
        if found is None:
            rows = len(self.layouts[alloc][1])
            found = self.fresh_register(alloc.dtype, self.memory.registers[alloc], rows)
            self.registers[alloc] = found
        return found

    def row_of(self, alloc: Node, at: int) -> Node:
        """The row of an ALLOC's tile that begins at an element."""
        begin, rows = self.layouts[alloc]
        tile = self.register_rows(alloc)
        row = rows.index(at - begin)
        return self.scopes.emit(Ops.ROW, alloc.dtype, (tile,), row, lanes=tile.shape[1])

    def as_tile(self, value: Node, lanes: int) -> Node:
        """A value as a tile of the current points, with `lanes` lanes in each row."""
        tile = self.tile
        assert tile is not None
        scopes = self.scopes
        shape = value.shape
        if not shape or shape == (tile.rows, 1):
            value = self.vector(value, lanes)
        if len(value.shape) == 2:
            return value
        node = instruction(Ops.ROWS, value.dtype, (value,), tile.rows, (tile.rows, lanes))
        return scopes.place(node)

    def in_rows(self, operands: Sequence[Node]) -> tuple[list[Node], tuple[int, ...]]:
        """Operands as tiles of the current points, but for constants; and the tiles' shape."""
        tile = self.tile
        shapes = {operand.shape for operand in operands}
        lanes = max([shape[-1] for shape in shapes if shape])
        if tile is None or not {(lanes,), (tile.rows, lanes), (tile.rows, 1), ()} >= shapes:
            raise CompilerBug("lanes of two numbers meet", found=operands)
        found = [x if x.op is Ops.CONST else self.as_tile(x, lanes) for x in operands]
        return found, (tile.rows, lanes)

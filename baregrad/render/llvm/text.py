"""The text of one LLVM function while it is written: names, addresses, open blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.interface import alloc_nbytes, signature
from baregrad.render.llvm.registers import ControlBlock, blocks_of
from baregrad.render.llvm.types import constant_text, type_text
from baregrad.target.cpu import CpuTarget

# The value of a register that was not set.
POISON = "poison"
# What stands for the number of a row in the names of a tile's values.
ROW = "#"
# What stands for the place of a row in memory; those of a text are filled in one after the other.
PLACE = "{}"
_NUMBERS = tuple(map(str, range(256)))
# As many names as most functions need, spelled once.
_SPELLED = 1 << 10
_NAMES = tuple([f"%v{number}" for number in range(1, _SPELLED)])


class IntrinsicCall(NamedTuple):
    """The call of an intrinsic function, and its declaration."""

    text: str
    declaration: str

    @staticmethod
    def of(name: str, result: str, *operands: tuple[str, str]) -> IntrinsicCall:
        """The call of a function, of operands with their types."""
        text = f"call {result} @{name}({', '.join(map(' '.join, operands))})"
        return IntrinsicCall(text, declaration_text(name, result, *[kind for kind, _ in operands]))


class FunctionText:
    """One function being written."""

    def __init__(
        self, program: Node, target: CpuTarget, variables: Sequence[str] | None, streams: bool
    ) -> None:
        self.program = program
        self.target = target
        # Whether stores to arrays that are streamed bypass the caches.
        self.streams = streams
        self.signature = signature(program, variables)
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}
        # Names for intermediate values, and for those that a tile's rows have.
        names = chain(_NAMES, map("%%v%d".__mod__, count(_SPELLED)))
        self.unused: Iterator[str] = names
        self.unused_rows: Iterator[str] = map(f"%s.{ROW}".__mod__, names)
        self.label = "entry"
        # The blocks that are to come, the next one last, and those that are open.
        self.coming = blocks_of(program)[::-1]
        self.blocks: list[ControlBlock] = []
        self.pointers: dict[tuple[str, str], str] = {}
        # Functions that are called: intrinsics are declared, our own are written out.
        self.declarations: dict[str, None] = {}
        # The lanes of masks that LLVM must not see through.
        self.doubts: dict[int, None] = {}
        # How often strided accesses of each form occur, once one of them was met.
        self.strided: dict[tuple[object, ...], int] = {}
        # Strided loads that are made at once, by block, once one was met, and those that are made.
        self.runs: dict[tuple[int, Node], tuple[Node, ...]] | None = None
        self.loaded: set[tuple[int, Node]] = set()
        # How many tiles are written by columns, once one of them was met.
        self.turns = 0
        # Whether it multiplies tiles.
        self.tiles = False
        # Arrays that stores go to which may bypass the caches.
        self.streamed: dict[Node, None] = {}
        # Of tiles: the lines of one row, how many there are, the places of each access's rows,
        # the instructions so far, and the address that an access's places begin at.
        self.block: list[str] = []
        self.rows = 0
        self.places: list[tuple[int, ...]] = []
        self.steps = 0
        self.row_base = ""

    def prologue(self) -> None:
        """Load the arguments and place private memory."""
        signature = self.signature
        names = self.names
        for param in signature.params:
            slot = param.arg.slot
            name = names[param] = f"%b{slot}"
            self.lines.append(f"  %t{slot} = getelementptr ptr, ptr %buffers, i64 {slot}")
            self.lines.append(f"  {name} = load ptr, ptr %t{slot}, !invariant.load !0")
        for place in range(len(signature.variables)):
            self.lines.append(f"  %q{place} = getelementptr i64, ptr %variables, i64 {place}")
            self.lines.append(f"  %x{place} = load i64, ptr %q{place}, !invariant.load !0")
        for alloc, offset in signature.scratch.items():
            name = names[alloc] = f"%a{alloc.arg.id}"
            self.lines.append(f"  {name} = getelementptr i8, ptr %scratch, i64 {offset}")
        for alloc in signature.stack:
            name = names[alloc] = f"%s{alloc.arg.id}"
            self.lines.append(f"  {name} = alloca [{alloc_nbytes(alloc)} x i8], align 64")

    # --- operands -------------------------------------------------------------------------------

    def define(self, node: Node) -> str:
        """A fresh name for a node's value."""
        name = self.names[node] = next(self.unused)
        return name

    def use(self, node: Node, lanes: int = 1) -> str:
        """The operand text of a value; a constant is spelled for that many lanes."""
        found = self.names.get(node)
        if found is not None:
            return found
        op = node.op
        if op is Ops.CONST:
            return constant_text(node, lanes)
        if op is Ops.REG:
            return POISON
        if op is Ops.VAR:
            name = node.arg.name
            if name.startswith("."):
                text = "%begin" if name == ".chunk_begin" else "%end"
            else:
                text = f"%x{self.signature.variables.index(name)}"
            self.names[node] = text
            return text
        raise CompilerBug("a value is used before it was made", found=node)

    def declare(self, name: str, result: str, *parameters: str) -> None:
        """Declare an intrinsic function once."""
        self.declarations[declaration_text(name, result, *parameters)] = None

    # --- instructions ---------------------------------------------------------------------------

    def value(self, text: str) -> str:
        """A fresh name for the value of an instruction."""
        name = next(self.unused)
        self.lines.append(f"  {name} = {text}")
        return name

    def set(self, node: Node, text: str) -> None:
        """Make the value of an instruction that of a node."""
        self.names[node] = self.value(text)

    def call(self, name: str, result: str, *operands: tuple[str, str]) -> str:
        """A fresh name for what an intrinsic function gives for operands, each with its type."""
        return self.given(IntrinsicCall.of(name, result, *operands))

    def given(self, call: IntrinsicCall) -> str:
        """A fresh name for what a call gives."""
        self.declarations[call.declaration] = None
        return self.value(call.text)

    def run(self, call: IntrinsicCall) -> None:
        """Call a function that gives nothing."""
        self.declarations[call.declaration] = None
        self.lines.append(f"  {call.text}")

    def streamed_ending(self, base: Node, align: int) -> str:
        """What ends a store that bypasses the caches, or one in its place to any address."""
        self.streamed[base] = None
        return f"align {align}, !nontemporal !1" if self.streams else "align 1"

    def pointer(self, base: Node, offset: str, at: int, dtype: DType) -> str:
        """The address of an element: each base and offset is computed once in a block."""
        element = type_text(dtype)
        name = self.names[base]
        if offset != "0":
            key = (name, offset)
            found = self.pointers.get(key)
            if found is None:
                text = f"getelementptr {element}, ptr {name}, i64 {offset}"
                found = self.pointers[key] = self.value(text)
                if self.blocks:
                    self.blocks[-1].pointers.append(key)
            name = found
        if not at:
            return name
        return self.value(f"getelementptr {element}, ptr {name}, i64 {at}")


def row_numbers(count: int) -> Sequence[str]:
    """What the rows of a tile have for `ROW`."""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else list(map(str, range(count)))


def each_row(node: Node, line: str) -> str:
    """The lines of a tile's rows, given that of one; of anything else the line itself."""
    shape = node.shape
    if len(shape) < 2:
        return line
    parts = line.split(ROW)
    return "\n".join([number.join(parts) for number in row_numbers(shape[0])])


def declaration_text(name: str, result: str, *parameters: str) -> str:
    """The declaration of a function."""
    return f"declare {result} @{name}({', '.join(parameters)})"


Rule = Callable[[FunctionText, Node], None]

"""The text of one function in C or CUDA C while it is written: names, operands, constants.

A vector is an array, and an instruction a loop over it. Integers are computed unsigned, where C
defines wrapping; the compiler must not contract floating-point operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes, encode
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.interface import alloc_nbytes, round_float32


@dataclass(frozen=True, slots=True)
class Dialect:
    """What C and CUDA C spell differently.

    types: of elements by dtype. least: the least int64. functions: of mathematics, by what `math.h`
    calls them. nan, infinity: as doubles. helper: what stands before a function of our own. each: a
    line before a loop over lanes. stride: what ends a number of elements between lanes. halves: for
    dtypes that are held as their codes, (name, text) of the functions to float and from it.
    extreme: the body of a function of the larger (`{test}` is gt) or lesser (lt) of two signed
    integers of 32 bits or fewer, where an expression will not do.
    """

    name: str
    types: Mapping[DType, str]
    least: str
    functions: Mapping[str, str]
    nan: str
    infinity: str
    helper: str
    each: str
    stride: str
    halves: Mapping[DType, tuple[tuple[str, str], tuple[str, str]]]
    extreme: str = ""


class CText:
    """One function being written."""

    def __init__(self, program: Node, dialect: Dialect) -> None:
        self.program = program
        self.dialect = dialect
        self.lines: list[str] = []
        self.functions: dict[str, str] = {}
        self.registers: dict[Node, None] = {}
        self.names: dict[Node, str] = {}
        self.count = 0
        self.depth = 1

    # --- pieces ---------------------------------------------------------------------------------

    def type(self, dtype: DType) -> str:
        """The type of an element."""
        found = self.dialect.types.get(dtype)
        if found is None:
            raise CompilerBug(f"{self.dialect.name} has no type for a dtype", found=dtype)
        return found

    def unsigned(self, dtype: DType) -> str:
        """The unsigned type in which integers of a dtype are computed."""
        return self.type(dtypes.uint64 if dtype.bits == 64 else dtypes.uint32)

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def each(self, lanes: int, text: str) -> None:
        """Add a statement for each lane `l`."""
        if self.dialect.each:
            self.line(self.dialect.each)
        self.line(f"for (int l = 0; l < {lanes}; l++) {text}")

    def variable(self, node: Node) -> str:
        """The operand text of a VAR."""
        raise NotImplementedError

    def use(self, node: Node) -> str:
        """The operand text of a value; of a vector, its lane `l`."""
        op = node.op
        if op is Ops.CONST:
            return self.constant(node)
        if op is Ops.VAR:
            return self.variable(node)
        if op is Ops.REG and node not in self.registers:
            self.registers[node] = None
            self.names[node] = f"r{len(self.registers)}"
        name = self.names[node]
        return f"{name}[l]" if node.shape else name

    def array(self, node: Node) -> str:
        """The name of the array that a vector is."""
        self.use(node)
        return self.names[node]

    def fresh(self, node: Node) -> str:
        """Give a value a name that nothing has."""
        self.count += 1
        name = self.names[node] = f"v{self.count}"
        return name

    def define(self, node: Node, expression: str) -> None:
        """Declare a value and compute it, lane by lane."""
        name = self.fresh(node)
        kind = self.type(node.dtype)
        if node.shape:
            self.line(f"{kind} {name}{array_text(node)};")
            self.each(node.shape[0], f"{name}[l] = {expression};")
        else:
            self.line(f"{kind} {name} = {expression};")

    def function(self, name: str, text: str) -> str:
        """The name of a function that is defined once before ours."""
        self.functions.setdefault(name, f"{self.dialect.helper} {text}")
        return name

    def apply(
        self, name: str, result: str, kinds: Sequence[str], body: str, *operands: str
    ) -> str:
        """The call of a function of x, y and z, of these types, that is defined before ours."""
        parameters = ", ".join(map(" ".join, zip(kinds, "xyz", strict=False)))
        self.function(name, f"{result} {name}({parameters}) {{ {body} }}")
        return f"{name}({', '.join(operands)})"

    def pointer(self, node: Node, name: str, place: str) -> str:
        """The declaration of the pointer to an array's elements."""
        self.names[node] = name
        kind = self.type(node.dtype)
        return f"  {kind} *{name} = ({kind} *){place};"

    def local(self, alloc: Node, alignment: str = "") -> str:
        """The declaration of an ALLOC that is a local array."""
        name = self.names[alloc] = f"s{alloc.arg.id}"
        count = max(alloc_nbytes(alloc) // alloc.dtype.itemsize, 1)
        return f"  {alignment}{self.type(alloc.dtype)} {name}[{count}];"

    def math(self, name: str, dtype: DType) -> str:
        """A function of mathematics, of float32 or float64."""
        found = self.dialect.functions[name]
        return found + ("f" if dtype is dtypes.float32 else "")

    def declared_registers(self) -> list[str]:
        """Declarations of the registers that were used."""
        return [
            f"  {self.type(register.dtype)} {self.names[register]}{array_text(register)};"
            for register in self.registers
        ]

    def constant(self, node: Node) -> str:
        """A constant with its type."""
        value, dtype = node.arg, node.dtype
        if dtype.kind == "bool":
            return "1" if value else "0"
        if dtype.kind != "float":
            if dtype is dtypes.int64 and value == dtype.min:
                return self.dialect.least
            suffix = {dtypes.int64: "LL", dtypes.uint64: "ULL", dtypes.uint32: "U"}.get(dtype, "")
            return f"({value}{suffix})"
        kind = self.type(dtype)
        if dtype in self.dialect.halves:
            code = encode(np.asarray(round_float32(value), np.float32), dtype)
            return f"(({kind}){int(code):#06x})"
        if math.isnan(value):
            return f"(({kind}){self.dialect.nan})"
        if math.isinf(value) or (dtype is dtypes.float32 and math.isinf(round_float32(value))):
            return f"(({kind}){'-' if value < 0 else ''}{self.dialect.infinity})"
        if dtype is dtypes.float32:
            return f"({round_float32(value).hex()}f)"
        return f"(({kind}){float(value).hex()})"


def array_text(node: Node) -> str:
    """What follows the name of a vector in its declaration."""
    return f"[{node.shape[0]}]" if node.shape else ""


Rule = Callable[[CText, Node], None]

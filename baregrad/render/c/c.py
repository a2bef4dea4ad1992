"""Linear level to C with GNU builtins: a vector is an array, and an instruction a loop over it.

It exists to keep the linear level honest (nothing in it may be LLVM's) and for machines without
llvmlite. The compiler must not contract floating-point operations (-ffp-contract=off).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.rows import by_rows
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.c.ops import instruction
from baregrad.render.c.text import CText, Dialect, Rule
from baregrad.render.c.tile_runs import TILE_RULES, c_configured
from baregrad.render.interface import alloc_nbytes, signature
from baregrad.target.cpu import CpuTarget


class CRenderer:
    """Renders programs for CPUs as C."""

    name = "c"
    assembler = "c"

    def render(
        self,
        program: Node,
        target: CpuTarget,
        variables: Sequence[str] | None = None,
        arrays: int = 0,
    ) -> str:
        """The translation unit of one PROGRAM: one function of the CPU kernels' signature.

        It finds its arrays by slot, however many `arrays` there are.
        """
        return _Function(by_rows(program), variables).text()


_TYPES: MappingProxyType[DType, str] = MappingProxyType(
    {
        dtypes.bool: "uint8_t",
        dtypes.int8: "int8_t",
        dtypes.uint8: "uint8_t",
        dtypes.int16: "int16_t",
        dtypes.uint16: "uint16_t",
        dtypes.int32: "int32_t",
        dtypes.uint32: "uint32_t",
        dtypes.int64: "int64_t",
        dtypes.uint64: "uint64_t",
        dtypes.float16: "_Float16",
        dtypes.float32: "float",
        dtypes.float64: "double",
    }
)
_NAMES = (
    "sqrt", "floor", "ceil", "trunc", "roundeven", "fma", "fabs", "fmod", "ldexp", "memcpy",
)
_C = Dialect(
    name="C",
    types=_TYPES,
    least="INT64_MIN",
    functions=MappingProxyType({name: f"__builtin_{name}" for name in _NAMES}),
    nan='__builtin_nan("")',
    infinity="__builtin_inf()",
    helper="static inline",
    each="",
    halves=MappingProxyType({}),
)


class _Function(CText):
    """One function being written."""

    def __init__(self, program: Node, variables: Sequence[str] | None) -> None:
        super().__init__(program, _C)
        self.signature = signature(program, variables)

    def text(self) -> str:
        """The text of the translation unit."""
        prologue = self._prologue()
        for node in self.program.src:
            instruction(self, node, _RULES)
        registers = self.declared_registers()
        head = (
            f"void {self.signature.entry}(void **restrict buffers, "
            "const int64_t *restrict variables, int64_t chunk_begin, int64_t chunk_end, "
            "void *restrict scratch) {"
        )
        parts = ["#include <stdint.h>", *self.functions.values(), head, *prologue, *registers]
        return "\n".join([*parts, *c_configured(self, self.lines), "}", ""])

    def _prologue(self) -> list[str]:
        lines = []
        for param in self.signature.params:
            name = self.names[param] = f"b{param.arg.slot}"
            kind = self.type(param.dtype)
            lines.append(f"  {kind} *{name} = ({kind} *)buffers[{param.arg.slot}];")
        for alloc, offset in self.signature.scratch.items():
            name = self.names[alloc] = f"a{alloc.arg.id}"
            kind = self.type(alloc.dtype)
            lines.append(f"  {kind} *{name} = ({kind} *)((char *)scratch + {offset});")
        for alloc in self.signature.stack:
            name = self.names[alloc] = f"s{alloc.arg.id}"
            count = alloc_nbytes(alloc) // alloc.dtype.itemsize
            lines.append(f"  {self.type(alloc.dtype)} {name}[{max(count, 1)}];")
        return lines

    def variable(self, node: Node) -> str:
        """A bound of the chunks, or an argument."""
        name: str = node.arg.name
        if name.startswith("."):
            return name[1:]
        return f"variables[{self.signature.variables.index(name)}]"


# --- memory --------------------------------------------------------------------------------------


def _place(f: CText, node: Node) -> str:
    """The element of an access; in a vector access, of its lane `l`."""
    base, offset = node.src[:2]
    access = node.arg
    parts = [f.use(offset)]
    if access.width > 1 and not offset.shape:
        parts.append("l" if access.stride == 1 else f"l * {access.stride}LL")
    if access.at:
        parts.append(str(access.at))
    return f"{f.names[base]}[{' + '.join(parts)}]"


def _vload(f: CText, node: Node) -> None:
    place = _place(f, node)
    f.define(node, f"{f.use(node.src[2])} ? {place} : 0" if len(node.src) > 2 else place)


def _vstore(f: CText, node: Node) -> None:
    text = f"{_place(f, node)} = {f.use(node.src[2])};"
    if len(node.src) > 3:
        text = f"if ({f.use(node.src[3])}) {text}"
    if node.arg.width > 1:
        text = f"for (int l = 0; l < {node.arg.width}; l++) {text}"
    f.line(text)


def _turn(f: CText, node: Node) -> None:
    base, offset, *rows = node.src
    access = node.arg
    start = f"{f.names[base]}[{f.use(offset)} + l * {access.stride}LL"
    for place, row in enumerate(rows, access.at):
        text = f"{start} + {place}] = {f.use(row)};"
        f.line(f"for (int l = 0; l < {access.width}; l++) {text}")


def _prefetch(f: CText, node: Node) -> None:
    """Nothing: C has no word for it."""


_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.VLOAD: _vload,
        Ops.VSTORE: _vstore,
        Ops.TURN: _turn,
        Ops.PREFETCH: _prefetch,
        **TILE_RULES,
    }
)

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
from baregrad.render.c.ops import instruction, vload, vstore
from baregrad.render.c.text import CText, Dialect, Rule
from baregrad.render.c.tile_runs import TILE_RULES, c_configured
from baregrad.render.interface import INTEGERS, signature
from baregrad.target.cpu import CpuTarget


def render(
    program: Node, target: CpuTarget, variables: Sequence[str] | None, arrays: int
) -> str:
    """The translation unit of one PROGRAM: one function of the CPU kernels' signature.

    It finds its arrays by slot, however many `arrays` there are.
    """
    return _Function(by_rows(program), variables).text()


_TYPES: MappingProxyType[DType, str] = MappingProxyType(
    {
        **{dtype: f"{dtype.name}_t" for dtype in INTEGERS},
        dtypes.bool: "uint8_t",
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
    stride="LL",
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
            slot = param.arg.slot
            lines.append(self.pointer(param, f"b{slot}", f"buffers[{slot}]"))
        for alloc, offset in self.signature.scratch.items():
            place = f"((char *)scratch + {offset})"
            lines.append(self.pointer(alloc, f"a{alloc.arg.id}", place))
        return lines + [self.local(alloc) for alloc in self.signature.stack]

    def variable(self, node: Node) -> str:
        """A bound of the chunks, or an argument."""
        name: str = node.arg.name
        if name.startswith("."):
            return name[1:]
        return f"variables[{self.signature.variables.index(name)}]"


# --- memory --------------------------------------------------------------------------------------


def _turn(f: CText, node: Node) -> None:
    base, offset, *rows = node.src
    access = node.arg
    start = f"{f.names[base]}[{f.use(offset)} + l * {access.stride}LL"
    for place, row in enumerate(rows, access.at):
        f.each(access.width, f"{start} + {place}] = {f.use(row)};")


def _prefetch(f: CText, node: Node) -> None:
    """Nothing: C has no word for it."""


_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.VLOAD: vload,
        Ops.VSTORE: vstore,
        Ops.TURN: _turn,
        Ops.PREFETCH: _prefetch,
        **TILE_RULES,
    }
)

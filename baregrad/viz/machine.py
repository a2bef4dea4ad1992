"""The machine code of a kernel as a document: for a GPU beside its PTX, for a CPU as assembly."""

from __future__ import annotations

from typing import Any

from baregrad.assemble.machine_code import machine_lines
from baregrad.base.errors import CompileError, MissingDependency
from baregrad.engine.compiler import Compiler
from baregrad.runtime.nvidia.code.cubin import read_cubin
from baregrad.target.gpu import GpuTarget


def machine_document(compiler: Compiler, text: str) -> Any:
    """Return what became of a kernel's text.

    `text` are the lines of what was assembled. `code` has a row for each instruction: address,
    instruction, its line of `text` from 1, registers in use, cycles until the next, counters that
    it sets, addresses that it awaits; a CPU's rows have their text alone. `missing` says what must
    be installed, or what the assembler refused, where there is no code.
    """
    document: dict[str, Any] = {"text": text.splitlines(), "code": [], "missing": ""}
    try:
        if isinstance(compiler.target, GpuTarget):
            lines, cubin = machine_lines(text, compiler.target.name)
            document["code"] = [
                [one.address, one.text, one.line, one.live, one.stall, one.sets, one.awaits]
                for one in lines
            ]
            (kernel, *_) = read_cubin(cubin).kernels.values()
            document |= {
                "registers": kernel.register_count, "stack": kernel.stack_nbytes,
                "shared": kernel.shared_nbytes,
            }
        else:
            assembly = compiler.assembler.disassemble(text)
            document["code"] = [[None, line] for line in assembly.splitlines()]
    except (MissingDependency, CompileError) as error:
        document["missing"] = str(error)
    return document

"""A GPU kernel's machine code beside its PTX: registers in use, stalls, and who waits for whom.

ptxas notes which line of PTX each instruction came from, which changes no instruction; nvdisasm
prints instructions, lines, and how many registers hold values that are still needed.

Source of the control bits, from bit 105 of an instruction's 128 on: Z. Jia and others, "Dissecting
the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018, chapter 2.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from baregrad.assemble.cuda_toolkit import find_program
from baregrad.assemble.ptxas import DEFAULT_FLAGS, PtxAssembler, run_tool

DISASSEMBLER = "nvidia-cuda-nvdisasm"
_LINE = re.compile(r'^\s*//## File ".nv_debug_ptx_txt", line (\d+)')
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);?\s+/\* (0x[0-9a-f]{16}) \*/")
_SECOND = re.compile(r"^\s*/\* (0x[0-9a-f]{16}) \*/")
_LIVE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/.*//\s*\|\s*(\d*)\s*\|")
_NO_COUNTER = 7
_COUNTERS = 6


@dataclass(frozen=True, slots=True)
class MachineLine:
    """An instruction: its address, its text, and the line of the text that it was made of, from 1.

    live: registers that hold what is needed then or later. stall: cycles until the next one may
    begin. sets: the counters that it releases when its operands are read or its result is there.
    awaits: the addresses of instructions before it whose counters it waits for.
    """

    address: int
    text: str
    line: int
    live: int
    stall: int
    sets: tuple[int, ...]
    awaits: tuple[int, ...]


def machine_lines(text: str, architecture: str) -> tuple[list[MachineLine], bytes]:
    """Return the machine code of a kernel in PTX, of its first function, and the cubin.

    Raises MissingDependency where ptxas or nvdisasm is not there, CompileError where ptxas refuses.
    """
    program = find_program("nvdisasm", DISASSEMBLER)
    cubin = PtxAssembler(architecture, flags=(*DEFAULT_FLAGS, "-lineinfo")).assemble(text)
    with tempfile.TemporaryDirectory(prefix="baregrad-code-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        coded, _ = run_tool([str(program), "-c", "-gp", "-hex", str(path)], "", text)
        counted, _ = run_tool([str(program), "-c", "-lrm", "count", str(path)], "", text)
    live = {
        int(found[1], 16): int(found[2] or 0)
        for found in map(_LIVE.match, counted.decode(errors="replace").splitlines())
        if found
    }
    return list(read_listing(coded.decode(errors="replace").splitlines(), live)), cubin


def read_listing(listing: Iterable[str], live: dict[int, int]) -> Iterator[MachineLine]:
    """Yield the instructions of nvdisasm's listing; `live` are registers in use by address."""
    setters: dict[int, int] = {}
    line, address, words = 0, -1, ""
    for row in listing:
        if found := _LINE.match(row):
            line = int(found[1])
        elif found := _CODE.match(row):
            if int(found[1], 16) <= address:
                # Another function's.
                return
            address, words = int(found[1], 16), found[2].strip()
        elif (found := _SECOND.match(row)) and words:
            control = int(found[1], 16) >> 41
            awaited = [one for one in range(_COUNTERS) if control >> 11 >> one & 1]
            awaits = tuple([setters[one] for one in awaited if one in setters])
            ends = (control >> 5 & 7, control >> 8 & 7)
            sets = tuple(dict.fromkeys([one for one in ends if one != _NO_COUNTER]))
            yield MachineLine(
                address, words, line, live.get(address, 0), control & 15, sets, awaits
            )
            setters.update(dict.fromkeys(sets, address))
            words = ""

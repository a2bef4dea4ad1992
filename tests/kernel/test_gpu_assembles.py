"""What GPUs' kernels become: assembled by ptxas for every generation, registers and spills told."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from baregrad.ir.core.node import Node
from baregrad.kernel import choose_schedule
from baregrad.render import get
from baregrad.target.gpu import GPU_ROWS, gpu_row
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import lowered
from tests.kernel.planning.gpu.test_gpu_schedule import MORE
from tests.kernel.test_lowering import FAMILIES

LARGE: tuple[tuple[Callable[..., Node], tuple[Any, ...]], ...] = (
    (k.elementwise, (4096, 4096)),
    (k.row_reduce, (4096, 512)),
    (k.row_reduce, (4, 1 << 20)),
    (k.column_reduce, (4096, 4096)),
    (k.softmax, (2048, 1024)),
    (k.layer_norm, (512, 8192)),
    (k.matmul, (2048, 2048, 512)),
    (k.matmul, (512, 512, 4096)),
    (k.conv, (8, 64, 64, 28, 28, 3, 1, 1)),
    (k.conv, (64, 256, 256, 56, 56, 3, 1, 1, 256)),
    (k.conv, (64, 96, 96, 56, 56, 7, 1, 3, 96)),
    (k.matmul, (8192, 4096, 5)),
)
# The assembler may spill a few bytes for one more block on a multiprocessor.
FEW_BYTES = 32
ptxas = shutil.which("ptxas")
needs_ptxas = pytest.mark.skipif(ptxas is None, reason="ptxas of the CUDA toolkit is not on PATH")


def assembled(text: str, architecture: str) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills."""
    assert ptxas is not None
    command = [ptxas, f"-arch={architecture}", "-fmad=false", "-v", "-", "-o", "/dev/null"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    told = done.stderr.decode()
    assert done.returncode == 0, f"{told}\n{text}"
    registers = re.search(r"Used (\d+) registers", told)
    spilled = re.search(r"(\d+) bytes spill stores", told)
    assert registers
    return int(registers[1]), int(spilled[1]) if spilled else 0


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [*[row.name for row in GPU_ROWS], "sm_90a:sm_80", "sm_90a:sm_90"]
)
def test_kernels_assemble(
    architecture: str, record_property: Callable[[str, object], None]
) -> None:
    target = gpu_row(architecture)
    for make, args in (*FAMILIES, *MORE, *LARGE):
        kernel = make(*args)
        _, program = lowered(kernel, choose_schedule(kernel, target), target)
        registers, spilled = assembled(get("ptx").render(program, target), target.architecture)
        name = f"{make.__name__}{args}"
        record_property(name, f"{registers} registers, {spilled} bytes spilled")
        assert spilled <= FEW_BYTES, name
        threads = program.arg.block[0] * program.arg.block[1] * program.arg.block[2]
        assert registers * threads <= target.registers_per_unit, name


@needs_ptxas
def test_a_contraction_holds_its_tile_in_registers() -> None:
    kernel = k.matmul(2048, 2048, 512)
    _, program = lowered(kernel, choose_schedule(kernel, gpu_row("sm_90a")))
    text = get("ptx").render(program, gpu_row("sm_90a"))
    registers, spilled = assembled(text, "sm_90a")
    assert spilled == 0
    assert 64 < registers < 200
    assert ".local" not in text

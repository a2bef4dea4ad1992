"""What GPUs' kernels become: assembled by ptxas for every generation, registers and spills told."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baregrad.engine.explain import kernels_of, null_backend
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
# Products of all dtypes that units have, a convolution, attention, decoding, blocks of numbers.
PROGRAM = """
from baregrad import Tensor, nn, options

def drawn(*shape, dtype="bfloat16"):
    return Tensor.randn(*shape).cast(dtype).realize()

for dtype in ("bfloat16", "float16"):
    (drawn(1024, 512, dtype=dtype) @ drawn(512, 768, dtype=dtype)).realize()
    (drawn(512, 1024, dtype=dtype).T @ drawn(512, 768, dtype=dtype)).realize()
    (drawn(100, 4096, dtype=dtype) @ drawn(4096, 130, dtype=dtype)).realize()
for dtype, out in (("float8_e4m3fn", "bfloat16"), ("float8_e5m2", "float32"), ("int8", "int32")):
    left, right = drawn(1024, 512, dtype=dtype), drawn(768, 512, dtype=dtype)
    left.matmul(right.T, out_dtype=out).realize()
with options.override(matmul_precision="high"):
    (drawn(1024, 512, dtype="float32") @ drawn(512, 768, dtype="float32")).realize()
x, w = drawn(8, 64, 28, 28).requires_grad_(), drawn(128, 64, 3, 3).requires_grad_()
y = x.conv2d(w, padding=1)
(y * drawn(8, 128, 28, 28)).sum().backward()
Tensor.realize(y, x.grad, w.grad)
for width in (64, 80, 128, 192, 256):
    q, k, v = [drawn(1, heads, 512, width).requires_grad_() for heads in (4, 2, 2)]
    mask = Tensor.ones(512, 512).tril() > 0 if width == 80 else None
    y = q.scaled_dot_product_attention(k, v, mask, is_causal=mask is None, enable_gqa=True)
    (y * drawn(1, 4, 512, width)).sum().backward()
    Tensor.realize(y, q.grad, k.grad, v.grad)
k, v = [drawn(4, 2, 2000, 128, dtype="float8_e4m3fn").cast("bfloat16") for _ in range(2)]
drawn(4, 8, 1, 128).scaled_dot_product_attention(k, v, enable_gqa=True).realize()
for name in ("fp8", "mxfp4", "nvfp4", "int4"):
    one, other = [nn.quantize_blocks(drawn(256, 512, dtype="float32"), name) for _ in range(2)]
    nn.scaled_matmul(one, other).realize()
layer = nn.Float8Linear(512, 512)
layer(drawn(256, 512)).square().mean().backward()
layer.weight.grad.realize()
"""
# The assembler may spill a few bytes for one more block on a multiprocessor.
FEW_BYTES = 32
ptxas = shutil.which("ptxas")
needs_ptxas = pytest.mark.skipif(ptxas is None, reason="ptxas of the CUDA toolkit is not on PATH")


def assembled(text: str, architecture: str) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills."""
    assert ptxas is not None
    # It may replace what it writes to, `/dev/null` as well.
    with tempfile.TemporaryDirectory() as folder:
        command = [ptxas, f"-arch={architecture}", "-fmad=false", "-v", "-", "-o", f"{folder}/code"]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    told = done.stderr.decode()
    assert done.returncode == 0, f"{told}\n{text}"
    # Products of groups of warps that wait for each other.
    assert "(C75" not in told, told
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
@pytest.mark.slow
@pytest.mark.parametrize("architecture", [row.name for row in GPU_ROWS])
def test_programs_assemble(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    null = null_backend(architecture)
    target = gpu_row(architecture)
    units = set()
    for found in kernels_of(path, null):
        text = null.compiler.without_code(found.kernel).source
        units |= {unit for unit in ("wgmma", "mma.sync") if unit in text}
        _, spilled = assembled(text, target.architecture)
        assert spilled <= FEW_BYTES, found.kernel.arg.name
    assert ("wgmma" in units) == (target.warpgroup_warps > 0)
    assert "mma.sync" in units or architecture == "sm_75"


@needs_ptxas
def test_a_contraction_holds_its_tile_in_registers() -> None:
    kernel = k.matmul(2048, 2048, 512)
    _, program = lowered(kernel, choose_schedule(kernel, gpu_row("sm_90a")))
    text = get("ptx").render(program, gpu_row("sm_90a"))
    registers, spilled = assembled(text, "sm_90a")
    assert spilled == 0
    assert 64 < registers < 200
    assert ".local" not in text

"""Roles in CUDA C: what a compiler makes of their text runs as the text of PTX does."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import lowered, run_text
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import text as groups_text
from tests.render.gpu_harness import run_module
from tests.render.test_cuda import COMPILED, text_of, to_ptx

KERNEL = product(192, 64, 192, b_t=True)
TMA = groups_text((False, True), "pipeline('ko', 2, 'tma')")


@COMPILED
@pytest.mark.parametrize("spelled", [
    f"{TMA[:-1]}, persist(2), stage_output(0))",
    TMA.replace("outer='a', w=", "outer='a', c=2, w=")[:-1] + ", bind('c', 'cluster'), persist(2))",
], ids=["alone", "clusters"])  # fmt: skip
def test_boxes_and_their_barriers(spelled: str) -> None:
    loop, program = lowered(KERNEL, spelled)
    arrays = k.arguments(KERNEL)
    wanted = run_text(loop, program, arrays)[0]
    found = [np.array(arrays[slot]) for slot in range(len(arrays))]
    run_module(PtxModule.parse(to_ptx(text_of(program))), program, found, grid=2)
    np.testing.assert_array_equal(found[0], wanted)


def test_the_text_says_what_a_kernel_takes() -> None:
    text = text_of(lowered(KERNEL, TMA)[1])
    assert "const __grid_constant__ tensor_map m0, const __grid_constant__ tensor_map m1)" in text
    assert "__launch_bounds__(256, " in text and text.count("cp.async.bulk.tensor.2d") == 2
    assert "setmaxnreg.dec.sync.aligned.u32 40" in text

"""Sums of parts that threads add up: when they do so, and that no part is lost or added twice."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.ir.evaluate.alu import to_array
from tests.kernel import kernels as k
from tests.kernel.gpu.test_group_products import names
from tests.kernel.gpu_kernels import lowered, run_text, run_threads
from tests.kernel.instructions.test_wgmma import ASYNC, E4M3, bytes_product, text_of_bytes


def test_an_iteration_adds_up_what_the_one_before_made() -> None:
    spelled = text_of_bytes(ASYNC.format(3))
    _, program = lowered(bytes_product(64, 64, 512, (E4M3, E4M3)), spelled)
    code = [name for name in names(program) if name != "END"]
    begin = code.index("BEGIN")
    assert code[begin : begin + 8] == [
        "BEGIN", "cp.async.wait", "fence.proxy.async", "bar.sync", "wgmma.wait", "wgmma.fence",
        "wgmma", "wgmma.commit",
    ]  # fmt: skip


SIZES = (
    ((320, 64, 512), ASYNC.format(3), {}, 2), ((384, 64, 384), ASYNC.format(4), {"tiles": 2}, 2),
    ((320, 64, 384), ASYNC.format(2), {}, 3), ((200, 64, 128), "", {}, 2),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "pipe", "sizes", "blocks"), SIZES, ids=str)
def test_blocks_that_do_several_tiles_begin_each_anew(
    shape: tuple[int, int, int], pipe: str, sizes: dict[str, int], blocks: int
) -> None:
    kernel = bytes_product(*shape, (E4M3, E4M3))
    spelled = f"{text_of_bytes(pipe, **sizes)[:-1]}, persist({blocks}))"
    loop, program = lowered(kernel, spelled)
    arrays = k.arguments(kernel)
    left, right = (to_array(arrays[slot], E4M3).astype(np.float64) for slot in (1, 2))
    found = run_text(loop, program, arrays)[0]
    np.testing.assert_array_equal(found, run_threads(loop, program, arrays)[0])
    bound = shape[2] * 2.0**-24 * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(found - left @ right.T) <= bound).all()

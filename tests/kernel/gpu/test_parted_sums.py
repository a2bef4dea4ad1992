"""Sums of parts that threads add up: when they do so, and that no part is lost or added twice."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.node import Node, const, make_node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array
from baregrad.kernel.gpu.parted_sums import read_by_rows
from baregrad.kernel.loops.loop_pieces import load, store
from tests.kernel import kernels as k
from tests.kernel.gpu.test_group_products import names
from tests.kernel.gpu_kernels import lowered, run_text, run_threads
from tests.kernel.instructions.test_wgmma import (
    ASYNC,
    CUT_OFF,
    E4M3,
    bytes_product,
    text_of_bytes,
)


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
    bound = CUT_OFF * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(found - left @ right.T) <= bound).all()


def test_sums_are_read_where_they_are_made() -> None:
    """Another element of them than a tile of rows gives would be one that nobody set."""
    row, column = range_node(2, 1, "u", "unroll"), range_node(4, 2, "n", "unroll")
    sums, total = (
        make_node(Ops.ALLOC, k.F32, (), Alloc(n, "register", (2, 4), name="s")) for n in (1, 2)
    )
    first = const(0, column.dtype)
    made, other = load(sums, (row, column)), load(sums, (row, first))
    left = load(total, (row, first))
    group = Node(Ops.MMA, dtypes.token, (made, left, left, const(True, dtypes.bool)), None)
    found = read_by_rows(group, store(total, made, (row, column)))
    assert not any(sums in toposort(each) for each in found) and len(found) == 7
    with pytest.raises(CompilerBug, match="elsewhere"):
        read_by_rows(group, store(total, other, (row, column)))

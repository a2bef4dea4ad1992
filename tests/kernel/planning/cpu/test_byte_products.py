"""Products of bytes: lanes are packed rows, and all kinds of machines give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.language.schedule import Prefetch
from baregrad.kernel.planning.first_schedule import choose
from baregrad.target.cpu import CPU_ROWS, CpuTarget, cpu_row_named
from tests.kernel.test_lowering import check

pytestmark = pytest.mark.differential
AVX512 = cpu_row_named("x86-64-avx512")
BLOCKS, NBYTES = 6, 20


def product(rows: int, out: int, joined: bool = True, apart: bool = False) -> Tensor:
    """Rows of nibbles of blocks with a scale, times rows of bytes.

    apart: the halves of a block are summed as whole numbers, and two blocks are a step.
    """
    rng = np.random.default_rng(4)
    packed = Tensor(rng.integers(0, 256, (out, BLOCKS, NBYTES), np.uint8))
    x = Tensor(rng.integers(-127, 128, (rows, 1, BLOCKS, 32), np.int8)).view(dtypes.int32)
    scales = Tensor(rng.standard_normal((rows, 1, BLOCKS, 1, 1)).astype(np.float32))
    words = packed[..., 4:].view(dtypes.int32).unsqueeze(-2)
    steps = Tensor.arange(2, dtype=dtypes.int32).reshape(2, 1) * 4
    codes = (words >> steps) & 0x0F0F0F0F
    if apart:
        codes = codes.reshape(out, BLOCKS // 2, 2, 2, 4)
        x = x.reshape(rows, 1, BLOCKS // 2, 2, 2, 4)
        dots = codes[..., 0, :].dot_bytes(x[..., 0, :, :])
        dots = codes[..., 1, :].dot_bytes(x[..., 1, :, :], dots)
        halves = packed[..., 0].cast(dtypes.float32).reshape(out, BLOCKS // 2, 2, 1)
        return (dots.float() * scales.reshape(rows, 1, -1, 2, 1) * halves).sum((-1, -2, -3))
    x = x.reshape(rows, 1, BLOCKS, 2, 4)
    if not joined:
        # A scale for each half of a block.
        scales = scales * Tensor([1.0, 0.5]).reshape(2, 1)
    return (codes.dot_bytes(x).float() * scales).sum((-1, -2, -3))


def kernel_of(tensor: Callable[[], Tensor]) -> Node:
    kernels: list[Node] = []
    with use_session(Session()) as session, options.override(device="NULL"):
        session.watching.observers.append(
            lambda run: kernels.extend(one.kernel for one in run.executable.plan.steps)
        )
        tensor().realize()
        session.close()
    (found,) = [kernel for kernel in kernels if kernel.has(Ops.DOT4)]
    return found


def test_lanes_are_packed_rows() -> None:
    for rows, joined in ((1, True), (3, True), (16, False)):
        kernel = kernel_of(partial(product, rows, 64, joined))
        for row, lanes in ((AVX512, 16), (cpu_row_named("x86-64-sse2"), 4)):
            chosen = choose(kernel, row)
            assert f"vectors of {lanes} packed rows" in " ".join(chosen.why())
            assert f"={lanes}" in str(chosen.schedule)


def test_rows_beside_packed_ones_lie_in_registers() -> None:
    kernel = kernel_of(lambda: product(64, 64, apart=True))
    assert "16 rows of i0 at once" in choose(kernel, AVX512).why()
    assert "8 rows of i0 at once" in choose(kernel, cpu_row_named("x86-64-avx2")).why()


@pytest.mark.parametrize("rows", [1, 3])
def test_the_next_packed_rows_are_asked_for_block_by_block(rows: int) -> None:
    kernel = kernel_of(lambda: product(rows, 512))
    chosen = choose(kernel, AVX512)
    (step,) = [each for each in chosen.schedule.steps if isinstance(each, Prefetch)]
    assert step.nbytes == 16 * BLOCKS * NBYTES
    assert [nbytes for _, nbytes in step.loops] == [16 * NBYTES]
    check(kernel, chosen.schedule, AVX512)
    # Rows of a vector that would fill the first cache are asked for one vector earlier.
    tiny = choose(kernel, replace(AVX512, l1_bytes=1024))
    (step,) = [each for each in tiny.schedule.steps if isinstance(each, Prefetch)]
    assert step.nbytes == 2 * 16 * BLOCKS * NBYTES
    small = choose(kernel_of(lambda: product(rows, 64)), AVX512)
    assert not any(isinstance(each, Prefetch) for each in small.schedule.steps)


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(("rows", "out"), [(1, 1), (1, 13), (3, 7), (17, 5)])
def test_every_machine_computes_the_same(
    row: CpuTarget, rows: int, out: int, joined: bool
) -> None:
    kernel = kernel_of(lambda: product(rows, out, joined))
    check(kernel, choose(kernel, row).schedule, row)


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
def test_every_machine_sums_blocks_that_lie_apart(row: CpuTarget) -> None:
    kernel = kernel_of(lambda: product(11, 5, apart=True))
    check(kernel, choose(kernel, row).schedule, row)

"""Products of bytes: lanes are words of a block, and all kinds of machines give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.planning.first_schedule import choose
from baregrad.target.cpu import CPU_ROWS, CpuTarget, cpu_row_named
from tests.kernel.test_lowering import check

pytestmark = pytest.mark.differential
AVX512 = cpu_row_named("x86-64-avx512")
BLOCKS, NBYTES = 6, 20


def product(rows: int, out: int, joined: bool = True, apart: bool = False) -> Tensor:
    """Rows of nibbles of blocks with a scale, times rows of bytes.

    apart: the halves of a block are summed as whole numbers, and two blocks lie side by side.
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


def test_lanes_are_the_words_of_a_block() -> None:
    for joined in (True, False):
        kernel = kernel_of(partial(product, 1, 64, joined))
        chosen = choose(kernel, AVX512)
        assert "vectors of the 8 words of a block" in " ".join(chosen.why())
        assert "bind('r2_r3', 'vector')" in str(chosen.schedule)
        # Registers of 16 bytes hold no more than half a block, and both halves read its bytes.
        short = choose(kernel, cpu_row_named("x86-64-sse2"))
        assert "vectors of the 4 words of a block" in " ".join(short.why())
        assert "2 steps of r2 at once" in " ".join(short.why())


def test_words_of_two_blocks_are_one_vector() -> None:
    kernel = kernel_of(lambda: product(3, 64, apart=True))
    chosen = choose(kernel, AVX512)
    assert "bind('r3_r4', 'vector')" in str(chosen.schedule)
    assert "vectors of the 8 words" in " ".join(chosen.why())


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

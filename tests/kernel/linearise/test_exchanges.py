"""Results that lanes exchange: once each, behind all products and outside of loops."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel import Schedule, choose_schedule
from baregrad.kernel.linearise.exchanges import exchange_results
from baregrad.kernel.planning.gpu import gemm_mma
from baregrad.kernel.planning.gpu.gemm_groups import GroupChoice, GroupTile
from baregrad.kernel.planning.gpu.gemm_tiles import TileChoice, WarpTile
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text, run_threads
from tests.kernel.linearise.programs import machines


def planned(monkeypatch: pytest.MonkeyPatch, right: str, slots: int) -> Node:
    """The PROGRAM of a product, whose values were checked at each level."""
    chosen = TileChoice(WarpTile(2, 1, 2, 4), slots, 0.0)
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [chosen])
    kernel = contraction((32,), (64,), (192,), "ax", right, "an")
    return check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("slots", [1, 3])
def test_each_result_is_exchanged_behind_the_last_product(
    monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    code = list(planned(monkeypatch, "xn", slots).src)
    shuffles = [at for at, node in enumerate(code)
                if node.op is Ops.MACHINE and node.arg.name == "shfl.sync.bfly"]  # fmt: skip
    last = max(at for at, node in enumerate(code)
               if node.op is Ops.END or (node.op is Ops.MACHINE and node.arg.name == "mma.sync"))
    # A lane has two rows of two columns of each of four tiles, and gives half of them twice.
    assert len(shuffles) == 2 * 2 * 4
    assert min(shuffles) > last


def test_columns_that_take_turns_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    program = planned(monkeypatch, "nx", 1)
    assert machines(program, "mma.sync")
    assert exchange_results(program) is program


def rounded(kernel: Node, schedule: Schedule | str, dtype: DType) -> Node:
    """The PROGRAM of a product of small integers, whose results NumPy has just so."""
    arrays = k.arguments(kernel)
    generator = np.random.default_rng(7)
    left, right = [generator.integers(-3, 4, arrays[slot].shape) for slot in (1, 2)]
    arrays.update({1: left.astype(np.float16), 2: right.astype(np.float16)})
    wanted = (left @ right).astype(ml_dtypes.bfloat16 if dtype is dtypes.bfloat16 else np.float16)
    loop, program = lowered(kernel, schedule)
    for run in (run_threads, run_text):
        found = run(loop, program, arrays)[0]
        np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))
    return program


@pytest.mark.parametrize("rows", [32, 40])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_what_is_rounded_is_exchanged_in_words(
    monkeypatch: pytest.MonkeyPatch, dtype: DType, rows: int
) -> None:
    """Where some rows are past the edge, all lanes take part before some of them store."""
    chosen = TileChoice(WarpTile(2, 1, 2, 4), 3, 0.0)
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [chosen])
    kernel = contraction((rows,), (64,), (192,), "ax", "xn", "an", written=dtype)
    program = rounded(kernel, choose_schedule(kernel, HOPPER), dtype)
    # Two columns of each of four tiles, of a lane's two rows, are a word.
    assert len(machines(program, "cvt.pack")) == 2 * 4
    shuffles = machines(program, "shfl.sync.bfly")
    assert len(shuffles) == 2 * 4
    assert {node.dtype for node in shuffles} == {dtypes.uint32}


def test_slots_are_given_back_before_results_are_exchanged(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups of four warps, whose block goes on to another tile."""
    chosen = GroupChoice(GroupTile(1, 1, 1, 64), 3, 0.0, 1, boxes=True)
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [])
    monkeypatch.setattr(gemm_mma, "ranked_groups", lambda *_, **__: [chosen])
    kernel = contraction((128,), (64,), (192,), "ax", "xn", "an", written=dtypes.bfloat16)
    schedule = f"{choose_schedule(kernel, HOPPER)}"[:-1] + ", persist(1))"
    assert "wgmma" in schedule and "tma" in schedule
    code = list(rounded(kernel, schedule, dtypes.bfloat16).src)
    shuffles = [at for at, node in enumerate(code) if _is(node, "shfl.sync.bfly")]
    given = [at for at, node in enumerate(code) if _is(node, "mbarrier.arrive")]
    assert shuffles and min(shuffles) > max(given)


def _is(node: Node, name: str) -> bool:
    return node.op is Ops.MACHINE and bool(node.arg.name == name)

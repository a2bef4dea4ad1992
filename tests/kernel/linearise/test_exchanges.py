"""Results that lanes exchange: once each, behind all products and outside of loops."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.linearise.exchanges import exchange_results
from baregrad.kernel.planning.gpu import gemm_mma
from baregrad.kernel.planning.gpu.gemm_tiles import TileChoice, WarpTile
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu
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

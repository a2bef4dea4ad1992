"""Axes are split where an index divides them, and numbered canonically."""

from __future__ import annotations

from baregrad.ir.core.op import Ops
from tests.schedule.graphs import check, param


def test_reshaped_output_divides_nothing() -> None:
    plan = check([(param(0, 12, 10) @ param(1, 10, 14)).reshape(6, 28)], kernels=1)
    assert not plan.kernels[0].mask & (Ops.FLOORDIV.bit | Ops.MOD.bit)


def test_merged_heads_are_read_without_division() -> None:
    x = (param(0, 4, 8, 16) * 2.0).contiguous()
    plan = check([x.permute(1, 0, 2).reshape(8, 64) * 3.0], kernels=2)
    for kernel in plan.kernels:
        assert not kernel.mask & (Ops.FLOORDIV.bit | Ops.MOD.bit)


def test_equal_kernels_are_one_node() -> None:
    x = param(0, 64, 64)
    for slot in range(1, 5):
        x = (x @ param(slot, 64, 64)).relu()
    plan = check([x], kernels=4)
    assert len(set(plan.kernels)) == 1

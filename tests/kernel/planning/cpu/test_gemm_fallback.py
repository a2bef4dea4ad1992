"""Contractions that are no blocks: register tiles, panels, and stretches of rows."""

from __future__ import annotations

from baregrad.ir.core.op import Ops
from baregrad.kernel import (
    choose_schedule,
)
from baregrad.kernel.language.schedule import StageReduce
from tests.kernel import kernels as k
from tests.kernel.planning.cpu.test_gemm_blocked import SMALL
from tests.kernel.test_lowering import check


def test_rows_are_not_summed_by_stretches_where_a_sum_waits_for_another() -> None:
    """Each stretch would make the other sum anew. The sum that both wait beside does not."""
    n, m = 512, 64
    i, r, s = k.range_node(n, 0), k.range_node(m, 1), k.range_node(m, 2)
    x = k.param(1, m, n)
    alone = k.reduce(Ops.ADD, k.at(x, r, i), r)
    mean = k.alu(Ops.MUL, k.reduce(Ops.ADD, k.at(x, s, i), s), k.const(1 / m, k.F32))
    off = k.alu(Ops.SUB, k.at(x, r, i), mean)
    waits = k.reduce(Ops.ADD, k.alu(Ops.MUL, off, off), r)
    for value, stretches in ((alone, True), (k.alu(Ops.ADD, alone, waits), False)):
        kernel = k.kernel(k.out(k.param(0, n), value, i))
        schedule = choose_schedule(kernel, SMALL)
        assert any(isinstance(step, StageReduce) for step in schedule.steps) == stretches
        check(kernel, schedule, SMALL)

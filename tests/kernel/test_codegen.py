"""The passes from the loop level on: their order, and what they leave."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.algebra.passes import check_order
from baregrad.ir.core.node import alu, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel import (
    Lowering,
    Schedule,
    codegen_passes,
    lower,
    prepare_pass,
    to_linear,
)
from baregrad.target.gpu import gpu_row
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX


@pytest.mark.parametrize("target", [AVX, gpu_row("sm_90a")], ids=["cpu", "gpu"])
def test_passes_join_up_from_the_kernel_level_to_the_linear_level(target: Any) -> None:
    lowering = Lowering(target, Schedule())
    check_order((prepare_pass(target), *lowering.passes, *codegen_passes(target)), "kernel")


def test_cpus_have_no_threads_and_gpus_have_them_before_linearise() -> None:
    cpu, gpu = ([each.name for each in codegen_passes(one)] for one in (AVX, gpu_row("sm_90a")))
    before, after = ["threads", "group-products", "loop-bounds"], ["late-products"]
    before += ["spread-copies", "roles"]
    after += ["exchange-results", "wide-accesses", "early-loads", "loads-ahead"]
    after += ["numbers-ahead", "first-warp"]
    assert not {*before, *after}.intersection(cpu)
    # GPUs load words from multiples of their size alone.
    assert cpu[-2:] == ["wide-reads", "linearise"] and "wide-reads" not in gpu
    assert gpu[-13:] == [*before, "linearise", *after]
    assert [name for name in gpu if name not in (*before, *after)] == [*cpu[:-2], "linearise"]


@pytest.mark.parametrize("target", [AVX, gpu_row("sm_90a")], ids=["cpu", "gpu"])
def test_each_pass_leaves_a_graph_of_its_level_and_removes_what_it_is_for(target: Any) -> None:
    half = dtypes.float16
    i, j = range_node(3, 0), range_node(40, 1)
    x = k.at(k.param(1, 3, 40, dtype=half), i, j)
    value = alu(Ops.EXP, alu(Ops.ADD, x, x))
    kernel = k.kernel(k.out(k.param(0, 3, 40, dtype=half), value, i, j))
    node = lower(kernel, target)
    for each in codegen_passes(target):
        node = each.run(node)
        verify(node, each.level_out)
        nodes = toposort(node)
        if each.name == "lower-functions":
            assert Ops.EXP not in {one.op for one in nodes}
        if each.name == "lower-dtypes":
            computed = {one.dtype for one in nodes if one.op in (Ops.ADD, Ops.MAX, Ops.DIV)}
            assert dtypes.float16 not in computed
    assert node.op is Ops.PROGRAM
    assert node is to_linear(lower(kernel, target), target)

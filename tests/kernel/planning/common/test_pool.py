"""What threads share: an axis of every output, in chunks that are worth waking others for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baregrad.ir.core.node import Node, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Bind
from baregrad.kernel.planning.common.pool import MOST_CHUNKS, choose_pool, estimate_ns
from baregrad.kernel.planning.common.tiling import CpuPlan
from baregrad.target.cpu import CpuTarget
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX

FOUR = replace(AVX, cores=4)


def pool_of(kernel: Node, target: CpuTarget = FOUR) -> tuple[Bind | None, list[str]]:
    """What threads share where nothing else is planned, and why."""
    plan = CpuPlan(facts_of(kernel), target)
    for axis in plan.axes:
        plan.keep(axis)
    plan.vectors = [axis for axis in plan.axes if axis.size >= target.lanes(4)][:1]
    found = choose_pool(plan, [axis for axis in plan.axes if not axis.reduced])
    return found, [text.format(*facts) for text, *facts in plan.reasons]


def test_little_work_is_one_threads() -> None:
    bind, (why,) = pool_of(k.elementwise(64, 64))
    assert bind is None
    assert "not worth waking others" in why
    bind, _ = pool_of(k.elementwise(2048, 2048))
    assert bind is not None


@pytest.mark.parametrize("shape", [(2048, 512), (100, 1 << 14), (1 << 20,), (37, 1 << 15)])
def test_chunks_are_enough_for_all_cores_and_not_too_many(shape: tuple[int, ...]) -> None:
    kernel = k.transpose(*shape) if len(shape) > 1 else k.elementwise(*shape)
    bind, (why,) = pool_of(kernel)
    assert bind is not None
    extent = dict(zip(("i0", "i1"), shape, strict=False))[bind.axis]
    chunks = -(-extent // bind.grain)
    assert min(extent, 4) <= chunks <= MOST_CHUNKS
    assert f"threads share {bind.axis}" in why and f"{chunks} chunks" in why


def test_a_chunk_takes_as_long_as_a_thread_is_worth() -> None:
    """Half the time for each chunk: twice as many of them, where there may be more."""
    kernel = k.row_reduce(4096, 64)
    grains = []
    for chunk_ns in (4_000.0, 8_000.0, 16_000.0):
        bind, _ = pool_of(kernel, replace(FOUR, chunk_ns=chunk_ns))
        assert bind is not None
        grains.append(bind.grain)
    assert grains == sorted(grains) and grains[2] >= 3 * grains[0]


def test_only_axes_of_every_output_and_every_large_sum_are_shared() -> None:
    i, j = range_node(1 << 12, 0), range_node(1 << 10, 1)
    x = k.at(k.param(2, 1 << 12, 1 << 10), i, j)
    whole = k.out(k.param(0, 1 << 12, 1 << 10), x, i, j)
    rows = k.out(k.param(1, 1 << 12), k.reduce(Ops.ADD, x, j), i)
    bind, _ = pool_of(k.kernel(rows))
    assert bind is not None and bind.axis == "i0"
    a = range_node(1 << 10, 3)
    columns = k.at(k.param(3, 1 << 10), a)
    bind, reasons = pool_of(k.kernel(whole, k.out(k.param(1, 1 << 10), columns, a)))
    assert bind is None
    assert "no axis runs through every output" in reasons[-1]


def test_the_estimate_is_the_longer_of_reading_and_computing() -> None:
    target = replace(AVX, bytes_per_ns=10.0, vector_ops_per_ns=2.0)
    moved = estimate_ns(facts_of(k.elementwise(1000)), target)
    assert moved == pytest.approx(3 * 4 * 1000 / 10.0)
    # A product of matrices reads each array once, as it is near the next time.
    product = estimate_ns(facts_of(k.matmul(64, 64, 64)), target)
    assert product == pytest.approx(2 * 64**3 / target.lanes(4) / 2.0)

"""The model of a GPU's schedules: bytes are a bound, and what wastes them or waits takes longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baregrad.kernel import Schedule, choose_schedule, facts_of, parse_schedule
from baregrad.kernel.search.gpu_estimate import estimated_gpu_ns, roofline_ns
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER

COPY = k.elementwise(1 << 12, 1 << 12)
NBYTES = 3 * 4 << 24


def laid(threads: str, others: str) -> Schedule:
    """The threads of blocks along one axis of a matrix, blocks along the other and the rest."""
    return parse_schedule(
        f"Schedule(split('{threads}', outer='o', t=256), bind('{others}', 'grid'), "
        "bind('o', 'grid'), bind('t', 'thread'))"
    )


def test_no_kernel_is_faster_than_its_bytes() -> None:
    least = NBYTES / HOPPER.memory_bytes_per_ns
    assert roofline_ns(facts_of(COPY), HOPPER) == pytest.approx(HOPPER.launch_ns + least)
    found = estimated_gpu_ns(COPY, choose_schedule(COPY, HOPPER), HOPPER)
    assert least + HOPPER.launch_ns < found < 1.5 * least


def test_machines_with_less_bandwidth_take_longer() -> None:
    schedule = choose_schedule(COPY, HOPPER)
    slow = replace(HOPPER, memory_bytes_per_ns=HOPPER.memory_bytes_per_ns / 4)
    assert estimated_gpu_ns(COPY, schedule, slow) > 3 * estimated_gpu_ns(COPY, schedule, HOPPER)


def test_neighbours_apart_in_memory_waste_sectors() -> None:
    kernel = k.bias(1 << 12, 1 << 12)
    rows, columns = laid("i1", "i0"), laid("i0", "i1")
    near, far = (estimated_gpu_ns(kernel, each, HOPPER) for each in (rows, columns))
    assert far > 2 * near


def test_one_thread_for_all_waits_for_each_round() -> None:
    kernel = k.row_reduce(64, 1 << 14)
    alone = Schedule()
    assert estimated_gpu_ns(kernel, alone, HOPPER) > 64 * (1 << 14) * HOPPER.memory_latency_ns
    shared = choose_schedule(kernel, HOPPER)
    assert estimated_gpu_ns(kernel, shared, HOPPER) < HOPPER.launch_ns + 1e5


def test_copies_are_shared_by_a_blocks_threads() -> None:
    """Otherwise panels of a product would take as long as one thread takes for them."""
    kernel = k.matmul(1024, 1024, 1024)
    found = estimated_gpu_ns(kernel, choose_schedule(kernel, HOPPER), HOPPER)
    flops = 2 << 30
    peak = 2 * 128 * HOPPER.units * HOPPER.cycles_per_ns
    assert flops / peak < found < 20 * flops / peak

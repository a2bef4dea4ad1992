"""The model of a GPU's memory: bytes are a bound, and what wastes them or waits takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from baregrad.ir.core.node import Node
from baregrad.kernel import Schedule, choose, choose_schedule, facts_of, parse_schedule
from baregrad.kernel.facts.axis_table import table_for
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.kernel.planning.gpu.memory_model import (
    AxisLayout,
    Estimate,
    estimate,
    roofline_ns,
    sectors,
)
from baregrad.target import GpuTarget
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER

COPY = k.elementwise(1 << 12, 1 << 12)
NBYTES = 3 * 4 << 24


def taken(kernel: Node, schedule: Schedule, target: GpuTarget = HOPPER) -> Estimate:
    """What a kernel takes under a schedule."""
    facts = facts_of(kernel)
    return estimate(facts, AxisLayout(facts, table_for(facts, target), schedule.steps), target)


def laid(threads: str, others: str) -> Schedule:
    """The threads of blocks along one axis of a matrix, blocks along the other and the rest."""
    return parse_schedule(
        f"Schedule(split('{threads}', outer='o', t=256), bind('{others}', 'grid'), "
        "bind('o', 'grid'), bind('t', 'thread'))"
    )


@pytest.mark.parametrize(("strides", "run"), [
    ([(32, 4)], 4), ([(32, 64)], 4), ([(8, 128), (4, 4)], 4), ([(16, 32)], 32), ([(32, 0)], 8),
    ([(4, 4096), (64, 16)], 16), ([(3, 160)], 64),
])  # fmt: skip
def test_sectors_are_those_that_bytes_lie_in(
    strides: Sequence[tuple[float, int]], run: int
) -> None:
    """Counted for arrays that begin at a sector: elsewhere one more for each stretch at most."""
    places = np.zeros(1, np.int64)
    for extent, stride in strides:
        places = np.add.outer(places, np.arange(int(extent)) * stride).reshape(-1)
    touched = np.unique(np.add.outer(places, np.arange(run)) // 32)
    assert len(touched) <= sectors(strides, run) <= 2 * len(touched)


def test_no_kernel_is_faster_than_its_bytes() -> None:
    least = NBYTES / HOPPER.memory_bytes_per_ns
    assert roofline_ns(facts_of(COPY), HOPPER) == pytest.approx(HOPPER.launch_ns + least)
    found = taken(COPY, choose_schedule(COPY, HOPPER))
    assert least + HOPPER.launch_ns < found.ns < 1.5 * least
    assert found.bound == "memory"


@pytest.mark.parametrize("shape", [(7644, 232, 11), (32, 104, 3545), (5163, 8, 179)])
def test_axes_that_go_on_in_memory_are_one(shape: tuple[int, int, int]) -> None:
    """However odd their extents are, accesses along all of them are as wide as along one."""
    parts = "o', t=128, v=8, masked=True), bind('o', 'grid'), bind('t', 'thread')"
    joined = f"collapse('i0', 'i1', 'i2', name='f'), split('f', outer='{parts}"
    several, one = k.elementwise(*shape), k.elementwise(shape[0] * shape[1] * shape[2])
    found = [
        taken(kernel, parse_schedule(f"Schedule({text}, bind('v', 'vector'))"))
        for kernel, text in ((several, joined), (one, f"split('i0', outer='{parts}"))
    ]
    assert found[0] == pytest.approx(found[1])


def test_machines_with_less_bandwidth_take_longer() -> None:
    schedule = choose_schedule(COPY, HOPPER)
    slow = replace(HOPPER, memory_bytes_per_ns=HOPPER.memory_bytes_per_ns / 4)
    assert taken(COPY, schedule, slow).ns > 3 * taken(COPY, schedule).ns


def test_neighbours_apart_in_memory_waste_sectors() -> None:
    kernel = k.bias(1 << 12, 1 << 12)
    near, far = (taken(kernel, each) for each in (laid("i1", "i0"), laid("i0", "i1")))
    assert far.ns > near.ns and far.cache > 4 * near.cache
    assert far.bound == "the second cache"


def test_one_thread_for_all_waits_for_its_rounds() -> None:
    kernel = k.row_reduce(64, 1 << 14)
    rounds = 64 << 14
    alone = taken(kernel, Schedule())
    assert alone.bound == "latency"
    assert rounds * HOPPER.memory_latency_ns / 8 < alone.ns < rounds * HOPPER.memory_latency_ns
    assert taken(kernel, choose_schedule(kernel, HOPPER)).ns < HOPPER.launch_ns + 1e5


def test_copies_are_shared_by_a_blocks_threads() -> None:
    """Otherwise panels of a product would take as long as one thread takes for them."""
    kernel = k.matmul(1024, 1024, 1024)
    found = taken(kernel, choose_schedule(kernel, HOPPER)).ns
    flops = 2 << 30
    peak = 2 * 128 * HOPPER.units * HOPPER.cycles_per_ns
    assert flops / peak < found < 20 * flops / peak


@pytest.mark.parametrize("way", ["turned tiles", "two ways", "neighbours"])
def test_planners_choose_the_way_that_takes_least(way: str) -> None:
    kernel = k.transpose(4096, 4096)
    decisions = Decisions({"way": way}, noted=True)
    schedule = choose(kernel, HOPPER, decisions).schedule
    assert decisions.made["way"].taken == way
    first = choose(kernel, HOPPER)
    assert taken(kernel, first.schedule).ns <= taken(kernel, schedule).ns
    assert any(text.startswith("way: turned tiles, ") for text in first.why())


@pytest.mark.parametrize("kernel", [
    COPY, k.row_reduce(64, 300), k.column_reduce(600, 256), k.softmax(64, 256), k.cumsum(40, 500),
], ids=lambda kernel: kernel.arg.name)
def test_plans_tell_what_they_take(kernel: Node) -> None:
    choice = choose(kernel, HOPPER)
    found = taken(kernel, choice.schedule)
    assert choice.why()[-1].startswith(f"about {found.ns / 1e3:.1f} us: memory ")


def test_what_overlaps_is_asked_for_once() -> None:
    """A thread that has several results of a window reads what they share once."""
    kernel = k.conv(4, 64, 64, 258, 264, 3, groups=64)
    tall, single = (
        choose(kernel, HOPPER, Decisions({"window tile": tile})).schedule
        for tile in ("1 by 8", "1 by 1")
    )
    assert 1.5 * taken(kernel, tall).near < taken(kernel, single).near


def test_windows_that_overlap_are_moved_once() -> None:
    """Memory moves an image, not each of the 49 elements of each of its windows."""
    kernel = k.conv(4, 64, 1, 134, 134, 7)
    image, results = 4 * 4 * 64 * 134 * 134, 4 * 4 * 128 * 128
    least = (image + results) / HOPPER.memory_bytes_per_ns
    memory = taken(kernel, choose_schedule(kernel, HOPPER)).memory
    assert least <= memory < 1.01 * least

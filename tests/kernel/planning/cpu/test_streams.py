"""Outputs that pass the caches by, transposed tiles, and points that take turns."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, cast, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, lower, parse_schedule
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import (
    Prefetch,
    Schedule,
    prefetch,
    stream_output,
    vectorise,
)
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.cpu.streams import AHEAD_NBYTES
from baregrad.render import Renderer
from tests.kernel import kernels as k
from tests.kernel.planning.cpu.small_caches import HUGE, SMALL_CACHE, chunks_of, placed, run
from tests.render.harness import compiled, host
from tests.render.harness import lower as linearised


def test_a_result_in_the_place_of_what_is_read_goes_by_way_of_the_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the call of what streams taken out, only the other way writes anything."""
    render = Renderer.render

    def without_streams(*args: Any) -> str:
        text = render(*args)
        assert text.count("call void @k.streamed") == 1
        return re.sub(r"  call void @k\.streamed.*", "", text)

    monkeypatch.setattr(Renderer, "render", without_streams)
    kernel = k.elementwise(4096)
    program = linearised(lower(kernel, SMALL_CACHE, choose_schedule(kernel, SMALL_CACHE)))
    call = compiled(program)
    x, y, apart = (placed(np.full(4096, value, np.float32), 0) for value in (2, 1, 5))
    call([apart, x, y])
    np.testing.assert_array_equal(apart, 5)
    call([y, x, y])
    np.testing.assert_array_equal(y, 7)


def test_what_fits_the_caches_is_not_streamed() -> None:
    target = replace(host(), l3_bytes=HUGE)
    for kernel in (k.transpose(512, 512), k.elementwise(1 << 20), k.softmax(64, 64)):
        assert "stream_output" not in str(choose_schedule(kernel, target))


@pytest.mark.parametrize(("rows", "streamed"), [(1024, False), (8192, True)])
def test_a_large_array_is_streamed_however_large_the_shared_cache(
    rows: int, streamed: bool
) -> None:
    target = replace(host(), l3_bytes=300 << 20)
    for kernel in (k.transpose(rows, 1024), k.elementwise(rows * 1024)):
        assert ("stream_output(0)" in str(choose_schedule(kernel, target))) == streamed


MIB = 1 << 20


def converted(count: int, source: DType, target: DType) -> Node:
    i = range_node(count, 0)
    value = cast(k.at(k.param(1, count, dtype=source), i), target)
    return k.kernel(k.out(k.param(0, count, dtype=target), value, i))


@pytest.mark.parametrize("last_cache", (32 * MIB, 300 * MIB))
@pytest.mark.parametrize(
    ("kernel", "streamed"),
    [
        # Of two arrays read, or of one and a row, and written.
        (k.elementwise(8 * MIB // 4), True),
        (k.elementwise(7 * MIB // 4), False),
        (k.bias(2048, 2048), True),
        (k.bias(1536, 2048), False),
        (k.transpose(2048, 2048), True),
        (k.transpose(1536, 2048), False),
        # An eighth of the last cache is written, and a sixteenth of it.
        (converted(4 * MIB, dtypes.float32, dtypes.uint8), True),
        (converted(2 * MIB, dtypes.float64, dtypes.uint8), False),
        (k.softmax(2048, 2048), True),
        (k.softmax(1536, 2048), False),
        (k.row_reduce(4096, 4096), False),
    ],
)
def test_what_is_read_leaves_no_room_in_the_last_cache(
    kernel: Node, streamed: bool, last_cache: int
) -> None:
    target = replace(host(), l2_bytes=MIB, l3_bytes=last_cache, cores=2)
    assert ("stream_output(0)" in str(choose_schedule(kernel, target))) == streamed


def test_second_caches_of_many_cores_have_room() -> None:
    target = replace(host(), l2_bytes=2 * MIB, l3_bytes=300 * MIB, cores=16)
    for mib, streamed in ((12, False), (16, True)):
        schedule = choose_schedule(k.elementwise(mib * MIB // 4), target)
        assert ("stream_output(0)" in str(schedule)) == streamed


def test_streams_are_said_and_parsed() -> None:
    schedule = Schedule((vectorise("i0"), stream_output(0)))
    assert str(schedule) == "Schedule(bind('i0', 'vector'), stream_output(0))"
    assert parse_schedule(str(schedule)) == schedule


# --- lines that are asked for ---------------------------------------------------------------------


def asked(text: str) -> list[tuple[int, bool]]:
    """The bytes ahead of each line that a module's text asks for, and whether it is written."""
    places = dict(re.findall(r"(%\w+) = getelementptr i8, ptr %\w+, i64 (\d+)", text))
    calls = re.findall(r"call void @llvm.prefetch.p0\(ptr (%\w+), i32 ([01]),", text)
    return [(int(places[name]), write == "1") for name, write in calls]


def test_arrays_in_memory_are_asked_for_ahead() -> None:
    target = replace(SMALL_CACHE, l3_bytes=HUGE)
    kernel = k.elementwise(4096)
    schedule = choose_schedule(kernel, target)
    slots = k.arguments(kernel)
    assert all(f"prefetch({slot}, {AHEAD_NBYTES})" in str(schedule) for slot in slots)
    rng = np.random.default_rng(1)
    arrays = {slot: rng.normal(size=4096).astype(np.float32) for slot in slots}
    expected = k.run_kernel(kernel, {**arrays, 0: np.zeros(4096, np.float32)})[0]
    found = np.zeros(4096, np.float32)
    text = run(kernel, schedule, [found, *(arrays[slot] for slot in sorted(slots) if slot)], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    lines = asked(text)
    # One line for each vector of each array.
    assert len(lines) == 4 * len(slots) * (host().vector_bytes // 64 or 1)
    assert {write for _, write in lines} == {False, True}


def requests(program: Node) -> list[tuple[int, int, int]]:
    """Of each array that loops ask for by shares: its slot, and the first and last element.

    Counted by hand from the instructions: each loop's counter from 0 on, of the first row.
    """
    found = []
    trips: list[int] = []
    for node in program.src:
        if node.op is Ops.BEGIN:
            trips.append(int(node.src[-1].arg) if node.src[-1].op is Ops.CONST else 1)
        elif node.op is Ops.TEST:
            trips.append(1)
        elif node.op is Ops.END:
            trips.pop()
        elif node.op is Ops.PREFETCH:
            access = node.arg
            last = access.at + trips[-1] * access.width
            found.append((node.src[0].arg.slot, access.at, last))
    return found


@pytest.mark.parametrize(("rows", "columns"), [(64, 2048), (48, 1000), (40, 1536)])
def test_the_loops_over_a_row_ask_for_all_of_the_next(rows: int, columns: int) -> None:
    """Each for what the one before left over, and none for what lies past the next row."""
    target = replace(SMALL_CACHE, l2_bytes=1 << 17, l3_bytes=HUGE)
    kernel = k.softmax(rows, columns)
    schedule = choose_schedule(kernel, target)
    (step,) = [s for s in schedule.steps if isinstance(s, Prefetch) and s.loops]
    assert parse_schedule(str(schedule)) == schedule
    x = np.random.default_rng(2).normal(size=(rows, columns)).astype(np.float32)
    found = np.zeros_like(x)
    text = run(kernel, schedule, [found, x], chunks_of(schedule, rows))
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, exact / exact.sum(1, keepdims=True), rtol=1e-5)
    assert step.nbytes == 4 * columns
    # A request for each line of a share.
    reads = re.findall(r"call void @llvm.prefetch.p0\(ptr %\w+, i32 0,", text)
    assert len(reads) == sum(-(-nbytes // 64) for _, nbytes in step.loops)
    parts = requests(linearised(lower(kernel, target, schedule)))
    assert len(parts) == len(step.loops) > 1
    assert {slot for slot, _, _ in parts} == {1}
    assert parts[0][1] == columns
    assert all(one[2] == after[1] for one, after in pairwise(parts))
    assert 1.75 * columns <= parts[-1][2] <= 2 * columns


KERNELS = (
    k.softmax(12, 40), k.layer_norm(8, 48), k.row_reduce(8, 64), k.elementwise(96),
    k.matmul(6, 20, 16), k.smallest_column_sum(8, 24), k.rows_scaled_by_columns(8, 24),
    k.sum_of_row_logs(9, 20), k.pad_rows_of_sums(6, 24, 2),
)


@pytest.mark.parametrize("kernel", KERNELS, ids=[str(place) for place in range(len(KERNELS))])
def test_a_loop_that_may_ask_for_a_share_changes_nothing(kernel: Node) -> None:
    """Every loop and array: refused, or machine code that computes what the kernel computes."""
    plain = choose_schedule(kernel, host())
    assert chunks_of(plain, 2) == 1
    arrays = k.arguments(kernel)
    expected = k.run_kernel(kernel, arrays)
    for name in table_after(facts_of(prepare(kernel, host())), plain, host()).axes:
        for slot in arrays:
            schedule = Schedule((*plain.steps, prefetch(slot, 64, **{name: 64})))
            try:
                program = linearised(lower(kernel, host(), schedule))
            except ScheduleError as error:
                assert "is not legal" in str(error)
                continue
            assert [part[0] for part in requests(program)] == [slot]
            found = [np.array(arrays[each]) for each in sorted(arrays)]
            compiled(program)(found, chunks=(0, 1))
            k.assert_equal({0: expected[0]}, {0: found[0]})


def test_small_and_scattered_arrays_are_not_asked_for() -> None:
    for kernel in (k.elementwise(1 << 12), k.softmax(64, 64), k.transpose(4096, 4096)):
        assert "prefetch" not in str(choose_schedule(kernel, host()))

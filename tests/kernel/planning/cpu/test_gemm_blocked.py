"""Contractions in blocks: copies in vectors, padded tiles, sums that are kept in the output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.errors import ScheduleError
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import (
    Schedule,
    apply_schedule,
    choose_schedule,
    lower,
    parse_schedule,
    to_linear,
)
from baregrad.kernel.language.schedule import Bind, Split, StageInput, StageReduce
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER
from tests.kernel.test_lowering import check

# Four lanes and caches so small that sums are split into blocks at tests' sizes.
SMALL = replace(
    cpu_row_named("x86-64-avx512"), name="small", vector_bytes=16, l1_bytes=512, l2_bytes=4096,
    cores=2,
)
BLOCKS = (
    "Schedule(split('i1', outer='b', t=2, u=2, v=4, masked=True), bind('u', 'unroll'), "
    "bind('v', 'vector'), split('i0', outer='m', r=3, masked=True), bind('r', 'unroll'), "
    "split('r2', outer='ko', ki={ki}, masked=True), reorder('b', 'ko', 'm', 't', 'ki'), "
    "bind('b', 'pool'), stage_input(2, 't', 'ki', 'u', 'v', lanes=4), "
    "stage_input(1, {near}, lanes=4), stage_reduce('ko', 'm', 't', 'r', 'u', 'v'))"
)


# The same, the vectors of a tile being one value.
WIDE_BLOCKS = (
    BLOCKS.replace("u=2, v=4", "v=8").replace("bind('u', 'unroll'), ", "").replace("'u', ", "")
)


@pytest.mark.parametrize("blocks", [BLOCKS, WIDE_BLOCKS], ids=["narrow", "wide"])
@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
@pytest.mark.parametrize(("m", "n", "inner"), [(6, 32, 16), (7, 35, 19), (1, 3, 9)])
def test_copies_in_vectors(m: int, n: int, inner: int, a: bool, b: bool, blocks: str) -> None:
    near = "'ki', 'r'" if a else "'r', 'ki'"
    schedule = parse_schedule(blocks.format(ki=min(inner, 8), near=near))
    check(k.matmul(m, n, inner, a, b), schedule, SMALL)


@pytest.mark.parametrize("lanes", [8, 32])
def test_rows_past_the_end_are_left_out_by_a_branch_where_vectors_are_wide(lanes: int) -> None:
    blocks = WIDE_BLOCKS.replace("v=8", f"v={lanes}")
    kernel = k.matmul(7, 4 * lanes, 16)
    loop = check(kernel, parse_schedule(blocks.format(ki=8, near="'r', 'ki'")), SMALL)
    program = to_linear(loop, SMALL)
    stores = [node for node in program.src if node.op is Ops.VSTORE]
    written = [node for node in stores if node.src[0].op is Ops.PARAM]
    # Three rows of a tile, each under a condition: a branch, or a mask of the lanes.
    assert [len(node.src) for node in written] == [4 if lanes == 8 else 3] * 3
    assert sum(node.op is Ops.TEST for node in program.src) == (0 if lanes == 8 else 3)


@pytest.mark.parametrize("b", [False, True])
def test_vectors_side_by_side_are_one_value(b: bool) -> None:
    kernel = k.matmul(96, 512, 128, False, b)
    schedule = choose_schedule(kernel, cpu_row_named("x86-64-avx512"))
    (cut,) = [s for s in schedule.steps if isinstance(s, Split) and s.axis == "i1"]
    (lanes,) = [s.axis for s in schedule.steps if isinstance(s, Bind) and s.unit == "vector"]
    assert dict(cut.parts)[lanes] in (32, 64)


@pytest.mark.parametrize(
    ("m", "n", "inner", "a", "b", "batch"),
    [
        (24, 16, 24, False, False, 0), (25, 17, 40, True, False, 0), (31, 33, 70, False, True, 0),
        (40, 9, 65, True, True, 0), (26, 12, 18, False, False, 3), (24, 5, 129, True, False, 2),
    ],
)
def test_the_first_schedule_in_blocks(
    m: int, n: int, inner: int, a: bool, b: bool, batch: int
) -> None:
    kernel = k.matmul(m, n, inner, a, b, batch)
    schedule = choose_schedule(kernel, SMALL)
    copies = [step for step in schedule.steps if isinstance(step, StageInput)]
    assert any(step.lanes for step in copies)
    assert any(isinstance(s, StageReduce) for s in schedule.steps) == (inner > 12)
    check(kernel, schedule, SMALL)


def test_vectors_lie_along_what_is_written() -> None:
    """Both operands transposed: their own neighbours are not those of the output."""
    kernel = k.matmul(64, 64, 64, True, True)
    schedule = str(choose_schedule(kernel, cpu_row_named("x86-64-avx512")))
    assert "bind('i1v', 'vector')" in schedule


@pytest.mark.parametrize(
    ("m", "inner", "n"),
    [
        (100, 100, 100), (33, 1537, 65), (127, 129, 131), (24, 16, 16), (257, 800, 19),
        (24, 1000, 32), (25, 4099, 19),
    ],
)
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_products_against_numpy(m: int, inner: int, n: int, transposed: str) -> None:
    rng = np.random.default_rng(m + n)
    a = rng.standard_normal((inner, m) if "a" in transposed else (m, inner)).astype(np.float32)
    b = rng.standard_normal((n, inner) if "b" in transposed else (inner, n)).astype(np.float32)
    left, right = Tensor(a), Tensor(b)
    if "a" in transposed:
        left, a = left.transpose(0, 1), a.T
    if "b" in transposed:
        right, b = right.transpose(0, 1), b.T
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = (np.abs(a).astype(np.float64) @ np.abs(b)) * inner**0.5 * 2.0**-23
    assert (np.abs((left @ right).numpy() - exact) <= bound).all()


def test_what_lies_past_the_end_is_no_part_of_a_sum() -> None:
    """Infinities beside zeros that only padding has would give NaNs."""
    a = np.full((25, 801), np.inf, np.float32)
    b = np.full((801, 17), 1.0, np.float32)
    assert ((Tensor(a) @ Tensor(b)).numpy() == np.inf).all()


WIDE = replace(cpu_row_named("x86-64-avx512"), name="wide", cores=2)


def steps_of(schedule: Schedule, axis: str) -> dict[str, int]:
    """The parts that an axis is split into, and their sizes."""
    return next(dict(s.parts) for s in schedule.steps if isinstance(s, Split) and s.axis == axis)


def pool_of(schedule: Schedule) -> str:
    return next(s.axis for s in schedule.steps if isinstance(s, Bind) and s.unit == "pool")


def test_a_copy_over_chunks_of_one_tile() -> None:
    """Each chunk has one tile of rows, which is an axis of the copy all the same."""
    kernel = k.matmul(24, 32, 1000, a_t=True)
    schedule = choose_schedule(kernel, WIDE)
    shared = pool_of(schedule)
    assert any(shared in s.names for s in schedule.steps if isinstance(s, StageInput))
    check(kernel, schedule, WIDE)


def test_rows_are_shared_where_their_copies_are_dear() -> None:
    """A transposed operand is copied once for each block of columns: one block, shared by rows."""
    assert pool_of(choose_schedule(k.matmul(1024, 256, 1024, True), WIDE)) == "i0b"
    assert pool_of(choose_schedule(k.matmul(1024, 1024, 1024), WIDE)) == "i1b"


def test_a_block_has_no_more_tiles_than_there_are() -> None:
    parts = steps_of(choose_schedule(k.matmul(64, 128, 128, True, False, 32), WIDE), "i1")
    rows = [size for name, size in parts.items() if name.endswith("u")]
    tiles = [size for name, size in parts.items() if name.endswith("o")]
    assert max(tiles) * max(rows) < 64 + max(rows)


@pytest.mark.parametrize("after", [False, True])
def test_sums_of_many_rows_have_room(after: bool) -> None:
    """Between k blocks the sums of all rows inside wait in memory, so there are blocks of rows."""
    i, j, r = k.range_node(1 << 19, 0), k.range_node(512, 1), k.range_node(4096, 2)
    product = k.alu(Ops.MUL, k.at(k.param(1, 1 << 19, 4096), i, r),
                    k.at(k.param(2, 4096, 512), r, j))
    total = k.reduce(Ops.ADD, product, r)
    value = k.alu(Ops.MAX, total, k.const(0, k.F32)) if after else total
    kernel = k.kernel(k.out(k.param(0, 1 << 19, 512), value, i, j))
    scratch = [node.arg.shape for node in allocations(lower(kernel, WIDE))]
    assert max(np.prod(shape, dtype=int) for shape in scratch) * 4 < WIDE.l3_bytes


@pytest.mark.parametrize("inner", [16, 19, 40])
def test_panels_of_transposed_operands_are_turned_in_registers(inner: int) -> None:
    kernel = k.matmul(25, 35, inner, False, True)
    loop = check(kernel, choose_schedule(kernel, SMALL), SMALL)
    program = to_linear(loop, SMALL)
    assert any(node.op is Ops.TURN for node in program.src)


# --- rows in place, and panels that are asked for -------------------------------------------------

IN_PLACE = BLOCKS.replace("stage_input(1, {near}, lanes=4), ", "")


def copied(schedule: Schedule) -> dict[int, StageInput]:
    """The copies of a schedule, by array."""
    return {step.param: step for step in schedule.steps if isinstance(step, StageInput)}


def test_rows_in_place_may_be_shared_out_in_chunks() -> None:
    text = IN_PLACE.format(ki=8).replace("bind('b', 'pool')", "bind('m', 'pool', grain=2)")
    text = text.replace("reorder('b', 'ko', 'm',", "reorder('m', 'b', 'ko',")
    text = text.replace("stage_reduce('ko', 'm',", "stage_reduce('ko',")
    check(k.matmul(10, 32, 16), parse_schedule(text), SMALL)


def test_rows_lie_well_where_steps_are_adjacent() -> None:
    for m, n, inner in [(1024, 1024, 1024), (100, 256, 128), (256, 64, 500)]:
        assert set(copied(choose_schedule(k.matmul(m, n, inner), WIDE))) == {2}
    for kernel in (
        # Rows are adjacent; steps are left over in the last block.
        k.matmul(1024, 1024, 1024, True), k.matmul(64, 256, 1537),
        # Thirteen rows a page apart and two vectors of columns: more lines than a set has ways.
        k.matmul(1040, 32, 1024),
    ):
        assert set(copied(choose_schedule(kernel, WIDE))) == {1, 2}
    # The same rows elsewhere in their pages.
    assert set(copied(choose_schedule(k.matmul(1040, 32, 1000), WIDE))) == {2}


@pytest.mark.parametrize("inner", [784, 1024, 1536, 2048])
def test_steps_beside_rows_in_place_are_cut_for_the_second_cache(inner: int) -> None:
    """A panel of B of eight vectors takes half of it at most, and sums wait as seldom as can be."""
    schedule = choose_schedule(k.matmul(1024, 1024, inner), WIDE)
    parts = steps_of(schedule, "r2") if "split('r2'" in str(schedule) else {"r2i": inner}
    assert set(copied(schedule)) == {2}
    blocks = inner // parts["r2i"]
    assert 8 * WIDE.vector_bytes * parts["r2i"] <= WIDE.l2_bytes // 2
    assert blocks == 1 or 8 * WIDE.vector_bytes * inner > (blocks - 1) * WIDE.l2_bytes // 2


def test_panels_beyond_the_first_cache_are_asked_for() -> None:
    ahead = copied(choose_schedule(k.matmul(512, 512, 512), WIDE))[2].ahead
    # Whole steps of four vectors, and at least the time that the second cache takes.
    assert ahead % (4 * WIDE.vector_bytes) == 0
    assert ahead > 0
    assert copied(choose_schedule(k.matmul(64, 64, 32), WIDE))[2].ahead == 0


def test_a_copy_that_is_asked_for_is_so_where_it_is_read() -> None:
    text = BLOCKS.format(ki=8, near="'r', 'ki'").replace("'v', lanes=4)", "'v', lanes=4, ahead=96)")
    schedule = parse_schedule(text)
    assert parse_schedule(str(schedule)) == schedule
    program = to_linear(check(k.matmul(6, 32, 16), schedule, SMALL), SMALL)
    reads = [node for node in program.src if node.op is Ops.VLOAD and node.arg.ahead]
    # Both vectors of the panel of B, in scratch memory; neither what fills it nor A.
    assert [(node.src[0].op, node.arg.ahead) for node in reads] == [(Ops.ALLOC, 96)] * 2


def test_shared_memory_is_not_asked_for() -> None:
    with pytest.raises(ScheduleError, match="no lines to ask for"):
        choose = parse_schedule("Schedule(stage_input(1, 'r2', ahead=64))")
        apply_schedule(k.matmul(16, 16, 16), choose, HOPPER)


def allocations(loop: Node) -> list[Node]:
    return [
        node for node in toposort(loop) if node.op is Ops.ALLOC and isinstance(node.arg, Alloc)
    ]

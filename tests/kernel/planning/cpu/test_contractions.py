"""What contractions in blocks share: words, rows that fit a cache, and loops of blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.kernel import Schedule
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Bind, Reorder, StageReduce
from baregrad.kernel.planning.cpu.contractions import (
    STREAMED_WAYS,
    Blocks,
    Contraction,
    blocked_schedule,
    cut_blocks,
    in_words,
    rows_fit,
)
from baregrad.kernel.planning.cpu.gemm_blocked import recognise
from baregrad.kernel.planning.cpu.sum_plan import SumPlan
from baregrad.target.cpu import PAGE_NBYTES
from tests.kernel import kernels as k
from tests.kernel.coverage import once, reached
from tests.kernel.planning.cpu.test_gemm_blocked import SMALL


def contraction(kernel: Node, target: object = SMALL) -> Contraction:
    found = recognise(SumPlan(facts_of(kernel), target))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("l1_bytes", [16 << 10, 48 << 10])
@pytest.mark.parametrize("inner", [1000, 1024, 1536, 2048, 4096])
def test_rows_fit_where_no_set_of_the_cache_has_too_many(inner: int, l1_bytes: int) -> None:
    """By the sets themselves: lines at one place of their pages share one, which has some ways."""
    found = contraction(k.matmul(64, 64, inner), replace(SMALL, l1_bytes=l1_bytes))
    ways = l1_bytes // PAGE_NBYTES - STREAMED_WAYS
    for rows in range(1, 40):
        places = [row * inner * 4 % PAGE_NBYTES for row in range(rows)]
        assert rows_fit(found, rows) == (max(map(places.count, places)) <= ways)


@pytest.mark.parametrize(("inner", "numbers", "words"), [
    (64, 2, True), (66, 2, True), (65, 2, False), (66, 4, False), (64, 4, True),
])  # fmt: skip
def test_words_lie_at_multiples_of_their_size(inner: int, numbers: int, words: bool) -> None:
    plan = SumPlan(facts_of(k.matmul(32, 32, inner, dtype=dtypes.int32)), SMALL)
    assert in_words(plan.reads[0], numbers) == words
    # Across the rows no two numbers of a word are neighbours.
    turned = SumPlan(facts_of(k.matmul(32, 32, inner, True)), SMALL)
    assert not in_words(turned.reads[0], numbers) or 32 % numbers == 0


SHAPES = [(24, 16, 24), (25, 17, 40), (31, 33, 70)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("grouped", "by_rows", "steps"), [
    (False, False, 8), (True, False, 100), (True, True, 8),
])  # fmt: skip
def test_blocks_cover_all_axes_once(
    shape: tuple[int, int, int], grouped: bool, by_rows: bool, steps: int
) -> None:
    found = contraction(k.matmul(*shape))
    blocks = Blocks(3, 8, 2, min(steps, shape[2]), 2, 4, by_rows)
    loops = cut_blocks(found, blocks, grouped, {"i1v": 8}, "unroll", {})
    schedule = Schedule(tuple(blocked_schedule(
        found, blocks, loops, [Reorder((*loops.around, loops.inner, loops.row, "i1v"))], []
    )))
    table = table_after(found.plan.facts, schedule, SMALL)
    for node, extent in zip(found.plan.facts.axes, shape, strict=True):
        assert reached(table, table.pieces_of(node)) == once(extent)
    # Every loop has its place, and sums wait outside of what is inside a block of steps.
    assert set(loops.around) <= set(table.order)
    kept = [step for step in schedule.steps if isinstance(step, StageReduce)]
    assert bool(kept) == bool(loops.outer) == (steps < shape[2])
    shared = [step for step in schedule.steps if isinstance(step, Bind) and step.unit == "pool"]
    assert [step.axis for step in shared] == [loops.shared]
    assert loops.shared.startswith("i0" if by_rows else "i1")


def test_sums_of_one_row_wait_for_the_next_block() -> None:
    found = contraction(k.matmul(24, 16, 24))
    for tiles, columns in product((1, 3), (8, 16)):
        blocks = Blocks(3, columns, tiles, 8, 1, 1)
        assert blocks.waiting_nbytes(found, 8) == tiles * columns * 8
    assert (found.count, found.nbytes) == (24, 4)
    words = replace(found, together=4)
    assert (words.count, words.nbytes) == (6, 16)

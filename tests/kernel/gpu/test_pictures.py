"""Pictures of pipelines: their slots over iterations, and what bounds them, counted by hand."""

from __future__ import annotations

import pytest

from baregrad.kernel import lower, parse_schedule
from baregrad.kernel.gpu.pictures import pipeline_lines
from baregrad.testing.examples.nests import attended
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import ASYNC, text


def lines(spelled: str, m: int, n: int) -> list[str]:
    kernel = product(m, n, 512, b_t=True)
    return pipeline_lines(lower(kernel, HOPPER, parse_schedule(spelled)), HOPPER)


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_a_slot_holds_a_panel_from_the_iteration_that_begins_its_copy(slots: int) -> None:
    found = lines(text((False, True), ASYNC.format(slots)), 64, 64)
    # 64 rows and 64 columns of 64 halves.
    assert found[0].startswith(f"ring over ko of 8: {slots} slots of 16.0 KiB (8.0 KiB + 8.0 KiB)")
    # Of four one may still be read by products of the iteration before.
    lead = slots - 1 - (slots > 3)
    assert found[1] == f"under way: {lead} of them, {lead * 16:.1f} KiB a block"
    rows = [line[12:] for line in found if line.startswith("slot")]
    assert len(rows) == slots
    for slot, cells in enumerate(rows):
        for iteration in range(slots + 1):
            what, panel = (cells[12 * iteration :].split() or ["", "0"])[:2]
            if cells[12 * iteration : 12 * iteration + 1].strip():
                assert int(panel) % slots == slot
                assert (what == "multiply") == (int(panel) <= iteration)
                assert iteration - 1 <= int(panel) <= iteration + lead


@pytest.mark.parametrize(("slots", "persists"), [(5, False), (5, True), (8, False)])
def test_no_panel_is_drawn_behind_the_last(slots: int, persists: bool) -> None:
    spelled = text((False, True), ASYNC.format(slots))
    found = lines(f"{spelled[:-1]}, persist(1))" if persists else spelled, 64, 64)
    rows = [line[12:].split() for line in found if line.startswith(("slot", "iteration"))]
    assert len(rows[0]) == min(slots + 1, 8)
    panels = {int(word) for row in rows[1:] for word in row if word.isdigit()}
    # There are eight; behind them come those of a block's next tile, if it has one.
    assert max(panels) == (slots + (slots - 2) if persists else 7)


def test_what_an_iteration_takes() -> None:
    found = lines(text((False, True), ASYNC.format(3), groups=2, tiles=2), 256, 64)
    # 256 rows, 64 columns, 64 steps: 2048 products a cycle. 256 + 64 rows of 128 bytes come, at 36
    # bytes a cycle. They are written once; of shared memory rows are read once, columns by two
    # groups, for two tiles of rows each: 128 bytes a cycle.
    rows, columns = 256 * 128, 64 * 128
    wanted = (256 * 64 * 64 / 2048, (rows + columns) / 36,
              (rows + columns + rows + 4 * columns) / 128)  # fmt: skip
    text_of = "matrix unit {:.0f}, second cache {:.0f}, shared memory {:.0f}".format(*wanted)
    assert f"cycles of an iteration: {text_of}" in found
    assert "bound by: second cache" in found


def test_blocks_that_persist_and_results_that_are_stored_beside() -> None:
    spelled = f"{text((False, True), ASYNC.format(3))[:-1]}, persist(2), stage_output(0))"
    *_, blocks, results = lines(spelled, 320, 64)
    assert blocks.startswith("blocks: 2, ")
    # 64 rows of 64 floats, each 64 bytes apart.
    assert results.startswith("results: 20.0 KiB of shared memory, stored from there in 64 runs of")
    assert "256 B" in results


def test_nothing_is_drawn_of_other_kernels() -> None:
    loop = lower(k.matmul(64, 64, 64), HOPPER, parse_schedule("Schedule(bind('i0', 'grid'))"))
    assert pipeline_lines(loop, HOPPER) == []


def test_keys_that_stream_past_rows() -> None:
    """Of causal attention the tiles of keys are as many as a block's rows see."""
    kernel = attended(256, 256, 64, causal=True)
    loop = lower(kernel, HOPPER, parse_schedule("Schedule(stream_tiles(2, 1, 64, 'wgmma'))"))
    ring, _, _, *_, cycles, _ = pipeline_lines(loop, HOPPER)
    # Keys and values, 64 rows of 64 halves each.
    assert ring.startswith("ring over keys of rows * ") and "2 slots of 16.0 KiB" in ring
    # 128 rows, 64 keys, 64 wide: two products, 2048 a cycle.
    assert cycles.startswith(f"cycles of an iteration: matrix unit {2 * 128 * 64 * 64 // 2048}, ")


def test_boxes_that_a_warp_of_its_own_copies() -> None:
    found = lines(text((False, True), "pipeline('ko', 3, 'tma')"), 64, 64)
    assert found[0].endswith("filled by an engine with boxes of arrays")
    assert found[1] == "under way: 2 of them, 32.0 KiB a block"
    assert found[6].startswith("roles: one of 4 warps copies once a slot is empty, 4 others multi")
    assert found[7] == "registers: 40 of a thread that copies, 216 of one that multiplies"
    assert "6 barriers of phases" in found[6] and "bound by: second cache" in found


def test_boxes_that_blocks_of_a_cluster_share() -> None:
    spelled = text((False, True), "pipeline('ko', 3, 'tma')").replace("outer='a'", "outer='a', c=2")
    found = lines(f"{spelled[:-1]}, bind('c', 'cluster'))", 256, 64)
    assert found[8] == (
        "clusters of 2 blocks: 8.0 KiB of a slot are the same for all, and each copies 4.0 KiB of "
        "it for all"
    )
    # 64 rows of its own and half of the 64 columns, of 128 bytes, at 36 bytes a cycle.
    assert f"second cache {(64 + 32) * 128 / 36:.0f}, " in found[9]

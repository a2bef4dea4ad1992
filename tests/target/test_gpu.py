from __future__ import annotations

import pytest

from baregrad.base.errors import UnsupportedDevice
from baregrad.target.gpu import GPU_ROWS, NvidiaTarget, gpu_row

HOPPER = gpu_row("sm_90a")


@pytest.mark.parametrize("registers,warps", [(168, 12), (96, 20), (80, 24), (48, 40), (32, 64)])
def test_registers_limit_warps_as_measured(registers: int, warps: int) -> None:
    assert HOPPER.warps_by_registers(registers) == warps


@pytest.mark.parametrize("kib,blocks", [
    (227, 1), (114, 1), (113, 2), (75, 3), (56, 4), (44, 5), (37, 6), (27, 8), (228, 0),
])
def test_shared_memory_limits_blocks_as_measured(kib: int, blocks: int) -> None:
    assert HOPPER.resident_blocks(4, 32, kib * 1024) == blocks


def test_blocks_and_warps_have_limits_of_their_own() -> None:
    assert HOPPER.resident_blocks(1, 16, 0) == 32
    assert HOPPER.resident_blocks(32, 32, 0) == 2
    assert HOPPER.resident_blocks(12, 168, 200 * 1024) == 1
    assert HOPPER.resident_blocks(13, 168, 0) == 0
    assert HOPPER.resident_blocks(1, 256, 0) == 0


def test_matrix_shapes_take_32_bytes_of_k() -> None:
    sizes = {"bfloat16": 2, "float16": 2, "tfloat32": 4, "float8_e4m3fn": 1, "int8": 1}
    for shape in HOPPER.matrix_shapes:
        assert shape.m == 64
        assert shape.k * sizes[shape.operands[0]] == 32
        assert shape.widths[-1] == 256
        # The rate is that of the bytes: 2048 a cycle for two-byte elements.
        assert shape.macs_per_cycle * sizes[shape.operands[0]] == 4096


def test_an_unknown_generation_is_refused() -> None:
    with pytest.raises(UnsupportedDevice, match="sm_90a"):
        gpu_row("sm_12")


@pytest.mark.parametrize("name,warps,blocks,shared_kib,block_kib", [
    ("sm_75", 32, 16, 64, 64),
    ("sm_80", 64, 32, 164, 163),
    ("sm_86", 48, 16, 100, 99),
    ("sm_89", 48, 24, 100, 99),
    ("sm_90a", 64, 32, 228, 227),
    ("sm_100a", 64, 32, 228, 227),
    ("sm_120", 48, 24, 100, 99),
])
def test_limits_are_the_programming_guides(
    name: str, warps: int, blocks: int, shared_kib: int, block_kib: int
) -> None:
    row = gpu_row(name)
    assert (row.warps_per_unit, row.blocks_per_unit) == (warps, blocks)
    assert row.shared_bytes_per_unit == shared_kib * 1024
    assert row.shared_bytes_per_block == block_kib * 1024


def test_generations_have_what_the_ptx_manual_says() -> None:
    """The first architecture of `cp.async`, `max.NaN.f32`, `elect.sync` and `mma` of bfloat16."""
    for row in GPU_ROWS:
        assert row.async_copies == row.nan_extremes == (row.capability >= (8, 0))
        assert row.elects == row.dependent_launch == (row.capability >= (9, 0))
        assert (("bfloat16", 16) in row.warp_products) == (row.capability >= (8, 0))
        assert ("float16", 8) in row.warp_products


@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
def test_names_follow_the_compute_capability(row: NvidiaTarget) -> None:
    major, minor = row.capability
    assert row.name.rstrip("a") == f"sm_{major}{minor}"
    assert row.warps_per_unit % row.register_partitions == 0
    assert row.resident_blocks(1, 16, 0) == min(row.blocks_per_unit, row.warps_per_unit)


def test_a_card_with_the_instructions_of_an_older_one() -> None:
    """It has its own sizes and rates, and is assembled for as it is."""
    ampere, found = gpu_row("sm_80"), gpu_row("sm_90a:sm_80")
    assert (found.architecture, found.instructions) == ("sm_90a", "sm_80")
    assert (found.units, found.shared_bytes_per_block) == (132, 227 * 1024)
    assert found.ptx_isa == HOPPER.ptx_isa
    assert not found.multiplies_in_groups("bfloat16", 16) and not found.bulk_copies
    assert found.warp_products == ampere.warp_products and not found.dependent_launch
    assert gpu_row("sm_90a:sm_90a") is HOPPER


def test_instructions_that_later_generations_keep() -> None:
    found = gpu_row("sm_90a:sm_90")
    assert not found.multiplies_in_groups("bfloat16", 16) and not found.register_shift
    assert found.bulk_copies and found.dependent_launch and found.elects


@pytest.mark.parametrize("name", ["sm_80:sm_90", "sm_120:sm_90a", "sm_120:sm_100a", "sm_80:sm_12"])
def test_instructions_that_a_card_does_not_run(name: str) -> None:
    with pytest.raises(UnsupportedDevice):
        gpu_row(name)

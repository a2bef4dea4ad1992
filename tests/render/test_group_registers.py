"""Registers that change hands: all that a block was given, and no more, however many blocks fit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, cast, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.planning.gpu import gemm_mma
from baregrad.kernel.planning.gpu.gemm_groups import (
    ACROSS_TILES,
    COPIERS,
    FREE_TILES,
    TILES,
    GroupChoice,
    GroupTile,
    ranked_groups,
)
from baregrad.kernel.planning.gpu.gemm_tiles import Product
from baregrad.render import get
from baregrad.render.gpu import WARP_LANES, gpu_signature
from baregrad.render.group_registers import blocks_of_groups, register_change
from baregrad.target.gpu import LEAST_AT_LAUNCH
from tests.kernel import kernels as k
from tests.kernel.contractions import HALF
from tests.kernel.gpu_kernels import HOPPER, lowered
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import text
from tests.kernel.test_gpu_assembles import needs_ptxas


@pytest.mark.parametrize("sizes", [{}, {"groups": 2, "tiles": 2}, {"groups": 4}, {"panels": 4}])
def test_a_block_has_what_it_was_given(sizes: dict[str, int]) -> None:
    """Counted in registers of a multiprocessor, of which each warp has 32 times its threads'."""
    kernel = product(256 * sizes.get("tiles", 1), 64 * sizes.get("panels", 1), 256, b_t=True)
    program = lowered(kernel, text((False, True), "pipeline('ko', 2, 'tma')", **sizes))[1]
    signature = gpu_signature(program)
    warps = signature.threads // WARP_LANES
    blocks = blocks_of_groups(program, signature, HOPPER)
    found = [register_change(program, signature, HOPPER, node) for node in program.src
             if node.op.name == "MACHINE" and node.arg.name == "role.registers"]  # fmt: skip
    given = HOPPER.registers_at_launch(blocks * signature.threads)
    assert blocks >= 1 and len(found) == 2 and None not in found
    (_, few), (_, many) = found  # type: ignore[misc]
    for way, wanted in found:  # type: ignore[misc]
        step = "inc" if int(wanted) > given else "dec"
        assert way == f"setmaxnreg.{step}.sync.aligned.u32" and int(wanted) != given
    assert ((COPIERS, int(few)), (warps - COPIERS, int(many))) == program.arg.roles
    each = 32 * (COPIERS * int(few) + (warps - COPIERS) * int(many))
    assert blocks * each <= HOPPER.registers_per_unit


# Tiles of a block, whether by boxes or by threads, of which numbers, and whether columns lie across
# the sums.
CHOICES = [
    (tile, boxes, numbers, False)
    for tile in (*TILES, *FREE_TILES) for boxes in (False, True)
    for numbers in (HALF, dtypes.float8_e4m3fn) if boxes or tile in TILES
] + [(tile, True, HALF, True) for tile in ACROSS_TILES]


def programs(
    tile: GroupTile, boxes: bool, numbers: DType, across: bool
) -> Iterator[tuple[GroupChoice, Node]]:
    """The programs of the choices of a tile with as few slots as there are, and the choices."""
    m, n, x = (range_node(size, place) for place, size in enumerate((512, 512, 512)))
    reads = [cast(k.at(k.param(slot, 512, 512, dtype=numbers), *side), dtypes.float32)
             for slot, side in ((1, (m, x)), (2, (x, n) if across else (n, x)))]  # fmt: skip
    total = k.reduce(Ops.ADD, alu(Ops.MUL, *reads), x)
    kernel = k.kernel(k.out(k.param(0, 512, 512), total, m, n))
    # As large as to come from memory.
    product = [Product(512, 512, 1 << 16, 1)]
    ranked = ranked_groups(HOPPER, product, (True, True), numbers, boxes, whole=64 if across else 8)
    for choice in [one for one in ranked if one.tile == tile and one.slots == 2]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gemm_mma, "ranked_tiles", lambda *_: [])
            patch.setattr(
                gemm_mma, "ranked_groups",
                lambda *given, one=choice, **_: [one] if one.boxes == (len(given) > 4) else [],
            )
            schedule = choose_schedule(kernel, HOPPER)
        assert ("'tma'" in str(schedule)) is boxes
        yield choice, lowered(kernel, schedule)[1]


@pytest.mark.parametrize(("tile", "boxes", "numbers", "across"), CHOICES, ids=str)
def test_the_planner_counts_the_blocks_that_there_are(
    tile: GroupTile, boxes: bool, numbers: DType, across: bool
) -> None:
    for choice, program in programs(tile, boxes, numbers, across):
        signature = gpu_signature(program)
        blocks = blocks_of_groups(program, signature, HOPPER)
        assert choice.resident == blocks > 0
        given = HOPPER.registers_at_launch(blocks * signature.threads)
        if boxes and blocks > 1:
            # So many the assembler asks for ahead of the first change of hands.
            assert given >= tile.results + LEAST_AT_LAUNCH


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize(("tile", "boxes", "numbers", "across"), CHOICES, ids=str)
def test_the_assembler_agrees(
    tile: GroupTile, boxes: bool, numbers: DType, across: bool, tmp_path: Path
) -> None:
    """It spills nothing, and has no word about registers that change hands or serial products."""
    for _, program in programs(tile, boxes, numbers, across):
        done = subprocess.run(
            ["ptxas", "-arch=sm_90a", "-fmad=false", "-v", "-", "-o", tmp_path / "code"],
            input=get("ptx").render(program, HOPPER).encode(), capture_output=True, check=False,
        )  # fmt: skip
        told = done.stderr.decode()
        assert done.returncode == 0, told
        assert "(C7" not in told, told
        assert " 0 bytes spill stores" in told, told

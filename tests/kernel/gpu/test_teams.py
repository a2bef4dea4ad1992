"""Teams of threads that take a block's tiles in turns: the bits of one team, and its faults."""

from __future__ import annotations

import re

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import lower, parse_schedule
from baregrad.render import get
from baregrad.testing.virtual_gpu.ptx.errors import KernelFault
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.kernel import kernels as k
from tests.kernel.gpu.test_clusters import together
from tests.kernel.gpu.test_roles import ASYNC, BRAIN, TMA, Sizes, agree, by_experts, of_tiles, piped
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import roles_text
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas
from tests.render.gpu_harness import run_module


def in_teams(spelled: str) -> str:
    warps = 2 * int(re.findall(r"products=\((\d+)", f"{spelled}products=(4")[0])
    spelled = re.sub(r"roles\(.*?\)\)", roles_text(warps), spelled)
    return re.sub(r"persist\((\d+)\)", r"persist(\1, teams=2)", spelled)


CASES = (
    # An odd number of tiles of a block, and of panels between two slots' phases.
    ((320, 64, 192), (False, True), 3, 2, {}),
    # Fewer panels than slots, past edges of rows, columns and steps.
    ((200, 56, 136), (True, False), 4, 1, {"groups": 2}),
    pytest.param((328, 56, 328), (False, False), 2, 2, {}, marks=pytest.mark.slow),
    pytest.param((512, 128, 128), (True, True), 5, 1, {"tiles": 2, "panels": 2},
                 marks=pytest.mark.slow),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "turned", "slots", "blocks", "sizes"), CASES, ids=str)
def test_teams_have_the_bits_of_one(
    shape: tuple[int, int, int], turned: tuple[bool, bool], slots: int, blocks: int, sizes: Sizes
) -> None:
    kernel = product(*shape, *turned, bias=True)
    spelled = piped(turned, TMA.format(slots), blocks, **sizes)
    program = agree(kernel, spelled, in_teams(spelled))
    alone = lowered(kernel, spelled)[1].arg.block
    assert (program.arg.teams, program.arg.block) == (2, (*alone[:-1], 2 * alone[-1]))


@pytest.mark.slow
def test_teams_of_blocks_that_share_boxes() -> None:
    kernel = product(512, 64, 192, b_t=True, bias=True)
    spelled = piped((False, True), TMA.format(3), 2)
    same_bits(kernel, spelled, in_teams(together(spelled, "m")))


def same_bits(kernel: Node, alone: str, spelled: str) -> None:
    arrays = k.arguments(kernel)
    wanted = run_text(*lowered(kernel, alone), arrays)[0]
    whole = lowered(kernel, spelled)
    np.testing.assert_array_equal(run_text(*whole, arrays)[0], wanted)
    np.testing.assert_array_equal(run_threads(*whole, arrays)[0], wanted)


def test_a_block_has_one_tile_or_none() -> None:
    """A team that has no tile passes nothing on."""
    kernel = product(192, 64, 128, b_t=True)
    spelled = piped((False, True), TMA.format(2), 2)
    agree(kernel, spelled, in_teams(spelled))


@pytest.mark.slow
def test_tiles_that_nobody_reads_are_stored_by_both_teams() -> None:
    """They are behind all others, with no ring to wait for."""
    kernel = by_experts(5, 64, 64, 256, 3)
    arrays = k.arguments(kernel)
    places = {leaf.dtype: leaf.arg.slot for leaf in toposort(kernel) if leaf.op is Ops.PARAM}
    arrays[places[dtypes.int32]] = np.array([2, -1, 7, 0, 1], np.int32)
    arrays[places[dtypes.bool]] = np.array([1, 1, 1, 0, 1], np.bool_)
    spelled = of_tiles(TMA, 2, 2)
    same_bits(kernel, of_tiles(ASYNC, 2, 2), in_teams(spelled))


WITHOUT = {
    "the wait until the ring is passed on": (
        r"mbarrier.try_wait[^;]*\+1024\][^;]*;\s*@!%p\d+ bra W\d+;", ""),
    "passing it on": (r"mbarrier.arrive.shared.b64 _, \[%r\d+\+1024\];", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", WITHOUT)
def test_what_leaves_a_turn_out_is_caught(what: str) -> None:
    """Without its turn a team takes the phase of another one's slot for its own."""
    kernel = product(256, 64, 256, b_t=True)
    spelled = in_teams(piped((False, True), TMA.format(2), 1))
    _, program = lowered(kernel, spelled)
    arrays = [array for _, array in sorted(k.arguments(kernel).items())]
    right = get("ptx").render(program, HOPPER)
    run_module(PtxModule.parse(right), program, arrays)
    pattern, instead = WITHOUT[what]
    wrong, changed = re.subn(pattern, instead, right)
    assert changed == 1
    with pytest.raises(KernelFault):
        run_module(PtxModule.parse(wrong), program, arrays)


def test_what_teams_cannot_do_is_refused() -> None:
    kernel = product(256, 64, 192, b_t=True)
    spelled = in_teams(piped((False, True), TMA.format(3), 2))
    for wrong, why in (
        (spelled.replace("'tma'", "'async'"), "share boxes that an engine copies"),
        (f"{spelled[:-1]}, stage_output(0))", "meet nowhere"),
        (spelled.replace("teams=2", "teams=3"), "no more teams"),
    ):
        with pytest.raises(ScheduleError, match=why):
            lower(kernel, HOPPER, parse_schedule(wrong))
    with pytest.raises(ScheduleError, match="turns"):
        lowered(kernel, spelled.replace("persist(2", "persist(4"))


@needs_ptxas
def test_products_stay_beside_threads() -> None:
    """The assembler says nothing of products that it puts in order, and spills nothing."""
    kernel = product(4096, 4096, 1024, b_t=True, bias=True, dtype=BRAIN)
    spelled = in_teams(piped((False, True), TMA.format(5), 132, tiles=2, panels=2))
    program = lowered(kernel, spelled)[1]
    registers, spilled = assembled(get("ptx").render(program, HOPPER), "sm_90a")
    assert registers <= 168 and not spilled

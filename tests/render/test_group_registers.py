"""Registers that change hands: all that a block was given, and no more, however many blocks fit."""

from __future__ import annotations

import pytest

from baregrad.kernel.gpu.roles import COPIER_REGISTERS, COPIERS
from baregrad.render import group_registers
from baregrad.render.gpu import WARP_LANES, gpu_signature
from baregrad.render.group_registers import blocks_of_groups, register_change
from tests.kernel.gpu_kernels import HOPPER, lowered
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import text


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
    assert blocks >= 1 and len(found) == 2
    if None in found:
        # One block has as many from the start as those who multiply could be given.
        given = HOPPER.registers_at_launch(blocks * signature.threads)
        assert found == [None, None] and given >= max(HOPPER.register_shift)
        return
    (down, few), (up, many) = found  # type: ignore[misc]
    assert (down, few) == ("setmaxnreg.dec.sync.aligned.u32", str(COPIER_REGISTERS))
    assert up == "setmaxnreg.inc.sync.aligned.u32" and int(many) % 8 == 0
    each = 32 * (COPIERS * int(few) + (warps - COPIERS) * int(many))
    assert blocks * each <= HOPPER.registers_per_unit


def test_both_sides_keep_as_many() -> None:
    assert group_registers.COPIER_REGISTERS == COPIER_REGISTERS

"""Streams get blocks that fit the machine: their registers, their shared memory, their rows."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose, lower
from baregrad.kernel.language.schedule import StreamTiles
from baregrad.target import gpu_row
from baregrad.target.gpu import GPU_ROWS, NvidiaTarget
from baregrad.testing.examples.nests import attended, product
from tests.kernel.gpu_kernels import HOPPER


@pytest.mark.parametrize("target", [row for row in GPU_ROWS if row.async_copies], ids=str)
@pytest.mark.parametrize("width", (16, 32, 64, 96, 128, 192, 256))
def test_every_width_has_a_schedule_that_fits(target: NvidiaTarget, width: int) -> None:
    kernel = attended(512, 512, width, causal=True)
    choice = choose(kernel, target)
    (step,) = choice.schedule.steps
    assert isinstance(step, StreamTiles) and "a stream" in choice.why()[0]
    loop = lower(kernel, target, choice.schedule)
    arrays = [n for n in toposort(loop) if n.op is Ops.ALLOC and n.arg.space == "shared"]
    nbytes = sum(n.arg.depth * 2 * n.shape[0] * n.shape[1] for n in arrays)
    assert nbytes <= target.shared_bytes_per_block


def test_few_rows_have_few_warps() -> None:
    steps = {rows: choose(attended(rows, 64, 64), HOPPER).schedule.steps[0] for rows in (1, 20, 80)}
    assert [step.warps for step in steps.values() if isinstance(step, StreamTiles)] == [1, 2, 4]


def test_others_are_planned_as_before() -> None:
    for kernel, target in ((product(64, 64, 64), HOPPER), (attended(8, 8, 16), gpu_row("sm_75"))):
        steps = choose(kernel, target).schedule.steps
        assert not any(isinstance(step, StreamTiles) for step in steps)

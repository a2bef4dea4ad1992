"""Sums of what a product stores, made beside it, of the stored values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.alu import to_array
from baregrad.kernel.facts.analysis import sums_of, with_sums, without_sums
from baregrad.kernel.gpu.side_sums import PART, tiles_of
from baregrad.kernel.language.schedule import parse_schedule
from baregrad.render import get
from tests.kernel import kernels as k
from tests.kernel.gpu.test_teams import in_teams
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.instructions.test_wgmma import ASYNC, text
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

F32, BRAIN = dtypes.float32, dtypes.bfloat16
TMA = "pipeline('ko', {}, 'tma')"


def with_statistics(m: int, n: int, inner: int) -> Node:
    """A product that stores sums of its parts, and of squared distances from their means."""
    kernel = k.brain_product(m, n, inner, b_t=True)
    (out,) = kernel.src
    value, i, j = out.src[1:]
    part, row = range_node(n // PART, 3), range_node(m, 4)
    first, second = range_node(PART, 5), range_node(PART, 6)

    def element(axis: Node) -> Node:
        column = index.as_node(index.add(index.mul(part, PART), axis))
        return cast(substitute(value, {i: row, j: column}), F32)

    mean = alu(Ops.DIV, k.reduce(Ops.ADD, element(second), second), const(float(PART), F32))
    near = alu(Ops.SUB, element(first), mean)
    sums = (
        k.reduce(Ops.ADD, element(first), first),
        k.reduce(Ops.ADD, alu(Ops.MUL, near, near), first),
    )
    outs = [
        k.out(k.param(3 + number, n // PART, m), one, part, row) for number, one in enumerate(sums)
    ]
    return with_sums(kernel, tuple(outs))


def stored(found: dict[int, Any]) -> Any:
    """Parts of the rows of a product as it was stored, in float64."""
    y = to_array(found[0], BRAIN).astype(np.float64)
    return y.reshape(len(y), -1, PART)


CASES = (
    ((64, 64, 64), "", 0, {}, False),
    ((128, 128, 192), ASYNC.format(3), 0, {"tiles": 2, "panels": 2}, False),
    ((256, 128, 192), TMA.format(2), 0, {"groups": 2, "panels": 2}, False),
    ((320, 64, 128), TMA.format(3), 2, {}, False),
    ((448, 128, 128), TMA.format(3), 2, {"panels": 2}, True),
)


@pytest.mark.few(2)
@pytest.mark.parametrize(("shape", "pipe", "blocks", "sizes", "teams"), CASES, ids=str)
def test_sums_are_of_what_is_stored(
    shape: tuple[int, int, int], pipe: str, blocks: int, sizes: dict[str, int], teams: bool
) -> None:
    many = f", persist({blocks})" if blocks else ""
    spelled = f"{text((False, True), pipe, **sizes)[:-1]}{many})"
    if teams:
        spelled = in_teams(spelled)
    kernel = with_statistics(*shape)
    arrays = k.arguments(kernel)
    loop, program = lowered(kernel, spelled)
    found = run_text(loop, program, arrays)
    alone = run_text(*lowered(without_sums(kernel), spelled), {n: arrays[n] for n in range(3)})
    np.testing.assert_array_equal(found[0], alone[0])
    y = stored(found)
    np.testing.assert_allclose(found[3], y.sum(2).T, atol=2e-6 * np.abs(y).sum(2).max())
    away = y - y.mean(2, keepdims=True)
    np.testing.assert_allclose(found[4], (away * away).sum(2).T, rtol=2e-6)
    # No run has other bits, nor have the threads before they are text.
    for other in (run_text(loop, program, arrays), run_threads(loop, program, arrays)):
        for slot in (0, 3, 4):
            np.testing.assert_array_equal(found[slot], other[slot])
    blocks_of = k.run_loop(loop, arrays)
    for slot in (3, 4):
        np.testing.assert_allclose(found[slot], blocks_of[slot], rtol=1e-5, atol=1e-3)


def test_a_kernel_says_in_full_what_its_sums_are() -> None:
    """So the evaluator of its level gives them, from arguments alone."""
    kernel = with_statistics(64, 128, 64)
    found = k.run_kernel(kernel, k.arguments(kernel))
    np.testing.assert_allclose(found[3], stored(found).sum(2).T, rtol=1e-3, atol=1e-3)
    assert len(sums_of(kernel)) == 2
    assert sums_of(without_sums(kernel)) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [("v=8, n=8", "v=4, n=8"), ("p=1, v=8", "p=8, v=1"), ("bind('v', 'unroll'),", "")],
)
def test_tiles_without_whole_parts_have_no_sums(before: str, after: str) -> None:
    spelled = text((False, True)).replace(before, after)
    tiles = tiles_of(parse_schedule(spelled))
    if after == "p=8, v=1":
        # The digits of a part may be any, if they are a warp's own.
        assert tiles is not None and tiles.inner == ("n", "v", "p")
    elif "4" in after:
        assert tiles is None
    single = text((False, True)).replace("'wgmma'", "'mma'")
    assert tiles_of(parse_schedule(single)) is None


def test_other_schedules_are_refused() -> None:
    kernel = with_statistics(64, 64, 64)
    with pytest.raises(ScheduleError, match="whole parts"):
        lowered(kernel, "Schedule(bind('i0', 'grid'))")


@needs_ptxas
def test_the_assembler_leaves_the_pipeline_as_it_is() -> None:
    kernel = with_statistics(256, 128, 192)
    spelled = text((False, True), TMA.format(2), groups=2, panels=2)
    _, program = lowered(kernel, spelled)
    _, spilled = assembled(get("ptx").render(program, HOPPER), HOPPER.name)
    assert not spilled

"""Products of matrix units as instructions: each factor is loaded once, whatever it meets."""

from __future__ import annotations

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.attrs import KernelInfo
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, codegen_passes, lower
from baregrad.kernel.linearise.linearise import linearise
from tests.kernel import kernels as k
from tests.kernel.instructions.test_amx import AMX
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.linearise.programs import machines, thread_level
from tests.render.harness import branch

SCHEDULE = (
    "Schedule(split('i0', outer='a', w=2, u={rows}, m=16, masked=True),"
    "split('i1', outer='b', v={columns}, n=8, masked=True),"
    "split('r2', outer='ko', ki=2, kk={deep}, masked=True), bind('a', 'grid'), bind('b', 'grid'),"
    "bind('w', 'thread_y'), bind('u', 'unroll'), bind('v', 'unroll'),"
    "tensorize('m', 'n', 'kk', instruction='mma'),"
    "stage_input(1, 'w', 'u', 'm', 'ki', 'kk'), stage_input(2, 'v', 'n', 'ki', 'kk'))"
)


STEPS = 2


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 3), (3, 2), (1, 4)])
@pytest.mark.parametrize("deep", [8, 16])
def test_factors_are_loaded_once_and_meet_each_other_once(
    rows: int, columns: int, deep: int
) -> None:
    text = SCHEDULE.format(rows=rows, columns=columns, deep=deep)
    program = linearise(thread_level(product(64, 16, 64), text))
    products, loads = machines(program, "mma.sync"), machines(program, "ldmatrix")
    # Of 16 steps, two neighbours of the second factor come by one instruction.
    together = 2 if deep == 16 and columns % 2 == 0 else 1
    assert len(products) == STEPS * rows * columns
    # Two 8 by 8 matrices high, and one wide, for each 8 steps.
    matrices = sorted(one.arg.immediates[0] for one in loads)
    wide = [together * deep // 8] * (columns // together)
    assert matrices == sorted(STEPS * (wide + [2 * deep // 8] * rows))
    loaded = [one.src[2:] for one in loads]
    factors = [one.src[:-2] for one in products]
    words = deep // 8
    parts = [one[at : at + words] for one in loaded for at in range(0, len(one), words)]
    sides = {left + right for left in loaded for right in parts}
    assert len(set(factors)) == len(factors)
    assert set(factors) <= sides
    # Sums are two registers each, which each step adds to, and no two products share one.
    sums = [register for one in products for register in one.src[-2:]]
    assert len(set(sums)) == 2 * rows * columns


def test_a_run_of_products_of_words_is_one_instruction() -> None:
    kernel = k.brain_product(64, 64, 128)
    node = lower(kernel, AMX, choose_schedule(kernel, AMX))
    program = node
    for item in codegen_passes(AMX):
        program = item.run(program)
    (run,) = [one for one in toposort(node) if one.op is Ops.MMA]
    (found,) = machines(program, run.arg.name)
    rows, columns, steps = found.arg.immediates[:3]
    # All steps of a panel: each of 16 words of two numbers.
    assert (rows, columns, steps * 16 * 2) == (32, 32, 128)


def test_a_product_under_a_condition_or_on_another_machine_is_a_bug() -> None:
    node = thread_level(product(32, 8, 32), SCHEDULE.format(rows=1, columns=1, deep=16))
    with pytest.raises(CompilerBug):
        linearise(node.replace(arg=KernelInfo("k")))
    (mma,) = [one for one in toposort(node) if one.op is Ops.MMA]
    lanes = k.range_node(8, 99, bind="vector")
    held = branch(k.index.less(lanes, 3), mma)
    with pytest.raises(CompilerBug, match="ordinary kernel"):
        linearise(Node(Ops.KERNEL, node.dtype, (held,), node.arg))

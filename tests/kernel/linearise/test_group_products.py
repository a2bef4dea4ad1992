"""Products of groups of warps as instructions: how many, of which columns, and what they refuse."""

from __future__ import annotations

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.attrs import KernelInfo
from baregrad.kernel.linearise.linearise import linearise
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import text
from tests.kernel.linearise.programs import machines, thread_level

STEPS = 4


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("tiles", "panels"), [(1, 1), (2, 2), (1, 4), (1, 6)])
def test_columns_beside_each_other_are_one_instruction(
    turned: bool, tiles: int, panels: int
) -> None:
    kernel = product(64 * tiles, 64 * panels, 64, b_t=not turned)
    node = thread_level(kernel, text((False, not turned), tiles=tiles, panels=panels))
    products = machines(linearise(node), "wgmma")
    # 256 columns at most, each of as many.
    parts = -(-panels // 4)
    assert len(products) == STEPS * tiles * parts
    columns = {8 * len(one.arg.immediates[10:]) for one in products}
    assert columns == {64 * panels // parts}
    # Every result is a register's, and no two rows of 64 or columns share one.
    sums = {register for one in products for register in one.src[4:]}
    assert len(sums) == tiles * panels * 16
    assert len({one.src[4:] for one in products}) == tiles * parts
    # Elements from a panel of columns to the next: turned, its 64 steps in rows of 64.
    leap = {one.arg.immediates[4] for one in products}
    assert leap == {64 * 64 if turned and panels > 1 else 0}


def test_another_machine_has_no_such_product() -> None:
    node = thread_level(product(64, 64, 64), text((False, False)))
    with pytest.raises(CompilerBug):
        linearise(node.replace(arg=KernelInfo("k")))

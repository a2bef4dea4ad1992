"""Rings between roles: right under any timing, and wrong without any of what guards them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_threads import evaluate_threads
from baregrad.ir.protocol.attributes import ProtocolError
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, lowered
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import text

KERNEL = product(320, 64, 192, b_t=True)
SEEDS = range(4)


def program() -> Node:
    """Two blocks of three and two tiles each, whose rings go on: of two slots, three times each."""
    spelled = text((False, True), "pipeline('ko', 2, 'tma')")[:-1]
    return lowered(KERNEL, f"{spelled}, persist(2))")[1]


def result(code: Node, seed: int) -> Any:
    arrays = {slot: np.array(array) for slot, array in k.arguments(KERNEL).items()}
    evaluate_threads(code, arrays, HOPPER, 2, seed=seed)
    return arrays[0]


def named(code: Node, name: str) -> list[int]:
    return [
        at for at, one in enumerate(code.src) if one.op is Ops.MACHINE and one.arg.name == name
    ]


def test_barriers_count_who_arrives_before_anybody_does() -> None:
    code = program()
    counts = [code.src[at].arg.immediates for at in named(code, "mbarrier.init")]
    # Of each slot: that it is full, said by one, and that it is empty, said by four warps.
    assert counts == [(1,), (4,)] * 2
    (meeting,) = named(code, "bar.sync")
    assert max(named(code, "mbarrier.init")) < meeting < min(named(code, "mbarrier.wait"))
    (announced,) = named(code, "mbarrier.arrive.expect_tx")
    assert code.src[announced].arg.immediates == (2 * 64 * 128,)
    # Slots are released in the loop, and the last one behind it.
    assert len(named(code, "mbarrier.arrive")) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_any_timing_gives_the_same(seed: int) -> None:
    k.assert_equal({0: k.run_kernel(KERNEL, k.arguments(KERNEL))[0]}, {0: result(program(), seed)})


@pytest.mark.parametrize(("name", "which"), [
    ("mbarrier.wait", 0), ("mbarrier.wait", 1), ("mbarrier.arrive", 0), ("mbarrier.arrive", 1),
    ("tma.box", 0), ("wgmma.wait", 0),
])  # fmt: skip
def test_nothing_may_be_left_out(name: str, which: int) -> None:
    code = program()
    at = named(code, name)[which]
    code = code.replace(src=(*code.src[:at], *code.src[at + 1 :]))
    wanted = k.run_kernel(KERNEL, k.arguments(KERNEL))[0]

    def fails(seed: int) -> bool:
        try:
            return not np.allclose(result(code, seed), wanted, equal_nan=False)
        except ProtocolError:
            return True

    assert any(map(fails, SEEDS))

"""The Hopper matmul as machine instructions: real addresses, swizzles, fragments, hostile order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from baregrad.base.errors import BaregradError
from baregrad.ir.core.layout import swizzled_tile, wgmma_accumulator
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_hopper import accumulator_places
from baregrad.ir.evaluate.gpu_threads import evaluate_threads
from baregrad.testing.examples.matmul_hopper import HOPPER, MatmulSizes
from baregrad.testing.examples.matmul_hopper_linear import linear_level, matmul_hopper_levels
from tests.examples.runs import assert_round_trip, bf16, from_bf16

SMALL = MatmulSizes(rows=256, columns=64, depth=320, clusters=1)


def run(program: Node, sizes: MatmulSizes, seed: int) -> float:
    """The largest error of the result, relative to the largest element."""
    generator = np.random.default_rng(7)
    a = bf16(generator.standard_normal((sizes.rows, sizes.depth)))
    b = bf16(generator.standard_normal((sizes.columns, sizes.depth)))
    c = bf16(np.full((sizes.rows, sizes.columns), np.nan))
    evaluate_threads(program, [c, a, b], HOPPER, seed=seed)
    wanted = from_bf16(a) @ from_bf16(b).T
    return float(np.abs(from_bf16(c) - wanted).max() / np.abs(wanted).max())


def test_all_levels_round_trip() -> None:
    assert_round_trip(matmul_hopper_levels(SMALL))


@pytest.mark.parametrize("seed", range(4))
def test_any_order(seed: int) -> None:
    assert run(linear_level(SMALL), SMALL, seed) < 2**-7


@pytest.mark.parametrize(
    "sizes",
    [replace(SMALL, rows=128, cluster=1, clusters=2), replace(SMALL, k=32, stages=5)],
    ids=["no cluster", "half rows"],
)
def test_any_shape(sizes: MatmulSizes) -> None:
    assert run(linear_level(sizes), sizes, 1) < 2**-7


def _dropped(name: str, last: bool = False, imm: tuple[int, ...] | None = None) -> Node:
    program = linear_level(SMALL)

    def hit(node: Node) -> bool:
        named = node.op is Ops.MACHINE and node.arg.name == name
        return named and (imm is None or node.arg.immediates == imm)

    found = [place for place, node in enumerate(program.src) if hit(node)]
    assert found
    gone = set(found[-1:] if last else found)
    kept = tuple(node for place, node in enumerate(program.src) if place not in gone)
    return program.replace(src=kept)


def _other(name: str, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Node:
    program = linear_level(SMALL)
    code = [
        node.replace(arg=replace(node.arg, immediates=change(node.arg.immediates)))
        if node.op is Ops.MACHINE and node.arg.name == name
        else node
        for node in program.src
    ]
    return program.replace(src=tuple(code))


MUTANTS: tuple[tuple[str, Callable[[], Node]], ...] = (
    ("no proxy fence", lambda: _dropped("fence.proxy.async")),
    ("no named barriers", lambda: _dropped("bar.sync")),
    ("no cluster barrier", lambda: _dropped("barrier.cluster")),
    ("no release", lambda: _dropped("mbarrier.arrive.remote")),
    ("no last release", lambda: _dropped("mbarrier.arrive.remote", last=True)),
    ("no last wait for the product", lambda: _dropped("wgmma.wait", imm=(0,))),
    ("no last wait for stores", lambda: _dropped("bulk.wait", imm=(0, 0))),
    ("no waits", lambda: _dropped("mbarrier.wait")),
    ("fewer registers given back", lambda: _other("setmaxnreg", lambda i: (max(i[0], 32),))),
    ("fewer bytes", lambda: _other("mbarrier.arrive.expect_tx", lambda i: (i[0] - 16,))),
    ("another swizzle", lambda: _other("wgmma.mma", lambda i: (i[0], i[1] - 1))),
    ("no multicast", lambda: _other("tma.load", lambda i: (*i[:3], 0))),
)


@pytest.mark.parametrize("make", [m[1] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_every_mutant_is_caught(make: Callable[[], Node]) -> None:
    program = make()
    assert any(_goes_wrong(program, seed) for seed in range(6))


def _goes_wrong(program: Node, seed: int) -> bool:
    try:
        return not run(program, SMALL, seed) < 2**-7
    except BaregradError:
        return True


def test_a_greedy_role_waits_for_registers_for_ever() -> None:
    program = _other("setmaxnreg", lambda i: (max(i[0], 32),))
    with pytest.raises(BaregradError, match=r"deadlock: .* registers a thread, .* are free"):
        run(program, SMALL, 0)


@pytest.mark.parametrize("n", [8, 32, 192])
def test_the_accumulator_layout_is_the_fragment(n: int) -> None:
    rows, columns = accumulator_places(n)
    layout = wgmma_accumulator(n)
    for element, where in layout.entries():
        found = rows[where["reg"], where["lane"]] + 16 * where["warp"]
        assert (found, columns[where["reg"], where["lane"]]) == (element["m"], element["n"])


@pytest.mark.parametrize("span", [32, 64, 128])
def test_the_swizzle_is_a_permutation_without_conflicts(span: int) -> None:
    layout = swizzled_tile("m", 16, "k", span // 2, 16, span)
    bits = {where["bit"] for _, where in layout.entries()}
    assert bits == {16 * i for i in range(16 * span // 2)}
    # Eight rows of one 16-byte column lie in as many different columns as the span has.
    chunks = {layout.place({"m": row, "k": 0})["bit"] // 128 % (span // 16) for row in range(8)}
    assert len(chunks) == span // 16

"""Streaming attention on Hopper under hostile timing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.errors import BaregradError
from baregrad.ir.core.layout import wgmma_accumulator
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_loop import evaluate_gpu
from baregrad.ir.protocol.attributes import operand_layouts, wgmma
from baregrad.ir.text.dump import dump, parse
from baregrad.ir.verify.protocols import protocol_check, protocol_faults
from baregrad.ir.verify.verify import verify
from baregrad.testing.examples.attention_hopper import AttentionSizes, attention_hopper_loop
from baregrad.testing.examples.matmul_hopper import HOPPER
from tests.examples.runs import bf16, from_bf16, without

SIZES = AttentionSizes(queries=128)


def run(kernel: Node, sizes: AttentionSizes, seed: int) -> float:
    """The largest error of the result, relative to the largest element."""
    generator = np.random.default_rng(5)
    q = bf16(generator.standard_normal((sizes.queries, sizes.depth)))
    k = bf16(generator.standard_normal((sizes.keys, sizes.depth)))
    v = bf16(generator.standard_normal((sizes.keys, sizes.depth)))
    o = bf16(np.full((sizes.queries, sizes.depth), np.nan))
    evaluate_gpu(kernel, [o, q, k, v], HOPPER, seed=seed)
    scores = from_bf16(q) @ from_bf16(k).T
    power = np.exp(scores - scores.max(1, keepdims=True))
    wanted = power / power.sum(1, keepdims=True) @ from_bf16(v)
    return float(np.abs(from_bf16(o) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("seed", range(4))
def test_any_timing(seed: int) -> None:
    assert run(attention_hopper_loop(SIZES), SIZES, seed) < 2**-6


@pytest.mark.parametrize(
    "sizes",
    [AttentionSizes(queries=256, keys=64), AttentionSizes(128, 192, 32, 64, 3, 1)],
    ids=["two blocks", "one group"],
)
def test_any_shape(sizes: AttentionSizes) -> None:
    kernel = attention_hopper_loop(sizes)
    verify(kernel, "loop")
    assert parse(dump(kernel)) is kernel
    assert len(toposort(kernel)) < 180
    protocol_check(kernel, HOPPER)
    assert run(kernel, sizes, 1) < 2**-6


def test_the_exponentials_are_the_next_operand_as_they_lie() -> None:
    """CONVERT is no code: the accumulator's digits are the operand's."""
    times = wgmma(64, a_space="register", b_major="n")
    operand = operand_layouts(times, 32)[1]
    assert operand == wgmma_accumulator(32).renamed({"n": "k"})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda n: n.op is Ops.FENCE and n.arg.source == "registers",
        lambda n: n.op is Ops.FENCE and n.arg.source == "generic",
        lambda n: n.op is Ops.DONE and n.arg.engine == "mma",
        lambda n: n.op is Ops.RELEASE and n.src[0].arg.name == "v",
        lambda n: n.op is Ops.WAIT and n.src[0].arg.name == "q",
    ],
    ids=["register fence", "proxy fence", "done", "release", "wait"],
)
def test_every_mutant_is_caught(wrong: Callable[[Node], bool]) -> None:
    broken = without(attention_hopper_loop(SIZES), wrong)
    assert next(protocol_faults(broken, HOPPER), None) is not None
    assert any(_goes_wrong(broken, seed) for seed in range(6))


def _goes_wrong(kernel: Node, seed: int) -> bool:
    try:
        return not run(kernel, SIZES, seed) < 2**-6
    except BaregradError:
        return True

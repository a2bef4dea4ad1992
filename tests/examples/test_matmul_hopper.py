"""The Hopper matmul computes under hostile timing, and every broken variant is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from baregrad.base.errors import BaregradError
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_loop import evaluate_gpu
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.tensor_level import evaluate
from baregrad.ir.protocol.attributes import Barrier, Done
from baregrad.ir.text.dump import dump, parse
from baregrad.ir.verify.protocol_limits import shared_nbytes
from baregrad.ir.verify.protocols import protocol_check, protocol_faults
from baregrad.ir.verify.verify import verify
from baregrad.testing.examples.matmul_hopper import (
    HOPPER,
    MatmulSizes,
    kernel_by_hand,
    kernel_level,
    loop_level,
    tensor_level,
)
from tests.examples.runs import bf16, changed, from_bf16, without

SMALL = MatmulSizes(rows=256, columns=64, depth=320, clusters=1)
Mutant = Callable[[Node], Node]


def run(kernel: Node, sizes: MatmulSizes, seed: int) -> float:
    """The largest error of the result, relative to the largest element."""
    generator = np.random.default_rng(7)
    a = bf16(generator.standard_normal((sizes.rows, sizes.depth)))
    b = bf16(generator.standard_normal((sizes.columns, sizes.depth)))
    c = bf16(np.full((sizes.rows, sizes.columns), np.nan))
    evaluate_gpu(kernel, [c, a, b], HOPPER, seed=seed)
    wanted = from_bf16(a) @ from_bf16(b).T
    return float(np.abs(from_bf16(c) - wanted).max() / np.abs(wanted).max())


def test_upper_levels() -> None:
    sizes = MatmulSizes(rows=12, columns=9, depth=20)
    generator = np.random.default_rng(1)
    a = bf16(generator.standard_normal((12, 20)))
    b = bf16(generator.standard_normal((9, 20)))
    wanted = from_bf16(a) @ from_bf16(b).T
    tensor = tensor_level(sizes)
    verify(tensor, "tensor")
    assert np.abs(evaluate(tensor, {1: a, 2: b}) - wanted).max() < 0.05
    for kernel in (kernel_level(sizes), kernel_by_hand(sizes)):
        verify(kernel, "kernel")
        assert parse(dump(kernel)) is kernel
        c = bf16(np.full((12, 9), np.nan))
        evaluate_kernel(kernel, [c, a, b])
        assert np.abs(from_bf16(c) - wanted).max() < 0.05


@pytest.mark.parametrize("seed", range(6))
def test_any_timing(seed: int) -> None:
    assert run(loop_level(SMALL), SMALL, seed) < 2**-7


@pytest.mark.parametrize(
    "sizes",
    [
        MatmulSizes(rows=512, columns=96, depth=192, clusters=5),
        MatmulSizes(rows=512, columns=64, depth=64, clusters=2, stages=2),
        replace(SMALL, rows=128, cluster=1, clusters=2),
        replace(SMALL, stages=5, k=32),
    ],
    ids=["five clusters", "short", "no cluster", "half rows"],
)
def test_any_shape(sizes: MatmulSizes) -> None:
    kernel = loop_level(sizes)
    verify(kernel, "loop")
    assert parse(dump(kernel)) is kernel
    protocol_check(kernel, HOPPER)
    assert run(kernel, sizes, 3) < 2**-7


def test_the_large_kernel_fits() -> None:
    kernel = loop_level(MatmulSizes(8192, 8192, 512, 256, 64, 4, 66, 64))
    protocol_check(kernel, HOPPER)
    assert shared_nbytes(kernel) == 229_440
    assert len(toposort(kernel)) < 150


def _pipe(**fields: object) -> Mutant:
    def mutate(kernel: Node) -> Node:
        def change(node: Node) -> Node | None:
            return node.replace(arg=replace(node.arg, **fields)) if node.op is Ops.PIPE else None

        return changed(kernel, change)

    return mutate


def _counter_moved(kernel: Node) -> Node:
    def change(node: Node) -> Node | None:
        if node.op is not Ops.WAIT:
            return None
        pipe, counter = node.src
        return node.replace(src=(pipe, index.as_node(index.add(counter, pipe.arg.depth))))

    return changed(kernel, change)


def _released_early(kernel: Node) -> Node:
    """Each step releases its own slot while its instructions are still in flight."""

    def change(node: Node) -> Node | None:
        if node.op is Ops.IF and node.src[1].op is Ops.RELEASE:
            release = node.src[1]
            counter = index.as_node(index.add(release.src[1], 1))
            return release.replace(src=(release.src[0], counter))
        return None

    return changed(without(kernel, lambda node: node.op is Ops.RELEASE), change)


def _drop(test: Callable[[Node], bool]) -> Mutant:
    return lambda kernel: without(kernel, test)


def _is(op: object, source: str = "") -> Callable[[Node], bool]:
    return lambda n: n.op is op and (not source or n.arg.source == source)


def _store_wait(node: Node) -> bool:
    return node.op is Ops.DONE and node.arg == Done("tma_store", 1, reads_only=True)


def _last_store_wait(node: Node) -> bool:
    return node.op is Ops.DONE and node.arg == Done("tma_store", 0)


def _mma_wait(node: Node) -> bool:
    return node.op is Ops.DONE and node.arg == Done("mma", 1)


def _last_mma_wait(node: Node) -> bool:
    return node.op is Ops.DONE and node.arg == Done("mma", 0)


MUTANTS: tuple[tuple[str, Mutant, bool], ...] = (
    # name, mutation, whether the evaluator sees it too (else timing on one warpgroup hides it)
    ("no register fence", _drop(_is(Ops.FENCE, "registers")), False),
    ("no proxy fence", _drop(_is(Ops.FENCE, "generic")), True),
    ("no barrier in the epilogue", _drop(lambda n: n.arg == Barrier("warpgroup")), True),
    ("no cluster barrier", _drop(lambda n: n.arg == Barrier("cluster")), True),
    ("no release", _drop(lambda n: n.op is Ops.IF), True),
    ("no last release", _drop(lambda n: n.op is Ops.RELEASE), True),
    ("no drain", _drop(_is(Ops.DRAIN)), True),
    ("no wait", _drop(_is(Ops.WAIT)), True),
    ("no acquire", _drop(_is(Ops.ACQUIRE)), True),
    ("no commit", _drop(_is(Ops.COMMIT)), False),
    ("no wait for stores", _drop(_store_wait), True),
    ("no wait for the last stores", _drop(_last_store_wait), True),
    ("no wait for the product", _drop(_last_mma_wait), True),
    ("no wait in the loop", _drop(_mma_wait), True),
    ("released early", _released_early, True),
    ("waits for a later lap", _counter_moved, True),
    ("too few bytes", _pipe(full_nbytes=20480 - 16), True),
    ("too many bytes", _pipe(full_nbytes=20480 + 16), True),
    ("too few arrivals", _pipe(empty_arrivals=3), True),
    ("too many arrivals", _pipe(empty_arrivals=5), True),
    ("two producers expected", _pipe(full_arrivals=2), True),
    ("releases stay in the block", _pipe(scope="block", empty_arrivals=2), True),
)


@pytest.mark.parametrize(("mutate", "seen"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_every_mutant_is_caught(mutate: Mutant, seen: bool) -> None:
    kernel = loop_level(SMALL)
    broken = mutate(kernel)
    assert broken is not kernel
    assert next(protocol_faults(broken, HOPPER), None) is not None
    assert any(_goes_wrong(broken, seed) for seed in range(8 if seen else 2)) == seen


def _goes_wrong(kernel: Node, seed: int) -> bool:
    try:
        return not run(kernel, SMALL, seed) < 2**-7
    except BaregradError:
        return True


def test_a_ring_of_one_slot_deadlocks() -> None:
    sizes = replace(SMALL, stages=1)
    kernel = loop_level(sizes)
    (fault, *_) = protocol_faults(kernel, HOPPER)
    assert fault.startswith("deadlock") and "load[0] waits at ACQUIRE ring 1" in fault
    with pytest.raises(BaregradError, match=r"deadlock: .*load\[0\] of block . waits for empty"):
        run(kernel, sizes, 0)


def test_an_odd_number_of_pieces_breaks_the_staging() -> None:
    sizes = replace(SMALL, n=16, columns=32)
    kernel = loop_level(sizes)
    faults = protocol_faults(kernel, HOPPER)
    assert any("rewritten while a bulk store may read it" in fault for fault in faults)
    with pytest.raises(BaregradError, match="rewrites sC while a bulk store may read it"):
        run(kernel, sizes, 0)


def test_limits() -> None:
    too_deep = loop_level(MatmulSizes(8192, 8192, 512, 256, 64, 5, 66, 64))
    assert any("bytes of shared memory" in fault for fault in protocol_faults(too_deep, HOPPER))

    def greedy(node: Node) -> Node | None:
        if node.op is Ops.ROLE and node.arg.name == "load":
            return node.replace(arg=replace(node.arg, registers=32))
        return None

    found = list(protocol_faults(changed(loop_level(SMALL), greedy), HOPPER))
    assert found[0].startswith("512 registers") and "504" in found[0]

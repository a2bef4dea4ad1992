"""Sums that are kept in scratch memory while the loop over their panels runs."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel import (
    apply_schedule,
    lower,
    parse_schedule,
)
from baregrad.kernel.applying.staged_accumulators import in_parts, kept_in_scratch
from tests.kernel import kernels as k
from tests.kernel.applying.test_to_loop import loops
from tests.kernel.test_lowering import AVX, check


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (19, 70), (16, 33)])
def test_columns_summed_in_scratch_memory(rows: int, columns: int) -> None:
    schedule = parse_schedule(
        "Schedule(split('i0', outer='p', q=2, u=2, v=8, tail='t'), bind('u', 'unroll'), "
        "bind('v', 'vector'), split('r1', outer='ro', ru=4, tail='rt'), bind('ru', 'unroll'), "
        "bind('p', 'pool'), stage_reduce('ro', 'q', 'u', 'v'), stage_reduce('rt', 'q', 'u', 'v'))"
    )
    loop = check(k.column_reduce(rows, columns), schedule)
    outer = [n for n in loops(loop) if n.src[0].arg.axis == "ro"]
    assert any(loops(n.src[1]) for n in outer)


def test_sums_kept_for_a_chunk_are_those_of_the_chunk_alone() -> None:
    """Each chunk adds up its own part: not every chunk the whole of the axis."""
    kernel = k.matmul(8, 16, 32)
    text = "Schedule(bind('i0', 'pool'), stage_reduce('r2', 'i0', 'i1'))"
    loop = lower(kernel, AVX, parse_schedule(text))
    verify(loop, "loop")
    ranges = [node for node in nodes_of(loop) if node.op.name == "RANGE"]
    chunk = {n.arg.axis: extent_of(n) for n in ranges if n.arg.axis.startswith("i0")}
    assert chunk == {"i0_chunk": 8}
    arrays = k.arguments(kernel)
    k.assert_equal(k.run_kernel(kernel, arrays), k.run_loop(loop, arrays))


def test_sums_kept_outside_of_a_loop_with_a_tile() -> None:
    """The tile's axis is reduced in registers with the loop inside, not with the one outside."""
    kernel = k.matmul(6, 8, 24)
    text = (
        "Schedule(split('r2', outer='ro', ri=3, ru=2), bind('ru', 'unroll'), bind('i1', 'vector'), "
        "stage_reduce('ro', 'i0', 'i1'))"
    )
    loop = lower(kernel, AVX, parse_schedule(text))
    verify(loop, "loop")
    arrays = k.arguments(kernel)
    k.assert_equal(k.run_kernel(kernel, arrays), k.run_loop(loop, arrays))


def nodes_of(root: Node) -> list[Node]:
    """Everything below a node."""
    return list(toposort(root))


def reduce_of(text: str) -> tuple[Node, dict[str, Node]]:
    """The REDUCE of a product under a schedule, and its axes by name."""
    applied = apply_schedule(k.matmul(4, 6, 24), parse_schedule(f"Schedule({text})"))
    (node,) = [one for one in toposort(applied) if one.op is Ops.REDUCE]
    return node, {one.arg.axis: one for one in toposort(applied) if one.op is Ops.RANGE}


def test_what_lies_inside_a_panel_is_reduced_first() -> None:
    node, axes = reduce_of("split('r2', outer='ro', ri=3, ru=2), bind('ru', 'unroll')")
    outer = in_parts(node, axes["ro"])
    assert outer.src[1:] == (axes["ro"],)
    inner = outer.src[0]
    assert inner.op is Ops.REDUCE
    assert inner.src[1:] == (axes["ri"], axes["ru"])
    # With nothing inside there is one sum.
    assert in_parts(node, axes["ri"]) is node


def test_sums_are_kept_over_axes_of_their_own() -> None:
    node, axes = reduce_of("split('r2', outer='ro', ri=6)")
    kept = kept_in_scratch(node, axes["ro"], [axes["i0"], axes["i1"]], 100, ())
    assert kept is not None
    stage = kept.src[0]
    assert (stage.op, stage.arg.space) == (Ops.STAGE, "scratch")
    assert kept.src[1:] == (axes["i0"], axes["i1"])
    assert [axis.arg.id for axis in stage.src[1:]] == [
        100 + axes["i0"].arg.id, 100 + axes["i1"].arg.id,
    ]
    # Nothing of the loops around is left in it.
    assert stage.ranges.isdisjoint(axes.values())


@pytest.mark.parametrize(("at", "over"), [
    ("i0", ("i1",)),  # no axis of the sum
    ("ro", ("i0", "ri")),  # one that the sum folds
])  # fmt: skip
def test_other_axes_keep_nothing(at: str, over: tuple[str, ...]) -> None:
    node, axes = reduce_of("split('r2', outer='ro', ri=6)")
    assert kept_in_scratch(node, axes[at], [axes[name] for name in over], 100, ()) is None


def test_all_lanes_of_a_sum_are_kept_or_none() -> None:
    node, axes = reduce_of("bind('i1', 'vector')")
    assert kept_in_scratch(node, axes["r2"], [axes["i0"]], 100, ()) is None
    assert kept_in_scratch(node, axes["r2"], [axes["i0"], axes["i1"]], 100, ()) is not None

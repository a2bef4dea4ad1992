"""Donated arguments: which outputs are written over them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Param
from baregrad.ir.core.index import Dim, variable
from baregrad.ir.core.node import Node, alu, const, extent_of, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.verify.verify import verify
from baregrad.schedule import Plan
from baregrad.schedule.donation import changed_part
from baregrad.target.gpu import gpu_row
from tests.schedule.graphs import F32, I64, check, iota, param


def shared_param(plan: Plan, output: int) -> int | None:
    """The slot of the argument that an output is written over."""
    buffer = plan.buffers[plan.outputs[output]]
    return buffer.slot if buffer.kind == "param" else None


def test_elementwise_update_in_place() -> None:
    x, g = param(0, 50, 20), param(1, 50, 20)
    plan = check([x - g * 0.1], donate={0: 0})
    assert shared_param(plan, 0) == 0
    (step,) = plan.steps
    assert step.buffers.count(step.buffers[0]) == 2


def test_update_of_two_arrays_in_place_is_ordered() -> None:
    """The new momentum is needed for the new weights: the old momentum is overwritten last."""
    p, m, g = (param(i, 300) for i in range(3))
    m2 = m * 0.9 + g
    plan = check([m2, p - m2 * 0.1], kernels=1, donate={0: 1, 1: 0})
    assert shared_param(plan, 0) == 1
    assert shared_param(plan, 1) == 0
    order = [out.src[0].arg.slot for out in plan.kernels[0].src]
    assert [plan.steps[0].buffers[slot] for slot in order] == [0, 1]


def test_swap_is_not_done_in_place() -> None:
    x, y = param(0, 30), param(1, 30)
    plan = check([x * 1.0 + y, y * 1.0 - x], kernels=1, donate={0: 0, 1: 1})
    assert [shared_param(plan, 0), shared_param(plan, 1)].count(None) >= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.flip(0) + 1.0,
        lambda x: x.permute(1, 0) * 2.0,
        lambda x: x.softmax(),
        lambda x: x.shrink((0, 19), (0, 20)).pad((1, 0), (0, 0)) + x,
    ],
)
def test_reads_of_other_elements_are_not_overwritten(make: object) -> None:
    x = param(0, 20, 20)
    plan = check([make(x)], donate={0: 0})  # type: ignore[operator]
    assert shared_param(plan, 0) is None


def test_later_reader_keeps_an_argument() -> None:
    x = param(0, 40)
    y = (x + 1.0).contiguous()
    plan = check([y, (y * 2.0).contiguous().flip(0) + x], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_earlier_reader_does_not() -> None:
    x = param(0, 40)
    plan = check([x + x.scan(0).flip(0)], kernels=2, donate={0: 0})
    assert shared_param(plan, 0) == 0


@pytest.mark.parametrize("place", (0, 1))
def test_an_update_waits_for_those_that_still_read_the_weights(place: int) -> None:
    """Whichever comes first, the gradient passed on or the new weights."""
    w, x = param(0, 24, 40), param(1, 24, 40)
    outputs = [w - x * 0.1, w.flip(1).sum(0)]
    plan = check(outputs if not place else outputs[::-1], kernels=2, donate={place: 0})
    assert shared_param(plan, place) == 0


def test_an_update_that_others_need_does_not_wait() -> None:
    w, x = param(0, 24, 40), param(1, 24, 40)
    new = (w - x * 0.1).contiguous()
    plan = check([new, (new.flip(1) * w).sum(0)], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_argument_that_is_an_output_stays() -> None:
    x = param(0, 40)
    plan = check([x + 1.0, x], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_sizes_must_agree() -> None:
    x = param(0, 40)
    assert shared_param(check([x.shrink((0, 20)) + 1.0], donate={0: 0}), 0) is None
    assert shared_param(check([x.cast(dtypes.float64)], donate={0: 0}), 0) is None
    assert shared_param(check([(x + 1.0).cast(dtypes.int32)], donate={0: 0}), 0) is None
    assert shared_param(check([(x + 1.0).reshape(8, 5)], donate={0: 0}), 0) == 0


def test_a_gpu_counts_in_a_kernel_of_its_own() -> None:
    """Its threads run in any order: some would read what one of them has counted already."""
    x, y, count = param(0, 50, 20), param(1, 30), param(2)
    counted = count + 1.0
    outputs = [counted, x * counted, y - counted]
    plan = check(outputs, donate={0: 2}, target=gpu_row("sm_90a"))
    assert shared_param(plan, 0) == 2
    writers = [step for step in plan.steps if plan.outputs[0] in step.buffers[: len(step.writes)]]
    assert writers == [plan.steps[0]]
    assert len(plan.steps[0].writes) == 1
    # What nothing waits for is done on the way, and then beside the old count.
    assert len(check(outputs, target=gpu_row("sm_90a")).steps) < len(plan.steps)


@pytest.mark.parametrize("target", [None, gpu_row("sm_90a")])
def test_a_gpu_writes_over_no_number_that_several_threads_read(target: Any) -> None:
    x, row = param(0, 50, 20), param(1, 50)
    more = row + 1.0
    outputs = [more, x * more.reshape(50, 1).expand(50, 20)]
    plan = check(outputs, kernels=1, donate={0: 1}, target=target)
    assert shared_param(plan, 0) == (1 if target is None else None)


def test_write_into_a_cache_copies_nothing() -> None:
    cache, row, place = param(0, 64, 16), param(1, 1, 16), param(2, 1, dtype=I64)
    made = cache.scatter(row, place.reshape(1, 1), iota(16).reshape(1, 16))
    plan = check([made], donate={0: 0}, kernels=1)
    assert shared_param(plan, 0) == 0
    assert len(check([made]).kernels) == 2


# --- parts of arrays ------------------------------------------------------------------------------

SHAPE = (6, 32, 4)
P = variable("p", 0, 31)
Condition = Callable[[Node, Node, Node], Node]


def within(axis: Node, begin: Dim, end: Dim) -> Node:
    return index.both(index.at_least(axis, begin), index.less(axis, end))


def guarded(condition: Node, value: Node) -> Node:
    return Node(Ops.GUARD, F32, (condition, value))


def kernel(outs: tuple[Node, ...]) -> Node:
    made = Node(Ops.KERNEL, dtypes.token, outs, KernelInfo("part"))
    verify(made, "kernel")
    return made


def assigned(condition: Condition, read: Callable[..., Node] | None = None) -> Node:
    """A kernel that takes what a condition is true of from one array, and the rest from another."""
    target, new, old = (Node(Ops.PARAM, F32, (), Param(slot, SHAPE)) for slot in range(3))
    axes = tuple(range_node(extent, number) for number, extent in enumerate(SHAPE))
    where = condition(*axes)
    kept = Node(Ops.INDEX, F32, (old, *axes))
    value = Node(Ops.INDEX, F32, (new, *axes))
    if read is not None:
        value = alu(Ops.ADD, value, read(old, *axes))
    chosen = alu(Ops.WHERE, where, guarded(where, value), kept)
    return kernel((Node(Ops.OUT, dtypes.token, (target, chosen, *axes), Out()),))


@pytest.mark.parametrize("place", [0, 7, 31])
@pytest.mark.parametrize(
    ("condition", "count"),
    [
        (lambda i, j, k: within(j, 5, 7), 6 * 2 * 4),
        (lambda i, j, k: within(j, P, index.add(P, 1)), 6 * 4),
        (lambda i, j, k: index.both(within(j, P, index.add(P, 1)), within(i, 2, 5)), 3 * 4),
        (lambda i, j, k: index.both(index.less(k, 1), index.at_least(i, 4)), 2 * 32),
        (lambda i, j, k: within(j, index.mod(P, 4), index.add(index.mod(P, 4), 3)), 6 * 3 * 4),
    ],
)
def test_what_changes_is_computed_alone(condition: Condition, count: int, place: int) -> None:
    whole = assigned(condition)
    outs = changed_part(whole, [2])
    assert outs is not None
    axes = frozenset().union(*[child.ranges for child in outs[0].src[1:]])
    assert prod(extent_of(axis) for axis in axes) == count
    part = kernel(outs)
    rng = np.random.default_rng(place)
    new, old = (rng.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
    wanted, found = np.zeros(SHAPE, np.float32), old.copy()
    evaluate_kernel(whole, {0: wanted, 1: new, 2: old}, {"p": place})
    evaluate_kernel(part, {0: found, 1: new}, {"p": place})
    np.testing.assert_array_equal(found, wanted)
    assert (found != old).sum() == count


@pytest.mark.parametrize(
    "condition",
    [
        # Places that may lie outside, where nothing is written.
        lambda i, j, k: within(j, P, index.add(P, 2)),
        lambda i, j, k: within(j, index.sub(P, 1), P),
        # As many as a variable says.
        lambda i, j, k: index.less(j, P),
        # A diagonal; a value that is read; every other place.
        lambda i, j, k: index.less(i, j),
        lambda i, j, k: alu(
            Ops.CMPLT, const(0.0, F32),
            Node(Ops.INDEX, F32, (Node(Ops.PARAM, F32, (), Param(1, SHAPE)), i, j, k)),
        ),
        lambda i, j, k: index.less(index.mod(j, 2), 1),
    ],
)
def test_what_is_no_block_is_computed_whole(condition: Condition) -> None:
    assert changed_part(assigned(condition), [2]) is None


def test_others_of_the_array_that_are_read_are_not_overwritten() -> None:
    def beside(old: Node, i: Node, j: Node, k: Node) -> Node:
        return Node(Ops.INDEX, F32, (old, i, j, index.as_node(index.sub(3, k))))

    def condition(i: Node, j: Node, k: Node) -> Node:
        return within(j, 3, 4)

    assert changed_part(assigned(condition, beside), [2]) is None
    # Nor is what is kept, where it is of an array that stays.
    assert changed_part(assigned(condition), [1]) is None


def two_assigned(first: Condition, second: Condition, other: int = 3) -> Node:
    """A kernel that changes parts of the arrays 4 and 5 by arrays 2 and `other`."""
    axes = tuple(range_node(extent, number) for number, extent in enumerate(SHAPE))
    outs = []
    for slot, condition, new in ((0, first, 2), (1, second, other)):
        target, fresh, old = (
            Node(Ops.PARAM, F32, (), Param(each, SHAPE)) for each in (slot, new, 4 + slot)
        )
        where = condition(*axes)
        value = guarded(where, Node(Ops.INDEX, F32, (fresh, *axes)))
        chosen = alu(Ops.WHERE, where, value, Node(Ops.INDEX, F32, (old, *axes)))
        outs.append(Node(Ops.OUT, dtypes.token, (target, chosen, *axes), Out()))
    return kernel(tuple(outs))


def test_the_same_part_of_two_arrays_is_computed_alone() -> None:
    def row(i: Node, j: Node, k: Node) -> Node:
        return within(j, P, index.add(P, 1))

    whole = two_assigned(row, row)
    outs = changed_part(whole, [4, 5])
    assert outs is not None
    rng = np.random.default_rng(0)
    arrays = {slot: rng.standard_normal(SHAPE).astype(np.float32) for slot in range(2, 6)}
    wanted = {0: np.zeros_like(arrays[4]), 1: np.zeros_like(arrays[4])}
    found = {0: arrays[4].copy(), 1: arrays[5].copy()}
    evaluate_kernel(whole, {**wanted, **arrays}, {"p": 9})
    evaluate_kernel(kernel(outs), {**found, 2: arrays[2], 3: arrays[3]}, {"p": 9})
    for slot in range(2):
        np.testing.assert_array_equal(found[slot], wanted[slot])
        assert (found[slot] != arrays[4 + slot]).sum() == 6 * 4
    # Other parts; what is written over is read by the other output.
    assert changed_part(two_assigned(row, lambda i, j, k: within(j, 3, 4)), [4, 5]) is None
    assert changed_part(two_assigned(row, row, other=4), [4, 5]) is None

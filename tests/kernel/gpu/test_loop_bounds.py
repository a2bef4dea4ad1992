"""Loops of one thread end where a condition on data has become false for good."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo, Param
from baregrad.ir.core.node import Node, alu, const, extent_of, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.gpu.loop_bounds import bound_loops

INDEX, F32, I32 = dtypes.index, dtypes.float32, dtypes.int32
STEPS, COUNT = 6, 5
LENGTHS = Node(Ops.PARAM, I32, (), Param(1, (COUNT,)))
VALUES = Node(Ops.PARAM, F32, (), Param(2, (STEPS,)))
RESULT = Node(Ops.PARAM, F32, (), Param(0, (COUNT,)))
ACC = Node(Ops.ALLOC, F32, (), Alloc(1, "register", ()))
OWN = range_node(COUNT, 0, "own")
STEP = range_node(STEPS, 1, "step")


def load(array: Node, *places: Node) -> Node:
    return Node(Ops.LOAD, array.dtype, (array, *places))


def left_over(step: Node, length: Node) -> Node:
    """Whether there is something at a step: length - step - 1 is not negative."""
    wide = dtypes.int64
    left = alu(Ops.SUB, Node(Ops.CAST, wide, (length,)), Node(Ops.CAST, wide, (step,)))
    left = alu(Ops.SUB, left, const(1, wide))
    return index.at_least(Node(Ops.CAST, INDEX, (left,)), 0)


def kernel(body: Node) -> Node:
    """A sum for each of five numbers of steps, of which `body` adds one."""
    start = Node(Ops.STORE, dtypes.token, (ACC, const(0.0, F32)))
    loop = Node(Ops.LOOP, dtypes.token, (STEP, body))
    done = Node(Ops.STORE, dtypes.token, (RESULT, load(ACC), OWN))
    each = Node(Ops.SEQ, dtypes.token, (start, loop, done))
    every = Node(Ops.LOOP, dtypes.token, (OWN, each))
    return Node(Ops.KERNEL, dtypes.token, (every,), KernelInfo())


def added(value: Node) -> Node:
    return Node(Ops.STORE, dtypes.token, (ACC, alu(Ops.ADD, load(ACC), value)))


def under(condition: Node, body: Node) -> Node:
    return Node(Ops.IF, dtypes.token, (condition, body))


def results(root: Node) -> np.ndarray:
    lengths = np.array([0, 3, STEPS, 9, -2], np.int32)
    values = np.arange(1, STEPS + 1, dtype=np.float32)
    found = np.zeros(COUNT, np.float32)
    evaluate_loop(root, {0: found, 1: lengths, 2: values})
    return found


def extents(root: Node) -> list[bool]:
    """Whether each loop has an extent that is a number, the outer one last."""
    return [isinstance(extent_of(n.src[0]), int) for n in toposort(root) if n.op is Ops.LOOP]


HOLDS = left_over(STEP, load(LENGTHS, OWN))
EARLY = index.less(STEP, 4)
LATE = index.less(1, STEP)
TERM = load(VALUES, STEP)


@pytest.mark.parametrize(
    ("body", "wanted"),
    (
        (under(HOLDS, added(TERM)), [0, 6, 21, 21, 0]),
        (added(Node(Ops.GUARD, F32, (HOLDS, TERM))), [0, 6, 21, 21, 0]),
        (added(alu(Ops.WHERE, HOLDS, TERM, const(0.0, F32))), [0, 6, 21, 21, 0]),
        # A condition around it that goes from true to false lets the first step read the bound.
        (under(EARLY, under(HOLDS, added(TERM))), [0, 6, 10, 10, 0]),
    ),
)
def test_a_condition_on_data_is_the_bound(body: Node, wanted: list[int]) -> None:
    root = kernel(body)
    made = bound_loops(root)
    assert extents(root) == [True, True]
    assert extents(made) == [False, True]
    np.testing.assert_array_equal(results(root), wanted)
    np.testing.assert_array_equal(results(made), wanted)


@pytest.mark.parametrize("is_first", (True, False))
def test_the_first_condition_that_is_false_is_the_bound(is_first: bool) -> None:
    """Not the outermost: past the least of them all turns would do nothing."""
    other = index.less(STEP, Node(Ops.CAST, INDEX, (load(LENGTHS, const(1, INDEX)),)))
    around, inside = (HOLDS, other) if is_first else (other, HOLDS)
    root = kernel(under(around, added(Node(Ops.GUARD, F32, (inside, TERM)))))
    made = bound_loops(root)
    for one in (root, made):
        np.testing.assert_array_equal(results(one), [0, 6, 6, 6, 0])
    (loop,) = [n for n in toposort(made) if n.op is Ops.LOOP and n.src[0].arg.id == 1]
    extent = extent_of(loop.src[0])
    assert isinstance(extent, Node)
    # Both lengths are asked for before the loop, and none in it.
    assert sum(node.op is Ops.LOAD for node in toposort(extent)) == 2
    read = {node.src[0] for node in toposort(substitute(loop.src[1], {loop.src[0]: STEP}))
            if node.op is Ops.LOAD}  # fmt: skip
    assert read == {VALUES, ACC}


def test_a_condition_within_others_reads_its_bound_where_all_of_them_hold() -> None:
    """Two lengths are three each, of which a condition around both says so."""
    lengths, others = (Node(Ops.PARAM, I32, (), Param(slot, (3,))) for slot in (1, 3))
    first, second = (
        index.less(STEP, Node(Ops.CAST, INDEX, (load(one, OWN),))) for one in (lengths, others)
    )
    inner = under(first, added(Node(Ops.GUARD, F32, (second, TERM))))
    root = kernel(under(index.less(OWN, 3), inner))
    made = bound_loops(root)
    assert extents(made) == [False, True]
    values = np.arange(1, STEPS + 1, dtype=np.float32)
    given = np.array([2, 6, -1], np.int32), np.array([5, 3, 6], np.int32)
    for one in (root, made):
        found = np.zeros(COUNT, np.float32)
        evaluate_loop(one, {0: found, 1: given[0], 2: values, 3: given[1]})
        assert found.tolist() == [3, 6, 0, 0, 0]


OTHER = Node(Ops.ALLOC, F32, (), Alloc(2, "register", ()))


def two_sums(other: Node) -> Node:
    """The sum of as many values as there are, and `other` added up beside."""
    start = [Node(Ops.STORE, dtypes.token, (one, const(0.0, F32))) for one in (ACC, OTHER)]
    both = under(HOLDS, added(TERM)), other
    loop = Node(Ops.LOOP, dtypes.token, (STEP, Node(Ops.SEQ, dtypes.token, both)))
    value = alu(Ops.ADD, load(ACC), alu(Ops.MUL, load(OTHER), const(100.0, F32)))
    done = Node(Ops.STORE, dtypes.token, (RESULT, value, OWN))
    each = Node(Ops.SEQ, dtypes.token, (*start, loop, done))
    every = Node(Ops.LOOP, dtypes.token, (OWN, each))
    return Node(Ops.KERNEL, dtypes.token, (every,), KernelInfo())


# What reads the other sum stays beside it: of 1, 3 and 6 there are 10 in three steps.
@pytest.mark.parametrize(("term", "loops", "wanted"), (
    (TERM, 2, [600, 606, 621, 621, 600]), (load(ACC), 1, [0, 1006, 1021, 1021, 0]),
), ids=("apart", "together"))  # fmt: skip
def test_sums_that_end_apart_have_loops_of_their_own(
    term: Node, loops: int, wanted: list[int]
) -> None:
    far = index.less(STEP, Node(Ops.CAST, INDEX, (load(LENGTHS, const(1, INDEX)),)))
    value = alu(Ops.ADD, load(OTHER), Node(Ops.GUARD, F32, (far, term)))
    root = two_sums(Node(Ops.STORE, dtypes.token, (OTHER, value)))
    made = bound_loops(root)
    inner = [n for n in toposort(made) if n.op is Ops.LOOP and n.src[0].arg.id == 1]
    assert len(inner) == loops and all(not isinstance(extent_of(n.src[0]), int) for n in inner)
    for one in (root, made):
        np.testing.assert_array_equal(results(one), wanted)


def test_no_bound_is_what_another_sum_of_the_loop_comes_to() -> None:
    """Not even of one that is under a condition: of the first length there are no turns at all."""
    far = index.less(STEP, Node(Ops.CAST, INDEX, (load(ACC),)))
    value = alu(Ops.ADD, load(OTHER), Node(Ops.GUARD, F32, (far, TERM)))
    root = two_sums(Node(Ops.STORE, dtypes.token, (OTHER, value)))
    for one in (root, bound_loops(root)):
        np.testing.assert_array_equal(results(one), [0, 2106, 2121, 2121, 0])


def test_sums_that_end_together_stay_in_one_loop() -> None:
    value = alu(Ops.ADD, load(OTHER), TERM)
    root = two_sums(under(HOLDS, Node(Ops.STORE, dtypes.token, (OTHER, value))))
    made = bound_loops(root)
    (loop,) = [n for n in toposort(made) if n.op is Ops.LOOP and n.src[0].arg.id == 1]
    asked = [n.src[0] for n in toposort(loop.src[1]) if n.op is Ops.IF]
    assert asked and all(one.op is Ops.CONST and one.arg for one in asked)
    np.testing.assert_array_equal(results(made), [0, 606, 2121, 2121, 0])


@pytest.mark.parametrize(
    "body",
    (
        # One that becomes true may let a later step read what the first one must not.
        under(LATE, under(HOLDS, added(TERM))),
        # What else than 0 is added elsewhere is added to the end.
        added(alu(Ops.WHERE, HOLDS, TERM, const(1.0, F32))),
        # The number of steps changes from step to step.
        under(left_over(STEP, load(LENGTHS, index.as_node(index.mod(STEP, COUNT)))), added(TERM)),
    ),
)
def test_other_conditions_stay(body: Node) -> None:
    root = kernel(body)
    assert bound_loops(root) is root


def test_conditions_on_floats_are_left_alone() -> None:
    root = kernel(under(alu(Ops.CMPLT, TERM, const(2.5, F32)), added(TERM)))
    assert bound_loops(root) is root


def test_a_number_of_64_bits_is_not_moved_past_the_largest() -> None:
    """Of step - 1 < length the limit would be length + 1, which the largest length has not."""
    wide = dtypes.int64
    lengths = Node(Ops.PARAM, wide, (), Param(1, (COUNT,)))
    length = Node(Ops.CAST, INDEX, (load(lengths, OWN),))
    near, far = (kernel(under(index.less(step, length), added(TERM)))
                 for step in (STEP, index.as_node(index.sub(STEP, 1))))  # fmt: skip
    assert extents(bound_loops(near)) != extents(near)
    assert extents(bound_loops(far)) == extents(far)
    given = np.array([(1 << 63) - 1, 3, 0, -1, -2], np.int64)
    values = np.arange(1, STEPS + 1, dtype=np.float32)
    found = np.zeros(COUNT, np.float32)
    evaluate_loop(bound_loops(far), {0: found, 1: given, 2: values})
    assert found.tolist() == [21, 10, 1, 0, 0]

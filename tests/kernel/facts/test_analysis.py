"""What kernels do: offsets, bounds, axes and costs, against enumeration of all their points."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from baregrad.dtypes import dtypes
from baregrad.engine.launch import launch_expr
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    as_one,
    axes_together,
    by_id,
    collapsible,
    cost_of,
    distinct_axes,
    facts_of,
    in_bounds,
    iterations,
    moves_of,
    offset_of,
    op_flops,
    reads_in,
)
from baregrad.program import evaluate
from tests.kernel import kernels as k

AFFINE = (
    k.elementwise(3, 4), k.transpose(3, 4), k.row_reduce(3, 4), k.matmul(2, 3, 4, True, True),
    k.conv(2, 2, 2, 4, 5, 3, 1, 1), k.pad_rows_of_sums(3, 4, 2), k.softmax(2, 3),
)


def points(axes: tuple[Node, ...]) -> Iterator[dict[Node, Node]]:
    for place in product(*[range(iterations((axis,))) for axis in axes]):
        yield {axis: const(p, dtypes.index) for axis, p in zip(axes, place, strict=True)}


def at_point(value: Node | int, point: dict[Node, Node]) -> int:
    found = index.as_dim(substitute(index.as_node(value), point))
    assert isinstance(found, int)
    return found


def accesses_in(kernel: Node) -> list[Node]:
    """Every INDEX and OUT of a kernel."""
    return [node for node in toposort(kernel) if node.op in (Ops.INDEX, Ops.OUT)]


@pytest.mark.parametrize("kernel", AFFINE, ids=range(len(AFFINE)))
def test_offsets_are_those_of_the_indices(kernel: Node) -> None:
    for node in accesses_in(kernel):
        indices = node.src[1 if node.op is Ops.INDEX else 2 :]
        offset = offset_of(node)
        flat = index.as_node(index.flatten(indices, node.src[0].shape))
        assert not offset.rest
        for point in points(by_id(flat.ranges)):
            moved = sum(stride * int(point[axis].arg) for axis, stride in offset.strides.items())
            assert offset.constant + moved == at_point(flat, point)


def test_what_is_not_affine_is_left_over() -> None:
    i = range_node(20, 0)
    n = index.variable("n", 1, 9)
    divided = k.at(k.param(1, 20, n), index.floordiv(i, 3), index.mod(i, 5))
    offset = offset_of(divided)
    assert not offset.strides
    total = index.total([index.mul(atom, scale) for atom, scale in offset.rest])
    flat = index.as_node(index.flatten(divided.src[1:], (20, n)))
    assert index.as_node(index.add(total, offset.constant)) is flat
    access = ArrayAccess(divided.src[0], offset, divided.ranges, False)
    assert access.stride(i) is None
    assert access.stride(range_node(4, 9)) == 0


@pytest.mark.parametrize(("position", "extent"), [
    (lambda i: i, 7), (lambda i: i, 6), (lambda i: index.add(i, -1), 7),
    (lambda i: index.mod(index.mul(i, 3), 5), 5), (lambda i: index.sub(6, i), 7),
    (lambda i: index.mul(i, 2), 13), (lambda i: index.mul(i, 2), 12),
])  # fmt: skip
def test_a_read_stays_inside_its_array_or_not(position: object, extent: int) -> None:
    i = range_node(7, 0)
    place = index.as_node(position(i))  # type: ignore[operator]
    values = [at_point(place, point) for point in points((i,))]
    inside = all(0 <= value < extent for value in values)
    assert in_bounds(k.at(k.param(1, extent), place)) == inside


def test_an_axis_of_a_symbolic_number_stays_inside_an_array_of_that_number() -> None:
    rows = index.variable("rows", 1, 8)
    i = range_node(rows, 0)
    assert in_bounds(k.at(k.param(1, rows), i)) and in_bounds(k.at(k.param(1, 8), i))
    assert not in_bounds(k.at(k.param(1, rows), index.add(i, 1)))
    assert not in_bounds(k.at(k.param(1, index.sub(rows, 1)), i))


def test_rows_of_a_symbolic_number_stay_inside_a_flat_array_of_them() -> None:
    rows = index.variable("rows", 1, 8)
    i, j = range_node(rows, 0), range_node(16, 1)
    place = index.add(index.mul(i, 16), j)
    assert in_bounds(k.at(k.param(1, index.mul(rows, 16)), place))
    assert not in_bounds(k.at(k.param(1, index.mul(rows, 16)), index.add(place, 1)))
    assert not in_bounds(k.at(k.param(1, index.mul(rows, 16)), index.sub(place, 1)))


def told(place: index.Dim) -> set[int]:
    """The ids of the axes that a place of an output tells."""
    out = k.out(k.param(0, 1000), const(0.0, dtypes.float32), place)
    return {axis.arg.id for axis in distinct_axes(out)}


def test_an_index_tells_axes_whose_steps_are_as_long_as_all_inside_them() -> None:
    n = index.variable("n", 1, 9)
    i, b, h, d = (range_node(size, place) for place, size in enumerate((n, 3, 5, 4)))
    add, mul = index.add, index.mul
    assert told(i) == {0} and told(7) == set()
    assert told(add(mul(h, 4), d)) == told(index.sub(20, add(mul(h, 4), d))) == {2, 3}
    assert told(add(mul(h, 3), d)) == told(add(i, b)) == told(index.mod(h, 3)) == set()
    # A symbolic number of steps is as long as an axis of that number, and no other one.
    assert told(add(mul(b, n), i)) == told(add(mul(i, 3), b)) == {0, 1}
    assert told(add(mul(add(mul(b, n), i), 4), d)) == {0, 1, 3}
    assert told(add(mul(b, n), h)) == set()


def test_axes_are_of_the_output_or_reduced_or_scanned() -> None:
    names = {kind: [[axis.arg.id for axis in getattr(facts_of(kernel), kind)] for kernel in (
        k.softmax(3, 4), k.matmul(2, 3, 4), k.cumsum(3, 4), k.scatter_add(3, 4, 5),
    )] for kind in ("data", "reduced", "scanned")}  # fmt: skip
    assert names["data"] == [[0, 1], [0, 1], [0, 1], [0, 1]]
    assert names["reduced"] == [[2, 3], [2], [], []]
    assert names["scanned"] == [[], [], [1], []]


def test_writes_that_may_meet_keep_their_order() -> None:
    i, j = range_node(6, 0), range_node(4, 1)
    n = index.variable("n", 1, 9)
    x = k.at(k.param(2, 6, 4), i, j)
    looked = cast(k.at(k.param(3, 6, dtype=dtypes.int64), i), dtypes.index)
    rows = range_node(n, 5)
    alone, meeting = (
        [k.out(k.param(0, 6, 4), x, i, j)],
        [k.out(k.param(0, 4, 6), x, j, i)],
        [k.out(k.param(0, n, 4), k.at(k.param(2, n, 4), rows, j), rows, j)],
    ), (
        [k.out(k.param(0, 6), x, i)],  # all of a row in one place
        [k.out(k.param(0, 6, 4), x, looked, j)],
        [k.out(k.param(0, 6, 4), x, i, j), k.out(k.param(0, 6, 4), x, i, j)],
    )
    assert not any(facts_of(k.kernel(*outs)).ordered for outs in alone)
    assert all(facts_of(k.kernel(*outs)).ordered == set(outs) for outs in meeting)


def test_places_that_are_computed_with_are_exposed() -> None:
    i, j = range_node(6, 0), range_node(4, 1)
    shifted = k.at(k.param(1, 9), index.add(i, 2))
    counted = alu(Ops.ADD, shifted, cast(cast(j, dtypes.int64), k.F32))
    masked = alu(Ops.WHERE, index.less(i, 3), shifted, shifted)
    for value, exposed in ((shifted, set()), (counted, {j}), (masked, {i})):
        kernel = k.kernel(k.out(k.param(0, 6, 4), value, i, j))
        assert facts_of(kernel).exposed == exposed


@pytest.mark.parametrize("kernel", (*AFFINE, k.gather(3, 4, 5)), ids=range(len(AFFINE) + 1))
def test_two_axes_are_one_where_every_access_sees_them_so(kernel: Node) -> None:
    """By the elements: those of an outer and an inner axis follow each other without a gap."""
    facts = facts_of(kernel)
    for outer, inner in product(facts.data, facts.data):
        if outer is inner:
            continue
        size = iterations((inner,))
        seen = all(
            access.stride(inner) not in (0, None)
            and access.stride(outer) == size * (access.stride(inner) or 0)
            for access in facts.accesses if not access.axes.isdisjoint((outer, inner))
        )
        alike = all((outer in each.own) == (inner in each.own) for each in facts.reductions)
        assert collapsible(facts, outer, inner) == (seen and alike)


def test_a_group_of_axes_is_one_where_strides_follow() -> None:
    i, j, l = (range_node(size, place) for place, size in enumerate((2, 3, 4)))
    offset = offset_of(k.at(k.param(1, 2, 3, 4), i, j, l))
    assert as_one(offset.strides, (l, j, i))
    assert as_one(offset.strides, (l, j))
    assert not as_one(offset.strides, (l, i))
    assert not as_one(offset.strides, (j, l))


def test_costs_are_counted_by_hand() -> None:
    product_of = cost_of(k.matmul(3, 4, 5))
    assert (product_of.flops, product_of.bytes_read, product_of.bytes_written) == (
        2 * 3 * 4 * 5, 4 * (3 * 5 + 5 * 4), 4 * 3 * 4,
    )
    # Each window's elements once: an array counts for what it has.
    image = cost_of(k.conv(1, 2, 3, 5, 5, 3))
    assert image.bytes_read == 4 * (2 * 5 * 5 + 3 * 2 * 3 * 3)
    n = index.variable("n", 1, 9)
    symbolic = cost_of(k.elementwise(n, 4))
    for extent in (1, 5, 9):
        written = evaluate(launch_expr(symbolic.bytes_written), {"n": extent})
        assert written == 16 * extent
    weights = [op_flops(alu(op, const(2.0, k.F32), *[const(3.0, k.F32)] * two))
               for op, two in ((Ops.ADD, 1), (Ops.DIV, 1), (Ops.EXP, 0))]
    assert weights == sorted(weights) and len(set(weights)) == 3
    assert op_flops(index.as_node(index.add(range_node(4, 0), 1))) == 0


def test_expressions_depend_on_axes_together() -> None:
    i, j, a, b = (range_node(size, place) for place, size in enumerate((3, 4, 3, 4)))
    x = k.param(1, 3, 4)
    row = k.reduce(Ops.ADD, k.at(x, i, b), b)
    column = k.reduce(Ops.ADD, k.at(x, a, j), a)
    kernel = k.kernel(k.out(k.param(0, 3, 4), alu(Ops.MUL, row, column), i, j))
    assert axes_together(facts_of(kernel)) == {
        frozenset((i, b)), frozenset((a, j)), frozenset((i, j)),
    }


def test_reads_come_with_the_guards_around_them() -> None:
    i = range_node(6, 0)
    plain, covered = k.at(k.param(1, 6), i), k.at(k.param(2, 4), i)
    guard = k.guard(index.less(i, 4), covered)
    found = reads_in(toposort(alu(Ops.ADD, plain, guard)))
    assert [(access.array.arg.slot, access.guard, access.guarded) for access in found] == [
        (1, None, False), (2, guard, True),
    ]
    assert all(access.copyable for access in found)
    # One that leaves its array without a guard is never copied.
    (outside,) = reads_in([k.at(k.param(2, 4), i)])
    assert not outside.copyable
    assert moves_of(guard, covered) == [{i: 1}, {i: 1}]

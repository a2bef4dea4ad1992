"""Boxes of maps: each has the elements of its copy, and zeros where its conditions say so."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, make_node, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.gpu.boxes import BoxCopy, box_of
from tests.kernel import kernels as k

HALF = dtypes.float16
ARRAY = np.arange(1, (1 << 16) + 1)
# What an array says of each of its places.
NAMED = (2, -1, 3, 0, -(1 << 31))
OPS: dict[Any, Any] = {
    Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul, Ops.CMPLT: operator.lt,
    Ops.FLOORDIV: operator.floordiv, Ops.MOD: operator.mod, Ops.AND: operator.and_,
    Ops.MAX: max, Ops.MIN: min,
}  # fmt: skip


def axes(*sizes: int) -> list[Node]:
    return [range_node(size, number, f"x{number}") for number, size in enumerate(sizes)]


def read(place: index.Dim, *conditions: Node, dtype: DType = HALF) -> Node:
    value = make_node(Ops.LOAD, dtype, (k.param(1, ARRAY.size, dtype=dtype), index.as_node(place)))
    return make_node(Ops.GUARD, dtype, (index.both(*conditions), value)) if conditions else value


def at(node: Node, point: Mapping[Node, int]) -> Any:
    """The value of a position or condition at a point."""
    if node.op is Ops.RANGE:
        return point[node]
    if node.op is Ops.CONST:
        return node.arg
    if node.op is Ops.LOAD:
        return NAMED[point[node.src[1]]]
    if node.op is Ops.CAST:
        return at(node.src[0], point)
    return OPS[node.op](*[at(child, point) for child in node.src])


def element(value: Node, point: Mapping[Node, int]) -> int:
    if value.op is Ops.GUARD:
        return element(value.src[1], point) if at(value.src[0], point) else 0
    return int(ARRAY[at(value.src[1], point)])


def elements_of(found: BoxCopy, point: Mapping[Node, int]) -> list[int]:
    """What an engine brings of a box, in order: of a place past an edge, zero."""
    corner = [at(each, point) for each in found.corner]
    box = found.box
    done = []
    for place in product(*[range(size) for size in box.box[::-1]]):
        where = [a + b for a, b in zip(corner, place[::-1], strict=True)]
        inside = all(0 <= w < size for w, size in zip(where, box.shape, strict=True))
        offset = sum(w * stride for w, stride in zip(where, box.strides, strict=True))
        done.append(int(ARRAY[offset]) if inside else 0)
    return done


def check(value: Node, own: list[Node], others: list[Node]) -> BoxCopy:
    """A copy over all of `own`, innermost first, is its box for all points of the others."""
    found = box_of(value, own)
    assert found is not None
    apart = own[found.covered :]
    for here in product(*[range(int(axis.src[0].arg)) for axis in apart]):
        fixed = {axis: const(n, dtypes.index) for axis, n in zip(apart, here, strict=True)}
        one = substitute(value, fixed)
        box = box_of(one, own[: found.covered])
        assert box is not None and box.box.strides[0] == 1
        for there in product(*[range(int(axis.src[0].arg)) for axis in others]):
            point = dict(zip(others, there, strict=True))
            sizes = [range(int(axis.src[0].arg)) for axis in own[: found.covered]]
            wanted = [
                element(one, {**point, **dict(zip(own, places[::-1], strict=False))})
                for places in product(*sizes[::-1])
            ]
            assert elements_of(box, point) == wanted
    return found


def test_rows_of_steps() -> None:
    """72 rows of 136 steps, three times over: past the edges of each there are zeros."""
    s, m, i, x, w, y = axes(3, 2, 32, 3, 4, 16)
    row = index.add(index.mul(m, 32), i)
    step = index.total([index.mul(x, 64), index.mul(w, 16), y])
    place = index.total([index.mul(s, 40 * 136), index.mul(row, 136), step])
    value = read(place, index.less(row, 40), index.less(step, 136))
    found = check(value, [y, w, i], [s, m, x])
    assert found.box.shape == (136, 40, 3) and found.box.box == (64, 32, 1) and found.covered == 3


@pytest.mark.parametrize(("columns", "covered"), [(128, 5), (96, 4)])
def test_panels_of_columns_that_lie_across(columns: int, covered: int) -> None:
    """Whole panels are a dimension; where an edge parts one, each is a box of its own."""
    x, w, y, p, v, n = axes(2, 2, 8, 2, 8, 8)
    step = index.total([index.mul(x, 16), index.mul(w, 8), y])
    column = index.total([index.mul(p, 64), index.mul(v, 8), n])
    conditions = [index.less(column, columns)] if columns % 128 else []
    value = read(index.add(index.mul(step, columns), column), *conditions)
    assert check(value, [n, v, y, w, p], [x]).covered == covered


def test_columns_that_take_turns() -> None:
    """Neighbours lie eight apart: a dimension for each digit, the edge is that of the largest."""
    b, u, i, v, x = axes(3, 4, 8, 2, 64)
    column = index.total([index.mul(b, 64), index.mul(u, 16), index.mul(i, 2), v])
    value = read(index.add(index.mul(column, 64), x), index.less(column, 144))
    found = check(value, [x, i, v, u], [b])
    assert found.box.box == (64, 8, 2, 4) and found.box.shape[3] == 9
    # Where the edge parts such columns, each run of them is a box.
    value = read(index.add(index.mul(column, 64), x), index.less(column, 136))
    assert check(value, [x, i, v, u], [b]).box.box == (64, 8)


def test_views_begin_elsewhere() -> None:
    m, i, x = axes(2, 8, 64)
    row = index.add(index.mul(m, 8), i)
    place = index.total([3 * 80 + 16, index.mul(row, 80), x])
    found = check(read(place, index.less(row, 12)), [x, i], [m])
    assert found.box.shape == (80, 15)


def test_views_begin_inside_a_group_that_a_condition_counts() -> None:
    """Seven instructions' steps, of two panels that begin two steps into an array."""
    x, w, y, n = axes(2, 4, 16, 64)
    step = index.total([2, index.mul(x, 64), index.mul(w, 16), y])
    place = index.add(index.mul(step, 64), n)
    whole = index.less(index.add(index.mul(x, 4), w), 7)
    assert check(read(place, whole), [n, y, w], [x]).box.shape == (64, 2 + 7 * 16)


def test_dimensions_are_left_for_what_lies_inside_rows_and_between_them() -> None:
    """Columns of three kinds, of two batches: with one of each a map would have six dimensions."""
    s, t, b, x, u, i, v, y = axes(2, 2, 2, 2, 2, 8, 2, 64)
    group = index.add(index.mul(b, 2), u)
    row = index.total([index.mul(t, 48), index.mul(group, 16), index.mul(i, 2), v])
    step = index.add(index.mul(x, 64), y)
    place = index.total([index.mul(row, 144), index.mul(s, 72), step])
    value = read(place, index.less(step, 72), index.less(group, 3))
    assert check(value, [y, i, v, u], [s, t, b, x]).covered == 3


def test_parts_of_sums_lie_apart_in_batches_that_lie_further_apart() -> None:
    """Parts of 40 steps in batches of 128, which are no whole number of parts."""
    s, t, x, y, n = axes(2, 3, 3, 16, 64)
    step = index.add(index.mul(x, 16), y)
    place = index.total([index.mul(s, 128), index.mul(t, 40), step])
    value = read(index.add(index.mul(place, 64), n), index.less(step, 40))
    assert check(value, [n, y], [s, t, x]).box.strides == (1, 64, 40 * 64, 128 * 64)


def test_whole_panels_of_several_runs() -> None:
    """Rows of 192, of which each panel is of one: those of a block are boxes of their own."""
    b, p, i, x = axes(3, 2, 16, 64)
    panel = index.add(index.mul(b, 2), p)
    inside, image = index.mod(panel, 3), index.floordiv(panel, 3)
    place = index.total([index.mul(image, 192 * 20), index.mul(inside, 64), index.mul(i, 192), x])
    found = check(read(place), [x, i, p], [b])
    assert found.covered == 2 and found.box.box == (64, 16)


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("edge", [False, True])
def test_another_array_says_which_matrix(edge: bool, most: int | None) -> None:
    """Of three matrices of 24 rows; where there is none of such a number all is zeros.

    Numbers that are none beyond the last matrix leave no condition that says how many there are.
    """
    t, m, i, x = axes(5, 2, 16, 64)
    names = k.param(2, 5, dtype=dtypes.int32)
    which = index.as_node(make_node(Ops.CAST, dtypes.index, (make_node(
        Ops.LOAD, dtypes.int32, (names, t)),)))
    conditions = [index.less(which, 3)] if most is None else []
    which = which if most is None else index.as_node(index.minimum(which, most))
    row = index.add(index.mul(m, 16), i)
    rows = 24 if edge else 32
    place = index.total([index.mul(which, rows * 64), index.mul(row, 64), x])
    conditions.append(index.at_least(which, 0))
    if edge:
        conditions.append(index.less(row, rows))
    found = check(read(place, *conditions), [x, i], [t, m])
    assert found.box.shape == ((64, 24, 3) if edge else (64, 96))


def refused() -> dict[str, tuple[Node, list[Node]]]:
    m, i, x = axes(2, 8, 64)
    row = index.add(index.mul(m, 8), i)
    place = index.add(index.mul(row, 72), x)
    s = range_node(3, 9, "s")
    array = k.param(1, 1 << 32, dtype=HALF)
    batch = index.as_node(index.add(index.mul(s, (1 << 30) + 16), place))
    far = make_node(Ops.LOAD, HALF, (array, batch))
    return {
        "rows of no whole words": (read(index.add(index.mul(row, 68), x)), [x, i]),
        "a view inside a word": (read(index.add(place, 4)), [x, i]),
        "steps that lie apart": (read(index.add(index.mul(row, 144), index.mul(x, 2))), [x, i]),
        "rows that are too short": (read(place), [i, x]),
        "rows backwards": (read(index.add(index.sub(1152, index.mul(row, 72)), x)), [x, i]),
        "no rows": (read(index.add(index.mul(m, 72), x)), [x, i]),
        "a condition on two sides": (read(place, index.less(index.add(row, x), 70)), [x, i]),
        "truths": (read(place, dtype=dtypes.bool), [x, i]),
        "wide numbers": (read(place, dtype=dtypes.float64), [x, i]),
        "batches beyond a coordinate": (far, [x, i]),
        "what is computed": (make_node(Ops.NEG, HALF, (read(place),)), [x, i]),
    }


@pytest.mark.parametrize("what", sorted(refused()))
def test_what_is_no_box(what: str) -> None:
    assert box_of(*refused()[what]) is None

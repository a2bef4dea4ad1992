"""Which axes only repeat elements: never said of one that does not, by enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.graph.repeats import axis_before_reshape, is_repeated, neighbours, sides_of
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from tests.schedule.graphs import A, iota, param, random_inputs, sink, value

ROW = param(0, 5)
ONCE = ROW.reshape(1, 5, 1).expand(3, 5, 2)
BOTH = param(1, 3, 5, 2)
VALUES = {
    "argument": BOTH,
    "repeated": ONCE,
    "constant": value(2.0).to((3, 5, 2)),
    "turned": ONCE.permute(1, 2, 0),
    "backwards": ONCE.flip(1),
    "arithmetic": (ONCE * 2.0 + ONCE).exp(),
    "both": ONCE + BOTH,
    "counted": iota(3).reshape(3, 1).expand(3, 4),
    "reshaped": ONCE.reshape(3, 5, 2, 1),
    "merged": ONCE.permute(1, 0, 2).reshape(5, 6),
    "windows": ROW.reshape(1, 5).expand(4, 5).window(1, 3),
    "zeros around": ROW.reshape(1, 5).expand(4, 5).pad((1, 1), (0, 0)),
    "chosen": (ONCE < 1.0).where(ONCE, 0.0),
    "one element": param(2, 1, 4),
}
# What the walk sees of those that are repeated; it may miss some, such as merged axes.
SEEN = {
    "repeated": {0, 2}, "constant": {0, 1, 2}, "turned": {1, 2}, "backwards": {0, 2},
    "arithmetic": {0, 2}, "counted": {1}, "reshaped": {0, 2, 3}, "windows": {0},
    "chosen": {0, 2}, "one element": {0},
}


def repeats(values: np.ndarray) -> set[int]:
    """The axes along which an array is one slice, over and over."""
    return {
        axis
        for axis in range(values.ndim)
        if (values == np.take(values, [0], axis)).all()
    }


@pytest.mark.parametrize("name", VALUES)
def test_repeated_axes_are_found_and_no_others(name: str) -> None:
    made: A = VALUES[name]
    found = {axis for axis in range(len(made.shape)) if is_repeated(made.node, axis)}
    (values,) = evaluate_all([made.node], random_inputs(sink(made)))
    assert found <= repeats(values)
    assert found == SEEN.get(name, set())


@pytest.mark.parametrize(
    ("old", "new", "axes"),
    [
        ((3, 4, 5), (3, 20), {0: 0}),
        ((3, 4, 5), (12, 5), {1: 2}),
        ((6, 5), (2, 3, 5), {2: 1}),
        ((6, 5), (5, 6), {}),
        ((index.variable("n", 1, 9), 4), (index.variable("n", 1, 9), 2, 2), {0: 0}),
    ],
)
def test_axes_that_a_reshape_leaves_alone(
    old: tuple[object, ...], new: tuple[object, ...], axes: dict[int, int]
) -> None:
    found = {axis: axis_before_reshape(old, new, axis) for axis in range(len(new))}
    assert {axis: before for axis, before in found.items() if before is not None} == axes


def test_the_walk_has_an_end() -> None:
    """Of a long chain nothing is claimed, and the walk does not take long."""
    made = ONCE
    for _ in range(40):
        made = made + 1.0
    assert not is_repeated(made.node, 0)


def test_sides_of_a_product_are_counted_by_what_its_factors_repeat() -> None:
    x, w = param(0, 2, 3, 4, 5), param(1, 2, 7, 5)
    left = x.reshape(2, 3, 4, 1, 5).expand(2, 3, 4, 7, 5)
    right = w.reshape(2, 1, 1, 7, 5).expand(2, 3, 4, 7, 5)
    assert sides_of((left * right).node, (4,)) == (12, 7, 2)
    # Along what both repeat, results are the same; along the rest each has factors of its own.
    assert sides_of((left * left).node, (4,)) == (7, 1, 24)
    # Of a symbolic number the bound counts.
    some = variable("some", 1, 3)
    left, right = param(0, 2, some, 1, 5).expand(2, some, 7, 5), param(1, 2, 1, 7, 5)
    assert sides_of((left * right.expand(2, some, 7, 5)).node, (3,)) == (3, 7, 2)


PACKED = param(3, 2, 6, 48)
HEADS = PACKED.shrink((0, 2), (0, 6), (16, 40)).reshape(2, 6, 3, 8)
SIDE_BY_SIDE = {
    "argument": (PACKED, (1, 1, 48)),
    "heads": (HEADS.permute(0, 2, 1, 3), (1, 1, 1, 8)),
    "repeated heads": (HEADS.reshape(2, 6, 3, 1, 8).expand(2, 6, 3, 5, 8), (1, 1, 1, 1, 8)),
    "merged": (param(4, 2, 3, 6, 8).permute(0, 2, 1, 3).reshape(2, 6, 24), (1, 1, 8)),
    "from the fifth": (PACKED.shrink((0, 2), (0, 6), (4, 48)), (1, 1, 4)),
    "backwards": (PACKED.flip(2), (1, 1, 1)),
    "zeros around rows": (PACKED.pad((0, 0), (1, 2), (0, 0)), (1, 1, 48)),
    "zeros ahead": (PACKED.pad((0, 0), (0, 0), (8, 0)), (1, 1, 1)),
    "windows of rows": (PACKED.window(1, 3), (1, 1, 48, 1)),
    "windows along a row": (PACKED.window(2, 3), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_neighbours_are_neighbours_in_memory(name: str) -> None:
    shown, known = SIDE_BY_SIDE[name]
    node = shown.node
    assert tuple(neighbours(node, axis, True) for axis in range(len(node.shape))) == known
    if "zeros" in name:
        assert {neighbours(node, axis) for axis in range(len(node.shape))} == {1}
    (base,) = [one for one in toposort(node) if one.op is Ops.PARAM]
    places = np.arange(int(np.prod(base.shape))).reshape(base.shape).astype(np.float32)
    (found,) = evaluate_all([node], {base.arg.slot: places})
    for axis, count in enumerate(known):
        if count > 1:
            lines = np.moveaxis(found, axis, -1).reshape(-1, count)
            lines = lines[lines.any(axis=1)]  # zeros around are no places
            assert (np.diff(lines) == 1).all() and (lines[:, 0] % count == 0).all()

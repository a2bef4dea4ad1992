"""Copies of which one axis lies in two parts: what is at each place is what was."""

from __future__ import annotations

from itertools import product

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, range_node
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.applying.axis_parts import in_parts, places_in_parts, with_whole_parts

SIZES = {"m": 12, "k": 3}
AXES = tuple([range_node(size, place, name) for place, (name, size) in enumerate(SIZES.items())])
VALUE = index.as_node(index.add(index.mul(AXES[0], 100), AXES[1]))


def constant(node: Node) -> int:
    found: int = node.arg
    return found


def test_rows_of_an_axis_lie_around_another_one() -> None:
    parts = ["m/4", "k", "m%4"]
    value, axes = in_parts(parts, VALUE, list(SIZES), AXES)
    assert [axis.src[0].arg for axis in axes] == [3, 3, 4]
    assert len({axis.arg.id for axis in axes}) == 3
    for m, k in product(*map(range, SIZES.values())):
        here = {"m": const(m, AXES[0].dtype), "k": const(k, AXES[0].dtype)}
        places = places_in_parts(parts, list(SIZES), here)
        assert [constant(place) for place in places] == [m // 4, k, m % 4]
        assert constant(substitute(value, dict(zip(axes, places, strict=True)))) == 100 * m + k


def test_the_last_part_is_whole() -> None:
    """Three rows of five hold twelve, and three that come next."""
    parts = ["m/5", "k", "m%5"]
    ranges = with_whole_parts(parts, dict(zip(SIZES, AXES, strict=True)))
    assert [ranges[name].src[0].arg for name in SIZES] == [15, 3] and ranges["k"] is AXES[1]
    value = substitute(VALUE, {AXES[0]: ranges["m"]})
    value, axes = in_parts(parts, value, list(SIZES), tuple(ranges.values()))
    assert [axis.src[0].arg for axis in axes] == [3, 3, 5]
    found = set()
    for at in product(range(3), range(3), range(5)):
        here = {axis: const(p, axis.dtype) for axis, p in zip(axes, at, strict=True)}
        found.add(constant(substitute(value, here)))
    assert found == {100 * m + k for m in range(15) for k in range(3)}


def test_axes_that_a_copy_lacks_have_no_parts() -> None:
    value, axes = in_parts(["n", "m/4", "m%4"], VALUE, ["m"], AXES[:1])
    assert len(axes) == 2 and AXES[0] not in value.ranges


def test_whole_axes_stay_as_they_are() -> None:
    assert in_parts(["m", "k"], VALUE, list(SIZES), AXES) == (VALUE, AXES)
    assert places_in_parts(["m", "k"], list(SIZES), dict(zip(SIZES, AXES, strict=True))) == ()

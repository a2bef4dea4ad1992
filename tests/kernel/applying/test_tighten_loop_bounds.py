"""Loops of sums without the steps at which a condition of theirs is false."""

from __future__ import annotations

import pytest

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, extent_of, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import parse_schedule
from tests.kernel import kernels as k
from tests.kernel.test_lowering import check


def residues(before: int, taps: int, stride: int) -> Node:
    """y[c, q, r]: the sum over o and m of z[o, q + m] * w[o, c, m*stride + r - before], 3 by 5."""
    groups = -(-(taps + before) // stride)
    c, q, r, o, m = (range_node(e, p) for p, e in enumerate((3, 5, stride, 4, groups)))
    z = k.at(k.param(1, 4, 5 + groups - 1), o, index.add(q, m))
    tap = index.add(index.add(index.mul(m, stride), r), -before)
    w = k.guard(index.inside(tap, taps), k.at(k.param(2, 4, 3, taps), o, c, tap))
    total = k.reduce(Ops.ADD, alu(Ops.MUL, z, w), o, m)
    return k.kernel(k.out(k.param(0, 3, 5, stride), total, c, q, r))


@pytest.mark.few(30)
@pytest.mark.parametrize("text", [
    "",
    "reorder('i2', 'i0', 'i1', 'r4', 'r3')",
    "bind('i0', 'vector'), reorder('i2', 'i1', 'r4', 'r3', 'i0'), stage_input(2, 'r4', 'r3', 'i0')",
    "reorder('i2', 'i0', 'i1'), bind('i2', 'unroll')",
    "bind('i2', 'pool'), reorder('i2', 'i1')",
    # A chunk begins anywhere: a step of the loop inside it is not the place.
    "bind('i2', 'pool', grain=2), reorder('i2', 'i1')",
    "split('i2', outer='a', b=2, tail='t')",
    "split('r4', outer='a', b=1)",
    "bind('r4', 'unroll')",
    "reorder('i2', 'i0', 'i1', 'r4', 'r3'), stage_reduce('r4', 'i1')",
])
@pytest.mark.parametrize(("before", "taps", "stride"), [
    (0, 3, 2), (1, 3, 2), (0, 5, 3), (2, 5, 3), (1, 4, 4), (0, 4, 2),
])
def test_sums_over_the_taps_of_residues(before: int, taps: int, stride: int, text: str) -> None:
    check(residues(before, taps, stride), parse_schedule(f"Schedule({text})"))


@pytest.mark.parametrize(("before", "taps", "stride", "least", "most"), [
    (0, 3, 2, 1, 2), (1, 3, 2, 1, 2),
])
def test_the_loop_over_taps_has_as_many_steps_as_a_residue_has_taps(
    before: int, taps: int, stride: int, least: int, most: int
) -> None:
    order = parse_schedule("Schedule(reorder('i2', 'i0', 'i1', 'r4', 'r3'))")
    loop = check(residues(before, taps, stride), order)
    found = [n for n in toposort(loop) if n.op is Ops.RANGE and n.arg.id == 3 and n.src]
    extents = {extent_of(axis) for axis in found}
    (extent,) = [extent for extent in extents if extent != 3]
    assert (index.lower(extent), index.upper(extent)) == (least, most)

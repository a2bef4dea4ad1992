"""Original axes in terms of the final ones: the same elements, whatever they were made into."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.substitution import substitute
from baregrad.kernel import parse_schedule
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.applying.final_axes import FinalAxes
from baregrad.kernel.applying.scope import Scope
from baregrad.kernel.facts.analysis import facts_of
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX


def final_axes(kernel: Node, text: str, chunked: bool = False) -> FinalAxes:
    table = table_after(facts_of(kernel), parse_schedule(f"Schedule({text})"), AVX)
    return FinalAxes(table, chunked)


def points(axes: FinalAxes, nodes: tuple[Node, ...]) -> Counter[tuple[int, ...]]:
    """What some original axes are at all points of the final ones, over every choice of pieces."""
    found: Counter[tuple[int, ...]] = Counter()
    for pieces in axes.combinations(nodes):
        scope = Scope(pieces, axes.ranges)
        values = [axes.value(node, scope) for node in nodes]
        finals = list(frozenset[Node]().union(*[value.ranges for value in values]))
        sizes = [index.upper(axis.src[0]) for axis in finals]
        for place in product(*map(range, sizes)):
            at = {a: const(p, dtypes.index) for a, p in zip(finals, place, strict=True)}
            known = [index.as_dim(substitute(value, at)) for value in values]
            assert all(isinstance(one, int) for one in known)
            found[tuple(known)] += 1  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("text", [
    "",
    "split('i0', outer='o', u=2, v=3), reorder('v', 'i1')",
    "split('i1', outer='o', u=4, tail='t'), bind('u', 'vector')",
    "split('i0', outer='a', b=5, tail='c'), split('i1', outer='d', e=4, tail='f')",
    "collapse('i0', 'i1', name='f'), split('f', outer='o', u=8, tail='t')",
    "split('i0', outer='a', b=12), split('a', outer='x', y=1)",
])
def test_every_element_is_reached_once(text: str) -> None:
    kernel = k.elementwise(12, 7)
    axes = final_axes(kernel, text)
    nodes = facts_of(kernel).data
    wanted = Counter(product(range(12), range(7)))
    assert points(axes, nodes) == wanted


def test_chunks_and_what_is_inside_one_are_two_loops() -> None:
    kernel = k.elementwise(12, 7)
    axes = final_axes(kernel, "reorder('i1', 'i0'), bind('i0', 'pool', grain=4)", chunked=True)
    assert axes.chunk is not None
    name, chunk = axes.chunk
    assert (name, index.as_dim(chunk.src[0]), chunk.arg.bind) == ("i0", 3, "pool")
    assert points(axes, facts_of(kernel).data) == Counter(product(range(12), range(7)))
    # Around all others it is one loop, of which four iterations are a chunk.
    axes = final_axes(kernel, "bind('i0', 'pool', grain=4)", chunked=True)
    assert (axes.chunk, axes.grain) == (None, 4)


def test_axes_of_one_element_are_dead_and_those_of_none_empty() -> None:
    axes = final_axes(k.elementwise(1, 8), "split('i1', outer='o', u=8)")
    assert axes.dead == {"i0", "o"}
    assert axes.empty == set()
    axes = final_axes(k.elementwise(5), "split('i0', outer='o', u=8, tail='t')")
    assert axes.empty == {"o"}
    # What is never run is no piece.
    (node,) = facts_of(k.elementwise(5)).data
    assert [piece.terms for piece in axes.pieces(node)] == [(("t", 1),)]
    axes = final_axes(k.elementwise(0), "")
    assert len(axes.pieces(facts_of(k.elementwise(0)).data[0])) == 1


def test_an_axis_outside_its_scope_is_a_bug() -> None:
    axes = final_axes(k.elementwise(4), "")
    with pytest.raises(CompilerBug, match="outside its scope"):
        axes.value(facts_of(k.elementwise(4)).data[0], Scope({}, axes.ranges))


def test_ids_of_copies_never_meet() -> None:
    axes = final_axes(k.matmul(4, 5, 6), "")
    own = {axis.arg.id for axis in axes.ranges.values()}
    firsts = [axes.first_id() for _ in range(3)]
    spans = [set(range(first, first + len(own))) for first in firsts]
    assert all(left.isdisjoint(right) for left, right in zip(spans, [own, *spans], strict=False))
    assert spans[0].isdisjoint(spans[2])

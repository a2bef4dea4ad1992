"""Views composed and cancelled, and arithmetic moved before repetition."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.graph.views import PURE_VIEWS, below_views
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import MOVEMENT, Ops
from tests.schedule.graphs import A, check, param, sink, value


def canonical(x: A) -> Node:
    return canonicalise(sink(x)).src[0]


def moves(node: Node) -> int:
    return sum(one.op in MOVEMENT for one in toposort(node))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.reshape(24).reshape(4, 6),
        lambda x: x.permute(1, 0).permute(1, 0),
        lambda x: x.flip(0).flip(0),
        lambda x: x.pad((1, 2), (0, 1)).shrink((1, 5), (0, 6)),
        lambda x: x.shrink((0, 4), (0, 6)),
        lambda x: x.pad((0, 0), (0, 0)),
        lambda x: x.reshape(4, 1, 6).reshape(4, 6),
        lambda x: x.flip(1).flip(0).flip(0, 1),
        lambda x: x.reshape(4, 6, 1).expand(4, 6, 3).shrink((0, 4), (0, 6), (1, 2)).reshape(4, 6),
    ],
)
def test_views_that_undo_each_other_vanish(make: object) -> None:
    x = param(0, 4, 6)
    assert canonical(make(x)) is x.node  # type: ignore[operator]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.reshape(24).reshape(2, 12),
        lambda x: x.pad((1, 0), (0, 2)).pad((0, 1), (1, 1)),
        lambda x: x.shrink((1, 4), (0, 6, 2)).shrink((0, 2), (1, 3)),
        lambda x: x.shrink((0, 4, 3), (1, 6, 2)).shrink((0, 2), (0, 3, 2)),
        lambda x: x.reshape(4, 1, 6).expand(4, 3, 6).expand(4, 3, 6),
        lambda x: x.pad((2, 2), (0, 0)).shrink((1, 7), (0, 6)),
    ],
)
def test_two_views_are_one(make: object) -> None:
    made = make(param(0, 4, 6))  # type: ignore[operator]
    assert moves(canonical(made)) <= 2
    check([made + 1.0])


def test_what_is_below_views_is_found() -> None:
    x = param(0, 4, 6)
    turned, padded = x.permute(1, 0).flip(0), x.permute(1, 0).pad((0, 0), (1, 1))
    assert below_views(x.node) is below_views(turned.reshape(24).node) is x.node
    assert below_views(padded.reshape(36).node) is x.node
    assert below_views(padded.reshape(36).node, PURE_VIEWS) is padded.node
    assert below_views(turned.node, (Ops.PERMUTE,)) is turned.node
    computed = (turned + 1.0).node
    assert below_views(computed) is computed


def test_interior_padding_is_kept_by_a_cut() -> None:
    x = param(0, 4)
    check([x.pad((1, 1, 2)).shrink((0, 9))])


def test_a_cut_inside_the_zeros_leaves_zeros() -> None:
    x = param(0, 4)
    check(
        [x.pad((5, 5)).shrink((0, 3)), x.pad((5, 5)).shrink((10, 14)), x.pad((5, 5)).shrink((3, 7))]
    )


def test_a_cut_inside_what_surrounds_an_array_chooses_nothing() -> None:
    inside = value(True, dtypes.bool).to((4, 6)).pad((2, 1), (0, 3))
    whole = inside.where(param(0, 7, 9), 5.0)
    cuts = ((2, 6), (0, 6)), ((0, 2), (0, 9)), ((1, 6), (0, 6))
    assert canonical(whole.shrink(*cuts[0])) is canonical(param(0, 7, 9).shrink(*cuts[0]))
    for cut in cuts[1:]:
        assert canonical(whole.shrink(*cut)).has(Ops.WHERE)
    check([whole.shrink(*cut) for cut in cuts])


@pytest.mark.parametrize("place", (0, 1, 2))
def test_nothing_of_a_cut_is_a_legal_cut(place: int) -> None:
    made = param(0, 4, 6).shrink((1, 4, 2), (0, 6)).shrink((place, place), (0, 6))
    assert canonical(made).shape == (0, 6)
    again = param(0, 4, 6).shrink((1, 4, 2), (1, 6, 4)).shrink((0, 2, 2), (place, place, 3))
    assert canonical(again).shape == (1, 0)


def test_padding_moves_below_views_of_other_axes() -> None:
    x = param(0, 3, 8, 8)
    made = x.pad((0, 0), (0, 0), (1, 1)).window(2, 3).flip(3).pad((0, 0), (2, 2), (0, 0), (0, 0))
    found = canonical(made)
    assert sum(one.op is Ops.PAD for one in toposort(found)) == 1
    check([made])


def test_cuts_move_below_views_of_other_axes() -> None:
    x = param(0, 3, 8, 8)
    made = x.window(2, 3).permute(1, 0, 3, 2).shrink((2, 6), (0, 3), (0, 3), (0, 6))
    check([made])


def test_arithmetic_on_repeated_elements_is_done_once() -> None:
    x = param(0, 5, 1)
    made = (x.expand(5, 100) * 2.0 + x.expand(5, 100)).exp()
    exp = next(one for one in toposort(canonical(made)) if one.op is Ops.EXP)
    assert exp.shape == (5, 1)
    check([made])


def test_arithmetic_on_windows_is_done_before_them() -> None:
    x = param(0, 50)
    made = x.window(0, 5).exp()
    exp = next(one for one in toposort(canonical(made)) if one.op is Ops.EXP)
    assert exp.shape == (50,)


def test_constants_have_no_views() -> None:
    made = value(2.0).to((3, 4)).permute(1, 0).reshape(2, 6).flip(0).shrink((0, 1), (0, 6))
    found = canonical(made)
    assert moves(found) <= 2
    check([made, value(0.0).to((3,)).pad((1, 1)), value(3.0).to((3,)).pad((1, 1))])

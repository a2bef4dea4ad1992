"""The state of the walk: requests that are one, views as index arithmetic, who depends on whom."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.schedule.drafts.draft import Request
from baregrad.schedule.fusing.fusion import Fusion
from tests.schedule.graphs import I64, A, iota, param, sink

X = param(0, 6, 4)


def places_of(view: A, source: A) -> np.ndarray:
    """For each element of a view the number of the element of its source, as requests have it."""
    fusion = Fusion(sink(view))
    draft = fusion.open_draft(view.shape)
    found = []
    for place in np.ndindex(*view.shape):
        idx = tuple([const(int(one), dtypes.index) for one in place])
        part = fusion.resolve(view.node, idx, draft, ())
        assert isinstance(part, Request)
        assert part.node is source.node
        found.append(int(index.as_dim(index.flatten(part.idx, source.shape))))
    return np.array(found).reshape(view.shape)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda x: x.permute(1, 0), lambda a: a.T),
        (lambda x: x.reshape(2, 12).flip(1), lambda a: a.reshape(2, 12)[:, ::-1]),
        (lambda x: x.shrink((1, 5, 2), (0, 3)), lambda a: a[1:5:2, :3]),
        (lambda x: x.reshape(6, 1, 4).expand(6, 3, 4), lambda a: np.repeat(a[:, None], 3, 1)),
        (
            lambda x: x.window(0, 3, 2),
            lambda a: np.lib.stride_tricks.sliding_window_view(a, 3, 0)[::2],
        ),
    ],
)  # fmt: skip
def test_views_are_index_arithmetic(make: object, wanted: object) -> None:
    numbers = np.arange(24).reshape(6, 4)
    found = places_of(make(X), X)  # type: ignore[operator]
    np.testing.assert_array_equal(found, wanted(numbers))  # type: ignore[operator]


def test_constants_and_counters_need_no_request() -> None:
    fusion = Fusion(sink(X))
    draft = fusion.open_draft((6,))
    assert fusion.resolve(const(2.0, dtypes.float32), (), draft, ()) is const(2.0, dtypes.float32)
    counted = fusion.resolve(iota(6).node, draft.outer, draft, draft.loops)
    assert isinstance(counted, Node)
    assert (counted.op, counted.src[0]) == (Ops.CAST, draft.outer[0])
    assert not draft.requests


def test_one_element_is_one_request_however_often_it_is_wanted() -> None:
    made = X * 2.0
    fusion = Fusion(sink(made))
    draft = fusion.open_draft((6, 4))
    i, j = draft.loops
    first = fusion.request(made.node, (i, j), draft, (i, j), above=1)
    assert (first.evals, first.fresh, draft.pending) == (24.0, True, 1)
    # Inside one loop more, and needed by another reduction.
    inner = range_node(10, 7)
    again = fusion.request(made.node, (i, j), draft, (i, j, inner), above=2)
    assert again is first
    assert (first.fresh, first.above, draft.pending) == (False, 3, 1)
    other = fusion.request(made.node, (j, i), draft, (i, j))
    assert other is not first
    assert fusion.wanted[made.node] == [first, other]
    assert fusion.is_wanted(made.permute(1, 0).node, (j, i), draft)
    assert not fusion.is_wanted(made.node, (i, i), draft)


def test_arguments_are_read_and_never_waited_for() -> None:
    fusion = Fusion(sink(X * 2.0))
    draft = fusion.open_draft((6, 4))
    found = fusion.request(X.node, draft.outer, draft, draft.loops)
    assert (found.read, found.evals, draft.loads, draft.pending) == (True, 0.0, 1, 0)
    assert not fusion.wanted


def test_dependence_is_passed_on_to_all_that_is_upstream() -> None:
    fusion = Fusion(sink(X))
    a, b, c, d = (fusion.open_draft((6, 4)) for _ in range(4))
    for draft in (a, b, c, d):
        draft.count = 1
    # a is read by b, and b by c: c depends on both. d stands alone until c needs it.
    fusion.depend(b, 1 << c.number)
    fusion.depend(a, 1 << b.number | b.dependents)
    assert a.dependents == 1 << b.number | 1 << c.number
    fusion.run_before(c, d)
    assert d.after == [c]
    bit = 1 << d.number
    assert all(draft.dependents & bit for draft in (a, b, c))
    assert not d.dependents


def test_what_is_stored_is_read_by_the_others() -> None:
    made = X * 2.0
    fusion = Fusion(sink(made))
    home, reader = fusion.open_draft((6, 4)), fusion.open_draft((6,))
    request = fusion.request(made.node, (reader.loops[0], reader.loops[0]), reader, reader.loops)
    fusion.store(made.node, home, [request])
    assert fusion.homes[made.node] is home
    assert (request.read, reader.loads, reader.pending) == (True, 1, 0)
    assert home.dependents == 1 << reader.number
    fusion.aliases[made.node] = X.node
    assert fusion.memory_of(made.node) is X.node


def test_a_place_that_is_looked_up_has_a_placeholder() -> None:
    places = param(1, 5, dtype=I64)
    fusion = Fusion(sink(X))
    draft = fusion.open_draft((5,))
    found = fusion.place((places * A(const(2, I64)).to((5,))).node, draft.outer, draft, draft.loops)
    assert found.dtype is dtypes.index
    (placeholder,) = draft.placeholders
    assert placeholder.op is Ops.INDEX
    assert fusion.place(iota(5).node, draft.outer, draft, draft.loops) is draft.outer[0]
    assert len(draft.placeholders) == 1

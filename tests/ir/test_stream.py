"""The laws on monoids hold on running examples, infinities included."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.stream import are_float32_sums, is_stream, pair, stream, sums
from baregrad.ir.core.attrs import Param, Reduce
from baregrad.ir.core.monoid import Monoid, arg_extreme, primitive
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.monoids import combine, fold, identity, lift
from baregrad.ir.text.dump import dump
from baregrad.ir.text.parse import parse

F64 = dtypes.float64


def triples(count: int, seed: int) -> list[tuple[np.ndarray, ...]]:
    """Three states each of (r, t1, t2), with -inf and equal maxima among the r."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(3):
        top = generator.integers(-30, 30, count) / 4.0
        top[generator.random(count) < 0.2] = -np.inf
        empty = top == -np.inf
        sums = [np.where(empty, 0.0, generator.standard_normal(count)) for _ in range(2)]
        found.append((top, *sums))
    return found


@pytest.mark.parametrize("exponential", [Ops.EXP, Ops.EXP2], ids=str)
def test_streams_associate(exponential: Op) -> None:
    monoid = stream(F64, 2, exponential)
    a, b, c = triples(20_000, 1)
    left = combine(monoid, combine(monoid, a, b), c)
    right = combine(monoid, a, combine(monoid, b, c))
    other = combine(monoid, combine(monoid, b, a), c)
    for one, two, three in zip(left, right, other, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(one, three, rtol=1e-12, atol=1e-12)


def test_the_identity_is_neutral() -> None:
    monoid = stream(F64, 2)
    a, _, _ = triples(1000, 2)
    for joined in (combine(monoid, identity(monoid, (1000,)), a),
                   combine(monoid, a, identity(monoid, (1000,)))):  # fmt: skip
        for one, two in zip(joined, a, strict=True):
            np.testing.assert_array_equal(one, two)


def test_sums_are_each_sum() -> None:
    values = np.random.default_rng(6).standard_normal((2, 40, 3))
    found = fold(sums(F64, 2), tuple(values), (0,))
    np.testing.assert_allclose(found, values.sum(1))
    assert sums(F64, 1) is primitive(Ops.ADD, F64)
    single = dtypes.float32
    x = Node(Ops.PARAM, single, (), Param(0, (4,)))
    made = Node(Ops.REDUCE, single, (x, x), Reduce(sums(single, 2), (0,)))
    assert are_float32_sums(made) and not is_stream(made)
    assert not are_float32_sums(Node(Ops.REDUCE, single, (x, x), Reduce(stream(single, 1), (0,))))


def test_a_stream_is_the_two_passes() -> None:
    generator = np.random.default_rng(3)
    a, v = generator.standard_normal((2, 500)) * 5
    a[:100] = -np.inf
    top, total, weighted = fold(stream(F64, 2), (a, np.ones(500), v), (0,))
    power = np.exp(a - a.max())
    np.testing.assert_allclose((top, total, weighted), (a.max(), power.sum(), (power * v).sum()))


def test_a_pair_is_both() -> None:
    monoid = pair(primitive(Ops.ADD, F64), arg_extreme(Ops.MAX, F64))
    x = np.random.default_rng(4).standard_normal(77)
    place = np.arange(77)
    total, top, where = fold(monoid, (x, x, place), (0,))
    np.testing.assert_allclose(total, x.sum())
    assert (top, where) == (x.max(), x.argmax())
    assert len(lift(monoid, (x, x, place))) == 3


def test_places_of_extremes_are_no_stream() -> None:
    """Of integers there is none to compare with: they have no infinity."""
    for dtype in (dtypes.uint8, dtypes.int64, dtypes.float32):
        array = Node(Ops.PARAM, dtype, (), Param(0, (8,)))
        places = Node(Ops.IOTA, dtypes.int64, (), 8)
        arg = Reduce(arg_extreme(Ops.MAX, dtype), (0,))
        assert not is_stream(Node(Ops.REDUCE, dtype, (array, places), arg))


def test_what_is_read_from_text_is_known_again() -> None:
    """Its monoid is equal to the one that is made here, and not the same."""
    single = dtypes.float32

    def text(monoid: Monoid) -> str:
        # No node of it is left, which the text would be read as.
        arrays = [Node(Ops.PARAM, single, (), Param(slot, (4,))) for slot in range(2)]
        return dump(Node(Ops.REDUCE, single, tuple(arrays), Reduce(monoid, (0,))))

    assert are_float32_sums(parse(text(sums(single, 2))))
    for exponential in (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2_NEAR):
        assert is_stream(parse(text(stream(single, 1, exponential))))

"""The laws of monoids on special values, and reductions against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from baregrad.dtypes import COMPUTED, DType, dtypes
from baregrad.ir.core.monoid import Monoid, arg_extreme, primitive, scaled_sum, slot
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import round_to, working_dtype
from baregrad.ir.evaluate.monoids import combine, finish, fold, identity, lift, scan, scatter

PRIMITIVES = (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR)


def legal(op, dtype: DType) -> bool:
    return dtype.kind in op.kinds


def samples(dtype: DType) -> np.ndarray:
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.kind == "float":
        values = [0.0, -0.0, 1.0, -2.5, 3.0, np.inf, -np.inf, np.nan]
        return round_to(np.array(values), dtype)
    low, high = int(dtype.min), int(dtype.max)
    return np.array([0, 1, 2, 5, low, high, high - 1], working_dtype(dtype))


def equal(a, b, zeros_alike: bool = True) -> bool:
    return all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(a, b, strict=True)
    )


def monoids() -> list[Monoid]:
    found = [primitive(op, d) for op in PRIMITIVES for d in COMPUTED if legal(op, d)]
    return found + [arg_extreme(op, d) for op in (Ops.MAX, Ops.MIN) for d in COMPUTED]


def states_of(monoid: Monoid, count: int):
    """`count` arrays of states that together go through every combination of samples."""
    parts = [samples(dtype) for dtype in monoid.states]
    if monoid.arity == 2:
        # An index identifies an element: equal indices carry equal values.
        values = parts[0]
        one = [(values, np.arange(len(values)))]
        rows = [np.stack([np.arange(len(values))])[0] for _ in range(count)]
        grids = [g.reshape(-1) for g in np.meshgrid(*rows, indexing="ij")]
        return [(one[0][0][grid], one[0][1][grid].astype(np.int64)) for grid in grids]
    grids = np.meshgrid(*[parts[0]] * count, indexing="ij")
    return [(grid.reshape(-1),) for grid in grids]


@pytest.mark.property
@pytest.mark.parametrize("monoid", monoids(), ids=repr)
def test_laws(monoid: Monoid) -> None:
    a, b, c = states_of(monoid, 3)
    with np.errstate(all="ignore"):
        unit = identity(monoid, a[0].shape)
        assert equal(combine(monoid, a, unit), a)
        assert equal(combine(monoid, unit, a), a)
        left = combine(monoid, combine(monoid, a, b), c)
        right = combine(monoid, a, combine(monoid, b, c))
        if monoid.states[0].kind == "float" and monoid.primitive in (Ops.ADD, Ops.MUL):
            # Associative up to rounding; exact on these small numbers but where a NaN arises.
            assert all(np.allclose(x, y, equal_nan=True) for x, y in zip(left, right, strict=True))
        else:
            assert equal(left, right)
        if monoid.commutative:
            assert equal(combine(monoid, a, b), combine(monoid, b, a))
        if monoid.idempotent:
            assert equal(combine(monoid, a, a), a)


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_laws_of_sums_of_powers(dtype: DType) -> None:
    """What is combined commutes to the bit; any tree of it is the sum, up to rounding."""
    monoid, rng = scaled_sum(dtype), np.random.default_rng(3)
    highs = np.array([-np.inf, np.inf, np.nan, 0, -3.5, 2, 90, -200], dtype.numpy)
    a, b = (
        (grid.reshape(-1), rng.standard_normal(grid.size).astype(dtype.numpy))
        for grid in np.meshgrid(highs, highs)
    )
    with np.errstate(all="ignore"):
        assert equal(combine(monoid, a, b), combine(monoid, b, a))
        one = (highs[highs == highs], np.ones_like(highs[highs == highs]))
        unit = identity(monoid, one[0].shape)
        assert equal(combine(monoid, one, unit), one) and equal(combine(monoid, unit, one), one)
    logs, signs = rng.uniform(-5, 5, 9), rng.standard_normal(9)
    (high,), (total,) = (
        part.reshape(1) for part in fold(monoid, [logs.astype(dtype.numpy),
                                                  signs.astype(dtype.numpy)], (0,))
    )
    assert high == logs.astype(dtype.numpy).max()
    np.testing.assert_allclose(
        total * np.exp(high), (np.exp(logs) * signs).sum(), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("place", [dtypes.int64, dtypes.int32])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.bool])
def test_arg_extremes_are_numpy_s(dtype: DType, place: DType) -> None:
    rng = np.random.default_rng(0)
    for trial in range(40):
        values = rng.integers(-2, 3, (5, 7)).astype(working_dtype(dtype))
        if dtype.kind == "float" and trial % 2:
            values[rng.random(values.shape) < 0.2] = np.nan
        places = np.broadcast_to(np.arange(7, dtype=place.numpy), (5, 7))
        for op, oracle in ((Ops.MAX, np.argmax), (Ops.MIN, np.argmin)):
            best, where = fold(arg_extreme(op, dtype, place), (values, places), (1,))
            # NumPy too takes the first of several, and a NaN before all numbers.
            assert (where == oracle(values, axis=1)).all()
            assert np.array_equal(
                best, values[np.arange(5), where], equal_nan=dtype.kind == "float"
            )


def reversed_argmax() -> Monoid:
    """A monoid that is no built-in and does not commute: the last value that is not zero."""
    a, b = slot(0, dtypes.int32), slot(1, dtypes.int32)
    zero = const(0, dtypes.int32)
    last = alu(Ops.WHERE, alu(Ops.CMPNE, b, zero), b, a)
    return Monoid("last", (dtypes.int32,), (zero,), (a,), (last,), commutative=False)


def test_a_monoid_that_does_not_commute_keeps_order() -> None:
    monoid = reversed_argmax()
    rng = np.random.default_rng(1)
    for count in (0, 1, 2, 3, 5, 8, 13):
        values = (rng.integers(0, 9, (4, count)) * (rng.random((4, count)) < 0.5)).astype(np.int32)
        (folded,) = fold(monoid, (values,), (1,))
        (running,) = scan(monoid, (values,), 1)
        for row in range(4):
            last = 0
            for column in range(count):
                last = values[row, column] or last
                assert running[row, column] == last
            assert folded[row] == last
        target = np.zeros(3, np.int32)
        places = rng.integers(0, 3, (4, count))
        scatter(monoid, target, (places,), values)
        wanted = [0, 0, 0]
        for place, value in zip(places.reshape(-1), values.reshape(-1), strict=True):
            wanted[place] = value or wanted[place]
        assert target.tolist() == wanted


def test_folding_several_axes_is_row_major() -> None:
    monoid = reversed_argmax()
    values = np.arange(1, 25, dtype=np.int32).reshape(2, 3, 4)
    assert fold(monoid, (values,), (0, 2))[0].tolist() == [16, 20, 24]
    assert fold(monoid, (values,), (1, 2))[0].tolist() == [12, 24]
    assert fold(monoid, (values,), ())[0].shape == (2, 3, 4)


@pytest.mark.parametrize("op", PRIMITIVES)
def test_primitive_reductions_are_numpy_s(op) -> None:
    oracles = {
        "ADD": np.add, "MUL": np.multiply, "MAX": np.maximum, "MIN": np.minimum,
        "AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor,
    }  # fmt: skip
    rng = np.random.default_rng(3)
    for dtype in (dtypes.int8, dtypes.uint64, dtypes.float32, dtypes.bool):
        if not legal(op, dtype):
            continue
        values = (rng.integers(0, 200, (3, 4, 5)) - 100).astype(working_dtype(dtype))
        for axes in ((0,), (2,), (0, 1), (0, 1, 2)):
            kind = values.dtype
            wanted = oracles[op.name].reduce(values, axis=axes, dtype=kind)
            (found,) = fold(primitive(op, dtype), (values,), axes)
            assert found.dtype == kind
            assert np.allclose(found, wanted) if dtype.kind == "float" else (found == wanted).all()
        (running,) = scan(primitive(op, dtype), (values,), 1)
        wanted = oracles[op.name].accumulate(values, axis=1, dtype=values.dtype)
        assert np.allclose(running, wanted)


def test_empty_reductions_give_the_identity() -> None:
    empty = np.zeros((3, 0), np.float32)
    assert fold(primitive(Ops.ADD, dtypes.float32), (empty,), (1,))[0].tolist() == [0, 0, 0]
    assert fold(primitive(Ops.MAX, dtypes.float32), (empty,), (1,))[0].tolist() == [-np.inf] * 3
    parts = fold(arg_extreme(Ops.MIN, dtypes.int32), (empty.astype(np.int32),) * 2, (1,))
    assert parts[0].tolist() == [2**31 - 1] * 3


def test_narrow_floats_accumulate_in_float32() -> None:
    # In bfloat16 a running sum of ones would stop at 256.
    ones = np.ones(1000, np.float32)
    assert fold(primitive(Ops.ADD, dtypes.bfloat16), (ones,), (0,))[0] == 1000
    assert (
        fold(primitive(Ops.ADD, dtypes.float16), (np.full(3, 40000.0, np.float32),), (0,))[0]
        == np.inf
    )
    states = lift(primitive(Ops.ADD, dtypes.bfloat16), (np.float32([1 / 3]),))
    assert finish(primitive(Ops.ADD, dtypes.bfloat16), states)[0] == np.float32(0.333984375)


def test_welford_s_variance_as_a_tuple_monoid() -> None:
    kind = dtypes.float64
    n, mean, square, m, other, more = (slot(i, kind) for i in range(6))
    total = alu(Ops.ADD, n, m)
    safe = alu(Ops.MAX, total, const(1.0, kind))
    shift = alu(Ops.SUB, other, mean)
    share = alu(Ops.DIV, m, safe)
    centre = alu(Ops.ADD, mean, alu(Ops.MUL, shift, share))
    extra = alu(Ops.MUL, alu(Ops.MUL, shift, shift), alu(Ops.MUL, n, share))
    zero, one = const(0.0, kind), const(1.0, kind)
    spread = alu(Ops.ADD, alu(Ops.ADD, square, more), extra)
    value: Node = slot(0, kind)
    welford = Monoid(
        "welford", (kind,) * 3, (zero,) * 3, (one, value, zero), (total, centre, spread)
    )
    values = np.random.default_rng(0).standard_normal((6, 50)) + 1e6
    count, found, squares = fold(welford, (values,) * 3, (1,))
    assert (count == 50).all()
    assert np.allclose(found, values.mean(1)) and np.allclose(squares / 50, values.var(1))


def test_every_pair_of_builtin_monoids_differs() -> None:
    for a, b in itertools.combinations(monoids(), 2):
        assert a != b

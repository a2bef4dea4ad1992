"""Guards, factors and steps of accumulators."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.stream import stream
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.monoid import arg_extreme, filled, primitive
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import (
    Schedule,
    lower,
)
from baregrad.kernel.language.schedule import vectorise
from baregrad.kernel.loops.loop_pieces import (
    combined,
    factor_where,
    guarded,
    is_plain,
    load,
    looped,
    moves_reductions,
    narrowed,
    peeled_guards,
    peeled_masks,
    places_of_states,
    register_places,
    scoped_below,
    widened,
)
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX, check


def test_a_guarded_factor_stays_guarded_since_zero_times_infinity_is_no_zero() -> None:
    loop = check(k.conv(1, 1, 2, 4, 4, 3, 1, 1), Schedule())
    assert loop.has(Ops.GUARD)
    assert not loop.has(Ops.IF)


@pytest.mark.parametrize("lanes", ["", "i0", "r1"])
def test_a_product_of_two_constants_stays_guarded(lanes: str) -> None:
    i, j = range_node(6, 0), range_node(4, 1)
    two, eighth = const(2.0, dtypes.float32), const(0.125, dtypes.float32)
    product = Node(Ops.MUL, dtypes.float32, (two, eighth))
    total = k.reduce(Ops.ADD, k.guard(alu(Ops.CMPLT, j, i), product), j)
    kernel = k.kernel(k.out(k.param(0, 6), total, i))
    loop = check(kernel, Schedule((vectorise(lanes),) if lanes else ()))
    found = np.zeros(6, np.float32)
    evaluate_loop(loop, {0: found})
    np.testing.assert_array_equal(found, 0.25 * np.minimum(np.arange(6), 4))


def test_products_are_summed_with_one_rounding_where_the_target_can() -> None:
    kernel = k.matmul(4, 4, 4)
    assert lower(kernel, AVX, Schedule()).has(Ops.FMA)
    assert not lower(kernel, replace(AVX, fma=False), Schedule()).has(Ops.FMA)
    assert not lower(k.matmul(4, 4, 4, dtype=dtypes.int32), AVX, Schedule()).has(Ops.FMA)


def test_narrow_floats_are_summed_in_float32() -> None:
    loop = lower(k.row_reduce(3, 9, dtype=dtypes.float16), AVX, Schedule())
    allocs = {node.dtype for node in toposort(loop) if node.op is Ops.ALLOC}
    assert allocs == {dtypes.float32}


# --- by themselves --------------------------------------------------------------------------------

I, U, V = range_node(6, 0), range_node(3, 1, bind="unroll"), range_node(8, 2, bind="vector")
SUM, TOP = primitive(Ops.ADD, k.F32), primitive(Ops.MAX, k.F32)
X = load(k.param(1, 99), (index.as_node(index.total((index.mul(I, 9), U, V))),))


def test_conditions_of_loops_are_peeled_off_and_those_of_tiles_stay() -> None:
    loops, tile = index.less(I, 4), index.less(V, 5)
    conditions, (value,) = peeled_guards(SUM, (guarded(index.both(loops, tile), X),))
    assert conditions == [loops]
    assert value is guarded(tile, X)
    assert peeled_guards(SUM, (guarded(loops, X),)) == ([loops], (X,))
    # What is left out would count for a maximum: 0 is no identity of it.
    assert peeled_guards(TOP, (guarded(loops, X),)) == ([], (guarded(loops, X),))


def test_a_condition_that_reads_stays_inside_another() -> None:
    read = load(k.param(2, 6, dtype=dtypes.int64), (I,))
    inner = guarded(alu(Ops.CMPLT, read, const(3, dtypes.int64)), X)
    conditions, (value,) = peeled_guards(SUM, (guarded(index.less(I, 4), inner),))
    assert conditions == [index.less(I, 4)]
    assert value is inner


def test_lanes_of_a_fold_are_masked_where_nothing_has_to_be_made_up() -> None:
    lanes = frozenset((V,))
    here = index.less(index.add(index.mul(I, 8), V), 45)
    masks, (value,) = peeled_masks(SUM, (guarded(here, X),), lanes, {})
    assert value is X
    # The same lanes, and those alone on the left: they are never added up.
    (mask,) = masks
    for i, v in product(range(6), range(8)):
        at = {I: const(i, dtypes.index), V: const(v, dtypes.index)}
        assert substitute(mask, at).arg == (8 * i + v < 45)
    assert mask.src[0].ranges == lanes
    # Of a maximum, whose identity is chosen elsewhere.
    chosen = alu(Ops.WHERE, here, guarded(here, X), const(-math.inf, k.F32))
    masks, (value,) = peeled_masks(TOP, (chosen,), lanes, {})
    assert (len(masks), value) == (1, X)
    # Lanes of others are no lanes of this fold.
    assert peeled_masks(SUM, (guarded(here, X),), frozenset((U,)), {}) == ([], (guarded(here, X),))


def test_narrow_sums_are_wide_and_extremes_stay() -> None:
    half = dtypes.float16
    value = load(k.param(1, 9, dtype=half), (I,))
    wide, (raised,) = widened(primitive(Ops.ADD, half), (value,))
    assert (wide.states, raised.dtype) == ((k.F32,), k.F32)
    assert narrowed((raised,), primitive(Ops.ADD, half))[0].dtype is half
    assert widened(primitive(Ops.MAX, half), (value,)) == (primitive(Ops.MAX, half), (value,))
    whole = primitive(Ops.ADD, dtypes.int8)
    assert widened(whole, (value,))[0] is whole


def test_guards_of_constants_are_none() -> None:
    assert guarded(const(True, dtypes.bool), X) is X
    assert guarded(const(False, dtypes.bool), X) is const(0, k.F32)
    three, endless = const(3.0, k.F32), const(math.inf, k.F32)
    assert factor_where(index.less(I, 3), three) is three
    assert factor_where(index.less(I, 3), endless).op is Ops.GUARD


def test_what_is_reduced_below_is_found_sources_first() -> None:
    a, b = range_node(4, 5), range_node(4, 6)
    inner = k.reduce(Ops.MAX, k.at(k.param(1, 4), b), b)
    outer = k.reduce(Ops.ADD, alu(Ops.MUL, inner, k.at(k.param(2, 4), a)), a)
    value = alu(Ops.ADD, outer, alu(Ops.MUL, inner, inner))
    assert scoped_below((value,)) == (inner, outer)
    assert scoped_below((inner, value)) == (inner, outer)
    assert scoped_below((k.at(k.param(1, 4), a),)) == ()
    assert not moves_reductions((value,), (a,))


def test_a_vector_lies_in_adjacent_elements_of_a_register_array() -> None:
    assert register_places((V, U)) == (U, V)
    assert register_places((U, V)) == (U, V)
    assert looped((I, U, V)) == [I]


def test_formulas_are_filled_with_expressions() -> None:
    monoid = arg_extreme(Ops.MAX, k.F32)
    states = (const(2.0, k.F32), const(5, dtypes.int64))
    lifted = filled(monoid.lift, states)
    assert lifted == states
    made = combined(monoid, states, (const(3.0, k.F32), const(1, dtypes.int64)))
    assert not any(part.has(Ops.SLOT) for part in made)
    assert combined(SUM, (X,), (X,)) == (alu(Ops.ADD, X, X),)


def test_plain_kernels_are_noted() -> None:
    for kernel, plain in ((k.matmul(3, 4, 5), True), (k.arg_max(3, 4), False),
                          (k.elementwise(3, dtype=dtypes.bool), False)):
        assert is_plain(lower(kernel, AVX, Schedule())) == plain


def test_states_are_kept_where_they_differ() -> None:
    """A maximum and the sum of powers are one for all columns, where a block's threads fold."""
    part, column = range_node(4, 1, "p", "thread"), range_node(4, 2, "c", "vector")
    top, total, summed = (
        load(Node(Ops.PARAM, dtypes.float32, (), Param(slot, shape)), places)
        for slot, (shape, places) in enumerate([((4,), (part,))] * 2 + [((4, 4), (part, column))])
    )
    monoid, places = stream(dtypes.float32, 2), (part, column)
    values = top, total, summed
    assert places_of_states(monoid, values, places, (part,)) == [(part,), (part,), places]
    # What a sum is relative to differs along columns: so does it.
    assert places_of_states(monoid, (summed, total, top), places, (part,)) == [places] * 3
    # One thread has all.
    assert places_of_states(monoid, values, places, ()) == [places] * 3

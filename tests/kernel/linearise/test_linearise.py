"""Linearisation: what the instructions look like, and that they do what the loop level says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, Reduce
from baregrad.ir.core.monoid import arg_extreme
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.render import scratch_nbytes
from tests.kernel.linearise.programs import (
    ONE,
    ROUTES,
    data,
    instructions,
    matmul,
    zeros,
)
from tests.render.harness import (
    F32,
    I64,
    alloc,
    branch,
    check,
    compiled,
    fold,
    guard,
    host,
    kernel,
    load,
    loop,
    lower,
    param,
    seq,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential


# --- shape of the code --------------------------------------------------------------------------


def test_a_register_tile_is_right() -> None:
    node = matmul(12, 32, 9, rows=6, columns=2, lanes=8)
    a, b = data(12, 9), data(9, 32, seed=1)
    c, _, _ = check(node, [zeros(12, 32), a, b], routes=ROUTES)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_rendered_text_is_deterministic() -> None:
    for name in ("llvm", "c"):
        texts = {
            render.get(name).render(lower(matmul(12, 32, 9, 6, 2, 8)), host()) for _ in range(3)
        }
        assert len(texts) == 1


# --- addresses ----------------------------------------------------------------------------------


# --- masks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (F32, dtypes.int8, dtypes.uint16, I64, dtypes.bool), ids=str)
@pytest.mark.parametrize("count", (1, 7, 8, 13))
def test_masked_tails(dtype: Any, count: int) -> None:
    """A tail done under a mask reads and writes nothing outside its arrays."""
    blocks = -(-count // 8)
    i, v = range_node(blocks, 0), vector(8, 1)
    place = index.add(index.mul(i, 8), v)
    x, out = param(1, count, dtype=dtype), param(0, count, dtype=dtype)
    inside = index.less(place, count)
    value = alu(Ops.MAX, load(x, place), load(x, place))
    node = kernel(loop(i, branch(inside, store(out, value, place))))
    values = np.random.default_rng(5).integers(0, 2, count + 1).astype(dtype.numpy)[:count]
    found, _ = check(node, [np.zeros(count, dtype.numpy), values], routes=ROUTES)
    np.testing.assert_array_equal(found, values)


def test_masked_stores_leave_the_rest_alone() -> None:
    u, v = unroll(3, 0), vector(4, 1)
    out = param(0, 12)
    place = index.add(index.mul(u, 4), v)
    condition = alu(Ops.CMPEQ, index.as_node(index.mod(place, 3)), const(1, dtypes.index))
    node = kernel(branch(condition, store(out, ONE, place)))
    before = data(12)
    (found,) = check(node, [before], routes=ROUTES)
    np.testing.assert_array_equal(found, np.where(np.arange(12) % 3 == 1, 1, before))


@pytest.mark.parametrize("space", ("memory", "register"))
@pytest.mark.parametrize("guarded", (False, True))
def test_what_is_read_under_a_condition_on_points_is_read_at_each(
    space: str, guarded: bool
) -> None:
    """A value that is the same at all points is not so where only some of them may read it."""
    u, v = unroll(3, 0), vector(4, 1)
    x, out, a = param(1, 4), param(0, 3, 4), alloc(0, 4)
    source, before = (x, ()) if space == "memory" else (a, (store(a, load(x, v), v),))
    value = load(source, v)
    if guarded:
        value = guard(index.less(v, 3), value)
    # True of the last two points; no constant for them before the last passes.
    wanted = index.less(index.floordiv(index.mul(u, -1), 2), 0)
    node = kernel(*before, branch(wanted, store(out, value, u, v)))
    values = data(4)
    found, _ = check(node, [zeros(3, 4), values], routes=ROUTES)
    row = np.where(np.arange(4) < 3, values, 0) if guarded else values
    np.testing.assert_array_equal(found, [np.zeros(4), row, row])


def test_what_a_mask_leaves_out_is_forgotten_with_it() -> None:
    """A constant that stands for what may not be read is no value of a later statement's."""
    i, u = range_node(3, 0), unroll(3, 1)
    x, out, other = param(2, 3, 2), param(0, 3, 3), param(1, 3, 3)
    few = alu(Ops.CMPLT, alu(Ops.ADD, load(x, i, u), load(x, i, u)), const(0.5, F32))
    first = branch(index.less(u, 1), branch(few, store(out, ONE, i, u)))
    second = branch(index.less(u, 2), branch(few, store(other, ONE, i, u)))
    arrays = [zeros(3, 3), zeros(3, 3), np.ones((3, 2), np.float32)]
    for found in check(kernel(loop(i, first, second)), arrays, routes=ROUTES)[:2]:
        np.testing.assert_array_equal(found, 0)


def test_places_that_are_read_under_a_mask_are_read_at_each_point() -> None:
    i, u = range_node(3, 0), unroll(3, 1)
    x, out, places = param(1, 5), param(0, 3, 3), param(2, 3, dtype=dtypes.int32)
    place = cast(guard(index.less(i, 2), load(places, i)), dtypes.index)
    wanted = index.less(index.floordiv(index.mul(u, -1), 2), 0)
    node = kernel(loop(i, branch(wanted, store(out, load(x, place), i, u))))
    found = check(node, [zeros(3, 3), data(5), np.array([3, 2, 1], np.int32)], routes=ROUTES)[0]
    rows = data(5)[[3, 2, 0]]
    np.testing.assert_array_equal(found, np.stack([0 * rows, rows, rows], 1))


def test_loops_and_conditions_that_read_may_lie_under_masks() -> None:
    u, count = unroll(3, 0), param(1, 1, dtype=dtypes.int32)
    size = index.add(cast(load(count, 0), dtypes.index), 1)
    i = range_node(5, 1).replace(src=(size,))
    few = alu(Ops.CMPLT, guard(index.less(u, 2), load(count, 0)), const(9, dtypes.int32))
    body = (loop(i, store(param(0, 3, 5), ONE, u, i)), branch(few, store(param(2, 3), ONE, u)))
    node = kernel(branch(index.less(u, 2), *body))
    found, _, other = check(node, [zeros(3, 5), np.array([3], np.int32), zeros(3)], routes=ROUTES)
    np.testing.assert_array_equal(found, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [0] * 5])
    np.testing.assert_array_equal(other, [1, 1, 0])


def test_a_fold_of_lanes_under_a_mask_of_others_is_a_bug() -> None:
    v, r = vector(4, 0), vector(4, 1)
    total = fold(Ops.ADD, alu(Ops.MUL, load(param(1, 3), v), load(param(2, 4), r)), r)
    with pytest.raises(CompilerBug, match="two vector ranges"):
        lower(kernel(store(param(0, 4), total, v)))
    total = fold(Ops.ADD, guard(index.less(r, 3), load(param(2, 3), r)), r)
    with pytest.raises(CompilerBug, match="under a mask of others"):
        lower(kernel(branch(index.less(v, 2), store(param(0, 4), total, v))))


@pytest.mark.parametrize("space", ("memory", "register"))
def test_a_fold_that_is_the_same_for_all_rows_reads_all_of_its_own(space: str) -> None:
    u, w, v, r = unroll(3, 0), unroll(3, 1), vector(4, 2), unroll(3, 3)
    x, y, out, a = param(1, 4), param(2, 3, 4), param(0, 3, 4), alloc(0, 3, 4)
    own = load(a, r, v) if space == "register" else load(x, index.add(r, 1))
    value = alu(Ops.ADD, load(y, u, v), fold(Ops.ADD, own, r))
    node = kernel(store(a, load(y, w, v), w, v), store(out, value, u, v))
    found, x_, y_ = check(node, [zeros(3, 4), data(4), data(3, 4, seed=1)], routes=ROUTES)
    total = y_.sum(0) if space == "register" else x_[1:].sum()
    np.testing.assert_allclose(found, y_ + total, rtol=1e-5)


def test_uniform_conditions_are_branches() -> None:
    i, v = range_node(4, 0), vector(8, 1)
    x, out = param(1, 4, 8), param(0, 4, 8)
    even = alu(Ops.CMPEQ, index.as_node(index.mod(i, 2)), const(0, dtypes.index))
    node = kernel(loop(i, branch(even, store(out, load(x, i, v), i, v))))
    assert instructions(lower(node), Ops.TEST)
    check(node, [zeros(4, 8), data(4, 8)], routes=ROUTES)


# --- registers, scratch and reductions ----------------------------------------------------------


def test_scratch_is_shared_by_the_statements_of_a_thread() -> None:
    i, k, v = range_node(5, 0), range_node(5, 1), vector(8, 2)
    x, out = param(1, 5, 8), param(0, 5, 8)
    first, second = alloc(0, 5, 8, space="scratch"), alloc(1, 3, space="scratch")
    node = kernel(
        store(second, const(2.0, F32), 1),
        loop(i, store(first, alu(Ops.MUL, load(x, i, v), load(second, 1)), i, v)),
        loop(k, store(out, load(first, index.sub(4, k), v), k, v)),
    )
    assert scratch_nbytes(lower(node)) == 192 + 64
    found, source = check(node, [zeros(5, 8), data(5, 8)], routes=ROUTES)
    np.testing.assert_array_equal(found, source[::-1] * 2)


def test_a_reduction_inside_a_tile() -> None:
    """Unrolled points of a statement each fold ranges of their own."""
    w, u, v = unroll(3, 0), unroll(2, 1), vector(4, 2)
    x, out = param(1, 3, 2, 4), param(0, 3)
    node = kernel(store(out, fold(Ops.ADD, load(x, w, u, v), u, v), w))
    check(node, [zeros(3), data(3, 2, 4)], routes=ROUTES)


def test_tuple_valued_reductions() -> None:
    v = vector(8, 0)
    x, best, place = param(2, 8), param(0, 1), param(1, 1, dtype=I64)
    monoid = arg_extreme(Ops.MAX, F32)
    both = Node(Ops.REDUCE, F32, (load(x, v), cast(v, I64), v), Reduce(monoid))
    node = kernel(
        store(best, Node(Ops.PROJ, F32, (both,), 0), 0),
        store(place, Node(Ops.PROJ, I64, (both,), 1), 0),
    )
    values = np.float32([1, 3, np.nan, 3, 2, np.nan, 0, 7])
    for case in (values, np.nan_to_num(values, nan=-1), zeros(8)):
        top, where, _ = check(node, [zeros(1), np.zeros(1, np.int64), case], routes=ROUTES)
        assert where[0] == np.argmax(case)
        np.testing.assert_equal(top[0], case.max())


def test_accumulators_in_nested_loops() -> None:
    i, j, k = (range_node(3, p) for p in range(3))
    v = vector(4, 3)
    x, out, acc, rows = param(1, 3, 3, 3, 4), param(0, 4), alloc(0, 4), alloc(1, 4)
    node = kernel(
        store(acc, const(0.0, F32), v),
        loop(
            i,
            store(rows, ONE, v),
            loop(j, loop(k, store(rows, alu(Ops.MUL, load(rows, v), load(x, i, j, k, v)), v))),
            store(acc, alu(Ops.ADD, load(acc, v), load(rows, v)), v),
        ),
        store(out, load(acc, v), v),
    )
    check(node, [zeros(4), data(3, 3, 3, 4)], routes=ROUTES)


def test_registers_written_in_branches() -> None:
    i, v = range_node(6, 0), vector(4, 1)
    n = index.variable("n", 0, 6)
    x, out, acc = param(1, 6, 4), param(0, 4), alloc(0, 4)
    step = store(acc, alu(Ops.ADD, load(acc, v), load(x, i, v)), v)
    node = kernel(
        store(acc, const(0.0, F32), v),
        loop(i, branch(alu(Ops.CMPLT, i, n), step)),
        store(out, load(acc, v), v),
    )
    for count in (0, 2, 6):
        found, source = check(node, [zeros(4), data(6, 4)], {"n": count}, routes=ROUTES)
        np.testing.assert_allclose(found, source[:count].sum(0), rtol=1e-5, atol=1e-6)


def test_loops_that_may_not_run_keep_their_registers() -> None:
    n = index.variable("n", 0, 6)
    k, v = range_node(n, 0), vector(4, 1)
    x, out, acc = param(1, 6, 4), param(0, 4), alloc(0, 4)
    node = kernel(
        store(acc, ONE, v),
        loop(k, store(acc, alu(Ops.ADD, load(acc, v), load(x, k, v)), v)),
        store(out, load(acc, v), v),
    )
    for count in (0, 1, 6):
        check(node, [zeros(4), data(6, 4)], {"n": count}, routes=ROUTES)


# --- pool, symbols, dtypes ----------------------------------------------------------------------


def test_chunks_of_a_pool_loop() -> None:
    pool, i, v = range_node(5, 0, bind="pool"), range_node(2, 1), vector(4, 2)
    x, out = param(1, 5, 2, 4), param(0, 5, 2, 4)
    node = kernel(
        loop(pool, loop(i, store(out, alu(Ops.ADD, load(x, pool, i, v), ONE), pool, i, v)))
    )
    check(node, [zeros(5, 2, 4), data(5, 2, 4)], routes=ROUTES, chunks=5)
    program, source = lower(node), data(5, 2, 4)
    call = compiled(program)
    parts, evaluated = zeros(5, 2, 4), zeros(5, 2, 4)
    call([parts, source], chunks=(1, 3))
    evaluate_loop(node, [evaluated, source], chunks=(1, 3))
    np.testing.assert_array_equal(parts, evaluated)
    assert not parts[0].any() and not parts[3:].any() and parts[1:3].any()


def test_a_loop_whose_extent_depends_on_another() -> None:
    i = range_node(6, 0)
    j = range_node(index.as_node(index.add(i, 1)), 1)
    x, out = param(1, 6, 6), param(0, 6, 6)
    node = kernel(loop(i, loop(j, store(out, load(x, i, j), i, j))))
    found, source = check(node, [zeros(6, 6), data(6, 6)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.tril(source))


def test_memory_that_was_not_written_shows() -> None:
    """Both evaluators poison registers and scratch, so that forgotten starts are found."""
    for space in ("register", "scratch"):
        buffer = Node(Ops.ALLOC, F32, (), Alloc(0, space, (4,)))
        v, out = vector(4, 0), param(0, 4)
        node = kernel(store(out, load(buffer, v), v), store(buffer, ONE, v))
        first, second = zeros(4), zeros(4)
        evaluate_loop(node, [first])
        evaluate_linear(lower(node), [second])
        assert np.isnan(first).all() and np.isnan(second).all()


def test_statements_run_in_order() -> None:
    v = vector(4, 0)
    x, out = param(0, 4), param(1, 4)
    double = store(x, alu(Ops.ADD, load(x, v), load(x, v)), v)
    node = kernel(seq(double, store(out, load(x, v), v), double, double))
    found, copied = check(node, [np.ones(4, np.float32), zeros(4)], routes=ROUTES)
    assert found.tolist() == [8] * 4 and copied.tolist() == [2] * 4

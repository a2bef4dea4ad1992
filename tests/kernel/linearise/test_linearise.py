"""Linearisation: what the instructions look like, and that they do what the loop level says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.dtypes import decode, dtypes, encode
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, Reduce
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.linearise.linearise import linearise
from baregrad.render import scratch_nbytes
from tests.render.harness import (
    F32,
    I32,
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
ROUTES = ("loop", "linear", "llvm", "c")
ONE = const(1.0, F32)


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def instructions(program: Node, op: Any) -> list[Node]:
    return [node for node in program.src if node.op is op]


def inside_loops(program: Node) -> list[tuple[int, Node]]:
    """Each instruction with the number of loops around it."""
    depth = 0
    opened: list[bool] = []
    found = []
    for node in program.src:
        if node.op is Ops.END:
            depth -= opened.pop()
        found.append((depth, node))
        if node.op is Ops.BEGIN or node.op is Ops.TEST:
            opened.append(node.op is Ops.BEGIN)
            depth += opened[-1]
    return found


def matmul(m: int, n: int, k: int, rows: int, columns: int, lanes: int) -> Node:
    """A register tile of rows x (columns * lanes) accumulators."""
    a, b, c = param(1, m, k), param(2, k, n), param(0, m, n)
    i, j, r = range_node(m // rows, 0), range_node(n // (columns * lanes), 1), range_node(k, 2)
    u, w, v = unroll(rows, 3), unroll(columns, 4), vector(lanes, 5)
    row = index.add(index.mul(i, rows), u)
    column = index.total((index.mul(j, columns * lanes), index.mul(w, lanes), v))
    acc = alloc(0, rows, columns, lanes)
    step = Node(Ops.FMA, F32, (load(a, row, r), load(b, r, column), load(acc, u, w, v)))
    body = (
        store(acc, const(0.0, F32), u, w, v),
        loop(r, store(acc, step, u, w, v)),
        store(c, load(acc, u, w, v), row, column),
    )
    return kernel(loop(i, loop(j, *body)), name="matmul")


# --- shape of the code --------------------------------------------------------------------------


def test_a_register_tile_keeps_its_inner_loop_lean() -> None:
    program = lower(matmul(12, 32, 9, rows=6, columns=2, lanes=8))
    deepest = [node for depth, node in inside_loops(program) if depth == 3]
    loads = [node for node in deepest if node.op is Ops.VLOAD]
    assert len([node for node in loads if node.arg.width == 8]) == 2
    assert len([node for node in loads if node.arg.width == 1]) == 6
    assert len([node for node in deepest if node.op is Ops.FMA and node.dtype is F32]) == 12
    computed = (Ops.ADD, Ops.MUL, Ops.FMA)
    integer = [node for node in deepest if node.op in computed and node.dtype is I64]
    assert len(integer) <= 3, "addresses: one sum or product for each array"


def test_a_register_tile_is_right() -> None:
    node = matmul(12, 32, 9, rows=6, columns=2, lanes=8)
    a, b = data(12, 9), data(9, 32, seed=1)
    c, _, _ = check(node, [zeros(12, 32), a, b], routes=ROUTES)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lanes", (1, 2, 4, 16))
def test_vector_widths(lanes: int) -> None:
    node = matmul(4, 32, 5, rows=2, columns=2, lanes=lanes)
    check(node, [zeros(4, 32), data(4, 5), data(5, 32, seed=1)], routes=ROUTES)


def test_invariants_leave_loops() -> None:
    i, k = range_node(8, 0), range_node(8, 1)
    x, y, out = param(1, 8), param(2, 8), param(0, 8, 8)
    scaled = alu(Ops.MUL, load(x, i), const(3.0, F32))
    node = kernel(loop(i, loop(k, store(out, alu(Ops.ADD, scaled, load(y, k)), i, k))))
    depths = {node.op: depth for depth, node in inside_loops(lower(node)) if node.dtype is F32}
    assert depths[Ops.MUL] == 1
    assert depths[Ops.ADD] == 2
    check(node, [zeros(8, 8), data(8), data(8)], routes=ROUTES)


def test_loads_do_not_leave_loops_that_may_not_run() -> None:
    n = index.variable("n", 0, 8)
    k = range_node(n, 1)
    x, out = param(1, 1), param(0, 8)
    node = kernel(loop(k, store(out, load(x, 0), k)))
    program = lower(node)
    assert [depth for depth, node in inside_loops(program) if node.op is Ops.VLOAD] == [1]
    for count in (0, 3):
        check(node, [zeros(8), data(1)], {"n": count}, routes=ROUTES)


def test_loads_of_written_memory_stay_where_they_are() -> None:
    i = range_node(6, 0)
    x = param(0, 7)
    step = alu(Ops.ADD, load(x, i), load(x, index.add(i, 1)))
    node = kernel(loop(i, store(x, step, index.add(i, 1))))
    (found,) = check(node, [np.arange(7, dtype=np.float32)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.cumsum(np.arange(7)))


def test_equal_expressions_are_computed_once() -> None:
    i, v = range_node(2, 0), vector(8, 1)
    place = index.add(index.mul(i, 8), v)
    x, first, second = param(2, 16), param(0, 16), param(1, 16)
    root = Node(Ops.SQRT, F32, (load(x, place),))
    node = kernel(loop(i, store(first, root, place), store(second, alu(Ops.ADD, root, ONE), place)))
    program = lower(node)
    assert len(instructions(program, Ops.SQRT)) == 1
    assert len(instructions(program, Ops.VLOAD)) == 1
    check(node, [zeros(16), zeros(16), np.abs(data(16))], routes=ROUTES)


def test_rendered_text_is_deterministic() -> None:
    for name in ("llvm", "c"):
        texts = {
            render.get(name).render(lower(matmul(12, 32, 9, 6, 2, 8)), host()) for _ in range(3)
        }
        assert len(texts) == 1


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", (-1, 0, 1, 2, 3))
def test_strides(stride: int) -> None:
    i, v = range_node(3, 0), vector(8, 1)
    x, out = param(1, 80), param(0, 24)
    place = index.add(index.mul(i, 8), v)
    source = index.add(index.mul(place, stride), 30 if stride < 0 else 2)
    node = kernel(loop(i, store(out, alu(Ops.ADD, load(x, source), ONE), place)))
    check(node, [zeros(24), data(80)], routes=ROUTES)


def test_indices_that_are_not_affine() -> None:
    i, v = range_node(3, 0), vector(8, 1)
    x, out = param(1, 5, 7), param(0, 24)
    place = index.add(index.mul(i, 8), v)
    node = kernel(
        loop(i, store(out, load(x, index.mod(place, 5), index.floordiv(place, 4)), place))
    )
    check(node, [zeros(24), data(5, 7)], routes=ROUTES)


def test_unrolled_indices_that_are_not_affine() -> None:
    i, u, v = range_node(3, 0), unroll(4, 1), vector(4, 2)
    x, out = param(1, 48), param(0, 48)
    flat = index.add(index.mul(i, 4), u)
    source = index.add(index.mul(index.mod(index.mul(flat, 5), 12), 4), v)
    node = kernel(loop(i, store(out, load(x, source), index.add(index.mul(flat, 4), v))))
    check(node, [zeros(48), data(48)], routes=ROUTES)


def test_gather_by_loaded_indices() -> None:
    i, v = range_node(2, 0), vector(8, 1)
    table, places, out = param(1, 10, 3), param(2, 16, dtype=I32), param(0, 16)
    place = index.add(index.mul(i, 8), v)
    row = cast(load(places, place), dtypes.index)
    node = kernel(loop(i, store(out, load(table, row, 1), place)))
    order = np.random.default_rng(2).integers(0, 10, 16).astype(np.int32)
    found, table_data, _ = check(node, [zeros(16), data(10, 3), order], routes=ROUTES)
    np.testing.assert_array_equal(found, table_data[order, 1])


def test_a_gather_outside_its_array_is_an_error() -> None:
    i = range_node(4, 0)
    x, places, out = param(1, 4), param(2, 4, dtype=I64), param(0, 4)
    node = kernel(loop(i, store(out, load(x, cast(load(places, i), dtypes.index)), i)))
    arrays = [zeros(4), data(4), np.array([0, 1, 4, 2])]
    with pytest.raises(IndexOutOfRange, match="leaves its array"):
        evaluate_loop(node, arrays)
    with pytest.raises(IndexOutOfRange, match="0 <= offset < 4"):
        evaluate_linear(lower(node), arrays)


@pytest.mark.parametrize("op", (None, Ops.ADD, Ops.MAX))
def test_scatter_lanes_in_order(op: Any) -> None:
    """The last lane wins where lanes meet, and all of them count when they accumulate."""
    i, v = range_node(2, 0), vector(8, 1)
    x, places, out = param(1, 16), param(2, 16, dtype=I64), param(0, 4)
    place = index.add(index.mul(i, 8), v)
    monoid = None if op is None else primitive(op, F32)
    target = cast(load(places, place), dtypes.index)
    node = kernel(loop(i, store(out, load(x, place), target, monoid=monoid)))
    order = np.random.default_rng(3).integers(0, 4, 16)
    check(node, [zeros(4), data(16), order], routes=ROUTES)


def test_accumulating_a_constant_counts_every_lane() -> None:
    i, u, v = range_node(2, 0), unroll(2, 1), vector(4, 2)
    places, out = param(1, 16, dtype=I64), param(0, 3)
    place = index.total((index.mul(i, 8), index.mul(u, 4), v))
    target = cast(load(places, place), dtypes.index)
    node = kernel(loop(i, store(out, ONE, target, monoid=primitive(Ops.ADD, F32))))
    order = np.random.default_rng(4).integers(0, 3, 16)
    found, _ = check(node, [zeros(3), order], routes=ROUTES)
    np.testing.assert_array_equal(found, np.bincount(order, minlength=3))


def test_accumulating_into_one_place_from_a_tile() -> None:
    u, v = unroll(3, 0), vector(4, 1)
    x, out = param(1, 12), param(0, 1)
    place = index.add(index.mul(u, 4), v)
    node = kernel(store(out, load(x, place), 0, monoid=primitive(Ops.ADD, F32)))
    check(node, [zeros(1), data(12)], routes=ROUTES)


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


@pytest.mark.parametrize("lanes", (1, 8))
def test_guarded_loads_of_a_padded_row(lanes: int) -> None:
    i, v = range_node(24 // lanes, 0), vector(lanes, 1)
    place = index.add(index.mul(i, lanes), v)
    x, out = param(1, 15), param(0, 24)
    source = index.add(place, -4)
    inside = index.inside(source, 15)
    value = alu(Ops.ADD, guard(inside, load(x, source)), ONE)
    node = kernel(loop(i, store(out, value, place)))
    found, row = check(node, [zeros(24), data(15)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.pad(row, (4, 5)) + 1)


def test_a_guard_over_an_expression_guards_its_loads() -> None:
    i, v = range_node(3, 0), vector(8, 1)
    place = index.add(index.mul(i, 8), v)
    x, out = param(1, 20), param(0, 24)
    inner = alu(Ops.ADD, alu(Ops.MUL, load(x, place), load(x, place)), ONE)
    node = kernel(loop(i, store(out, guard(index.less(place, 20), inner), place)))
    found, row = check(node, [zeros(24), data(20)], routes=ROUTES)
    np.testing.assert_allclose(found, np.pad(row * row + 1, (0, 4)), rtol=1e-6)


def test_a_guard_of_an_empty_array_reads_nothing() -> None:
    i = range_node(4, 0)
    x, out = param(1, 0), param(0, 4)
    never = alu(Ops.CMPLT, i, index.variable("n", 0, 4))
    node = kernel(loop(i, store(out, guard(never, load(x, i)), i)))
    check(node, [zeros(4), zeros(0)], {"n": 0}, routes=("loop", "linear", "llvm"))


def test_uniform_conditions_are_branches() -> None:
    i, v = range_node(4, 0), vector(8, 1)
    x, out = param(1, 4, 8), param(0, 4, 8)
    even = alu(Ops.CMPEQ, index.as_node(index.mod(i, 2)), const(0, dtypes.index))
    node = kernel(loop(i, branch(even, store(out, load(x, i, v), i, v))))
    assert instructions(lower(node), Ops.TEST)
    check(node, [zeros(4, 8), data(4, 8)], routes=ROUTES)


def test_a_guard_without_loads_is_computed_on_demand() -> None:
    """What a lowering guards by itself runs only where some lane needs it."""
    i, v = range_node(4, 0), vector(8, 1)
    x, out = param(1, 32), param(0, 32)
    place = index.add(index.mul(i, 8), v)
    value = load(x, place)
    big = alu(Ops.CMPLT, const(1.0, F32), value)
    root = guard(big, Node(Ops.SQRT, F32, (alu(Ops.SUB, value, ONE),)))
    square = guard(big, alu(Ops.MUL, value, value))
    node = kernel(loop(i, store(out, alu(Ops.ADD, root, square), place)))
    program = linearise(node)
    assert len(instructions(program, Ops.TEST)) == 1, "equal conditions share a branch"
    first, second = [zeros(32), data(32)], [zeros(32), data(32)]
    evaluate_loop(node, first)
    evaluate_linear(program, second)
    np.testing.assert_array_equal(first[0], second[0])
    third = [zeros(32), data(32)]
    compiled(program)(third)
    np.testing.assert_array_equal(first[0], third[0])


# --- registers, scratch and reductions ----------------------------------------------------------


def test_registers_that_swap() -> None:
    """All points of a statement read before any of them writes."""
    u, v = unroll(2, 0), vector(4, 1)
    x, out, acc = param(1, 2, 4), param(0, 2, 4), alloc(0, 2, 4)
    other = index.sub(1, u)
    node = kernel(
        store(acc, load(x, u, v), u, v),
        store(acc, load(acc, other, v), u, v),
        store(out, load(acc, u, v), u, v),
    )
    found, source = check(node, [zeros(2, 4), data(2, 4)], routes=ROUTES)
    np.testing.assert_array_equal(found, source[::-1])


def test_a_register_indexed_by_a_loop_lives_in_memory() -> None:
    i, k, v = range_node(3, 0), range_node(3, 1), vector(4, 2)
    x, out, acc = param(1, 3, 4), param(0, 3, 4), alloc(0, 3, 4)
    node = kernel(
        loop(i, store(acc, load(x, i, v), i, v)),
        loop(k, store(out, load(acc, index.sub(2, k), v), k, v)),
    )
    found, source = check(node, [zeros(3, 4), data(3, 4)], routes=ROUTES)
    np.testing.assert_array_equal(found, source[::-1])


def test_lanes_of_a_register_read_one_by_one() -> None:
    v, k = vector(4, 0), range_node(4, 1)
    x, out, acc = param(1, 4), param(0, 4), alloc(0, 4)
    node = kernel(
        store(acc, load(x, v), v), loop(k, store(out, load(acc, index.sub(3, k)), k))
    )
    check(node, [zeros(4), data(4)], routes=ROUTES)


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


def test_symbolic_extents_and_strides() -> None:
    n, m = index.variable("n", 1, 8), index.variable("m", 1, 8)
    i, j = range_node(n, 0), range_node(m, 1)
    x, out = param(1, n, m), param(0, m, n)
    node = kernel(loop(i, loop(j, store(out, load(x, i, j), j, i))))
    source = data(5, 7)
    results = check(node, [zeros(7, 5), source], {"n": 5, "m": 7}, routes=ROUTES)
    np.testing.assert_array_equal(results[0], source.T)


def test_a_loop_whose_extent_depends_on_another() -> None:
    i = range_node(6, 0)
    j = range_node(index.as_node(index.add(i, 1)), 1)
    x, out = param(1, 6, 6), param(0, 6, 6)
    node = kernel(loop(i, loop(j, store(out, load(x, i, j), i, j))))
    found, source = check(node, [zeros(6, 6), data(6, 6)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.tril(source))


def test_counters_as_values() -> None:
    i, u, v = range_node(3, 0), unroll(2, 1), vector(8, 2)
    place = index.total((index.mul(i, 16), index.mul(u, 8), v))
    whole, real = param(0, 48, dtype=I64), param(1, 48)
    node = kernel(
        loop(i, store(whole, cast(place, I64), place), store(real, cast(place, F32), place))
    )
    found, floats = check(node, [np.zeros(48, np.int64), zeros(48)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.arange(48))
    np.testing.assert_array_equal(floats, np.arange(48))


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=str)
def test_accumulators_of_narrow_floats_are_float32(dtype: Any) -> None:
    """4096 ones sum to 4096, where rounding after each addition would stop early."""
    i = range_node(4096, 0)
    x, out = param(1, 4096, dtype=dtype), param(0, 1, dtype=dtype)
    acc = alloc(0, dtype=dtype)
    node = kernel(
        store(acc, const(0.0, dtype)),
        loop(i, store(acc, alu(Ops.ADD, load(acc), load(x, i)))),
        store(out, load(acc), 0),
    )
    ones = encode(np.ones(4096, np.float32), dtype)
    found = np.zeros(1, dtype.storage)
    compiled(lower(node))([found, ones])
    assert decode(found, dtype)[0] == 4096


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16, dtypes.bool), ids=str)
def test_accumulating_in_memory_of_coded_elements(dtype: Any) -> None:
    i = range_node(8, 0)
    x, out = param(1, 8, dtype=dtype), param(0, 3, dtype=dtype)
    op = Ops.OR if dtype is dtypes.bool else Ops.ADD
    node = kernel(loop(i, store(out, load(x, i), index.mod(i, 3), monoid=primitive(op, dtype))))
    memory = dtype.numpy or dtype.storage
    values = np.zeros(8, memory)
    if dtype is dtypes.bool:
        values[[1, 5]] = True
    else:
        values = encode(data(8), dtype).view(memory)
    check(node, [np.zeros(3, memory), values])


def test_what_the_linear_level_refuses() -> None:
    i, v, w = range_node(4, 0), vector(4, 1), vector(4, 2)
    x, out = param(1, 4, 4), param(0, 4, 4)
    with pytest.raises(CompilerBug, match="two vector ranges"):
        lower(kernel(store(out, load(x, v, w), v, w)))
    with pytest.raises(CompilerBug, match="cannot be looped"):
        lower(kernel(loop(v, store(out, load(x, i, v), i, v))))
    wide = Node(Ops.BARRIER, dtypes.token)
    with pytest.raises(CompilerBug, match="not a statement"):
        lower(kernel(wide))


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

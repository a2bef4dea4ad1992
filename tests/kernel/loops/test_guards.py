"""Guards: what they keep from being read, and what need not be guarded."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.codegen import to_linear
from baregrad.kernel.loops.guards import guard_crossed_reads, push_guards
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor
from tests.kernel import kernels as k
from tests.kernel.linearise.test_linearise import ONE, ROUTES, data, instructions, zeros
from tests.render.harness import (
    branch,
    check,
    compiled,
    guard,
    host,
    kernel,
    load,
    loop,
    lower,
    param,
    store,
    vector,
)

pytestmark = pytest.mark.differential
FOUR = (dtypes.float32, dtypes.float64, dtypes.int8, dtypes.bool)


@pytest.mark.parametrize("whole", (False, True))
def test_what_all_lanes_share_is_loaded_once_whatever_lanes_are_guarded(whole: bool) -> None:
    """A bias that is there for every row needs no guard; one that may be missing keeps one."""
    i, v = range_node(3, 0), vector(8, 1)
    x, b, out = param(1, 3, 5), param(2, 3 if whole else 2), param(0, 3, 8)
    inside = index.both(index.less(v, 5), index.less(i, 3 if whole else 2))
    total = alu(Ops.ADD, load(x, i, v), load(b, i))
    node = kernel(loop(i, store(out, guard(inside, total), i, v)))
    found, rows, bias = check(node, [zeros(3, 8), data(3, 5), data(3 if whole else 2)],
                              routes=ROUTES)
    expected = np.zeros((3, 8), np.float32)
    expected[: len(bias), :5] = rows[: len(bias)] + bias[:, None]
    np.testing.assert_array_equal(found, expected)
    (read,) = [n for n in instructions(lower(node), Ops.VLOAD) if n.src[0].arg.slot == 2]
    assert (read.shape, len(read.src)) == ((), 2 if whole else 3)


def test_what_all_lanes_share_is_loaded_once_in_a_statement_of_some_lanes() -> None:
    i, v = range_node(3, 0), vector(8, 1)
    b, out = param(1, 3), param(0, 3, 5)
    node = kernel(loop(i, branch(index.less(v, 5), store(out, load(b, i), i, v))))
    found, bias = check(node, [zeros(3, 5), data(3)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.repeat(bias[:, None], 5, 1))
    (read,) = instructions(lower(node), Ops.VLOAD)
    assert (read.shape, len(read.src)) == ((), 2)


def test_a_choice_by_a_guards_condition_chooses_once() -> None:
    v = vector(8, 1)
    x, out = param(1, 5), param(0, 8)
    inside = index.less(v, 5)
    inner = guard(inside, alu(Ops.ADD, load(x, v), ONE))
    node = kernel(store(out, alu(Ops.WHERE, inside, inner, const(-2.0, dtypes.float32)), v))
    found, row = check(node, [zeros(8), data(5)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.append(row + 1, [-2, -2, -2]).astype(np.float32))
    assert len(instructions(lower(node), Ops.WHERE)) == 1


@pytest.mark.parametrize("whole", (False, True))
def test_a_guard_below_a_guard_keeps_its_own_condition(whole: bool) -> None:
    """The inner guard's read is left out where either condition fails, inside its array or not."""
    i, v = range_node(3, 0), vector(8, 1)
    x, b, out = param(1, 3, 5), param(2, 3 if whole else 2), param(0, 3, 8)
    bias = guard(index.less(i, 2), load(b, i))
    total = alu(Ops.ADD, load(x, i, v), bias)
    node = kernel(loop(i, store(out, guard(index.less(v, 5), total), i, v)))
    found, rows, values = check(node, [zeros(3, 8), data(3, 5), data(3 if whole else 2)],
                                routes=ROUTES)
    expected = np.zeros((3, 8), np.float32)
    expected[:, :5] = rows
    expected[:2, :5] += values[:2, None]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("where", ("read", "written"))
def test_lanes_that_a_mask_leaves_out_leave_their_places_to_the_others(where: str) -> None:
    """A row's number is read in the lanes of a mask alone; each lane still has its own column."""
    i, v = range_node(3, 0), vector(8, 1)
    rows = param(2, 3, dtype=dtypes.int64)
    row = cast(guard(index.less(i, 2), load(rows, i)), dtypes.index)
    x, out = param(1, 3, 5), param(0, 3, 5)
    if where == "read":
        move = store(out, load(x, row, v), i, v)
    else:
        move = store(out, load(x, i, v), row, v)
    node = kernel(loop(i, branch(index.less(v, 5), move)))
    values, numbers = data(3, 5), np.array([2, 1, 0])
    found, *_ = check(node, [zeros(3, 5), values, numbers], routes=ROUTES)
    expected = np.zeros((3, 5), np.float32)
    for place, number in enumerate((2, 1, 0)):
        if where == "read":
            expected[place] = values[number]
        else:
            expected[number] = values[place]
    np.testing.assert_array_equal(found, expected)


WAYS = pytest.mark.parametrize(("device", "level"), (("CPU", "tensor"), ("REF", "linear")))


@WAYS
@pytest.mark.parametrize("width", (2, 3, 7))
def test_the_slope_of_a_slope_of_padded_windows(width: int, device: str, level: str) -> None:
    """Sums of a constant whose loops would be bounded by an axis that no term depends on."""
    data = np.random.default_rng(width).normal(size=(33, width))
    with options.override(device=device, ref_level=level):
        x = Tensor(data).requires_grad_()
        windows = x.pad((2, 1)).unfold(1, 3, 1)
        (first,) = (windows * windows * 0.125 + windows).sum().gradient(x)
        (second,) = (first * 0.5).sum().gradient(x)
        found = second.numpy()
    # A square's second slope, times how many of the windows an element is in.
    inside = np.lib.stride_tricks.sliding_window_view(np.pad(np.arange(width) + 1, (2, 1)), 3)
    counts = [(inside == place + 1).sum() for place in range(width)]
    np.testing.assert_allclose(found, np.tile(0.125 * np.array(counts), (33, 1)), rtol=1e-12)


@WAYS
@pytest.mark.parametrize("columns", (16, 20, 33))
def test_a_padded_maximum_of_columns(columns: int, device: str, level: str) -> None:
    """What is reduced is read below conditions of axes that it does not run along."""
    rng = np.random.default_rng(columns)
    a, b = rng.integers(-9, 10, (16, columns)).astype(np.int8), rng.normal(size=(3, 3))
    with options.override(device=device, ref_level=level):
        high = Tensor(b).unfold(0, 1, 2).maximum(Tensor(a).amax(0))
        found = high.pad((2, 2, 1, 2, 1, 1), value=1).numpy()
    wanted = np.maximum(b[::2, :, None], a.max(0))
    wanted = np.pad(wanted, ((1, 1), (1, 2), (2, 2)), constant_values=1)
    np.testing.assert_array_equal(found, wanted)


@WAYS
def test_a_stack_that_is_multiplied(device: str, level: str) -> None:
    """Both parts are one array, read under a condition of the axis that they are stacked along."""
    a = np.random.default_rng(0).integers(0, 2, (4, 8)).astype(bool)
    with options.override(device=device, ref_level=level):
        part = Tensor(a)
        stacked = Tensor.stack([part, part], dim=0) + 0.5
        other = stacked.masked_fill(part, 1)
        product = stacked @ other.mT
        product.realize(other)
        found = product.numpy()
    left = np.stack([a, a]) + 0.5
    wanted = left @ np.where(a, 1, left).swapaxes(1, 2)
    np.testing.assert_array_equal(found, wanted)


def test_a_reduction_is_not_guarded_by_what_is_computed_from_it() -> None:
    """It has to be computed first: guarded it would be another, and both would be."""
    i, r, s = range_node(3, 0), range_node(5, 1), range_node(5, 2)
    x = k.param(1, 3, 5)
    known = k.reduce(Ops.ADD, k.at(x, i, r), r)
    other = k.reduce(Ops.MAX, k.at(x, i, s), s)
    condition = alu(Ops.CMPLT, known, const(0.0, known.dtype))
    value = k.guard(condition, alu(Ops.ADD, known, other))
    pushed = push_guards(k.kernel(k.out(k.param(0, 3), value, i)))
    first, second = [node for node in toposort(pushed) if node.op is Ops.REDUCE]
    assert first is known
    assert second.src[0] is k.guard(condition, other.src[0])


@pytest.mark.parametrize("row", ["host", "x86-64-avx2", "x86-64-sse2"])
@pytest.mark.parametrize("dtype", FOUR, ids=str)
@pytest.mark.parametrize("lanes", [2, 8, 16, 64])
def test_a_row_read_backwards_under_a_mask(lanes: int, dtype: DType, row: str) -> None:
    """From before its begin to beyond its end, some vectors far outside of it."""
    count, extent, first = 6 * lanes, 5 * lanes // 2, 7 * lanes // 2
    i, v = range_node(count // lanes, 0), vector(lanes, 1)
    place = index.add(index.mul(i, lanes), v)
    source = index.sub(first, place)
    x, out = param(1, extent, dtype=dtype), param(0, count, dtype=dtype)
    value = guard(index.inside(source, extent), load(x, source))
    node = kernel(loop(i, store(out, value, place)))
    target = host() if row == "host" else cpu_row_named(row)
    if target.architecture != host().architecture:
        pytest.skip("another architecture's code does not run here")
    array = np.random.default_rng(lanes).integers(1, 100, extent).astype(dtype.numpy)
    found = np.ones(count, dtype.numpy)
    compiled(to_linear(node, target), "llvm", target)([found, array])
    places = first - np.arange(count)
    inside = (places >= 0) & (places < extent)
    expected = np.where(inside, array[np.clip(places, 0, extent - 1)], 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("is_crossed", (False, True))
def test_reads_across_the_output_have_the_guard_right_around_them(is_crossed: bool) -> None:
    """What is in its array anyway, or lies as the output does, has none."""
    y, x = range_node(6, 0), range_node(5, 1)
    row = index.add(y, -1)
    image, scale = k.param(1, 5, 4) if is_crossed else k.param(1, 4, 5), k.param(2, 5)
    read = k.at(image, x, row) if is_crossed else k.at(image, row, x)
    value = alu(Ops.ADD, alu(Ops.MUL, read, k.at(scale, x)), const(1.0, read.dtype))
    within = index.inside(row, 4)
    made = guard_crossed_reads(k.kernel(k.out(k.param(0, 6, 5), k.guard(within, value), y, x)))
    around = [node.src[1] for node in toposort(made) if node.op is Ops.GUARD]
    assert [node.op for node in around] == [Ops.INDEX, Ops.ADD] if is_crossed else [Ops.ADD]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(one.shape).astype(np.float32) for one in (image, scale)]
    wanted = np.zeros((6, 5), np.float32)
    wanted[1:5] = (arrays[0].T if is_crossed else arrays[0]) * arrays[1] + 1.0
    arrays.insert(0, np.ones((6, 5), np.float32))
    found = k.run_kernel(made, dict(enumerate(arrays)))
    np.testing.assert_allclose(found[0], wanted, rtol=1e-6)

"""Tiles: statements whose unrolled points are done by one instruction a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.ir.analysis.rows import by_rows
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.text import dump as text
from baregrad.ir.verify.verify import verify
from baregrad.kernel.linearise.linearise import linearise
from baregrad.tensor import Tensor
from tests.render.harness import (
    F32,
    alloc,
    branch,
    check,
    fold,
    guard,
    kernel,
    load,
    loop,
    param,
    seq,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential
ROUTES = ("loop", "linear", "llvm", "c")
ZERO = const(0.0, F32)
TWO = const(2.0, F32)


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def tiles(node: Node) -> list[Node]:
    """The values of a kernel's linear program that are tiles; the program is checked as well."""
    program = linearise(node)
    verify(program, "linear")
    assert text.parse(text.dump(program)) is program
    flat = by_rows(program)
    verify(flat, "linear")
    assert not any(len(one.shape) == 2 or _rows(one) for one in flat.src)
    assert by_rows(flat) is flat
    return [one for one in program.src if len(one.shape) == 2 or _rows(one)]


def _rows(node: Node) -> tuple[int, ...]:
    return node.arg.rows if node.op in (Ops.VLOAD, Ops.VSTORE) else ()


def product(rows: int, lanes: int, steps: int) -> tuple[Node, Node, Node, Node]:
    """The statements of a sum of products over `steps` into a tile; its register and axes."""
    a, b = param(1, rows, steps), param(2, steps, lanes)
    u, v, k = unroll(rows, 1), vector(lanes, 2), range_node(steps, 3)
    total = alloc(1, rows, lanes)
    step = alu(Ops.FMA, load(a, u, k), load(b, k, v), load(total, u, v))
    body = seq(store(total, ZERO, u, v), loop(k, store(total, step, u, v)))
    return body, total, u, v


@pytest.mark.parametrize("rows", (2, 3, 7, 14))
@pytest.mark.parametrize("lanes", (1, 8, 16, 48))
def test_a_tile_of_accumulators_is_one_register_and_one_instruction_a_step(
    rows: int, lanes: int
) -> None:
    steps = 5
    body, total, u, v = product(rows, lanes, steps)
    node = kernel(body, store(param(0, rows, lanes), load(total, u, v), u, v))
    a, b = data(rows, steps), data(steps, lanes, seed=1)
    (found, _, _) = check(node, [zeros(rows, lanes), a, b], routes=ROUTES)
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)
    made = tiles(node)
    computed = [one for one in made if one.op is Ops.FMA]
    assert [one.shape for one in computed] == [(rows, lanes)]
    stores = [one for one in made if one.op is Ops.VSTORE]
    assert [one.arg.rows for one in stores] == [tuple(range(0, rows * lanes, lanes))]


def test_a_tile_that_is_filled_with_a_constant_needs_no_value_but_that() -> None:
    u, v, total = unroll(4, 1), vector(16, 2), alloc(1, 4, 16)
    filled, out = store(total, TWO, u, v), param(0, 16, 4)
    node = kernel(filled, store(out, load(total, u, v), v, u))
    (found,) = check(node, [zeros(16, 4)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.full((16, 4), 2, np.float32))
    assert not tiles(node)
    assert [one.src[1] for one in linearise(node).src if one.op is Ops.SET] == [TWO]


def test_points_along_two_axes_are_rows_in_order() -> None:
    x, out = param(1, 3, 4, 16), param(0, 4, 3, 16)
    a, b, v = unroll(3, 1), unroll(4, 2), vector(16, 3)
    node = kernel(store(out, alu(Ops.MUL, load(x, a, b, v), TWO), b, a, v))
    values = data(3, 4, 16)
    (found, _) = check(node, [zeros(4, 3, 16), values], routes=ROUTES)
    np.testing.assert_array_equal(found, values.transpose(1, 0, 2) * 2)
    (loaded,) = [one for one in tiles(node) if one.op is Ops.VLOAD]
    assert loaded.arg.rows == tuple(range(0, 12 * 16, 16))


def test_what_is_the_same_for_all_rows_is_computed_once() -> None:
    x, y, out = param(1, 4, 8), param(2, 8), param(0, 4, 8)
    u, v = unroll(4, 1), vector(8, 2)
    value = alu(Ops.ADD, load(x, u, v), alu(Ops.SQRT, load(y, v)))
    node = kernel(store(out, value, u, v))
    values, others = data(4, 8), np.abs(data(8, seed=2))
    (found, _, _) = check(node, [zeros(4, 8), values, others], routes=ROUTES)
    np.testing.assert_array_equal(found, values + np.sqrt(others))
    assert [one.shape for one in linearise(node).src if one.op is Ops.SQRT] == [(8,)]


def test_a_fold_of_points_reads_the_rows_of_a_tile() -> None:
    x, out = param(1, 6, 4, 8), param(0, 1)
    i, u, v = range_node(6, 1), unroll(4, 2), vector(8, 3)
    total = alloc(1, 4, 8)
    step = alu(Ops.ADD, load(total, u, v), load(x, i, u, v))
    node = kernel(
        store(total, ZERO, u, v),
        loop(i, store(total, step, u, v)),
        store(out, fold(Ops.ADD, load(total, u, v), u, v), 0),
    )
    values = data(6, 4, 8)
    (found, _) = check(node, [zeros(1), values], routes=ROUTES)
    np.testing.assert_allclose(found, values.sum(dtype=np.float64), rtol=1e-5, atol=1e-5)
    assert [one.shape for one in tiles(node) if one.op is Ops.ADD] == [(4, 8)]
    rows = [one.arg for one in linearise(node).src if one.op is Ops.ROW]
    assert rows == [0, 1, 2, 3]


def test_a_guard_of_all_rows_masks_each() -> None:
    x, out = param(1, 3, 4, 8), param(0, 4, 4, 8)
    i, u, v = range_node(4, 1), unroll(4, 2), vector(8, 3)
    inside = index.less(i, 3)
    node = kernel(loop(i, store(out, guard(inside, load(x, i, u, v)), i, u, v)))
    values = data(3, 4, 8)
    (found, _) = check(node, [zeros(4, 4, 8) + 1, values], routes=ROUTES)
    np.testing.assert_array_equal(found, np.concatenate([values, zeros(1, 4, 8)]))
    assert [one.op for one in tiles(node)] == [Ops.VLOAD, Ops.VSTORE]


def test_a_register_that_a_condition_on_the_tile_writes_is_no_tile() -> None:
    x, out = param(1, 3, 8), param(0, 4, 8)
    u, v = unroll(4, 1), vector(8, 2)
    total = alloc(1, 4, 8)
    node = kernel(
        store(total, TWO, u, v),
        branch(index.less(u, 3), store(total, load(x, u, v), u, v)),
        store(out, load(total, u, v), u, v),
    )
    values = data(3, 8)
    (found, _) = check(node, [zeros(4, 8), values], routes=ROUTES)
    np.testing.assert_array_equal(found, np.concatenate([values, zeros(1, 8) + 2]))
    assert not tiles(node)


def test_a_part_of_a_register_that_is_written_alone_makes_it_no_tile() -> None:
    out = param(0, 4, 8)
    u, w, v = unroll(4, 1), unroll(2, 3), vector(8, 2)
    total = alloc(1, 4, 8)
    node = kernel(
        store(total, TWO, u, v),
        store(total, ZERO, index.add(w, 1), v),
        store(out, load(total, u, v), u, v),
    )
    (found,) = check(node, [zeros(4, 8)], routes=ROUTES)
    np.testing.assert_array_equal(found[:, 0], [2, 0, 0, 2])
    assert not tiles(node)


def test_points_that_shift_what_they_read_of_their_own_array_are_done_apart() -> None:
    x = param(0, 5, 8)
    u, v = unroll(4, 1), vector(8, 2)
    node = kernel(store(x, alu(Ops.MUL, load(x, u, v), TWO), index.add(u, 1), v))
    values = data(5, 8)
    (found,) = check(node, [values.copy()], routes=ROUTES)
    np.testing.assert_array_equal(found, np.concatenate([values[:1], values[:4] * 2]))
    assert not tiles(node)


def test_a_value_made_of_the_points_number_is_computed_point_by_point() -> None:
    out = param(0, 4, 8)
    u, v = unroll(4, 1), vector(8, 2)
    node = kernel(store(out, cast(index.add(index.mul(u, 8), v), F32), u, v))
    (found,) = check(node, [zeros(4, 8)], routes=ROUTES)
    np.testing.assert_array_equal(found.reshape(-1), np.arange(32))
    assert not tiles(node)


def test_long_rows_take_turns_and_give_the_same_bits() -> None:
    x, out = param(1, 6, 8), param(0, 6, 8)
    u, v = unroll(6, 1), vector(8, 2)
    value = load(x, u, v)
    for step in range(14):
        value = alu(Ops.ADD, alu(Ops.MUL, value, const(0.5 + step, F32)), TWO)
    node = kernel(store(out, value, u, v))
    values = data(6, 8)
    (found, _) = check(node, [zeros(6, 8), values], routes=ROUTES)
    expected = values
    for step in range(14):
        expected = expected * np.float32(0.5 + step) + np.float32(2)
    np.testing.assert_array_equal(found, expected)
    assert len(tiles(node)) == 30


def test_a_second_statement_that_reads_other_rows_of_what_the_first_wrote_comes_after_it() -> None:
    x, out = param(1, 4, 8), param(0, 4, 8)
    u, v, w, z = unroll(4, 1), vector(8, 2), unroll(4, 3), vector(8, 4)
    held = alloc(1, 5, 8, space="scratch")
    last = index.add(w, 1)
    node = kernel(
        store(held, ZERO, 0, z),
        store(held, alu(Ops.MUL, load(x, u, v), TWO), index.add(u, 1), v),
        store(out, load(held, last, z), w, z),
    )
    values = data(4, 8)
    (found, _) = check(node, [zeros(4, 8), values], routes=ROUTES)
    np.testing.assert_array_equal(found, values * 2)


def test_comparisons_and_choices_of_rows() -> None:
    x, y, out = param(1, 5, 16), param(2, 5, 16), param(0, 5, 16, dtype=dtypes.int32)
    u, v = unroll(5, 1), vector(16, 2)
    below = alu(Ops.CMPLT, load(x, u, v), load(y, u, v))
    value = alu(Ops.WHERE, below, const(3, dtypes.int32), const(-1, dtypes.int32))
    node = kernel(store(out, value, u, v))
    values, others = data(5, 16), data(5, 16, seed=3)
    empty = np.zeros((5, 16), np.int32)
    (found, _, _) = check(node, [empty, values, others], routes=ROUTES)
    np.testing.assert_array_equal(found, np.where(values < others, 3, -1))
    assert tiles(node)


@pytest.mark.parametrize("columns", (9, 17))
def test_a_factor_with_a_rare_branch_is_no_part_of_a_tile(columns: int) -> None:
    """A cosine reduces huge arguments only where there are some: all points share that branch."""
    rng = np.random.default_rng(columns)
    angles = rng.uniform(-4, 4, columns) * 10.0 ** rng.integers(0, 9, columns)
    matrix = rng.standard_normal((17, columns))
    for device, level in (("CPU", "tensor"), ("REF", "linear")):
        with options.override(device=device, ref_level=level):
            found = (Tensor(angles).cos() @ Tensor(matrix).mT).numpy()
        np.testing.assert_allclose(found, np.cos(angles) @ matrix.T, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("size", "window", "device", "level"), [
    (5, 3, "CPU", "tensor"), (5, 3, "REF", "linear"), (6, 2, "CPU", "tensor"),
])
def test_one_element_that_only_some_lanes_want(
    size: int, window: int, device: str, level: str
) -> None:
    """The lanes of a stacked convolution are of two images; a factor is one element for all."""
    rng = np.random.default_rng(size)
    image = rng.integers(-4, 5, (2, 2, size, size)).astype(np.float32)
    filters = rng.integers(-4, 5, (2, 2, window, window)).astype(np.float32)
    with options.override(device=device, ref_level=level):
        made = Tensor(image).conv2d(Tensor(filters))
        found = Tensor.stack([made, made], dim=3).numpy()
    view = np.lib.stride_tricks.sliding_window_view(image, (window, window), axis=(2, 3))
    wanted = np.einsum("ncijhw,ochw->noij", view, filters)
    np.testing.assert_array_equal(found, np.stack([wanted, wanted], axis=3))

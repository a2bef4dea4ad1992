"""Choices between elements of one array: one load at a chosen place, where lanes allow it."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.codegen import to_linear
from baregrad.kernel.loops.select_of_loads import join_reads
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor
from tests.kernel.linearise.test_linearise import ROUTES, data, zeros
from tests.render.harness import (
    check,
    compiled,
    guard,
    host,
    kernel,
    load,
    loop,
    param,
    store,
    vector,
)

pytestmark = pytest.mark.differential
ROW, LANE, OUTPUT = range_node(6, 0), vector(8, 1), param(0, 6, 8)
ARRAY, OTHER = param(1, 9, 8), param(2, 9, 8)
UPPER = index.less(ROW, 2)


def stored(value: Node) -> Node:
    return kernel(loop(ROW, store(OUTPUT, value, ROW, LANE)))


def reads(node: Node) -> int:
    return sum(each.op is Ops.LOAD for each in toposort(node))


def choice(condition: Node, value: Node, other: Node) -> Node:
    return alu(Ops.WHERE, condition, value, other)


def at(place: object, lane: Node = LANE, array: Node = ARRAY) -> Node:
    return load(array, index.as_node(place), lane)


@pytest.mark.parametrize("guarded", [(), (0,), (1,), (0, 1)])
def test_a_choice_of_rows_is_one_load(guarded: tuple[int, ...]) -> None:
    sides = [at(index.add(ROW, 3)), at(index.sub(5, ROW))]
    known = [index.less(ROW, 1), index.less(1, ROW)]
    sides = [guard(known[k], side) if k in guarded else side for k, side in enumerate(sides)]
    node = stored(choice(UPPER, *sides))
    joined = join_reads(node)
    assert (reads(node), reads(joined)) == (2, 1)
    found, array = check(joined, [zeros(6, 8), data(9, 8)], routes=ROUTES)
    expected = np.array([array[i + 3] if i < 2 else array[5 - i] for i in range(6)])
    if 0 in guarded:
        expected[1] = 0
    np.testing.assert_array_equal(found, expected)


def test_three_rows_under_a_mask_of_lanes_are_one_load() -> None:
    """As of what is padded with its own rows, and with columns."""
    inner = choice(index.less(ROW, 5), guard(index.less(1, ROW), at(ROW)), at(8))
    rows = choice(UPPER, guard(UPPER, at(index.sub(1, ROW))), inner)
    node = stored(guard(index.less(LANE, 5), rows))
    joined = join_reads(node)
    assert reads(joined) == 1
    (outer,) = [each for each in toposort(joined) if each.op is Ops.GUARD]
    assert outer.src[1].op is Ops.LOAD
    found, array = check(joined, [zeros(6, 8), data(9, 8)], routes=ROUTES)
    expected = np.where(np.arange(8) < 5, array[[1, 0, 2, 3, 4, 8]], 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("value", [
    choice(UPPER, at(ROW), at(ROW, index.as_node(index.sub(7, LANE)))),
    choice(index.less(LANE, 4), at(ROW), at(8)),
    choice(UPPER, at(ROW), at(ROW, array=OTHER)),
    choice(UPPER, at(ROW), const(1.0, dtypes.float32)),
], ids=["lanes-differ", "lanes-choose", "arrays-differ", "no-load"])  # fmt: skip
def test_other_choices_stay(value: Node) -> None:
    node = stored(value)
    assert join_reads(node) is node
    arrays = [zeros(6, 8), data(9, 8)]
    check(node, [*arrays, data(9, 8, seed=1)] if reads(node) > 1 else arrays, routes=ROUTES)


def test_a_condition_that_is_read_stays_inside_its_guard() -> None:
    """Places that are read say which element; they are there where the outer guard holds alone."""
    places = param(2, 3, dtype=dtypes.int32)
    inside = index.less(ROW, 3)
    read = alu(Ops.CMPLT, load(places, ROW), const(4, dtypes.int32))
    node = stored(guard(inside, guard(read, at(ROW))))
    assert join_reads(node) is node


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("shape", [(2, 3, 40, 70), (1, 2, 7, 130)])
def test_paddings_by_what_is_there(mode: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    with options.override(device="CPU"):
        for left, right, top, bottom in ((1, 1, 1, 1), (3, 2, 0, 5), (0, 6, 4, 1)):
            found = Tensor(array).pad((left, right, top, bottom), mode=mode).numpy()
            widths = ((0, 0), (0, 0), (top, bottom), (left, right))
            expected = np.pad(array, widths, mode=names[mode])  # type: ignore[call-overload]
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(7, 64), (5, 130), (3, 100, 33)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_rows_that_are_turned_and_moved(shape: tuple[int, ...], dtype: str) -> None:
    """Lanes lie backwards: what is chosen is read by a branch, which no tile of rows may hold."""
    array = np.random.default_rng(4).integers(-99, 99, shape).astype(dtype)
    with options.override(device="CPU"):
        x = Tensor(array)
        for by in (-3, 2):
            np.testing.assert_array_equal(
                x.flip(-1).roll(by, 0).numpy(), np.roll(array[..., ::-1], by, 0)
            )
            np.testing.assert_array_equal(
                x.roll(by, -2).flip(-1).numpy(), np.roll(array, by, -2)[..., ::-1]
            )


def test_a_mask_that_is_partly_shared_is_asked_for_in_parts() -> None:
    """LLVM took the first lane of what two scalars are spread to for all of the mask."""
    array = np.random.default_rng(5).standard_normal((100, 2)).astype(np.float32)
    padded = np.pad(array, ((4, 2), (2, 0)), mode="edge")
    with options.override(device="CPU"):
        x = Tensor(array).pad((2, 0, 4, 2), mode="replicate")
        found = x.narrow(0, 33, 73).cat(x.flip(0).narrow(0, 0, 33), dim=0).numpy()
    np.testing.assert_array_equal(found, np.concatenate([padded[33:], padded[::-1][:33]]))


def test_signs_that_are_asked_for_alone_are_those_of_the_mask() -> None:
    """LLVM took them from another register, where one above the sixteenth held the mask."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        wanted, y = (rng.integers(-3, 4, (6, 8)).astype(np.int32) for _ in range(2))
        with options.override(device="CPU"):
            found, x = Tensor(wanted.copy()), Tensor(y)
            made = (x[3:4] * 3).cat(x[:5] @ (x.T @ x), dim=0) + found
            found[:, 1:6] = made[:, 1:6]
            found[:, :2] = found[:][:, :2]
            values = found.numpy()
        wanted[:, 1:6] += np.concatenate([y[3:4] * 3, y[:5] @ (y.T @ y)])[:, 1:6]
        np.testing.assert_array_equal(values, wanted)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 64])
def test_one_element_for_some_lanes_under_shared_conditions(lanes: int) -> None:
    i, v = range_node(40, 0), vector(lanes, 1)
    x, out = param(1, 40), param(0, 40, lanes)
    some = index.less(v, lanes // 2 + 1)
    first = choice(index.less(i, 30), index.less(i, 20), index.less(35, i))
    second = index.less(5, i)
    value = guard(index.both(some, first, second), load(x, i))
    node = kernel(loop(i, store(out, choice(index.less(2, i), value, load(x, i)), i, v)))
    found, array = check(node, [zeros(40, lanes), data(40)], routes=ROUTES)
    rows = np.arange(40)[:, None]
    held = np.where(rows < 30, rows < 20, rows > 35) & (rows > 5)
    held = held & (np.arange(lanes) < lanes // 2 + 1)
    expected = np.where((rows <= 2) | held, array[:, None], 0)
    np.testing.assert_array_equal(found, expected)


def test_registers_of_rows_that_are_not_there_are_not_read() -> None:
    """The first rows' shifted places lie before the array, pages away from all that is there."""
    if host().architecture != "x86_64":
        pytest.skip("another architecture's code does not run here")
    row = cpu_row_named("x86-64-avx2")
    i, v = range_node(135, 0), vector(16, 1)
    x, out = param(1, 1080), param(0, 2160)
    here = index.less(7, i)
    parts = [
        guard(index.both(here, some), load(x, index.add(index.add(index.mul(i, 8), v), shift)))
        for some, shift in (
            (index.less(11, v), -76), (index.both(index.less(v, 12), index.less(3, v)), -68),
            (index.less(v, 4), -60),
        )
    ]  # fmt: skip
    chosen = choice(index.less(3, v), choice(index.less(11, v), *parts[:2]), parts[2])
    place = index.add(index.mul(i, 16), v)
    node = kernel(loop(i, store(out, choice(here, chosen, const(0.0, x.dtype)), place)))
    # An array that begins where nothing can be read in front.
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0)
    try:
        array = np.frombuffer(pages, np.float32, 1080, mmap.PAGESIZE)
        array[:] = data(1080)
        found = np.ones(2160, np.float32)
        compiled(to_linear(node, row), "llvm", row)([found, array])
        del array
    finally:
        libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 3)
    place_of = np.arange(135)[:, None] * 8 + np.arange(16)
    shifted = place_of + np.repeat([-60, -68, -76], [4, 8, 4])
    wanted = data(1080)[np.clip(shifted, 0, 1079)]
    expected = np.where(np.arange(135)[:, None] > 7, wanted, 0).ravel()
    np.testing.assert_array_equal(found, expected)

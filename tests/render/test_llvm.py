"""What the LLVM renderer alone does: accesses that repeat become calls of one function."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from baregrad import render
from baregrad.assemble.llvm import LlvmAssembler, LlvmOptions
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import to_linear
from baregrad.runtime.cpu.elf import read_object
from baregrad.target.cpu import CPU_ROWS, CpuTarget
from tests.render.harness import (
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
    unroll,
    vector,
)

ROWS, COLUMNS = 12, 16
DTYPES = pytest.mark.parametrize(
    "dtype", [dtypes.int8, dtypes.int16, dtypes.float32, dtypes.int64], ids=str
)


def turned(dtype: DType, count: int, lanes: int = 8) -> Node:
    """out[j, i] = x[i, j], `count` rows of `lanes` strided elements to a step.

    The rows of a step are no neighbours: those would be transposed in registers.
    """
    steps = ROWS // count
    assert COLUMNS % lanes == 0
    i, n = range_node(steps, 0), range_node(COLUMNS // lanes, 1)
    u, v = unroll(count, 2), vector(lanes, 3)
    x, out = param(1, ROWS * COLUMNS, dtype=dtype), param(0, ROWS * COLUMNS, dtype=dtype)
    row = index.add(index.mul(u, steps), i)
    column = index.add(index.mul(n, lanes), v)
    value = load(x, index.add(index.mul(row, COLUMNS), column))
    return kernel(loop(i, loop(n, store(out, value, index.add(index.mul(column, ROWS), row)))))


def gathered(dtype: DType, count: int, lanes: int = 8) -> Node:
    """out[j, i] = x[i, j] with strided loads: out is (COLUMNS, ROWS), lanes run along i."""
    n = range_node(COLUMNS // count, 1)
    u, v = unroll(count, 2), vector(lanes, 3)
    x, out = param(1, ROWS * COLUMNS, dtype=dtype), param(0, COLUMNS * lanes, dtype=dtype)
    column = index.add(index.mul(u, COLUMNS // count), n)
    value = load(x, index.add(index.mul(v, COLUMNS), column))
    return kernel(loop(n, store(out, value, index.add(index.mul(column, lanes), v))))


def text_of(node: Node, row: CpuTarget) -> str:
    return render.get("llvm").render(to_linear(node, row), row)


@DTYPES
@pytest.mark.parametrize("count", [1, 4, 6])
def test_strided_stores_have_the_values_of_the_evaluator(dtype: DType, count: int) -> None:
    assert dtype.numpy is not None
    x = np.random.default_rng(0).integers(-100, 100, (ROWS, COLUMNS)).astype(dtype.numpy)
    out = np.zeros(ROWS * COLUMNS, dtype.numpy)
    found = check(turned(dtype, count), [out, x.reshape(-1)], routes=("linear", "llvm", "c"))
    np.testing.assert_array_equal(found[0].reshape(COLUMNS, ROWS), x.T)


@DTYPES
@pytest.mark.parametrize("count", [1, 4, 8])
def test_strided_loads_have_the_values_of_the_evaluator(dtype: DType, count: int) -> None:
    assert dtype.numpy is not None
    x = np.random.default_rng(1).integers(-100, 100, (ROWS, COLUMNS)).astype(dtype.numpy)
    out = np.zeros(COLUMNS * 8, dtype.numpy)
    found = check(gathered(dtype, count), [out, x.reshape(-1)], routes=("linear", "llvm", "c"))
    np.testing.assert_array_equal(found[0].reshape(COLUMNS, 8), x[:8].T)


@DTYPES
@pytest.mark.parametrize("lanes", (4, 8, 16))
@pytest.mark.parametrize("first", (0, 1))
def test_every_other_element_up_to_the_end(dtype: DType, lanes: int, first: int) -> None:
    """Nothing is read past the array, which ends where the process may read nothing more."""
    assert dtype.numpy is not None
    count = 2 * lanes + 3
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    pages = np.frombuffer(memory, np.uint8)
    end = pages.ctypes.data + mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
    nbytes = count * dtype.itemsize
    values = pages[mmap.PAGESIZE - nbytes : mmap.PAGESIZE].view(dtype.numpy)
    values[:] = np.arange(1, count + 1)
    i, v = range_node(2, 0), vector(lanes, 1)
    place = index.add(index.mul(i, lanes), v)
    x, out = param(1, count, dtype=dtype), param(0, 2 * lanes, dtype=dtype)
    source = index.add(index.mul(place, 2), first)
    value = guard(index.less(source, count), load(x, source))
    node = kernel(loop(i, store(out, value, place)))
    for route in ("llvm", "c"):
        found = np.zeros(2 * lanes, dtype.numpy)
        compiled(lower(node), route)([found, values])
        taken = np.arange(1, count + 1)[first::2]
        np.testing.assert_array_equal(found[: len(taken)], taken)
        assert not found[len(taken) :].any()


@pytest.mark.parametrize("make,verb", [(turned, "store"), (gathered, "load")])
def test_only_accesses_that_repeat_are_calls(make: object, verb: str) -> None:
    assert callable(make)
    for count, calls in ((1, 0), (4, 4)):
        text = render.get("llvm").render(lower(make(dtypes.float32, count)), host())
        name = f"@{verb}.float.8."
        assert text.count(f"call void {name}") + text.count(f"= call <8 x float> {name}") == calls
        assert text.count("define internal") == (calls > 0)


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
def test_calls_need_no_relocation(row: CpuTarget) -> None:
    text = text_of(turned(dtypes.float32, 6), row)
    assert "define internal" in text
    triple = f"{row.architecture}-unknown-linux-gnu"
    features = ",".join(f"+{feature}" for feature in row.features)
    options = LlvmOptions(cpu=row.llvm_cpu, features=features, triple=triple)
    assert not read_object(LlvmAssembler(options=options).assemble(text)).relocations


def one_after_the_other(rows: int, columns: int, by_lane: bool) -> Node:
    """The rows of one array, then those of another: what is not read lies far from either.

    Whole vectors are of one array, which their row alone tells; or, `by_lane`, their lanes tell.
    """
    i, n, v = range_node(2 * rows, 0), range_node(columns // 16, 1), vector(16, 2)
    place = index.total((index.mul(i, columns), index.mul(n, 16), v))
    size = rows * columns
    first, second = param(1, size), param(2, size)
    place = index.total((place, 8)) if by_lane else place
    inside = index.less(place if by_lane else i, size if by_lane else rows)
    beyond = index.both(index.less(size - 1, place), index.less(place, 2 * size))
    beyond = beyond if by_lane else index.less(rows - 1, i)
    value = alu(
        Ops.WHERE, inside, guard(inside, load(first, place)),
        guard(beyond, load(second, index.sub(place, size))),
    )
    out = param(0, 2 * size)
    return kernel(loop(i, loop(n, store(out, value, index.sub(place, 8) if by_lane else place))))


@pytest.mark.parametrize("by_lane", [False, True])
@pytest.mark.parametrize("columns", [16, 2048])
def test_what_a_mask_leaves_out_is_not_read(by_lane: bool, columns: int) -> None:
    first, second = np.random.default_rng(2).standard_normal((2, 6 * columns)).astype(np.float32)
    out = np.zeros(12 * columns, np.float32)
    node = one_after_the_other(6, columns, by_lane)
    found = check(node, [out, first, second], routes=("linear", "llvm", "c"))
    wanted = np.concatenate([first, second, np.zeros(8, np.float32)])
    start = 8 if by_lane else 0
    np.testing.assert_array_equal(found[0], wanted[start : start + out.size])


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
def test_vectors_far_from_their_array_are_not_asked_for(row: CpuTarget) -> None:
    """A masked load at an address without memory takes a hundred times as long as another.

    Without masks of the machine's own, vectors near theirs are not, either: LLVM might ask.
    """
    whole = text_of(one_after_the_other(64, 2048, False), row)
    assert "@llvm.masked.load" not in whole
    assert "ptr @zeros.64" in whole
    near = text_of(one_after_the_other(4, 16, True), row)
    far = text_of(one_after_the_other(64, 2048, True), row)
    masked = "@llvm.masked.load" in near
    assert ("ptr @zeros.64" in near) == (masked and not row.masks)
    assert ("ptr @zeros.64" in far) == ("@llvm.masked.load" in far)


def looked_up(count: int, size: int) -> Node:
    """out[i] = x[places[i]], 0 where that is not inside."""
    i, v = range_node(count // 8, 0), vector(8, 1)
    place = index.total((index.mul(i, 8), v))
    places, x, out = param(1, count, dtype=dtypes.int64), param(2, size), param(0, count)
    where = cast(load(places, place), dtypes.index)
    value = guard(index.inside(where, size), load(x, where))
    return kernel(loop(i, store(out, value, place)))


@pytest.mark.parametrize("size", [1, 5, 100])
def test_lanes_that_look_up_nothing_are_zero(size: int) -> None:
    places = np.random.default_rng(3).integers(-3 * size, 3 * size, 64)
    places[:3] = -(2**62), 2**62, size - 1
    x = np.random.default_rng(4).standard_normal(size).astype(np.float32)
    out = np.ones(64, np.float32)
    found = check(looked_up(64, size), [out, places, x], routes=("linear", "llvm", "c"))
    inside = (places >= 0) & (places < size)
    np.testing.assert_array_equal(found[0], np.where(inside, x[np.clip(places, 0, size - 1)], 0))


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
def test_a_mask_chooses_all_places_at_once(row: CpuTarget) -> None:
    """What the mask's condition reads is read once, without a mask, and no lane asks for itself."""
    text = text_of(looked_up(64, 100), row)
    assert text.count("load <8 x i64>") == 1
    assert "@llvm.masked.load" not in text
    assert "select i1" not in text
    assert text.count("load float") == 8


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float32], ids=str)
@pytest.mark.parametrize("registers", [2, 4])
@pytest.mark.parametrize("each_row", [False, True])
def test_half_of_a_vector_that_a_mask_leaves_out_is_zero(
    row: CpuTarget, dtype: DType, registers: int, each_row: bool
) -> None:
    """LLVM 22 reads registers whole where it knows that the mask is false for them, or aborts."""
    if not set(row.needs) <= set(host().features) or row.architecture != host().architecture:
        pytest.skip("this machine does not run it")
    rows, half = 5, 16 * registers // dtype.itemsize
    i, v = range_node(rows, 0), vector(2 * half, 1)
    place = index.total((index.mul(i, 2 * half), v))
    shown = index.less(v, half)
    if not each_row:
        shown = index.both(shown, index.less(i, rows - 1))
    x, other, out = (param(slot, rows * 2 * half, dtype=dtype) for slot in (1, 2, 0))
    chosen = load(param(3, rows * 2 * half, dtype=dtypes.bool), place)
    value = alu(
        Ops.WHERE, chosen, load(other, place),
        guard(shown, load(x, index.total((index.mul(i, half), v)))),
    )  # fmt: skip
    program = to_linear(kernel(loop(i, store(out, value, place))), row)
    rng = np.random.default_rng(5)
    name = dtype.numpy
    arrays = [rng.uniform(1, 2, rows * 2 * half).astype(name) for _ in range(3)]
    mask = rng.random(rows * 2 * half) < 0.5
    wanted = np.zeros((rows, 2 * half), name)
    wanted[:, :half] = arrays[1][: rows * half].reshape(rows, half)
    if not each_row:
        wanted[-1] = 0
    wanted = np.where(mask.reshape(wanted.shape), arrays[2].reshape(wanted.shape), wanted)
    compiled(program, "llvm", row)([*arrays, mask])
    np.testing.assert_array_equal(arrays[0].reshape(wanted.shape), wanted)
    # Alone, as padding is.
    compiled(to_linear(kernel(loop(i, store(out, value.src[2], place))), row), "llvm", row)(arrays)


@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.uint16, dtypes.uint32], ids=str)
def test_the_lesser_of_a_converted_float_and_zero_is_zero(dtype: DType) -> None:
    """LLVM fails on it: it takes that for a conversion to an integer of no bits."""
    lanes = vector(4, 0)
    x, out = param(1, 4), param(0, 4, dtype=dtype)
    value = Node(Ops.MIN, dtype, (cast(load(x, lanes), dtype), const(0, dtype)))
    made = kernel(store(out, value, lanes))
    kind = np.dtype(f"uint{dtype.bits}")
    found = check(made, [np.ones(4, kind), np.arange(4, dtype=np.float32)])
    np.testing.assert_array_equal(found[0], np.zeros(4, kind))


@pytest.mark.parametrize(("ahead", "cache"), [(512, 3), (1 << 16, 2)])
def test_what_lies_far_ahead_goes_to_the_second_cache(ahead: int, cache: int) -> None:
    """The first cache keeps what is worked on meanwhile. `cache` is LLVM's locality."""
    rows, count, lanes = 4, 64, 8
    shape, shares = (rows * count,), (("i", ahead, 256),)
    x = Node(Ops.PARAM, dtypes.float32, (), Param(1, shape, ahead=ahead, shares=shares))
    row, i, v = range_node(rows, 0, "row"), range_node(count // lanes, 1, "i"), vector(lanes, 2)
    place = index.add(index.mul(row, count), index.add(index.mul(i, lanes), v))
    node = kernel(loop(row, loop(i, store(param(0, rows * count), load(x, place), place))))
    lines = text_of(node, CPU_ROWS[0]).splitlines()
    requests = [line for line in lines if "call void @llvm.prefetch" in line]
    assert len(requests) == 4
    assert all(line.endswith(f"i32 0, i32 {cache}, i32 1)") for line in requests)

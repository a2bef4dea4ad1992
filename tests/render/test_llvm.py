"""What the LLVM renderer alone does: accesses that repeat become calls of one function."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from baregrad import render
from baregrad.assemble.llvm import LlvmAssembler, LlvmOptions
from baregrad.dtypes import DType, dtypes
from baregrad.ir import index
from baregrad.ir.node import Node, range_node
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

"""Programs for every CPU row render, assemble for that machine, and follow its facts."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import render
from baregrad.assemble.llvm import LlvmAssembler, LlvmOptions
from baregrad.base.errors import CompilerBug, OptionError
from baregrad.dtypes import DType, dtypes, encode
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo
from baregrad.ir.core.node import Node, alu, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import to_linear
from baregrad.render import entry_name, signature
from baregrad.runtime.cpu.elf import read_object
from baregrad.target.cpu import CPU_ROWS, CpuTarget
from tests.render.harness import (
    F32,
    branch,
    compiled,
    elementwise,
    host,
    kernel,
    load,
    loop,
    lower,
    param,
    store,
    vector,
)

ROWS = pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)


def busy(dtype: DType) -> Node:
    """Narrow loads, functions, casts and a masked tail in one kernel."""
    i, v = range_node(3, 0), vector(8, 1)
    place = index.add(index.mul(i, 8), v)
    x, out = param(1, 20, dtype=dtype), param(0, 20, dtype=dtype)
    value = Node(Ops.EXP, dtype, (alu(Ops.MUL, load(x, place), load(x, place)),))
    return kernel(loop(i, branch(index.less(place, 20), store(out, value, place))))


@ROWS
@pytest.mark.parametrize("dtype", (F32, dtypes.float16, dtypes.bfloat16), ids=str)
def test_every_row_assembles(row: CpuTarget, dtype: DType) -> None:
    program = to_linear(busy(dtype), row)
    text = render.get("llvm").render(program, row)
    triple = f"{row.architecture}-unknown-linux-gnu"
    features = ",".join(f"+{feature}" for feature in row.features)
    options = LlvmOptions(cpu=row.llvm_cpu, features=features, triple=triple)
    parsed = read_object(LlvmAssembler(options=options).assemble(text))
    assert parsed.machine == {"x86_64": 62, "aarch64": 183}[row.architecture]


@ROWS
def test_float16_is_the_machines_own_only_where_it_converts(row: CpuTarget) -> None:
    program = to_linear(busy(dtypes.float16), row)
    native = any(node.dtype is dtypes.float16 for node in program.src)
    assert native == ("float16" in row.converted_floats)


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=str)
def test_rows_agree_on_results(dtype: DType) -> None:
    values = np.linspace(-3, 3, 20).astype(np.float32)
    raw = encode(values, dtype)
    memory = dtype.numpy or dtype.storage
    found = []
    for row in CPU_ROWS:
        array = np.zeros(20, memory)
        evaluate_linear(to_linear(busy(dtype), row), [array, raw.view(memory)])
        found.append(array.tobytes())
    assert len(set(found)) == 1


# --- signatures ---------------------------------------------------------------------------------


def test_entry_names_are_symbols() -> None:
    program = lower(busy(F32))
    for name, symbol in (("matmul", "matmul"), ("a b/c", "a_b_c"), ("3d", "k_3d"), ("", "k_")):
        assert entry_name(program.replace(arg=KernelInfo(name))) == symbol


def test_variables_come_in_the_order_that_is_asked_for() -> None:
    n, m = index.variable("n", 1, 4), index.variable("m", 1, 4)
    i, j = range_node(n, 0), range_node(m, 1)
    node = kernel(loop(i, loop(j, store(param(0, n, m), load(param(1, n, m), i, j), i, j))))
    program = lower(node)
    assert signature(program).variables == ("m", "n")
    assert signature(program, ("n", "other", "m")).variables == ("n", "other", "m")
    for name, wanted in (("llvm", "i64 2"), ("c", "variables[2]")):
        text = render.get(name).render(program, host(), ("n", "other", "m"))
        assert wanted in text


def test_unknown_renderers_and_ops_are_errors() -> None:
    with pytest.raises(OptionError, match="wanted llvm, c, ptx or cuda"):
        render.get("metal")
    stray = Node(Ops.PROGRAM, dtypes.token, (Node(Ops.BARRIER, dtypes.token),), KernelInfo())
    for name in ("llvm", "c"):
        with pytest.raises(CompilerBug, match="no rule"):
            render.get(name).render(stray, host())


def test_vectors_longer_than_the_machines_are_right() -> None:
    node = elementwise([lambda x: Node(Ops.SQRT, F32, (x,))], 128, [F32], 64)
    expected, found = np.zeros(128, np.float32), np.zeros(128, np.float32)
    x = np.arange(128, dtype=np.float32)
    evaluate_loop(node, [expected, x])
    compiled(lower(node))([found, x])
    np.testing.assert_array_equal(expected, found)

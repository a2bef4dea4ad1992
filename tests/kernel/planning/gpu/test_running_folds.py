"""Running folds that the threads of a block make together, at every level down to PTX."""

from __future__ import annotations

import re
from typing import Any

import pytest

from baregrad import render
from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.engine.compiler import Compiler
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Scan
from baregrad.ir.core.monoid import primitive, scaled_sum
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import apply_schedule, choose_schedule
from baregrad.kernel.language.schedule import Bind, Schedule, Split
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu

F32, I32, I64, U64 = dtypes.float32, dtypes.int32, dtypes.int64, dtypes.uint64


def running(op: Any, dtype: DType, *shape: int, then: bool = False) -> Node:
    """A running fold along the last axis; then: something is made of it and of what it folds."""
    axes = tuple(range_node(extent, place) for place, extent in enumerate(shape))
    value = k.at(k.param(1, *shape, dtype=dtype), *axes)
    found = Node(Ops.SCAN, dtype, (value, axes[-1]), Scan(primitive(op, dtype)))
    if then:
        found = alu(Ops.SUB, alu(Ops.MUL, found, const(3, dtype)), value)
    return k.kernel(k.out(k.param(0, *shape, dtype=dtype), found, *axes))


def units(kernel: Node) -> dict[str, list[int]]:
    """The units that a kernel's schedule binds axes to, and how long those are."""
    schedule = choose_schedule(kernel, HOPPER)
    sizes = {
        name: size for step in schedule.steps if isinstance(step, Split)
        for name, size in step.parts
    }
    found: dict[str, list[int]] = {}
    for step in schedule.steps:
        if isinstance(step, Bind):
            found.setdefault(step.unit, []).append(sizes.get(step.axis, 0))
    return found


@pytest.mark.parametrize("op", (Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL), ids=lambda op: str(op.name))
@pytest.mark.parametrize("shape", [(16,), (3, 17), (70,), (2, 128), (300,), (5, 257), (2, 1100)])
def test_rows_of_every_length(op: Any, shape: tuple[int, ...]) -> None:
    kernel = running(op, dtypes.float32, *shape)
    assert {"thread", "vector"} <= units(kernel).keys()
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("shape", [(16,), (3, 17), (2, 128), (300,), (2, 1100)])
def test_pairs_of_every_length(shape: tuple[int, ...]) -> None:
    """Two states, each of which is written; threads exchange both."""
    axes = tuple(range_node(extent, place) for place, extent in enumerate(shape))
    values = [k.at(k.param(slot, *shape), *axes) for slot in (2, 3)]
    both = Node(Ops.SCAN, F32, (*values, axes[-1]), Scan(scaled_sum(F32)))
    kernel = k.kernel(*[
        k.out(k.param(part, *shape), Node(Ops.PROJ, F32, (both,), part), *axes)
        for part in range(2)
    ])
    assert {"thread", "vector"} <= units(kernel).keys()
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("shape", [(17,), (3, 300)])
def test_rows_that_are_read_from_the_end(shape: tuple[int, ...]) -> None:
    axes = tuple(range_node(extent, place) for place, extent in enumerate(shape))
    last = index.sub(shape[-1] - 1, axes[-1])
    value = k.at(k.param(1, *shape), *axes[:-1], last)
    found = Node(Ops.SCAN, value.dtype, (value, axes[-1]), Scan(primitive(Ops.ADD, value.dtype)))
    kernel = k.kernel(k.out(k.param(0, *shape), found, *axes))
    assert {"thread", "vector"} <= units(kernel).keys()
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (Ops.ADD, I32), (Ops.ADD, I64), (Ops.XOR, U64), (Ops.OR, dtypes.uint8),
        (Ops.MAX, dtypes.bfloat16), (Ops.MIN, dtypes.int16), (Ops.ADD, dtypes.float64),
    ],
    ids=str,
)
def test_every_dtype(op: Any, dtype: DType) -> None:
    for shape in ((4, 40), (600,)):
        kernel = running(op, dtype, *shape)
        check_gpu(kernel, choose_schedule(kernel, HOPPER))


def test_what_follows_is_part_of_the_kernel() -> None:
    kernel = running(Ops.ADD, dtypes.float32, 3, 300, then=True)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


def test_rows_that_are_read_across() -> None:
    i, j = range_node(3, 0), range_node(300, 1)
    value = k.at(k.param(1, 300, 3), j, i)
    found = Node(Ops.SCAN, k.F32, (value, j), Scan(primitive(Ops.ADD, k.F32)))
    kernel = k.kernel(k.out(k.param(0, 3, 300), found, i, j))
    assert {"thread", "vector"} <= units(kernel).keys()
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


def test_threads_depend_on_the_length_alone() -> None:
    """So that the bits of a row do, too, whatever there is beside it."""
    for length in (200, 256, 3000):
        alone, beside = (units(running(Ops.ADD, dtypes.float32, *shape)) for shape in
                         ((length,), (4096, length)))
        assert (alone["thread"], alone["vector"]) == (beside["thread"], beside["vector"])


@pytest.mark.parametrize(("dtype", "shared"), [(F32, [False, False]), (I32, [True, False])])
def test_how_many_rows_are_gathered_across_changes_no_bits(
    dtype: DType, shared: list[bool]
) -> None:
    """Integers are added up in any order: by a block's threads where there are few rows."""
    found = []
    for rows in (4, 1 << 14):
        i, j, m = range_node(rows, 0), range_node(64, 1), range_node(32, 2)
        place = Node(Ops.CAST, dtypes.index, (k.at(k.param(2, rows, 64, 32, dtype=I64), i, j, m),))
        value = k.at(k.param(1, rows, 64, 32, dtype=dtype), i, place, m)
        total = Node(Ops.SCAN, dtype, (value, j), Scan(primitive(Ops.ADD, dtype)))
        kernel = k.kernel(k.out(k.param(0, rows, 64, 32, dtype=dtype), total, i, j, m))
        found.append("vector" in units(kernel))
    assert found == shared


def test_rows_that_are_too_long_or_short_are_left_to_single_threads() -> None:
    for kernel in (running(Ops.ADD, dtypes.float32, 64, 8), k.cumsum(300, 40, 0),
                   running(Ops.ADD, dtypes.float32, 4, 1 << 16)):
        assert "vector" not in units(kernel)


@pytest.mark.parametrize("steps", [
    (Split("i1", (("o", 0), ("t", 32))),),
    (Split("i1", (("o", 0), ("t", 128))), Bind("t", "unroll")),
    (Split("i1", (("o", 0), ("v", 4), ("t", 32))), Bind("v", "vector"), Bind("t", "thread")),
    (Split("i1", (("o", 0), ("t", 32), ("v", 4))), Bind("t", "thread")),
])  # fmt: skip
def test_other_splits_are_refused(steps: tuple[Any, ...]) -> None:
    with pytest.raises(ScheduleError):
        apply_schedule(running(Ops.ADD, dtypes.float32, 2, 128), Schedule(steps), HOPPER)


def test_elements_move_in_wide_accesses_once() -> None:
    kernel = running(Ops.ADD, dtypes.float32, 512, 2048)
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    text = str(last.result)
    assert re.findall(r"(?:ld|st)\.global\S*", text) == 2 * ["ld.global.v4.f32"] + 2 * [
        "st.global.v4.f32"
    ]
    # Five exchanges of a warp, one meeting of all warps.
    assert len(re.findall(r"shfl", text)) == 5
    assert len(re.findall(r"bar\.sync", text)) == 1

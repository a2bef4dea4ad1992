"""Kernels without sums on a GPU: wide accesses whatever the size, and values at every level."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby

import pytest

from baregrad import render
from baregrad.dtypes import DType, dtypes
from baregrad.engine.compiler import Compiler
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, cast, range_node
from baregrad.kernel import choose_schedule
from baregrad.kernel.linearise.linearise import TOGETHER
from baregrad.schedule import make_plan
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu
from tests.schedule.graphs import F32, A, param, sink

# A machine that few threads keep busy: small arrays are shared out as large ones are.
SMALL = replace(HOPPER, busy_threads=1)
LARGE = 1 << 22


def accesses(value: A, pattern: str = r"((?:ld|st)\.global\S*)") -> list[str]:
    """What the one kernel of a value loads and stores, or else does, in order."""
    plan = make_plan(canonicalise(sink(value), None, HOPPER), donate={}, target=HOPPER)
    (kernel,) = plan.kernels
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    return re.findall(pattern, str(last.result))


def converted(count: int, old: DType, new: DType) -> Node:
    i = range_node(count, 0)
    value = cast(k.at(k.param(1, count, dtype=old), i), new)
    return k.kernel(k.out(k.param(0, count, dtype=new), value, i))


@pytest.mark.parametrize("shape", [(1,), (3,), (2048,), (2051,), (5, 999), (3, 4, 85), (37, 64)])
def test_elementwise_kernels_of_every_size(shape: tuple[int, ...]) -> None:
    kernel = k.elementwise(*shape)
    for target in (HOPPER, SMALL):
        check_gpu(kernel, choose_schedule(kernel, target))


@pytest.mark.parametrize("pair", [
    (dtypes.int8, dtypes.float32), (dtypes.float32, dtypes.int8), (dtypes.int16, dtypes.int64),
    (dtypes.float64, dtypes.float32), (dtypes.uint8, dtypes.int16),
])
@pytest.mark.parametrize("count", [4096, 4099])
def test_conversions_between_widths(count: int, pair: tuple[DType, DType]) -> None:
    kernel = converted(count, *pair)
    check_gpu(kernel, choose_schedule(kernel, SMALL))


@pytest.mark.parametrize("shape", [(24, 40), (7, 33)])
def test_broadcast_operands(shape: tuple[int, int]) -> None:
    for kernel in (k.bias(*shape), k.rows_scaled_by_columns(*shape)):
        check_gpu(kernel, choose_schedule(kernel, SMALL))


def test_loads_come_before_stores() -> None:
    """A load does not pass a store, so a thread has all its loads under way first."""
    found = accesses(param(0, LARGE) + param(1, LARGE))
    assert found == ["ld.global.v4.f32"] * 2 + ["st.global.v4.f32"]


def test_what_follows_a_product_is_loaded_before_it_is_divided_and_stored() -> None:
    """Some of it at a time: what a lane holds of a tile's results is too much for registers."""
    left, right, divisor = [param(slot, 4096, 4096, dtype=dtypes.bfloat16) for slot in range(3)]
    product = left.cast(F32) @ right.permute(1, 0).cast(F32)
    value = (product / divisor.cast(F32)).cast(dtypes.bfloat16)
    found = accesses(value, r"((?:ld|st)\.global\S*|div\.rn)")
    runs = [(name, len([*each])) for name, each in groupby(found)]
    several = TOGETHER // 8
    group = [("ld.global.v4.b32", several)] + [("div.rn", 8), ("st.global.v4.b32", 1)] * several
    assert runs == group * (len(runs) // len(group))
    assert len(runs) > len(group)


def test_sizes_that_nothing_divides_have_wide_accesses() -> None:
    found = accesses(param(0, LARGE + 3) * 2)
    assert found.count("ld.global.v4.f32") == 1
    assert found.count("ld.global.f32") == 1
    flat = accesses(param(0, LARGE // 1001, 1001) * 2)
    assert "ld.global.v4.f32" in flat


def test_the_widest_array_has_one_whole_access_for_each_of_others() -> None:
    """Two for each would be of half the sectors that a warp's threads reach."""
    half = param(0, LARGE, dtype=dtypes.float16)
    found = accesses(half.cast(dtypes.float32))
    assert set(found) == {"ld.global.v2.b32", "st.global.v4.f32"}
    assert len(found) % 2 == 0
    assert set(accesses(half * 2)) == {"ld.global.v4.b32", "st.global.v4.b32"}


def test_what_is_not_aligned_is_read_one_by_one() -> None:
    shifted = param(0, 2048, 2052).shrink((0, 2048), (1, 2049)) * 2
    assert set(accesses(shifted)) == {"ld.global.f32", "st.global.f32"}

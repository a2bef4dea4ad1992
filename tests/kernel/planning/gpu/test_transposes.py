"""Inputs that lie across the output: tiles of them go through shared memory."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import numpy as np
import pytest

from baregrad import bind, render, variable
from baregrad.dtypes import DType, dtypes
from baregrad.engine.compiler import Compiler
from baregrad.engine.session import current_session
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, make_node, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose, choose_schedule, grid_size, lower
from baregrad.kernel.language.schedule import StageInput
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu


def transpose(m: int, n: int, dtype: DType) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    read = k.at(k.param(1, n, m, dtype=dtype), j, i)
    return k.kernel(k.out(k.param(0, m, n, dtype=dtype), read, i, j))


def channels_last(n: int, c: int, h: int, w: int) -> Node:
    b, y, x, f = (range_node(extent, place) for place, extent in enumerate((n, h, w, c)))
    read = k.at(k.param(1, n, c, h, w), b, f, y, x)
    return k.kernel(k.out(k.param(0, n, h, w, c), read, b, y, x, f))


def with_its_transpose(n: int) -> Node:
    i, j = range_node(n, 0), range_node(n, 1)
    x = k.param(1, n, n)
    return k.kernel(k.out(k.param(0, n, n), alu(Ops.ADD, k.at(x, i, j), k.at(x, j, i)), i, j))


def staged(kernel: Node) -> bool:
    steps = choose_schedule(kernel, HOPPER).steps
    return any(isinstance(step, StageInput) for step in steps)


@pytest.mark.parametrize("dtype", [
    dtypes.float32, dtypes.int16, dtypes.int8, dtypes.float64, dtypes.bool, dtypes.float16,
])
@pytest.mark.parametrize("shape", [(64, 64), (40, 70), (33, 17)])
def test_transposes_of_every_width(shape: tuple[int, int], dtype: DType) -> None:
    kernel = transpose(*shape, dtype)
    assert staged(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize(("dtype", "most"), [(dtypes.float64, 7), (dtypes.float32, 15)])
def test_tiles_of_more_inputs_than_shared_memory_holds(dtype: DType, most: int) -> None:
    """The rest is read where it lies: 64 KiB are so many tiles of 32 rows of 33 elements."""
    target = gpu_row("sm_75")
    i, j = range_node(33, 0), range_node(20, 1)
    reads = [k.at(k.param(slot, 20, 33, dtype=dtype), j, i) for slot in range(1, most + 3)]
    total = functools.reduce(lambda a, b: alu(Ops.ADD, a, b), reads)
    kernel = k.kernel(k.out(k.param(0, 33, 20, dtype=dtype), total, i, j))
    schedule = choose(kernel, target, Decisions({"way": "turned tiles"})).schedule
    assert sum(isinstance(step, StageInput) for step in schedule.steps) == most
    check_gpu(kernel, schedule, target)


def test_wide_tiles_are_of_no_more_inputs_than_shared_memory_holds() -> None:
    """64 KiB are three of these; of four inputs all have smaller ones."""
    target = gpu_row("sm_75")
    for count, is_wide in ((3, True), (4, False)):
        i, j = range_node(4096, 0), range_node(4096, 1)
        reads = [k.at(k.param(slot, 4096, 4096), j, i) for slot in range(1, count + 1)]
        total = functools.reduce(lambda a, b: alu(Ops.ADD, a, b), reads)
        kernel = k.kernel(k.out(k.param(0, 4096, 4096), total, i, j))
        schedule = choose(kernel, target, Decisions({"way": "turned tiles"})).schedule
        assert ("i1_v=4" in str(schedule)) == is_wide
        assert sum(isinstance(step, StageInput) for step in schedule.steps) == count


def test_images_with_their_channels_last() -> None:
    kernel = channels_last(2, 20, 6, 37)
    assert staged(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("is_sum", [False, True])
def test_what_a_condition_keeps_inside_its_array(is_sum: bool) -> None:
    """The condition may be the read's own, or around what is computed of it."""
    i, j = range_node(65, 0), range_node(64, 1)
    read = k.at(k.param(1, 64, 64), j, index.as_node(index.sub(i, 1)))
    value = alu(Ops.ADD, read, k.at(k.param(2, 64), j)) if is_sum else read
    inside = make_node(Ops.GUARD, value.dtype, (index.at_least(i, 1), value))
    kernel = k.kernel(k.out(k.param(0, 65, 64), inside, i, j))
    assert staged(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


def test_an_array_read_both_ways() -> None:
    kernel = with_its_transpose(48)
    assert staged(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize(("dtype", "access", "side"), [
    (dtypes.float32, "f32", 2048), (dtypes.float32, "f32", 4112), (dtypes.bfloat16, "b32", 4096),
])  # fmt: skip
def test_both_ways_are_words_of_neighbours(dtype: DType, access: str, side: int) -> None:
    """Of float32s in tiles that are whole, many enough, these are of four."""
    kernel = transpose(side, side, dtype)
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    text = str(last.result)
    # A block has 256 threads, whatever a word holds.
    words = 64 * 32 // 256 if dtype.itemsize == 2 else 32 * 32 // 256
    assert re.findall(r"ld\.global\S*", text) == [f"ld.global.{access}"] * words
    assert re.findall(r"st\.global\S*", text) == [f"st.global.{access}"] * words


def test_many_whole_tiles_of_words_are_moved_by_wide_accesses() -> None:
    kernel = transpose(4096, 4096, dtypes.float32)
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    text = str(last.result)
    accesses = 64 * 64 // 4 // 256
    assert re.findall(r"ld\.global\S*", text) == ["ld.global.v4.f32"] * accesses
    assert re.findall(r"st\.global\S*", text) == ["st.global.v4.f32"] * accesses


def test_wide_tiles_move_every_element() -> None:
    """Of a machine that so few keep busy."""
    few = dataclasses.replace(HOPPER, busy_threads=64)
    for kernel in (transpose(128, 64, dtypes.float32), with_its_transpose(64)):
        schedule = choose_schedule(kernel, few)
        assert "i1_x=16, i1_v=4" in str(schedule)
        check_gpu(kernel, schedule, few)


def test_short_sides_are_no_tiles() -> None:
    assert not staged(transpose(4096, 4, dtypes.float32))
    assert not staged(k.elementwise(64, 64))


def both_ways(n: int, c: int, hw: int, dtype: DType) -> Node:
    """A batch's images twice, with their channels in front and last."""
    b, p, f = (range_node(extent, place) for place, extent in enumerate((n, hw, c)))
    value = alu(Ops.ADD, k.at(k.param(2, n, c, hw, dtype=dtype), b, f, p),
                k.at(k.param(3, c, dtype=dtype), f))  # fmt: skip
    return k.kernel(
        k.out(k.param(0, n, hw, c, dtype=dtype), value, b, p, f),
        k.out(k.param(1, n, c, hw, dtype=dtype), value, b, f, p),
    )


def padded(
    n: int, c: int, side: int, is_copy: bool = False, dtype: DType = dtypes.float32
) -> Node:
    """Images with zeros around and their channels last, of others, or of what is above 0 there."""
    b, y, x, f = (range_node(e, place) for place, e in enumerate((n, side + 2, side + 2, c)))
    row, column = index.add(y, -1), index.add(x, -1)
    read = k.at(k.param(1, n, c, side, side, dtype=dtype), b, f, row, column)
    above = read if is_copy else alu(Ops.MAX, read, const(0.0, read.dtype))
    within = index.both(index.inside(row, side), index.inside(column, side))
    out = k.param(0, n, side + 2, side + 2, c, dtype=dtype)
    return k.kernel(k.out(out, k.guard(within, above), b, y, x, f))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_rows_of_small_images_are_one_side_of_a_tile(dtype: DType) -> None:
    b, y, x, f = (range_node(extent, place) for place, extent in enumerate((3, 7, 7, 72)))
    read = k.at(k.param(1, 3, 72, 7, 7, dtype=dtype), b, f, y, x)
    kernel = k.kernel(k.out(k.param(0, 3, 7, 7, 72, dtype=dtype), read, b, y, x, f))
    assert staged(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("steps", (8, 16))
def test_a_thread_has_no_more_steps_than_a_tile_has_rows(steps: int) -> None:
    kernel = transpose(8, 70, dtypes.int16)
    wanted = Decisions({"way": "turned tiles", "steps": str(steps)})
    check_gpu(kernel, choose(kernel, HOPPER, wanted).schedule)


def test_tiles_are_no_longer_than_their_rows() -> None:
    kernel = transpose(18, 64, dtypes.bfloat16)
    program = check_gpu(kernel, choose_schedule(kernel, HOPPER))
    # 32 of the 18 rows, four each: the rest of a larger tile would have nothing to do.
    assert math.prod(program.arg.block) == 32 * 32 // 4


def test_threads_that_taps_do_not_fill_are_along_the_channels() -> None:
    o, t, u, f = (range_node(extent, place) for place, extent in enumerate((3, 3, 3, 128)))
    read = k.at(k.param(1, 3, 128, 3, 3, dtype=dtypes.bfloat16), o, f, t, u)
    kernel = k.kernel(k.out(k.param(0, 3, 3, 3, 128, dtype=dtypes.bfloat16), read, o, t, u, f))
    schedule = choose(kernel, HOPPER, Decisions({"way": "two ways"})).schedule
    program = check_gpu(kernel, schedule)
    # All 9 taps, and all channels in 16 of them each.
    assert math.prod(program.arg.block) == 16 * 128 // 16


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int16])
@pytest.mark.parametrize("shape", [(2, 16, 40), (1, 48, 300), (3, 20, 49)])
def test_outputs_that_lie_both_ways(shape: tuple[int, int, int], dtype: DType) -> None:
    kernel = both_ways(*shape, dtype)
    assert not staged(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("shape", [(1, 16, 5), (2, 24, 18)])
def test_padded_images_with_their_channels_last(shape: tuple[int, int, int]) -> None:
    """Tiles are of what lies inside, whatever is computed of that between the zeros."""
    kernel = padded(*shape)
    assert staged(kernel) == (shape[-1] > 16)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


def test_what_a_thread_reads_of_a_tile_is_under_way_together() -> None:
    kernel = padded(2, 64, 30, is_copy=True, dtype=dtypes.bfloat16)
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    accesses = re.findall(r"(ld\.global|st\.shared|bra|bar\.sync)", str(last.result))
    assert accesses == [*["ld.global"] * 16, *["st.shared"] * 16, "bar.sync"]


def test_tiles_go_on_in_the_next_row_of_a_padded_image() -> None:
    """Rows of 22 would fill a third of a tile's 64 places."""
    kernel = padded(2, 40, 20, is_copy=True)
    assert staged(kernel)
    schedule = choose_schedule(kernel, HOPPER)
    check_gpu(kernel, schedule)
    tiles = -(-2 * 22 * 22 // 32) * -(-40 // 32)
    assert grid_size(lower(kernel, HOPPER, schedule)) == tiles


def test_a_thread_moves_whole_sectors_of_what_lies_the_other_way() -> None:
    kernel = both_ways(64, 256, 196, dtypes.bfloat16)
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    stores = re.findall(r"st\.global\S*", str(last.result))
    assert stores == ["st.global.v4.b32"] * 2 + ["st.global.b16"] * 16


TURNS: dict[str, tuple[Any, Any]] = {
    "columns": (lambda x, n: x[:n].T + 0, lambda x, n: x[:n].T),
    "rows": (lambda x, n: x[:, :n].T + 0, lambda x, n: x[:, :n].T),
    "both": (lambda x, n: x[:n, :n] + x[:n, :n].T, lambda x, n: x[:n, :n] + x[:n, :n].T),
    "of many": (
        lambda x, n: x.reshape(2, 35, 70)[:, :n].transpose(1, 2) + 0,
        lambda x, n: x.reshape(2, 35, 70)[:, :n].transpose(0, 2, 1),
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_symbolic_extents_have_tiles_as_their_bounds_have(name: str) -> None:
    ours, theirs = TURNS[name]
    array = np.arange(4900, dtype=np.float32).reshape(70, 70)
    kernels: list[Node] = []
    with ptx_session():
        x = Tensor(array).realize()
        watching = current_session().watching
        watching.observers.append(lambda run: kernels.extend(run.executable.plan.kernels))
        for count in (1, 33, 35):
            found = ours(x, bind(variable("n", 1, 35), count))
            np.testing.assert_array_equal(found.numpy(), theirs(array, count))
    way = Decisions(noted=True)
    choose(kernels[0], HOPPER, way)
    assert way.made["way"].taken == "turned tiles"

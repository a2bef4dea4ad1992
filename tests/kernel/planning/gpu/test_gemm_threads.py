"""Contractions that threads make by themselves: any factors and outputs, panels ahead of time."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Schedule, Split
from baregrad.render import get
from baregrad.target import gpu_row
from baregrad.testing.virtual_gpu.ptx.block import Block
from baregrad.testing.virtual_gpu.ptx.ops import copies as copies_of_ptx
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

F32 = dtypes.float32


def several(m: int, n: int, r: int) -> Node:
    """Two outputs of the sum of products of a share of a row and a bfloat16 times a number."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((m, n, r)))
    share = alu(Ops.MUL, k.at(k.param(1, m, r), i, q), k.at(k.param(3, m), i))
    scaled = alu(Ops.MUL, cast(k.at(k.param(2, n, r, dtype=dtypes.bfloat16), j, q), F32),
                 k.const(0.5, F32))  # fmt: skip
    total = k.reduce(Ops.ADD, alu(Ops.MUL, share, scaled), q)
    more = alu(Ops.ADD, total, k.at(k.param(4, m, n), i, j))
    return k.kernel(k.out(k.param(0, m, n), total, i, j), k.out(k.param(5, m, n), more, i, j))


def gram(m: int, r: int) -> Node:
    """The products of all rows of an array with each other."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((m, m, r)))
    a = k.param(1, m, r)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, k.at(a, i, q), k.at(a, j, q)), q)
    return k.kernel(k.out(k.param(0, m, m), total, i, j), name="gram")


PANELS = (
    several(40, 48, 64), several(33, 41, 77), gram(48, 64), gram(35, 70),
    k.matmul(32, 64, 48), k.matmul(65, 33, 50, True, True), k.conv(1, 6, 16, 9, 9, 3, 1, 1),
    k.matmul(40, 40, 64, dtype=dtypes.float16),
)  # fmt: skip


# Each kernel for one row by default, each kind of two for both.
@pytest.mark.parametrize(("kernel", "row"), [
    pytest.param(kernel, row, marks=[] if (number + place) % 2 == 0 else pytest.mark.slow)
    for number, kernel in enumerate(PANELS) for place, row in enumerate(("sm_75", "sm_90a"))
])  # fmt: skip
def test_panels_are_on_their_way_while_threads_add(kernel: Node, row: str) -> None:
    target = gpu_row(row)
    schedule = choose_schedule(kernel, target)
    engine = ", engine='async'" if target.async_copies else ""
    assert "stage_factor(0" in str(schedule)
    assert engine in str(schedule).partition("pipeline('k_o'")[2]
    check_gpu(kernel, schedule, target)


def sides(schedule: Schedule) -> tuple[int, int]:
    """Rows and columns of a thread's, 0 where threads lie along them."""
    sizes = {name: size for step in schedule.steps if isinstance(step, Split)
             for name, size in step.parts}  # fmt: skip
    columns = sizes.get("n_u", 1) * sizes["n_v"]
    return sizes["m_u"] * (sizes["m_t"] == 1), columns * (sizes["n_t"] == 1)


@pytest.mark.parametrize("kernel", [
    k.matmul(7, 72, 66),
    *[pytest.param(kernel, marks=pytest.mark.slow) for kernel in (
        k.matmul(3, 200, 64, True), k.matmul(150, 4, 65, True, False),
        k.matmul(200, 8, 64, True, True), k.conv(1, 8, 6, 11, 13, 3, 1, 1),
        k.matmul(2, 72, 66), k.conv(1, 8, 2, 11, 13, 3, 1, 1),
    )],
])  # fmt: skip
def test_few_rows_or_columns_are_all_in_each_thread(kernel: Node) -> None:
    target = replace(HOPPER, busy_blocks=1)
    schedule = choose_schedule(kernel, target)
    assert sides(schedule) in ((4, 0), (0, 4))
    assert "pipeline('k_o'" in str(schedule)
    check_gpu(kernel, schedule, target)


def test_few_steps_and_what_lies_along_long_sums_are_shared_out_among_threads() -> None:
    for kernel in (k.matmul(8, 8, 512), k.matmul(1 << 18, 8, 512), k.matmul(8, 1 << 18, 12)):
        assert "stage_factor" not in str(choose_schedule(kernel, HOPPER))
    assert sides(choose_schedule(k.matmul(8, 1 << 18, 512), HOPPER)) == (8, 0)
    assert sides(choose_schedule(k.matmul(8, 1 << 18, 32), HOPPER)) == (8, 0)
    assert sides(choose_schedule(k.matmul(2, 1 << 18, 512), HOPPER)) == (4, 0)
    assert sides(choose_schedule(k.matmul(1 << 18, 8, 512, True), HOPPER)) == (0, 8)


def parts_of_sums(schedule: Schedule) -> tuple[tuple[str, int], ...]:
    """How the summed axis is split, if by panels."""
    return next((step.parts for step in schedule.steps
                 if isinstance(step, Split) and step.parts[0][0] == "k_o"), ())  # fmt: skip


@pytest.mark.parametrize("row", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_how_a_sum_is_split_does_not_depend_on_how_many_results_there_are(
    row: str, dtype: DType
) -> None:
    """Of several rows and columns, or of a few of either, in any batch."""
    target = gpu_row(row)
    for steps in (16, 40, 64, 100, 256, 300, 1024, 5000, 1 << 16):
        for ours, others in (((16, 16), ((16, 1 << 20), (300, 40), (4096, 4096), (1 << 18, 16))),
                             ((8, 16), ((8, 100), (8, 4096), (8, 1 << 18), (5, 1 << 20)))):
            wanted = parts_of_sums(choose_schedule(k.matmul(*ours, steps, dtype=dtype), target))
            assert wanted
            for m, n in others:
                for batch in (0, 1000):
                    kernel = k.matmul(m, n, steps, batch=batch, dtype=dtype)
                    assert parts_of_sums(choose_schedule(kernel, target)) == wanted


@pytest.mark.parametrize(("rows", "steps"), [
    (8, 131), (70, 259), pytest.param(70, 515, marks=pytest.mark.slow),
])  # fmt: skip
def test_bits_of_results_are_those_of_results_beside_others(rows: int, steps: int) -> None:
    """Of all tiles that a product may have, as there are more or fewer blocks of it."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((rows, steps), (steps, 40)))
    found = set[bytes]()
    tiles = set[str]()
    for busy in (1, 128):
        for m, n in ((rows, 40), (max(rows - 47, 8), 17)):
            target = replace(HOPPER, busy_blocks=busy, units=busy)
            kernel = k.matmul(m, n, steps)
            schedule = choose_schedule(kernel, target)
            loop, _ = lowered(kernel, schedule, target)
            arrays = {0: np.zeros((m, n), np.float32), 1: a[:m].copy(), 2: b[:, :n].copy()}
            made = k.run_loop(loop, arrays)[0].reshape(m, n)
            found.add(made[:8, :17].tobytes())
            tiles.add(str(schedule))
    assert len(found) == 1
    assert len(tiles) > 1


def interleaved(rows: int, columns: int, pairs: int, r: int) -> Node:
    """Products whose results lie by columns, a pair of them beside each other at each row."""
    i, j, c, q = (k.range_node(n, at) for at, n in enumerate((rows, columns, pairs, r)))
    factor = k.at(k.param(2, r, columns, pairs), q, j, c)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, k.at(k.param(1, rows, r), i, q), factor), q)
    return k.kernel(k.out(k.param(0, columns, rows, pairs), total, j, i, c))


@pytest.mark.parametrize(("pairs", "bound"), [(2, "m_t"), (16, "n_t")])
def test_threads_lie_along_rows_where_their_results_do(pairs: int, bound: str) -> None:
    kernel = interleaved(66, 32 // pairs, pairs, 24)
    schedule = choose_schedule(kernel, HOPPER)
    assert f"bind('{bound}', 'thread')" in str(schedule)
    check_gpu(kernel, schedule)


@pytest.mark.parametrize(("rows", "columns", "wanted"), [
    (4096, 4096, (128, 128)), (2048, 1024, (128, 128)), (2168, 1000, (128, 64)),
])  # fmt: skip
def test_tiles_are_smaller_where_few_multiprocessors_would_have_one_more(
    rows: int, columns: int, wanted: tuple[int, int]
) -> None:
    """Of 136 tiles of 128 x 128 four are left when each of 132 multiprocessors has one."""
    schedule = choose_schedule(k.matmul(rows, columns, 512), HOPPER)
    sizes = {name: size for step in schedule.steps if isinstance(step, Split)
             for name, size in step.parts}  # fmt: skip
    tile = [prod(sizes.get(f"{side}_{part}", 1) for part in "tuv") for side in "mn"]
    assert tuple(tile) == wanted


@needs_ptxas
@pytest.mark.parametrize("turned", [(False, False), (True, True), (True, False)])
def test_two_blocks_of_a_large_product_share_a_multiprocessor(turned: tuple[bool, bool]) -> None:
    kernel = k.matmul(4096, 4096, 4096, *turned)
    _, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    registers, spilled = assembled(get("ptx").render(program, HOPPER), "sm_90a")
    assert spilled == 0
    assert 2 * 256 * registers <= HOPPER.registers_per_unit


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("row", ["sm_75", "sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("turned", [False, True])
def test_panels_of_a_large_product_fit_shared_memory(row: str, dtype: DType, turned: bool) -> None:
    target = gpu_row(row)
    kernel = k.matmul(4096, 4096, 4096, turned, turned, dtype=dtype)
    schedule = choose_schedule(kernel, target)
    assert "pipeline('k_o'" in str(schedule)
    lowered(kernel, schedule, target)


@pytest.mark.few(2)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_few_words_of_a_copy_meet_in_a_bank(
    turned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that a warp copies at once, however the panel lies: 4 by 32 banks at most."""
    kernel = k.matmul(128, 128, 64, *turned)
    found: list[Any] = []
    real = copies_of_ptx._land

    def land(block: Block, ids: Any, places: Any, words: Any) -> None:
        found.append(places.reshape(-1, 32)[:, :, None] // 4 + np.arange(words.shape[1]))
        real(block, ids, places, words)

    monkeypatch.setattr(copies_of_ptx, "_land", land)
    loop, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    run_text(loop, program, k.arguments(kernel))
    assert found
    for warps in found:
        for words in warps:
            assert np.bincount(words.reshape(-1) % 32).max() <= 4

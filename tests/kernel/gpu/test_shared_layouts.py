"""Layouts of copies in shared memory: what they hold, where it lies, and how many banks meet."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from random import Random

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_cluster import Cluster
from baregrad.ir.evaluate.gpu_thread_machine import ThreadBlock, Threads
from baregrad.ir.evaluate.gpu_threads import INSTRUCTIONS
from baregrad.kernel import apply_schedule, parse_schedule
from baregrad.kernel.gpu.shared_layouts import layout_of, pitch_of, swizzled_places
from baregrad.kernel.language.schedule import StageInput
from baregrad.testing.examples.levels import example_target
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered

TILES = (
    "split('i0', outer='a', y=8, masked=True), split('i1', outer='b', x=32, masked=True),"
    "split('r2', outer='ko', ki=32, masked=True), bind('a', 'grid'), bind('b', 'grid'),"
    "bind('y', 'thread_y'), bind('x', 'thread')"
)


def scheduled(copy: str, more: str = "") -> str:
    return f"Schedule({TILES}, {copy}{more})"


@pytest.mark.parametrize(("how", "more"), [
    ("pad=0", ""), ("pad=4", ", pipeline('ko')"), ("swizzle=1", ""), ("swizzle=2", ""),
    ("swizzle=3", ", pipeline('ko')"), ("swizzle=3", ", pipeline('ko', 3, 'async')"),
])  # fmt: skip
def test_a_copy_of_any_layout_holds_the_same(how: str, more: str) -> None:
    for copy in ("2, 'x', 'ki'", "2, 'ki', 'x'"):
        text = scheduled(f"stage_input({copy}, {how})", more)
        assert str(parse_schedule(str(parse_schedule(text)))) == str(parse_schedule(text))
        check_gpu(k.matmul(3, 33, 40), text)


# --- banks: 32 of 4 bytes, and accesses of 16 bytes are served for 8 threads at a time -----------


def most_in_one_bank(places: list[int], nbytes: int) -> int:
    """The largest number of different words of one bank that the threads of a warp ask for.

    places: the byte address of each thread. Of wide accesses, the worst part of the warp.
    """
    together = 32 * 4 // max(nbytes, 4)
    worst = 0
    for first in range(0, len(places), together):
        words = {
            word for place in places[first : first + together]
            for word in range(place // 4, (place + nbytes - 1) // 4 + 1)
        }  # fmt: skip
        worst = max(worst, *Counter(word % 32 for word in words).values())
    return worst


class Watching(Threads):
    """Notes how each read of shared memory meets in banks."""

    worst = 0

    def note(self, node: Node, offset: np.ndarray, active: np.ndarray, write: bool) -> None:
        array = node.src[0]
        if array.op is Ops.ALLOC and array.arg.space == "shared" and not write:
            size = array.dtype.itemsize
            first = offset[:, 0] if offset.ndim > 1 else offset
            width = offset.shape[1] if offset.ndim > 1 else 1
            for warp in range(0, self.threads.size, 32):
                places = [int(place) * size for place in first[warp : warp + 32]]
                self.worst = max(self.worst, most_in_one_bank(places, width * size))
        super().note(node, offset, active, write)


def conflicts(steps: str) -> int:
    """The worst read of shared memory of a product's first block."""
    kernel = k.matmul(8, 32, 32, b_t=True)
    _, program = lowered(kernel, steps)
    memory = {slot: array.reshape(-1) for slot, array in k.arguments(kernel).items()}
    threads = np.arange(np.prod(program.arg.block))
    blocks = [ThreadBlock(0, 0, 0, 0, 0)]
    cluster = Cluster(HOPPER, 0, Random(0))
    machine = Watching(program, memory, {}, cluster, blocks, 0, threads, INSTRUCTIONS)
    cluster.run([machine])
    return machine.worst


WIDE = ", split('ki', outer='kc', kv=4), bind('kv', 'vector')"


@pytest.mark.parametrize(("how", "single", "wide"), [
    # Rows of 128 bytes: all threads in one bank; of 4 words, all 8 that are served together.
    ("pad=0", 32, 8),
    # Rows r and r + 8 meet still, and four words of each are asked for one by one.
    ("swizzle=3", 4, 1),
    ("swizzle=2", 8, 2),
    ("swizzle=1", 16, 4),
    ("pad=1", 1, 0),
    ("pad=4", 4, 1),
])  # fmt: skip
def test_a_column_of_threads_meets_in_as_many_banks(how: str, single: int, wide: int) -> None:
    copy = f"stage_input(2, 'x', 'ki', {how})"
    assert conflicts(scheduled(copy)) == single
    if wide:
        text = f"Schedule({TILES}{WIDE}, stage_input(2, 'x', 'kc', 'kv', {how}))"
        assert conflicts(text) == wide


def test_the_oracle_of_banks_counts() -> None:
    assert most_in_one_bank([4 * lane for lane in range(32)], 4) == 1
    assert most_in_one_bank([0] * 32, 4) == 1
    assert most_in_one_bank([128 * lane for lane in range(32)], 4) == 32
    assert most_in_one_bank([8 * lane for lane in range(32)], 4) == 2
    assert most_in_one_bank([16 * lane for lane in range(32)], 16) == 1
    assert most_in_one_bank([128 * lane for lane in range(32)], 16) == 8
    assert most_in_one_bank([128 * lane + 16 * (lane % 8) for lane in range(32)], 16) == 1


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.uint8])
@pytest.mark.parametrize(("rows", "nbytes", "bits"), [
    (16, 128, 3), (16, 64, 2), (16, 32, 1), (8, 256, 3), (16, 512, 2),
    (8, 384, 3), (16, 640, 3), (8, 768, 3), (8, 96, 1),
])
def test_places_are_those_of_the_layout(dtype: object, rows: int, nbytes: int, bits: int) -> None:
    """The arithmetic on places is the XOR of address bits that the layout states."""
    columns = nbytes // dtype.itemsize  # type: ignore[attr-defined]
    step = StageInput(1, ("r", "c"), swizzle=bits)
    axes = [k.range_node(rows, 0, "r"), k.range_node(columns, 1, "c")]
    value = k.at(k.param(1, rows, columns, dtype=dtype), *axes)  # type: ignore[arg-type]
    layout = layout_of(step, value, axes)
    assert layout is not None and layout.swizzle is not None and pitch_of(layout) == columns
    array = Node(Ops.ALLOC, value.dtype, (), Alloc(1, "shared", (rows, columns), layout))
    seen = set()
    for row, column in product(range(rows), range(columns)):
        places = [int(np.asarray(_number(one))) for one in
                  swizzled_places(array, (index.as_node(row), index.as_node(column)))]
        found = (places[0] * columns + places[1]) * value.dtype.bits
        assert found == layout.place({"r": row, "column": column})["bit"]
        seen.add(found)
    assert len(seen) == rows * columns


def _number(node: Node) -> int:
    if node.op is Ops.CONST:
        return int(node.arg)
    left, right = map(_number, node.src)
    return {Ops.ADD: left + right, Ops.MUL: left * right, Ops.XOR: left ^ right}[node.op]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(("copy", "message"), [
    ("2, 'x', 'ki', swizzle=4", "0 <= swizzle <= 3"),
    ("2, 'x', 'ki', pad=-1", "pad >= 0"),
    ("2, 'x', 'ki', pad=4, swizzle=1", "not both"),
    ("1, 'ki', 'y', swizzle=2", "found rows of 32 bytes, wanted a multiple of 64"),
])
def test_what_makes_no_layout_is_refused(copy: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        lowered(k.matmul(9, 33, 40), scheduled(f"stage_input({copy})"))


def test_rows_of_other_than_whole_patterns_are_refused() -> None:
    text = scheduled("stage_input(2, 'x', 'ki', swizzle=1)").replace("ki=32", "ki=12")
    with pytest.raises(ScheduleError, match="found rows of 48 bytes"):
        lowered(k.matmul(9, 33, 48), text)
    text = scheduled("stage_input(1, 'y', 'ki', swizzle=3)").replace("y=8", "y=4")
    with pytest.raises(ScheduleError, match="found 4 rows, wanted a multiple of 8"):
        lowered(k.matmul(9, 33, 40), text)


def test_a_cpu_has_no_banks() -> None:
    steps = parse_schedule("Schedule(stage_input(2, 'i1', 'r2', swizzle=1))")
    with pytest.raises(ScheduleError, match="shared memory has banks"):
        apply_schedule(k.matmul(8, 8, 8), steps, example_target())
    assert HOPPER.shared_banks == 32

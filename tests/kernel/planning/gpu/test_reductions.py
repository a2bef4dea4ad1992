"""Sums on a GPU: values at every level, wide accesses, and an order that hangs on lengths alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.dtypes import DType, dtypes
from baregrad.engine.compiler import Compiler
from baregrad.graph import canonicalise
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import arg_extreme
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.loops.held_rows import hold_rows
from baregrad.schedule import make_plan
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
from tests.schedule.graphs import A, param, sink


def check(kernel: Node) -> None:
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


def images(n: int, c: int, hw: int) -> Node:
    """The sums and the sums of squares of a batch of images' channels."""
    f, b, p = range_node(c, 0), range_node(n, 1), range_node(hw, 2)
    x = k.at(k.param(2, n, c, hw), b, f, p)
    outs = [
        k.out(k.param(slot, c), k.reduce(Ops.ADD, value, b, p), f)
        for slot, value in enumerate((x, alu(Ops.MUL, x, x)))
    ]
    return k.kernel(*outs)


@pytest.mark.parametrize("size", [1568, 3136, 12544, 4096, 47355])
def test_the_last_round_of_a_sum_is_mostly_full(size: int) -> None:
    """Accesses under way together waste few more than each alone would."""
    schedule = choose_schedule(images(1, 64, size), HOPPER).steps
    parts = dict(p for step in schedule if isinstance(step, Split) for p in step.parts)
    sizes = {s.unit: parts[s.axis] for s in schedule if isinstance(s, Bind) and s.axis in parts}
    width = sizes.get("thread", 1) * sizes.get("thread_y", 1) * sizes.get("vector", 1)
    steps = sizes.get("unroll", 1)
    rounds = -(-size // width)
    assert -rounds % steps <= rounds // 16
    assert steps > 1 or (rounds % 2 and rounds < 16)


def test_columns_of_narrow_inputs_have_wide_accesses_whatever_they_sum_to() -> None:
    """Results are few: that they are wider narrows no access to what is summed."""
    x = param(1, 16384, 8192, dtype=dtypes.bfloat16)
    value = x.cast(dtypes.float32).reshape(64, 256, 8192).sum(1)
    (kernel,) = make_plan(canonicalise(sink(value), target=HOPPER), target=HOPPER).kernels
    steps = choose_schedule(kernel, HOPPER).steps
    parts = dict(p for step in steps if isinstance(step, Split) for p in step.parts)
    sizes = {s.unit: parts[s.axis] for s in steps if isinstance(s, Bind) and s.axis in parts}
    assert sizes["vector"] == 8
    assert sizes["unroll"] > 1


@pytest.mark.parametrize("length", [5, 9, 12, 17, 20, 23, 24])
def test_a_lone_short_row_is_summed_in_the_order_of_many(length: int) -> None:
    def units(rows: int) -> list[Any]:
        total = param(0, rows, length).sum(1)
        (kernel,) = make_plan(canonicalise(sink(total), target=HOPPER), target=HOPPER).kernels
        steps = choose_schedule(kernel, HOPPER).steps
        return [step.unit for step in steps if isinstance(step, Bind) and step.axis[0] == "r"]

    assert units(1) == units(16)


def shared(kernel: Node) -> list[Any]:
    """How the reduced axis is shared out: its splits and what their parts lie along."""
    steps = choose_schedule(kernel, HOPPER).steps
    splits = [step for step in steps if isinstance(step, Split) and step.axis.startswith("r")]
    units = {step.axis: step.unit for step in steps if isinstance(step, Bind)}
    return [[(units.get(name), size) for name, size in step.parts] for step in splits]


def test_short_sums_that_lie_across_their_results_read_neighbours() -> None:
    """As parts of a filter's gradient do, which lie along its channels."""
    parts, rows, taps, channels = 5, 2, 3, 40
    m, c, t, p = (range_node(n, i) for i, n in enumerate((rows, channels, taps, parts)))
    read = k.at(k.param(1, parts, rows, taps, channels), p, m, t, c)
    out = k.out(k.param(0, rows, channels, taps), k.reduce(Ops.ADD, read, p), m, c, t)
    kernel = k.kernel(out)
    check(kernel)
    steps = choose_schedule(kernel, HOPPER).steps
    threads = [step.axis for step in steps if isinstance(step, Bind) and step.unit == "thread"]
    splits = [step for step in steps if isinstance(step, Split) and threads[0] in dict(step.parts)]
    assert [step.axis for step in splits] == ["i1"]


@pytest.mark.parametrize("length", [7, 24, 25, 64, 100, 257, 1024, 2052, 5000])
def test_sums_and_maxima_of_rows(length: int) -> None:
    for op in (Ops.ADD, Ops.MAX):
        check(k.row_reduce(3, length, op))


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
@pytest.mark.parametrize("columns", [9, 12])
def test_few_threads_lie_along_few_long_columns(columns: int, op: Op) -> None:
    """Whatever is written of them: bytes are no reason for more threads."""
    i, j = range_node(columns, 0), range_node(600, 1)
    folded = k.reduce(op, k.at(k.param(1, 600, columns), j, i), j)
    is_less = alu(Ops.CMPLT, folded, const(1.0, dtypes.float32))
    kernel = k.kernel(k.out(k.param(0, columns, dtype=dtypes.bool), is_less, i))
    (along,) = re.findall(r"i0_t0=(\d+)", str(choose_schedule(kernel, HOPPER)))
    assert int(along) < 2 * columns
    check(kernel)


@pytest.mark.parametrize("columns", [3, 9])
def test_places_of_minima_of_columns_are_found_by_many_threads(columns: int) -> None:
    """In any order: which comes first is told by the places. Each has several loads under way."""
    kernel = k.places_of_minima(600, columns)
    schedule = str(choose_schedule(kernel, HOPPER))
    parts = re.search(r"(r1_u0=\d+, )?r1_t\d=(\d+)(, r1_u\d=\d+)?", schedule)
    assert parts is not None
    assert int(parts[2]) >= (256 if columns > 5 else 64)  # few are whole rows of a thread
    assert parts[1] or parts[3]
    check(kernel)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=str)
def test_the_largest_of_narrow_floats_is_not_rounded_again(dtype: DType) -> None:
    """It is one of them: at each step that is compared with others as it is."""
    i, j = range_node(3, 0), range_node(600, 1)
    value, place = k.at(k.param(1, 600, 3, dtype=dtype), j, i), Node(Ops.CAST, dtypes.int64, (j,))
    both = Node(Ops.REDUCE, dtype, (value, place, j), Reduce(arg_extreme(Ops.MAX, dtype)))
    found = Node(Ops.PROJ, dtypes.int64, (both,), 1)
    kernel = k.kernel(k.out(k.param(0, 3, dtype=dtypes.int64), found, i))
    check(kernel)
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    assert "cvt.rn" not in str(last.result)


def test_few_threads_find_the_places_of_many_columns() -> None:
    """Each of a column's threads compares what all of them have found: that is dear."""
    kernel = k.places_of_minima(100, (1 << 17) + 1)
    (down,) = re.findall(r"r1_t1=(\d+)", str(choose_schedule(kernel, HOPPER)))
    assert int(down) <= 8


def test_few_rows_are_shared_out_among_blocks() -> None:
    few, many = (str(choose_schedule(k.row_reduce(rows, 600), HOPPER)) for rows in (16, 1 << 14))
    assert "thread_y" not in few and "i0_t0=8" in many


@pytest.mark.parametrize("columns", [72, 16, 9])
def test_a_row_times_a_matrix_reads_lines_of_it(columns: int) -> None:
    """On a machine that few blocks keep busy; else threads have two columns of so few each."""
    kernel = contraction((1,), (columns,), (520,), "ax", "xn", "an")
    for busy, is_wide in ((1, columns % 8 == 0), (HOPPER.busy_blocks, False)):
        schedule = choose_schedule(kernel, replace(HOPPER, busy_blocks=busy))
        assert "thread_y" in str(schedule)
        program = check_gpu(kernel, schedule)
        text = render.get("ptx").render(program, HOPPER)
        assert ("ld.global.v4" in text) == is_wide


@pytest.mark.parametrize("shape", [(3, 20), (2, 100), (1, 501), (1, 2500)])
def test_places_of_extremes(shape: tuple[int, int]) -> None:
    check(k.arg_max(*shape))


def test_a_lone_row_s_places_are_looked_for_by_many_threads() -> None:
    """No order of comparisons is another: a thread has two elements, and of many rows more."""
    lone, many = (str(choose_schedule(k.arg_max(rows, 501), HOPPER)) for rows in (1, 4096))
    assert "r1_t0=8, r1_t1=32" in lone and "r1_t0=8" not in many


@pytest.mark.parametrize("shape", [(3, 5, 36), (2, 3, 49), (4, 2, 1000)])
def test_sums_of_several_pieces(shape: tuple[int, int, int]) -> None:
    check(images(*shape))


def spread_around_means(rows: int, parts: int, length: int) -> Node:
    """For each part of each row the squared distances from the mean of the row's partial sums."""
    i, j, q, r = (range_node(e, place) for place, e in enumerate((rows, parts, parts, length)))
    mean = k.reduce(Ops.ADD, k.at(k.param(1, rows, parts), i, q), q)
    apart = alu(Ops.SUB, k.at(k.param(2, rows, parts, length), i, j, r), mean)
    value = k.reduce(Ops.ADD, alu(Ops.MUL, apart, apart), r)
    return k.kernel(k.out(k.param(0, rows, parts), value, i, j))


def test_short_sums_are_made_anew_in_each_row() -> None:
    kernel = spread_around_means(3, 5, 2500)
    steps = choose_schedule(kernel, HOPPER).steps
    assert {Bind("i0", "grid"), Bind("i1", "grid")} <= set(steps)
    check(kernel)


def across(n: int, classes: int, pixels: int) -> Node:
    """A softmax along the middle axis of three."""
    b, c, p = range_node(n, 0), range_node(classes, 1), range_node(pixels, 2)
    x = k.param(1, n, classes, pixels)

    def exponential(axis: Node, largest: Node) -> Node:
        return alu(Ops.EXP, alu(Ops.SUB, k.at(x, b, axis, p), largest))

    r, s = range_node(classes, 3), range_node(classes, 4)
    largest = k.reduce(Ops.MAX, k.at(x, b, r, p), r)
    total = k.reduce(Ops.ADD, exponential(s, largest), s)
    value = alu(Ops.DIV, exponential(c, largest), total)
    return k.kernel(k.out(k.param(0, n, classes, pixels), value, b, c, p))


@pytest.mark.parametrize("shape", [(2, 5, 40), (1, 40, 36), (2, 33, 7)])
def test_a_softmax_across_its_rows_reads_neighbours(shape: tuple[int, int, int]) -> None:
    kernel = across(*shape)
    assert hold_rows(kernel, HOPPER) is kernel
    check(kernel)


@pytest.mark.parametrize("shape", [(1, 600, 2), (3, 300, 5)])
def test_a_long_softmax_across_few_rows_has_a_block_for_each(shape: tuple[int, int, int]) -> None:
    kernel = across(*shape)
    schedule = choose_schedule(kernel, HOPPER)
    threads = [step.parts[1:] for step in schedule.steps if isinstance(step, Split)]
    lanes = [size for parts in threads for name, size in parts if size >= HOPPER.warp_lanes]
    assert len(lanes) >= 3, schedule  # the maximum, the sum, and what is written
    check_gpu(kernel, schedule)


def pairwise(count: int) -> Node:
    """The sum of the products of all pairs, each taken from a sum of its own."""
    i, j = range_node(count, 0), range_node(count, 1)
    product = alu(Ops.MUL, k.at(k.param(1, count), i), k.at(k.param(2, count), j))
    inner = k.reduce(Ops.ADD, product, j)
    return k.kernel(k.out(k.param(0), k.reduce(Ops.ADD, inner, i)))


@pytest.mark.parametrize("kernel", [
    k.sum_of_row_logs(6, 40), k.smallest_column_sum(20, 30), k.sum_of_row_logs(300, 4),
    k.sum_of_row_logs(3, 1), pairwise(12),
])
def test_sums_of_sums(kernel: Node) -> None:
    check(kernel)


def test_many_short_sums_of_one_sum_have_many_threads() -> None:
    steps = choose_schedule(k.sum_of_row_logs(512, 4), HOPPER).steps
    units = {step.axis: step.unit for step in steps if isinstance(step, Bind)}
    sizes = {
        units[name]: size
        for step in steps if isinstance(step, Split) for name, size in step.parts if name in units
    }
    assert sizes["thread"] * sizes["thread_y"] >= 128


@pytest.mark.parametrize("length", [64, 1000, 8192, 100000])
def test_how_a_row_is_shared_does_not_depend_on_the_number_of_rows(length: int) -> None:
    ways = [shared(k.row_reduce(rows, length)) for rows in (2, 33, 100000)]
    assert ways[0] == ways[1] == ways[2] != []


@pytest.mark.parametrize("length", [16, 100, 512, 8192])
def test_how_a_column_is_shared_does_not_depend_on_the_number_of_columns(length: int) -> None:
    ways = [shared(k.column_reduce(length, columns)) for columns in (256, 2048, 1 << 20)]
    assert ways[0] == ways[1] == ways[2]


def products_of_sums(m: int, n: int, length: int) -> Node:
    """The sum of each row of one matrix times that of each column of another one."""
    i, j, r, s = (range_node(size, at) for at, size in enumerate((m, n, length, length)))
    rows = k.reduce(Ops.ADD, k.at(k.param(1, m, length), i, r), r)
    columns = k.reduce(Ops.ADD, k.at(k.param(2, length, n), s, j), s)
    return k.kernel(k.out(k.param(0, m, n), alu(Ops.MUL, rows, columns), i, j))


@pytest.mark.parametrize("shape", [(5, 7, 40), (2, 3, 300)])
def test_sums_with_no_axis_in_common(shape: tuple[int, int, int]) -> None:
    kernel = products_of_sums(*shape)
    check(kernel)
    steps = choose_schedule(kernel, HOPPER).steps
    assert {step.unit for step in steps if isinstance(step, Bind)} >= {"grid", "thread"}


def shares_of_one_sum(m: int, n: int, length: int) -> Node:
    """A matrix times a sum of other numbers, which is a result as well."""
    i, j, r = (range_node(size, at) for at, size in enumerate((m, n, length)))
    total = k.reduce(Ops.ADD, k.at(k.param(3, length), r), r)
    value = alu(Ops.MUL, k.at(k.param(2, m, n), i, j), total)
    return k.kernel(k.out(k.param(0, m, n), value, i, j), k.out(k.param(1, 1), total, 0))


def units_of(kernel: Node) -> dict[str, str]:
    """The axes of the output and their parts, with what they lie along."""
    steps = choose_schedule(kernel, HOPPER).steps
    return {step.axis: step.unit for step in steps if isinstance(step, Bind)}


def test_blocks_share_what_comes_after_a_short_sum_of_all() -> None:
    for kernel, is_shared in (
        (shares_of_one_sum(2, 10001, 15), True), (shares_of_one_sum(2, 100, 15), False),
        (shares_of_one_sum(3, 6000, 20000), False),
    ):
        check(kernel)
        assert ("grid" in units_of(kernel).values()) == is_shared


def weighted_rows(m: int, n: int, length: int) -> Node:
    """A matrix over the sums of its rows, times a sum of other numbers."""
    i, j, r, s = (range_node(size, at) for at, size in enumerate((m, n, n, length)))
    x = k.param(1, m, n)
    row = k.reduce(Ops.MAX, k.at(x, i, r), r)
    total = k.reduce(Ops.ADD, k.at(k.param(2, length), s), s)
    value = alu(Ops.MUL, alu(Ops.ADD, k.at(x, i, j), row), total)
    return k.kernel(k.out(k.param(0, m, n), value, i, j))


def test_threads_lie_along_what_some_sums_are_for() -> None:
    kernel = weighted_rows(300, 8, 100)
    check(kernel)
    assert {axis[:2] for axis in units_of(kernel) if axis.startswith("i")} == {"i0"}


def test_threads_lie_along_what_some_sums_are_for_beside_sums_of_sums() -> None:
    m, n = 40, 8
    i, j, r, s, t = (range_node(size, at) for at, size in enumerate((m, n, n, m, n)))
    x = k.param(1, m, n)
    total = k.reduce(Ops.ADD, k.reduce(Ops.MAX, k.at(x, s, t), t), s)
    row = k.reduce(Ops.MAX, k.at(x, i, r), r)
    value = alu(Ops.MUL, alu(Ops.ADD, k.at(x, i, j), row), total)
    kernel = k.kernel(k.out(k.param(0, m, n), value, i, j))
    check(kernel)
    assert {axis[:2] for axis in units_of(kernel) if axis.startswith("i")} == {"i0"}


def far_apart(points: int, *sizes: int) -> Node:
    """Sums of elements of which none that are summed are neighbours."""
    i, *own = (range_node(size, at) for at, size in enumerate((points, *sizes)))
    places = [index.mul(axis, 2) for axis in own]
    array = k.param(1, points, *[2 * size for size in sizes])
    return k.kernel(k.out(k.param(0, points), k.reduce(Ops.ADD, k.at(array, i, *places), *own), i))


@pytest.mark.parametrize("sizes", [(3, 3, 3), (4, 16), (3, 3, 9), (2, 5, 13)])
def test_sums_of_what_is_far_apart(sizes: tuple[int, ...]) -> None:
    kernel = far_apart(5, *sizes)
    check(kernel)
    # A thread sums 64 or fewer by itself, and no thread of a longer sum is without a step.
    binds = [step for step in choose_schedule(kernel, HOPPER).steps if isinstance(step, Bind)]
    shared = [bind for bind in binds if bind.unit == "thread" and "i0" not in bind.axis]
    assert bool(shared) == (np.prod(sizes) > 64)


def test_rows_of_a_batch_have_the_bits_of_a_row() -> None:
    batch, single = k.row_reduce(4, 1500), k.row_reduce(1, 1500)
    x = np.random.default_rng(5).standard_normal((4, 1500)).astype(np.float32)
    together = run_text(
        *lowered(batch, choose_schedule(batch, HOPPER)),
        {0: np.zeros(4, np.float32), 1: x.reshape(-1)},
    )[0]
    for row in range(4):
        alone = run_text(
            *lowered(single, choose_schedule(single, HOPPER)),
            {0: np.zeros(1, np.float32), 1: x[row]},
        )[0]
        np.testing.assert_array_equal(alone, together[row : row + 1])


def loads(value: A) -> list[set[str]]:
    """The kinds of loads of each kernel of a value."""
    plan = make_plan(canonicalise(sink(value), None, HOPPER), donate={}, target=HOPPER)
    found = []
    for kernel in plan.kernels:
        *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
        found.append(set(re.findall(r"ld\.global\S*", str(last.result))))
    return found


def test_loads_are_wide() -> None:
    wide = {"ld.global.v4.f32"}
    assert loads(param(0, 1024, 8192).sum(1)) == [wide]
    assert loads(param(0, 1 << 16, 64).max(1)) == [wide]
    assert loads(param(0, 1 << 16, 8).sum(1)) == [wide]
    assert loads(param(0, 4096, 1024).sum(0))[0] == wide
    assert loads(param(0, 64, 64, 56, 56).sum(0, 2, 3))[0] == wide
    assert loads(param(0, 1 << 20).sum()) == [wide, wide]


def test_threads_share_many_results_of_a_little_sum() -> None:
    """They do not each go along what a sum of few rows is repeated for."""
    def repeated(rows: int, results: int, much: int) -> Node:
        i, j, r = range_node(results, 0), range_node(much, 1), range_node(rows, 2)
        total = k.reduce(Ops.ADD, k.at(k.param(1, rows, results), r, i), r)
        return k.kernel(k.out(k.param(0, results, much), total, i, j))

    schedule = choose_schedule(repeated(6, 128, 7688), HOPPER).steps
    along = [step for step in schedule if isinstance(step, Split) and step.axis == "i1"]
    units = {step.axis: step.unit for step in schedule if isinstance(step, Bind)}
    assert any(units.get(name) == "thread" for step in along for name, _ in step.parts)
    check(repeated(6, 12, 300))


def threads_of_blocks(kernel: Node) -> int:
    """How many threads a block of a kernel has."""
    launch = Compiler(HOPPER, render.get("ptx"), Texts(), None).compile(kernel).launch
    assert launch is not None
    return int(np.prod(launch.block))


class Texts:
    """An assembler whose machine code is the text."""

    version = "1"
    several_at_once = False

    def assemble_all(self, texts: Any) -> Any:
        return (text.encode() for text in texts)


def test_short_sums_of_short_sums_are_a_thread_s() -> None:
    """As in a mean over windows that rounds between its axes; a block of four threads has most
    of its time to wait for."""
    x = param(0, 40, 64, 64, dtype=dtypes.bfloat16)
    inner = x.reshape(40, 32, 2, 32, 2).cast(dtypes.float32).sum(4).cast(dtypes.bfloat16)
    total = inner.cast(dtypes.float32).sum(2)
    (kernel,) = make_plan(canonicalise(sink(total), target=HOPPER), target=HOPPER).kernels
    assert threads_of_blocks(kernel) >= 128


def test_few_neighbours_are_no_block() -> None:
    """Columns of which two lie together, beside many others."""
    a, b, r, c, d = (range_node(size, place) for place, size in enumerate((60, 9, 3, 20, 2)))
    total = k.reduce(Ops.ADD, k.at(k.param(1, 9, 60, 20, 3, 2), b, a, c, r, d), r)
    kernel = k.kernel(k.out(k.param(0, 60, 9, 2, 20), total, a, b, d, c))
    assert threads_of_blocks(kernel) >= 64
    check(kernel)


def times_vector(rows: int, length: int, dtype: Any = dtypes.float8_e4m3fn) -> Node:
    """A matrix of narrow numbers times one row of bfloat16."""
    i, r = range_node(rows, 0), range_node(length, 1)
    factors = (
        k.at(k.param(1, length, dtype=dtypes.bfloat16), r),
        k.at(k.param(2, rows, length, dtype=dtype), i, r),
    )
    x, w = (Node(Ops.CAST, dtypes.float32, (each,)) for each in factors)
    return k.kernel(k.out(k.param(0, rows), k.reduce(Ops.ADD, alu(Ops.MUL, x, w), r), i))


@pytest.mark.parametrize(
    ("rows", "length", "dtype", "each"),
    ((14336, 4096, dtypes.float8_e4m3fn, 8), (14336, 4096, dtypes.bfloat16, 2),
     (14336, 4096, dtypes.float32, 1), (7169, 4096, dtypes.bfloat16, 1),
     (256, 4096, dtypes.float8_e4m3fn, 1)),
)  # fmt: skip
def test_rows_that_share_a_factor_are_several_of_a_thread(
    rows: int, length: int, dtype: Any, each: int
) -> None:
    """As many as give a thread enough to read, and leave machines enough to do."""
    kernel = times_vector(rows, length, dtype)
    steps = choose_schedule(kernel, HOPPER).steps
    parts = dict(p for step in steps if isinstance(step, Split) for p in step.parts)
    unrolled = [step.axis for step in steps if isinstance(step, Bind) and step.unit == "unroll"]
    assert [parts[axis] for axis in unrolled if axis.startswith("i0")] == [each] * (each > 1)
    assert shared(kernel) == shared(times_vector(64, length, dtype))


def shares(heads: int, keys: int, width: int, size: int) -> Node:
    """Gradients by keys, and what they are made of: rows less what each head's sum is."""
    i, j, d, q = (range_node(n, at) for at, n in enumerate((heads, keys, width, size)))
    sums = k.reduce(Ops.ADD, k.at(k.param(2, heads, size), i, q), q)
    share = alu(Ops.MUL, k.at(k.param(3, heads, keys), i, j), sums)
    whole = alu(Ops.MUL, share, k.at(k.param(4, heads, width), i, d))
    return k.kernel(
        k.out(k.param(0, heads, keys, width), whole, i, j, d),
        k.out(k.param(1, heads, keys), share, i, j),
    )


def test_blocks_share_what_outputs_have_along_some_axes_alone() -> None:
    """Warps lie along the axes of all outputs, lanes along those of some: no lane goes along."""
    schedule = choose_schedule(shares(16, 408, 128, 408), HOPPER)
    units = {step.axis: step.unit for step in schedule.steps if isinstance(step, Bind)}
    assert units["i1_o"] == "grid"
    assert {name: unit for name, unit in units.items() if name.startswith("i2")} == {
        "i2_t0": "thread", "i2_v1": "vector",
    }
    check(shares(2, 300, 64, 300))


def test_sums_of_a_few_are_made_anew_rather_than_by_few_blocks() -> None:
    """Eight partial results for each sum of 56: blocks for the four that share them were four."""
    schedule = choose_schedule(spread_around_means(4, 8, 56), HOPPER)
    assert any(isinstance(step, Bind) and step.unit == "grid" and step.axis != "i0_o"
               for step in schedule.steps)  # fmt: skip
    check(spread_around_means(4, 8, 56))


def test_rows_of_a_warp_lie_near_each_other() -> None:
    """Not along the longest axis, where each of them is in other sectors of memory."""

    def scaled(images: int, rows: int, width: int) -> Node:
        i, j, c, q = (range_node(n, at) for at, n in enumerate((images, rows, width, width)))
        x = k.param(1, images, rows, width)
        value = alu(Ops.MUL, k.at(x, i, j, c), k.reduce(Ops.ADD, k.at(x, i, j, q), q))
        return k.kernel(k.out(k.param(0, images, rows, width), value, i, j, c))

    for width in (28, 33):
        steps = choose_schedule(scaled(5000, 432, width), HOPPER).steps
        along = [step.axis for step in steps if isinstance(step, Bind) and step.unit == "thread_y"]
        assert along == ["i1_t0"]
    check(scaled(2, 40, 33))


@pytest.mark.parametrize(("rows", "length", "loads"), [(5, 70, 2), (3, 129, 4), (33, 31, 1)])
def test_loads_of_a_lane_are_under_way_together_in_sums_of_sums(
    rows: int, length: int, loads: int
) -> None:
    kernel = k.sum_of_row_logs(rows, length)
    assert re.findall(r"r1_u\d=(\d+)", str(choose_schedule(kernel, HOPPER))) == [str(loads)] * (
        loads > 1
    )
    check(kernel)


@pytest.mark.parametrize("size", [1 << 26, 1 << 28])
def test_blocks_of_a_long_sum_s_parts_share_multiprocessors(size: int) -> None:
    """Where one adds up what its threads have, another one still reads."""
    total = param(0, size).sum(0)
    parts, _ = make_plan(canonicalise(sink(total), target=HOPPER), target=HOPPER).kernels
    assert 2 * threads_of_blocks(parts) <= HOPPER.threads_per_block

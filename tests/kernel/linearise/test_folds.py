"""Lanes of a vector folded into one value, in an order that all levels share."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.stream import pair, stream
from baregrad.ir.core.attrs import Alloc, Reduce
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_threads import evaluate_threads
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import choose, codegen_passes
from baregrad.render import get
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text, run_threads
from tests.render.harness import (
    F32,
    I32,
    check,
    fold,
    kernel,
    load,
    loop,
    param,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential
ROUTES = ("loop", "linear", "llvm", "c")


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("op", (Ops.ADD, Ops.MAX, Ops.MUL))
@pytest.mark.parametrize("lanes", (2, 6, 7, 8, 28))
@pytest.mark.parametrize("count", (1, 3, 4))
def test_horizontal_reductions(op: Any, lanes: int, count: int) -> None:
    i, u, v = range_node(3, 0), unroll(count, 1), vector(lanes, 2)
    x, out = param(1, 3, count, lanes), param(0, 3)
    node = kernel(loop(i, store(out, fold(op, load(x, i, u, v), u, v), i)))
    check(node, [zeros(3), data(3, count, lanes)], routes=ROUTES)


FOLDS = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum,
         Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor}


@pytest.mark.parametrize("op", FOLDS, ids=lambda op: str(op.name))
@pytest.mark.parametrize("lanes", (3, 5, 16))
def test_lanes_of_integers_are_folded(op: Any, lanes: int) -> None:
    v = vector(lanes, 0)
    x, out = param(1, lanes, dtype=I32), param(0, 1, dtype=I32)
    values = np.random.default_rng(0).integers(-1000, 1000, lanes, np.int32)
    node = kernel(store(out, fold(op, load(x, v), v), 0))
    found, _ = check(node, [np.zeros(1, np.int32), values], routes=ROUTES)
    assert found[0] == FOLDS[op].reduce(values, dtype=np.int32)


@pytest.mark.parametrize("op", (Ops.MAX, Ops.MIN), ids=("max", "min"))
@pytest.mark.parametrize("lanes", (2, 3, 7, 8, 16, 64))
@pytest.mark.parametrize("dtype", (F32, dtypes.float64), ids=str)
def test_a_nan_in_any_lane_is_the_extreme(op: Any, lanes: int, dtype: Any) -> None:
    """Beside infinities too, and whatever its sign; without one the extreme is NumPy's."""
    rows = 2 * lanes + 1
    i, v = range_node(rows, 0), vector(lanes, 1)
    x, out = param(1, rows, lanes, dtype=dtype), param(0, rows, dtype=dtype)
    values = np.random.default_rng(lanes).standard_normal((rows, lanes)).astype(dtype.numpy)
    values[1::3, 0], values[2::3, -1] = np.inf, -np.inf
    for lane in range(lanes):
        values[2 * lane, lane] = np.nan if lane % 2 else -np.nan
    node = kernel(loop(i, store(out, fold(op, load(x, i, v), v), i)))
    empty = np.zeros(rows, dtype.numpy)
    found, _ = check(node, [empty, values], routes=ROUTES)
    np.testing.assert_array_equal(found, FOLDS[op].reduce(values, axis=1))


def test_lanes_that_are_not_there_add_nothing() -> None:
    """Not even 0: that would make -0 a 0."""
    v = vector(7, 0)
    x, out = param(1, 7), param(0, 1)
    node = kernel(store(out, fold(Ops.ADD, load(x, v), v), 0))
    found, _ = check(node, [zeros(1), -zeros(7)], routes=ROUTES)
    assert np.signbit(found[0])


def test_threads_meet_before_one_of_several_shared_arrays_is_written_again() -> None:
    """A sum shows one number of each thread; the place of the greatest sum, that and another."""
    row, column, step = (range_node(size, at) for at, size in enumerate((5, 2, 3)))
    product = alu(Ops.MUL, k.at(k.param(1, 2, 3), column, step),
                  k.at(k.param(2, 5, 3), row, step))  # fmt: skip
    total = k.reduce(Ops.ADD, product, step)
    place = Node(Ops.CAST, dtypes.int64, (column,))
    both = Node(Ops.REDUCE, F32, (total, place, column), Reduce(arg_extreme(Ops.MAX, F32)))
    found = Node(Ops.PROJ, dtypes.int64, (both,), 1)
    node = k.kernel(k.out(k.param(0, 5, dtype=dtypes.int64), found, row))
    check_gpu(
        node,
        "Schedule(bind('i0', 'grid'), split('r2', outer='a', b=4, masked=True),"
        " bind('b', 'thread'), bind('r1', 'thread_y'))",
    )


@pytest.mark.parametrize(("lanes", "arrays"), ((1, 2), (4, 1)))
def test_folds_of_many_bytes_have_the_same_memory(lanes: int, arrays: int) -> None:
    """Those of few bytes take turns, so that threads meet once for each."""
    row, column = range_node(512, 1), range_node(lanes, 0)
    x = k.at(k.param(1, 512, lanes, dtype=dtypes.float64), row, column)
    both = alu(Ops.MUL, k.reduce(Ops.ADD, x, row), k.reduce(Ops.MAX, x, row))
    node = k.kernel(k.out(k.param(0, lanes, dtype=dtypes.float64), both, column))
    bound = "" if lanes == 1 else ", bind('i0', 'vector')"
    _, program = lowered(node, f"Schedule(bind('r1', 'thread'){bound})")
    stored = {one.src[0] for one in program.src if one.op is Ops.VSTORE}
    shown = [one for one in stored if one.op is Ops.ALLOC and one.arg.shape == (512 * lanes,)]
    assert len(shown) == arrays


def meetings_of(program: Node) -> int:
    """How often the threads of a block meet."""
    return sum(one.op is Ops.MACHINE and one.arg.name == "bar.sync" for one in program.src)


@pytest.mark.parametrize(("rows", "meetings"), ((1, 1), (4, 1), (3, 1), (40, 2)))
def test_sums_of_a_statement_meet_once_for_each_lane_s(rows: int, meetings: int) -> None:
    row, step = range_node(2 * rows, 0), range_node(256, 1)
    total = k.reduce(Ops.ADD, k.at(k.param(1, 2 * rows, 256), row, step), step)
    scaled = alu(Ops.MUL, total, k.at(k.param(2, 2 * rows), row))
    node = k.kernel(k.out(k.param(0, 2 * rows), scaled, row))
    program = check_gpu(
        node,
        f"Schedule(split('i0', outer='b', u={rows}), bind('b', 'grid'), bind('u', 'unroll'),"
        " split('r1', outer='w', t=32), bind('w', 'thread_y'), bind('t', 'thread'))",
    )
    assert meetings_of(program) == meetings


def gated(rows: int) -> Node:
    """The sums of some rows, each times that of a row of another array."""
    row, step = range_node(rows, 0), range_node(256, 1)
    first, second = [
        k.reduce(Ops.ADD, k.at(k.param(slot, rows, 256), row, step), step) for slot in (1, 2)
    ]
    return k.kernel(k.out(k.param(0, rows), alu(Ops.MUL, first, second), row))


WARPS = "split('r1', outer='w', t=32), bind('w', 'thread_y'), bind('t', 'thread')"


@pytest.mark.parametrize(("rows", "exchanges"), (
    (1, 1 + 4 + 1), (4, (4 + 2 + 1) + 2 + (1 + 2 + 4)),
))  # fmt: skip
def test_sums_of_statements_next_to_each_other_meet_once(rows: int, exchanges: int) -> None:
    """Lanes share out what both have, until each adds up one sum; then they show each other all."""
    program = check_gpu(
        gated(2 * rows),
        f"Schedule(split('i0', outer='b', u={rows}), bind('b', 'grid'), bind('u', 'unroll'),"
        f" {WARPS})",
    )
    assert (meetings_of(program), exchanges_of(program)) == (1, exchanges)


@pytest.mark.parametrize("turns", (2, 3, 5))
@pytest.mark.parametrize("rows", (1, 2))
def test_threads_meet_once_in_each_turn_of_a_loop(turns: int, rows: int) -> None:
    program = check_gpu(
        gated(2 * turns * rows),
        f"Schedule(split('i0', outer='b', turn={turns}, u={rows}), bind('b', 'grid'),"
        f" bind('u', 'unroll'), {WARPS})",
    )
    assert meetings_of(program) == 1


def test_sums_of_a_loop_in_a_loop_meet_before_they_are_shown() -> None:
    """The first turn of the inner one may show in the slot that its last one did."""
    program = check_gpu(
        gated(12),
        f"Schedule(split('i0', outer='b', turn=2, again=3), bind('b', 'grid'), {WARPS})",
    )
    assert meetings_of(program) == 2


def test_places_of_several_rows_meet_once() -> None:
    """A state of two numbers: what was largest, and where."""
    row, step = range_node(4, 0), range_node(96, 1)
    place = Node(Ops.CAST, dtypes.int64, (step,))
    x = k.at(k.param(1, 4, 96), row, step)
    both = Node(Ops.REDUCE, F32, (x, place, step), Reduce(arg_extreme(Ops.MAX, F32)))
    found = Node(Ops.PROJ, dtypes.int64, (both,), 1)
    node = k.kernel(k.out(k.param(0, 4, dtype=dtypes.int64), found, row))
    program = check_gpu(
        node,
        "Schedule(bind('i0', 'unroll'), split('r1', outer='w', t=32), bind('w', 'thread_y'),"
        " bind('t', 'thread'))",
    )
    assert meetings_of(program) == 1


def exchanges_of(program: Node) -> int:
    return sum(one.op is Ops.MACHINE and one.arg.name == "shfl.sync.bfly" for one in program.src)


@pytest.mark.parametrize(
    ("threads", "meetings", "exchanges"), (("t=32", 0, 10), ("t=5", 1, 0), ("t=96", 1, 0))
)
def test_threads_fold_all_states_at_once(threads: str, meetings: int, exchanges: int) -> None:
    """What was largest and where, of which each is stored by itself."""
    row, step = range_node(3, 0), range_node(96, 1)
    place = Node(Ops.CAST, dtypes.int64, (step,))
    x = k.at(k.param(2, 3, 96), row, step)
    both = Node(Ops.REDUCE, F32, (x, place, step), Reduce(arg_extreme(Ops.MAX, F32)))
    states = [Node(Ops.PROJ, dtype, (both,), n) for n, dtype in enumerate((F32, dtypes.int64))]
    outs = [k.out(k.param(n, 3, dtype=one.dtype), one, row) for n, one in enumerate(states)]
    program = check_gpu(
        k.kernel(*outs),
        f"Schedule(bind('i0', 'grid'), split('r1', outer='w', {threads}, masked=True),"
        " bind('t', 'thread'))",
    )
    assert (meetings_of(program), exchanges_of(program)) == (meetings, exchanges)


def states_of_parts(parts: int) -> Node:
    """What 8 rows come to, of sums of parts that are relative to powers of two."""
    row, part = range_node(8, 0), range_node(parts, 1)
    reads = [k.at(k.param(slot, 8, parts), row, part) for slot in (1, 2, 3)]
    fold = Node(Ops.REDUCE, F32, (*reads, part), Reduce(stream(F32, 2, Ops.EXP2_NEAR)))
    total, summed = (Node(Ops.PROJ, F32, (fold,), state) for state in (1, 2))
    return k.kernel(k.out(k.param(0, 8), alu(Ops.DIV, summed, total), row))


def parts_of(parts: int) -> dict[int, Any]:
    rng = np.random.default_rng(parts)
    tops = rng.integers(-9, 9, (8, parts)).astype(np.float32)
    tops[rng.random((8, parts)) < 0.2] = -np.inf
    tops[:, 0] = 1
    sums = [rng.random((8, parts)).astype(np.float32) for _ in range(2)]
    return {0: zeros(8), 1: tops, 2: sums[0], 3: sums[1]}


@pytest.mark.parametrize(("parts", "split", "exps"), (
    (32, "u=8, t=4", 7 + 3 + 1), (5, "u=1, t=5", 4 + 1), (96, "u=1, t=96", 95 + 1),
    # In a turn after another one each element is added to what was there, by a statement a state.
    (64, "u=8, t=4", 8 + 8 + 7 + 3),
))  # fmt: skip
def test_elements_of_one_turn_are_added_to_nothing_once(parts: int, split: str, exps: int) -> None:
    loop, program = lowered(
        states_of_parts(parts), f"Schedule(bind('i0', 'grid'), split('r1', outer='w', {split}, "
        "masked=True), bind('u', 'unroll'), bind('t', 'thread'))",
    )
    # Two of each combination, of the states on both sides.
    powers = [one for one in program.src if one.op is Ops.EXP2_NEAR]
    assert len(powers) == 2 * exps and meetings_of(program) == 1
    arrays = parts_of(parts)
    arrays[3][0] = -0.0
    tops, totals, sums = (arrays[slot].astype(np.float64) for slot in (1, 2, 3))
    factors = np.exp2(tops - tops.max(-1, keepdims=True))
    wanted = (sums * factors).sum(-1) / (totals * factors).sum(-1)
    evaluated = {slot: array.copy() for slot, array in arrays.items()}
    evaluate_loop(loop, evaluated)
    for run in (run_threads, run_text):
        found = run(loop, program, arrays)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        np.testing.assert_array_equal(found, evaluated[0])
        # The sum of what is -0 alone is 0, as it is for a row of any length.
        assert not np.signbit(found[0])


@pytest.mark.parametrize(("split", "words"), (("u=32, t=1", 96), ("u=8, t=4", 24)))
def test_loads_of_what_powers_combine_have_registers(split: str, words: int) -> None:
    """Loads wait behind arithmetic where the assembler is not told that they may not."""
    schedule = f"split('r1', outer='w', {split}, masked=True), bind('u', 'unroll')"
    columns = "split('i0', outer='g', s=2), bind('g', 'grid'), bind('s', 'thread_y')"
    _, program = lowered(
        states_of_parts(32), f"Schedule({columns}, {schedule}, bind('t', 'thread'))"
    )
    (blocks,) = re.findall(r"\.minnctapersm (\d+)", get("ptx").render(program, HOPPER))
    # Some registers beside those of the words, of threads that come by warps.
    held = HOPPER.registers_per_unit // (int(blocks) * HOPPER.warp_lanes)
    assert words + 16 <= held <= words + 48


@pytest.mark.parametrize("blocks", (7, 8))
def test_no_more_blocks_are_asked_for_than_there_can_be(blocks: int) -> None:
    """Of eight blocks, where seven begin at once: the assembler heeds no such wish."""
    target = dataclasses.replace(HOPPER, units=1, warps_per_unit=blocks)
    _, program = lowered(
        states_of_parts(32), "Schedule(bind('i0', 'grid'), split('r1', outer='w', u=8, t=4, "
        "masked=True), bind('u', 'unroll'), bind('t', 'thread'))", target,
    )
    assert f".minnctapersm {blocks}\n" in get("ptx").render(program, target)


def test_softmax_leaves_registers_to_the_assembler() -> None:
    """Its threads meet for the maximum before they take powers; those of a loop load anew."""
    softmax, turns = k.softmax(8, 256), (
        "Schedule(bind('i0', 'grid'), split('r1', outer='w', u=8, t=4, masked=True), "
        "bind('u', 'unroll'), bind('t', 'thread'))"
    )
    for node, schedule in (
        (softmax, str(choose(softmax, HOPPER).schedule)), (states_of_parts(256), turns),
    ):  # fmt: skip
        _, program = lowered(node, schedule)
        assert "minnctapersm" not in get("ptx").render(program, HOPPER)


def test_a_fold_of_what_its_first_state_was_written_over_is_another_one() -> None:
    t = range_node(64, 0, "t", "thread")
    high, low = (Node(Ops.ALLOC, F32, (), Alloc(n, "scratch", (64,))) for n in (1, 2))
    x, y, found = k.param(1, 64), k.param(2, 64), k.param(0, 64)
    fold = Node(Ops.REDUCE, F32, (load(high, t), load(low, t), t), Reduce(pair(
        primitive(Ops.MAX, F32), primitive(Ops.MIN, F32))))  # fmt: skip
    first, second = (Node(Ops.PROJ, F32, (fold,), n) for n in (0, 1))
    less = alu(Ops.SUB, load(low, t), load(high, t))
    statements = [
        store(high, load(x, t), t), store(low, load(y, t), t), store(low, first, t),
        store(high, second, t), store(found, less, t),
    ]  # fmt: skip
    node = kernel(*statements)
    arrays = {0: zeros(64), 1: data(64), 2: data(64, seed=1)}
    wanted = {slot: array.copy() for slot, array in arrays.items()}
    evaluate_loop(node, wanted)
    # The second fold has the largest of x as every y.
    np.testing.assert_array_equal(wanted[0], zeros(64))
    for one in codegen_passes(HOPPER):
        node = one.run(node)
    evaluate_threads(node, arrays, HOPPER, 1)
    np.testing.assert_array_equal(arrays[0], wanted[0])


@pytest.mark.parametrize(("rows", "warps"), ((2, 3), (7, 2), (32, 2), (16, 7)))
@pytest.mark.parametrize(("op", "dtype"), ((Ops.ADD, F32), (Ops.MAX, F32), (Ops.ADD, I32)))
def test_lanes_share_out_the_sums_of_rows(rows: int, warps: int, op: Any, dtype: Any) -> None:
    """One is shown by each, and none is added up in another order."""
    length = 32 * warps
    row, step = range_node(rows, 0), range_node(length, 1)
    total = k.reduce(op, k.at(k.param(1, rows, length, dtype=dtype), row, step), step)
    node = k.kernel(k.out(k.param(0, rows, dtype=dtype), total, row))
    program = check_gpu(
        node,
        "Schedule(bind('i0', 'unroll'), split('r1', outer='w', t=32), bind('w', 'thread_y'),"
        " bind('t', 'thread'))",
    )
    shown = [one for one in program.src if one.op is Ops.VSTORE and one.src[0].op is Ops.ALLOC]
    assert len(shown) == 1

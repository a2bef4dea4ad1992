"""Stores of a row that wait until the next one is read."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import lower, parse_schedule
from baregrad.kernel.applying.axes import apply_step
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import table_for
from baregrad.kernel.language.schedule import Schedule, pipeline
from baregrad.kernel.loops.sharing import prepare
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_schedule
from tests.render.harness import compiled, host
from tests.render.harness import lower as linearised

# All that is written goes past its caches.
SMALL = replace(host(), l2_bytes=1024, l3_bytes=4096)
LATE = "stream_output(0), pipeline('i0', engine='stores')"
ROWS = f"bind('i0', 'pool', grain=4), {LATE}"


def log_softmax(m: int, n: int) -> Node:
    """Nothing but results of reductions and the argument is read where it is stored."""
    i, j, a, b = range_node(m, 0), range_node(n, 1), range_node(n, 2), range_node(n, 3)
    x = k.param(1, m, n)
    top = k.reduce(Ops.MAX, k.at(x, i, a), a)
    total = k.reduce(Ops.ADD, alu(Ops.EXP, alu(Ops.SUB, k.at(x, i, b), top)), b)
    value = alu(Ops.SUB, alu(Ops.SUB, k.at(x, i, j), top), alu(Ops.LOG, total))
    return k.kernel(k.out(k.param(0, m, n), value, i, j))


def check(kernel: Node, schedule: Schedule | None = None) -> None:
    """What the loop level and the machine compute, in one call or several, is what is wanted."""
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    loop = lower(kernel, SMALL, schedule)
    k.assert_equal(wanted, k.run_loop(loop, arrays))
    run = compiled(linearised(loop))
    pools = [node for node in toposort(loop) if node.op is Ops.RANGE and node.arg.bind == "pool"]
    count = int(pools[0].src[0].arg) // loop.arg.grain if pools else 1
    for parts in ([(0, count)], [(part, part + 1) for part in reversed(range(count))]):
        found = [np.array(arrays[slot]) for slot in sorted(arrays)]
        found[0][...] = np.nan
        for chunks in parts:
            run(found, chunks=chunks)
        k.assert_equal(wanted, dict(enumerate(found)))


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", [(96, 512), (97, 512), (3, 65536), (40, 1056), (16, 4100)])
@pytest.mark.parametrize("make", [k.softmax, log_softmax, k.layer_norm])
def test_rows_are_what_they_were(make: Any, shape: tuple[int, int]) -> None:
    check(make(*shape))


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "steps",
    [
        ROWS,
        f"split('r2', outer='ro', rv=16), bind('rv', 'vector'), split('i1', outer='o', v=16), "
        f"bind('v', 'vector'), {ROWS}",
        # Four iterations of the stores for one of the first loop.
        "split('r2', outer='ro', rv=32), bind('rv', 'vector'), split('i1', outer='o', v=8), "
        f"{ROWS}",
        LATE,
    ],
)
@pytest.mark.parametrize("make", [k.softmax, log_softmax, k.layer_norm])
def test_any_tiles_that_come_out_even_will_do(make: Any, steps: str) -> None:
    check(make(10, 64), parse_schedule(f"Schedule({steps})"))


def test_a_symbolic_number_of_rows_may_be_none() -> None:
    n = index.variable("rows", 0, 8)
    i, j, a = range_node(n, 0), range_node(16, 1), range_node(16, 2)
    x = k.param(1, n, 16)
    total = k.reduce(Ops.ADD, alu(Ops.EXP, k.at(x, i, a)), a)
    kernel = k.kernel(k.out(k.param(0, n, 16), alu(Ops.DIV, k.at(x, i, j), total), i, j))
    loop = lower(kernel, SMALL, Schedule((pipeline("i0", engine="stores"),)))
    run = compiled(linearised(loop))
    for rows in (0, 1, 5):
        given = np.random.default_rng(rows).standard_normal((8, 16)).astype(np.float32)
        found = [np.full((8, 16), np.nan, np.float32), given]
        run(found, variables={"rows": rows})
        wanted = given / np.exp(given.astype(np.float64)).sum(1, keepdims=True)
        np.testing.assert_allclose(found[0][:rows], wanted[:rows], rtol=1e-5)
        assert np.isnan(found[0][rows:]).all()


@pytest.mark.parametrize(
    ("make", "shape", "steps", "said"),
    [
        (k.layer_norm, (8, 64), "pipeline('i0', depth=3, engine='stores')", "wanted 2"),
        (k.softmax, (8, 64), "pipeline('i0')", "wanted a GPU, or engine='stores'"),
        (k.softmax, (8, 64), "pipeline('r2', engine='stores')", "several iterations"),
        (k.softmax, (1, 64), "pipeline('i0', engine='stores')", "i0 of 1"),
        (k.softmax, (8, 64), "bind('i0', 'pool'), pipeline('i0', engine='stores')", "one by one"),
        (k.elementwise, (8, 64), "pipeline('i0', engine='stores')", "no loop of the next"),
        (k.row_reduce, (8, 64), "pipeline('i0', engine='stores')", "no loop of stores"),
        (k.softmax, (8, 64), "split('i1', outer='o', v=24, tail='t'), "
         "pipeline('i0', engine='stores')", "a part of them"),
        (k.softmax, (8, 64), "pipeline('i0', engine='stores'), pipeline('i1', engine='stores')",
         "delayed already"),
        (k.softmax, (8, 64), "pipeline('i0', engine='stores'), split('i0', outer='o', v=4)",
         "delayed along"),
    ],
)
def test_what_cannot_wait_is_refused(
    make: Any, shape: tuple[int, ...], steps: str, said: str
) -> None:
    with pytest.raises(ScheduleError, match=said):
        lower(make(*shape), SMALL, parse_schedule(f"Schedule({steps})"))


def test_what_is_overwritten_cannot_wait() -> None:
    """The only loop before the stores is the one that makes what they read."""
    i, j, a = range_node(8, 0), range_node(64, 1), range_node(64, 2)
    x = k.param(1, 8, 64)
    total = k.reduce(Ops.ADD, alu(Ops.EXP, k.at(x, i, a)), a)
    value = alu(Ops.DIV, alu(Ops.EXP, k.at(x, i, j)), total)
    kernel = k.kernel(k.out(k.param(0, 8, 64), value, i, j))
    with pytest.raises(ScheduleError, match="overwrites what"):
        lower(kernel, SMALL, parse_schedule(
            "Schedule(stream_output(0), pipeline('i0', engine='stores'))"
        ))


def test_what_a_condition_guards_is_not_read_without_it() -> None:
    """An element is read where it is there alone; what is read so cannot be handed on."""
    i, j, a = range_node(8, 0), range_node(64, 1), range_node(64, 2)
    x, place = k.param(1, 8, 64), k.at(k.param(2, 1, dtype=dtypes.int32), const(0, dtypes.index))
    spot = cast(place, dtypes.index)
    total = k.reduce(Ops.ADD, alu(Ops.EXP, k.at(x, i, a)), a)
    where = index.both(index.inside(spot, 5), index.less(j, 32))
    given = k.guard(where, k.at(k.param(3, 5), spot))
    kernel = k.kernel(k.out(k.param(0, 8, 64), alu(Ops.ADD, given, total), i, j))
    loop = lower(kernel, SMALL, parse_schedule(f"Schedule({LATE})"))
    random = np.random.default_rng(0)
    for number in (3, -(1 << 30), 1 << 30):
        rows, offer = random.standard_normal((8, 64)), random.standard_normal(5)
        arrays = [np.zeros((8, 64)), rows, np.array([number]), offer]
        arrays = [array.astype(np.float32 if array is not arrays[2] else np.int32)
                  for array in arrays]
        compiled(linearised(loop))(arrays)
        wanted = np.exp(rows).sum(1, keepdims=True).repeat(64, 1)
        if 0 <= number < 5:
            wanted[:, :32] += offer[number]
        np.testing.assert_allclose(arrays[0], wanted, rtol=1e-5)


def check_seed(seed: int) -> bool:
    rng = random.Random(seed)
    make = rng.choice((k.softmax, log_softmax, k.layer_norm))
    kernel = make(rng.choice((2, 3, 8, 13)), rng.choice((4, 8, 12, 32)))
    prepared = prepare(kernel, SMALL)
    table = table_for(facts_of(prepared))
    steps = list(any_schedule(rng, prepared).steps)
    for step in steps:
        apply_step(table, step)
    rows = [name for name, axis in table.axes.items() if not axis.reduced]
    schedule = Schedule((*steps, pipeline(rng.choice(rows), engine="stores")))
    try:
        lower(kernel, SMALL, schedule)
    except ScheduleError:
        return False
    check(kernel, schedule)
    return True


def test_random_schedules() -> None:
    assert sum(map(check_seed, range(200))) > 20


@pytest.mark.slow
def test_many_random_schedules() -> None:
    assert sum(map(check_seed, range(1000, 2000))) > 100

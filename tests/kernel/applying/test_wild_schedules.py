"""Steps drawn without regard to what is legal: each schedule is refused, or computes the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.ir.verify.verify import verify
from baregrad.kernel import apply_schedule, lower, parse_schedule, to_linear
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import AxisTable, table_for
from baregrad.kernel.language.schedule import (
    DOT_INSTRUCTIONS,
    Bind,
    Collapse,
    Reorder,
    Schedule,
    Split,
    StageInput,
    StageReduce,
    Step,
    Tensorize,
)
from baregrad.kernel.loops.sharing import prepare
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel, drawn

PLAIN = cpu_row_named("x86-64-avx2")
# No such machine has the products of bfloat16, but their meaning is that of any.
AVX = replace(PLAIN, features=(*PLAIN.features, "avxvnni", "avx512bf16"))
SIZES = ((2,), (3,), (4,), (8,), (2, 4), (3, 2), (1,), (64,))
UNITS = ("pool", "pool", "vector", "unroll", "unroll", "loop", "thread")


def wild_step(rng: random.Random, table: AxisTable, number: int) -> Step:
    """A step of any kind over any axes, rarely one that is not there."""
    names = list(table.axes)
    name = rng.choice(names) if rng.random() < 0.98 else "nowhere"
    kind = rng.random()
    some = rng.sample(names, min(len(names), rng.choice((1, 2, 2, 3))))
    if kind < 0.35:
        pairs = zip("abc", rng.choice(SIZES), strict=False)
        inner = [(f"s{number}{letter}", size) for letter, size in pairs]
        form = rng.random()
        tail = f"s{number}t" if form < 0.5 else ""
        return Split(name, ((f"s{number}o", 0), *inner), tail, form > 0.75)
    if kind < 0.65:
        return Bind(name, rng.choice(UNITS), rng.choice((1, 1, 2, 3)))
    if kind < 0.75:
        return Reorder(tuple(some))
    if kind < 0.8:
        return Collapse(tuple(some), f"c{number}")
    if kind < 0.83:
        return Tensorize((name,), rng.choice(DOT_INSTRUCTIONS))
    if kind < 0.92:
        if len(some) > 1 and rng.random() < 0.3:
            some = ["+".join(some[:2]), *some[2:]]
        return StageInput(rng.choice((0, 1, 2)), tuple(some), rng.choice((0, 0, 4, 8)))
    return StageReduce(name, tuple(some))


def wild_schedule(rng: random.Random, kernel: Node) -> Schedule:
    """Steps, of which those refused at once are mostly left out, so that others are tried."""
    return drawn(rng, table_for(facts_of(prepare(kernel, AVX)), AVX), 9, wild_step, refused=0.05)


def check_seed(seed: int) -> bool:
    """Whether a wild schedule is legal; then it computes what its kernel does, at every level."""
    rng = random.Random(seed)
    make, args = any_kernel(rng, (1, 2, 7, 8, 9, 16, 17))
    kernel = make(*args)
    schedule = wild_schedule(rng, kernel)
    assert parse_schedule(str(schedule)) == schedule
    try:
        applied = apply_schedule(kernel, schedule, AVX)
        loop = lower(kernel, AVX, schedule)
    except ScheduleError:
        return False
    verify(loop, "loop")
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    k.assert_equal(wanted, k.run_kernel(applied, arrays))
    k.assert_equal(wanted, k.run_loop(loop, arrays))
    verify(to_linear(loop, AVX), "linear")
    return True


@settings(max_examples=30)
@given(st.integers(0, 1 << 30))
def test_a_wild_schedule_is_refused_or_right(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
def test_many_wild_schedules(batch: int) -> None:
    assert sum(check_seed(10_000 * batch + number) for number in range(150)) > 40


@pytest.mark.parametrize("seed", [
    5094,  # chunks of a partial tile
    5224,  # a copy over the chunks of a partial tile
])
def test_what_was_once_wrong(seed: int) -> None:
    assert wrong_once(seed)


def wrong_once(seed: int) -> bool:
    """Schedules that computed something else, by what they were found with."""
    kernel, text = {
        5094: (k.row_reduce(3, 5), "Schedule(split('i0', outer='o', a=4, masked=True), "
               "bind('a', 'pool', grain=3))"),
        5224: (k.conv(2, 2, 4, 5, 6, 3, 2, 0, 2), "Schedule(split('i2', outer='o', a=3, "
               "masked=True), bind('a', 'pool'), stage_input(1, 'a', 'i3'))"),
    }[seed]
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    k.assert_equal(wanted, k.run_loop(lower(kernel, AVX, parse_schedule(text)), arrays))
    return True

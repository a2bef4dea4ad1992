"""Steps drawn without regard to what is legal: each schedule is refused, or computes the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node, extent_of, toposort
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


def refusal(kernel: Node, text: str) -> str:
    """What is said of a schedule that is not legal."""
    with pytest.raises(ScheduleError) as caught:
        lower(kernel, AVX, parse_schedule(text))
    return str(caught.value)


def test_capacity_is_checked() -> None:
    big = k.matmul(64, 64, 4096)
    small = replace(AVX, l3_bytes=1 << 16)
    text = "Schedule(stage_input(2, 'r2', 'i1'))"
    with pytest.raises(ScheduleError, match="no room in the caches: found 1048576 bytes"):
        lower(big, small, parse_schedule(text))
    assert "lies in registers" in refusal(k.elementwise(5000), "Schedule(bind('i0', 'vector'))")
    wide = "Schedule(bind('i0', 'unroll'), bind('i1', 'vector'))"
    assert "far more than registers hold" in refusal(k.elementwise(500, 500), wide)


def test_copies_lie_over_axes_that_stay() -> None:
    mm = k.matmul(8, 16, 8)
    staged = "stage_input(2, 'r2', 'i1')"
    assert "a copy lies over the axis" in refusal(
        mm, f"Schedule({staged}, split('i1', outer='o', v=8))"
    )
    # Threads may share what a copy lies over where each chunk has as much of it.
    bad = f"Schedule(bind('i1', 'pool', grain=5), {staged})"
    assert "the last chunk is shorter" in refusal(mm, bad)
    good = parse_schedule(f"Schedule(bind('i1', 'pool', grain=4), {staged})")
    loop = lower(mm, AVX, good)
    verify(loop, "loop")
    arrays = k.arguments(mm)
    k.assert_equal(k.run_kernel(mm, arrays), k.run_loop(loop, arrays))


def test_sums_kept_for_a_chunk_are_those_of_the_chunk_alone() -> None:
    """Each chunk adds up its own part: not every chunk the whole of the axis."""
    kernel = k.matmul(8, 16, 32)
    text = "Schedule(bind('i0', 'pool'), stage_reduce('r2', 'i0', 'i1'))"
    loop = lower(kernel, AVX, parse_schedule(text))
    verify(loop, "loop")
    ranges = [node for node in nodes_of(loop) if node.op.name == "RANGE"]
    chunk = {n.arg.axis: extent_of(n) for n in ranges if n.arg.axis.startswith("i0")}
    assert chunk == {"i0_chunk": 8}
    arrays = k.arguments(kernel)
    k.assert_equal(k.run_kernel(kernel, arrays), k.run_loop(loop, arrays))


def test_sums_kept_outside_of_a_loop_with_a_tile() -> None:
    """The tile's axis is reduced in registers with the loop inside, not with the one outside."""
    kernel = k.matmul(6, 8, 24)
    text = (
        "Schedule(split('r2', outer='ro', ri=3, ru=2), bind('ru', 'unroll'), bind('i1', 'vector'), "
        "stage_reduce('ro', 'i0', 'i1'))"
    )
    loop = lower(kernel, AVX, parse_schedule(text))
    verify(loop, "loop")
    arrays = k.arguments(kernel)
    k.assert_equal(k.run_kernel(kernel, arrays), k.run_loop(loop, arrays))


def nodes_of(root: Node) -> list[Node]:
    """Everything below a node."""
    return list(toposort(root))

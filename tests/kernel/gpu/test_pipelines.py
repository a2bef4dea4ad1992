"""Copies begun ahead of their iteration: every level agrees; a wait that is missing is found."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, rebuild
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Done, ProtocolError
from baregrad.kernel import lower, parse_schedule
from baregrad.kernel.gpu.threads import to_threads
from baregrad.kernel.linearise.linearise import linearise
from baregrad.render import get
from baregrad.target import gpu_row
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import check_gpu, lowered, run_text, run_threads

HEAD = (
    "split('i0', outer='a', y=4, mr=2, masked=True),"
    "split('i1', outer='b', x=8, nv=4, masked=True), split('r2', outer='ko', ki=4, masked=True),"
    "bind('a', 'grid'), bind('b', 'grid'),"
    "bind('y', 'thread_y'), bind('x', 'thread'), bind('mr', 'unroll'), bind('nv', 'vector')"
)
PANELS = f"{HEAD}, stage_input(1, 'ki', 'y', 'mr'), stage_input(2, 'ki', 'x', 'nv')"
PIPES = (
    "pipeline('ko')",
    "pipeline('ko', engine='async')",
    "pipeline('ko', depth=3, engine='async')",
    "pipeline('ko', depth=4, engine='async')",
)


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("shape", [(13, 17, 9), (8, 32, 16), (9, 33, 8)])
def test_a_pipelined_product_is_a_product(shape: tuple[int, int, int], pipe: str) -> None:
    program = check_gpu(k.matmul(*shape), f"Schedule({PANELS}, {pipe})")
    names = [node.arg.name for node in program.src if node.op is Ops.MACHINE]
    # One meeting an iteration, in the only loop over `ko`, and none besides.
    assert names.count("bar.sync") == 1


def test_copies_of_two_bytes_go_several_at_once() -> None:
    kernel = k.matmul(16, 64, 32, dtype=dtypes.float16)
    text = f"Schedule({HEAD}, stage_input(2, 'ki', 'x', 'nv'), pipeline('ko', engine='async'))"
    program = check_gpu(kernel, text)
    copies = [n for n in program.src if n.op is Ops.MACHINE and n.arg.name == "cp.async"]
    assert {node.arg.immediates[0] for node in copies} == {8}
    # What lies in no whole words comes through registers.
    program = check_gpu(kernel, text.replace("2, 'ki', 'x', 'nv'", "1, 'ki', 'y', 'mr'"))
    assert not [n for n in program.src if n.op is Ops.MACHINE and n.arg.name == "cp.async"]


def test_a_pipeline_inside_another_loop_begins_anew() -> None:
    """The slots that the last iterations read are filled again for the next row of tiles."""
    text = PANELS.replace("bind('a', 'grid'), ", "")
    for pipe in PIPES:
        check_gpu(k.matmul(20, 32, 12), f"Schedule({text}, {pipe})")


def test_a_pipeline_may_run_along_the_output() -> None:
    text = (
        "Schedule(split('i1', outer='b', x=8, masked=True), bind('b', 'grid'), bind('x', 'thread'),"
        "stage_input(1, 'r2'), pipeline('i0', depth=3, engine='async'))"
    )
    check_gpu(k.matmul(7, 16, 12), text)


def any_pipeline(rng: random.Random) -> tuple[Node, str]:
    """A product of any size, its tiles, copies and pipeline."""
    m, n = (rng.choice((3, 8, 13, 16, 24)) for _ in range(2))
    # Shorter sums are written out, and have no axis.
    r = rng.choice((8, 9, 13, 16, 24))
    y, x, u, v, d = (rng.choice(c) for c in ((1, 2, 4), (4, 8), (1, 2), (1, 2, 4), (2, 4, 8)))
    steps = [
        f"split('i0', outer='a', y={y}, u={u}, masked=True)",
        f"split('i1', outer='b', x={x}, v={v}, masked=True)",
        f"split('r2', outer='o', d={d}, masked=True)",
        "bind('b', 'grid'), bind('y', 'thread_y'), bind('x', 'thread'), bind('u', 'unroll')",
        "bind('v', 'vector')",
    ]
    if rng.random() < 0.7:
        steps.append("bind('a', 'grid')")
    copies = ["stage_input(1, 'd', 'y', 'u')", "stage_input(1, 'y', 'u', 'd')",
              "stage_input(2, 'd', 'x', 'v')", "stage_input(2, 'x', 'd', 'v')"]
    left, right = rng.choice(copies[:2]), rng.choice(copies[2:])
    steps += rng.choice(([left], [right], [left, right]))
    steps.append(rng.choice(PIPES).replace("'ko'", "'o'"))
    kernel = k.matmul(m, n, r, rng.random() < 0.5, rng.random() < 0.5)
    return kernel, f"Schedule({', '.join(steps)})"


def check_seed(seed: int) -> bool:
    kernel, text = any_pipeline(random.Random(seed))
    assert str(parse_schedule(str(parse_schedule(text)))) == str(parse_schedule(text))
    try:
        check_gpu(kernel, text)
    except ScheduleError:
        return False
    return True


def test_random_pipelines() -> None:
    assert sum(map(check_seed, range(6))) > 2


@pytest.mark.slow
def test_many_random_pipelines() -> None:
    assert sum(map(check_seed, range(100, 160))) > 30


# --- what is left out is found out --------------------------------------------------------------


def without(program: Node, name: str) -> Node:
    code = [n for n in program.src if n.op is not Ops.MACHINE or n.arg.name != name]
    return Node(Ops.PROGRAM, program.dtype, tuple(code), program.arg)


@pytest.mark.parametrize("name", ["bar.sync", "cp.async.wait"])
def test_a_missing_wait_is_found_in_threads_and_in_text(name: str) -> None:
    kernel = k.matmul(13, 17, 24)
    loop, program = lowered(kernel, f"Schedule({PANELS}, {PIPES[2]})")
    broken = without(program, name)
    with pytest.raises(ProtocolError, match=r"race|under way"):
        run_threads(loop, broken, k.arguments(kernel))
    with pytest.raises(BaregradError, match=r"race|before|copy"):
        run_text(loop, broken, k.arguments(kernel))


@pytest.mark.parametrize("keep", [1, 2])
def test_a_wait_that_leaves_too_many_groups_is_found(keep: int) -> None:
    """What has not landed is garbage at the loop level, and a fault below it."""
    kernel = k.matmul(13, 17, 24)
    pipe = f"pipeline('ko', depth={keep + 1}, engine='async')"
    loop, _ = lowered(kernel, f"Schedule({PANELS}, {pipe})")

    def later(node: Node) -> Node | None:
        return node.replace(arg=Done("copy", keep)) if node.op is Ops.DONE else None

    arrays = k.arguments(kernel)
    found = k.run_loop(rebuild(loop, later), arrays)
    assert np.isnan(found[0]).any()


def test_a_slot_that_is_read_is_not_filled() -> None:
    """One slot fewer than the copies that are under way: the machine's level notices."""
    kernel = k.matmul(13, 17, 24)
    loop, _ = lowered(kernel, f"Schedule({PANELS}, {PIPES[2]})")

    def closer(node: Node) -> Node | None:
        if node.op is Ops.MOD and node.src[1].op is Ops.CONST and node.src[1].arg == 3:
            return node.replace(src=(node.src[0], node.src[1].replace(arg=2)))
        return None

    broken = rebuild(loop, closer)
    assert broken is not loop
    broken = linearise(to_threads(broken))
    with pytest.raises(ProtocolError, match=r"race|under way"):
        run_threads(loop, broken, k.arguments(kernel))


# --- what is refused -----------------------------------------------------------------------------

REFUSED = (
    ("pipeline('zz')", "not there"),
    ("pipeline('ki')", "each with its own copies"),
    ("pipeline('a')", "each with its own copies"),
    ("pipeline('ko', depth=1)", "no use: found 1"),
    ("pipeline('ko', depth=3)", "wanted 2, or 'async'"),
    ("pipeline('ko', depth=9, engine='async')", "wanted 2 to 8"),
    ("pipeline('ko', engine='dma')", "wanted lanes, async"),
    ("pipeline('ko'), pipeline('ko')", "pipelined already"),
    ("pipeline('ko'), split('ko', outer='p', q=2, masked=True)", "begun ahead along the axis"),
    ("pipeline('ko'), bind('ko', 'unroll')", "begun ahead along the axis"),
)


@pytest.mark.parametrize(("steps", "message"), REFUSED)
def test_what_cannot_be_pipelined_is_refused(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        lowered(k.matmul(16, 32, 16), f"Schedule({PANELS}, {steps})")


def test_a_loop_without_copies_of_its_own_is_refused() -> None:
    with pytest.raises(ScheduleError, match="no copy is made anew in each iteration"):
        lowered(k.matmul(16, 32, 16), f"Schedule({HEAD}, pipeline('ko'))")


def test_a_loop_with_a_copying_loop_inside_is_refused() -> None:
    text = HEAD.replace("ki=4", "kj=2, ki=4")
    text = f"Schedule({text}, stage_input(2, 'ki', 'x', 'nv'), pipeline('ko'))"
    with pytest.raises(ScheduleError, match="made anew in a loop inside it: found kj"):
        lowered(k.matmul(16, 32, 32), text)


def test_a_machine_without_the_engine_is_refused() -> None:
    turing = gpu_row("sm_75")
    steps = f"Schedule({PANELS}, pipeline('ko', engine='async'))"
    with pytest.raises(ScheduleError, match="sm_75 has no copies"):
        lower(k.matmul(16, 32, 16), turing, parse_schedule(steps))
    with pytest.raises(ScheduleError, match="wanted a GPU"):
        lower(k.matmul(16, 32, 16), _cpu(), parse_schedule("Schedule(pipeline('r2'))"))


def test_slots_that_do_not_fit_are_refused() -> None:
    text = PANELS.replace("ki=4", "ki=256")
    with pytest.raises(ScheduleError, match="shared memory"):
        lowered(
            k.matmul(128, 512, 512), f"Schedule({text}, pipeline('ko', depth=8, engine='async'))"
        )


def test_both_languages_spell_the_copies() -> None:
    _, program = lowered(k.matmul(13, 17, 9), f"Schedule({PANELS}, {PIPES[2]})")
    for name in ("ptx", "cuda"):
        text = get(name).render(program, gpu_row("sm_80"))
        spelled = set(re.findall(r"cp\.async\.\w+", text))
        assert {"cp.async.ca", "cp.async.commit_group", "cp.async.wait_group"} <= spelled


def _cpu() -> Any:
    from baregrad.testing.examples.levels import example_target

    return example_target()

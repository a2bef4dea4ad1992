"""Fixed numbers, and what they name, are asked for before a kernel waits, and nothing else is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import pytest

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.planning.first_schedule import choose
from baregrad.render import get
from baregrad.render.gpu import read_early
from baregrad.schedule import make_plan
from tests.graph.streams.test_passes import graph_of
from tests.kernel.gpu_kernels import HOPPER, check_gpu

WAIT = "griddepcontrol.wait;"


def gathered(*, last: bool = False) -> tuple[Node, list[int]]:
    """A kernel that reads what two arrays of numbers name, and the slots of these.

    Of pages as a table has them at a position; with `last`, where a position is small enough.
    """
    with options.override(device="NULL", cache=False):
        at = Tensor.zeros(1, dtype=dtypes.int32).contiguous().realize()
        table = Tensor.zeros(8, dtype=dtypes.int32).contiguous().realize()
        x = Tensor.zeros(64, 48).contiguous().realize()
        y = Tensor.zeros(1, 48).contiguous().realize()
        found = x[table[at // 4].long()] * 2 + y
        if last:
            found = (at < 12).unsqueeze(1).where(found, y)
        sink = graph_of(found, [at, table, x, y])
    (kernel,) = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER).kernels
    params = {one for one in toposort(kernel) if one.op is Ops.PARAM}
    return kernel, sorted(one.arg.slot for one in params if one.dtype is dtypes.int32)


def with_fixed(kernel: Node, slots: Sequence[int]) -> Node:
    return kernel.replace(arg=kernel.arg._replace(fixed=tuple(slots)))


@pytest.mark.parametrize("last", [False, True])
def test_numbers_that_places_are_made_of_are_read_before_the_wait(last: bool) -> None:
    kernel, slots = gathered(last=last)
    fixed = with_fixed(kernel, slots)
    program = check_gpu(fixed, choose(fixed, HOPPER).schedule)
    assert read_early(program) == tuple(slots)
    before, wait, after = get("ptx").render(program, HOPPER).partition(WAIT)
    # What they name is asked for, and read behind the wait before anything is computed with it.
    assert wait and len(re.findall(r"ld\.global", before)) == 2
    assert "prefetch.global.L2" in before and "prefetch" not in after
    assert len(re.findall(r"ld\.global", after)) >= 2
    assert "ld.global" not in after.partition("add")[2]


def test_numbers_that_may_change_are_read_behind_the_wait() -> None:
    kernel, (at, table) = gathered()
    for slots in ((), (table,)):
        some = with_fixed(kernel, slots)
        program = check_gpu(some, choose(some, HOPPER).schedule)
        before, wait, _ = get("ptx").render(program, HOPPER).partition(WAIT)
        assert wait and not read_early(program) and "ld.global" not in before
    program = check_gpu(some := with_fixed(kernel, (at,)), choose(some, HOPPER).schedule)
    assert read_early(program) == (at,)


def test_large_grids_ask_for_nothing_that_they_read_at_once() -> None:
    kernel, slots = gathered()
    fixed = with_fixed(kernel, slots)
    tiny = dataclasses.replace(HOPPER, units=0)
    program = check_gpu(fixed, choose(fixed, HOPPER).schedule, tiny)
    assert read_early(program) == tuple(slots)
    assert not any(one.op is Ops.PREFETCH for one in program.src)

"""Schedules of GPUs: units, partial tiles, folds over threads, panels; and what is refused."""

from __future__ import annotations

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel import apply_schedule, choose_schedule, parse_schedule
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered

WRITTEN = (
    (
        k.elementwise(5, 64),
        "collapse('i0', 'i1', name='f'), split('f', outer='b', t=32, v=4, masked=True),"
        "bind('b', 'grid'), bind('t', 'thread'), bind('v', 'vector')",
    ),
    (
        k.elementwise(5, 7),
        "collapse('i0', 'i1', name='f'), split('f', outer='b', u=2, t=8, masked=True),"
        "bind('b', 'grid'), bind('t', 'thread'), bind('u', 'unroll')",
    ),
    (
        k.elementwise(5, 7),
        "split('i1', outer='b', t=4, masked=True), bind('i0', 'grid'), bind('t', 'thread')",
    ),
    (
        k.elementwise(5, 9),
        "split('i1', outer='b', t=4, tail='e'), bind('i0', 'grid'), bind('t', 'thread')",
    ),
    (
        k.row_reduce(5, 70),
        "split('i0', outer='b', t=4, masked=True), bind('b', 'grid'), bind('t', 'thread')",
    ),
    (
        k.row_reduce(5, 70),
        "split('i0', outer='b', y=2, masked=True), split('r1', outer='o', x=32, masked=True),"
        "bind('b', 'grid'), bind('y', 'thread_y'), bind('x', 'thread')",
    ),
    (
        k.row_reduce(3, 300),
        "split('r1', outer='o', z=2, y=2, x=32, masked=True), bind('i0', 'grid'),"
        "bind('z', 'thread_z'), bind('y', 'thread_y'), bind('x', 'thread')",
    ),
    (
        k.row_reduce(3, 300, Ops.MAX),
        "split('r1', outer='o', y=3, x=16, u=2, masked=True), bind('i0', 'grid'),"
        "bind('y', 'thread_y'), bind('x', 'thread'), bind('u', 'unroll')",
    ),
    (
        k.row_reduce(3, 200, Ops.MUL),
        "split('r1', outer='o', x=7, masked=True), bind('i0', 'grid'), bind('x', 'thread')",
    ),
    (
        k.column_reduce(70, 40),
        "split('i0', outer='b', x=32, masked=True), split('r1', outer='o', y=4, masked=True),"
        "bind('b', 'grid'), bind('y', 'thread_y'), bind('x', 'thread')",
    ),
    (
        # The example of docs/kernel-language.md.
        k.softmax(11, 70),
        "split('i0', outer='b', y=8, masked=True), bind('b', 'grid'), bind('y', 'thread_y'),"
        "split('r2', outer='r2o', r2x=32, masked=True), bind('r2x', 'thread'),"
        "split('r3', outer='r3o', r3x=32, masked=True), bind('r3x', 'thread'),"
        "split('i1', outer='i1o', i1x=32, masked=True), bind('i1x', 'thread')",
    ),
    (
        k.arg_max(5, 70),
        "split('r1', outer='o', x=32, masked=True), bind('i0', 'grid'), bind('x', 'thread')",
    ),
    (
        k.cumsum(3, 20, 1),
        "split('i0', outer='a', y=4, masked=True), bind('a', 'grid'), bind('y', 'thread')",
    ),
)


@pytest.mark.parametrize(("kernel", "steps"), WRITTEN, ids=range(len(WRITTEN)))
def test_written_schedules(kernel: Node, steps: str) -> None:
    schedule = parse_schedule(f"Schedule({steps})")
    assert parse_schedule(str(schedule)) == schedule
    check_gpu(kernel, schedule)


REFUSED = (
    ("bind('i0', 'pool')", "names a unit that a GPU has not"),
    ("bind('r1', 'grid')", "blocks do not meet"),
    ("split('i0', outer='b', t=4)", "masked=True"),
    ("split('i0', outer='b', t=4, tail='e', masked=True)", "not both"),
    ("split('r1', outer='o', t=2048, masked=True), bind('t', 'thread')", "at most 1024"),
    (
        "split('r1', outer='o', x=64, masked=True), split('i0', outer='b', y=32, masked=True),"
        "bind('x', 'thread'), bind('y', 'thread_y')",
        "at most 1024",
    ),
    (
        "split('r1', outer='o', x=8, masked=True), split('i0', outer='b', y=4, masked=True),"
        "bind('x', 'thread'), bind('y', 'thread')",
        "one size along thread",
    ),
    (
        "split('r1', outer='o', x=8, masked=True), split('i0', outer='b', y=8, masked=True),"
        "bind('x', 'thread'), bind('y', 'thread')",
        "lie across the same threads",
    ),
)


@pytest.mark.parametrize(("steps", "message"), REFUSED)
def test_what_a_gpu_cannot_do_is_refused(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        apply_schedule(k.row_reduce(6, 90), parse_schedule(f"Schedule({steps})"), HOPPER)


def test_a_cpu_has_no_blocks() -> None:
    with pytest.raises(ScheduleError, match="a CPU has not"):
        apply_schedule(k.elementwise(4), parse_schedule("Schedule(bind('i0', 'grid'))"))


def test_indices_are_narrow_where_they_fit() -> None:
    def widths(kernel: Node) -> set[str]:
        _, program = lowered(kernel, choose_schedule(kernel, HOPPER))
        places = [node.src[1] for node in program.src if node.op in (Ops.VLOAD, Ops.VSTORE)]
        return {place.dtype.name for place in places}

    assert widths(k.elementwise(1 << 15, 1 << 14)) == {"int32"}
    assert widths(k.elementwise(1 << 16, 1 << 16)) == {"int64"}

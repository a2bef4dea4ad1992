"""When a step about an array as a whole is legal: past the caches, or asked for ahead of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baregrad.base.errors import ScheduleError
from baregrad.kernel.schedule_value import Prefetch, StreamOutput

if TYPE_CHECKING:
    from baregrad.kernel.axes import AxisTable


def check_stream(table: AxisTable, step: StreamOutput) -> None:
    """An output that is written alone, and not added to; else ScheduleError."""
    uses = [each for each in table.facts.accesses if each.array.arg.slot == step.param]
    if table.gpu is not None:
        raise ScheduleError(f"{step} is not legal: a GPU's stores are not told how to go")
    if not uses or not all(each.write for each in uses):
        raise ScheduleError(f"{step} is not legal: it takes an output that is not read")
    if any(out.arg.monoid is not None for out in table.facts.ordered):
        raise ScheduleError(f"{step} is not legal: an output that is added to is read")
    if step.param in table.ahead:
        raise ScheduleError(f"{step} is not legal: its lines are asked for ahead of time")


def check_prefetch(table: AxisTable, step: Prefetch) -> None:
    """An array that is there, and does not pass the caches by; else ScheduleError."""
    if table.gpu is not None:
        raise ScheduleError(f"{step} is not legal: a GPU's threads wait for each other")
    if not any(each.array.arg.slot == step.param for each in table.facts.accesses):
        raise ScheduleError(f"{step} is not legal: the kernel has no such array")
    if step.param in table.streamed:
        raise ScheduleError(f"{step} is not legal: what passes the caches by is not read")

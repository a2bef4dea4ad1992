"""When steps about arrays are legal: non-temporal stores, prefetches, room for copies."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.kernel.facts.analysis import itemsize, out_axes
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.instructions.instruction import kept_factors, scaled_bits
from baregrad.kernel.language.schedule import (
    Prefetch,
    StageFactor,
    StageInput,
    StageReduce,
    Step,
    StreamOutput,
)

Shares = tuple[tuple[str, int, int], ...]


def illegal(step: Step, why: str, **more: Any) -> ScheduleError:
    """What to raise for a step that is not legal; `more`: as of ScheduleError."""
    return ScheduleError(f"{step} is not legal: {why}", **more)


def check_stream(table: AxisTable, step: StreamOutput) -> None:
    """An output that is written alone, and not added to; else ScheduleError."""
    uses = [each for each in table.facts.accesses if each.array.arg.slot == step.param]
    if table.gpu is not None:
        raise illegal(step, "a GPU has no non-temporal stores")
    if not uses or not all(each.write for each in uses):
        raise illegal(step, "it takes an output that is not read")
    if any(out.arg.monoid is not None for out in table.facts.ordered):
        raise illegal(step, "an output that is added to is read")
    if step.param in table.ahead:
        raise illegal(step, "its lines are asked for ahead of time")


def check_prefetch(table: AxisTable, step: Prefetch) -> None:
    """An array that is there, and does not pass the caches by; else ScheduleError."""
    if table.gpu is not None:
        raise illegal(step, "a GPU's threads wait for each other")
    if not any(each.array.arg.slot == step.param for each in table.facts.accesses):
        raise illegal(step, "the kernel has no such array")
    if step.param in table.streamed:
        raise illegal(step, "what passes the caches by is not read")


def check_factor(table: AxisTable, step: StageFactor) -> None:
    """A factor of elements, of a sum of products on a GPU, that is not kept yet."""
    if table.gpu is None:
        raise illegal(step, "only a GPU's block has shared memory", wanted="stage_input")
    if kept_factors(table.facts, scaled_bits(table.gpu)) is None:
        raise illegal(step, "wanted one sum, of products of elements or of what is made of them")
    if any(other.place == step.place for other in table.staged_factors):
        raise illegal(step, "the factor is kept already")


def check_room(table: AxisTable, step: StageInput | StageReduce, sizes: Iterable[int]) -> None:
    """A copy of these extents that the caches hold; else ScheduleError."""
    if isinstance(step, StageReduce):
        dtypes = [each.node.dtype for each in table.facts.reductions]
    else:
        arrays = [each.array for each in table.facts.accesses]
        dtypes = [array.dtype for array in arrays if array.arg.slot == step.param]
    nbytes = prod(sizes) * max(map(itemsize, dtypes), default=1)
    if table.room and nbytes > table.room:
        raise illegal(
            step, "the copy has no room in the caches",
            found=f"{nbytes} bytes", wanted=f"at most {table.room}",
        )


def check_shares(table: AxisTable, step: Prefetch) -> None:
    """Loops of a constant size, inside those that the array's rows are counted by.

    Those are the axes that all its accesses run along, but for such loops. Raises ScheduleError for
    others. Asked once all steps are known: what becomes of the axes afterwards counts.
    """
    accesses = [each for each in table.facts.accesses if each.array.arg.slot == step.param]
    rows = frozenset.intersection(*[each.axes for each in accesses])
    rows -= {node for name, _ in step.loops if name in table.axes for node in nodes_of(table, name)}
    if table.staged_reductions or table.staged_inputs:
        raise illegal(step, "copies have loops outside those of the rows")
    nbytes = itemsize(accesses[0].array.dtype)
    for name, share in step.loops:
        axis = table.axis(name, step)
        if axis.unit != "loop" or not isinstance(axis.extent, int) or axis.extent < 2:
            raise illegal(
                step, "loops of a constant size ask for lines",
                found=f"{name} of {axis.extent}, bound to {axis.unit}", wanted="at least 2",
            )
        if share % nbytes:
            raise illegal(
                step, "a share is of whole elements",
                found=share, wanted=f"a multiple of {nbytes}",
            )
        if not rows or not _is_inside(table, name, rows):
            raise illegal(
                step, "the loop is not inside a row of the array",
                found=name, wanted="a loop that runs again for each row",
            )


def _is_inside(table: AxisTable, name: str, rows: frozenset[Node]) -> bool:
    """Whether all loops over an axis stand inside the loops over `rows`."""
    own = nodes_of(table, name)
    if not own.isdisjoint(rows):
        return False
    place = table.order.index(name)
    outer = {each for each in table.order if not nodes_of(table, each).isdisjoint(rows)}
    if not table.axes[name].reduced and any(table.order.index(each) > place for each in outer):
        return False
    facts = table.facts
    sets = [out_axes(out) for out in facts.outs]
    sets += [each.free.union(each.own) for each in facts.reductions]
    sets += [stage.ranges.union(stage.src[1:]) for stage in facts.stages]
    return all(rows <= axes for axes in sets if not own.isdisjoint(axes))


def nodes_of(table: AxisTable, name: str) -> frozenset[Node]:
    """The kernel's own axes that a final axis is a part of."""
    origin = table.axes[name].origin
    group = table.groups.get(origin)
    return frozenset(group or [node for node, each in table.names.items() if each == origin])


def shares_of(table: AxisTable, step: Prefetch) -> Shares:
    """The loops that ask for lines: name, the first byte, and bytes for each iteration."""
    found = []
    first = step.nbytes
    for name, nbytes in step.loops:
        found.append((name, first, nbytes))
        extent = table.axes[name].extent
        first += nbytes * (extent if isinstance(extent, int) else 0)
    return tuple(found)

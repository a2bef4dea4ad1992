"""Random legal schedules, and the kernels that tests apply them to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.axes import apply_step
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import AxisTable, table_for
from baregrad.kernel.language.schedule import (
    Bind,
    Collapse,
    Reorder,
    Schedule,
    Step,
    Tensorize,
    prefetch,
    split,
    stream_output,
)
from tests.kernel import kernels as k

Maker = tuple[Callable[..., Node], tuple[Any, ...]]


def any_kernel(rng: random.Random, sizes: tuple[int, ...]) -> Maker:
    """A kernel of any family with extents from `sizes`."""

    def e() -> int:
        return rng.choice(sizes)

    def flag() -> bool:
        return rng.random() < 0.5

    makers: tuple[Maker, ...] = (
        (k.elementwise, (e(), e())),
        (k.elementwise, (e(), e(), e())),
        (k.bias, (e(), e())),
        (k.transpose, (e(), e())),
        (k.row_reduce, (e(), e())),
        (k.row_reduce, (e(), e(), Ops.MAX)),
        (k.column_reduce, (e(), e())),
        (k.whole_reduce, (e(), e())),
        (k.softmax, (e(), e())),
        (k.layer_norm, (e(), e())),
        (k.arg_max, (e(), e())),
        (k.matmul, (e(), e(), e(), flag(), flag(), rng.choice((0, 3)))),
        (k.byte_product, (e(), e(), e(), flag(), flag())),
        (k.brain_product, (e(), e(), e(), flag(), flag(), dtypes.float32)),
        (k.conv, (1, 2, 4, 3, rng.choice((6, 9)), 3, 1, 1)),
        (k.conv, (2, 2, 4, 5, 6, 3, 2, 0, 2)),
        (k.cumsum, (e(), e(), 1)),
        (k.cumsum, (e(), e(), 0)),
        (k.gather, (3, e(), e())),
        (k.scatter_add, (3, e(), e())),
        (k.pad_rows_of_sums, (e(), e(), 2)),
        (k.row_reduce, (0, 3)),
        (k.row_reduce, (3, 0)),
    )
    return rng.choice(makers)


def any_schedule(rng: random.Random, kernel: Node) -> Schedule:
    """Steps drawn at random, those that are refused left out."""
    return drawn(rng, table_for(facts_of(kernel)), 8, _any_step)


def drawn(
    rng: random.Random,
    table: AxisTable,
    most: int,
    draw: Callable[[random.Random, AxisTable, int], Step | None],
    refused: float = 0.0,
) -> Schedule:
    """At most so many drawn steps, of those that are refused at once a share `refused`."""
    steps: list[Step] = []
    for number in range(rng.randrange(1, most + 1)):
        step = draw(rng, table, number)
        if step is None:
            continue
        try:
            apply_step(table, step)
        except ScheduleError as error:
            assert str(error)
            if not refused or rng.random() < 1 - refused:
                continue
        steps.append(step)
    return Schedule(tuple(steps))


def _any_step(rng: random.Random, table: AxisTable, number: int) -> Step | None:
    names = list(table.axes)
    name = rng.choice(names)
    axis = table.axes[name]
    kind = rng.randrange(6)
    if kind == 5 and axis.reduced and axis.extent in (2, 4):
        return Tensorize((name,), f"dot{axis.extent}")
    if kind <= 1:
        inner = {f"a{number}_{i}": rng.choice((1, 2, 3, 4, 8)) for i in range(rng.randrange(1, 3))}
        return split(name, outer=f"a{number}o", tail=f"a{number}t", **inner)
    if kind == 2:
        unit = rng.choice(("pool", "vector", "unroll"))
        if axis.unit != "loop":
            return None
        if unit != "pool" and isinstance(axis.extent, int) and axis.extent > 40:
            return None
        # Two vector axes in one expression are more than a register has.
        if unit == "vector" and any(other.unit == "vector" for other in table.axes.values()):
            return None
        return Bind(name, unit, rng.choice((1, 1, 2, 3)))
    if kind == 3:
        return Reorder(tuple(rng.sample(names, min(len(names), rng.randrange(2, 4)))))
    if kind == 4:
        return rng.choice((stream_output(0), prefetch(0, 64), prefetch(1, 256)))
    if len(names) < 2:
        return None
    place = rng.randrange(len(names) - 1)
    return Collapse((names[place], names[place + 1]), f"c{number}")

"""A softmax over rows in one kernel: three loops over one row, two of them reductions."""

from __future__ import annotations

from typing import Any

from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Ops
from baregrad.kernel import Schedule
from baregrad.kernel.language.schedule import Step, parallelise, split, unroll, vectorise
from baregrad.testing.examples.levels import (
    Levels,
    expanded,
    kernel_of,
    lowered,
    param,
    reduced,
)


def softmax_tensor(rows: int, columns: int) -> Node:
    """exp(x - max) / sum(exp(x - max)) along each row of x, argument 1."""
    x = param(1, rows, columns, name="x")
    top = expanded(reduced(Ops.MAX, x, 1), rows, columns)
    power = alu(Ops.EXP, alu(Ops.SUB, x, top))
    return alu(Ops.DIV, power, expanded(reduced(Ops.ADD, power, 1), rows, columns))


def softmax_schedule() -> Schedule:
    """Rows over threads; each of the three loops over a row in two vectors of 16 at a time.

    r2 is the row under max, r3 under sum, i1 the row that is written.
    """
    steps: list[Step] = [parallelise("i0")]
    for axis in ("r2", "r3", "i1"):
        parts: dict[str, Any] = {f"{axis}u": 2, f"{axis}v": 16}
        steps += [
            split(axis, outer=f"{axis}o", tail=f"{axis}t", **parts),
            unroll(f"{axis}u"),
            vectorise(f"{axis}v"),
        ]
    return Schedule(tuple(steps))


def softmax_levels(rows: int = 3, columns: int = 75) -> Levels:
    """The four levels; everything below the tensor level is derived by the compiler's passes."""
    tensor = softmax_tensor(rows, columns)
    return lowered("softmax", tensor, kernel_of(tensor), softmax_schedule())

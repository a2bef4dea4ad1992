"""Sums of products that a CPU core's matrix unit makes: tiles of 16 rows of 16 words, in registers.

A run of instructions does all steps of a panel: up to 2 x 2 tiles of results are read from an array
(or begin as 0), words of both factors stream past, and the results are written back. So what comes
before and after, partial tiles too, is ordinary code. Source: Intel 64 and IA-32 Architectures
Optimization Reference Manual, chapter "Intel Advanced Matrix Extensions".
"""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import NAMES, PRODUCTS, TILE, Factors, in_word
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Mma
from baregrad.kernel.facts.axis_table import Axis, AxisTable
from baregrad.kernel.instructions.instruction import (
    Instruction,
    summed_factors,
    without_instruction,
)
from baregrad.kernel.language.schedule import Tensorize, illegal
from baregrad.kernel.loops.loop_pieces import stays_inside

# Rows of results in one run, and columns: two tiles each way use every register.
SIDES = (TILE, 2 * TILE)


def instruction_of(left: DType, right: DType) -> str:
    """The instruction that multiplies tiles of numbers of these dtypes; empty where none does."""
    total = dtypes.int32 if left.kind != "float" else dtypes.float32
    return NAMES.get(Factors(left, right, total), "")


def _check_tiles(table: AxisTable, step: Tensorize, axes: list[Axis]) -> None:
    """Refuse other sums, machines without the instruction, and a second step."""
    factors = summed_factors(table.facts, NAMES)
    if factors is None:
        raise illegal(step, "a CPU's matrix unit does no such sum", wanted=AMX.needs)
    if not table.has(instruction_of(factors[0].dtype, factors[1].dtype)):
        raise without_instruction(table, step, AMX)
    if table.tiled is not None or axes[-1].extent != in_word(factors[0].dtype):
        raise illegal(
            step, found=f"{axes[-1].extent} numbers in a word",
            wanted="one such step, with 2 bfloat16 or 4 bytes in a word",
        )
    if table.order.index(step.axes[2]) > table.order.index(step.axes[3]):
        raise illegal(step, "words run inside steps")
    table.tensorized.add(step.axes[-1])
    table.tiled = step


# Rows, columns, steps, words of a step, numbers of a word.
AMX = Instruction(
    "amx", "core", NAMES, (SIDES, SIDES, (), (TILE,), (2, 4)), 3,
    "the result in an array, words of both factors in panels, with columns innermost",
    "a CPU with amx-tile and amx-bf16 or amx-int8, the system's leave, and one sum of products of "
    "two bfloat16 (cast to float32) or bytes (to int32)",
    _check_tiles, vector=1,
)


def sum_of_words(
    node: Node, factors: Sequence[Node], words: tuple[Node, ...], axes: tuple[Node, ...]
) -> Node:
    """A REDUCE of products of `factors` as one over `axes` of the products of their words."""
    name = instruction_of(factors[0].dtype, factors[1].dtype)
    value = make_node(Ops.WORDS, node.dtype, words, name)
    return make_node(Ops.REDUCE, node.dtype, (value, *axes), node.arg)


def without_array(step: Tensorize | None) -> ScheduleError:
    """What is said of a sum whose results no step keeps in an array."""
    return illegal(
        step, "its results need an array",
        wanted="stage_reduce of the steps, or of a loop around them, over rows and columns",
    )


def product(total: Node, value: Node, axes: Sequence[Node], keep: Node) -> Node:
    """The MMA that adds a panel's products to a tile, or, unless it is to `keep` that, begins it.

    total: a LOAD of the results. value: the WORDS of two LOADs. axes: rows, columns, steps if there
    are several, and words.
    Raises ScheduleError where words do not lie as the instructions read them.
    """
    left, right = value.src if value.op is Ops.WORDS else (value, value)
    rows, columns, *steps, words = axes
    wanted = ((total, (None, 1, 0, 0)), (left, (None, 0, 1, None)), (right, (0, 1, None, None)))
    axes = (rows, columns, words, *steps)
    for load, strides in wanted:
        if load.op is not Ops.LOAD or not _lies(load, dict(zip(axes, strides, strict=False))):
            raise ScheduleError(
                "a matrix unit reads rows of words that lie side by side, and writes rows",
                found=load,
                wanted="the first factor in words along what is summed, the second staged with "
                "columns innermost, the sum staged over rows and columns",
                hint="stage_input(first, steps, rows, words), stage_input(second, steps, words, "
                "columns), stage_reduce(steps, rows, columns)",
            )
    factors = PRODUCTS[value.arg]
    shape = (int(rows.src[0].arg), int(columns.src[0].arg), TILE)
    info = Mma(value.arg, shape, factors.left, factors.total, a_space="scratch", b_major="n")
    return make_node(Ops.MMA, dtypes.token, (total, left, right, keep, *axes), info)


def _lies(load: Node, strides: dict[Node, int | None]) -> bool:
    """Whether a LOAD has these strides along axes (None: any stride), and stays inside.

    What is read beyond an argument's end would be another's memory, or nobody's.
    """
    terms, _ = index.flat_terms(load.src[1:], load.src[0].shape)
    for axis, stride in strides.items():
        if stride is not None and terms.get(axis, 0) != stride:
            return False
        if any(s and axis in atom.ranges for atom, s in terms.items() if atom is not axis):
            return False
    return load.src[0].op is Ops.ALLOC or stays_inside(load)

"""Sums of products that a CPU core's matrix unit makes: tiles of 16 rows of 16 words, in registers.

A run of instructions does all steps of a panel: up to 2 x 2 tiles of results are read from an array
(or begin as 0), words of both factors stream past, and the results are written back. So what comes
before and after, partial tiles too, is ordinary code. Source: Intel 64 and IA-32 Architectures
Optimization Reference Manual, chapter "Intel Advanced Matrix Extensions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import NAMES, PRODUCTS, TILE, Factors, in_word
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Mma
from baregrad.kernel.facts.analysis import Facts
from baregrad.kernel.instructions.dot_instructions import word_factors
from baregrad.kernel.language.schedule import Tensorize
from baregrad.kernel.loops.loop_pieces import stays_inside

if TYPE_CHECKING:
    from baregrad.kernel.applying.axes import AxisTable

# Rows of results in one run, and columns: two tiles each way use every register.
SIDES = (TILE, 2 * TILE)
_AXES = "rows, columns (a vector), steps, words and the numbers in a word, not staged yet"


def instruction_of(left: DType, right: DType) -> str:
    """The instruction that multiplies tiles of numbers of these dtypes; empty where none does."""
    total = dtypes.int32 if left.kind != "float" else dtypes.float32
    return NAMES.get(Factors(left, right, total), "")


def factors_of(facts: Facts) -> tuple[Node, Node] | None:
    """The reads of which a kernel's only reduction sums products; None for anything else."""
    if len(facts.reductions) != 1:
        return None
    node = facts.reductions[0].node
    if node.arg.monoid.primitive is not Ops.ADD or len(node.arg.monoid.states) != 1:
        return None
    found = word_factors(node.src[0])
    return found if found and instruction_of(found[0].dtype, found[1].dtype) else None


def check_tiles(table: AxisTable, step: Tensorize) -> None:
    """Bind a tile's axes to a core's matrix unit. Raises ScheduleError where it cannot do them."""
    factors = factors_of(table.facts)
    if table.gpu is not None or factors is None:
        raise ScheduleError(
            f"{step} is not legal: a CPU's matrix unit does no such sum",
            wanted="one sum of products of two bfloat16 (cast to float32) or bytes (to int32)",
        )
    name = instruction_of(factors[0].dtype, factors[1].dtype)
    if table.tile_instructions is not None and name not in table.tile_instructions:
        raise ScheduleError(
            f"{step} is not legal: the machine has no {name}",
            found=", ".join(table.tile_instructions) or "no tiles",
            wanted="a CPU with amx-tile and amx-bf16 or amx-int8, and the system's leave",
        )
    if len(step.axes) != 5 or len(set(step.axes)) != 5 or table.tiled is not None:
        raise ScheduleError(f"{step} is not legal", wanted=f"one such step of {_AXES}")
    axes = [table.axis(each, step) for each in step.axes]
    sizes = (SIDES, SIDES, (), (TILE,), (in_word(factors[0].dtype),))
    for place, (axis, wanted) in enumerate(zip(axes, sizes, strict=True)):
        free = not axis.serial and axis.name not in table.staged
        free = free and axis.unit == ("vector" if place == 1 else "loop")
        fits = axis.extent in wanted if wanted else isinstance(axis.extent, int) and axis.extent > 0
        if not (free and fits) or axis.reduced != (place > 1):
            raise ScheduleError(
                f"{step} is not legal: an axis is no part of the size that the unit does",
                found=f"{axis.name} of {axis.extent} on {axis.unit}", wanted=_AXES,
                hint="16 or 32 rows and columns, 16 words, 2 bfloat16 or 4 bytes in a word",
            )
    if table.order.index(step.axes[2]) > table.order.index(step.axes[3]):
        raise ScheduleError(f"{step} is not legal: words run inside steps", wanted=_AXES)
    table.tensorized.add(step.axes[-1])
    table.tiled = step
    for axis in axes:
        axis.serial = "an instruction does all of the axis"


def sum_of_words(
    node: Node, factors: Sequence[Node], words: tuple[Node, ...], axes: tuple[Node, ...]
) -> Node:
    """A REDUCE of products of `factors` as one over `axes` of the products of their words."""
    name = instruction_of(factors[0].dtype, factors[1].dtype)
    value = make_node(Ops.WORDS, node.dtype, words, name)
    return make_node(Ops.REDUCE, node.dtype, (value, *axes), node.arg)


def without_array(step: Tensorize | None) -> ScheduleError:
    """What is said of a sum whose results no step keeps in an array."""
    return ScheduleError(
        f"{step} is not legal: its results need an array",
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
    """Whether a LOAD moves so many elements along each axis (None: any number), and stays inside.

    What is read beyond an argument's end would be another's memory, or nobody's.
    """
    terms, _ = index.flat_terms(load.src[1:], load.src[0].shape)
    for axis, stride in strides.items():
        if stride is not None and terms.get(axis, 0) != stride:
            return False
        if any(s and axis in atom.ranges for atom, s in terms.items() if atom is not axis):
            return False
    return load.src[0].op is Ops.ALLOC or stays_inside(load)

"""Kernels without sums on a GPU: neighbouring threads on neighbours, in wide accesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import iterations, op_flops
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan, Way
from baregrad.kernel.planning.gpu.interleaved import short_rows, whole_words
from baregrad.kernel.planning.gpu.transposes import turned_tiles, two_ways
from baregrad.kernel.planning.gpu.windows import window_tiles

# A thread has one whole access of each array: what is read is written soon. An H200 adds 1 to
# 2 ** 28 float32s in 502 us so, by two accesses of 256 threads in 521.
BLOCK, LEAST_BLOCK = 128, 64
# Single elements that a thread loads before it stores any, and how many vectors a search tries.
SINGLE, MOST_VECTORS = 4, 8
# A way to lay out the axes of an output, where there is one.
Find = Callable[[GpuPlan, Sequence[Node]], Way | None]
# Operations on the elements of one thread, at most, where there are several: each is code.
MOST_OPS = 1 << 10


def plan_elementwise(plan: GpuPlan, axes: Sequence[Node]) -> None:
    """Lay the axes of an output out in the way that the model of memory likes best."""
    axes = [axis for axis in axes if extent_of(axis) != 1]
    if not axes:
        plan.because("one element, one thread")
        return
    ways = {name: way for name, find in WAYS if (way := find(plan, axes)) is not None}
    plan.best("way", ways)(plan)


def _lay_neighbours(plan: GpuPlan, axes: Sequence[Node]) -> None:
    """Give each thread some neighbours along the output."""
    ordered = plan.by_stride(axes, plan.write)
    row = plan.together(ordered)
    lanes = widest = plan.lanes(ordered, whole=plan.uncertain.isdisjoint(ordered))
    points = iterations(axes)
    busy = plan.target.busy_threads
    lanes = plan.whole_lanes(lanes, row[-1])
    while lanes > 1 and points * 2 < lanes * busy:
        lanes //= 2
    # What is written at places of its own is computed by threads of its own.
    several = len({out.src[2:] for out in plan.facts.outs})
    work = sum(op_flops(node) for node in plan.facts.order) // several
    vectors = 1 if lanes > 1 else SINGLE
    if points < 4 * vectors * lanes * busy:
        vectors = 1
    if any(out.arg.atomic for out in plan.facts.outs):
        # A warp's additions at once are more than memory makes meanwhile.
        vectors = lanes = 1
    while vectors * lanes * work > MOST_OPS and vectors * lanes > 1:
        vectors, lanes = (vectors // 2, lanes) if vectors > 1 else (1, lanes // 2)
    lanes = plan.pick("lanes", powers_from(lanes, 1, widest))
    most = MOST_OPS // max(lanes * work, 1)
    vectors = plan.pick("vectors", powers_from(vectors, 1, min(most, MOST_VECTORS)))
    block = plan.pick("block", powers_from(BLOCK, LEAST_BLOCK, plan.target.threads_per_block))
    plan.because("threads along the output: {} times {} elements for each", vectors, lanes)
    rest = prod([int(axis.src[0].arg) for axis in row]) % lanes if lanes > 1 else 0
    if rest:
        _with_tail(plan, row, lanes, vectors, block)
    else:
        plan.spread(axes, block, lanes, vectors)


def _neighbours(plan: GpuPlan, axes: Sequence[Node]) -> Way:
    """Neighbours along the output for each thread."""
    return partial(_lay_neighbours, axes=axes)


def _with_tail(
    plan: GpuPlan, row: Sequence[Node], lanes: int, vectors: int, block: int
) -> None:
    """Whole accesses for the threads, and the last few elements for the first one."""
    name = plan.joined(row)
    plan.steps.append(Split(name, ((f"{name}_w", 0), (f"{name}_v", lanes)), tail=f"{name}_e"))
    plan.steps.append(Bind(f"{name}_v", "vector"))
    parts = [(f"{name}_u", vectors)] if vectors > 1 else []
    parts.append((f"{name}_t", block))
    plan.steps.append(Split(f"{name}_w", ((f"{name}_o", 0), *parts), masked=True))
    plan.steps.append(Bind(f"{name}_o", "grid"))
    if vectors > 1:
        plan.steps.append(Bind(f"{name}_u", "unroll"))
    plan.steps.append(Bind(f"{name}_t", "thread"))


# Those first that win where the model cannot tell two apart.
WAYS: tuple[tuple[str, Find], ...] = (
    ("window tiles", window_tiles), ("turned tiles", turned_tiles), ("short rows", short_rows),
    ("whole words", whole_words), ("neighbours", _neighbours), ("two ways", two_ways),
)

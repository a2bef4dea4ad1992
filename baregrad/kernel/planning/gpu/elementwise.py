"""Kernels without sums on a GPU: neighbouring threads on neighbours, in wide accesses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import collapsible, itemsize, iterations, op_flops
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from baregrad.kernel.planning.gpu.transposes import plan_transpose

BLOCK = 256
MOST_LANES = 8
# Vectors that a thread loads before it stores any.
VECTORS = 2
# Operations on the elements of one thread, at most, where there are several: each is code.
MOST_OPS = 1 << 10


def plan_elementwise(plan: GpuPlan, axes: Sequence[Node]) -> None:
    """Give a thread some neighbours along the output, tiles where inputs lie across it."""
    axes = [axis for axis in axes if extent_of(axis) != 1]
    if not axes:
        plan.because("one element, one thread")
        return
    if plan_transpose(plan, axes):
        return
    ordered = plan.by_stride(axes, plan.write)
    row = _together(plan, ordered)
    whole = len(row) == len(ordered) and plan.uncertain.isdisjoint(row)
    lanes = _lanes(plan, row, whole)
    points = iterations(axes)
    busy = plan.target.busy_threads
    while lanes > 1 and points * 2 < lanes * busy:
        lanes //= 2
    work = sum(op_flops(node) for node in plan.facts.order)
    vectors = VECTORS if lanes > 1 else 2 * VECTORS
    if points < 4 * vectors * lanes * busy:
        vectors = 1
    while vectors * lanes * work > MOST_OPS and vectors * lanes > 1:
        vectors, lanes = (vectors // 2, lanes) if vectors > 1 else (1, lanes // 2)
    plan.because("threads along the output: {} times {} elements for each", vectors, lanes)
    rest = prod([int(axis.src[0].arg) for axis in row]) % lanes if lanes > 1 else 0
    if rest:
        _with_tail(plan, row, lanes, vectors)
    else:
        plan.spread(axes, BLOCK, lanes, vectors)


def _together(plan: GpuPlan, ordered: Sequence[Node]) -> list[Node]:
    """The innermost axes that all accesses see as one, outermost first."""
    row = [ordered[-1]]
    for outer in reversed(ordered[:-1]):
        fixed = isinstance(extent_of(outer), int) and isinstance(extent_of(row[0]), int)
        if not fixed or not collapsible(plan.facts, outer, row[0]):
            break
        row.insert(0, outer)
    return row


def _lanes(plan: GpuPlan, row: Sequence[Node], whole: bool) -> int:
    """Elements of the widest access of the narrowest array along a row; 1 where there is none.

    whole: the row is all there is, so that what fills no access may be done apart.
    """
    inner = row[-1]
    accesses = plan.facts.accesses
    if not all(isinstance(extent_of(axis), int) for axis in row):
        return 1
    if not {access.stride(inner) for access in accesses} <= {0, 1}:
        return 1
    moved = [access for access in accesses if access.stride(inner) == 1]
    if not moved:
        return 1
    sizes = [itemsize(access.array.dtype) for access in moved]
    lanes = plan.target.load_bytes // min(sizes)
    if max(sizes) > 1:
        lanes = min(lanes, MOST_LANES)
    extent = iterations(row)
    axes = frozenset(row)
    while lanes > 1:
        others = [
            other
            for access in moved
            for other in (
                access.offset.constant,
                *[each for axis, each in access.offset.strides.items() if axis not in axes],
                *[scale for _, scale in access.offset.rest],
            )
        ]
        filled = extent % lanes == 0 or (whole and extent > lanes)
        if filled and not any(other % lanes for other in others):
            break
        lanes //= 2
    return lanes


def _with_tail(plan: GpuPlan, row: Sequence[Node], lanes: int, vectors: int) -> None:
    """Whole accesses for the threads, and the last few elements for the first one."""
    name = plan.joined(row)
    plan.steps.append(Split(name, ((f"{name}_w", 0), (f"{name}_v", lanes)), tail=f"{name}_e"))
    plan.steps.append(Bind(f"{name}_v", "vector"))
    parts = [(f"{name}_u", vectors)] if vectors > 1 else []
    parts.append((f"{name}_t", BLOCK))
    plan.steps.append(Split(f"{name}_w", ((f"{name}_o", 0), *parts), masked=True))
    plan.steps.append(Bind(f"{name}_o", "grid"))
    if vectors > 1:
        plan.steps.append(Bind(f"{name}_u", "unroll"))
    plan.steps.append(Bind(f"{name}_t", "thread"))

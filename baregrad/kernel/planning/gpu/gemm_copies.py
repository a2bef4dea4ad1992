"""In what order a contraction's axes become one a side, and how its factors are copied then.

A copy takes the more at once the more neighbours lie together, along the factor's own axes or along
the depth. So the axes of each side are put in the order in which both factors are copied best. That
is a matter of strides alone: it does not change with how many rows there are, and so neither does
the order in which products are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product, takewhile
from math import gcd
from types import MappingProxyType
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import ArrayAccess, iterations
from baregrad.kernel.gpu.window_boxes import window_of
from baregrad.kernel.instructions.mma_sync import N
from baregrad.kernel.instructions.wgmma import PANEL, ROW_NBYTES
from baregrad.kernel.language.schedule import StageFactor
from baregrad.kernel.planning.gpu.gemm_factors import Factor, GemmFactors
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan

# Bytes that one copy takes at most, and how many 16-bit floats they are.
CHUNK_NBYTES, CHUNK = 16, 8
# What it costs to bring an element in copies of so many, beside 16 bytes at once. Those of one are
# neighbours in different threads; of none, each is in a line of its own.
_COSTS = MappingProxyType({8: 1, 4: 2, 2: 4, 1: 12, 0: 48})
# What stores cost that are no neighbours.
_APART = 2


class FactorCopy(NamedTuple):
    """How a factor is copied to shared memory.

    turned: its own axis is innermost there, not the depth. lanes: elements that one copy takes, 0
    where those of two threads never lie together. walks: an engine copies places that it walks
    along, one after the other.
    """

    turned: bool
    lanes: int
    walks: bool = False

    @property
    def is_in_order(self) -> bool:
        """Whether its own neighbours stay neighbours there."""
        return self.turned or self.walks


class Orders(NamedTuple):
    """The axes of each side, outermost first, and how both factors are copied."""

    rows: list[Node]
    columns: list[Node]
    depth: list[Node]
    left: FactorCopy
    right: FactorCopy


def orders_of(
    plan: GpuPlan, factors: GemmFactors, chunk: int = CHUNK,
    along: tuple[bool, bool] = (False, False),
) -> Orders:  # fmt: skip
    """The orders in which the fewest copies and stores do.

    chunk: elements that a copy takes at most. along: in which of both the depth is to be innermost.
    """
    reads = [*factors.left.reads, *factors.right.reads]
    every = (
        _candidates(plan, plan.by_stride(factors.rows, plan.write), reads),
        _candidates(plan, plan.by_stride(factors.columns, plan.write), reads),
        _candidates(plan, factors.depth, reads),
    )
    best: tuple[int, Orders] | None = None
    for rows, columns, depth in product(*every):
        left = copy_of(factors.left, rows, depth, chunk, along[0])
        right = copy_of(factors.right, columns, depth, chunk, along[1])
        cost = sum([_COSTS[min(-(-each.lanes * CHUNK // chunk), CHUNK)] for each in (left, right)])
        cost += _APART * (plan.write.stride(columns[-1]) != 1)
        if best is None or cost < best[0]:
            best = cost, Orders(rows, columns, depth, left, right)
    assert best is not None
    return best[1]


def _candidates(
    plan: GpuPlan, axes: list[Node], reads: Sequence[ArrayAccess]
) -> list[list[Node]]:
    """Orders of axes: as they are, by the strides of each read, with each of them innermost."""
    found = [axes]
    if len(axes) > 1:
        found += [plan.by_stride(axes, read) for read in reads if not read.axes.isdisjoint(axes)]
        found += [[*[a for a in axes if a is not last], last] for last in axes]
    return [one for place, one in enumerate(found) if one not in found[:place]]


def copy_of(
    factor: Factor, own: Sequence[Node], depth: Sequence[Node], chunk: int = CHUNK,
    only_along: bool = False,
) -> FactorCopy:
    """How a factor is copied best, with its own axes and the depth in these orders."""
    along = _lanes(factor, depth, chunk)
    across = 0 if only_along else _lanes(factor, own, chunk)
    return FactorCopy(across > along, max(along, across))


def _lanes(factor: Factor, axes: Sequence[Node], chunk: int) -> int:
    """Elements of a factor along some joined axes that a copy takes at once."""
    inner = axes[-1]
    reads = [read for read in factor.reads if inner in _reach(read)]
    if not reads:
        return _in_words(factor, inner, chunk)
    widest = max(len(read.axes) for read in reads)
    return min(_together(read, axes, chunk) for read in reads if len(read.axes) == widest)


def _in_words(factor: Factor, inner: Node, chunk: int) -> int:
    """Elements that are unpacked from the same words, in copies of as many; 0 for none."""
    extent = extent_of(inner)
    packed = any(read.array.dtype.kind == "uint" for read in factor.reads)
    if not packed or inner not in factor.axes or not isinstance(extent, int):
        return 0
    return gcd(chunk, extent)


def _reach(read: ArrayAccess) -> frozenset[Node]:
    return read.axes if read.guard is None else read.axes | read.guard.src[0].ranges


def _together(read: ArrayAccess, axes: Sequence[Node], chunk: int) -> int:
    """Neighbours along joined axes in whole chunks; 1 for single ones, 0 for none."""
    inner = axes[-1]
    if read.stride(inner) != 1:
        return 0
    run = run_of(read, axes)
    if read.guard is not None:
        # What lies on along axes that a condition differs along is there or not by itself.
        ranges = read.guard.src[0].ranges
        run = list(takewhile(lambda axis: axis not in ranges, run))
    if not run:
        return 1
    others = [stride for axis, stride in read.offset.strides.items() if axis not in run]
    scales = [scale for _, scale in read.offset.rest]
    return gcd(chunk, iterations(run), read.offset.constant, *others, *scales)


def in_boxes(
    factor: Factor, own: Sequence[Node], depth: Sequence[Node], copy: FactorCopy, chunk: int
) -> bool:
    """Whether an engine may copy a factor, with its own axes and the depth in these orders.

    As boxes of an array that a map describes: elements as they are or rounded to tfloat32, each
    side whole panels of one dimension, and all else whole chunks apart. Other arrays may say which
    matrix of a stack a block reads.
    """
    read = factor.element
    if read is None:
        return False
    known = all(isinstance(extent_of(axis), int) for axis in read.axes)
    # A map has no dimension that is read backwards, and the engine would not begin ahead of it.
    backwards = min(read.offset.strides.values(), default=0) < 0
    if backwards or copy.lanes != chunk or not known or not _is_chosen_once(read, own, depth):
        return False
    panel = max(PANEL, chunk * ROW_NBYTES // CHUNK_NBYTES)
    return all(_is_of_panels(read, axes, panel) for axes in (own, depth))


def _is_chosen_once(read: ArrayAccess, own: Sequence[Node], depth: Sequence[Node]) -> bool:
    """Whether conditions and other arrays say the same of all elements of a panel."""
    said = [atom for atom, _ in read.offset.rest]
    if read.guard is not None:
        said.append(read.guard.src[0])
    return all(one.has(Ops.INDEX) and one.ranges.isdisjoint((*own, *depth)) for one in said)


def in_walks(
    factor: Factor, own: Sequence[Node], depth: Sequence[Node], copy: FactorCopy, chunk: int
) -> bool:
    """Whether an engine may copy a factor as places of an image that it walks along.

    As of `in_boxes`, which says of which other factors it may copy boxes.
    """
    if not (factor.is_plain or factor.is_rounded) or len(factor.reads) != 1 or copy.lanes != chunk:
        return False
    (read,) = factor.reads
    if copy.turned:
        panel = chunk * ROW_NBYTES // CHUNK_NBYTES
        return window_of(read, depth, own[-1], panel) is not None
    return window_of(read, own, depth[-1]) is not None


def _is_of_panels(read: ArrayAccess, axes: Sequence[Node], panel: int) -> bool:
    """Whether joined axes are neighbours of one stride, at least within whole panels."""
    stride, count = read.stride(axes[-1]) or 0, 1
    for axis in reversed(axes):
        if not read.stride(axis):
            return False
        if read.stride(axis) != stride:
            return count % panel == 0
        count *= iterations([axis])
        stride *= iterations([axis])
    return True


def run_of(read: ArrayAccess, axes: Sequence[Node]) -> list[Node]:
    """The innermost of joined axes that an array has one after the other, up to a symbolic one."""
    stride = 1
    found: list[Node] = []
    for axis in reversed(axes):
        if read.stride(axis) != stride or not isinstance(extent_of(axis), int):
            break
        found.append(axis)
        stride *= iterations([axis])
    return found


def element_nbytes(factor: Factor) -> int:
    """Bytes of an element of the array that is read for a factor, or of one of several."""
    return (factor.element or factor.reads[0]).array.dtype.itemsize


def copies_of_groups(
    plan: GpuPlan, factors: GemmFactors, orders: Orders, count: int, beside: int
) -> None:
    """How both factors lie in shared memory for products of groups: in rows of 128 bytes.

    count: columns of a group. beside: tiles of them that take turns.
    """
    columns = ("n_u", "n_v", "n_i") if beside > 1 else ("n_u", "n_i")
    right: tuple[str, ...] = ("n_w", "n_p", "k_u", "k_i", *columns)
    if not orders.right.turned:
        right = ("n_w", "n_p", *columns, "k_u", "k_i")
    elif count % PANEL:
        # Boxes are whole panels, of which the last is read in part.
        tiles = PANEL // (N * beside)
        right = ("n_w", f"n_u/{tiles}", "k_u", "k_i", f"n_u%{tiles}", *columns[1:])
    left: tuple[str, ...] = ("m_w", "m_u", "k_u", "k_i", "m_i")
    if not orders.left.turned:
        left = ("m_w", "m_u", "m_i", "k_u", "k_i")
    elif element_nbytes(factors.left) == dtypes.tfloat32.itemsize:
        # 64 rows are two panels of 128 bytes, which lanes read.
        left = ("m_w", "m_u", "m_i/32", "k_u", "k_i", "m_i%32")
    plan.steps.append(StageFactor(factors.left.place, left, swizzle=3))
    plan.steps.append(StageFactor(factors.right.place, right, swizzle=3))


def held_first(plan: GpuPlan, factors: GemmFactors, dtype: DType) -> GemmFactors:
    """Both factors, the second of which lies along the sum if one of them does.

    Lanes read the first one themselves where it lies across.
    """
    if dtype is not dtypes.tfloat32:
        return factors
    chunk = CHUNK_NBYTES // dtype.itemsize
    turned = replace(factors, left=factors.right, right=factors.left, rows=factors.columns,
                     columns=factors.rows)  # fmt: skip
    if orders_of(plan, factors, chunk, (False, True)).right.lanes < chunk == (
        orders_of(plan, turned, chunk, (False, True)).right.lanes
    ):
        return turned
    return factors

"""What a kernel does: its axes, its memory accesses as strides, what it reuses and what it costs.

Everything is computed once per node and kept on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import NO_RANGES, Node, extent_of, toposort
from baregrad.ir.core.op import ALU, COMPARE, WORD_PRODUCTS, Ops, mask_of

_OFFSET = "kernel.offset"
_AXES = "kernel.axes"
_FACTS = "kernel.facts"
_COST = "kernel.cost"
# What one operation costs, in plain additions; whatever is not here costs 1.
EXPENSIVE = frozenset(
    (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2, Ops.EXP2_NEAR, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TANH,
     Ops.ERF, Ops.GELU, Ops.GELU_NEAR, Ops.ATAN, Ops.POW, Ops.THREEFRY)
)
_SLOW = frozenset((Ops.DIV, Ops.SQRT, Ops.RECIPROCAL, Ops.FLOORDIV, Ops.MOD, Ops.TRUNCDIV))
EXPENSIVE_OPS = mask_of(EXPENSIVE)
# Those of which `op_flops` counts several operations.
COSTLY_OPS = EXPENSIVE_OPS | mask_of(_SLOW)
EXPENSIVE_FLOPS = 16
SLOW_FLOPS = 4
# Operations of a step of a reduction by formulas, as of the place of the largest.
FORMULA_STEPS = 8
_ALU = mask_of(ALU)
# Arithmetic whose operands may be of another dtype than its result.
_MIXED = mask_of((*COMPARE, Ops.WHERE, Ops.LDEXP, Ops.THREEFRY, *WORD_PRODUCTS, Ops.DOT2))
_INDEX = dtypes.index
_ID = attrgetter("arg.id")


# Made for every read and every kernel: frozen ones take thrice the time.
@dataclass(eq=False, slots=True)
class Offset:
    """A flat element offset: `constant` + sum of strides[axis]*axis + sum of scale*atom.

    `rest` holds the atoms that are no plain axis times a constant (divisions, loaded indices,
    symbolic strides).
    """

    constant: int
    strides: Mapping[Node, int]
    rest: tuple[tuple[Node, int], ...]


# The offsets of a kernel by shape and indices: most of its arrays are read at the same places.
_Offsets = dict[tuple[tuple[Dim, ...], tuple[Node, ...]], Offset]


@dataclass(eq=False, slots=True)
class ArrayAccess:
    """One array read or written: its array, offset and free axes.

    guard: what is right around it, if that is one. read: its node, where more may be asked of it.
    """

    array: Node
    offset: Offset
    axes: frozenset[Node]
    write: bool
    guard: Node | None = None
    read: Node | None = None
    _copyable: bool | None = None

    @property
    def copyable(self) -> bool:
        """Whether the guard around it, or its axes alone, keep it in its array.

        A guard that differs along axes that the access does not run along would ask for as many
        copies.
        """
        if self._copyable is None:
            read, guard = self.read, self.guard
            self._copyable = read is None or (
                self.array.op is Ops.PARAM
                and (in_bounds(read) if guard is None else guard.ranges <= self.axes)
            )
        return self._copyable

    @property
    def guarded(self) -> bool:
        """Whether it has a condition of its own."""
        return self.guard is not None

    def stride(self, axis: Node) -> int | None:
        """Elements between neighbours along `axis`: 0 if it is reused, None if not affine."""
        if axis not in self.axes:
            return 0
        offset = self.offset
        for atom, _ in offset.rest:
            if axis in atom.ranges:
                return None
        return offset.strides.get(axis, 0)


@dataclass(eq=False, slots=True)
class Reduction:
    """A REDUCE: its own axes, its free axes, and the accesses below it that use its axes."""

    node: Node
    own: tuple[Node, ...]
    free: frozenset[Node]


@dataclass(eq=False, slots=True)
class Facts:
    """The axes and accesses of a kernel. Axes are RANGE nodes in the order of their ids.

    axes: all. data: free in some OUT. reduced: closed by a REDUCE only. scanned: a SCAN runs along
    them. ordered: the OUTs whose writes must keep their order (scatters). exposed: axes whose
    value is used other than as an address (conditions, casts to numbers). order: all nodes below
    the OUTs, sources first. work: operations at each point of some axes. fresh: the axes as
    schedules find them, once they were asked for (`axes.py`). counts: the points of some axes,
    likewise.
    """

    outs: tuple[Node, ...]
    axes: tuple[Node, ...]
    data: tuple[Node, ...]
    reduced: tuple[Node, ...]
    scanned: frozenset[Node]
    accesses: tuple[ArrayAccess, ...]
    reductions: tuple[Reduction, ...]
    stages: tuple[Node, ...]
    ordered: frozenset[Node]
    exposed: frozenset[Node]
    order: tuple[Node, ...]
    work: Mapping[frozenset[Node], int]
    fresh: dict[Node, Any] | None = None
    counts: dict[frozenset[Node], int] = field(default_factory=dict)

    def points(self, axes: frozenset[Node]) -> int:
        """`iterations` of some axes: most of a kernel depends on the same ones."""
        found = self.counts.get(axes)
        if found is None:
            found = self.counts[axes] = iterations(axes)
        return found


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and bytes of one launch; symbolic sizes give index nodes."""

    flops: Dim
    bytes_read: Dim
    bytes_written: Dim


def access_offset(array: Node, indices: tuple[Node, ...]) -> Offset:
    """The flat offset of an access."""
    terms, constant = index.flat_terms(indices, array.shape)
    strides: dict[Node, int] = {}
    rest: list[tuple[Node, int]] = []
    for atom, scale in terms.items():
        if scale and atom.op is Ops.RANGE:
            strides[atom] = scale
        elif scale:
            rest.append((atom, scale))
    return Offset(constant, strides, tuple(rest))


def offset_of(node: Node) -> Offset:
    """The flat offset of an INDEX or OUT node, computed once: equal ones of a kernel are one."""
    memo = node.memo
    found: Offset | None = memo.get(_OFFSET)
    if found is None:
        indices = node.src[1 if node.op is Ops.INDEX else 2 :]
        found = memo[_OFFSET] = access_offset(node.src[0], indices)
    return found


def _offset(node: Node, indices: tuple[Node, ...], known: _Offsets) -> Offset:
    """`offset_of`, where equal ones are `known`."""
    array = node.src[0]
    key = (array.shape, indices)
    found = known.get(key)
    if found is None:
        found = known[key] = access_offset(array, indices)
    node.memo[_OFFSET] = found
    return found


def moves_of(node: Node, where: Node) -> list[Mapping[Node, int]] | None:
    """By how much axes move a read's element and each condition's sum; None if not affine."""
    offset = offset_of(where)
    if offset.rest:
        return None
    found: list[Mapping[Node, int]] = [offset.strides]
    for part in index.conjuncts(node.src[0]) if node is not where else ():
        if part.op is not Ops.CMPLT:
            return None
        terms, _ = index.linear(index.sub(part.src[0], part.src[1]))
        if any(atom.op is not Ops.RANGE for atom in terms):
            return None
        found.append(terms)
    return found


def is_read(node: Node) -> bool:
    """Whether a node reads an element of an argument array."""
    return node.op is Ops.INDEX and node.src[0].op is Ops.PARAM


def in_bounds(node: Node) -> bool:
    """Whether an INDEX or a LOAD stays inside its array whatever its axes are, guarded or not."""
    for position, extent in zip(node.src[1:], node.src[0].shape, strict=True):
        if position.op is Ops.RANGE:
            # The usual case: an axis of the array's own size.
            size = position.src[0]
            if size is extent:
                continue
            if size.op is Ops.CONST and extent.__class__ is int and 0 < size.arg <= extent:
                continue
        low, high = bounds(position)
        if low < 0:
            return False
        if high >= (extent if extent.__class__ is int else index.lower(extent)):
            # Bounds do not know which axes are as long as a symbolic extent says.
            is_less = index.less(position, extent)
            if is_less.op is not Ops.CONST or not is_less.arg:
                return False
    return True


def out_axes(out: Node) -> frozenset[Node]:
    """The free axes of an OUT, computed once: it executes once per point of them."""
    memo = out.memo
    found: frozenset[Node] | None = memo.get(_AXES)
    if found is None:
        found = memo[_AXES] = NO_RANGES.union(*[child.ranges for child in out.src[1:]])
    return found


def by_id(axes: Collection[Node]) -> tuple[Node, ...]:
    """Axes in the order of their ids."""
    return tuple(sorted(axes, key=_ID) if len(axes) > 1 else axes)


# The last OUTs of a kernel may be sums of what its first one, a product, stores. They say in full
# what they are; below the kernel level they are made of the product's results in registers.


def without_sums(kernel: Node) -> Node:
    """The KERNEL of the product alone."""
    count = kernel.arg.sums
    if not count:
        return kernel
    return kernel.replace(src=kernel.src[:-count], arg=kernel.arg._replace(sums=0))


def with_sums(kernel: Node, sums: tuple[Node, ...]) -> Node:
    """The KERNEL of a product with more OUTs, the sums beside it."""
    if not sums:
        return kernel
    arg = kernel.arg._replace(sums=len(sums))
    return kernel.replace(src=(*kernel.src, *sums), arg=arg)


def sums_of(kernel: Node) -> tuple[Node, ...]:
    """The OUTs that are sums beside a product."""
    count = kernel.arg.sums
    return kernel.src[-count:] if count else ()


def facts_of(kernel: Node) -> Facts:
    """The facts of a kernel-level KERNEL."""
    found: Facts | None = kernel.memo.get(_FACTS)
    if found is None:
        found = kernel.memo[_FACTS] = _facts(kernel)
    return found


def _facts(kernel: Node) -> Facts:
    everything, scanned = set[Node](), set[Node]()
    reductions: list[Reduction] = []
    stages: list[Node] = []
    exposed: set[Node] = set()
    work: dict[frozenset[Node], int] = {}
    offsets: _Offsets = {}
    accesses = [
        ArrayAccess(out.src[0], _written_at(out, offsets), out_axes(out), True)
        for out in kernel.src
    ]
    data = NO_RANGES.union(*[write.axes for write in accesses])
    ordered = _ordered(kernel.src, accesses)
    order = toposort(*kernel.src)
    for node in order:
        src = node.src
        if not src:
            continue
        op, axes = node.op, node.ranges
        bit = op.bit
        if bit & _ALU:
            if node.dtype is _INDEX:
                continue
            if axes:
                work[axes] = work.get(axes, 0) + (op_flops(node) if bit & COSTLY_OPS else 1)
            if bit & _MIXED:
                exposed |= _positions(node)
        elif op is Ops.RANGE:
            everything.add(node)
        elif op is Ops.INDEX:
            array = src[0]
            if array.op is Ops.PARAM:
                accesses.append(ArrayAccess(array, _offset(node, src[1:], offsets), axes, False))
            else:
                for child in src[1:]:
                    exposed |= child.ranges
        elif op is Ops.REDUCE:
            own = tuple([child for child in src if child.op is Ops.RANGE])
            reductions.append(Reduction(node, own, axes))
            _add_steps(work, node, own)
        elif op is Ops.SCAN:
            scanned.add(src[-1])
            _add_steps(work, node, src[-1:])
        elif op is Ops.STAGE:
            stages.append(node)
        elif node.dtype is not _INDEX and op is not Ops.OUT:
            exposed |= _positions(node)
    found = by_id(everything)
    return Facts(
        kernel.src,
        found,
        tuple([axis for axis in found if axis in data]),
        tuple([axis for axis in found if axis not in data]),
        frozenset(scanned),
        tuple(accesses),
        tuple(reductions),
        tuple(stages),
        ordered, frozenset(exposed), tuple(order), work,
    )


def _written_at(out: Node, known: _Offsets) -> Offset:
    """Where an OUT writes; one that writes on a stretch of its axes alone, where it does so."""
    places = out.src[2:]
    if out.arg.apart and len(places) == 1 and places[0].op is Ops.WHERE:
        return access_offset(out.src[0], (places[0].src[1],))
    return _offset(out, places, known)


def _positions(node: Node) -> frozenset[Node]:
    """The axes of positions that a node computes with."""
    return NO_RANGES.union(*[child.ranges for child in node.src if child.dtype is _INDEX])


def _add_steps(work: dict[frozenset[Node], int], fold: Node, own: tuple[Node, ...]) -> None:
    """Count the steps of a REDUCE or SCAN."""
    axes = fold.ranges.union(own)
    steps = 1 if fold.arg.monoid.primitive is not None else FORMULA_STEPS
    work[axes] = work.get(axes, 0) + steps


def axes_together(facts: Facts) -> frozenset[frozenset[Node]]:
    """The sets of axes, two or more, that some expression of a kernel depends on at once."""
    found = {out_axes(out) for out in facts.outs}
    for node in facts.order:
        # One axis alone is never two, so a RANGE need not be asked for itself.
        axes = node.ranges
        if node.op is Ops.REDUCE:
            axes = axes.union([child for child in node.src if child.op is Ops.RANGE])
        found.add(axes)
    return frozenset(axes for axes in found if len(axes) > 1)


def as_one(strides: Mapping[Node, int], group: tuple[Node, ...]) -> bool:
    """Whether an access with these strides sees some axes, innermost first, as a single one."""
    stride: Dim | None = strides.get(group[0])
    for inner, outer in itertools.pairwise(group):
        if stride is None:
            return False
        stride = index.mul(stride, extent_of(inner))
        if not isinstance(stride, int) or strides.get(outer) != stride:
            return False
    return stride is not None


def runs_of(strides: Mapping[Node, int], group: tuple[Node, ...]) -> list[tuple[Node, ...]]:
    """Axes, innermost first, in runs that an access with these strides sees as single axes."""
    runs = [group[:1]]
    for axis in group[1:]:
        if as_one(strides, (*runs[-1], axis)):
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return runs


def collapsible(facts: Facts, outer: Node, inner: Node) -> bool:
    """Whether every access sees two neighbouring axes as one axis or not at all."""
    extent = extent_of(inner)
    for access in facts.accesses:
        if outer not in access.axes and inner not in access.axes:
            continue
        stride = access.stride(inner)
        if not stride or not isinstance(extent, int) or access.stride(outer) != stride * extent:
            return False
    # What an OUT runs along is among the axes of its write.
    return all((outer in each.own) == (inner in each.own) for each in facts.reductions)


def _ordered(outs: tuple[Node, ...], writes: list[ArrayAccess]) -> frozenset[Node]:
    """OUTs that accumulate, write through loaded indices, or write an array that another writes.

    Not those of which it is known that no two of their writes meet, or that these are atomic.
    """
    arrays = [write.array for write in writes]
    found = []
    for out, write in zip(outs, writes, strict=True):
        strides = write.offset.strides
        affine = not write.offset.rest and (
            write.axes <= strides.keys()
            or all(axis in strides or extent_of(axis) == 1 for axis in write.axes)
        )
        # Symbolic sizes have no numbers for strides, but an index each is enough. There is nothing
        # to plan for where there is nothing to write.
        apart = affine or (
            write.axes <= distinct_axes(out)
            and all(index.upper(extent_of(axis)) for axis in write.axes)
        )
        meets = out.arg.monoid is not None or not apart
        if (meets and not (out.arg.apart or out.arg.atomic)) or arrays.count(write.array) > 1:
            found.append(out)
    return frozenset(found)


def distinct_axes(out: Node) -> frozenset[Node]:
    """Axes whose values an index of an OUT tells: different ones write different elements."""
    return NO_RANGES.union(*map(_told_by, out.src[2:]))


def _told_by(position: Node) -> frozenset[Node]:
    """The axes of an index of which each makes steps as long as all of those inside it; or none."""
    steps: list[tuple[Node, Dim]] = []
    for atom, scale in index.linear(position)[0].items():
        axes = [one for one in (atom, *atom.src) if one.op is Ops.RANGE]
        step: Dim = abs(scale)
        if atom.op is Ops.MUL and len(axes) == 1:
            step = index.mul(atom.src[atom.src[0] is axes[0]], step)
        elif atom.op is not Ops.RANGE:
            return NO_RANGES
        steps.append((axes[0], step))
    reach: Dim = 1
    for axis, step in sorted(steps, key=lambda one: (index.upper(one[1]), one[0].arg.id)):
        apart = index.at_least(step, reach)
        if apart.op is not Ops.CONST or not apart.arg:
            return NO_RANGES
        reach = index.mul(step, extent_of(axis))
    return frozenset([axis for axis, _ in steps])


def iterations(axes: Iterable[Node]) -> int:
    """The number of points of some axes, at most."""
    count = 1
    for axis in axes:
        size = axis.src[0]
        count *= size.arg if size.op is Ops.CONST else index.upper(size)
    return count


def op_flops(node: Node) -> int:
    """What executing this one node costs, in plain operations; 0 for index arithmetic and moves."""
    if node.op not in ALU or node.dtype is _INDEX:
        return 0
    return EXPENSIVE_FLOPS if node.op in EXPENSIVE else SLOW_FLOPS if node.op in _SLOW else 1


def reads_in(order: Iterable[Node]) -> list[ArrayAccess]:
    """The reads among some nodes, each with the guard around it that is among them, if any."""
    guards: dict[Node, Node] = {}
    reads = []
    for node in order:
        if node.op is Ops.INDEX:
            reads.append(node)
        elif node.op is Ops.GUARD and node.src[1].op is Ops.INDEX:
            guards[node.src[1]] = node
    return [
        ArrayAccess(read.src[0], offset_of(read), read.ranges, False, guards.get(read), read)
        for read in reads
    ]


@lru_cache(1 << 6)
def itemsize(dtype: DType) -> int:
    """Bytes of one element."""
    return max(dtype.itemsize, 1)


def cost_of(kernel: Node) -> Cost:
    """Operations and bytes of one launch of a kernel-level KERNEL.

    An operation counts once per point of its free axes, a reduction once per element reduced; an
    array counts once per element reached, whatever the caches do.
    """
    found: Cost | None = kernel.memo.get(_COST)
    if found is None:
        found = kernel.memo[_COST] = _cost(kernel)
    return found


def _points(axes: frozenset[Node] | tuple[Node, ...]) -> Dim:
    return index.product(extent_of(axis) for axis in axes)


def _cost(kernel: Node) -> Cost:
    if kernel.arg.sums:
        # What they are sums of is computed once.
        alone, arrays = cost_of(without_sums(kernel)), [out.src[0] for out in sums_of(kernel)]
        sizes = [index.mul(index.product(one.arg.shape), itemsize(one.dtype)) for one in arrays]
        stored = index.add(alone.bytes_written, index.total(sizes))
        return Cost(alone.flops, alone.bytes_read, stored)
    flops: list[Dim] = []
    for node in toposort(kernel):
        if node.op is Ops.REDUCE:
            inside = node.ranges.union(child for child in node.src if child.op is Ops.RANGE)
            flops.append(_points(inside))
        elif node.op is Ops.SCAN or (node.ranges and op_flops(node)):
            flops.append(_points(node.ranges))
    read: dict[Node, Dim] = {}
    written: dict[Node, Dim] = {}
    for access in facts_of(kernel).accesses:
        reached = index.minimum(_points(access.axes), index.product(access.array.shape))
        size = index.mul(reached, itemsize(access.array.dtype))
        into = written if access.write else read
        into[access.array] = max(into.get(access.array, 0), size, key=index.upper)
    return Cost(index.total(flops), index.total(read.values()), index.total(written.values()))



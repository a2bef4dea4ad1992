"""The axes of a finished kernel: split where an index divides them, then numbered canonically.

An index such as `x[r // 64, r % 64]` hides two axes in one. Where all divisions of a range by
constants nest and divide its extent, the range is replaced by its digits, and the divisions vanish.
Ranges are then numbered by place: those of the outputs in order, then those of reductions in the
order of their first use, so that equal kernels are one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import (
    Node,
    extent_of,
    make_node,
    range_node,
    rebuild,
    toposort,
    toposort_having,
)
from baregrad.ir.core.op import Ops
from baregrad.schedule.drafts.build import Mentioned, repeated

_DIVISIONS = Ops.FLOORDIV.bit | Ops.MOD.bit
_PARAM = Ops.PARAM.bit
_REDUCE = Ops.REDUCE.bit
_INDEX = Ops.INDEX.bit
_ID = attrgetter("arg.id")
MOST_AXES = 12


@dataclass(slots=True, eq=False)
class Settled:
    """The OUT nodes of a kernel with final axes, what they mention, the extents for its name."""

    outs: tuple[Node, ...]
    params: dict[int, Node]
    data: list[Dim]
    reduced: list[Dim]


def settle_axes(outs: tuple[Node, ...], known: Mentioned | None = None) -> Settled:
    """The OUT nodes with their axes split and numbered; known: what they mention, where at hand."""
    divided = bool(_mask(outs) & _DIVISIONS)
    nodes: list[Node] = []
    if divided:
        outs, nodes = _flatten_views(outs, toposort(*outs))
        reductions, params = _reductions_and_params(nodes)
    elif known is None:
        # What reads no memory and folds nothing is looked at where axes are replaced alone.
        nodes = toposort_having(_PARAM | _REDUCE, *outs)
        reductions, params = _reductions_and_params(nodes)
    else:
        params, reductions = known
    axes, count = _ordered_axes(outs, reductions)
    cuts = _cuts(nodes) if divided else {}
    sizes = [_sizes(axis, cuts.get(axis)) for axis in axes]
    while cuts and sum(map(len, sizes)) > MOST_AXES:
        cuts.popitem()
        sizes = [_sizes(axis, cuts.get(axis)) for axis in axes]
    data = [size for one in sizes[:count] for size in one]
    reduced = [size for one in sizes[count:] for size in one]
    if len(data) + len(reduced) == len(axes):
        if [axis.arg.id for axis in axes] == list(range(len(axes))):
            return Settled(outs, params, data, reduced)
    made, digits = _renumber(outs, axes, sizes)
    scattered = any(out.arg.monoid is not None for out in outs)
    if scattered and len(data) + len(reduced) > len(axes):
        whole = _whole_scatters(outs, made, digits)
        if whole != made:
            return settle_axes(whole)
    if divided:
        # Conditions on digits may be known.
        params = _reductions_and_params(toposort_having(_PARAM, *made))[1]
    return Settled(made, params, data, reduced)


def _mask(outs: tuple[Node, ...]) -> int:
    """The bits of every op of a kernel."""
    mask = 0
    for out in outs:
        mask |= out.mask
    return mask


def _whole_scatters(
    before: tuple[Node, ...], after: tuple[Node, ...], digits: dict[Node, tuple[Node, ...]]
) -> tuple[Node, ...]:
    """The OUTs `after` axes were split; what is scattered is combined over digits that it lost.

    Of the digits of an axis an element may mention the last one alone (`x[r % 9]`), but it is
    scattered once for each point of the whole axis.
    """
    made = []
    for old, new in zip(before, after, strict=True):
        monoid = new.arg.monoid
        if monoid is not None:
            mentioned = frozenset[Node]().union(*(child.ranges for child in old.src[1:]))
            axes = [digit for axis in digits if axis in mentioned for digit in digits[axis]]
            value = repeated(monoid, new.src[1], new.src[2:], tuple(axes))
            new = Node(Ops.OUT, new.dtype, (new.src[0], value, *new.src[2:]), new.arg)
        made.append(new)
    return tuple(made)


def _reductions_and_params(nodes: list[Node]) -> tuple[list[Node], dict[int, Node]]:
    """The REDUCEs among some nodes, and the PARAMs by slot."""
    reductions: list[Node] = []
    params: dict[int, Node] = {}
    for node in nodes:
        op = node.op
        if op is Ops.PARAM:
            params[node.arg.slot] = node
        elif op is Ops.REDUCE:
            reductions.append(node)
    return reductions, params


def _renumber(
    outs: tuple[Node, ...],
    axes: list[Node],
    sizes: list[list[Dim]],
) -> tuple[tuple[Node, ...], dict[Node, tuple[Node, ...]]]:
    """The OUTs with each axis replaced by its digits, numbered; and these digits."""
    digits: dict[Node, tuple[Node, ...]] = {}
    mapping: dict[Node, Node] = {}
    number = 0
    for axis, parts in zip(axes, sizes, strict=True):
        made = []
        value: Dim = 0
        for size in parts:
            digit = range_node(size, number, axis.arg.axis, axis.arg.bind)
            number += 1
            made.append(digit)
            value = index.add(index.mul(value, size), digit)
        digits[axis] = tuple(made)
        mapping[axis] = index.as_node(value)
    return _replace_axes(outs, mapping, digits), digits


def _replace_axes(
    outs: tuple[Node, ...],
    mapping: Mapping[Node, Node],
    digits: Mapping[Node, tuple[Node, ...]],
) -> tuple[Node, ...]:
    """The OUTs over the new ranges; a reduction over an axis becomes one over its digits."""
    by_value = {mapping[axis]: parts for axis, parts in digits.items() if len(parts) > 1}
    made = {axis: other for axis, other in mapping.items() if other is not axis}
    for node in toposort_having(Ops.RANGE.bit, *outs):
        if node in made:
            continue
        current = node
        for child in node.src:
            if child in made:
                src = tuple([made.get(one, one) for one in node.src])
                current = make_node(node.op, node.dtype, src, node.arg)
                break
        if node.op is Ops.REDUCE:
            current = _over_digits(current, by_value) if by_value else current
        elif node.dtype is dtypes.index or node.op.bit & index.CONDITIONS:
            simpler = index.resimplify(current)
            if simpler is not None:
                current = simpler
        if current is not node:
            made[node] = current
    return tuple([made.get(out, out) for out in outs])


def _over_digits(node: Node, by_value: Mapping[Node, tuple[Node, ...]]) -> Node:
    """A REDUCE over axes, of which some are made of digits by now, as one over these."""
    count = node.arg.monoid.arity
    if not any(child in by_value for child in node.src[count:]):
        return node
    ranges = [one for child in node.src[count:] for one in by_value.get(child, (child,))]
    return Node(Ops.REDUCE, node.dtype, (*node.src[:count], *ranges), node.arg)


def _ordered_axes(outs: tuple[Node, ...], reductions: list[Node]) -> tuple[list[Node], int]:
    """Output axes by number, then reduced ones by first use; and how many of the former."""
    free: set[Node] = set()
    for out in outs:
        for child in out.src[1:]:
            free |= child.ranges
    ordered = sorted(free, key=_ID)
    count = len(ordered)
    for node in reductions:
        for axis in node.src[node.arg.monoid.arity :]:
            if axis not in free:
                free.add(axis)
                ordered.append(axis)
    return ordered, count


# --- splitting ------------------------------------------------------------------------------------


def _cuts(nodes: list[Node]) -> dict[Node, set[int]]:
    """For each range, the places between its digits that divisions ask for; scans forbid any."""
    found: dict[Node, set[int]] = {}
    scanned = {node.src[-1] for node in nodes if node.op is Ops.SCAN}
    for node in nodes:
        if node.op not in (Ops.FLOORDIV, Ops.MOD) or node.dtype is not dtypes.index:
            continue
        inner, size = node.src
        if size.op is not Ops.CONST:
            continue
        scale = 1
        if inner.op is Ops.FLOORDIV and inner.src[1].op is Ops.CONST:
            scale = int(inner.src[1].arg)
            inner = inner.src[0]
        if inner.op is Ops.RANGE and inner not in scanned:
            found.setdefault(inner, set()).update({scale * int(size.arg), scale} - {1})
    return found


def _sizes(axis: Node, cuts: set[int] | None) -> list[Dim]:
    """The extents of an axis's digits, outermost first: one, unless its cuts nest."""
    extent = extent_of(axis)
    if cuts is None or not isinstance(extent, int):
        return [extent]
    chain = [1, *sorted(cuts), extent]
    if any(large % small for small, large in pairwise(chain)):
        return [extent]
    sizes: list[Dim] = [large // small for small, large in pairwise(chain) if large > small]
    return sizes[::-1]


# --- flat views -----------------------------------------------------------------------------------


def _flatten_views(
    outs: tuple[Node, ...], nodes: list[Node]
) -> tuple[tuple[Node, ...], list[Node]]:
    """Read an array flat where its row-major offset is simpler than its indices."""
    accesses: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op is Ops.INDEX and node.src[0].op is Ops.PARAM and len(node.src) > 2:
            accesses.setdefault(node.src[0], []).append(node)
    mapping: dict[Node, Node] = {}
    for param, reads in accesses.items():
        before = sum(_divisions(read.src[1:]) for read in reads)
        if not before:
            continue
        terms = [index.flat_terms(read.src[1:], param.shape) for read in reads]
        offsets = [index.from_linear(*found) for found in terms]
        if sum(_divisions((offset,)) for offset in offsets) >= before:
            continue
        shape = (index.product(param.shape),)
        flat = Node(Ops.PARAM, param.dtype, (), Param(param.arg.slot, shape, param.arg.name))
        for read, offset in zip(reads, offsets, strict=True):
            mapping[read] = Node(Ops.INDEX, read.dtype, (flat, offset))
    if not mapping:
        return outs, nodes

    def visit(node: Node) -> Node | None:
        return mapping.get(node)

    memo: dict[Node, Node] = {}
    changed = tuple(
        [rebuild(out, visit, memo=memo, enter=lambda node: node.mask & _INDEX != 0) for out in outs]
    )
    return changed, toposort(*changed)


def _divisions(idx: tuple[Node, ...]) -> int:
    """How many different divisions several indices are made of."""
    found: set[Node] = set()
    for place in idx:
        if place.mask & _DIVISIONS:
            for node in toposort(place, enter=lambda n: n.op is not Ops.INDEX):
                if node.op in (Ops.FLOORDIV, Ops.MOD) and node.dtype is dtypes.index:
                    found.add(node)
    return len(found)

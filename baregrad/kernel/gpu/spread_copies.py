"""Copies that are begun ahead, between the steps of the product that a loop's iteration makes.

All threads of a block come from a barrier at once. If each began its whole share of the next panel
then, what the matrix units need first would stand in line behind it. So an iteration's steps are
written out one after the other, and between each two of them a part of the copies is begun. The
slot that is filled was read an iteration ago, and is not read in this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, extent_of, make_node, range_node, rebuild, toposort
from baregrad.ir.core.op import STATEMENTS, Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.gpu.barriers import sequence
from baregrad.kernel.loops.loop_pieces import store

_STATEMENTS = mask_of(STATEMENTS)
# Steps that are written out, and products of a thread's sums in them.
MOST_STEPS, MOST_SUMS = 8, 1 << 10
# Beyond the ids of all other axes: parts of rounds have their axis' id and a multiple of this.
FIRST_ID = 1 << 24


def spread_copies(kernel: Node) -> Node:
    """The loop-level KERNEL of one thread whose loops of products are written out."""
    if not kernel.mask & (Ops.MMA.bit | Ops.COPYTO.bit):
        return kernel
    return rebuild(kernel, _visit, enter=lambda node: bool(node.mask & _STATEMENTS))


def _visit(node: Node) -> Node | None:
    """A loop of products as its steps, those of a pipeline's loop with copies between them."""
    if node.op is not Ops.SEQ:
        return None
    items = list(node.src)
    found = [(at, steps) for at, item in enumerate(items) if (steps := _steps(item))]
    if not found:
        return None
    place, steps = found[0]
    before, between = _copies(items[:place], len(steps) - 1)
    if not between and not steps[0].mask & Ops.MMA.bit:
        return None
    done = list(before)
    for number, step in enumerate(steps):
        done.append(step)
        done += between[number : number + 1]
    return sequence([*done, *items[place + 1 :]])


def _steps(node: Node) -> list[Node]:
    """The steps of a short loop of products, a warp's or sums of a thread's; none of others.

    Those of a loop inside it are part of each.
    """
    axes: list[Node] = []
    body = node
    while body.op is Ops.LOOP:
        axis, body = body.src
        axes.append(axis)
    extents = [extent_of(axis) for axis in axes]
    if not axes or not all(isinstance(extent, int) for extent in extents):
        return []
    sizes = [int(axis.src[0].arg) for axis in axes]
    if not 1 < sizes[0] <= MOST_STEPS or not _is_product(body, prod(sizes)):
        return []
    points = [dict(zip(axes, place, strict=True)) for place in product(*map(range, sizes))]
    done = [
        substitute(body, {axis: const(at, dtypes.index) for axis, at in point.items()})
        for point in points
    ]
    inner = prod(sizes[1:])
    return [sequence(done[at : at + inner]) for at in range(0, len(done), inner)]


def _is_product(body: Node, count: int) -> bool:
    """Whether a statement multiplies what lies in shared memory, `count` times not too much."""
    if body.op is Ops.MMA:
        return bool(body.arg.name == "mma.sync")
    if body.op is not Ops.STORE or body.src[0].op is not Ops.ALLOC:
        return False
    reads = {one.src[0] for one in toposort(body.src[1]) if one.op is Ops.LOAD}
    spaces = [array.arg.space for array in reads if array.op is Ops.ALLOC]
    ranges = frozenset[Node]().union(*[child.ranges for child in body.src[1:]])
    size = prod([int(axis.src[0].arg) for axis in ranges if axis.arg.bind != "loop"])
    if body.src[0].arg.space != "register" or spaces.count("shared") != 2:
        return False
    return len(spaces) == len(reads) and size * count <= MOST_SUMS


def _copies(before: Sequence[Node], parts: int) -> tuple[list[Node], list[Node]]:
    """What stays ahead of the steps, and the parts of the copies, the last one with its COMMIT.

    Where copies are not begun and closed right ahead of the steps, all stays as it is.
    """
    items = list(before)
    if len(items) < 2 or items[-1].op is not Ops.COMMIT or not items[-2].mask & Ops.COPYTO.bit:
        return items, []
    *first, block, commit = items
    if not all(one.op in (Ops.DONE, Ops.BARRIER) for one in first):
        return items, []
    found = _rounds(block, [])
    if found is None:
        return items, []
    rounds = sum(count for _, _, count in found)
    ends = [-(-rounds * (part + 1) // parts) for part in range(parts)]
    between = []
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
        between.append(_part(found, begin, end, FIRST_ID * number))
    between[-1] = [*between[-1], commit]
    return first, [sequence(each) for each in between if each]


def _rounds(
    block: Node, conditions: list[Node]
) -> list[tuple[Node, list[Node], int]] | None:
    """Each COPYTO of a block, the conditions around it, and its rounds; None if there is more."""
    if block.op is Ops.SEQ:
        found = []
        for child in block.src:
            inside = _rounds(child, conditions)
            if inside is None:
                return None
            found += inside
        return found
    if block.op is Ops.IF:
        return _rounds(block.src[1], [*conditions, block.src[0]])
    if block.op is not Ops.COPYTO:
        return None
    return [(block, conditions, prod([int(axis.src[0].arg) for axis in _unrolled(block)]))]


def _unrolled(copy: Node) -> list[Node]:
    """The rounds of a copy as axes: one, or none."""
    places = frozenset[Node]().union(*[child.ranges for child in copy.src[1:]])
    return [axis for axis in places if axis.arg.bind == "unroll"]


def _part(
    copies: Sequence[tuple[Node, list[Node], int]], begin: int, end: int, first_id: int
) -> list[Node]:
    """The rounds from `begin` to `end` of some copies, each under its conditions."""
    done: list[Node] = []
    passed = 0
    for copy, conditions, count in copies:
        low, high = max(begin - passed, 0), min(end - passed, count)
        passed += count
        if low >= high:
            continue
        one = copy
        held = list(conditions)
        for axis in _unrolled(copy):
            if (low, high) == (0, count):
                break
            part = index.as_node(low)
            if high - low > 1:
                id = first_id + axis.arg.id
                short = range_node(high - low, id, axis.arg.axis, axis.arg.bind)
                part = index.as_node(index.add(short, low))
            target, value, *places = substitute(copy, {axis: part}).src
            one = make_node(copy.op, copy.dtype, (target, value, *places), copy.arg)
            if value.op is Ops.CONST:
                # All of it is past an edge.
                one = store(target, value, tuple(places))
            held = [substitute(condition, {axis: part}) for condition in conditions]
        for condition in reversed(held):
            one = make_node(Ops.IF, dtypes.token, (condition, one))
        done.append(one)
    return done

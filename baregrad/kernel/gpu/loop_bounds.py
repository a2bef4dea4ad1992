"""Loops of one thread end where a condition on data has become false for good.

A thread that adds up the rows of its own run has a loop over as many as there may be, in which a
condition says how many there are. In the code of one thread that is the loop's bound: the number
was read before, and other threads have bounds of their own. Several sums in one loop that
end apart have loops of their own, or else the loop ends where the last of them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const, extent_of, make_node, range_node, rebuild
from baregrad.ir.core.op import STATEMENTS, Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.gpu.barriers import sequence

_STATEMENTS = mask_of(STATEMENTS)
_READS = Ops.LOAD.bit | Ops.INDEX.bit
_LINEAR = frozenset((Ops.ADD, Ops.SUB))
# The largest position.
_MOST = (1 << 63) - 1


def bound_loops(kernel: Node) -> Node:
    """The loop-level KERNEL of one thread with loops that end by data."""
    if not kernel.mask & Ops.LOOP.bit:
        return kernel
    return rebuild(kernel, _visit, enter=lambda node: bool(node.mask & _STATEMENTS))


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.LOOP:
        return None
    axis, body = node.src
    extent = extent_of(axis)
    if not isinstance(extent, int) or axis.arg.bind != "loop":
        return None
    statements = body.src if body.op is Ops.SEQ else (body,)
    arrays = [_conditions(one)[1] for one in statements]
    written = frozenset([array for array in arrays if array is not None])
    ends: dict[Dim, list[tuple[Node, tuple[Node, ...]]]] = {}
    for one in statements:
        found = _end_of(one, axis, written)
        if found is None:
            return None
        limit, parts = found
        ends.setdefault(index.minimum(limit, extent), []).append((one, parts))
    if len(ends) == 1 or _are_apart(statements):
        return sequence([_ended(axis, limit, some) for limit, some in ends.items()])
    last = reduce(index.maximum, ends)
    return _ended(axis, last, [(one, ()) for some in ends.values() for one, _ in some])


def _ended(axis: Node, limit: Dim, some: list[tuple[Node, tuple[Node, ...]]]) -> Node:
    """A loop of statements up to a limit, each without the conditions that hold until then."""
    short = range_node(index.maximum(limit, 0), axis.arg.id, axis.arg.axis)
    holds = const(True, dtypes.bool)
    body = [substitute(one, {axis: short, **dict.fromkeys(parts, holds)}) for one, parts in some]
    return make_node(Ops.LOOP, dtypes.token, (short, sequence(body)))


def _are_apart(statements: Sequence[Node]) -> bool:
    """Whether each of some sums reads what no other one is: each may have a loop of its own."""
    arrays = [_conditions(one)[1] for one in statements]
    reads = [_arrays(one) for one in statements]
    return len(set(arrays)) == len(arrays) and all(
        own is other or own not in read
        for own in arrays for other, read in zip(arrays, reads, strict=True)
    )  # fmt: skip


def _end_of(
    body: Node, axis: Node, written: frozenset[Node]
) -> tuple[Dim, tuple[Node, ...]] | None:
    """The step from which on a statement does nothing more, and the conditions that say so.

    The first of them that is false ends it. written: the arrays that the loop writes.
    """
    levels, array = _conditions(body)
    if array is None:
        return None
    outer: list[Node] = []
    ends: dict[Node, Dim] = {}
    for level in levels:
        for part in level:
            limit = _limit(part, axis, written | {array})
            # What has such a limit stays false as well.
            others = [one for one in outer if one not in ends]
            if limit is not None and _stay_false(others, axis):
                ends[part] = _guarded(limit, outer, axis)
        outer += level
    return (reduce(index.minimum, ends.values()), tuple(ends)) if ends else None


def _conditions(body: Node) -> tuple[list[list[Node]], Node | None]:
    """The conditions without which a loop does nothing, outermost first, and what it writes."""
    levels = []
    while body.op is Ops.IF:
        levels.append(index.conjuncts(body.src[0]))
        body = body.src[1]
    array = body.src[0] if body.op is Ops.STORE else None
    if array is None or array.op is not Ops.ALLOC or array.arg.space != "register":
        return [], None
    value = body.src[1]
    if value.op is Ops.ADD and value.src[0].op is Ops.LOAD and value.src[0].src[0] is array:
        # A sum that begins with 0 stays as it is where 0 is added.
        value = value.src[1]
        while value.op is Ops.GUARD or (value.op is Ops.WHERE and _is_zero(value.src[2])):
            levels.append(index.conjuncts(value.src[0]))
            value = value.src[1]
    return levels, array


def _is_zero(node: Node) -> bool:
    return node.op is Ops.CONST and node.arg == 0


def _stay_false(conditions: list[Node], axis: Node) -> bool:
    """Whether each of some conditions is false for all steps where it is so for the first."""
    for one in conditions:
        if axis in one.ranges:
            terms, _ = index.linear(index.sub(*one.src)) if one.op is Ops.CMPLT else ({}, 0)
            rest = [atom for atom in terms if atom is not axis]
            if terms.get(axis, -1) < 0 or any(axis in atom.ranges for atom in rest):
                return False
    return True


def _guarded(limit: Dim, outer: list[Node], axis: Node) -> Dim:
    """A limit with its loads where the conditions around them let the first step read them."""
    if not outer or isinstance(limit, int):
        return limit
    first: Node | None = None
    for condition in outer:
        # What a condition reads itself is there where those around it hold.
        one = _read_where(first, substitute(condition, {axis: const(0, dtypes.index)}))
        first = one if first is None else index.both(first, one)
    return index.as_dim(_read_where(first, limit))


def _read_where(condition: Node | None, value: Node) -> Node:
    """An expression that reads nothing where a condition is false, if there is one."""
    if condition is None or not value.mask & Ops.LOAD.bit:
        return value

    def visit(node: Node) -> Node | None:
        guard = node.op is Ops.LOAD
        return (
            make_node(Ops.GUARD, node.dtype, (condition, node)) if guard
            else index.resimplify(node)
        )

    enter = Ops.LOAD.bit
    return rebuild(value, visit, enter=lambda n: bool(n.mask & enter) and n.op is not Ops.GUARD)


def ends_by_data(reduce: Node) -> bool:
    """Whether a kernel-level REDUCE has an axis that ends where data says, by a condition."""
    value, *axes = reduce.src
    while value.op is Ops.GUARD:
        for part in index.conjuncts(value.src[0]):
            if any(_limit(part, axis, frozenset()) is not None for axis in axes):
                return True
        value = value.src[1]
    return False


def limit_of(condition: Node, axis: Node) -> Dim | None:
    """The point of an axis from which on data says that a condition is false; None for no such."""
    if condition.op is not Ops.CMPLT or condition.src[0].dtype.kind not in ("int", "index"):
        return None
    sides = [side if side.dtype is dtypes.index else _position(side) for side in condition.src]
    return _limit(make_node(Ops.CMPLT, dtypes.bool, tuple(sides)), axis, frozenset())


def _limit(condition: Node, axis: Node, written: frozenset[Node]) -> Dim | None:
    """The step from which on a condition on data is false; None where it says no such thing.

    written: the arrays that the loop writes.
    """
    if condition.op is not Ops.CMPLT or not condition.mask & _READS:
        return None
    if condition.src[0].dtype.kind == "float":
        return None
    found: dict[Node, int] = {}
    terms, constant = index.linear(index.sub(*condition.src))
    for atom, scale in terms.items():
        inner, more = _exact(atom)
        constant += scale * more
        for node, count in inner.items():
            found[node] = found.get(node, 0) + scale * count
    if found.pop(axis, 0) != 1:
        return None
    if any(axis in atom.ranges or not written.isdisjoint(_arrays(atom)) for atom in found):
        return None
    # axis + rest < 0
    rest = {a: n for a, n in found.items() if n}
    if constant and not _moves(rest, constant):
        return None
    return index.sub(0, index.from_linear(rest, constant))


def _moves(terms: dict[Node, int], constant: int) -> bool:
    """Whether a number may change its side: with no values of the terms a sum of 64 bits wraps."""
    ends = [sorted([n * end for end in bounds(atom)]) for atom, n in terms.items()]
    low, high = (constant + sum(each[side] for each in ends) for side in (0, 1))
    return -_MOST <= low and high <= _MOST


def _arrays(node: Node) -> set[Node]:
    """The arrays that an expression reads."""
    found = set[Node]()
    seen = [node]
    for one in seen:
        if one.op is Ops.LOAD:
            found.add(one.src[0])
        seen.extend(child for child in one.src if child.mask & Ops.LOAD.bit)
    return found


def _exact(atom: Node) -> tuple[dict[Node, int], int]:
    """An integer that is converted to a position, as a sum of positions where nothing wraps."""
    if atom.op is not Ops.CAST or atom.src[0].dtype.kind != "int":
        return {atom: 1}, 0
    terms: dict[Node, int] = {}
    constant = 0
    todo = [(atom.src[0], 1)]
    while todo:
        value, sign = todo.pop()
        if value.op in _LINEAR and _holds(value):
            left, right = value.src
            todo += [(left, sign), (right, sign if value.op is Ops.ADD else -sign)]
        elif value.op is Ops.CONST:
            constant += sign * int(value.arg)
        elif value.op is Ops.CAST and _is_kept(value.src[0], value.dtype):
            todo.append((value.src[0], sign))
        else:
            place = value if value.dtype is dtypes.index else _position(value)
            inner, more = index.linear(place)
            constant += sign * more
            for node, count in inner.items():
                terms[node] = terms.get(node, 0) + sign * count
    return terms, constant


def _position(value: Node) -> Node:
    return make_node(Ops.CAST, dtypes.index, (value,))


def _is_kept(value: Node, dtype: DType) -> bool:
    """Whether every value that there may be is one of a signed dtype as well."""
    low, high = bounds(value)
    most = (1 << (dtype.bits - 1)) - 1
    return dtype.kind == "int" and value.dtype.kind in ("int", "uint", "index") and (
        -most - 1 <= low and high <= most
    )


def _holds(value: Node) -> bool:
    """Whether a sum or difference of integers never wraps."""
    if value.dtype.kind != "int":
        return False
    (a, b), (c, d) = map(bounds, value.src)
    low, high = (a + c, b + d) if value.op is Ops.ADD else (a - d, b - c)
    most = (1 << (value.dtype.bits - 1)) - 1
    return -most - 1 <= low and high <= most


__all__ = ["bound_loops", "ends_by_data", "limit_of"]

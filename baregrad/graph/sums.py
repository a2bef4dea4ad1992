"""Sums of products: factors that do not vary along the summed axes are multiplied in afterwards.

`sum(x * s) -> sum(x) * s` where s repeats along every summed axis: fewer multiplications, and none
in a contraction's operands. A sum of several such products is split when a factor is itself the
result of a reduction: the new sums no longer wait for it, so that all of them are made in one pass
over memory (the gradient of a batch norm: four sums at once, instead of one after the other). A sum
of several matrix products is split as well: each is a contraction by itself.
What others read as well is not factored, since it will be in memory, unless what is left of it
without such a factor is read by others too: sums of the same are then one sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.graph.reductions import once_for_alike
from baregrad.graph.repeats import is_matrix_product, is_repeated
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import cut, expand, permute, reshape
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import MOVEMENT, Ops, mask_of
from baregrad.ir.core.shape import is_one

_WIDE = frozenset((dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64))
_FACTORS = 6  # factors and terms that are looked at
_ADDITIVE = frozenset((Ops.ADD, Ops.SUB))
_SIGNED = mask_of((Ops.ADD, Ops.SUB, Ops.NEG))
_TAKEN_APART = mask_of((Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL))


class _Uses:
    """By how many nodes each node of the graph in the making is read, as far as it is made.

    readers: the same of the graph that entered. changed: what became of its nodes.
    """

    def __init__(self, readers: dict[Node, int], changed: dict[Node, Node]) -> None:
        self._readers = readers
        self._changed = changed
        self._made: dict[Node, int] = {}
        self._seen = 0
        # Whether values repeat along axes: sums of one product ask it of the same factors.
        self.repeated: dict[tuple[Node, tuple[int, ...]], bool] = {}

    def of(self, node: Node) -> int:
        """The number of readers of one node."""
        changed, made = self._changed, self._made
        for old in islice(reversed(changed), len(changed) - self._seen):
            new = changed[old]
            made[new] = made.get(new, 0) + self._readers[old]
        self._seen = len(changed)
        kept = 0 if node in changed else self._readers.get(node, 0)
        return kept + made.get(node, 0)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A REDUCE(add), and the nodes below it that nobody else reads."""

    node: Node
    own: frozenset[Node]
    uses: _Uses

    @property
    def axes(self) -> tuple[int, ...]:
        """The summed axes."""
        axes: tuple[int, ...] = self.node.arg.axes
        return axes

    def repeats(self, factor: Node) -> bool:
        """Whether `factor` repeats along every summed axis."""
        axes = self.axes
        found = self.uses.repeated.get((factor, axes))
        if found is None:
            found = True
            for axis in axes:
                if not is_repeated(factor, axis):
                    found = False
                    break
            self.uses.repeated[factor, axes] = found
        return found

    def of(self, body: Node) -> Node:
        """The same sum of something else."""
        return Node(Ops.REDUCE, self.node.dtype, (body,), self.node.arg)

    def of_factors(self, factors: list[Node]) -> Node:
        """The same sum of a product, made once where results are alike since others left."""
        made = self.of(_product(factors))
        smaller = once_for_alike(made)
        return made if smaller is None else smaller


def _rewrite(this: _Sum) -> Node | None:
    body = this.node.src[0]
    if not body.shape:
        return None
    if body.op is Ops.NEG and body.dtype.kind in ("float", "int"):
        inner = this.of(body.src[0])
        found = _rewrite(_Sum(inner, this.own, this.uses))
        return Node(Ops.NEG, inner.dtype, (inner if found is None else found,))
    if body.op is Ops.MUL:
        return _without_factors(this, body)
    if body.op not in _ADDITIVE or body.dtype.kind != "float":
        return None
    found = _contractions(this, body)
    if found is None and body.mask & Ops.REDUCE.bit:
        found = _split(this, body)
    return found


def _is_sum(node: Node) -> bool:
    if node.op is not Ops.REDUCE or node.dtype not in _WIDE or not node.arg.axes:
        return False
    return node.arg.monoid.primitive is Ops.ADD


def _without_factors(this: _Sum, body: Node) -> Node | None:
    """sum(x * s) as sum(x) * s, or None where nothing comes out."""
    inner, outer = _factors(this, body)
    if not outer or not inner:
        return None
    rest = _product(inner)
    apart = _contractions(this, rest) if rest.op in _ADDITIVE and rest.dtype.is_float else None
    return _multiplied(this.of_factors(inner) if apart is None else apart, outer)


def _factors(this: _Sum, body: Node) -> tuple[list[Node], list[Node]]:
    """The factors of a product: those that stay in the sum, and those that come out, cut."""
    inner: list[Node] = []
    outer: list[Node] = []
    stack = [body]
    while stack:
        factor = stack.pop()
        few = len(stack) + len(inner) + len(outer) < _FACTORS
        if factor.op is Ops.MUL and few and (factor is body or _is_taken(this, factor)):
            stack.extend(reversed(factor.src))
        elif not factor.shape:
            (outer if _is_scale(factor) else inner).append(factor)
        elif this.repeats(factor):
            outer.append(once(factor, this.axes))
        else:
            scale, rest = _constant_scale(factor, this.uses)
            inner.append(rest)
            if scale is not None:
                outer.append(scale)
    # What is left of a sum has the summed axes.
    return (inner if any(factor.shape for factor in inner) else []), outer


def _is_scale(factor: Node) -> bool:
    """Whether a scalar may scale a sum instead of what is summed.

    A known infinity may not, whose products of both signs sum to NaN; nor a known zero, which keeps
    their sum from overflowing.
    """
    if factor.op is not Ops.CONST or factor.dtype.kind != "float":
        return True
    return factor.arg != 0 and math.isfinite(factor.arg)


def _is_taken(this: _Sum, product: Node) -> bool:
    """Whether a MUL is factored.

    Nobody else reads it, or a factor repeats along the summed axes and others read the rest alone.
    """
    if product in this.own:
        return True
    a, b = product.src
    for factor, rest in ((b, a), (a, b)):
        if (not factor.shape or this.repeats(factor)) and this.uses.of(rest) > 1:
            return True
    return False


def once(factor: Node, axes: tuple[int, ...]) -> Node:
    """`factor`, which repeats along `axes`, without them."""
    shape = factor.shape
    if factor.op is Ops.EXPAND and _all_one(factor.src[0].shape, axes):
        once = tuple([1 if axis in axes else extent for axis, extent in enumerate(shape)])
        factor = expand(factor.src[0], once)
    else:
        for axis in axes:
            factor = cut(factor, axis, 0, 1)
    return reshape(factor, tuple([e for axis, e in enumerate(shape) if axis not in axes]))


def _all_one(shape: tuple[Any, ...], axes: tuple[int, ...]) -> bool:
    """Whether all of these axes have extent 1."""
    return all(is_one(shape[axis]) for axis in axes)


def _constant_scale(factor: Node, uses: _Uses) -> tuple[Node | None, Node]:
    """(c, x) of a view of x * c, where c is a scalar; (None, factor) of anything else."""
    views: list[Node] = []
    below = factor
    while below.op in MOVEMENT and uses.of(below) < 2:
        views.append(below)
        below = below.src[0]
    if not views or below.op is not Ops.MUL or uses.of(below) > 1:
        return None, factor
    for scale, value in (below.src, below.src[::-1]):
        if scale.op is Ops.CONST and _is_scale(scale) and value.shape == below.shape:
            for view in reversed(views):
                value = _view_again(view, value)
            return scale, value
    return None, factor


def _view_again(view: Node, value: Node) -> Node:
    if view.op is Ops.RESHAPE:
        return reshape(value, view.shape)
    if view.op is Ops.EXPAND:
        return expand(value, view.shape)
    if view.op is Ops.PERMUTE:
        return permute(value, view.arg)
    return Node(view.op, value.dtype, (value,), view.arg)


def _product(factors: list[Node]) -> Node:
    result = factors[0]
    for factor in factors[1:]:
        result = alu(Ops.MUL, result, factor)
    return result


def _multiplied(value: Node, factors: list[Node]) -> Node:
    for factor in factors:
        value = alu(Ops.MUL, value, factor)
    return value


def _contractions(this: _Sum, body: Node) -> Node | None:
    """sum(x*y*a + z*w + t) as sum(x*y)*a + sum(z*w) + sum(t); None where some term forbids it.

    Terms are matrix products, or the same for several results, as a row of an unset state's zeros.
    Such is the gradient of what several matrices are multiplied by, and each sum has matrix units.
    """
    sums: dict[Node, Node] = {}
    free = [axis for axis, e in enumerate(body.shape) if axis not in this.axes and not is_one(e)]
    products = 0
    # What is left of a term without what scales it: some sum or product, and its scales.
    rests: dict[Node, tuple[Node, list[Node]]] = {}
    stack = [body]
    while stack:
        term = stack.pop()
        if term in sums:
            continue
        if term.op.bit & _SIGNED:
            wanted = term.src
        elif is_matrix_product(term, this.axes):
            products += 1
            sums[term] = this.of(term)
            continue
        else:
            if term not in rests:
                inner, outer = _factors(this, term) if term.op is Ops.MUL else ([], [])
                if not inner or not outer:
                    # A bare number has no axes to be cut along.
                    alike = [axis for axis in free if term.shape and is_repeated(term, axis)]
                    if not alike:
                        return None
                    sums[term] = _once_for_all(this, term, alike)
                    continue
                rests[term] = _product(inner), outer
            wanted = rests[term][:1]
        missing = [child for child in wanted if child not in sums]
        if missing:
            stack += [term, *missing]
        elif term in rests:
            sums[term] = _multiplied(sums[wanted[0]], rests[term][1])
        else:
            sums[term] = alu(term.op, *[sums[child] for child in wanted])
    return sums[body] if products else None


def _once_for_all(this: _Sum, term: Node, alike: list[int]) -> Node:
    """The sum of a term that is the same along some axes of the results, made once along these."""
    small = term
    for axis in alike:
        small = cut(small, axis, 0, 1)
    shape = tuple([e for axis, e in enumerate(term.shape) if axis not in this.axes])
    return expand(this.of(small), shape)


def _added(parts: list[tuple[Node, int]]) -> Node:
    """The sum of values with signs."""
    total: Node | None = None
    for value, sign in parts:
        term = Node(Ops.NEG, value.dtype, (value,)) if sign < 0 else value
        total = term if total is None else alu(Ops.ADD, total, term)
    assert total is not None
    return total


def _split(this: _Sum, body: Node) -> Node | None:
    """sum(x*s + y*t) as sum(x)*s + sum(y)*t, where s or t comes from a reduction; else None."""
    parts = []
    worthwhile = False
    for term, sign in _terms(this, body):
        if not term.shape or this.repeats(term):
            return None  # a repeated term may cancel with the others: let it be summed with them
        taken = term.op is Ops.MUL and _is_taken(this, term)
        inner, outer = _factors(this, term) if taken else ([term], [])
        if not inner:
            return None
        worthwhile = worthwhile or any(factor.mask & Ops.REDUCE.bit for factor in outer)
        parts.append((inner, outer, sign))
    if not worthwhile:
        return None
    return _added([
        (_multiplied(this.of_factors(inner), outer), sign) for inner, outer, sign in parts
    ])


def _terms(this: _Sum, body: Node) -> list[tuple[Node, int]]:
    """The terms of a sum, with their signs."""
    found: list[tuple[Node, int]] = []
    stack = [(body, 1)]
    while stack:
        term, sign = stack.pop()
        own = term is body or term in this.own
        if own and term.op in _ADDITIVE and len(stack) + len(found) < _FACTORS:
            second = -sign if term.op is Ops.SUB else sign
            stack.append((term.src[1], second))
            stack.append((term.src[0], sign))
        elif own and term.op is Ops.NEG:
            stack.append((term.src[0], -sign))
        else:
            found.append((term, sign))
    return found


# --- the walk -------------------------------------------------------------------------------------


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule | None:
    """The rule for one graph, of which it counts by how many nodes each is read."""
    if not order[-1].mask & Ops.REDUCE.bit:
        return None
    readers = Counter(chain.from_iterable([node.src for node in order]))
    for node in order:
        src = node.src
        if len(src) > 1 and (src[0] is src[1] or len(src) > 2):
            # What is read several times by one node has one reader.
            for child in src:
                readers[child] -= 1
            for child in set(src):
                readers[child] += 1
    uses = _Uses(readers, changed)

    def visit(node: Node, made: Node) -> Node | None:
        if not made.src[0].op.bit & _TAKEN_APART or not _is_sum(node):
            return None
        own = frozenset([changed.get(one, one) for one in _owned(node.src[0], readers)])
        return _rewrite(_Sum(made, own, uses))

    return visit


def _owned(body: Node, readers: Mapping[Node, int]) -> set[Node]:
    """`body`, and the arithmetic below it that only nodes of this set read.

    readers: how many nodes read each.
    """
    owned = {body}
    while body.op is Ops.NEG:
        body = body.src[0]
        owned.add(body)
    grown = bool(body.op.bit & _TAKEN_APART)
    while grown and len(owned) < 4 * _FACTORS:
        grown = False
        for node in tuple(owned):
            for child in node.src:
                if child.op.bit & _TAKEN_APART and child not in owned:
                    if len([one for one in owned if child in one.src]) == readers[child]:
                        owned.add(child)
                        grown = True
    return owned


SUMS = Part(
    "sums",
    "factors that do not vary along the summed axes come out of sums, and sums wait for less",
    Ops.REDUCE.bit,
    _rule,
    ("constants",),
)

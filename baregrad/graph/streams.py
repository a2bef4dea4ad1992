"""Attention as one reduction over the keys, on GPUs, so that tiles of keys stream through a kernel.

What is written as a maximum, a sum of powers relative to it and a sum of those powers times values
is one reduction, whose states are all three (`ir/analysis/stream.py`, R4). Its maxima are whole, so
that a sum relative to another maximum is that one times a power of two, and rounding powers to 16
bits before or after makes no difference.

Gradients read the powers again. They are computed anew where they are multiplied, from the stored
maxima and sums; where anything else reads what is between the products, all is stored as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.graph.traced import Joined, Part, Rule
from baregrad.graph.views import expand, reshape
from baregrad.ir.analysis.stream import is_widened, rounded, shown, stream
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, const, rebuild, toposort
from baregrad.ir.core.op import ELEMENTWISE, MOVEMENT, Ops, mask_of
from baregrad.target import AnyTarget

F32 = dtypes.float32
# Columns of a key, and of a value, that a warp's matrix unit takes: multiples of the first.
WIDTH, MOST_WIDTH = 16, 256
_VIEWS = (Ops.EXPAND, Ops.RESHAPE)
_ELEMENTWISE_OR_VIEW = mask_of((*ELEMENTWISE, *MOVEMENT))
# What may be computed anew for each tile.
_ANEW = mask_of((*ELEMENTWISE, *MOVEMENT, Ops.IOTA, Ops.CONST, Ops.VAR, Ops.PARAM, Ops.BUFFER))


def has_streams(target: AnyTarget) -> bool:
    """Whether a GPU makes both kinds of 16-bit products, and copies beside its threads."""
    if target.kind != "gpu" or not target.async_copies:
        return False
    return {("float16", WIDTH), ("bfloat16", WIDTH)} <= set(target.warp_products)


class _Softmax(NamedTuple):
    """A sum of products of powers with values, divided by the sum of the powers.

    exponent: x, over (..., rows, keys). power: 2 ** (x - ceil(max(x))). weights: the powers, as a
    float32 that was rounded to 16 bits, perhaps after some factor. product: the sum of products.
    """

    exponent: Node
    power: Node
    weights: Node
    product: Node


def _lifted(x: Node) -> Node:
    """Powers relative to what each exponent is rounded up to by itself."""
    return Node(Ops.EXP2_NEAR, F32, (alu(Ops.SUB, x, Node(Ops.CEIL, F32, (x,))),))


def _streamed(node: Node, found: _Softmax, now: Callable[[Node], Node]) -> Node:
    """Attention's result, rounded to 16 bits: over a reduction of three states.

    now: what became of a node.
    """
    x, power, weights = (now(each) for each in (found.exponent, found.power, found.weights))
    shape = found.product.src[0].shape
    again = rebuild(weights, lambda one: _lifted(x) if one is power else None)
    values = (
        _along(Node(Ops.CEIL, F32, (x,)), shape), _along(_lifted(x), shape),
        alu(Ops.MUL, _along(again, shape), now(found.product.src[0].src[1])),
    )
    monoid = stream(F32, 2, Ops.EXP2)
    folded = Node(Ops.REDUCE, F32, values, Reduce(monoid, found.product.arg.axes))
    total, summed = (Node(Ops.PROJ, F32, (folded,), part) for part in (1, 2))
    none = alu(Ops.CMPEQ, total, const(0.0, F32))
    divisor = alu(Ops.WHERE, none, const(1.0, F32), total)
    made = Node(Ops.CAST, node.dtype, (alu(Ops.DIV, summed, divisor),))
    return Node(Ops.CONTIGUOUS, node.dtype, (made,))


def _matched(node: Node) -> _Softmax | None:
    """The parts of `sum(p * v) / sum(e)`, p made of e, e = 2 ** (x - ceil(max(x)))."""
    if node.op is not Ops.DIV or node.dtype is not F32:
        return None
    product, divisor = node.src
    if product.op is not Ops.REDUCE or product.arg.monoid is not primitive(Ops.ADD, F32):
        return None
    last = len(product.src[0].shape) - 1
    if product.arg.axes != (last,) or product.src[0].op is not Ops.MUL:
        return None
    over = product.src[0].src[0]
    weights = _below(over)
    power = _power(weights)
    if power is None or power.op is not Ops.EXP2_NEAR or power.src[0].op is not Ops.SUB:
        return None
    x, high = power.src[0].src
    shape = (*product.src[0].shape[:-2], product.src[0].shape[-1])
    fits = over.shape == product.src[0].shape and x.shape == power.shape == shape
    if not (fits and _is_high(_below(high), x) and _is_total(_below(divisor), power)):
        return None
    return _Softmax(x, power, weights, product)


def _below(node: Node) -> Node:
    """What is repeated along axes that it has not."""
    while node.op in _VIEWS:
        node = node.src[0]
    return node


def _power(weights: Node) -> Node | None:
    """The powers that a rounded factor is made of, perhaps times what dropout leaves."""
    if weights.op is not Ops.CAST or weights.src[0].op is not Ops.CAST:
        return None
    if weights.src[0].dtype.bits != 16:
        return None
    inner = weights.src[0].src[0]
    if inner.op is Ops.MUL:
        powers = [one for one in inner.src if one.op is Ops.EXP2_NEAR]
        return powers[0] if len(powers) == 1 else None
    return inner


def _is_high(node: Node, x: Node) -> bool:
    """Whether a value is ceil(max(x)) over the last axis, 0 where that is -inf."""
    if node.op is not Ops.WHERE:
        return False
    found = _below(node.src[1])
    fits = found.op is Ops.REDUCE and found.arg.monoid is primitive(Ops.MAX, F32)
    return fits and found.src[0].op is Ops.CEIL and found.src[0].src[0] is x


def _is_total(node: Node, power: Node) -> bool:
    """Whether a value is the sum of the powers over the last axis, 1 where that is 0."""
    if node.op is not Ops.WHERE:
        return False
    found = _below(node.src[2])
    fits = found.op is Ops.REDUCE and found.arg.monoid is primitive(Ops.ADD, F32)
    return fits and found.src[0] is power


def _along(value: Node, shape: tuple[int | Node, ...]) -> Node:
    """A value over (..., rows, keys) as one over (..., rows, columns, keys)."""
    return expand(reshape(value, (*shape[:-2], 1, shape[-1])), shape)


class _Products:
    """The sums of products of 16-bit floats in a graph, by which a walk ends at what they read.

    A factor may be a float32 that was rounded to 16 bits, as is what a layer or a gradient gives:
    whether it is computed anew in a kernel or read by it depends on who reads it, so that walks
    begin below the factors that are made of scores and end at all others.
    """

    def __init__(self, order: list[Node]) -> None:
        self.every = {node for node in order if _is_product(node)}
        self.factors = {shown(side) for one in self.every for side in one.src[0].src}

    def below(self, *roots: Node) -> list[Node]:
        """What is computed for some values: nodes up to factors, and what is stored."""
        return [one for one in toposort(*roots, enter=self._is_computed) if self._is_computed(one)]

    def _is_computed(self, node: Node) -> bool:
        if node.op is Ops.CONTIGUOUS or node in self.factors:
            return False
        return node.op is not Ops.REDUCE or node in self.every

    def fits(self, found: _Softmax) -> bool:
        """Whether a kernel of tiles can be made of attention: one product of whole chunks in it."""
        order = self.below(found.exponent, found.weights)
        inner = [one for one in order if one in self.every]
        outer = found.product.src[0]
        if len(inner) != 1 or any(not one.op.bit & _ANEW and one not in inner for one in order):
            return False
        body = inner[0].src[0]
        factors = [shown(factor) for factor in (*body.src, outer.src[1])]
        alike = {factor.src[0].dtype for factor in factors} | {found.weights.src[0].dtype}
        return len(alike) == 1 and is_widened(factors[2]) and (
            _is_wide(inner[0], body.shape[-1]) and _is_wide(found.product, outer.shape[-2])
        )


def _is_product(node: Node) -> bool:
    """Whether a node is a sum of products of two 16-bit floats, each as float32."""
    if node.op is not Ops.REDUCE or node.arg.monoid is not primitive(Ops.ADD, F32):
        return False
    product = node.src[0]
    return product.op is Ops.MUL and all(is_widened(shown(side)) for side in product.src)


def _is_wide(product: Node, width: int | Node) -> bool:
    """Whether a product sums over its last axis, and some width is of whole chunks."""
    if product.arg.axes != (len(product.src[0].shape) - 1,):
        return False
    return isinstance(width, int) and width % WIDTH == 0 and width <= MOST_WIDTH


class _Groups:
    """What of a graph becomes streams: all that reads some scores, or nothing of it."""

    def __init__(self, order: list[Node]) -> None:
        self.users: dict[Node, list[Node]] = {}
        for node in order:
            for child in dict.fromkeys(node.src):
                self.users.setdefault(child, []).append(node)
        self.products = _Products(order)
        # Attention's results; exponents, by their maxima and by sums of their powers; what is
        # stored: gradients, and factors that were rounded to 16 bits.
        self.results: dict[Node, _Softmax] = {}
        self.maxima: dict[Node, Node] = {}
        self.totals: dict[Node, Node] = {}
        self.stored: set[Node] = set()
        roots: dict[Node, tuple[Node, _Softmax]] = {}
        for node in order:
            found = _matched(node.src[0]) if node.op is Ops.CAST and node.dtype.bits == 16 else None
            if found is not None and self.products.fits(found):
                roots[found.product] = node, found
        for node in order:
            if node.op is Ops.EXP2_NEAR and node.src[0].op is Ops.SUB:
                x, high = node.src[0].src
                if _is_high(_below(high), x):
                    self._add(node, roots)

    def _add(self, power: Node, roots: dict[Node, tuple[Node, _Softmax]]) -> None:
        """Take in attention's result and the gradients that read its powers, if all can be.

        Where the result was computed before, there are gradients alone.
        """
        x = power.src[0].src[0]
        own = [node for node in self.products.below(x) if node in self.products.every]
        sums, seen = self._readers(own, power)
        if sums is None:
            return
        results = [roots[one] for one in sums if one in roots and roots[one][1].power is power]
        gradients = {one: sums[one] for one in sums
                     if all(one is not found.product for _, found in results)}  # fmt: skip
        read = [*own, *sums]
        for total, weights in gradients.items():
            below = self.products.below(weights)
            inner = [node for node in below if node in self.products.every]
            others, _ = self._readers([node for node in inner if node not in seen], power)
            if others is None or not others.keys() <= gradients.keys() or not self._ends(total):
                return
            if not all(_is_wide(node, node.src[0].shape[-1]) for node in inner):
                return
            if any(not node.op.bit & _ANEW and node not in inner for node in below):
                return
            read += inner
        self.results.update(results)
        self.stored.update(self._rounded(read, sums))
        if gradients:
            self.maxima[_below(_below(power.src[0].src[1]).src[1])] = x
            sums_of_powers = [one for one in self.users[power] if one.op is Ops.REDUCE]
            self.totals.update(dict.fromkeys(sums_of_powers, x))
            self.stored |= {root for each in gradients for root in self._ends(each)}

    def _rounded(self, products: list[Node], sums: dict[Node, Node]) -> set[Node]:
        """The values, rounded to 16 bits, that are read by products, other than weights."""
        found = set()
        for product in products:
            for side in product.src[0].src:
                value = rounded(side)
                if value is not None and value is not sums.get(product):
                    found.add(_narrow(side))
        return found

    def _ends(self, total: Node) -> list[Node]:
        """What a gradient is, rounded to 16 bits, perhaps after a factor."""
        found = []
        for user in self.users.get(total, ()):
            scaled = user.op is Ops.MUL and any(one.op is Ops.CONST for one in user.src)
            found += [one for one in (self.users.get(user, []) if scaled else [user])
                      if one.op is Ops.CAST and one.dtype.bits == 16]  # fmt: skip
        return found

    def _readers(
        self, scores: list[Node], power: Node
    ) -> tuple[dict[Node, Node] | None, set[Node]]:
        """The sums of weighted values that read some scores, with their weights, and all between.

        None where something else does that is neither the maximum nor the sum of powers.
        """
        seen, sums = set(scores), list[Node]()
        waiting = list(scores)
        while waiting:
            node = waiting.pop()
            for user in self.users.get(node, ()):
                if user in seen:
                    continue
                if user.op.bit & _ELEMENTWISE_OR_VIEW:
                    seen.add(user)
                    waiting.append(user)
                elif user.op is not Ops.REDUCE or user.dtype is not F32:
                    return None, seen
                elif user in self.products.every:
                    sums.append(user)
                elif user.src[0] not in (power, Node(Ops.CEIL, F32, (power.src[0].src[0],))):
                    return None, seen
        weights = {one: _weights(one, seen) for one in sums}
        known = {one: value for one, value in weights.items() if value is not None}
        return (known if len(known) == len(weights) else None), seen


def _narrow(side: Node) -> Node:
    """The 16-bit value that a factor of a product shows."""
    return shown(shown(side).src[0])


def _weights(product: Node, seen: set[Node]) -> Node | None:
    """The float32 that is rounded to weights in a product; None unless that is one side of it."""
    sides = [side for side in product.src[0].src if side in seen]
    if len(sides) != 1 or not _is_wide(product, product.src[0].shape[-2]):
        return None
    return rounded(sides[0])


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule | None:
    """The rule for a graph with powers of that kind."""
    if not order[-1].mask & Ops.EXP2_NEAR.bit:
        return None
    groups = _Groups(order)

    def now(node: Node) -> Node:
        return changed.get(node, node)

    def state(exponent: Node, part: int) -> Node:
        """The maximum of an exponent, or the sum of powers relative to it, over the last axis."""
        x = now(exponent)
        values = (Node(Ops.CEIL, F32, (x,)), _lifted(x))
        axes = (len(x.shape) - 1,)
        folded = Node(Ops.REDUCE, F32, values, Reduce(stream(F32, 1, Ops.EXP2), axes))
        return Node(Ops.PROJ, F32, (folded,), part)

    def rule(node: Node, made: Node) -> Node | None:
        if node in groups.results:
            return _streamed(made, groups.results[node], now)
        if node in groups.totals:
            return state(groups.totals[node], 1)
        if node in groups.maxima:
            return state(groups.maxima[node], 0)
        if node in groups.stored:
            return Node(Ops.CONTIGUOUS, made.dtype, (made,))
        return None

    return rule


STREAMS = Joined((Part(
    "streams",
    "attention is one reduction over the keys, which a GPU's blocks take in tiles",
    Ops.CAST.bit | Ops.REDUCE.bit,
    _rule,
    ("folds",),
),))  # fmt: skip

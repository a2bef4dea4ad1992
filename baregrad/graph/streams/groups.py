"""What reads the scores of attention, and whether all of that can be streams.

Gradients, and attention whose weights are rounded after the division, are sums by row or column of
what is made of the scores anew, of the stored maxima and of the stored sums of powers.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baregrad.graph.repeats import axis_before_reshape, is_repeated
from baregrad.graph.streams.parts import FEW_ROWS
from baregrad.graph.streams.softmax import POWERS, WeighedValues, highest, matched
from baregrad.ir.analysis.stream import (
    is_float32_sum,
    is_of_bytes,
    is_widened,
    rounded,
    shown,
    weights_of,
)
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, rebuild, toposort
from baregrad.ir.core.op import ELEMENTWISE, MOVEMENT, Ops, mask_of

# Columns of a key, and of a value, that a warp's matrix unit takes: multiples of the first.
WIDTH, MOST_WIDTH = 16, 256
# A tile of sums over heads or sequences, for each row and key, and how many keep a machine busy.
TILE, LEAST_TILES = 64, 64
# Columns of each of two sums that a kernel keeps in registers.
MOST_OF_TWO = 128
# Keys of which a warp reads several for each thread.
MANY_KEYS = 64
_ELEMENTWISE_OR_VIEW = mask_of((*ELEMENTWISE, *MOVEMENT))
# What may be computed anew for each tile.
_ANEW = mask_of((*ELEMENTWISE, *MOVEMENT, Ops.IOTA, Ops.CONST, Ops.VAR, Ops.PARAM, Ops.BUFFER))


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

    def are_anew(self, nodes: list[Node]) -> bool:
        """Whether a kernel can compute these for each tile: its products sum whole chunks."""
        return all(
            _is_wide([one.src[0].shape[axis] for axis in one.arg.axes])
            if one in self.every else one.op.bit & _ANEW
            for one in nodes
        )

    def fits(self, found: WeighedValues) -> bool:
        """Whether a kernel of tiles can be made of attention: one product of whole chunks in it."""
        order = self.below(found.exponent, found.weights)
        inner = [one for one in order if one in self.every]
        outer = found.product.src[0]
        if len(inner) != 1 or not self.are_anew(order):
            return False
        factors = [shown(factor) for factor in (*inner[0].src[0].src, outer.src[1])]
        alike = {factor.src[0].dtype for factor in factors} | {found.weights.src[0].dtype}
        return len(alike) == 1 and is_widened(factors[2]) and _is_wide([outer.shape[-2]])


def _is_product(node: Node) -> bool:
    """Whether a node is a sum of products of two 16-bit floats, each as float32."""
    if not is_float32_sum(node):
        return False
    product = node.src[0]
    return product.op is Ops.MUL and all(is_widened(shown(side)) for side in product.src)


def _is_wide(widths: list[int | Node]) -> bool:
    """Whether there is one extent, of whole chunks."""
    return len(widths) == 1 and all(
        isinstance(width, int) and width % WIDTH == 0 and width <= MOST_WIDTH for width in widths
    )


class StreamGroups:
    """What of a graph becomes streams: all that reads some scores, or nothing of it."""

    def __init__(self, order: list[Node]) -> None:
        self.users: dict[Node, list[Node]] = {}
        for node in order:
            for child in dict.fromkeys(node.src):
                self.users.setdefault(child, []).append(node)
        self.position = {node: place for place, node in enumerate(order)}
        self.products = _Products(order)
        # Attention's results; powers, by their maxima and by their sums; what is stored, by the
        # axis that is to lie innermost there, None where that is the last one.
        self.results: dict[Node, WeighedValues] = {}
        self.maxima: dict[Node, Node] = {}
        self.totals: dict[Node, Node] = {}
        self.stored: dict[Node, int | None] = {}
        # Sums of terms that are summed over keys, or over rows, first.
        self.apart = set[Node]()
        # Sums that one kernel makes, each by all of them; those that are summed again are alone.
        self.joined: dict[Node, tuple[WeightedSum, ...]] = {}
        roots: dict[Node, tuple[Node, WeighedValues]] = {}
        for node in order:
            found = matched(node.src[0]) if node.op is Ops.CAST and node.dtype.bits == 16 else None
            if found is not None and self.products.fits(found):
                roots[found.product] = node, found
        for node in order:
            if node.op in POWERS and highest(node) is not None:
                if not self._add(node, roots) and self._is_of_few(node):
                    self.stored.update(dict.fromkeys(self._totals(node)))

    def _add(self, power: Node, roots: dict[Node, tuple[Node, WeighedValues]]) -> bool:
        """Take in attention's result and other sums that read its powers, if all can be.

        Where the result was computed before, there are gradients alone.
        """
        if power.op is not Ops.EXP2_NEAR and not _has_rows(power.shape):
            return False
        below = self.products.below(power.src[0].src[0])
        own = [node for node in below if node in self.products.every]
        if not own or not self.products.are_anew(below):
            return False
        readers = _Readers(self, power, own)
        if not readers.are_sums:
            return False
        results = [roots[one] for one in readers.sums
                   if one in roots and roots[one][1].power is power]  # fmt: skip
        others = [one for one in readers.sums
                  if all(one is not found.product for _, found in results)]  # fmt: skip
        read = {*own, *readers.weighted}
        for each in others:
            below = self.products.below(readers.terms[each])
            inner = [node for node in below if node in self.products.every]
            beside = _Readers(self, power, [node for node in inner if node not in readers.seen])
            if not beside.are_sums or not beside.sums <= set(others):
                return False
            if not self.products.are_anew(below):
                return False
            read.update(inner)
        if not _alike(read):
            return False
        self.results.update(results)
        for product in read:
            for side in product.src[0].src:
                if side not in readers.seen:
                    self.stored[_read_as(shown(shown(side).src[0]), power.shape)] = None
        if others:
            top = highest(power)
            assert top is not None
            self.maxima[top] = power
            self.totals.update(dict.fromkeys(self._totals(power), power))
            # Tiles of other rows would divide anew for each that they pass.
            self.stored.update(dict.fromkeys(self._reciprocals(self._totals(power))))
            weighted = {one: readers.weighted[one] for one in others if one in readers.weighted}
            self.apart |= readers.apart
            for each in others:
                made = weighted.get(each)
                if each in readers.apart:
                    continue
                if made is None or not made.outer:
                    column = None if made is None else made.result.index(made.across)
                    self.stored.update(dict.fromkeys(self._ends(each), column))
                else:
                    self.joined[each] = (made,)
            self._join(list(weighted.values()), power)
        return True

    def _totals(self, power: Node) -> list[Node]:
        """The sums of some powers over the keys."""
        terms = [power]
        if power.op is Ops.EXP2_NEAR:
            terms = [wide for narrow in self.users[power] if narrow.op is Ops.CAST
                     for wide in self.users[narrow]]  # fmt: skip
        return [one for each in terms for one in self.users.get(each, ())
                if _is_sum_of(one, power)]  # fmt: skip

    def summed(self, power: Node, made: Node) -> Node:
        """What is summed of some powers, made of others in their place."""
        totals = self._totals(power)
        return rebuild(totals[0].src[0], lambda node: None, memo={power: made}) if totals else made

    def _reciprocals(self, totals: list[Node]) -> list[Node]:
        """What weights are multiplied by in place of dividing them by these sums."""
        found, waiting = list[Node](), list(totals)
        for node in waiting:
            for user in self.users.get(node, ()):
                if user.op is Ops.RECIPROCAL:
                    found.append(user)
                elif user.op in (Ops.WHERE, Ops.CMPEQ, Ops.RESHAPE) and user not in waiting:
                    waiting.append(user)
        return found

    def _is_of_few(self, power: Node) -> bool:
        """Whether powers of few rows weigh what is summed over many keys, for several columns.

        A kernel that made their own sum as well would have no more threads than that one has. Of
        32-bit floats the weights are stored.
        """
        is_few = not _has_rows(power.shape) and index.upper(power.shape[-1]) >= MANY_KEYS
        if power.op is Ops.EXP or not is_few:
            return False
        points = prod(map(index.upper, power.shape))
        seen, waiting = {power}, [power]
        while waiting:
            for user in self.users.get(waiting.pop(), ()):
                if user.op is Ops.REDUCE and prod(map(index.upper, user.src[0].shape)) > points:
                    return True
                if user.op.bit & _ELEMENTWISE_OR_VIEW and user not in seen:
                    seen.add(user)
                    waiting.append(user)
        return False

    def _join(self, sums: list[WeightedSum], power: Node) -> None:
        """Let sums over the rows of the same scores be one reduction: two, which do not depend."""
        kinds: dict[tuple[object, ...], list[WeightedSum]] = {}
        rows = len(power.shape) - 2
        for one in sums:
            lines = [_axis_below(one.weights, axis, power) for axis in one.lines
                     if one.weights.shape[axis] != 1]  # fmt: skip
            if _axis_below(one.weights, one.along, power) == rows and None not in lines:
                shape = [one.weights.shape[axis] for axis in one.lines]
                kinds.setdefault((*lines, *shape, one.width, one.outer == ()), []).append(one)
        for found in kinds.values():
            found.sort(key=lambda one: self.position[one.total])
            fits = len(found) == 2 and index.upper(found[0].width) <= MOST_OF_TWO
            if fits and not self._depends(found[1].total, found[0].total):
                self.joined.update({one.total: tuple(found) for one in found})

    def _depends(self, node: Node, other: Node) -> bool:
        """Whether a node is made of another one."""
        first = self.position[other]
        return other in toposort(node, enter=lambda one: self.position[one] > first)

    def _ends(self, total: Node) -> list[Node]:
        """What a sum is stored as: rounded to 16 bits, perhaps after a factor, or itself."""
        users = self.users.get(total, [])
        scaled = [one for one in users if one.op is Ops.MUL
                  and any(side.op is Ops.CONST for side in one.src)]  # fmt: skip
        if users and scaled == users:
            users = [one for each in scaled for one in self.users.get(each, ())]
        is_rounded = all(one.op is Ops.CAST and one.dtype.bits == 16 for one in users)
        return users if users and is_rounded else [total]


def _read_as(factor: Node, shape: tuple[int | Node, ...]) -> Node:
    """What is stored of a factor of scores of some shape, rows and keys being its last axes.

    Few rows read 8-bit floats as they are: each is read about once, and bytes are what counts. Many
    rows read them again and again, so that they are widened once.
    """
    is_read_once = index.upper(shape[-2]) <= FEW_ROWS
    return shown(factor.src[0]) if is_of_bytes(factor) and is_read_once else factor


def _has_rows(shape: tuple[int | Node, ...]) -> bool:
    """Whether there are rows for a tile: of fewer, keys are shared out better without streams."""
    return len(shape) > 1 and index.upper(shape[-2]) >= WIDTH


def _has_tiles(shape: tuple[int | Node, ...]) -> bool:
    """Whether sums over heads or sequences, for rows and keys, are in enough tiles for blocks."""
    rows, keys = (-(-index.upper(extent) // TILE) for extent in shape[-2:])
    return prod(map(index.upper, shape[:-2])) * rows * keys >= LEAST_TILES


def _alike(products: set[Node]) -> bool:
    """Whether all factors of some products are of one dtype."""
    sides = [shown(side) for one in products for side in one.src[0].src]
    return len({side.src[0].dtype for side in sides}) == 1


def _is_sum_of(node: Node, power: Node) -> bool:
    """Whether a node sums powers over the last axis: those of two rounded to 16 bits."""
    if not is_float32_sum(node) or node.arg.axes != (len(power.shape) - 1,):
        return False
    term = node.src[0]
    if power.op is not Ops.EXP2_NEAR:
        return term is power
    return is_widened(term) and term is rounded(power, term.src[0].dtype)


class WeightedSum(NamedTuple):
    """A sum of weights times values along an axis of both; `across` is of the values alone.

    outer: the axes over which such sums are summed, of heads that share keys.
    """

    total: Node
    weights: Node
    along: int
    across: int
    outer: tuple[int, ...]

    @property
    def lines(self) -> tuple[int, ...]:
        """The axes of such sums but for the columns."""
        count = len(self.weights.shape)
        return tuple([axis for axis in range(count) if axis not in (self.along, self.across)])

    @property
    def width(self) -> int | Node:
        """How many columns the values have."""
        found: int | Node = self.total.src[0].shape[self.across]
        return found

    @property
    def result(self) -> tuple[int, ...]:
        """The axes of the result, as those of what is summed."""
        count = len(self.weights.shape)
        return tuple([axis for axis in range(count) if axis not in (self.along, *self.outer)])


def _axis_below(weights: Node, axis: int, power: Node) -> int | None:
    """The axis of some powers that an axis of weights made of them is; None where that is none."""
    while weights.op in MOVEMENT or weights.op is Ops.CAST:
        below = weights.src[0]
        if weights.op is Ops.PERMUTE:
            axis = weights.arg[axis]
        elif weights.op is Ops.RESHAPE:
            found = axis_before_reshape(below.shape, weights.shape, axis)
            if found is None:
                return None
            axis = found
        elif weights.op is not Ops.CAST and below.shape[axis] != weights.shape[axis]:
            return None
        weights = below
    return axis if weights.shape == power.shape else None


class _Readers:
    """The sums that read some scores, and all between: `are_sums` where nothing else does.

    sums: those but the sum of the powers. terms: what each sums, or its weights. weighted: those of
    weights times values. apart: those of terms over other axes than the keys, or over more, as the
    gradients of what is added to scores are.
    """

    def __init__(self, groups: StreamGroups, power: Node, scores: list[Node]) -> None:
        self.power = power
        self.seen = set(scores)
        self.terms: dict[Node, Node] = {}
        self.weighted: dict[Node, WeightedSum] = {}
        self.sums = set[Node]()
        self.apart = set[Node]()
        found = self._walk(groups, scores)
        self.are_sums = all(self._takes(node, groups.products.every) for node in found)

    def _walk(self, groups: StreamGroups, scores: list[Node]) -> list[Node]:
        """What is neither arithmetic nor a view among what reads scores."""
        found, waiting = dict[Node, None](), list(scores)
        top = highest(self.power)
        while waiting:
            for user in groups.users.get(waiting.pop(), ()):
                if user in self.seen:
                    continue
                if user.op.bit & _ELEMENTWISE_OR_VIEW:
                    self.seen.add(user)
                    waiting.append(user)
                # What only the maximum reads, which is replaced, need not be stored.
                elif user.op is not Ops.CONTIGUOUS or groups.users[user] != [top]:
                    found[user] = None
        return list(found)

    def _takes(self, node: Node, products: set[Node]) -> bool:
        if node is highest(self.power) or _is_sum_of(node, self.power):
            return True
        if not is_float32_sum(node):
            return False
        if node in products:
            return self._weighs(node)
        last = len(self.power.shape) - 1
        if node.src[0].shape != self.power.shape:
            return False
        self.sums.add(node)
        self.terms[node] = node.src[0]
        if {last - 1, last}.isdisjoint(node.arg.axes):
            return _has_tiles(node.shape)
        if len(node.arg.axes) > 1 or last not in node.arg.axes:
            self.apart.add(node)
        return True

    def _weighs(self, product: Node) -> bool:
        """Whether a product is of weights made of the scores and of values, of whole chunks."""
        body = product.src[0]
        weights = [side for side in body.src if side in self.seen]
        values = [side for side in body.src if side not in self.seen]
        if len(weights) != 1:
            return False
        along, *outer = product.arg.axes
        if outer:
            # Keys and rows are the last axes of powers; others are of heads that share something.
            last = len(self.power.shape) - 2
            places = {axis: _axis_below(weights[0], axis, self.power) for axis in product.arg.axes}
            inner = [axis for axis, place in places.items() if place is None or place >= last]
            if len(inner) != 1 or places[inner[0]] is None:
                return False
            along, *outer = inner[0], *[axis for axis in places if axis not in inner]
        kept = [axis for axis, extent in enumerate(body.shape)
                if axis not in (along, *outer) and extent != 1]  # fmt: skip
        axes = [axis for axis in kept
                if is_repeated(weights[0], axis) and not is_repeated(values[0], axis)]  # fmt: skip
        term = weights_of(weights[0])
        if term is None or not _is_wide([body.shape[axis] for axis in axes]):
            return False
        self.sums.add(product)
        self.terms[product] = term
        self.weighted[product] = WeightedSum(product, weights[0], along, axes[0], tuple(outer))
        return True

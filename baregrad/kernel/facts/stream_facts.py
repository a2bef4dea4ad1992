"""What a kernel of one stream is made of: its products, their axes, and which keys a row sees.

Rows stay, keys pass. Attention is one: rows are queries. So are its gradients, in which rows may as
well be keys and queries pass them: here a key is whatever passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from baregrad.ir.analysis.stream import is_contraction, is_operand, is_stream, rounded
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import NO_RANGES, Node, extent_of, toposort
from baregrad.ir.core.op import Ops

_LOWEST = float("-inf")


class Scores(NamedTuple):
    """A product inside a stream: `total` is the sum over `depth` of left times right.

    left: a read along the row. right: a read along the key.
    """

    total: Node
    left: Node
    right: Node
    depth: Node


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A KERNEL whose outputs are made of one fold over `key`, with products inside it.

    states: of the fold. Three are a maximum, a sum of powers and a sum of weights times values; two
    are the former; none is a plain sum of weights times values. exponent: x, masks included, whose
    power is 2 ** (x - something). power: that of the fold itself, None without states. weights:
    what is rounded before it is multiplied by `values`, along `key` and `column`. row: None where
    there is one row. batch: the other axes of the outputs.
    """

    kernel: Node
    fold: Node
    states: int
    exponent: Node
    power: Node | None
    weights: Node | None
    products: tuple[Scores, ...]
    values: Node | None
    row: Node | None
    key: Node
    column: Node | None
    batch: tuple[Node, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Steps of each product, and columns of the result."""
        axes = [scores.depth for scores in self.products]
        if self.column is not None:
            axes.append(self.column)
        sizes = [extent_of(axis) for axis in axes]
        assert all(isinstance(size, int) for size in sizes)
        return tuple([int(size) for size in sizes if isinstance(size, int)])

    @property
    def limit(self) -> tuple[Dim, int, int] | None:
        """(constant, factor, sign) of a mask by places; None where no such mask is known.

        Where constant + factor * row - sign * key is below 0, no weight is left: a row sees the
        first keys alone where sign is 1, the last ones where it is -1.
        """
        masked = self.exponent
        if masked.op is not Ops.WHERE or self.unmasked is masked:
            return None
        return self._limit(masked.src[0])

    @property
    def unmasked(self) -> Node:
        """The exponent where a mask by places, if there is one around it, hides no key."""
        masked = self.exponent
        if masked.op is not Ops.WHERE or masked.src[1].op is not Ops.CONST:
            return masked
        condition, value, rest = masked.src
        hides = value.arg == _LOWEST and self._limit(condition) is not None
        return rest if hides else masked

    def _limit(self, condition: Node) -> tuple[Dim, int, int] | None:
        """The limit of a condition of that kind, which is how a causal mask is written."""
        if condition.op is not Ops.CMPLT or condition.src[0].dtype.kind != "index":
            return None
        terms, constant = index.linear(index.sub(*condition.src))
        rest = dict(terms)
        along = rest.pop(self.key, 0)
        across = 0 if self.row is None else rest.pop(self.row, 0)
        if abs(along) != 1 or across not in (0, -along) or any(atom.ranges for atom in rest):
            return None
        return index.from_linear(rest, constant), across, -along


def stream_facts(kernel: Node) -> StreamFacts | None:
    """The facts of a kernel-level KERNEL; None where it is no stream that tiles are made of."""
    order = toposort(kernel)
    folds = [node for node in order if node.op is Ops.REDUCE and not is_contraction(node)]
    if len(folds) != 1:
        return None
    (fold,) = folds
    states = fold.arg.monoid.arity if is_stream(fold) else 0
    weighted = fold.src[states - 1 if states else 0]
    if len(fold.src) != (states or 1) + 1 or (states not in (2, 3) and fold.arg.monoid
                                              is not primitive(Ops.ADD, fold.dtype)):
        return None
    power = fold.src[1] if states else None
    weights = values = None
    if states != 2:
        if weighted.op is not Ops.MUL:
            return None
        left, values = weighted.src
        weights = rounded(left)
        if weights is None:
            left, values = values, left
            weights = rounded(left)
    source = weights if power is None else power
    if source is None:
        return None
    near = [node for node in toposort(source) if node.op is Ops.EXP2_NEAR]
    if len(near) != 1 or near[0].src[0].op is not Ops.SUB or power not in (None, near[0]):
        return None
    exponent = near[0].src[0].src[0]
    return _with_axes(kernel, fold, states, exponent, power, weights, values)


def _with_axes(
    kernel: Node, fold: Node, states: int, exponent: Node, power: Node | None,
    weights: Node | None, values: Node | None,
) -> StreamFacts | None:  # fmt: skip
    """The facts of a fold whose parts are known, if its axes are those of tiles."""
    key = fold.src[-1]
    products = []
    for total in toposort(*fold.src):
        if total.op is Ops.REDUCE:
            found = _scores(total, key)
            if found is None:
                return None
            products.append(found)
    reads = [side for each in products for side in (each.left, each.right)]
    if values is not None:
        if not is_operand(values):
            return None
        reads.append(values.src[0])
    if not products or any(read.op is not Ops.INDEX for read in reads):
        return None
    own = products[0]
    still = NO_RANGES if values is None else values.ranges
    # Of heads that share keys, each has rows of its own.
    lines = own.left.ranges - {own.depth} - own.right.ranges - still
    rows = frozenset(sorted(lines, key=lambda axis: axis.arg.id)[-1:])
    columns = still - {key} - own.total.ranges
    places = NO_RANGES.union(*[place.ranges for out in kernel.src for place in out.src[2:]])
    taken = rows | columns | {key, *[each.depth for each in products]}
    for each in products:
        if not rows <= each.left.ranges or not rows.isdisjoint(each.right.ranges):
            return None
    if len(columns) != (values is not None) or not columns | rows <= places:
        return None
    batch = tuple(sorted(places - taken, key=lambda axis: axis.arg.id))
    return StreamFacts(
        kernel, fold, states, exponent, power, weights, tuple(products),
        None if values is None else values.src[0], next(iter(rows), None), key,
        next(iter(columns), None), batch,
    )


def _scores(total: Node, key: Node) -> Scores | None:
    """The sides of a product inside a stream."""
    left, right = total.src[0].src
    if key in left.ranges:
        left, right = right, left
    if key in left.ranges or key not in right.ranges or len(total.src) != 2:
        return None
    return Scores(total, left.src[0], right.src[0], total.src[1])

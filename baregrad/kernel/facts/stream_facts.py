"""What a kernel of one stream is made of: its products, their axes, and which keys a row sees."""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.ir.analysis.stream import is_operand, is_stream
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops

_LOWEST = float("-inf")


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A KERNEL whose only output is made of one stream: sums of powers, and of those times values.

    scores: the product inside the exponent x, summed over `depth`; left: its factor along `row`,
    right: that along `key`. power: 2 ** (x - ceil(x)). weights: what is made of it, which is
    rounded before it is multiplied by `values`, along `key` and `column`. row: None where there is
    one row. batch: the other axes of the output.
    """

    kernel: Node
    out: Node
    fold: Node
    exponent: Node
    power: Node
    weights: Node
    scores: Node
    left: Node
    right: Node
    values: Node
    row: Node | None
    key: Node
    depth: Node
    column: Node
    batch: tuple[Node, ...]

    @property
    def widths(self) -> tuple[int, int]:
        """Steps of a score, and columns of the result."""
        sizes = extent_of(self.depth), extent_of(self.column)
        assert isinstance(sizes[0], int) and isinstance(sizes[1], int)
        return sizes[0], sizes[1]

    @property
    def last_key(self) -> tuple[Dim, int] | None:
        """(what does not depend on the row, its factor): a row sees keys up to their sum alone.

        Beyond `constant + factor * row` all keys are masked out; None where no such mask is known.
        """
        masked = self.exponent
        while masked.op is Ops.WHERE and masked.src[1].op is Ops.CONST:
            condition, value, rest = masked.src
            found = self._limit(condition) if value.arg == _LOWEST else None
            if found is not None:
                return found
            masked = rest
        return None

    def _limit(self, condition: Node) -> tuple[Dim, int] | None:
        """The limit of `constant + row - key < 0`, which is how a causal mask is written."""
        if condition.op is not Ops.CMPLT or condition.src[0].dtype.kind != "index":
            return None
        terms, constant = index.linear(index.sub(*condition.src))
        rest = dict(terms)
        along = rest.pop(self.key, 0)
        across = 0 if self.row is None else rest.pop(self.row, 0)
        if along != -1 or across not in (0, 1) or any(atom.ranges for atom in rest):
            return None
        return index.from_linear(rest, constant), across


def stream_facts(kernel: Node) -> StreamFacts | None:
    """The facts of a kernel-level KERNEL; None where it is no stream that tiles are made of."""
    folds = [node for node in toposort(kernel) if node.op is Ops.REDUCE and is_stream(node)]
    if len(kernel.src) != 1 or len(folds) != 1 or len(folds[0].src) != 4:
        return None
    (fold,), (out,) = folds, kernel.src
    ceiling, power, weighted, key = fold.src
    if weighted.op is not Ops.MUL or power.op is not Ops.EXP2_NEAR or ceiling.op is not Ops.CEIL:
        return None
    rounded, values = weighted.src
    inner = [node for node in toposort(ceiling) if node.op is Ops.REDUCE]
    if rounded.op is not Ops.CAST or not is_operand(values) or len(inner) != 1:
        return None
    (scores,) = inner
    exponent = ceiling.src[0]
    product = scores.src[0]
    if scores.arg.monoid is not primitive(Ops.ADD, scores.dtype) or product.op is not Ops.MUL:
        return None
    left, right = product.src
    if key in left.ranges:
        left, right = right, left
    reads = (left, right, values)
    if len(scores.src) != 2 or not all(is_operand(r) and r.src[0].op is Ops.INDEX for r in reads):
        return None
    depth = scores.src[1]
    columns = values.ranges - {key} - scores.ranges
    # Of heads that share keys, each has rows of its own.
    lines = left.ranges - {depth} - right.ranges - values.ranges
    rows = frozenset(sorted(lines, key=lambda axis: axis.arg.id)[-1:])
    own = frozenset((key, depth)) | columns | rows
    if len(columns) != 1 or key not in right.ranges or key in left.ranges:
        return None
    (column,) = columns
    places = frozenset().union(*[place.ranges for place in out.src[2:]])
    batch = tuple(sorted(places - own, key=lambda axis: axis.arg.id))
    if not columns | rows <= places or power.src[0].src[0] is not exponent:
        return None
    return StreamFacts(
        kernel, out, fold, exponent, power, rounded.src[0].src[0], scores,
        left.src[0], right.src[0], values.src[0], next(iter(rows), None), key, depth, column, batch,
    )

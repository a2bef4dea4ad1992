"""Long accumulating scatters in parts, on GPUs, where `scatter_rows` sorts no places.

Writes that may meet keep their order, so that one thread makes them one after the other. Cut into
parts, each with zeros of its own, they are made side by side, and the parts are summed at the end.
"""

from __future__ import annotations

from baregrad.base.bits import greatest_divisor
from baregrad.dtypes import dtypes
from baregrad.graph.affine_index import affine_index_of
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import expand, full, reshape
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce, Scatter
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops

# Fewer writes in order than this are soon made.
LEAST = 512
LEAST_PART = 16
MOST_PARTS = 64
# Elements of all parts together: zeros to be written, and read again.
MOST_ELEMENTS = 1 << 24


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.SCATTER:
        return None
    monoid = node.arg.monoid
    base, values, *places = node.src
    if monoid is None or monoid.primitive is not Ops.ADD or node.arg.apart or not values.shape:
        return None
    if node.dtype.kind == "bool" or (node.dtype.kind == "float" and node.dtype.bits < 32):
        return None
    if not all(isinstance(extent, int) for extent in (*base.shape, *values.shape)):
        return None
    if any(place.shape != values.shape for place in places):
        return None
    counted = [affine_index_of(place) for place in places]
    if any(found is not None and found.axis == 0 for found in counted):
        return None  # these writes do not meet
    writes = values.shape[0]
    elements = max(index.upper(index.product(base.shape)), 1)
    most = min(MOST_PARTS, MOST_ELEMENTS // elements, writes // LEAST_PART)
    if writes < LEAST or most < 2:
        return None
    parts = greatest_divisor(writes, most)
    return _in_parts(node, parts) if parts > 1 else None


def _in_parts(node: Node, parts: int) -> Node:
    base, values, *places = node.src
    shape = (parts, values.shape[0] // parts, *values.shape[1:])
    thin = (parts, *(1 for _ in shape[1:]))
    number = expand(reshape(Node(Ops.IOTA, dtypes.int64, (), parts), thin), shape)
    zeros = full(const(0, node.dtype), (parts, *base.shape))
    cut = tuple([reshape(one, shape) for one in (values, *places)])
    src = (zeros, cut[0], number, *cut[1:])
    apart = Node(Ops.SCATTER, node.dtype, src, Scatter(node.arg.monoid))
    total = Node(Ops.REDUCE, node.dtype, (apart,), Reduce(node.arg.monoid, (0,)))
    return alu(Ops.ADD, base, total)


def scatter_in_parts(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with long accumulating scatters in parts."""
    return rewrite(order, _visit, Ops.SCATTER.bit, changed)


SCATTER_PARTS = Traced(
    "scatter_parts",
    "a long scatter that adds up is made of parts, for a GPU's threads to share",
    scatter_in_parts,
    ("scatter_rows",),
)

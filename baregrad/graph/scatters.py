"""Scatters without an order: choices by place, and on GPUs parts of long ones.

`scatter(base, v, row, i)`, where `row` counts the rows, writes v[r] at base[r, i[r]] and touches
nothing twice; so it is `where(column == i, v, base)`, which fuses with what is around it: no zeros
to fill, nothing in order. This is the gradient of picking one class a row.

Writes that may meet keep their order, so that one thread makes them one after the other. Where
`scatter_rows` does not sort their places, long sums are cut into parts, each with zeros of its own;
they are made side by side, and summed at the end.
"""

from __future__ import annotations

from baregrad.base.bits import greatest_divisor
from baregrad.dtypes import dtypes
from baregrad.graph.affine_index import AffineIndex, affine_index_of
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import constant_of, counting, expand, full, permute, reshape
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce, Scatter
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops
from baregrad.ir.core.shape import is_one

# Fewer writes in order than this are soon made.
LEAST = 512
LEAST_PART = 16
MOST_PARTS = 64
# Elements of all parts together: zeros to be written, and read again.
MOST_ELEMENTS = 1 << 24


# --- by place -------------------------------------------------------------------------------------


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.SCATTER:
        return None
    base, values, *places = node.src
    if any(place.shape != values.shape for place in places) or not values.shape:
        return None
    values, *places = (_thin(one) for one in (values, *places))
    chosen: int | None = None
    axis_of: dict[int, int] = {}
    for axis, place in enumerate(places):
        counted = affine_index_of(place)
        if counted is not None and _covers(counted, values, base.shape[axis]):
            axis_of[axis] = counted.axis
        elif chosen is None:
            chosen = axis
        else:
            return None
    if len(set(axis_of.values())) != len(axis_of) or len(axis_of) != len(values.shape):
        return None
    if chosen is None:
        return None
    return _choice(node, values, places[chosen], chosen, axis_of)


def _thin(node: Node) -> Node:
    """A value without its axes of extent 1."""
    return reshape(node, tuple(extent for extent in node.shape if not is_one(extent)))


def _covers(counted: AffineIndex, values: Node, extent: Dim) -> bool:
    """Whether the places are 0, 1, ... through the whole axis, one for each of the values."""
    return counted.start == 0 and counted.step == 1 and values.shape[counted.axis] == extent


def _choice(
    node: Node, values: Node, place: Node, chosen: int, axis_of: dict[int, int]
) -> Node | None:
    base = node.src[0]
    shape = base.shape
    order = tuple(axis_of[axis] for axis in range(len(shape)) if axis != chosen)
    thin = tuple(1 if axis == chosen else extent for axis, extent in enumerate(shape))
    value = expand(reshape(permute(values, order), thin), shape)
    index = cast(place, dtypes.int64)
    index = expand(reshape(permute(index, order), thin), shape)
    hit = alu(Ops.CMPEQ, counting(shape, chosen), index)
    monoid = node.arg.monoid
    start = constant_of(base)
    if start is None or (monoid is not None and monoid.primitive is None):
        return None  # an array that is there already may be written in place
    if monoid is not None and not (start.arg == 0 and _adds(monoid)):
        value = alu(monoid.primitive, base, value)
    return alu(Ops.WHERE, hit, value, base)


def _adds(monoid: Monoid) -> bool:
    return monoid.primitive is Ops.ADD


def choose_by_place(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with scatters that write each row once as choices."""
    return rewrite(order, _visit, Ops.SCATTER.bit, changed)


# --- in parts -------------------------------------------------------------------------------------


def _visit_long(node: Node) -> Node | None:
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
    return rewrite(order, _visit_long, Ops.SCATTER.bit, changed)


SCATTERS = Traced(
    "scatters",
    "a scatter that writes each row once is a choice by place",
    choose_by_place,
    ("constants",),
)
SCATTER_PARTS = Traced(
    "scatter_parts",
    "a long scatter that adds up is made of parts, for a GPU's threads to share",
    scatter_in_parts,
    ("scatter_rows",),
)

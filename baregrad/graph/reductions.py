"""Reductions made smaller: over repeated elements, over constants, over one element, over none.

`sum(EXPAND(x)) -> n * sum(x)` and its like; results that are alike are made once; the place of a
maximum is not looked for where nobody wants it. (A sum of sums is merged while fusing, where it is
known that nobody else wants the inner one.)
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.graph.repeats import is_repeated
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import cut, expand, full, reshape
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import Monoid, arg_extreme, primitive
from baregrad.ir.core.node import Node, cast, const, rebuild, toposort
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops, mask_of
from baregrad.ir.core.shape import is_one

_ELEMENTWISE = mask_of(ELEMENTWISE)


def _reduce(node: Node) -> Node | None:
    if node.op is not Ops.REDUCE:
        return None
    op = node.arg.monoid.primitive
    if op is None or not node.arg.axes:
        return None
    value = node.src[0]
    extents = [value.shape[axis] for axis in node.arg.axes]
    if 0 in extents:
        return full(node.arg.monoid.identity[0], node.shape)
    if extents.count(1) == len(extents):
        return _again(node, value, list(node.arg.axes))
    if value.op is Ops.EXPAND:
        found = _reduce_expand(node, op)
        if found is not None:
            return found
    return once_for_alike(node)


def once_for_alike(node: Node) -> Node | None:
    """A reduction whose results are alike along an axis: made once, and then repeated.

    So is the gradient of a product whose sum along a side is all that anything depends on.
    """
    value, axes, shape = node.src[0], node.arg.axes, node.src[0].shape
    if not value.mask & Ops.EXPAND.bit:
        return None
    alike = [
        axis for axis, extent in enumerate(shape)
        if axis not in axes and not is_one(extent) and index.lower(extent) > 0
        and is_repeated(value, axis)
    ]
    if not alike:
        return None
    thin = _thinned(value, alike)
    made = Node(Ops.REDUCE, node.dtype, (thin,), node.arg)
    smaller = _reduce(made)
    return expand(made if smaller is None else smaller, node.shape)


def _thinned(value: Node, axes: list[int]) -> Node:
    """One element along axes that repeat theirs, of all that a value computes along them."""
    order = toposort(value, enter=lambda node: node.op.bit & _ELEMENTWISE != 0)
    done: dict[Node, Node] = {}
    for node in order:
        if node.op.bit & _ELEMENTWISE and node.src:
            done[node] = node.replace(src=tuple([done[child] for child in node.src]))
            continue
        thin = node
        for axis in axes if node.shape else ():
            thin = cut(thin, axis, 0, 1)
        done[node] = thin
    return done[value]


def _again(node: Node, value: Node, gone: list[int]) -> Node:
    """The reduction over its other axes of `value`, whose axes `gone` have extent 1."""
    shape = tuple(extent for axis, extent in enumerate(value.shape) if axis not in gone)
    rest = [
        axis - sum(1 for one in gone if one < axis) for axis in node.arg.axes if axis not in gone
    ]
    value = reshape(value, shape)
    if not rest:
        return value
    again = Node(Ops.REDUCE, node.dtype, (value,), Reduce(node.arg.monoid, tuple(rest)))
    found = _reduce(again)
    return again if found is None else found


def _reduce_expand(node: Node, op: Op) -> Node | None:
    """Repeated elements: counted by a sum, ignored by a maximum. What may be none is left alone."""
    view = node.src[0]
    source = view.src[0]
    repeated = [
        axis
        for axis in node.arg.axes
        if is_one(source.shape[axis])
        and not is_one(view.shape[axis])
        and index.lower(view.shape[axis]) > 0
    ]
    if not repeated or op not in (Ops.ADD, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR):
        return None
    kept = tuple(1 if axis in repeated else extent for axis, extent in enumerate(view.shape))
    value = _again(node, expand(source, kept), repeated)
    if op is not Ops.ADD:
        return value
    if node.dtype.kind == "bool":
        return value
    count = index.product(view.shape[axis] for axis in repeated)
    if isinstance(count, int):
        times = const(count, node.dtype)
    else:
        times = cast(count, node.dtype)
    if node.dtype.kind == "float" and node.dtype.bits < 32:
        wide = Node(Ops.MUL, dtypes.float32, (cast(value, dtypes.float32), cast_count(count)))
        return cast(wide, node.dtype)
    return Node(Ops.MUL, node.dtype, (value, times))


def cast_count(count: Dim) -> Node:
    """A number of elements as a float32 scalar."""
    if isinstance(count, Node):
        return cast(count, dtypes.float32)
    return const(count, dtypes.float32)


def _plain_extremes(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with `max` for the value of an argmax whose place nobody wants.

    A NaN wins both. Of zeros of both signs the first is an argmax's value, either may be a max's.
    """
    sink = order[-1]
    parts = [node for node in order if node.op is Ops.PROJ]
    placed = {node.src[0] for node in parts if node.arg != 0}
    plain: dict[Node, Node] = {}
    for node in parts:
        whole = node.src[0]
        found = None if whole in placed else _extreme_of(whole.arg.monoid)
        if found is not None:
            plain[node] = Node(Ops.REDUCE, node.dtype, whole.src[:1], Reduce(found, whole.arg.axes))
    if not plain:
        return sink

    def enter(node: Node) -> bool:
        return node.mask & Ops.PROJ.bit != 0

    # The values below are rewritten first: a maximum of maxima is two of them.
    for node, made in plain.items():
        changed[node] = rebuild(made, lambda _: None, memo=changed, enter=enter)
    return rebuild(sink, lambda _: None, memo=changed, enter=enter)


def _extreme_of(monoid: Monoid) -> Monoid | None:
    """The monoid of the values alone of an argmax or argmin; None for any other."""
    if monoid.arity != 2:
        return None
    dtype, index = monoid.states
    for op, of_bools in ((Ops.MAX, Ops.OR), (Ops.MIN, Ops.AND)):
        if monoid == arg_extreme(op, dtype, index):
            return primitive(of_bools if dtype.kind == "bool" else op, dtype)
    return None


def shrink_reductions(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with reductions over repeated elements, one element and none made smaller."""
    first: dict[Node, Node] = {}
    sink = order[-1]
    plain = _plain_extremes(order, first) if sink.mask & Ops.PROJ.bit else sink
    if plain is not sink:
        order = toposort(plain)
    found = rewrite(order, _reduce, Ops.REDUCE.bit, changed)
    for old, new in first.items():
        changed[old] = changed.get(new, new)
    return found


REDUCTIONS = Traced(
    "reductions",
    "sums of repeated elements counted, reductions over one element or none gone",
    shrink_reductions,
)

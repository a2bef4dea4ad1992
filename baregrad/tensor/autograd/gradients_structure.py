"""Gradient rules of movement, reductions, scans and indexing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from baregrad.base.errors import GradientError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Slice, Window
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.nodes import alu, cast, div, mul, scalar, where

Gradients = tuple[Node | None, ...]
Rule = Callable[[Node, Node], Gradients]

# --- movement -----------------------------------------------------------------------------------


def _reshape(node: Node, gradient: Node) -> Gradients:
    return (nodes.reshape(gradient, node.src[0].shape),)


def _permute(node: Node, gradient: Node) -> Gradients:
    return (nodes.permute(gradient, nodes.opposite(node.arg)),)


def _expand(node: Node, gradient: Node) -> Gradients:
    return (nodes.sum_to(gradient, node.src[0].shape),)


def _pad(node: Node, gradient: Node) -> Gradients:
    slices = []
    for one, extent in zip(node.arg, node.src[0].shape, strict=True):
        step = one.interior + 1
        if step == 1:
            stop = index.add(one.lo, extent)
        elif isinstance(extent, int) and extent == 0:
            stop = one.lo
        else:
            stop = index.add(one.lo, index.add(index.mul(index.sub(extent, 1), step), 1))
        slices.append(Slice(one.lo, index.as_dim(stop), step))
    return (nodes.shrink(gradient, tuple(slices)),)


def _shrink(node: Node, gradient: Node) -> Gradients:
    return (nodes.pad(gradient, nodes.unshrink(node.arg, node.src[0].shape)),)


def _flip(node: Node, gradient: Node) -> Gradients:
    return (nodes.flip(gradient, node.arg),)


def _window(node: Node, gradient: Node) -> Gradients:
    return (fold(gradient, node.arg, node.src[0].shape[node.arg.axis]),)


def fold(x: Node, window: Window, extent: int | Node) -> Node:
    """The adjoint of WINDOW, accumulated in float32 for narrower floats."""
    arg = Window(window.axis, window.taps, window.stride, window.dilation, extent)
    wide = nodes.accumulator(x.dtype)
    return cast(Node(Ops.FOLD, wide, (cast(x, wide),), arg), x.dtype)


def _fold(node: Node, gradient: Node) -> Gradients:
    arg = node.arg
    windows = nodes.window(gradient, arg.axis, arg.taps, arg.stride, arg.dilation)
    positions = node.src[0].shape[arg.axis]
    # A strided fold may leave the end of the axis untouched by any position.
    return (nodes.cut(windows, arg.axis, 0, positions),)


# --- reductions ---------------------------------------------------------------------------------


def _spread(x: Node, axes: tuple[int, ...], shape: tuple[object, ...]) -> Node:
    """A reduced node repeated over the axes that went."""
    return nodes.expand(nodes.keep(x, axes, len(shape)), shape)


def _reduce(node: Node, gradient: Node) -> Gradients:
    monoid = node.arg.monoid
    if monoid.primitive is None or len(node.src) != 1:
        raise GradientError(f"the reduction {monoid.name} has no gradient of its own")
    rule = _REDUCE_RULES.get(monoid.primitive)
    if rule is None:
        raise GradientError(f"the reduction {monoid.name} has no gradient")
    return (rule(node, gradient),)


def _reduce_add(node: Node, gradient: Node) -> Node:
    return _spread(gradient, node.arg.axes, node.src[0].shape)


def _reduce_extreme(node: Node, gradient: Node) -> Node:
    """Shared evenly among the elements that equal the extreme, or among all that are NaN."""
    (x,) = node.src
    axes = node.arg.axes
    chosen = alu(Ops.CMPEQ, x, _spread(node, axes, x.shape))
    if x.dtype.kind == "float":
        chosen = alu(Ops.OR, chosen, alu(Ops.CMPNE, x, x))
    marks = cast(chosen, x.dtype)
    share = div(gradient, nodes.sum_over(marks, axes))
    return where(chosen, _spread(share, axes, x.shape), scalar(0, x))


def _reduce_mul(node: Node, gradient: Node) -> Node:
    """The gradient times the product of all other elements, right when some are zero."""
    (x,) = node.src
    axes = node.arg.axes
    rest = tuple(axis for axis in range(len(x.shape)) if axis not in axes)
    order = (*rest, *axes)
    front = tuple(x.shape[axis] for axis in rest)
    count = index.product(x.shape[axis] for axis in axes)
    flat = nodes.reshape(nodes.permute(x, order), (*front, count))
    last = len(front)
    others = mul(
        _product_before(flat, last),
        nodes.flip(_product_before(nodes.flip(flat, (last,)), last), (last,)),
    )
    shaped = nodes.reshape(others, tuple(x.shape[axis] for axis in order))
    back = nodes.permute(shaped, nodes.opposite(order))
    return mul(_spread(gradient, axes, x.shape), back)


def _product_before(x: Node, axis: int) -> Node:
    """For each element the product of those before it along an axis; 1 for the first."""
    extent = x.shape[axis]
    if isinstance(extent, int) and extent == 0:
        return x
    start = nodes.full(1, (*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
    if isinstance(extent, int) and extent == 1:
        return start
    running = nodes.scan(Ops.MUL, nodes.cut(x, axis, 0, index.as_dim(index.sub(extent, 1))), axis)
    return nodes.concatenate((start, running), axis)


_REDUCE_RULES: Mapping[Op, Callable[[Node, Node], Node]] = MappingProxyType(
    {
        Ops.ADD: _reduce_add,
        Ops.MAX: _reduce_extreme,
        Ops.MIN: _reduce_extreme,
        Ops.MUL: _reduce_mul,
    }
)


def _proj(node: Node, gradient: Node) -> Gradients:
    """The value of (value, place) passes its gradient to the element at that place."""
    (both,) = node.src
    if both.op is Ops.SCAN:
        return _proj_scaled_sum(node, gradient)
    if node.arg != 0 or not both.arg.monoid.name.startswith("arg"):
        raise GradientError(f"part {node.arg} of {both.arg.monoid.name} has no gradient")
    x, places = both.src
    axes = both.arg.axes
    place = nodes.part(both, 1, places.dtype)
    chosen = alu(Ops.CMPEQ, places, _spread(place, axes, x.shape))
    return where(chosen, _spread(gradient, axes, x.shape), scalar(0, x)), None


# --- scans --------------------------------------------------------------------------------------


def _proj_scaled_sum(node: Node, gradient: Node) -> Gradients:
    """exp(high[i]) times the sum over k >= i of gradient[k] * exp(-highest[k]), for each i.

    Relative to exp(-highest[i]), whose exponent is the largest of these, that sum is a running fold
    of such pairs itself, backwards.
    """
    (both,) = node.src
    if node.arg == 0:
        return None, None
    high, total = both.src
    axis = both.arg.axis
    # Of ones, as the largest exponent is not made of what is multiplied: that may come later.
    ones = nodes.full(1, total.shape, total.dtype)
    highest, _ = nodes.running_scaled_sum(high, ones, axis)
    last, first = nodes.flip(alu(Ops.NEG, highest), (axis,)), nodes.flip(gradient, (axis,))
    _, later = nodes.running_scaled_sum(last, first, axis)
    found = mul(alu(Ops.EXP, alu(Ops.SUB, high, highest)), nodes.flip(later, (axis,)))
    return mul(total, found), found


def _scan(node: Node, gradient: Node) -> Gradients:
    rule = _SCAN_RULES.get(node.arg.monoid.primitive)
    if rule is None:
        raise GradientError(f"the running {node.arg.monoid.name} has no gradient")
    return (rule(node, gradient),)


def _scan_add(node: Node, gradient: Node) -> Node:
    axis = (node.arg.axis,)
    return nodes.flip(nodes.scan(Ops.ADD, nodes.flip(gradient, axis), node.arg.axis), axis)


def _scan_mul(node: Node, gradient: Node) -> Node:
    """d y[k] / d x[i] is the running product at k with x[i] replaced by 1, for k >= i."""
    (x,) = node.src
    axis, ndim = node.arg.axis, len(x.shape)
    extent = x.shape[axis]
    square = (*x.shape[:axis], extent, *x.shape[axis:])
    along_i, along_k = nodes.iota_along(square, axis), nodes.iota_along(square, axis + 1)
    spread = nodes.expand(nodes.unsqueeze(x, axis), square)
    without = where(alu(Ops.CMPEQ, along_i, along_k), scalar(1, x), spread)
    products = nodes.scan(Ops.MUL, without, axis + 1)
    later = alu(Ops.CMPLE, along_i, along_k)
    slopes = where(later, products, scalar(0, x))
    spread_gradient = nodes.expand(nodes.unsqueeze(gradient, axis), square)
    assert ndim + 1 == len(square)
    return nodes.sum_over(mul(slopes, spread_gradient), (axis + 1,))


def record_places(x: Node, y: Node, axis: int) -> Node:
    """Where the running extreme `y` of `x` was last attained, as PyTorch's cummax says it."""
    attained = alu(Ops.CMPEQ, x, y)
    if x.dtype.kind == "float":
        attained = alu(Ops.OR, attained, alu(Ops.CMPNE, x, x))
    places = nodes.iota_along(x.shape, axis)
    return nodes.scan(Ops.MAX, where(attained, places, const(0, dtypes.int64)), axis)


def _scan_extreme(node: Node, gradient: Node) -> Node:
    (x,) = node.src
    axis = node.arg.axis
    records = record_places(x, node, axis)
    places = tuple(
        records if i == axis else nodes.iota_along(x.shape, i) for i in range(len(x.shape))
    )
    return _scatter_add(nodes.zeros_like(x), gradient, places)


_SCAN_RULES: Mapping[Op, Callable[[Node, Node], Node]] = MappingProxyType(
    {
        Ops.ADD: _scan_add,
        Ops.MUL: _scan_mul,
        Ops.MAX: _scan_extreme,
        Ops.MIN: _scan_extreme,
    }
)

# --- indexing -----------------------------------------------------------------------------------


def _scatter_add(base: Node, values: Node, places: tuple[Node, ...]) -> Node:
    """`base` with values added at places, accumulated in float32 for narrower floats."""
    wide = nodes.accumulator(base.dtype)
    return cast(nodes.scatter(cast(base, wide), cast(values, wide), places, Ops.ADD), base.dtype)


def _gather(node: Node, gradient: Node) -> Gradients:
    x, *places = node.src
    added = _scatter_add(nodes.zeros_like(x), gradient, tuple(places))
    return (added, *(None for _ in places))


def _scatter(node: Node, gradient: Node) -> Gradients:
    base, values, *places = node.src
    op = None if node.arg.monoid is None else node.arg.monoid.primitive
    nothing = tuple(None for _ in places)
    if op is Ops.ADD:
        return (gradient, nodes.gather(gradient, *places), *nothing)
    if op in (Ops.MAX, Ops.MIN):
        return (*_scatter_extreme(node, gradient), *nothing)
    if op is not None:
        raise GradientError(f"a scatter that combines by {op.name} has no gradient")
    zero = scalar(0, gradient)
    kept = nodes.scatter(gradient, zero, tuple(places), None)
    # Of several values written to one place the last stays; only it gets a gradient.
    order = nodes.reshape(nodes.iota(index.product(values.shape)), values.shape or places[0].shape)
    writer = nodes.scatter(nodes.full(-1, base.shape, dtypes.int64), order, tuple(places), None)
    stayed = alu(Ops.CMPEQ, nodes.gather(writer, *places), order)
    return (kept, where(stayed, nodes.gather(gradient, *places), zero), *nothing)


def _scatter_extreme(node: Node, gradient: Node) -> tuple[Node, Node]:
    """Shared evenly among the element that was there and all values that equal the result."""
    base, values, *places = node.src
    from_base = alu(Ops.CMPEQ, base, node)
    from_values = alu(Ops.CMPEQ, values, nodes.gather(node, *places))
    dtype = base.dtype
    count = _scatter_add(cast(from_base, dtype), cast(from_values, dtype), tuple(places))
    share = div(gradient, count)
    zero = scalar(0, gradient)
    return (
        where(from_base, share, zero),
        where(from_values, nodes.gather(share, *places), zero),
    )


# --- placement ----------------------------------------------------------------------------------


def device_below(node: Node) -> str | None:
    """The device that a node's value is computed on, from the arrays below it; None if unknown."""
    stack = [node]
    seen: set[Node] = set()
    while stack:
        current = stack.pop()
        if current.op is Ops.COPY:
            return str(current.arg)
        if current.op is Ops.BUFFER:
            return str(current.arg.device)
        for child in current.src:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return None


def _copy(node: Node, gradient: Node) -> Gradients:
    device = device_below(node.src[0])
    if device is None:
        return (gradient,)
    return (Node(Ops.COPY, gradient.dtype, (gradient,), device),)


def _same(node: Node, gradient: Node) -> Gradients:
    return (gradient,)


def _contiguous(node: Node, gradient: Node) -> Gradients:
    return (Node(Ops.CONTIGUOUS, gradient.dtype, (gradient,), True) if node.arg else gradient,)


STRUCTURE_RULES: Mapping[Op, Rule] = MappingProxyType(
    {
        Ops.RESHAPE: _reshape,
        Ops.PERMUTE: _permute,
        Ops.EXPAND: _expand,
        Ops.PAD: _pad,
        Ops.SHRINK: _shrink,
        Ops.FLIP: _flip,
        Ops.WINDOW: _window,
        Ops.FOLD: _fold,
        Ops.REDUCE: _reduce,
        Ops.PROJ: _proj,
        Ops.SCAN: _scan,
        Ops.GATHER: _gather,
        Ops.SCATTER: _scatter,
        Ops.CONTIGUOUS: _contiguous,
        Ops.COPY: _copy,
    }
)


__all__ = ["STRUCTURE_RULES", "device_below", "fold", "record_places"]

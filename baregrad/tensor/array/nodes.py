"""Builders of tensor-level nodes: what operations and gradients are written in.

They take nodes and give nodes. Movements that change nothing give back their source. Elementwise
builders broadcast by NumPy's rule and make it explicit; a scalar of shape () goes with any shape as
it is.
"""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import ShapeError
from baregrad.dtypes import DType, as_dtype, check_computed, dtypes
from baregrad.ir.core import index, monoid
from baregrad.ir.core.attrs import Pad, Reduce, Scan, Scatter, Slice, Window
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.node import cast as convert
from baregrad.ir.core.op import COMPARE, Op, Ops
from baregrad.ir.core.requirements import require, requirements

Dim = int | Node
Shape = tuple[Any, ...]
# More arrays than this are joined in groups of _GROUP: one kernel would read them all.
_JOINED_AT_ONCE, _GROUP = 12, 8
_VAR = Ops.VAR.bit

# --- movement -----------------------------------------------------------------------------------


def reshape(x: Node, shape: Shape) -> Node:
    """`x` in row-major order under another shape of as many elements."""
    if x.shape == shape:
        return x
    if x.op is Ops.RESHAPE and not (x.mask & _VAR and requirements(x)):
        x = x.src[0]
        if x.shape == shape:
            return x
    return fitting(Node(Ops.RESHAPE, x.dtype, (x,), shape))


def fitting(made: Node) -> Node:
    """A movement whose symbolic extents have values that fit. Raises ShapeError."""
    if made.mask & _VAR:
        require(made)
    return made


def permute(x: Node, axes: tuple[int, ...]) -> Node:
    """`x` with axis `i` of the result being axis `axes[i]` of `x`."""
    if x.op is Ops.PERMUTE:
        axes = tuple(x.arg[axis] for axis in axes)
        x = x.src[0]
    if axes == tuple(range(len(axes))):
        return x
    return Node(Ops.PERMUTE, x.dtype, (x,), axes)


def expand(x: Node, shape: Shape) -> Node:
    """`x` with its axes of extent 1 repeated; as many axes as before."""
    if x.shape == shape:
        return x
    if x.op is Ops.EXPAND:
        x = x.src[0]
    return fitting(Node(Ops.EXPAND, x.dtype, (x,), shape))


def broadcast(x: Node, shape: Shape) -> Node:
    """`x` under NumPy's broadcasting to `shape`, which may have more axes."""
    if x.shape == shape:
        return x
    missing = len(shape) - len(x.shape)
    return expand(reshape(x, (1,) * missing + x.shape), shape)


def shrink(x: Node, slices: tuple[Slice, ...]) -> Node:
    """`x` cut to start:stop:step along each axis."""
    if all(
        cut.step == 1 and cut.start.__class__ is int and cut.start == 0 and cut.stop == extent
        for cut, extent in zip(slices, x.shape, strict=True)
    ):
        return x
    return fitting(Node(Ops.SHRINK, x.dtype, (x,), slices))


def whole(shape: Shape) -> list[Slice]:
    """The slices that keep everything; replace some of them, then `shrink`."""
    return [Slice(0, extent) for extent in shape]


def cut(x: Node, axis: int, start: Dim, stop: Dim, step: int = 1) -> Node:
    """`x` cut to start:stop:step along one axis."""
    slices = whole(x.shape)
    slices[axis] = Slice(start, stop, step)
    return shrink(x, tuple(slices))


def pad(x: Node, pads: tuple[Pad, ...]) -> Node:
    """`x` with zeros around and between its elements."""
    if all(
        one.lo.__class__ is int
        and one.hi.__class__ is int
        and one.lo == one.hi == one.interior == 0
        for one in pads
    ):
        return x
    return fitting(Node(Ops.PAD, x.dtype, (x,), pads))


def flip(x: Node, axes: tuple[int, ...]) -> Node:
    """`x` with some axes reversed."""
    if not axes:
        return x
    return Node(Ops.FLIP, x.dtype, (x,), tuple(sorted(axes)))


def window(x: Node, axis: int, taps: int, stride: int = 1, dilation: int = 1) -> Node:
    """`x` with `axis` as sliding windows: axis -> positions there, taps as the last axis."""
    extent = x.shape[axis]
    return fitting(
        Node(Ops.WINDOW, x.dtype, (x,), Window(axis, taps, stride, dilation, extent))
    )


def unsqueeze(x: Node, axis: int) -> Node:
    """`x` with an axis of extent 1 put in at `axis`, counted in the result."""
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def opposite(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `axes`."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def unshrink(slices: tuple[Slice, ...], shape: Shape) -> tuple[Pad, ...]:
    """The PAD that puts the elements kept by a SHRINK of `shape` back where they were."""
    pads = []
    for one, extent in zip(slices, shape, strict=True):
        length = index.sub(one.stop, one.start)
        if one.step == 1:
            pads.append(Pad(one.start, index.as_dim(index.sub(extent, one.stop))))
            continue
        count = index.floordiv(index.add(length, one.step - 1), one.step)
        if isinstance(count, int) and count == 0:
            pads.append(Pad(0, extent))
            continue
        last = index.add(one.start, index.mul(index.sub(count, 1), one.step))
        pads.append(
            Pad(one.start, index.as_dim(index.sub(index.sub(extent, 1), last)), one.step - 1)
        )
    return tuple(pads)


# --- elementwise --------------------------------------------------------------------------------


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that shapes meet in by NumPy's rule. Raises ShapeError when they do not."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    ndim = max(map(len, shapes))
    result: list[Any] = [1] * ndim
    for shape in shapes:
        for axis, extent in enumerate(shape, ndim - len(shape)):
            if extent.__class__ is int and extent == 1:
                continue
            known = result[axis]
            if known.__class__ is int and known == 1:
                result[axis] = extent
            elif known != extent:
                raise ShapeError(
                    "shapes do not broadcast",
                    found=" and ".join(str(list(shape)) for shape in shapes),
                    wanted="equal extents, or 1, in each axis counted from the last",
                    hint=f"axis {axis - ndim} has extents {known} and {extent}",
                )
    return tuple(result)


def alu(op: Op, *operands: Node) -> Node:
    """An elementwise node over operands that broadcast; all of one dtype but WHERE's condition."""
    shapes = [operand.shape for operand in operands if operand.shape]
    if shapes and any(shape != shapes[0] for shape in shapes):
        shape = broadcast_shapes(*shapes)
        operands = tuple(x if not x.shape else broadcast(x, shape) for x in operands)
    dtype = operands[-1].dtype
    if op is not Ops.WHERE:
        check_computed(dtype)
    return Node(op, dtypes.bool if op in COMPARE else dtype, operands)


def cast(x: Node, dtype: DType) -> Node:
    """`x` converted to `dtype`."""
    return convert(x, dtype)


def reinterpret(x: Node, dtype: DType) -> Node:
    """The same bits as elements of another dtype: of another size, the last axis shrinks or grows.

    Lower bytes come first. Both dtypes are of whole bytes, and elements of `dtype` fill the axis.
    """
    bits, wanted = x.dtype.bits, dtype.bits
    if bits == wanted:
        return Node(Ops.BITCAST, dtype, (x,))
    plain, whole = as_dtype(f"uint{bits}"), as_dtype(f"uint{wanted}")
    if x.dtype is not plain:
        x = Node(Ops.BITCAST, plain, (x,))
    *front, last = x.shape
    if wanted > bits:
        count = wanted // bits
        parts = reshape(x, (*front, last // count, count))
        made: Node | None = None
        for place in range(count):
            part = cast(cut(parts, len(front) + 1, place, place + 1), whole)
            part = alu(Ops.SHL, part, const(bits * place, whole)) if place else part
            made = part if made is None else alu(Ops.OR, made, part)
        assert made is not None
        made = reshape(made, (*front, last // count))
    else:
        count = bits // wanted
        places = mul(iota(count, plain), const(wanted, plain))
        made = cast(alu(Ops.SHR, unsqueeze(x, len(x.shape)), places), whole)
        made = reshape(made, (*front, index.as_dim(index.mul(last, count))))
    return made if dtype is whole else Node(Ops.BITCAST, dtype, (made,))


def scalar(value: bool | int | float, like: Node) -> Node:
    """A constant of shape () with the dtype of `like`."""
    return const(value, like.dtype)


def full(value: bool | int | float, shape: Shape, dtype: DType) -> Node:
    """A constant array."""
    return broadcast(const(value, dtype), shape)


def zeros_like(x: Node) -> Node:
    """Zeros of the shape and dtype of `x`."""
    return full(0, x.shape, x.dtype)


def add(a: Node, b: Node) -> Node:
    """a + b."""
    return alu(Ops.ADD, a, b)


def sub(a: Node, b: Node) -> Node:
    """a - b."""
    return alu(Ops.SUB, a, b)


def mul(a: Node, b: Node) -> Node:
    """a * b."""
    return alu(Ops.MUL, a, b)


def div(a: Node, b: Node) -> Node:
    """a / b of floats."""
    return alu(Ops.DIV, a, b)


def neg(a: Node) -> Node:
    """-a."""
    check_computed(a.dtype)
    return Node(Ops.NEG, a.dtype, (a,))


def where(condition: Node, a: Node, b: Node) -> Node:
    """`a` where the condition holds, else `b`."""
    return alu(Ops.WHERE, condition, a, b)


def detach(x: Node) -> Node:
    """`x`, where gradients stop; `x` itself when none could pass."""
    return Node(Ops.DETACH, x.dtype, (x,)) if x.mask & Ops.DETACH.bit else x


def iota(extent: Dim, dtype: DType = dtypes.int64) -> Node:
    """0, 1, ..., extent - 1."""
    if isinstance(extent, Node):
        return fitting(Node(Ops.IOTA, dtype, (extent,)))
    return Node(Ops.IOTA, dtype, (), extent)


def iota_along(shape: Shape, axis: int, dtype: DType = dtypes.int64) -> Node:
    """An array of `shape` whose elements are their own position along `axis`."""
    line = iota(shape[axis], dtype)
    beside = tuple(extent if i == axis else 1 for i, extent in enumerate(shape))
    return expand(reshape(line, beside), shape)


def size_as(dim: Dim, dtype: DType) -> Node:
    """A dimension as a scalar value of `dtype`."""
    return cast(dim, dtype) if isinstance(dim, Node) else const(dim, dtype)


# --- reductions ---------------------------------------------------------------------------------


def reduce(op: Op, x: Node, axes: tuple[int, ...]) -> Node:
    """`x` folded over axes with ADD, MUL, MAX, MIN, AND, OR or XOR; the axes go."""
    if not axes:
        return x
    check_computed(x.dtype)
    arg = Reduce(monoid.primitive(op, x.dtype), tuple(sorted(axes)))
    return Node(Ops.REDUCE, x.dtype, (x,), arg)


def keep(x: Node, axes: tuple[int, ...], ndim: int) -> Node:
    """A reduced node with its `axes` back, of extent 1; `ndim` axes in all."""
    shape = list(x.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    assert len(shape) == ndim
    return reshape(x, tuple(shape))


def arg_reduce(op: Op, x: Node, places: Node, axes: tuple[int, ...]) -> Node:
    """The (value, place) of the extreme over axes, ties to the lowest place; PROJ gives each.

    op: MAX or MIN. places: integers, of the shape of `x`.
    """
    check_computed(x.dtype)
    arg = Reduce(monoid.arg_extreme(op, x.dtype, places.dtype), tuple(sorted(axes)))
    return Node(Ops.REDUCE, x.dtype, (x, places), arg)


def part(x: Node, position: int, dtype: DType) -> Node:
    """One part of a tuple-valued reduction."""
    return Node(Ops.PROJ, dtype, (x,), position)


def accumulator(dtype: DType) -> DType:
    """The dtype in which sums of `dtype` are kept: float32 for the narrower floats."""
    return dtypes.float32 if dtype.is_narrow else dtype


def sum_of_two(a: Node, b: Node) -> Node:
    """`a + b`, those of a dtype that is not computed with by way of float32."""
    if not a.dtype.storage_only:
        return add(a, b)
    wide = accumulator(a.dtype)
    return cast(add(cast(a, wide), cast(b, wide)), a.dtype)


def sum_over(x: Node, axes: tuple[int, ...]) -> Node:
    """The sum over axes, in the dtype of `x`, accumulated in float32 for narrower floats."""
    if not axes:
        return x
    return cast(reduce(Ops.ADD, cast(x, accumulator(x.dtype)), axes), x.dtype)


def sum_to(x: Node, shape: Shape) -> Node:
    """The adjoint of `broadcast`: `x` summed over the axes along which `shape` was repeated."""
    if x.shape == shape:
        return x
    missing = len(x.shape) - len(shape)
    axes = [
        axis
        for axis, extent in enumerate(x.shape)
        if axis < missing or (shape[axis - missing] != extent)
    ]
    return reshape(sum_over(x, tuple(axes)), shape)


def scan(op: Op, x: Node, axis: int) -> Node:
    """The running fold along an axis, inclusive."""
    check_computed(x.dtype)
    return Node(Ops.SCAN, x.dtype, (x,), Scan(monoid.primitive(op, x.dtype), axis))


def running_scaled_sum(high: Node, total: Node, axis: int) -> tuple[Node, Node]:
    """Running sums of total * exp(high) along an axis: the largest `high`, and relative to it.

    Gradients are those of the second: what a sum is relative to changes nothing that it stands for.
    """
    dtype = total.dtype
    both = Node(Ops.SCAN, dtype, (high, total), Scan(monoid.scaled_sum(dtype), axis))
    return part(both, 0, dtype), part(both, 1, dtype)


# --- indexing -----------------------------------------------------------------------------------


def gather(x: Node, *places: Node) -> Node:
    """x[i0, i1, ...], one index array per axis; indices are non-negative and in range."""
    if not places:
        return x
    shape = broadcast_shapes(*(place.shape for place in places))
    return Node(Ops.GATHER, x.dtype, (x, *(broadcast(place, shape) for place in places)))


def scatter(base: Node, values: Node, places: tuple[Node, ...], op: Op | None) -> Node:
    """`base` with `values` written (op None) or folded in (op) at the indices."""
    shape = broadcast_shapes(*(place.shape for place in places))
    if op is not None:
        check_computed(base.dtype)
    arg = Scatter(None if op is None else monoid.primitive(op, base.dtype))
    sources = (base, broadcast(values, shape), *(broadcast(place, shape) for place in places))
    return Node(Ops.SCATTER, base.dtype, sources, arg)


def concatenate(parts: tuple[Node, ...], axis: int) -> Node:
    """Nodes of equal shapes but for `axis` one after the other along it.

    Many are joined in groups that are stored, and the groups likewise: each element is copied a few
    times however many there are, by kernels that are the same where the parts are alike.
    """
    while len(parts) > _JOINED_AT_ONCE:
        groups = [parts[i : i + _GROUP] for i in range(0, len(parts), _GROUP)]
        parts = tuple(
            Node(Ops.CONTIGUOUS, group[0].dtype, (_joined(group, axis),), True)
            if len(group) > 1
            else group[0]
            for group in groups
        )
    return _joined(parts, axis)


def _joined(parts: tuple[Node, ...], axis: int) -> Node:
    total = index.as_dim(index.total(part.shape[axis] for part in parts))
    result: Node | None = None
    before: Dim = 0
    for part in parts:
        after = index.as_dim(index.add(before, part.shape[axis]))
        pads = [Pad() for _ in part.shape]
        pads[axis] = Pad(before, index.as_dim(index.sub(total, after)))
        placed = pad(part, tuple(pads))
        if result is None:
            result = placed
        else:
            # Not a sum: -0.0, NaN and infinities must come through as they are.
            shape = tuple(e if i == axis else 1 for i, e in enumerate(placed.shape))
            later = alu(Ops.CMPLE, _bound(before), iota_along(shape, axis))
            result = where(broadcast(later, placed.shape), placed, result)
        before = after
    assert result is not None
    return result


def _bound(dim: Dim) -> Node:
    return size_as(dim, dtypes.int64)

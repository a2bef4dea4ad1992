"""Shape rules: the shape of a node from its sources and attribute, checked as it is made."""

from __future__ import annotations

import math
from typing import Any

from baregrad.base.errors import ShapeError
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad, Slice
from baregrad.ir.core.index import Dim
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.shape_table import INTS, SHAPES, Operands, Shape, like_operands, like_source

SHAPES.add(like_source, Ops.SCATTER, Ops.SORT)
SHAPES.add(
    lambda op, src, arg: tuple(arg.shape),
    Ops.BUFFER, Ops.PARAM, Ops.ALLOC, Ops.REPEAT, Ops.CHOOSE, Ops.CALL,
)
SHAPES.add(lambda op, src, arg: (src[0],) if src else (arg,), Ops.IOTA)
SHAPES.add(lambda op, src, arg: src[0].shape if arg.axis >= 0 else (), Ops.SCAN)
SHAPES.add(lambda op, src, arg: (*src[0].shape[:-1], arg) if src else (arg,), Ops.SPLAT, Ops.LANES)
SHAPES.add(lambda op, src, arg: _from_width(src[0].shape[1]), Ops.ROW)
SHAPES.add(lambda op, src, arg: (arg, *(src[0].shape or (1,))), Ops.ROWS)
SHAPES.add(lambda op, src, arg: (arg[1],), Ops.PART)
SHAPES.add(lambda op, src, arg: (len(src),), Ops.JOIN)


def _product(shape: Shape) -> Dim:
    return math.prod(shape) if INTS.issuperset(map(type, shape)) else index.product(shape)


@SHAPES(Ops.RESHAPE)
def _reshape(op: Op, src: Operands, arg: Any) -> Shape:
    shape = tuple(arg)
    before, after = _product(src[0].shape), _product(shape)
    # Symbolic extents may leave it open.
    if before != after and isinstance(before, int) and isinstance(after, int):
        raise ShapeError(f"cannot reshape {list(src[0].shape)} to {list(shape)}: the sizes differ")
    return shape


@SHAPES(Ops.PERMUTE)
def _permute(op: Op, src: Operands, arg: Any) -> Shape:
    old = src[0].shape
    if sorted(arg) != list(range(len(old))):
        raise ShapeError(f"cannot permute {len(old)} axes by {list(arg)}: not a permutation")
    return tuple([old[axis] for axis in arg])


@SHAPES(Ops.EXPAND)
def _expand(op: Op, src: Operands, arg: Any) -> Shape:
    old = src[0].shape
    fits = [before in (after, 1) for before, after in zip(old, arg, strict=False)]
    if len(old) != len(arg) or not all(fits):
        raise ShapeError(f"cannot expand {list(old)} to {list(arg)}: only axes of extent 1 expand")
    return tuple(arg)


def padded_extent(extent: Any, pad: Pad) -> Any:
    """The extent of an axis with zeros around and between its elements."""
    lo, hi = pad.lo, pad.hi
    if extent.__class__ is int and lo.__class__ is int and hi.__class__ is int:
        return lo + extent + max(extent - 1, 0) * pad.interior + hi
    if isinstance(extent, int):
        inner: Any = extent + max(extent - 1, 0) * pad.interior
    else:
        inner = index.sub(index.mul(extent, pad.interior + 1), pad.interior)
    return index.as_dim(index.add(index.add(inner, lo), hi))


@SHAPES(Ops.PAD)
def _pad(op: Op, src: Operands, arg: Any) -> Shape:
    if len(arg) != len(src[0].shape):
        raise ShapeError(f"PAD has {len(arg)} entries for {len(src[0].shape)} axes")
    return tuple([padded_extent(e, pad) for e, pad in zip(src[0].shape, arg, strict=True)])


def is_zero(value: Any) -> bool:
    """Whether a dimension is the int 0."""
    return value.__class__ is int and value == 0


def is_one(value: Any) -> bool:
    """Whether a dimension is the int 1."""
    return value.__class__ is int and value == 1


def cut_extent(cut: Slice) -> Any:
    """How many elements a slice takes."""
    start: Any = cut.start
    stop: Any = cut.stop
    step = cut.step
    if start.__class__ is int and stop.__class__ is int:
        return stop - start if step == 1 else (stop - start + step - 1) // step
    length = index.sub(stop, start)
    if step != 1:
        length = index.floordiv(index.add(length, step - 1), step)
    return index.as_dim(length)


@SHAPES(Ops.SHRINK)
def _shrink(op: Op, src: Operands, arg: Any) -> Shape:
    if len(arg) != len(src[0].shape):
        raise ShapeError(f"SHRINK has {len(arg)} entries for {len(src[0].shape)} axes")
    for extent, cut in zip(src[0].shape, arg, strict=True):
        start, stop = cut.start, cut.stop
        if start.__class__ is int and stop.__class__ is int:
            if not 0 <= start <= stop or (extent.__class__ is int and stop > extent):
                raise ShapeError(f"SHRINK {start}:{stop} of an axis of extent {extent}")
    return tuple([cut_extent(cut) for cut in arg])


def _check_axis(op: Op, axis: int, rank: int) -> None:
    if not 0 <= axis < rank:
        raise ShapeError(f"{op.name} along axis {axis} of an array of {rank} axes")


@SHAPES(Ops.WINDOW)
def _window(op: Op, src: Operands, arg: Any) -> Shape:
    _check_axis(op, arg.axis, len(src[0].shape))
    extent = src[0].shape[arg.axis]
    span = arg.dilation * (arg.taps - 1) + 1
    if isinstance(extent, int) and extent < span:
        raise ShapeError(f"a window of {span} elements does not fit an axis of extent {extent}")
    positions = index.as_dim(index.add(index.floordiv(index.sub(extent, span), arg.stride), 1))
    shape = list(src[0].shape)
    shape[arg.axis] = positions
    return (*shape, arg.taps)


@SHAPES(Ops.FOLD)
def _fold(op: Op, src: Operands, arg: Any) -> Shape:
    _check_axis(op, arg.axis, len(src[0].shape) - 1)
    shape = list(src[0].shape[:-1])
    shape[arg.axis] = arg.extent
    return tuple(shape)


@SHAPES(Ops.REDUCE)
def _reduce(op: Op, src: Operands, arg: Any) -> Shape:
    closed = arg.axes
    if not closed:
        return ()
    return tuple([extent for axis, extent in enumerate(src[0].shape) if axis not in closed])


@SHAPES(Ops.GATHER)
def _gather(op: Op, src: Operands, arg: Any) -> Shape:
    array, *indices = src
    if len(indices) != len(array.shape):
        raise ShapeError(f"GATHER with {len(indices)} indices for {len(array.shape)} axes")
    return like_operands(op, tuple(indices), arg)


@SHAPES(Ops.STAGE)
def _stage(op: Op, src: Operands, arg: Any) -> Shape:
    sizes = [axis.src[0] for axis in src[1:]]
    return tuple([size.arg if size.op is Ops.CONST else size for size in sizes])


@SHAPES(Ops.REG, Ops.VLOAD)
def _lanes(op: Op, src: Operands, arg: Any) -> Shape:
    if not arg.rows:
        return _from_width(arg.width)
    return (arg.rows if op is Ops.REG else len(arg.rows), arg.width)


def _from_width(width: int) -> Shape:
    return (width,) if width > 1 else ()

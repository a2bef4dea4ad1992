"""Shape rules: the shape of a node from its sources and attribute, checked as it is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from baregrad.base.errors import ShapeError
from baregrad.ir.core.op import ALU, Op, Ops, all_ops, mask_of

if TYPE_CHECKING:
    from baregrad.ir.core.attrs import Pad, Slice
    from baregrad.ir.core.node import Node

Shape = tuple[Any, ...]
Rule = Callable[[Op, "tuple[Node, ...]", Any], Shape]


def infer_shape(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    """The shape of a node about to be made; raises ShapeError when the sources do not fit."""
    if op.bit & _ASKED_AGAIN:
        return _asked_first(op, src, arg)
    rule = _rule_of(op)
    if rule is not None:
        return rule(op, src, arg)
    return _elementwise(op, src, arg) if op in ALU else ()


def _elementwise(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    """All operands have one shape; a scalar () goes with anything."""
    shape: Shape = ()
    for child in src:
        theirs = child.shape
        if theirs:
            if not shape:
                shape = theirs
            elif theirs is not shape and theirs != shape:
                raise ShapeError(
                    f"{op.name} of shapes {[list(c.shape) for c in src]}: they must be equal here "
                    "(broadcasting was to be made explicit with EXPAND)"
                )
    return shape


def same_size(a: Shape, b: Shape) -> bool | None:
    """Whether two shapes hold as many elements; None when symbolic extents leave it open."""
    left = _product(a)
    right = _product(b)
    if left == right:
        return True
    return False if isinstance(left, int) and isinstance(right, int) else None


def _product(shape: Shape) -> Any:
    return math.prod(shape) if _INTS.issuperset(map(type, shape)) else _symbolic_product(shape)


def _symbolic_product(shape: Shape) -> Any:
    from baregrad.ir.core import index

    total: Any = 1
    for extent in shape:
        total = (
            extent * total
            if isinstance(extent, int) and isinstance(total, int)
            else index.mul(extent, total)
        )
    return total


def _like_first(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return src[0].shape


def _from_arg(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return tuple(arg.shape)


def _alloc(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return tuple(arg.shape)


def _iota(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return (src[0],) if src else (arg,)


def _reshape(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    shape = tuple(arg)
    if same_size(src[0].shape, shape) is False:
        raise ShapeError(f"cannot reshape {list(src[0].shape)} to {list(shape)}: the sizes differ")
    return shape


def _permute(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    old = src[0].shape
    if sorted(arg) != list(range(len(old))):
        raise ShapeError(f"cannot permute {len(old)} axes by {list(arg)}: not a permutation")
    return tuple([old[axis] for axis in arg])


def _expand(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    old = src[0].shape
    fits = len(old) == len(arg)
    for before, after in zip(old, arg, strict=False):
        if before != after and before != 1:
            fits = False
    if not fits:
        raise ShapeError(f"cannot expand {list(old)} to {list(arg)}: only axes of extent 1 expand")
    return tuple(arg)


def padded_extent(extent: Any, pad: Pad) -> Any:
    """The extent of an axis with zeros around and between its elements."""
    lo, hi = pad.lo, pad.hi
    if extent.__class__ is int and lo.__class__ is int and hi.__class__ is int:
        return lo + extent + max(extent - 1, 0) * pad.interior + hi
    from baregrad.ir.core import index

    if isinstance(extent, int):
        inner: Any = extent + max(extent - 1, 0) * pad.interior
    else:
        inner = index.sub(index.mul(extent, pad.interior + 1), pad.interior)
    return index.as_dim(index.add(index.add(inner, lo), hi))


def _pad(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
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
    from baregrad.ir.core import index

    length = index.sub(stop, start)
    if step != 1:
        length = index.floordiv(index.add(length, step - 1), step)
    return index.as_dim(length)


def _shrink(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
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


def _window(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    from baregrad.ir.core import index

    _check_axis(op, arg.axis, len(src[0].shape))
    extent = src[0].shape[arg.axis]
    span = arg.dilation * (arg.taps - 1) + 1
    if isinstance(extent, int) and extent < span:
        raise ShapeError(f"a window of {span} elements does not fit an axis of extent {extent}")
    positions = index.as_dim(index.add(index.floordiv(index.sub(extent, span), arg.stride), 1))
    shape = list(src[0].shape)
    shape[arg.axis] = positions
    return (*shape, arg.taps)


def _fold(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    _check_axis(op, arg.axis, len(src[0].shape) - 1)
    shape = list(src[0].shape[:-1])
    shape[arg.axis] = arg.extent
    return tuple(shape)


def _reduce(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    closed = arg.axes
    if not closed:
        return ()
    return tuple([extent for axis, extent in enumerate(src[0].shape) if axis not in closed])


def _scan(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return src[0].shape if arg.axis >= 0 else ()


def _gather(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    array, *indices = src
    if len(indices) != len(array.shape):
        raise ShapeError(f"GATHER with {len(indices)} indices for {len(array.shape)} axes")
    return _elementwise(op, tuple(indices), arg)


def _stage(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    from baregrad.ir.core.node import extent_of

    return tuple(extent_of(axis) for axis in src[1:])


def _register(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return (arg.rows, arg.width) if arg.rows else _from_width(arg.width)


def _loaded(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return (len(arg.rows), arg.width) if arg.rows else _from_width(arg.width)


def _from_width(width: int) -> Shape:
    return (width,) if width > 1 else ()


def _lanes(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return (*src[0].shape[:-1], arg) if src else (arg,)


def _row(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return _from_width(src[0].shape[1])


def _rows(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return (arg, *(src[0].shape or (1,)))


def _part(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    return (arg[1],)


_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.BUFFER: _from_arg,
        Ops.PARAM: _from_arg,
        Ops.ALLOC: _alloc,
        Ops.IOTA: _iota,
        Ops.CAST: _like_first,
        Ops.BITCAST: _like_first,
        Ops.LOOKUP: _like_first,
        Ops.RESHAPE: _reshape,
        Ops.PERMUTE: _permute,
        Ops.EXPAND: _expand,
        Ops.PAD: _pad,
        Ops.SHRINK: _shrink,
        Ops.FLIP: _like_first,
        Ops.WINDOW: _window,
        Ops.FOLD: _fold,
        Ops.REDUCE: _reduce,
        Ops.PROJ: _like_first,
        Ops.SCAN: _scan,
        Ops.GATHER: _gather,
        Ops.SCATTER: _like_first,
        Ops.CONTIGUOUS: _like_first,
        Ops.DETACH: _like_first,
        Ops.COPY: _like_first,
        Ops.STAGE: _stage,
        Ops.REG: _register,
        Ops.READ: _like_first,
        Ops.VLOAD: _loaded,
        Ops.ROW: _row,
        Ops.ROWS: _rows,
        Ops.SPLAT: _lanes,
        Ops.LANES: _lanes,
        Ops.PART: _part,
    }
)
# Ops whose shape is that of their source and their attribute alone, and is dear to find.
_ASKED_AGAIN = mask_of((Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.PAD, Ops.WINDOW, Ops.REDUCE))
_MOST = 1 << 12  # shapes that are remembered
_INTS = frozenset((int,))


class _Known:
    """Shapes found before: each pass makes the nodes above a change again, and layers are alike."""

    def __init__(self) -> None:
        self.shapes: dict[Any, Shape] = {}


_known = _Known()
_find_shape = _known.shapes.get


def plain_shape(op: Op, src: tuple[Node, ...], arg: Any) -> Shape | None:
    """The shape of a node about to be made, where it was found before and nothing is symbolic."""
    if op.bit & _ASKED_AGAIN:
        return _find_shape((op, src[0].shape, arg if op is not Ops.REDUCE else arg.axes))
    return None


def _asked_first(op: Op, src: tuple[Node, ...], arg: Any) -> Shape:
    """What the rule of `op` says; shapes without symbolic extents are kept."""
    found = _RULES[op](op, src, arg)
    part = arg if op is not Ops.REDUCE else arg.axes
    # No node is to be kept alive.
    if _is_plain(src[0].shape) and _is_plain(part):
        shapes = _known.shapes
        if len(shapes) >= _MOST:
            shapes.clear()
        shapes[op, src[0].shape, part] = found
    return found


def _is_plain(values: tuple[Any, ...]) -> bool:
    """Whether extents, or the parts of an attribute, are made of ints alone."""
    if _INTS.issuperset(map(type, values)):
        return True
    return all(isinstance(one, tuple) and _INTS.issuperset(map(type, one)) for one in values)


# Asked faster than a read-only view of it.
_rule_of = dict(_RULES).get
# Ops whose value has the shape of their sources, as that of arithmetic has.
LIKE_SOURCES = frozenset(
    op for op, rule in _RULES.items() if rule is _like_first and op is not Ops.SCATTER
)
# Ops whose value never has a shape, whatever it is made of.
SHAPELESS = frozenset(op for op in all_ops() if op not in _RULES and op not in ALU)

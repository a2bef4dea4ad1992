"""Shapes: reshape, permute, expand, flip and their kin. All but copies noted are views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, array_dtype, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Slice, Window
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes, views
from baregrad.tensor.array.axes import Axes, one_axis, own_axis, plain, several_axes
from baregrad.tensor.array.operands import result
from baregrad.tensor.array.tensor_like import Extents, Tensor, TensorLike
from baregrad.tensor.ops.creation import as_shape, check_count


def _infer(shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> tuple[Any, ...]:
    """`wanted` with its -1, if any, replaced by what is left of the size of `shape`."""
    if sum(1 for extent in wanted if extent.__class__ is int and extent == -1) > 1:
        raise ShapeError("only one extent can be -1", found=str(list(wanted)))
    if any(extent.__class__ is int and extent < -1 for extent in wanted):
        raise ShapeError("an extent cannot be negative", found=str(list(wanted)))
    hole = next((i for i, e in enumerate(wanted) if e.__class__ is int and e == -1), None)
    if hole is None:
        return wanted
    size = index.product(shape)
    rest = index.product(extent for i, extent in enumerate(wanted) if i != hole)
    if isinstance(rest, int) and rest == 0:
        raise ShapeError(
            "-1 is not determined beside an extent of 0",
            found=f"{list(wanted)} of {list(shape)}",
            hint="write every extent out",
        )
    if isinstance(size, int) and isinstance(rest, int) and size % rest:
        raise ShapeError(
            "cannot reshape: the sizes do not fit", found=f"{list(shape)}", wanted=str(list(wanted))
        )
    return (*wanted[:hole], index.as_dim(index.floordiv(size, rest)), *wanted[hole + 1 :])


def _extents(arguments: tuple[Extents, ...]) -> tuple[Any, ...]:
    if len(arguments) == 1 and isinstance(arguments[0], list | tuple):
        arguments = tuple(arguments[0])
    arguments = tuple(map(plain, arguments))
    check_count(arguments)
    for extent in arguments:
        if not isinstance(extent, int | Node) or isinstance(extent, bool):
            raise ShapeError(
                "an extent is an integer", found=f"{type(extent).__name__} {extent!r:.40}"
            )
    return tuple(e if isinstance(e, int) else index.as_dim(e) for e in arguments)


def reshape(x: Tensor, *shape: Extents) -> Tensor:
    """Return the elements, in row-major order, under another shape; -1 stands for what is left.

    A view where NumPy gives one, else a copy. With symbolic extents it is a view where it would be
    one for every value of the variables, and a copy otherwise, whatever value is bound. Raises
    ShapeError when the sizes differ.
    """
    wanted = _infer(x.shape, _extents(shape))
    if wanted == x.shape:
        return x._view(Ops.PERMUTE, tuple(range(x.ndim)))
    if nodes_differ(x.shape, wanted):
        raise ShapeError(
            "cannot reshape: the sizes differ",
            found=f"{list(x.shape)} ({index.product(x.shape)} elements)",
            wanted=f"{list(wanted)} ({index.product(wanted)} elements)",
        )
    strides, _ = x._strides()
    if views.reshaped(x.shape, strides, wanted) is None:
        return result(nodes.reshape(x.node, wanted), x)
    return x._view(Ops.RESHAPE, wanted)


def nodes_differ(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two shapes surely hold different numbers of elements."""
    sizes = index.product(a), index.product(b)
    return all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]


def view(x: Tensor, *shape: Any) -> Tensor:
    """Return the same elements under another shape, or the same bits under another dtype.

    Raises ShapeError where only a copy could have the shape; `reshape` makes one. What a dtype does
    is told at `bitcast`.
    """
    if len(shape) == 1 and isinstance(shape[0], DType):
        return bitcast(x, shape[0])
    wanted = _infer(x.shape, _extents(shape))
    strides, _ = x._strides()
    if not nodes_differ(x.shape, wanted) and views.reshaped(x.shape, strides, wanted) is None:
        raise ShapeError(
            "this view cannot have that shape without a copy",
            found=f"{list(x.shape)} with strides {list(strides)}",
            wanted=str(list(wanted)),
            hint="use reshape(), which copies where it must",
        )
    return reshape(x, wanted)


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """Return `view` with the shape of `other`."""
    return view(x, other.shape)


def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    """Return `reshape` with the shape of `other`."""
    return reshape(x, other.shape)


def bitcast(x: Tensor, dtype: object) -> Tensor:
    """Return a view of the same bits as elements of another dtype, lower bytes first.

    Where the sizes of elements differ, the last axis has as many more or fewer. Raises ShapeError
    where they lie apart in memory, or do not fill whole elements, as PyTorch does.
    """
    wanted = array_dtype(dtype)
    if wanted is x.dtype:
        return x._view(Ops.PERMUTE, tuple(range(x.ndim)))
    odd = any(each.bits % 8 for each in (wanted, x.dtype))
    if (odd and wanted.bits != x.dtype.bits) or dtypes.bool in (wanted, x.dtype):
        raise DTypeError(
            "bits are reinterpreted among dtypes of whole bytes, or of one size",
            found=f"{x.dtype} as {wanted}",
            hint="cast converts the values instead",
        )
    if wanted.bits != x.dtype.bits:
        strides, offset = x._strides()
        if views.resized(x.shape, strides, offset, x.dtype, wanted) is None:
            raise ShapeError(
                "elements of this size do not lie whole and side by side along the last axis",
                found=f"{list(x.shape)} of {x.dtype} with strides {list(strides)} from {offset} on",
                wanted=f"whole elements of {wanted}",
                hint="contiguous() gives a copy that is laid out anew",
            )
    return x._view(Ops.BITCAST, wanted)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return `x` with the axes from start_dim to end_dim, both included, made one."""
    if x.ndim == 0:
        return reshape(x, 1)
    start, end = one_axis(start_dim, x.ndim), one_axis(end_dim, x.ndim)
    if start > end:
        raise ShapeError("flatten's axes are in the wrong order", found=f"{start_dim} to {end_dim}")
    middle = index.product(x.shape[start : end + 1])
    return reshape(x, (*x.shape[:start], middle, *x.shape[end + 1 :]))


def ravel(x: Tensor) -> Tensor:
    """Return `x` as one axis."""
    return reshape(x, -1) if x.ndim != 1 else reshape(x, x.shape)


def unflatten(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """Return `x` with one axis split into several; -1 stands for what is left."""
    axis = one_axis(dim, x.ndim)
    split = _infer(x.shape[axis : axis + 1], _extents((sizes,)))
    return reshape(x, (*x.shape[:axis], *split, *x.shape[axis + 1 :]))


def squeeze(x: Tensor, dim: Axes = None) -> Tensor:
    """Return `x` without its axes of extent 1, or without those of them that `dim` names."""
    dim = plain(dim)
    if dim is None:
        axes = tuple(range(x.ndim))
    elif isinstance(dim, int):
        axes = (one_axis(dim, x.ndim),)
    else:
        axes = tuple(one_axis(axis, x.ndim) for axis in dim)
    return reshape(
        x,
        tuple(
            e for i, e in enumerate(x.shape) if not (i in axes and isinstance(e, int) and e == 1)
        ),
    )


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return `x` with an axis of extent 1 put in at `dim`, counted in the result."""
    axis = one_axis(dim, x.ndim + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def permute(x: Tensor, *dims: Any) -> Tensor:
    """Return `x` with axis i of the result being axis dims[i] of `x`."""
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    axes = tuple(one_axis(axis, x.ndim) for axis in given) if x.ndim else ()
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(
            "permute wants each axis once", found=str(list(given)), wanted=f"{x.ndim} axes"
        )
    return x._view(Ops.PERMUTE, axes)


def transpose(x: Tensor, dim0: int = 1, dim1: int = 0) -> Tensor:
    """Return `x` with two axes exchanged."""
    axes = list(range(x.ndim))
    if not axes:
        return permute(x)
    a, b = one_axis(dim0, x.ndim), one_axis(dim1, x.ndim)
    axes[a], axes[b] = axes[b], axes[a]
    return permute(x, axes)


def t(x: Tensor) -> Tensor:
    """Return the transpose of a matrix; a vector as it is."""
    if x.ndim > 2:
        raise ShapeError("t() is of matrices", found=f"{x.ndim} axes", hint="use permute() or mT")
    return transpose(x) if x.ndim == 2 else permute(x, *range(x.ndim))


def reversed_axes(x: Tensor) -> Tensor:
    """Return `x` with its axes in the opposite order, as NumPy's `T`."""
    return permute(x, *reversed(range(x.ndim)))


def matrix_transpose(x: Tensor) -> Tensor:
    """Return `x` with its last two axes exchanged. Raises ShapeError for fewer axes."""
    if x.ndim < 2:
        raise ShapeError("mT is of matrices", found=f"{x.ndim} axes", wanted="at least 2")
    return transpose(x, -1, -2)


def movedim(x: Tensor, source: Axes, destination: Axes) -> Tensor:
    """Return `x` with some axes moved to other places, the rest in order."""
    source, destination = plain(source), plain(destination)
    sources = [source] if isinstance(source, int) else list(source or ())
    places = [destination] if isinstance(destination, int) else list(destination or ())
    if len(sources) != len(places):
        raise ShapeError("movedim wants as many places as axes", found=f"{source}, {destination}")
    moved = {one_axis(p, x.ndim): one_axis(s, x.ndim) for s, p in zip(sources, places, strict=True)}
    rest = iter(axis for axis in range(x.ndim) if axis not in moved.values())
    return permute(x, [moved[i] if i in moved else next(rest) for i in range(x.ndim)])


def expand(x: Tensor, *shape: Extents) -> Tensor:
    """Return a view in which axes of extent 1 are repeated; -1 keeps an extent.

    New axes may be put in front. Raises ShapeError where an extent is neither 1 nor that wanted.
    """
    wanted = list(_extents(shape))
    missing = len(wanted) - x.ndim
    if missing < 0:
        raise ShapeError("expand cannot drop axes", found=str(list(x.shape)), wanted=str(wanted))
    old = (1,) * missing + x.shape
    for axis, (have, want) in enumerate(zip(old, wanted, strict=True)):
        if want.__class__ is int and want == -1:
            if axis < missing:
                raise ShapeError("-1 keeps an extent, and a new axis has none", found=str(wanted))
            wanted[axis] = have
        elif have != want and not (have.__class__ is int and have == 1):
            raise ShapeError(
                f"cannot expand axis {axis - len(old)} from {have} to {want}",
                found=str(list(x.shape)),
                wanted=str(wanted),
                hint="only axes of extent 1 can be repeated; see repeat()",
            )
    if tuple(wanted) == x.shape:
        return x
    framed = reshape(x, old) if missing else x
    return framed._view(Ops.EXPAND, tuple(wanted))


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """Return `expand` to the shape of `other`."""
    return expand(x, other.shape)


def broadcast_to(x: Tensor, *shape: Extents) -> Tensor:
    """Return `x` as a view of a shape that it broadcasts to."""
    return expand(x, *shape)


def repeat(x: Tensor, *counts: Any) -> Tensor:
    """Return `x` repeated whole `counts` times along each axis; a copy."""
    times = as_shape(counts)
    if len(times) < x.ndim:
        raise ShapeError("repeat wants a count for each axis", found=str(list(times)))
    shape = (1,) * (len(times) - x.ndim) + x.shape
    framed = nodes.reshape(x.node, tuple(e for extent in shape for e in (1, extent)))
    pairs = list(zip(times, shape, strict=True))
    spread = nodes.expand(framed, tuple(e for pair in pairs for e in pair))
    merged = tuple(index.as_dim(index.mul(extent, count)) for count, extent in pairs)
    return result(nodes.reshape(spread, merged), x)


def tile(x: Tensor, *counts: Any) -> Tensor:
    """Return `x` repeated as NumPy's tile does: counts are for the last axes."""
    times = as_shape(counts)
    return repeat(x, (1,) * (x.ndim - len(times)) + times)


def repeat_interleave(
    x: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Return `x` with each element repeated along an axis, flattened for None; a copy.

    repeats: how often, or for each element (N,): then these are read, unless `output_size` says
    what they come to.
    """
    source, repeats = ravel(x) if dim is None else x, plain(repeats)
    axis = own_axis(0 if dim is None else dim, source.ndim)
    if isinstance(repeats, TensorLike):
        return _each_so_often(source, repeats, axis, output_size)
    (times,) = as_shape((repeats,))
    shape = source.shape
    apart = nodes.unsqueeze(source.node, axis + 1)
    spread = nodes.expand(apart, (*shape[: axis + 1], times, *shape[axis + 1 :]))
    longer = index.as_dim(index.mul(shape[axis], times))
    return result(nodes.reshape(spread, (*shape[:axis], longer, *shape[axis + 1 :])), x)


def _each_so_often(source: Tensor, each: Tensor, axis: int, count: int | None) -> Tensor:
    """Each element along an axis as often as its own number says, `count` in all."""
    x: Any = source
    repeats: Any = each
    if repeats.ndim > 1 or repeats.numel() not in (1, x.shape[axis]):
        raise ShapeError(
            "there is a number of times for each element", found=list(repeats.shape),
            wanted=[x.shape[axis]],
        )
    if repeats.dtype.kind not in ("int", "uint"):
        raise DTypeError("numbers of times are integers", found=repeats.dtype)
    times = repeats.reshape(-1).cast(dtypes.int64).expand(x.shape[axis])
    ends = times.cumsum(0)
    if count is None:
        count, least = ends[-1:].cat(times.amin(0, True)).tolist() if x.shape[axis] else (0, 0)
        if least < 0:
            raise ArgumentError("nothing is repeated fewer than 0 times", found=least)
    # An element is the one whose predecessors are those that end at it or before.
    begins = (ends - times).clamp(max=max(count, 0))
    marks = times.new_zeros(count + 1).index_add(0, begins, begins.ones_like())
    return x.index_select(axis, marks[:count].cumsum(0) - 1)  # type: ignore[no-any-return]


def flip(x: Tensor, *dims: Any) -> Tensor:
    """Return a view with some axes reversed: all where none is named, none for an empty tuple."""
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    axes = several_axes(tuple(given), x.ndim) if given or not dims else ()
    return x._view(Ops.FLIP, axes) if axes else permute(x, *range(x.ndim))


def narrow(x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """Return the view start:start + length of one axis."""
    axis = own_axis(dim, x.ndim)
    extent = x.shape[axis]
    start, length = plain(start), plain(length)
    for one in (start, length):
        if not isinstance(one, int | Node) or isinstance(one, bool):
            raise ArgumentError(
                "narrow goes from an integer on", found=f"{type(one).__name__} {one!r:.40}",
                wanted="a start and a length",
            )
    if isinstance(start, int) and start < 0 and isinstance(extent, int):
        start += extent
    stop = index.as_dim(index.add(start, length))
    if isinstance(start, int) and isinstance(stop, int) and isinstance(extent, int):
        if not 0 <= start <= stop <= extent:
            raise ShapeError(
                "narrow leaves the axis", found=f"{start} to {stop}", wanted=f"inside 0 to {extent}"
            )
    slices = nodes.whole(x.shape)
    slices[axis] = Slice(start, stop)
    return x._view(Ops.SHRINK, tuple(slices))


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Return a view of all windows of `size` along an axis, one every `step`, as a new last axis.

    Raises ShapeError for a size that the axis has not, and a step below 1.
    """
    axis, size, step = one_axis(dimension, x.ndim), plain(size), plain(step)
    if x.ndim == 0:
        # One window, as one element along no axis.
        return reshape(unfold(reshape(x, 1), 0, size, step), size)
    for value, least, what in ((size, 0, "size"), (step, 1, "step")):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentError(
                f"the {what} of a window is an integer", found=f"{type(value).__name__} {value!r}"
            )
        if value < least:
            raise ShapeError(
                f"there are no windows of this {what}", found=value, wanted=f"{least} or more"
            )
    return x._view(Ops.WINDOW, Window(axis, size, step, 1, x.shape[axis]))


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a view of the diagonal of two axes as a new last axis; above it for offset > 0."""
    a, b, offset = one_axis(dim1, x.ndim), one_axis(dim2, x.ndim), plain(offset)
    if a == b or x.ndim < 2:
        raise ShapeError("a diagonal is of two axes", found=f"axes {dim1} and {dim2}")
    moved = permute(x, [axis for axis in range(x.ndim) if axis not in (a, b)] + [a, b])
    rows, columns = moved.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError("a diagonal needs known extents", found=str(list(x.shape)))
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    place = views.Diagonal(max(-offset, 0), max(offset, 0), count)
    return moved._view(Ops.SHRINK, place)


def roll(x: Tensor, shifts: int | Sequence[int], dims: Axes = None) -> Tensor:
    """Return `x` with its elements moved along axes, those that leave re-entering; a copy.

    Without axes, None or an empty tuple, one shift is of all elements in order.
    """
    shifts, dims = plain(shifts), plain(dims)
    amounts = [shifts] if isinstance(shifts, int) else list(map(plain, shifts))
    if dims is None or (not isinstance(dims, int) and not len(dims) and len(amounts) == 1):
        return reshape(roll(ravel(x), amounts, 0), x.shape)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if len(amounts) != len(axes):
        raise ShapeError("roll wants a shift for each axis", found=f"{shifts} and {dims}")
    y = x
    for amount, dim in zip(amounts, axes, strict=True):
        axis = own_axis(dim, x.ndim)
        extent = x.shape[axis]
        cut = (-amount) % extent if extent else 0
        if cut:
            y = narrow(y, axis, cut, extent - cut).cat(narrow(y, axis, 0, cut), dim=axis)
    return y if y is not x else x.clone()


def stored(x: Tensor) -> Tensor:
    """Return `x` as an array of its own, which what reads it does not compute again.

    Its gradient is one likewise. For what a loop makes anew at each turn: the kernels of all turns
    are then alike, where otherwise each would compute other parts of earlier turns again.
    """
    if x.is_paired:
        made = stored(x.pairs())
        return type(x)._on(made._storage, made._steps)
    return result(Node(Ops.CONTIGUOUS, x.dtype, (x.node,), True), x)


class MemoryFormat:
    """A layout of tensors of `ndim` axes, 0 for any number; values never depend on it.

    It is a view: images (N, C, H, W) whose channels are neighbours in memory are (N, H, W, C) in
    row-major order, permuted.
    """

    __slots__ = ("name", "ndim")

    def __init__(self, name: str, ndim: int = 0) -> None:
        self.name = name
        self.ndim = ndim

    def __repr__(self) -> str:
        return f"baregrad.{self.name}"

    def __reduce__(self) -> str:
        # A copy is the layout itself: there is one of each, told from others by identity.
        return self.name


contiguous_format = MemoryFormat("contiguous_format")
preserve_format = MemoryFormat("preserve_format")
channels_last = MemoryFormat("channels_last", 4)
channels_last_3d = MemoryFormat("channels_last_3d", 5)
LAYOUTS = (contiguous_format, preserve_format, channels_last, channels_last_3d)


def as_format(given: object) -> MemoryFormat:
    """Return a layout that was given. Raises ArgumentError for what is none."""
    if isinstance(given, MemoryFormat):
        return given
    raise ArgumentError(
        "memory_format is a layout", found=f"{type(given).__name__} {given!r:.40}",
        wanted="one of " + ", ".join(repr(one) for one in LAYOUTS),
    )


def laid_out(x: Tensor, memory_format: MemoryFormat) -> Tensor:
    """Return `x` itself when it lies so, else a copy that does; gradients pass.

    Raises ShapeError for channels_last of a tensor without 4 axes, channels_last_3d without 5.
    """
    if memory_format is preserve_format:
        return x
    _check_axes(x, memory_format)
    if not memory_format.ndim:
        return x.contiguous()
    last = (0, *range(2, x.ndim), 1)
    back = (0, x.ndim - 1, *range(1, x.ndim - 1))
    turned = x.permute(last)
    stored = turned.contiguous()
    return x if stored is turned else stored.permute(back)


def _check_axes(x: Tensor, memory_format: MemoryFormat) -> None:
    if memory_format.ndim not in (0, x.ndim):
        raise ShapeError(
            f"{memory_format!r} is a layout of tensors of {memory_format.ndim} axes",
            found=f"{x.ndim} axes, {list(x.shape)}",
        )


def contiguous(x: Tensor, memory_format: object = contiguous_format) -> Tensor:
    """Return `x` itself when it lies whole and in row-major order, else a copy that does.

    memory_format: another order, such as baregrad.channels_last for images (N, C, H, W), in which a
    convolution on a GPU reads them without turning them first. Raises ArgumentError for what is no
    layout, ShapeError for one of another number of axes.
    """
    wanted = as_format(memory_format)
    if wanted is not contiguous_format:
        return laid_out(x, wanted)
    strides, offset = x._strides()
    if strides == views.row_major(x.shape) and offset.__class__ is int and offset == 0:
        return x
    return result(Node(Ops.CONTIGUOUS, x.dtype, (x.node,)), x)


def is_contiguous(x: Tensor, memory_format: object = contiguous_format) -> bool:
    """Return whether the elements lie in row-major order, or in that of a layout."""
    wanted = as_format(memory_format)
    if wanted.ndim not in (0, x.ndim):
        return False
    shape, strides = x.shape, x.stride()
    if not wanted.ndim:
        if 0 in shape:
            return True
    else:
        shape, strides = ((each[0], *each[2:], each[1]) for each in (shape, strides))
    # Nobody goes along an axis of one element.
    return all(
        extent == 1 or step == like
        for extent, step, like in zip(shape, strides, views.row_major(shape), strict=True)
    )


def stride(x: Tensor, dim: int | None = None) -> Any:
    """Return the distance in elements between neighbours along each axis, or along one."""
    strides = x._strides()[0]
    return strides if dim is None else strides[own_axis(dim, x.ndim)]


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """Return the view of one place along an axis, without the axis."""
    axis = one_axis(dim, x.ndim)
    if not x.ndim:
        raise ShapeError("select wants an axis", found="a tensor without axes")
    return x[(slice(None),) * axis + (index,)]


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """Return (..., C*r*r, H, W) as (..., C, H*r, W*r): channels become pixels."""
    r = plain(upscale_factor)
    if x.ndim < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(
            "pixel_shuffle makes pixels of channels",
            found=list(x.shape), wanted=f"(..., C*{r}*{r}, H, W)",
        )
    *front, channels, height, width = x.shape
    count, first = channels // (r * r), len(front)
    y = x.reshape((*front, count, r, r, height, width))
    order = (*range(first + 1), first + 3, first + 1, first + 4, first + 2)
    return y.permute(order).reshape((*front, count, height * r, width * r))


def dim(x: Tensor) -> int:
    """Return the number of axes."""
    return x.ndim


def numel(x: Tensor) -> int:
    """Return the number of elements."""
    return math.prod(x.shape) if all(isinstance(e, int) for e in x.shape) else _symbolic(x)


def _symbolic(x: Tensor) -> Any:
    return index.product(x.shape)


def size(x: Tensor, dim: int | None = None) -> Any:
    """Return the shape, or one extent of it."""
    return x.shape if dim is None else x.shape[own_axis(dim, x.ndim)]


def element_size(x: Tensor) -> int:
    """Return the bytes of one element."""
    return x.dtype.itemsize


def nbytes(x: Tensor) -> int:
    """Return the bytes of all elements."""
    return numel(x) * x.dtype.itemsize

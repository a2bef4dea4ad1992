"""Elements in other places: flips, parts, diagonals, and values written into a copy."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, GradientError, ShapeError
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.axes import own_axis
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.array.views import Strided, change_steps, row_major
from baregrad.tensor.ops import sorting
from baregrad.tensor.ops.creation import as_shape


def fliplr(x: Tensor) -> Tensor:
    """Return `x` with its columns in reverse order."""
    return x.flip(1)


def flipud(x: Tensor) -> Tensor:
    """Return `x` with its rows in reverse order."""
    return x.flip(0)


def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Return `x` turned k times by a quarter, from the first of two axes towards the second."""
    first, second = dims
    turns = k % 4
    if turns == 2:
        return x.flip(first, second)
    if not turns:
        return x.contiguous()
    turned = x.transpose(first, second)
    return turned.flip(first if turns == 1 else second)


def hsplit(x: Tensor, parts: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Return `x` split along its columns, or a vector along its one axis."""
    return x.tensor_split(parts, 1 if x.ndim > 1 else 0)


def vsplit(x: Tensor, parts: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Return `x` split along its rows."""
    return x.tensor_split(parts, 0)


def dsplit(x: Tensor, parts: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Return `x` split along its third axis."""
    return x.tensor_split(parts, 2)


def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return parts of these sizes along an axis."""
    return x.split(list(sizes), dim)


def narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a copy of start:start + length of one axis."""
    return x.narrow(dim, start, length).clone()


def diagflat(x: Tensor, offset: int = 0) -> Tensor:
    """Return a matrix with the elements of `x` along a diagonal."""
    return x.ravel().diag_embed(offset)


def argwhere(x: Tensor) -> Tensor:
    """Return the places of elements that are not 0, a row each; computes them."""
    a: Any = x
    return a.nonzero()  # type: ignore[no-any-return]


def msort(x: Tensor) -> Tensor:
    """Return `x` sorted along its first axis."""
    found: Any = sorting.sort(x, 0)
    return found[0]  # type: ignore[no-any-return]


def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Return a copy of `x` with `src` at a place of an axis."""
    made: Any = x.clone()
    made.select(dim, index).copy_(src)
    return made  # type: ignore[no-any-return]


def slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Tensor:
    """Return a copy of `x` with `src` in a slice of an axis."""
    dim = own_axis(dim, x.ndim)
    made: Any = x.clone()
    key = [slice(None)] * x.ndim
    key[dim] = slice(start, end, step)
    made[tuple(key)] = src
    return made  # type: ignore[no-any-return]


def diagonal_scatter(
    x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Return a copy of `x` with `src` along a diagonal."""
    made: Any = x.clone()
    made.diagonal(offset, dim1, dim2).copy_(src)
    return made  # type: ignore[no-any-return]


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return `x` with the elements of `source`, in order, where the mask holds.

    Raises ShapeError where `source` has fewer elements than `x`, which might be too few.
    """
    held: Any = mask
    flags = held.broadcast_to(x.shape).reshape(-1)
    values: Any = source
    values = values.reshape(-1)
    if values.shape[0] < flags.shape[0]:
        counted = int(flags.sum().item())
        if values.shape[0] < counted:
            raise ShapeError("fewer values than places", found=values.shape[0], wanted=counted)
    places = (flags.cast("int64").cumsum(0) - 1).clamp(0, max(values.shape[0] - 1, 0))
    flat: Any = x.ravel()
    put: Tensor = flags.where(values[places].cast(x.dtype), flat).reshape(x.shape)
    return put


def sum_to_size(x: Tensor, *size: Any) -> Tensor:
    """Return the sums of `x` over what it was broadcast along from a shape. Raises ShapeError."""
    wanted = as_shape(size)
    lead = x.ndim - len(wanted)
    fits = lead >= 0 and all(
        w in (1, have) for w, have in zip(wanted, x.shape[max(lead, 0) :], strict=True)
    )
    if not fits:
        raise ShapeError("a shape that is broadcast to this one", found=list(wanted),
                         wanted=f"one for {list(x.shape)}")
    axes = [*range(lead), *[lead + i for i, w in enumerate(wanted) if w != x.shape[lead + i]]]
    whole: Any = x
    summed = whole.sum(tuple(axes), True) if axes else whole
    made: Tensor = summed.reshape(wanted)
    return made


def fill_diagonal_(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Write a value along the diagonal of `x` itself; return it.

    With more than two axes all have one extent. wrap: of a tall matrix, the diagonal begins again
    below each square and a row.
    """
    a: Any = x
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise ShapeError("a diagonal is of a matrix, or of axes of one extent", found=list(x.shape))
    places = a.arange(x.shape[0], device=x.device)
    if x.ndim == 2 and wrap:
        places = places % (x.shape[1] + 1)
    lined = [axis_places(a, i) for i in range(1, x.ndim)]
    first = places.reshape(-1, *[1] * (x.ndim - 1))
    hit = first == lined[0]
    for one in lined[1:]:
        hit = hit & (first == one)
    return a.masked_fill_(hit, fill_value)  # type: ignore[no-any-return]


def axis_places(x: Any, axis: int) -> Any:
    """The places along an axis, an array that broadcasts with `x`."""
    line = x.arange(x.shape[axis], device=x.device)
    return line.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Return a view of the elements of `x` at an offset and strides, counted in elements.

    storage_offset: counted from where what `x` is a view of begins; that of `x` by default. Raises
    ShapeError for an `x` whose elements do not lie in order, for strides of another number of axes,
    and for places beyond the elements of `x`.
    """
    a: Any = x
    shape, steps = tuple(map(operator.index, size)), tuple(map(operator.index, stride))
    if a.is_paired:
        # Of pairs, which lie side by side.
        offset = None if storage_offset is None else 2 * storage_offset
        pairs = as_strided(a.view_as_real(), (*shape, 2), (*[2 * one for one in steps], 1), offset)
        whole: Any = pairs
        return whole.view_as_complex()  # type: ignore[no-any-return]
    strides, own = a._strides()
    if strides != row_major(x.shape):
        raise ShapeError(
            "as_strided is of elements that lie in order", found=f"strides {list(strides)}",
            hint="take it of contiguous()",
        )
    first, count = 0 if storage_offset is None else storage_offset - own, x.numel()
    last = first + sum((n - 1) * s for n, s in zip(shape, steps, strict=False))
    inside = 0 in shape or (0 <= first and min(steps, default=0) >= 0 and last < count)
    if len(shape) != len(steps) or min(shape, default=0) < 0 or not inside:
        raise ShapeError(
            "strides lead to elements that there are",
            found=f"{list(shape)} by {list(steps)} from {first} of {count} elements",
        )
    found: Tensor = a.reshape(count)._view(Ops.SHRINK, Strided(shape, steps, first))
    return found


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return `x` with slices of `source` combined into those that indices name.

    reduce: "prod", "mean", "amax" or "amin". include_self: whether what was there counts.
    """
    if not x.ndim:
        one: Any = index_reduce(
            x.reshape(1), dim, index, source.reshape(1), reduce, include_self=include_self
        )
        return one.reshape(())  # type: ignore[no-any-return]
    a: Any = x
    axis = own_axis(dim, x.ndim)
    places: Any = index
    places = places.reshape([-1 if i == axis else 1 for i in range(x.ndim)]).expand(source.shape)
    found: Tensor = a.scatter_reduce(axis, places, source, reduce, include_self=include_self)
    return found


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return `x` with values at places counted in its elements, rows after rows; see `take`."""
    a: Any = x.reshape(-1)
    count = a.shape[0]
    places: Any = index
    places = (places < 0).where(places + count, places).reshape(-1)
    values: Any = source
    if index.numel() != source.numel():
        raise ShapeError(
            "there is a value for each place", found=source.numel(), wanted=index.numel()
        )
    found: Tensor = a.index_put((places,), values.reshape(-1), accumulate).reshape(x.shape)
    return found


def is_same_size(x: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have one shape."""
    return x.shape == other.shape


def _as(x: Any, made: Any) -> Any:
    """Let a tensor show what another one shows, as the same tensor."""
    if x._leaf() is not None:
        raise GradientError(
            "the axes of a leaf that requires gradients are changed in place",
            hint="work on a view of it: the method without the underscore",
        )
    x._storage, x._look, x._layout = made._storage, made._look, None
    change_steps(x, made._steps)
    return x


def squeeze_(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Take axes of extent 1 away from `x` itself; return it."""
    found: Tensor = _as(x, x.squeeze(dim))
    return found


def unsqueeze_(x: Tensor, dim: int) -> Tensor:
    """Give `x` itself an axis of extent 1; return it."""
    found: Tensor = _as(x, x.unsqueeze(dim))
    return found


def transpose_(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Exchange two axes of `x` itself; return it."""
    found: Tensor = _as(x, x.transpose(dim0, dim1))
    return found


def t_(x: Tensor) -> Tensor:
    """Exchange the two axes of `x` itself; return it."""
    found: Tensor = _as(x, x.t())
    return found


def detach_(x: Tensor) -> Tensor:
    """Let gradients stop at `x` itself; return it."""
    if x._leaf() is not None:
        raise ArgumentError("a leaf is detached by requires_grad_(False)")
    found: Tensor = _as(x, x.detach())
    return found

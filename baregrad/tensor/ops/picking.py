"""Picking elements by index tensors and masks: gather, scatter, take, one_hot and their kin.

Negative indices are taken as they are only by `take`, `take_along_dim` and indexing with []; the
others want indices from 0, as in PyTorch. Indices out of range raise where their values are known.
Where they are computed first, what is read there is 0, and what would be written there is lost.
"""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import one_axis, own_axis, plain
from baregrad.tensor.array.operands import accumulator, as_stored, check_stored, lift, result
from baregrad.tensor.array.tensor_like import Operand, Tensor, TensorLike
from baregrad.tensor.ops.indexing import check_class_ids, count_from_zero
from baregrad.tensor.ops.reductions import check_integer


def _places(x: Tensor, index: Tensor, axis: int) -> tuple[Node, ...]:
    """One index node per axis of `x`: `index` along `axis`, its own position elsewhere."""
    check_integer(index, "indices")
    if index.ndim != x.ndim:
        raise ShapeError(
            "the index has as many axes as the tensor",
            found=f"{index.ndim} for {x.ndim}",
            hint="see index_select() for a vector of indices",
        )
    extents: list[tuple[Any, Any]] = list(zip(index.shape, x.shape, strict=True))
    for i, (have, limit) in enumerate(extents):
        if i == axis:
            continue
        if not isinstance(have, int) or not isinstance(limit, int):
            # The part that the index is beside requires that it lies in the tensor.
            nodes.cut(x.node, i, 0, have)
        elif have > limit:
            raise ShapeError(
                f"the index is longer than the tensor in axis {i}",
                found=str(list(index.shape)),
                wanted=f"at most {list(x.shape)}",
            )
    chosen = count_from_zero(index, x.shape[axis], axis).node
    return tuple(chosen if i == axis else nodes.iota_along(index.shape, i) for i in range(x.ndim))


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the tensor y of the shape of `index` with y[i, j] = x[index[i, j], j] for dim 0."""
    axis = one_axis(dim, x.ndim)
    if not x.ndim:
        return gather(x.ravel(), 0, index.ravel()).reshape(index.shape)
    return result(nodes.gather(x.node, *_places(x, index, axis)), x, index)


def take_along_dim(x: Tensor, index: Tensor, dim: int | None = None) -> Tensor:
    """Return `gather` with the other axes broadcast; of the flattened tensor for dim None."""
    if dim is None:
        return gather(x.ravel(), 0, index.ravel())
    axis = one_axis(dim, x.ndim)
    if index.ndim != x.ndim:
        raise ShapeError(
            "the indices have as many axes as what they are of", found=f"{index.ndim} axes",
            wanted=f"{x.ndim}",
        )
    if not x.ndim:
        return gather(x, 0, index)
    shape = nodes.broadcast_shapes(
        *((*s[:axis], 1, *s[axis + 1 :]) for s in (x.shape, index.shape))
    )
    wide = x.expand((*shape[:axis], x.shape[axis], *shape[axis + 1 :]))
    places = index.expand((*shape[:axis], index.shape[axis], *shape[axis + 1 :]))
    return gather(wide, axis, places)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return the elements of the flattened tensor at `index`, in its shape."""
    check_integer(index, "indices")
    flat = x.ravel()
    places = count_from_zero(index, flat.shape[0], 0)
    return result(nodes.gather(flat.node, places.node), x, index)


def _scatter(x: Tensor, dim: int, index: Tensor, source: Operand, op: Op | None) -> Tensor:
    axis = one_axis(dim, x.ndim)
    values = lift(source, x)
    if not x.ndim:
        x, index = x.reshape(1), index.reshape(1)
        values = values.reshape(1) if isinstance(values, TensorLike) else values
        return _scatter(x, 0, index, values, op).reshape(())
    places = _places(x, index, axis)
    if isinstance(values, TensorLike):
        if values.dtype is not x.dtype:
            raise DTypeError(
                "scattered values have the dtype of the tensor",
                found=values.dtype,
                wanted=x.dtype,
                hint=f"cast them: values.cast({x.dtype!r})",
            )
        if values.ndim != index.ndim or any(
            isinstance(a, int) and isinstance(b, int) and a > b
            for a, b in zip(index.shape, values.shape, strict=True)
        ):
            raise ShapeError(
                "there is a value for each index",
                found=str(list(values.shape)),
                wanted=f"at least {list(index.shape)}",
            )
        for i, extent in enumerate(index.shape):
            values = values.narrow(i, 0, extent)
    node = nodes.broadcast(as_stored(values, x.dtype), index.shape)
    wide = x.dtype if op is None else accumulator(x.dtype)
    base = nodes.cast(x.node, wide)
    written = nodes.scatter(base, nodes.cast(node, wide), places, op)
    tensors = (values,) if isinstance(values, TensorLike) else ()
    return result(nodes.cast(written, x.dtype), x, index, *tensors)


def scatter(
    x: Tensor, dim: int, index: Tensor, src: Operand, *, reduce: str | None = None
) -> Tensor:
    """Return `x` with x[index[i, j], j] = src[i, j] for dim 0; of several values the last stays.

    reduce: "add" or "multiply" combines with what is there.
    """
    combine = {None: None, "add": Ops.ADD, "multiply": Ops.MUL}
    if reduce not in combine:
        raise ArgumentError(f"reduce is None, 'add' or 'multiply', not {reduce!r}")
    return _scatter(x, dim, index, src, combine[reduce])


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """Return `x` with src[i, j] added to x[index[i, j], j] for dim 0."""
    return _scatter(x, dim, index, src, Ops.ADD)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return `x` with values folded in at their places.

    reduce: sum, prod, amax, amin or mean. Without `include_self` a place that gets a value
    forgets its own.
    """
    rows = {"sum": Ops.ADD, "mean": Ops.ADD, "prod": Ops.MUL, "amax": Ops.MAX, "amin": Ops.MIN}
    if reduce not in rows:
        raise ArgumentError(f"reduce is one of {', '.join(rows)}, not {reduce!r}")
    op = rows[reduce]
    base = x
    if not include_self:
        from baregrad.ir.core.monoid import primitive

        start = primitive(op, x.dtype).identity[0].arg
        base = _scatter(x, dim, index, start, None)
    found = _scatter(base, dim, index, src, op)
    if reduce != "mean":
        return found
    marks = x.full_like(1 if include_self else 0, dtype=dtypes.int64)
    count = _scatter(marks, dim, index, 1, Ops.ADD).clamp(min=1)
    rounding = None if x.dtype.kind == "float" else "floor"
    return found.div(count, rounding_mode=rounding).cast(x.dtype)


# --- by a vector of indices ---------------------------------------------------------------------


def _along(x: Tensor, dim: int, index: Tensor) -> tuple[Node, ...]:
    """One index node per axis for the slices that a vector of indices names."""
    check_integer(index, "indices")
    if index.ndim > 1:
        raise ShapeError("the indices are a vector", found=f"{index.ndim} axes")
    axis = own_axis(dim, x.ndim)
    line = index.reshape(-1)
    shape = (*x.shape[:axis], line.shape[0], *x.shape[axis + 1 :])
    chosen = count_from_zero(line, x.shape[axis], axis).node
    beside = tuple(-1 if i == axis else 1 for i in range(x.ndim))
    vector = nodes.reshape(chosen, tuple(line.shape[0] if e == -1 else 1 for e in beside))
    return tuple(
        nodes.broadcast(vector, shape) if i == axis else nodes.iota_along(shape, i)
        for i in range(x.ndim)
    )


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the slices of an axis that a vector of indices names, in its order."""
    if not x.ndim:
        return index_select(x.reshape(1), 0, index).reshape(())
    places = _along(x, dim, index)
    return result(nodes.gather(x.node, *places), x, index)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Return `x` with the slices of `source`, times alpha, added to those that indices name."""
    if not x.ndim:
        one = source.reshape(1)
        return index_add(x.reshape(1), dim, index, one, alpha=alpha).reshape(())
    places = _along(x, dim, index)
    values = source if alpha == 1 else source * alpha
    return _index_write(x, places, values, Ops.ADD, index)


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return `x` with the slices that indices name replaced by those of `source`."""
    if not x.ndim:
        return index_copy(x.reshape(1), dim, index, source.reshape(1)).reshape(())
    places = _along(x, dim, index)
    return _index_write(x, places, source, None, index)


def index_fill(x: Tensor, dim: int, index: Tensor, value: bool | int | float | Tensor) -> Tensor:
    """Return `x` with the slices that indices name filled with one value."""
    if not x.ndim:
        return index_fill(x.reshape(1), dim, index, value).reshape(())
    places = _along(x, dim, index)
    if isinstance(value, TensorLike):
        return _index_write(x, places, value.expand(places[0].shape), None, index)
    node = nodes.scatter(x.node, as_stored(value, x.dtype), places, None)
    return result(node, x, index)


def _index_write(
    x: Tensor, places: tuple[Node, ...], values: Tensor, op: Op | None, index: Tensor
) -> Tensor:
    if values.shape != places[0].shape:
        raise ShapeError(
            "the source has a slice for each index",
            found=str(list(values.shape)),
            wanted=str(list(places[0].shape)),
        )
    wide = x.dtype if op is None else accumulator(x.dtype)
    written = nodes.scatter(
        nodes.cast(x.node, wide), nodes.cast(values.cast(x.dtype).node, wide), places, op
    )
    return result(nodes.cast(written, x.dtype), x, values, index)


def embedding(weight: Tensor, index: Tensor) -> Tensor:
    """Return the rows of `weight` that indices name: (N, D) and (...) -> (..., D)."""
    check_integer(index, "indices")
    return weight[index]


# --- masks --------------------------------------------------------------------------------------


def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Return `x` with a value where the mask holds."""
    if mask.dtype is not dtypes.bool:
        raise DTypeError(
            "a mask is of bools", found=f"dtype {mask.dtype}", hint="compare: mask != 0"
        )
    lifted = lift(value, x)
    if isinstance(lifted, TensorLike) and lifted.ndim:
        raise ShapeError("masked_fill wants one value", found=f"shape {list(lifted.shape)}")
    chosen = lifted.cast(x.dtype) if isinstance(lifted, TensorLike) else lifted
    if chosen.__class__ is float:
        check_stored(chosen, chosen, x.dtype)
    return mask.where(chosen, x).cast(x.dtype)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """Return the elements where the mask holds, in one axis; the mask is computed now."""
    shape = nodes.broadcast_shapes(x.shape, mask.shape)
    return x.expand(shape)[mask.expand(shape)]


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Tensor | tuple[Tensor, ...]:
    """Return the positions of nonzero elements as rows (or one vector per axis); computed now."""
    import numpy as np

    held = x if x.dtype is dtypes.bool else x != 0
    found = np.nonzero(np.atleast_1d(held.numpy()))
    if as_tuple:
        return tuple(type(x)(places, device=x.device) for places in found)
    rows = np.stack(found, axis=1) if x.ndim else np.zeros((found[0].size, 0), np.int64)
    return type(x)(rows.astype(np.int64), device=x.device)


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """Return int64 rows with a 1 at each index; without num_classes they are counted now."""
    check_integer(x, "class ids")
    num_classes = plain(num_classes)
    if num_classes == -1:
        num_classes = int(x.amax().item()) + 1
        least = int(x.amin().item())
        if least < 0:
            raise IndexOutOfRange("a class id is out of range", found=least, wanted="0 or more")
    if num_classes < 1:
        raise ArgumentError("there is a class at least", found=f"num_classes {num_classes}")
    check_class_ids(x, num_classes, -1 << 64)
    shape = (*x.shape, num_classes)
    wide = nodes.cast(x.node, dtypes.int64)
    same = nodes.alu(Ops.CMPEQ, nodes.unsqueeze(wide, x.ndim), nodes.iota_along(shape, x.ndim))
    return result(nodes.cast(same, dtypes.int64), x)


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Return how often each number from 0 occurs, or sums of weights; the maximum is read now.

    Weights that are no floats are added up in float64.
    """
    check_integer(x, "the counted values")
    longest = int(x.amax().item()) + 1 if x.numel() else 0
    if x.numel() and int(x.amin().item()) < 0:
        raise IndexOutOfRange("bincount counts from 0", found=x.amin().item())
    size = max(longest, minlength)
    values = x.ones_like(dtype=dtypes.int64) if weights is None else weights
    if weights is not None and not weights.dtype.is_float:
        values = weights.cast(dtypes.float64)
    base = nodes.full(0, (size,), values.dtype)
    written = nodes.scatter(base, values.node, (nodes.cast(x.node, dtypes.int64),), Ops.ADD)
    return result(written, x, values)

"""Operators that gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import UnsupportedError
from baregrad.bridges.aten.shapes import method
from baregrad.dtypes import dtypes
from baregrad.nn.functional import embedding_bag
from baregrad.tensor import Tensor


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[_places(x, indices)]


def _places(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if one is None else one for one in indices)


def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    known = [(axis, one) for axis, one in enumerate(indices) if one is not None]
    axis, mask = known[0]
    if len(known) == 1 and mask.dtype is dtypes.bool and math.prod(values.shape) == 1:
        # How many places it has is not asked for: a replay could not.
        mask = mask.reshape(*mask.shape, *(1,) * (x.ndim - axis - mask.ndim))
        value = values.reshape(())
        return mask.where(x + value if accumulate else value, x)
    if len(known) == len(indices):
        return x.index_put(tuple(indices), values, accumulate=accumulate)
    result = x.clone()
    places = _places(x, indices)
    if not accumulate:
        result[places] = values
        return result
    # Numbers of all elements, indexed alike, say where each value goes.
    numbers = Tensor.arange(x.numel(), device=x.device).reshape(*x.shape)[places]
    added = values.expand(*numbers.shape).reshape(-1)
    return x.reshape(-1).index_add(0, numbers.reshape(-1), added).reshape(*x.shape)


def asks_for_a_count(node: Any) -> bool:
    """Whether a traced node needs to know how many places a mask has, which no replay could tell.

    One value under one mask is put without that.
    """
    known = [one.meta["val"] for one in node.args[1] if one is not None]
    if not any(str(one.dtype) == "torch.bool" for one in known):
        return False
    if len(known) > 1 or len(node.args) < 3:
        return True
    return any(not isinstance(size, int) or size != 1 for size in node.args[2].meta["val"].shape)


def _embedding(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return weight[indices]


def _embedding_dense_backward(
    grad: Tensor, indices: Tensor, count: int, padding: int, scale_by_frequency: bool
) -> Tensor:
    width = grad.shape[-1]
    rows = grad.reshape(-1, width)
    places = indices.reshape(-1)
    if padding >= 0:
        rows = (places == padding).unsqueeze(-1).where(0, rows)
    made = Tensor.zeros(count, width, dtype=grad.dtype, device=grad.device)
    return made.index_add(0, places, rows)


_BAGS = ("sum", "mean", "max")


def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_by_frequency: bool = False,
    mode: int = 0, sparse: bool = False, weights: Tensor | None = None, has_end: bool = False,
    padding: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The bags; of each index its bag, of each bag its size, and the rows of its maxima."""
    row = padding if padding >= 0 else None
    found = embedding_bag(
        indices, weight, offsets, mode=_BAGS[mode], per_sample_weights=weights,
        include_last_offset=has_end, padding_idx=row,
    )
    count, width = found.shape
    bags, held = _bags(indices, offsets, count, padding)
    sizes = _summed(held.cast("int64"), bags, count)
    if _BAGS[mode] != "max":
        return found, bags, sizes, sizes
    # The first row that has what the bag's maximum is.
    last = indices.shape[0] - 1
    places = Tensor.arange(last + 1, device=indices.device).unsqueeze(-1)
    equal = held.unsqueeze(-1) & weight[indices].eq(found[bags])
    first = Tensor.full((count, width), last, dtype="int64", device=indices.device).scatter_reduce(
        0, bags.unsqueeze(-1).expand(-1, width), equal.where(places, last), "amin"
    )
    return found, bags, sizes, (sizes > 0).unsqueeze(-1).where(indices[first], 0)


def _bags(
    indices: Tensor, offsets: Tensor, count: int, padding: int
) -> tuple[Tensor, Tensor]:
    """The bag of each index, which is the last that begins at or before it; whether it counts."""
    places = Tensor.arange(indices.shape[0], device=indices.device)
    bags = (offsets.unsqueeze(0) <= places.unsqueeze(1)).cast("int64").sum(1) - 1
    held = (bags >= 0) & (bags < count) & indices.ne(padding)
    return bags.clamp(0, count - 1), held


def _summed(values: Tensor, places: Tensor, count: int) -> Tensor:
    """Sums of rows of values by their places: (all, ...) -> (count, ...)."""
    made = Tensor.zeros(count, *values.shape[1:], dtype=values.dtype, device=values.device)
    return made.index_add(0, places, values)


def _embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, _: Tensor, sizes: Tensor, maxima: Tensor,
    count: int, scale_by_frequency: bool, mode: int, sparse: bool, weights: Tensor | None,
    padding: int = -1,
) -> Tensor:
    """The gradient of the weight: (bags, D) -> (count, D)."""
    if sparse:
        raise UnsupportedError(
            "gradients of embeddings are dense here", found="sparse=True", wanted="sparse=False"
        )
    if _BAGS[mode] == "max":
        kept = (sizes > 0).unsqueeze(-1).where(grad, 0)
        made = Tensor.zeros(count, grad.shape[1], dtype=grad.dtype, device=grad.device)
        return made.scatter_add(0, maxima, kept)
    bags, held = _bags(indices, offsets, grad.shape[0], padding)
    if _BAGS[mode] == "mean":
        grad = grad / sizes.clamp(min=1).unsqueeze(-1).cast(grad.dtype)
    rows = grad[bags]
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    if scale_by_frequency:
        ones = Tensor.ones(*indices.shape, dtype=grad.dtype, device=grad.device)
        times = _summed(ones, indices, count)
        rows = rows / times[indices].unsqueeze(-1)
    return _summed(held.unsqueeze(-1).where(rows, 0), indices, count)


def _embedding_bag_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, _: Tensor, mode: int,
    padding: int = -1,
) -> Tensor:
    """The gradient of the weights of each index: (bags, D) -> (all,)."""
    bags, held = _bags(indices, offsets, grad.shape[0], padding)
    return held.where((grad[bags] * weight[indices]).sum(-1), 0)


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    return x.gather(dim, index)


def _scatter(x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    return x.scatter(dim, index, source)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    return x.masked_scatter(mask.expand(*x.shape), source)


def _masked_scatter_backward(grad: Tensor, mask: Tensor, size: Sequence[int]) -> Tensor:
    """The gradient of the values, which were written where the mask is, in order."""
    count = math.prod(size)
    flags = mask.expand(*grad.shape).reshape(-1)
    # What is not written adds 0 to a place of its own behind the last.
    places = flags.where(flags.cast("int64").cumsum(0) - 1, count)
    made = Tensor.zeros(count + 1, dtype=grad.dtype, device=grad.device)
    return made.index_add(0, places, flags.where(grad.reshape(-1), 0))[:count].reshape(*size)


def _found_in(line: Tensor, x: Any, *, out_int32: bool = False, right: bool = False,
              side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    if not isinstance(x, Tensor):
        x = Tensor(x, dtype=line.dtype, device=line.device)
    return line.searchsorted(x, out_int32=out_int32, right=right, side=side, sorter=sorter)


def _bucket(x: Any, line: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _found_in(line, x, out_int32=out_int32, right=right)


INDEXING: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    "index": _index, "_unsafe_index": _index, "index_put": _index_put,
    "_unsafe_index_put": _index_put, "index_select": method("index_select"),
    "index_add": method("index_add"), "embedding": _embedding,
    "embedding_dense_backward": _embedding_dense_backward, "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "_embedding_bag_backward": _embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward": _embedding_bag_weights_backward,
    "gather": _gather, "scatter.src": _scatter, "scatter.value": _scatter,
    "scatter_add": method("scatter_add"), "scatter_reduce": method("scatter_reduce"),
    "masked_scatter": _masked_scatter, "masked_scatter_backward": _masked_scatter_backward,
    "diagonal_scatter": method("diagonal_scatter"), "index_reduce": method("index_reduce"),
    "searchsorted": _found_in, "bucketize": _bucket,
})

"""Operators that gather and scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.bridges.aten.shapes import method
from baregrad.tensor import Tensor


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[_places(x, indices)]


def _places(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if one is None else one for one in indices)


def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    if all(one is not None for one in indices):
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


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    return x.gather(dim, index)


def _scatter(x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    return x.scatter(dim, index, source)


INDEXING: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    "index": _index, "_unsafe_index": _index, "index_put": _index_put,
    "_unsafe_index_put": _index_put, "index_select": method("index_select"),
    "index_add": method("index_add"), "embedding": _embedding,
    "embedding_dense_backward": _embedding_dense_backward, "gather": _gather,
    "scatter.src": _scatter, "scatter.value": _scatter, "scatter_add": method("scatter_add"),
    "scatter_reduce": method("scatter_reduce"),
})

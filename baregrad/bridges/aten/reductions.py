"""Operators that reduce, scan and sort."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.bridges.aten.layers import gradients, leaf
from baregrad.bridges.torch_memory import dtype_of
from baregrad.tensor import Tensor

Axes = int | Sequence[int] | None


def _axes(x: Tensor, dim: Axes) -> Any:
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(x.ndim))
    return dim if isinstance(dim, int) else tuple(dim)


def _cast(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else x.cast(dtype_of(dtype))


def _sum(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _cast(x, dtype).sum(_axes(x, dim), keepdim=keepdim)


def _mean(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _cast(x, dtype).mean(_axes(x, dim), keepdim=keepdim)


def _var(
    x: Tensor, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return x.var(_axes(x, dim), correction=1 if correction is None else correction,
                 keepdim=keepdim)


def _var_mean(x: Tensor, dim: Axes = None, **named: Any) -> tuple[Tensor, Tensor]:
    return _var(x, dim, **named), _mean(x, dim, named.get("keepdim", False))


def _extreme(name: str) -> Callable[..., Any]:
    def of(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
        result: Tensor = getattr(x, name)(_axes(x, dim), keepdim=keepdim)
        return result

    return of


def _both(name: str) -> Callable[..., Any]:
    def of(x: Tensor, dim: int, keepdim: bool = False) -> Any:
        return tuple(getattr(x, name)(dim, keepdim=keepdim))

    return of


def _place(name: str) -> Callable[..., Any]:
    def of(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        result: Tensor = getattr(x, name)(dim, keepdim=keepdim)
        return result

    return of


def _prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _cast(x, dtype).prod(dim, keepdim=keepdim)


def _scan(name: str) -> Callable[..., Any]:
    def of(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        result: Tensor = getattr(_cast(x, dtype), name)(dim)
        return result

    return of


def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return (x.float() if half_to_float else x).softmax(dim)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return (x.float() if half_to_float else x).log_softmax(dim)


def _sort(x: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return tuple(x.sort(dim, descending=descending))


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return tuple(x.topk(k, dim, largest=largest))


def _vector_norm(
    x: Tensor, order: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    x, axes = _cast(x, dtype), _axes(x, dim)
    if order == math.inf:
        return x.abs().amax(axes, keepdim=keepdim)
    if order == -math.inf:
        return x.abs().amin(axes, keepdim=keepdim)
    if order == 0:
        return (x != 0).sum(axes, keepdim=keepdim).cast(x.dtype)
    if order == 2:
        return (x * x).sum(axes, keepdim=keepdim).sqrt()
    return (x.abs() ** order).sum(axes, keepdim=keepdim) ** (1 / order)


def _kth(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return tuple(x.kthvalue(k, dim, keepdim))


def _extremes(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    axes = _axes(x, dim)
    return x.amin(axes, keepdim=keepdim), x.amax(axes, keepdim=keepdim)


def _distances(x: Tensor, y: Tensor, p: float, _: Any = None) -> Tensor:
    return x.cdist(y, p)


def _distances_backward(
    grad: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor
) -> Tensor:
    """The gradient of the first rows; where a distance is 0 it is 0."""
    x = leaf(x)
    return gradients(x.cdist(y, p), [x], grad)[0]


REDUCTIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    "sum": _sum, "mean": _mean, "var": _var, "var_mean": _var_mean,
    "amax": _extreme("amax"), "amin": _extreme("amin"), "any": _extreme("any"),
    "all": _extreme("all"), "max.dim": _both("max"), "min.dim": _both("min"),
    "max.default": lambda x: x.amax(), "min.default": lambda x: x.amin(),
    "argmax": _place("argmax"), "argmin": _place("argmin"), "prod": _prod,
    "cumsum": _scan("cumsum"), "cumprod": _scan("cumprod"), "logsumexp": _extreme("logsumexp"),
    "_softmax": _softmax, "_log_softmax": _log_softmax, "linalg_vector_norm": _vector_norm,
    "sort": _sort, "topk": _topk, "cummax": lambda x, dim: tuple(x.cummax(dim)),
    "cummin": lambda x, dim: tuple(x.cummin(dim)),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim), "kthvalue": _kth,
    "median.default": lambda x: x.median(), "median.dim": _both("median"),
    "_aminmax": _extremes, "_cdist_forward": _distances, "_cdist_backward": _distances_backward,
})

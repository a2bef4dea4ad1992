"""Operators that make tensors, and that change shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.bridges.torch_memory import dtype_of
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor


def _of(dtype: Any, otherwise: Any = None) -> Any:
    return otherwise if dtype is None else dtype_of(dtype)


def _full(size: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return Tensor.full(tuple(size), value, dtype=_of(dtype))


def _full_like(x: Tensor, value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return Tensor.full(tuple(x.shape), value, dtype=_of(dtype, x.dtype))


def _filled(value: int) -> Callable[..., Tensor]:
    def like(x: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
        return _full_like(x, value, dtype=dtype)

    return like


def _made(value: int) -> Callable[..., Tensor]:
    def of(size: Sequence[int], *, dtype: Any = None, **_: Any) -> Tensor:
        import torch

        return _full(size, value, dtype=dtype or torch.get_default_dtype())

    return of


def _empty_permuted(size: Sequence[int], order: Sequence[int], **named: Any) -> Tensor:
    return _made(0)(size, **named)


def _empty_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, **_: Any
) -> Tensor:
    return Tensor.full(tuple(size), 0, dtype=_of(dtype, x.dtype))


def _empty_strided_of(size: Sequence[int], stride: Sequence[int], **named: Any) -> Tensor:
    return _made(0)(size, **named)


def _triangle(upper: bool) -> Callable[..., Tensor]:
    def of(rows: int, columns: int, offset: int = 0, *, dtype: Any = None, **_: Any) -> Tensor:
        made = (np.triu_indices if upper else np.tril_indices)(rows, offset, columns)
        return Tensor(np.stack(made).astype(np.int64)).cast(_of(dtype, dtypes.int64))

    return of


def _scalar_tensor(value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    import torch

    return Tensor.full((), value, dtype=dtype_of(dtype or torch.get_default_dtype()))


def _arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_: Any) -> Tensor:
    return Tensor.arange(start, end, step, dtype=_of(dtype))


def _arange_to(end: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return Tensor.arange(0, end, dtype=_of(dtype))


def _squeeze(x: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    if dims is None:
        return x.squeeze()
    axes = [dims] if isinstance(dims, int) else list(dims)
    for axis in sorted((one % max(x.ndim, 1) for one in axes), reverse=True):
        if x.ndim and x.shape[axis] == 1:
            x = x.squeeze(axis)
    return x


def _slice(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    places: list[Any] = [slice(None)] * x.ndim
    size = x.shape[dim]
    last = size if end is None or end > size else end
    places[dim] = slice(start, last, step)
    return x[tuple(places)]


def _select(x: Tensor, dim: int, place: int) -> Tensor:
    return x.select(dim, place)


def _places(x: Tensor, dim: int, place: Any) -> tuple[Any, ...]:
    found: list[Any] = [slice(None)] * x.ndim
    found[dim] = place
    return tuple(found)


def _slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    result = x.clone()
    size = x.shape[dim]
    last = size if end is None or end > size else end
    result[_places(x, dim, slice(start, last, step))] = source
    return result


def _select_scatter(x: Tensor, source: Tensor, dim: int, place: int) -> Tensor:
    result = x.clone()
    result[_places(x, dim, place)] = source
    return result


def _split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    return tuple(x.split(list(sizes), dim))


def _split(x: Tensor, size: int, dim: int = 0) -> Any:
    return tuple(x.split(size, dim))


def _pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    return x.pad(tuple(pad), value=value)


_METHODS = ("permute", "flip", "unsqueeze", "repeat", "roll", "diagonal", "tril", "triu",
            "movedim", "transpose", "narrow", "unfold")


def _bits_as(x: Tensor, dtype: Any) -> Tensor:
    """A view of the same bits; a truth value's byte is 0 or 1, as it is when it is converted."""
    wanted = dtype_of(dtype)
    if x.dtype is dtypes.bool and wanted in (dtypes.uint8, dtypes.int8):
        return x.cast(wanted)
    return x.bitcast(wanted)


def method(name: str) -> Callable[..., Any]:
    """The operator that is a method of the same name and arguments."""

    def call(x: Tensor, *rest: Any, **named: Any) -> Any:
        return getattr(x, name)(*rest, **named)

    return call


SHAPES: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    **{name: method(name) for name in _METHODS},
    "view": lambda x, size: x.reshape(*size), "reshape": lambda x, size: x.reshape(*size),
    "_unsafe_view": lambda x, size: x.reshape(*size),
    "view.dtype": _bits_as,
    "_reshape_alias": lambda x, size, stride: x.reshape(*size),
    "t": lambda x: x.T if x.ndim == 2 else x,
    "expand": lambda x, size, implicit=False: x.expand(*size),
    "full": _full, "full_like": _full_like, "zeros_like": _filled(0), "ones_like": _filled(1),
    "zeros": _made(0), "ones": _made(1), "empty.memory_format": _made(0),
    "empty_permuted": _empty_permuted, "new_empty_strided": _empty_strided,
    "empty_strided": _empty_strided_of, "tril_indices": _triangle(False),
    "triu_indices": _triangle(True), "_make_dep_token": lambda **_: Tensor.zeros(()),
    "empty_like": _filled(0),
    "scalar_tensor": _scalar_tensor, "arange.start_step": _arange,
    "arange.start": _arange, "arange.default": _arange_to, "squeeze": _squeeze,
    "slice": _slice, "select": _select, "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter, "cat": lambda xs, dim=0: Tensor.cat(*xs, dim=dim),
    "stack": lambda xs, dim=0: Tensor.stack(*xs, dim=dim), "split_with_sizes": _split_with_sizes,
    "split": _split, "unbind": lambda x, dim=0: tuple(x.unbind(dim)),
    "constant_pad_nd": _pad, "sym_size": lambda x, dim: x.shape[dim],
    "sym_numel": lambda x: x.numel(),
})

"""Operators that name elements by where PyTorch keeps them: by offset and strides.

Our tensors lie as they like; where theirs would lie is what the graph was traced with. A tensor is
brought into that order first, and what is named there is taken from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import ShapeError
from baregrad.tensor import Tensor


@dataclass(frozen=True, slots=True)
class StridedLayout:
    """Where the elements of a tensor lie, in elements.

    order: the axes from the outermost to the innermost, of a tensor whose elements lie side by
    side, else None. strides, offset: those of PyTorch; strides may be symbolic where there is an
    order.
    """

    order: tuple[int, ...] | None
    strides: tuple[Any, ...]
    offset: int


def layout_of(traced: Any) -> StridedLayout | None:
    """The layout of a traced tensor; None where it depends on sizes that are not known."""
    sizes, strides = tuple(traced.shape), tuple(traced.stride())
    offset = traced.storage_offset()
    order = _order(sizes, strides)
    if not isinstance(offset, int) or (
        order is None and not all(isinstance(one, int) for one in (*sizes, *strides))
    ):
        return None
    return StridedLayout(order, strides, offset)


def _order(sizes: Sequence[Any], strides: Sequence[Any]) -> tuple[int, ...] | None:
    """The axes from the outermost inwards, if no element lies between others' or on another."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    known = [one if isinstance(one, int) else one.node.hint for one in strides]
    if None in known:
        return None
    order = sorted(range(len(sizes)), key=lambda axis: -known[axis])
    step: Any = 1
    for axis in reversed(order):
        if statically_known_true(sizes[axis] == 1):
            continue
        if not statically_known_true(strides[axis] == step):
            return None
        step = step * sizes[axis]
    return tuple(order)


def _stored(x: Tensor, layout: StridedLayout) -> tuple[Tensor, np.ndarray[Any, Any] | None]:
    """The elements in the order in which they lie, and, where some lie apart, which are there."""
    if layout.order is not None:
        return x.permute(*layout.order).reshape(-1).contiguous(), None
    places = _places(x.shape, layout.strides)
    numbers = np.full(int(places.max(initial=-1)) + 1, -1, np.int64)
    numbers[places.reshape(-1)] = np.arange(places.size)
    flat = x.reshape(-1)[Tensor(numbers.clip(0), device=x.device)]
    return flat.contiguous(), numbers >= 0


def _places(shape: Sequence[Any], strides: Sequence[int]) -> np.ndarray[Any, Any]:
    """How far from the first each element lies."""
    found = np.zeros(tuple(shape), np.int64)
    for axis, (extent, step) in enumerate(zip(shape, strides, strict=True)):
        found += (np.arange(extent) * step).reshape(-1, *[1] * (len(shape) - axis - 1))
    return found


def _taken(
    flat: Tensor, held: np.ndarray[Any, Any] | None, size: Sequence[int], stride: Sequence[int],
    first: int,
) -> Tensor:
    """What lies at these strides from `first` on. Raises ShapeError for what does not lie there."""
    if 0 in size:
        return flat[:0].reshape(*size)
    last = first + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    inside = first >= 0 and last < flat.numel()
    if not inside or (held is not None and not held[first + _places(size, stride)].all()):
        raise ShapeError(
            "as_strided names elements that are not those of its tensor",
            found=f"{list(size)} by {list(stride)} from {first} of {flat.numel()} elements",
            hint="take it of the tensor that holds them all",
        )
    return flat[first:].as_strided(tuple(size), tuple(stride))


def _as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None, *,
    layout: StridedLayout,
) -> Tensor:
    first = 0 if offset is None else offset - layout.offset
    return _taken(*_stored(x, layout), size, stride, first)


def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int],
    offset: int | None = None, *, layout: StridedLayout,
) -> Tensor:
    if 0 in size:
        return x
    first = 0 if offset is None else offset - layout.offset
    flat, held = _stored(x, layout)
    _taken(flat, held, size, stride, first)
    inner = sorted(range(len(size)), key=lambda axis: -stride[axis])
    rows = source.cast(x.dtype).permute(*inner).reshape(-1)
    step, dense = 1, True
    for axis in reversed(inner):
        dense &= size[axis] == 1 or stride[axis] == step
        step *= size[axis]
    if dense:
        put = Tensor.cat(flat[:first], rows, flat[first + step :])
    else:
        places = first + _places([size[i] for i in inner], [stride[i] for i in inner])
        if np.unique(places).size < places.size:
            raise ShapeError(
                "as_strided_scatter writes each element once",
                found=f"{list(size)} by {list(stride)}",
            )
        put = flat.index_put((Tensor(places.reshape(-1), device=x.device),), rows)
    if layout.order is None:
        return put[Tensor(_places(x.shape, layout.strides), device=x.device)]
    turned = put.reshape(*[x.shape[axis] for axis in layout.order])
    return turned.permute(*np.argsort(layout.order).tolist())


def refused(node: Any) -> bool:
    """Whether a traced node of these operators asks for what cannot be done here."""
    layout = layout_of(node.args[0].meta["val"])
    if layout is None:
        return True
    traced = node.args[0].meta["val"]
    scatters = "scatter" in str(node.target)
    given = [*node.args[1 + scatters :], *node.kwargs.values()]
    numbers = [*traced.shape, *layout.strides, *(given[0]), *(given[1]), *given[2:]]
    if not all(isinstance(one, int) or one is None for one in numbers):
        return False  # Sizes that change: told when it runs.
    zeros = Tensor.zeros(*traced.shape)
    try:
        if scatters:
            _as_strided_scatter(zeros, Tensor.zeros(*given[0]), *given, layout=layout)
        else:
            _as_strided(zeros, *given, layout=layout)
    except ShapeError:
        return True
    return False


# Each takes the layout of its first argument.
STRIDED: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    "as_strided": _as_strided, "as_strided_scatter": _as_strided_scatter,
})

"""Picking and placing elements by index."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.dtypes import dtypes, from_numpy
from baregrad.io.onnx.call import NodeCall, Result, own_axis, standard
from baregrad.io.onnx.values import is_text
from baregrad.tensor import Tensor


def _gather(call: NodeCall) -> Result:
    axis = own_axis(call.attribute("axis", 0), len(call.shape(0)))
    value = call.value(0)
    if is_text(value):
        return np.asarray(np.take(value, call.host(1), axis))  # type: ignore[arg-type]
    x, index = call[0], call.value(1)
    if isinstance(index, np.ndarray) and index.ndim == 0 and index.dtype.kind == "i":
        return x.select(axis, int(index))
    places = call[1]
    found = x.index_select(axis, places.reshape(-1))
    return found.reshape((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def _wrapped(index: Tensor, extent: Any) -> Tensor:
    return (index < 0).where(index + extent, index)


def _gather_elements(call: NodeCall) -> Result:
    x = call[0]
    axis = own_axis(call.attribute("axis", 0), x.ndim)
    return x.gather(axis, _wrapped(call[1].cast(dtypes.int64), x.shape[axis]))


def _gather_nd(call: NodeCall) -> Result:
    x, index = call[0], call[1]
    batch = call.attribute("batch_dims", 0)
    width = index.shape[-1]
    places = [index[..., at] for at in range(width)]
    lead = index.shape[:-1]
    before = []
    for axis in range(batch):
        shape = tuple(lead[axis] if at == axis else 1 for at in range(len(lead)))
        before.append(Tensor.arange(lead[axis], device=x.device).reshape(shape).expand(lead))
    return x[tuple(before + places)]


def _scatter_elements(call: NodeCall) -> Result:
    x, index, updates = call[0], call[1], call[2]
    axis = own_axis(call.attribute("axis", 0), x.ndim)
    index = _wrapped(index.cast(dtypes.int64), x.shape[axis])
    how = call.attribute("reduction", "none")
    if how == "none":
        return x.scatter(axis, index, updates)
    kinds = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return x.scatter_reduce(axis, index, updates, kinds[how])


def _scatter_nd(call: NodeCall) -> Result:
    x, index, updates = call[0], call[1], call[2]
    width = index.shape[-1]
    rest = x.shape[width:]
    # Over the flattened front axes, each index is one place.
    place: Any = 0
    size = 1
    for axis in range(width):
        place = place * x.shape[axis] + _wrapped(index[..., axis].cast(dtypes.int64), x.shape[axis])
        size = size * x.shape[axis]
    rows = x.reshape((size, *rest))
    places = place.reshape((-1, *(1,) * len(rest)))
    values = updates.reshape((places.shape[0], *rest))
    places = places.expand(values.shape)
    how = call.attribute("reduction", "none")
    if how == "none":
        return rows.scatter(0, places, values).reshape(x.shape)
    kinds = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return rows.scatter_reduce(0, places, values, kinds[how]).reshape(x.shape)


def _one_hot(call: NodeCall) -> Result:
    index, depth, values = call[0], int(call.number(1)), call[2]
    axis = own_axis(call.attribute("axis", -1), index.ndim + 1)
    index = index.cast(dtypes.int64)
    places = _wrapped(index, depth).unsqueeze(axis)
    shape = tuple(-1 if at == axis else 1 for at in range(index.ndim + 1))
    hot = Tensor.arange(depth, device=index.device).reshape(shape) == places
    return hot.where(values[1], values[0])


def _nonzero(call: NodeCall) -> Result:
    found = np.array(np.nonzero(call.host(0)), np.int64).reshape(len(call.shape(0)), -1)
    return Tensor(found, device=call.device)


def _compress(call: NodeCall) -> Result:
    x, kept = call[0], call.host(1)
    axis = call.attribute("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    return x.index_select(axis, Tensor(np.flatnonzero(kept), device=call.device))


def _unique(call: NodeCall) -> Result:
    array, axis = call.host(0), call.attribute("axis")
    found = np.unique(array, True, True, True, axis=axis)
    values, first, inverse, counts = found
    inverse = inverse.reshape(-1)
    if not call.attribute("sorted", 1):
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        first, inverse, counts = first[order], place[inverse], counts[order]
    if is_text(array):
        return values, first, inverse, counts
    dtype = from_numpy(array.dtype)
    numbers = (first, inverse, counts)
    made = [Tensor(np.asarray(one, np.int64), device=call.device) for one in numbers]
    return Tensor(values, dtype=dtype, device=call.device), *made


def _tensor_scatter(call: NodeCall) -> Result:
    past, update = call[0], call[1]
    axis = own_axis(call.attribute("axis", -2), past.ndim)
    length, steps = past.shape[axis], update.shape[axis]
    lead: Any = Tensor.zeros(past.shape[0], dtype=dtypes.int64, device=past.device)
    start = call[2] if call.has(2) else lead
    shape = tuple(-1 if at == axis else 1 for at in range(past.ndim))
    along = Tensor.arange(steps, device=past.device).reshape(shape)
    place = start.reshape((-1, *(1,) * (past.ndim - 1))) + along
    if call.attribute("mode", "linear") == "circular":
        place = place % length
    return past.scatter(axis, place.expand(update.shape), update)


def _non_max_suppression(call: NodeCall) -> Result:
    boxes, scores = call.host(0).astype(np.float64), call.host(1)
    most = int(call.number(2, 0))
    overlap, least = float(call.number(3, 0.0)), call.number(4)
    if call.attribute("center_point_box", 0):
        half = boxes[..., 2:] / 2
        corners = np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)
    else:
        low = np.minimum(boxes[..., :2], boxes[..., 2:])
        corners = np.concatenate([low, np.maximum(boxes[..., :2], boxes[..., 2:])], -1)
    found = [
        (image, kind, box)
        for image in range(scores.shape[0])
        for kind in range(scores.shape[1])
        for box in _kept(corners[image], scores[image, kind], most, overlap, least)
    ]
    return Tensor(np.array(found, np.int64).reshape(-1, 3), device=call.device)


def _kept(
    corners: Any, scores: Any, most: int, overlap: float, least: float | None
) -> list[int]:
    """Boxes by falling score, less those that overlap one before them."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    areas = np.prod(corners[:, 2:] - corners[:, :2], -1)
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(corners[best, :2], corners[order, :2])
        high = np.minimum(corners[best, 2:], corners[order, 2:])
        shared = np.prod(np.maximum(high - low, 0), -1)
        order = order[shared <= overlap * (areas[best] + areas[order] - shared)]
    return kept


OPERATORS = MappingProxyType(standard({
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements, "Scatter": _scatter_elements, "ScatterND": _scatter_nd,
    "OneHot": _one_hot, "NonZero": _nonzero, "Compress": _compress, "Unique": _unique,
    "TensorScatter": _tensor_scatter, "NonMaxSuppression": _non_max_suppression,
}))  # fmt: skip

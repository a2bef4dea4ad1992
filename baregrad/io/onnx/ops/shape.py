"""Shapes, views, joining, cutting and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import FileFormatError
from baregrad.dtypes import from_numpy
from baregrad.io.onnx.call import NodeCall, Result, own_axis, slice_of, standard
from baregrad.io.onnx.values import is_text
from baregrad.ir.core.node import Node
from baregrad.tensor import Tensor
from baregrad.tensor.array.nodes import broadcast_shapes
from baregrad.tensor.ops.shapes import stored


def _identity(call: NodeCall) -> Result:
    return call.value(0)


def _reshape(call: NodeCall) -> Result:
    value = call.value(0)
    wanted = call.attribute("shape") or call.integers(1)
    shape = call.shape(0)
    if not call.attribute("allowzero", 0):
        wanted = [shape[at] if one.__class__ is int and not one else one
                  for at, one in enumerate(wanted)]  # fmt: skip
    if is_text(value):
        assert isinstance(value, np.ndarray)
        return value.reshape(wanted)
    return call[0].reshape(_without_unknown(shape, wanted))


def _without_unknown(shape: Sequence[Any], wanted: Sequence[Any]) -> tuple[Any, ...]:
    """A wanted shape whose -1 is worked out where extents are symbolic."""
    if -1 not in [one for one in wanted if one.__class__ is int]:
        return tuple(wanted)
    if all(isinstance(one, int) for one in (*shape, *wanted)):
        return tuple(wanted)
    have = list(shape)
    known = [one for one in wanted if not (one.__class__ is int and one == -1)]
    for one in list(known):
        if isinstance(one, Node) and any(one is other for other in have):
            known.remove(one)
            have = _without(have, one)
    rest = math.prod(have) if have else 1
    over = math.prod(known) if known else 1
    missing = rest if over.__class__ is int and over == 1 else rest // over
    return tuple(missing if one.__class__ is int and one == -1 else one for one in wanted)


def _without(values: list[Any], one: Any) -> list[Any]:
    at = next(i for i, other in enumerate(values) if other is one)
    return values[:at] + values[at + 1 :]


def _flatten(call: NodeCall) -> Result:
    x = call[0]
    axis = call.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    first, second = x.shape[:axis], x.shape[axis:]
    return x.reshape(math.prod(first), math.prod(second))


def _squeeze(call: NodeCall) -> Result:
    x, axes = call[0], call.axes()
    if axes is None:
        return x.squeeze()
    dropped = {own_axis(axis, x.ndim) for axis in axes}
    return x.reshape(tuple(e for axis, e in enumerate(x.shape) if axis not in dropped))


def _unsqueeze(call: NodeCall) -> Result:
    x, axes = call[0], call.axes() or []
    ndim = x.ndim + len(axes)
    added = sorted({own_axis(axis, ndim) for axis in axes})
    if len(added) != len(axes):
        raise call.broken("adds an axis twice", axes)
    for axis in added:
        x = x.unsqueeze(axis)
    return x


def _transpose(call: NodeCall) -> Result:
    x = call[0]
    return x.permute(*call.attribute("perm", range(x.ndim)[::-1])) if x.ndim else x


def _expand(call: NodeCall) -> Result:
    x, wanted = call[0], call.integers(1)
    shape = broadcast_shapes(tuple(x.shape), tuple(wanted))
    x = x.reshape((1,) * (len(shape) - x.ndim) + tuple(x.shape))
    return x.expand(shape)


def _tile(call: NodeCall) -> Result:
    x, counts = call[0], call.integers(1)
    return x.repeat(*counts) if counts else x


def _concat(call: NodeCall) -> Result:
    axis = call.attribute("axis", 1)
    parts = [call[at] for at in range(len(call.inputs))]
    if len(parts) == 1:
        return parts[0]
    if any(is_text(one) for one in call.inputs):
        return np.concatenate(call.inputs, axis)  # type: ignore[arg-type]
    # Stored by itself: what reads many elements of it need not ask of each whose part it is.
    return stored(Tensor.cat(parts, dim=axis))


def _split(call: NodeCall) -> Result:
    x = call[0]
    axis = own_axis(call.attribute("axis", 0), x.ndim)
    sizes = call.axes("split", 1)
    if sizes is None:
        parts = call.attribute("num_outputs", len(call.node.outputs))
        each = -(-x.shape[axis] // parts)
        sizes = [each] * (parts - 1)
        sizes.append(x.shape[axis] - each * (parts - 1))
    return tuple(x.split(sizes, axis))


def _slice(call: NodeCall) -> Result:
    x = call[0]
    starts, ends, axes, steps = call.slice_bounds()
    for at, axis in enumerate(axes if axes is not None else range(len(starts))):
        axis = own_axis(axis, x.ndim)
        x = _sliced(x, axis, starts[at], ends[at], steps[at] if steps else 1)
    return x


def _sliced(x: Tensor, axis: int, start: Any, end: Any, step: int) -> Tensor:
    extent = x.shape[axis]
    if all(one.__class__ is int for one in (extent, start, end)):
        if not step:
            raise FileFormatError("the step of a Slice is 0")
        places = range(extent)[slice_of(extent, start, end, step)]
        if step == 1:
            return x.narrow(axis, places.start, len(places)) if len(places) != extent else x
        key = (slice(None),) * axis
        if step > 0:
            return x[(*key, slice(places.start, places.stop, step))]
        if not len(places):
            return x.narrow(axis, 0, 0)
        low, high = places[-1], places[0]
        return x.flip(axis)[(*key, slice(extent - 1 - high, extent - low, -step))]
    if step != 1:
        return x[((slice(None),) * axis) + (slice(start, end, step),)]
    # Of a symbolic extent, what lies beyond the end is the end.
    start = _place(start, extent)
    end = _place(end, extent)
    return x.narrow(axis, start, end - start)


def _place(at: Any, extent: Any) -> Any:
    if at.__class__ is not int:
        return at
    if at >= 1 << 31:
        return extent
    if at < 0:
        return 0 if at <= -(1 << 31) else extent + at
    return min(at, extent) if extent.__class__ is int else at


def _pad(call: NodeCall) -> Result:
    x = call[0]
    mode = {"edge": "replicate", "wrap": "circular"}.get(
        call.attribute("mode", "constant"), call.attribute("mode", "constant")
    )
    if call.version < 11:
        pads, value = call.wanted("pads"), call.attribute("value", 0.0)
    else:
        pads, value = call.integers(1), call.number(2, 0)
    axes = call.integers(3) if call.has(3) else list(range(x.ndim))
    half = len(axes)
    if len(pads) != 2 * half:
        raise call.broken(f"has pads for other than {half} axes", pads)
    amounts = [(0, 0)] * x.ndim
    for at, axis in enumerate(axes):
        amounts[own_axis(axis, x.ndim)] = (pads[at], pads[half + at])
    if mode == "circular":
        return _wrapped(x, amounts)
    if mode != "constant":
        return _cut_then_padded(x, amounts, mode)
    flat = [one for pair in reversed(amounts) for one in pair]
    return x.pad(flat, mode="constant", value=value)


def _cut_then_padded(x: Tensor, amounts: list[tuple[int, int]], mode: str) -> Tensor:
    for axis, (before, after) in enumerate(amounts):
        if min(before, after) < 0:
            extent = x.shape[axis]
            x = x.narrow(axis, max(-before, 0), extent - max(-before, 0) - max(-after, 0))
        rest = [0, 0] * (x.ndim - 1 - axis)
        x = x.pad([*rest, max(before, 0), max(after, 0)], mode=mode)
    return x


def _wrapped(x: Tensor, amounts: list[tuple[int, int]]) -> Tensor:
    for axis, (before, after) in enumerate(amounts):
        if before or after:
            # What is cut is cut first, as in the other modes.
            first, last = max(-before, 0), x.shape[axis] - max(-after, 0)
            extent = last - first
            places = first + np.arange(-max(before, 0), extent + max(after, 0)) % extent
            x = x.index_select(axis, Tensor(places, device=x.device))
    return x


def _constant_of_shape(call: NodeCall) -> Result:
    value = call.attribute("value", np.zeros(1, np.float32)).reshape(-1)
    dtype = from_numpy(value.dtype)
    return Tensor.full(tuple(call.integers(0)), value[0].item(), dtype=dtype, device=call.device)


def _range(call: NodeCall) -> Result:
    start, limit, delta = (call.number(at) for at in range(3))
    dtype = call.dtype(0)
    if not delta:
        raise call.broken("has a step of 0")
    if any(isinstance(one, Node) for one in (start, limit)):
        if delta != 1:
            raise call.refuse("has a symbolic end and another step than 1", found=delta)
        found = Tensor.arange(limit - start, device=call.device).cast(dtype)
        return found + start
    if dtype.kind == "float":
        count = max(math.ceil((limit - start) / delta), 0)
        return (Tensor.arange(count, device=call.device).cast(dtype) * delta + start).cast(dtype)
    if (limit - start) * delta <= 0:
        limit = start
    return Tensor.arange(start, limit, delta, dtype=dtype, device=call.device)


def _eye_like(call: NodeCall) -> Result:
    from baregrad.io.onnx.ops.casting import element

    rows, columns = call.shape(0)
    code = call.attribute("dtype")
    dtype = call.dtype(0) if code is None else element(call, code)
    at = call.attribute("k", 0)
    row = Tensor.arange(rows, device=call.device).reshape(-1, 1)
    column = Tensor.arange(columns, device=call.device)
    return (row + at == column).cast(dtype)


def _trilu(call: NodeCall) -> Result:
    x, at = call[0], call.number(1, 0)
    return x.triu(at) if call.attribute("upper", 1) else x.tril(at)


def _depth_to_space(call: NodeCall) -> Result:
    x, size = call[0], call.wanted("blocksize")
    n, c, h, w = x.shape
    kept = c // (size * size)
    if call.attribute("mode", "DCR") == "DCR":
        cut = x.reshape(n, size, size, kept, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        cut = x.reshape(n, kept, size, size, h, w).permute(0, 1, 4, 2, 5, 3)
    return cut.reshape(n, kept, h * size, w * size)


def _space_to_depth(call: NodeCall) -> Result:
    x, size = call[0], call.wanted("blocksize")
    n, c, h, w = x.shape
    cut = x.reshape(n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4) if call.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return cut.permute(*order).reshape(n, c * size * size, h // size, w // size)


def _center_crop_pad(call: NodeCall) -> Result:
    x, wanted = call[0], call.integers(1)
    axes = call.attribute("axes") or range(x.ndim)
    for axis, size in zip(axes, wanted, strict=True):
        axis = own_axis(axis, x.ndim)
        extent = x.shape[axis]
        if size < extent:
            x = x.narrow(axis, (extent - size) // 2, size)
        elif size > extent:
            before = (size - extent) // 2
            rest = [0, 0] * (x.ndim - 1 - axis)
            x = x.pad([*rest, before, size - extent - before])
    return x


def _reverse_sequence(call: NodeCall) -> Result:
    x, lengths = call[0], call[1]
    time, batch = call.attribute("time_axis", 0), call.attribute("batch_axis", 1)
    if time > batch:
        return _reversed(x.transpose(0, 1), lengths).transpose(0, 1)
    return _reversed(x, lengths)


def _reversed(x: Tensor, lengths: Tensor) -> Tensor:
    """(T, N, ...) with the first lengths[n] steps turned round."""
    places = Tensor.arange(x.shape[0], device=x.device).reshape(-1, 1)
    turned = (places < lengths).where(lengths - 1 - places, places)
    turned = turned.reshape((*turned.shape, *(1,) * (x.ndim - 2)))
    return x.take_along_dim(turned.expand(x.shape), 0)


OPERATORS = MappingProxyType(standard({
    "Identity": _identity, "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze, "Transpose": _transpose, "Expand": _expand, "Tile": _tile,
    "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "EyeLike": _eye_like,
    "Trilu": _trilu, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth,
    "CenterCropPad": _center_crop_pad, "ReverseSequence": _reverse_sequence,
}))  # fmt: skip

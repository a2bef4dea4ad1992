"""Resampling of images: Resize, GridSample, AffineGrid, RoiAlign, deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.io.onnx.call import NodeCall, Result, own_axis, standard
from baregrad.io.onnx.values import HostArray
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# --- Resize: one axis after the other, each by a matrix of weights --------------------------------


def _sources(
    mode: str, wanted: int, extent: int, scale: float, roi: tuple[float, float], whole: float
) -> HostArray:
    """Where each new element lies on the old axis. `whole` is the new extent before rounding."""
    x = np.arange(wanted, dtype=np.float64)
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return np.asarray(x * (extent - 1) / (whole - 1)) if wanted > 1 else np.zeros(wanted)
    if mode == "tf_crop_and_resize":
        start, end = roi
        if wanted > 1:
            return start * (extent - 1) + x * (end - start) * (extent - 1) / (wanted - 1)
        return np.full(wanted, 0.5 * (start + end) * (extent - 1))
    if mode == "pytorch_half_pixel" and wanted == 1:
        return np.full(1, -0.5)
    found = (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        found += extent / 2 * (1 - wanted / whole)
    return np.asarray(found)


def _nearest(places: HostArray, mode: str) -> HostArray:
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    if mode == "round_prefer_ceil":
        return np.floor(places + 0.5)
    return np.ceil(places - 0.5)


def _linear(apart: HostArray) -> HostArray:
    return np.asarray(np.maximum(0, 1 - np.abs(apart)))


def _cubic(a: float) -> Callable[[HostArray], HostArray]:
    def weight(apart: HostArray) -> HostArray:
        t = np.abs(apart)
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        return np.where(t <= 1, near, np.where(t < 2, far, 0))

    return weight


def _weights(
    places: HostArray, extent: int, kernel: Callable[[HostArray], HostArray], reach: int,
    stretch: float, exclude: bool,
) -> HostArray:
    """(new extent, old extent): how much of each old element goes into each new one."""
    found = np.zeros((len(places), extent))
    wide = int(np.ceil(reach / stretch))
    for row, place in enumerate(places):
        taps = np.arange(math.floor(place) - wide + 1, math.floor(place) + wide + 1)
        share = kernel((taps - place) * stretch)
        if exclude:
            share = np.where((taps < 0) | (taps >= extent), 0, share)
        if exclude or stretch < 1:
            share = share / share.sum()
        np.add.at(found[row], np.clip(taps, 0, extent - 1), share)
    return found


def _resize_sizes(
    call: NodeCall, axes: Sequence[int], shape: Sequence[int]
) -> tuple[list[int], list[float]]:
    """New extents and scales of the axes that change."""
    old = [shape[axis] for axis in axes]
    at = 1 if call.node.op == "Upsample" or call.version < 11 else 2
    given = call.attribute("scales")
    has_sizes = call.has(3) and call.shape(3) != (0,)
    if not has_sizes:
        scales = [float(one) for one in (given if given is not None else call.host(at))]
        return [math.floor(e * s) for e, s in zip(old, scales, strict=True)], scales
    sizes = call.integers(3)
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        pick = min if policy == "not_larger" else max
        scale = pick(n / e for n, e in zip(sizes, old, strict=True))
        return [int(e * scale + 0.5) for e in old], [scale] * len(old)
    return list(sizes), [n / e for n, e in zip(sizes, old, strict=True)]


def _resize(call: NodeCall) -> Result:
    x = call[0]
    axes = [own_axis(axis, x.ndim) for axis in call.attribute("axes") or range(x.ndim)]
    if not all(isinstance(e, int) for e in x.shape):
        return _resize_symbolic(call, x)
    sizes, scales = _resize_sizes(call, axes, x.shape)
    mode = call.attribute("mode", "nearest")
    old_form = call.node.op == "Upsample" or call.version < 11
    coordinates = call.attribute(
        "coordinate_transformation_mode", "asymmetric" if old_form else "half_pixel"
    )
    rounding = call.attribute("nearest_mode", "round_prefer_floor")
    roi = call.host(1).tolist() if coordinates == "tf_crop_and_resize" else []
    outside: Tensor | None = None
    y = x.cast(dtypes.float32) if mode != "nearest" and x.dtype is not dtypes.float64 else x
    for number, axis in enumerate(axes):
        extent, wanted, scale = x.shape[axis], sizes[number], scales[number]
        span = (roi[number], roi[len(axes) + number]) if roi else (0.0, 1.0)
        if wanted == extent and scale == 1 and not roi:
            continue
        places = _sources(coordinates, wanted, extent, scale, span, extent * scale)
        if coordinates == "tf_crop_and_resize":
            beyond = Tensor((places < 0) | (places > extent - 1), device=x.device)
            beyond = beyond.reshape(tuple(-1 if at == axis else 1 for at in range(x.ndim)))
            outside = beyond if outside is None else outside | beyond
        if old_form:
            # Of operator sets before 11, as their examples have it.
            rounding = "ceil" if scale < 1 else "floor"
        if mode == "nearest":
            y = _picked(y, axis, np.clip(_nearest(places, rounding), 0, extent - 1))
            continue
        stretch = min(scale, 1.0) if call.attribute("antialias", 0) else 1.0
        kernel, reach = (_linear, 1) if mode == "linear" else (
            _cubic(call.attribute("cubic_coeff_a", -0.75)), 2
        )
        exclude = bool(call.attribute("exclude_outside", 0))
        if mode == "linear" and stretch == 1:
            places = np.clip(places, 0, extent - 1)
        y = _mixed(y, axis, _weights(places, extent, kernel, reach, stretch, exclude))
    if outside is not None:
        y = outside.where(call.attribute("extrapolation_value", 0.0), y)
    if y.dtype is not x.dtype and x.dtype.is_int:
        y = y.round().clamp(x.dtype.min, x.dtype.max)
    # Stored by itself: a convolution reads each element many times over.
    return stored(y.cast(x.dtype))


def _picked(x: Tensor, axis: int, places: HostArray) -> Tensor:
    """The elements at some places of an axis; of each `n` times over, as an expanded view."""
    extent, wanted = x.shape[axis], len(places)
    if wanted % extent == 0 and np.array_equal(places, np.arange(wanted) // (wanted // extent)):
        return x.repeat_interleave(wanted // extent, axis)
    return x.index_select(axis, Tensor(places.astype(np.int64), device=x.device))


def _mixed(x: Tensor, axis: int, weights: HostArray) -> Tensor:
    matrix = Tensor(weights, device=x.device).cast(x.dtype)
    return x.movedim(axis, -1).matmul(matrix.mT).movedim(-1, axis)


def _resize_symbolic(call: NodeCall, x: Tensor) -> Tensor:
    """Whole multiples by repetition, for axes whose extents are known later."""
    scales = call.attribute("scales") or (call.host(2).tolist() if call.has(2) else [])
    mode = call.attribute("mode", "nearest")
    axes = call.attribute("axes") or range(x.ndim)
    whole = len(scales) and all(float(one).is_integer() for one in scales)
    if mode != "nearest" or not whole:
        raise call.refuse(
            "resizes symbolic extents otherwise than by whole multiples of mode nearest",
            hint="load the model without symbolic dimensions: each size is captured by itself",
        )
    for axis, scale in zip(axes, scales, strict=True):
        x = x.repeat_interleave(int(scale), axis) if scale != 1 else x
    return x


# --- sampling at places that are data -------------------------------------------------------------


def _affine_grid(call: NodeCall) -> Result:
    theta, size = call[0], call.integers(1)
    align = bool(call.attribute("align_corners", 0))
    extents = size[2:]
    count = len(extents)
    axes = []
    for at, extent in enumerate(extents):
        line = np.arange(extent, dtype=np.float64)
        line = line * 2 / (extent - 1) - 1 if align and extent > 1 else (
            (2 * line + 1) / extent - 1 if not align else line * 0)  # fmt: skip
        shape = tuple(-1 if at == axis else 1 for axis in range(count))
        axes.append(np.broadcast_to(line.reshape(shape), extents))
    points = np.stack([*axes[::-1], np.ones(extents)], -1).reshape(-1, count + 1)
    grid = Tensor(points, device=call.device).cast(theta.dtype) @ theta.mT
    return grid.reshape((size[0], *extents, count))


def _place(x: Tensor, extent: int, align: bool) -> Tensor:
    """A coordinate from -1 to 1 as a place on an axis."""
    return (x + 1) / 2 * (extent - 1) if align else ((x + 1) * extent - 1) / 2


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    span = high - low
    if span <= 0:
        return x.zeros_like()
    over = (x - low).abs().fmod(2 * span)
    return (over > span).where(2 * span - over, over) + low


def taken(x: Tensor, places: Sequence[Tensor], padding: str, align: bool) -> Tensor:
    """x (N, C, *S) at integer places, each (N, *P): (N, C, *P). Beyond the edge as `padding`."""
    extents = x.shape[2:]
    index: Any = 0
    inside: Any = None
    for place, extent in zip(places, extents, strict=True):
        if padding == "reflection":
            low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
            place = _reflected(place, low, high).round()
        if padding == "zeros":
            here = (place >= 0) & (place < extent)
            inside = here if inside is None else inside & here
        index = index * extent + place.clamp(0, extent - 1).cast(dtypes.int64)
    n, c = x.shape[:2]
    lead = index.shape[1:]
    flat = index.reshape((n, 1, -1))
    found = x.reshape((n, c, -1)).gather(2, flat.expand(n, c, flat.shape[2]))
    found = found.reshape((n, c, *lead))
    return found if inside is None else inside.unsqueeze(1).where(found, 0)


def interpolated(
    x: Tensor, places: Sequence[Tensor], padding: str, align: bool, largest: bool = False
) -> Tensor:
    """x (N, C, *S) at places between elements, each (N, *P), mixed linearly.

    largest: of the weighted neighbours the largest one, instead of their sum.
    """
    lows = [place.floor() for place in places]
    total: Any = None
    for corner in np.ndindex(*(2,) * len(places)):
        share: Any = 1
        for one, place, low in zip(corner, places, lows, strict=True):
            part = place - low
            share = share * (part if one else 1 - part)
        found = taken(x, [low + one for low, one in zip(lows, corner, strict=True)], padding, align)
        part = found * share.unsqueeze(1)
        if total is None:
            total = part
        else:
            total = total.maximum(part) if largest else total + part
    return total  # type: ignore[no-any-return]


def _cubic_shares(part: Tensor) -> list[Tensor]:
    a = -0.75

    def near(t: Tensor) -> Tensor:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Tensor) -> Tensor:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


def _grid_sample(call: NodeCall) -> Result:
    x, grid = call[0], call[1]
    align = bool(call.attribute("align_corners", 0))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        call.attribute("mode", "linear"), call.attribute("mode", "linear")
    )
    padding = call.attribute("padding_mode", "zeros")
    count = x.ndim - 2
    # The grid names the last axis first.
    places = [
        _place(grid[..., count - 1 - at], x.shape[2 + at], align) for at in range(count)
    ]
    if mode == "nearest":
        return taken(x, [one.round() for one in places], padding, align)
    if padding == "reflection" and mode == "linear":
        bounds = [(0.0, e - 1.0) if align else (-0.5, e - 0.5) for e in x.shape[2:]]
        places = [_reflected(one, *b) for one, b in zip(places, bounds, strict=True)]
        places = [one.clamp(0, e - 1) for one, e in zip(places, x.shape[2:], strict=True)]
    elif padding == "border" and mode == "linear":
        places = [one.clamp(0, e - 1) for one, e in zip(places, x.shape[2:], strict=True)]
    if mode == "linear":
        return interpolated(x, places, padding, align)
    lows = [one.floor() for one in places]
    shares = [_cubic_shares(one - low) for one, low in zip(places, lows, strict=True)]
    total: Any = 0
    for taps in np.ndindex(*(4,) * count):
        share: Any = 1
        for tap, each in zip(taps, shares, strict=True):
            share = share * each[tap]
        at = [low + (tap - 1) for low, tap in zip(lows, taps, strict=True)]
        total = total + taken(x, at, padding, align) * share.unsqueeze(1)
    return total


def _roi_align(call: NodeCall) -> Result:
    x, rois, batch = call[0], call[1], call[2]
    height, width = call.attribute("output_height", 1), call.attribute("output_width", 1)
    scale = call.attribute("spatial_scale", 1.0)
    mode = call.attribute("coordinate_transformation_mode",
                          "half_pixel" if call.version >= 16 else "output_half_pixel")  # fmt: skip
    half = mode == "half_pixel"
    sampled = call.attribute("sampling_ratio", 0)
    if not sampled:
        corners = call.host(1) * scale
        sizes = corners[:, 2:] - corners[:, :2]
        grids = np.ceil(sizes / np.array([width, height]))
        if len(grids) and not (grids == grids[:1]).all():
            raise call.refuse("samples regions of several sizes by as many grids",
                              hint="give it a sampling_ratio")  # fmt: skip
        per = [max(int(grids[0, 1]), 1), max(int(grids[0, 0]), 1)] if len(grids) else [1, 1]
    else:
        per = [sampled, sampled]
    rois = rois * scale - (0.5 if half else 0.0)
    places = []
    for low, high, bins, each in ((rois[:, 1], rois[:, 3], height, per[0]),
                                  (rois[:, 0], rois[:, 2], width, per[1])):  # fmt: skip
        size = high - low if half else (high - low).maximum(1.0)
        steps = Tensor((np.arange(bins * each) + 0.5) / (bins * each), device=x.device)
        places.append(low.reshape(-1, 1) + steps.cast(x.dtype) * size.reshape(-1, 1))
    rows = places[0].unsqueeze(2).expand(-1, -1, places[1].shape[1])
    columns = places[1].unsqueeze(1).expand(rows.shape)
    chosen = x.index_select(0, batch.cast(dtypes.int64))
    largest = call.attribute("mode", "avg") == "max"
    found = _aligned(chosen, [rows, columns], largest)
    n, c = found.shape[:2]
    cut = found.reshape(n, c, height, per[0], width, per[1])
    return cut.amax([3, 5]) if largest else cut.mean([3, 5])


def _aligned(x: Tensor, places: list[Tensor], largest: bool) -> Tensor:
    """Elements between others; none of what lies more than one beyond the edge."""
    inside: Tensor | None = None
    kept = []
    for place, extent in zip(places, x.shape[2:], strict=True):
        here = (place >= -1) & (place <= extent)
        inside = here if inside is None else inside & here
        kept.append(place.clamp(0, extent - 1))
    assert inside is not None
    return inside.unsqueeze(1).where(interpolated(x, kept, "border", True, largest), 0)


def _deform_conv(call: NodeCall) -> Result:
    x, weight, offset = call[0], call[1], call[2]
    bias, mask = call.maybe(3), call.maybe(4)
    taps = list(weight.shape[2:])
    count = len(taps)
    steps = call.attribute("strides") or [1] * count
    spread = call.attribute("dilations") or [1] * count
    pads = call.attribute("pads") or [0] * (2 * count)
    groups, shifts = call.attribute("group", 1), call.attribute("offset_group", 1)
    n, c = x.shape[:2]
    out = offset.shape[2:]
    moved = offset.reshape((n, shifts, math.prod(taps), count, *out))
    places = []
    for axis in range(count):
        tap = np.indices(taps)[axis].reshape(-1) * spread[axis] - pads[axis]
        start = np.arange(out[axis]) * steps[axis]
        shape = tuple(-1 if at == axis else 1 for at in range(count))
        base = tap.reshape((-1, *(1,) * count)) + start.reshape((1, *shape))
        line = Tensor(base.astype(np.float64), device=x.device).cast(x.dtype)
        places.append((moved[:, :, :, axis] + line).reshape((n * shifts, -1)))
    parts = x.reshape((n * shifts, c // shifts, *x.shape[2:]))
    found = interpolated(parts, places, "zeros", True)
    found = found.reshape((n, shifts, c // shifts, math.prod(taps), *out))
    if mask is not None:
        found = found * mask.reshape((n, shifts, 1, math.prod(taps), *out))
    columns = found.reshape((n, groups, c // groups * math.prod(taps), -1))
    rows = weight.reshape((groups, weight.shape[0] // groups, -1))
    made = (rows @ columns).reshape((n, weight.shape[0], *out))
    return made if bias is None else made + bias.reshape((1, -1, *(1,) * count))


OPERATORS = MappingProxyType(standard({
    "Resize": _resize, "Upsample": _resize, "AffineGrid": _affine_grid,
    "GridSample": _grid_sample, "RoiAlign": _roi_align, "DeformConv": _deform_conv,
}))  # fmt: skip

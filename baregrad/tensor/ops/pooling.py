"""Pooling and resampling: the largest, the mean, or values in between of neighbourhoods."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import check_computed, dtypes
from baregrad.ir.core.attrs import Pad
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.core import check_float, check_shape_is_int
from baregrad.tensor.array.operands import accumulator, result
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.ops.convolution import PerAxis, per_axis, windows

_BEYOND = 1 << 62  # the position of padding: after every element
_BEYOND_TAPS = 1 << 30


def _room(extent: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """How far beyond the padding the last window of an axis reaches; negative never."""
    span = d * (k - 1) + 1
    left = extent + 2 * p - span
    if not ceil_mode:
        return 0
    count = -(-left // s) + 1
    if (count - 1) * s >= extent + p:
        count -= 1  # the last window would start in the padding at the end
    return max((count - 1) * s + span - (extent + 2 * p), 0)


def _surround(x: Node, edges: Sequence[tuple[int, int]], fill: bool | int | float) -> Node:
    """`x` with its last axes padded by (before, after) with one value."""
    if not any(lo or hi for lo, hi in edges):
        return x
    front = len(x.shape) - len(edges)
    pads = (*(Pad() for _ in range(front)), *(Pad(lo, hi) for lo, hi in edges))
    padded = nodes.pad(x, pads)
    if fill == 0:
        return padded
    inside = nodes.pad(nodes.full(True, x.shape, dtypes.bool), pads)
    return nodes.where(inside, padded, const(fill, x.dtype))


def _geometry(
    x: Tensor,
    count: int,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    dilation: PerAxis,
    ceil_mode: bool,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]:
    """Taps, strides, dilations and edges of the pooled axes."""
    if x.ndim not in (count + 1, count + 2):
        raise ShapeError(
            f"pooling over {count} axes wants (N, C, ...) or (C, ...)", found=list(x.shape)
        )
    taps = per_axis(kernel_size, count, "kernel_size")
    steps = taps if stride is None else per_axis(stride, count, "stride")
    spread, sides = per_axis(dilation, count, "dilation"), per_axis(padding, count, "padding")
    if any(2 * p > k for p, k in zip(sides, taps, strict=True)):
        raise ShapeError(
            "padding is at most half of the window", found=f"{list(sides)} for {list(taps)}"
        )
    edges = []
    for i in range(count):
        more = _room(x.shape[x.ndim - count + i], taps[i], steps[i], sides[i], spread[i], ceil_mode)
        edges.append((sides[i], sides[i] + more))
    return taps, steps, spread, edges


def max_pool(
    x: Tensor,
    count: int,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    dilation: PerAxis,
    ceil_mode: bool,
    return_indices: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest of each window over the last `count` axes; see `max_pool2d`."""
    taps, steps, spread, edges = _geometry(
        x, count, kernel_size, stride, padding, dilation, ceil_mode
    )
    axes = range(x.ndim - count, x.ndim)
    padded = _surround(x.node, edges, x.dtype.lowest)
    slid = windows(padded, axes, taps, steps, spread)
    extents = x.shape[x.ndim - count :]
    if return_indices:
        grid = nodes.reshape(nodes.iota(prod(extents)), extents)
        spots = windows(_surround(grid, edges, _BEYOND), range(count), taps, steps, spread)
    else:
        # For the gradient alone: which tap of the window it is, in lanes as wide as the values'.
        inside = _surround(nodes.full(True, extents, dtypes.bool), edges, False)
        inside = windows(inside, range(count), taps, steps, spread)
        numbers = nodes.reshape(nodes.iota(prod(taps), dtypes.int32), taps)
        beyond = const(_BEYOND_TAPS, dtypes.int32)
        spots = nodes.where(inside, nodes.broadcast(numbers, inside.shape), beyond)
    spots = nodes.broadcast(spots, slid.shape)
    last = tuple(range(x.ndim, x.ndim + count))
    both = nodes.arg_reduce(Ops.MAX, slid, spots, last)
    values = result(nodes.part(both, 0, x.dtype), x)
    if not return_indices:
        return values
    return values, result(nodes.part(both, 1, dtypes.int64), x)


def max_pool1d(
    x: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the largest of each window: (N, C, L) -> (N, C, L'); see `max_pool2d`."""
    return max_pool(x, 1, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    x: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the largest of each window: (N, C, H, W) -> (N, C, H', W').

    The stride is the window's size by default. The gradient goes to the first of equals. With
    `return_indices` also return where each stands in its flattened (H, W).
    """
    return max_pool(x, 2, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    x: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the largest of each window over three axes; see `max_pool2d`."""
    return max_pool(x, 3, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool(
    x: Tensor,
    count: int,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """The mean of each window over the last `count` axes; see `avg_pool2d`."""
    check_float(x.dtype, "average pooling")
    taps, steps, spread, edges = _geometry(x, count, kernel_size, stride, padding, 1, ceil_mode)
    wide = accumulator(x.dtype)
    last = tuple(range(x.ndim, x.ndim + count))
    axes = range(x.ndim - count, x.ndim)
    padded = _surround(nodes.cast(x.node, wide), edges, 0)
    total = nodes.reduce(Ops.ADD, windows(padded, axes, taps, steps, spread), last)
    size = 1
    for k in taps:
        size *= k
    if divisor_override is not None:
        divisor = const(divisor_override, wide)
    elif all(lo == hi == 0 or (count_include_pad and lo == hi) for lo, hi in edges):
        divisor = const(size, wide)
    else:
        # Windows count the input, and the padding proper if asked, but not what lies beyond it.
        counted = nodes.full(1, x.shape[x.ndim - count :], wide)
        if count_include_pad:
            counted = _surround(counted, [(lo, lo) for lo, _ in edges], 1)
            counted = _surround(counted, [(0, hi - lo) for lo, hi in edges], 0)
        else:
            counted = _surround(counted, edges, 0)
        divisor = nodes.reduce(
            Ops.ADD,
            windows(counted, range(count), taps, steps, spread),
            tuple(range(count, 2 * count)),
        )
    return result(nodes.cast(nodes.div(total, divisor), x.dtype), x)


def avg_pool1d(
    x: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window: (N, C, L) -> (N, C, L'); see `avg_pool2d`."""
    return avg_pool(x, 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    x: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window: (N, C, H, W) -> (N, C, H', W').

    The stride is the window's size by default. Padding counts as zeros, or with
    count_include_pad=False not at all.
    """
    return avg_pool(
        x, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    x: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window over three axes; see `avg_pool2d`."""
    return avg_pool(
        x, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


# --- to a wanted size ---------------------------------------------------------------------------


def _sizes(x: Tensor, output_size: int | Sequence[int | None] | None, count: int) -> list[int]:
    output_size = plain(output_size)
    if isinstance(output_size, Node):
        raise ShapeError("pooling is to a size that is known now", found=repr(output_size))
    if output_size is None or isinstance(output_size, int):
        given: list[Any] = [output_size] * count
    elif isinstance(output_size, list | tuple):
        given = [*map(plain, output_size)]
    else:
        raise ArgumentError(
            "pooling does not take this as `output_size`",
            found=f"{type(output_size).__name__} {output_size!r:.60}",
            wanted="an integer, several integers or None",
        )
    for one in given:
        if one is not None and (not isinstance(one, int) or one < 1 or one >> 62):
            raise ShapeError("a size is of integers", found=f"{given!r:.60}", wanted="1 or more")
    if x.ndim not in (count + 1, count + 2):
        raise ShapeError(
            f"pooling over {count} axes wants (N, C, ...) or (C, ...)", found=list(x.shape)
        )
    if len(given) != count:
        raise ShapeError("a size for each axis", found=given, wanted=f"{count} of them")
    own = x.shape[x.ndim - count :]
    return [have if want is None else want for have, want in zip(own, given, strict=True)]


def _adaptive_parts(extent: int, wanted: int) -> tuple[Node, Node]:
    """Which elements part i has, from floor(i*e/w) up to ceil((i+1)*e/w), and how many.

    They are of the shapes (wanted, extent) and (wanted, 1).
    """
    shape = (wanted, extent)
    i, h = nodes.iota_along(shape, 0), nodes.iota_along(shape, 1)
    e, w = const(extent, dtypes.int64), const(wanted, dtypes.int64)
    start = nodes.alu(Ops.FLOORDIV, nodes.mul(i, e), w)
    after = nodes.add(
        nodes.mul(nodes.add(i, const(1, dtypes.int64)), e), const(wanted - 1, dtypes.int64)
    )
    end = nodes.alu(Ops.FLOORDIV, after, w)
    inside = nodes.alu(Ops.AND, nodes.alu(Ops.CMPLE, start, h), nodes.alu(Ops.CMPLT, h, end))
    return inside, nodes.sub(end, start)


def _mean_of_parts(x: Tensor, axis: int, wanted: int) -> Tensor:
    """The means of parts of an axis. What lies outside a part may be infinite: it is left out."""
    inside, counts = (result(one, x) for one in _adaptive_parts(x.shape[axis], wanted))
    kept = inside.where(x.movedim(axis, -1).unsqueeze(-2), 0)
    return (kept.sum(-1) / counts[:, 0].cast(x.dtype)).movedim(-1, axis)


def adaptive_avg_pool(
    x: Tensor, count: int, output_size: int | Sequence[int | None] | None
) -> Tensor:
    """The means of equal parts of the last `count` axes; see `adaptive_avg_pool2d`."""
    check_float(x.dtype, "average pooling")
    sizes = _sizes(x, output_size, count)
    own = x.shape[x.ndim - count :]
    if all(want and have % want == 0 for have, want in zip(own, sizes, strict=True)):
        kernel = [have // want for have, want in zip(own, sizes, strict=True)]
        return avg_pool(x, count, kernel, None, 0, False, True, None)
    y = x.cast(accumulator(x.dtype))
    for i, want in enumerate(sizes):
        y = _mean_of_parts(y, x.ndim - count + i, want)
    return y.cast(x.dtype)


def adaptive_avg_pool1d(x: Tensor, output_size: int) -> Tensor:
    """Return the means of `output_size` parts of the last axis, as equal as can be."""
    return adaptive_avg_pool(x, 1, output_size)


def adaptive_avg_pool2d(x: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Return the means of a grid of parts of the last two axes, as equal as can be."""
    return adaptive_avg_pool(x, 2, output_size)


def adaptive_max_pool2d(x: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Return the largest of a grid of parts of the last two axes, as equal as can be."""
    return adaptive_max_pool(x, 2, output_size)


def adaptive_max_pool(
    x: Tensor, count: int, output_size: int | Sequence[int | None] | None
) -> Tensor:
    """The largest of parts of the last `count` axes, the first of equals: (N, C, ...)."""
    sizes = _sizes(x, output_size, count)
    lead, own = x.shape[: x.ndim - count], x.shape[x.ndim - count :]
    if all(have % want == 0 for have, want in zip(own, sizes, strict=True)):
        kernel = [have // want for have, want in zip(own, sizes, strict=True)]
        found = max_pool(x, count, kernel, None, 0, 1, False, False)
        assert not isinstance(found, tuple)
        return found
    check_shape_is_int(own, "adaptive_max_pool")
    # A part that is shorter than the longest has its last element several times, the first of
    # which is chosen.
    y, spans = x, []
    for i, (have, want) in enumerate(zip(own, sizes, strict=True)):
        starts = np.arange(want) * have // want
        ends = -(-(np.arange(want) + 1) * have // want)
        span = int((ends - starts).max())
        places = np.minimum(starts[:, None] + np.arange(span), ends[:, None] - 1)
        index = type(x)(places.reshape(-1), device=x.device)
        y = y.movedim(len(lead) + i, 0)[index].movedim(0, len(lead) + i)
        spans.append(span)
    y = y.reshape(*lead, *(part for pair in zip(sizes, spans, strict=True) for part in pair))
    first = len(lead)
    order = [*range(first), *range(first, y.ndim, 2), *range(first + 1, y.ndim, 2)]
    parts = y.permute(*order).reshape(*lead, *sizes, prod(spans))
    chosen = parts.argmax(-1, True)
    return parts.take_along_dim(chosen, -1).squeeze(-1)


# --- resampling ---------------------------------------------------------------------------------


def interpolate(
    x: Tensor,
    size: PerAxis | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Return (N, C, ...) resampled to a size, or by a factor.

    mode: nearest, nearest-exact, area, linear in each axis (linear, bilinear, trilinear) or
    bicubic; align_corners makes the first and last samples of both fall together. The linear modes
    are of floats and of uint8, whose last axis is resampled first and rounded, then the one before
    it; bicubic is of floats. recompute_scale_factor: places go by the sizes, not by the factor.
    Raises DTypeError for others, and ArgumentError for `antialias`.
    """
    count = x.ndim - 2
    linear = mode in ("linear", "bilinear", "trilinear", "bicubic")
    if not linear and mode not in ("nearest", "nearest-exact", "area"):
        raise ArgumentError(
            f"mode is nearest, nearest-exact, area, linear or bicubic, not {mode!r}"
        )
    if antialias:
        raise ArgumentError("interpolate does not average what it skips", found="antialias=True")
    if mode == "bicubic" and count != 2:
        raise ShapeError("bicubic is of (N, C, H, W)", found=list(x.shape))
    if align_corners is not None and not linear:
        raise ArgumentError(f"align_corners is for the linear modes, not {mode!r}")
    sizes, ratios = _resampled_sizes(x, size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return adaptive_avg_pool(x, count, sizes)
    if linear and (x.dtype is not dtypes.uint8 or mode == "bicubic"):
        check_computed(x.dtype)
        check_float(x.dtype, f"{mode} resampling")
    y = x
    for i in reversed(range(count)) if x.dtype is dtypes.uint8 else range(count):
        if mode == "bicubic":
            y = _cubic_axis(y, 2 + i, sizes[i], ratios[i], bool(align_corners))
        elif linear:
            y = _linear_axis(y, 2 + i, sizes[i], ratios[i], bool(align_corners))
        else:
            y = _nearest_axis(y, 2 + i, sizes[i], ratios[i], 0.5 if mode != "nearest" else 0.0)
    return y


def _resampled_sizes(
    x: Tensor, size: Any, scale_factor: Any, is_recomputed: bool
) -> tuple[tuple[int, ...], list[float]]:
    """The sizes to resample to, and how far apart their places lie in the own ones."""
    count = x.ndim - 2
    own = tuple(map(index, x.shape[2:]))
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate wants either a size or a scale_factor")
    if size is not None:
        sizes = per_axis(size, count, "size")
        _check_sizes(own, sizes)
        return sizes, [have / want for have, want in zip(own, sizes, strict=True)]
    scale_factor = plain(scale_factor)
    factors = (
        [float(scale_factor)] * count
        if isinstance(scale_factor, int | float)
        else [float(f) for f in scale_factor or ()]
    )
    if len(factors) != count:
        raise ShapeError(
            "interpolate wants a factor for each axis", found=f"{factors}", wanted=f"{count}"
        )
    sizes = tuple(int(have * f) for have, f in zip(own, factors, strict=True))
    _check_sizes(own, sizes)
    if is_recomputed:
        return sizes, [have / want for have, want in zip(own, sizes, strict=True)]
    return sizes, [1 / f for f in factors]


def _check_sizes(own: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
    if not own or any(extent < 1 for extent in (*own, *sizes) if isinstance(extent, int)):
        raise ShapeError(
            "interpolate is of (N, C, ...) with elements to pick from, and to some",
            found=f"{list(own)} to {list(sizes)}",
        )


def _pick(x: Tensor, axis: int, places: Node) -> Tensor:
    shape = (*x.shape[:axis], places.shape[0], *x.shape[axis + 1 :])
    beside = tuple(places.shape[0] if i == axis else 1 for i in range(x.ndim))
    indices = [
        nodes.broadcast(nodes.reshape(places, beside), shape)
        if i == axis
        else nodes.iota_along(shape, i)
        for i in range(x.ndim)
    ]
    return result(nodes.gather(x.node, *indices), x)


def _nearest_axis(x: Tensor, axis: int, wanted: int, ratio: float, shift: float) -> Tensor:
    extent = x.shape[axis]
    if isinstance(extent, int) and wanted % extent == 0:
        times = wanted // extent
        real_places = (np.arange(wanted, dtype=np.float32) + np.float32(shift)) * np.float32(ratio)
        if (real_places.astype(np.int64) == np.arange(wanted) // times).all():
            # Each element so many times is a view, whose gradient needs no places.
            before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
            beside = nodes.reshape(x.node, (*before, 1, *after))
            every = nodes.broadcast(beside, (*before, times, *after))
            return result(nodes.reshape(every, (*before[:-1], wanted, *after)), x)
    real = dtypes.float32
    line = nodes.add(nodes.cast(nodes.iota(wanted), real), const(shift, real))
    places = nodes.cast(nodes.mul(line, const(ratio, real)), dtypes.int64)
    limit = const(x.shape[axis] - 1, dtypes.int64)
    return _pick(x, axis, nodes.alu(Ops.MIN, places, limit))


def _linear_axis(x: Tensor, axis: int, wanted: int, ratio: float, corners: bool) -> Tensor:
    extent = x.shape[axis]
    narrow = x.dtype.kind == "float" and x.dtype is not dtypes.float64
    real = dtypes.float32 if narrow else dtypes.float64
    line = nodes.cast(nodes.iota(wanted), real)
    if corners:
        ratio = (extent - 1) / (wanted - 1) if wanted > 1 else 0.0
        source = nodes.mul(line, const(ratio, real))
    else:
        half = const(0.5, real)
        source = nodes.sub(nodes.mul(nodes.add(line, half), const(ratio, real)), half)
        source = nodes.alu(Ops.MAX, source, const(0.0, real))
    low = nodes.alu(Ops.MIN, nodes.cast(source, dtypes.int64), const(extent - 1, dtypes.int64))
    high = nodes.alu(
        Ops.MIN, nodes.add(low, const(1, dtypes.int64)), const(extent - 1, dtypes.int64)
    )
    beside = tuple(wanted if i == axis else 1 for i in range(x.ndim))
    share = nodes.reshape(nodes.sub(source, nodes.cast(low, real)), beside)
    weight = type(x)._make(share, x.device)
    if x.dtype is dtypes.uint8:
        bits = _weight_bits(wanted, ratio, corners)
        return _mix_bytes(_pick(x, axis, low), _pick(x, axis, high), weight, bits)
    weight = weight.cast(accumulator(x.dtype))
    y = x.cast(accumulator(x.dtype))
    mixed = _pick(y, axis, low) * (1 - weight) + _pick(y, axis, high) * weight
    return mixed.cast(x.dtype)


def _cubic_axis(x: Tensor, axis: int, wanted: int, ratio: float, corners: bool) -> Tensor:
    """Four neighbours weighed by a cubic; past the ends the last element stands for others.

    Source: R. Keys, "Cubic convolution interpolation", 1981, with its parameter at -0.75, which is
    PyTorch's.
    """
    extent, sharp = x.shape[axis], -0.75
    line = np.arange(wanted, dtype=np.float64)
    ratio = ((extent - 1) / (wanted - 1) if wanted > 1 else 0.0) if corners else ratio
    source = line * ratio if corners else (line + 0.5) * ratio - 0.5
    low = np.floor(source)
    t = source - low
    # From a place's left and right: of distances up to 1, and of those up to 2.
    near = [((sharp + 2) * d - (sharp + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((sharp * d - 5 * sharp) * d + 8 * sharp) * d - 4 * sharp for d in (t + 1, 2 - t)]
    y: Any = x.cast(accumulator(x.dtype))
    beside = tuple(wanted if i == axis else 1 for i in range(x.ndim))
    total: Any = None
    for offset, weights in zip((-1, 0, 1, 2), (far[0], near[0], near[1], far[1]), strict=True):
        places = type(x)(np.clip(low + offset, 0, extent - 1).astype(np.int64), device=x.device)
        weight = type(x)(weights, device=x.device).cast(y.dtype).reshape(beside)
        part = y.index_select(axis, places) * weight
        total = part if total is None else total + part
    found: Tensor = total.cast(x.dtype)
    return found


def _weight_bits(wanted: int, ratio: float, corners: bool) -> int:
    """How many bits of a weight follow the point: as many as 16 signed ones have room for."""
    places = (i * ratio if corners else max((i + 0.5) * ratio - 0.5, 0.0) for i in range(wanted))
    shares = (place - int(place) for place in places)
    return 14 if any(max(share, 1 - share) * 2**15 >= 2**15 - 0.5 for share in shares) else 15


def _mix_bytes(low: Tensor, high: Tensor, weight: Tensor, bits: int) -> Tensor:
    """Bytes weighed in fixed point and rounded, halves up, as PyTorch's `bilinear` does."""
    one, half = 1 << bits, 1 << (bits - 1)
    first, second = (
        (share * one + 0.5).floor().cast(dtypes.int32) for share in (1 - weight, weight)
    )
    total = low.cast(dtypes.int32) * first + high.cast(dtypes.int32) * second
    return ((total + half) >> bits).clamp(0, 255).cast(dtypes.uint8)

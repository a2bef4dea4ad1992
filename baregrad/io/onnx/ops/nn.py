"""Convolutions, pooling, normalisation and attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.io.onnx.call import NodeCall, Result, own_axis, standard
from baregrad.tensor import Tensor
from baregrad.tensor.ops.convolution import convolution, transposed

Pairs = list[tuple[int, int]]


def _per_axis(call: NodeCall, name: str, count: int) -> list[int]:
    return list(call.attribute(name) or [1] * count)


def pads_of(
    call: NodeCall, extents: Sequence[Any], taps: Sequence[int], steps: Sequence[int],
    spread: Sequence[int],
) -> Pairs:
    """What is put around each axis, before and after, as `auto_pad` or `pads` say."""
    count = len(taps)
    auto = call.attribute("auto_pad", "NOTSET")
    if auto in ("", "NOTSET"):
        pads = call.attribute("pads") or [0] * (2 * count)
        return list(zip(pads[:count], pads[count:], strict=True))
    if auto == "VALID":
        return [(0, 0)] * count
    found = []
    for extent, k, s, d in zip(extents, taps, steps, spread, strict=True):
        total = max((-(-extent // s) - 1) * s + d * (k - 1) + 1 - extent, 0)
        less = total // 2
        found.append((less, total - less) if auto == "SAME_UPPER" else (total - less, less))
    return found


def flat(pairs: Pairs) -> list[int]:
    """Amounts as `Tensor.pad` lists them: of the last axis first."""
    return [one for pair in reversed(pairs) for one in pair]


def convolved(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution with the attributes of a node."""
    count = weight.ndim - 2
    steps, spread = _per_axis(call, "strides", count), _per_axis(call, "dilations", count)
    pairs = pads_of(call, x.shape[2:], weight.shape[2:], steps, spread)
    if all(a == b for a, b in pairs):
        padding: Any = [a for a, _ in pairs]
    else:
        x, padding = x.pad(flat(pairs)), 0
    return convolution(x, weight, bias, count, steps, padding, spread, call.attribute("group", 1))


def _conv(call: NodeCall) -> Result:
    return convolved(call, call[0], call[1], call.maybe(2))


def _conv_transpose(call: NodeCall) -> Result:
    x, weight, bias = call[0], call[1], call.maybe(2)
    count = weight.ndim - 2
    steps, spread = _per_axis(call, "strides", count), _per_axis(call, "dilations", count)
    extra = call.attribute("output_padding") or [0] * count
    taps = weight.shape[2:]
    wanted = call.attribute("output_shape")
    auto = call.attribute("auto_pad", "NOTSET")
    full = [(e - 1) * s + d * (k - 1) + 1 + o for e, k, s, d, o in
            zip(x.shape[2:], taps, steps, spread, extra, strict=True)]  # fmt: skip
    if wanted is not None or auto.startswith("SAME"):
        sizes = (wanted or [e * s for e, s in zip(x.shape[2:], steps, strict=True)])[-count:]
        pairs = []
        for whole, size in zip(full, sizes, strict=True):
            total = whole - size
            less = total // 2
            # By the standard, the smaller half comes last unless it is SAME_UPPER.
            pairs.append((less, total - less) if auto == "SAME_UPPER" else (total - less, less))
    else:
        pairs = pads_of(call, x.shape[2:], taps, steps, spread)
    if all(a == b and a >= 0 for a, b in pairs):
        return transposed(x, weight, bias, count, steps, [a for a, _ in pairs], extra,
                          call.attribute("group", 1), spread)  # fmt: skip
    found = transposed(x, weight, None, count, steps, 0, extra, call.attribute("group", 1), spread)
    found = found.pad(flat([(-a, -b) for a, b in pairs]))
    return found if bias is None else found + _beside(x, bias)


# --- pooling --------------------------------------------------------------------------------------


def _pool_pads(call: NodeCall, x: Tensor) -> tuple[list[int], list[int], list[int], Pairs, Pairs]:
    """Windows, steps, dilations, pads, and pads with what `ceil_mode` reaches beyond the end."""
    taps = list(call.wanted("kernel_shape"))
    count = len(taps)
    steps, spread = _per_axis(call, "strides", count), _per_axis(call, "dilations", count)
    pairs = pads_of(call, x.shape[2:], taps, steps, spread)
    reached = []
    for extent, k, s, d, (low, high) in zip(x.shape[2:], taps, steps, spread, pairs, strict=True):
        span = d * (k - 1) + 1
        room = extent + low + high - span
        if call.attribute("ceil_mode", 0):
            places = -(-room // s) + 1
            # No window starts in the padding after the end.
            if (places - 1) * s >= extent + low:
                places -= 1
            high += max((places - 1) * s + span - (extent + low + high), 0)
        reached.append((low, high))
    return taps, steps, spread, pairs, reached


def windows_of(
    x: Tensor, taps: Sequence[int], steps: Sequence[int], spread: Sequence[int]
) -> Tensor:
    """(N, C, *S) -> (N, C, *P, *K): the elements under each window."""
    from baregrad.tensor.array.operands import result
    from baregrad.tensor.ops.convolution import windows

    return result(windows(x.node, range(2, x.ndim), taps, steps, spread), x)


def _max_pool(call: NodeCall) -> Result:
    x = call[0]
    taps, steps, spread, _, reached = _pool_pads(call, x)
    count = len(taps)
    last = list(range(2 + count, 2 + 2 * count))
    low = x.dtype.lowest
    padded = x.pad(flat(reached), value=low) if any(map(any, reached)) else x
    slid = windows_of(padded, taps, steps, spread)
    found = slid.amax(last)
    if len(call.node.outputs) < 2 or not call.node.outputs[1]:
        return found
    extents = x.shape[2:]
    order = range(count) if not call.attribute("storage_order", 0) else range(count)[::-1]
    place = Tensor.zeros(1, dtype=dtypes.int64, device=x.device)
    stride = 1
    for axis in reversed(list(order)):
        shape = tuple(extents[axis] if at == axis else 1 for at in range(count))
        along = Tensor.arange(extents[axis], device=x.device).reshape(shape)
        place = place + along * stride
        stride *= extents[axis]
    plane = math.prod(extents)
    images = Tensor.arange(x.shape[0] * x.shape[1], device=x.device) * plane
    whole = place.expand(tuple(extents)) + images.reshape((*x.shape[:2], *(1,) * count))
    beyond = plane * x.shape[0] * x.shape[1]
    numbered = windows_of(whole.pad(flat(reached), value=beyond), taps, steps, spread)
    shape = (*found.shape, *(1,) * count)
    is_first = (slid == found.reshape(shape)) & (numbered < beyond)
    return found, is_first.where(numbered, beyond).amin(last)


def _average_pool(call: NodeCall) -> Result:
    x = call[0]
    taps, steps, spread, pairs, reached = _pool_pads(call, x)
    count = len(taps)
    last = list(range(2 + count, 2 + 2 * count))
    slid = windows_of(x.pad(flat(reached)) if any(map(any, reached)) else x, taps, steps, spread)
    counted = call.attribute("count_include_pad", 0)
    inside = pairs if counted else [(0, 0)] * count
    if inside == reached:
        return slid.mean(last)
    ones = Tensor.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    if counted:
        ones = ones.pad(flat(pairs), value=1)
    rest = [(r[0] - i[0], r[1] - i[1]) for r, i in zip(reached, inside, strict=True)]
    counts = windows_of(ones.pad(flat(rest)), taps, steps, spread).sum(last)
    return slid.sum(last) / counts


def _lp_pool(call: NodeCall) -> Result:
    x, p = call[0], call.attribute("p", 2)
    taps, steps, spread, _, reached = _pool_pads(call, x)
    count = len(taps)
    last = list(range(2 + count, 2 + 2 * count))
    slid = windows_of(x.pad(flat(reached)), taps, steps, spread).abs()
    if p == 2:
        return slid.square().sum(last).sqrt()
    return slid.pow(p).sum(last).pow(1 / p)


def _global(name: str) -> Any:
    def run(call: NodeCall) -> Result:
        x = call[0]
        axes = list(range(2, x.ndim))
        if name == "lp":
            p = call.attribute("p", 2)
            return x.abs().pow(p).sum(axes, True).pow(1 / p)
        return x.mean(axes, True) if name == "mean" else x.amax(axes, True)

    return run


def _max_unpool(call: NodeCall) -> Result:
    x, places = call[0], call[1]
    taps = call.wanted("kernel_shape")
    count = len(taps)
    steps = _per_axis(call, "strides", count)
    pads = call.attribute("pads") or [0] * (2 * count)
    inner = [(e - 1) * s + k - pads[a] - pads[count + a] for a, (e, s, k) in
             enumerate(zip(x.shape[2:], steps, taps, strict=True))]  # fmt: skip
    shape = (*x.shape[:2], *inner)
    flat_ = Tensor.zeros(math.prod(shape), dtype=x.dtype, device=x.device)
    found = flat_.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)
    if not call.has(2):
        return found
    wanted = call.integers(2)
    return found.pad(flat([(0, size - e) for size, e in zip(wanted[2:], inner, strict=True)]))


# --- normalisation --------------------------------------------------------------------------------


def _beside(x: Tensor, vector: Tensor) -> Tensor:
    return vector.reshape((1, -1, *(1,) * (x.ndim - 2)))


def _batch_norm(call: NodeCall) -> Result:
    x, scale, bias, mean, var = (call[at] for at in range(5))
    epsilon = call.attribute("epsilon", 1e-5)
    if not call.attribute("training_mode", 0):
        factor = scale * (var.cast(scale.dtype) + epsilon).rsqrt()
        shift = bias - mean.cast(scale.dtype) * factor
        return (x * _beside(x, factor) + _beside(x, shift)).cast(x.dtype)
    momentum = call.attribute("momentum", 0.9)
    axes = [0, *range(2, x.ndim)]
    own_mean = x.mean(axes)
    own_var = x.var(axes, correction=0)
    y = (x - _beside(x, own_mean)) * _beside(x, (own_var + epsilon).rsqrt() * scale)
    y = y + _beside(x, bias)
    return (y, mean * momentum + own_mean * (1 - momentum),
            var * momentum + own_var * (1 - momentum))  # fmt: skip


def _instance_norm(call: NodeCall) -> Result:
    x, scale, bias = call[0], call[1], call[2]
    axes = list(range(2, x.ndim))
    mean = x.mean(axes, True)
    apart = x - mean
    var = apart.square().mean(axes, True)
    y = apart * (var + call.attribute("epsilon", 1e-5)).rsqrt()
    return y * _beside(x, scale) + _beside(x, bias)


def _group_norm(call: NodeCall) -> Result:
    x, scale, bias = call[0], call[1], call[2]
    groups = call.wanted("num_groups")
    y = x.reshape((x.shape[0], groups, -1)).cast(dtypes.float32)
    apart = y - y.mean(-1, True)
    y = apart * (apart.square().mean(-1, True) + call.attribute("epsilon", 1e-5)).rsqrt()
    if call.version < 21:
        scale, bias = (v.reshape(-1, 1).expand(groups, x.shape[1] // groups).reshape(-1)
                       for v in (scale, bias))  # fmt: skip
    return (y.reshape(x.shape) * _beside(x, scale) + _beside(x, bias)).cast(x.dtype)


def normalised(
    x: Tensor, axes: list[int], epsilon: float, centred: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """`x` over its spread, in float32 at least; with the mean and the spread's reciprocal."""
    wide = x.cast(dtypes.float32) if x.dtype.bits < 32 else x
    mean = wide.mean(axes, True)
    apart = wide - mean if centred else wide
    inverse = (apart.square().mean(axes, True) + epsilon).rsqrt()
    return apart * inverse, mean, inverse


def _layer_norm(call: NodeCall) -> Result:
    x, scale, bias = call[0], call[1], call.maybe(2)
    axis = own_axis(call.attribute("axis", -1), x.ndim)
    y, mean, inverse = normalised(x, list(range(axis, x.ndim)), call.attribute("epsilon", 1e-5))
    y = y.cast(x.dtype) * scale
    return (y if bias is None else y + bias).cast(x.dtype), mean, inverse


def _rms_norm(call: NodeCall) -> Result:
    x, scale = call[0], call[1]
    axis = own_axis(call.attribute("axis", -1), x.ndim)
    y, _, _ = normalised(x, list(range(axis, x.ndim)), call.attribute("epsilon", 1e-5), False)
    return (y * scale).cast(x.dtype)


def _lrn(call: NodeCall) -> Result:
    x, size = call[0], call.wanted("size")
    alpha, beta, bias = (call.attribute(n, d) for n, d in
                         (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))  # fmt: skip
    low = (size - 1) // 2
    squares = x.square().movedim(1, -1).pad([low, size - 1 - low]).unfold(-1, size, 1).sum(-1)
    return x / (squares.movedim(-1, 1) * (alpha / size) + bias).pow(beta)


def _dropout(call: NodeCall) -> Result:
    x = call[0]
    ratio = call.attribute("ratio", call.number(1, 0.5))
    training = bool(call.number(2, False)) if call.version >= 12 else False
    kept = Tensor.ones(*x.shape, dtype=dtypes.bool, device=x.device)
    if not training or not ratio:
        return x, kept
    kept = Tensor.rand(*x.shape, device=x.device) >= ratio
    return kept.where(x / (1 - ratio), 0), kept


def _col2im(call: NodeCall) -> Result:
    x, image, block = call[0], call.integers(1), call.integers(2)
    count = len(block)
    spread, steps = _per_axis(call, "dilations", count), _per_axis(call, "strides", count)
    pads = call.attribute("pads") or [0] * (2 * count)
    n = x.shape[0]
    channels = x.shape[1] // math.prod(block)
    whole = [image[a] + pads[a] + pads[count + a] for a in range(count)]
    places = [(whole[a] - spread[a] * (block[a] - 1) - 1) // steps[a] + 1 for a in range(count)]
    parts = x.reshape((n, channels, *block, *places))
    total = None
    for at in itertools.product(*(range(k) for k in block)):
        part = parts[(slice(None), slice(None), *at)]
        for axis in range(count):
            spaced = part.unsqueeze(3 + axis)
            rest = [0, 0] * (count - 1 - axis)
            spaced = spaced.pad([*rest, 0, steps[axis] - 1])
            merged = [*part.shape]
            merged[2 + axis] *= steps[axis]
            part = spaced.reshape(merged)
            start = at[axis] * spread[axis]
            used = min(merged[2 + axis], whole[axis] - start)
            part = part.narrow(2 + axis, 0, used).pad([*rest, start, whole[axis] - start - used])
        total = part if total is None else total + part
    assert total is not None
    for axis in range(count):
        total = total.narrow(2 + axis, pads[axis], image[axis])
    return total


OPERATORS = MappingProxyType(standard({
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool,
    "AveragePool": _average_pool, "LpPool": _lp_pool, "GlobalAveragePool": _global("mean"),
    "GlobalMaxPool": _global("max"), "GlobalLpPool": _global("lp"), "MaxUnpool": _max_unpool,
    "BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm, "LRN": _lrn, "Dropout": _dropout, "Col2Im": _col2im,
}))  # fmt: skip

"""Fourier transforms, windows, random draws and steps of optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.dtypes import DType, dtypes
from baregrad.io.onnx.call import Function, NodeCall, Result, of_domain, own_axis, standard
from baregrad.io.onnx.ops.casting import element
from baregrad.tensor import Tensor


def _waves(
    length: int, points: int, dtype: DType, device: str, inverse: bool
) -> tuple[Tensor, ...]:
    """Cosines and sines (points, length) of the discrete Fourier transform."""
    turns = np.outer(np.arange(points), np.arange(length)) % max(length, 1) / max(length, 1)
    angle = 2 * np.pi * turns * (1 if inverse else -1)
    return tuple(Tensor(one, device=device).cast(dtype) for one in (np.cos(angle), np.sin(angle)))


def _fourier(
    x: Tensor, length: int, onesided: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the transform of (..., n, 1 or 2) over its axis -2."""
    extent = x.shape[-2]
    if extent > length:
        x = x.narrow(-2, 0, length)
    elif extent < length:
        x = x.pad([0, 0, 0, length - extent])
    real = x[..., 0]
    imaginary = x[..., 1] if x.shape[-1] == 2 else None
    points = length // 2 + 1 if onesided else length
    cosine, sine = _waves(length, points, x.dtype, x.device, inverse)
    re, im = real @ cosine.mT, real @ sine.mT
    if imaginary is not None:
        re, im = re - imaginary @ sine.mT, im + imaginary @ cosine.mT
    return (re / length, im / length) if inverse else (re, im)


def _dft(call: NodeCall) -> Result:
    x = call[0]
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    axis = call.attribute("axis", 1) if call.version < 20 else int(call.number(2, -2))
    axis = own_axis(axis, x.ndim)
    moved = x.movedim(axis, -2)
    if inverse and onesided:
        return _real_inverse(call, moved).movedim(-2, axis)
    length = int(call.number(1, moved.shape[-2]))
    re, im = _fourier(moved, length, onesided, inverse)
    return Tensor.stack([re, im], dim=-1).movedim(-2, axis)


def _real_inverse(call: NodeCall, x: Tensor) -> Tensor:
    """The real signal of which half the transform is given."""
    half = x.shape[-2]
    length = int(call.number(1, 2 * (half - 1)))
    x = x.narrow(-2, 0, min(half, length // 2 + 1))
    rest = length - x.shape[-2]
    if rest > 0:
        tail = x.narrow(-2, 1, min(rest, x.shape[-2] - 1)).flip(-2)
        tail = Tensor.stack([tail[..., 0], -tail[..., 1]], dim=-1)
        x = Tensor.cat([x, tail], dim=-2)
    return _fourier(x, length, False, True)[0].unsqueeze(-1)


def _stft(call: NodeCall) -> Result:
    x, step = call[0], int(call.number(1))
    window = call.maybe(2)
    size = window.shape[0] if window is not None else int(call.number(3))
    size = int(call.number(3, size))
    onesided = bool(call.attribute("onesided", 1))
    x = x.unsqueeze(-1) if x.ndim == 2 else x
    frames = x.unfold(1, size, step).movedim(2, 3)
    if window is not None:
        frames = frames * window.reshape(-1, 1)
    re, im = _fourier(frames, size, onesided, False)
    return Tensor.stack([re, im], dim=-1)


def _window(*shares: float) -> Function:
    def run(call: NodeCall) -> Result:
        size = int(call.number(0))
        whole = size if call.attribute("periodic", 1) else size - 1
        angle = 2 * np.pi * np.arange(size) / max(whole, 1)
        made = sum(share * np.cos(angle * at) for at, share in enumerate(shares))
        dtype = element(call, call.attribute("output_datatype", 1))
        return Tensor(np.asarray(made), device=call.device).cast(dtype)

    return run


def _mel_weights(call: NodeCall) -> Result:
    bins, length, rate = (int(call.number(at)) for at in range(3))
    low, high = (float(call.number(at)) for at in (3, 4))

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + hertz / 700)

    step = (mel(high) - mel(low)) / (bins + 2)
    points = mel(low) + step * np.arange(bins + 2)
    edges = np.floor((length + 1) * 700 * (10 ** (points / 2595) - 1) / rate).astype(int)
    made = np.zeros((length // 2 + 1, bins))
    for at in range(bins):
        start, middle, end = edges[at : at + 3]
        if middle == start:
            made[middle, at] = 1
        else:
            made[start : middle + 1, at] = np.arange(middle - start + 1) / (middle - start)
        if end > middle:
            made[middle:end, at] = (end - np.arange(middle, end)) / (end - middle)
    dtype = element(call, call.attribute("output_datatype", 1))
    return Tensor(made, device=call.device).cast(dtype)


# --- random draws ---------------------------------------------------------------------------------


def _drawn(uniform: bool, like: bool) -> Function:
    def run(call: NodeCall) -> Result:
        shape = call.shape(0) if like else tuple(call.wanted("shape"))
        code = call.attribute("dtype")
        dtype = element(call, code) if code else (call.dtype(0) if like else dtypes.float32)
        if uniform:
            low, high = call.attribute("low", 0.0), call.attribute("high", 1.0)
            found = Tensor.rand(*shape, device=call.device) * (high - low) + low
        else:
            mean, scale = call.attribute("mean", 0.0), call.attribute("scale", 1.0)
            found = Tensor.randn(*shape, device=call.device) * scale + mean
        return found.cast(dtype)

    return run


def _bernoulli(call: NodeCall) -> Result:
    x, code = call[0], call.attribute("dtype")
    drawn = Tensor.rand(*x.shape, device=x.device) < x
    return drawn.cast(element(call, code) if code else x.dtype)


def _multinomial(call: NodeCall) -> Result:
    dtype = element(call, call.attribute("dtype", 6))
    return call[0].softmax(-1).multinomial(call.attribute("sample_size", 1), True).cast(dtype)


# --- steps of optimisers --------------------------------------------------------------------------


def _stepped(states: int, step: Callable[..., tuple[Tensor, ...]]) -> Function:
    """Inputs: rate, count, then all values, all gradients, all of each state."""

    def run(call: NodeCall) -> Result:
        rate, count = call[0], call[1]
        each = (len(call.inputs) - 2) // (2 + states)
        groups = []
        for at in range(each):
            given = [call[2 + at + each * part] for part in range(2 + states)]
            groups.append(step(call, rate, count, *given))
        return tuple(one for parts in zip(*groups, strict=True) for one in parts)

    return run


def _adagrad(
    call: NodeCall, rate: Tensor, count: Tensor, x: Tensor, gradient: Tensor, squares: Tensor
) -> tuple[Tensor, ...]:
    rate = rate / (1 + count.cast(rate.dtype) * call.attribute("decay_factor", 0.0))
    gradient = gradient + x * call.attribute("norm_coefficient", 0.0)
    squares = squares + gradient.square()
    return x - rate * gradient / (squares.sqrt() + call.attribute("epsilon", 0.0)), squares


def _adam(
    call: NodeCall, rate: Tensor, count: Tensor, x: Tensor, gradient: Tensor, mean: Tensor,
    squares: Tensor,
) -> tuple[Tensor, ...]:
    alpha, beta = call.attribute("alpha", 0.9), call.attribute("beta", 0.999)
    gradient = gradient + x * call.attribute("norm_coefficient", 0.0)
    mean = alpha * mean + (1 - alpha) * gradient
    squares = beta * squares + (1 - beta) * gradient.square()
    power = count.cast(rate.dtype)
    exact = (1 - (power * math.log(beta)).exp()).sqrt() / (1 - (power * math.log(alpha)).exp())
    rate = rate * (count > 0).where(exact, 1.0)
    made = x - rate * mean / (squares.sqrt() + call.attribute("epsilon", 1e-6))
    return made * (1 - call.attribute("norm_coefficient_post", 0.0)), mean, squares


def _momentum(
    call: NodeCall, rate: Tensor, count: Tensor, x: Tensor, gradient: Tensor, kept: Tensor
) -> tuple[Tensor, ...]:
    alpha, beta = call.wanted("alpha"), call.wanted("beta")
    gradient = gradient + x * call.attribute("norm_coefficient", 0.0)
    kept = alpha * kept + gradient * (count > 0).where(beta, 1.0)
    step = gradient + alpha * kept if call.wanted("mode") == "nesterov" else kept
    return x - rate * step, kept


OPERATORS = MappingProxyType({
    **standard({
        "DFT": _dft, "STFT": _stft, "HannWindow": _window(0.5, -0.5),
        "HammingWindow": _window(25 / 46, -21 / 46), "BlackmanWindow": _window(0.42, -0.5, 0.08),
        "MelWeightMatrix": _mel_weights,
        "RandomNormal": _drawn(False, False), "RandomNormalLike": _drawn(False, True),
        "RandomUniform": _drawn(True, False), "RandomUniformLike": _drawn(True, True),
        "Bernoulli": _bernoulli, "Multinomial": _multinomial,
    }),
    **of_domain("ai.onnx.preview.training", {
        "Adagrad": _stepped(1, _adagrad), "Adam": _stepped(2, _adam),
        "Momentum": _stepped(1, _momentum),
    }),
})  # fmt: skip

"""The largest of windows that lie anywhere, and where it was: fractional, adaptive pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.ops.convolution import per_axis

PerAxis = int | Sequence[int]


def largest_of(
    x: Tensor, places: Sequence[Tensor], valid: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The largest of each window of the last axes, and its place among all their elements.

    places: for each of these axes the window's places along it (..., windows, width), of which
    `valid` says whether they count.
    """
    count = len(places)
    lead, sizes = x.shape[:-count], x.shape[-count:]
    flat, kept = None, None
    for axis, along in enumerate(places):
        shape = [1] * (2 * count)
        shape[axis], shape[count + axis] = along.shape[-2:]
        whole = (*along.shape[:-2], *shape)
        step = (along * math.prod(sizes[axis + 1 :])).reshape(whole)
        flat = step if flat is None else flat + step
        if valid is not None:
            here = valid[axis].reshape(whole)
            kept = here if kept is None else kept & here
    assert flat is not None
    windows = flat.shape[-2 * count : -count]
    flat = flat.flatten(-count).expand(*lead, *windows, -1)
    values = x.flatten(-count).gather(-1, flat.flatten(len(lead))).reshape(flat.shape)
    if kept is not None:
        values = kept.flatten(-count).where(values, -math.inf)
    best = values.argmax(-1, keepdim=True)
    return values.gather(-1, best).squeeze(-1), flat.gather(-1, best).squeeze(-1)


def largest_of_shares(x: Tensor, count: int, output_size: Any) -> tuple[Tensor, Tensor]:
    """Adaptive pooling: the largest of as many parts of the last axes as wanted, and its place."""
    given = [output_size] * count if isinstance(output_size, int | None) else list(output_size)
    if len(given) != count or x.ndim <= count:
        raise ShapeError("a size for each pooled axis", found=f"{output_size}, {list(x.shape)}")
    if any(wanted is not None and wanted < 1 for wanted in given):
        raise ShapeError("one part of each pooled axis or more", found=output_size)
    places, valid = [], []
    for size, wanted in zip(x.shape[-count:], given, strict=True):
        parts = np.arange(size if wanted is None else wanted)
        first = parts * size // len(parts)
        last = -((-(parts + 1) * size) // len(parts))
        along = first[:, None] + np.arange((last - first).max())
        places.append(Tensor(np.minimum(along, size - 1), device=x.device))
        valid.append(Tensor(along < last[:, None], device=x.device))
    return largest_of(x, places, valid)


@explained
def conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """Return the convolution along time of x (T, N, C) by a weight (taps, C, outputs)."""
    found = x.permute(1, 2, 0).conv1d(weight.permute(2, 1, 0), bias, padding=pad)
    return found.permute(2, 0, 1)


def _fractional(
    x: Tensor, count: int, kernel_size: PerAxis, output_size: Any, output_ratio: Any,
    return_indices: bool, samples: Tensor | None,
) -> Any:
    taps = per_axis(kernel_size, count, "kernel_size")
    if (output_size is None) == (output_ratio is None):
        raise ArgumentError("output_size or output_ratio is given",
                            found="neither" if output_size is None else "both")  # fmt: skip
    if x.ndim not in (count + 1, count + 2):
        raise ShapeError("an input (N, C, ...) or (C, ...)", found=list(x.shape))
    sizes = x.shape[-count:]
    if output_size is None:
        is_one = isinstance(output_ratio, int | float)
        shares = [output_ratio] * count if is_one else list(output_ratio)
        if len(shares) != count or not all(0 < share < 1 for share in shares):
            raise ArgumentError("a ratio between 0 and 1 for each axis", found=output_ratio)
        output_size = [int(size * share) for size, share in zip(sizes, shares, strict=True)]
    wanted = per_axis(output_size, count, "output_size")
    for size, tap, out in zip(sizes, taps, wanted, strict=True):
        if out < 1 or out + tap - 1 > size:
            raise ShapeError("windows that have room in the input", found=f"{out} of {tap}",
                             wanted=f"at most {size - tap + 1}")  # fmt: skip
    lead = (1,) * (count + 2 - x.ndim) + x.shape[:-count]
    if samples is None:
        samples = Tensor.rand(*lead, count, dtype=x.dtype, device=x.device)
    elif samples.shape != (*lead, count):
        raise ShapeError("a sample for each channel and axis", found=list(samples.shape),
                         wanted=[*lead, count])  # fmt: skip
    # PyTorch's last sample is for the first of two axes, but in order for three.
    order = range(count) if count == 3 else reversed(range(count))
    places = [
        _starts(samples[..., which], size, tap, out).unsqueeze(-1)
        + Tensor.arange(tap, device=x.device)
        for which, size, tap, out in zip(order, sizes, taps, wanted, strict=True)
    ]
    single = x.ndim == count + 1
    found, indices = largest_of(x.unsqueeze(0) if single else x, places)
    if single:
        found, indices = found.squeeze(0), indices.squeeze(0)
    return (found, indices) if return_indices else found


def _starts(sample: Tensor, size: int, tap: int, out: int) -> Tensor:
    """Where windows begin along an axis: steps of a mean length, rounded from a random start."""
    step = np.float64 if sample.dtype is dtypes.float64 else np.float32
    last = Tensor.full((*sample.shape, 1), size - tap, dtype=dtypes.int64, device=sample.device)
    if out == 1:
        return last
    share = float(step(size - tap) / step(out - 1))
    place = Tensor.arange(out - 1, dtype=sample.dtype, device=sample.device)
    first = sample.unsqueeze(-1)
    start = ((place + first) * share).trunc() - (first * share).trunc()
    return Tensor.cat([start.cast(dtypes.int64), last], dim=-1)


@explained
def fractional_max_pool2d(
    x: Tensor, kernel_size: PerAxis, output_size: PerAxis | None = None,
    output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """Return the largest of windows at random steps of a mean length: (N, C, H, W).

    output_size, or output_ratio of the input's: how many. _random_samples: (N, C, 2) in [0, 1).
    Source: B. Graham, "Fractional max-pooling", 2014.
    """
    return _fractional(
        x, 2, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


@explained
def fractional_max_pool3d(
    x: Tensor, kernel_size: PerAxis, output_size: PerAxis | None = None,
    output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """Return the largest of windows at random steps of a mean length: (N, C, D, H, W).

    _random_samples: (N, C, 3) in [0, 1); see `fractional_max_pool2d`.
    """
    return _fractional(
        x, 3, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )

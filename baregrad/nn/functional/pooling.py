"""Pooling by power means, its reverse, adaptive pooling, and normalisation across channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.nn.functional.windows import largest_of_shares
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.ops.convolution import per_axis
from baregrad.tensor.ops.pooling import adaptive_avg_pool, adaptive_max_pool

PerAxis = int | Sequence[int]
Sizes = int | Sequence[int | None] | None


@explained
def adaptive_avg_pool3d(x: Tensor, output_size: Sizes) -> Tensor:
    """Return the mean of parts of the last three axes, as many as `output_size` says."""
    return adaptive_avg_pool(x, 3, output_size)


def _adaptive_max(x: Tensor, count: int, output_size: Sizes, return_indices: bool) -> Any:
    if return_indices:
        return largest_of_shares(x, count, output_size)
    return adaptive_max_pool(x, count, output_size)


@explained
def adaptive_max_pool1d(x: Tensor, output_size: int, return_indices: bool = False) -> Any:
    """Return the largest of parts of the last axis, as many as `output_size` says.

    With `return_indices` also where each was found, as `max_pool1d` counts.
    """
    return _adaptive_max(x, 1, output_size, return_indices)


@explained
def adaptive_max_pool2d(x: Tensor, output_size: Sizes, return_indices: bool = False) -> Any:
    """Return the largest of parts of the last two axes, as many as `output_size` says.

    With `return_indices` also where each was found, as `max_pool2d` counts.
    """
    return _adaptive_max(x, 2, output_size, return_indices)


@explained
def adaptive_max_pool3d(x: Tensor, output_size: Sizes, return_indices: bool = False) -> Any:
    """Return the largest of parts of the last three axes, as many as `output_size` says.

    With `return_indices` also where each was found, as `max_pool3d` counts.
    """
    return _adaptive_max(x, 3, output_size, return_indices)


def _power_mean(
    x: Tensor, count: int, norm_type: float, kernel_size: PerAxis, stride: PerAxis | None,
    ceil_mode: bool,
) -> Tensor:
    """The windows' sums of x**p, to the power 1/p; windows that stick out count as whole ones."""
    pool = (Tensor.avg_pool1d, Tensor.avg_pool2d, Tensor.avg_pool3d)[count - 1]
    taps = per_axis(kernel_size, count, "kernel_size")
    mean = pool(x.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    total = 1
    for tap in taps:
        total *= tap
    return (mean.sign() * mean.abs().relu() * total).pow(1.0 / norm_type)


@explained
def lp_pool1d(
    x: Tensor, norm_type: float, kernel_size: int, stride: int | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Return each window's (sum of x**p)**(1/p): (N, C, L) -> (N, C, L')."""
    return _power_mean(x, 1, norm_type, kernel_size, stride, ceil_mode)


@explained
def lp_pool2d(
    x: Tensor, norm_type: float, kernel_size: PerAxis, stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Return each window's (sum of x**p)**(1/p): (N, C, H, W) -> (N, C, H', W')."""
    return _power_mean(x, 2, norm_type, kernel_size, stride, ceil_mode)


@explained
def lp_pool3d(
    x: Tensor, norm_type: float, kernel_size: PerAxis, stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Return each window's (sum of x**p)**(1/p): (N, C, D, H, W) -> (N, C, D', H', W')."""
    return _power_mean(x, 3, norm_type, kernel_size, stride, ceil_mode)


def _unpool(
    x: Tensor, indices: Tensor, count: int, kernel_size: PerAxis, stride: PerAxis | None,
    padding: PerAxis, output_size: Sequence[int] | None,
) -> Tensor:
    """Values at the places that pooling found them at, and zeros elsewhere."""
    if x.shape != indices.shape or x.ndim not in (count + 1, count + 2):
        raise ShapeError("values have a place each", found=f"{list(x.shape)}, "
                         f"{list(indices.shape)}", wanted=f"{count + 1} or {count + 2} axes")
    taps = per_axis(kernel_size, count, "kernel_size")
    steps = taps if stride is None else per_axis(stride, count, "stride")
    edges = per_axis(padding, count, "padding")
    lead, own = x.shape[:-count], x.shape[-count:]
    if output_size is None:
        sizes = [(n - 1) * step + tap - 2 * edge
                 for n, step, tap, edge in zip(own, steps, taps, edges, strict=True)]
    else:
        sizes = list(output_size)[-count:]
        if len(sizes) != count:
            raise ArgumentError("a size for each axis", found=output_size, wanted=count)
    area = 1
    for size in sizes:
        area *= size
    blank = Tensor.zeros(*lead, area, dtype=x.dtype, device=x.device)
    filled = blank.scatter(-1, indices.flatten(-count), x.flatten(-count))
    return filled.reshape(*lead, *sizes)


@explained
def max_unpool1d(
    x: Tensor, indices: Tensor, kernel_size: int, stride: int | None = None, padding: int = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Return values put back where `max_pool1d` found them, zeros elsewhere."""
    return _unpool(x, indices, 1, kernel_size, stride, padding, output_size)


@explained
def max_unpool2d(
    x: Tensor, indices: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None,
    padding: PerAxis = 0, output_size: Sequence[int] | None = None,
) -> Tensor:
    """Return values put back where `max_pool2d` found them, zeros elsewhere."""
    return _unpool(x, indices, 2, kernel_size, stride, padding, output_size)


@explained
def max_unpool3d(
    x: Tensor, indices: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None,
    padding: PerAxis = 0, output_size: Sequence[int] | None = None,
) -> Tensor:
    """Return values put back where `max_pool3d` found them, zeros elsewhere."""
    return _unpool(x, indices, 3, kernel_size, stride, padding, output_size)


@explained
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Return (N, C, ...) divided by (k + alpha * mean of squares of `size` channels) ** beta.

    The mean is over the channels about each, those that are not there being zeros.
    """
    if x.ndim < 3:
        raise ShapeError("channels are the second of three axes or more", found=list(x.shape))
    squares = (x * x).movedim(1, -1)
    about = squares.pad((size // 2, (size - 1) // 2)).unfold(-1, size, 1).mean(-1)
    return x / (about.movedim(-1, 1) * alpha + k).pow(beta)

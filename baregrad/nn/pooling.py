"""Pooling layers. The stride is the window's size unless given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.ops.pooling import adaptive_avg_pool, adaptive_max_pool

PerAxis = int | Sequence[int]


class _MaxPool(Module):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.ceil_mode = ceil_mode

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool1d(_MaxPool):
    """The highest of each window: (N, C, L) -> (N, C, L')."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the highest of each window."""
        found = x.max_pool1d(
            self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )
        return cast(Tensor, found)


class MaxPool2d(_MaxPool):
    """The highest of each window: (N, C, H, W) -> (N, C, H', W')."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the highest of each window."""
        found = x.max_pool2d(
            self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )
        return cast(Tensor, found)


class MaxPool3d(_MaxPool):
    """The highest of each window: (N, C, D, H, W) -> (N, C, D', H', W')."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the highest of each window."""
        found = x.max_pool3d(
            self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )
        return cast(Tensor, found)


class _AvgPool(Module):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """The mean of each window: (N, C, L) -> (N, C, L')."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of each window."""
        return x.avg_pool1d(
            self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class AvgPool2d(_AvgPool):
    """The mean of each window: (N, C, H, W) -> (N, C, H', W')."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of each window."""
        return x.avg_pool2d(
            self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class AvgPool3d(_AvgPool):
    """The mean of each window: (N, C, D, H, W) -> (N, C, D', H', W')."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of each window."""
        return x.avg_pool3d(
            self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class AdaptiveAvgPool1d(Module):
    """The means of as many windows as wanted: (N, C, L) -> (N, C, output_size)."""

    def __init__(self, output_size: int) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """Return the means."""
        return x.adaptive_avg_pool1d(self.output_size)


class _AdaptivePool(Module):
    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        self.output_size = output_size


class AdaptiveMaxPool2d(_AdaptivePool):
    """The highest of as many windows as wanted: (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the highest of each window."""
        return x.adaptive_max_pool2d(self.output_size)


class AdaptiveMaxPool1d(_AdaptivePool):
    """The highest of as many windows as wanted: (N, C, L) -> (N, C, output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the highest of each window."""
        return adaptive_max_pool(x, 1, self.output_size)


class AdaptiveMaxPool3d(_AdaptivePool):
    """The highest of as many windows as wanted: (N, C, D, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the highest of each window."""
        return adaptive_max_pool(x, 3, self.output_size)


class AdaptiveAvgPool3d(_AdaptivePool):
    """The means of as many windows as wanted: (N, C, D, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the means."""
        return adaptive_avg_pool(x, 3, self.output_size)


class Upsample(Module):
    """(N, C, ...) made larger or smaller; mode: nearest, nearest-exact, area, or a linear one."""

    def __init__(
        self,
        size: PerAxis | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners

    def forward(self, x: Tensor) -> Tensor:
        """Return the resized maps. Raises what `Tensor.interpolate` does."""
        return x.interpolate(self.size, self.scale_factor, self.mode, self.align_corners)


class PixelShuffle(Module):
    """(..., C*r*r, H, W) as (..., C, H*r, W*r), where r is upscale_factor."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps with channels as pixels. Raises ShapeError for other channels."""
        return x.pixel_shuffle(self.upscale_factor)


class AdaptiveAvgPool2d(_AdaptivePool):
    """The means of as many windows as wanted: (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the means."""
        return x.adaptive_avg_pool2d(self.output_size)

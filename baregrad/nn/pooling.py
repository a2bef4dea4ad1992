"""Pooling and resampling layers. A window's stride is its size unless given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from baregrad.nn import functional
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.ops.pooling import adaptive_avg_pool

PerAxis = int | Sequence[int]


class _MaxPool(Module):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        dilation: PerAxis = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        self.return_indices = return_indices
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

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and its place if `return_indices`."""
        return x.max_pool1d(
            self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )


class MaxPool2d(_MaxPool):
    """The highest of each window: (N, C, H, W) -> (N, C, H', W')."""

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and its place if `return_indices`."""
        return x.max_pool2d(
            self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )


class MaxPool3d(_MaxPool):
    """The highest of each window: (N, C, D, H, W) -> (N, C, D', H', W')."""

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and its place if `return_indices`."""
        return x.max_pool3d(
            self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )


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


class _AdaptiveMaxPool(_AdaptivePool):
    output_size: Any

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The highest of as many windows as wanted: (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and with `return_indices` where it was found."""
        return functional.adaptive_max_pool2d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The highest of as many windows as wanted: (N, C, L) -> (N, C, output_size)."""

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and with `return_indices` where it was found."""
        return functional.adaptive_max_pool1d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The highest of as many windows as wanted: (N, C, D, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and with `return_indices` where it was found."""
        return functional.adaptive_max_pool3d(x, self.output_size, self.return_indices)


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


class PixelUnshuffle(Module):
    """(..., C, H*r, W*r) as (..., C*r*r, H, W), where r is downscale_factor."""

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps with blocks of pixels as channels. Raises ShapeError."""
        return functional.pixel_unshuffle(x, self.downscale_factor)


class ChannelShuffle(Module):
    """The channels of `groups` groups of (N, C, ...) dealt out in turn."""

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps in another order. Raises ShapeError."""
        return functional.channel_shuffle(x, self.groups)


class UpsamplingNearest2d(Upsample):
    """(N, C, H, W) resampled to the nearest elements."""

    def __init__(
        self, size: PerAxis | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """(N, C, H, W) resampled bilinearly, first and last samples falling together."""

    def __init__(
        self, size: PerAxis | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class LocalResponseNorm(Module):
    """(N, C, ...) divided by (k + alpha * mean of squares of `size` channels) ** beta."""

    def __init__(
        self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> None:
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised maps. Raises ShapeError for fewer than three axes."""
        return functional.local_response_norm(x, self.size, self.alpha, self.beta, self.k)


class _PowerPool(Module):
    _AXES: ClassVar[int]

    def __init__(
        self, norm_type: float, kernel_size: PerAxis, stride: PerAxis | None = None,
        ceil_mode: bool = False,
    ) -> None:
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        """Return each window's (sum of x**p)**(1/p)."""
        pools: Any = (functional.lp_pool1d, functional.lp_pool2d, functional.lp_pool3d)
        found: Tensor = pools[self._AXES - 1](
            x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode
        )
        return found


class LPPool1d(_PowerPool):
    """The power mean of each window: (N, C, L) -> (N, C, L')."""

    _AXES = 1


class LPPool2d(_PowerPool):
    """The power mean of each window: (N, C, H, W) -> (N, C, H', W')."""

    _AXES = 2


class LPPool3d(_PowerPool):
    """The power mean of each window: (N, C, D, H, W) -> (N, C, D', H', W')."""

    _AXES = 3


class _Unpool(Module):
    _AXES: ClassVar[int]

    def __init__(
        self, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def forward(
        self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        """Return values at the places that pooling found them at. Raises ShapeError."""
        put: Any = (functional.max_unpool1d, functional.max_unpool2d, functional.max_unpool3d)
        found: Tensor = put[self._AXES - 1](
            x, indices, self.kernel_size, self.stride, self.padding, output_size
        )
        return found


class MaxUnpool1d(_Unpool):
    """Values put back where MaxPool1d found them, zeros elsewhere."""

    _AXES = 1


class MaxUnpool2d(_Unpool):
    """Values put back where MaxPool2d found them, zeros elsewhere."""

    _AXES = 2


class MaxUnpool3d(_Unpool):
    """Values put back where MaxPool3d found them, zeros elsewhere."""

    _AXES = 3


class _FractionalMaxPool(Module):
    def __init__(
        self,
        kernel_size: PerAxis,
        output_size: PerAxis | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        self.kernel_size = kernel_size
        self.output_size = output_size
        self.output_ratio = output_ratio
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)


class FractionalMaxPool2d(_FractionalMaxPool):
    """The highest of windows at random steps: (N, C, H, W); `output_size` of them, or a ratio."""

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and with `return_indices` where it was found."""
        return functional.fractional_max_pool2d(
            x, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
            self._random_samples,
        )


class FractionalMaxPool3d(_FractionalMaxPool):
    """The highest of windows at random steps: (N, C, D, H, W), see `FractionalMaxPool2d`."""

    def forward(self, x: Tensor) -> Any:
        """Return the highest of each window, and with `return_indices` where it was found."""
        return functional.fractional_max_pool3d(
            x, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
            self._random_samples,
        )

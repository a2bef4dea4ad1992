"""Convolution layers, plain and transposed. Weights begin uniform within 1/sqrt(fan-in) of 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.nn import init
from baregrad.nn.init import begin, redraw
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.ops.convolution import per_axis

PerAxis = int | Sequence[int]


class _Convolution(Module):
    """What convolutions over any number of axes share."""

    _AXES = 0
    _TRANSPOSED = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis,
        padding: PerAxis | str,
        groups: int,
        bias: bool,
        dilation: PerAxis,
        device: str | None,
        dtype: object,
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(
                "channels divide into groups",
                found=f"{in_channels} in, {out_channels} out, {groups} groups",
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = per_axis(kernel_size, self._AXES, "kernel_size")
        self.stride = per_axis(stride, self._AXES, "stride")
        self.dilation = per_axis(dilation, self._AXES, "dilation")
        self.padding: tuple[int, ...] | str = (
            padding if isinstance(padding, str) else per_axis(padding, self._AXES, "padding")
        )
        self.groups = groups
        first, second = (
            (in_channels, out_channels) if self._TRANSPOSED else (out_channels, in_channels)
        )
        fan = second // groups * math.prod(self.kernel_size)
        self.weight = init.drawn(
            first, second // groups, *self.kernel_size, fan=fan, dtype=dtype, device=device
        )
        self.bias = (
            init.drawn(out_channels, fan=fan, dtype=dtype, device=device) if bias else None
        )
        begin(self, _Convolution)

    def reset_parameters(self) -> None:
        """Draw first values anew."""
        redraw(init.fans(self.weight)[0], self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the settings."""
        facts = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{facts}, stride={self.stride}, padding={self.padding}"


class _Plain(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis | str = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, groups, bias, dilation,
            device, dtype,
        )
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ArgumentError(
                "padding_mode is 'zeros', 'reflect', 'replicate' or 'circular'",
                found=repr(padding_mode),
            )
        self.padding_mode = padding_mode

    def _surrounded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...] | str]:
        """What the windows slide over, and the padding with zeros that it still wants."""
        if self.padding_mode == "zeros" or self.padding == "valid":
            return x, self.padding
        edges: list[int] = []
        for axis in reversed(range(self._AXES)):
            if isinstance(self.padding, str):
                both = self.dilation[axis] * (self.kernel_size[axis] - 1)
                edges += [both // 2, both - both // 2]
            else:
                edges += [self.padding[axis]] * 2
        return x.pad(edges, self.padding_mode), (0,) * self._AXES


class Conv1d(_Plain):
    """Cross-correlation (N, C, L) -> (N, O, L') with a weight (O, C/groups, K)."""

    _AXES = 1

    def forward(self, x: Tensor) -> Tensor:
        """Return the cross-correlation. Raises ShapeError for other channels."""
        x, padding = self._surrounded(x)
        return x.conv1d(
            self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class Conv2d(_Plain):
    """Cross-correlation (N, C, H, W) -> (N, O, H', W') with a weight (O, C/groups, K, L)."""

    _AXES = 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the cross-correlation. Raises ShapeError for other channels."""
        x, padding = self._surrounded(x)
        return x.conv2d(
            self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class Conv3d(_Plain):
    """Cross-correlation (N, C, D, H, W) -> (N, O, D', H', W'), weight (O, C/groups, K, L, M)."""

    _AXES = 3

    def forward(self, x: Tensor) -> Tensor:
        """Return the cross-correlation. Raises ShapeError for other channels."""
        x, padding = self._surrounded(x)
        return x.conv3d(
            self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class _Transposed(_Convolution):
    _TRANSPOSED = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis = 0,
        output_padding: PerAxis = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: PerAxis = 1,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, groups, bias, dilation,
            device, dtype,
        )
        self.edges = per_axis(padding, self._AXES, "padding")
        self.output_padding = per_axis(output_padding, self._AXES, "output_padding")


class ConvTranspose1d(_Transposed):
    """The adjoint of Conv1d: (N, C, L) -> (N, O, L') with a weight (C, O/groups, K)."""

    _AXES = 1

    def forward(self, x: Tensor) -> Tensor:
        """Return the transposed convolution. Raises ShapeError for other channels."""
        return x.conv_transpose1d(
            self.weight, self.bias, self.stride, self.edges, self.output_padding, self.groups,
            self.dilation,
        )


class ConvTranspose2d(_Transposed):
    """The adjoint of Conv2d: (N, C, H, W) -> (N, O, H', W'), weight (C, O/groups, K, L)."""

    _AXES = 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the transposed convolution. Raises ShapeError for other channels."""
        return x.conv_transpose2d(
            self.weight, self.bias, self.stride, self.edges, self.output_padding, self.groups,
            self.dilation,
        )


class ConvTranspose3d(_Transposed):
    """The adjoint of Conv3d: (N, C, D, H, W) -> (N, O, D', H', W'), weight (C, O/groups, ...)."""

    _AXES = 3

    def forward(self, x: Tensor) -> Tensor:
        """Return the transposed convolution. Raises ShapeError for other channels."""
        return x.conv_transpose3d(
            self.weight, self.bias, self.stride, self.edges, self.output_padding, self.groups,
            self.dilation,
        )

"""Modules that put more around the last axes, and windows as columns."""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.base.errors import ShapeError
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import plain
from baregrad.tensor.ops.convolution import PerAxis


class _Pad(Module):
    """What paddings share. padding: a number, or (before, after) of the last axis, then others."""

    _AXES = 0
    _MODE = "constant"

    def __init__(self, padding: int | Sequence[int]) -> None:
        count, padding = 2 * self._AXES, plain(padding)
        self.padding = (padding,) * count if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != count:
            raise ShapeError(
                "there is an amount before and after each axis", found=list(self.padding),
                wanted=f"one number, or {count}",
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with more around it. Raises ShapeError for amounts that there cannot be."""
        return x.pad(self.padding, self._MODE)

    def extra_repr(self) -> str:
        """Return the settings."""
        return str(self.padding)


class ConstantPad1d(_Pad):
    """One value around the last axis."""

    _AXES = 1

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with the value around it."""
        return x.pad(self.padding, "constant", self.value)


class ConstantPad2d(ConstantPad1d):
    """One value around the last two axes."""

    _AXES = 2


class ConstantPad3d(ConstantPad1d):
    """One value around the last three axes."""

    _AXES = 3


class ZeroPad1d(_Pad):
    """Zeros around the last axis."""

    _AXES = 1


class ZeroPad2d(_Pad):
    """Zeros around the last two axes."""

    _AXES = 2


class ZeroPad3d(_Pad):
    """Zeros around the last three axes."""

    _AXES = 3


class ReflectionPad1d(_Pad):
    """The last axis as in mirrors at its first and last element."""

    _AXES = 1
    _MODE = "reflect"


class ReflectionPad2d(_Pad):
    """The last two axes as in mirrors at their first and last elements."""

    _AXES = 2
    _MODE = "reflect"


class ReflectionPad3d(_Pad):
    """The last three axes as in mirrors at their first and last elements."""

    _AXES = 3
    _MODE = "reflect"


class ReplicationPad1d(_Pad):
    """The first and last element of the last axis again and again."""

    _AXES = 1
    _MODE = "replicate"


class ReplicationPad2d(_Pad):
    """The first and last elements of the last two axes again and again."""

    _AXES = 2
    _MODE = "replicate"


class ReplicationPad3d(_Pad):
    """The first and last elements of the last three axes again and again."""

    _AXES = 3
    _MODE = "replicate"


class CircularPad1d(_Pad):
    """The last axis as one period."""

    _AXES = 1
    _MODE = "circular"


class CircularPad2d(_Pad):
    """The last two axes as one period each."""

    _AXES = 2
    _MODE = "circular"


class CircularPad3d(_Pad):
    """The last three axes as one period each."""

    _AXES = 3
    _MODE = "circular"


class Unfold(Module):
    """The windows of images as columns: (N, C, H, W) -> (N, C*K*L, windows)."""

    def __init__(
        self, kernel_size: PerAxis, dilation: PerAxis = 1, padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return the columns. Raises ShapeError for windows larger than the padded images."""
        return x.im2col(self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Module):
    """The images whose windows are columns, summed where they overlap: `Unfold`'s adjoint."""

    def __init__(
        self, output_size: PerAxis, kernel_size: PerAxis, dilation: PerAxis = 1,
        padding: PerAxis = 0, stride: PerAxis = 1,
    ) -> None:
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return the images (N, C, *output_size). Raises ShapeError for other columns."""
        return x.col2im(
            self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

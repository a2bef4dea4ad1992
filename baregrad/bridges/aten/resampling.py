"""Operators that resample: to a size, at places of a grid, and averages of equal parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.bridges.aten.layers import gradients, leaf
from baregrad.nn.functional import adaptive_avg_pool3d, grid_sample
from baregrad.tensor import Tensor

_SAMPLED = ("bilinear", "nearest", "bicubic")
_OUTSIDE = ("zeros", "border", "reflection")


def _resampled(
    x: Tensor, size: Sequence[int], mode: str, corners: bool | None, factors: Sequence[Any]
) -> Tensor:
    """`x` at a size; places go by the factors where PyTorch was given them."""
    if all(one is not None for one in factors) and factors:
        made = x.interpolate(scale_factor=tuple(factors), mode=mode, align_corners=corners)
        if tuple(made.shape[2:]) == tuple(size):
            return made
    return x.interpolate(size=tuple(size), mode=mode, align_corners=corners)


def _to_size(mode: str, linear: bool) -> Callable[..., Tensor]:
    def of(x: Tensor, size: Sequence[int], *rest: Any) -> Tensor:
        corners = bool(rest[0]) if linear else None
        return _resampled(x, size, mode, corners, rest[linear:])

    return of


def _to_size_or_by_factor(mode: str, linear: bool) -> Callable[..., Tensor]:
    def of(x: Tensor, size: Sequence[int] | None, *rest: Any) -> Tensor:
        corners = bool(rest[0]) if linear else None
        if size is not None:
            return _resampled(x, size, mode, corners, ())
        return x.interpolate(scale_factor=tuple(rest[-1]), mode=mode, align_corners=corners)

    return of


def _to_size_backward(mode: str, linear: bool) -> Callable[..., Tensor]:
    forward = _to_size(mode, linear)

    def of(grad: Tensor, size: Sequence[int], before: Sequence[int], *rest: Any) -> Tensor:
        x = leaf(Tensor.zeros(*before, dtype=grad.dtype, device=grad.device))
        return gradients(forward(x, size, *rest), [x], grad)[0]

    return of


def _at_grid(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    return grid_sample(x, grid, _SAMPLED[mode], _OUTSIDE[padding], corners)


def _at_grid_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    x, grid = leaf(x), leaf(grid)
    asked = [one for one, is_asked in zip((x, grid), wanted, strict=True) if is_asked]
    found = iter(gradients(_at_grid(x, grid, mode, padding, corners), asked, grad))
    of_x, of_grid = (next(found) if is_asked else None for is_asked in wanted)
    return of_x, of_grid


def _parts_of_space(x: Tensor, size: Sequence[int]) -> Tensor:
    return adaptive_avg_pool3d(x, tuple(size))


def _parts_of_space_backward(grad: Tensor, x: Tensor) -> Tensor:
    x = leaf(x)
    return gradients(_parts_of_space(x, list(grad.shape[-3:])), [x], grad)[0]


# PyTorch's operator, our name of the way, and whether it is told of corners.
_SIZED = (
    ("upsample_nearest1d", "nearest", False), ("upsample_nearest2d", "nearest", False),
    ("upsample_nearest3d", "nearest", False), ("_upsample_nearest_exact1d", "nearest-exact", False),
    ("_upsample_nearest_exact2d", "nearest-exact", False),
    ("_upsample_nearest_exact3d", "nearest-exact", False), ("upsample_linear1d", "linear", True),
    ("upsample_bilinear2d", "bilinear", True), ("upsample_trilinear3d", "trilinear", True),
    ("upsample_bicubic2d", "bicubic", True),
)

RESAMPLING: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    **{f"{name}.default": _to_size(mode, linear) for name, mode, linear in _SIZED},
    **{f"{name}.vec": _to_size_or_by_factor(mode, linear) for name, mode, linear in _SIZED},
    **{f"{name}_backward": _to_size_backward(mode, linear) for name, mode, linear in _SIZED},
    "grid_sampler_2d": _at_grid, "grid_sampler_2d_backward": _at_grid_backward,
    "grid_sampler_3d": _at_grid, "grid_sampler_3d_backward": _at_grid_backward,
    "_adaptive_avg_pool3d": _parts_of_space,
    "_adaptive_avg_pool3d_backward": _parts_of_space_backward,
})

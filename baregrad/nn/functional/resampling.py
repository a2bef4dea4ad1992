"""Sampling an image at any places, and moving blocks between channels and space."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained

PerAxis = int | Sequence[int]


@explained
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """Return where a sample of `size` (N, C, H, W) lies under theta (N, 2, 3): (N, H, W, 2).

    Places are from -1 to 1, x first; with theta (N, 3, 4) and five sizes, in space.
    """
    count = len(size) - 2
    if count not in (2, 3) or theta.shape != (size[0], count, count + 1):
        raise ShapeError("a map of the plane or of space for each sample", found=list(theta.shape),
                         wanted=f"[{size[0]}, {count}, {count + 1}]")
    lines = []
    for extent in size[2:]:
        share = 1.0 if align_corners else (extent - 1) / extent
        line = Tensor.linspace(-share, share, extent, dtype=theta.dtype, device=theta.device)
        lines.append(line * 0 if extent == 1 else line)
    grid = list(Tensor.meshgrid(*lines, indexing="ij"))[::-1]
    base = Tensor.stack([*grid, grid[0].ones_like()], dim=-1).reshape(1, -1, count + 1)
    return base.matmul(theta.transpose(1, 2)).reshape(size[0], *size[2:], count)


@explained
def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Return (N, C, H, W) sampled at places (N, H', W', 2) from -1 to 1, x first.

    mode: bilinear, nearest or, in the plane, bicubic; padding_mode: what lies outside is zeros, the
    border, or reflected. In space grids have three numbers. Raises ShapeError, ArgumentError.
    """
    count = x.ndim - 2
    if count not in (2, 3) or grid.ndim != x.ndim or grid.shape[-1] != count \
            or grid.shape[0] != x.shape[0]:
        raise ShapeError("a grid of places for each sample", found=f"{list(x.shape)}, "
                         f"{list(grid.shape)}", wanted="(N, C, H, W) and (N, H', W', 2)")
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and count == 3):
        raise ArgumentError(f"mode is 'bilinear', 'nearest' or 'bicubic', not {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(f"padding is 'zeros', 'border' or 'reflection', not {padding_mode!r}")
    corners = bool(align_corners)
    sizes = x.shape[2:]
    places = []
    for axis, extent in enumerate(sizes):
        place = grid[..., count - 1 - axis]
        place = (place + 1) / 2 * (extent - 1) if corners else ((place + 1) * extent - 1) / 2
        if mode != "bicubic":
            place = _kept_inside(place, extent, padding_mode, corners)
        places.append(place)
    if mode == "nearest":
        return _picked(x, [place.round() for place in places], padding_mode, corners)
    taps = [_linear_taps(p) if mode == "bilinear" else _cubic_taps(p) for p in places]
    total: Tensor | None = None
    for chosen in itertools.product(*taps):
        weight = chosen[0][1]
        for _, other in chosen[1:]:
            weight = weight * other
        part = _picked(x, [at for at, _ in chosen], padding_mode, corners) * weight.unsqueeze(1)
        total = part if total is None else total + part
    assert total is not None
    return total


def _kept_inside(place: Tensor, extent: int, padding_mode: str, corners: bool) -> Tensor:
    """Places outside an axis moved onto it, as the padding says."""
    if padding_mode == "border":
        return place.clamp(0, extent - 1)
    if padding_mode == "reflection":
        low, high = (0.0, float(extent - 1)) if corners else (-0.5, extent - 0.5)
        span = high - low
        if span == 0:
            return place * 0
        away = (place - low).abs()
        turns = (away / span).floor()
        left = away - turns * span
        back = turns.remainder(2).eq(0).where(left + low, span - left + low)
        return back.clamp(0, extent - 1)
    return place


Tap = tuple[Tensor, Tensor]


def _linear_taps(place: Tensor) -> list[Tap]:
    below = place.detach().floor()
    share = place - below
    return [(below, 1 - share), (below + 1, share)]


def _cubic_taps(place: Tensor) -> list[Tap]:
    """Four neighbours with the weights of cubic convolution, whose free constant is -3/4.

    Source: R. Keys, "Cubic convolution interpolation", 1981.
    """
    below = place.detach().floor()
    t = place - below
    a = -0.75
    weights = (_outer(t + 1, a), _inner(t, a), _inner(1 - t, a), _outer(2 - t, a))
    return [(below + i, weight) for i, weight in zip(range(-1, 3), weights, strict=True)]


def _inner(t: Tensor, a: float) -> Tensor:
    return ((a + 2) * t - (a + 3)) * t * t + 1


def _outer(t: Tensor, a: float) -> Tensor:
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a


def _picked(x: Tensor, at: list[Tensor], padding_mode: str, corners: bool) -> Tensor:
    """The elements of (N, C, H, W) at whole places (N, H', W') of each axis: (N, C, H', W')."""
    batch, channels, *sizes = x.shape
    inside: Tensor | None = None
    flat: Tensor | None = None
    for place, extent in zip(at, sizes, strict=True):
        place = _kept_inside(place, extent, padding_mode, corners).detach()
        within = (place >= 0) & (place <= extent - 1)
        inside = within if inside is None else inside & within
        number = within.where(place, 0).cast("int64")
        flat = number if flat is None else flat * extent + number
    assert flat is not None and inside is not None
    index = flat.reshape(batch, 1, -1).expand(batch, channels, flat[0].numel())
    found = x.flatten(2).gather(2, index).reshape(batch, channels, *flat.shape[1:])
    return inside.unsqueeze(1).where(found, 0.0)


@explained
def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """Return blocks of pixels as channels: (..., C, H*r, W*r) -> (..., C*r*r, H, W)."""
    if x.ndim < 3:
        raise ShapeError("an image has channels", found=list(x.shape), wanted="(..., C, H, W)")
    *lead, channels, height, width = x.shape
    r = downscale_factor
    if r < 1 or height % r or width % r:
        raise ShapeError("blocks divide the image", found=f"{height} x {width} by {r}")
    apart = x.reshape(*lead, channels, height // r, r, width // r, r)
    first = len(lead)
    order = [*range(first + 1), first + 2, first + 4, first + 1, first + 3]
    return apart.permute(*order).reshape(*lead, channels * r * r, height // r, width // r)


@explained
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Return (N, C, ...) with the channels of `groups` groups dealt out in turn."""
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise ShapeError("groups divide the channels", found=f"{list(x.shape)} by {groups}")
    apart = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return apart.transpose(1, 2).reshape(*x.shape)


@explained
def upsample(
    x: Tensor, size: PerAxis | None = None, scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest", align_corners: bool | None = None,
) -> Tensor:
    """Return `interpolate` of the same arguments, which has taken this one's place."""
    return x.interpolate(size, scale_factor, mode, align_corners)


@explained
def upsample_nearest(
    x: Tensor, size: PerAxis | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """Return (N, C, ...) resampled to the nearest elements."""
    return x.interpolate(size, scale_factor, "nearest")


@explained
def upsample_bilinear(
    x: Tensor, size: PerAxis | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """Return (N, C, H, W) resampled bilinearly, first and last samples falling together."""
    return x.interpolate(size, scale_factor, "bilinear", True)

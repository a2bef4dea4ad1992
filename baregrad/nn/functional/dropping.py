"""Dropout: of elements, of channels, and such that mean and variance stay."""

from __future__ import annotations

import math

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.ops.inplace import update

# What SELU tends to far below 0: -scale * alpha (G. Klambauer and others, 2017).
_LOWEST = -1.0507009873554805 * 1.6732632423543772


@explained
def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return `x` with elements zeroed with probability p and the rest times 1/(1 - p)."""
    made = x.dropout(p, training)
    return update(x, made) if inplace and made is not x else made


def _channels(x: Tensor, p: float, training: bool, inplace: bool, axes: int, name: str) -> Tensor:
    if not 0 <= p <= 1:
        raise ArgumentError(f"a probability is from 0 to 1, not {p}")
    if x.ndim == 2 and axes > 1:
        # Channels without places, of which PyTorch says that it is to end.
        made = x.dropout(p, training)
        return update(x, made) if inplace and made is not x else made
    if x.ndim not in (axes + 1, axes + 2):
        raise ShapeError(
            f"{name} wants another number of axes", found=list(x.shape),
            wanted=f"{axes + 2} axes, or {axes + 1} without a batch",
        )
    if not training or p == 0:
        return x
    ones = Tensor.ones(*x.shape[:-axes], *(1,) * axes, dtype=x.dtype, device=x.device)
    made = x * ones.dropout(p)
    return update(x, made) if inplace else made


@explained
def dropout1d(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return (N, C, L) with whole channels zeroed, the rest times 1/(1 - p)."""
    return _channels(x, p, training, inplace, 1, "dropout1d")


@explained
def dropout2d(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return (N, C, H, W) with whole channels zeroed, the rest times 1/(1 - p)."""
    return _channels(x, p, training, inplace, 2, "dropout2d")


@explained
def dropout3d(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return (N, C, D, H, W) with whole channels zeroed, the rest times 1/(1 - p)."""
    return _channels(x, p, training, inplace, 3, "dropout3d")


def _shifted(x: Tensor, ones: Tensor, p: float, inplace: bool) -> Tensor:
    """`x` where a draw keeps it, else SELU's lowest value, scaled to keep mean and variance."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"a probability is from 0 to 1, not {p}")
    if p == 1:
        made = x * 0
    else:
        kept = (ones.dropout(p) > 0).cast(x.dtype)
        scale = 1 / math.sqrt((1 - p) * (1 + p * _LOWEST**2))
        made = (x * kept + _LOWEST * (1 - kept)) * scale - scale * p * _LOWEST
    return update(x, made) if inplace else made


@explained
def alpha_dropout(
    x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return `x` with elements at SELU's lowest value, such that mean and variance stay."""
    if not training or p == 0:
        return x
    return _shifted(x, x.detach().ones_like(), p, inplace)


@explained
def feature_alpha_dropout(
    x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return (N, C, ...) with whole channels at SELU's lowest value; see `alpha_dropout`."""
    if not training or p == 0:
        return x
    if x.ndim < 2:
        raise ShapeError("channels are the second axis", found=list(x.shape))
    ones = Tensor.ones(*x.shape[:2], *(1,) * (x.ndim - 2), dtype=x.dtype, device=x.device)
    return _shifted(x, ones, p, inplace)

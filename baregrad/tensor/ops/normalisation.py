"""Normalisations and attention. Narrow floats are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.core import check_float
from baregrad.tensor.array.operands import accumulator
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.ops.random import dropout
from baregrad.tensor.ops.reductions import count_over


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = y * weight.cast(y.dtype)
    return y if bias is None else y + bias.cast(y.dtype)


def _trailing(x: Tensor, normalized_shape: int | Sequence[int], what: str) -> tuple[int, ...]:
    given = plain(normalized_shape)
    wanted = (given,) if isinstance(given, int) else tuple(given)
    if not wanted or x.shape[x.ndim - len(wanted) :] != wanted:
        raise ShapeError(
            f"{what} is over the last axes",
            found=f"a tensor of {list(x.shape)}",
            wanted=f"one that ends in {list(wanted)}",
        )
    return tuple(range(x.ndim - len(wanted), x.ndim))


def _standardise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    distance = x - x.mean(axes, True)
    return distance * (distance.square().mean(axes, True) + eps).rsqrt()


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return `x` with mean 0 and variance 1 over its last axes, then scaled and shifted."""
    check_float(x.dtype, "layer_norm")
    axes = _trailing(x, normalized_shape, "layer_norm")
    y = _standardise(x.cast(accumulator(x.dtype)), axes, eps)
    return _scaled(y, weight, bias).cast(x.dtype)


def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Return `x` with mean square 1 over its last axes, then scaled.

    eps is by default the distance from 1 to the next number of the dtype.
    """
    from baregrad.dtypes import finfo

    check_float(x.dtype, "rms_norm")
    axes = _trailing(x, normalized_shape, "rms_norm")
    y = x.cast(accumulator(x.dtype))
    small = finfo(y.dtype).eps if eps is None else eps
    y = y * (y.square().mean(axes, True) + small).rsqrt()
    return _scaled(y, weight, None).cast(x.dtype)


def _check_channels(vector: Tensor, x: Tensor) -> None:
    if vector.shape != (x.shape[1],):
        raise ShapeError(
            "there is one number for each channel",
            found=f"{list(vector.shape)} for {list(x.shape)}",
            wanted=[x.shape[1]],
        )


def _channels(vector: Tensor | None, x: Tensor) -> Tensor | None:
    """A vector of one number per channel, beside (N, C, ...)."""
    if vector is None:
        return None
    _check_channels(vector, x)
    return vector.reshape(1, -1, *(1,) * (x.ndim - 2))


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return (N, C, ...) with each channel normalised, then scaled and shifted.

    In training by the statistics of the batch, which also move the running ones (the variance
    by its unbiased estimate); otherwise by the running ones.
    """
    check_float(x.dtype, "batch_norm")
    if x.ndim < 2:
        raise ShapeError("batch_norm wants (N, C, ...)", found=list(x.shape))
    y = x.cast(accumulator(x.dtype))
    axes = (0, *range(2, x.ndim))
    for vector in (running_mean, running_var):
        if vector is not None:
            _check_channels(vector, x)
    if training:
        mean = y.mean(axes, True)
        distance = y - mean
        variance = distance.square().mean(axes, True)
        _move_running(running_mean, running_var, mean, variance, count_over(x, axes), momentum)
    else:
        if running_mean is None or running_var is None:
            raise ShapeError(
                "batch_norm wants running statistics outside training", hint="pass training=True"
            )
        known_mean, known_variance = _channels(running_mean, x), _channels(running_var, x)
        assert known_mean is not None and known_variance is not None
        distance, variance = y - known_mean.cast(y.dtype), known_variance.cast(y.dtype)
    y = distance * (variance + eps).rsqrt()
    return _scaled(y, _channels(weight, x), _channels(bias, x)).cast(x.dtype)


def _move_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    count: object,
    momentum: float,
) -> None:
    if not isinstance(count, int):
        raise ShapeError("batch_norm in training wants a known batch size")
    if count <= 1:
        raise ShapeError(
            "batch_norm in training wants several values per channel", found=f"{count} value"
        )
    for running, fresh in ((running_mean, mean), (running_var, variance * (count / (count - 1)))):
        if running is not None:
            moved = running.detach() * (1 - momentum) + fresh.detach().reshape(-1) * momentum
            running.detach().copy_(moved.cast(running.dtype))


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return (N, C, ...) normalised over groups of channels, then scaled and shifted by channel."""
    check_float(x.dtype, "group_norm")
    if x.ndim < 2 or num_groups <= 0 or x.shape[1] % num_groups:
        raise ShapeError(
            "the channels divide into groups", found=list(x.shape), wanted=f"{num_groups} groups"
        )
    y = x.cast(accumulator(x.dtype)).reshape(x.shape[0], num_groups, -1)
    y = _standardise(y, (2,), eps).reshape(x.shape)
    return _scaled(y, _channels(weight, x), _channels(bias, x)).cast(x.dtype)


def instance_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return (N, C, ...) with each channel of each sample normalised."""
    if x.ndim < 2:
        raise ShapeError("instance_norm is of (N, C, ...)", found=f"shape {list(x.shape)}")
    return group_norm(x, x.shape[1], weight, bias, eps)


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return `x` divided by its p-norm along an axis, which is held above eps."""
    return x / x.norm(p, dim, True).clamp(min=eps)


# --- attention ----------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(query @ key.mT * scale + mask) @ value.

    Shapes (..., L, E), (..., S, E), (..., S, V) -> (..., L, V). attn_mask: bools (True takes
    part) or numbers that are added. is_causal: position i sees those up to i. scale is
    1/sqrt(E) by default. enable_gqa repeats the heads of key and value, axis -3, to those of the
    query. A row that nothing takes part in gives zeros. Raises DTypeError unless the query is of
    floats.
    """
    check_float(query.dtype, "attention")
    if is_causal and attn_mask is not None:
        raise ShapeError("attention is causal or has a mask, not both", hint="put both in the mask")
    if enable_gqa:
        key, value = (_repeat_heads(x, query) for x in (key, value))
    wide = accumulator(query.dtype)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query.cast(wide) * factor) @ key.cast(wide).mT
    blocked: Tensor | None = None
    if is_causal:
        ones = type(query).ones(*scores.shape[-2:], dtype=dtypes.bool, device=query.device)
        blocked = ~ones.tril()
    elif attn_mask is not None and attn_mask.dtype is dtypes.bool:
        blocked = ~attn_mask
    elif attn_mask is not None:
        if attn_mask.dtype.kind != "float":
            raise DTypeError("a mask is of bools or floats", found=f"dtype {attn_mask.dtype}")
        scores = scores + attn_mask.cast(wide)
    if blocked is not None:
        scores = blocked.where(float("-inf"), scores)
    weights = _attend(scores)
    if dropout_p:
        weights = dropout(weights, dropout_p)
    return (weights @ value.cast(wide)).cast(query.dtype)


def _attend(scores: Tensor) -> Tensor:
    """softmax over the last axis in which a row of -inf gives zeros."""
    high = scores.amax(-1, True).detach()
    shift = (high == float("-inf")).where(0, high)
    weights = (scores - shift).exp()
    total = weights.sum(-1, True)
    return weights * (total == 0).where(1, total).reciprocal()


def _repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    if query.ndim < 3 or x.ndim < 3:
        raise ShapeError(
            "heads are the axis before the last two", found=f"{list(query.shape)}, {list(x.shape)}",
            wanted="(..., heads, positions, width)",
        )
    heads, own = query.shape[-3], x.shape[-3]
    if not own or heads % own:
        raise ShapeError("the query's heads divide by those of the key", found=f"{heads} and {own}")
    return x.repeat_interleave(heads // own, -3) if heads != own else x

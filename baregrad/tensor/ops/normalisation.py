"""Normalisations and attention. Narrow floats are computed in float32 and rounded once.

Attention of float32 and float64 is computed in that dtype. Of 16-bit floats both products are of
16-bit numbers, summed in float32, so that matrix units can make them:

    x = (query @ key.mT) * (scale / ln 2) + mask / ln 2      float32
    m = ceil(max(x)),  e = 2 ** (x - m)                      float32, e within 2**-22 of itself
    p = e to value's dtype,  total = sum(p)                  float32, of what is rounded
    out = (p @ value) / total                                a float32, rounded once at the end

Since m is whole, a sum relative to another m is that one times a power of two: the keys may be
taken in parts, and the numbers p are the same, unless they are too small for their dtype. The
weights p / total are 1 together, so that no rounding shows where one key has almost all of them:
gradients there are differences of numbers that are almost equal.
Gradients recompute e from x: dv = p.T @ g with p = e / total to 16 bits, and of
ds = e / total * (g @ v.mT - sum(g * out)) to 16 bits dq = ds @ k * scale, dk = ds.T @ q * scale.
Source: Dao et al., "FlashAttention", NeurIPS 2022; Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.base.options import is_gpu
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.shape import is_one
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.core import check_float
from baregrad.tensor.array.operands import accumulator, result
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.array.views import Pulled, twin
from baregrad.tensor.ops.random import dropout, kept_of
from baregrad.tensor.ops.reductions import count_over

F32 = dtypes.float32


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
    y = x.cast(accumulator(x.dtype))
    if 0 not in x.shape:
        y = _standardise(y.reshape(x.shape[0], num_groups, -1), (2,), eps).reshape(x.shape)
    return _scaled(y, _channels(weight, x), _channels(bias, x)).cast(x.dtype)


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return (N, C, ...) with each channel of each sample normalised, then scaled and shifted.

    By its own statistics, whose means over the samples move the running ones, or by the running
    ones without `use_input_stats`.
    """
    if x.ndim < 2:
        raise ShapeError("instance_norm is of (N, C, ...)", found=f"shape {list(x.shape)}")
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        y, axes = x.detach().cast(accumulator(x.dtype)), tuple(range(2, x.ndim))
        mean = y.mean(axes, True)
        variance = (y - mean).square().mean(axes)
        _move_running(
            running_mean, running_var, mean.mean(0), variance.mean(0), count_over(x, axes), momentum
        )
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
    query. A row that nothing takes part in gives zeros. Of 16-bit floats, powers are rounded to
    value's dtype before they are summed and multiplied, and divided by their sum at last; all else
    is float32. So a result is off by u times the mean of |value - result| by the row's weights, and
    u of itself, with u 2**-8 of bfloat16 and 2**-11 of float16, beside float32's roundings of sums.
    Raises DTypeError unless the query is of floats, ShapeError where E or S differ.
    """
    check_float(query.dtype, "attention")
    _check_shapes(query, key, value)
    if is_causal and attn_mask is not None:
        raise ShapeError("attention is causal or has a mask, not both", hint="put both in the mask")
    if enable_gqa:
        key, value = (_repeat_heads(x, query) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    shape = (*nodes.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2],
             key.shape[-2])  # fmt: skip
    blocked: Tensor | None = None
    added: Tensor | None = None
    if is_causal:
        ones = type(query).ones(*shape[-2:], dtype=dtypes.bool, device=query.device)
        blocked = ~ones.tril()
    elif attn_mask is not None and attn_mask.dtype is dtypes.bool:
        blocked = ~attn_mask
    elif attn_mask is not None:
        if attn_mask.dtype.kind != "float":
            raise DTypeError("a mask is of bools or floats", found=f"dtype {attn_mask.dtype}")
        added = attn_mask
    if query.dtype.bits == 16 and query.dtype is key.dtype is value.dtype:
        return _narrow(query, key, value, blocked, added, dropout_p, factor)
    wide = accumulator(query.dtype)
    scores = (query.cast(wide) * factor) @ key.cast(wide).mT
    if added is not None:
        scores = scores + added.cast(wide)
    if blocked is not None:
        scores = blocked.where(float("-inf"), scores)
    weights = _attend(scores)
    if dropout_p:
        weights = dropout(weights, dropout_p)
    return (weights @ value.cast(wide)).cast(query.dtype)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    if min(query.ndim, key.ndim, value.ndim) < 2 or (
        query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]
    ):
        raise ShapeError(
            "attention of arrays that do not fit",
            found=", ".join(str(list(x.shape)) for x in (query, key, value)),
            wanted="(..., L, E), (..., S, E), (..., S, V)",
        )


def _attend(scores: Tensor) -> Tensor:
    """softmax over the last axis in which a row of -inf gives zeros."""
    if scores.shape[-1] == 0:
        return scores
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


# --- of 16-bit floats ---------------------------------------------------------------------------


class _Parts(NamedTuple):
    """What attention of 16-bit floats is made of, over (..., L, S) but for the three arrays.

    kept: which powers dropout leaves, None where all; share: what those are multiplied by.
    """

    query: Node
    key: Node
    value: Node
    power: Node
    total: Node
    kept: Node | None
    share: float
    factor: float


def _narrow(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocked: Tensor | None,
    added: Tensor | None,
    dropout_p: float,
    factor: float,
) -> Tensor:
    """Attention of 16-bit floats; what is computed, and rounded when, is above."""
    # Marked, so that views made of them do not pass them by.
    q, k, v = [twin(each.node) for each in (query, key, value)]
    x = nodes.mul(_product(q, k), const(factor / math.log(2), F32))
    # Its gradient is summed along what it is repeated along before it is rounded to its dtype.
    more = () if added is None else (nodes.cast(twin(added.node), F32),)
    for each in more:
        x = nodes.add(x, nodes.mul(each, const(1 / math.log(2), F32)))
    if blocked is not None:
        x = nodes.alu(Ops.WHERE, blocked.node, const(float("-inf"), F32), x)
    high = nodes.detach(_along_last(Ops.MAX, Node(Ops.CEIL, F32, (x,))))
    seen = nodes.alu(Ops.CMPNE, high, const(float("-inf"), F32))
    high = nodes.alu(Ops.WHERE, seen, high, const(0.0, F32))
    power = Node(Ops.EXP2_NEAR, F32, (nodes.sub(x, high),))
    total = _along_last(Ops.ADD, nodes.cast(nodes.cast(power, v.dtype), F32))
    none = nodes.alu(Ops.CMPEQ, total, const(0.0, F32))
    total = nodes.alu(Ops.WHERE, none, const(1.0, F32), total)
    kept, share = None, 1.0
    if dropout_p:
        kept, share = _kept(query, power, dropout_p)
    parts = _Parts(q, k, v, power, total, kept, share, factor)
    # What is left counts for more at last, so that rounding makes the same of it as in the sum.
    weights = nodes.cast(_thinned(power, kept), v.dtype)
    out = nodes.div(_product(weights, _turned(v)), _shared(total, 1 / share))
    out = nodes.cast(out, q.dtype)
    sources = (q, k, v, *more)

    def pull(gradient: Node) -> tuple[Node, ...]:
        return _gradients(parts, out, _whole(gradient, query.device))[: len(sources)]

    marked = Node(Ops.DETACH, out.dtype, (out,), Pulled(sources, pull))
    return result(marked, query, key, value, *(() if added is None else (added,)))


def _whole(gradient: Node, device: str) -> Node:
    """A result's gradient: on GPUs stored where it is repeated, as that of a sum or a mean is.

    Products of repeated numbers are none, so that what is summed over the keys would be no stream
    of tiles, but arrays of scores in memory.
    """
    if not is_gpu(device):
        return gradient
    from baregrad.graph.repeats import is_repeated

    axes = [axis for axis, extent in enumerate(gradient.shape) if not is_one(extent)]
    if not any(is_repeated(gradient, axis) for axis in axes):
        return gradient
    return Node(Ops.CONTIGUOUS, gradient.dtype, (gradient,))


def _gradients(parts: _Parts, out: Node, gradient: Node) -> tuple[Node, Node, Node, Node]:
    """The gradients of query, key, value and of what is added to the scores."""
    q, k, v, power, total, kept, share, factor = parts
    weights = nodes.mul(power, Node(Ops.RECIPROCAL, F32, (total,)))
    given = nodes.cast(gradient, v.dtype)
    to_value = _shared(
        _product(_turned(nodes.cast(_thinned(weights, kept), v.dtype)), _turned(given)), share
    )
    mean = _along_last(Ops.ADD, nodes.mul(nodes.cast(given, F32), nodes.cast(out, F32)))
    toward = _thinned(_shared(_product(given, v), share), kept)
    # A number for each row, which all its slopes read.
    stored = Node(Ops.CONTIGUOUS, F32, (mean,))
    slope = nodes.mul(weights, nodes.sub(toward, stored))
    narrow = nodes.cast(slope, q.dtype)
    scale = const(factor, F32)
    to_query = nodes.mul(_product(narrow, _turned(k)), scale)
    to_key = nodes.mul(_product(_turned(narrow), _turned(q)), scale)
    return (
        nodes.cast(to_query, q.dtype), nodes.cast(to_key, k.dtype),
        nodes.cast(to_value, v.dtype), slope,
    )


def _kept(query: Tensor, power: Node, p: float) -> tuple[Node, float]:
    """Which powers dropout leaves, and what those count for."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"a probability is from 0 to 1, not {p}")
    ones = type(query).ones(*power.shape, dtype=F32, device=query.device)
    return ((ones < 1).node, 1.0) if p == 1 else (kept_of(ones, p).node, 1 / (1 - p))


def _thinned(x: Node, kept: Node | None) -> Node:
    return x if kept is None else nodes.alu(Ops.WHERE, kept, x, const(0.0, F32))


def _shared(x: Node, share: float) -> Node:
    return x if share == 1 else nodes.mul(x, const(share, F32))


def _turned(x: Node) -> Node:
    """The last two axes exchanged."""
    last = len(x.shape) - 1
    return nodes.permute(x, (*range(last - 1), last, last - 1))


def _along_last(op: Op, x: Node) -> Node:
    """A reduction over the last axis, which stays with one element."""
    last = len(x.shape) - 1
    return nodes.unsqueeze(nodes.reduce(op, x, (last,)), last)


def _product(a: Node, b: Node) -> Node:
    """a @ b.mT in float32: (..., M, K), (..., N, K) -> (..., M, N)."""
    rows = nodes.cast(nodes.unsqueeze(a, len(a.shape) - 1), F32)
    columns = nodes.cast(nodes.unsqueeze(b, len(b.shape) - 2), F32)
    product = nodes.mul(rows, columns)
    return nodes.reduce(Ops.ADD, product, (len(product.shape) - 1,))

"""Products, convolutions, pooling, normalisation and random draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.bridges.torch_memory import dtype_of
from baregrad.nn.functional.counting import ctc_loss
from baregrad.nn.functional.windows import largest_of_shares
from baregrad.tensor import Tensor


def _addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = x @ y
    return (bias if beta == 1 else bias * beta) + (product if alpha == 1 else product * alpha)


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:
    axes = x.ndim - 2
    if transposed:
        made: Tensor = getattr(x, f"conv_transpose{axes}d")(
            weight, bias, tuple(stride), tuple(padding), tuple(output_padding), groups,
            tuple(dilation),
        )
    else:
        made = getattr(x, f"conv{axes}d")(
            weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups
        )
    return made


def gradients(result: Tensor, of: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """The gradients of leaves, of a result computed from them; 0 of what it does not go by."""
    return list(result.gradient(
        *of, grad_outputs=grad, create_graph=False, allow_unused=True
    ))


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    x, weight = leaf(x), leaf(weight)
    result = _convolution(
        x, weight, None, stride, padding, dilation, transposed, output_padding, groups
    )
    asked = [one for one, is_asked in zip((x, weight), wanted, strict=False) if is_asked]
    found = iter(gradients(result, asked, grad) if asked else [])
    made: list[Tensor | None] = [next(found) if is_asked else None for is_asked in wanted[:2]]
    axes = (0, *range(2, grad.ndim))
    return (*made, grad.sum(axes) if wanted[2] else None)


def leaf(x: Tensor) -> Tensor:
    """`x` as what a gradient may be taken of."""
    return x.detach().requires_grad_(True)


def _pairs(value: Any, count: int) -> Any:
    values = tuple(value) if not isinstance(value, int) else (value,)
    return values * count if len(values) == 1 else values


def _max_pool(axes: int) -> Callable[..., Any]:
    def pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        return tuple(getattr(x, f"max_pool{axes}d")(
            _pairs(kernel, axes), _pairs(stride, axes) or None, _pairs(padding, axes),
            _pairs(dilation, axes), ceil_mode=ceil_mode, return_indices=True,
        ))

    return pool


def _max_pool_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, indices: Tensor,
) -> Tensor:
    axes = len(_pairs(kernel, 1)) if not isinstance(kernel, int) else x.ndim - 2
    lead = tuple(x.shape[: x.ndim - axes])
    size = 1
    for one in x.shape[x.ndim - axes:]:
        size *= one
    rows = Tensor.zeros(*lead, size, dtype=grad.dtype, device=grad.device)
    flat = rows.scatter_add(-1, indices.reshape(*lead, -1), grad.reshape(*lead, -1))
    return flat.reshape(*x.shape)


def _adaptive_max_pool(axes: int) -> Callable[..., Any]:
    def pool(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The largest of each part, and its place among the last axes."""
        found: tuple[Tensor, Tensor] = largest_of_shares(x, axes, tuple(size))
        return found

    return pool


def _adaptive_max_pool_backward(axes: int) -> Callable[..., Any]:
    def backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        return _max_pool_backward(grad, x, (1,) * axes, (), 0, 1, False, indices)

    return backward


def _avg_pool(axes: int) -> Callable[..., Any]:
    def pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:
        # PyTorch's function of one axis has no divisor of one's own.
        more = {} if divisor_override is None else {"divisor_override": divisor_override}
        result: Tensor = getattr(x, f"avg_pool{axes}d")(
            _pairs(kernel, axes), _pairs(stride, axes) or None, _pairs(padding, axes),
            ceil_mode=ceil_mode, count_include_pad=count_include_pad, **more,
        )
        return result

    return pool


def _avg_pool_backward(grad: Tensor, x: Tensor, kernel: Any, *rest: Any) -> Tensor:
    axes = len(kernel)
    x = leaf(x)
    return gradients(_avg_pool(axes)(x, kernel, *rest), [x], grad)[0]


def _adaptive(x: Tensor, size: Sequence[int]) -> Tensor:
    return x.adaptive_avg_pool2d(tuple(size))


def _adaptive_backward(grad: Tensor, x: Tensor) -> Tensor:
    x = leaf(x)
    return gradients(_adaptive(x, list(grad.shape[-2:])), [x], grad)[0]


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = x.float() if x.dtype.bits < 32 else x
    mean = wide.mean(axes, keepdim=True)
    inverse = (wide.var(axes, correction=0, keepdim=True) + eps).rsqrt()
    result = (wide - mean) * inverse
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result.cast(x.dtype), mean, inverse


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, size: int,
    groups: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.float() if x.dtype.bits < 32 else x
    wide = wide.reshape(batch, groups, channels // groups * size)
    mean = wide.mean(-1, keepdim=True)
    inverse = (wide.var(-1, correction=0, keepdim=True) + eps).rsqrt()
    result = ((wide - mean) * inverse).reshape(*x.shape)
    shape = (1, channels, *(1,) * (x.ndim - 2))
    if weight is not None:
        result = result * weight.reshape(*shape)
    if bias is not None:
        result = result + bias.reshape(*shape)
    return result.cast(x.dtype), mean.reshape(batch, groups), inverse.reshape(batch, groups)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, ...]:
    """Normalise; the running mean and variance come out as results four and five."""
    axes = (0, *range(2, x.ndim))
    shape = (1, -1, *(1,) * (x.ndim - 2))
    wide = x.float() if x.dtype.bits < 32 else x
    if training:
        count = x.numel() // x.shape[1]
        now, spread = wide.mean(axes), wide.var(axes, correction=0)
        unbiased = spread * (count / max(count - 1, 1))
        mean = mean + momentum * (now.cast(mean.dtype) - mean)
        var = var + momentum * (unbiased.cast(var.dtype) - var)
    else:
        now, spread = mean, var
    inverse = (spread + eps).rsqrt()
    result = (wide - now.reshape(*shape)) * inverse.reshape(*shape)
    if weight is not None:
        result = result * weight.reshape(*shape)
    if bias is not None:
        result = result + bias.reshape(*shape)
    none = Tensor.zeros(0, dtype=wide.dtype, device=x.device)
    saved = (now, inverse) if training else (none, none)
    return (result.cast(x.dtype), *saved, mean, var)


def _batch_norm_without_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:
    return _batch_norm(x, weight, bias, mean, var, False, momentum, eps)[:3]


def _batch_norm_of_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    none = Tensor.zeros(x.shape[1], dtype=x.dtype, device=x.device)
    return _batch_norm(x, weight, bias, none, none, True, momentum, eps)[:3]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """`v` at lengths `g` along all axes but one, and the lengths that it had."""
    axes = tuple(axis for axis in range(v.ndim) if axis != dim % v.ndim)
    wide = v.float() if v.dtype.bits < 32 else v
    lengths = (wide * wide).sum(axes, keepdim=True).sqrt() if axes else wide.abs()
    return (wide * (g / lengths)).cast(v.dtype), lengths


def _weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, lengths: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    axes = tuple(axis for axis in range(v.ndim) if axis != dim % v.ndim)
    wide = grad.float() if grad.dtype.bits < 32 else grad
    along = (wide * v).sum(axes, keepdim=True) if axes else wide * v
    of_v = (g / lengths) * (wide - v * (along / (lengths * lengths)))
    return of_v.cast(v.dtype), (along / lengths).cast(g.dtype)


def _scores(q: Tensor, k: Tensor, is_causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * scale
    if is_causal:
        seen = Tensor.full((q.shape[-2], k.shape[-2]), True, device=q.device).tril()
        scores = seen.where(scores, -math.inf)
    return scores if mask is None else scores + mask


def _attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of its sums, which the backward pass of PyTorch's takes."""
    _refuse_dropout(dropout)
    result = q.scaled_dot_product_attention(
        k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
    )
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return result, _scores(q, k, is_causal, attn_mask, factor).logsumexp(-1)


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, result: Tensor, sums: Tensor,
    dropout: float, is_causal: bool, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    _refuse_dropout(dropout)
    q, k, v = leaf(q), leaf(k), leaf(v)
    made = q.scaled_dot_product_attention(
        k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
    )
    return tuple(gradients(made, [q, k, v], grad))


def _refuse_dropout(dropout: float) -> None:
    if dropout:
        raise ArgumentError("attention with dropout in a fused operator", found=dropout)


def _replication_pad_backward(grad: Tensor, x: Tensor, pad: Sequence[int]) -> Tensor:
    x = leaf(x)
    return gradients(x.pad(tuple(pad), mode="replicate"), [x], grad)[0]


def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand_a: Sequence[int], expand_b: Sequence[int],
    expand_c: Sequence[int], summed: Sequence[int], unroll: int = 1,
) -> Tensor:
    for axis in expand_a:
        a = a.unsqueeze(axis)
    for axis in expand_b:
        b = b.unsqueeze(axis)
    for axis in expand_c:
        c = c.unsqueeze(axis)
    return (a * b * c).sum(tuple(summed))


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x, Tensor.full(tuple(x.shape), True)
    kept = Tensor.rand(*x.shape, device=x.device) >= p
    return kept.where(x * (1 / (1 - p) if p < 1 else 0.0), 0), kept


def _drawn(name: str) -> Callable[..., Any]:
    def draw(size: Sequence[int], *, dtype: Any = None, **_: Any) -> Tensor:
        made: Tensor = getattr(Tensor, name)(*size)
        return made if dtype is None else made.cast(dtype_of(dtype))

    return draw


def _drawn_like(name: str) -> Callable[..., Any]:
    def draw(x: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
        made: Tensor = getattr(Tensor, name)(*x.shape)
        return made.cast(x.dtype if dtype is None else dtype_of(dtype))

    return draw


def _bernoulli(x: Tensor, p: float | None = None, **_: Any) -> Tensor:
    chance = x if p is None else p
    return (Tensor.rand(*x.shape, device=x.device) < chance).cast(x.dtype)


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return Tensor.rand(*x.shape, device=x.device).cast(x.dtype) * (high - low) + low


def _normal(x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return Tensor.randn(*x.shape, device=x.device).cast(x.dtype) * std + mean


def _exponential(x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    # Draws are below 1, so no logarithm is of 0.
    return (-(-Tensor.rand(*x.shape, device=x.device)).log1p() / rate).cast(x.dtype)


def _integers(low: int, high: int, size: Sequence[int], *, dtype: Any = None, **_: Any) -> Tensor:
    made = Tensor.randint(low, high, tuple(size))
    return made.cast("int64" if dtype is None else dtype_of(dtype))


def _integers_like(x: Tensor, low: int, high: int, *, dtype: Any = None, **_: Any) -> Tensor:
    return Tensor.randint(low, high, tuple(x.shape)).cast(
        x.dtype if dtype is None else dtype_of(dtype)
    )


def _shuffled(count: int, *, dtype: Any = None, **_: Any) -> Tensor:
    return Tensor.randperm(count).cast("int64" if dtype is None else dtype_of(dtype))


def _addbmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = (x @ y).sum(0)
    return (bias if beta == 1 else bias * beta) + (product if alpha == 1 else product * alpha)


def _ctc_loss(
    scores: Tensor, labels: Tensor, steps: Any, counts: Any, blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Losses of samples, and room for what PyTorch's gradient reads; ours computes it again."""
    # What is infinite is made 0 behind it.
    loss = ctc_loss(scores, labels, steps, counts, blank, "none")
    alone = loss.reshape(1) if scores.ndim == 2 else loss
    return loss, Tensor.zeros(alone.shape[0], scores.shape[0], 1, dtype=scores.dtype)


def _ctc_loss_backward(
    grad: Tensor, scores: Tensor, labels: Tensor, steps: Any, counts: Any, loss: Tensor,
    log_alpha: Tensor, blank: int, zero_infinity: bool = False,
) -> Tensor:
    """PyTorch's: that of the scores before a softmax, which the softmax's own leaves as it is."""
    x = leaf(scores)
    made = ctc_loss(x, labels, steps, counts, blank, "none", zero_infinity)
    (found,) = gradients(made, [x], grad)
    taken = steps if isinstance(steps, Tensor) else Tensor(list(steps))
    places = Tensor.arange(scores.shape[0]).reshape(-1, *[1] * (scores.ndim - 1))
    counted = places < taken.reshape(*taken.shape[-1:] * (scores.ndim - 2), 1)
    whole = loss.isfinite().unsqueeze(-1).where(
        found + scores.exp() * grad.unsqueeze(-1), 0.0 if zero_infinity else math.nan
    )
    return counted.where(whole, 0.0)


LAYERS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    "mm": lambda x, y: x @ y, "bmm": lambda x, y: x @ y, "mv": lambda x, y: x @ y,
    "dot": lambda x, y: (x * y).sum(), "addmm": _addmm, "baddbmm": _addmm,
    "addmv": _addmm, "addbmm": _addbmm,
    "convolution": _convolution, "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _max_pool(2), "max_pool3d_with_indices": _max_pool(3),
    "max_pool2d_with_indices_backward": _max_pool_backward, "avg_pool1d": _avg_pool(1),
    "max_pool3d_with_indices_backward": _max_pool_backward,
    "adaptive_max_pool2d": _adaptive_max_pool(2), "adaptive_max_pool3d": _adaptive_max_pool(3),
    "adaptive_max_pool2d_backward": _adaptive_max_pool_backward(2),
    "adaptive_max_pool3d_backward": _adaptive_max_pool_backward(3),
    "_ctc_loss": _ctc_loss, "_ctc_loss_backward": _ctc_loss_backward,
    "avg_pool2d": _avg_pool(2), "avg_pool3d": _avg_pool(3),
    "avg_pool2d_backward": _avg_pool_backward, "avg_pool3d_backward": _avg_pool_backward,
    "_adaptive_avg_pool2d": _adaptive, "_adaptive_avg_pool2d_backward": _adaptive_backward,
    "native_layer_norm": _layer_norm, "native_group_norm": _group_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_without_update,
    "_native_batch_norm_legit.no_stats": _batch_norm_of_batch,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_weight_norm_interface": _weight_norm,
    "_weight_norm_interface_backward": _weight_norm_backward,
    "replication_pad1d_backward": _replication_pad_backward,
    "replication_pad2d_backward": _replication_pad_backward,
    "replication_pad3d_backward": _replication_pad_backward, "_trilinear": _trilinear,
    "native_dropout": _native_dropout, "rand": _drawn("rand"), "randn": _drawn("randn"),
    "rand_like": _drawn_like("rand"), "randn_like": _drawn_like("randn"),
    "bernoulli": _bernoulli, "uniform": _uniform, "normal_functional": _normal,
    "exponential": _exponential, "randperm": _shuffled,
    "randint.default": lambda high, size, **named: _integers(0, high, size, **named),
    "randint.low": _integers,
    "randint_like.default": lambda x, high, **named: _integers_like(x, 0, high, **named),
    "randint_like.low_dtype": _integers_like,
})

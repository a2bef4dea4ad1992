"""Attention of several heads with its projections, as `nn.MultiheadAttention` computes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baregrad.base.errors import ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained


@explained
def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None,
    bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor,
    out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the attended values and, if `need_weights`, the weights (N, L, S).

    query (L, N, E), key (S, N, ...) and value (S, N, ...), or without N. in_proj_weight (3E, E), or
    with `use_separate_proj_weight` the weights of each, and in_proj_bias (3E). bias_k and bias_v
    (1, 1, E) are one position more, and so is one of zeros with `add_zero_attn`. key_padding_mask
    (N, S) and attn_mask (L, S) or (N*heads, L, S): True takes no part, or numbers that are added.
    `is_causal` lets position i see those up to i. static_k and static_v (N*heads, S, E/heads) stand
    for projected keys and values. Weights are averaged over the heads, or else (N, heads, L, S).
    Raises ShapeError.
    """
    single = query.ndim == 2
    if single:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if query.ndim != 3 or query.shape[2] != embed_dim_to_check or embed_dim_to_check % num_heads:
        raise ShapeError(
            "attention is over vectors of its width, which its heads divide",
            found=f"{list(query.shape)}, {num_heads} heads",
            wanted=f"{embed_dim_to_check} numbers along the last of 3 axes",
        )
    weights: Sequence[Tensor | None] = (q_proj_weight, k_proj_weight, v_proj_weight)
    if in_proj_weight is not None and not use_separate_proj_weight:
        weights = thirds(in_proj_weight)
    heads = split_heads(
        [x.transpose(0, 1) for x in (query, key, value)], weights, thirds(in_proj_bias), num_heads
    )
    for place, given in ((1, static_k), (2, static_v)):
        if given is not None:
            heads[place] = given.reshape(query.shape[1], num_heads, *given.shape[1:])
    mixed, found = attended(
        heads, bias_k, bias_v, add_zero_attn, dropout_p if training else 0.0, key_padding_mask,
        need_weights, attn_mask, average_attn_weights, is_causal,
    )
    out = mixed.linear(out_proj_weight, out_proj_bias)
    if single:
        return out.squeeze(0), None if found is None else found.squeeze(0)
    return out.transpose(0, 1), found


def thirds(x: Tensor | None) -> list[Tensor | None]:
    """The parts for queries, keys and values: (3E, ...) -> (E, ...) each."""
    if x is None:
        return [None] * 3
    width = x.shape[0] // 3
    return [x[at : at + width] for at in (0, width, 2 * width)]


def split_heads(
    sides: Sequence[Tensor], weights: Sequence[Tensor | None], biases: Sequence[Tensor | None],
    heads: int,
) -> list[Tensor]:
    """Queries, keys and values (N, L, ...) projected: (N, heads, L, E/heads) each."""
    return [_split(x, weight, bias, heads)
            for x, weight, bias in zip(sides, weights, biases, strict=True)]  # fmt: skip


def attended(
    heads: Sequence[Tensor], bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool,
    dropped: float, padding: Tensor | None, need_weights: bool, mask: Tensor | None,
    is_averaged: bool, is_causal: bool,
) -> tuple[Tensor, Tensor | None]:
    """What the heads' queries see of keys and values: (N, L, E), and the weights if needed."""
    query, keys = heads[0], heads[1].shape[2]
    key, value = _lengthened(heads[1:], (bias_k, bias_v), add_zero_attn)
    added = _mask(query, keys, padding, mask, is_causal)
    if added is not None and key.shape[2] > keys:
        added = added.pad((0, key.shape[2] - keys))
    if not need_weights:
        mixed = query.scaled_dot_product_attention(key, value, added, dropped)
        return mixed.transpose(1, 2).flatten(2), None
    weights = _weights(query, key, added)
    mixed = (weights.dropout(dropped) if dropped else weights) @ value
    return mixed.transpose(1, 2).flatten(2), weights.mean(1) if is_averaged else weights


def _split(x: Tensor, weight: Tensor | None, bias: Tensor | None, heads: int) -> Tensor:
    """x (N, L, ...) projected: (N, heads, L, E/heads)."""
    if weight is None or x.ndim != 3 or x.shape[2] != weight.shape[1]:
        raise ShapeError(
            "queries, keys and values have as many numbers as their weights take",
            found=f"{list(x.shape)} and {'no weight' if weight is None else list(weight.shape)}",
        )
    y = x.linear(weight, bias)
    return y.reshape(*x.shape[:2], heads, y.shape[2] // heads).transpose(1, 2)


def _lengthened(
    sides: Sequence[Tensor], biases: Sequence[Tensor | None], with_zero: bool
) -> list[Tensor]:
    """Keys and values (N, heads, S, E/heads) with one position of their own more, or two."""
    found: list[Tensor] = []
    for side, bias in zip(sides, biases, strict=True):
        batch, heads, _, size = side.shape
        parts = [side]
        if bias is not None:
            parts.append(bias.reshape(1, heads, 1, size).expand(batch, heads, 1, size))
        if with_zero:
            parts.append(side.new_zeros(batch, heads, 1, size))
        found.append(Tensor.cat(parts, dim=2) if len(parts) > 1 else side)
    return found


def _mask(
    query: Tensor, keys: int, padding: Tensor | None, mask: Tensor | None, is_causal: bool
) -> Tensor | None:
    """What is added to the scores (N, heads, L, S) of so many keys."""
    batch, heads, length = query.shape[:3]
    total: Tensor | None = None
    if is_causal and mask is None:
        mask = ~Tensor.ones(length, keys, dtype=dtypes.bool, device=query.device).tril()
    if mask is not None:
        total = _added(mask, query)
        if total.ndim == 3:
            total = total.reshape(batch, heads, length, keys)
    if padding is not None:
        beside = _added(padding, query).reshape(batch, 1, 1, keys)
        total = beside if total is None else total + beside
    return total


def _weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    scores = (query * (1 / math.sqrt(query.shape[-1]))).matmul(key.transpose(-2, -1))
    return (scores if mask is None else scores + mask).softmax(-1)


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype is not dtypes.bool:
        return mask.cast(like.dtype)
    return mask.where(float("-inf"), Tensor.zeros(dtype=like.dtype, device=like.device))

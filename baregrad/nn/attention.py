"""Attention of several heads, with PyTorch's parameters and masks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.nn import init
from baregrad.nn.layers import Linear
from baregrad.nn.module import Module
from baregrad.tensor import Tensor


class SDPBackend(IntEnum):
    """PyTorch's ways of computing attention, by its numbers."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(
    backends: SDPBackend | Iterable[SDPBackend], set_priority: bool = False
) -> Iterator[None]:
    """A block in which PyTorch would compute attention in given ways; here nothing changes.

    Shapes and dtypes alone say how attention is computed, so that its bits are the same anywhere.
    Raises ArgumentError for what are no ways of attention.
    """
    ways = [backends] if isinstance(backends, SDPBackend) else list(backends)
    odd = [way for way in ways if not isinstance(way, SDPBackend)]
    if odd or not ways:
        raise ArgumentError("ways of attention, of SDPBackend", found=repr(odd or ways))
    yield


class MultiheadAttention(Module):
    """Attention of `num_heads` heads over vectors of `embed_dim`.

    Sequences are (L, N, E), (N, L, E) with `batch_first`, or (L, E) alone. Parameters:
    in_proj_weight (3E, E) and in_proj_bias for query, key and value, and the layer out_proj.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ShapeError("heads divide the width", found=f"{embed_dim} by {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        bound = math.sqrt(6.0 / (4 * embed_dim))
        self.in_proj_weight = Tensor.uniform(
            3 * embed_dim, embed_dim, low=-bound, high=bound, dtype=dtype, device=device,
            requires_grad=True,
        )
        self.in_proj_bias: Tensor | None = None
        if bias:
            found = dtypes.float32 if dtype is None else dtype
            self.in_proj_bias = Tensor.zeros(
                3 * embed_dim, dtype=found, device=device, requires_grad=True
            )
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended values and, if `need_weights`, the weights (N, L, S).

        key_padding_mask (N, S) and attn_mask (L, S) or (N*heads, L, S): True takes no part, or
        numbers that are added. `is_causal` lets position i see those up to i. Weights are
        averaged over the heads, or else (N, heads, L, S). Raises ShapeError.
        """
        single = query.ndim == 2
        if single:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        heads = [self._split(x, part) for part, x in enumerate((query, key, value))]
        mask = self._mask(heads[0], heads[1], key_padding_mask, attn_mask, is_causal)
        dropped = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            weights = self._weights(heads[0], heads[1], mask)
            taken = weights.dropout(dropped) if dropped else weights
            mixed = taken @ heads[2]
        else:
            mixed = heads[0].scaled_dot_product_attention(heads[1], heads[2], mask, dropped)
        out = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _split(self, x: Tensor, part: int) -> Tensor:
        """(N, L, E) projected by the part of in_proj_weight: (N, heads, L, E/heads)."""
        if x.ndim != 3 or x.shape[2] != self.embed_dim:
            raise ShapeError(
                "attention is over vectors of its width",
                found=list(x.shape),
                wanted=f"{self.embed_dim} numbers along the last of 3 axes",
            )
        begin, end = part * self.embed_dim, (part + 1) * self.embed_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[begin:end]
        y = x.linear(self.in_proj_weight[begin:end], bias)
        size = self.embed_dim // self.num_heads
        return y.reshape(x.shape[0], x.shape[1], self.num_heads, size).transpose(1, 2)

    def _mask(
        self,
        query: Tensor,
        key: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor | None:
        """What is added to the scores (N, heads, L, S)."""
        batch, heads, length = query.shape[:3]
        total: Tensor | None = None
        if is_causal and mask is None:
            ones = Tensor.ones(length, key.shape[2], dtype=dtypes.bool, device=query.device)
            mask = ~ones.tril()
        if mask is not None:
            total = _added(mask, query)
            if total.ndim == 3:
                total = total.reshape(batch, heads, length, key.shape[2])
        if padding is not None:
            beside = _added(padding, query).reshape(batch, 1, 1, key.shape[2])
            total = beside if total is None else total + beside
        return total

    @staticmethod
    def _weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        scores = (query * (1 / math.sqrt(query.shape[-1]))).matmul(key.transpose(-2, -1))
        return (scores if mask is None else scores + mask).softmax(-1)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.embed_dim}, {self.num_heads}"


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype is not dtypes.bool:
        return mask.cast(like.dtype)
    return mask.where(float("-inf"), Tensor.zeros(dtype=like.dtype, device=like.device))

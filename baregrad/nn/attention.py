"""Attention of several heads, with PyTorch's parameters and masks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import default_float
from baregrad.nn import init
from baregrad.nn.init import begin, refill
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

    Sequences are (L, N, E), (N, L, E) with `batch_first`, or (L, E) alone; keys may be of `kdim`
    numbers and values of `vdim`. Parameters: in_proj_weight (3E, E), or a weight for each if their
    numbers differ, and in_proj_bias for query, key and value, and the layer out_proj; with
    `add_bias_kv` a key and a value more that are learnt. `add_zero_attn`: one more of zeros.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ShapeError("heads divide the width", found=f"{embed_dim} by {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.q_proj_weight: Tensor | None = None
        self.k_proj_weight: Tensor | None = None
        self.v_proj_weight: Tensor | None = None
        self.in_proj_weight: Tensor | None = None

        def drawn(rows: int, columns: int) -> Tensor:
            bound = math.sqrt(6.0 / (rows + columns))
            return Tensor.uniform(
                rows, columns, low=-bound, high=bound, dtype=dtype, device=device,
                requires_grad=True,
            )

        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = drawn(3 * embed_dim, embed_dim)
        else:
            self.q_proj_weight = drawn(embed_dim, embed_dim)
            self.k_proj_weight = drawn(embed_dim, self.kdim)
            self.v_proj_weight = drawn(embed_dim, self.vdim)
        self.in_proj_bias: Tensor | None = None
        if bias:
            found = default_float() if dtype is None else dtype
            self.in_proj_bias = Tensor.zeros(
                3 * embed_dim, dtype=found, device=device, requires_grad=True
            )
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        self.bias_k: Tensor | None = None
        self.bias_v: Tensor | None = None
        if add_bias_kv:
            # As `init.xavier_normal_` draws them.
            std = math.sqrt(2.0 / (2 * embed_dim))
            self.bias_k, self.bias_v = (
                Tensor.normal(0.0, std, (1, 1, embed_dim), dtype=dtype, device=device,
                              requires_grad=True) for _ in range(2)
            )  # fmt: skip
        begin(self, MultiheadAttention, "_reset_parameters")

    def _reset_parameters(self) -> None:
        """Draw first values anew, as models that override it call."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight,
                       self.v_proj_weight):  # fmt: skip
            if weight is not None:
                init.xavier_uniform_(weight)
        refill(None, self.in_proj_bias)
        refill(None, self.out_proj.bias)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                init.xavier_normal_(added)

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
        from baregrad.nn.functional.attention import attended, split_heads, thirds

        single = query.ndim == 2
        if single:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        weights = (
            [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
            if self.in_proj_weight is None else thirds(self.in_proj_weight)
        )
        heads = split_heads(
            (query, key, value), weights, thirds(self.in_proj_bias), self.num_heads
        )
        mixed, found = attended(
            heads, self.bias_k, self.bias_v, self.add_zero_attn,
            self.dropout if self.training else 0.0, key_padding_mask, need_weights, attn_mask,
            average_attn_weights, is_causal,
        )
        out = self.out_proj(mixed)
        if single:
            return out.squeeze(0), None if found is None else found.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), found

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.embed_dim}, {self.num_heads}"

"""The encoder of transformers, with PyTorch's parameters.

Source: A. Vaswani and others, NeurIPS 2017; norm_first: R. Xiong and others, ICML 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.nn.attention import MultiheadAttention
from baregrad.nn.layers import Dropout, Linear
from baregrad.nn.module import Module, ModuleList
from baregrad.nn.normalisation import LayerNorm
from baregrad.tensor import Tensor


class TransformerEncoderLayer(Module):
    """Self-attention, then two linear layers, each added to what it was given and normalised.

    Sequences are (L, N, d_model), (N, L, d_model) with `batch_first`, or (L, d_model). activation:
    "relu", "gelu", or a function. norm_first: normalise before each part, not after it.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first, device, dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        functions = {"relu": Tensor.relu, "gelu": Tensor.gelu}
        found = functions.get(activation) if isinstance(activation, str) else activation
        if found is None:
            raise ArgumentError("activation is 'relu', 'gelu' or a function", found=activation)
        self.activation: Callable[[Tensor], Tensor] = found

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the encoded sequences; masks as of `MultiheadAttention`. Raises ShapeError."""
        masks = (src_mask, src_key_padding_mask, is_causal)
        y: Tensor
        if self.norm_first:
            x = src + self._attend(self.norm1(src), *masks)
            y = x + self._feed(self.norm2(x))
        else:
            x = self.norm1(src + self._attend(src, *masks))
            y = self.norm2(x + self._feed(x))
        return y

    def _attend(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        mixed, _ = self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)
        dropped: Tensor = self.dropout1(mixed)
        return dropped

    def _feed(self, x: Tensor) -> Tensor:
        wide = self.dropout(self.activation(self.linear1(x)))
        dropped: Tensor = self.dropout2(self.linear2(wide))
        return dropped


class TransformerEncoder(Module):
    """Layers one after the other: copies of `encoder_layer`, then `norm` if one is given."""

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None
    ) -> None:
        if not isinstance(encoder_layer, Module):
            raise DTypeError(
                "an encoder copies a layer", found=f"{type(encoder_layer).__name__}",
                wanted="a module, such as TransformerEncoderLayer(...)",
            )
        if not 0 <= num_layers < 1 << 16:
            raise ArgumentError("so many layers are never made", found=f"num_layers {num_layers}")
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the encoded sequences; masks as of `MultiheadAttention`. Raises ShapeError."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)

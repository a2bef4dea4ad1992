"""Encoder and decoder of transformers, with PyTorch's parameters.

Source: A. Vaswani and others, NeurIPS 2017; norm_first: R. Xiong and others, ICML 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.dtypes import default_float
from baregrad.nn import init
from baregrad.nn.attention import MultiheadAttention
from baregrad.nn.containers import ModuleList
from baregrad.nn.layers import Dropout, Linear
from baregrad.nn.module import Module
from baregrad.nn.normalisation import LayerNorm
from baregrad.tensor import Tensor


def _activation(given: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    functions: dict[str, Callable[[Tensor], Tensor]] = {"relu": Tensor.relu, "gelu": Tensor.gelu}
    found = functions.get(given) if isinstance(given, str) else given
    if found is None:
        raise ArgumentError("activation is 'relu', 'gelu' or a function", found=given)
    return found


def _copies(layer: Module, count: int, kind: str) -> ModuleList:
    if not isinstance(layer, Module):
        raise DTypeError(
            f"{kind} copies a layer", found=f"{type(layer).__name__}",
            wanted="a module, such as TransformerEncoderLayer(...)",
        )
    if not 0 <= count < 1 << 16:
        raise ArgumentError("so many layers are never made", found=f"num_layers {count}")
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class _Layer(Module):
    """What layers of an encoder and of a decoder are made of: the latter attend to a memory too."""

    _attends_to_memory = False

    self_attn: MultiheadAttention
    multihead_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm
    dropout1: Dropout
    dropout2: Dropout
    dropout3: Dropout

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
        def attention() -> MultiheadAttention:
            return MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype
            )

        self.self_attn = attention()
        if self._attends_to_memory:
            self.multihead_attn = attention()
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        places = range(1, 4 if self._attends_to_memory else 3)
        for place in places:
            norm = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
            setattr(self, f"norm{place}", norm)
        for place in places:
            setattr(self, f"dropout{place}", Dropout(dropout))
        self.activation = _activation(activation)

    def _feed(self, x: Tensor) -> Tensor:
        last = self.dropout3 if self._attends_to_memory else self.dropout2
        wide = self.dropout(self.activation(self.linear1(x)))
        dropped: Tensor = last(self.linear2(wide))
        return dropped


def _mixed(
    attention: MultiheadAttention, x: Tensor, memory: Tensor, mask: Tensor | None,
    padding: Tensor | None, is_causal: bool,
) -> Tensor:
    found: Tensor = attention(x, memory, memory, padding, False, mask, is_causal=is_causal)[0]
    return found


class TransformerEncoderLayer(_Layer):
    """Self-attention, then two linear layers, each added to what it was given and normalised.

    Sequences are (L, N, d_model), (N, L, d_model) with `batch_first`, or (L, d_model). activation:
    "relu", "gelu", or a function. norm_first: normalise before each part, not after it.
    """

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
            held = self.norm1(src)
            x = src + self.dropout1(_mixed(self.self_attn, held, held, *masks))
            y = x + self._feed(self.norm2(x))
        else:
            x = self.norm1(src + self.dropout1(_mixed(self.self_attn, src, src, *masks)))
            y = self.norm2(x + self._feed(x))
        return y


class TransformerEncoder(Module):
    """Layers one after the other: copies of `encoder_layer`, then `norm` if one is given."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        self.layers = _copies(encoder_layer, num_layers, "an encoder")
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


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to an encoder's memory, then two linear layers.

    Each is added to what it was given and normalised. Arguments are those of
    `TransformerEncoderLayer`.
    """

    _attends_to_memory = True

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoded sequences; masks as of `MultiheadAttention`. Raises ShapeError."""
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        other = (memory_mask, memory_key_padding_mask, memory_is_causal)
        y: Tensor
        if self.norm_first:
            held = self.norm1(tgt)
            x = tgt + self.dropout1(_mixed(self.self_attn, held, held, *own))
            x = x + self.dropout2(_mixed(self.multihead_attn, self.norm2(x), memory, *other))
            y = x + self._feed(self.norm3(x))
        else:
            x = self.norm1(tgt + self.dropout1(_mixed(self.self_attn, tgt, tgt, *own)))
            x = self.norm2(x + self.dropout2(_mixed(self.multihead_attn, x, memory, *other)))
            y = self.norm3(x + self._feed(x))
        return y


class TransformerDecoder(Module):
    """Layers one after the other: copies of `decoder_layer`, then `norm` if one is given."""

    def __init__(
        self, decoder_layer: Module, num_layers: int, norm: Module | None = None
    ) -> None:
        self.layers = _copies(decoder_layer, num_layers, "a decoder")
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, *masks: Any, **named_masks: Any) -> Tensor:
        """Return the decoded sequences; masks as of `TransformerDecoderLayer`."""
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, **named_masks)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder, each with a norm at its end."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        shared = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
                  batch_first, norm_first, bias, device, dtype)  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*shared), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*shared), num_decoder_layers, norm()
        )
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Draw first values of all matrices anew."""
        for weight in self.parameters():
            if weight.ndim > 1:
                init.xavier_uniform_(weight)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the decoded targets; masks as of `MultiheadAttention`. Raises ShapeError."""
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        found: Tensor = self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        )
        return found

    @staticmethod
    def generate_square_subsequent_mask(
        size: int, device: str | None = None, dtype: object = None
    ) -> Tensor:
        """Return what is added to scores (size, size) so that no position sees later ones."""
        found = default_float() if dtype is None else dtype
        return Tensor.full((size, size), float("-inf"), dtype=found, device=device).triu(1)

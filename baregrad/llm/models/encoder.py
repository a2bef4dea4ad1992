"""Encoders: texts, all of whose tokens see each other, become one vector each.

Source: J. Devlin and others, NAACL 2019 (BERT); N. Reimers and I. Gurevych, EMNLP 2019 (pooling).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import ShapeError, UnsupportedError
from baregrad.dtypes import as_dtype, dtypes
from baregrad.io.gguf import GgufFile, PackedWeight
from baregrad.llm.models.architectures import Shapes, check_shapes, word_count
from baregrad.llm.models.feed_forward import FeedForward
from baregrad.llm.models.keys import Keys
from baregrad.llm.models.traits import LayerTraits
from baregrad.llm.models.weights import GgufWeights, WeightSource
from baregrad.tensor import Tensor

ENCODER = "bert"
_POOLINGS = MappingProxyType({1: "mean", 2: "first", 3: "last"})


@dataclass(frozen=True, slots=True)
class EncoderTraits:
    """An encoder: sums of three learnt vectors a token, layers normed after each half, one vector.

    `kinds`: how many kinds of token have a vector, of which texts take the first. `pooling`: "mean"
    of the tokens' vectors, or that of the "first" or "last" token.
    """

    depth: int
    width: int
    heads: int
    hidden: int
    words: int
    context: int
    kinds: int
    epsilon: float
    pooling: str = "mean"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that the encoder needs, by name."""
        width, hidden = self.width, self.hidden
        found: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.words, width),
            "position_embd.weight": (self.context, width),
            "token_types.weight": (self.kinds, width),
            "token_embd_norm.weight": (width,),
            "token_embd_norm.bias": (width,),
        }
        rows: dict[str, tuple[int, ...]] = {
            "attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width),
            "attn_output": (width, width), "attn_output_norm": (width,),
            "ffn_up": (hidden, width), "ffn_down": (width, hidden), "layer_output_norm": (width,),
        }  # fmt: skip
        for number in range(self.depth):
            for name, shape in rows.items():
                found[f"blk.{number}.{name}.weight"] = shape
                found[f"blk.{number}.{name}.bias"] = shape[:1]
        return found


def read_encoder_traits(metadata: Mapping[str, Any], shapes: Shapes) -> EncoderTraits:
    """Return what encoder a file holds. Raises as `read_traits` does."""
    keys = Keys(metadata)
    if keys.flag("attention.causal", False):
        raise UnsupportedError("an encoder whose words see earlier ones alone")
    traits = EncoderTraits(
        depth=keys.count("block_count"),
        width=keys.count("embedding_length"),
        heads=keys.count("attention.head_count"),
        hidden=keys.count("feed_forward_length"),
        words=word_count(shapes),
        context=keys.count("context_length"),
        kinds=shapes.get("token_types.weight", (1,))[0],
        epsilon=keys.number("attention.layer_norm_epsilon"),
        pooling=keys.choice("pooling_type", _POOLINGS, 1),
    )
    if traits.width % traits.heads:
        raise keys.error("attention.head_count", traits.heads, f"a divisor of {traits.width}")
    keys.refuse_rest()
    check_shapes(traits.shapes(), shapes)
    return traits


class TextEncoder:
    """A model of texts: `embed_texts` gives vectors of length 1, whose products say how alike."""

    def __init__(
        self, traits: EncoderTraits, source: WeightSource, *, dtype: object = dtypes.float32
    ) -> None:
        self.traits = traits
        self.dtype = as_dtype(dtype)
        self._weights: dict[str, PackedWeight] = {}
        self._vectors: dict[str, Tensor] = {}
        for name, shape in traits.shapes().items():
            if len(shape) == 1:
                self._vectors[name] = source.vector(name)
            else:
                self._weights[name] = source.weight(name)
        kind = LayerTraits(
            traits.heads, traits.heads, traits.width // traits.heads, traits.width // traits.heads,
            traits.hidden, 0.0, gate="gelu_exact", is_gated=False, has_hidden_bias=True,
        )  # fmt: skip
        self._feed_forward = [
            FeedForward(kind, _within(self._weights, number), _within(self._vectors, number))
            for number in range(traits.depth)
        ]

    @classmethod
    def from_gguf(
        cls, file: GgufFile, *, dtype: object = dtypes.float32, device: str | None = None
    ) -> TextEncoder:
        """Return the encoder that a GGUF file holds; its weights stay packed, and mapped."""
        source = GgufWeights(file, device)
        traits = read_encoder_traits(file.metadata, source.shapes)
        return cls(traits, source, dtype=dtype)

    def __call__(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return hidden states (B, L, width) of words (B, L); mask (B, L) is 0 for padding.

        Raises ShapeError for texts longer than the context.
        """
        traits, length = self.traits, words.shape[1]
        if isinstance(length, int) and length > traits.context:
            raise ShapeError("a text", found=f"{length} tokens", wanted=f"up to {traits.context}")
        places = Tensor.arange(length, device=words.device)
        kind = Tensor.zeros(1, dtype=dtypes.int32, device=words.device)
        x = self._weights["token_embd.weight"].rows(words)
        x = x + self._weights["position_embd.weight"].rows(places)
        x = x + self._weights["token_types.weight"].rows(kind)
        x = self._normed(x.cast(self.dtype), "token_embd_norm")
        taking_part = (mask != 0).unsqueeze(1).unsqueeze(1)
        for number, feed_forward in enumerate(self._feed_forward):
            layer = f"blk.{number}"
            x = self._normed(x + self._attended(x, taking_part, layer), f"{layer}.attn_output_norm")
            x = self._normed(x + feed_forward(x), f"{layer}.layer_output_norm")
        return x

    def embed_texts(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return a vector of length 1 for each text: (B, width) in float32 of words (B, L)."""
        hidden = self(words, mask).cast(dtypes.float32)
        share = (mask != 0).cast(dtypes.float32).unsqueeze(-1)
        if self.traits.pooling == "mean":
            pooled = (hidden * share).sum(1) / share.sum(1).clamp(min=1)
        elif self.traits.pooling == "first":
            pooled = hidden[:, 0]
        else:
            latest = (mask != 0).cast(dtypes.int32).sum(1) - 1
            there = Tensor.arange(words.shape[1], device=words.device) == latest.unsqueeze(1)
            pooled = (hidden * there.cast(dtypes.float32).unsqueeze(-1)).sum(1)
        found: Tensor = pooled.normalize(dim=1)
        return found

    def _attended(self, x: Tensor, taking_part: Tensor, layer: str) -> Tensor:
        heads = self.traits.heads
        shape = (heads, self.traits.width // heads)
        query, key, value = (
            self._dense(x, f"{layer}.attn_{name}").unflatten(-1, shape).transpose(1, 2)
            for name in "qkv"
        )
        mixed = query.scaled_dot_product_attention(
            key, value, taking_part, scale=1 / math.sqrt(shape[1])
        )
        return self._dense(mixed.transpose(1, 2).flatten(2), f"{layer}.attn_output")

    def _dense(self, x: Tensor, name: str) -> Tensor:
        product = self._weights[f"{name}.weight"].linear(x)
        return product + self._vectors[f"{name}.bias"].cast(x.dtype)

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._vectors[f"{name}.weight"], self._vectors[f"{name}.bias"]
        return x.layer_norm(self.traits.width, weight, bias, self.traits.epsilon)


def _within(table: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The entries of one layer, by their names within it."""
    start = f"blk.{number}."
    return {name[len(start) :]: one for name, one in table.items() if name.startswith(start)}

"""Queries, keys and values of a layer's tokens, and what attention gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baregrad.base.errors import CompilerBug
from baregrad.io.gguf import PackedWeight, PlanarWeight
from baregrad.llm.models.cache import LayerCache
from baregrad.llm.models.rope import Rotation
from baregrad.llm.models.traits import LatentTraits, LayerTraits
from baregrad.tensor import Tensor

Angles = tuple[Tensor, Tensor]
Norm = Callable[[Tensor, str], Tensor]


_APART, _FUSED = ("attn_q", "attn_k", "attn_v"), "attn_qkv"


def fuse_heads(weights: dict[str, PackedWeight], vectors: dict[str, Tensor]) -> None:
    """Make one matrix of those of queries, keys and values, where their blocks are planes.

    GPUs take nearly as long for the few rows of keys as for many. Left apart are matrices of
    several types, and those of which some have a bias and some none.
    """
    found = [weights.get(f"{name}.weight") for name in _APART]
    planar = [one for one in found if isinstance(one, PlanarWeight)]
    biases = [vectors[f"{name}.bias"] for name in _APART if f"{name}.bias" in vectors]
    if len(planar) < len(_APART) or len({one.type.name for one in planar}) > 1:
        return
    if biases and len(biases) < len(_APART):
        return
    weights[f"{_FUSED}.weight"] = planar[0].above(*planar[1:])
    if biases:
        vectors[f"{_FUSED}.bias"] = Tensor.cat(*biases).contiguous().realize()
    for name in _APART:
        del weights[f"{name}.weight"]
        vectors.pop(f"{name}.bias", None)


class GroupedAttention:
    """Heads with keys and values of their own, or of a group of heads."""

    def __init__(
        self,
        traits: LayerTraits,
        weights: Mapping[str, PackedWeight],
        vectors: Mapping[str, Tensor],
        norm: Norm,
        rotation: Rotation | None,
    ) -> None:
        self.traits = traits
        self.weights = weights
        self.vectors = vectors
        self.norm = norm
        self.rotation = rotation

    def __call__(self, x: Tensor, angles: Angles | None, cache: LayerCache) -> Tensor:
        """Return (T, width) of normalised (T, width)."""
        traits = self.traits
        query, key, value = self._heads(x)
        if traits.has_head_norms:
            query, key = self.norm(query, "attn_q_norm"), self.norm(key, "attn_k_norm")
        if self.rotation is not None and angles is not None:
            query, key = (self.rotation.turn(each, angles) for each in (query, key))
        mixed = cache.attend(
            query, key, value,
            scale=traits.scale, window=traits.window, soft_cap=traits.soft_cap,
        )
        return self.dense("attn_output", mixed.flatten(1))

    def dense(self, name: str, x: Tensor) -> Tensor:
        """Return a product with a weight, and its bias added where it has one."""
        found = self.weights[f"{name}.weight"].linear(x)
        bias = self.vectors.get(f"{name}.bias")
        return found if bias is None else found + bias.cast(x.dtype)

    def _heads(self, x: Tensor) -> list[Tensor]:
        traits = self.traits
        shapes = [
            (traits.heads, traits.head_width),
            (traits.key_heads, traits.head_width),
            (traits.key_heads, traits.value_width),
        ]
        if f"{_FUSED}.weight" not in self.weights:
            rows = [self.dense(name, x) for name in _APART]
        else:
            whole, rows, begin = self.dense(_FUSED, x), [], 0
            for heads, width in shapes:
                rows.append(whole[:, begin : begin + heads * width])
                begin += heads * width
        return [row.unflatten(-1, shape) for row, shape in zip(rows, shapes, strict=True)]


class LatentAttention(GroupedAttention):
    """Heads whose keys and values are made of one latent a token, which alone is cached.

    Since keys are matrices times the latent, a query times the matrix meets the latent itself, and
    values are made of the mixture of latents.
    """

    def __call__(self, x: Tensor, angles: Angles | None, cache: LayerCache) -> Tensor:
        """Return (T, width) of normalised (T, width)."""
        traits, latent = self.traits, self._latent
        if self.rotation is None or angles is None:
            raise CompilerBug("latent attention without a rotation")
        query = self._query(x).unflatten(-1, (traits.heads, traits.head_width))
        plain = query[..., : latent.plain_width]
        turned = self.rotation.turn(query[..., latent.plain_width :], angles)
        both = self.dense("attn_kv_a_mqa", x)
        content = self.norm(both[:, : latent.rank], "attn_kv_a_norm").unsqueeze(1)
        shared = self.rotation.turn(both[:, latent.rank :].unsqueeze(1), angles)
        to_keys, to_values = self._matrices(x)
        # (heads, T, plain) @ (heads, plain, rank)
        absorbed = (plain.transpose(0, 1) @ to_keys).transpose(0, 1)
        mixed = cache.attend(
            Tensor.cat([absorbed, turned], dim=-1), Tensor.cat([content, shared], dim=-1), None,
            scale=traits.scale, window=traits.window, soft_cap=traits.soft_cap,
        )
        values = (mixed.transpose(0, 1) @ to_values.mT).transpose(0, 1)
        return self.dense("attn_output", values.flatten(1))

    @property
    def _latent(self) -> LatentTraits:
        if self.traits.latent is None:
            raise CompilerBug("latent attention of a layer without latents")
        return self.traits.latent

    def _query(self, x: Tensor) -> Tensor:
        if not self._latent.query_rank:
            return self.dense("attn_q", x)
        return self.dense("attn_q_b", self.norm(self.dense("attn_q_a", x), "attn_q_a_norm"))

    def _matrices(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The matrices (heads, plain, rank) to keys and (heads, value width, rank) to values."""
        latent = self._latent
        if latent.is_split:
            to_keys = self.weights["attn_k_b.weight"].dense(x.dtype).mT
            return to_keys, self.weights["attn_v_b.weight"].dense(x.dtype)
        both = self.weights["attn_kv_b.weight"].dense(x.dtype)
        both = both.reshape(self.traits.heads, latent.plain_width + latent.value_width, latent.rank)
        return both[:, : latent.plain_width], both[:, latent.plain_width :]

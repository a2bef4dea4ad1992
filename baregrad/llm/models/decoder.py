"""The decoder: word vectors, layers, and scores of the next word, as its traits describe it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from baregrad.base.errors import ShapeError
from baregrad.dtypes import as_dtype, dtypes
from baregrad.io.gguf import GgufFile, PackedWeight, PlanarWeight, share_memory
from baregrad.llm.models.architectures import read_traits
from baregrad.llm.models.cache import LayerCache
from baregrad.llm.models.feed_forward import Experts, FeedForward
from baregrad.llm.models.heads import Angles, GroupedAttention, LatentAttention, fuse_heads
from baregrad.llm.models.rope import Rotation
from baregrad.llm.models.traits import CacheRow, DecoderTraits, LayerTraits, RopeTraits
from baregrad.llm.models.weights import DeviceWeights, GgufWeights, WeightSource
from baregrad.tensor import Tensor
from baregrad.tensor.array.repeated import RepeatedCalls

_LAYER = "blk."


class LanguageModel:
    """A language model that reads words and scores each word that may come next.

    Activations are of `dtype`; norms, softmaxes and scores are computed in float32 in any case. On
    processors products with packed weights round them to bytes, as llama.cpp does, and on GPUs
    those of few tokens with large matrices to integers of 16 bits, unless they are to be `exact`.
    """

    def __init__(
        self,
        traits: DecoderTraits,
        source: WeightSource,
        *,
        dtype: object = dtypes.float32,
        device: str | None = None,
        exact: bool = False,
    ) -> None:
        self.traits = traits
        self.dtype = as_dtype(dtype)
        source = DeviceWeights(source, is_exact=exact)
        self._table = source.weight("token_embd.weight")
        self._head = self._table if traits.is_tied else source.weight("output.weight")
        self._positions: PackedWeight | None = None
        if traits.has_positions:
            self._positions = source.weight("position_embd.weight")
        self._norm = _norm_vectors(source, "output_norm", traits)
        self._rotations: dict[RopeTraits, Rotation] = {}
        for layer in traits.layers:
            if layer.rope is not None and layer.rope not in self._rotations:
                name = layer.rope.factors
                factors = source.vector(name).numpy() if name else None
                self._rotations[layer.rope] = Rotation(layer.rope, factors, device)
        self._layers = [
            DecoderLayer(traits, layer, number, source, self._rotations)
            for number, layer in enumerate(traits.layers)
        ]

    @classmethod
    def from_gguf(
        cls,
        file: GgufFile,
        *,
        context: int | None = None,
        dtype: object = dtypes.float32,
        device: str | None = None,
        exact: bool = False,
    ) -> LanguageModel:
        """Return the decoder that a GGUF file holds; its weights stay packed, and mapped.

        `context`: how many tokens it will be used for, where that matters (see `read_traits`, also
        for what is raised before weights are read).
        """
        source = GgufWeights(file, device)
        traits = read_traits(file.metadata, source.shapes, context=context)
        return cls(traits, source, dtype=dtype, device=device, exact=exact)

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return len(self._layers)

    def cache_rows(self) -> list[CacheRow]:
        """Return what a token takes in a cache, for each layer."""
        return [layer.cache_row for layer in self.traits.layers]

    def embed(self, words: Tensor) -> Tensor:
        """Return the vectors (T, width) of words (T,)."""
        vectors = self._table.rows(words)
        if self.traits.embedding_scale != 1:
            vectors = vectors * self.traits.embedding_scale
        # What is added to them later would unpack them again.
        return vectors.cast(self.dtype).contiguous()

    def __call__(
        self, words: Tensor, positions: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        """Return the hidden states (T, width) of words (T,) at positions (T,), integers both.

        Caches, one a layer, take the words' keys and values in place. Raises ShapeError for another
        number of caches than of layers.
        """
        if len(caches) != self.depth:
            raise ShapeError("caches", found=len(caches), wanted=f"one for each of {self.depth}")
        x = self.embed(words)
        if self._positions is not None:
            x = x + self._positions.rows(positions).cast(x.dtype)
        angles = {rope: each.angles(positions) for rope, each in self._rotations.items()}
        calls = RepeatedCalls()
        for layer, cache in zip(self._layers, caches, strict=True):
            x = calls.call(
                layer.kind, partial(layer, angles=angles, cache=cache), x, layer.tensors,
                cache.arrays,
            )  # fmt: skip
        return _normalised(x, self._norm, self.traits)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores (R, words) in float32 of the words after hidden states (R, width)."""
        traits = self.traits
        # Rounded to 16 bits, many scores would tie.
        scores = self._head.linear(hidden, wide=True)
        if traits.logit_scale != 1:
            scores = scores * traits.logit_scale
        if traits.logit_cap:
            scores = (scores * (1 / traits.logit_cap)).tanh() * traits.logit_cap
        return scores


class DecoderLayer:
    """One layer: attention, then a feed-forward part, each added to what it was given."""

    def __init__(
        self,
        decoder: DecoderTraits,
        traits: LayerTraits,
        number: int,
        source: WeightSource,
        rotations: dict[RopeTraits, Rotation],
    ) -> None:
        self.decoder = decoder
        self.traits = traits
        weights: dict[str, PackedWeight] = {}
        vectors: dict[str, Tensor] = {}
        for name, shape in decoder.layer_shapes(traits).items():
            if len(shape) == 1:
                vectors[name] = source.vector(f"{_LAYER}{number}.{name}")
            else:
                weights[name] = source.weight(f"{_LAYER}{number}.{name}")
        fuse_heads(weights, vectors)
        share_memory([one.planes for one in weights.values() if isinstance(one, PlanarWeight)])
        self._vectors = vectors
        # What tells this layer from others of its kind.
        parts = {id(part): part for each in weights.values() for part in each.tensors}
        self.tensors = [*vectors.values(), *parts.values()]
        forms = tuple([(name, one.type.name, one.shape) for name, one in weights.items()])
        self.kind = (traits, forms)
        rotation = None if traits.rope is None else rotations[traits.rope]
        kind = GroupedAttention if traits.latent is None else LatentAttention
        self._attention = kind(traits, weights, vectors, self._normed, rotation)
        self._feed_forward: FeedForward | Experts
        if traits.experts is None:
            self._feed_forward = FeedForward(traits, weights, vectors)
        else:
            self._feed_forward = Experts(traits, traits.experts, weights, vectors)

    def __call__(
        self, x: Tensor, angles: dict[RopeTraits, Angles], cache: LayerCache
    ) -> Tensor:
        """Return (T, width) of (T, width)."""
        rope = self.traits.rope
        turned = None if rope is None else angles[rope]
        added = self._attention(self._normed(x, "attn_norm"), turned, cache)
        x = self._sum(x, added, "post_attention_norm")
        return self._sum(x, self._feed_forward(self._normed(x, "ffn_norm")), "post_ffw_norm")

    def _sum(self, x: Tensor, added: Tensor, norm: str) -> Tensor:
        if self.traits.has_post_norms:
            added = self._normed(added, norm)
        scale = self.decoder.residual_scale
        return x + (added if scale == 1 else added * scale)

    def _normed(self, x: Tensor, name: str) -> Tensor:
        vectors = self._vectors[f"{name}.weight"], self._vectors.get(f"{name}.bias")
        return _normalised(x, vectors, self.decoder)


def _norm_vectors(
    source: WeightSource, name: str, traits: DecoderTraits
) -> tuple[Tensor, Tensor | None]:
    bias = source.vector(f"{name}.bias") if traits.norm == "layer" else None
    return source.vector(f"{name}.weight"), bias


def _normalised(
    x: Tensor, vectors: tuple[Tensor, Tensor | None], traits: DecoderTraits
) -> Tensor:
    """`x` with each of its last axis' vectors normalised, in its dtype."""
    weight, bias = vectors
    if traits.norm == "rms":
        return x.rms_norm(weight.shape[0], weight, traits.epsilon)
    return x.layer_norm(weight.shape[0], weight, bias, traits.epsilon)

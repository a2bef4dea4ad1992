"""What tells one decoder from another: a row of traits, and a row for each of its layers.

Weights have the names of GGUF files wherever they come from, since every family has one there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeTraits:
    """How the numbers of a head are turned, in pairs, by angles that grow with the position.

    `kind`: "norm" pairs neighbours 2i and 2i + 1, "neox" pairs i and i + width/2. `width`: how many
    numbers of a head turn, the first ones. Pair i turns by base**(-2i/width) radians a position,
    over its number in the tensor `factors` where there is one. `scaling` "linear" divides all
    rates by `factor`; "yarn" divides those of slow pairs, by a ramp between the pairs that turn
    `beta_fast` and `beta_slow` times within `original_context`. Cosines and sines are multiplied by
    `magnitude`. Sources: J. Su and others, 2021 (RoFormer); B. Peng and others, 2023 (YaRN).
    """

    kind: str
    width: int
    base: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0
    factors: str = ""


@dataclass(frozen=True, slots=True)
class LatentTraits:
    """Attention whose keys and values are made of one short vector a token (DeepSeek-AI, 2024).

    The cache holds `rank` numbers of latent and `rope_width` of a key that all heads share. A head
    has `plain_width` further numbers of query and key, which do not turn, and `value_width`
    numbers of value. `query_rank`: the width of the query's own latent, 0 for none. `is_split`:
    whether the matrices from latent to keys and to values are two (attn_k_b, attn_v_b) or one
    (attn_kv_b).
    """

    rank: int
    rope_width: int
    plain_width: int
    value_width: int
    query_rank: int = 0
    is_split: bool = True


@dataclass(frozen=True, slots=True)
class ExpertTraits:
    """A feed-forward layer of which each token takes a few of many parts.

    `hidden`: the width of each of `count` experts, of which `used` are taken; `shared`: the width
    of one that all tokens take, 0 for none, `is_shared_gated` whether a gate weighs it. `scoring`:
    "softmax" or "sigmoid" of the router's numbers; `is_normalised`: the taken scores are divided by
    their sum; they are multiplied by `scale`. Of `groups` of experts, those of the best
    `groups_used` take part; a group is as good as its best expert, or, with `has_bias` (numbers
    added to the scores for choosing alone), as its best two together. `is_gate_fused`: one matrix
    holds gate and up of an expert.
    """

    count: int
    used: int
    hidden: int
    shared: int = 0
    is_shared_gated: bool = False
    scoring: str = "softmax"
    is_normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    has_bias: bool = False
    is_gate_fused: bool = False


@dataclass(frozen=True, slots=True)
class LayerTraits:
    """One layer: attention, then a feed-forward part.

    `scale` multiplies the products of queries and keys; `window`: how many of the latest tokens,
    its own included, a token sees, 0 for all; `soft_cap`: scores become cap * tanh(score / cap), 0
    for no cap. `is_fused`: query, key and value are one matrix attn_qkv. `has_head_norms`: each
    head of query and key is normalised before it turns. `has_post_norms`: what attention and the
    feed-forward part give is normalised before it is added. `gate`: "silu", "gelu" (by tanh) or
    "gelu_exact". `is_gated`: the hidden vector is gate(gate) * up, rather than gate(up);
    `is_gate_fused`: ffn_up holds gate and up.
    """

    heads: int
    key_heads: int
    head_width: int
    value_width: int
    hidden: int
    scale: float
    rope: RopeTraits | None = None
    window: int = 0
    soft_cap: float = 0.0
    is_fused: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_head_norms: bool = False
    has_post_norms: bool = False
    gate: str = "silu"
    is_gated: bool = True
    is_gate_fused: bool = False
    has_hidden_bias: bool = False
    latent: LatentTraits | None = None
    experts: ExpertTraits | None = None

    @property
    def cache_row(self) -> CacheRow:
        """What one token of this layer takes in a cache."""
        if self.latent is not None:
            width = self.latent.rank + self.latent.rope_width
            return CacheRow(1, width, self.latent.rank, True)
        return CacheRow(self.key_heads, self.head_width, self.value_width, False)


@dataclass(frozen=True, slots=True)
class CacheRow:
    """What a cache holds of a token in a layer: keys and values of `heads`, of two widths.

    With `is_shared`, there are no values of their own: they are the first numbers of the keys.
    """

    heads: int
    key_width: int
    value_width: int
    is_shared: bool

    @property
    def count(self) -> int:
        """Numbers that are stored."""
        return self.heads * (self.key_width + (0 if self.is_shared else self.value_width))


@dataclass(frozen=True, slots=True)
class DecoderTraits:
    """A decoder: word vectors, layers, a norm, and scores of the next word.

    `norm`: "rms" or "layer" (which has a bias). `context`: how many tokens it was made for.
    `embedding_scale` multiplies word vectors; `residual_scale` what each half of a layer adds;
    `logit_scale` the scores, which `logit_cap` then holds (0 for none), as a layer's soft_cap does.
    `is_tied`: scores are products with the word vectors. `has_positions`: a learnt vector is added
    for each position.
    """

    architecture: str
    width: int
    words: int
    context: int
    norm: str
    epsilon: float
    layers: tuple[LayerTraits, ...]
    is_tied: bool = False
    has_positions: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that the decoder needs, by name."""
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.words, self.width)}
        if self.has_positions:
            found["position_embd.weight"] = (self.context, self.width)
        for name, width in self._factors().items():
            found[name] = (width,)
        for number, layer in enumerate(self.layers):
            for name, shape in self.layer_shapes(layer).items():
                found[f"blk.{number}.{name}"] = shape
        found |= self._norm("output_norm", self.width)
        if not self.is_tied:
            found["output.weight"] = (self.words, self.width)
        return found

    def _factors(self) -> dict[str, int]:
        ropes = [layer.rope for layer in self.layers if layer.rope is not None]
        return {rope.factors: rope.width // 2 for rope in ropes if rope.factors}

    def _norm(self, name: str, width: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {f"{name}.weight": (width,)}
        if self.norm == "layer":
            found[f"{name}.bias"] = (width,)
        return found

    def layer_shapes(self, layer: LayerTraits) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of a layer, by its name within the layer."""
        found = self._norm("attn_norm", self.width) | self._norm("ffn_norm", self.width)
        if layer.has_post_norms:
            found |= self._norm("post_attention_norm", self.width)
            found |= self._norm("post_ffw_norm", self.width)
        found |= _latent_shapes(layer, self.width) or _attention_shapes(layer, self.width)
        found["attn_output.weight"] = (self.width, layer.heads * layer.value_width)
        if layer.has_output_bias:
            found["attn_output.bias"] = (self.width,)
        if layer.experts is not None:
            return found | _expert_shapes(layer.experts, self.width)
        wide = layer.hidden * (2 if layer.is_gate_fused else 1)
        found["ffn_up.weight"] = (wide, self.width)
        found["ffn_down.weight"] = (self.width, layer.hidden)
        if layer.is_gated and not layer.is_gate_fused:
            found["ffn_gate.weight"] = (layer.hidden, self.width)
        if layer.has_hidden_bias:
            found["ffn_up.bias"], found["ffn_down.bias"] = (wide,), (self.width,)
        return found


def _attention_shapes(layer: LayerTraits, width: int) -> dict[str, tuple[int, ...]]:
    rows = {
        "attn_q": layer.heads * layer.head_width,
        "attn_k": layer.key_heads * layer.head_width,
        "attn_v": layer.key_heads * layer.value_width,
    }
    if layer.is_fused:
        rows = {"attn_qkv": sum(rows.values())}
    found: dict[str, tuple[int, ...]] = {}
    for name, count in rows.items():
        found[f"{name}.weight"] = (count, width)
        if layer.has_qkv_bias:
            found[f"{name}.bias"] = (count,)
    if layer.has_head_norms:
        found["attn_q_norm.weight"] = found["attn_k_norm.weight"] = (layer.head_width,)
    return found


def _latent_shapes(layer: LayerTraits, width: int) -> dict[str, tuple[int, ...]]:
    latent = layer.latent
    if latent is None:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    query = layer.heads * (latent.plain_width + latent.rope_width)
    if latent.query_rank:
        found["attn_q_a.weight"] = (latent.query_rank, width)
        found["attn_q_a_norm.weight"] = (latent.query_rank,)
        found["attn_q_b.weight"] = (query, latent.query_rank)
    else:
        found["attn_q.weight"] = (query, width)
    found["attn_kv_a_mqa.weight"] = (latent.rank + latent.rope_width, width)
    found["attn_kv_a_norm.weight"] = (latent.rank,)
    if latent.is_split:
        found["attn_k_b.weight"] = (layer.heads, latent.rank, latent.plain_width)
        found["attn_v_b.weight"] = (layer.heads, latent.value_width, latent.rank)
    else:
        rows = layer.heads * (latent.plain_width + latent.value_width)
        found["attn_kv_b.weight"] = (rows, latent.rank)
    return found


def _expert_shapes(experts: ExpertTraits, width: int) -> dict[str, tuple[int, ...]]:
    count, hidden, shared = experts.count, experts.hidden, experts.shared
    found: dict[str, tuple[int, ...]] = {
        "ffn_gate_inp.weight": (count, width),
        "ffn_down_exps.weight": (count, width, hidden),
    }
    if experts.is_gate_fused:
        found["ffn_gate_up_exps.weight"] = (count, 2 * hidden, width)
    else:
        found["ffn_gate_exps.weight"] = found["ffn_up_exps.weight"] = (count, hidden, width)
    if experts.has_bias:
        found["exp_probs_b.bias"] = (count,)
    if shared:
        found["ffn_gate_shexp.weight"] = found["ffn_up_shexp.weight"] = (shared, width)
        found["ffn_down_shexp.weight"] = (width, shared)
    if experts.is_shared_gated:
        found["ffn_gate_inp_shexp.weight"] = (width,)
    return found

"""The decoders that can be loaded, by the names that GGUF files give to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.io.excerpt import excerpt
from baregrad.llm.models.keys import Keys, architecture_of
from baregrad.llm.models.traits import (
    DecoderTraits,
    ExpertTraits,
    LatentTraits,
    LayerTraits,
    RopeTraits,
)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the name of an architecture says; the rest is in its keys and its tensors' names.

    `rope`: "norm", "neox" or "none". `period`: where a window is given, every so many-th layer sees
    everything, 0 for none. `window`: the window where no key gives one. `is_scaled`: word vectors
    are multiplied by the root of their width. `wide_depth`: the depth of the one model of its
    family whose scores are scaled by width / heads rather than by the width of a head.
    `local_base`: the base of rotation in layers with a window, 0 where it is everyone's. `needs`:
    tensors of a layer that others of its kind may lack.
    """

    rope: str
    norm: str = "rms"
    gate: str = "silu"
    is_gated: bool = True
    is_gate_fused: bool = False
    is_scaled: bool = False
    period: int = 0
    window: int = 0
    wide_depth: int = 0
    local_base: float = 0.0
    is_normalised: bool = True
    needs: tuple[str, ...] = ()


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({
    "llama": Architecture("norm"),
    "qwen2": Architecture("neox", needs=("attn_q.bias",)),
    "qwen2moe": Architecture("neox", is_normalised=False, needs=("attn_q.bias",)),
    "qwen3": Architecture("neox", needs=("attn_q_norm.weight",)),
    "qwen3moe": Architecture("neox", needs=("attn_q_norm.weight",)),
    "gemma": Architecture("neox", gate="gelu", is_scaled=True),
    "gemma2": Architecture(
        "neox", gate="gelu", is_scaled=True, period=2, window=4096, wide_depth=46,
        needs=("post_ffw_norm.weight",),
    ),
    "gemma3": Architecture(
        "neox", gate="gelu", is_scaled=True, period=6, wide_depth=62, local_base=10000.0,
        needs=("post_ffw_norm.weight", "attn_q_norm.weight"),
    ),
    "phi3": Architecture("neox", is_gate_fused=True),
    "gpt2": Architecture(
        "none", norm="layer", gate="gelu", is_gated=False,
        needs=("attn_qkv.bias", "attn_output.bias", "ffn_up.bias"),
    ),
    "deepseek2": Architecture("norm", is_normalised=False),
})


def read_traits(
    metadata: Mapping[str, Any],
    shapes: Shapes,
    *,
    context: int | None = None,
    rope: str | None = None,
) -> DecoderTraits:
    """Return what decoder a file holds, by its metadata and the shapes of its tensors.

    `context`: how many tokens it will be used for, by which models with two sets of factors choose
    one (the factors for short texts by default). `rope` replaces the architecture's kind of
    rotation, for weights whose rows are ordered otherwise than in GGUF files. Raises
    UnsupportedError for an architecture or a value that is not offered, FileFormatError for
    metadata that is broken or contradicts the tensors.
    """
    name = architecture_of(metadata)
    row = ARCHITECTURES.get(name)
    if row is None:
        raise UnsupportedError(
            f"a model of the architecture {excerpt(name)}", wanted=", ".join(ARCHITECTURES)
        )
    reader = _Reader(Keys(metadata), row, shapes, context, rope or row.rope)
    traits = reader.decoder()
    reader.keys.refuse_rest()
    check_shapes(traits.shapes(), shapes)
    return traits


def word_count(shapes: Shapes) -> int:
    """Return how many words have a vector. Raises FileFormatError where none has."""
    shape = shapes.get("token_embd.weight")
    if shape is None or len(shape) != 2:
        raise FileFormatError(
            "the file lacks word vectors", found=shape, wanted="token_embd.weight of two axes"
        )
    return shape[0]


def check_shapes(wanted: Shapes, found: Shapes) -> None:
    """Compare the tensors of a file with those that a model needs. Raises FileFormatError."""
    for name, shape in wanted.items():
        if name not in found:
            raise FileFormatError("the file lacks a tensor", wanted=f"{name} {list(shape)}")
        if tuple(found[name]) != shape:
            raise FileFormatError(
                f"the tensor {name} has a shape that the metadata contradicts",
                found=list(found[name]), wanted=list(shape),
            )
    for name in found:
        if name not in wanted and not _is_aside(name, wanted):
            raise UnsupportedError(
                f"the file holds a tensor that its architecture has no use for: {excerpt(name)}",
                hint="such a model would run and give wrong answers, so it is refused",
            )


def _is_aside(name: str, wanted: Shapes) -> bool:
    """Whether a tensor is for something else than the next word: factors for other lengths.

    So are scales of what products take in, for machines that round that as coarsely as weights.
    """
    if name.startswith("rope_factors_") or name == "rope_freqs.weight":
        return True
    if name.endswith(".input_scale") and name.removesuffix("input_scale") + "weight" in wanted:
        return True
    # Layers that guess words further ahead stand after all others.
    return name.startswith("blk.") and f"{name.split('.')[0]}.{name.split('.')[1]}" not in {
        ".".join(each.split(".")[:2]) for each in wanted if each.startswith("blk.")
    }


class _Reader:
    """Reads one file's traits."""

    def __init__(
        self, keys: Keys, row: Architecture, shapes: Shapes, context: int | None, rope: str
    ) -> None:
        self.keys = keys
        self.row = row
        self.shapes = shapes
        self.context = context
        self.rope_kind = rope
        ahead = keys.count("nextn_predict_layers", 0, 0)
        self.depth = keys.count("block_count") - ahead
        if f"blk.{self.depth - 1}.attn_norm.weight" not in shapes:
            raise keys.error("block_count", self.depth, "as many layers as there are tensors of")
        self.width = keys.count("embedding_length")
        self.made_for = keys.count("context_length")
        self.heads = keys.counts("attention.head_count", self.depth)
        if min(self.heads) < 1:
            raise keys.error("attention.head_count", self.heads[:8], "1 head or more in a layer")

    def decoder(self) -> DecoderTraits:
        keys, row = self.keys, self.row
        if not keys.flag("attention.causal", True):
            raise UnsupportedError("a decoder whose words see later ones")
        epsilon = f"attention.layer_norm_{'rms_' if row.norm == 'rms' else ''}epsilon"
        return DecoderTraits(
            architecture=keys.architecture,
            width=self.width,
            words=word_count(self.shapes),
            context=self.made_for,
            norm=row.norm,
            epsilon=keys.positive(epsilon),
            layers=self.layers(),
            is_tied="output.weight" not in self.shapes,
            has_positions="position_embd.weight" in self.shapes,
            embedding_scale=keys.number(
                "embedding_scale", math.sqrt(self.width) if row.is_scaled else 1.0
            ),
            residual_scale=keys.number("residual_scale", 1.0),
            logit_scale=keys.number("logit_scale", 1.0),
            logit_cap=keys.number("final_logit_softcapping", 0.0),
        )

    def layers(self) -> tuple[LayerTraits, ...]:
        keys, depth = self.keys, self.depth
        key_heads = keys.value("attention.head_count_kv")
        counts = self.heads if key_heads is None else keys.counts("attention.head_count_kv", depth)
        hidden = keys.counts("feed_forward_length", depth, 0)
        windows = self.windows()
        latent = self.latent()
        rope, local = self.rope(latent), self.local_rope()
        found: list[LayerTraits] = []
        for number in range(depth):
            one = self.layer(number, counts[number], hidden[number], latent)
            window = windows[number]
            turned = local if window and local is not None else rope
            found.append(replace(one, rope=turned, window=window))
        return _interned(found)

    def layer(
        self, number: int, key_heads: int, hidden: int, latent: LatentTraits | None
    ) -> LayerTraits:
        keys, row, heads = self.keys, self.row, self.heads[number]
        width = self.head_width()
        scale = 1 / math.sqrt(width)
        for name in row.needs:
            if not self.has(number, name):
                raise FileFormatError("the file lacks a tensor", wanted=f"blk.{number}.{name}")
        if latent is not None:
            key_heads = heads
            width = latent.plain_width + latent.rope_width
            scale = self.latent_scale(width)
        elif row.wide_depth == self.depth:
            scale = 1 / math.sqrt(self.width // heads)
        if key_heads < 1 or heads % key_heads:
            raise keys.error("attention.head_count_kv", key_heads, f"a divisor of {heads}")
        value_width = width if latent is None else latent.value_width
        return LayerTraits(
            heads=heads,
            key_heads=key_heads,
            head_width=width,
            value_width=value_width if latent else keys.count("attention.value_length", width),
            hidden=hidden,
            scale=keys.positive("attention.scale", scale),
            soft_cap=keys.number("attn_logit_softcapping", 0.0),
            is_fused=self.has(number, "attn_qkv.weight"),
            has_qkv_bias=self.has(number, "attn_q.bias") or self.has(number, "attn_qkv.bias"),
            has_output_bias=self.has(number, "attn_output.bias"),
            has_head_norms=self.has(number, "attn_q_norm.weight"),
            has_post_norms=self.has(number, "post_ffw_norm.weight"),
            gate=row.gate,
            is_gated=row.is_gated,
            is_gate_fused=row.is_gate_fused,
            has_hidden_bias=self.has(number, "ffn_up.bias"),
            latent=latent,
            experts=self.experts(number, hidden),
        )

    def has(self, number: int, name: str) -> bool:
        return f"blk.{number}.{name}" in self.shapes

    def head_width(self) -> int:
        keys, heads = self.keys, self.heads[0]
        if keys.value("attention.key_length") is None and self.width % heads:
            raise keys.error("embedding_length", self.width, f"a multiple of {heads} heads")
        return keys.count("attention.key_length", self.width // heads)

    def windows(self) -> tuple[int, ...]:
        """The window of each layer, 0 for those that see everything."""
        keys, row, depth = self.keys, self.row, self.depth
        window = keys.count("attention.sliding_window", row.window, 0)
        pattern = keys.value("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            if len(pattern) < depth:
                raise keys.error(
                    "attention.sliding_window_pattern", pattern, f"a value for {depth} layers"
                )
            return tuple(window if each else 0 for each in pattern[:depth])
        period = keys.count("attention.sliding_window_pattern", row.period, 0)
        return tuple(
            0 if period and number % period == period - 1 else window for number in range(depth)
        )

    # --- rotation --------------------------------------------------------------------------------

    def rope(self, latent: LatentTraits | None) -> RopeTraits | None:
        if self.rope_kind == "none":
            return None
        keys = self.keys
        whole = self.head_width() if latent is None else latent.rope_width
        width = keys.count("rope.dimension_count", whole)
        if width % 2 or width > whole:
            raise keys.error("rope.dimension_count", width, f"an even number up to {whole}")
        kinds = {each: each for each in ("none", "linear", "yarn", "longrope")}
        scaling = keys.choice("rope.scaling.type", kinds, "linear")
        factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 1.0)
        if factor < 0:
            raise keys.error("rope.scaling.factor", factor, "a number above 0")
        original = keys.count("rope.scaling.original_context_length", self.made_for)
        magnitude = keys.number("rope.scaling.attn_factor", 1.0)
        if scaling == "yarn":
            magnitude *= self.yarn_magnitude(factor)
        if scaling in ("none", "longrope") or factor in (0.0, 1.0):
            scaling, factor = "none", 1.0
        return RopeTraits(
            kind=self.rope_kind,
            width=width,
            base=self.base("rope.freq_base", 10000.0),
            scaling=scaling,
            factor=factor,
            original_context=original,
            beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
            magnitude=magnitude,
            factors=self.factors(original),
        )

    def yarn_magnitude(self, factor: float) -> float:
        """What YaRN multiplies cosines and sines by."""
        found = self.keys.value("rope.scaling.yarn_attn_factor")
        if found is not None:
            return self.keys.number("rope.scaling.yarn_attn_factor")
        if self.log_multiplier():
            # Attention multiplies its scores instead.
            return 1.0
        return 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0

    def log_multiplier(self) -> float:
        return self.keys.number("rope.scaling.yarn_log_multiplier", 0.0)

    def factors(self, original: int) -> str:
        """The name of the tensor that rates are divided by, if any."""
        length = "long" if self.context is not None and self.context > original else "short"
        names = ("rope_freqs.weight", f"rope_factors_{length}.weight")
        return next((name for name in names if name in self.shapes), "")

    def local_rope(self) -> RopeTraits | None:
        """The rotation of layers with a window, where it is another."""
        keys, base = self.keys, self.row.local_base
        if not base:
            return None
        width = keys.count("rope.dimension_count", self.head_width())
        return RopeTraits(self.rope_kind, width, self.base("rope.freq_base_swa", base))

    def base(self, key: str, default: float) -> float:
        found = self.keys.number(key, default)
        if found <= 1:
            raise self.keys.error(key, found, "a number above 1")
        return found

    # --- latents and experts ---------------------------------------------------------------------

    def latent(self) -> LatentTraits | None:
        keys = self.keys
        rank = keys.value("attention.kv_lora_rank")
        if rank is None:
            return None
        rope_width = keys.count("rope.dimension_count")
        is_split = self.has(0, "attn_k_b.weight")
        # Where the matrices are split, the plain keys are those of the cache.
        suffix = "_mla" if is_split else ""
        keys.value("attention.key_length")
        keys.value("attention.value_length")
        whole = keys.count(f"attention.key_length{suffix}")
        if whole <= rope_width:
            raise keys.error(f"attention.key_length{suffix}", whole, f"more than {rope_width}")
        has_query_latent = self.has(0, "attn_q_a.weight")
        return LatentTraits(
            rank=keys.count("attention.kv_lora_rank"),
            rope_width=rope_width,
            plain_width=whole - rope_width,
            value_width=keys.count(f"attention.value_length{suffix}"),
            query_rank=keys.count("attention.q_lora_rank", 0, 0) if has_query_latent else 0,
            is_split=is_split,
        )

    def latent_scale(self, width: int) -> float:
        factor = self.keys.number("rope.scaling.factor", 0.0)
        # The key holds a tenth of the multiplier.
        grown = 1.0 + self.log_multiplier() * math.log(factor) if factor > 1 else 1.0
        return grown * grown / math.sqrt(width)

    def experts(self, number: int, hidden: int) -> ExpertTraits | None:
        keys, row = self.keys, self.row
        keys.value("leading_dense_block_count")
        keys.value("expert_shared_feed_forward_length")
        count = keys.count("expert_count", 0, 0)
        if not count or not self.has(number, "ffn_gate_inp.weight"):
            return None
        used = keys.count("expert_used_count")
        groups = keys.count("expert_group_count", 1)
        taken = keys.count("expert_group_used_count", groups)
        has_bias = self.has(number, "exp_probs_b.bias")
        each = count // groups
        if count % groups or taken > groups or used > taken * each or (
            groups > 1 and has_bias and each < 2
        ):
            raise keys.error(
                "expert_used_count", f"{used} of {count}, of {taken} in {groups} groups",
                "experts that divide into groups, and as many in those that take part",
            )
        shared = self.shapes.get(f"blk.{number}.ffn_up_shexp.weight", (0,))[0]
        return ExpertTraits(
            count=count,
            used=used,
            hidden=keys.counts("expert_feed_forward_length", self.depth, hidden)[number],
            shared=shared,
            is_shared_gated=self.has(number, "ffn_gate_inp_shexp.weight"),
            scoring=keys.choice("expert_gating_func", {1: "softmax", 2: "sigmoid"}, 1),
            is_normalised=keys.flag("expert_weights_norm", row.is_normalised),
            scale=keys.number("expert_weights_scale", 1.0) or 1.0,
            groups=groups,
            groups_used=taken,
            has_bias=has_bias,
            is_gate_fused=self.has(number, "ffn_gate_up_exps.weight"),
        )


def _interned(layers: list[LayerTraits]) -> tuple[LayerTraits, ...]:
    """The layers, of which equal ones are one object."""
    seen: dict[LayerTraits, LayerTraits] = {}
    return tuple(seen.setdefault(layer, layer) for layer in layers)

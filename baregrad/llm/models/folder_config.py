"""The `config.json` of a Hugging Face folder, told in the keys of GGUF metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.io.excerpt import excerpt
from baregrad.llm.models.keys import ARCHITECTURE

Vectors = dict[str, npt.NDArray[np.float64]]
MAX_CONFIG_NBYTES = 1 << 20
MAX_HEAD_WIDTH = 1 << 16
MAX_DEPTH = 1 << 12


@dataclass(frozen=True, slots=True)
class Family:
    """What a `model_type` is called in GGUF files, and how its weights differ from those.

    `rope`: how rows of queries and keys are paired. `gate`: the `hidden_act` it must have.
    `names`: its own names of a layer's parts, beside the usual ones. `is_offset`: weights of norms
    are stored less 1. `is_transposed`: matrices of layers are stored (in, out). `is_tied`: whether
    scores are products with the word vectors where a config does not say. `defaults`: what holds
    for keys that a config leaves out.
    """

    architecture: str
    rope: str = "neox"
    gate: str = "silu"
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    is_offset: bool = False
    is_transposed: bool = False
    is_tied: bool = False
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


_GEMMA_NAMES = MappingProxyType({
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
})
_GPT2_NAMES = MappingProxyType({
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
})
_BERT_NAMES = MappingProxyType({
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
})
_TANH = "gelu_pytorch_tanh"
_GEMMA_DEFAULTS = MappingProxyType({
    "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
})
FAMILIES: Mapping[str, Family] = MappingProxyType({
    "llama": Family("llama", defaults={"rms_norm_eps": 1e-6}),
    "mistral": Family("llama", defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "mixtral": Family("llama", defaults={"num_key_value_heads": 8, "rope_theta": 1e6}),
    "qwen2": Family("qwen2", defaults={"num_key_value_heads": 32, "use_sliding_window": False}),
    "qwen3": Family("qwen3", defaults={
        "num_key_value_heads": 32, "head_dim": 128, "use_sliding_window": False,
    }),
    "qwen2_moe": Family("qwen2moe", defaults={
        "num_key_value_heads": 16, "use_sliding_window": False, "norm_topk_prob": False,
    }),
    "qwen3_moe": Family("qwen3moe", defaults={
        "num_key_value_heads": 4, "use_sliding_window": False, "norm_topk_prob": False,
    }),
    "gemma": Family("gemma", gate=_TANH, is_offset=True, is_tied=True, defaults={
        "num_key_value_heads": 16, "head_dim": 256,
    }),
    "gemma2": Family(
        "gemma2", gate=_TANH, names=_GEMMA_NAMES, is_offset=True, is_tied=True, defaults={
            **_GEMMA_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3_text": Family(
        "gemma3", gate=_TANH, names=_GEMMA_NAMES, is_offset=True, is_tied=True, defaults={
            **_GEMMA_DEFAULTS, "num_attention_heads": 8, "max_position_embeddings": 131072,
            "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        },
    ),
    "phi3": Family("phi3"),
    "gpt2": Family("gpt2", "none", "gelu_new", _GPT2_NAMES, is_transposed=True, is_tied=True),
    "bert": Family("bert", "none", "gelu", _BERT_NAMES),
    "deepseek_v2": Family("deepseek2", "norm", defaults={"topk_method": "greedy"}),
    "deepseek_v3": Family("deepseek2", "norm", defaults={
        "n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    }),
})  # fmt: skip
# Keys of GGUF metadata by keys of a config that mean the same.
_SAME = MappingProxyType({
    "hidden_size": "embedding_length", "n_embd": "embedding_length",
    "num_hidden_layers": "block_count", "n_layer": "block_count",
    "max_position_embeddings": "context_length", "n_positions": "context_length",
    "intermediate_size": "feed_forward_length", "n_inner": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_local_experts": "expert_count", "num_experts": "expert_count",
    "n_routed_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm", "routed_scaling_factor": "expert_weights_scale",
    "kv_lora_rank": "attention.kv_lora_rank", "q_lora_rank": "attention.q_lora_rank",
})  # fmt: skip


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a folder: that of its text part, if it has parts.

    Its family's defaults stand for keys that it leaves out. Raises FileFormatError for what is no
    JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileFormatError(f"{str(folder)!r} holds no model", wanted="a file config.json")
    data = path.read_bytes()
    if len(data) > MAX_CONFIG_NBYTES:
        raise FileFormatError(f"{str(path)!r} is too large", found=f"{len(data)} bytes")
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{str(path)!r}", found=str(error), wanted="JSON") from error
    text = table.get("text_config", table) if isinstance(table, dict) else None
    if not isinstance(text, dict):
        raise FileFormatError(f"{str(path)!r}", found=excerpt(table), wanted="a JSON object")
    kind = text.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    return text if family is None else {**family.defaults, **text}


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a model. Raises UnsupportedError for one that is not offered."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise UnsupportedError(
            f"a model of the type {excerpt(kind)}", wanted=", ".join(FAMILIES)
        )
    found = config.get("hidden_act", config.get("activation_function", family.gate))
    found = config.get("hidden_activation") or found
    if found != family.gate:
        raise UnsupportedError(
            f"the activation {excerpt(found)} of a {kind}", wanted=repr(family.gate)
        )
    return family


def metadata_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], Vectors]:
    """Return GGUF metadata that says what a config says, and the factors that divide rates.

    Raises UnsupportedError for a type of model or of scaling that is not offered.
    """
    family = family_of(config)
    packing = config.get("quantization_config")
    if packing:
        method = packing.get("quant_method") if isinstance(packing, dict) else packing
        raise UnsupportedError(
            "weights of a folder that are packed", found=excerpt(method), wanted="floats",
            hint="a GGUF file of the model holds it packed",
        )
    keys: dict[str, Any] = {
        name: config[key] for key, name in _SAME.items() if config.get(key) is not None
    }
    if family.architecture == "gpt2":
        keys.setdefault("feed_forward_length", 4 * _number(config, "n_embd"))
    if config.get("head_dim") is not None:
        keys["attention.key_length"] = keys["attention.value_length"] = config["head_dim"]
    if config.get("query_pre_attn_scalar") is not None:
        keys["attention.scale"] = _number(config, "query_pre_attn_scalar") ** -0.5
    if family.architecture == "deepseek2":
        keys |= _latent_keys(config)
    keys |= _window_keys(config)
    factors: Vectors = {}
    if family.rope != "none":
        rope, factors = _rope_keys(config, keys)
        keys |= rope
    metadata = {f"{family.architecture}.{key}": value for key, value in keys.items()}
    return {ARCHITECTURE: family.architecture, **metadata}, factors


def _number(config: Mapping[str, Any], key: str) -> Any:
    found = config.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e30:
        raise FileFormatError(f"config.json, {key}", found=excerpt(found), wanted="a number over 0")
    return found


def _table(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise FileFormatError(
            "config.json, what turns heads", found=excerpt(found), wanted="an object"
        )
    return found


def _numbers(config: Mapping[str, Any], key: str) -> npt.NDArray[np.float64]:
    found = config.get(key)
    if not isinstance(found, list) or not found:
        raise FileFormatError(f"config.json, {key}", found=excerpt(found), wanted="numbers")
    return np.array([_number({key: each}, key) for each in found], np.float64)


def _head_width(keys: Mapping[str, Any]) -> int:
    if keys.get("attention.key_length") is not None:
        width = _number(keys, "attention.key_length")
    else:
        width = _number(keys, "embedding_length") // _number(keys, "attention.head_count")
    if not 2 <= width <= MAX_HEAD_WIDTH:
        raise FileFormatError(
            "config.json, the width of a head", found=width, wanted=f"2 to {MAX_HEAD_WIDTH}"
        )
    return int(width)


def _latent_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    turned = _number(config, "qk_rope_head_dim")
    method = config.get("topk_method", "noaux_tc")
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise UnsupportedError("config.json, topk_method", found=excerpt(method))
    is_grouped = method != "greedy" and config.get("n_group")
    is_third = config.get("model_type") == "deepseek_v3"
    return {
        "attention.key_length": turned + _number(config, "qk_nope_head_dim"),
        "attention.value_length": _number(config, "v_head_dim"),
        "rope.dimension_count": turned,
        "expert_group_count": _number(config, "n_group") if is_grouped else 1,
        "expert_group_used_count": _number(config, "topk_group") if is_grouped else 1,
        "expert_gating_func": 2 if is_third else 1,
    }


def _window_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    if "sliding_window" not in config:
        return {}
    window = config["sliding_window"]
    if not window or config.get("use_sliding_window") is False:
        return {"attention.sliding_window": 0}
    kinds = config.get("layer_types")
    if kinds is None and config.get("max_window_layers") is not None:
        whole, depth = (
            int(_number(config, key)) for key in ("max_window_layers", "num_hidden_layers")
        )
        if depth > MAX_DEPTH:
            raise FileFormatError("config.json, num_hidden_layers", found=depth, wanted="fewer")
        kinds = ["sliding_attention" if n >= whole else "full_attention" for n in range(depth)]
    keys: dict[str, Any] = {"attention.sliding_window": window}
    if isinstance(kinds, list):
        other = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
        if other:
            raise UnsupportedError("config.json, layer_types", found=excerpt(other[0]))
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    elif config.get("sliding_window_pattern") is not None:
        keys["attention.sliding_window_pattern"] = config["sliding_window_pattern"]
    return keys


# --- rotation -------------------------------------------------------------------------------------


def _rope_keys(
    config: Mapping[str, Any], keys: Mapping[str, Any]
) -> tuple[dict[str, Any], Vectors]:
    parameters = _table(config.get("rope_parameters") or config.get("rope_scaling") or {})
    local = config.get("rope_local_base_freq")
    if "full_attention" in parameters:
        local = _table(parameters.get("sliding_attention", {})).get("rope_theta", local)
        parameters = _table(parameters["full_attention"])
    found: dict[str, Any] = {
        "rope.freq_base": parameters.get("rope_theta", config.get("rope_theta", 10000.0))
    }
    if local is not None:
        found["rope.freq_base_swa"] = local
    share = {"share": parameters.get(
        "partial_rotary_factor", config.get("partial_rotary_factor", 1.0)
    )}  # fmt: skip
    if share["share"] != 1:
        found["rope.dimension_count"] = int(_head_width(keys) * _number(share, "share"))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    vectors: Vectors = {}
    if kind == "linear":
        found["rope.scaling.type"] = "linear"
        found["rope.scaling.factor"] = _number(parameters, "factor")
    elif kind == "yarn":
        found |= _yarn_keys(parameters, config)
    elif kind == "llama3":
        vectors["rope_freqs.weight"] = _llama3_factors(parameters, found, keys)
    elif kind in ("longrope", "su"):
        found |= _long_keys(parameters, config)
        for length in ("short", "long"):
            vectors[f"rope_factors_{length}.weight"] = _numbers(parameters, f"{length}_factor")
    elif kind != "default":
        raise UnsupportedError("config.json, rope_type", found=excerpt(kind),
                               wanted="default, linear, yarn, llama3, longrope")  # fmt: skip
    return found, vectors


def _yarn_keys(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    if not parameters.get("truncate", True):
        raise UnsupportedError("config.json, truncate of yarn", found="false", wanted="true")
    factor = _number(parameters, "factor")
    original = parameters.get("original_max_position_embeddings")

    def grown(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0

    ours, everyone = (
        _number(parameters, key) if parameters.get(key) else 0.0
        for key in ("mscale", "mscale_all_dim")
    )
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        magnitude = grown(ours) / grown(everyone) if ours and everyone else grown(1.0)
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length":
            original or _number(config, "max_position_embeddings"),
        "rope.scaling.yarn_attn_factor": magnitude,
        "rope.scaling.yarn_beta_fast": parameters.get("beta_fast") or 32,
        "rope.scaling.yarn_beta_slow": parameters.get("beta_slow") or 1,
    }
    if everyone:
        # GGUF keeps a tenth of it.
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * everyone
    return keys


def _long_keys(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    name, whole = "original_max_position_embeddings", _number(config, "max_position_embeddings")
    tables = (parameters, config)
    original = next((_number(each, name) for each in tables if each.get(name)), whole)
    factor = _number(parameters, "factor") if parameters.get("factor") else whole / original
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "rope.scaling.type": "longrope",
        "rope.scaling.attn_factor": magnitude,
        "rope.scaling.original_context_length": original,
    }


def _llama3_factors(
    parameters: Mapping[str, Any], rope: Mapping[str, Any], keys: Mapping[str, Any]
) -> npt.NDArray[np.float64]:
    """What Llama 3.1 divides rates by: nothing for fast pairs, all of the factor for slow ones."""
    width = _head_width(keys)
    factor, original, low, high = (_number(parameters, key) for key in (
        "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"
    ))  # fmt: skip
    if high <= low:
        raise FileFormatError("config.json, high_freq_factor", found=high, wanted=f"above {low}")
    base = _number(rope, "rope.freq_base")
    lengths = 2 * math.pi * base ** (np.arange(0, width, 2) / width)
    share = np.clip((original / lengths - low) / (high - low), 0, 1)
    found: npt.NDArray[np.float64] = 1 / ((1 - share) / factor + share)
    return found

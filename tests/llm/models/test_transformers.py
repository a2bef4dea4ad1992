"""Scores and vectors of small random models of every family, beside those of `transformers`.

Slow, and where `transformers` is installed: `pytest -m slow tests/llm/models/test_transformers.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.loading import open_model
from baregrad.tensor import Tensor

pytestmark = pytest.mark.slow

WORDS, LENGTH = 101, 40
# What the families' configs have in common.
COMMON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": WORDS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
_THETA = {"rope_theta": 10000.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **_THETA}
_LATENT = {
    "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 20,
    "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
_GROUPS = {"q_lora_rank": 40, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
_EXPERTS = {"num_experts": 6, "moe_intermediate_size": 32}
# For each row the config's class and what it is given beside `COMMON`.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama 3": ("LlamaConfig", {
        "max_position_embeddings": 512, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, **_THETA,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
        },
    }),
    "llama, linear": ("LlamaConfig", {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, **_THETA},
    }),
    "llama, biases": ("LlamaConfig", {"attention_bias": True, "head_dim": 32}),
    "mistral": ("MistralConfig", {"sliding_window": 7}),
    "mixtral": ("MixtralConfig", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
    }),
    "qwen 2": ("Qwen2Config", {}),
    "qwen 2, yarn": ("Qwen2Config", {"rope_parameters": _YARN}),
    "qwen 3": ("Qwen3Config", {"head_dim": 32}),
    "qwen 2 moe": ("Qwen2MoeConfig", {
        **_EXPERTS, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 48,
    }),
    "qwen 3 moe": ("Qwen3MoeConfig", {
        **_EXPERTS, "num_experts_per_tok": 3, "head_dim": 32, "norm_topk_prob": True,
    }),
    "gemma": ("GemmaConfig", {"head_dim": 32}),
    "gemma 2": ("Gemma2Config", {
        "head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32,
    }),
    "gemma 3": ("Gemma3TextConfig", {
        "num_hidden_layers": 7, "head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }),
    "phi 3": ("Phi3Config", {"sliding_window": 7, "pad_token_id": 0}),
    "phi 3, long": ("Phi3Config", {
        "sliding_window": None, "pad_token_id": 0, "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope", "original_max_position_embeddings": 64, **_THETA,
            "short_factor": [1.0 + 0.1 * at for at in range(8)],
            "long_factor": [2.0 + 0.3 * at for at in range(8)],
        },
    }),
    "gpt 2": ("GPT2Config", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}),
    "deepseek v2": ("DeepseekV2Config", {
        **_LATENT, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
    }),
    "deepseek v2, groups": ("DeepseekV2Config", {
        **_LATENT, **_GROUPS, "topk_method": "group_limited_greedy",
        "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    }),
    "deepseek v3": ("DeepseekV3Config", {**_LATENT, **_GROUPS, "norm_topk_prob": True}),
}  # fmt: skip


def published(name: str, given: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """A random model of theirs, saved in a folder, and `torch`."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers", reason="the reference is transformers")
    kind = getattr(theirs, name)
    torch.manual_seed(0)
    is_encoder = name == "BertConfig"
    maker = theirs.AutoModel if is_encoder else theirs.AutoModelForCausalLM
    common = {"vocab_size": WORDS} if name == "GPT2Config" else COMMON
    model = maker.from_config(kind(**{**common, **given})).eval().float()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Norms and biases begin as ones and zeros, which would hide their places.
        for value in model.parameters():
            spread = 0.02 if value.ndim > 1 else 0.1
            value.add_(torch.randn(value.shape, generator=draw) * spread)
        for label, value in model.named_buffers():
            if "correction" in label:
                value.copy_(torch.randn(value.shape, generator=draw) * 0.2)
    model.save_pretrained(folder)
    return model, torch


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model, torch = published(*FAMILIES[family], tmp_path)
    words = np.random.default_rng(5).integers(0, WORDS, LENGTH).astype(np.int32)
    with torch.no_grad():
        wanted = model(torch.tensor(words[None].astype(np.int64))).logits[0].numpy()
    decoder = open_model(tmp_path).decoder()
    cache = ContiguousCache(decoder.traits, 64)
    found = []
    for begin, end in ((0, 17), (17, 18), (18, LENGTH)):
        cache.place(begin)
        positions = Tensor(np.arange(begin, end, dtype=np.int32))
        hidden = decoder(Tensor(words[begin:end]), positions, cache.layers)
        found.append(decoder.logits(hidden).numpy())
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=0, atol=5e-6)


def test_vectors_are_those_of_bert(tmp_path: Path) -> None:
    given = {"num_key_value_heads": None, "hidden_act": "gelu"}
    model, torch = published("BertConfig", given, tmp_path)
    words = np.random.default_rng(5).integers(0, WORDS, (3, 12)).astype(np.int64)
    mask = np.arange(12) < np.array([12, 7, 1])[:, None]
    with torch.no_grad():
        hidden = model(
            torch.tensor(words), attention_mask=torch.tensor(mask.astype(np.int64))
        ).last_hidden_state.numpy()
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    wanted = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    encoder = open_model(tmp_path).encoder()
    found = encoder.embed_texts(Tensor(words.astype(np.int32)), Tensor(mask)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)

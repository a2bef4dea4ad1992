"""Hugging Face folders against PyTorch in float64; their names and configs are written by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, safe_save
from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.folder_config import metadata_of, read_config
from baregrad.llm.models.folder_weights import load_folder
from baregrad.llm.models.loading import open_model
from tests.llm.models.plain_decoder import DEPTH, FAMILIES, WORDS, Plain

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": DEPTH, "rms_norm_eps": 1e-5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "vocab_size": WORDS, "hidden_act": "silu",
}  # fmt: skip
USUAL = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "ffn_gate_inp": "block_sparse_moe.gate",
}  # fmt: skip
GEMMA = {**USUAL, "post_attention_norm": "post_attention_layernorm",
         "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"}  # fmt: skip
GPT2 = {
    "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
EXPERTS = {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}


def write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def theirs(weights: dict[str, np.ndarray], names: dict[str, str], layers: str) -> dict[str, Tensor]:
    """Weights under the names of such folders, experts one by one."""
    found = {}
    for name, numbers in weights.items():
        part, _, kind = name.rpartition(".")
        start = ""
        if part.startswith("blk."):
            _, number, part = part.split(".")
            start = f"{layers}.{number}."
        if part in EXPERTS:
            for expert, one in enumerate(numbers):
                place = f"{start}block_sparse_moe.experts.{expert}.{EXPERTS[part]}.{kind}"
                found[place] = Tensor(one)
        else:
            found[f"{start}{names[part]}.{kind}"] = Tensor(numbers)
    return found


def check(folder: Path, plain: Plain, weights: dict[str, np.ndarray]) -> None:
    decoder = open_model(folder).decoder()
    words = np.random.default_rng(1).integers(0, WORDS, 9).astype(np.int32)
    cache = ContiguousCache(decoder.traits, 9)
    hidden = decoder(Tensor(words), Tensor(np.arange(9, dtype=np.int32)), cache.layers)
    expected = plain.forward(weights, words)
    np.testing.assert_allclose(decoder.logits(hidden).numpy(), expected, atol=2e-5)


def test_a_folder_of_two_files_with_an_index(tmp_path: Path) -> None:
    plain = replace(FAMILIES["mixtral"], rope="neox")
    weights = plain.draw()
    tensors = theirs(weights, USUAL, "model.layers")
    files = {name: f"model-{1 + ('.1.' in name)}.safetensors" for name in tensors}
    for file in set(files.values()):
        safe_save({n: t for n, t in tensors.items() if files[n] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    write_config(tmp_path, {**SIZES, "model_type": "mixtral", "intermediate_size": 16,
                            "num_local_experts": 6, "num_experts_per_tok": 2,
                            "sliding_window": None, "rope_theta": 10000.0})  # fmt: skip
    check(tmp_path, plain, weights)
    for strange in ("../model.safetensors", "a" * 5000, "\0", "", "."):
        index.write_text(json.dumps({"weight_map": {**files, "more": strange}}))
        with pytest.raises(FileFormatError, match=r"names a file that the folder lacks"):
            load_folder(tmp_path)
    index.write_text(json.dumps({"weight_map": {**files, "more": "model-1.safetensors"}}))
    with pytest.raises(FileFormatError, match="lacks a tensor: wanted 'more'"):
        load_folder(tmp_path)


def test_norms_that_are_stored_less_one(tmp_path: Path) -> None:
    plain = replace(FAMILIES["gemma2"], scale=12**-0.5)
    weights = plain.draw()
    stored = {n: w - 1 if n.endswith("norm.weight") else w for n, w in weights.items()}
    safe_save(theirs(stored, GEMMA, "model.layers"), tmp_path / "model.safetensors")
    write_config(tmp_path, {
        **SIZES, "model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 12,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    })  # fmt: skip
    check(tmp_path, plain, weights)


def test_matrices_that_are_stored_the_other_way(tmp_path: Path) -> None:
    plain = FAMILIES["gpt2"]
    weights = plain.draw()
    stored = {n: w.T.copy() if n.startswith("blk.") else w for n, w in weights.items()}
    tensors = theirs(stored, GPT2, "h")
    # A mask that old files carry.
    tensors["h.0.attn.bias"] = Tensor.ones(1, 1, 64, 64)
    safe_save(tensors, tmp_path / "model.safetensors")
    write_config(tmp_path, {
        "model_type": "gpt2", "n_embd": 32, "n_layer": DEPTH, "n_head": 4, "n_positions": 64,
        "n_inner": 48, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    })  # fmt: skip
    check(tmp_path, plain, weights)


def test_factors_of_llama_3(tmp_path: Path) -> None:
    parameters = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}  # fmt: skip
    config = {**SIZES, "model_type": "llama", "rope_theta": 500000.0, "rope_scaling": parameters,
              "num_attention_heads": 1, "num_key_value_heads": 1}  # fmt: skip
    found = metadata_of(config)[1]["rope_freqs.weight"]
    kinds = set()
    for pair in range(16):
        length = 2 * math.pi * 500000.0 ** (2 * pair / 32)
        if length < 1024 / 4:
            expected, kind = 1.0, "fast"
        elif length > 1024:
            expected, kind = 8.0, "slow"
        else:
            share = (1024 / length - 1) / (4 - 1)
            expected, kind = 1 / ((1 - share) / 8 + share), "between"
        kinds.add(kind)
        assert found[pair] == pytest.approx(expected)
    assert kinds == {"fast", "slow", "between"}


@pytest.mark.parametrize(("changes", "text"), [
    ({"model_type": "mamba"}, "'mamba': wanted llama, mistral"),
    ({"quantization_config": {"quant_method": "awq"}}, "packed: found .*awq"),
    ({"hidden_act": "relu"}, "the activation 'relu' of a llama: wanted 'silu'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type: found 'dynamic'"),
    ({"sliding_window": 4, "layer_types": ["chunked_attention"]}, "'chunked_attention'"),
])  # fmt: skip
def test_unknown_values_are_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        metadata_of({**SIZES, "model_type": "llama", **changes})


def test_keys_that_a_config_leaves_out(tmp_path: Path) -> None:
    # As published for Gemma 3 4B, whose text part says no more.
    write_config(tmp_path, {"model_type": "gemma3", "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }})  # fmt: skip
    found = metadata_of(read_config(tmp_path))[0]
    expected = {
        "attention.head_count": 8, "attention.head_count_kv": 4, "attention.key_length": 256,
        "attention.sliding_window": 1024, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
        "rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "attention.scale": 1 / 16,
    }  # fmt: skip
    assert {key: found[f"gemma3.{key}"] for key in expected} == expected
    qwen = {**SIZES, "model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1}
    write_config(tmp_path, qwen)
    assert metadata_of(read_config(tmp_path))[0]["qwen2.attention.sliding_window"] == 0
    write_config(tmp_path, {**qwen, "use_sliding_window": True})
    found = metadata_of(read_config(tmp_path))[0]
    assert found["qwen2.attention.sliding_window_pattern"] == [False, True]


def test_what_a_folder_says_of_its_use(tmp_path: Path) -> None:
    plain = replace(FAMILIES["llama"], rope="neox", factors=False)
    tensors = theirs(plain.draw(), USUAL, "model.layers")
    safe_save(tensors, tmp_path / "model.safetensors")
    write_config(tmp_path, {**SIZES, "model_type": "llama"})
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    found = open_model(tmp_path)
    assert found.template == "{{ messages }}" and found.folder == tmp_path
    assert found.sampling == {"temp": 0.6, "top_p": 0.9}
    assert not found.is_encoder
    with pytest.raises(FileFormatError, match="holds no model"):
        open_model(tmp_path / "..")

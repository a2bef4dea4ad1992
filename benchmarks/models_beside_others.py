"""Scores of language models beside those of transformers and llama.cpp, from the same weights.

    python benchmarks/models_beside_others.py families [NAME ...]
    python benchmarks/models_beside_others.py file MODEL.gguf [PROMPT ...]

`families` makes a small random model of each family with the package `transformers`, saves it as a
folder and as a GGUF file (which the package `gguf` writes), and prints the largest difference of
our scores from those of transformers, and from those of llama.cpp where `llama_cpp` is installed.
Where llama.cpp differs much it leaves something out that transformers does: windows of `llama` and
`phi3`, Gemma's `query_pre_attn_scalar`, groups of experts that are as good as their best one; and
it takes the long factors of Phi 3 for any context, since it rounds contexts up to 256.

`file` compares scores of prompts with those of llama.cpp, as the mean divergence of its
distributions from ours, and the texts that both go on with when each takes its likeliest word.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from baregrad import Tensor, bind, jit, variable
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.decoder import LanguageModel
from baregrad.llm.models.folder_config import metadata_of, read_config
from baregrad.llm.models.loading import ModelFiles, open_model

WORDS, LENGTH, CONTEXT = 101, 40, 256
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": CONTEXT,
}  # fmt: skip
LATENT = {
    **SIZES, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24, "v_head_dim": 20, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip
SOME = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
PROMPTS = (
    "The capital of France is", "def fibonacci(n):\n    ", "1 + 1 =", "Water boils at",
    "Once upon a time, in a small village by the sea,", "List three animals: ",
    "The quick brown fox jumps over the lazy dog. The",
)  # fmt: skip


def rope(kind: str, **more: Any) -> dict[str, Any]:
    """The rotation of a config, with a kind of scaling."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def families() -> dict[str, Any]:
    """Return configurations of transformers by name."""
    import transformers as t

    short = {"original_max_position_embeddings": 64}
    both = {"full_attention": rope("linear", factor=8.0)["rope_parameters"],
            "sliding_attention": rope("default")["rope_parameters"]}  # fmt: skip
    gemma = {**SIZES, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 6}
    factors = [1 + 0.1 * pair for pair in range(8)]
    return {
        "llama": t.LlamaConfig(**SIZES),
        "llama with biases": t.LlamaConfig(**SIZES, attention_bias=True, head_dim=32),
        "llama 3": t.LlamaConfig(**SIZES, tie_word_embeddings=True, **rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **short)),
        "llama, linear": t.LlamaConfig(**SIZES, **rope("linear", factor=4.0)),
        "mistral": t.MistralConfig(**SIZES, sliding_window=7),
        "mixtral": t.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None),
        "qwen 2": t.Qwen2Config(**SIZES),
        "qwen 2, yarn": t.Qwen2Config(**SIZES, **rope("yarn", factor=4.0, **short)),
        "qwen 2 moe": t.Qwen2MoeConfig(**SIZES, **SOME, shared_expert_intermediate_size=48),
        "qwen 3": t.Qwen3Config(**SIZES, head_dim=32),
        "qwen 3 moe": t.Qwen3MoeConfig(**SIZES, **SOME, head_dim=32, norm_topk_prob=True),
        "gemma": t.GemmaConfig(**SIZES, head_dim=32),
        "gemma 2": t.Gemma2Config(**gemma),
        "gemma 3": t.Gemma3TextConfig(
            **{**gemma, "num_hidden_layers": 7}, rope_parameters=both),
        "phi 3": t.Phi3Config(**SIZES, sliding_window=7, pad_token_id=0),
        "phi 3, partly turned": t.Phi3Config(
            **SIZES, sliding_window=None, pad_token_id=0,
            **rope("default", partial_rotary_factor=0.5)),
        "phi 3, long": t.Phi3Config(**SIZES, sliding_window=None, pad_token_id=0, **short, **rope(
            "longrope", short_factor=factors, long_factor=[2 * x for x in factors], **short)),
        "gpt 2": t.GPT2Config(
            n_embd=64, n_layer=3, n_head=4, vocab_size=WORDS, n_positions=CONTEXT),
        "deepseek 2 lite": t.DeepseekV2Config(**LATENT, q_lora_rank=None, topk_method="greedy"),
        "deepseek 2": t.DeepseekV2Config(
            **LATENT, q_lora_rank=40, topk_method="group_limited_greedy", n_group=4, topk_group=2,
            routed_scaling_factor=2.5, **rope(
                "yarn", factor=4.0, mscale=0.707, mscale_all_dim=0.707, **short)),
        "deepseek 3": t.DeepseekV3Config(
            **LATENT, q_lora_rank=40, n_group=4, topk_group=2, norm_topk_prob=True),
    }  # fmt: skip


def make(config: Any, folder: Path, words: np.ndarray) -> np.ndarray:
    """Save a random model of transformers; return its scores of words."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for numbers in model.parameters():
            numbers += torch.randn(numbers.shape) * (0.02 if numbers.ndim > 1 else 0.1)
        for name, numbers in model.named_buffers():
            if "correction" in name:
                numbers.copy_(torch.randn(numbers.shape) * 0.2)
        model.save_pretrained(folder)
        found: np.ndarray = model(torch.from_numpy(words)[None].long()).logits[0].numpy()
    return found


def ours(model: LanguageModel, words: np.ndarray) -> np.ndarray:
    """Return our scores of words."""
    cache = ContiguousCache(model.traits, len(words))
    places = Tensor(np.arange(len(words), dtype=np.int32))
    found: np.ndarray = model.logits(model(Tensor(words), places, cache.layers)).numpy()
    return found


# --- GGUF files -----------------------------------------------------------------------------------


def as_gguf(files: ModelFiles, path: Path) -> None:
    """Write a folder's model as llama.cpp's converter would."""
    from gguf import GGUFWriter

    name = files.metadata["general.architecture"]
    metadata = dict(metadata_of(read_config(files.path))[0])
    shapes = files.source.shapes
    tensors = {
        each: (files.source.vector(each) if len(shape) == 1 else files.source.weight(each).dense())
        .numpy() for each, shape in shapes.items()
    }  # fmt: skip
    heads = metadata[f"{name}.attention.head_count"]
    if name == "llama":
        for each in tensors:
            for part, count in (("attn_q.", heads),
                                ("attn_k.", metadata[f"{name}.attention.head_count_kv"])):
                if part in each:
                    halves = tensors[each].reshape(count, 2, -1, *tensors[each].shape[1:])
                    tensors[each] = halves.swapaxes(1, 2).reshape(tensors[each].shape)
    if name == "deepseek2":
        _split_latents(metadata, tensors, heads)
    if name == "qwen2moe":
        metadata[f"{name}.expert_shared_feed_forward_length"] = 48
    width = metadata.get(f"{name}.attention.key_length", SIZES["hidden_size"] // heads)
    metadata.setdefault(f"{name}.rope.dimension_count", width)
    metadata |= {f"{name}.vocab_size": WORDS, "tokenizer.ggml.model": "no_vocab"}
    writer = GGUFWriter(str(path), name)
    for key, value in metadata.items():
        if key != "general.architecture":
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
                   str: writer.add_string, list: writer.add_array}[type(value)]  # fmt: skip
            add(key, value)
    for each, numbers in tensors.items():
        writer.add_tensor(each, np.ascontiguousarray(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _split_latents(metadata: dict[str, Any], tensors: dict[str, np.ndarray], heads: int) -> None:
    key = "deepseek2.attention"
    rank, turned = metadata[f"{key}.kv_lora_rank"], metadata["deepseek2.rope.dimension_count"]
    whole, value = metadata[f"{key}.key_length"], metadata[f"{key}.value_length"]
    for name in [name for name in tensors if "attn_kv_b" in name]:
        both = tensors.pop(name).reshape(heads, whole - turned + value, rank)
        tensors[name.replace("kv_b", "k_b")] = both[:, : whole - turned].swapaxes(1, 2)
        tensors[name.replace("kv_b", "v_b")] = both[:, whole - turned :]
    metadata |= {
        f"{key}.key_length_mla": whole, f"{key}.value_length_mla": value,
        f"{key}.key_length": rank + turned, f"{key}.value_length": rank,
        f"{key}.head_count_kv": 1, "deepseek2.leading_dense_block_count": 1,
        "deepseek2.expert_shared_count": 2,
    }  # fmt: skip
    metadata.pop("deepseek2.rope.scaling.yarn_attn_factor", None)


def llama(path: Path, words: np.ndarray) -> np.ndarray | None:
    """The scores of llama.cpp; None where it does not load the file."""
    from llama_cpp import Llama

    try:
        model = Llama(str(path), n_ctx=len(words), n_batch=len(words), logits_all=True,
                      verbose=False, flash_attn=False, type_k=0, type_v=0)  # fmt: skip
    except ValueError:
        return None
    model.eval([int(word) for word in words])
    return np.array(model.scores[: len(words)])


def compare_families(names: list[str]) -> Iterator[str]:
    """Yield a line for each family."""
    words = np.random.default_rng(1).integers(0, WORDS, LENGTH).astype(np.int32)
    for name, config in families().items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            theirs = make(config, Path(folder), words)
            files = open_model(folder)
            line = [f"transformers {np.abs(ours(files.decoder(), words) - theirs).max():.1e}"]
            path = Path(folder) / "model.gguf"
            as_gguf(files, path)
            found = ours(open_model(path).decoder(), words)
            line.append(f"our GGUF and transformers {np.abs(found - theirs).max():.1e}")
            other = llama(path, words)
            line.append("llama.cpp " + (
                "loads it not" if other is None else f"{np.abs(found - other).max():.1e}"))
        yield f"{name:20} {', '.join(line)}"


# --- a real file ----------------------------------------------------------------------------------


def _logarithms(scores: np.ndarray) -> np.ndarray:
    shifted = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


def compare_file(path: Path, prompts: list[str], more: int = 64) -> Iterator[str]:
    """Yield a line for each prompt."""
    from llama_cpp import Llama

    other = Llama(str(path), n_ctx=512, logits_all=True, verbose=False)
    model = open_model(path).decoder()
    cache = ContiguousCache(model.traits, 512)
    at = variable("at", 0, 511)

    @jit
    def step(word: Tensor, at: Any) -> Tensor:
        cache.place(at)
        hidden = model(word, Tensor.arange(at, at + 1), cache.layers)
        return model.logits(hidden)

    for prompt in prompts:
        words = other.tokenize(prompt.encode(), special=True)
        other.reset()
        other.eval(words)
        theirs = _logarithms(np.array(other.scores[: len(words)]))
        mine = _logarithms(ours(model, np.array(words, np.int32)))
        distance = (np.exp(theirs) * (theirs - mine)).sum(-1).mean()
        rows: list[list[int]] = [[], []]
        word = int(np.argmax(other.scores[len(words) - 1]))
        for _ in range(more):
            rows[0].append(word)
            other.eval([word])
            word = int(np.argmax(other.scores[other.n_tokens - 1]))
        for place, each in enumerate(words):
            scores = step(Tensor(np.array([each], np.int32)), bind(at, place))
        for place in range(len(words), len(words) + more):
            rows[1].append(int(scores.argmax(-1).item()))
            word_tensor = Tensor(np.array([rows[1][-1]], np.int32))
            scores = step(word_tensor, bind(at, place))
        same = next((n for n in range(more) if rows[0][n] != rows[1][n]), more)
        yield (f"{prompt[:30]!r:34} divergence {distance:.1e}, the same {same} of {more} words: "
               f"{other.detokenize(rows[1]).decode(errors='replace')!r}")  # fmt: skip


def main() -> int:
    """Compare as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("what", choices=("families", "file"))
    parser.add_argument("rest", nargs="*", metavar="NAME or FILE and PROMPT")
    asked = parser.parse_args()
    if asked.what == "families":
        lines = compare_families(asked.rest)
    else:
        lines = compare_file(Path(asked.rest[0]), asked.rest[1:] or list(PROMPTS))
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

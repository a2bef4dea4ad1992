"""A model file small enough for tests: one layer, random weights, a byte-level vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from baregrad.io.gguf import TensorToWrite, by_name, write_gguf
from tests.llm.text.vocabularies import byte_metadata

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, HEADS, HIDDEN, CONTEXT = 64, 2, 48, 256


def write_model(path: Path, **more: Any) -> Path:
    """Write the model; `more` are keys of metadata, None to leave one out."""
    metadata = byte_metadata() | {
        "tokenizer.chat_template": TEMPLATE,
        "general.architecture": "llama", "llama.context_length": CONTEXT, "llama.block_count": 1,
        "llama.embedding_length": WIDTH, "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    } | more
    words = len(metadata["tokenizer.ggml.tokens"])
    head = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (words, WIDTH), "output_norm.weight": (WIDTH,),
        "output.weight": (words, WIDTH), "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,), "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (head, WIDTH), "blk.0.attn_v.weight": (head, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH), "blk.0.ffn_gate.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_up.weight": (HIDDEN, WIDTH), "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
    }
    rng, plain = np.random.default_rng(0), by_name("F32")
    tensors = {}
    for name, shape in shapes.items():
        numbers = rng.normal(size=shape).astype(np.float32) * (1 if len(shape) == 2 else 0.1)
        tensors[name] = TensorToWrite(plain, shape, lambda numbers=numbers: numbers)
    kept = {key: value for key, value in metadata.items() if value is not None}
    write_gguf(path, kept, tensors)
    return path

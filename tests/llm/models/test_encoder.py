"""An encoder of BERT's form against PyTorch in float64, from a file that `gguf` wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from torch.nn import functional

from baregrad import Tensor
from baregrad.base.errors import ShapeError, UnsupportedError
from baregrad.io.gguf import GgufFile
from baregrad.llm.models.encoder import EncoderTraits
from baregrad.llm.models.loading import open_model

WIDTH, HIDDEN, DEPTH, HEADS, WORDS, CONTEXT = 32, 48, 2, 4, 61, 20


def draw() -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (WORDS, WIDTH), "position_embd.weight": (CONTEXT, WIDTH),
        "token_types.weight": (2, WIDTH), "token_embd_norm.weight": (WIDTH,),
        "token_embd_norm.bias": (WIDTH,),
    }  # fmt: skip
    for number in range(DEPTH):
        for name, rows, inputs in (("attn_q", WIDTH, WIDTH), ("attn_k", WIDTH, WIDTH),
                                   ("attn_v", WIDTH, WIDTH), ("attn_output", WIDTH, WIDTH),
                                   ("ffn_up", HIDDEN, WIDTH), ("ffn_down", WIDTH, HIDDEN),
                                   ("attn_output_norm", WIDTH, 0),
                                   ("layer_output_norm", WIDTH, 0)):  # fmt: skip
            shapes[f"blk.{number}.{name}.weight"] = (rows, inputs) if inputs else (rows,)
            shapes[f"blk.{number}.{name}.bias"] = (rows,)
    rng = np.random.default_rng(0)
    return {n: (rng.normal(size=s) * s[-1] ** -0.5).astype(np.float32) for n, s in shapes.items()}


def write(path: Path, weights: dict[str, np.ndarray], pooling: int, causal: bool = False) -> None:
    writer = GGUFWriter(str(path), "bert")
    for key, value in {
        "block_count": DEPTH, "embedding_length": WIDTH, "feed_forward_length": HIDDEN,
        "context_length": CONTEXT, "attention.head_count": HEADS, "pooling_type": pooling,
    }.items():  # fmt: skip
        writer.add_uint32(f"bert.{key}", value)
    writer.add_float32("bert.attention.layer_norm_epsilon", 1e-5)
    writer.add_bool("bert.attention.causal", causal)
    for name, numbers in weights.items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def hidden_of(weights: dict[str, np.ndarray], words: np.ndarray) -> torch.Tensor:
    """The hidden states (L, width) of one text without padding."""
    table = {name: torch.from_numpy(w.astype(np.float64)) for name, w in weights.items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), table[f"{name}.weight"], table[f"{name}.bias"],
                                     1e-5)  # fmt: skip

    def dense(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, table[f"{name}.weight"], table[f"{name}.bias"])

    x = table["token_embd.weight"][words] + table["position_embd.weight"][: len(words)]
    x = norm(x + table["token_types.weight"][0], "token_embd_norm")
    for number in range(DEPTH):
        at = f"blk.{number}."
        q, k, v = (dense(x, f"{at}attn_{n}").reshape(len(words), HEADS, -1).transpose(0, 1)
                   for n in "qkv")  # fmt: skip
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        x = norm(x + dense(mixed, f"{at}attn_output"), f"{at}attn_output_norm")
        h = dense(functional.gelu(dense(x, f"{at}ffn_up")), f"{at}ffn_down")
        x = norm(x + h, f"{at}layer_output_norm")
    return x


@pytest.mark.parametrize(("pooling", "name"), [(1, "mean"), (2, "first"), (3, "last")])
def test_texts_become_vectors_as_in_pytorch(pooling: int, name: str, tmp_path: Path) -> None:
    weights = draw()
    write(tmp_path / "model.gguf", weights, pooling)
    model = open_model(tmp_path / "model.gguf")
    assert model.is_encoder
    encoder = model.encoder()
    assert encoder.traits.pooling == name
    words = np.random.default_rng(1).integers(0, WORDS, (2, 7))
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3])
    found = encoder.embed_texts(Tensor(words), Tensor(mask)).numpy()
    for row, length in enumerate((7, 4)):
        hidden = hidden_of(weights, words[row, :length])
        pooled = {"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1]}[name]
        np.testing.assert_allclose(found[row], functional.normalize(pooled, dim=0), atol=1e-6)


def test_what_it_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    weights = draw()
    write(tmp_path / "model.gguf", weights, 4)
    with pytest.raises(UnsupportedError, match="pooling_type"):
        open_model(tmp_path / "model.gguf").encoder()
    write(tmp_path / "model.gguf", weights, 1, causal=True)
    with pytest.raises(UnsupportedError, match="earlier ones alone"):
        open_model(tmp_path / "model.gguf").encoder()
    write(tmp_path / "model.gguf", weights, 1)
    encoder = open_model(tmp_path / "model.gguf").encoder()
    with pytest.raises(ShapeError, match="up to 20"):
        encoder.embed_texts(Tensor.zeros(1, 21, dtype="int64"), Tensor.ones(1, 21))


def test_an_encoder_wants_what_its_files_hold(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", draw(), 1)
    traits = EncoderTraits(DEPTH, WIDTH, HEADS, HIDDEN, WORDS, CONTEXT, 2, 1e-5)
    file = GgufFile.open(tmp_path / "model.gguf")
    assert traits.shapes() == {name: one.shape for name, one in file.tensors.items()}

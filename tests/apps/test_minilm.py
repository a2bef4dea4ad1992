"""The sentence encoder against the same weights in PyTorch, written out by functions alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from baregrad.apps.embed import table
from baregrad.apps.minilm import SentenceEncoder, similarities
from baregrad.base.errors import ShapeError
from baregrad.data.minilm import TokenBatch, find_files
from baregrad.tensor import Tensor

TEXTS = (
    "A man is eating food.",
    "Someone has a meal.",
    "The sky is clear tonight.",
    "naïve café, 123 + 456 = 579?!",
    "",
)
BAR = 1e-4


def torch_weights() -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(find_files().weights))


def torch_encode(weights: dict[str, torch.Tensor], batch: TokenBatch) -> np.ndarray:
    """BERT's encoder in float32, of the equations, with 6 layers of 12 heads."""
    ids, mask, types = (
        torch.tensor(a) for a in (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    )
    part = "embeddings."
    x = weights[part + "word_embeddings.weight"][ids]
    x = x + weights[part + "token_type_embeddings.weight"][types]
    x = x + weights[part + "position_embeddings.weight"][torch.arange(ids.shape[1])]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (384,), weights[name + ".weight"], weights[name + ".bias"], 1e-12)

    def dense(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, weights[name + ".weight"], weights[name + ".bias"])

    x = norm(x, part + "LayerNorm")
    added = (1.0 - mask[:, None, None, :].float()) * -1e9
    for number in range(6):
        part = f"encoder.layer.{number}."
        query, key, value = (
            dense(x, f"{part}attention.self.{name}").unflatten(-1, (12, 32)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        weights_ = ((query @ key.mT) / 32**0.5 + added).softmax(-1)
        mixed = (weights_ @ value).transpose(1, 2).flatten(2)
        name = part + "attention.output."
        x = norm(dense(mixed, name + "dense") + x, name + "LayerNorm")
        wide = F.gelu(dense(x, part + "intermediate.dense"))
        x = norm(dense(wide, part + "output.dense") + x, part + "output.LayerNorm")
    share = mask[..., None].float()
    return F.normalize((x * share).sum(1) / share.sum(1), dim=1).numpy()


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder()


@pytest.mark.differential
def test_similarities_equal_pytorchs(encoder: SentenceEncoder) -> None:
    batch = encoder.tokenizer.encode(TEXTS)
    vectors = torch_encode(torch_weights(), batch)
    found = similarities(encoder.encode_tokens(batch))
    difference = np.abs(found - vectors @ vectors.T).max()
    print(f"largest difference of a similarity: {difference:.2e}")
    assert difference < BAR
    assert found[0, 1] > 0.5 > found[0, 2]


def test_a_text_is_encoded_alike_alone_and_beside_longer_ones(encoder: SentenceEncoder) -> None:
    """Padding takes no part."""
    together = encoder.encode(TEXTS[:3]).numpy()
    alone = encoder.encode(TEXTS[1:2]).numpy()
    np.testing.assert_allclose(together[1:2], alone, atol=1e-5)


def test_the_weights_are_not_copied(encoder: SentenceEncoder) -> None:
    weight = encoder.model._weights["token_embd.weight"].bytes.realize()
    assert weight._storage.node.arg.handle.memory.readonly


def test_vectors_of_texts_are_compared() -> None:
    with pytest.raises(ShapeError, match="N, E"):
        similarities(Tensor([1.0, 0.0]))


def test_the_table_numbers_and_shortens_texts() -> None:
    text = table(["a\nb", "x" * 100], np.eye(2, dtype=np.float32))
    lines = text.splitlines()
    assert lines[0] == "  1  a b"
    assert lines[1].endswith("x...")
    assert len(lines[1]) == 65
    assert lines[-1].split() == ["2", "0.0000", "1.0000"]

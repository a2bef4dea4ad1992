"""SmolLM2 as it is published, against NumPy in float64 over what `gguf` makes of its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, quants

from baregrad import Tensor
from baregrad.data.smollm import find_model
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.loading import open_model
from baregrad.llm.text import tokenizer_of

PROMPTS = (
    "The capital of France is", "def fibonacci(n):\n    ", "1 + 1 =", "Water boils at",
    "Once upon a time, in a small village by the sea,", "List three animals: ",
    "The quick brown fox jumps over the lazy dog. The", "import numpy as np\n\nx = np.",
    "Gravity is the force by which", "In 1969, Neil Armstrong", "Dear Sir or Madam,",
    "SELECT name FROM users WHERE", "The mitochondria is the", "To be, or not to be:",
    "A triangle has three sides; a square has", "{\"name\": \"Ada\", \"age\":",
    "Ünïcödé, naïve café, 日本語", "    \n\n\t", "Q: What is 7 times 8?\nA:", "The",
)  # fmt: skip


class Reference:
    """The model in float64, one layer after another for all prompts, so that little is held."""

    def __init__(self, path: str) -> None:
        reader = GGUFReader(path)
        self.packed = {tensor.name: tensor for tensor in reader.tensors}
        self.keys: dict[str, Any] = {
            name.removeprefix("llama."): field.contents()
            for name, field in reader.fields.items() if name.startswith("llama.")
        }  # fmt: skip

    def weight(self, name: str) -> np.ndarray:
        tensor = self.packed[name]
        numbers = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return numbers.reshape([int(extent) for extent in tensor.shape[::-1]])

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        epsilon = self.keys["attention.layer_norm_rms_epsilon"]
        size = np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
        return x / size * self.weight(name)

    def turned(self, x: np.ndarray) -> np.ndarray:
        """(T, heads, width): neighbours are complex numbers."""
        width = x.shape[-1]
        rates = self.keys["rope.freq_base"] ** (-np.arange(0, width, 2) / width)
        steps = np.exp(1j * np.arange(len(x))[:, None] * rates)[:, None]
        pairs = (x[..., ::2] + 1j * x[..., 1::2]) * steps
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    def scores(self, prompts: list[list[int]]) -> list[np.ndarray]:
        table = self.weight("token_embd.weight")
        rows = [table[words] for words in prompts]
        for number in range(self.keys["block_count"]):
            at = f"blk.{number}."
            w = {name: self.weight(f"{at}{name}.weight") for name in (
                "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"
            )}  # fmt: skip
            rows = [self.layer(x, w, at) for x in rows]
        head = self.weight("output.weight") if "output.weight" in self.packed else table
        return [self.norm(x, "output_norm.weight") @ head.T for x in rows]

    def layer(self, x: np.ndarray, w: dict[str, np.ndarray], at: str) -> np.ndarray:
        heads, groups = self.keys["attention.head_count"], self.keys["attention.head_count_kv"]
        count = len(x)
        h = self.norm(x, f"{at}attn_norm.weight")
        query, key, value = (
            (h @ w[f"attn_{n}"].T).reshape(count, size, -1)
            for n, size in (("q", heads), ("k", groups), ("v", groups))
        )
        query, key = self.turned(query), self.turned(key)
        key, value = (np.repeat(each, heads // groups, 1) for each in (key, value))
        scores = np.einsum("thd,shd->hts", query, key) * query.shape[-1] ** -0.5
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        powers /= powers.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", powers, value).reshape(count, -1)
        x = x + mixed @ w["attn_output"].T
        h = self.norm(x, f"{at}ffn_norm.weight")
        gate = h @ w["ffn_gate"].T
        return x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T


@pytest.mark.slow
def test_scores_of_prompts_are_those_of_exact_arithmetic() -> None:
    model = open_model(find_model())
    tokenizer = tokenizer_of(model.metadata)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    expected = Reference(str(find_model())).scores(prompts)
    decoder = model.decoder(exact=True)
    # All of one length, so that one plan serves them; no word sees those that come after it.
    length = max(len(words) for words in prompts)
    places = Tensor(np.arange(length, dtype=np.int32))
    for words, wanted in zip(prompts, expected, strict=True):
        cache = ContiguousCache(decoder.traits, length)
        padded = np.array([*words, *[0] * (length - len(words))], np.int32)
        scores = decoder.logits(decoder(Tensor(padded), places, cache.layers))
        cache.realize(scores)
        np.testing.assert_allclose(scores.numpy()[: len(words)], wanted, atol=1e-3)

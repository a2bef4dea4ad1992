"""A decoder and a vocabulary small enough for tests: two layers, and bytes as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from baregrad import Tensor
from baregrad.llm.models.cache import LayerCache
from baregrad.llm.models.traits import CacheRow

WORDS, WIDTH, HEADS, GROUPS, HEAD = 262, 48, 4, 2, 16
END = 256


class SmallDecoder:
    """Attention and a gated layer, twice, with random weights that repeat at every run."""

    def __init__(self, seed: int = 0, depth: int = 2, sharpness: float = 3.0) -> None:
        rng = np.random.default_rng(seed)
        self.numbers: list[dict[str, Any]] = []
        shapes = {
            "query": (HEADS * HEAD, WIDTH), "key": (GROUPS * HEAD, WIDTH),
            "value": (GROUPS * HEAD, WIDTH), "mix": (WIDTH, HEADS * HEAD),
            "up": (96, WIDTH), "down": (WIDTH, 96),
        }
        for _ in range(depth):
            self.numbers.append({
                name: (rng.normal(size=shape) / shape[1] ** 0.5).astype(np.float32)
                for name, shape in shapes.items()
            })
        self.table = rng.normal(size=(WORDS, WIDTH)).astype(np.float32)
        self.places = (rng.normal(size=(4096, WIDTH)) * 0.3).astype(np.float32)
        self.sharpness = sharpness
        self.weights = [
            {name: Tensor(each).realize() for name, each in layer.items()} for layer in self.numbers
        ]
        self.words, self.positions = Tensor(self.table).realize(), Tensor(self.places).realize()

    def cache_rows(self) -> list[CacheRow]:
        return [CacheRow(GROUPS, HEAD, HEAD, False)] * len(self.weights)

    def __call__(
        self, words: Tensor, positions: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        count = words.shape[0]
        x = self.words[words] + self.positions[positions]
        for layer, cache in zip(self.weights, caches, strict=True):
            h = x.rms_norm(WIDTH, None, 1e-5)
            query, key, value = (
                h.linear(layer[name]).reshape(count, heads, HEAD)
                for name, heads in (("query", HEADS), ("key", GROUPS), ("value", GROUPS))
            )
            mixed = cache.attend(query, key, value, scale=HEAD**-0.5)
            x = x + mixed.reshape(count, HEADS * HEAD).linear(layer["mix"])
            x = x + x.rms_norm(WIDTH, None, 1e-5).linear(layer["up"]).silu().linear(layer["down"])
        return x.rms_norm(WIDTH, None, 1e-5)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden.linear(self.words) * (self.sharpness / WIDTH**0.5)

    def scores(self, tokens: Sequence[int]) -> Any:
        """The scores (words,) after tokens, by NumPy in float64."""

        def normed(x: Any) -> Any:
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

        count = len(tokens)
        x = (self.table[list(tokens)] + self.places[:count]).astype(np.float64)
        for layer in self.numbers:
            h = normed(x)
            query = (h @ layer["query"].T).reshape(count, GROUPS, -1, HEAD)
            key, value = (
                (h @ layer[name].T).reshape(count, GROUPS, HEAD) for name in ("key", "value")
            )
            scores = np.einsum("tkgd,nkd->kgtn", query, key) * HEAD**-0.5
            scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            weights = powers / powers.sum(-1, keepdims=True)
            mixed = np.einsum("kgtn,nkd->tkgd", weights, value).reshape(count, -1)
            x = x + mixed @ layer["mix"].T
            up = normed(x) @ layer["up"].T
            x = x + (up / (1 + np.exp(-up))) @ layer["down"].T
        return normed(x)[-1] @ self.table.T * (self.sharpness / WIDTH**0.5)


class ByteTokenizer:
    """The 256 bytes, an end, and tokens that no text has."""

    size = WORDS
    bos = None
    eos = END
    ends = frozenset({END})

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(token for token in ids if token < 256).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"<%d>" % token

    def is_control(self, token: int) -> bool:
        return token >= 256

    def detokenizer(self, *, shown: Sequence[str] = ()) -> LatinText:
        return LatinText()


class LatinText:
    """A character for each byte, so that no piece waits for another."""

    def add(self, token: int) -> str:
        return chr(token) if token < 256 else ""

    def finish(self) -> str:
        return ""

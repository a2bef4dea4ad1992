"""Models that make vectors of texts: opening them, and `/v1/embeddings`."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.llm.models.loading import open_model
from baregrad.llm.serve.completions import prompts_of
from baregrad.llm.serve.desk import Desk, Handler, ServerSettings, as_json
from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.text import Tokenizer, tokenizer_of, tokenizer_of_folder
from baregrad.tensor import Tensor

# Texts are padded to lengths of which there are few, since each is compiled once.
_SHORTEST = 16


class TextVectors(Protocol):
    """What of an encoder is used."""

    def embed_texts(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return a vector for each text."""


class VectorModel:
    """An encoder that is ready to be asked, by one thread at a time.

    Each text is encoded alone, so that its vector does not depend on what else was asked.
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, encoder: TextVectors, context: int,
        device: str | None = None,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.context = context
        self.counts = Counter({"texts": 0, "prompt_tokens": 0})
        self._encoder = encoder
        self._device = device
        self._lock = threading.Lock()

    def vectors(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return a vector for each text of tokens: (texts, width) in float32.

        Raises ArgumentError for a text that has no tokens, too many, or such as do not exist.
        """
        for tokens in texts:
            if not 0 < len(tokens) <= self.context:
                raise ArgumentError(
                    "the text is empty, or longer than the context",
                    found=f"{len(tokens)} tokens", wanted=f"1 to {self.context}",
                )
            if not all(0 <= token < self.tokenizer.size for token in tokens):
                raise ArgumentError("no such token", wanted=f"0 to {self.tokenizer.size - 1}")
        with self._lock:
            found = [self._vector(tokens) for tokens in texts]
            self.counts["texts"] += len(texts)
            self.counts["prompt_tokens"] += sum(map(len, texts))
        return np.stack(found)

    def _vector(self, tokens: Sequence[int]) -> np.ndarray:
        length = _SHORTEST
        while length < len(tokens):
            length *= 2
        length = min(length, self.context)
        words = np.zeros((1, length), np.int32)
        words[0, : len(tokens)] = tokens
        mask = (np.arange(length) < len(tokens)).astype(np.int32)[None]
        vectors = self._encoder.embed_texts(
            Tensor(words, device=self._device), Tensor(mask, device=self._device)
        )
        return np.asarray(vectors.numpy()[0])


def open_to_embed(path: str | os.PathLike[str], device: str | None = None) -> VectorModel:
    """Open a file or folder with an encoder; raises UnsupportedError for other models."""
    files = open_model(path, device)
    if not files.is_encoder:
        raise UnsupportedError("a model that answers makes no vectors", found=str(path))
    encoder = files.encoder()
    tokenizer = (
        tokenizer_of(files.metadata) if files.folder is None
        else tokenizer_of_folder(files.folder)
    )
    return VectorModel(Path(path).stem, tokenizer, encoder, encoder.traits.context, device)


class VectorDesk(Desk):
    """Hands out vectors."""

    def __init__(self, model: VectorModel, settings: ServerSettings) -> None:
        super().__init__(model.name, model.tokenizer, settings)
        self._vector_model = model

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return all paths, with the method and what answers."""
        return [*super().routes(), ("/v1/embeddings", "POST", self._embeddings)]

    def statistics(self) -> Mapping[str, int]:
        """Return what was done."""
        return self._vector_model.counts

    async def _embeddings(self, request: Any) -> Any:
        body = await self.read(request)
        body.only(("input", "model", "user", "encoding_format", "dimensions"))
        for name in ("model", "user"):
            body.text(name, "")
        form = body.text("encoding_format", "float")
        if form not in ("float", "base64"):
            raise body.refuse("encoding_format", "float or base64")
        prompts = prompts_of(body, "input")
        texts, vectors = await asyncio.to_thread(self._vectors, prompts)
        width = body.whole("dimensions", 1, 1 << 20)
        if width not in (None, vectors.shape[1]):
            raise RequestRefused(
                f"dimensions has to be {vectors.shape[1]}, the model's own", param="dimensions"
            )
        count = sum(map(len, texts))
        return as_json({
            "object": "list", "model": self.name,
            "data": [
                {"object": "embedding", "index": index, "embedding": _written(vector, form)}
                for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        })

    def _vectors(
        self, prompts: Sequence[str | list[int]]
    ) -> tuple[list[list[int]], np.ndarray]:
        encode = self._vector_model.tokenizer.encode
        texts = [encode(text) if isinstance(text, str) else text for text in prompts]
        return texts, self._vector_model.vectors(texts)


def _written(vector: np.ndarray, form: str) -> str | list[float]:
    if form == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")

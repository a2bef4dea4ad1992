"""The MiniLM-L6 sentence encoder: how alike sentences are, by a BERT encoder's vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ShapeError
from baregrad.data.minilm import MiniLMFiles, MiniLMTokenizer, TokenBatch, find_files
from baregrad.llm.models.loading import open_model
from baregrad.tensor import Tensor


class SentenceEncoder:
    """The model with its tokenizer, read from the installed files, on a device."""

    def __init__(self, files: MiniLMFiles | None = None, device: str | None = None) -> None:
        found = find_files() if files is None else files
        self.tokenizer = MiniLMTokenizer(found.tokenizer)
        self.device = device
        self.model = open_model(found.weights.parent, device).encoder()

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the vectors (N, E) of N texts, of length 1."""
        return self.encode_tokens(self.tokenizer.encode(texts))

    def encode_tokens(self, batch: TokenBatch) -> Tensor:
        """Return the vectors (N, E) of texts already turned into tokens."""
        words, mask = (
            Tensor(array, device=self.device) for array in (batch.input_ids, batch.attention_mask)
        )
        with Tensor.no_grad():
            return self.model.embed_texts(words, mask)


def similarities(vectors: Tensor) -> npt.NDArray[np.float32]:
    """Return the cosines (N, N) of the angles between vectors (N, E) of length 1."""
    if vectors.ndim != 2:
        raise ShapeError("vectors to compare", found=list(vectors.shape), wanted="(N, E)")
    found: npt.NDArray[np.float32] = (vectors @ vectors.T).numpy()
    return found

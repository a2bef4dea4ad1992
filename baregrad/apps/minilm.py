"""The MiniLM-L6 sentence encoder: a BERT encoder whose outputs are averaged and normalised.

Attributes are named so that the state's keys are those of the published weights. Sources: J. Devlin
and others, NAACL 2019 (BERT); N. Reimers and I. Gurevych, EMNLP 2019 (mean pooling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from baregrad import nn
from baregrad.base.errors import ShapeError
from baregrad.data.minilm import (
    MiniLMConfig,
    MiniLMFiles,
    MiniLMTokenizer,
    TokenBatch,
    find_files,
    read_config,
)
from baregrad.dtypes import dtypes
from baregrad.io import safe_load
from baregrad.tensor import Tensor

# Tensors of the published file that an encoder of sentences does not need.
_UNUSED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")


class Embeddings(nn.Module):
    """Token numbers (N, L) -> vectors (N, L, E): sums of word, position and type, normalised."""

    def __init__(self, config: MiniLMConfig) -> None:
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        """Return the vectors."""
        words: Tensor = self.word_embeddings(ids) + self.token_type_embeddings(types)
        places = self.position_embeddings.weight[: ids.shape[1]]
        found: Tensor = self.LayerNorm(words + places)
        return found


class SelfAttention(nn.Module):
    """(N, L, E) -> (N, L, E): each head's mixture of the values that its scores choose."""

    def __init__(self, config: MiniLMConfig) -> None:
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the mixtures; `mask` (N, 1, 1, L) is True for tokens that take part."""
        query, key, value = (
            layer(x).reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed: Tensor = query.scaled_dot_product_attention(key, value, mask)
        return mixed.transpose(1, 2).flatten(2)


class Output(nn.Module):
    """A linear layer, added to what came before and normalised."""

    def __init__(self, inputs: int, config: MiniLMConfig) -> None:
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Return the normalised sum."""
        found: Tensor = self.LayerNorm(self.dense(x) + before)
        return found


class Attention(nn.Module):
    """Self-attention and its output layer."""

    def __init__(self, config: MiniLMConfig) -> None:
        # The published keys have this name.
        self.self = SelfAttention(config)
        self.output = Output(config.hidden_size, config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (N, L, E)."""
        found: Tensor = self.output(self.self(x, mask), x)
        return found


class Intermediate(nn.Module):
    """The wide layer of a block, with GELU."""

    def __init__(self, config: MiniLMConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, L, intermediate_size)."""
        wide: Tensor = self.dense(x)
        return wide.gelu()


class Layer(nn.Module):
    """One block: attention, then two linear layers."""

    def __init__(self, config: MiniLMConfig) -> None:
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config.intermediate_size, config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (N, L, E)."""
        x = self.attention(x, mask)
        found: Tensor = self.output(self.intermediate(x), x)
        return found


class Encoder(nn.Module):
    """The blocks, one after another."""

    def __init__(self, config: MiniLMConfig) -> None:
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (N, L, E)."""
        for layer in self.layer:
            x = layer(x, mask)
        return x


class MiniLM(nn.Module):
    """Tokens of N texts -> N vectors of length 1, whose products are the texts' similarities."""

    def __init__(self, config: MiniLMConfig) -> None:
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Return (N, E) of three integer arrays (N, L); `mask` is 1 for tokens, 0 for padding."""
        takes_part = mask != 0
        hidden: Tensor = self.embeddings(ids, types)
        hidden = self.encoder(hidden, takes_part.reshape(mask.shape[0], 1, 1, -1))
        share = takes_part.unsqueeze(-1).cast(dtypes.float32)
        mean = (hidden * share).sum(1) / share.sum(1).clamp(min=1e-9)
        return mean.normalize(dim=1)

    def load(self, weights: Mapping[str, Tensor]) -> MiniLM:
        """Take over the published weights, without a copy; return the model. Raises ShapeError."""
        self.load_state_dict({k: v for k, v in weights.items() if k not in _UNUSED})
        return self.requires_grad_(False).eval()


class SentenceEncoder:
    """The model with its tokenizer, read from the installed files, on a device."""

    def __init__(self, files: MiniLMFiles | None = None, device: str | None = None) -> None:
        found = find_files() if files is None else files
        self.tokenizer = MiniLMTokenizer(found.tokenizer)
        self.device = device
        self.model = MiniLM(read_config(found.config))
        if device is not None:
            self.model.to(device=device)
        self.model.load(safe_load(found.weights, device))

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the vectors (N, E) of N texts."""
        return self.encode_tokens(self.tokenizer.encode(texts))

    def encode_tokens(self, batch: TokenBatch) -> Tensor:
        """Return the vectors (N, E) of texts already turned into tokens."""
        arrays = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
        with Tensor.no_grad():
            vectors: Tensor = self.model(*(Tensor(array, device=self.device) for array in arrays))
        return vectors


def similarities(vectors: Tensor) -> npt.NDArray[np.float32]:
    """Return the cosines (N, N) of the angles between vectors (N, E) of length 1."""
    if vectors.ndim != 2:
        raise ShapeError("vectors to compare", found=list(vectors.shape), wanted="(N, E)")
    found: npt.NDArray[np.float32] = (vectors @ vectors.T).numpy()
    return found

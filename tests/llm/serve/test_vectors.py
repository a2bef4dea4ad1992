"""`/v1/embeddings`: the vectors of a model, in both forms, whatever else was asked."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.data.minilm import MiniLMTokenizer, find_files
from baregrad.llm.serve import VectorModel, open_to_embed
from baregrad.llm.text import tokenizer_of
from tests.apps.test_minilm import torch_encode, torch_weights
from tests.llm.serve.stand_in import Client
from tests.llm.text.vocabularies import byte_metadata

WIDTH = 5


class SumOfWords:
    """Gives each text the sum of its words' rows, and remembers the shapes that it was given."""

    def __init__(self) -> None:
        self.table = np.random.default_rng(1).normal(size=(2000, WIDTH)).astype(np.float32)
        self.shapes: list[Any] = []

    def embed_texts(self, words: Tensor, mask: Tensor) -> Tensor:
        self.shapes.append(words.shape)
        rows = self.table[words.numpy()] * mask.numpy()[..., None]
        return Tensor(rows.sum(1))


@pytest.fixture
def model() -> VectorModel:
    return VectorModel("vectors", tokenizer_of(byte_metadata()), SumOfWords(), 100)


def expected(model: VectorModel, tokens: list[int]) -> np.ndarray:
    return SumOfWords().table[tokens].sum(0)


def test_vectors_of_texts_and_of_tokens(model: VectorModel) -> None:
    client = Client(model)
    tokens = model.tokenizer.encode("the fox")
    for asked in ("the fox", ["the fox"], tokens, [tokens, "the fox"]):
        answer = client.post("/v1/embeddings", {"input": asked, "model": "x"}).json()
        for index, row in enumerate(answer["data"]):
            assert (row["object"], row["index"]) == ("embedding", index)
            np.testing.assert_allclose(row["embedding"], expected(model, tokens), rtol=1e-5)
    assert answer["usage"] == {"prompt_tokens": 2 * len(tokens), "total_tokens": 2 * len(tokens)}
    packed = client.post("/v1/embeddings", {"input": tokens, "encoding_format": "base64"}).json()
    found = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(found, expected(model, tokens), rtol=1e-5)
    assert "baregrad_texts_total 6" in client.get("/metrics").body.decode()


def test_lengths_are_few(model: VectorModel) -> None:
    model.vectors([[1] * length for length in range(1, 101)])
    assert {shape[1] for shape in model._encoder.shapes} == {16, 32, 64, 100}


def test_what_is_refused(model: VectorModel) -> None:
    client = Client(model)
    for body in ({}, {"input": ""}, {"input": []}, {"input": "x " * 500}, {"input": [[10**6]]},
                 {"input": [3.5]}, {"input": "a", "encoding_format": "x"},
                 {"input": "a", "dimensions": 3}):
        reply = client.post("/v1/embeddings", body)
        assert reply.status == 400 and reply.json()["error"]["message"], body
    assert client.post("/v1/chat/completions", {"messages": []}).status == 404
    with pytest.raises(ArgumentError, match="empty"):
        model.vectors([[]])


@pytest.mark.differential
def test_the_vectors_are_those_of_the_encoder_written_out() -> None:
    try:
        files = find_files()
    except MissingDependency as error:
        pytest.skip(str(error))
    model = open_to_embed(files.weights.parent)
    texts = ["How do I bake bread?", "Stock markets fell, today."]
    vectors = model.vectors([model.tokenizer.encode(text) for text in texts])
    expected = torch_encode(torch_weights(), MiniLMTokenizer(files.tokenizer).encode(texts))
    np.testing.assert_allclose(vectors, expected, atol=1e-4)
    alone = model.vectors([model.tokenizer.encode(texts[1])])
    np.testing.assert_array_equal(alone[0], vectors[1])

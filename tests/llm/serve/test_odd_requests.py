"""What nobody can answer gets a reason in the form of its protocol, and the next one is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from baregrad.llm.serve import VectorModel
from baregrad.llm.text import tokenizer_of
from tests.llm.serve.odd_requests import (
    CHAT,
    MESSAGES,
    MOST_BYTES,
    VALID,
    VECTORS,
    OddRequest,
    odd_requests,
    odd_vector_requests,
)
from tests.llm.serve.stand_in import Client, Reply, ScriptedModel
from tests.llm.serve.test_vectors import SumOfWords
from tests.llm.text.vocabularies import byte_metadata


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel()
    yield made
    made.close()


def send(client: Client, odd: OddRequest) -> Reply:
    body = odd.body if isinstance(odd.body, bytes) else json.dumps(odd.body).encode()
    return client.send(odd.method, odd.path, body, odd.headers)


def is_told(odd: OddRequest, reply: Reply) -> bool:
    """Whether a refusal has its protocol's form and says something."""
    body = reply.json()
    error = body["error"]
    if odd.path.startswith(MESSAGES):
        return bool(body["type"] == "error" and error.keys() == {"type", "message"}
                    and error["message"])
    return bool(body.keys() == {"error"} and error["message"] and error["type"]
                and error.keys() == {"message", "type", "param", "code"})


def check_all(client: Client, odd: list[OddRequest], path: str, body: Any) -> None:
    """Send all odd requests, and a sound one after each."""
    wrong = []
    for request in odd:
        reply = send(client, request)
        if reply.status != request.status or not is_told(request, reply):
            wrong.append((request.method, request.path, str(request.body)[:200], request.headers,
                          request.status, reply.status, reply.body[:300]))
        if client.post(path, body).status != 200:
            wrong.append(("after", request.path, str(request.body)[:200]))
    assert not wrong, "\n".join(map(str, wrong[:60]))


def test_every_odd_request_gets_a_reason_and_the_next_is_served(model: ScriptedModel) -> None:
    client = Client(model, most_bytes=MOST_BYTES)
    odd = list(odd_requests())
    assert len(odd) > 600
    check_all(client, odd, CHAT, VALID[CHAT])
    for path, body in VALID.items():
        assert client.post(path, body).status == 200, path


def test_odd_requests_for_vectors() -> None:
    model = VectorModel("vectors", tokenizer_of(byte_metadata()), SumOfWords(), 100)
    client = Client(model, most_bytes=MOST_BYTES)
    check_all(client, list(odd_vector_requests()), VECTORS, {"input": "a"})


def test_many_wrong_fields(model: ScriptedModel) -> None:
    """A message says which field is wrong, and a misspelt one what it may have meant."""
    client = Client(model)
    error = client.post(CHAT, {**VALID[CHAT], "temprature": 1}).json()["error"]
    assert error["param"] == "temprature" and "did you mean temperature" in error["message"]
    error = client.post(CHAT, b'{"n": 1, "n": 2}').json()["error"]
    assert "two values of 'n'" in error["message"]

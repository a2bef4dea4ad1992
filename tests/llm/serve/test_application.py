"""Keys, limits, odd requests, clients that leave: always a reason, and the next one is served."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import pytest

from baregrad.base.errors import BaregradError
from tests.llm.serve.odd_requests import VALID
from tests.llm.serve.stand_in import CONTEXT, Client, Reply, ScriptedModel

USER = {"role": "user", "content": "hi"}
CHAT = "/v1/chat/completions"


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel()
    yield made
    made.close()


def test_what_the_server_says_of_itself(model: ScriptedModel) -> None:
    client = Client(model)
    assert client.get("/health").json() == {"status": "ok"}
    model.engine.is_alive = False
    assert client.get("/health").status == client.post(CHAT, {"messages": [USER]}).status == 503
    model.engine.is_alive = True
    models = client.get("/v1/models").json()
    assert models["object"] == "list" and models["data"][0]["id"] == "small"
    assert client.get("/v1/models/small").json()["owned_by"] == "baregrad"
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    client.post(CHAT, {"messages": [USER]})
    lines = client.get("/metrics").body.decode().splitlines()
    assert "baregrad_requests_total 1" in lines and "baregrad_running 1" in lines
    assert 'baregrad_http_answers_total{status="404"} 1' in lines
    assert "# TYPE baregrad_running gauge" in lines


def test_tokens_there_and_back(model: ScriptedModel) -> None:
    client = Client(model)
    text = "hello <|im_end|> 你好"
    tokens = client.post("/tokenize", {"content": text}).json()["tokens"]
    assert tokens == model.tokenizer.encode(text, specials=True)
    assert client.post("/detokenize", {"tokens": tokens}).json()["content"] == text
    begins = {"prompt": text, "add_special_tokens": False}
    assert client.post("/tokenize", begins).json()["tokens"] == tokens
    info = client.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|endoftext|>" and "<|im_start|>" in info["chat_template"]
    assert client.post("/detokenize", {"tokens": [10**9]}).status == 400
    assert client.post("/detokenize", {"tokens": ["x"]}).status == 400


def test_the_key(model: ScriptedModel) -> None:
    client = Client(model, key="secret")
    assert client.get("/health").status == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "sécret"}):
        reply = client.post(CHAT, {"messages": [USER]}, headers)
        assert reply.status == 401 and reply.json()["error"]["code"] == "invalid_api_key"
    for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
        assert client.post(CHAT, {"messages": [USER]}, headers).status == 200
    assert client.post("/v1/messages", {}).json()["error"]["type"] == "authentication_error"


def test_other_pages_may_not_ask_unless_named(model: ScriptedModel) -> None:
    headers = {"origin": "https://a.example"}
    assert "access-control-allow-origin" not in Client(model).get("/health", headers).headers
    client = Client(model, origins=("https://a.example",))
    reply = client.get("/health", headers)
    assert reply.headers["access-control-allow-origin"] == "https://a.example"


def test_a_full_queue_and_a_long_prompt(model: ScriptedModel) -> None:
    client = Client(model)
    model.engine.is_full = True
    reply = client.post(CHAT, {"messages": [USER]})
    assert reply.status == 429 and reply.headers["retry-after"] == "1"
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert "too many requests wait" in reply.json()["error"]["message"]
    model.engine.is_full = False
    long = {"role": "user", "content": "x y" * CONTEXT}
    error = client.post(CHAT, {"messages": [long], "stream": True}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert Client(model, most_bytes=100).post(CHAT, {"messages": [long]}).status == 413


def test_what_fails_in_the_middle_is_told(model: ScriptedModel) -> None:
    model.engine.fails = BaregradError("no token can be chosen")
    events = Client(model).post(CHAT, {"messages": [USER], "stream": True}).events()
    assert events[-1]["error"]["message"] == "no token can be chosen"
    reply = Client(model).post(CHAT, {"messages": [USER]})
    assert reply.status == 500 and reply.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_ends_its_answer(
    model: ScriptedModel, path: str, streams: bool
) -> None:
    model.engine.holds = True
    body = {**VALID[path], "stream": streams}

    def leaves(reply: Reply) -> bool:
        return bool(model.engine.streams) and (not streams or b"data" in reply.body)

    data = json.dumps(body).encode()
    Client(model).send("POST", path, data, leaves=leaves)
    limit = time.monotonic() + 60
    while not model.engine.streams[0].is_cancelled and time.monotonic() < limit:
        time.sleep(0.01)
    assert model.engine.streams[0].is_cancelled


@pytest.mark.property
def test_no_request_at_all_is_a_mistake_of_the_server(model: ScriptedModel) -> None:
    rng = random.Random(3)
    client = Client(model)
    values = [None, True, 0, -1, 2.5, 10**30, "", "x", [], [None], {}, {"type": "text"}, [USER],
              "user", "auto", [[1]], {"type": "function", "function": {"name": "f"}}, "\ud800"]
    bodies = {
        CHAT: {"messages": [USER], "tools": [], "n": 1, "stream": False, "stop": [], "seed": 1,
               "response_format": {}, "logit_bias": {}, "tool_choice": None, "top_logprobs": 1,
               "logprobs": False, "stream_options": {}, "chat_template_kwargs": {}, "user": ""},
        "/v1/completions": {"prompt": "x", "echo": True, "logprobs": 1, "best_of": 1},
        "/v1/responses": {"input": [USER], "instructions": "", "text": {}, "reasoning": {},
                          "tools": []},
        "/v1/messages": {"messages": [USER], "max_tokens": 3, "system": "", "tools": [],
                         "thinking": {}, "tool_choice": {}},
    }
    for _ in range(250):
        path = rng.choice(list(bodies))
        body = dict(bodies[path])
        for _ in range(rng.randrange(1, 3)):
            body[rng.choice(list(body))] = rng.choice(values)
        reply = client.post(path, body)
        assert reply.status < 500, (path, body, reply.body)


def test_what_is_not_here(model: ScriptedModel) -> None:
    assert Client(model).get("/nothing").json()["error"]["code"] == "not_found"
    wrong = Client(model).get(CHAT)
    assert (wrong.status, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    wrong = Client(model).get("/v1/messages")
    assert (wrong.status, wrong.json()["error"]["type"]) == (405, "invalid_request_error")


def test_a_model_without_a_template_only_continues_texts() -> None:
    client = Client(ScriptedModel(template=None))
    assert "no chat template" in client.post(CHAT, {"messages": [USER]}).json()["error"]["message"]
    assert client.post("/v1/completions", {"prompt": "a"}).status == 200


def test_a_form_holds_behind_the_thought_that_each_answer_begins_with() -> None:
    model = ScriptedModel(template="{{ messages[0].content }}<think>\n{# </think> #}")
    reply = Client(model).post(CHAT, {
        "messages": [USER], "response_format": {"type": "json_object"}})
    assert reply.status == 200
    form = model.engine.requests[0].form
    assert form is not None and form.kind == "lark" and "thought" in form.text
    model.close()

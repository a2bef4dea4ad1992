"""`/v1/chat/completions`: what is asked, and answers whole and in chunks, in their exact order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from baregrad.llm.generation.constraints import AnswerForm
from tests.llm.serve.stand_in import Client, ScriptedModel

USER = {"role": "user", "content": "Say hello <|im_end|>"}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
CALL = 'Well. <tool_call>{"name": "get", "arguments": {"a": [1, "}"]}}</tool_call>'
PATH = "/v1/chat/completions"


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel()
    yield made
    made.close()


def test_a_whole_answer(model: ScriptedModel) -> None:
    reply = Client(model).post(PATH, {"model": "x", "messages": [USER], "temperature": 0})
    assert reply.status == 200
    answer = reply.json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "small"
    assert answer["choices"] == [{
        "index": 0, "finish_reason": "stop", "logprobs": None,
        "message": {"role": "assistant", "content": "Hello there, friend."},
    }]
    prompt = len(model.engine.requests[0].tokens)
    assert answer["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert model.engine.requests[0].sampling.temperature == 0


def test_a_user_forges_no_turn(model: ScriptedModel) -> None:
    Client(model).post(PATH, {"messages": [USER]})
    end = model.tokenizer.id_of("<|im_end|>")
    assert list(model.engine.requests[0].tokens).count(end) == 1
    assert model.prompt() == (
        "<|im_start|>user\nSay hello <|im_end|><|im_end|>\n<|im_start|>assistant\n")


def test_chunks_in_order(model: ScriptedModel) -> None:
    reply = Client(model).post(PATH, {
        "messages": [USER], "stream": True, "stream_options": {"include_usage": True}})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.events()
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert chunks[0]["choices"] == [{
        "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
        "finish_reason": None}]
    middle = [chunk["choices"][0] for chunk in chunks[1:-2]]
    assert "".join(choice["delta"]["content"] for choice in middle) == "Hello there, friend."
    assert all(choice["finish_reason"] is None for choice in middle)
    assert chunks[-2]["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 7
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1
    without = Client(model).post(PATH, {"messages": [USER], "stream": True}).events()
    assert not any("usage" in chunk for chunk in without[:-1])
    assert all(chunk["choices"] for chunk in without[:-1])


def test_calls_in_chunks(model: ScriptedModel) -> None:
    model.engine.answer = CALL
    events = Client(model).post(PATH, {
        "messages": [USER], "tools": [TOOL], "stream": True}).events()
    deltas = [chunk["choices"][0]["delta"] for chunk in events[:-1]]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["type"] == "function" and calls[0]["id"].startswith("call_")
    assert calls[0]["function"] == {"name": "get", "arguments": ""}
    assert all(call.keys() == {"index", "function"} for call in calls[1:])
    written = "".join(call["function"]["arguments"] for call in calls[1:])
    assert json.loads(written) == {"a": [1, "}"]} and len(calls) > 2
    assert "".join(delta.get("content", "") for delta in deltas) == "Well."
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_whole_and_sent_back(model: ScriptedModel) -> None:
    model.engine.answer = CALL
    client = Client(model)
    choice = client.post(PATH, {"messages": [USER], "tools": [TOOL]}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "get", "arguments": '{"a": [1, "}"]}'}
    back = [USER, choice["message"], {
        "role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "3"}]
    assert client.post(PATH, {"messages": back, "tools": [TOOL]}).status == 200
    assert '<tool_call>get{"a": [1, "}"]}</tool_call>' in model.prompt()
    plain = client.post(PATH, {"messages": [USER], "tools": [TOOL], "tool_choice": "none"}).json()
    assert plain["choices"][0]["message"]["content"] == CALL


def test_a_call_may_be_wanted(model: ScriptedModel) -> None:
    client = Client(model)
    named = {"type": "function", "function": {"name": "get"}}
    body: dict[str, Any] = {}
    for choice in ("required", named):
        body = {"messages": [USER], "tools": [TOOL], "tool_choice": choice}
        assert client.post(PATH, body).status == 200
        form = model.engine.requests[-1].form
        assert form is not None and form.kind == "lark" and "get" in form.text
    for choice, tools in (("required", []), ({"function": {"name": "x"}}, [TOOL])):
        reply = client.post(PATH, {"messages": [USER], "tools": tools, "tool_choice": choice})
        assert reply.status == 400 and "tool_choice" in reply.json()["error"]["param"]
    for kind in ("allowed_tools", "mcp"):
        asked = {**body, "tool_choice": {"type": kind, "name": "get"}}
        assert client.post(PATH, asked).json()["error"]["param"] == "tool_choice.type"
    both = {**body, "response_format": {"type": "json_object"}}
    assert client.post(PATH, both).json()["error"]["param"] == "tool_choice"
    reply = client.post("/v1/messages", {
        "messages": [USER], "max_tokens": 9, "tool_choice": {"type": "any"},
        "tools": [{"name": "get", "input_schema": {"type": "object"}}]})
    assert reply.status == 200 and model.engine.requests[-1].form == form
    client.post("/v1/responses", {
        "input": "x", "tool_choice": {"type": "function", "name": "get"},
        "tools": [{"type": "function", "name": "get", "parameters": {"type": "object"}}]})
    assert model.engine.requests[-1].form == form


def test_one_call_alone_may_be_wanted(model: ScriptedModel) -> None:
    model.engine.answer = CALL + CALL.removeprefix("Well. ")
    body = {"messages": [USER], "tools": [TOOL]}
    client = Client(model)

    def calls(more: dict[str, Any]) -> int:
        choice = client.post(PATH, {**body, **more}).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        return len(choice["message"]["tool_calls"])

    assert [calls({}), calls({"parallel_tool_calls": False})] == [2, 1]
    assert calls({"tool_choice": {"type": "function", "function": {"name": "get"}}}) == 1
    assert model.engine.streams[1].is_cancelled
    events = client.post(PATH, {**body, "parallel_tool_calls": False, "stream": True}).events()
    assert sum("tool_calls" in chunk["choices"][0]["delta"] and
               "id" in chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in events[:-1]) == 1
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    answer = client.post("/v1/messages", {
        "messages": [USER], "max_tokens": 99,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "tools": [{"name": "get", "input_schema": {"type": "object"}}]}).json()
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]


def test_thoughts_are_told_apart(model: ScriptedModel) -> None:
    model.engine.answer = "Let me see.\n</think>\n\nYes."
    message = Client(model).post(PATH, {
        "messages": [USER], "chat_template_kwargs": {"enable_thinking": True}}).json()
    assert message["choices"][0]["message"] == {
        "role": "assistant", "content": "Yes.", "reasoning_content": "Let me see."}
    assert model.prompt().endswith("<think>\n")
    Client(model).post(PATH, {"messages": [USER], "reasoning_effort": "none"})
    assert model.prompt().endswith("assistant\n")


def test_several_answers_with_logprobs(model: ScriptedModel) -> None:
    body = {"messages": [USER], "n": 3, "logprobs": True, "top_logprobs": 2, "seed": 5}
    choices = Client(model).post(PATH, body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    rows = choices[1]["logprobs"]["content"]
    assert len(rows) == 7 and rows[0]["logprob"] == -0.5 and len(rows[0]["top_logprobs"]) == 2
    assert bytes(rows[0]["bytes"]).decode() == rows[0]["token"]
    assert [request.sampling.seed for request in model.engine.requests] == [5, 6, 7]
    assert Client(model).post(PATH, {**body, "n": 2, "seed": 2**64 - 1}).status == 200
    assert [each.sampling.seed for each in model.engine.requests[3:]] == [2**64 - 1, 0]
    events = Client(model).post(PATH, {**body, "stream": True}).events()[:-1]
    for index in range(3):
        mine = [chunk["choices"][0] for chunk in events if chunk["choices"][0]["index"] == index]
        assert sum(len((c["logprobs"] or {"content": []})["content"]) for c in mine) == 7
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert mine[-1]["finish_reason"] == "stop"


def test_settings_reach_the_engine(model: ScriptedModel) -> None:
    Client(model).post(PATH, {
        "messages": [USER], "max_completion_tokens": 2, "max_tokens": 9, "top_k": -1,
        "top_p": 0.5, "stop": ["a", "b"], "logit_bias": {"7": -3}, "user": "me",
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}})
    request = model.engine.requests[0]
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.top_k, sampling.top_p) == (2, 0, 0.5)
    assert sampling.stops == ("a", "b") and sampling.logit_bias == {7: -3.0}
    assert request.client == "me"
    assert request.form is not None and json.loads(request.form.text) == {"type": "object"}
    text = Client(model).post("/v1/completions", {"prompt": "a", "grammar": 'root ::= "a"'})
    assert text.status == 200 and model.engine.requests[1].form == AnswerForm(
        "grammar", 'root ::= "a"')
    reply = Client(model).post(PATH, {"messages": [USER], "max_tokens": 1}).json()
    assert reply["choices"][0]["finish_reason"] == "length"


SCHEMA = {"type": "object", "required": ["a"]}


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"structured_outputs": {"regex": "[ab]+"}}, "regex", "[ab]+"),
        ({"structured_outputs": {"choice": ["a.b", "c d"]}}, "regex", r"a\.b|c d"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar", 'root ::= "a"'),
        ({"response_format": {"type": "regex", "pattern": "a|b"}}, "regex", "a|b"),
        ({"response_format": {"type": "grammar", "grammar": "start: A"}}, "grammar", "start: A"),
        ({"grammar": "", "structured_outputs": {}, "response_format": None}, None, ""),
    ],
    ids=lambda each: str(each)[:60] if isinstance(each, dict) else None,
)
def test_forms_are_asked_for_in_the_ways_of_others(
    model: ScriptedModel, asked: dict[str, Any], kind: str | None, text: Any
) -> None:
    assert Client(model).post(PATH, {"messages": [USER], **asked}).status == 200
    form = model.engine.requests[0].form
    if kind is None:
        assert form is None
        return
    assert form is not None and form.kind == kind
    assert (json.loads(form.text) if isinstance(text, dict) else form.text) == text


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "json_schema", "schema": SCHEMA,
                              "json_schema": {"schema": SCHEMA}}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
         "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "regex", "pattern": "a", "grammar": "b"}},
         "response_format.grammar"),
        ({"response_format": {"type": "text"}, "json_schema": SCHEMA, "grammar": "start: A"},
         "grammar"),
        ({"structured_outputs": {"regex": "a", "json": SCHEMA}}, "structured_outputs"),
    ],
)
def test_a_second_form_is_refused_by_name(
    model: ScriptedModel, asked: dict[str, Any], param: str
) -> None:
    error = Client(model).post(PATH, {"messages": [USER], **asked}).json()["error"]
    assert error["param"] == param and not model.engine.requests


def test_parts_and_odd_histories(model: ScriptedModel) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    history: list[Any] = [
        {"role": "developer", "content": "be kind"}, {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": []}, USER]
    assert Client(model).post(PATH, {"messages": history, "tools": []}).status == 200
    assert "system\nbe kind<|im_end|>" in model.prompt() and "one\ntwo" in model.prompt()

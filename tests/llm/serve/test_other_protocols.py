"""Completions, Anthropic's messages and OpenAI's responses, whole and as streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.serve.stand_in import Client, ScriptedModel

TEXT = "Hello there, friend."
CALL = 'Well. <tool_call>{"name": "get", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel()
    yield made
    made.close()


def test_completions(model: ScriptedModel) -> None:
    client = Client(model)
    tokens = model.tokenizer.encode("the fox")
    answer = client.post("/v1/completions", {
        "prompt": ["the", tokens], "n": 2, "max_tokens": 2, "echo": True, "logprobs": 1}).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["theHello "] * 2 + ["the foxHello "] * 2
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][0]["finish_reason"] == "length"
    told = answer["choices"][2]["logprobs"]
    assert "".join(told["tokens"][: len(tokens)]) == "the fox"
    assert told["text_offset"][: len(tokens) + 1] == [
        len("".join(told["tokens"][:n])) for n in range(len(tokens) + 1)]
    assert told["token_logprobs"] == [None] + [-1.5] * (len(tokens) - 1) + [-0.5] * 2
    assert told["top_logprobs"][0] is None and told["top_logprobs"][1] == {told["tokens"][1]: -1.5}
    assert answer["usage"]["completion_tokens"] == 8
    scored = client.post("/v1/completions", {
        "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 1, "stream": True}).events()
    texts = "".join(chunk["choices"][0]["text"] for chunk in scored[:-1])
    rows = [chunk["choices"][0]["logprobs"] for chunk in scored[:-1]]
    assert texts == "the fox" and sum(len(row["tokens"]) for row in rows if row) == len(tokens)
    plain = client.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "logprobs": 0}).json()
    told = plain["choices"][0]["logprobs"]
    assert told["text_offset"] == [0, len(told["tokens"][0])]
    assert list(model.engine.requests[2].tokens) == tokens
    events = client.post("/v1/completions", {
        "prompt": "a", "max_tokens": 99, "stream": True,
        "stream_options": {"include_usage": True}}).events()
    assert events[-1] == "[DONE]" and events[-2]["choices"] == []
    assert "".join(chunk["choices"][0]["text"] for chunk in events[:-2]) == TEXT
    assert events[-3]["choices"][0]["finish_reason"] == "stop"


def message(**more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}], **more}


def test_a_message(model: ScriptedModel) -> None:
    reply = Client(model).post("/v1/messages", message(system=[{"type": "text", "text": "be"}]))
    answer = reply.json()
    assert answer["type"] == "message" and answer["role"] == "assistant"
    assert answer["content"] == [{"type": "text", "text": TEXT}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    count = Client(model).post("/v1/messages/count_tokens", {
        "messages": [{"role": "user", "content": "hi"}], "system": "be"}).json()["input_tokens"]
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
    assert usage["output_tokens"] == 7
    assert "system\nbe" in model.prompt()


def test_a_message_as_events(model: ScriptedModel) -> None:
    model.engine.answer = "hm\n</think>\n" + CALL
    tools = [{"name": "get", "input_schema": {"type": "object"}}]
    events = Client(model).post("/v1/messages", message(
        stream=True, tools=tools, thinking={"type": "enabled", "budget_tokens": 9})).events()
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [start["content_block"]["type"] for start in starts] == ["thinking", "text", "tool_use"]
    assert [start["index"] for start in starts] == [0, 1, 2]
    assert starts[2]["content_block"]["name"] == "get"
    written = {0: "", 1: "", 2: ""}
    for event in events:
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            written[event["index"]] += next(
                delta[key] for key in ("thinking", "text", "partial_json") if key in delta)
    assert written == {0: "hm", 1: "Well.", 2: '{"a": 1}'}
    assert kinds.count("content_block_stop") == 3
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    whole = Client(model).post("/v1/messages", message(
        tools=tools, thinking={"type": "enabled"})).json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["content"][2]["input"] == {"a": 1}


def test_results_of_tools_in_messages(model: ScriptedModel) -> None:
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "x", "signature": ""}, {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "t1", "name": "get", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [
                {"type": "text", "text": "42"}]},
            {"type": "text", "text": "and now?"}]},
    ]
    assert Client(model).post("/v1/messages", message(messages=messages)).status == 200
    prompt = model.prompt()
    assert 'ok<tool_call>get{"a": 1}</tool_call>' in prompt
    assert prompt.index("tool\n42") < prompt.index("user\nand now?")


def test_a_response(model: ScriptedModel) -> None:
    answer = Client(model).post("/v1/responses", {
        "input": "hi", "instructions": "be kind", "max_output_tokens": 99}).json()
    assert answer["object"] == "response" and answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == TEXT
    assert answer["usage"]["output_tokens"] == 7
    assert "system\nbe kind" in model.prompt()
    cut = Client(model).post("/v1/responses", {"input": "hi", "max_output_tokens": 1}).json()
    assert cut["status"] == "incomplete"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_response_as_events(model: ScriptedModel) -> None:
    model.engine.answer = CALL
    events = Client(model).post("/v1/responses", {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "7"}],
        "tools": [{"type": "web_search"}, {"type": "function", "name": "get", "parameters": {}}],
        "stream": True}).events()
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    order = [
        "response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert [kind for at, kind in enumerate(kinds) if at > 1 and kind != kinds[at - 1]] == order
    arguments = "".join(event["delta"] for event in events
                        if event["type"] == "response.function_call_arguments.delta")
    assert arguments == '{"a": 1}'
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert output[1]["arguments"] == arguments and output[1]["call_id"]
    assert "get{}" in model.prompt() and "tool\n7" in model.prompt()

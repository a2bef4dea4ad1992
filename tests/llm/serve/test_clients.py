"""What clients and agents of others send is understood: their fields, and answers sent back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.serve.stand_in import Client, ScriptedModel

SCHEMA = {"type": "object", "title": "get", "properties": {"city": {"type": "string"}},
          "required": ["city"], "additionalProperties": False}
CALL = '<tool_call>{"name": "get", "arguments": {"city": "Rome"}}</tool_call>'
JOKE = {"type": "json_schema", "name": "Joke", "strict": True, "schema": SCHEMA}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel(CALL)
    yield made
    made.close()


def test_an_agent_s_loop_over_chats(model: ScriptedModel) -> None:
    """The fields of LangChain's ChatOpenAI and of openai-agents."""
    client = Client(model)
    tool = {"type": "function", "function": {
        "name": "get", "description": "Get.", "parameters": SCHEMA, "strict": True}}
    asked: dict[str, Any] = {
        "model": "smol", "stream": False, "temperature": 0.0, "max_completion_tokens": 150,
        "messages": [{"content": "Be kind.", "role": "system"}, {"content": "?", "role": "user"}],
        "tools": [tool], "tool_choice": "auto", "parallel_tool_calls": False, "store": False,
        "metadata": {"run": "1"}, "stream_options": None, "reasoning_effort": None, "user": None,
    }
    message = client.post("/v1/chat/completions", asked).json()["choices"][0]["message"]
    call = message["tool_calls"][0]
    assert call["function"] == {"name": "get", "arguments": '{"city": "Rome"}'}
    sent_back = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None,
                 "annotations": [], "name": "Assistant", "audio": None, "function_call": None}
    asked["messages"] += [
        sent_back, {"role": "tool", "tool_call_id": call["id"], "content": "sunny", "name": "get"}]
    assert client.post("/v1/chat/completions", asked).status == 200
    assert "tool\nsunny" in model.prompt()
    form = {"type": "json_schema", "json_schema": {"name": "J", "strict": True, "schema": SCHEMA}}
    assert client.post("/v1/chat/completions", {**asked, "tools": [], "tool_choice": "none",
                                                "response_format": form}).status == 200
    assert model.engine.requests[-1].form is not None


def test_an_agent_s_loop_over_responses(model: ScriptedModel) -> None:
    client = Client(model)
    asked: dict[str, Any] = {
        "model": "smol", "stream": False, "instructions": "Be kind.", "temperature": 0.0,
        "input": [{"content": "?", "role": "user", "type": "message"}], "include": [],
        "tools": [{"type": "function", "name": "get", "description": "Get.", "parameters": SCHEMA,
                   "strict": True}, {"type": "web_search"}],
        "tool_choice": "required", "parallel_tool_calls": False, "store": False,
        "max_output_tokens": 150, "previous_response_id": None,
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low", "summary": "auto"}, "truncation": "disabled",
    }
    output = client.post("/v1/responses", asked).json()["output"]
    assert [item["type"] for item in output] == ["function_call"]
    asked["input"] += [*output, {
        "type": "function_call_output", "call_id": output[0]["call_id"], "output": "sunny"}]
    asked["tool_choice"] = "auto"
    assert client.post("/v1/responses", asked).status == 200
    assert "tool\nsunny" in model.prompt()
    assert client.post("/v1/responses", {
        **asked, "tools": [], "text": {"format": JOKE, "verbosity": "low"}}).status == 200
    form = model.engine.requests[-1].form
    assert form is not None and json.loads(form.text) == SCHEMA


def test_an_agent_s_loop_over_messages(model: ScriptedModel) -> None:
    client = Client(model)
    asked: dict[str, Any] = {
        "model": "smol", "max_tokens": 150, "temperature": 0.0, "system": "Be kind.",
        "messages": [{"role": "user", "content": "?"}],
        "tools": [{"name": "get", "description": "Get.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "get"}, "metadata": {"user_id": "me"},
    }
    content = client.post("/v1/messages", asked).json()["content"]
    assert [(block["type"], block["input"]) for block in content] == [
        ("tool_use", {"city": "Rome"})]
    asked["messages"] += [
        {"role": "assistant", "content": content},
        {"role": "user", "content": [{
            "type": "tool_result", "tool_use_id": content[0]["id"], "content": "sunny",
            "is_error": False}]}]
    del asked["tool_choice"]
    assert client.post("/v1/messages", asked).status == 200
    assert "tool\nsunny" in model.prompt()
    schema = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert client.post("/v1/messages", {
        **asked, "tools": [], "output_config": schema}).status == 200
    form = model.engine.requests[-1].form
    assert form is not None and json.loads(form.text) == SCHEMA


def test_what_coding_agents_send_is_understood(model: ScriptedModel) -> None:
    client = Client(model)
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    lasting = {"cache_control": {"type": "ephemeral"}}
    assert client.post("/v1/messages", {
        "max_tokens": 9000, "system": [{"type": "text", "text": "Be kind.", **lasting}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "?", **lasting}]}],
        "tools": [{"name": "get", "input_schema": SCHEMA, "strict": True, **lasting}],
        "thinking": {"type": "adaptive"}, "context_management": keeps, "stream": True,
        "output_config": {"effort": "high"}, "metadata": {"user_id": "me"}, "new_field": None,
    }).status == 200
    assert client.post("/v1/responses", {
        "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
        "input": [{"type": "reasoning", "summary": [], "encrypted_content": None},
                  {"role": "user", "content": [{"type": "input_text", "text": "?"}]}],
        "tools": [{"type": "custom", "name": "patch"}, {"type": "web_search"},
                  {"type": "function", "name": "get", "parameters": SCHEMA, "strict": False}],
        "prompt_cache_key": "k", "text": {"verbosity": "low"}, "parallel_tool_calls": False,
    }).status == 200


CUT = '{"city": "R'


def test_a_call_that_was_cut_off_is_sent_back_and_answered(model: ScriptedModel) -> None:
    """Its arguments are no JSON; agents send the answer back with no result for it."""
    client = Client(model)
    tool = {"type": "function", "function": {"name": "get", "parameters": SCHEMA}}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "tools": [tool],
                            "max_tokens": 17}
    choice = client.post("/v1/chat/completions", chat).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    call = choice["message"]["tool_calls"][0]
    assert call["function"] == {"name": "get", "arguments": CUT}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "no JSON"}
    for more in ([], [result], [{"role": "user", "content": "go on"}]):
        chat["messages"] = [*chat["messages"][:1], choice["message"], *more]
        assert client.post("/v1/chat/completions", chat).status == 200
        assert json.dumps(CUT) in model.prompt()
    whole = {**call, "function": {"name": "get", "arguments": '{"city": "R"}'}}
    chat["messages"][1] = {**choice["message"], "tool_calls": [whole]}
    assert client.post("/v1/chat/completions", chat).status == 400


def test_a_call_that_was_cut_off_over_other_protocols(model: ScriptedModel) -> None:
    client = Client(model)
    asked: dict[str, Any] = {
        "input": [{"role": "user", "content": "?"}], "max_output_tokens": 17,
        "tools": [{"type": "function", "name": "get", "parameters": SCHEMA}],
    }
    answer = client.post("/v1/responses", asked).json()
    assert answer["status"] == "incomplete" and answer["output"][0]["arguments"] == CUT
    asked["input"] += [*answer["output"], {"role": "user", "content": "go on"}]
    assert client.post("/v1/responses", asked).status == 200
    assert json.dumps(CUT) in model.prompt()
    message: dict[str, Any] = {
        "messages": [{"role": "user", "content": "?"}], "max_tokens": 17,
        "tools": [{"name": "get", "input_schema": SCHEMA}],
    }
    content = client.post("/v1/messages", message).json()["content"]
    assert [block["input"] for block in content] == [{"_unparsed": CUT}]
    message["messages"] += [{"role": "assistant", "content": content},
                            {"role": "user", "content": "go on"}]
    assert client.post("/v1/messages", message).status == 200
    assert json.dumps(CUT) in model.prompt()


def test_tools_of_a_model_that_knows_none_are_told() -> None:
    model = ScriptedModel(CALL, template=(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"))
    tool = {"type": "function", "function": {"name": "get", "parameters": SCHEMA}}
    asked = {"messages": [{"role": "user", "content": "?"}], "tools": [tool],
             "tool_choice": "required"}
    client = Client(model)
    message = client.post("/v1/chat/completions", asked).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "get"
    assert '"required": ["city"]' in model.prompt()
    form = model.engine.requests[-1].form
    assert form is not None and form.kind == "lark"
    model.close()

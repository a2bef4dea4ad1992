"""Agents' loops through a real engine: a call that is enforced, its result, and an answer.

The weights are random, so that what is called depends on the grammar alone.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from baregrad.llm.generation.opened import EngineSettings, OpenedModel, open_to_ask
from baregrad.llm.serve import application
from tests.llm.commands.small_model import write_model
from tests.llm.serve.stand_in import Client

for name in ("tokenizers", "llguidance", "starlette", "uvicorn"):
    pytest.importorskip(name, reason="the server needs tokenizers, llguidance and starlette")
QUESTION = "What is 6 times 7?"
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "required": ["a", "b"],
          "additionalProperties": False}
TOOL = {"type": "function", "function": {
    "name": "multiply", "description": "Multiply.", "parameters": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedModel]:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    settings = EngineSettings(rows=2, chunk=64)
    made = open_to_ask(write_model(path, **{"llama.context_length": 2048}), settings)
    made.engine.start()
    yield made
    made.close()


def multiplied(arguments: str | dict[str, Any]) -> str:
    """The tool: what it gets has to be what its schema says."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert given.keys() == {"a", "b"} and all(0 <= each <= 9 for each in given.values())
    return str(given["a"] * given["b"])


def test_over_chats(model: OpenedModel) -> None:
    client = Client(model)
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "tools": [TOOL],
                             "tool_choice": "required", "parallel_tool_calls": False,
                             "max_tokens": 300, "seed": 3}
    choice = client.post("/v1/chat/completions", asked).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    asked["messages"] += [choice["message"], *(
        {"role": "tool", "tool_call_id": call["id"],
         "content": multiplied(call["function"]["arguments"])}
        for call in choice["message"]["tool_calls"])]
    answer = client.post("/v1/chat/completions", asked | {"tool_choice": "none", "max_tokens": 4})
    assert answer.json()["choices"][0]["message"]["content"]


def test_over_responses(model: OpenedModel) -> None:
    client = Client(model)
    asked: dict[str, Any] = {
        "input": [{"role": "user", "content": QUESTION}], "tool_choice": "required", "seed": 3,
        "tools": [{"type": "function", **TOOL["function"]}], "max_output_tokens": 300,
        "parallel_tool_calls": False}
    output = client.post("/v1/responses", asked).json()["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    assert calls
    asked["input"] += [*output, *(
        {"type": "function_call_output", "call_id": call["call_id"],
         "output": multiplied(call["arguments"])} for call in calls)]
    last = {"tool_choice": "none", "max_output_tokens": 4}
    answer = client.post("/v1/responses", asked | last).json()
    assert answer["output"][0]["content"][0]["text"]


def test_over_messages(model: OpenedModel) -> None:
    client = Client(model)
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 300,
        "tools": [{"name": "multiply", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    message = client.post("/v1/messages", asked).json()
    assert message["stop_reason"] == "tool_use"
    asked["messages"] += [{"role": "assistant", "content": message["content"]}, {
        "role": "user", "content": [
            {"type": "tool_result", "tool_use_id": block["id"],
             "content": multiplied(block["input"])}
            for block in message["content"] if block["type"] == "tool_use"]}]
    last = {"tool_choice": {"type": "none"}, "max_tokens": 4}
    # Without tools the prompt begins otherwise: what is read again is what was asked before.
    first, answer = [client.post("/v1/messages", asked | last).json() for _ in range(2)]
    assert first["content"] == answer["content"]
    assert answer["content"][0]["text"] and answer["usage"]["cache_read_input_tokens"] > 0


@pytest.fixture
def address(model: OpenedModel) -> Iterator[str]:
    """Where the model is served on loopback."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application(model), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.slow
def test_by_the_client_of_openai(address: str) -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    name = client.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    asked = {"model": name, "tools": [TOOL], "max_tokens": 300, "seed": 3,
             "parallel_tool_calls": False}
    with client.chat.completions.stream(
        messages=messages, tool_choice="required", **asked
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message)
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": multiplied(call.function.arguments)}
        for call in message.tool_calls]
    last = client.chat.completions.create(
        messages=messages, tool_choice="none", **(asked | {"max_tokens": 9}))
    assert last.choices[0].message.content
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", **TOOL["function"]}]
    response = client.responses.create(
        model=name, input=items, tools=tools, tool_choice="required", max_output_tokens=300,
        parallel_tool_calls=False)
    items += response.output
    items += [
        {"type": "function_call_output", "call_id": item.call_id,
         "output": multiplied(item.arguments)}
        for item in response.output if item.type == "function_call"]
    assert client.responses.create(
        model=name, input=items, tools=tools, tool_choice="none", max_output_tokens=9).output_text


@pytest.mark.slow
def test_by_the_client_of_anthropic(address: str) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the official client is not installed")
    client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    asked = {"model": "small", "max_tokens": 800,
             "tools": [{"name": "multiply", "input_schema": SCHEMA}]}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(messages=messages, tool_choice=choice, **asked) as stream:
        message = stream.get_final_message()
    messages += [{"role": "assistant", "content": message.content}, {
        "role": "user", "content": [
            {"type": "tool_result", "tool_use_id": block.id, "content": multiplied(block.input)}
            for block in message.content if block.type == "tool_use"]}]
    assert messages[2]["content"]
    last = client.messages.create(
        messages=messages, tool_choice={"type": "none"}, **(asked | {"max_tokens": 9}))
    assert last.content[0].text


@pytest.mark.slow
def test_by_an_agent_of_langchain(address: str) -> None:
    """The agent's own loop, whose first turn has to call; the tool is run by its graph."""
    reason = "LangChain is not installed"
    agents = pytest.importorskip("langchain.agents", reason=reason)
    middleware = pytest.importorskip("langchain.agents.middleware", reason=reason)
    chats = pytest.importorskip("langchain_openai", reason=reason)
    tools = pytest.importorskip("langchain_core.tools", reason=reason)

    @middleware.wrap_model_call
    def calls_first(request: Any, handler: Any) -> Any:
        is_first = len(request.messages) == 1
        return handler(request.override(tool_choice="any" if is_first else "none"))

    seen: list[str] = []

    def multiply(a: int, b: int) -> str:
        seen.append(multiplied({"a": a, "b": b}))
        return seen[-1]

    tool = tools.StructuredTool.from_function(
        multiply, description="Multiply.", args_schema=SCHEMA)
    chat = chats.ChatOpenAI(
        model="small", base_url=f"{address}/v1", api_key="none", max_tokens=300, seed=3,
        model_kwargs={"parallel_tool_calls": False})
    agent = agents.create_agent(chat, [tool], middleware=[calls_first])
    messages = agent.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 8})["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert [messages[2].content] == seen
    assert messages[3].content

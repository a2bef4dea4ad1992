"""Requests that no server can answer: a table of paths, bodies and headers, written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
VECTORS = "/v1/embeddings"
USER: dict[str, Any] = {"role": "user", "content": "hi"}
GET = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
MOST_BYTES = 60_000
JSON = {"content-type": "application/json"}


class OddRequest(NamedTuple):
    """A request, and the status with which it is refused."""

    path: str
    body: Any
    status: int = 400
    method: str = "POST"
    headers: dict[str, str] = JSON


VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 1},
    TEXT: {"prompt": "a", "max_tokens": 1},
    RESPONSES: {"input": "a", "max_output_tokens": 1},
    MESSAGES: {"messages": [USER], "max_tokens": 1},
    COUNT: {"messages": [USER]},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [65]},
}

# Bodies that are wrong wherever they are sent.
_NO_OBJECTS: tuple[bytes, ...] = (
    b"", b" ", b"\x00", b"{", b"}", b"[", b"[]", b"null", b"true", b"3", b'"text"', b"{}}", b"{,}",
    b"{'a': 1}", b'{"a": 1,}', b'{"a" 1}', b'{"a": 1} {"b": 2}', b'{"a": NaN}', b'{"a": Infinity}',
    b'{"a": -Infinity}', b'{"a": .5}', b'{"a": 01}', b'{"a": +1}', b'{"a": 0x10}', b'{"a": "\n"}',
    b'{"a": "\\x"}', b'{"a": "\\u12"}', b'{"a": tru}', b'{"a": undefined}', b"\xff\xfe\x00",
    b'{"a": "\xff"}', b'{"a": "\xc3"}', b'{"a": "\xed\xa0\x80"}', b'{"\xf8": 1}',
    b'{"model": "a", "model": "b"}', b'{"a": {"b": 1, "b": 1}}', b"[" * 50_000, b'{"a":' * 9_000,
    b'{"model": ' + b"[" * 200 + b"]" * 200 + b"}", b'{"a": ' + b"9" * 5000 + b"}",
    b"<html></html>", b"messages=hi&n=1", b"--x\r\ncontent-disposition: form-data\r\n\r\n1\r\n",
    b'// note\n{"a": 1}', b'\xef\xbb\xbf{"nothing": 1}', b"data: {}\n\n",
)
_WRONG_TYPES = (
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
    "application/xml", "application/octet-stream", "json", "text/json", "text/html",
)


def _chat(**more: Any) -> OddRequest:
    return OddRequest(CHAT, {**VALID[CHAT], **more})


def _said(*messages: Any) -> OddRequest:
    return OddRequest(CHAT, {"messages": [*messages]})


def _text(**more: Any) -> OddRequest:
    return OddRequest(TEXT, {**VALID[TEXT], **more})


def _response(**more: Any) -> OddRequest:
    return OddRequest(RESPONSES, {**VALID[RESPONSES], **more})


def _message(**more: Any) -> OddRequest:
    return OddRequest(MESSAGES, {**VALID[MESSAGES], **more})


def _blocks(*content: Any, role: str = "user") -> OddRequest:
    return _message(messages=[{"role": role, "content": [*content]}])


def _called(*ids: Any, arguments: Any = "{}") -> dict[str, Any]:
    """An answer that calls a tool, once for each id."""
    calls = [{"id": id, "type": "function",
              "function": {"name": "get", "arguments": arguments}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(id: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "7"}


_SETTINGS: tuple[tuple[str, Any], ...] = (
    ("temperature", "hot"), ("temperature", -1), ("temperature", 1e9), ("temperature", True),
    ("temperature", [1]), ("temperature", 10**400), ("top_p", -0.1), ("top_p", 1.5),
    ("top_p", "1"), ("top_k", -2), ("top_k", 1.5), ("top_k", 10**30), ("min_p", 2), ("min_p", {}),
    ("typical_p", -1), ("seed", "x"), ("seed", 0.5), ("seed", 10**40), ("stop", 3), ("stop", [""]),
    ("stop", [1]), ("stop", {}), ("stop", ["a"] * 100), ("presence_penalty", "a"),
    ("presence_penalty", 1e6), ("frequency_penalty", -1e6), ("frequency_penalty", []),
    ("repetition_penalty", 0), ("repetition_penalty", -3), ("logit_bias", []),
    ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"1": "a"}),
    ("logit_bias", {"1": None}), ("logit_bias", {str(n): 1 for n in range(2000)}),
    ("logit_bias", {"1": 10**400}), ("ignore_eos", 1), ("max_tokens", 0), ("max_tokens", -5),
    ("max_tokens", 1.5), ("max_tokens", "9"), ("max_tokens", 10**20), ("n", 0), ("n", -1),
    ("n", 1000), ("n", True), ("n", "2"), ("n", 1.5), ("stream", "yes"), ("stream", 1),
    ("stream_options", []), ("stream_options", {"include_usage": "x"}), ("user", 3),
    ("model", 3), ("model", ["a"]), ("response_format", "json"), ("response_format", {"type": 3}),
    ("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": []}}),
    ("response_format", {"type": "regex"}), ("response_format", {"type": "grammar"}),
    ("response_format", {"type": "json_object", "schema": 3}), ("grammar", 3), ("grammar", {}),
    ("json_schema", {}), ("json_schema", "{}"), ("structured_outputs", []),
    ("structured_outputs", {"json": "{"}), ("structured_outputs", {"json": "[" * 50_000}),
    ("structured_outputs", {"json": "\ud800"}), ("structured_outputs", {"json": 3}),
    ("structured_outputs", {"choice": []}), ("structured_outputs", {"choice": [""]}),
    ("structured_outputs", {"choice": [3]}), ("structured_outputs", {"structural_tag": "x"}),
    ("structured_outputs", {"regex": 3}), ("structured_outputs", {"regex": "a", "choice": ["b"]}),
    ("tempreature", 1), ("max_new_tokens", 1), ("", 1), ("best of", 1), ("\ud800", 1),
)

_CHATS: tuple[OddRequest, ...] = (
    OddRequest(CHAT, {}), _chat(messages=[]), _chat(messages="hi"), _chat(messages={}),
    _chat(messages=None), _said(3), _said(None), _said([]), _said("hi"), _said({}),
    _said({"role": "king", "content": "x"}), _said({"role": 3, "content": "x"}),
    _said({"role": None, "content": "x"}), _said({"role": "", "content": "x"}),
    _said({"role": "function", "name": "f", "content": "x"}), _said({"content": "x"}),
    _said({"role": "user"}), _said({"role": "user", "content": None}),
    _said({"role": "system", "content": None}), _said({"role": "user", "content": 3}),
    _said({"role": "user", "content": {}}), _said({"role": "user", "content": [3]}),
    _said({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
    _said({"role": "user", "content": [{"type": "input_audio"}]}),
    _said({"role": "user", "content": [{"type": "text"}]}),
    _said({"role": "user", "content": [{"type": "text", "text": 3}]}),
    _said({"role": "user", "content": [{"type": 3, "text": "a"}]}),
    _said({"role": "user", "content": "long " * 4000}),
    # Calls and results that do not fit together.
    _said(USER, _result("a")), _said(_result("a")), _said(USER, _called("a"), USER),
    _said(USER, _called("a", "b"), _result("a"), USER), _said(USER, _called("a"), _result("b")),
    _said(USER, _called("a"), _result("a"), _result("a")), _said(USER, _called("a", "a")),
    _said(USER, _called("a"), _result(None)), _said(USER, _called("a"), _result(3)),
    _said(USER, _called(None)), _said(USER, _called(3)), _said(USER, _called("")),
    _said(USER, _called("a"), {"role": "tool", "content": "x"}),
    _said(USER, _called("a", arguments=True)), _said(USER, _called("a", arguments=0.5)),
    _said(USER, _called("a", arguments=3)), _said(USER, _called("a", arguments=["x"])),
    _said(USER, {"role": "assistant", "tool_calls": [{}]}),
    _said(USER, {"role": "assistant", "tool_calls": {}}),
    _said(USER, {"role": "assistant", "tool_calls": [3]}),
    _said(USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}),
    _said(USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": 3}}]}),
    # Tools.
    _chat(tools={}), _chat(tools="get"), _chat(tools=[3]), _chat(tools=[{}]),
    _chat(tools=[{"type": "function"}]), _chat(tools=[{"type": "magic"}]),
    _chat(tools=[{"type": "function", "function": {"name": ""}}]),
    _chat(tools=[{"type": "function", "function": {"name": 3}}]),
    _chat(tools=[{"type": "function", "function": {"name": "f", "parameters": []}}]),
    _chat(tools=[{"type": "function", "function": {"name": "f", "description": 3}}]),
    _chat(tools=[GET] * 600), _chat(tools=[GET, GET]), _chat(tool_choice="required"),
    _chat(tool_choice="maybe"), _chat(tool_choice=3), _chat(tool_choice={}),
    _chat(tools=[GET], tool_choice={"type": "function", "function": {"name": "other"}}),
    _chat(tools=[GET], tool_choice={"type": "function"}), _chat(tools=[GET], tool_choice=["get"]),
    _chat(tools=[GET], tool_choice="required", response_format={"type": "json_object"}),
    _chat(tools=[GET], parallel_tool_calls="no"),
    # What is not offered, and settings of chats alone.
    _chat(functions=[]), _chat(function_call="auto"), _chat(audio={"voice": "x"}),
    _chat(web_search_options={}), _chat(modalities=["text", "audio"]), _chat(modalities=3),
    _chat(logprobs="x"), _chat(logprobs=2), _chat(logprobs=True, top_logprobs=99),
    _chat(logprobs=True, top_logprobs=-1), _chat(top_logprobs=2), _chat(prompt="a"),
    _chat(max_completion_tokens=0), _chat(max_completion_tokens="x"), _chat(reasoning_effort=3),
    _chat(chat_template_kwargs=[]), _chat(chat_template_kwargs="x"),
)

_TEXTS: tuple[OddRequest, ...] = (
    OddRequest(TEXT, {}), _text(prompt=None), _text(prompt=[]), _text(prompt=""), _text(prompt=3),
    _text(prompt={}), _text(prompt=[[]]), _text(prompt=[[1, "x"]]), _text(prompt=["a", 3]),
    _text(prompt=[["a"]]), _text(prompt=[True]), _text(prompt=[1.5]), _text(prompt=[-1]),
    _text(prompt=[10**9]), _text(prompt=[10**30]), _text(prompt=[[1], [10**9]]),
    _text(prompt=["a"] * 1000), _text(prompt="x y " * 5000), _text(suffix="b"), _text(best_of=3),
    _text(logprobs=True), _text(logprobs=-1), _text(logprobs=99), _text(logprobs="1"),
    _text(echo="x"), _text(echo=1), _text(messages=[USER]),
)

_RESPONSES: tuple[OddRequest, ...] = (
    OddRequest(RESPONSES, {}), _response(input=None), _response(input=[]), _response(input=3),
    _response(input={}), _response(input=[3]), _response(input=[{"type": "magic"}]),
    _response(input=[{}]), _response(input=[{"role": "tool", "content": "x"}]),
    _response(input=[{"role": "user"}]), _response(input=[{"role": "user", "content": 3}]),
    _response(input=[{"role": "user", "content": [{"type": "input_image"}]}]),
    _response(input=[{"role": "user", "content": [{"type": "input_text"}]}]),
    _response(input=[{"type": "function_call"}]),
    _response(input=[{"type": "function_call", "call_id": "a", "name": 3}]),
    _response(input=[{"type": "function_call", "call_id": "a", "name": "f"}, USER]),
    _response(input=[{"type": "function_call_output", "call_id": "a", "output": "x"}]),
    _response(input=[{"type": "function_call", "call_id": "a", "name": "f"},
                     {"type": "function_call_output", "call_id": "b", "output": "x"}]),
    _response(input=[{"type": "function_call", "call_id": "a", "name": "f"},
                     {"type": "function_call_output", "call_id": "a", "output": 3}]),
    _response(previous_response_id="x"), _response(conversation="x"), _response(prompt={"id": "x"}),
    _response(background=True), _response(background="x"), _response(instructions=3),
    _response(tools=3), _response(tools=[{"type": "function"}]), _response(tools=[3]),
    _response(top_logprobs=2), _response(include=["message.output_text.logprobs"]),
    _response(tool_choice="required"), _response(tool_choice={"type": "function", "name": "x"}),
    _response(tools=[{"type": "function", "name": "f", "parameters": 3}]),
    _response(text="x"), _response(text={"format": {"type": "xml"}}),
    _response(text={"format": {"type": "json_schema"}}), _response(reasoning="high"),
    _response(reasoning={"effort": 3}), _response(max_output_tokens=-1),
    _response(max_output_tokens=0.5), _response(top_logprobs=3), _response(logprobs=True),
    _response(max_tokens=3), _response(messages=[USER]), _response(input="y " * 9000),
)

_USE = {"type": "tool_use", "id": "a", "name": "get", "input": {}}
_GAVE = {"type": "tool_result", "tool_use_id": "a", "content": "7"}
_ASKED_TOOL = {"role": "assistant", "content": [_USE]}
_MESSAGES: tuple[OddRequest, ...] = (
    OddRequest(MESSAGES, {}), OddRequest(MESSAGES, {"messages": [USER]}),
    OddRequest(MESSAGES, {"max_tokens": 3}), _message(messages=[]), _message(messages="hi"),
    _message(messages={}), _message(messages=[3]), _message(messages=[{}]),
    _message(messages=[{"role": "x", "content": "a"}]), _message(messages=[{"role": "user"}]),
    _message(messages=[{"role": "tool", "content": "a"}]), _message(messages=[{"content": "a"}]),
    _message(messages=[{"role": "user", "content": 3}]),
    _message(messages=[{"role": "user", "content": None}]), _blocks(3), _blocks("x"),
    _blocks({"type": "image", "source": {}}), _blocks({"type": "document"}), _blocks({}),
    _blocks({"type": "text"}), _blocks({"type": "text", "text": 3}), _blocks({"type": 3}),
    _blocks({"type": "tool_result"}), _blocks(_GAVE),
    _blocks({"type": "tool_result", "tool_use_id": 3}), _blocks(_USE | {"input": 3}),
    _blocks(_USE | {"id": None}, role="assistant"), _blocks({"type": "tool_use"}),
    _blocks(_USE | {"name": 3}, role="assistant"), _blocks(_USE, _USE, role="assistant"),
    _message(messages=[_ASKED_TOOL, USER]),
    _message(messages=[_ASKED_TOOL, {"role": "user", "content": [_GAVE, _GAVE]}]),
    _message(messages=[_ASKED_TOOL, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "b", "content": "7"}]}]),
    _message(messages=[_ASKED_TOOL, {"role": "user", "content": [_GAVE | {"content": 3}]}]),
    _message(max_tokens=0), _message(max_tokens=-1), _message(max_tokens="9"),
    _message(max_tokens=None), _message(max_tokens=1.5), _message(temperature="x"),
    _message(temperature=-1), _message(temperature=10**400), _message(top_p=3), _message(top_k=-1),
    _message(stop_sequences=3), _message(stop_sequences=[""]), _message(stop_sequences=[3]),
    _message(stream="x"), _message(system=3), _message(system=[3]), _message(system=[{}]),
    _message(system=[{"type": "image"}]), _message(tools=3), _message(tools=[{}]),
    _message(tools=[{"name": "f", "input_schema": 3}]), _message(tools=[{"name": 3}]),
    _message(tools=[{"name": ""}]), _message(tools=[{"name": "f"}, {"name": "f"}]),
    _message(tools=[{"name": "web_search", "type": "web_search_20250305"}]),
    _message(tool_choice={"type": "any"}), _message(tool_choice="any"),
    _message(tool_choice={"type": "tool", "name": "x"}), _message(tool_choice={"type": "magic"}),
    _message(metadata="x"), _message(metadata={"user_id": 3}), _message(thinking="x"),
    _message(thinking={"type": 3}), _message(output_config=3), _message(model=3),
    _message(output_config={"format": {"type": "xml"}}), _message(n=2), _message(stop="x"),
    _message(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}),
    _message(context_management=[]), _message(max_tokens_to_sample=9),
    _message(messages=[{"role": "user", "content": "z " * 9000}]),
    OddRequest(COUNT, {}), OddRequest(COUNT, {"messages": 3}), OddRequest(COUNT, {"messages": [3]}),
    OddRequest(COUNT, {"messages": [{"role": "x", "content": "a"}]}),
    OddRequest(COUNT, {"messages": [USER], "top": 1}),
)

_OWN: tuple[OddRequest, ...] = (
    OddRequest("/tokenize", {}), OddRequest("/tokenize", {"content": 3}),
    OddRequest("/tokenize", {"content": None}), OddRequest("/tokenize", {"content": ["a"]}),
    OddRequest("/tokenize", {"content": "a", "parse_special": 1}),
    OddRequest("/tokenize", {"content": "a", "add_special": "x"}),
    OddRequest("/tokenize", {"content": "a", "text": "b"}), OddRequest("/detokenize", {}),
    OddRequest("/detokenize", {"tokens": "x"}), OddRequest("/detokenize", {"tokens": ["x"]}),
    OddRequest("/detokenize", {"tokens": [-1]}), OddRequest("/detokenize", {"tokens": [10**9]}),
    OddRequest("/detokenize", {"tokens": [1.0]}), OddRequest("/detokenize", {"tokens": [True]}),
    OddRequest("/detokenize", {"tokens": [10**30]}), OddRequest("/detokenize", {"tokens": None}),
    OddRequest("/detokenize", {"tokens": [65], "n": 1}),
    OddRequest(VECTORS, {"input": "a"}, 404), OddRequest("/v1/models/none", b"", 404, "GET"),
    OddRequest("/v1/models/a/b", b"", 404, "GET"), OddRequest("/v1/models/../x", b"", 404, "GET"),
    OddRequest("/v1/models", b"", 405), OddRequest("/health", b"", 405),
    OddRequest("/metrics", b"", 405), OddRequest("/", b"", 405), OddRequest("/v1", b"", 404),
    OddRequest("/v1/chat", b"", 404), OddRequest("//v1/chat/completions", b"", 404),
    OddRequest("/v1/messages/", b"", 404), OddRequest("/v1/messages/batches", {}, 404),
    OddRequest("/v1/responses/resp_1", b"", 404, "GET"), OddRequest("/v1/files", b"", 404, "GET"),
    OddRequest("/%00", b"", 404, "GET"), OddRequest("/é", b"", 404, "GET"),
)


_VECTORS: tuple[dict[str, Any], ...] = (
    {}, {"input": None}, {"input": ""}, {"input": []}, {"input": 3}, {"input": {}},
    {"input": [[]]}, {"input": ["a", 3]}, {"input": [[1], ["a"]]}, {"input": [3.5]},
    {"input": [-1]}, {"input": [[10**9]]}, {"input": [10**30]}, {"input": "a " * 5000},
    {"input": ["a"] * 1000}, {"input": [True]}, {"input": "a", "encoding_format": "x"},
    {"input": "a", "encoding_format": 3}, {"input": "a", "dimensions": 3},
    {"input": "a", "dimensions": 0}, {"input": "a", "dimensions": "5"}, {"input": "a", "model": 3},
    {"input": "a", "user": 3}, {"input": "a", "truncate": True},
)


def _odd_anywhere(path: str, valid: Mapping[str, Any]) -> Iterator[OddRequest]:
    for data in _NO_OBJECTS:
        yield OddRequest(path, data)
    for kind in _WRONG_TYPES:
        yield OddRequest(path, valid, 415, headers={"content-type": kind})
    for method in ("GET", "PUT", "PATCH", "DELETE", "BREW"):
        yield OddRequest(path, b"", 405, method)
    yield OddRequest(path, {**valid, "unheard_of": 1})
    yield OddRequest(path, b'{"a": "' + b"x" * MOST_BYTES + b'"}', 413)


def odd_vector_requests() -> Iterator[OddRequest]:
    """Yield the table of a model that makes vectors."""
    yield from _odd_anywhere(VECTORS, {"input": "a"})
    for body in _VECTORS:
        yield OddRequest(VECTORS, body)
    yield OddRequest(CHAT, VALID[CHAT], 404)
    yield OddRequest(MESSAGES, VALID[MESSAGES], 404)


def odd_requests() -> Iterator[OddRequest]:
    """Yield the table of a model that answers."""
    for path, valid in VALID.items():
        yield from _odd_anywhere(path, valid)
    for name, value in _SETTINGS:
        yield _chat(**{name: value})
        yield _text(**{name: value})
    yield from (*_CHATS, *_TEXTS, *_RESPONSES, *_MESSAGES, *_OWN)

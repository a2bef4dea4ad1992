"""What is asked of a model, whatever protocol it was asked in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from baregrad.llm.generation.constraints import AnswerForm
from baregrad.llm.serve.fields import Fields, parse
from baregrad.llm.serve.history import check_history
from baregrad.llm.serve.refusals import RequestRefused

MOST_ANSWERS = 16
MOST_LOGPROBS = 20
MOST_TOOLS = 512
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SEEDS = 1 << 63
SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty",
    "frequency_penalty", "repeat_penalty", "repetition_penalty", "seed", "stop", "logit_bias",
    "ignore_eos",
)
# What changes where and how a request is kept, billed or counted, and never its answer.
BOOKKEEPING_FIELDS = (
    "model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prompt_cache_options",
)
# Where a form of the answer is asked for: OpenAI's field, vLLM's, and two of llama.cpp's.
FORM_FIELDS = ("response_format", "structured_outputs", "json_schema", "grammar")
# What a regular expression needs a backslash before, where it is to stand for itself.
_SPECIAL = frozenset(".+*?()|[]{}^$\\/#&-~")
# What a `response_format` of each type says its form with.
_READ_BY_TYPE: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "text": (), "json_object": ("schema",), "json_schema": ("json_schema", "schema"),
    "regex": ("pattern",), "grammar": ("grammar",),
})
_CHAT_FIELDS = (
    *SAMPLING_FIELDS, *BOOKKEEPING_FIELDS, "messages", "max_tokens", "max_completion_tokens",
    "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
    "chat_template_kwargs", "reasoning_effort", "verbosity", "n", "stream", "stream_options",
    "modalities", "prediction", *FORM_FIELDS,
)


@dataclass(frozen=True)
class AskedChat:
    """A chat to continue.

    `sampling` are the settings that the request names, by the names of `Sampling`. `template` are
    values for the chat template. `must_call` names tools of which one has to be called, and with
    `calls_once` an answer ends with its first call. `answers` is how many are wanted. `shows_usage`
    asks for the usage at the end of a stream.
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    must_call: tuple[str, ...] = ()
    calls_once: bool = False
    form: AnswerForm | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    answers: int = 1
    streams: bool = False
    shows_usage: bool = False
    client: str = ""


@dataclass(frozen=True)
class AskedText:
    """A text, or tokens, to continue; `scores` asks for log-probabilities of the prompt as well."""

    prompt: str | Sequence[int]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    form: AnswerForm | None = None
    client: str = ""
    scores: bool = False


def sampling_of(body: Fields) -> dict[str, Any]:
    """Return the settings that OpenAI's requests name, for both chats and texts."""
    body.text("model", "")
    biases: dict[int, float] = {}
    bias = body.inner("logit_bias")
    for key in bias.values:
        value = bias.number(key)
        if not str(key).isdecimal() or value is None:
            raise body.refuse("logit_bias", "an object of numbers by token")
        biases[int(key)] = value
    chosen: dict[str, Any] = {
        "temperature": body.number("temperature"),
        "top_p": body.number("top_p"),
        "top_k": body.whole("top_k", -1, 1 << 30),
        "min_p": body.number("min_p"),
        "typical_p": body.number("typical_p"),
        "presence_penalty": body.number("presence_penalty"),
        "frequency_penalty": body.number("frequency_penalty"),
        "repeat_penalty": body.number("repeat_penalty" if body.has("repeat_penalty")
                                      else "repetition_penalty"),
        "seed": body.whole("seed", -_SEEDS, 2 * _SEEDS - 1),
        "stops": tuple(body.texts("stop")) or None,
        "logit_bias": biases or None,
        "ignores_ends": body.flag("ignore_eos") or None,
    }
    if chosen["top_k"] == -1:
        chosen["top_k"] = 0
    return {name: value for name, value in chosen.items() if value is not None}


def asked_chat(body: Fields) -> AskedChat:
    """Return the chat of a request to `/v1/chat/completions`; raises RequestRefused."""
    for name in ("functions", "function_call", "audio", "web_search_options"):
        if body.has(name):
            raise RequestRefused(f"{name} is not offered; tools are", param=name)
    body.only(_CHAT_FIELDS)
    if body.texts("modalities") not in ([], ["text"]):
        raise body.refuse("modalities", '["text"]')
    messages = [_message(message) for message in body.objects("messages")]
    if not messages:
        raise RequestRefused("messages has to hold at least one message", param="messages")
    check_history(messages)
    sampling = sampling_of(body)
    most = "max_completion_tokens" if body.has("max_completion_tokens") else "max_tokens"
    count = body.whole(most, 1, 1 << 30)
    if count is not None:
        sampling["max_tokens"] = count
    alternatives = body.whole("top_logprobs", 0, MOST_LOGPROBS)
    if body.flag("logprobs"):
        sampling["logprobs"] = alternatives or 0
    elif alternatives:
        raise RequestRefused("top_logprobs needs logprobs", param="top_logprobs")
    tools = checked_tools([_tool(tool) for tool in body.objects("tools")])
    must_call = wanted_calls(body, tools)
    if body.values.get("tool_choice") == "none":
        tools = []
    template = dict(body.inner("chat_template_kwargs").values)
    effort = body.text("reasoning_effort", "")
    if effort:
        template |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return AskedChat(
        messages=messages,
        sampling=sampling,
        tools=tools,
        must_call=must_call,
        calls_once=wants_one_call(body),
        form=asked_form(body),
        template=template,
        answers=body.whole("n", 1, MOST_ANSWERS) or 1,
        streams=body.flag("stream"),
        shows_usage=body.inner("stream_options").flag("include_usage"),
        client=body.text("user", ""),
    )


def asked_form(body: Fields) -> AnswerForm | None:
    """Return the form that a chat or a text asks for in one of FORM_FIELDS, None for none."""
    ways = (
        form_of(body.inner("response_format")), _structure(body.inner("structured_outputs")),
        _schema(body.inner("json_schema")) if body.has("json_schema") else None,
        _grammar(body, "grammar"),
    )
    found = {name: form for name, form in zip(FORM_FIELDS, ways, strict=True) if form is not None}
    if len(found) > 1:
        *_, last = found
        raise RequestRefused(
            f"an answer has one form, {' and '.join(found)} name more", param=last
        )
    return next(iter(found.values()), None)


def form_of(format: Fields) -> AnswerForm | None:
    """Return the form of a `response_format`; nothing of a schema is ever left out."""
    kind = format.text("type", "text")
    reads = _READ_BY_TYPE.get(kind)
    if reads is None:
        raise format.refuse("type", "text, json_object, json_schema, regex or grammar")
    for name in ("json_schema", "schema", "pattern", "grammar"):
        if format.has(name) and name not in reads:
            raise RequestRefused(
                f"{format.name(name)} has no effect where the type is {kind}",
                param=format.name(name),
            )
    if kind == "text":
        return None
    if kind == "json_object" and not format.has("schema"):
        return AnswerForm("json_object")
    if kind in ("json_object", "json_schema"):
        holder = format
        if format.has("json_schema"):
            if format.has("schema"):
                name = format.name("schema")
                raise RequestRefused(f"{name} is a second schema beside json_schema", param=name)
            holder = format.inner("json_schema")
        return _schema(holder.inner("schema"))
    form = _regex(format, "pattern") if kind == "regex" else _grammar(format, "grammar")
    if form is None:
        raise format.refuse(reads[0], "a text")
    return form


def _structure(wanted: Fields) -> AnswerForm | None:
    """Return the form of `structured_outputs`, whose one field says which."""
    wanted.only(("json", "json_object", "regex", "choice", "grammar"))
    ways = [
        AnswerForm("json_object") if wanted.flag("json_object") else None,
        _regex(wanted, "regex"), _grammar(wanted, "grammar"), _choice(wanted),
    ]
    schema = wanted.values.get("json")
    if isinstance(schema, str):
        ways.append(_schema(parse(schema.encode("utf-8", "surrogatepass"))))
    elif schema is not None:
        ways.append(_schema(wanted.inner("json")))
    found = [form for form in ways if form is not None]
    if len(found) > 1:
        raise RequestRefused(f"{wanted.path} names more than one form", param=wanted.path)
    return found[0] if found else None


def _schema(schema: Fields) -> AnswerForm:
    if not schema.values:
        name = schema.path or "json"
        raise RequestRefused(f"{name} is missing", param=name)
    return AnswerForm("json_schema", json.dumps(schema.values))


def _regex(holder: Fields, key: str) -> AnswerForm | None:
    return AnswerForm("regex", holder.text(key)) if holder.has(key) else None


def _grammar(holder: Fields, key: str) -> AnswerForm | None:
    # Clients send an empty one for none.
    text = holder.text(key, "")
    return AnswerForm("grammar", text) if text else None


def _choice(wanted: Fields) -> AnswerForm | None:
    """Return the form of one text of some."""
    if not wanted.has("choice"):
        return None
    texts = [
        "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in text)
        for text in wanted.texts("choice")
    ]
    if not all(texts) or not texts:
        raise wanted.refuse("choice", "an array of texts that are not empty")
    return AnswerForm("regex", "|".join(texts))


def _message(message: Fields) -> dict[str, Any]:
    """Return a message whose role and content are what they have to be."""
    role = message.text("role")
    if role not in _ROLES:
        raise message.refuse("role", f"one of {', '.join(_ROLES)}")
    content = message.values.get("content")
    if content is not None and not isinstance(content, str | list):
        raise message.refuse("content", "a text, or an array of parts")
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in message.objects("content"))
    elif content is None and role in ("system", "developer", "user"):
        raise message.refuse("content", "a text, or an array of parts")
    calls = [_call(call) for call in message.objects("tool_calls")]
    made = {**message.values, "role": "system" if role == "developer" else role, "content": content}
    made.pop("tool_calls", None)
    return made | ({"tool_calls": calls} if calls else {})


def _part(part: Fields) -> str:
    """Return the text of a part; parts of other kinds are not offered."""
    kind = part.text("type", "text")
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise RequestRefused(
            f"{part.name('type')} is {kind!r}: this model reads text alone", param=part.path
        )
    return part.text("refusal" if kind == "refusal" else "text")


def _call(call: Fields) -> dict[str, Any]:
    function = call.inner("function")
    return {
        **call.values, "type": "function",
        "function": {"name": function.text("name"), "arguments": arguments_of(function)},
    }


def arguments_of(function: Fields) -> str | Mapping[str, Any]:
    """Return the arguments of a call: a text, or, as some clients have it, an object.

    The text is JSON but where an answer ended within it.
    """
    arguments = function.values.get("arguments")
    if isinstance(arguments, dict):
        return arguments
    return "{}" if arguments is None else function.text("arguments")


def _tool(tool: Fields) -> dict[str, Any]:
    """Return a tool, which has to be a function."""
    if tool.text("type", "function") != "function":
        raise tool.refuse("type", "function")
    function = tool.inner("function")
    function.text("name")
    function.text("description", "")
    if function.has("parameters"):
        function.inner("parameters")
    return {"type": "function", "function": dict(function.values)}


def checked_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tools whose names tell them apart; raises RequestRefused for others."""
    names = [tool["function"]["name"] for tool in tools]
    if len(tools) > MOST_TOOLS:
        raise RequestRefused(f"tools holds more than {MOST_TOOLS}", param="tools")
    if len({*names, ""}) <= len(names):
        raise RequestRefused("each tool has to have a name of its own", param="tools")
    return tools


def wants_one_call(body: Fields) -> bool:
    """Whether an answer has one call at most: where that is said, or a function is named."""
    is_named = isinstance(body.values.get("tool_choice"), Mapping)
    return not body.flag("parallel_tool_calls", True) or is_named


def wanted_calls(body: Fields, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the tools of which `tool_choice` wants one called; none where it leaves that open."""
    choice = body.values.get("tool_choice")
    if choice in (None, "auto", "none"):
        return ()
    names = tuple(tool["function"]["name"] for tool in tools)
    if isinstance(choice, Mapping):
        wanted = body.inner("tool_choice")
        if wanted.text("type", "function") != "function":
            raise wanted.refuse("type", "function")
        function = wanted.inner("function") if wanted.has("function") else wanted
        name = function.text("name")
        if name not in names:
            raise function.refuse("name", "one of the tools")
        return (name,)
    if choice != "required" or not names:
        raise body.refuse("tool_choice", "auto, none, required (with tools), or one of the tools")
    return names

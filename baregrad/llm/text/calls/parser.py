"""The parser of answers that are still being written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baregrad.llm.text.calls.bodies import CallReader
from baregrad.llm.text.calls.formats import AnswerFormat
from baregrad.llm.text.calls.parts import AnswerPart, PartKind, PartWriter
from baregrad.llm.text.calls.reading import AnswerSource, MalformedCall, Reading

# What opens calls, by the format's name.
_OPENERS = (
    ("tags", "<tool_call>"),
    ("functions", "<tool_call>"),
    ("functions", "<function="),
    ("mistral", "[TOOL_CALLS]"),
    ("deepseek", "<｜tool▁calls▁begin｜>"),
    ("deepseek", "<｜tool▁call▁begin｜>"),
    ("bare", "<|python_tag|>"),
)


class AnswerParser:
    """Takes an answer apart as it comes.

    `tools` are those of the request, in the OpenAI API's form; without them nothing is a call.
    `in_thought` says that the prompt opened a thought (`AnswerFormat.begins_in_thought`).
    """

    def __init__(
        self, form: AnswerFormat, *, tools: Sequence[Mapping[str, Any]] = (),
        in_thought: bool = False,
    ) -> None:
        schemas = {}
        for tool in tools:
            function = tool.get("function", tool)
            schemas[str(function.get("name"))] = function.get("parameters")
        self._form = form
        self._source = AnswerSource()
        self._out = PartWriter(form.id_length)
        self._has_tools = bool(schemas)
        self._calls = CallReader(self._source, self._out, schemas, form.calls == "bare")
        run = self._harmony() if form.calls == "harmony" else self._run(in_thought)
        self._reading: Reading[None] | None = run

    def add(self, text: str) -> list[AnswerPart]:
        """Return what is certain now that some more text came."""
        self._source.text += text
        self._go_on()
        return self._out.take()

    def finish(self) -> list[AnswerPart]:
        """Return what is left, now that the answer has ended."""
        self._source.is_final = True
        self._go_on()
        self._out.end()
        return self._out.take()

    def _go_on(self) -> None:
        if self._reading is None:
            return
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None

    def _run(self, in_thought: bool) -> Reading[None]:
        """Read thoughts, texts and calls until the answer ends."""
        form, source = self._form, self._source
        if in_thought:
            yield from self._thought()
        openers = [word for name, word in _OPENERS if name == form.calls and self._has_tools]
        words = [form.opens] * bool(form.opens) + openers
        if self._has_tools and form.calls == "bare":
            yield from self._bare()
        while True:
            word = yield from source.until(words, self._out.text)
            if word is None:
                return
            if word == form.opens:
                yield from self._thought()
                continue
            if word == "<function=":
                source.unread(word)
                word = ""
            self._calls.begin(word)
            try:
                yield from self._call(word)
            except MalformedCall:
                # Calls that were told stay told; what was no call is text.
                self._calls.give_up()

    def _thought(self) -> Reading[None]:
        """Read a thought up to its end."""
        self._out.seam()
        yield from self._source.until(
            (self._form.closes,), lambda text: self._out.text(text, PartKind.THOUGHT)
        )
        self._out.seam()

    def _call(self, word: str) -> Reading[None]:
        """Read what stands behind an opener."""
        source, calls = self._source, self._calls
        if self._form.calls == "tags":
            yield from calls.json_objects()
            yield from source.skip()
            yield from source.starts("</tool_call>")
        elif self._form.calls == "functions":
            yield from calls.tagged()
            yield from source.skip()
            yield from source.starts("</tool_call>")
        elif self._form.calls == "mistral":
            yield from self._mistral()
        elif self._form.calls == "deepseek":
            yield from self._deepseek(word)
        else:
            yield from self._bare_calls()

    def _bare(self) -> Reading[None]:
        """Read an answer that may be a call in JSON, maybe in a fence, and text otherwise."""
        source = self._source
        self._calls.begin()
        try:
            yield from source.skip()
            if (yield from source.starts("```")):
                for label in ("json", "tool_code", "tool_call"):
                    if (yield from source.starts(label)):
                        break
                yield from self._bare_calls()
                yield from source.skip()
                yield from source.starts("```")
            elif (yield from source.peek(1)) == "{":
                yield from self._bare_calls()
            else:
                raise MalformedCall
        except MalformedCall:
            self._calls.give_up()

    def _bare_calls(self) -> Reading[None]:
        """Read calls in JSON, one behind another."""
        source = self._source
        while True:
            yield from self._calls.json_objects()
            yield from source.skip(" \t\r\n;")
            if (yield from source.peek(1)) != "{":
                return

    def _mistral(self) -> Reading[None]:
        """Read an array of calls, or `f[ARGS]{...}`."""
        source = self._source
        yield from source.skip()
        if (yield from source.peek(1)) == "[":
            yield from self._calls.json_objects()
            return
        name: list[str] = []
        id: list[str] = []
        word = yield from source.until(("[ARGS]", "[CALL_ID]", "{"), name.append)
        if word == "[CALL_ID]":
            word = yield from source.until(("[ARGS]", "{"), id.append)
        if word == "{":
            source.unread(word)
        yield from self._calls.named("".join(name), "".join(id).strip())

    def _deepseek(self, word: str) -> Reading[None]:
        """Read `f<sep>{...}`, or `function<sep>f` and the arguments in a fence."""
        source = self._source
        opener, separator = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
        end, all_ended = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
        if word != opener:
            yield from source.skip()
            yield from source.expect(opener)
        while True:
            name: list[str] = []
            if (yield from source.until((separator,), name.append)) is None:
                raise MalformedCall
            if "".join(name).strip() == "function" and "function" not in self._calls.tools:
                name.clear()
                yield from source.until(("\n", "```"), name.append)
                yield from source.skip(" \t\r\n`")
                yield from source.starts("json")
            yield from self._calls.named("".join(name))
            yield from source.skip(" \t\r\n`")
            yield from source.starts(end)
            yield from source.skip()
            if (yield from source.starts(all_ended)):
                return
            if not (yield from source.starts(opener)):
                return

    def _harmony(self) -> Reading[None]:
        """Read messages with channels: thoughts, calls, and the answer itself."""
        source, out = self._source, self._out
        while True:
            header: list[str] = []
            if (yield from source.until(("<|message|>",), header.append)) is None:
                # An answer without channels is text.
                out.raw("".join(header).replace("<|start|>", "").replace("<|channel|>", ""))
                return
            words = "".join(header)
            ends = ("<|end|>", "<|start|>", "<|call|>", "<|return|>")
            target = words.partition("to=functions.")[2]
            if target and self._has_tools:
                name = target.split("<")[0].split(" ")[0].strip()
                add = out.call(name)
                yield from source.until(ends, add)
                out.call_end()
            elif "analysis" in words:
                out.seam()
                yield from source.until(ends, lambda text: out.text(text, PartKind.THOUGHT))
                out.seam()
            else:
                yield from source.until(ends, out.text)

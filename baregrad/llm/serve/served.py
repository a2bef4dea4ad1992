"""The model that is served, and its answers to what is asked, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from baregrad.llm.generation.constraints import AnswerForm
from baregrad.llm.generation.request import AnswerPiece, AnswerRequest, ChosenToken, Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.serve.asked import AskedChat, AskedText
from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.text.calls import (
    AnswerFormat,
    AnswerParser,
    AnswerPart,
    PartKind,
    answer_format,
    call_grammar,
    grammar_behind_thought,
    told_of_tools,
)
from baregrad.llm.text.templates import ChatTemplate
from baregrad.llm.text.tokenizer import Tokenizer


class ServingEngine(Protocol):
    """What of an engine the server uses."""

    def submit(self, request: AnswerRequest) -> Stream:
        """Let a request wait for its turn."""

    def statistics(self) -> dict[str, int]:
        """Return counts."""

    @property
    def is_alive(self) -> bool:
        """Whether what is submitted is answered."""


class ServedModel(Protocol):
    """What of an opened model the server uses."""

    @property
    def name(self) -> str:
        """Its name in answers."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokeniser."""

    @property
    def template(self) -> ChatTemplate | None:
        """Its chat template, or None."""

    @property
    def engine(self) -> ServingEngine:
        """What answers."""

    def sampling(self, **chosen: Any) -> Sampling:
        """Return the model's own settings with what was chosen."""


@dataclass(frozen=True)
class AnswerNews:
    """Something new of one of the answers: parts of it, its tokens, or why it ended.

    `prompt` are tokens of the prompt with the log-probabilities that were asked for.
    """

    answer: int
    parts: Sequence[AnswerPart] = ()
    tokens: Sequence[ChosenToken] = ()
    reason: str | None = None
    stop: str | None = None
    prompt: Sequence[ChosenToken] = ()


class Answers:
    """The answers to one request, as they come; leaving them early cancels what goes on.

    With `calls_once`, an answer ends with its first call.
    """

    def __init__(
        self, streams: Sequence[Stream], parsers: Sequence[AnswerParser | None],
        calls_once: bool = False,
    ) -> None:
        self._streams = streams
        self._parsers = parsers
        self._calls_once = calls_once
        self._has_calls = [False] * len(streams)
        self._is_done = [False] * len(streams)

    @property
    def usage(self) -> tuple[int, int, int]:
        """Tokens of the prompt, those of it that were known, and of all answers."""
        first = self._streams[0].usage
        return first.prompt, first.cached, sum(stream.usage.answer for stream in self._streams)

    def cancel(self) -> None:
        """End all answers."""
        for stream in self._streams:
            stream.cancel()

    async def news(self) -> AsyncGenerator[AnswerNews]:
        """Yield what is new until all answers have ended; raises an engine's error."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[int, AnswerPiece]] = asyncio.Queue()
        for number, stream in enumerate(self._streams):
            stream.listen(partial(_hand_over, loop, pieces, number))
        try:
            while not all(self._is_done):
                number, piece = await pieces.get()
                if self._is_done[number]:
                    continue
                if piece.error is not None:
                    raise piece.error
                news = self._parsed(number, piece)
                self._is_done[number] = news.reason is not None
                yield news
        finally:
            self.cancel()

    def _parsed(self, number: int, piece: AnswerPiece) -> AnswerNews:
        """Return a piece, taken apart."""
        parser = self._parsers[number]
        if parser is None:
            parts = [AnswerPart(PartKind.TEXT, piece.text)] if piece.text else []
        else:
            parts = parser.add(piece.text)
            if piece.reason is not None:
                parts += parser.finish()
        self._has_calls[number] |= any(part.kind is PartKind.CALL for part in parts)
        reason = piece.reason
        if self._calls_once:
            end = next((at for at, p in enumerate(parts) if p.kind is PartKind.CALL_END), None)
            if end is not None:
                parts, reason = parts[: end + 1], "stop"
                self._streams[number].cancel()
        if reason == "stop" and self._has_calls[number]:
            reason = "tool_calls"
        return AnswerNews(number, parts, piece.tokens, reason, piece.stop, piece.prompt)


def _hand_over(
    loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[tuple[int, AnswerPiece]], number: int,
    piece: AnswerPiece,
) -> None:
    """Put a piece, from the engine's thread, where the event loop waits for it."""
    loop.call_soon_threadsafe(pieces.put_nowait, (number, piece))


class Served:
    """A model and how its answers are written."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        template = model.template
        self.form = AnswerFormat("") if template is None else answer_format(template.text)

    async def chat(self, asked: AskedChat) -> Answers:
        """Begin the answers to a chat; raises RequestRefused or what the engine refuses."""
        return await asyncio.to_thread(self._chat, asked)

    async def continue_text(self, asked: AskedText, answers: int) -> Answers:
        """Begin texts that continue a prompt."""
        return await asyncio.to_thread(self._continue, asked, answers)

    def prompt(self, asked: AskedChat) -> tuple[str, list[int]]:
        """Return the prompt of a chat, as text and as tokens."""
        template = self.model.template
        if template is None:
            raise RequestRefused(
                f"{self.model.name} has no chat template; it continues texts: /v1/completions"
            )
        values: dict[str, Any] = dict(asked.template)
        if asked.form is not None or asked.must_call:
            # A form holds from the first token on, behind a thought only where one cannot be left.
            values["enable_thinking"] = False
        for name in ("messages", "tools", "add_generation_prompt"):
            values.pop(name, None)
        messages, tools = asked.messages, asked.tools
        if self.form.is_told:
            messages, tools = told_of_tools(template.text, messages, tools), ()
        spans = template.render_spans(messages, tools=tools or None, **values)
        text = "".join(part for part, _ in spans)
        return text, self.model.tokenizer.encode_spans(spans)

    def _form_of(self, asked: AskedChat, in_thought: bool) -> AnswerForm | None:
        """Return the form that an answer has to have; raises RequestRefused for two at once."""
        marks = self.model.tokenizer
        if not asked.must_call:
            if asked.form is None or not in_thought:
                return asked.form
            grammar = grammar_behind_thought(self.form, asked.form.kind, asked.form.text, marks)
            if grammar is None:
                raise RequestRefused("this model thinks first, which no grammar has a place for")
            return AnswerForm("lark", grammar)
        if asked.form is not None:
            raise RequestRefused(
                "an answer cannot be a call and have a form", param="tool_choice"
            )
        grammar = call_grammar(self.form, asked.tools, asked.must_call, marks, in_thought)
        if grammar is None:
            raise RequestRefused(
                "no call can be enforced of this model; tool_choice may be auto or none",
                param="tool_choice",
            )
        return AnswerForm("lark", grammar)

    def _chat(self, asked: AskedChat) -> Answers:
        text, tokens = self.prompt(asked)
        in_thought = self.form.begins_in_thought(text)
        request = AnswerRequest(
            tokens, self.model.sampling(**asked.sampling), self._form_of(asked, in_thought),
            asked.client, self.form.shown, is_turn=asked.answers == 1,
        )
        parsers = [
            AnswerParser(self.form, tools=asked.tools, in_thought=in_thought)
            for _ in range(asked.answers)
        ]
        return Answers(self._submit(request, asked.answers), parsers, asked.calls_once)

    def _continue(self, asked: AskedText, answers: int) -> Answers:
        tokenizer = self.model.tokenizer
        tokens = asked.prompt
        if isinstance(tokens, str):
            # A whole prompt is the caller's own: it may spell out control tokens.
            tokens = tokenizer.encode(tokens, specials=True)
        request = AnswerRequest(
            tokens, self.model.sampling(**asked.sampling), asked.form, asked.client,
            scored_from=0 if asked.scores else None,
        )
        return Answers(self._submit(request, answers), [None] * answers)

    def _submit(self, request: AnswerRequest, answers: int) -> list[Stream]:
        """Submit a request so many times; none of them where one is refused."""
        if not self.model.engine.is_alive:
            # Trying again, as 429 would ask for, is of no use.
            raise RequestRefused("the engine has ended", status=503, kind="server_error")
        streams: list[Stream] = []
        seed = request.sampling.seed
        try:
            for number in range(answers):
                sampling = request.sampling
                if seed is not None and number:
                    # Behind the largest of seeds comes 0.
                    sampling = replace(sampling, seed=(seed + number) % (1 << 64))
                streams.append(self.model.engine.submit(replace(request, sampling=sampling)))
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise
        return streams


def token_text(model: ServedModel, token: int) -> tuple[str, list[int]]:
    """Return a token as text and as bytes."""
    data = model.tokenizer.token_bytes(token)
    return data.decode("utf-8", "replace"), list(data)


def logprob_rows(model: ServedModel, tokens: Sequence[ChosenToken]) -> list[Mapping[str, Any]]:
    """Return tokens with log-probabilities as OpenAI's chats tell them."""
    rows: list[Mapping[str, Any]] = []
    for chosen in tokens:
        if chosen.logprob is None or chosen.token in model.tokenizer.ends:
            # What ends an answer is no part of it.
            continue
        rows.append(_logprob(model, chosen.token, chosen.logprob) | {
            "top_logprobs": [_logprob(model, token, value) for token, value in chosen.best]
        })
    return rows


def _logprob(model: ServedModel, token: int, value: float) -> dict[str, Any]:
    text, data = token_text(model, token)
    return {"token": text, "logprob": max(value, -9999.0), "bytes": data}

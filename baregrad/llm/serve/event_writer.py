"""Answers written as events, in whatever protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from baregrad.llm.serve.served import AnswerNews, Answers, Served
from baregrad.llm.text.calls import AnswerPart

Events = Sequence[dict[str, Any]]


class EventWriter:
    """Writes one answer; its kinds say which events begin it, tell a part of it, and end it."""

    def __init__(self, served: Served, answers: Answers) -> None:
        self._served = served
        self._answers = answers

    def begin(self) -> Events:
        """Return the events before anything was answered."""
        raise NotImplementedError

    def part(self, part: AnswerPart) -> Events:
        """Return the events of a part."""
        raise NotImplementedError

    def end(self, news: AnswerNews) -> Events:
        """Return the events of news that have the reason why the answer ended."""
        raise NotImplementedError

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield the answer's events. Closing this early ends the answer at once."""
        for data in self.begin():
            yield data
        async with aclosing(self._answers.news()) as all_news:
            async for news in all_news:
                for part in news.parts:
                    for data in self.part(part):
                        yield data
                if news.reason is not None:
                    for data in self.end(news):
                        yield data

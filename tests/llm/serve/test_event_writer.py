"""Answers written as events end at once where nobody reads on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from baregrad.llm.serve.asked import AskedChat
from baregrad.llm.serve.event_writer import Events, EventWriter
from baregrad.llm.serve.served import AnswerNews, Served
from baregrad.llm.text.calls import AnswerPart
from tests.llm.serve.stand_in import ScriptedModel


class Letters(EventWriter):
    """Tells each part's text."""

    def begin(self) -> Events:
        return [{"type": "begin"}]

    def part(self, part: AnswerPart) -> Events:
        return [{"type": part.text}, {"type": "-"}]

    def end(self, news: AnswerNews) -> Events:
        return [{"type": f"end: {news.reason}"}]


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel("abcdef")
    yield made
    made.close()


async def told(model: ScriptedModel, most: int) -> list[str]:
    served = Served(model)
    answers = await served.chat(AskedChat([{"role": "user", "content": "hi"}]))
    events = Letters(served, answers).events()
    found: list[str] = []
    async for data in events:
        found.append(data["type"])
        if len(found) == most:
            break
    await events.aclose()
    return found


def test_all_of_an_answer(model: ScriptedModel) -> None:
    found = asyncio.run(told(model, 99))
    assert found == ["begin", "abc", "-", "def", "-", "end: stop"]


@pytest.mark.parametrize("most", [1, 2])
def test_closing_ends_the_answer(model: ScriptedModel, most: int) -> None:
    model.engine.holds = True
    assert asyncio.run(told(model, most)) == ["begin", "begun"][:most]
    # Before anything was heard of the answer, whoever asked ends it.
    assert model.engine.streams[0].is_cancelled == (most > 1)

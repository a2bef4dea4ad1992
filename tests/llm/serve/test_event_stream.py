"""What clients are told whose answers a server that stops no longer waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs starlette")

from baregrad.llm.serve import ServerSettings
from baregrad.llm.serve.answer_desk import AnswerDesk
from baregrad.llm.serve.event_stream import EventStream
from tests.llm.serve.stand_in import ScriptedModel


async def _for_ever(*_: Any) -> Any:
    await asyncio.Event().wait()


def test_a_stream_ends_with_an_event_that_says_so() -> None:
    sent: list[Any] = []
    cancelled: list[bool] = []

    async def events() -> AsyncGenerator[bytes]:
        yield b"one"
        await _for_ever()

    async def send(message: Any) -> None:
        sent.append(message)

    async def stopped() -> None:
        stream = EventStream(events(), lambda: cancelled.append(True), b"stopped")
        task = asyncio.ensure_future(stream({}, _for_ever, send))
        while len(sent) < 2:
            await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(stopped())
    assert [message.get("body") for message in sent[1:]] == [b"one", b"stopped"]
    assert not sent[-1]["more_body"]
    assert cancelled == [True]


def test_an_answer_that_is_awaited_is_refused() -> None:
    endpoint = AnswerDesk(ScriptedModel(), ServerSettings()).endpoint(_for_ever, "/health")

    async def stopped() -> Any:
        task = asyncio.ensure_future(endpoint(None))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    answer = asyncio.run(stopped())
    assert answer.status_code == 503
    assert b"stopping" in answer.body

"""Streams of events to a client that may leave at any time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# A line now and then keeps what lies between from closing a quiet connection.
_PING_SECONDS = 15.0
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def event(data: Mapping[str, Any] | str, name: str = "") -> bytes:
    """Return one event; a name goes before its data."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


class EventStream:
    """An answer in events, as an ASGI application.

    `cancel` is called at the end, however it comes: where the client left, what was begun for it
    has to end. `stopped` is the last event where the server stops and can no longer wait.
    """

    def __init__(
        self, events: AsyncGenerator[bytes], cancel: Callable[[], None], stopped: bytes
    ) -> None:
        self._events = events
        self._cancel = cancel
        self._stopped = stopped

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Send all events, and a ping where nothing comes for long."""
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        left = asyncio.ensure_future(disconnected(receive))
        following: asyncio.Future[bytes] | None = None
        try:
            while True:
                if following is None:
                    following = asyncio.ensure_future(anext(self._events, b""))
                waiting: set[asyncio.Future[Any]] = {following, left}
                await asyncio.wait(
                    waiting, timeout=_PING_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if left.done():
                    return
                data = b": ping\n\n"
                if following.done():
                    data, following = following.result(), None
                    if not data:
                        break
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            # Nobody but a server that stops cancels this, and it has the moment that sending takes.
            with contextlib.suppress(OSError):
                await send(
                    {"type": "http.response.body", "body": self._stopped, "more_body": False}
                )
        except OSError:
            # The connection broke while something was sent.
            return
        finally:
            self._cancel()
            # A loop that ends cancels all once more, and waits for nothing here.
            with contextlib.suppress(asyncio.CancelledError):
                for task in (left, following):
                    if task is not None and not task.done():
                        task.cancel()
                        await asyncio.wait({task})
                await self._events.aclose()


async def disconnected(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass

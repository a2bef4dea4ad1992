"""Messages between a program and its workers."""

from __future__ import annotations

import io

import pytest

from baregrad.base.errors import FileFormatError
from baregrad.engine.workers.wire import receive, send


def test_messages_come_back_as_they_were_sent() -> None:
    stream = io.BytesIO()
    send(stream, {"ask": "x", "n": [1, 2]}, [b"", b"\x00\xff" * 1000])
    stream.seek(0)
    assert receive(stream) == ({"ask": "x", "n": [1, 2]}, [b"", b"\x00\xff" * 1000])
    assert receive(stream) is None


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"blobs": [-1]}', b'{"blobs": 3}', b"no"])
def test_nonsense_is_no_message(text: bytes) -> None:
    with pytest.raises(FileFormatError):
        receive(io.BytesIO(b"x" * 64))
    with pytest.raises(FileFormatError):
        receive(io.BytesIO(len(text).to_bytes(8, "little") + text))

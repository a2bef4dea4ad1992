"""Messages between a program and the processes that search for it: a header in JSON, and bytes.

A message is 8 bytes of length, the header's text with the sizes of its blobs, and the blobs. What
a worker sends is read as data alone, so that a worker gone wild can do no more than be disbelieved.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, BinaryIO

from baregrad.base.errors import FileFormatError
from baregrad.target import AnyTarget, CpuTarget, gpu_row

_LENGTH = struct.Struct("<Q")
_SIZES = "blobs"
# No program or text is larger; a length beyond this is no length.
MOST_NBYTES = 1 << 30

Message = tuple[dict[str, Any], list[bytes]]


def packed(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """A message's bytes."""
    text = json.dumps({**header, _SIZES: [len(blob) for blob in blobs]}).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *blobs))


def send(stream: BinaryIO, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write a message."""
    stream.write(packed(header, blobs))
    stream.flush()


def receive(stream: BinaryIO) -> Message | None:
    """Read a message; None at the end of the stream."""

    def read(count: int) -> bytes:
        data = stream.read(count)
        if len(data) < count:
            raise EOFError
        return data

    try:
        return unpacked(read)
    except EOFError:
        return None


def unpacked(read: Callable[[int], bytes]) -> Message:
    """A message read by `read(count)`. Raises FileFormatError for what is none."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    if length > MOST_NBYTES:
        raise FileFormatError("a message of impossible length", found=length)
    try:
        header = json.loads(read(length))
        sizes = header.pop(_SIZES)
        if not all(type(size) is int and 0 <= size <= MOST_NBYTES for size in sizes):
            raise ValueError("sizes")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError("a message that is none", found=str(error)) from error
    return header, [read(size) for size in sizes]


def target_fields(target: AnyTarget) -> dict[str, Any]:
    """A target's row as plain values."""
    if target.kind == "cpu":
        return {one.name: getattr(target, one.name) for one in fields(target)}
    return {"name": target.name, "gpu": True}


def target_of(found: dict[str, Any]) -> AnyTarget:
    """The row that `target_fields` gave."""
    if found.get("gpu"):
        return gpu_row(found["name"])
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    return CpuTarget(**values)

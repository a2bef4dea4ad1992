"""Checkpoints made by hand for tests, down to the opcode."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def number(value: int) -> bytes:
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(number(value) for value in values) + b"t"


def storage(key: str = "0", count: int = 4, kind: bytes = name("torch", "FloatStorage")) -> bytes:
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(
    stored: bytes, offset: int = 0, shape: tuple[int, ...] = (4,), strides: tuple[int, ...] = (1,)
) -> bytes:
    hooks = name("collections", "OrderedDict") + b")R"
    call = name("torch._utils", "_rebuild_tensor_v2")
    arguments = stored + number(offset) + numbers(*shape) + numbers(*strides) + b"\x89" + hooks
    return call + b"(" + arguments + b"tR"


def program(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def archive(
    program_bytes: bytes,
    storages: Mapping[str, bytes] | None = None,
    *,
    extra: Mapping[str, bytes] | None = None,
    method: int = zipfile.ZIP_STORED,
) -> bytes:
    members = {"archive/data.pkl": program_bytes, "archive/byteorder": b"little"}
    for key, data in ({"0": bytes(range(16))} if storages is None else storages).items():
        members[f"archive/data/{key}"] = data
    members.update(extra or {})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for member, data in members.items():
            file.writestr(member, data)
    return buffer.getvalue()


def reducing(function: Callable[..., object], *arguments: object) -> bytes:
    """Pickle an object that makes Python's own unpickler call `function`."""

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return function, arguments

    return pickle.dumps(Trap(), protocol=2)

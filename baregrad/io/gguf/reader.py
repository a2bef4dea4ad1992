"""GGUF files, mapped and checked whole on opening; a split one is opened by its first part."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ArgumentError, FileFormatError, IndexOutOfRange
from baregrad.io.excerpt import excerpt
from baregrad.io.files import map_file
from baregrad.io.gguf.header import GgufHeader, read_header
from baregrad.io.gguf.types import GgmlType
from baregrad.io.gguf.values import TypedValue, Value

SPLIT_NUMBER = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
MAX_PARTS = 99_999
_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of a file: `offset` and `nbytes` count bytes, from the start of its file.

    `shape` is row-major, as PyTorch says it.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    nbytes: int
    _data: memoryview = field(repr=False, compare=False)

    def raw(self) -> npt.NDArray[np.uint8]:
        """Return the bytes (rows, bytes of a row), read-only and not copied."""
        part = self._data[self.offset : self.offset + self.nbytes]
        width = self.type.row_nbytes(self.shape[-1] if self.shape else 1)
        return np.frombuffer(part, np.uint8).reshape(-1, width)


class GgufFile:
    """A GGUF model, mapped read-only: `metadata` by key, `tensors` by name.

    Integers, floats, bools and strings are Python's, arrays are lists of one of them. Views handed
    out by `raw` stay valid after `close`; the mapping ends with the last of them.
    """

    def __init__(self, path: str, headers: list[tuple[GgufHeader, memoryview]]) -> None:
        self.path = path
        self.version = headers[0][0].version
        self.values: Mapping[str, TypedValue] = headers[0][0].values
        self.metadata: Mapping[str, Value] = MappingProxyType(
            {key: entry.value for key, entry in self.values.items()}
        )
        self._tensors: Mapping[str, GgufTensor] | None = MappingProxyType({
            entry.name: GgufTensor(
                entry.name, entry.shape, entry.type, entry.offset, entry.nbytes, data
            )
            for header, data in headers
            for entry in header.entries.values()
        })  # fmt: skip

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Open a file, and the other parts of a split model when it is the first of them.

        Raises FileFormatError for a broken or hostile file and for parts that are missing or do not
        belong together, UnsupportedError for a version or an element type that is not read here,
        and OSError for a file that cannot be opened.
        """
        name = os.fspath(path)
        data = map_file(path)
        header = read_header(name, data)
        headers = [(header, data)]
        count = _number(name, header, SPLIT_COUNT, 1, MAX_PARTS)
        if count > 1:
            headers += _other_parts(name, header, count)
            _check_parts(name, [part for part, _ in headers])
        return cls(name, headers)

    @property
    def tensors(self) -> Mapping[str, GgufTensor]:
        """The tensors by name, in the order of the file. Raises ArgumentError on a closed file."""
        if self._tensors is None:
            raise ArgumentError(f"{self.path!r} is closed; open it with GgufFile.open(path)")
        return self._tensors

    def tensor(self, name: str) -> GgufTensor:
        """Return the tensor of this name. Raises IndexOutOfRange where there is none."""
        found = self.tensors.get(name)
        if found is None:
            raise IndexOutOfRange(f"no tensor of this name in {self.path!r}", found=excerpt(name))
        return found

    def close(self) -> None:
        """Let go of the mapping; views that `raw` handed out keep it alive for themselves."""
        self._tensors = None

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _number(path: str, header: GgufHeader, key: str, default: int, limit: int) -> int:
    entry = header.values.get(key)
    if entry is None:
        return default
    found = entry.value
    if type(found) is not int or not 0 <= found <= limit:
        raise FileFormatError(
            f"{path!r}: {key} is wrong", found=excerpt(found), wanted=f"a number up to {limit}"
        )
    return found


def _other_parts(path: str, first: GgufHeader, count: int) -> list[tuple[GgufHeader, memoryview]]:
    """Open the parts after the first, whose names follow from its own."""
    match = _PART_NAME.fullmatch(Path(path).name)
    number = _number(path, first, SPLIT_NUMBER, 0, MAX_PARTS)
    wanted = f"NAME-00001-of-{count:05d}.gguf"
    if match is None or int(match["count"]) != count:
        raise FileFormatError(
            f"{path!r} is one part of a split model, whose others are found by its name",
            found=excerpt(Path(path).name), wanted=wanted,
            hint="name all parts as they were named when the model was split",
        )  # fmt: skip
    if number != 0 or int(match["number"]) != 1:
        raise FileFormatError(
            f"{path!r} is not the first part of its split model",
            found=f"part {number + 1}, named {match['number']}", wanted=f"{wanted}",
            hint="open the first part",
        )  # fmt: skip
    parts = []
    for index in range(1, count):
        name = f"{match['stem']}-{index + 1:05d}-of-{count:05d}.gguf"
        place = Path(path).with_name(name)
        if not place.exists():
            raise FileFormatError(
                f"{path!r}: part {index + 1} of {count} is missing",
                found="no such file", wanted=str(place), hint="fetch all parts into one folder",
            )  # fmt: skip
        data = map_file(place)
        header = read_header(str(place), data)
        if _number(str(place), header, SPLIT_NUMBER, -1, MAX_PARTS) != index:
            raise FileFormatError(
                f"{str(place)!r} is not the part that its name says",
                found=f"{SPLIT_NUMBER} {_number(str(place), header, SPLIT_NUMBER, -1, MAX_PARTS)}",
                wanted=index,
            )
        parts.append((header, data))
    return parts


def _check_parts(path: str, headers: list[GgufHeader]) -> None:
    """Check that parts agree on their number and hold each tensor once."""
    names: set[str] = set()
    for index, header in enumerate(headers):
        count = _number(path, header, SPLIT_COUNT, -1, MAX_PARTS)
        if count != len(headers):
            raise FileFormatError(
                f"{path!r}: part {index + 1} is of another split",
                found=f"{SPLIT_COUNT} {count}", wanted=len(headers),
            )  # fmt: skip
        twice = names & header.entries.keys()
        if twice:
            raise FileFormatError(
                f"{path!r}: two parts hold tensors of one name", found=excerpt(min(twice))
            )
        names |= header.entries.keys()
    wanted = _number(path, headers[0], SPLIT_TENSORS, len(names), 1 << 31)
    if wanted != len(names):
        raise FileFormatError(
            f"{path!r}: the parts hold another number of tensors than they say",
            found=len(names), wanted=wanted, hint="fetch all parts again",
        )  # fmt: skip

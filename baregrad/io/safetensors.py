"""The safetensors format: tensors by name in one file, read by mapping it.

A file is an unsigned 64-bit little-endian length N, N bytes of UTF-8 JSON, then the data. The JSON
maps each name to its dtype, shape and pair of byte offsets into the data; `__metadata__` maps text
to text. The offsets cover the data exactly: no gap, no overlap. Source: the format description in
the README of github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import NoReturn, TypeAlias

import numpy as np

from baregrad.base.errors import (
    ArgumentError,
    DTypeError,
    FileFormatError,
    IndexOutOfRange,
    ShapeError,
)
from baregrad.io.element_types import BY_NAME, BY_SAFETENSORS
from baregrad.io.excerpt import excerpt
from baregrad.io.files import map_file, write_atomically

BytesLike: TypeAlias = "bytes | bytearray | memoryview | np.ndarray[tuple[int, ...], np.dtype]"

# The format's own bound on the length of the JSON text.
MAX_HEADER_NBYTES = 100_000_000
# Data starts at a multiple of this many bytes in files that we write: one cache line.
DATA_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
# The deepest legal JSON is the list of a shape, inside an entry, inside the header.
_MAX_JSON_DEPTH = 3
# The closing quote is optional so that a text of unclosed strings is still read only once.
_JSON_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_MAX_EXTENT = 1 << 63
_DAMAGED = "the file is damaged or not a safetensors file: fetch or save it again"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `offset` and `nbytes` count bytes from the start of the file.

    `dtype` is our name of the element type (`float32`, `bfloat16`, `float8_e4m3fn`, ...).
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says about itself: tensors in the header's order, and free text."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]


class SafetensorsFile:
    """A safetensors file, mapped into memory and checked whole on opening.

    Views handed out by `raw` stay valid after `close`; the mapping ends with the last of them.
    Raises FileFormatError for a broken or hostile file, OSError for one that cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        view = map_file(path)
        self._header = _Parser(self.path, view).header()
        self._view: memoryview | None = view

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's free text by key."""
        return self._header.metadata

    def keys(self) -> tuple[str, ...]:
        """Return the names of the tensors, in the header's order."""
        return tuple(self._header.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.entries)

    def __len__(self) -> int:
        return len(self._header.entries)

    def __contains__(self, name: object) -> bool:
        return name in self._header.entries

    def entry(self, name: str) -> TensorEntry:
        """Return the dtype, shape and place of tensor `name`.

        Raises IndexOutOfRange for a name that the file does not hold.
        """
        entry = self._header.entries.get(name)
        if entry is None:
            raise IndexOutOfRange(
                f"no tensor of this name in {self.path!r}",
                found=repr(name),
                wanted=f"one of {_some(self.keys())}",
                hint="keys() lists them all",
            )
        return entry

    def raw(self, name: str) -> memoryview:
        """Return the bytes of tensor `name`, read-only, without copying them.

        Elements are in row-major order, little-endian. Raises IndexOutOfRange for an unknown name
        and ArgumentError on a closed file.
        """
        entry = self.entry(name)
        if self._view is None:
            raise ArgumentError(f"{self.path!r} is closed; open it with SafetensorsFile(path)")
        return self._view[entry.offset : entry.offset + entry.nbytes]

    def close(self) -> None:
        """Let go of the mapping; views that `raw` handed out keep it alive for themselves."""
        self._view = None

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Parser:
    """Checks one file from its first byte on; each method checks one thing and names it."""

    def __init__(self, path: str, view: memoryview) -> None:
        self.path = path
        self.view = view

    def error(
        self, message: str, *, found: object, wanted: object, hint: str = _DAMAGED
    ) -> FileFormatError:
        return FileFormatError(f"{self.path!r}: {message}", found=found, wanted=wanted, hint=hint)

    def header(self) -> Header:
        start, table = self.table()
        metadata = self.metadata(table.pop(_METADATA, None))
        size = len(self.view) - start
        entries = {name: self.entry(name, value, start) for name, value in table.items()}
        self.check_cover(entries, start, size)
        return Header(MappingProxyType(entries), MappingProxyType(metadata))

    def table(self) -> tuple[int, dict[str, object]]:
        """Return where the data starts and the parsed JSON."""
        size = len(self.view)
        if size < _LENGTH.size:
            raise self.error(
                "too short", found=f"{size} bytes", wanted="8 bytes of header length or more"
            )
        (length,) = _LENGTH.unpack(self.view[: _LENGTH.size])
        bound = min(size - _LENGTH.size, MAX_HEADER_NBYTES)
        if length > bound:
            raise self.error(
                "header too long",
                found=f"a header of {length} bytes in a file of {size}",
                wanted=f"at most {bound}",
            )
        start = _LENGTH.size + int(length)
        value = self.parse(bytes(self.view[_LENGTH.size : start]))
        if not isinstance(value, dict):
            raise self.error("header is not a table", found=excerpt(value), wanted="a JSON object")
        return start, value

    def parse(self, text: bytes) -> object:
        if text[:1] != b"{":
            raise self.error(
                "header is not JSON", found=excerpt(text[:16]), wanted="'{' as its first byte"
            )
        self.check_depth(text)
        try:
            return json.loads(
                text.decode("utf-8"),
                object_pairs_hook=self.unique,
                parse_constant=self.no_constant,
            )
        except FileFormatError:
            raise
        except UnicodeDecodeError as error:
            raise self.error(
                "header is not UTF-8", found=str(error), wanted="UTF-8 text"
            ) from error
        except ValueError as error:
            raise self.error(
                "header is not JSON", found=str(error), wanted="a JSON object"
            ) from error

    def check_depth(self, text: bytes) -> None:
        """Refuse nesting before the parser, which recurses, sees it."""
        depth = 0
        for match in _JSON_STRUCTURE.finditer(text):
            first = match.group()[:1]
            if first in b"{[":
                depth += 1
            elif first in b"}]":
                depth -= 1
            if depth > _MAX_JSON_DEPTH:
                raise self.error(
                    "header too deep",
                    found=f"nesting of {depth} levels at byte {match.start()} of the header",
                    wanted=f"at most {_MAX_JSON_DEPTH}",
                )

    def unique(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise self.error(
                        "header repeats a key", found=excerpt(key), wanted="each key once"
                    )
                seen.add(key)
        return table

    def no_constant(self, name: str) -> NoReturn:
        raise self.error("header is not JSON", found=name, wanted="finite numbers")

    def metadata(self, value: object) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error("metadata is not a table", found=excerpt(value), wanted="text by key")
        result: dict[str, str] = {}
        for key, text in value.items():
            if not isinstance(text, str):
                raise self.error(f"metadata {excerpt(key)}", found=excerpt(text), wanted="text")
            result[self.text(key)] = self.text(text)
        return result

    def text(self, value: str) -> str:
        """Return `value`; JSON can spell halves of surrogate pairs, which are no characters."""
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.error(
                "header is not UTF-8", found=str(error), wanted="whole characters"
            ) from error
        return value

    def entry(self, name: str, value: object, start: int) -> TensorEntry:
        what = f"tensor {excerpt(self.text(name))}"
        if not isinstance(value, dict):
            raise self.error(
                what, found=excerpt(value), wanted="a table of dtype, shape, data_offsets"
            )
        missing = [key for key in ("dtype", "shape", "data_offsets") if key not in value]
        if missing:
            raise self.error(what, found=f"no {' and no '.join(missing)}", wanted="all of them")
        code = value["dtype"]
        element = BY_SAFETENSORS.get(code) if isinstance(code, str) else None
        if element is None:
            raise self.error(
                f"{what} has an unknown dtype",
                found=excerpt(code),
                wanted=f"one of {', '.join(BY_SAFETENSORS)}",
                hint="save it with a dtype of this list",
            )
        shape = self.naturals(f"{what}, shape", value["shape"])
        begin, end = self.offsets(what, value["data_offsets"])
        nbits = self.extent(what, shape, element.bits)
        if nbits != (end - begin) * 8:
            raise self.error(
                f"{what} has a size that its shape contradicts",
                found=f"{end - begin} bytes",
                wanted=f"{nbits / 8:g} for {excerpt(shape)} of {code}",
            )
        return TensorEntry(element.name, shape, start + begin, end - begin)

    def naturals(self, what: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise self.error(what, found=excerpt(value), wanted="a list of integers")
        for item in value:
            # JSON's true is an int to Python.
            if type(item) is not int or not 0 <= item < _MAX_EXTENT:
                raise self.error(what, found=excerpt(item), wanted="integers from 0 to 2**63 - 1")
        return tuple(value)

    def offsets(self, what: str, value: object) -> tuple[int, int]:
        pair = self.naturals(f"{what}, data_offsets", value)
        if len(pair) != 2 or pair[0] > pair[1]:
            raise self.error(f"{what}, data_offsets", found=excerpt(value), wanted="[begin, end]")
        return pair[0], pair[1]

    def extent(self, what: str, shape: tuple[int, ...], bits: int) -> int:
        """Return the bits that `shape` takes; sizes around a 0 must be sane all the same."""
        nbits = bits
        for size in shape:
            nbits *= max(size, 1)
            if nbits >= _MAX_EXTENT * 8:
                raise self.error(
                    f"{what} is too large", found=excerpt(shape), wanted="below 2**63 bytes"
                )
        return 0 if 0 in shape else nbits

    def check_cover(self, entries: Mapping[str, TensorEntry], start: int, size: int) -> None:
        """Check that the tensors lie end to end and fill the data."""
        place = 0
        previous = "the start of the data"
        ordered = sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes))
        for name, entry in ordered:
            begin = entry.offset - start
            if begin != place:
                kind = "overlaps" if begin < place else "leaves a gap after"
                raise self.error(
                    f"tensor {excerpt(name)} {kind} {previous}",
                    found=f"data_offsets from {begin}",
                    wanted=f"from {place}",
                )
            place = begin + entry.nbytes
            previous = f"tensor {excerpt(name)}"
        if place != size:
            kind = "cut short" if place > size else "followed by bytes of no tensor"
            raise self.error(
                f"the data is {kind}", found=f"{size} bytes of data", wanted=f"{place} bytes"
            )


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, tuple[str, Sequence[int], BytesLike]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write `{name: (dtype, shape, data)}` to `path`, whole or not at all.

    `dtype` is our name of an element type, `data` its row-major little-endian bytes (a contiguous
    NumPy array is taken as its bytes). Data starts at a multiple of 64 bytes and wider elements
    come first, so every tensor is aligned to its element. The file appears by renaming a
    temporary one beside it, so readers meet the old file or the new one. Raises DTypeError,
    ShapeError or FileFormatError for what the format cannot hold, OSError from the file system.
    """
    ordered = sorted(tensors.items(), key=lambda item: -_element_bits(item[0], item[1][0]))
    table: dict[str, object] = {}
    if metadata:
        table[_METADATA] = _checked_metadata(metadata)
    chunks: list[memoryview] = []
    place = 0
    for name, (dtype, shape, data) in ordered:
        chunk = _as_bytes(name, data)
        _check_size(name, dtype, shape, chunk.nbytes)
        table[_checked_text(name)] = {
            "dtype": BY_NAME[dtype].safetensors,
            "shape": [int(size) for size in shape],
            "data_offsets": [place, place + chunk.nbytes],
        }
        chunks.append(chunk)
        place += chunk.nbytes
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(_LENGTH.size + len(text)) % DATA_ALIGNMENT)
    if len(text) > MAX_HEADER_NBYTES:
        raise FileFormatError(
            "too many tensors or too much metadata for one safetensors file",
            found=f"a header of {len(text)} bytes",
            wanted=f"at most {MAX_HEADER_NBYTES}",
            hint="split the tensors over several files",
        )
    write_atomically(path, [memoryview(_LENGTH.pack(len(text))), memoryview(text), *chunks])


def _element_bits(name: str, dtype: str) -> int:
    element = BY_NAME.get(dtype)
    if element is None or element.safetensors is None:
        raise DTypeError(
            f"safetensors cannot hold tensor {excerpt(name)}",
            found=repr(dtype),
            wanted=f"one of {', '.join(t.name for t in BY_SAFETENSORS.values())}",
            hint="cast it first",
        )
    return element.bits


def _as_bytes(name: str, data: BytesLike) -> memoryview:
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ShapeError(
                f"tensor {excerpt(name)} is not contiguous",
                found=f"strides {data.strides} for shape {data.shape}",
                wanted="row-major order",
                hint="pass numpy.ascontiguousarray(array)",
            )
        # By way of bytes: element types from ml_dtypes do not offer the buffer protocol.
        return data.reshape(-1).view(np.uint8).data
    view = memoryview(data)
    if not view.c_contiguous:
        raise ShapeError(
            f"tensor {excerpt(name)}", found="a strided view", wanted="contiguous bytes"
        )
    return view.cast("B") if view.nbytes else memoryview(b"")


def _check_size(name: str, dtype: str, shape: Sequence[int], nbytes: int) -> None:
    count = 1
    for size in shape:
        if size < 0:
            raise ShapeError(f"tensor {excerpt(name)}", found=f"size {size}", wanted="0 or more")
        count *= int(size)
    nbits = count * BY_NAME[dtype].bits
    if nbits != nbytes * 8:
        raise ShapeError(
            f"tensor {excerpt(name)} has data that its shape contradicts",
            found=f"{nbytes} bytes",
            wanted=f"{nbits / 8:g} for {list(shape)} of {dtype}",
        )


def _checked_text(text: object) -> str:
    if not isinstance(text, str) or text == _METADATA:
        raise FileFormatError("safetensors cannot hold this name", found=repr(text), wanted="text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FileFormatError("safetensors cannot hold this text", found=str(error)) from error
    return text


def _checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {_checked_text(key): _checked_text(text) for key, text in metadata.items()}


def _some(names: Sequence[str], limit: int = 4) -> str:
    shown = ", ".join(excerpt(name) for name in names[:limit])
    more = len(names) - limit
    return f"{shown} and {more} more" if more > 0 else shown or "none: the file is empty"

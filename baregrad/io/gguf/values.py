"""Metadata of GGUF files: what kinds of values there are, and how they are read and written.

Source: `enum gguf_type` and the description of the format in ggml/include/gguf.h of
github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.io.excerpt import excerpt

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | list[bool] | list[int] | list[float] | list[str]

# Far above what models hold, far below what would fill a machine's memory.
MAX_STRING_NBYTES = 1 << 26
MAX_KEY_NBYTES = (1 << 16) - 1
MAX_ARRAY_LENGTH = 1 << 24
# Texts cost tens of bytes each beside their characters.
MAX_TEXTS = 1 << 22
_DAMAGED = "the file is damaged or not a GGUF file: fetch or convert it again"


class Kind(IntEnum):
    """The kinds of values, by their numbers in files."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_NUMPY: Mapping[Kind, np.dtype] = MappingProxyType({
    Kind.UINT8: np.dtype("u1"), Kind.INT8: np.dtype("i1"),
    Kind.UINT16: np.dtype("<u2"), Kind.INT16: np.dtype("<i2"),
    Kind.UINT32: np.dtype("<u4"), Kind.INT32: np.dtype("<i4"),
    Kind.UINT64: np.dtype("<u8"), Kind.INT64: np.dtype("<i8"),
    Kind.FLOAT32: np.dtype("<f4"), Kind.FLOAT64: np.dtype("<f8"),
    Kind.BOOL: np.dtype("u1"),
})  # fmt: skip
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value and its kind in files; `element` is the kind of an array's elements."""

    value: Value
    kind: Kind
    element: Kind | None = None


class Cursor:
    """A place in the bytes of one file that moves on with what is read, and never past the end."""

    def __init__(self, path: str, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.place = 0
        self._texts = 0

    def error(
        self, message: str, *, found: object, wanted: object = None, hint: str = _DAMAGED
    ) -> FileFormatError:
        """Return the error to raise about this file."""
        return FileFormatError(f"{self.path!r}: {message}", found=found, wanted=wanted, hint=hint)

    def take(self, nbytes: int, what: str) -> memoryview:
        """Return the next bytes. Raises FileFormatError where the file ends before."""
        rest = len(self.data) - self.place
        if nbytes > rest:
            raise self.error(
                f"the file ends within {what}",
                found=f"{rest} bytes from byte {self.place} on",
                wanted=f"{nbytes}",
            )
        self.place += nbytes
        return self.data[self.place - nbytes : self.place]

    def number(self, kind: Kind, what: str) -> int | float | bool:
        """Return the next number or bool."""
        dtype = _NUMPY[kind]
        found: int | float = np.frombuffer(self.take(dtype.itemsize, what), dtype)[0].item()
        if kind is not Kind.BOOL:
            return found
        if found not in (0, 1):
            raise self.error(f"{what} is no bool", found=found, wanted="0 or 1")
        return bool(found)

    def count(self, what: str, limit: int, kind: Kind = Kind.UINT64) -> int:
        """Return the next natural number. Raises FileFormatError for one over `limit`."""
        found = int(self.number(kind, what))
        if not 0 <= found <= limit:
            raise self.error(f"{what} is out of range", found=found, wanted=f"0 to {limit}")
        return found

    def text(self, what: str, limit: int = MAX_STRING_NBYTES) -> str:
        """Return the next string, of `limit` bytes at most."""
        raw = self.take(self.count(f"the length of {what}", limit), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8", found=str(error)) from error

    def kind(self, what: str) -> Kind:
        """Return the next number of a kind."""
        found = int(self.number(Kind.UINT32, what))
        if found >= len(Kind):
            raise self.error(
                f"{what} is of an unknown kind", found=found, wanted=f"0 to {len(Kind) - 1}"
            )
        return Kind(found)

    def value(self, what: str) -> TypedValue:
        """Return the next value with its kind."""
        kind = self.kind(what)
        if kind is Kind.STRING:
            return TypedValue(self.text(what), kind)
        if kind is not Kind.ARRAY:
            return TypedValue(self.number(kind, what), kind)
        element = self.kind(f"the elements of {what}")
        if element is Kind.ARRAY:
            raise self.error(f"{what} is an array of arrays", found="nesting", wanted="one level")
        length = self.count(f"the length of {what}", MAX_ARRAY_LENGTH)
        if element is Kind.STRING:
            return TypedValue(self.texts(length, what), kind, element)
        dtype = _NUMPY[element]
        numbers = np.frombuffer(self.take(length * dtype.itemsize, what), dtype)
        if element is not Kind.BOOL:
            return TypedValue(numbers.tolist(), kind, element)
        if (numbers > 1).any():
            raise self.error(f"{what} is no array of bools", found=numbers.max(), wanted="0 and 1")
        return TypedValue(numbers.astype(bool).tolist(), kind, element)

    def texts(self, length: int, what: str) -> list[str]:
        """Return the next strings; bytes that are not UTF-8 come as lone surrogates (PEP 383)."""
        self._texts += length
        if self._texts > MAX_TEXTS:
            raise self.error(
                f"{what} is too long", found=f"{self._texts} strings", wanted=f"at most {MAX_TEXTS}"
            )
        data, place, end = self.data, self.place, len(self.data)
        found = []
        # Vocabularies are long: this loop is most of the time that opening a file takes.
        for _ in range(length):
            start = place + 8
            if start > end:
                break
            place = start + _LENGTH.unpack_from(data, place)[0]
            if place > end:
                break
            found.append(str(data[start:place], "utf-8", "surrogateescape"))
        else:
            self.place = place
            return found
        raise self.error(
            f"the file ends within {what}",
            found=f"{len(found)} strings",
            wanted=f"{length}",
        )


def typed(key: str, value: Value | TypedValue) -> TypedValue:
    """Return a value with the kind that it is written as: text, bool, float32, uint32 or int32.

    Integers out of 32 bits get 64. Arrays have the one kind that fits all elements. Raises
    ArgumentError for what no kind holds.
    """
    if isinstance(value, TypedValue):
        return value
    if not isinstance(value, list):
        return TypedValue(value, _kind(key, [value]))
    return TypedValue(value, Kind.ARRAY, _kind(key, value) if value else Kind.INT32)


def _kind(key: str, values: Sequence[Any]) -> Kind:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return Kind.BOOL
    if kinds == {str}:
        return Kind.STRING
    if kinds in ({float}, {float, int}):
        return Kind.FLOAT32
    if kinds != {int}:
        raise ArgumentError(
            f"the metadata {excerpt(key)} cannot be written",
            found=", ".join(sorted(kind.__name__ for kind in kinds)),
            wanted="numbers, bools, strings, or a list of one of them",
        )
    least, most = min(values), max(values)
    for kind in (Kind.UINT32, Kind.INT32, Kind.UINT64, Kind.INT64):
        limits = np.iinfo(_NUMPY[kind])
        if limits.min <= int(least) and int(most) <= limits.max:
            return kind
    raise ArgumentError(
        f"the metadata {excerpt(key)} cannot be written",
        found=f"{excerpt(least)} to {excerpt(most)}", wanted="64-bit integers",
    )  # fmt: skip


def encoded_text(text: str) -> bytes:
    """Return a string as files hold it; lone surrogates are the bytes that they stand for."""
    raw = text.encode("utf-8", "surrogateescape")
    return _LENGTH.pack(len(raw)) + raw


def encoded(key: str, entry: TypedValue) -> bytes:
    """Return a key, the kind and the value as files hold them.

    Raises ArgumentError for a number that its kind does not hold.
    """
    head = encoded_text(key) + struct.pack("<I", entry.kind)
    if entry.kind is not Kind.ARRAY:
        return head + _elements(key, [entry.value], entry.kind)
    values, element = entry.value, entry.element
    if not isinstance(values, list) or element is None:
        raise ArgumentError(f"the metadata {excerpt(key)} is no array", found=excerpt(values))
    head += struct.pack("<IQ", element, len(values))
    return head + _elements(key, values, element)


def _elements(key: str, values: Sequence[Any], kind: Kind) -> bytes:
    if kind is Kind.STRING:
        return b"".join(encoded_text(str(value)) for value in values)
    try:
        numbers = np.array(values, _NUMPY[kind])
    except (OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"the metadata {excerpt(key)} does not fit its kind",
            found=str(error), wanted=kind.name.lower(),
        ) from error  # fmt: skip
    if kind is Kind.FLOAT32 and any(
        math.isinf(a) and not math.isinf(float(b)) for a, b in zip(numbers, values, strict=True)
    ):
        raise ArgumentError(f"the metadata {excerpt(key)} is too large for float32")
    return numbers.tobytes()

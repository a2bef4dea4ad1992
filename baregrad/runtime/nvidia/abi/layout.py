"""Structs as tables of fields, and records: zeroed bytes that are read and written by field."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from baregrad.base.errors import ArgumentError

# The driver copies its own size of an allocation's parameters, whatever the caller says, so a
# record of an older release is followed by zeros that a newer driver may read and write.
_PADDING_NBYTES = 512

_KINDS = MappingProxyType({"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4})
_BYTES = re.compile(r"bytes\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its C designator (`a`, `a[0]`, `a.b`), where it starts and what it holds.

    `kind` is u8, u16, u32, u64, i32 or `bytes[n]`.
    """

    name: str
    offset: int
    kind: str
    nbytes: int

    @property
    def is_bytes(self) -> bool:
        """Whether the field is read and written as bytes, not as an integer."""
        return self.kind.startswith("bytes")


@dataclass(frozen=True)
class Struct:
    """A struct of the driver: the vendor's name, where it is declared, its size and its fields.

    Only fields that somebody reads or writes are listed; the rest stays zero.
    """

    name: str
    header: str
    nbytes: int
    fields: Mapping[str, Field] = field(repr=False)

    def record(self, **values: int | bytes) -> Record:
        """Return a zeroed record with the given fields set."""
        record = Record(self)
        for name, value in values.items():
            record[name] = value
        return record


class Record:
    """The bytes of one struct; the driver may read and write them as long as the record lives."""

    __slots__ = ("_memory", "struct")

    def __init__(self, struct: Struct, count: int = 1) -> None:
        self.struct = struct
        self._memory = (ctypes.c_ubyte * (struct.nbytes * count + _PADDING_NBYTES))()

    @property
    def address(self) -> int:
        """Where the record lies in this process."""
        return ctypes.addressof(self._memory)

    @property
    def nbytes(self) -> int:
        """The size of the struct (of all of them, for several)."""
        return len(self._memory) - _PADDING_NBYTES

    def view(self) -> memoryview:
        """Return the struct's bytes, shared, without the padding behind it."""
        return memoryview(self._memory).cast("B")[: self.nbytes]

    def padded(self) -> memoryview:
        """Return the struct's bytes and the zeros behind it, shared."""
        return memoryview(self._memory).cast("B")

    def field_at(self, key: str | tuple[str, int]) -> tuple[Field, int]:
        """Return a field and where it lies; `(name, i)` is that of the i-th struct of several."""
        name, index = key if isinstance(key, tuple) else (key, 0)
        found = self.struct.fields.get(name)
        if found is None:
            raise ArgumentError(f"{self.struct.name} has no field {name!r}")
        offset = found.offset + index * self.struct.nbytes
        if not 0 <= offset <= self.nbytes - found.nbytes:
            raise ArgumentError(f"{self.struct.name} has no element {index}", found=index)
        return found, offset

    def __getitem__(self, key: str | tuple[str, int]) -> int:
        """Return an integer field."""
        row, offset = self.field_at(key)
        data = self.view()[offset : offset + row.nbytes]
        return int.from_bytes(data, "little", signed=row.kind.startswith("i"))

    def data(self, key: str | tuple[str, int]) -> bytes:
        """Return a field's bytes."""
        row, offset = self.field_at(key)
        return bytes(self.view()[offset : offset + row.nbytes])

    def __setitem__(self, key: str | tuple[str, int], value: int | bytes) -> None:
        row, offset = self.field_at(key)
        if isinstance(value, int):
            if row.is_bytes:
                raise ArgumentError(f"{self.struct.name}.{row.name} takes bytes", found=value)
            signed = row.kind.startswith("i")
            try:
                value = value.to_bytes(row.nbytes, "little", signed=signed)
            except OverflowError:
                raise ArgumentError(
                    f"{self.struct.name}.{row.name} does not hold the value",
                    found=value,
                    wanted=row.kind,
                ) from None
        elif len(value) != row.nbytes:
            raise ArgumentError(
                f"{self.struct.name}.{row.name} has another size",
                found=f"{len(value)} bytes",
                wanted=f"{row.nbytes}",
            )
        self.view()[offset : offset + row.nbytes] = value

    def __repr__(self) -> str:
        shown = []
        for row in self.struct.fields.values():
            value = self.data(row.name)
            if any(value):
                number = int.from_bytes(value, "little")
                shown.append(f"{row.name}={value.hex() if row.is_bytes else hex(number)}")
        return f"<{self.struct.name} {' '.join(shown)}>"


def struct(name: str, header: str, nbytes: int, text: str) -> Struct:
    """Return a struct from lines of `offset kind designator`; checks that the fields fit."""
    fields = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        offset_text, kind, designator = line.split()
        match = _BYTES.fullmatch(kind)
        size = int(match[1]) if match else _KINDS[kind]
        fields[designator] = Field(designator, int(offset_text), kind, size)
    _check(name, nbytes, fields.values())
    return Struct(name, header, nbytes, fields)


def _check(name: str, nbytes: int, fields: Iterable[Field]) -> None:
    """Raise ArgumentError if fields overlap or reach outside the struct."""
    end = 0
    for row in sorted(fields, key=lambda row: row.offset):
        if row.offset < end or row.offset + row.nbytes > nbytes:
            raise ArgumentError(f"{name}.{row.name} overlaps or reaches outside", found=row.offset)
        end = row.offset + row.nbytes

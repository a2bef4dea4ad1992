"""Reading relocatable ELF64 objects, as much of them as compiled kernels have.

Sources: the System V ABI, chapter 4, and its supplements for x86-64 and AArch64.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.errors import CompileError

X86_64 = 62
AARCH64 = 183
MACHINES = MappingProxyType({"x86_64": X86_64, "aarch64": AARCH64})

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_TYPE_RELOCATABLE = 1
_SYMTAB, _RELA_SECTION, _NOBITS = 2, 4, 8
_FLAG_WRITE, _FLAG_ALLOC, _FLAG_TLS = 1, 2, 0x400
_COMMON = 0xFFF2
# Unwind tables: kernels throw nothing.
_SKIPPED = (".eh_frame", ".note.gnu.property")


@dataclass(frozen=True, slots=True)
class Section:
    """A section that takes memory; `data` is empty and `nbytes` its size if it starts as zeros."""

    name: str
    data: memoryview
    nbytes: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name at `value` bytes into section `section`, which is None for one defined elsewhere."""

    name: str
    section: int | None
    value: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """Patch `kind` at `offset` of section `section` with the address of `symbol`, plus `addend`."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """What a loader needs: sections by their number in the file, symbols, relocations."""

    machine: int
    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def read_object(data: bytes) -> ObjectFile:
    """Return the parts of a relocatable object; raise CompileError if it is broken."""
    try:
        return _read(memoryview(data))
    except (struct.error, IndexError, ValueError) as error:
        raise CompileError("a compiled kernel is no whole ELF object", log=str(error)) from error


def _read(data: memoryview) -> ObjectFile:
    header = _HEADER.unpack_from(data)
    ident, kind, machine, section_at, count, names_index = (
        header[0], header[1], header[2], header[6], header[12], header[13]
    )  # fmt: skip
    # 64-bit, little-endian: the only form that we make.
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _TYPE_RELOCATABLE:
        raise CompileError("a compiled kernel is no 64-bit relocatable ELF object")
    rows = [_SECTION.unpack_from(data, section_at + i * _SECTION.size) for i in range(count)]
    names = _contents(data, rows[names_index])
    sections = {}
    for index, row in enumerate(rows):
        section = _section(data, row, _text(names, row[0]))
        if section is not None:
            sections[index] = section
    symbols: tuple[Symbol, ...] = ()
    for row in rows:
        if row[1] == _SYMTAB:
            symbols = _symbols(_contents(data, row), _contents(data, rows[row[6]]))
    relocations = []
    for row in rows:
        # The section that the patches go to is named in the row's `info`.
        if row[1] == _RELA_SECTION and row[7] in sections:
            relocations += _relocations(_contents(data, row), row[7], sections[row[7]].nbytes)
    if any(item.symbol >= len(symbols) for item in relocations):
        raise ValueError("a relocation names no symbol")
    return ObjectFile(machine, sections, symbols, tuple(relocations))


def _section(data: memoryview, row: tuple[int, ...], name: str) -> Section | None:
    """Return the section if it takes memory and we want it."""
    kind, flags, nbytes, alignment = row[1], row[2], row[5], max(1, row[8])
    if not flags & _FLAG_ALLOC or nbytes == 0 or name in _SKIPPED:
        return None
    # .data.rel.ro is written by the loader alone.
    if flags & (_FLAG_WRITE | _FLAG_TLS) and not name.startswith(".data.rel.ro"):
        raise CompileError(
            f"a compiled kernel has variables of its own, in {name}",
            hint="kernels keep their state in buffers",
        )
    if alignment & (alignment - 1) or alignment > 4096:
        raise ValueError(f"section {name} is aligned to {alignment}")
    content = memoryview(b"") if kind == _NOBITS else _contents(data, row)
    return Section(name, content, nbytes, alignment)


def _contents(data: memoryview, row: tuple[int, ...]) -> memoryview:
    begin, nbytes = row[4], row[5]
    if begin + nbytes > len(data):
        raise ValueError("a section reaches past the end of the file")
    return data[begin : begin + nbytes]


def _text(table: memoryview, offset: int) -> str:
    if offset >= len(table):
        raise ValueError("a name lies outside its table")
    return bytes(table[offset:]).partition(b"\0")[0].decode()


def _symbols(data: memoryview, names: memoryview) -> tuple[Symbol, ...]:
    table = bytes(names)
    found = []
    for name_at, _, _, section, value, _ in _SYMBOL.iter_unpack(data):
        end = table.find(b"\0", name_at)
        if section == _COMMON or end < 0:
            raise ValueError("a symbol has no place or no name")
        name = table[name_at:end].decode()
        found.append(Symbol(name, section or None, value))
    return tuple(found)


def _relocations(data: memoryview, section: int, nbytes: int) -> list[Relocation]:
    found = []
    for offset, info, addend in _RELA.iter_unpack(data):
        if offset + 4 > nbytes:
            raise ValueError("a relocation lies outside its section")
        found.append(Relocation(section, offset, info & 0xFFFFFFFF, info >> 32, addend))
    return found

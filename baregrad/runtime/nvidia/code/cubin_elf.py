"""The ELF side of cubins: header, sections, symbols and relocations, of files that may be hostile.

pyelftools reads the header and the section table. Symbols and relocations are read here, since the
vendor keeps what says "kernel" in bits of theirs that ELF does not use.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from baregrad.base.bits import is_power_of_two
from baregrad.base.errors import FileFormatError, MissingDependency

EM_CUDA = 190
_LINKED, _RELOCATABLE = 2, 1
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_NBYTES = 64
_MAX_SECTIONS = 1 << 16
_SYMBOL = struct.Struct("<IBBHQQ")
_REL = struct.Struct("<QQ")
_RELA = struct.Struct("<QQq")
_PROGRAM, _SYMBOLS, _STRINGS, _RELA_KIND, _ZEROS, _REL_KIND = 1, 2, 3, 4, 8, 9
_FLAG_CODE, _FLAG_COMPRESSED = 4, 0x800
_FUNCTION, _ENTRY = 2, 0x10
_FIRST_RESERVED = 0xFF00
_MAX_ALIGNMENT = 1 << 16
# No GPU has as much memory.
_MAX_NBYTES = 1 << 44
# What the library raises for broken files, beside errors of its own.
_LIBRARY_ERRORS = (
    struct.error, ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError,
    OverflowError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ElfSection:
    """A section; `data` is empty for one of zeros, of which `nbytes` is the size."""

    index: int
    name: str
    kind: int
    flags: int
    data: memoryview
    nbytes: int
    alignment: int
    link: int
    info: int

    @property
    def is_code(self) -> bool:
        """Whether it holds instructions."""
        return self.kind == _PROGRAM and bool(self.flags & _FLAG_CODE)


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """A name at `value` bytes into `section`, None for one from elsewhere."""

    name: str
    section: int | None
    value: int
    is_entry: bool


@dataclass(frozen=True, slots=True)
class CubinRelocation:
    """Patch `kind` at `offset` of `section` with the address of `symbol` plus `addend`.

    An addend of None is found in the place that is patched.
    """

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int | None


@dataclass(frozen=True, slots=True)
class ElfFile:
    """The parts of a linked cubin; `sections` by their numbers."""

    capability: int
    abi: int
    sections: Mapping[int, ElfSection]
    symbols: tuple[ElfSymbol, ...]
    relocations: tuple[CubinRelocation, ...]


def read_elf(data: bytes) -> ElfFile:
    """Return the parts of a linked cubin; raise FileFormatError for anything else."""
    abi, capability = _read_header(data)
    sections = _read_sections(data)
    tables = [one for one in sections.values() if one.kind == _SYMBOLS]
    if len(tables) != 1:
        raise FileFormatError("a cubin has one table of symbols", found=len(tables))
    symbols = _read_symbols(tables[0], sections)
    relocations = []
    for section in sections.values():
        # Of zero length are those of the code, which the compiler resolves itself.
        if section.kind in (_REL_KIND, _RELA_KIND) and section.info in sections:
            relocations += _read_relocations(section, sections[section.info], len(symbols))
    return ElfFile(capability, abi, sections, symbols, tuple(relocations))


def _read_header(data: bytes) -> tuple[int, int]:
    """Return the ABI's number and the compute capability, as 90 for 9.0.

    All that the library trusts is checked first: it loops over what the header says.
    """
    if len(data) < _HEADER.size:
        raise FileFormatError("a cubin is cut short", found=f"{len(data)} bytes")
    ident, kind, machine, _, _, _, sections_at, flags, _, _, _, entry_nbytes, count, names = (
        _HEADER.unpack_from(data)
    )
    if ident[:7] != b"\x7fELF\x02\x01\x01" or machine != EM_CUDA:
        raise FileFormatError("no cubin: not a 64-bit ELF file for NVIDIA GPUs")
    if kind == _RELOCATABLE:
        raise FileFormatError(
            "a cubin is not linked", hint="compile without -rdc, or link with nvlink"
        )
    if kind != _LINKED:
        raise FileFormatError("a cubin is of no known kind", found=kind, wanted=_LINKED)
    if entry_nbytes != _SECTION_NBYTES or not 0 < names < count < _MAX_SECTIONS:
        raise FileFormatError("a cubin has no proper table of sections")
    if sections_at + count * _SECTION_NBYTES > len(data):
        raise FileFormatError("a cubin is cut short: its table of sections lies outside")
    abi = ident[8]
    if abi == 7:
        return abi, flags & 0xFF
    if abi == 8:
        return abi, flags >> 8 & 0xFF
    raise FileFormatError("a cubin of an unknown ABI", found=abi, wanted="7 (CUDA 12), 8 (CUDA 13)")


def _read_sections(data: bytes) -> dict[int, ElfSection]:
    """Return the sections by number, without the empty one at number 0."""
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
        from elftools.elf.enums import ENUM_SH_TYPE_BASE
    except ImportError as error:
        raise MissingDependency(package="pyelftools", extra="nvidia") from error
    try:
        table = [(one.name, one.header) for one in ELFFile(io.BytesIO(data)).iter_sections()]
    except (ELFError, *_LIBRARY_ERRORS) as error:
        raise FileFormatError(f"the sections of a cubin are broken ({error})") from error
    found = {}
    for index, (name, header) in enumerate(table):
        kind = header["sh_type"]
        number = ENUM_SH_TYPE_BASE.get(kind, 0) if isinstance(kind, str) else int(kind)
        if number:
            found[index] = _section(data, index, name, number, header)
    return found


def _section(
    data: bytes, index: int, name: str, kind: int, header: Mapping[str, int]
) -> ElfSection:
    flags, begin, nbytes = header["sh_flags"], header["sh_offset"], header["sh_size"]
    alignment = max(header["sh_addralign"], 1)
    if flags & _FLAG_COMPRESSED:
        raise FileFormatError(f"the section {name} of a cubin is compressed")
    if not is_power_of_two(alignment) or alignment > _MAX_ALIGNMENT:
        raise FileFormatError(f"the section {name} of a cubin is aligned badly", found=alignment)
    content = memoryview(b"")
    if kind == _ZEROS:
        if nbytes > _MAX_NBYTES:
            raise FileFormatError(f"the section {name} of a cubin is too big", found=nbytes)
    else:
        if begin + nbytes > len(data):
            raise FileFormatError(
                "a cubin is cut short",
                found=f"{len(data)} bytes",
                wanted=f"{begin + nbytes} for the section {name}",
            )
        content = memoryview(data)[begin : begin + nbytes]
    link, info = header["sh_link"], header["sh_info"]
    return ElfSection(index, name, kind, flags, content, nbytes, alignment, link, info)


def _read_symbols(table: ElfSection, sections: Mapping[int, ElfSection]) -> tuple[ElfSymbol, ...]:
    strings = sections.get(table.link)
    if strings is None or strings.kind != _STRINGS:
        raise FileFormatError("the symbols of a cubin have no table of names", found=table.link)
    if table.nbytes % _SYMBOL.size:
        raise FileFormatError("the symbols of a cubin are cut short", found=table.nbytes)
    names = bytes(strings.data)
    found = []
    for name_at, kind, other, section, value, _ in _SYMBOL.iter_unpack(table.data):
        end = names.find(b"\0", name_at)
        if end < 0:
            raise FileFormatError("a symbol of a cubin has no name", found=name_at)
        name = names[name_at:end].decode(errors="replace")
        defined = 0 < section < _FIRST_RESERVED
        if defined and section not in sections:
            raise FileFormatError(f"the symbol {name!r} of a cubin lies nowhere", found=section)
        entry = kind & 0xF == _FUNCTION and bool(other & _ENTRY) and defined
        found.append(ElfSymbol(name, section if defined else None, value, entry))
    return tuple(found)


def _read_relocations(
    section: ElfSection, patched: ElfSection, symbol_count: int
) -> list[CubinRelocation]:
    form = _RELA if section.kind == _RELA_KIND else _REL
    if section.nbytes % form.size:
        raise FileFormatError(f"the section {section.name} of a cubin is cut short")
    found = []
    for offset, info, *addend in form.iter_unpack(section.data):
        symbol = info >> 32
        if symbol >= symbol_count or offset >= patched.nbytes:
            raise FileFormatError(
                f"a relocation of {patched.name} in a cubin names nothing that is there",
                found=f"symbol {symbol}, offset {offset:#x}",
            )
        kind = info & 0xFFFFFFFF
        value = addend[0] if addend else None
        found.append(CubinRelocation(patched.index, offset, kind, symbol, value))
    return found
